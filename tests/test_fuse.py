"""Disks as files of the host, with the real kernel: what programs, fio and loop devices see; how mounts come and go."""

import ctypes
import errno
import json
import mmap
import os
import random
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Daemon, Disk, until
from harness.programs import built, need, run
from harness.volumes import mounts, need_fuse

SIZE = 64 * images.MIB
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, COLLAPSE_RANGE = 1, 2, 16, 8
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(autouse=True)
def _can_mount():
    """All of them mount."""
    need_fuse()


def as_file(directory: Path, name: str, image: Path, options: dict[str, str] | None = None, form: str = "raw") -> Disk:
    """A disk that is the file NAME.file beside its image."""
    return Disk(name, image, form, {"fuse": f'"{directory}/{name}.file"', "nbd": "false"} | (options or {}))


def one(serve, scratch, options: dict[str, str] | None = None, seed: int | None = None, **more):
    """A daemon with one disk that is a file: daemon, file, image."""
    image = images.raw(scratch / "a.raw", SIZE, seed=seed)
    daemon = serve([as_file(scratch, "a", image, options)], **more)
    return daemon, scratch / "a.file", image


def allocate(fd: int, mode: int, offset: int, length: int) -> int:
    """fallocate(2): 0, or the number of errno."""
    result = LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    return 0 if result == 0 else ctypes.get_errno()


def raises(number: int):
    """An OSError with that number of errno."""
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")


@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_any_length_at_any_place_reaches_the_image(serve, scratch, form):
    """Random reads and writes against a copy in memory; then the image against both."""
    need("qemu-img")
    image = images.make(scratch, "a", form, SIZE)
    daemon = serve([as_file(scratch, "a", image, form=form)], memory="32MiB")
    copy, dice = bytearray(SIZE), random.Random(7)
    fd = os.open(scratch / "a.file", os.O_RDWR)
    for _ in range(300):
        length = dice.choice([1, 511, 512, 4096, 4097, 65536, 1 << 20, 3_000_001])
        offset = dice.randrange(SIZE - length)
        if dice.random() < 0.5:
            data = dice.randbytes(length)
            assert os.pwrite(fd, data, offset) == length
            copy[offset : offset + length] = data
        elif dice.random() < 0.2:
            mode = dice.choice([PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE])
            assert allocate(fd, mode, offset, length) == 0
            copy[offset : offset + length] = bytes(length)
        else:
            assert os.pread(fd, length, offset) == copy[offset : offset + length]
    os.fsync(fd)
    os.close(fd)
    daemon.stop()
    assert images.flattened(image, form, scratch / "flat.raw").read_bytes() == copy


def test_what_a_file_says_of_itself(serve, scratch):
    """Its size, mode and times; what may not change says so."""
    daemon, path, image = one(serve, scratch)
    about = path.stat()
    assert stat.S_ISREG(about.st_mode) and about.st_size == SIZE
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o600, os.geteuid())
    assert daemon.disk("a")["file"] == str(path)
    fd = os.open(path, os.O_RDWR)
    with raises(errno.EPERM):
        os.ftruncate(fd, 0)
    os.ftruncate(fd, SIZE)
    with raises(errno.EPERM):
        os.chmod(path, 0o666)
    with raises(errno.ENODEV):
        mmap.mmap(fd, 4096)
    assert os.pwrite(fd, b"x" * 100, SIZE - 40) == 40
    with raises(errno.ENOSPC):
        os.pwrite(fd, b"x", SIZE)
    assert os.pread(fd, 100, SIZE - 40) == b"x" * 40
    assert os.pread(fd, 100, SIZE) == b""
    os.utime(path, (1, 2))
    assert path.stat().st_mtime == 2
    os.pwrite(fd, b"x", 0)
    until(lambda: path.stat().st_mtime > 1e9, "the time of the write is told")
    assert allocate(fd, 0, 0, 4096) == errno.EOPNOTSUPP
    assert allocate(fd, COLLAPSE_RANGE, 0, 4096) == errno.EOPNOTSUPP
    assert allocate(fd, ZERO_RANGE, SIZE - 10, 100) == errno.ENOSPC
    os.close(fd)
    with raises(errno.EPERM):
        os.open(path, os.O_WRONLY | os.O_TRUNC)
    assert image.stat().st_size == SIZE


