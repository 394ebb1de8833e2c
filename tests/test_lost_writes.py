"""An upstream server that crashes and comes back without what was not flushed: the cache forgets it, and every writer
is told once."""

import shutil

import pytest
from harness import images, nbdwire
from harness.daemon import Disk, until
from harness.nbdwire import Wire
from harness.upstream import Nbdkit

SIZE = 2 * images.MIB
EIO = 5
FUA = 1


class Volatile(Nbdkit):
    """A server whose writes are lost when it is killed, but for those before the last flush."""

    def __init__(self, scratch):
        self.live, self.durable = scratch / "live", images.raw(scratch / "durable", SIZE, seed=4)
        # While this is there, flushes fail.
        self.refuses = scratch / "refuses"
        super().__init__(
            scratch,
            "eval",
            f"get_size=echo {SIZE}",
            f"pread=dd if={self.live} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none",
            f"pwrite=dd of={self.live} seek=$4 oflag=seek_bytes conv=notrunc status=none",
            f"flush=[ ! -e {self.refuses} ] || {{ echo EIO refused >&2; exit 1; }}; cp {self.live} {self.durable}",
            "can_write=exit 0",
            "can_flush=exit 0",
            "can_fua=echo none",
        )

    def start(self):
        """Comes up with what was flushed."""
        shutil.copyfile(self.durable, self.live)
        return super().start()

    def crash(self):
        """Killed, and up again."""
        self.stop()
        self.start()


@pytest.fixture
def volatile(scratch):
    server = Volatile(scratch).start()
    yield server
    server.stop()


class Client(Wire):
    """One connection to the disk, which waits for each answer."""

    def __init__(self, daemon):
        super().__init__(daemon.nbd_socket, limit=20)
        self.handshake("up")

    def read(self, offset: int) -> bytes:
        self.request(nbdwire.READ, offset, 4096, 1)
        assert self.reply() == (0, 1)
        return self.receive(4096)

    def write(self, offset: int, byte: bytes, flags: int = 0) -> int:
        self.request(nbdwire.WRITE, offset, 4096, 2, flags, byte * 4096)
        return self.reply()[0]

    def flush(self) -> int:
        self.request(nbdwire.FLUSH, 0, 0, 3)
        return self.reply()[0]


def lose(volatile, client, offset: int, byte: bytes) -> None:
    """Writes a block, and has it lost once it is seen in the cache."""
    assert client.write(offset, byte) == 0 and client.read(offset) == byte * 4096
    volatile.crash()


def test_lost_writes_are_not_served(volatile, serve):
    """What the server lost is read from it, not from the cache; what it had flushed stays."""
    daemon = serve([Disk("up", volatile.uri, "nbd")])
    old = volatile.durable.read_bytes()
    with Client(daemon) as a:
        assert a.write(0, b"A") == 0 and a.write(1 << 20, b"B") == 0 and a.flush() == 0
        # In whole blocks, and in part of one that is cached.
        assert a.write(0, b"C") == 0 and a.write((1 << 20) + 512, b"D") == 0
        assert a.read(0) == b"C" * 4096 and a.read((1 << 20) + 512) == b"D" * 4096
        assert a.read(8192) == old[8192:12288]
        volatile.crash()
        until(lambda: a.read(0) == b"A" * 4096, "the block is what the server has")
        assert a.read(1 << 20) == b"B" * 4096
        assert a.read(8192) == old[8192:12288]
        assert a.write(0, b"E") == 0 and a.flush() == EIO and a.flush() == 0
        assert a.read(0) == b"E" * 4096
    assert volatile.durable.read_bytes()[:4096] == b"E" * 4096


def test_every_client_is_told_once(volatile, serve):
    """One client's failed flush neither hides the loss from another nor is repeated; who comes later has nothing to do
    with it."""
    daemon = serve([Disk("up", volatile.uri, "nbd")])
    with Client(daemon) as a, Client(daemon) as b, Client(daemon) as idle:
        lose(volatile, a, 0, b"A")
        assert b.flush() == EIO, "it would vouch for what the other client wrote"
        assert b.flush() == 0
        assert a.flush() == EIO and a.flush() == 0
        with Client(daemon) as later:
            assert later.flush() == 0
        # Nothing is unflushed: a crash is no loss.
        volatile.crash()
        assert a.flush() == 0 and b.flush() == 0
        lose(volatile, b, 0, b"B")
        # A write that must be durable tells as well, and then is one again.
        assert a.write(4096, b"F", FUA) == EIO
        assert a.write(4096, b"F", FUA) == 0 and a.flush() == 0
        assert volatile.durable.read_bytes()[4096:8192] == b"F" * 4096
        assert b.flush() == EIO and b.flush() == 0
        assert idle.flush() == EIO and idle.flush() == 0, "two losses are one report"


