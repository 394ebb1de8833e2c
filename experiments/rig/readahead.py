"""How much the kernel reads ahead of one file, without changing it for other files.

Owns the record of what was set. The kernel takes a file's read-ahead from the file's disk when the file is opened, and
keeps it for as long as the file is open. So the disk's setting (`/sys/class/bdi/*/read_ahead_kb`) is changed only while
a server opens an image, for less than a second. Invariant: the setting is put back, after an error or a signal at once,
and after kill -9 by the next program here that starts.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import time
from pathlib import Path

from .process import Stopped

BDI = Path("/sys/class/bdi")
# Beside every other program's, and gone after a boot, as the settings are.
RECORD = Path("/run/undercroft-read-ahead.json")
PAGE = mmap.PAGESIZE
# Read in order to see how far ahead the kernel reads: enough for its window to grow to any usual size.
PROBE_PAGES = 256
# What is still being read does not count as there.
SETTLE_SECONDS = 0.1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.mlock.argtypes = _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Unsettable(Exception):
    """The read-ahead of this disk cannot be set here; the message says why."""


@contextlib.contextmanager
def mapped(fd, size):
    """Where the first `size` bytes of an open file are mapped meanwhile."""
    at = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "a file cannot be mapped")
    try:
        yield at
    finally:
        _libc.munmap(at, size)


@contextlib.contextmanager
def kept_cached(path):
    """Keeps a file in the page cache, where it is already. A kernel may take back what nobody has mapped and nobody has
    read for a minute, however much memory is free: `machine.takes_idle_pages`."""
    size = path.stat().st_size
    with open(path, "rb") as f, mapped(f.fileno(), size) as at:
        # Where it may not be locked, it is mapped at least; who needs all of it looks at `resident`.
        _libc.mlock(at, size)
        yield


def resident(fd):
    """For each page of an open file or block device, whether the page cache holds it (bytes; only the lowest bit
    counts)."""
    size = os.lseek(fd, 0, os.SEEK_END)
    if not size:
        return b""
    with mapped(fd, size) as at:
        found = ctypes.create_string_buffer(-(-size // PAGE))
        if _libc.mincore(at, size, found):
            raise OSError(ctypes.get_errno(), "mincore")
        return found.raw[: -(-size // PAGE)]


def setting(path):
    """The file in /sys with the read-ahead of the disk that `path` is on (or is); raises `Unsettable`."""
    found = os.stat(path)
    number = found.st_rdev or found.st_dev
    place = BDI / f"{os.major(number)}:{os.minor(number)}" / "read_ahead_kb"
    if not place.exists():
        raise Unsettable(f"the kernel shows no read-ahead for the disk of {path} (no {place})")
    return place


def kib(path):
    """The read-ahead of the disk that `path` is on, in KiB; None where the kernel shows none."""
    with contextlib.suppress(Unsettable, OSError, ValueError):
        return int(setting(path).read_text())
    return None


@contextlib.contextmanager
def _alone():
    """One at a time, over all programs here."""
    with open(RECORD.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def put_back():
    """Puts back what a program that was killed has left."""
    with _alone():
        _put_back()


def _put_back():
    with contextlib.suppress(FileNotFoundError, ValueError):
        for place, value in json.loads(RECORD.read_text()).items():
            with contextlib.suppress(OSError):
                Path(place).write_text(str(value))
    RECORD.unlink(missing_ok=True)


def put(path, value):
    """Sets the read-ahead of a disk of our own, in KiB, for good."""
    setting(path).write_text(str(value))


@contextlib.contextmanager
def opened_with(path, value):
    """While this lasts, files on the disk of `path` are opened with a read-ahead of `value` KiB; None leaves the disk
    as it is."""
    if value is None:
        yield
        return
    place = setting(path)
    with _alone():
        _put_back()
        before = place.read_text().strip()
        RECORD.write_text(json.dumps({str(place): before}))
        try:
            try:
                place.write_text(str(value))
            except OSError as e:
                raise Unsettable(f"the read-ahead of the disk of {path} cannot be set: {e}") from e
            yield
        finally:
            with contextlib.suppress(OSError):
                place.write_text(before)
            RECORD.unlink(missing_ok=True)


def seen(path):
    """How far ahead the kernel reads in `path` as it is opened now, in KiB: measured. None of the file may be in the
    page cache; none is afterwards. None for a file that is too small to tell."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if os.lseek(fd, 0, os.SEEK_END) < 4 * PROBE_PAGES * PAGE:
            return None
        for page in range(PROBE_PAGES):
            os.pread(fd, PAGE, PAGE * page)
        time.sleep(SETTLE_SECONDS)
        there = sum(byte & 1 for byte in resident(fd))
        return max(0, there - PROBE_PAGES) * PAGE >> 10
    finally:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def check(value, found):
    """Raises `Stopped` if what was seen cannot come from a read-ahead of `value` KiB."""
    if None not in (value, found) and not (found == 0 if value == 0 else 0 < found <= 2 * value):
        raise Stopped(f"a read-ahead of {value} KiB was set, but the kernel reads {found} KiB ahead")