def test_holes_are_found_as_in_the_image(serve, scratch):
    """SEEK_DATA and SEEK_HOLE go through the image as through the file."""
    image = images.raw(scratch / "a.raw", SIZE)
    with open(image, "r+b") as f:
        for at in (0, 5 << 20, 40 << 20):
            os.pwrite(f.fileno(), b"data" * 32768, at)

    def walk(path: Path) -> list[int]:
        found, at = [], 0
        with open(path, "rb") as f:
            while True:
                try:
                    at = os.lseek(f.fileno(), at, os.SEEK_DATA)
                except OSError as e:
                    assert e.errno == errno.ENXIO
                    return found
                end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
                found += [at, end]
                at = end

    want = walk(image)
    assert len(want) == 6
    serve([as_file(scratch, "a", image)])
    assert walk(scratch / "a.file") == want


def test_a_range_can_be_read_into_the_cache(serve, scratch):
    """`user.undercroft.willneed`: what it names is in RAM afterwards."""
    daemon, path, _ = one(serve, scratch, {"readahead": '"0"', "policy": '"lru"'}, seed=1)
    os.setxattr(path, "user.undercroft.willneed", b"1048576 4194304")
    before = daemon.disk("a")["counters"]
    with open(path, "rb", buffering=0) as f:
        for at in range(1 << 20, 5 << 20, 65536):
            os.pread(f.fileno(), 65536, at)
    after = daemon.disk("a")["counters"]
    assert after["miss_blocks"] == before["miss_blocks"] >= 1024
    with raises(errno.EINVAL):
        os.setxattr(path, "user.undercroft.willneed", b"all of it")
    with raises(errno.EOPNOTSUPP):
        os.setxattr(path, "user.other", b"1")


def test_its_hint_is_an_attribute(serve, scratch):
    """`user.undercroft.hint` tells the disk's hint, however it was set, and whoever may write to the file sets it."""
    daemon, path, _ = one(serve, scratch, {"hint": '"random"'})
    name = "user.undercroft.hint"
    assert os.listxattr(path) == [name] and os.getxattr(path, name) == b"random"
    os.setxattr(path, name, b"sequential\n")
    until(lambda: os.getxattr(path, name) == b"sequential", "it is set")
    assert "hint sequential" in daemon.call("set", "a", "--weight", 100).stdout
    assert f"by a program at the file {path}: " in daemon.log(), "who did it is said"
    daemon.call("set", "a", "--hint", "noreuse")
    assert os.getxattr(path, name) == b"noreuse"
    with raises(errno.EINVAL):
        os.setxattr(path, name, b"sometimes")
    with raises(errno.ENODATA):
        os.getxattr(path, "user.undercroft.willneed")
    assert os.getxattr(path, name) == b"noreuse"


@pytest.mark.parametrize("engine", ["libaio", "io_uring", "psync"])
def test_fio_verifies_direct_at_depth_8(serve, scratch, engine):
    """Lengths and places at random, eight at a time, checksums."""
    need("fio")
    _, path, _ = one(serve, scratch, {"size": '"16MiB"'}, memory="32MiB")
    done = run(
        *("fio", "--name=verify", f"--ioengine={engine}", f"--filename={path}", "--direct=1", "--rw=randwrite"),
        *("--bsrange=512-256k", f"--size={SIZE}", "--io_size=96m", "--iodepth=8", "--verify=crc32c"),
        *("--verify_fatal=1", "--do_verify=1", "--verify_backlog=256", "--serialize_overlap=1"),
        *("--verify_state_save=0", "--randseed=7", "--output-format=json"),
    )
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    assert job["error"] == 0 and job["read"]["total_ios"] > 200, "nothing was verified"


