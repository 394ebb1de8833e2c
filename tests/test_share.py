"""Content held once: clones of one image, equal disks, zeroes; and who must not share."""

import subprocess

from harness import images
from harness.daemon import Disk
from harness.programs import need, run

SIZE = 32 * images.MIB
CLONES = 8


def read_all(daemon, disk: str, to) -> None:
    """Reads a whole disk as a client does, with the bytes compared by the caller."""
    run("nbdcopy", "--connections=1", daemon.nbd(disk), to)


def clones(scratch, base, backing_format: str = "raw") -> list:
    return [images.qcow2(scratch / f"clone{i}.qcow2", SIZE, base, backing_format) for i in range(CLONES)]


def settled(daemon) -> dict:
    """The status, once what waits has been hashed."""
    daemon.call("status")
    return daemon.status()


def test_eight_clones_take_the_memory_of_one(serve, scratch):
    """Eight overlays of one image, each read whole over NBD: one copy in memory, at most 1.15 times, and read once."""
    need("nbdcopy", "qemu-img")
    base = images.raw(scratch / "base.raw", SIZE, seed=1)
    overlays = clones(scratch, base)
    # Each clone's share of the store holds an eighth of the image; together they hold all of it.
    disks = [Disk(f"d{i}", image, "qcow2", {"socket": f'"{scratch}/d{i}.sock"'}) for i, image in enumerate(overlays)]
    daemon = serve(disks, memory="160MiB")
    for i in range(CLONES):
        read_all(daemon, f"d{i}", scratch / "out.raw")
        assert images.digest(scratch / "out.raw") == images.digest(base)
    status = settled(daemon)
    cached = sum(d["cache"]["cached_bytes"] for d in status["disks"])
    assert status["store"]["data_bytes"] <= 1.15 * SIZE, status["store"]
    assert status["store"]["saved_bytes"] == cached - status["store"]["data_bytes"]
    assert cached >= CLONES * SIZE * 3 // 10, "the clones keep little"
    read = sum(d["counters"]["backend_read_bytes"] for d in status["disks"])
    assert read < 4 * SIZE, f"{read / SIZE:.1f} times the image was read"
    base_circle = next(c for c in status["sharing"] if c["kind"] == "base")
    assert sorted(base_circle["disks"]) == [f"d{i}" for i in range(CLONES)]
    assert len({d["worker"] for d in status["disks"]}) == 1
    charged = sum(d["sharing"]["charged_bytes"] for d in status["disks"])
    used = status["store"]["data_bytes"]
    assert used <= charged <= used + CLONES * 2 * 4096


def test_a_clone_that_writes_sees_its_own_and_the_others_the_base(serve, scratch):
    """Copy on divergence, through real programs: what one clone writes, discards or zeroes is seen there and nowhere else."""
    need("nbdcopy", "qemu-io", "qemu-img")
    base = images.raw(scratch / "base.raw", SIZE, seed=3)
    overlays = clones(scratch, base)
    daemon = serve([Disk(f"d{i}", image, "qcow2") for i, image in enumerate(overlays)], memory="128MiB")
    for i in range(3):
        read_all(daemon, f"d{i}", scratch / "out.raw")
    changes = ["write -P 9 1M 100k", "write -z 5M 1M", "discard 9M 1M", "write -P 3 12345k 512"]
    run("qemu-io", "-f", "raw", *[x for c in changes for x in ("-c", c)], daemon.nbd("d0"))
    read_all(daemon, "d1", scratch / "other.raw")
    assert images.digest(scratch / "other.raw") == images.digest(base)
    read_all(daemon, "d0", scratch / "own.raw")
    before = images.digest(scratch / "own.raw")
    assert before != images.digest(base)
    daemon.stop()
    run("qemu-img", "convert", "-O", "raw", overlays[0], scratch / "qemu.raw")
    assert images.digest(scratch / "qemu.raw") == before
    # Opened again, the map of its own clusters is made anew from the image.
    daemon = serve([Disk(f"d{i}", image, "qcow2") for i, image in enumerate(overlays)], memory="128MiB")
    read_all(daemon, "d1", scratch / "other.raw")
    read_all(daemon, "d0", scratch / "own.raw")
    assert images.digest(scratch / "own.raw") == before
    assert images.digest(scratch / "other.raw") == images.digest(base)


def test_only_those_who_trust_each_other_share_contents(serve, scratch):
    """Equal raw disks: one frame a block within a group, none shared across groups, nothing with share = false."""
    need("nbdcopy", "qemu-img")
    first = images.raw(scratch / "a.raw", SIZE // 4, seed=5)
    for name in "bcd":
        subprocess.run(["cp", first, scratch / f"{name}.raw"], check=True)
    disks = [Disk(n, scratch / f"{n}.raw", "raw", {"trust": '"friends"'} if n in "ab" else {}) for n in "abcd"]
    daemon = serve(disks, memory="128MiB")
    for name in "abcd":
        read_all(daemon, name, scratch / "out.raw")
        assert images.digest(scratch / "out.raw") == images.digest(first)
    status = settled(daemon)
    assert status["store"]["data_bytes"] == 3 * SIZE // 4, status["store"]
    shared = {d["name"]: d["sharing"]["shared_bytes"] for d in status["disks"]}
    assert shared == {"a": SIZE // 4, "b": SIZE // 4, "c": 0, "d": 0}
    daemon.stop()
    daemon = serve(disks, memory="128MiB", store="share = false")
    for name in "ab":
        read_all(daemon, name, scratch / "out.raw")
    status = settled(daemon)
    assert status["store"]["data_bytes"] == 2 * SIZE // 4 and status["sharing"] == []


def test_zeroes_take_no_memory(serve, scratch):
    """An empty disk is cached in no memory."""
    need("nbdcopy")
    image = images.raw(scratch / "empty.raw", SIZE)
    daemon = serve([Disk("a", image, "raw")], memory="64MiB")
    read_all(daemon, "a", scratch / "out.raw")
    assert (scratch / "out.raw").read_bytes() == bytes(SIZE)
    status = settled(daemon)
    sharing = status["disks"][0]["sharing"]
    assert sharing["zero_bytes"] == status["disks"][0]["cache"]["cached_bytes"] > 0
    assert status["store"]["data_bytes"] == sharing["charged_bytes"] == 0
