"""Front ends that do harm to a real daemon: memory cut short or without room, notifications that block, memory that
stalls. The daemon goes on, others never notice, and the same socket serves the next front end."""

import contextlib
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import images, nbdwire
from harness.daemon import Disk, until
from harness.front import IN, OUT, OWN, Front, Gone, memfd, punch
from harness.fuse import FuseFile
from harness.nbdwire import Wire
from harness.pausing import paused
from harness.programs import built, driver, need, need_root

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
from rig.cgroup import Group, Unavailable

MIB = images.MIB


@pytest.fixture
def fronts():
    """Connects front ends; all of them leave when the test is over."""
    made = []

    def connect(*words, **options) -> Front:
        made.append(Front(*words, **options))
        return made[-1]

    yield connect
    for front in made:
        front.close()


def serves(daemon, disk: str, fronts) -> None:
    """A new front end of a disk is served."""
    front = fronts(daemon.vhost(disk)).set_up()
    assert front.request(IN, 0, 4096) == 0
    front.close()


def two(serve, scratch, workers: int = 1, **options) -> object:
    """Two disks, on one worker unless told otherwise."""
    disks = [
        Disk(name, images.raw(scratch / f"{name}.raw", 8 * MIB, seed=n), "raw", dict(options))
        for n, name in enumerate("ab")
    ]
    return serve(disks, memory="64MiB", workers=workers)


@pytest.fixture
def full(scratch):
    """A file of 1 MiB on a tmpfs that has no room for any of it."""
    need_root()
    where = scratch / "full"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", where], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr}")
    (where / "filler").write_bytes(bytes(64 << 10))
    fd = os.open(where / "ram", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, MIB)
    yield fd
    os.close(fd)
    subprocess.run(["umount", "-l", where], check=True)


def test_memory_that_is_taken_away_ends_its_front_end_alone(serve, scratch, fronts, full):
    """A memory file cut short under a read, a write and the ring, a record of requests cut short, and memory on a full
    file system: each front end is dropped with one message; the other disk's client never notices."""
    daemon = two(serve, scratch)
    good = fronts(daemon.vhost("b")).set_up()
    before = (scratch / "a.raw").read_bytes()

    def harmed(front: Front, how: str) -> None:
        assert front.is_dropped(), how
        assert good.request(IN, 0, 4096) == 0, how
        serves(daemon, "a", fronts)

    for kind in (IN, OUT):
        extra = memfd(MIB)
        front = fronts(daemon.vhost("a"), (extra, MIB)).set_up()
        assert front.request(IN, 0, 8192, OWN) == 0
        front.post(kind, 0, 8192, OWN, kick=False)
        os.ftruncate(extra, 0)
        front.ring()
        harmed(front, f"memory cut short under request {kind}")
    front = fronts(daemon.vhost("a")).set_up()
    front.post(IN, 0, 4096, kick=False)
    os.ftruncate(front.memory, 0)
    front.ring()
    harmed(front, "the ring itself cut short")
    record = memfd(4096)
    front = fronts(daemon.vhost("a")).set_up(own_inflight=record)
    assert front.request(IN, 0, 4096) == 0
    front.post(IN, 0, 4096, kick=False)
    os.ftruncate(record, 0)
    front.ring()
    harmed(front, "the record of requests under way cut short")
    front = fronts(daemon.vhost("a"), (full, MIB)).set_up()
    front.post(IN, 0, 8192, OWN)
    harmed(front, "no room on the file system")
    log = daemon.log()
    assert log.count("a front end was disconnected: memory that it shares is gone") == 5, log
    assert (scratch / "a.raw").read_bytes() == before, "nothing that nobody wrote reached the disk"