def test_the_page_cache_holds_nothing_of_it(serve, scratch):
    """Read whole, without O_DIRECT: no page of it is the kernel's."""
    need("fincore")
    _, path, _ = one(serve, scratch, seed=1)
    with open(path, "r+b", buffering=0) as f:
        while f.read(1 << 20):
            pass
        os.pwrite(f.fileno(), b"x" * (1 << 20), 0)
    cached = run("fincore", "--noheadings", "--bytes", "--output", "RES", path).stdout.split()
    assert cached == ["0"]


@pytest.mark.parametrize("direct", ["on", "off"])
def test_a_loop_device_with_ext4(serve, scratch, direct):
    """A file system on a loop device on the file: its files come back whole, and fsck finds nothing."""
    need("losetup", "mkfs.ext4", "e2fsck", "fstrim")
    daemon, path, image = one(serve, scratch, {"size": '"16MiB"'}, memory="32MiB")
    loop = run("losetup", "--find", "--show", f"--direct-io={direct}", path).stdout.strip()
    where = scratch / "where"
    where.mkdir()
    try:
        run("mkfs.ext4", "-q", loop)
        run("mount", "-o", "discard", loop, where)
        try:
            data = random.Random(3).randbytes(20 << 20)
            (where / "data").write_bytes(data)
            (where / "gone").write_bytes(data[: 4 << 20])
            os.sync()
            (where / "gone").unlink()
            run("fstrim", where)
            Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")
            assert (where / "data").read_bytes() == data
        finally:
            run("umount", where)
        run("e2fsck", "-fn", loop)
    finally:
        run("losetup", "--detach", loop)
    until(lambda: str(path) not in run("losetup", "--list").stdout, "the loop device is gone")
    daemon.stop()
    # The image alone is what was written.
    run("e2fsck", "-fn", image)


def test_two_disks_do_not_meet(serve, scratch):
    """Each file is its disk, served at the same time."""
    disks = [as_file(scratch, n, images.raw(scratch / f"{n}.raw", SIZE)) for n in ("a", "b")]
    daemon = serve(disks)

    def fill(name: str) -> None:
        with open(scratch / f"{name}.file", "r+b", buffering=0) as f:
            for at in range(0, SIZE, 1 << 20):
                os.pwrite(f.fileno(), name.encode() * (1 << 20), at)
            os.fsync(f.fileno())

    threads = [threading.Thread(target=fill, args=(n,)) for n in ("a", "b")]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for n in ("a", "b"):
        assert (scratch / f"{n}.file").read_bytes() == n.encode() * SIZE
    daemon.stop()
    for n in ("a", "b"):
        assert (scratch / f"{n}.raw").read_bytes() == n.encode() * SIZE


