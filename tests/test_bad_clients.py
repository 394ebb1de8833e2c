"""Guests and NBD clients that break the rules: they are answered or cut off, and nobody else notices."""

import contextlib
import json
import random
import socket
import struct
import time
from pathlib import Path

import pytest
from harness import images, nbdwire
from harness.daemon import Disk, until
from harness.nbdwire import Wire
from harness.programs import built, driver, finish_driver, run, start_driver

SIZE = 32 * images.MIB


class Bystander:
    """A well-behaved load on another disk, every answer checked, which must go on undisturbed."""

    def __init__(self, serve, scratch, **options):
        self.image = images.raw(scratch / "by.raw", SIZE, seed=6)
        self.bad = images.raw(scratch / "bad.raw", SIZE, seed=7)
        self.digest = images.digest(self.bad)
        # One worker: the two disks share a thread, which is the harder case.
        self.daemon = serve([Disk("bad", self.bad, "raw"), Disk("by", self.image, "raw")], workers=1, **options)
        self.process = start_driver(
            "run", self.daemon.vhost("by"), "--seconds", "600", "--depth", "4", "--verify", self.image
        )
        until(lambda: self.daemon.disk("by")["counters"]["reads"] > 0, "the load is under way")

    def done(self) -> None:
        """The load was answered all the time, up to now."""
        assert self.process.poll() is None, finish_driver(self.process)
        before = self.daemon.disk("by")["counters"]["reads"]
        until(lambda: self.daemon.disk("by")["counters"]["reads"] > before + 100, "the other disk goes on")
        self.process.kill()
        self.process.communicate()
        assert "panicked" not in self.daemon.log()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.done()
        elif self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def test_nbd_garbage(serve, scratch):
    """Random bytes at every stage of a connection."""
    dice = random.Random(8)
    with Bystander(serve, scratch) as by:
        path = by.daemon.nbd_socket
        for i in range(60):
            # It may be cut off while it talks.
            with contextlib.suppress(OSError), Wire(path, limit=2) as wire:
                if i % 3 == 1:
                    wire.greeting()
                elif i % 3 == 2:
                    wire.handshake("bad")
                wire.send(dice.randbytes(dice.randrange(1, 5000)))
        assert images.digest(by.bad) == by.digest, "garbage must not be taken for a write"


def test_nbd_bad_options(serve, scratch):
    """Options that are unknown, too long, cut short or repeated."""
    with Bystander(serve, scratch) as by:
        path = by.daemon.nbd_socket
        with Wire(path) as wire:
            wire.greeting()
            for number in (0, 99, 0xFFFFFFFF):
                wire.option(number, b"x" * 100)
                kind, _ = wire.option_reply()
                assert kind & 0x80000000, "an unknown option is refused, and the haggling goes on"
            wire.option(7, b"\x00\x00")
            assert wire.option_reply()[0] & 0x80000000, "GO without a name"
            wire.option(7, struct.pack(">I", 0xFFFFFFF0) + b"a" * 10)
            assert wire.option_reply()[0] & 0x80000000, "GO with a name longer than the option"
            wire.option(10, struct.pack(">I", 3) + b"bad" + struct.pack(">I", 0xFFFFFFFF))
            assert wire.option_reply()[0] & 0x80000000, "contexts without end"
            wire.option(2)
        for length in (0xFFFFFFFF, 1 << 24):
            # An announced length beyond reason: it may be refused or cut off, but not waited for with memory set aside.
            before = by.daemon.rss()
            with Wire(path, limit=3) as wire, contextlib.suppress(OSError):
                wire.greeting()
                wire.send(struct.pack(">QII", nbdwire.OPTION, 7, length))
                for _ in range(256):
                    wire.send(b"y" * 4096)
            assert by.daemon.rss() < before + 24 * images.MIB
        with Wire(path) as wire:
            wire.greeting(0xFFFFFFFF)
            assert wire.closed(), "unknown client flags end the connection"
        with Wire(path) as wire:
            wire.greeting()
            wire.send(b"not the magic number, sixteen bytes or more")
            assert wire.closed(), "what is no option ends the connection"


