"""A minimal NBD client on a plain socket, for tests that must break the rules.

Owns the socket. Never does anything the test did not ask for.
"""

import socket
import struct

OPTION = 0x49484156454F5054
REPLY = 0x3E889045565A9
REQUEST = 0x25609513
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
SIMPLE_REPLY = 0x67446698


class Wire:
    """A connection; `handshake` takes it to an export."""

    def __init__(self, path: object, limit: float = 10.0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(limit)
        self.socket.connect(str(path))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, count: int) -> bytes:
        """Exactly `count` bytes; fewer only if the server hangs up."""
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                break
            data += more
        return data

    def closed(self) -> bool:
        """Whether the server hangs up, once everything it still sends was read."""
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def greeting(self, flags: int = 3) -> None:
        """Takes the greeting and answers with client flags."""
        assert self.receive(18)[:8] == b"NBDMAGIC"
        self.send(struct.pack(">I", flags))

    def option(self, number: int, data: bytes = b"") -> None:
        self.send(struct.pack(">QII", OPTION, number, len(data)) + data)

    def option_reply(self) -> tuple[int, bytes]:
        """The next reply to an option: its kind, and its data."""
        magic, _, kind, length = struct.unpack(">QIII", self.receive(20))
        assert magic == REPLY
        return kind, self.receive(length)

    def handshake(self, export: str) -> "Wire":
        """Goes to an export by NBD_OPT_GO, with simple replies."""
        self.greeting()
        name = export.encode()
        self.option(7, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))
        while True:
            kind, data = self.option_reply()
            if kind == 1:
                return self
            assert kind == 3, f"{kind:#x} {data!r}"

    def request(
        self, command: int, offset: int, length: int, cookie: int = 0, flags: int = 0, data: bytes = b""
    ) -> None:
        self.send(struct.pack(">IHHQQI", REQUEST, flags, command, cookie, offset, length) + data)

    def reply(self) -> tuple[int, int]:
        """The next simple reply: error and cookie. Data of reads is the caller's to receive."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == SIMPLE_REPLY, hex(magic)
        return error, cookie
