"""Recordings of a live daemon: what clients asked for is in the file, in order, with how it was served."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.nbdwire import BLOCK_STATUS, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES, Wire
from harness.programs import BESIDE, ROOT, built, driver, finish_driver, need, need_root, run, start_driver
from harness.stopped_thread import StoppedThread

SIZE = 32 * images.MIB
BLOCK = 4096
OPS = {READ: "read", WRITE: "write", FLUSH: "flush", TRIM: "discard", WRITE_ZEROES: "write_zeroes"}


def rows_program():
    """What prints recordings."""
    for kind in ("release", "debug"):
        if (path := ROOT / "target" / kind / "examples/recording_rows").exists():
            return path
    return pytest.fail("recording_rows is not built: cargo build -p undercroft-trace --examples")


def rows_of(path):
    """The recording: what it says about itself, and its rows."""
    about, *rows = (json.loads(line) for line in run(rows_program(), path).stdout.splitlines())
    assert about["trailer"]["rows"] == len(rows)
    return about["header"], about["trailer"], rows


class Recorder:
    """`undercroft record`, running."""

    def __init__(self, daemon, path, *arguments):
        words = [built("undercroft"), "record", path, *arguments, "--json", "--control", daemon.control]
        self.process = subprocess.Popen(
            [str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.daemon = daemon
        until(
            lambda: self.process.poll() is not None or any(r["running"] for r in api(daemon, "GET")[1]),
            "recording begins",
        )

    def end(self, with_signal=signal.SIGINT, limit=30):
        """Ends it as Ctrl-C does; returns what it says, within `limit` seconds."""
        if with_signal:
            self.process.send_signal(with_signal)
        out, err = self.process.communicate(timeout=limit)
        assert self.process.returncode == 0, err
        return json.loads(out)


def api(daemon, method, path="", body=None):
    """A request about recordings: status and answer."""
    status, text = daemon.api(method, f"/v1/recordings{path}", body)
    return status, json.loads(text)


def ask(wire, command, offset, length, data=b""):
    """One request, and its reply."""
    wire.request(command, offset, length, data=data)
    error, _ = wire.reply()
    if command == READ and not error:
        wire.receive(length)
    return error


@pytest.fixture
def one(serve, scratch):
    """One disk, with a cache of a quarter of it."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    return serve([Disk("a", image, "raw", {"size": '"12MiB"', "readahead": '"0"'})], memory="64MiB")


def counters(daemon, disk):
    return daemon.disk(disk)["counters"]


