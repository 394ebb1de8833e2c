"""`undercroft duplicates` on real QEMU processes whose memory holds what is known to the page."""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import subprocess
import threading
import time

import pytest
from harness import images
from harness.daemon import until
from harness.guests import PAGE, StillGuest, page, pages
from harness.programs import built, need_root, run

MIB = images.MIB
AT = 16 * MIB


@pytest.fixture
def guest(scratch):
    """Starts guests; all end with the test."""
    need_root()
    guests: list[StillGuest] = []

    def start(name, contents, shared=False, **options) -> StillGuest:
        guests.append(StillGuest(scratch, name, contents, shared, **options))
        return guests[-1]

    yield start
    for g in guests:
        g.stop()


def report(*guests, check=True, options=()) -> dict:
    """The report on these guests alone, whatever else runs here."""
    words = [w for g in guests for w in ("--pid", g.pid)]
    return json.loads(run(built("undercroft"), "duplicates", "--json", *words, *options, check=check).stdout)


def in_pages(of: dict, *names: str) -> list[int]:
    """Figures of a report, in pages."""
    return [of[f"{name}_bytes"] / PAGE for name in names]


def forget(path) -> None:
    """Drops a file from the page cache."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_pages(path, numbers) -> None:
    """Brings these pages of a file into the page cache, and no others."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for n in numbers:
        os.pread(fd, PAGE, n * PAGE)
    os.close(fd)


@contextlib.contextmanager
def kept(path, count):
    """Brings the first pages of a file into the page cache, no others, and keeps them there: the host takes pages when
    it likes, one of 150 between two looks at them (DAMON, or another program that wants memory)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlock.argtypes = libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), count * PAGE) as pages_of:
        pages_of.madvise(mmap.MADV_RANDOM)
        first = ctypes.c_char.from_buffer(pages_of)
        at, size = ctypes.addressof(first), len(pages_of)
        assert libc.mlock(at, size) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            libc.munlock(at, size)
            del first


def cached(path) -> int:
    """Pages of a file in the page cache."""
    return int(run("fincore", "--bytes", "--noheadings", "--output", "PAGES", path).stdout)


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_known_contents_are_counted_to_the_page(guest, scratch, shared):
    """Zeroes, doubles within a guest, doubles between guests, doubles with the page cache: each figure exactly."""
    image = scratch / "disk.raw"
    image.write_bytes(pages([*range(1000, 1100), *[None] * 20, *range(1000, 1010), *range(2000, 2070)]))
    forget(image)
    # 100 of its own, 30 of them twice; 50 of the image; 40 that b has, too; 10 of zeroes.
    a = guest(
        "a",
        {AT: pages([*range(100), *range(30), *range(1000, 1050), *range(500, 540), *[None] * 10])},
        shared,
        images=[image],
    )
    b = guest("b", {AT + 4 * MIB: pages([*range(500, 540), *range(700, 760)]), AT + 8 * MIB: page(1000)}, shared)
    read_pages(image, range(150))
    with kept(image, 150):
        r = report(a, b)
    assert r["complete"] and r["problems"] == []
    assert [v["name"] for v in r["vms"]] == ["a", "b"]
    va, vb = r["vms"]
    figures = ["ram", "present", "zero", "same_vm", "other_vms", "page_cache", "unreadable", "swapped"]
    assert in_pages(va, *figures) == [64 * MIB / PAGE, 230, 10, 30, 41, 50, 0, 0]
    assert in_pages(vb, *figures) == [64 * MIB / PAGE, 101, 0, 0, 41, 1, 0, 0]
    # 30 doubles and 41 pages shared with b, each half a's.
    assert in_pages(va, "give_back") == pytest.approx([10 + 30 + 20.5], abs=0.5)
    assert va["shared_bytes"] == (64 * MIB if shared else 0)
    (i,) = r["images"]
    assert (i["path"], i["vms"]) == (str(image), ["a"])
    # Cached: 100 + 20 zeroes + 10 doubles + 20 others. In guests: 1000..1049, and 1000..1009 again.
    assert in_pages(i, "size", "cached", "zero", "in_guests", "same_images") == [200, 150, 20, 60, 0]
    assert in_pages(i, "give_back") == [20 + 60]
    t = r["total"]
    assert in_pages(t, "present", "cached", "zero", "merge", "double_cached") == [331, 150, 30, 30 + 41, 60]
    assert in_pages(t, "give_back") == [30 + 71 + 60]


def test_equal_pages_of_images_that_no_guest_holds(guest, scratch):
    """The same content cached of two images counts once, with the first."""
    one, two = scratch / "one.raw", scratch / "two.qcow2"
    one.write_bytes(pages(range(64)))
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", one, two)
    a = guest("a", {AT: page(9999)}, images=[one, two])
    for path in (one, two):
        forget(path)
        read_pages(path, range(os.path.getsize(path) // PAGE))
    r = report(a)
    by_path = {i["path"]: i for i in r["images"]}
    assert in_pages(by_path[str(one)], "cached", "in_guests", "same_images") == [64, 0, 0]
    # Clusters of a qcow2 image lie on page boundaries: its data is found as it is.
    assert in_pages(by_path[str(two)], "in_guests", "same_images") == [0, 64]
    assert r["total"]["double_cached_bytes"] == 0
    assert r["total"]["give_back_bytes"] / PAGE >= 64


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_holes_stay_holes(guest, scratch, shared):
    """What a balloon gave back, or a guest never touched, is not allocated by looking: the kernel's accounts do not
    change."""
    a = guest("a", {AT: pages(range(300)), 48 * MIB: page(7)}, shared)
    if shared:
        # As a balloon does: pages punched out of the middle.
        with open(a.memory_fd(), "r+b", buffering=0) as f:
            libc_punch(f.fileno(), AT + 100 * PAGE, 50 * PAGE)
        blocks = os.stat(a.memory_fd()).st_blocks
        present = 251
    else:
        present = 301
    before = a.held()
    for options in ((), ("--sample", "10%")):
        r = report(a, options=options)
        assert in_pages(r["vms"][0], "present", "zero") == [present, 0]
    assert a.held() == before
    if shared:
        assert os.stat(a.memory_fd()).st_blocks == blocks == present * PAGE // 512


def libc_punch(fd: int, offset: int, length: int) -> None:
    """FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    assert libc.fallocate(fd, 3, offset, length) == 0, os.strerror(ctypes.get_errno())


