"""What front ends, guests, images, upstreams and tenants can do by design (docs/threat-model.md): it is so, and it is
theirs alone. Beside each of them another disk is served as if nothing had been.

What they cannot do has its tests beside what it is about; this is the other half of the table.
"""

import json
import os
import random
import struct
import threading
import time

import pytest
from harness import images, nbdwire, nodes
from harness.daemon import Disk, until
from harness.front import DATA, IN, OUT, Front
from harness.nbdwire import Wire
from harness.programs import PATIENCE, need, need_root, run, start_driver
from harness.volumes import Plugin, mounts, need_loops, own

MIB = images.MIB
SIZE = 8 * MIB


class Beside:
    """A disk of the same daemon and the same worker, with contents that are known."""

    def __init__(self, scratch):
        self.image = images.raw(scratch / "beside.raw", SIZE, seed=11)
        self.disk = Disk("beside", self.image, "raw")

    def serve(self, serve, *disks, **options):
        self.daemon = serve([*disks, self.disk], memory="64MiB", workers=1, **options)
        return self.daemon

    def goes_on(self) -> None:
        """Its bytes are its image's."""
        assert read(self.daemon, "beside", 0, SIZE) == self.image.read_bytes()


@pytest.fixture
def beside(scratch):
    """A disk beside the one that a test is about."""
    return Beside(scratch)


def read(daemon, disk: str, offset: int, length: int) -> bytes:
    """What a disk says that it holds, over NBD."""
    with Wire(daemon.nbd_socket, limit=20 * PATIENCE) as wire:
        wire.handshake(disk)
        wire.request(nbdwire.READ, offset, length, 1)
        assert wire.reply() == (0, 1)
        return wire.receive(length)


