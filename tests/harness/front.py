"""A vhost-user front end of bytes: what a hypervisor does to attach a disk, and whatever else a hostile one could do.

Owns its connection, its memory and one queue. Invariant: it does exactly what it is told, however wrong; nothing that
it waits for is waited for without an end.
"""

import array
import contextlib
import ctypes
import mmap
import os
import select
import socket
import struct

from .programs import PATIENCE

IN, OUT, FLUSH = 0, 1, 4
NEXT, WRITE = 1, 2
SIZE = 64
# Where things lie in the first region, which is mapped here: the parts of the ring, then headers, then data.
DESCRIPTORS, AVAILABLE, USED, HEADERS, DATA = 0, 0x1000, 0x2000, 0x3000, 0x10000
OWN = 1 << 20
# The front end's addresses are those of the guest, moved up.
USER = 0x7000_0000_0000
VERSION_1, PROTOCOL = 1 << 32, 1 << 30
INFLIGHT = 1 << 12


class Gone(Exception):
    """The daemon has closed the connection."""


def memfd(size: int) -> int:
    """A file of memory that can be cut short at any time."""
    fd = os.memfd_create("guest")
    os.ftruncate(fd, size)
    return fd


def punch(file: int, size: int) -> None:
    """Gives the memory of the first `size` bytes of a file back, as a hypervisor does for a balloon."""
    keep_size, punch_hole = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, keep_size | punch_hole, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


class Front:
    """One front end with one queue. `more` are files (descriptor, size) that follow in the guest's addresses."""

    def __init__(self, path: str, *more: tuple[int, int], patience: float = 20.0 * PATIENCE):
        self.patience = patience
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(patience)
        self.socket.connect(path)
        self.memory = memfd(OWN)
        self.map = mmap.mmap(self.memory, OWN)
        self.regions = [(0, OWN, self.memory)]
        for fd, size in more:
            self.regions.append((self.regions[-1][0] + self.regions[-1][1], size, fd))
        self.kick, self.call = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self.available = self.used = 0

    def send(self, request: int, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Sends a message."""
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([struct.pack("<III", request, 1, len(body)), body], control)

    def ask(self, request: int, body: bytes = b"") -> tuple[bytes, list[int]]:
        """Sends a message and takes the answer, with the descriptors that came along."""
        self.send(request, body)
        try:
            head, fds, _, _ = socket.recv_fds(self.socket, 12, 4)
            if len(head) < 12:
                raise Gone
            size = struct.unpack("<III", head)[2]
            return (self.socket.recv(size, socket.MSG_WAITALL), fds) if size else (b"", fds)
        except (ConnectionError, TimeoutError) as e:
            raise Gone from e

    def set_up(self, own_inflight: int | None = None) -> "Front":
        """Negotiates, shares memory and starts the queue; `own_inflight` is a file for requests under way."""
        self.send(3)
        features = struct.unpack("<Q", self.ask(1)[0])[0]
        assert features & PROTOCOL
        struct.unpack("<Q", self.ask(15)[0])
        self.send(16, struct.pack("<Q", INFLIGHT))
        self.send(2, struct.pack("<Q", VERSION_1 | PROTOCOL))
        table = struct.pack("<II", len(self.regions), 0)
        table += b"".join(struct.pack("<QQQQ", at, size, USER + at, 0) for at, size, _ in self.regions)
        self.send(5, table, tuple(fd for _, _, fd in self.regions))
        if own_inflight is not None:
            size = os.fstat(own_inflight).st_size
            self.send(32, struct.pack("<QQHH4x", size, 0, 1, SIZE), (own_inflight,))
        self.send(8, struct.pack("<II", 0, SIZE))
        self.send(10, struct.pack("<II", 0, 0))
        self.send(9, struct.pack("<IIQQQQ", 0, 0, USER + DESCRIPTORS, USER + USED, USER + AVAILABLE, 0))
        self.send(13, struct.pack("<Q", 0), (self.call,))
        self.send(12, struct.pack("<Q", 0), (self.kick,))
        self.send(18, struct.pack("<II", 0, 1))
        # Answered when all before it has been done.
        self.ask(1)
        return self

    def reset(self) -> None:
        """Resets the device and the rings, as a driver does that begins afresh; `set_up` starts them again."""
        self.send(4)
        # Answered when all before it has been done.
        self.ask(1)
        self.map[AVAILABLE : AVAILABLE + 4] = self.map[USED : USED + 4] = bytes(4)
        self.available = self.used = 0

    def post(self, kind: int, sector: int, length: int, at: int = DATA, kick: bool = True) -> None:
        """Posts one request for data at guest address `at`."""
        self.map[HEADERS : HEADERS + 16] = struct.pack("<IIQ", kind, 0, sector)
        self.map[HEADERS + 16] = 0xEE
        chain = [(HEADERS, 16, NEXT), (at, length, NEXT | (0 if kind == OUT else WRITE)), (HEADERS + 16, 1, WRITE)]
        for n, (address, size, flags) in enumerate(chain):
            place = DESCRIPTORS + 16 * n
            self.map[place : place + 16] = struct.pack("<QIHH", address, size, flags, n + 1)
        entry = AVAILABLE + 4 + 2 * (self.available % SIZE)
        self.map[entry : entry + 2] = b"\0\0"
        self.available = (self.available + 1) % 65536
        self.map[AVAILABLE + 2 : AVAILABLE + 4] = struct.pack("<H", self.available)
        if kick:
            self.ring()

    def ring(self) -> None:
        """Kicks the device."""
        os.eventfd_write(self.kick, 1)

    def answer(self, patience: float | None = None) -> int | None:
        """The status of the request posted last; None if there is no answer for so long."""
        limit = self.patience if patience is None else patience
        while struct.unpack("<H", self.map[USED + 2 : USED + 4])[0] == self.used:
            if not select.select([self.call], [], [], limit)[0]:
                return None
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.call)
        self.used = (self.used + 1) % 65536
        return self.map[HEADERS + 16]

    def request(self, kind: int, sector: int, length: int, at: int = DATA, patience: float | None = None) -> int | None:
        """One request and its answer."""
        self.post(kind, sector, length, at)
        return self.answer(patience)

    def is_dropped(self) -> bool:
        """Waits until the daemon closes the connection; false if it does not."""
        if not select.select([self.socket], [], [], self.patience)[0]:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Goes away."""
        self.socket.close()