def test_nbd_silent_in_handshake(serve, scratch):
    """Clients that connect and say nothing, more than there may be (64), do not keep others out."""
    with Bystander(serve, scratch) as by:
        silent = [Wire(by.daemon.nbd_socket) for _ in range(80)]
        with Wire(by.daemon.nbd_socket) as wire:
            wire.handshake("bad").request(nbdwire.READ, 0, 512, 1)
            assert wire.reply() == (0, 1)
        for wire in silent:
            wire.socket.close()


def test_nbd_requests_out_of_bounds(serve, scratch):
    """Offsets and lengths past the end, zero, or unreasonable get an error each, and the connection goes on."""
    with Bystander(serve, scratch) as by, Wire(by.daemon.nbd_socket) as wire:
        wire.handshake("bad")
        for command, offset, length in [
            (nbdwire.READ, SIZE, 1),
            (nbdwire.READ, SIZE - 1, 2),
            (nbdwire.READ, 1 << 63, 512),
            (nbdwire.READ, (1 << 64) - 256, 512),
            (nbdwire.TRIM, SIZE - 512, 1024),
            (nbdwire.WRITE_ZEROES, SIZE, 4096),
            (nbdwire.WRITE_ZEROES, (1 << 64) - 1, 0xFFFFFFFF),
            (77, 0, 512),
        ]:
            wire.request(command, offset, length, 5)
            error, cookie = wire.reply()
            assert error and cookie == 5, (command, offset, length)
        for command in (nbdwire.TRIM, nbdwire.WRITE_ZEROES):
            wire.request(command, 0, 512, 6, flags=0xFF00)
            assert wire.reply()[0], "unknown flags"
        wire.request(nbdwire.WRITE, SIZE - 512, 1024, 7, data=b"z" * 1024)
        assert wire.reply() == (28, 7), "ENOSPC for a write past the end"
        wire.request(nbdwire.READ, 0, 512, 8)
        assert wire.reply() == (0, 8)
        assert wire.receive(512) == by.bad.read_bytes()[:512]
    assert images.digest(by.bad) == by.digest


@pytest.mark.parametrize("length", [0xFFFFFFFF, 64 * images.MIB])
def test_nbd_huge_write(serve, scratch, length):
    """A write announced longer than any buffer: an error or the end of the connection, and no such memory taken."""
    with Bystander(serve, scratch) as by:
        before = by.daemon.rss()
        with Wire(by.daemon.nbd_socket, limit=5) as wire:
            wire.handshake("bad")
            with contextlib.suppress(OSError):  # it may hang up on us
                wire.request(nbdwire.WRITE, 0, length, 1)
                for _ in range(64):
                    wire.send(b"h" * 65536)
            assert by.daemon.rss() < before + 24 * images.MIB
        assert images.digest(by.bad) == by.digest


def connected_again(daemon, export: str) -> Wire:
    """A connection, once there is a place: where the machine is busy, those cut just before may still have theirs."""
    end = time.monotonic() + 20
    while True:
        wire = Wire(daemon.nbd_socket)
        try:
            return wire.handshake(export)
        except AssertionError as refused:
            wire.socket.close()
            if "too many connections" not in str(refused) or time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_nbd_disconnects_mid_request(serve, scratch):
    """Connections cut in a header, in write data and with replies under way."""
    dice = random.Random(9)
    with Bystander(serve, scratch) as by:
        for i in range(80):
            wire = connected_again(by.daemon, "bad")
            if i % 4 == 0:
                wire.send(struct.pack(">I", nbdwire.REQUEST)[: dice.randrange(1, 4)])
            elif i % 4 == 1:
                header = struct.pack(">IHHQQI", nbdwire.REQUEST, 0, nbdwire.WRITE, 1, 0, 65536)
                wire.send(header + b"w" * dice.randrange(0, 65535))
            else:
                for n in range(40):
                    wire.request(nbdwire.READ, n * 65536, 65536, n)
                if i % 4 == 2:
                    wire.receive(dice.randrange(1, 200000))
            if i % 5 == 0:
                # A reset instead of an orderly end.
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.socket.close()
        until(
            lambda: not [f for f in by.daemon.disk("bad")["frontends"] if f["kind"] == "nbd"],
            "connections that were cut are forgotten",
        )
        until(lambda: by.daemon.disk("bad")["inflight_requests"] == 0, "nothing is left under way")
        assert images.digest(by.bad) == by.digest, "a write without its data must not be carried out"


