"""Upstream disks that fail, fill up, stall or go away: a clear error, and other disks go on undisturbed."""

import re
import socket
import subprocess
import threading
import time

import pytest
from harness import images, nbdwire
from harness.daemon import Disk, fails_to_serve, until
from harness.nbdwire import Wire
from harness.programs import built, driver, finish_driver, need, need_root, run, start_driver

SIZE = 32 * images.MIB
EIO, ENOSPC = 5, 28


class Beside:
    """Another disk of the same daemon and the same worker, under a checked load."""

    def __init__(self, serve, scratch, image: object, image_format: str):
        self.image = images.raw(scratch / "by.raw", SIZE, seed=6)
        disks = [Disk("up", image, image_format), Disk("by", self.image, "raw")]
        self.daemon = serve(disks, workers=1)

    def goes_on(self) -> None:
        """A load of its own, hits and misses, is served now."""
        report = driver(
            "run", self.daemon.vhost("by"), "--ops", "2000", "--depth", "8", "--verify", self.image, limit=20
        )
        assert report["operations"] == 2000


def test_served_through_upstream(serve, scratch, nbdkit):
    """The plain case: stamped load through an upstream server, audited in the image behind it."""
    far = images.raw(scratch / "far.raw", SIZE)
    upstream = nbdkit("file", far)
    daemon = serve([Disk("up", upstream.uri, "nbd", {"size": '"16MiB"'})], memory="32MiB")
    load = ["--journal", scratch / "journal", "--block-max", "32KiB", "--depth", "8", "--ops", "3000"]
    driver("run", daemon.vhost("up"), *load, "--write-percent", "40", "--flush-every", "50")
    daemon.stop()
    assert driver("audit", "--journal", scratch / "journal", "--image", far, "--strict")["ok"]


def test_upstream_fails(serve, scratch, nbdkit):
    """Errors of the upstream disk reach the client as errors, for as long as they last; cached blocks are served on."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    trigger = scratch / "fail-now"
    upstream = nbdkit("--filter=error", "file", far, "error=EIO", "error-rate=100%", f"error-file={trigger}")
    beside = Beside(serve, scratch, upstream.uri, "nbd")
    daemon = beside.daemon
    contents = far.read_bytes()
    with Wire(daemon.nbd_socket) as wire:
        wire.handshake("up").request(nbdwire.READ, 0, 4096, 1)
        assert wire.reply() == (0, 1) and wire.receive(4096) == contents[:4096]
        trigger.touch()
        wire.request(nbdwire.READ, 8 * images.MIB, 4096, 2)
        assert wire.reply() == (EIO, 2)
        wire.request(nbdwire.WRITE, 8 * images.MIB, 4096, 3, data=b"w" * 4096)
        assert wire.reply() == (EIO, 3)
        wire.request(nbdwire.READ, 0, 4096, 4)
        assert wire.reply() == (0, 4) and wire.receive(4096) == contents[:4096], "a cached block needs no upstream"
        beside.goes_on()
        report = driver("run", daemon.vhost("up"), "--offset", "16MiB", "--ops", "50", "--allow-errors")
        assert report["errors"].get("5", 0) > 0, "guests get the errors, too"
        trigger.unlink()
        wire.request(nbdwire.READ, 8 * images.MIB, 4096, 5)
        assert wire.reply() == (0, 5)
        assert wire.receive(4096) in (contents[8 * images.MIB :][:4096], b"w" * 4096), "old or new, not mixed"
    driver("run", daemon.vhost("up"), "--offset", "16MiB", "--ops", "200", "--verify", far)


def test_upstream_fails_at_random(serve, scratch, nbdkit):
    """A tenth of all operations fail: every answer that is no error is right, and so is the image afterwards."""
    far = images.raw(scratch / "far.raw", SIZE)
    upstream = nbdkit(
        "--filter=error", "file", far, "error-pread-rate=10%", "error-pwrite-rate=10%", "error-zero-rate=10%"
    )
    daemon = serve([Disk("up", upstream.uri, "nbd", {"size": '"16MiB"'})], memory="32MiB")
    load = ["--journal", scratch / "journal", "--block", "512", "--block-max", "32KiB", "--depth", "8", "--ops", "4000"]
    mix = ["--write-percent", "40", "--zero-percent", "5", "--flush-every", "50", "--allow-errors"]
    report = driver("run", daemon.vhost("up"), *load, *mix)
    assert report["errors"], "nothing failed, so nothing was tested"
    daemon.stop()
    assert driver("audit", "--journal", scratch / "journal", "--image", far, "--strict")["ok"]


def test_upstream_stalls(serve, scratch, nbdkit):
    """An upstream disk that stops answering holds up its own clients only, and they are served when it comes back."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    upstream = nbdkit("file", far)
    beside = Beside(serve, scratch, upstream.uri, "nbd")
    daemon = beside.daemon
    upstream.pause()
    waiting = start_driver("run", daemon.vhost("up"), "--ops", "500", "--depth", "8", "--verify", far)
    until(lambda: daemon.disk("up")["inflight_ops"] > 0, "requests reach the stalled disk")
    beside.goes_on()
    assert waiting.poll() is None, "the stalled disk's client waits"
    upstream.go_on()
    assert finish_driver(waiting)["operations"] == 500


