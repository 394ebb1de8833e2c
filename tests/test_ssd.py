"""The SSD store: blocks below RAM, what of them outlives a stop, a kill and a change of the image, and its switches."""

import errno
import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from harness import images, nbdwire
from harness.daemon import Daemon, Disk, until
from harness.fuse import UnflushableFile
from harness.programs import PATIENCE, need, run
from harness.ssd import fill, have_shares, read_all, rest, section, ssd, write
from harness.manager import wrap
from harness.nbdwire import Wire
from harness.volumes import need_loops

SIZE = 48 * images.MIB


@pytest.fixture
def make(scratch):
    """Makes daemons with an SSD store and little RAM, which tests start: make("d", [Disk(...)]). All are stopped."""
    made: list[Daemon] = []

    def daemon(
        name: str, disks: list[Disk], extra: str = section(scratch), workers: int = 2, memory: str = "16MiB"
    ) -> Daemon:
        made.append(Daemon(scratch / name, disks, memory=memory, workers=workers, extra=extra))
        return made[-1]

    yield daemon
    for daemon in made:
        daemon.stop()


@pytest.fixture
def daemon(make, scratch):
    """One with a disk that is several times as large as its RAM."""
    need("nbdcopy")
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = make("d", [Disk("a", image, "raw")])
    daemon.image = image
    return daemon


def test_blocks_outlive_an_orderly_stop(daemon):
    """What was in the store is found again by the next daemon and read from there; the bytes are the image's."""
    daemon.start()
    kept = fill(daemon, daemon.image)
    daemon.stop()
    daemon.start()
    status = ssd(daemon)
    assert status["made"] is None and status["cached_bytes"] > kept * 9 // 10, status
    assert read_all(daemon) == images.digest(daemon.image)
    counters = ssd(daemon)["counters"]
    assert counters["hits"] * 4096 > SIZE // 2 and counters["mismatches"] == 0, counters
    assert daemon.disk("a")["counters"]["backend_read_bytes"] < SIZE * 3 // 4