def test_an_upgrade_does_not_hide_that_a_flush_failed(volatile, serve):
    """Nobody but this process knows who wrote what was not flushed: it serves on, and its clients are told."""
    daemon = serve([Disk("up", volatile.uri, "nbd")], store="keep = true")
    with Client(daemon) as a:
        assert a.write(0, b"A") == 0
        volatile.refuses.touch()
        said = daemon.call("upgrade", check=False)
        volatile.refuses.unlink()
    assert said.returncode == 1 and 'disk "up" cannot be made durable' in said.stderr, said
    with Client(daemon) as a:
        assert a.flush() == EIO and a.flush() == 0
        assert a.read(0) == b"A" * 4096 == volatile.durable.read_bytes()[:4096]
    daemon.upgrade()
    with Client(daemon) as a:
        assert a.flush() == 0


def test_who_was_not_told_before_an_upgrade_is_told_after_it(volatile, serve):
    """An upgrade that was refused because a flush failed, and that is asked for again at once; and a server that has
    lost something before one."""
    daemon = serve([Disk("up", volatile.uri, "nbd")], store="keep = true")
    with Client(daemon) as a:
        assert a.write(0, b"A") == 0
        volatile.refuses.touch()
        assert daemon.call("upgrade", check=False).returncode == 1
        volatile.refuses.unlink()
    daemon.upgrade()
    with Client(daemon) as a:
        assert a.flush() == EIO and a.flush() == 0
    daemon.upgrade()
    with Client(daemon) as a, Client(daemon) as b:
        assert a.flush() == 0 and b.flush() == 0
        lose(volatile, a, 4096, b"B")
        until(lambda: a.read(4096) != b"B" * 4096, "the block is what the server has")
        assert b.flush() == EIO and b.flush() == 0
        daemon.upgrade()
    # One of them had been told; the first that comes is taken for the other.
    with Client(daemon) as a, Client(daemon) as b:
        assert a.flush() == EIO and a.flush() == 0
        assert b.flush() == 0


def test_who_does_not_read_its_failed_flush_before_an_upgrade_is_told_after_it(volatile, serve):
    """The failure waits behind data that the client does not read, and ends with the process that would have sent it.
    Another client has been told: nothing is left to tell but that."""
    # Without a front end of a guest, which would be one more that has not been told.
    only_clients = {"vhost_user": "false", "socket": None}
    daemon = serve([Disk("up", volatile.uri, "nbd", only_clients)], store="keep = true")
    with Client(daemon) as a, Client(daemon) as b:
        assert a.write(0, b"A") == 0 and b.read(0) == b"A" * 4096
        # More than the sockets hold, less than the daemon keeps for a client.
        for cookie in range(2):
            a.request(nbdwire.READ, 0, 1 << 20, cookie)
        until(lambda: daemon.disk("up")["counters"]["read_bytes"] >= 2 << 20, "the reads are served")
        volatile.crash()
        until(lambda: b.read(0) != b"A" * 4096, "the block is what the server has")
        a.request(nbdwire.FLUSH, 0, 0, 9)
        until(lambda: daemon.disk("up")["counters"]["flushes"] == 1, "its flush is there")
        assert b.flush() == EIO and b.flush() == 0
        daemon.upgrade()
        with Client(daemon) as again:
            assert again.flush() == EIO and again.flush() == 0


def test_who_closed_with_writes_unflushed_is_told_when_back(volatile, serve):
    """A writer may come back on another connection, before the loss or after it; that others were told is no news to
    it."""
    daemon = serve([Disk("up", volatile.uri, "nbd")])

    def clients() -> int:
        return len([f for f in daemon.disk("up")["frontends"] if f["kind"] == "nbd"])

    with Client(daemon) as stays:
        with Client(daemon) as a:
            assert a.write(0, b"A") == 0
        until(lambda: clients() == 1, "it is gone")
        volatile.crash()
        until(lambda: stays.read(0) != b"A" * 4096, "the block is what the server has")
        assert stays.flush() == EIO and stays.flush() == 0
        with Client(daemon) as a:
            assert a.flush() == EIO and a.flush() == 0
            lose(volatile, a, 4096, b"B")
            until(lambda: stays.read(4096) != b"B" * 4096, "the block is what the server has")
        until(lambda: clients() == 1, "it is gone")
        assert stays.flush() == EIO and stays.flush() == 0
        with Client(daemon) as a, Client(daemon) as other:
            assert a.flush() == EIO and a.flush() == 0
            assert other.flush() == 0


def test_who_went_before_its_failed_flush_was_answered_is_told_when_back(volatile, serve):
    """A client's own time limit ends its connection while its flush waits for the server, which has lost what was
    written when it is back: the failure reached nobody, so the client's next connection is told (decision 0139)."""
    daemon = serve([Disk("up", volatile.uri, "nbd")])
    with Client(daemon) as a:
        assert a.write(0, b"A") == 0
        volatile.pause()
        a.request(nbdwire.FLUSH, 0, 0, 3)
        until(lambda: daemon.disk("up")["inflight_ops"] > 0, "its flush is under way")
    volatile.crash()
    until(lambda: not daemon.disk("up")["frontends"], "it is gone")
    with Client(daemon) as a, Client(daemon) as other:
        assert a.flush() == EIO and a.flush() == 0
        assert other.flush() == 0, "one client, one report"