def test_upstream_is_slow(serve, scratch, nbdkit):
    """Half a second for every operation of one disk is not felt by the other."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    upstream = nbdkit("--filter=delay", "file", far, "rdelay=500ms", "wdelay=500ms")
    beside = Beside(serve, scratch, upstream.uri, "nbd")
    slow = start_driver("run", beside.daemon.vhost("up"), "--seconds", "3", "--depth", "4", "--verify", far)
    beside.goes_on()
    assert finish_driver(slow)["operations"] > 0


def test_upstream_goes_and_comes_back(serve, scratch, nbdkit):
    """The upstream server is killed and started again: the disk is served again, and what was flushed is there."""
    far = images.raw(scratch / "far.raw", SIZE)
    upstream = nbdkit("file", far)
    beside = Beside(serve, scratch, upstream.uri, "nbd")
    daemon = beside.daemon
    journal = scratch / "journal"
    load = [
        "--journal",
        journal,
        "--block-max",
        "32KiB",
        "--depth",
        "4",
        "--write-percent",
        "50",
        "--flush-every",
        "20",
    ]
    running = start_driver("run", daemon.vhost("up"), *load, "--seconds", "4", "--allow-errors")
    time.sleep(1)
    upstream.stop()
    beside.goes_on()
    upstream.start()
    report = finish_driver(running)
    assert report["journal"]["durable"] > 0
    # Errors may go on for as long as it takes to reconnect, and not longer.
    until(
        lambda: driver("run", daemon.vhost("up"), "--ops", "20", "--seed", "3", "--offset", "1MiB", check=False)["exit"]
        == 0,
        "the disk is served again",
    )
    driver("run", daemon.vhost("up"), *load, "--ops", "500")
    daemon.stop()
    findings = driver("audit", "--journal", journal, "--image", far)
    assert findings["ok"], findings


def test_attempts_to_reach_an_upstream_become_rarer(serve, scratch, nbdkit):
    """A server that takes connections and hangs up at once: each pause is twice as long as the one before, up to 5 s. A
    real one that comes back in its place is used."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    upstream = nbdkit("file", far)
    daemon = serve([Disk("up", upstream.uri, "nbd", {"size": '"16MiB"'})], memory="32MiB")
    upstream.stop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(upstream.socket))
        listener.listen(64)
        listener.settimeout(60)
        for n in range(7):
            connection, _ = listener.accept()
            if n == 0:
                began = time.monotonic()
            connection.close()
    # Six pauses of 50 ms and more, each twice the one before, are 3 s; a busy machine makes them longer.
    assert time.monotonic() - began > 1.5
    upstream.start()
    driver("run", daemon.vhost("up"), "--ops", "100", "--verify", far)


