"""A file of FUSE whose server answers everything but that a certain process closes it, until it is told to; and one
that holds what is written, and fails when it is to make that durable, while it is told to.

Owns the mount and a thread that serves it. Invariant: reads of the first are zeroes and writes go nowhere; no close is
lost, all are answered at the end.
"""

import contextlib
import ctypes
import errno
import os
import select
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from .programs import need_root

# Of include/uapi/linux/fuse.h.
GETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, DESTROY = 3, 14, 15, 16, 17, 18, 20, 25, 26, 38
FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42
ROOT = 1
REQUEST_MAX = 1 << 20


class FuseFile:
    """A regular file of `size` bytes at `path`: the root of a file system of its own."""

    def __init__(self, path: Path, size: int):
        need_root()
        self.path, self.size = path, size
        self.holds = None
        self.held: list[int] = []
        try:
            self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as e:
            pytest.skip(f"no /dev/fuse: {e}")
        path.touch()
        options = f"fd={self.device},rootmode=100644,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"undercroft-test", str(path).encode(), b"fuse", 0, options) != 0:
            os.close(self.device)
            pytest.skip(f"a file system of FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        self.lock = threading.Lock()
        self.end, self.ended = os.pipe()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def hold(self, pid: int) -> None:
        """From now on no close by that process is answered. Those of this one are; but a process that is started while
        the file is open here closes it, and this one would wait for that with its interpreter locked: so nobody could
        answer."""
        with self.lock:
            self.holds = pid

    def release(self) -> None:
        """Answers every close that waits, and those to come."""
        with self.lock:
            self.holds = None
            for unique in self.held:
                self._answer(unique)
            self.held.clear()

    def waiting(self) -> int:
        """Closes that wait for an answer."""
        with self.lock:
            return len(self.held)

    def close(self) -> None:
        """Unmounts it; whoever still has it open gets errors."""
        self.release()
        subprocess.run(["umount", "-l", self.path], check=False, capture_output=True)
        os.close(self.ended)
        self.thread.join()
        os.close(self.device)
        os.close(self.end)

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self.device, self.end], [], [])
            if self.end in ready:
                return
            try:
                request = os.read(self.device, REQUEST_MAX)
            except OSError as e:
                if e.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                # Unmounted.
                return
            with self.lock, contextlib.suppress(OSError):
                self._handle(request)

    def _handle(self, request: bytes) -> None:
        _, opcode, unique, _, _, _, thread = struct.unpack_from("<IIQQIII", request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        if opcode == INIT:
            major_minor = struct.pack("<IIII", 7, 31, 65536, 0)
            self._answer(unique, major_minor + struct.pack("<HHIIHHI28x", 12, 9, 128 << 10, 1, 32, 0, 0))
        elif opcode == GETATTR:
            # Number, size, blocks, three times, their nanoseconds, mode, links, owner, group, device, block size,
            # flags.
            attributes = struct.pack(
                "<QQQQQQIIIIIIIIII", ROOT, self.size, self.size // 512, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0
            )
            self._answer(unique, struct.pack("<QII", 3600, 0, 0) + attributes)
        elif opcode == OPEN:
            self._answer(unique, struct.pack("<QII", 1, 0, 0))
        elif opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", request, 40)
            self._answer(unique, bytes(max(0, min(size, self.size - offset))))
        elif opcode == WRITE:
            _, _, size = struct.unpack_from("<QQI", request, 40)
            self._answer(unique, struct.pack("<II", size, 0))
        elif opcode == STATFS:
            self._answer(unique, bytes(80))
        elif opcode == FLUSH and self.holds and Path(f"/proc/{self.holds}/task/{thread}").exists():
            self.held.append(unique)
        elif opcode in (FLUSH, RELEASE, DESTROY):
            self._answer(unique)
        else:
            self._answer(unique, error=errno.ENOSYS)

    def _answer(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        os.write(self.device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)


class UnflushableFile(FuseFile):
    """One that holds what is written. While `refuses` is set, nobody can have it made durable."""

    def __init__(self, path: Path, size: int):
        self.contents, self.refuses = bytearray(size), False
        super().__init__(path, size)

    def _handle(self, request: bytes) -> None:
        opcode, unique = struct.unpack_from("<IQ", request, 4)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", request, 40)
            self._answer(unique, bytes(self.contents[offset : offset + size]))
        elif opcode == WRITE:
            _, offset, size = struct.unpack_from("<QQI", request, 40)
            self.contents[offset : offset + size] = request[80 : 80 + size]
            self._answer(unique, struct.pack("<II", size, 0))
        elif opcode == FSYNC:
            self._answer(unique, error=errno.EIO if self.refuses else 0)
        else:
            super()._handle(request)