@pytest.fixture
def huge(scratch):
    """A hugetlbfs with room for two pages, and the bytes of one. What the machine had of huge pages it has
    afterwards; one test at a time has more, since they count them. To be asked for before
    the daemon, which may have pages until it has ended."""
    need_root()
    count = Path("/proc/sys/vm/nr_hugepages")
    size = next(
        (
            int(line.split()[1]) << 10
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("Hugepagesize:")
        ),
        0,
    )
    if not count.exists() or size == 0:
        pytest.skip("no huge pages of hugetlbfs can be had here: the kernel has none")
    where = scratch / "huge"
    where.mkdir()
    alone = count.open(encoding="ascii")
    fcntl.flock(alone, fcntl.LOCK_EX)
    before = int(count.read_text())
    try:
        with contextlib.suppress(OSError):
            count.write_text(str(before + 2))
        mounted = subprocess.run(
            ["mount", "-t", "hugetlbfs", "-o", f"size={2 * size}", "none", where],
            check=False,
            capture_output=True,
            text=True,
        )
        if int(count.read_text()) < before + 2 or mounted.returncode != 0:
            pytest.skip(
                f"no huge pages of hugetlbfs can be had here: {count.read_text().strip()} pages,"
                f" {mounted.stderr.strip()}"
            )
        yield where, size
    finally:
        subprocess.run(["umount", "-l", where], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            count.write_text(str(before))
        alone.close()


@pytest.mark.alone
def test_huge_pages_that_are_taken_away_end_their_front_end_alone(huge, serve, scratch, fronts):
    """A file on hugetlbfs cut short under a read and a write, and one for which there is no page left: each front end
    is dropped with one message; the other disk's client never notices."""
    where, page = huge
    daemon = two(serve, scratch)
    good = fronts(daemon.vhost("b")).set_up()
    before = (scratch / "a.raw").read_bytes()

    def file(name: str) -> int:
        fd = os.open(where / name, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, page)
        return fd

    def harmed(front: Front, how: str) -> None:
        assert front.is_dropped(), how
        assert good.request(IN, 0, 4096) == 0, how
        serves(daemon, "a", fronts)

    for kind in (IN, OUT):
        extra = file(f"ram{kind}")
        front = fronts(daemon.vhost("a"), (extra, page)).set_up()
        assert front.request(IN, 0, 8192, OWN) == 0
        front.post(kind, 0, 8192, OWN, kick=False)
        os.ftruncate(extra, 0)
        front.ring()
        harmed(front, f"huge pages taken away under request {kind}")
        os.close(extra)
    filler = os.open(where / "filler", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(filler, 0, 2 * page)
    extra = file("none")
    front = fronts(daemon.vhost("a"), (extra, page)).set_up()
    front.post(IN, 0, 8192, OWN)
    harmed(front, "no huge page left")
    for fd in (filler, extra):
        os.close(fd)
    log = daemon.log()
    assert log.count("a front end was disconnected: memory that it shares is gone") == 3, log
    assert (scratch / "a.raw").read_bytes() == before, "nothing that nobody wrote reached the disk"


@pytest.mark.alone
@pytest.mark.parametrize("pages", ["kept", "given back", "given back, and none is left"])
def test_huge_pages_that_were_given_back_are_not_taken_again_for_copies(huge, serve, scratch, fronts, pages):
    """A guest on hugetlbfs gives a huge page back that held blocks of its disk, as with virtio-mem, and begins afresh:
    nothing that is copied then takes a huge page, nor ends the front end where there is none. Those that are there are
    copied."""
    where, page = huge
    image = images.raw(scratch / "a.raw", 32 * MIB, seed=1)
    # Nothing is copied before that: what is cached already needs no copy then.
    disk = Disk("a", image, "raw", {"size": '"4MiB"', "readahead": "0", "exclusive": '"capture"'})
    daemon = serve([disk], memory="64MiB", workers=1, keys="check_captures = true")
    ram = os.open(where / "ram", os.O_RDWR | os.O_CREAT)
    os.ftruncate(ram, page)
    front = fronts(daemon.vhost("a"), (ram, page)).set_up()

    def exclusive() -> dict:
        return daemon.disk("a")["exclusive"]

    assert front.request(IN, 0, MIB, OWN) == 0
    # So much more, into other memory, that the cache has little of it.
    for n in range(96):
        assert front.request(IN, MIB // 512 + n * 512, MIB // 4) == 0
    assert exclusive()["guest_pages_held"] == 320, exclusive()
    held = os.fstat(ram).st_blocks
    filler = os.open(where / "filler", os.O_RDWR | os.O_CREAT)
    if pages != "kept":
        punch(ram, page)
        held = 0
    if pages.endswith("left"):
        os.posix_fallocate(filler, 0, 2 * page)
    front.reset()
    until(lambda: exclusive()["restart_tried"] >= 256, "what the guest held is looked for")
    told = exclusive()
    assert os.fstat(ram).st_blocks == held, "the host keeps what was given back"
    assert (told["restart_copied"] > 64) == (pages == "kept") and told["captures_wrong"] == 0, told
    assert front.set_up().request(IN, 0, 4096) == 0, daemon.log()
    # What the guest asks for itself comes, if there is a page for it.
    if not pages.endswith("left"):
        assert front.request(IN, 0, MIB, OWN) == 0 and os.fstat(ram).st_blocks == page // 512
    for fd in (filler, ram):
        os.close(fd)


def test_a_notification_that_is_made_to_block_holds_nobody_up(serve, scratch, fronts):
    """The counter of the call descriptor full, and O_NONBLOCK cleared: its front end is dropped, the other disk goes
    on, and the second time the worker does not even wait for a moment."""
    daemon = two(serve, scratch)
    good = fronts(daemon.vhost("b")).set_up()

    def spring(front: Front) -> None:
        # The notification of the last answer may come after the answer.
        filled = False
        while not filled:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(front.call)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(front.call, 2**64 - 2)
                filled = True
        fcntl.fcntl(front.call, fcntl.F_SETFL, fcntl.fcntl(front.call, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        front.post(IN, 0, 4096)

    front = fronts(daemon.vhost("a")).set_up()
    assert front.request(IN, 0, 4096) == 0
    spring(front)
    assert front.is_dropped()
    assert good.request(IN, 0, 4096) == 0
    until(lambda: "it made its notification descriptor block" in daemon.log(), "it is said why")
    front = fronts(daemon.vhost("a")).set_up()
    assert front.request(IN, 0, 4096) == 0, "notified in the other way"
    spring(front)
    assert good.request(IN, 0, 4096) == 0
    assert daemon.log().count("a front end was disconnected") == 1, "it harms nobody but itself"


def test_one_worker_that_stalls_keeps_nobody_waiting(serve, scratch, fronts, stalling):
    """Memory that makes the worker wait is refused, unless trusted. Trusted and stalled: disks of the other worker,
    status, attaching and the end of the daemon do not wait for it."""
    daemon = two(serve, scratch, workers=2)
    ram = os.open(stalling.path, os.O_RDWR)
    refused = fronts(daemon.vhost("a"), (ram, MIB))
    with contextlib.suppress(Gone, OSError):
        refused.set_up()
    assert refused.is_dropped()
    # The connection is closed before the line is written.
    until(lambda: "neither memfd nor tmpfs nor hugetlbfs" in daemon.log(), "it is said why")
    assert "trust_memory" in daemon.log()
    daemon.stop()
    disks = [
        Disk("a", scratch / "a.raw", "raw", {"trust_memory": "true"}),
        Disk("b", scratch / "b.raw", "raw"),
    ]
    daemon = serve(disks, memory="64MiB", workers=2)
    assert daemon.disk("a")["worker"] != daemon.disk("b")["worker"]
    front = fronts(daemon.vhost("a"), (ram, MIB)).set_up()
    assert front.request(IN, 0, 4096) == 0
    stalling.stall_contents()
    front.post(IN, 0, 4096, OWN + 512 * 1024)
    assert front.answer(patience=1) is None
    # The other disk is served, to new front ends and clients as well.
    serves(daemon, "b", fronts)
    driver("run", daemon.vhost("b"), "--ops", "500", "--depth", "4")
    need("nbdinfo")
    assert subprocess.run(
        ["nbdinfo", "--size", daemon.nbd("b")], check=True, capture_output=True, timeout=60
    ).stdout.strip()
    until(lambda: daemon.disk("a")["state"] == "stalled", "it is said that the worker does not answer", 60)
    worker = daemon.disk("a")["worker"]
    assert f"worker w{worker} has not answered for 5 s" in daemon.disk("a")["reason"]
    assert daemon.disk("b")["state"] == "serving"
    # A client of the stalled disk is turned away rather than left to hold up the others' handshakes.
    subprocess.run(["nbdinfo", "--size", daemon.nbd("a")], check=False, capture_output=True, timeout=60)
    assert subprocess.run(
        ["nbdinfo", "--size", daemon.nbd("b")], check=True, capture_output=True, timeout=60
    ).stdout.strip()
    daemon.write_config([*disks, Disk("c", images.raw(scratch / "c.raw", 8 * MIB), "raw")])
    daemon.call("reload")
    serves(daemon, "c", fronts)
    assert daemon.disk("c")["worker"] == daemon.disk("b")["worker"], "a new disk goes to a worker that answers"
    # The other worker's disks are closed in order, and the daemon ends by itself, with 0: its deadline, which ends it
    # with 1 and says so, is not needed. What the stalled worker had open is left to the kernel.
    daemon.stop()
    log = daemon.log()
    for disk in "bc":
        assert re.search(rf'detached.*disk="?{disk}', log), log
    assert "some images do not answer; stopping without them" in log, log
    assert "not stopped after" not in log, log


@pytest.fixture
def fuse_file(scratch):
    """A file of FUSE whose server can keep those waiting who close it."""
    file = FuseFile(scratch / "closed-slowly", MIB)
    yield file
    file.close()


def test_a_descriptor_whose_closing_waits_keeps_no_other_front_end_waiting(serve, scratch, fronts, fuse_file):
    """A file of FUSE handed over as guest memory, and refused, whose server answers no close (decision 0185): the front
    ends of other disks of the same worker come, are served and go meanwhile, and so does the next one of that disk
    afterwards."""
    file = fuse_file
    daemon = two(serve, scratch)
    ram = os.open(file.path, os.O_RDWR)
    file.hold(daemon.pid)
    front = fronts(daemon.vhost("a"), (ram, MIB), patience=1)
    try:
        with contextlib.suppress(Gone, OSError):
            front.set_up()
    finally:
        # Before any process is started: see FuseFile.hold.
        os.close(ram)
    front.close()
    until(lambda: file.waiting() > 0, "the daemon waits for the file to be closed")
    good = fronts(daemon.vhost("b")).set_up()
    for _ in range(20):
        assert good.request(IN, 0, 4096) == 0
        good.close()
        good = fronts(daemon.vhost("b")).set_up()
    assert daemon.disk("a")["state"] == "serving" == daemon.disk("b")["state"]
    assert file.waiting() > 0, "it waits all the time"
    file.release()
    until(lambda: "front end disconnected" in daemon.log() or "session ended" in daemon.log(), "its session has ended")
    serves(daemon, "a", fronts)


def lingering() -> tuple[socket.socket, socket.socket]:
    """A TCP socket whose last close takes 100 s, since its peer reads nothing; and the peer, to be kept."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100))
    return ours, peer


def passes(where: socket.socket, first: bytes, then: bytes, peers: list) -> bool:
    """Sends bytes, then more with a lingering socket. Whether the kernel lets it through."""
    ours, peer = lingering()
    peers.append(peer)
    try:
        where.sendall(first)
        socket.send_fds(where, [then], [ours.fileno()])
        return True
    except (PermissionError, BrokenPipeError):
        # Refused by the kernel, or cut off for what came before: nobody else is to wait for it, nor are we.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        return False
    finally:
        ours.close()


def test_descriptors_in_flight_keep_no_socket_waiting(serve, scratch, fronts):
    """A socket that lingers, passed along: not with the first byte of a message, in a message that nobody reads, and
    where nobody has asked for descriptors at all. Whoever closes it for the last time waits for 100 s; front ends of
    the other disk, NBD clients and the API are served meanwhile."""
    daemon = two(serve, scratch)
    peers, mine = [], []

    def connect(path: object) -> socket.socket:
        mine.append(socket.socket(socket.AF_UNIX))
        mine[-1].connect(str(path))
        return mine[-1]

    def all_serve() -> None:
        for _ in range(3):
            serves(daemon, "b", fronts)
        with Wire(daemon.nbd_socket) as wire:
            wire.handshake("b").request(nbdwire.READ, 0, 4096, 1)
            assert wire.reply() == (0, 1)
        assert daemon.disk("b")["state"] == "serving"

    head = struct.pack("=III", 1, 1, 0)
    assert passes(connect(daemon.vhost("a")), head[:4], head[4:8], peers), "vhost-user passes descriptors"
    all_serve()
    # A second front end, which is turned away: what it sent before that is read by nobody.
    with paused(daemon.pid):
        assert passes(connect(daemon.vhost("a")), b"", head, peers), "it waits to be accepted"
    all_serve()
    for path in (daemon.nbd_socket, daemon.control):
        for more in (b"", b"GET "):
            passes(connect(path), more, b"x", peers)
            all_serve()
    for one in mine:
        one.close()
    all_serve()
    daemon.stop()
    for peer in peers:
        peer.close()


@pytest.fixture
def group():
    """A control group for the daemon alone."""
    need_root()
    try:
        made = Group("guests", 128 * MIB)
    except Unavailable as e:
        pytest.skip(str(e))
    yield made
    made.close()


@pytest.fixture
def own_program(scratch, monkeypatch):
    """A copy of the program of which nothing is in the page cache: its pages are charged to whoever runs it first, as
    on a host that has just booted. In a group that is full to the last they are taken and read again, all the time.

    """
    program = Path(shutil.copy(built("undercroft"), scratch / "program"))
    with open(program, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    monkeypatch.setenv("UNDERCROFT_PROGRAM", str(program))


def read_until_it_waits(front, daemon, name: str, most: int) -> int:
    """Has 1 MiB after the other of a disk read into its memory; returns how many came before one that waits: for three
    seconds, and by what is said of the disk, since a machine may be slow."""
    for n in range(most):
        answer = front.request(IN, n % 16 * 2048, MIB, OWN + n * MIB, patience=3)
        end = time.monotonic() + front.patience
        while answer is None:
            if daemon.disk(name)["state"] == "stalled":
                return n
            assert time.monotonic() < end, f"{n} MiB were read, and no more; nothing is said of it"
            answer = front.answer(1)
        assert answer == 0
    return most


def test_guest_that_gives_memory_back_does_not_get_the_daemon_killed(group, own_program, serve, scratch, fronts):
    """A guest whose memory was allocated gives all of it back, as a balloon does, and has the daemon read into it:
    requests wait before the control group is full, and go on when the guest has touched its memory again."""
    image = images.raw(scratch / "a.raw", 16 * MIB, seed=1)
    disk = Disk("a", image, "raw", {"readahead": "0", "size": '"12MiB"'})
    daemon = serve([disk], memory="32MiB", store="floor = 0", workers=1, wrap=group.wrap)
    ram_bytes = 192 * MIB
    memory = memfd(ram_bytes)
    os.posix_fallocate(memory, 0, ram_bytes)
    front = fronts(daemon.vhost("a"), (memory, ram_bytes)).set_up()
    assert read_until_it_waits(front, daemon, "a", 16) == 16
    punch(memory, ram_bytes)
    done = read_until_it_waits(front, daemon, "a", ram_bytes // MIB)
    assert group.killed() == 0 and daemon.running(), "the daemon was killed"
    assert done < ram_bytes // MIB, "it never waited"
    status = daemon.disk("a")
    assert status["state"] == "stalled" and "balloon" in status["reason"], status
    os.posix_fallocate(memory, 0, ram_bytes)
    assert front.answer() == 0, "nothing is taken from the group any more"
    assert daemon.disk("a")["state"] == "serving"


def test_guests_that_are_not_preallocated_do_not_get_the_daemon_killed(group, own_program, serve, scratch, fronts):
    """The daemon reads for a guest more than its control group has room for, into pages that nobody has touched:
    requests wait, and say so; they go on when there is room. A guest whose memory is allocated is charged to nobody
    else, and never waits.

    """
    disk_bytes = 16 * MIB
    disks = [
        Disk(n, images.raw(scratch / f"{n}.raw", disk_bytes, seed=1), "raw", {"readahead": "0", "size": '"12MiB"'})
        for n in "ab"
    ]
    daemon = serve(disks, memory="32MiB", store="floor = 0", workers=1, wrap=group.wrap)
    ram_bytes = 192 * MIB
    allocated = memfd(ram_bytes)
    os.posix_fallocate(allocated, 0, ram_bytes)
    sparse = memfd(ram_bytes)
    good, front = (
        fronts(daemon.vhost("b"), (allocated, ram_bytes)).set_up(),
        fronts(daemon.vhost("a"), (sparse, ram_bytes)).set_up(),
    )
    done = read_until_it_waits(front, daemon, "a", ram_bytes // MIB)
    assert group.killed() == 0 and daemon.running(), "the daemon was killed"
    assert 32 < done < ram_bytes // MIB, f"{done} MiB were read before the group was full"
    status = daemon.disk("a")
    assert status["state"] == "stalled" and "not preallocated" in status["reason"], status
    assert daemon.status()["pressure"]["guests_bytes"] > 32 * MIB
    assert "the guest's memory is not preallocated: what" in daemon.log(), "advised when it connected"
    assert "requests wait: the guest's memory is not preallocated" in daemon.log()
    for n in range(ram_bytes // MIB):
        assert good.request(IN, n % 16 * 2048, MIB, OWN + n * MIB) == 0, "a guest that is preallocated never waits"
    group.limit(4 * ram_bytes)
    assert front.answer() == 0, "there is room again"
    assert front.request(IN, 0, MIB, OWN + (done + 1) * MIB) == 0
    assert daemon.disk("a")["state"] == "serving"