def test_upstream_not_there_at_start(scratch):
    """The URI is named."""
    uri = f"nbd+unix:///?socket={scratch}/nobody.sock"
    text = fails_to_serve("--image", uri, "--socket", scratch / "s.sock", "--control", scratch / "c.sock")
    assert "nobody.sock" in text


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_disk_fills_up(serve, scratch, image_format):
    """A sparse image on a full file system: ENOSPC for its writers, everything acknowledged is right, others go on."""
    need_root()
    need("mount", "umount", "qemu-img")
    small = scratch / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small)
    daemon = None
    try:
        image = images.make(small, "a", image_format, SIZE)
        beside = Beside(serve, scratch, image, image_format)
        daemon = beside.daemon
        journal = scratch / "journal"
        load = ["--journal", journal, "--block", "4KiB", "--block-max", "64KiB", "--depth", "4", "--flush-every", "20"]
        report = driver(
            "run",
            daemon.nbd("up"),
            *load,
            "--write-percent",
            "100",
            "--pattern",
            "seq",
            "--ops",
            "1500",
            "--allow-errors",
        )
        assert report["errors"].get(str(ENOSPC), 0) > 0, report["errors"]
        assert set(report["errors"]) == {str(ENOSPC)}, "no other error"
        beside.goes_on()
        findings = driver("audit", "--journal", journal, "--target", daemon.vhost("up"), "--strict")
        assert findings["ok"], findings
        run("mount", "-o", "remount,size=64m", small)
        driver("run", daemon.nbd("up"), *load, "--write-percent", "50", "--ops", "500")
        daemon.stop()
        at_rest = images.flattened(image, image_format, scratch / "at-rest.raw")
        assert driver("audit", "--journal", journal, "--image", at_rest, "--strict")["ok"]
    finally:
        if daemon and daemon.running():
            daemon.kill()  # only after a failure: it would keep the file system busy
        run("umount", "-l", small)


def test_stop_with_a_stalled_disk(serve, scratch, nbdkit):
    """SIGTERM while a disk does not answer: the other disks are closed in order, and the daemon does end."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    upstream = nbdkit("file", far)
    beside = Beside(serve, scratch, upstream.uri, "nbd")
    upstream.pause()
    waiting = start_driver("run", beside.daemon.vhost("up"), "--ops", "10", "--depth", "2")
    until(lambda: beside.daemon.disk("up")["inflight_ops"] > 0, "requests reach the stalled disk")
    back = threading.Timer(2.0, upstream.go_on)
    back.start()
    try:
        beside.daemon.stop()
    finally:
        back.join()
        waiting.kill()
        waiting.communicate()


def test_the_command_stop_waits_until_images_are_closed(serve, scratch, nbdkit):
    """While a disk does not answer, `undercroft stop` does not say that the daemon has stopped; when it does say so,
    the process is gone."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    upstream = nbdkit("file", far)
    beside = Beside(serve, scratch, upstream.uri, "nbd")
    upstream.pause()
    waiting = start_driver("run", beside.daemon.vhost("up"), "--ops", "10", "--depth", "2")
    try:
        until(lambda: beside.daemon.disk("up")["inflight_ops"] > 0, "requests reach the stalled disk")
        early = beside.daemon.call("stop", "--timeout", "1s", check=False)
        assert early.returncode == 1 and "has not stopped within 1s" in early.stderr, early
        assert beside.daemon.process.poll() is None
    finally:
        upstream.go_on()
        waiting.kill()
        waiting.communicate()
    until(lambda: beside.daemon.process.poll() is not None, "it ends when the image answers")