def test_the_page_cache_is_not_filled(guest, scratch):
    """Only what is cached is read: as many pages of the image are in the page cache after as before."""
    image = images.raw(scratch / "disk.raw", 32 * MIB, seed=1)
    a = guest("a", {AT: page(1)}, images=[image])
    forget(image)
    read_pages(image, [0, 5, 6, 7, 4000, 8191])
    assert cached(image) == 6
    for options in ((), ("--sample", "50%")):
        r = report(a, options=options)
        assert in_pages(r["images"][0], "size", "cached") == [8192, 6]
        assert cached(image) == 6, f"after {options}"
    before = os.stat(image)
    assert (before.st_mtime_ns, images.digest(image)) == (os.stat(image).st_mtime_ns, images.digest(image))


def test_a_sample_estimates(guest, scratch):
    """A tenth of the contents: zeroes and present pages exactly, doubles to within a few standard deviations."""
    image = scratch / "disk.raw"
    image.write_bytes(pages(range(6000)))
    a = guest("a", {AT: pages([*range(4000), *range(4000), *[None] * 500])}, shared=True, images=[image])
    read_pages(image, range(6000))
    r = report(a, options=("--sample", "10%"))
    vm, i = r["vms"][0], r["images"][0]
    assert r["sample"] == 0.1
    assert in_pages(vm, "present", "zero") == [8500, 500]
    # 4000 contents of which each is in with 1/10: 400 +- 19 are; six of those are not exceeded in a lifetime.
    assert abs(in_pages(vm, "same_vm")[0] - 4000) < 1140
    assert in_pages(vm, "page_cache")[0] == 2 * in_pages(vm, "same_vm")[0] == 2 * in_pages(i, "in_guests")[0]
    assert r["read_bytes"] < 0.35 * 14500 * PAGE


