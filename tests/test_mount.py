"""`undercroft mount` and `umount` with the real kernel: loop devices, file systems, and daemons that are killed."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.programs import built, need, need_root, run
from harness.volumes import loops_of, mounts, need_loops, own

SIZE = 64 * images.MIB
A, B = own("a"), own("b")


@pytest.fixture(autouse=True)
def _can_mount():
    """All of them mount."""
    need_root()
    need_loops()
    need("blkid", "mkfs.ext4", "e2fsck")


@pytest.fixture
def where(scratch):
    """A directory to mount at, let go in the end, whatever is there."""
    path = scratch / "where"
    path.mkdir()
    yield path
    while mounts(path):
        run("umount", "--lazy", path)


def one(serve, scratch, options: dict[str, str] | None = None, name: str = A, **more):
    """A daemon with one disk that a guest could use, and that is no file."""
    image = images.raw(scratch / f"{name}.raw", SIZE)
    return serve([Disk(name, image, "raw", options or {})], **more), image


def mount(daemon, *arguments: object, check: bool = True):
    return daemon.call("mount", *arguments, check=check)


def nothing_left(daemon, name: str = A) -> None:
    """No loop device, no file, no mount."""
    until(lambda: loops_of(name) == [], "no loop device stays")
    assert "file" not in daemon.disk(name)
    folder = daemon.directory / "mounted"
    assert not folder.exists() or not any(folder.iterdir())


def test_a_disk_is_a_folder_in_one_step_and_no_more_in_another(serve, scratch, where):
    """File, loop device with direct I/O, file system and mount; what was written is in the image alone."""
    need("mkfs.ext4", "fincore")
    daemon, image = one(serve, scratch)
    said = json.loads(mount(daemon, A, where, "--mkfs", "ext4", "-o", "discard,noatime", "--json").stdout)
    assert said["made"] and said["kind"] == "ext4" and said["dir"] == str(where)
    (line,) = mounts(where)
    assert "noatime" in line and "discard" in line and said["device"] in line
    loop = Path("/sys/block") / Path(said["device"]).name / "loop"
    assert [(loop / f).read_text().strip() for f in ("dio", "autoclear", "partscan")] == ["1", "1", "0"]
    assert daemon.disk(A)["file"] == said["file"] == f"{daemon.directory}/mounted/{A}"
    data = random.Random(1).randbytes(8 << 20)
    (where / "data").write_bytes(data)
    os.sync()
    assert run("fincore", "--noheadings", "--bytes", "--output", "RES", said["file"]).stdout.split() == ["0"]
    assert f'disk "{A}" is unmounted from {where}' in daemon.call("umount", where).stdout
    assert mounts(where) == []
    nothing_left(daemon)
    # Again, without --mkfs, and with it: what is there stays.
    for more in ((), ("--mkfs", "ext4")):
        mount(daemon, A, where, *more)
        assert (where / "data").read_bytes() == data
        daemon.call("umount", where)
    daemon.stop()
    run("e2fsck", "-fn", image)


def test_a_file_that_was_one_before_stays_one(serve, scratch, where):
    """A disk with `fuse` in the configuration keeps it; a qcow2 image is mounted as well; xfs, too."""
    need("qemu-img", "mkfs.xfs")
    image = images.make(scratch, "a", "qcow2", 320 * images.MIB)
    path = scratch / "a.file"
    daemon = serve([Disk(A, image, "qcow2", {"fuse": f'"{path}"'})])
    mount(daemon, A, where, "--mkfs", "xfs")
    (where / "data").write_bytes(b"x" * 100_000)
    daemon.call("umount", where)
    assert daemon.disk(A)["file"] == str(path) and path.exists() and loops_of(A) == []
    said = mount(daemon, A, where, "--mkfs", "ext4", check=False)
    assert said.returncode == 1 and "holds xfs already, and not ext4" in said.stderr
    mount(daemon, A, where, "--read-only")
    assert (where / "data").read_bytes() == b"x" * 100_000
    with pytest.raises(OSError, match="Read-only"):
        (where / "more").touch()
    daemon.call("umount", where)


def test_what_a_disk_holds_is_never_written_over(serve, scratch, where):
    """--mkfs refuses a byte anywhere, a table of partitions, and other signatures; the image is as it was."""
    need("sfdisk")
    contents = {
        "a byte": lambda f: os.pwrite(f, b"x", 33 * images.MIB + 5),
        "the last byte": lambda f: os.pwrite(f, b"x", SIZE - 1),
        "a swap area": lambda f: os.pwrite(f, b"SWAPSPACE2", 4086),
        "luks": lambda f: os.pwrite(f, b"LUKS\xba\xbe\x00\x01" + bytes(600), 0),
    }
    for n, (what, write) in enumerate(contents.items()):
        image = images.raw(scratch / f"d{n}.raw", SIZE)
        with open(image, "r+b") as f:
            write(f.fileno())
        before = image.read_bytes()
        daemon = serve([Disk(f"d{n}", image, "raw")])
        said = mount(daemon, f"d{n}", where, "--mkfs", "ext4", check=False)
        assert said.returncode == 1 and said.stderr, what
        assert "not empty" in said.stderr or "holds" in said.stderr, what
        nothing_left(daemon, f"d{n}")
        daemon.stop()
        assert image.read_bytes() == before, what
    image = images.raw(scratch / "p.raw", SIZE)
    run("sfdisk", "-q", image, stdin="label: gpt\n,\n")
    before = image.read_bytes()
    daemon = serve([Disk("p", image, "raw")])
    said = mount(daemon, "p", where, "--mkfs", "ext4", check=False)
    assert "table of partitions" in said.stderr
    nothing_left(daemon, "p")
    daemon.stop()
    assert image.read_bytes() == before


def test_places_and_disks_that_cannot_be_are_named(serve, scratch, where):
    """Each with what to do; nothing is left of any of them."""
    daemon, _ = one(serve, scratch)
    full, file = scratch / "full", scratch / "file"
    full.mkdir()
    (full / "mine").touch()
    file.touch()
    for arguments, needle in [
        ((A, scratch / "no"), "mkdir -p"),
        ((A, file), "is no directory"),
        ((A, full), "is not empty"),
        ((A, "/proc"), "is a mount point already"),
        (("nobody", where), 'there is no disk "nobody"'),
        ((A, where), "--mkfs ext4 makes one"),
        ((A, where, "--mkfs", "ext4", "-o", "nonsense"), "cannot be mounted as ext4"),
    ]:
        said = mount(daemon, *arguments, check=False)
        assert said.returncode == 1 and needle in said.stderr, (arguments, said.stderr)
        nothing_left(daemon)
    # The last one made a file system before its option was refused: it is whole.
    mount(daemon, A, where)
    for arguments, needle in [
        ((A, where), f"`undercroft umount {where}` undoes it"),
        ((A, scratch / "other"), f"is mounted already, or about to be, at {where}"),
    ]:
        (scratch / "other").mkdir(exist_ok=True)
        said = mount(daemon, *arguments, check=False)
        assert said.returncode == 1 and needle in said.stderr, said.stderr
    held = open(where / "held", "wb")
    said = daemon.call("umount", where, check=False)
    assert said.returncode == 1 and "fuser -vm" in said.stderr
    said = daemon.call("set", A, "--fuse", "none", check=False)
    assert said.returncode == 1 and "has it open" in said.stderr
    said = daemon.call("umount", "--lazy", where)
    assert "is in use elsewhere" in said.stdout
    held.write(b"x" * 4096)
    held.close()
    until(lambda: loops_of(A) == [], "the loop device goes with its last user")
    for arguments, needle in [((where,), "nothing is mounted"), (("/proc",), "was not mounted by")]:
        said = daemon.call("umount", *arguments, check=False)
        assert said.returncode == 1 and needle in said.stderr
    said = run(built("undercroft"), "mount", A, where, "--control", scratch / "none.sock", check=False)
    assert said.returncode == 1 and "no daemon answers" in said.stderr


def test_a_disk_that_a_guest_uses_is_refused(serve, scratch, where):
    """A file system that two write is destroyed. A disk that nobody writes may be mounted beside it."""
    need("qemu-io")
    daemon, _ = one(serve, scratch)
    # It reads and then waits, connected.
    command = ["qemu-io", "-f", "raw", daemon.nbd(A), "-c", "read 0 4k", "-c", "sleep 60000"]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: daemon.disk(A)["frontends"], "the client is connected")
        said = mount(daemon, A, where, "--mkfs", "ext4", check=False)
        assert said.returncode == 1 and "is in use" in said.stderr
        nothing_left(daemon)
    finally:
        client.kill()
        client.wait()


def test_a_read_only_disk_is_mounted_as_one(serve, scratch, where):
    """Without a word of --read-only; a file system cannot be made on it."""
    image = images.raw(scratch / "a.raw", SIZE)
    run("mkfs.ext4", "-q", image)
    daemon = serve([Disk(A, image, "raw", {"read_only": "true"})])
    said = mount(daemon, A, where, "--mkfs", "ext4", check=False)
    assert said.returncode == 1 and "is read-only" in said.stderr
    mount(daemon, A, where)
    with pytest.raises(OSError, match="Read-only"):
        (where / "x").touch()
    daemon.call("umount", where)
    nothing_left(daemon)


def test_missing_programs_and_rights_are_named(serve, scratch, where):
    """blkid, mkfs, /dev/loop-control, root; and a daemon whose files this process does not see."""
    need("unshare", "setpriv")
    daemon, _ = one(serve, scratch, {"fuse": f'"{scratch}/a.file"'})
    other, _ = one(serve, scratch, name=B)
    program = built("undercroft")

    def hidden(how: str, daemon, *words: object) -> str:
        shell = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{how} && exec "$0" "$@"']
        said = run(*shell, program, "mount", *words, "--control", daemon.control, check=False)
        assert said.returncode == 1, said.stderr
        until(lambda: loops_of(A) == loops_of(B) == [], "no loop device stays")
        return said.stderr

    for how, needle in [
        ("mount --bind /dev/null /sbin/blkid", "the package util-linux"),
        ("mount --bind /dev/null /sbin/mkfs.ext4", "the package e2fsprogs"),
        ("mount -t tmpfs none /dev", "there is no /dev/loop-control"),
    ]:
        assert needle in hidden(how, daemon, A, where, "--mkfs", "ext4")
    assert "a mount namespace of its own" in hidden("true", other, B, where)
    nothing_left(other, B)
    words = ["mount", A, where, "--control", daemon.control]
    said = run("setpriv", "--reuid=65534", "--clear-groups", program, *words, check=False)
    assert said.returncode == 1 and ("only root" in said.stderr or "may not use the socket" in said.stderr)


@pytest.mark.parametrize("slowly", [True, False])
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("busy", [True, False])
def test_what_a_killed_daemon_leaves_is_undone(serve, scratch, where, slowly, again, busy):
    """kill -9 under a mounted file system: umount lets it go, also with a new daemon there; what was synced is kept."""
    daemon, _ = one(serve, scratch)
    mount(daemon, A, where, "--mkfs", "ext4")
    data = random.Random(2).randbytes(4 << 20)
    with open(where / "kept", "wb") as f:
        f.write(data)
        os.fsync(f.fileno())
    with open(where / "held", "wb", buffering=0) if busy else nullcontext() as held:
        daemon.kill()
        if slowly:
            # What the kernel knew of the file counts for a second.
            time.sleep(1.5)
        if again:
            daemon.start()
        if held:
            # Already the write fails where the kernel has found out, and made the file system read-only.
            with pytest.raises(OSError):
                held.write(b"x" * (1 << 20))
                os.fsync(held.fileno())
        said = daemon.call("umount", where)
        assert "had answered no more" in said.stdout
        assert mounts(where) == [] and not (daemon.directory / "mounted" / A).exists()
    until(lambda: loops_of(A) == [], "the loop device is gone")
    if not again:
        daemon.start()
    mount(daemon, A, where)
    assert (where / "kept").read_bytes() == data
    daemon.call("umount", where)
    nothing_left(daemon)


def test_a_second_mount_over_a_dead_one_says_what_to_do(serve, scratch, where):
    """The dead one is named, and undone by umount."""
    daemon, _ = one(serve, scratch)
    mount(daemon, A, where, "--mkfs", "ext4")
    daemon.kill()
    daemon.start()
    said = mount(daemon, A, where, check=False)
    assert said.returncode == 1 and f"`undercroft umount {where}` undoes it" in said.stderr
    daemon.call("umount", where)
    mount(daemon, A, where)
    daemon.call("umount", where)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_whoever_is_interrupted_half_way_leaves_no_mess(serve, scratch, where, sign):
    """Again and again, at another moment each time: either it is mounted, or nothing is there but the file."""
    daemon, image = one(serve, scratch)
    for n in range(12):
        process = subprocess.Popen(
            [built("undercroft"), "mount", A, where, "--mkfs", "ext4", "--control", daemon.control],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.01 * n)
        process.send_signal(sign)
        assert process.wait(20) in (0, 130, -sign)
        if mounts(where):
            daemon.call("umount", where)
        until(lambda: loops_of(A) == [], "no loop device stays")
        if sign == signal.SIGKILL:
            # Whoever is killed cannot take the file away; what was made of it is taken over by the next one.
            daemon.call("set", A, "--fuse", "none", check=False)
        until(lambda: "file" not in daemon.disk(A), "no file stays")
    mount(daemon, A, where, "--mkfs", "ext4")
    daemon.call("umount", where)
    daemon.stop()
    run("e2fsck", "-fn", image)


def test_a_file_is_set_and_taken_away_while_a_disk_is_served(serve, scratch):
    """`set --fuse`: elsewhere, at a place that is taken, none; a reload leaves it, and names what the file says."""
    daemon, image = one(serve, scratch)
    path, other = scratch / "a.file", scratch / "b.file"
    daemon.call("set", A, "--fuse", path)
    assert path.stat().st_size == SIZE and daemon.disk(A)["file"] == str(path)
    daemon.call("set", A, "--fuse", other)
    assert not path.exists() and other.stat().st_size == SIZE
    (scratch / "full").write_text("mine")
    for bad, needle in [(scratch / "full", "is not empty"), (scratch / "no/x", "mkdir -p"), (daemon.control, "too")]:
        said = daemon.call("set", A, "--fuse", bad, check=False)
        assert said.returncode == 1 and needle in said.stderr, said.stderr
        assert other.stat().st_size == SIZE and daemon.disk(A)["file"] == str(other)
    # Not half: neither part of it is done.
    said = daemon.call("set", A, "--fuse", path, "--size", "1TiB", check=False)
    assert said.returncode == 1 and not path.exists()
    for _ in range(10):
        # The kernel may give the next mount the number of the last one.
        run("umount", other)
        daemon.call("set", A, "--fuse", other)
        assert other.stat().st_size == SIZE, "made again"
    daemon.call("reload")
    assert other.stat().st_size == SIZE, "a reload takes nothing away that was set by hand"
    daemon.call("set", A, "--fuse", "none")
    assert mounts(other) == [] and "file" not in daemon.disk(A)
    daemon.write_config([Disk(A, image, "raw", {"fuse": f'"{path}"'})])
    assert "fuse: none ->" in daemon.call("reload").stdout
    assert "file" not in daemon.disk(A)
    alone = images.raw(scratch / "c.raw", SIZE)
    daemon.call("attach", "c", alone, "--format", "raw", "--no-vhost-user", "--fuse", other, "--keep")
    said = daemon.call("set", "c", "--fuse", "none", check=False)
    assert said.returncode == 1 and "undercroft detach c" in said.stderr
    daemon.call("reload")
    assert daemon.disk("c")["state"] == "serving", "it is kept"
    daemon.call("detach", "c")
