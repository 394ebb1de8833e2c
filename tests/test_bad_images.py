"""Bad images, sockets and configurations: a clear error that names the thing and the remedy, and nothing left
behind."""

import os
import re
import struct

import pytest
from harness import images
from harness.daemon import Daemon, Disk, fails_to_serve, until
from harness.programs import built, driver, need, need_root, run

SIZE = 16 * images.MIB


def refused(scratch, disks, **options) -> str:
    """What the daemon says of a configuration that makes no sense, or of disks that it cannot serve: those wait."""
    daemon = Daemon(scratch / "refused", disks, **options)
    daemon.launch()
    until(lambda: not daemon.running() or daemon.ready(), "it serves, or refuses to")
    if not daemon.running():
        assert daemon.process.returncode == 1 and daemon.sockets() == [], daemon.log()
        return daemon.log()
    try:
        waiting = [d for d in daemon.status()["disks"] if d["state"] == "waiting"]
        assert waiting, "all of it is served"
        for disk in waiting:
            assert disk["socket"] not in map(str, daemon.sockets()), "a disk that waits has a socket"
            assert disk["reason"].split(" (tried")[0] in daemon.log(), "the log says so, too"
        return "\n".join(d["reason"] for d in waiting)
    finally:
        daemon.stop()


def names(text: str, *what: object) -> None:
    """The message names each thing."""
    for thing in what:
        assert str(thing) in text, f"{thing} is not named in: {text}"


def test_image_missing(scratch):
    """The path is named, in a configuration and on the command line."""
    image = scratch / "not-here.raw"
    names(refused(scratch, [Disk("a", image, "raw")]), image)
    names(fails_to_serve("--image", image, "--control", scratch / "c.sock"), image)


def test_image_is_a_directory(scratch):
    """A directory is no image."""
    directory = scratch / "directory.raw"
    directory.mkdir()
    names(refused(scratch, [Disk("a", directory, "raw")]), directory, "directory")


def test_image_not_readable(scratch):
    """Another user's image: the daemon, run as nobody, says that it may not open it."""
    need_root()
    need("setpriv")
    scratch.chmod(0o755)
    image = images.raw(scratch / "secret.raw", SIZE)
    image.chmod(0o600)
    home = scratch / "nobody"
    home.mkdir()
    os.chown(home, 65534, 65534)
    daemon = Daemon(scratch / "cfg", [Disk("a", image, "raw")])
    (scratch / "cfg").chmod(0o755)
    text = daemon.config.read_text().replace(str(daemon.directory), str(home))
    daemon.config.write_text(text)
    program = run("sh", "-c", f"cp {built('undercroft')} {scratch}/program && chmod 755 {scratch}/program && echo ok")
    assert program.stdout == "ok\n"
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = run(*as_nobody, scratch / "program", "serve", "--image", image, "--control", home / "c.sock", check=False)
    assert done.returncode == 1, done.stderr
    names(done.stderr, image)
    assert re.search("permission|mode", done.stderr, re.IGNORECASE), done.stderr


@pytest.mark.parametrize("extra", [1, 511, 513, 4095])
def test_image_not_a_multiple_of_the_block_size(scratch, extra):
    """An image with an odd end is refused with its size and what to do, never cut silently."""
    image = images.raw(scratch / "odd.raw", SIZE + extra, seed=1)
    said = refused(scratch, [Disk("a", image, "raw")])
    names(said, image, str(SIZE + extra), "multiple", "truncate")


def qcow2_with(scratch, change) -> object:
    """A qcow2 image with its header changed: `change(bytearray)`."""
    image = images.qcow2(scratch / "bad.qcow2", SIZE)
    data = bytearray(image.read_bytes())
    change(data)
    image.write_bytes(data)
    return image


def put(fmt: str, at: int, value: int):
    """Writes a big-endian number into a header."""

    def change(data: bytearray) -> None:
        struct.pack_into(f">{fmt}", data, at, value)

    return change


