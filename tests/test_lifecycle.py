"""Start, stop and reload of the daemon, under load."""

import json
import os
import subprocess
import time

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.programs import built, driver, finish_driver, need, need_root, run, start_driver

SIZE = 32 * images.MIB


@pytest.mark.parametrize("front", ["vhost", "nbd"])
@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_sigterm_drains(serve, scratch, front, image_format):
    """SIGTERM under load: exit 0, sockets gone, and every acknowledged write is in the image, flushed or not."""
    need("qemu-img")
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB")
    target = daemon.vhost("a") if front == "vhost" else daemon.nbd("a")
    journal = scratch / "journal"
    load = ["--journal", journal, "--block-max", "32KiB", "--depth", "16", "--write-percent", "70"]
    running = start_driver("run", target, *load, "--seconds", "60")
    until(lambda: daemon.disk("a")["counters"]["writes"] > 200, "the load is under way")
    daemon.stop()
    report = finish_driver(running, check=False)
    assert report["exit"] == 3, report
    assert report["journal"]["acknowledged"] > 200
    at_rest = images.flattened(image, image_format, scratch / "at-rest.raw")
    findings = driver("audit", "--journal", journal, "--image", at_rest, "--strict")
    assert findings["ok"] and findings["unflushed_lost"] == 0
    if image_format == "qcow2":
        run("qemu-img", "check", "-f", "qcow2", image)


def test_stop_by_command(serve, scratch):
    """`undercroft stop` does what SIGTERM does."""
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", SIZE), "raw")])
    daemon.call("stop")
    daemon.process.wait(10)
    daemon.stop()


def test_stop_when_idle_and_at_once(serve, scratch):
    """A daemon that was never used stops cleanly, too; so does one that is told right after it is ready."""
    for i in range(3):
        serve([Disk("a", images.raw(scratch / f"{i}.raw", SIZE), "raw")]).stop()


def test_hang_up_reloads(serve, scratch):
    """SIGHUP: a new disk is served, one that is gone is no more, a policy changes, and the disk in use notices
    nothing."""
    used = images.raw(scratch / "used.raw", SIZE, seed=1)
    gone = images.raw(scratch / "gone.raw", SIZE)
    new = images.raw(scratch / "new.raw", SIZE, seed=2)
    share = {"size": '"16MiB"'}
    daemon = serve(
        [Disk("used", used, "raw", {**share, "policy": '"lru"'}), Disk("gone", gone, "raw", share)], memory="64MiB"
    )
    running = start_driver("run", daemon.vhost("used"), "--seconds", "30", "--depth", "8", "--verify", used)
    until(lambda: daemon.disk("used")["counters"]["reads"] > 100, "the load is under way")
    daemon.write_config([Disk("used", used, "raw", {**share, "policy": '"arc"'}), Disk("new", new, "raw", share)])
    daemon.reload()
    until(lambda: [d["name"] for d in daemon.status()["disks"]] == ["used", "new"], "the disks have changed")
    until(lambda: daemon.disk("used")["cache"]["policy"] == "arc", "the policy has changed")
    driver("run", daemon.vhost("new"), "--ops", "200", "--depth", "4", "--verify", new)
    driver("run", daemon.nbd("new"), "--ops", "200", "--depth", "4", "--verify", new)
    assert not os.path.exists(daemon.vhost("gone"))
    assert running.poll() is None, "the disk in use was disturbed"
    before = daemon.disk("used")["counters"]["reads"]
    until(lambda: daemon.disk("used")["counters"]["reads"] > before + 100, "the disk in use goes on")
    running.kill()
    running.communicate()