def test_blocks_of_a_changed_image_are_dropped(daemon):
    """An image that is written to while there is no daemon, though its time is put back; or is another file."""
    for change in ("write", "write and set the time back", "restore a copy"):
        daemon.start()
        fill(daemon, daemon.image)
        daemon.stop()
        before = os.stat(daemon.image)
        if change == "restore a copy":
            shutil.copy2(daemon.image, daemon.directory / "copy")
            os.replace(daemon.directory / "copy", daemon.image)
        # All of it, so that a single block of the former content would show.
        with open(daemon.image, "r+b") as f:
            f.write(os.urandom(SIZE))
        if change != "write":
            os.utime(daemon.image, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert os.stat(daemon.image).st_mtime_ns == before.st_mtime_ns
        daemon.start()
        assert read_all(daemon) == images.digest(daemon.image), change
        daemon.stop()


def test_a_killed_daemon_keeps_what_was_at_rest_and_nothing_else(daemon):
    """SIGKILL after a while without changes: the blocks are there. SIGKILL after a change: none of them is."""
    need("qemu-io")
    daemon.start()
    fill(daemon, daemon.image)
    rest()
    daemon.kill()
    daemon.start()
    assert ssd(daemon)["cached_bytes"] > SIZE // 3, daemon.log()
    write(daemon, 1 << 20, 0x5A)
    daemon.kill()
    daemon.start()
    assert ssd(daemon)["cached_bytes"] == 0, "a disk that was changed had not been written down again"
    assert read_all(daemon) == images.digest(daemon.image)


@pytest.fixture
def unflushable(scratch):
    """A file system on a disk that fails when it is to make durable what was written, while it is told to."""
    need_loops()
    need("mkfs.ext4", "losetup")
    disk = UnflushableFile(scratch / "disk", SIZE + 16 * images.MIB)
    loop, where = run("losetup", "--find", "--show", disk.path).stdout.strip(), scratch / "fs"
    try:
        # Without a journal, so that one failure is not the end of it.
        run("mkfs.ext4", "-q", "-O", "^has_journal", loop)
        where.mkdir()
        run("mount", loop, where)
        disk.where = where
        yield disk
    finally:
        disk.refuses = False
        run("umount", "-l", where, check=False)
        run("losetup", "--detach", loop, check=False)
        disk.close()


@pytest.mark.parametrize("ends", ["stop", "detach", "restart"])
def test_blocks_of_an_image_that_could_not_be_flushed_are_dropped(make, unflushable, manager, ends):
    """What was written down of an image at rest is not good any more when its last flush fails: its times are what they
    were, and who knows what it has lost."""
    need("nbdcopy", "qemu-io")
    image = images.raw(unflushable.where / "a.raw", SIZE, seed=9)
    run("sync", "--file-system", image)
    daemon = make("d", [Disk("a", image, "raw")])
    start = daemon.start
    if ends == "restart":
        # The manager keeps what is in RAM.
        daemon.store, daemon.wrap = "keep = true", wrap
        daemon.write_config([Disk("a", image, "raw")])
        start = lambda: manager.start(daemon)  # noqa: E731
    start()
    write(daemon, 1 << 20, 0x5A)
    fill(daemon, image)
    rest()
    unflushable.refuses = True
    if ends == "detach":
        daemon.call("detach", "a")
        until(lambda: not daemon.status()["disks"], "it is gone")
        unflushable.refuses = False
        daemon.call("reload")
        until(lambda: daemon.status()["disks"], "it is back")
        assert ssd(daemon)["cached_bytes"] == 0, ssd(daemon)
    daemon.stop()
    assert "the last flush failed" in daemon.log()
    assert ("left to the service manager: " in daemon.log()) == (ends == "restart")
    unflushable.refuses = False
    start()
    assert ssd(daemon)["cached_bytes"] == 0, ssd(daemon)
    assert read_all(daemon) == images.digest(image)


@pytest.mark.parametrize("fails", [True, False])
def test_what_nobody_flushed_is_flushed_before_it_is_written_down(make, unflushable, fails):
    """Of a disk whose client writes and never flushes, blocks outlive a kill, since the daemon flushes it at rest.

    Where that fails none do, and the client is told by its next flush, once: the image reports it to nobody else.
    """
    need("nbdcopy", "qemu-io")
    image = images.raw(unflushable.where / "a.raw", SIZE, seed=9)
    run("sync", "--file-system", image)
    daemon = make("d", [Disk("a", image, "raw")])
    daemon.start()
    fill(daemon, image)
    # Programs flush when they end; this client does not.
    with Wire(daemon.nbd_socket).handshake("a") as client:
        client.request(nbdwire.WRITE, 1 << 20, 65536, 1, data=bytes([90]) * 65536)
        assert client.reply() == (0, 1)
        unflushable.refuses = fails
        rest()
        unflushable.refuses = False
        for is_told in (fails, False):
            client.request(nbdwire.FLUSH, 0, 0, 2)
            assert client.reply() == (errno.EIO if is_told else 0, 2), is_told
    if fails:
        # That they succeed now says nothing of what was lost.
        rest()
    daemon.kill()
    daemon.start()
    cached = ssd(daemon)["cached_bytes"]
    assert cached == 0 if fails else cached > SIZE // 3, (cached, daemon.log())
    assert read_all(daemon) == images.digest(image)


def test_writes_are_never_covered_by_what_is_in_the_store(daemon):
    """Blocks that are in the store are written, read back, and read back after a stop."""
    need("qemu-io")
    daemon.start()
    fill(daemon, daemon.image)
    for n in range(16):
        write(daemon, n * 3 * images.MIB, n + 1)
    assert read_all(daemon) == images.digest(daemon.image)
    daemon.stop()
    daemon.start()
    assert ssd(daemon)["cached_bytes"] > SIZE // 4, "the rest of it is kept"
    assert read_all(daemon) == images.digest(daemon.image)


def test_blocks_of_qcow2_images_outlive_a_stop(make, scratch):
    """A qcow2 image with an image behind it: kept, and dropped when the one behind changes."""
    need("nbdcopy", "qemu-img", "qemu-io")
    base = images.raw(scratch / "base.raw", SIZE, seed=3)
    top = images.qcow2(scratch / "top.qcow2", SIZE, base, "raw")
    daemon = make("d", [Disk("a", top, "qcow2")], workers=1)
    want = None
    for step in ("first", "kept", "written", "kept", "changed behind"):
        if step == "changed behind":
            with open(base, "r+b") as f:
                f.write(b"\1" * 4096)
            want = None
        daemon.start()
        cached = ssd(daemon)["cached_bytes"]
        assert (cached > SIZE // 3) == (step in ("kept", "written")), (step, cached)
        if step == "written":
            write(daemon, 5 << 20, 0x77)
            want = None
        digests = {read_all(daemon) for _ in range(6)}
        assert len(digests) == 1 and (want is None or digests == {want}), step
        want = digests.pop()
        daemon.stop()


def test_what_clones_have_in_common_is_in_the_store_once(make, scratch):
    """Three clones of one image: the first reads it, the others find it in the store, after a stop and a kill as well;
    what one of them writes is its own."""
    need("nbdcopy", "qemu-img", "qemu-io")
    base = images.raw(scratch / "base.raw", SIZE, seed=4)
    names = ("a", "b", "c")
    tops = {name: images.qcow2(scratch / f"{name}.qcow2", SIZE, base, "raw") for name in names}
    daemon = make("d", [Disk(name, top, "qcow2") for name, top in tops.items()], workers=1, memory="20MiB")
    want = images.digest(base)
    for end in ("stopped", "killed", "the last"):
        daemon.start()
        kept = ssd(daemon)["cached_bytes"]
        assert (kept > SIZE * 2 // 3) == (end != "stopped"), (end, kept)
        # A device that is busy takes not all that leaves RAM.
        for _ in range(8):
            assert read_all(daemon, "a") == want, end
        for name in ("b", "c"):
            assert read_all(daemon, name) == want, (end, name)
        status = ssd(daemon)
        assert SIZE * 3 // 4 < status["cached_bytes"] < SIZE * 5 // 4, (end, status)
        read = [daemon.disk(name)["counters"]["backend_read_bytes"] for name in ("b", "c")]
        assert sum(read) < SIZE // 2, (end, read)
        if end == "stopped":
            daemon.stop()
        elif end == "killed":
            rest()
            daemon.kill()
    run("qemu-io", "-f", "raw", "-c", f"write -P 90 {3 << 20} 64k", daemon.nbd("b"))
    changed = daemon.directory / "changed.raw"
    shutil.copy(base, changed)
    with open(changed, "r+b") as f:
        f.seek(3 << 20)
        f.write(b"\x5a" * 65536)
    assert read_all(daemon, "b") == images.digest(changed)
    assert read_all(daemon, "a") == read_all(daemon, "c") == want


def test_copies_of_an_image_are_in_the_store_once(make, scratch):
    """Two whole copies of one image in a trust group: what the first put into the store is there for the second,
    too, and not written again, though it is read as fast as can be. A third in a group of its own has nothing
    in common with them."""
    need("nbdcopy", "qemu-io")
    copies = {name: images.raw(scratch / f"{name}.raw", SIZE, seed=6) for name in ("a", "b", "c")}
    groups = {"a": '"one"', "b": '"one"', "c": '"other"'}
    disks = [Disk(name, image, "raw", {"trust": groups[name]}) for name, image in copies.items()]
    daemon = make("d", disks, workers=1, memory="20MiB")
    want = images.digest(copies["a"])
    daemon.start()
    have_shares(daemon)
    fill(daemon, copies["a"])

    def reads(name):
        """What is written to the store while the disk is read a few times, and what of it is not, as equal blocks are
        there."""
        before = ssd(daemon)
        for _ in range(4):
            assert read_all(daemon, name) == want, name
        after = ssd(daemon)
        grown = [s["written"]["admitted_bytes"] for s in (before, after)]
        return grown[1] - grown[0], after["deduplicated_bytes"] - before["deduplicated_bytes"]

    written, deduplicated = reads("b")
    print(f"of the copy {deduplicated / images.MIB:.1f} MiB were there, {written / images.MIB:.1f} MiB were written")
    assert deduplicated > SIZE * 3 // 4 and written < SIZE // 8, (written, deduplicated, ssd(daemon))
    hits = daemon.disk("b")["counters"]["ssd_hit_blocks"]
    assert hits * 4096 > SIZE, "it is read from there"
    written, deduplicated = reads("c")
    assert written > SIZE // 2 and deduplicated <= 0, (written, deduplicated, ssd(daemon))
    # What one of them writes is its own.
    run("qemu-io", "-f", "raw", "-c", f"write -P 90 {3 << 20} 64k", "-c", "flush", daemon.nbd("b"))
    assert read_all(daemon, "b") == images.digest(copies["b"]) != want
    assert read_all(daemon, "a") == read_all(daemon, "c") == want
    assert ssd(daemon)["counters"]["mismatches"] == 0
    # Nothing of it is lost by a stop: what is not found again is read from the image.
    rest()
    daemon.kill()
    daemon.start()
    assert read_all(daemon, "b") == images.digest(copies["b"])
    assert read_all(daemon, "a") == read_all(daemon, "c") == want


def test_the_store_is_switched_and_emptied_by_hand(daemon):
    """Out of service, its files are closed and disks are served; in service again, it begins empty."""
    daemon.start()
    fill(daemon, daemon.image)
    dropped = daemon.call("ssd", "drop", "a").stdout
    assert "dropped from the SSD store" in dropped and ssd(daemon)["cached_bytes"] == 0, dropped
    fill(daemon, daemon.image)
    files = f"/proc/{daemon.pid}/fd"
    is_open = lambda: any("ssd0" in os.readlink(f"{files}/{n}") for n in os.listdir(files))  # noqa: E731
    assert is_open()
    daemon.call("ssd", "stop")
    status = ssd(daemon)
    assert not status["in_service"] and status["reason"] == "an operator took it out of service", status
    printed = json.loads(daemon.call("ssd", "--json").stdout)
    assert printed.keys() == status.keys() and printed["counters"] == status["counters"], printed
    assert not is_open() and "SSD store out of service" in daemon.call("status").stdout
    refused = daemon.call("ssd", "drop", "--all", check=False)
    assert refused.returncode == 1 and "`undercroft ssd start` first" in refused.stderr
    assert read_all(daemon) == images.digest(daemon.image)
    daemon.call("ssd", "start")
    status = ssd(daemon)
    assert status["in_service"] and status["cached_bytes"] == 0 and status["made"] is None, status
    fill(daemon, daemon.image)


def test_a_store_that_cannot_be_had_keeps_nobody_from_being_served(make, scratch):
    """A file that another daemon has, one that holds something else, too few bytes: said, and disks are served."""
    need("nbdcopy")
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    first = make("d1", [])
    first.start()
    second = make("d2", [Disk("a", image, "raw")])
    second.start()
    assert "it is in use by " in ssd(second)["reason"], ssd(second)
    assert read_all(second) == images.digest(image)
    refused = second.call("ssd", "start", check=False)
    assert refused.returncode == 1 and "in use" in refused.stderr
    first.stop()
    second.call("ssd", "start")
    assert ssd(second)["in_service"]
    have_shares(second)
    for _ in range(4):
        read_all(second)
    assert ssd(second)["cached_bytes"] > 0, "a disk that came before the store uses it, too"
    second.stop()
    (scratch / "other").write_bytes(b"precious" * 4096)
    third = make("d3", [Disk("a", image, "raw")], section(scratch, "format = true\n", '"other"'))
    third.start()
    assert "holds something that is no SSD store" in ssd(third)["reason"]
    assert read_all(third) == images.digest(image)
    third.stop()
    assert (scratch / "other").read_bytes() == b"precious" * 4096


def test_a_store_that_comes_late_has_nothing_of_what_was_written_without_it(daemon, make):
    """What the store calls good for the next start is not, if the disk was served without it for a while."""
    need("qemu-io")
    daemon.start()
    fill(daemon, daemon.image)
    daemon.stop()
    other = make("other", [])
    other.start()
    daemon.start()
    assert not ssd(daemon)["in_service"]
    for n in range(16):
        write(daemon, n * 3 * images.MIB, n + 1)
    other.kill()
    # The kernel lets go of the files a moment later.
    end = time.monotonic() + 20 * PATIENCE
    while daemon.call("ssd", "start", check=False).returncode != 0:
        assert time.monotonic() < end, ssd(daemon)
        time.sleep(0.1)
    assert ssd(daemon)["in_service"] and ssd(daemon)["made"] is None
    for _ in range(3):
        assert read_all(daemon) == images.digest(daemon.image)


def test_a_store_for_other_workers_is_made_anew_only_if_that_is_said(daemon, scratch):
    daemon.start()
    fill(daemon, daemon.image)
    daemon.stop()
    daemon.workers = 1
    daemon.write_config([Disk("a", daemon.image, "raw")])
    daemon.start()
    status = ssd(daemon)
    assert "it was made for 2 workers, and there are 1" in status["reason"] and not status["in_service"], status
    daemon.stop()
    daemon.extra = section(scratch, "format = true\n")
    daemon.write_config([Disk("a", daemon.image, "raw")])
    daemon.start()
    assert "2 workers" in ssd(daemon)["made"]
    fill(daemon, daemon.image)


def test_a_disk_that_is_to_be_in_ram_alone_is_not_in_the_store(daemon):
    daemon.write_config([Disk("a", daemon.image, "raw", {"store": '"ram"'})])
    daemon.start()
    for _ in range(4):
        read_all(daemon)
    assert ssd(daemon)["cached_bytes"] == 0
    assert ssd(daemon)["counters"]["refused_no_share"] > 0
    daemon.call("set", "a", "--store", "both")
    time.sleep(2)
    fill(daemon, daemon.image)


def test_a_device_that_fails_is_left_and_disks_go_on(daemon, scratch):
    """The daemon may not write the files any more: it reads images, and says why."""
    daemon.start()
    fill(daemon, daemon.image)
    # Whatever is written from here on fails: there is no room, and no file may grow.
    subprocess.run(["prlimit", f"--pid={daemon.pid}", "--fsize=0:"], check=True)
    daemon.call("ssd", "drop", "--all")
    end = time.monotonic() + 20 * PATIENCE
    want = images.digest(daemon.image)
    while "a write failed" not in (ssd(daemon)["reason"] or ""):
        assert time.monotonic() < end, ssd(daemon)
        assert read_all(daemon) == want
    assert read_all(daemon) == want
    subprocess.run(["prlimit", f"--pid={daemon.pid}", "--fsize=unlimited:"], check=True)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    daemon.start()
    assert read_all(daemon) == want


def shown_nodes(daemon) -> dict[str, dict]:
    """What `shares` says of each node, by its name."""
    return {n["name"]: n for n in json.loads(daemon.call("shares", "--json").stdout)["nodes"]}


def test_room_goes_to_who_finds_blocks_there_again(make, scratch):
    """Beside a disk that is read through, one whose working set is more than its part by weight gets what it takes."""
    need("nbdcopy")
    sizes = {"scan": 160 * images.MIB, "loop": 52 * images.MIB}
    disks = [Disk(name, images.raw(scratch / f"{name}.raw", size, seed=7), "raw") for name, size in sizes.items()]
    keys = f'[ssd]\npaths = ["{scratch}/ssd0"]\nsize = "64MiB"\nsegment = "256KiB"\nadmit = "all"\n'
    daemon = make("d", disks, keys + '[shares]\ninterval = "1s"\n', workers=1)
    daemon.start()
    status = ssd(daemon)
    assert 0 < status["memory_bytes"] <= status["memory_reserved_bytes"] < 16 * images.MIB, status
    end = time.monotonic() + 300 * PATIENCE
    needed = sizes["loop"] - 10 * images.MIB
    while True:
        for disk in disks:
            read_all(daemon, disk.name)
        status = ssd(daemon)
        of = {d["disk"]: d for d in status["disks"]}
        assert sum(d["share_bytes"] for d in of.values()) <= status["capacity_bytes"], of
        if of["loop"]["share_bytes"] > needed and of["loop"]["cached_bytes"] > needed:
            break
        assert time.monotonic() < end, (of, daemon.call("shares").stdout)
    read_all(daemon, "loop")
    after = next(d for d in ssd(daemon)["disks"] if d["disk"] == "loop")
    found = after["hits"] - of["loop"]["hits"]
    assert found * 4096 > sizes["loop"] // 2, (of, after)
    shown = daemon.call("shares").stdout
    assert "SSD STORE" in shown, shown
    nodes = shown_nodes(daemon)
    shares = {name: node["ssd"]["share_bytes"] for name, node in nodes.items()}
    assert shares["loop"] + shares["scan"] == shares["host"], shares
    # Both stores together have what it reads: more of the one below spares the image nothing. Curves are those of the
    # last second, in which it may have read nothing or a part, beside other work.
    while True:
        mine = nodes["loop"]["ssd"]["curve"]
        if mine[0][1] > 0 and mine[-1][0] > needed and mine[-1][1] < mine[0][1] / 5:
            break
        assert time.monotonic() < end, mine[:: len(mine) // 20 + 1]
        read_all(daemon, "loop")
        nodes = shown_nodes(daemon)
    more = nodes["loop"]["next_ssd"]
    assert more["bytes"] > 0 and more["saved_ms_per_second"] is not None, nodes["loop"]
    events = json.loads(daemon.call("why", "loop", "--last", "10000", "--json").stdout)
    below = [e for e in events if e["ssd"]]
    assert sum(e["bytes"] for e in below if e["to"] == "loop") > needed // 4, below
    assert all(e["text"].startswith("SSD store: ") and e["node"] == "host" for e in below), below
    every = json.loads(daemon.call("why", "host", "--last", "10000", "--json").stdout)
    assert {e["ssd"] for e in every} == {True, False}
    assert "in host, SSD store: " in daemon.call("why", "loop", "--last", "10000").stdout
    code, metrics = daemon.api("GET", "/metrics")
    assert code == 200 and "undercroft_node_ssd_share_bytes{" in metrics and "undercroft_node_next_ram_hits" in metrics