def test_stop_with_a_stalled_disk_of_an_nbd_client(serve, scratch, nbdkit):
    """SIGTERM while a request of an NBD client waits for a disk that never answers again: the other disks are closed
    in order, and the daemon ends by itself, not by its deadline."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    upstream = nbdkit("file", far)
    daemon = Beside(serve, scratch, upstream.uri, "nbd").daemon
    with Wire(daemon.nbd_socket) as wire, Wire(daemon.nbd_socket) as other:
        wire.handshake("up")
        other.handshake("by").request(nbdwire.WRITE, 0, 4096, 7)
        other.send(b"w" * 4096)
        assert other.reply() == (0, 7)
        upstream.pause()
        wire.request(nbdwire.READ, 8 * images.MIB, 4096, 1)
        until(lambda: daemon.disk("up")["inflight_ops"] > 0, "the request reaches the stalled disk")
        daemon.stop()
        assert other.closed(), "the client of a healthy disk is told"
    log = daemon.log()
    assert re.search(r"detached.*disk=\"?by", log), log
    assert "some images do not answer; stopping without them" in log, log
    assert "not stopped after" not in log, log


def test_stop_while_a_reload_waits_for_an_image(serve, scratch):
    """SIGTERM while a reload opens an image whose server does not answer: it is heard at once, and the disk that is
    served is closed in order."""
    image = images.raw(scratch / "by.raw", SIZE, seed=6)
    here = Disk("by", image, "raw")
    daemon = serve([here])
    silent = socket.socket(socket.AF_UNIX)
    with silent:
        silent.bind(str(scratch / "silent.sock"))
        silent.listen(8)
        daemon.write_config([here, Disk("up", f"nbd+unix:///?socket={scratch}/silent.sock", "nbd")])
        daemon.reload()
        silent.settimeout(20)
        taken, _ = silent.accept()
        with taken:
            daemon.stop()
    log = daemon.log()
    assert re.search(r"detached.*disk=\"?by", log), log
    heard, reload_ended = log.index("stopping: finishing"), log.find("reload: failed")
    assert reload_ended == -1 or heard < reload_ended, log
    assert "not stopped after" not in log, log


def test_opening_an_image_keeps_nobody_from_changing_others(serve, scratch):
    """A server that does not answer is waited for, by a reload and by `attach`; meanwhile disks are attached, changed
    and detached."""
    image, other = images.raw(scratch / "by.raw", SIZE, seed=6), images.raw(scratch / "other.raw", SIZE, seed=7)
    here = Disk("by", image, "raw", {"size": '"16MiB"'})
    daemon = serve([here], memory="64MiB")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(scratch / "silent.sock"))
        silent.listen(8)
        up, down = (f"nbd+unix:///{export}?socket={scratch}/silent.sock" for export in ("up", "down"))

        def others_change() -> None:
            daemon.call("attach", "other", other, "--format", "raw", "--nbd")
            driver("run", daemon.nbd("other"), "--ops", "50", "--verify", other)
            daemon.set("by", policy="arc")
            daemon.call("detach", "other")

        def waits_for_it(*command: object) -> str:
            """Runs a command that fails, since the server answers nothing; others do not wait for it."""
            program = [built("undercroft"), *command, "--control", daemon.control]
            with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as asks:
                silent.settimeout(20)
                taken = [silent.accept()[0]]
                others_change()
                assert asks.poll() is None, f"it waits for the server all the time: {asks.communicate()[0]}"
                said, _ = asks.communicate(timeout=60)
                for one in taken:
                    one.close()
            assert asks.returncode != 0, said
            return said

        assert "has not finished the handshake" in waits_for_it("attach", "up", up, "--nbd")
        share = {"size": '"8MiB"'}
        daemon.write_config([Disk("up", up, "nbd", share), here, Disk("down", down, "nbd", share)])
        said = waits_for_it("reload")
        assert said.count("the disk waits") == 2, said
    states = {d["name"]: d["state"] for d in daemon.status()["disks"]}
    assert states == {"by": "serving", "up": "waiting", "down": "waiting"}