def test_a_read_only_disk_is_a_read_only_file(serve, scratch):
    """The kernel refuses writes, and its mode says so."""
    _, path, image = one(serve, scratch, {"read_only": "true"}, seed=2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    with raises(errno.EROFS):
        os.open(path, os.O_RDWR)
    assert path.read_bytes() == image.read_bytes()


def test_groups_reach_it_as_they_reach_sockets(serve, scratch):
    """`disk_group` gives the file its group and mode; others stay outside."""
    need("setpriv")
    _, path, _ = one(serve, scratch, keys="disk_group = 4242")
    about = path.stat()
    assert (about.st_gid, stat.S_IMODE(about.st_mode)) == (4242, 0o660)
    for d in (scratch, *scratch.parents[:-1]):
        if stat.S_IMODE(d.stat().st_mode) & 0o001 == 0:
            d.chmod(d.stat().st_mode | 0o711)
    read = ["head", "-c", "1", str(path)]
    run("setpriv", "--reuid=4243", "--regid=4242", "--clear-groups", *read)
    assert run("setpriv", "--reuid=4243", "--regid=4243", "--clear-groups", *read, check=False).returncode != 0


def test_a_user_without_rights_mounts_with_the_helper(serve, scratch):
    """`nobody` serves, is killed, and serves again over its stale mount; others do not reach the file."""
    need("setpriv", "fusermount3")
    if stat.S_IMODE(os.stat("/dev/fuse").st_mode) & 0o006 != 0o006:
        pytest.skip("/dev/fuse is root's alone here")
    mine = scratch / "mine"
    mine.mkdir()
    image = images.raw(mine / "a.raw", SIZE, seed=3)
    contents = image.read_bytes()
    program = shutil.copy(built("undercroft"), mine / "undercroft")
    os.chmod(scratch, 0o755)
    # Of nobody; the log is opened by us.
    for path in (mine, image):
        os.chown(path, 65534, 65534)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    daemon = Daemon(mine / "d", [as_file(mine, "a", image)], wrap=lambda c: [*as_nobody, str(program), *c[1:]])
    os.chown(mine / "d", 65534, 65534)
    path = mine / "a.file"
    try:
        for _ in range(2):
            daemon.start()
            assert subprocess.run([*as_nobody, "cat", path], capture_output=True, check=True).stdout == contents
            with raises(errno.EACCES):
                path.read_bytes()
            daemon.kill()
        daemon.start()
    finally:
        daemon.stop()
    assert mounts(path) == []


def test_a_killed_daemon_comes_back_over_its_mount(serve, scratch):
    """Its mount is stale: the next one takes it away. What was made durable is there."""
    daemon, path, _ = one(serve, scratch)
    for turn in range(3):
        data = bytes([turn + 1]) * (1 << 20)
        fd = os.open(path, os.O_RDWR | os.O_SYNC)
        os.pwrite(fd, data, turn << 20)
        daemon.kill()
        with raises(errno.ENOTCONN):
            os.pread(fd, 1, 0)
        os.close(fd)
        with raises(errno.ENOTCONN):
            path.stat()
        daemon.start()
        assert len(mounts(path)) == 1
        with open(path, "rb") as f:
            assert os.pread(f.fileno(), 1 << 20, turn << 20) == data
    daemon.stop()
    assert mounts(path) == []


def test_a_load_is_cut_off_and_no_mount_stays(serve, scratch):
    """SIGTERM while fio reads and writes: an orderly end, and the file is gone."""
    need("fio")
    daemon, path, _ = one(serve, scratch)
    load = subprocess.Popen(
        ["fio", "--name=load", "--ioengine=libaio", f"--filename={path}", "--direct=1", "--rw=randrw", "--bs=4k"]
        + [f"--size={SIZE}", "--iodepth=8", "--time_based", "--runtime=60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: daemon.disk("a")["counters"]["reads"] > 2000, "the load runs")
    daemon.stop()
    assert mounts(path) == [] and not path.exists()
    # Its requests fail; it does not hang.
    load.wait(20)


def test_a_load_ends_when_the_daemon_is_killed(serve, scratch):
    """kill -9 in the middle of many requests: whoever waits is told, and the file is served again."""
    need("fio")
    daemon, path, image = one(serve, scratch, seed=1)
    for _ in range(3):
        load = subprocess.Popen(
            ["fio", "--name=load", "--ioengine=libaio", f"--filename={path}", "--direct=1", "--rw=randread"]
            + ["--bsrange=4k-1m", f"--size={SIZE}", "--iodepth=64", "--numjobs=2", "--time_based", "--runtime=60"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: daemon.disk("a")["counters"]["reads"] > 1000, "the load runs")
        daemon.kill()
        load.wait(20)
        daemon.start()
        assert len(mounts(path)) == 1
        assert path.read_bytes() == image.read_bytes()


def test_open_files_keep_nobody_from_ending(serve, scratch):
    """Who has it open is told at the next request."""
    daemon, path, _ = one(serve, scratch)
    fd = os.open(path, os.O_RDWR)
    daemon.stop()
    assert mounts(path) == []
    with pytest.raises(OSError):
        os.pread(fd, 1, 0)
    os.close(fd)


def test_a_disk_is_attached_and_detached_as_a_file(serve, scratch):
    """Over the API, beside one that stays; unmounted by hand it does no harm."""
    daemon, path, _ = one(serve, scratch)
    other, image = scratch / "b.file", images.raw(scratch / "b.raw", SIZE, seed=4)
    said = daemon.call("attach", "b", image, "--format", "raw", "--no-vhost-user", "--fuse", other)
    assert f"file: {other}" in said.stdout
    assert other.read_bytes() == image.read_bytes()
    daemon.call("detach", "b")
    assert not other.exists()
    run("umount", path)
    until(lambda: daemon.disk("a")["frontends"] == [], "the port is gone")
    assert daemon.disk("a")["state"] == "serving"
    assert path.read_bytes() == b"", "what the file hid"


def test_places_that_cannot_be_mounted_at_are_named(serve, scratch):
    """With what is to be done about them; nothing is hidden or left, and a disk whose place is free later is there
    then."""
    full, link, used = scratch / "full", scratch / "link", scratch / "used"
    full.write_text("mine", encoding="utf-8")
    link.symlink_to(full)
    used.touch()
    run("mount", "--bind", full, used)
    try:
        places = {"full": full, "folder": scratch, "link": link, "used": used}
        names = [(n, images.raw(scratch / f"{n}.raw", SIZE, seed=1)) for n in places]
        disks = [Disk(n, image, "raw", {"fuse": f'"{places[n]}"', "nbd": "false"}) for n, image in names]
        daemon = serve(disks)
        reasons = {n: daemon.disk(n)["reason"] for n in places}
        assert f"{full} is not empty" in reasons["full"] and "choose another path" in reasons["full"]
        assert "is not a file" in reasons["folder"] and "is not a file" in reasons["link"]
        assert "something is mounted" in reasons["used"] and f"findmnt {used}" in reasons["used"]
        assert full.read_text(encoding="utf-8") == "mine" and used.read_text(encoding="utf-8") == "mine"
    finally:
        run("umount", used)
    until(lambda: used.stat().st_size == SIZE, "the place is free")
    assert used.read_bytes() == (scratch / "used.raw").read_bytes()
    daemon.stop()
    assert mounts(used) == [] and used.stat().st_size == 0, "it was there before"


def test_where_a_file_cannot_be_is_found_by_check(scratch):
    """Before anything is served; below the runtime directory, directories are made."""
    image = images.raw(scratch / "a.raw", SIZE)

    def check(*files: str) -> str:
        disks = [
            Disk(f"d{n}", image.parent / f"d{n}.raw", "raw", {"fuse": f'"{f}"', "nbd": "false"})
            for n, f in enumerate(files)
        ]
        for n in range(len(files)):
            images.raw(scratch / f"d{n}.raw", SIZE)
        return run(built("undercroft"), "check", Daemon(scratch / "d", disks).config, check=False).stdout

    assert f"mkdir -p {scratch}/no" in check(f"{scratch}/no/where")
    assert "set fuse to a path of its own" in check(f"{scratch}/x", f"{scratch}/x")
    assert "good" in check(f"{scratch}/d/disks/x")
    full = images.raw(scratch / "full", 4096, seed=1)
    said = check(str(full))
    assert f"{full} is not empty" in said and "leave `fuse` out" in said and "good" not in said
    (scratch / "empty").touch()
    assert "good" in check(f"{scratch}/empty")
    assert (scratch / "empty").stat().st_size == 0 and full.stat().st_size == 4096


def test_two_daemons_do_not_share_a_file(serve, scratch):
    """The second is told that something is mounted there; the first goes on."""
    _, path, image = one(serve, scratch, seed=1)
    other = images.raw(scratch / "b.raw", SIZE)
    second = serve([Disk("b", other, "raw", {"fuse": f'"{path}"', "nbd": "false"})])
    assert "something is mounted" in second.disk("b")["reason"]
    assert path.read_bytes() == image.read_bytes()


def test_whoever_is_killed_while_waiting_harms_nobody(serve, scratch):
    """Readers are killed in the middle of requests, again and again; the file is served on."""
    _, path, image = one(serve, scratch, {"size": '"8MiB"'}, seed=5, memory="32MiB")
    for _ in range(10):
        readers = [subprocess.Popen(["cat", str(path)], stdout=subprocess.DEVNULL) for _ in range(4)]
        time.sleep(0.02)
        for reader in readers:
            reader.send_signal(signal.SIGKILL)
        [reader.wait() for reader in readers]
    assert path.read_bytes() == image.read_bytes()
