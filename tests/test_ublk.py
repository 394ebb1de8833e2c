"""Disks as block devices of the host, with the real kernel: what programs and file systems see; how they come and go.

This machine's kernel may have no ublk: tests/guest/test_block_devices.py runs all of this in a guest whose kernel has.
"""

import contextlib
import errno
import fcntl
import os
import random
import threading
import time
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Daemon, Disk, until
from harness.file_load import FileLoad
from harness.manager import wrap
from harness.programs import run
from harness.ublk import BLKDISCARD, BLKRRPART, BLKZEROOUT, devices, need_ublk, over_range, said

SIZE = 32 * images.MIB
WORK = 8 * images.MIB


@pytest.fixture(autouse=True)
def _nothing_stays():
    """All of them make devices, and none stays."""
    need_ublk()
    assert devices() == []
    yield
    until(lambda: devices() == [], "all devices are gone")


def as_device(directory: Path, name: str, image: Path, options: dict[str, str] | None = None) -> Disk:
    """A disk that is a block device, to which NAME.dev beside its image leads."""
    keys = {"ublk": f'"{directory}/{name}.dev"', "nbd": "false"}
    return Disk(name, image, "raw", keys | (options or {}))


def one(serve, scratch, options: dict[str, str] | None = None, seed: int | None = None, image=None, **more):
    """A daemon with one disk that is a block device: daemon, link, image."""
    image = image or images.raw(scratch / "a.raw", SIZE, seed=seed)
    daemon = serve([as_device(scratch, "a", image, options)], **more)
    return daemon, scratch / "a.dev", image


def change(fd, dice, copy):
    """One write, discard or write of zeroes at random, with the same done to `copy`; a read, compared with it."""
    length = dice.choice([512, 1024, 4096, 5120, 65536, 1 << 20, 3 << 20])
    at = dice.randrange(0, SIZE - length, 512)
    throw = dice.random()
    if throw < 0.5:
        data = dice.randbytes(length)
        assert os.pwrite(fd, data, at) == length
        copy[at : at + length] = data
    elif throw < 0.6:
        # Of a raw image a discarded range reads as zeroes, but only whole blocks are discarded.
        over_range(fd, BLKZEROOUT, at, length)
        copy[at : at + length] = bytes(length)
    else:
        images.same(os.pread(fd, length, at), copy[at : at + length], f"{length} bytes at {at}")


def test_any_length_at_any_place_reach_the_image(serve, scratch):
    """Random reads and writes past the page cache against a copy in memory; then the image against both."""
    daemon, link, image = one(serve, scratch)
    assert devices() == ["ublkb0"] and os.readlink(link) == "/dev/ublkb0"
    copy, dice = bytearray(SIZE), random.Random(7)
    fd = os.open(link, os.O_RDWR | os.O_DIRECT)
    for _ in range(150):
        change(fd, dice, copy)
    os.fsync(fd)
    # Of a raw image a discarded range reads as zeroes.
    over_range(fd, BLKDISCARD, 4 << 20, 8 << 20)
    copy[4 << 20 : 12 << 20] = bytes(8 << 20)
    images.same(os.pread(fd, 8 << 20, 4 << 20), bytes(8 << 20), "what was discarded")
    os.close(fd)
    told = daemon.disk("a")
    assert told["frontends"] == [{"kind": "ublk", "peer": "/dev/ublkb0"}] and told["device"] == str(link)
    daemon.stop()
    images.same(image.read_bytes(), copy, "the image")
    assert devices() == [] and not link.is_symlink()