def test_a_buffer_that_changes_while_it_is_written_is_what_the_disk_got(serve, scratch, beside):
    """A guest changes what it writes while it is copied. The disk holds a mixture of both, and readers get that: what
    is cached is what was written, and not a copy made a moment later."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = beside.serve(serve, Disk("a", image, "raw"))
    length, ends = 64 << 10, threading.Event()
    front = Front(daemon.vhost("a")).set_up()
    patterns = [bytes([byte]) * length for byte in (0x11, 0x22)]
    at, mixed = 0, 0

    def change():
        while not ends.is_set():
            for pattern in patterns:
                front.map[DATA : DATA + length] = pattern

    thread = threading.Thread(target=change)
    thread.start()
    try:
        end = time.monotonic() + 30 * PATIENCE
        while mixed < 3:
            assert time.monotonic() < end, "no buffer changed while it was copied: nothing was tried"
            assert front.request(OUT, at // 512, length) == 0
            mixed += len(set(image.read_bytes()[at : at + length])) == 2
            at = (at + length) % SIZE
    finally:
        ends.set()
        thread.join()
    held = image.read_bytes()
    assert set(held) <= {0, 0x11, 0x22}
    before = daemon.disk("a")["counters"]["hit_blocks"]
    for at in range(0, SIZE, length):
        assert front.request(IN, at // 512, length) == 0
        images.same(bytes(front.map[DATA : DATA + length]), held[at : at + length], f"what the guest reads at {at}")
    assert daemon.disk("a")["counters"]["hit_blocks"] > before, "nothing was cached, so that nothing was compared"
    images.same(read(daemon, "a", 0, SIZE), held, "what others read")
    front.close()
    beside.goes_on()


def test_a_raw_image_holds_any_bytes(serve, scratch, beside):
    """An image that is said to be raw is its bytes, whatever those look like."""
    like = [b"QFI\xfb\0\0\0\3", b"LUKS\xba\xbe", b"KDMV", b"vhdxfile", b"\x7fELF", bytes(8)]
    disks = []
    for n, magic in enumerate(like):
        image = images.raw(scratch / f"{n}.raw", MIB, seed=n)
        with open(image, "r+b") as f:
            f.write(magic)
        disks.append(Disk(f"a{n}", image, "raw"))
    daemon = beside.serve(serve, *disks)
    for disk in disks:
        images.same(read(daemon, disk.name, 0, MIB), disk.image.read_bytes(), "an image that looks like something else")
    beside.goes_on()


def test_an_image_that_others_change_while_it_is_served_harms_its_own_disk_alone(serve, scratch, beside):
    """Somebody scribbles over the tables of a qcow2 image, against its locks: requests are answered, with data or an
    error, the daemon lives, and the disk beside is what it was."""
    need("qemu-img", "qemu-io")
    image = images.qcow2(scratch / "a.qcow2", SIZE)
    run("qemu-io", "-f", "qcow2", "-c", f"write -P 0x33 0 {SIZE // 2}", image)
    daemon = beside.serve(serve, Disk("a", image, "qcow2"))
    dice, answers = random.Random(5), {}
    with Wire(daemon.nbd_socket, limit=60 * PATIENCE) as wire:
        wire.handshake("a")
        for n in range(300):
            if n % 10 == 5:
                # Header, refcounts, L1 and L2 tables are in the first clusters; the magic and the version stay.
                with open(image, "r+b", buffering=0) as f:
                    f.seek(dice.randrange(8, 5 << 16))
                    f.write(dice.randbytes(8))
            offset, writes = dice.randrange(SIZE // 4096) * 4096, dice.random() < 0.5
            wire.request(nbdwire.WRITE if writes else nbdwire.READ, offset, 4096, n, data=bytes(4096 * writes))
            error, cookie = wire.reply()
            assert cookie == n
            if not error and not writes:
                wire.receive(4096)
            answers[error] = answers.get(error, 0) + 1
            if n % 50 == 49:
                beside.goes_on()
    assert set(answers) <= {0, 5, 28}, f"errors that say something else: {answers}"
    daemon.stop()
    assert run("qemu-img", "check", "-f", "qcow2", image, check=False).returncode != 0, "nothing was damaged"


def spread(image, clusters: int) -> None:
    """Makes each cluster of data of a qcow2 image with clusters of 512 bytes lie 1 MiB behind the one before, in a file
    of so many holes: counts of references are kept by 2,048 clusters, so that each takes 4 KiB."""
    with open(image, "r+b") as f:
        head = f.read(104)
        entries, table = struct.unpack_from(">I", head, 36)[0], struct.unpack_from(">Q", head, 40)[0]
        f.seek(table)
        tables = [at & 0x00FF_FFFF_FFFF_FE00 for at in struct.unpack(f">{entries}Q", f.read(8 * entries))]
        first = 64 * MIB
        for n, at in enumerate(filter(None, tables)):
            places = (first + (64 * n + k) * MIB for k in range(64))
            f.seek(at)
            f.write(struct.pack(">64Q", *(1 << 63 | place for place in places)))
        f.truncate(first + clusters * MIB)


def test_verifying_an_image_takes_so_much_memory_and_no_more(serve, scratch, beside):
    """Tables made to need more counts than may be kept: 256 MiB are taken, then the image is not written to, and the
    memory comes back."""
    need("qemu-img")
    clusters = 68 << 10
    image = images.qcow2(scratch / "a.qcow2", clusters * 512, options="cluster_size=512,preallocation=metadata")
    spread(image, clusters)
    daemon = beside.serve(serve, Disk("a", image, "qcow2"))
    before = daemon.rss()
    with Wire(daemon.nbd_socket, limit=60 * PATIENCE) as wire:
        wire.handshake("a")
        wire.request(nbdwire.WRITE, 0, 4096, 1, data=bytes(4096))
        assert wire.reply() == (5, 1)
    disk = daemon.disk("a")
    assert "more than 256MiB of memory" in disk["reason"], disk
    taken = daemon.rss("VmHWM") - before
    assert 200 * MIB < taken < (256 + 32) * MIB, f"{taken >> 20} MiB were taken"
    until(lambda: daemon.rss() < before + 32 * MIB, "the memory comes back")
    beside.goes_on()


def test_an_upstream_may_give_any_bytes(serve, scratch, nbdkit, beside):
    """Other bytes each time that it is asked: they are the disk, as it was read first where that is cached, and nobody
    else's."""
    need("nbdkit")
    options = {"read_only": "true", "readahead": '"0"', "size": '"4MiB"', "policy": '"lru"'}
    upstream = nbdkit("eval", f"get_size=echo {2 * SIZE}", "pread=head -c $3 /dev/urandom")
    daemon = beside.serve(serve, Disk("a", upstream.uri, options=options))
    first = read(daemon, "a", 0, MIB)
    assert read(daemon, "a", 0, MIB) == first, "what is cached is what was read"
    assert all(read(daemon, "a", n * MIB, MIB) != first for n in range(1, 16))
    assert read(daemon, "a", 0, MIB) != first, "it had to go, and so was read anew"
    beside.goes_on()