@pytest.mark.parametrize("sent", [1, 3, 27, 28, 30000])
def test_nbd_close_is_noticed(serve, scratch, sent):
    """A connection that ends inside a request is given back at once, with nothing else happening to remind the
    daemon."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = serve([Disk("a", image, "raw")], workers=1)
    request = struct.pack(">IHHQQI", nbdwire.REQUEST, 0, nbdwire.WRITE, 1, 0, 65536) + bytes(65536)
    for wire in [Wire(daemon.nbd_socket).handshake("a") for _ in range(4)]:
        wire.send(request[:sent])
        wire.socket.close()
    # Long enough for any machine; asking in a loop instead would remind the daemon.
    time.sleep(1.5)
    clients = [f for f in daemon.disk("a")["frontends"] if f["kind"] == "nbd"]
    assert not clients, f"connections that ended after {sent} bytes are still there"


def test_nbd_floods_without_reading(serve, scratch):
    """Clients that ask for gigabytes and never read a reply: memory stays bounded, others are served."""
    with Bystander(serve, scratch) as by:

        def outside() -> int:
            """Bytes that the daemon holds besides its store, which fills with what the clients read."""
            store = by.daemon.status()["store"]
            return by.daemon.rss("RssAnon") - store["data_bytes"] - store["metadata_bytes"] - store["io_bytes"]

        before = outside()
        wires = []
        for _ in range(16):
            wire = Wire(by.daemon.nbd_socket, limit=0.5).handshake("bad")
            wires.append(wire)
            try:
                for n in range(20000):
                    wire.request(nbdwire.READ, (n * 65536) % SIZE, 65536, n)
            except TimeoutError:
                pass  # it does not take more: as it should be
        time.sleep(0.5)
        grown = outside() - before
        # 4 MiB of replies for each is the bound, in buffers of 64 KiB with room for a header before them, for which the
        # heap has places of 80 KiB: 5 MiB. The rest are its inbox, its slots and what the heap keeps in large pages.
        assert grown < 16 * 6 * images.MIB, f"{grown >> 20} MiB for 16 clients that do not read"
        for wire in wires:
            wire.socket.close()


def test_nbd_half_sent_writes(serve, scratch):
    """Sixty clients that each send half of a write of 32 MiB: what they hold is bounded, others go on, and so do large
    writes, when those who are slow have made room."""
    large = 32 * images.MIB
    options = {"extra": 'memory = "64MiB"\nslow_after = "1s"\nconnections = 128\n'}
    image = images.raw(scratch / "large.raw", 2 * large)
    beside = images.raw(scratch / "beside.raw", SIZE, seed=3)
    daemon = serve([Disk("a", image, "raw"), Disk("b", beside, "raw")], workers=1, **options)
    before = daemon.rss("RssAnon")
    header = struct.pack(">IHHQQI", nbdwire.REQUEST, 0, nbdwire.WRITE, 1, 0, large)
    slow = []
    for _ in range(60):
        wire = Wire(daemon.nbd_socket, limit=0.2).handshake("a")
        wire.socket.setblocking(False)
        with contextlib.suppress(OSError):
            wire.send(header)
            for _ in range(large // 2 // 65536):
                wire.send(b"s" * 65536)
        slow.append(wire)
    store = daemon.status()["store"]
    held = daemon.rss("RssAnon") - before - store["io_bytes"]
    # The bound, the inboxes of the clients, and what the heap keeps.
    assert held < 64 * images.MIB + 60 * images.MIB // 4 + 24 * images.MIB, f"{held >> 20} MiB for half-sent writes"
    # A small request is served at once.
    with Wire(daemon.nbd_socket, limit=10) as wire:
        wire.handshake("b").request(nbdwire.READ, 0, 65536, 1)
        assert wire.reply() == (0, 1) and wire.receive(65536) == beside.read_bytes()[:65536]
    # A large one waits until there is room, and is served.
    with Wire(daemon.nbd_socket, limit=100) as wire:
        wire.handshake("b").request(nbdwire.WRITE, 0, SIZE, 2, data=b"L" * SIZE)
        assert wire.reply() == (0, 2)
    assert beside.read_bytes() == b"L" * SIZE
    for wire in slow:
        wire.socket.close()
    assert image.read_bytes() == bytes(2 * large), "half a write is none"
    assert "panicked" not in daemon.log()


def test_nbd_one_export_does_not_take_all_places(serve, scratch):
    """Idle connections to one export, as many as there may be, leave places for the other; idle handshakes give way."""
    options = {"extra": "connections = 8\nconnections_per_export = 5\nhandshakes = 4\n"}
    disks = [Disk(name, images.raw(scratch / f"{name}.raw", SIZE), "raw") for name in ("a", "b")]
    daemon = serve(disks, **options)
    idle = [Wire(daemon.nbd_socket).handshake("a") for _ in range(5)]
    with Wire(daemon.nbd_socket) as wire, pytest.raises(AssertionError, match="0x80000002"):
        wire.handshake("a")
    silent = [Wire(daemon.nbd_socket) for _ in range(12)]
    with Wire(daemon.nbd_socket) as wire:
        wire.handshake("b").request(nbdwire.READ, 0, 512, 1)
        assert wire.reply() == (0, 1)
    for wire in idle + silent:
        wire.socket.close()


def test_nbd_full_exports_and_full_listeners_keep_nobody_out(serve, scratch):
    """Idle connections to two exports, as many as there may be, leave a place for the third; those of one listener take
    none of another's."""
    other = scratch / "other.sock"
    disks = [Disk(name, images.raw(scratch / f"{name}.raw", SIZE), "raw") for name in "abc"]
    daemon = serve(disks, extra=f'connections = 8\n[[nbd.listen]]\nunix = "{other}"\n')
    idle = []
    for name, most in (("a", 4), ("b", 3), ("c", 1)):
        idle += [Wire(daemon.nbd_socket).handshake(name) for _ in range(most)]
        with Wire(daemon.nbd_socket) as wire, pytest.raises(AssertionError, match="0x80000002"):
            wire.handshake(name)
    with Wire(other) as wire:
        wire.handshake("a")
        for served in (idle[-1], wire):
            served.request(nbdwire.READ, 0, 512, 1)
            assert served.reply() == (0, 1) and served.receive(512) == bytes(512)
    for wire in idle:
        wire.socket.close()