def test_a_guest_that_writes_meanwhile(guest, scratch):
    """Pages that change while they are read change the figures, and nothing else."""
    a = guest("a", {AT: pages(range(4000))}, shared=True)
    stop = threading.Event()
    with open(a.memory_fd(), "r+b", buffering=0) as f, mmap.mmap(f.fileno(), a.size) as memory:

        def write() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                memory[AT + (n % 4000) * PAGE : AT + (n % 4000) * PAGE + 16] = b"%016d" % (10**9 + n)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                r = report(a)
                assert r["complete"] and r["problems"] == []
                assert in_pages(r["vms"][0], "present", "zero", "same_vm", "unreadable") == [4000, 0, 0, 0]
        finally:
            stop.set()
            writer.join()


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_a_guest_that_ends_meanwhile(guest, scratch, shared):
    """The others are reported all the same; no panic, no hang. A memory file that is open still can be read to its
    end."""
    size = 256 * MIB
    first = guest("first", {AT: pages(range(48_000))}, shared, size=size)
    second = guest("second", {AT: pages(range(100))}, True)
    words = [
        built("undercroft"),
        "duplicates",
        "--json",
        "--cpu",
        "1%",
        "--pid",
        str(first.pid),
        "--pid",
        str(second.pid),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    being_read(process)
    first.stop()
    # The rest at full speed would be nice, but a hundredth of a core it is: interrupted, it shows what it has.
    time.sleep(1)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), err
    r = json.loads(out)
    assert [v["name"] for v in r["vms"]] == ["first", "second"]
    assert r["vms"][0]["present_bytes"] < 48_000 * PAGE
    if not shared:
        assert any("first (process" in p and "ended while it was read" in p for p in r["problems"]), r["problems"]


def being_read(process: subprocess.Popen) -> None:
    """Waits until a scan at 1 % of a processor has begun to read: in the seconds after its start, but only for a few
    hundredths of a second of processor time, in which no machine reads two hundred MiB."""
    until(lambda: cpu_ticks(process.pid) >= 1, "the program runs")
    time.sleep(1.5)


def cpu_ticks(pid: int) -> int:
    """Processor time that a process has used, in hundredths of a second."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(") ", 1)[1].split()
        return int(fields[11]) + int(fields[12])


def test_ctrl_c_shows_what_was_read(guest, scratch):
    """SIGINT: the report is of what had been read, and says so; exit code 130."""
    a = guest("a", {AT: pages(range(48_000))}, size=256 * MIB)
    words = [built("undercroft"), "duplicates", "--cpu", "1%", "--pid", str(a.pid)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    being_read(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "Interrupted: this is of what had been read." in out
    assert out.startswith("VM") and "\na " in out


def test_no_guest_is_no_failure(scratch):
    """In a process namespace of its own there is no QEMU: it says so, and what to do; exit code 0."""
    need_root()
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    done = run(*alone, built("undercroft"), "duplicates")
    assert "No QEMU process runs on this host" in done.stdout
    assert "--pid" in done.stdout and "--image" in done.stdout
    assert json.loads(run(*alone, built("undercroft"), "duplicates", "--json").stdout)["vms"] == []


def test_a_file_alone(scratch):
    """--image shows a file's page cache without any guest."""
    need_root()
    image = scratch / "base.raw"
    image.write_bytes(pages([*range(10), *range(10)]))
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    r = json.loads(run(*alone, built("undercroft"), "duplicates", "--json", "--image", image).stdout)
    assert in_pages(r["images"][0], "cached", "same_images", "give_back") == [20, 10, 10]


def test_what_is_missing_is_named(guest, scratch):
    """Without the privilege it says which; without the process it says so; exit code 1."""
    a = guest("a", {AT: page(1)})
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    done = run(*words, built("undercroft"), "duplicates", "--pid", a.pid, check=False)
    assert done.returncode == 1
    assert "CAP_SYS_PTRACE" in done.stderr and f"process {a.pid}" in done.stderr
    done = run(built("undercroft"), "duplicates", "--pid", 2**22 + 1, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no process 4194305" in done.stderr
    done = run(built("undercroft"), "duplicates", "--sample", "0", check=False)
    assert done.returncode == 2 and "write it like 5%" in done.stderr


def test_the_command_keeps_to_its_ceiling(guest, scratch):
    """Processor time over wall-clock time stays near what was allowed."""
    a = guest("a", {AT: pages(range(48_000))}, shared=True, size=256 * MIB)
    r = report(a, options=("--cpu", "20%"))
    assert r["cpu_seconds"] > 0
    # A burst of 20 ms, a step, and what starting and sorting take come on top; a slow machine only sleeps longer.
    assert r["cpu_seconds"] <= 0.2 * r["seconds"] + 0.2