def test_what_a_device_says_of_itself(serve, scratch):
    """Its size, sectors, cache and requests; a table of partitions that the disk holds is none of the host's."""
    image = images.raw(scratch / "a.raw", SIZE)
    with open(image, "r+b") as f:
        # One partition of Linux, from sector 2048 on.
        f.seek(446)
        f.write(bytes([0, 0, 0, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (8192).to_bytes(4, "little"))
        f.seek(510)
        f.write(b"\x55\xaa")
    _, link, _ = one(serve, scratch, image=image)
    want = {
        "size": str(SIZE // 512),
        "ro": "0",
        "queue/logical_block_size": "512",
        "queue/physical_block_size": "4096",
        "queue/write_cache": "write back",
        "queue/fua": "1",
        "queue/max_hw_sectors_kb": "1024",
        "queue/discard_granularity": "4096",
        "queue/rotational": "0",
    }
    assert {what: said(link, what) for what in want} == want
    assert int(said(link, "queue/discard_max_bytes")) > 0 and int(said(link, "queue/write_zeroes_max_bytes")) > 0
    with open(link, "rb") as f:
        assert f.read(512)[510:] == b"\x55\xaa", "there is a table"
        with pytest.raises(OSError, match=f"Errno {errno.EINVAL}"):
            fcntl.ioctl(f, BLKRRPART)
    assert not list(Path("/sys/block/ublkb0").glob("ublkb0p*"))


def test_a_read_only_disk_is_not_written(serve, scratch):
    """The kernel refuses writes, and what is there is read."""
    _, link, image = one(serve, scratch, {"read_only": "true"}, seed=3)
    assert said(link, "ro") == "1"
    images.same(link.read_bytes(), image.read_bytes(), "the device")
    fd = os.open(link, os.O_RDWR | os.O_DIRECT)
    with pytest.raises(PermissionError):
        os.pwrite(fd, bytes(4096), 0)
    os.close(fd)


def test_only_the_request_that_fails_fails(serve, scratch):
    """An image that has become shorter: what is gone cannot be read, all else can."""
    _, link, image = one(serve, scratch, {"readahead": '"0"'}, seed=4)
    want = image.read_bytes()
    os.truncate(image, SIZE // 2)
    fd = os.open(link, os.O_RDONLY | os.O_DIRECT)
    for _ in range(3):
        with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
            os.pread(fd, 4096, SIZE - 4096)
        images.same(os.pread(fd, 1 << 20, 1 << 20), want[1 << 20 : 2 << 20], "what is there")
    os.close(fd)
    os.truncate(image, SIZE)


def restarted(daemon):
    """Starts it again after it was killed; how long that took, in seconds."""
    begun = time.monotonic()
    daemon.start()
    return time.monotonic() - begun


@pytest.mark.long
def test_a_killed_daemon_is_noticed_by_a_pause_only(serve, scratch):
    """kill -9 under load and the next start: no error, every byte is there, and the device is the same."""
    daemon, link, image = one(serve, scratch)
    load = FileLoad(link, WORK, direct=True)
    for _ in range(3):
        until(load.goes_on(), "the load goes on")
        daemon.kill()
        print(f"served again after {restarted(daemon):.2f} s")
        assert devices() == ["ublkb0"]
    until(load.goes_on(), "the load goes on")
    load.finish()
    daemon.stop()
    images.same(image.read_bytes()[:WORK], load.copy, "the image")


def test_what_waits_while_no_daemon_runs_is_done_by_the_next(serve, scratch):
    """A write that began without a daemon, and a read of what was written before."""
    daemon, link, image = one(serve, scratch)
    fd = os.open(link, os.O_RDWR | os.O_DIRECT)
    os.pwrite(fd, b"a" * 4096, 0)
    daemon.kill()
    done = []
    writer = threading.Thread(target=lambda: done.append(os.pwrite(fd, b"b" * 8192, 8192)), daemon=True)
    writer.start()
    time.sleep(0.5)
    assert done == []
    daemon.start()
    writer.join(60)
    assert done == [8192] and os.pread(fd, 4096, 0) == b"a" * 4096
    os.close(fd)
    daemon.stop()
    assert image.read_bytes()[8192:16384] == b"b" * 8192


def test_a_file_system_lives_on_over_a_killed_daemon(serve, scratch):
    """ext4 on the device, written through the page cache; the daemon is killed while it is mounted."""
    daemon, link, image = one(serve, scratch)
    run("mkfs.ext4", "-q", "-F", link)
    place = scratch / "mnt"
    place.mkdir()
    run("mount", "-t", "ext4", link, place)
    try:
        data = random.Random(1).randbytes(4 << 20)
        (place / "before").write_bytes(data)
        daemon.kill()
        daemon.start()
        (place / "after").write_bytes(data)
        os.sync()
    finally:
        run("umount", place)
    run("mount", "-t", "ext4", link, place)
    try:
        for name in ("before", "after"):
            images.same((place / name).read_bytes(), data, name)
    finally:
        run("umount", place)
    daemon.stop()
    run("e2fsck", "-fn", image)


def test_what_the_page_cache_holds_comes_before_the_device_goes(serve, scratch):
    """An orderly stop right after a write that nobody has made durable."""
    daemon, link, image = one(serve, scratch)
    with open(link, "r+b") as f:
        f.write(b"x" * (1 << 20))
        f.flush()
        daemon.stop()
        images.same(image.read_bytes()[: 1 << 20], b"x" * (1 << 20), "what was written")
        with contextlib.suppress(OSError):
            assert os.pread(f.fileno(), 4096, 16 << 20) == b"", "there is no device any more"
    assert not link.is_symlink()


@pytest.mark.long
def test_upgrades_under_load_are_not_noticed(scratch):
    """The next process goes on with the device when the one before has ended."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = Daemon(scratch / "d", [as_device(scratch, "a", image)]).start()
    link = scratch / "a.dev"
    load = FileLoad(link, WORK, direct=True)
    for _ in range(3):
        until(load.goes_on(), "the load goes on")
        daemon.upgrade()
        until(lambda: daemon.disk("a")["frontends"] != [], "the device is served again")
    until(load.goes_on(), "the load goes on")
    load.finish()
    daemon.stop()
    images.same(image.read_bytes()[:WORK], load.copy, "the image")


@pytest.mark.long
def test_under_a_service_manager_a_stop_is_a_pause(scratch, manager):
    """The manager does not say whether it stops or restarts the daemon: the device stays, and who uses it waits."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = Daemon(scratch / "d", [as_device(scratch, "a", image)], wrap=wrap)
    link = scratch / "a.dev"
    manager.start(daemon)
    load = FileLoad(link, WORK, direct=True)
    until(load.goes_on(), "the load goes on")
    daemon.stop()
    assert devices() == ["ublkb0"] and link.is_symlink()
    manager.start(daemon)
    until(load.goes_on(), "the load goes on")
    load.finish()
    daemon.call("detach", "a")
    assert devices() == [] and not link.is_symlink()
    daemon.stop()


@pytest.mark.long
def test_disks_come_and_go_while_others_are_used(serve, scratch):
    """Attach and detach by hand; what was left of a disk that nobody attaches again is taken away."""
    daemon, link, _ = one(serve, scratch)
    other = images.raw(scratch / "b.raw", SIZE, seed=5)
    daemon.call("attach", "b", other, "--no-vhost-user", "--ublk", scratch / "b.dev")
    assert devices() == ["ublkb0", "ublkb1"]
    images.same((scratch / "b.dev").read_bytes(), other.read_bytes(), "the device")
    daemon.call("detach", "b")
    assert devices() == ["ublkb0"] and not (scratch / "b.dev").is_symlink()
    daemon.call("attach", "b", other, "--no-vhost-user", "--ublk", scratch / "b.dev")
    daemon.kill()
    daemon.start()
    assert os.readlink(link) == "/dev/ublkb0"
    until(lambda: devices() == ["ublkb0"], "what nobody attached again is taken away", 40)


def test_a_disk_of_another_size_is_another_device(serve, scratch):
    """What a killed daemon has left is not gone on with if the disk has changed."""
    daemon, link, image = one(serve, scratch)
    daemon.kill()
    os.truncate(image, 2 * SIZE)
    daemon.start()
    assert devices() == ["ublkb0"] and said(link, "size") == str(2 * SIZE // 512)
    assert "the disk has another size now" in daemon.log()


def test_places_that_cannot_be_are_named(serve, scratch):
    """A path that something has; the disk waits, and others are served."""
    (scratch / "a.dev").write_text("mine")
    image, other = (images.raw(scratch / f"{name}.raw", SIZE) for name in "ab")
    daemon = serve([as_device(scratch, "a", image), Disk("b", other, "raw")])
    told = daemon.disk("a")
    assert told["state"] == "waiting" and "is no link to a device of ublk" in told["reason"], told
    assert devices() == [] and (scratch / "a.dev").read_text() == "mine"