def test_every_request_is_there_in_order(one, scratch):
    """At depth 1 every request is a row, with what the daemon's own counters say of it; what the start was like is
    known."""
    path = scratch / "all.parquet"
    chance = random.Random(7)
    recorder = Recorder(one, path)
    expected = []
    with Wire(one.nbd_socket).handshake("a") as wire:
        before = counters(one, "a")
        for n in range(600):
            command = chance.choice([READ] * 6 + [WRITE, WRITE, FLUSH, TRIM, WRITE_ZEROES])
            length = 512 * chance.randint(1, 64)
            offset = 512 * chance.randint(0, (8 * images.MIB - length) // 512)
            if command == FLUSH:
                offset = length = 0
            assert ask(wire, command, offset, length, b"x" * length if command == WRITE else b"") == 0
            expected.append((OPS[command], offset, length))
            if n % 20 == 0 and command == READ:
                now = counters(one, "a")
                expected[-1] += ({k: now[k] - before[k] for k in ("hit_blocks", "miss_blocks")},)
            if n % 20 == 19:
                before = counters(one, "a")
        # Status is no access.
        wire.request(BLOCK_STATUS, 0, 4096)
    last = counters(one, "a")
    said = recorder.end()
    header, trailer, rows = rows_of(path)
    assert [(r["op"], r["offset_bytes"], r["length_bytes"]) for r in rows] == [e[:3] for e in expected]
    checked = [(r, e[3]) for r, e in zip(rows, expected) if len(e) > 3]
    assert len(checked) > 5
    for row, counted in checked:
        assert (row["hit_blocks"], row["miss_blocks"]) == (counted["hit_blocks"], counted["miss_blocks"])
    for row in rows:
        first, end = row["offset_bytes"] // BLOCK, -(-(row["offset_bytes"] + row["length_bytes"]) // BLOCK)
        found = row["hit_blocks"] + row["ahead_blocks"] + row["joined_blocks"] + row["miss_blocks"]
        assert found == (end - first if row["op"] == "read" else 0)
        assert row["failure"] is None and row["disk"] == "a"
        # Whatever waited for the image has a latency; a hit has none.
        assert (row["latency_ns"] is None) <= (row["miss_blocks"] == 0)
        assert row["miss_blocks"] == 0 or row["latency_ns"] > 0
    for name in ("hit_blocks", "miss_blocks", "joined_blocks"):
        assert sum(r[name] for r in rows) == last[name], name
    assert last["hit_blocks"] > 0 and last["miss_blocks"] > 0
    times = [r["time_ns"] for r in rows]
    assert times == sorted(times) and times[-1] <= trailer["ended_ns"]
    (disk,) = header["disks"]
    assert (disk["cached_blocks"], disk["size_bytes"], disk["readahead_bytes"]) == (0, SIZE, 0)
    assert disk["policy"] == trailer["disks"][0]["policy"] == one.disk("a")["cache"]["policy"]
    assert disk["capacity_blocks"] == trailer["disks"][0]["capacity_blocks"] > 0
    assert abs(header["started_unix_ns"] / 1e9 - time.time()) < 600
    assert (trailer["reason"], trailer["dropped"], trailer["gaps"]) == ("stopped", 0, [])
    assert (said["requests"], said["dropped"], said["ended"]) == (len(rows), 0, "stopped")
    assert said["bytes"] == path.stat().st_size
    assert said["hit_blocks"] == last["hit_blocks"]


def test_read_ahead_and_depth(serve, scratch):
    """Under load with read-ahead, rows sum up to the daemon's counters, and no request is lost."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", image, "raw", {"size": '"12MiB"'})], memory="64MiB")
    path = scratch / "seq.parquet"
    recorder = Recorder(daemon, path)
    driver("run", daemon.nbd("a"), "--pattern", "seq", "--depth", "4", "--block", "64KiB", "--ops", "400")
    driver("run", daemon.nbd("a"), "--depth", "16", "--ops", "20000", "--write-percent", "20")
    last = counters(daemon, "a")
    said = recorder.end()
    _, trailer, rows = rows_of(path)
    total = {n: sum(r[n] for r in rows) for n in ("hit_blocks", "ahead_blocks", "joined_blocks", "miss_blocks")}
    assert total["hit_blocks"] + total["ahead_blocks"] == last["hit_blocks"]
    assert total["ahead_blocks"] == last["readahead_hit_blocks"] > 0
    assert (total["joined_blocks"], total["miss_blocks"]) == (last["joined_blocks"], last["miss_blocks"])
    reads = [r for r in rows if r["op"] == "read"]
    writes = [r for r in rows if r["op"] == "write"]
    assert (len(reads), len(writes)) == (last["reads"], last["writes"]) and trailer["dropped"] == said["dropped"] == 0
    assert all(r["failure"] is None for r in rows)


def test_filters_and_samples(serve, scratch):
    """Only the disks that were named are recorded, and of a sample all requests to its blocks and no others; disks that
    come later are recorded too."""
    files = {n: images.raw(scratch / f"{n}.raw", 8 * images.MIB, seed=i) for i, n in enumerate(("web", "db", "late"))}
    vms = "".join(
        f'[[vm]]\nname = "{n}"\n[[vm.disk]]\nname = "root"\nimage = "{files[n]}"\nformat = "raw"\nnbd ='
        " true\nvhost_user = false\n"
        for n in ("web", "db")
    )
    daemon = serve([], memory="96MiB", extra=vms)
    for arguments, names in (
        (("--disk", "db:root"), {"db:root"}),
        (("--vm", "web"), {"web:root"}),
        ((), {"web:root", "db:root"}),
    ):
        path = scratch / f"{len(names)}{'-'.join(sorted(names))}.parquet".replace(":", "")
        recorder = Recorder(daemon, path, *arguments)
        for name in ("web:root", "db:root"):
            driver("run", daemon.nbd(name), "--ops", "50")
        assert recorder.end()["requests"] == 50 * len(names)
        header, _, rows = rows_of(path)
        assert {r["disk"] for r in rows} == names == {d["name"] for d in header["disks"]}
        assert all(d["vm"] == d["name"].split(":")[0] for d in header["disks"])
    for arguments, said in (
        (("--disk", "db:rot"), 'did you mean "db:root"'),
        (("--vm", "wbe"), 'did you mean "web"'),
        (("--disk", "root"), "give the full name"),
    ):
        refused = daemon.call("record", scratch / "no.parquet", *arguments, check=False)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr
        assert not (scratch / "no.parquet").exists()
    whole, part = scratch / "whole.parquet", scratch / "part.parquet"
    blocks = {}
    for path, sample in ((whole, "1/1"), (part, "1/8")):
        recorder = Recorder(daemon, path, "--disk", "web:root", "--sample", sample)
        with Wire(daemon.nbd_socket).handshake("web:root") as wire:
            for block in range(1024):
                ask(wire, READ, block * BLOCK, BLOCK)
        recorder.end()
        header, _, rows = rows_of(path)
        assert header["sample"] == int(sample[2:])
        blocks[sample] = [r["offset_bytes"] // BLOCK for r in rows]
    assert blocks["1/1"] == list(range(1024))
    assert 90 <= len(blocks["1/8"]) <= 170
    again = Recorder(daemon, scratch / "again.parquet", "--sample", "1/8", "--disk", "db:root")
    with Wire(daemon.nbd_socket).handshake("db:root") as wire:
        ask(wire, READ, 0, 1024 * BLOCK)
        for block in blocks["1/8"]:
            ask(wire, READ, block * BLOCK, BLOCK)
    again.end()
    rows = rows_of(scratch / "again.parquet")[2]
    assert [r["length_bytes"] for r in rows] == [1024 * BLOCK] + [BLOCK] * len(blocks["1/8"])
    recorder = Recorder(daemon, scratch / "late.parquet")
    daemon.config.write_text(
        daemon.config.read_text()
        + f'[[disk]]\nname = "late"\nimage = "{files["late"]}"\nformat = "raw"\nnbd = true\nvhost_user = false\n'
    )
    daemon.call("reload")
    driver("run", daemon.nbd("late"), "--ops", "50")
    recorder.end()
    header, trailer, rows = rows_of(scratch / "late.parquet")
    late = next(d for d in header["disks"] if d["name"] == "late")
    assert late["since_ns"] > 0 and late["capacity_blocks"] > 0 and late["cached_blocks"] == 0
    assert [r["disk"] for r in rows] == ["late"] * 50 and not any(d["detached"] for d in trailer["disks"])


def test_one_at_a_time_and_nothing_is_overwritten(one, scratch):
    """A second recording is refused and says which is under way; a file that holds something stays unless forced."""
    path, other = scratch / "first.parquet", scratch / "other.parquet"
    recorder = Recorder(one, path)
    refused = one.call("record", other, check=False)
    assert refused.returncode == 1 and str(path) in refused.stderr and "under way" in refused.stderr
    assert not other.exists()
    refused = one.call("attach", "file", path, "--format", "raw", "--nbd", check=False)
    assert refused.returncode == 1 and f"belongs to the recording {path}" in refused.stderr, refused.stderr
    recorder.end()
    refused = one.call("record", path, check=False)
    assert refused.returncode == 1 and "--force" in refused.stderr
    rows_of(path)
    image = scratch / "a.raw"
    refused = one.call("record", image, "--force", check=False)
    assert refused.returncode == 1 and "image of a disk" in refused.stderr
    assert image.stat().st_size == SIZE
    base, top = scratch / "base.qcow2", scratch / "top.qcow2"
    run("qemu-img", "create", "-f", "qcow2", base, "4M")
    run("qemu-img", "create", "-f", "qcow2", "-b", base, "-F", "qcow2", top)
    one.call("attach", "top", top)
    held = base.read_bytes()
    refused = one.call("record", base, "--force", "--duration", "300ms", check=False)
    assert refused.returncode == 1 and "image of a disk" in refused.stderr and str(top) in refused.stderr
    assert base.read_bytes() == held
    one.call("detach", "top")
    one.call("record", base, "--force", "--duration", "300ms")
    assert base.read_bytes() != held
    ended = json.loads(one.call("record", path, "--force", "--duration", "300ms", "--json").stdout)
    assert (ended["ended"], ended["running"]) == ("duration", False)
    assert rows_of(path)[1]["reason"] == "duration"


def test_without_its_client_it_ends(one, scratch):
    """A command that is killed leaves a whole file, soon; over the API a recording goes on by itself until it is
    ended."""
    path = scratch / "a.parquet"
    recorder = Recorder(one, path)
    driver("run", one.nbd("a"), "--ops", "100")
    recorder.process.kill()
    recorder.process.communicate()
    until(lambda: not api(one, "GET")[1][0]["running"], "the lease ends", limit=30)
    _, trailer, rows = rows_of(path)
    assert trailer["reason"] == "client-gone" and len(rows) == 100
    status, begun = api(one, "POST", body={"path": str(scratch / "b.parquet")})
    assert (status, begun["running"], begun["ending"], begun["waiting"], begun["waiting_bytes"]) == (
        201,
        True,
        None,
        0,
        0,
    )
    assert api(one, "POST", body={"path": str(scratch / "c.parquet")})[0] == 409
    driver("run", one.nbd("a"), "--ops", "100")
    assert api(one, "GET", "/99")[0] == api(one, "DELETE", "/99")[0] == 404
    status, ended = api(one, "DELETE", f"/{begun['id']}")
    # It waits for the file, but not forever.
    until(lambda: not api(one, "GET", f"/{begun['id']}")[1]["running"], "the file is whole")
    ended = api(one, "GET", f"/{begun['id']}")[1]
    assert (status, ended["ending"], ended["ended"], ended["requests"]) == (200, "stopped", "stopped", 100)
    assert (ended["waiting"], ended["waiting_bytes"]) == (0, 0)
    assert {f.name for f in scratch.iterdir() if f.is_file()} == {
        "a.raw",
        "a.parquet",
        "b.parquet",
    }, "nothing is left beside it"
    assert len(rows_of(scratch / "b.parquet")[2]) == 100


@pytest.fixture
def apart(serve, scratch):
    """Starts a daemon as another user, who may open nothing in `scratch`/own and sees another /tmp: as a service with
    PrivateTmp."""
    need_root()
    need("setpriv", "unshare", "mount")
    scratch.chmod(0o755)
    (scratch / "own").mkdir(mode=0o700)
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    os.chown(image, 65534, 65534)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    private = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=1777 private /tmp && exec "$@"', "sh"]

    def wrap(command):
        os.chown(scratch / "d0", 65534, 65534)
        return [*private, *as_nobody, *command]

    disk = Disk("a", image, "raw", {"size": '"12MiB"', "readahead": '"0"'})
    return serve([disk], memory="64MiB", wrap=wrap)


@pytest.mark.parametrize("where", ["a directory of another user", "another /tmp"])
def test_a_daemon_of_another_user_writes_the_file_of_whoever_asks(apart, scratch, where):
    """Wherever the file is, and whoever owns it: rows go into it, and wait beside it. It belongs to who asked, and what
    the daemon sees at its path does not matter."""
    directory = scratch / "own" if where.startswith("a directory") else Path("/tmp")
    path = directory / f"{scratch.name}.parquet"
    try:
        for force in ([], ["--force"]):
            recorder = Recorder(apart, path, *force)
            driver("run", apart.nbd("a"), "--ops", "100")
            said = recorder.end()
            assert (said["path"], said["requests"], said["bytes"]) == (str(path), 100, path.stat().st_size), said
            assert len(rows_of(path)[2]) == 100 and path.stat().st_uid == os.geteuid()
        assert "there is no place where they could wait" not in apart.log()
    finally:
        path.unlink(missing_ok=True)
    assert list((scratch / "own").iterdir()) == []


def test_what_cannot_become_a_recording_is_refused_by_its_name_and_stays(apart, scratch):
    """An image that the daemon may not even read, a device, a link; and over the API, where the daemon would have to
    open the file itself, what to do about that."""
    own = scratch / "own"
    base, top = own / "base.raw", scratch / "link"
    images.raw(base, images.MIB, seed=2)
    top.symlink_to(base)
    held = base.read_bytes()
    for path, force, words in [
        (base, [], "exists already; name another file, or overwrite it with --force"),
        (top, ["--force"], f"{top} is a symbolic link; name the file itself"),
        (Path("/dev/null"), ["--force"], "/dev/null is no plain file; name one"),
        (scratch / "a.raw", ["--force"], "is the image of a disk"),
        (own / "none" / "x", [], f"cannot create {own}/none/x: No such file or directory"),
    ]:
        refused = apart.call("record", path, *force, check=False)
        assert refused.returncode == 1 and words in refused.stderr, refused.stderr
    assert base.read_bytes() == held and (scratch / "a.raw").stat().st_size == SIZE
    for body, words in [
        ({"path": str(own / "x")}, "pass the file's descriptor along, as `undercroft record` does"),
        ({"path": str(own / "x"), "descriptor": True}, "no descriptor has come along with the request"),
    ]:
        status, said = api(apart, "POST", body=body)
        assert status in (400, 500) and words in said["error"] + said["remedy"], said
    assert not (own / "x").exists() and api(apart, "GET")[1] == []


def test_a_vms_socket_takes_no_file(serve, scratch):
    """The owner of a VM records nothing, and leaves no file."""
    image, socket = images.raw(scratch / "a.raw", SIZE, seed=1), scratch / "web.sock"
    extra = f'[[vm]]\nname = "web"\ncontrol_socket = "{socket}"\n'
    extra += f'[[vm.disk]]\nname = "a"\nimage = "{image}"\nformat = "raw"\nnbd = true\n'
    serve([], memory="64MiB", extra=extra)
    words = [built("undercroft"), "record", scratch / "x.parquet", "--control", socket]
    refused = run(*words, check=False)
    assert refused.returncode == 1 and "/v1/recordings cannot be seen or changed" in refused.stderr, refused.stderr
    assert not (scratch / "x.parquet").exists()


def test_a_daemon_that_stops_finishes_the_file(one, scratch):
    """Whoever stops the daemon: the file is whole, and the command says what happened."""
    path = scratch / "a.parquet"
    recorder = Recorder(one, path)
    driver("run", one.nbd("a"), "--ops", "500")
    one.stop()
    said = recorder.end(with_signal=None)
    _, trailer, rows = rows_of(path)
    assert said["ended"] == trailer["reason"] == "daemon-stopped" and said["requests"] == len(rows) == 500


def test_a_killed_daemon_leaves_a_file_that_says_so(one, scratch):
    """No end, no recording: the reader says what happened instead of guessing."""
    path = scratch / "a.parquet"
    api(one, "POST", body={"path": str(path)})
    one.kill()
    read = run(rows_program(), path, check=False)
    assert read.returncode == 1 and ("no Parquet file" in read.stderr or "cut short" in read.stderr), read.stderr


def test_max_size(one, scratch):
    """The file never passes its limit; what came before is in it."""
    path = scratch / "a.parquet"
    recorder = Recorder(one, path, "--max-size", "1MiB")
    load = start_driver("run", one.nbd("a"), "--depth", "32", "--seconds", "600", "--length", "8MiB")
    try:
        said = recorder.end(with_signal=None, limit=120 * BESIDE)
    finally:
        load.terminate()
        load.wait()
    _, trailer, rows = rows_of(path)
    assert said["ended"] == trailer["reason"] == "max-size"
    assert len(rows) > 10_000 and images.MIB // 2 < path.stat().st_size <= images.MIB


def takes_no_more(disk):
    """Whether a disk is nearly full, and nothing was added for a second."""
    before = os.statvfs(disk)
    time.sleep(1)
    return os.statvfs(disk).f_bavail == before.f_bavail < before.f_blocks // 4


@pytest.mark.parametrize(
    "busy", [pytest.param(False, id="quiet", marks=pytest.mark.long), pytest.param(True, id="busy")]
)
def test_a_full_disk_ends_it(one, scratch, busy):
    """Where the disk of the file fills up, the file is whole up to there, and guests notice nothing; also where the
    converter has no time, so that notes that wait are what fills the disk."""
    need_root()
    need("mount", "umount")
    small = scratch / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={'6m' if busy else '2m'}", "tmpfs", small)
    try:
        path = small / "a.parquet"
        recorder = Recorder(one, path)
        load = start_driver("run", one.nbd("a"), "--depth", "32", "--seconds", "150", "--length", "8MiB")
        try:
            if busy:
                # Programs beside it that keep it from running would do so to all other tests as well.
                with StoppedThread(one.process.pid, "undercroft-conv"):
                    until(lambda: takes_no_more(small), "the disk is full", 120)
            # A machine that does much else takes its time to fill it.
            said = recorder.end(with_signal=None, limit=120)
        finally:
            load.terminate()
            load.wait()
        _, trailer, rows = rows_of(path)
        assert said["ended"] == trailer["reason"] == "disk-full" and len(rows) > 10_000
        assert finish_driver(start_driver("run", one.nbd("a"), "--ops", "100"))["errors"] == {}
        run("dd", "if=/dev/zero", f"of={small}/rest", "bs=4k", check=False)
        refused = one.call("record", small / "c.parquet", check=False)
        assert refused.returncode == 1 and "full" in refused.stderr, refused.stderr
    finally:
        run("umount", small)