def test_bad_reload_changes_nothing(serve, scratch):
    """A file with a mistake is refused as a whole; everything goes on as before."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", image, "raw")])
    good = daemon.config.read_text()
    daemon.config.write_text(good + "nonsense = 1\n")
    daemon.reload()
    until(lambda: "nonsense" in daemon.log(), "the mistake is in the log")
    daemon.config.write_text("this is no TOML [[[")
    assert daemon.call("reload", check=False).returncode == 1
    driver("run", daemon.vhost("a"), "--ops", "200", "--verify", image)
    daemon.config.write_text(good)
    assert daemon.call("reload").returncode == 0


def test_image_alone_needs_no_configuration(scratch):
    """`undercroft serve --image X`: a socket beside the image and the QEMU line to paste."""
    image = images.raw(scratch / "disk.raw", SIZE, seed=1)
    command = [built("undercroft"), "serve", "--image", image, "--control", scratch / "c.sock", "--memory", "64MiB"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        socket = scratch / "disk.raw.sock"
        until(socket.exists, "the socket beside the image")
        driver("run", socket, "--ops", "100", "--verify", image)
        process.terminate()
        out, _ = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert str(socket) in out and "vhost-user-blk" in out, out
    assert not socket.exists()


def form(status):
    """What of a status is the same at every look: keys and texts, and for numbers of what kind they are."""
    if isinstance(status, dict):
        return {key: form(value) for key, value in status.items()}
    if isinstance(status, list):
        return [form(value) for value in status]
    return status if isinstance(status, str) else type(status)


def test_commands_about_a_running_daemon(serve, scratch):
    """status, attach-args, drop-cache and set, as people use them. `status --json` prints all that the API tells."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", image, "raw", {"size": '"32MiB"'})], memory="64MiB")
    driver("run", daemon.vhost("a"), "--ops", "500", "--length", "4MiB", "--prefill")
    disk = daemon.disk("a")
    assert disk["counters"]["hit_blocks"] > 0 and disk["cache"]["cached_bytes"] >= 4 * images.MIB
    assert "a" in daemon.call("status").stdout
    attach = daemon.call("attach-args", "a").stdout
    assert daemon.vhost("a") in attach and "<disk" in attach
    daemon.call("drop-cache", "a")
    until(lambda: daemon.disk("a")["cache"]["cached_bytes"] == 0, "the cache is empty")
    shown = json.loads(daemon.call("set", "a", "--size", "24MiB", "--json").stdout)
    assert shown["name"] == "a" and shown["cache"]["share_bytes"] == 24 * images.MIB
    shown = json.loads(daemon.call("set", "a", "--weight", "7", "--json").stdout)
    assert shown["weight"] == 7 and shown["previous"]["weight"] != 7
    assert json.loads(daemon.call("set", "--memory", "48MiB", "--json").stdout)["limit_bytes"] == 48 * images.MIB
    daemon.set("a", size="16MiB", policy="sieve", poll="0")
    disk = daemon.disk("a")
    assert disk["cache"]["share_bytes"] == 16 * images.MIB and disk["cache"]["policy"] == "sieve"
    done = daemon.call("set", "nothing", "--policy", "lru", check=False)
    assert done.returncode == 1 and "nothing" in done.stderr
    printed, told = json.loads(daemon.call("status", "--json").stdout), daemon.status()
    assert printed["pid"] == told["pid"] == daemon.pid and form(printed) == form(told)
    assert printed["disks"][0]["counters"] == told["disks"][0]["counters"], "nobody uses it meanwhile"