def test_a_tenant_sees_its_own_share_change(serve, scratch):
    """On the socket of a VM: what it has grows while a neighbour is idle, and shrinks when that one works. So its owner
    learns how busy others are, though not who they are."""
    web, db = (images.raw(scratch / f"{name}.raw", nodes.SIZE, seed=n) for n, name in enumerate(("web", "db"), 1))
    socket = scratch / "web.sock"
    web = nodes.vm("web", web, f'control_socket = "{socket}"')
    extra = '[shares]\ncontroller = "static"\ninterval = "1s"\n' + web + nodes.vm("db", db)
    daemon = serve([], memory="96MiB", extra=extra)

    def share() -> int:
        status, text = daemon.api("GET", "/v1/nodes/web", on=socket)
        assert status == 200 and "db" not in text, text
        return json.loads(text)["share_bytes"]

    half = share()
    loads = [start_driver("run", daemon.nbd("web:root"), "--seconds", "120", "--depth", "8")]
    try:
        until(lambda: share() > half + 24 * MIB, "the VM is lent what its neighbour does not use", 60)
        loads.append(start_driver("run", daemon.nbd("db:root"), "--seconds", "120", "--depth", "8"))
        until(lambda: share() < half + 4 * MIB, "the neighbour has it back", 60)
    finally:
        for load in loads:
            load.terminate()
            load.wait()


@pytest.fixture
def small(scratch):
    """A file system of 96 MiB."""
    need_root()
    need_loops()
    need("mkfs.ext4", "blkid")
    file, place = images.raw(scratch / "small.img", 96 * MIB), scratch / "small"
    place.mkdir()
    run("mkfs.ext4", "-q", file)
    run("mount", "-o", "loop", file, place)
    yield place
    run("umount", "-l", place)


def test_volumes_may_be_larger_together_than_what_is_below(serve, scratch, small):
    """Two volumes of 64 MiB on 96 MiB: one is filled until nothing more is there, which its writer is told. What the
    other held is right, and both are served on."""
    daemon = serve([], memory="64MiB")
    plugin = Plugin(small, daemon.control).start()
    names = [own("first"), own("second")]
    try:
        places = []
        for name in names:
            plugin.ask("VolumeDriver.Create", Name=name, Opts={"size": "64MiB"})
            places.append(plugin.ask("VolumeDriver.Mount", Name=name, ID="test")["Mountpoint"])
        kept = random.Random(1).randbytes(4 * MIB)
        for place in places:
            with open(f"{place}/kept", "wb") as f:
                f.write(kept)
                os.fsync(f.fileno())
        room = os.statvfs(small)
        assert room.f_bavail * room.f_frsize < 2 * 50 * MIB, "there is room for both"
        told = []
        for place in places:
            try:
                with open(f"{place}/much", "wb", buffering=0) as f:
                    for n in range(56):
                        f.write(random.Random(n).randbytes(MIB))
                        os.fsync(f.fileno())
            except OSError as e:
                told.append(e.errno)
        assert told, "more was written than there is room for, and nobody was told"
        assert [daemon.disk(name)["state"] for name in names] == ["serving", "serving"]
        for place in places:
            with open(f"{place}/kept", "rb") as f:
                # So that it is read from the disk again, if the kernel lets it go.
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                images.same(f.read(), kept, f"what {place} held")
    finally:
        for place in plugin.images.glob("*/fs"):
            while mounts(place):
                run("umount", "--lazy", place)
        plugin.stop()
