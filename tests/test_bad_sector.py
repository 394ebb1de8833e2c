"""One sector of an upstream disk cannot be read: only requests that need its block fail, whoever else reads around
it."""

from harness import images, nbdwire
from harness.daemon import Disk, until
from harness.nbdwire import Wire

SIZE = 4 * images.MIB
BAD = images.MIB
BLOCK = 4096
EIO = 5


def reads_fail_at_bad(far) -> tuple[str, ...]:
    """nbdkit's arguments for a disk of which the sector at BAD cannot be read."""
    overlap = f"[ $4 -lt {BAD + 512} ] && [ $(($4 + $3)) -gt {BAD} ]"
    fails = f"if {overlap}; then echo EIO the sector is bad >&2; exit 1; fi"
    pread = f"{fails}; dd if={far} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"
    return "eval", f"get_size=echo {SIZE}", f"pread={pread}", "block_size=echo 512 512 1048576"


def test_readers_that_join_a_failed_operation(serve, scratch, nbdkit):
    """A client's read of blocks around a bad sector is under way; others want some of its healthy blocks, and more."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    contents = far.read_bytes()
    upstream = nbdkit("--filter=delay", *reads_fail_at_bad(far), "rdelay=1")
    daemon = serve([Disk("up", upstream.uri, "nbd", {"read_only": "true"})], memory="32MiB")
    # Each begins or ends beside the block that is bad, in the operation of the first, and goes on outside of it.
    healthy = [
        (BAD - 4 * BLOCK, 4 * BLOCK),
        (BAD + BLOCK, 3 * BLOCK),
        (BAD - 3 * BLOCK + 512, 3 * BLOCK - 512),
        (BAD + BLOCK + 100, 2 * BLOCK),
    ]
    with Wire(daemon.nbd_socket, 30) as first, Wire(daemon.nbd_socket, 30) as second:
        first.handshake("up").request(nbdwire.READ, BAD - 2 * BLOCK, 4 * BLOCK, 1)
        second.handshake("up")
        until(lambda: daemon.disk("up")["inflight_ops"] > 0, "the first read is under way")
        for cookie, (offset, length) in enumerate(healthy):
            second.request(nbdwire.READ, offset, length, cookie)
        assert first.reply() == (EIO, 1), "the request that needs the bad sector fails"
        for _ in healthy:
            error, cookie = second.reply()
            offset, length = healthy[cookie]
            assert error == 0, f"{length} bytes at {offset} do not need the bad sector"
            assert second.receive(length) == contents[offset:][:length]
    assert daemon.disk("up")["counters"]["joined_blocks"] > 0, "nobody joined, so nothing was tested"


def test_reading_ahead_into_a_bad_sector(serve, scratch, nbdkit):
    """A client reads one block after the other, and the daemon ahead of it: exactly one read fails, that of the bad
    block."""
    far = images.raw(scratch / "far.raw", SIZE, seed=3)
    contents = far.read_bytes()
    upstream = nbdkit(*reads_fail_at_bad(far))
    daemon = serve([Disk("up", upstream.uri, "nbd", {"read_only": "true"})], memory="32MiB")
    begin, end = BAD - 40 * BLOCK, BAD + 24 * BLOCK
    failed = []
    with Wire(daemon.nbd_socket, 30) as wire:
        wire.handshake("up")
        for offset in range(begin, end, BLOCK):
            wire.request(nbdwire.READ, offset, BLOCK, offset)
            error, cookie = wire.reply()
            assert cookie == offset
            if error:
                assert error == EIO
                failed.append(offset)
            else:
                assert wire.receive(BLOCK) == contents[offset:][:BLOCK]
    assert failed == [BAD]
    assert daemon.disk("up")["counters"]["readahead_hit_blocks"] > 0, "nothing was read ahead, so nothing was tested"