# Offsets of the qcow2 header: docs/interop/qcow2.txt of QEMU.
DAMAGE = {
    "magic": put("I", 0, 0x12345678),
    "version": put("I", 4, 9),
    "cluster-bits-huge": put("I", 20, 60),
    "cluster-bits-zero": put("I", 20, 0),
    "size-huge": put("Q", 24, 1 << 63),
    "encrypted": put("I", 32, 1),
    "l1-size-huge": put("I", 36, 0x7FFFFFFF),
    "l1-outside": put("Q", 40, 1 << 60),
    "l1-unaligned": put("Q", 40, 513),
    "refcounts-outside": put("Q", 48, 1 << 60),
    "backing-name-outside": put("Q", 8, 1 << 40),
    "unknown-incompatible-feature": put("Q", 72, 1 << 42),
    "corrupt-bit": put("Q", 72, 1 << 1),
    "header-length": put("I", 100, 0xFFFFFFFF),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_qcow2_damaged_or_unsupported(scratch, damage):
    """Each kind of damage is refused in a sentence that names the image: no panic, no hang, no huge allocation."""
    need("qemu-img")
    image = qcow2_with(scratch, DAMAGE[damage])
    names(refused(scratch, [Disk("a", image, "qcow2")]), image)


@pytest.mark.parametrize("length", [0, 3, 100, 512, 65536])
def test_qcow2_cut_short(scratch, length):
    """An image that ends inside its header or tables."""
    need("qemu-img")
    image = images.qcow2(scratch / "short.qcow2", SIZE)
    os.truncate(image, length)
    names(refused(scratch, [Disk("a", image, "qcow2")]), image)


def test_qcow2_of_garbage(scratch):
    """Random bytes behind a good magic number."""
    image = images.raw(scratch / "garbage.qcow2", images.MIB, seed=1)
    with open(image, "r+b") as f:
        f.write(b"QFI\xfb")
    names(refused(scratch, [Disk("a", image, "qcow2")]), image)


def test_qcow2_without_its_backing_file(scratch):
    """The missing backing file is named, not only the overlay."""
    need("qemu-img")
    base = images.raw(scratch / "base.raw", SIZE)
    overlay = images.qcow2(scratch / "overlay.qcow2", SIZE, base)
    base.unlink()
    names(refused(scratch, [Disk("a", overlay, "qcow2")]), "base.raw")


def test_qcow2_that_backs_itself(scratch):
    """A chain that loops ends with an error."""
    need("qemu-img")
    image = images.qcow2(scratch / "loop.qcow2", SIZE)
    run("qemu-img", "rebase", "-u", "-f", "qcow2", "-b", image, "-F", "qcow2", image)
    names(refused(scratch, [Disk("a", image, "qcow2")]), "loop.qcow2")


def test_socket_path_too_long(scratch):
    """The limit is named."""
    image = images.raw(scratch / "a.raw", SIZE)
    text = refused(scratch, [Disk("a", image, "raw", {"socket": f'"{scratch}/{"x" * 120}.sock"'})])
    names(text, "107")


def test_socket_in_use(serve, scratch):
    """A socket of a running daemon is not taken away from it."""
    first = images.raw(scratch / "a.raw", SIZE, seed=1)
    second = images.raw(scratch / "b.raw", SIZE)
    daemon = serve([Disk("a", first, "raw")])
    text = refused(scratch, [Disk("b", second, "raw", {"socket": f'"{daemon.vhost("a")}"'})])
    names(text, daemon.vhost("a"))
    driver("run", daemon.vhost("a"), "--ops", "100", "--verify", first)


def test_socket_of_a_dead_daemon_is_replaced(serve, scratch):
    """What kill -9 leaves behind does not keep the next daemon from starting."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    dead = Daemon(scratch / "same", [Disk("a", image, "raw")]).start()
    dead.kill()
    assert dead.sockets(), "this test is about sockets that stay behind"
    again = Daemon(scratch / "same", [Disk("a", image, "raw")]).start()
    driver("run", again.vhost("a"), "--ops", "100", "--verify", image)
    again.stop()


def test_something_else_where_the_socket_should_be(scratch):
    """A file is not overwritten."""
    image = images.raw(scratch / "a.raw", SIZE)
    victim = scratch / "precious"
    victim.write_text("data")
    names(refused(scratch, [Disk("a", image, "raw", {"socket": f'"{victim}"'})]), victim)
    assert victim.read_text() == "data"


def test_two_disks_on_one_image(scratch):
    """Two writers on one image are refused, by whatever name they reach it."""
    image = images.raw(scratch / "a.raw", SIZE)
    alias = scratch / "alias.raw"
    alias.symlink_to(image)
    hard = scratch / "hard.raw"
    os.link(image, hard)
    for other in (image, alias, hard):
        names(refused(scratch, [Disk("a", image, "raw"), Disk("b", other, "raw")]), '"a"', '"b"', image)


def test_two_daemons_on_one_image(serve, scratch):
    """Nor may two daemons write to one image; nor a daemon and QEMU."""
    need("qemu-io")
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", image, "raw")])
    names(refused(scratch, [Disk("a", image, "raw")]), image)
    done = run("qemu-io", "-f", "raw", image, "-c", "write -P 1 0 4k", check=False)
    assert "lock" in done.stdout + done.stderr, "QEMU should see the daemon's lock"
    driver("run", daemon.vhost("a"), "--ops", "100", "--verify", image)


def test_one_image_read_only_twice(serve, scratch):
    """Readers may share."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk(n, image, "raw", {"read_only": "true"}) for n in ("a", "b")])
    for name in ("a", "b"):
        driver("run", daemon.vhost(name), "--ops", "100", "--verify", image)


def test_size_larger_than_memory(scratch):
    """A share that the store does not have, and a store that the machine does not have."""
    image = images.raw(scratch / "a.raw", SIZE)
    text = refused(scratch, [Disk("a", image, "raw", {"size": '"256MiB"'})], memory="64MiB")
    names(text, "256MiB", "64MiB")
    text = refused(scratch, [Disk("a", image, "raw")], memory="1000TiB")
    names(text, "1000TiB")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [('polcy = "lru"', "policy"), ("readonly = true", "read_only"), ('sokcet = "/x"', "socket")],
)
def test_unknown_key_names_the_nearest(scratch, key, nearest):
    """A mistyped key is refused, with the one that was meant and its line."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = Daemon(scratch / "cfg", [Disk("a", image, "raw")])
    text = daemon.config.read_text() + key + "\n"
    daemon.config.write_text(text)
    for command in ("serve", "check"):
        done = run(built("undercroft"), command, daemon.config, check=False)
        assert done.returncode == 1
        said = done.stdout + done.stderr
        names(said, key.split(" ")[0], nearest)
        assert re.search(rf"\b{text.count(chr(10))}\b", said), f"the line is not named: {said}"


def test_all_problems_at_once(scratch):
    """A configuration with several mistakes gets them all named in one go."""
    daemon = Daemon(scratch / "cfg", [Disk("a", scratch / "missing.raw", "raw", {"policy": '"lur"', "queues": "0"})])
    done = run(built("undercroft"), "check", daemon.config, check=False)
    assert done.returncode == 1
    names(done.stdout + done.stderr, "missing.raw", "lur", "lru", "queues")


# Eight bytes that are zeroed: the entry of the refcount table, or the refcounts of the first clusters, which are those
# of the header and the tables. A write to either image once overwrote its header; the first ended the whole daemon.
ZEROED = {"refcount-table": False, "refcounts": True}


@pytest.mark.parametrize("zeroed", ZEROED)
def test_qcow2_without_refcounts_is_read_only_and_stops_nobody_else(serve, scratch, zeroed):
    """The first write finds it: the guest gets EIO, the header stays, the image is marked, other disks go on."""
    need("qemu-img", "qemu-io")
    image = images.qcow2(scratch / "bad.qcow2", SIZE)
    run("qemu-io", "-f", "qcow2", "-c", "write -P 0x11 0 1M", image)
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    data = bytearray(image.read_bytes())
    at = struct.unpack_from(">Q", data, 48)[0]
    if ZEROED[zeroed]:
        at = struct.unpack_from(">Q", data, at)[0]
    data[at : at + 8] = bytes(8)
    image.write_bytes(data)

    daemon = Daemon(scratch / "checked", [Disk("bad", image, "qcow2"), Disk("good", good, "raw")])
    done = run(built("undercroft"), "check", daemon.config, check=False)
    assert done.returncode == 1, "check should find it"
    names(done.stdout + done.stderr, image, "refcount is 0", "qemu-img check -r all", "read_only = true")

    daemon = serve([Disk("bad", image, "qcow2"), Disk("good", good, "raw")])
    before = image.read_bytes()
    write = run("qemu-io", "-f", "raw", daemon.nbd("bad"), "-c", "write -P 0x22 8M 64k", check=False)
    assert "Input/output error" in write.stdout + write.stderr, write.stdout + write.stderr
    # Its data, and the other disk, are served as if nothing had been.
    read = run("qemu-io", "-f", "raw", daemon.nbd("bad"), "-c", "read -P 0x11 0 1M", "-c", "flush")
    assert "verification failed" not in read.stdout
    driver("run", daemon.vhost("good"), "--ops", "100", "--verify", good)
    status = next(d for d in daemon.status()["disks"] if d["name"] == "bad")
    assert status["state"] == "failed", status["state"]
    names(status["reason"], "writes are refused, reads go on", "qemu-img check -r all")
    names(daemon.log(), "bad.qcow2", "marked corrupt")
    daemon.stop()
    expected = bytearray(before)
    expected[79] |= 2
    assert image.read_bytes() == expected, "nothing may be changed but the mark"

    names(refused(scratch, [Disk("a", image, "qcow2")]), image, "marked corrupt", "qemu-img check -r all")
    again = Daemon(scratch / "again", [Disk("bad", image, "qcow2", {"read_only": "true"})]).start()
    read = run("qemu-io", "-r", "-f", "raw", again.nbd("bad"), "-c", "read -P 0x11 0 1M")
    assert "verification failed" not in read.stdout
    again.stop()