def test_idle_daemon_rests(serve, scratch):
    """With polling on and guests connected but idle, the daemon uses next to no CPU."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", image, "raw")], poll="50us")
    running = start_driver("run", daemon.vhost("a"), "--ops", "1000", "--depth", "1")
    finish_driver(running)
    time.sleep(0.2)

    def ticks() -> int:
        with open(f"/proc/{daemon.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(1.0)
    # A worker that spun would use 100 ticks of 10 ms; this is no timing, but a hundredfold difference.
    assert ticks() - before < 30


@pytest.mark.parametrize("way", ["detach", "reload"])
def test_a_disk_that_cannot_go_keeps_its_memory_until_it_does(serve, scratch, nbdkit, way):
    """The image of a disk that is taken away does not answer: others get what it has when it has gone, not before, and
    then without another command. All the time the store holds no more than it may."""
    size = 8 * images.MIB
    upstream = nbdkit("file", images.raw(scratch / "far.raw", size, seed=1))
    rest = [Disk(n, images.raw(scratch / f"{n}.raw", size, seed=2), "raw") for n in "bc"]
    extra = '[shares]\ninterval = "1s"\ncontroller = "static"\n'
    daemon = serve([Disk("up", upstream.uri, "nbd"), *rest], memory="16MiB", workers=2, extra=extra)
    names = ["up", "b", "c"]
    for name in names:
        driver("run", daemon.nbd(name), "--ops", "200", "--prefill", "--depth", "8", "--length", "4MiB")
    loads = [start_driver("run", daemon.nbd(name), "--seconds", "120", "--depth", "8") for name in names]

    def look() -> tuple[int, int]:
        """What the disks that stay have by their shares, and what they may keep."""
        status = daemon.status()
        store = status["store"]
        assert store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"] <= store["memory_bytes"], store
        caches = [d["cache"] for d in status["disks"] if d["name"] != "up"]
        return sum(c["share_bytes"] for c in caches), sum(c["capacity_bytes"] for c in caches)

    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            look()
            time.sleep(0.01)
        has = daemon.disk("up")["cache"]["share_bytes"]
        upstream.pause()
        time.sleep(0.5)
        if way == "detach":
            assert daemon.api("DELETE", "/v1/disks/up")[0] == 503
        else:
            daemon.write_config(rest)
            assert "it goes when it does" in daemon.call("reload", check=False).stdout
        assert [d["name"] for d in daemon.status()["disks"]] == ["b", "c"]
        # A change by hand divides the store anew.
        daemon.call("set", "b", "--weight", "200")
        end = time.monotonic() + 4
        while time.monotonic() < end:
            share, capacity = look()
            assert share <= 16 * images.MIB - has, "what it has is for nobody else"
            time.sleep(0.1)
        upstream.go_on()
        until(lambda: look()[0] > 15 * images.MIB, "others have its share")
        until(lambda: look()[1] > capacity + has // 2, "they keep more")
    finally:
        upstream.go_on()
        for load in loads:
            load.kill()
            load.communicate()


def test_disks_come_and_go_by_command(serve, scratch):
    """attach and detach: one disk more is served, by the rules of the file, and goes; what is refused says what to
    do."""
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", SIZE, seed=1), "raw")], memory="64MiB")
    image = images.raw(scratch / "b.raw", SIZE, seed=2)
    socket = scratch / "b.sock"
    said = daemon.call("attach", "web:data", image, "--socket", socket, "--nbd", "--policy", "lru").stdout
    assert f"vhost-user: {socket}" in said and 'export "web:data"' in said and "attach-args web:data" in said
    disk = daemon.disk("web:data")
    assert disk["state"] == "serving" and disk["cache"]["policy"] == "lru"
    driver("run", socket, "--ops", "200")
    for words, expected in [
        (["a", image], "a"),
        (["c", scratch / "none.raw"], "does not exist"),
        (["c d", image], "cannot be the name"),
        (["c", "/etc/passwd", "--format", "qcow2"], "is no qcow2 image"),
    ]:
        refused = daemon.call("attach", *words, "--socket", scratch / "c.sock", check=False)
        assert refused.returncode == 1 and expected in refused.stderr, refused.stderr
    refused = daemon.call("attach-args", "nobody", check=False)
    assert refused.returncode == 1 and 'no disk or VM "nobody"' in refused.stderr
    assert json.loads(daemon.call("detach", "data", "--json").stdout) == {"detached": "web:data"}
    assert [d["name"] for d in daemon.status()["disks"]] == ["a"] and not socket.exists()
    again = daemon.call("detach", "data", check=False)
    assert again.returncode == 1 and "there is no disk" in again.stderr
    shown = json.loads(daemon.call("attach", "b", image, "--read-only", "--socket", socket, "--json").stdout)
    assert shown["name"] == "b" and shown["read_only"]


def test_a_group_in_which_the_daemon_is_not_is_said_with_what_to_do(scratch):
    """Only root may give sockets to any group; a daemon of a user of its own has to be in it. For the control socket it
    does not start; for a disk's, the disk waits."""
    need_root()
    need("setpriv")
    image = images.raw(scratch / "a.raw", SIZE)
    for path in (scratch, image):
        os.chown(path, 65534, 65534)
    config = scratch / "undercroft.toml"
    alone = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for key, ends in (("control_group", True), ("disk_group", False)):
        config.write_text(
            f'[daemon]\nruntime_dir = "{scratch}/run"\ncontrol = "{scratch}/c.sock"\n{key} = 4\n'
            f'[[disk]]\nname = "a"\nimage = "{image}"\nformat = "raw"\n[store]\nmemory = "64MiB"\n'
        )
        log = scratch / f"{key}.log"
        with log.open("wb") as to:
            daemon = subprocess.Popen([*alone, built("undercroft"), "serve", config], stdout=to, stderr=to)
        try:
            until(lambda log=log: "SupplementaryGroups=4" in log.read_text(), "the remedy is in the log")
            assert "cannot be given to the group 4, in which this process is not" in log.read_text()
            if ends:
                assert daemon.wait(20) == 1
            else:
                until(lambda log=log: "1 waiting" in log.read_text(), "it serves the others")
        finally:
            daemon.kill()
            daemon.wait()