def test_nbd_listeners_of_tenants(serve, scratch):
    """Who is on one tenant's listener does not see the other's disks, and cannot tell them from disks that do not
    exist."""
    socket_a, socket_all = scratch / "a.sock", scratch / "all.sock"
    extra = f'[[nbd.listen]]\nunix = "{socket_a}"\nexports = ["a"]\n[[nbd.listen]]\nunix = "{socket_all}"\n'
    disks = [Disk(name, images.raw(scratch / f"{name}.raw", SIZE), "raw") for name in ("a", "ab")]
    serve(disks, extra=extra)

    def refusal(path, name: str) -> tuple[int, bytes]:
        with Wire(path) as wire:
            wire.greeting()
            wire.option(7, struct.pack(">I", len(name)) + name.encode() + struct.pack(">H", 0))
            kind, words = wire.option_reply()
            return kind, words.replace(name.encode(), b"NAME")

    assert refusal(socket_a, "ab") == refusal(socket_a, "xy")
    assert refusal(socket_a, "ab")[0] == 0x80000006
    for path, names in ((socket_a, {"a"}), (socket_all, {"a", "ab"})):
        listed = json.loads(run("nbdinfo", "--list", "--json", f"nbd+unix:///?socket={path}").stdout)
        assert {e["export-name"] for e in listed["exports"]} == names
    # The only export of the listener is the one without a name.
    with Wire(socket_a) as wire:
        wire.handshake("").request(nbdwire.READ, 0, 512, 1)
        assert wire.reply() == (0, 1)
    with Wire(socket_a) as wire:
        wire.greeting()
        wire.option(1, b"ab")
        assert wire.closed()


def descriptors(daemon) -> int:
    """How many file descriptors the daemon has open."""
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


def connected(daemon, export):
    """A connection to an export, in a list, which is empty while there is no place for one."""
    try:
        return [Wire(daemon.nbd_socket).handshake(export)]
    except (OSError, AssertionError, struct.error):
        return []


def test_nbd_many_connections(serve, scratch):
    """Several hundred connections come and go; the daemon's descriptors do not add up."""
    with Bystander(serve, scratch) as by:
        from_start = descriptors(by.daemon)
        for _ in range(6):
            # The places of the last ones are free once the daemon has noticed that those went.
            wires = []
            until(lambda: wires.extend(connected(by.daemon, "bad")) or len(wires) >= 8, "there are places again")
            for _ in range(60):
                try:
                    wires.append(Wire(by.daemon.nbd_socket).handshake("bad"))
                except (OSError, AssertionError, struct.error):
                    break  # a limit on connections is fine
            assert len(wires) >= 8
            for wire in wires:
                wire.socket.close()
        until(lambda: descriptors(by.daemon) <= from_start + 4, "descriptors of closed connections are given back")


def hostile_cases() -> list[str]:
    """All cases, from the driver itself; none while it is not built (the tests then say so)."""
    try:
        return run(built("undercroft-driver"), "cases").stdout.split()
    except pytest.fail.Exception:
        return ["not-built"]


def test_vhost_hostile_guests(serve, scratch):
    """Every hostile chain in turn: the socket serves the next guest, the disk is unharmed, the other disk goes on."""
    cases = hostile_cases()
    assert len(cases) > 30
    with Bystander(serve, scratch) as by:
        end = 512  # some cases write to the start of the disk, as a guest may
        for case in cases:
            reaction = driver("hostile", by.daemon.vhost("bad"), case)[0]
            assert reaction["serves_on"], reaction
            # Cases that cannot be answered leave the status byte alone; all others must not claim success unduly.
            if case.startswith(
                ("sector-", "read-across", "unknown", "discard-past", "discard-over", "write-zeroes-past")
            ):
                assert reaction["hung_up"] or reaction["status"] in (1, 2), reaction
            assert by.process.poll() is None, f"the other disk stopped at {case}"
        assert by.daemon.running()
        assert by.bad.read_bytes()[end:] == images.raw(scratch / "again.raw", SIZE, seed=7).read_bytes()[end:]


def test_vhost_garbage_messages(serve, scratch):
    """Bytes that are no vhost-user messages, connections that end at once, and a second front end."""
    dice = random.Random(11)
    with Bystander(serve, scratch) as by:
        path = by.daemon.vhost("bad")
        for i in range(40):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.connect(path)
                if i % 4 == 0:
                    continue
                if i % 4 == 1:
                    s.sendall(dice.randbytes(dice.randrange(1, 300)))
                elif i % 4 == 2:
                    s.sendall(struct.pack("<III", dice.randrange(0, 60), 1, dice.choice([0, 8, 4096, 0xFFFFFFFF])))
                else:
                    # GET_VRING_BASE of a ring that was never set up; SET_MEM_TABLE without descriptors.
                    # At once: the daemon closes after the first, and a second send would be refused.
                    s.sendall(struct.pack("<IIIII", 11, 1, 8, 200, 0) + struct.pack("<IIIII", 5, 1, 8, 8, 0))
        driver("run", path, "--ops", "200", "--verify", by.bad)
