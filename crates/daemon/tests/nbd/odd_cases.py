"""Odd cases through libnbd, which is let off its leash (strict mode off). Arguments: socket, image."""
import errno
import sys
import nbd

sock, image = sys.argv[1:]
with open(image, "rb") as f:
    want = bytearray(f.read())
SIZE = len(want)


def connect(structured=True, meta=True, name="disk"):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    if meta and structured:
        h.add_meta_context("base:allocation")
        h.add_meta_context("x-unknown:context")
    h.set_export_name(name)
    h.connect_unix(sock)
    h.set_strict_mode(0)
    return h


def fails(number, f, *args):
    try:
        f(*args)
    except nbd.Error as e:
        assert e.errnum == number, (e.string, e.errno, errno.errorcode[number])
        return
    raise AssertionError(f"{f} {args} succeeded")


# The empty name is the only disk; an unknown name is refused in words.
assert connect(name="").get_size() == SIZE
try:
    connect(name="no such disk")
    raise AssertionError("connected")
except nbd.Error as e:
    assert "no such disk" in e.string or "there is no export" in e.string or e.errnum, e.string

for structured in (True, False):
    h = connect(structured)
    assert h.get_structured_replies_negotiated() == structured
    assert h.can_df() == structured
    assert h.can_meta_context("base:allocation") == structured
    assert h.can_multi_conn() and h.can_fua() and h.can_flush() and h.can_cache()
    # Zero lengths are answered, one way or the other, without a disconnect.
    for f in (lambda: h.pread(0, 0), lambda: h.pwrite(b"", 0), lambda: h.zero(0, 0), lambda: h.trim(0, 0),
              lambda: h.cache(0, 0)):
        try:
            f()
        except nbd.Error as e:
            assert e.errnum == errno.EINVAL, e.string
    assert h.aio_is_ready()
    # Past the end.
    fails(errno.EINVAL, h.pread, 512, SIZE)
    fails(errno.EINVAL, h.pread, 2, SIZE - 1)
    fails(errno.ENOSPC, h.pwrite, b"x" * 512, SIZE)
    fails(errno.ENOSPC, h.zero, 512, SIZE)
    fails(errno.EINVAL, h.trim, 512, SIZE)
    fails(errno.EINVAL, h.cache, 512, SIZE)
    # Too long: 32 MiB is what was advertised.
    assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20
    assert h.pread(32 << 20, 1) == want[1:1 + (32 << 20)]
    fails(errno.EOVERFLOW if structured else errno.EINVAL, h.pread, (32 << 20) + 1, 0)
    fails(errno.EINVAL, h.pwrite, b"x" * ((32 << 20) + 1), 0)
    assert h.pread(100, 50) == want[50:150], "the stream is still in step"
    # Flags that are not for the command; FUA is for all.
    fails(errno.EINVAL, h.pwrite, b"x", 0, nbd.CMD_FLAG_DF)
    fails(errno.EINVAL, h.flush, nbd.CMD_FLAG_REQ_ONE)
    h.flush(nbd.CMD_FLAG_FUA)
    h.zero(4096, 8192, nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
    h.zero(5000, 20001, nbd.CMD_FLAG_FAST_ZERO)
    want[8192:8192 + 4096] = bytes(4096)
    want[20001:25001] = bytes(5000)
    h.trim(1, 1, nbd.CMD_FLAG_FUA)
    want[1] = h.pread(1, 1)[0]
    h.cache(SIZE, 0)
    data = bytes(i * 7 & 255 for i in range(70000))
    h.pwrite(data, 333, nbd.CMD_FLAG_FUA)
    want[333:333 + len(data)] = data
    with open(image, "rb") as f:
        assert f.read(71000)[333:333 + len(data)] == data, "FUA is write-through"
    assert h.pread(SIZE >> 1, 0) == want[:SIZE >> 1]
    if structured:
        chunks = []
        buf = h.pread_structured(1 << 20, 4096, lambda b, o, s, e: chunks.append((bytes(b), o, s)), nbd.CMD_FLAG_DF)
        assert buf == want[4096:4096 + (1 << 20)]
        assert len(chunks) == 1 and chunks[0][1:] == (4096, nbd.READ_DATA)
        extents = []
        h.block_status(SIZE, 0, lambda c, o, e, err: extents.append((c, o, list(e))))
        assert len(extents) == 1 and extents[0][:2] == ("base:allocation", 0)
        lengths = extents[0][2][::2]
        assert 0 < sum(lengths) <= SIZE
        one = []
        h.block_status(SIZE - 512, 512, lambda c, o, e, err: one.append(list(e)), nbd.CMD_FLAG_REQ_ONE)
        assert len(one[0]) == 2 and 0 < one[0][0] <= SIZE - 512
        fails(errno.EINVAL, h.block_status, 0, 0, lambda *a: 0)
        fails(errno.EINVAL, h.block_status, 512, SIZE, lambda *a: 0)
    h.shutdown()

# Block status without the context.
h = connect(meta=False)
fails(errno.EINVAL, h.block_status, 512, 0, lambda *a: 0)
h.shutdown()

# Option haggling.
h = nbd.NBD()
h.set_opt_mode(True)
h.set_full_info(True)
h.connect_unix(sock)
names = []
assert h.opt_list(lambda n, d: names.append((n, d))) == 1
assert names == [("disk", "the disk disk")]
h.set_export_name("disk")
contexts = []
h.opt_list_meta_context(lambda c: contexts.append(c))
assert contexts == ["base:allocation"]
h.opt_info()
assert h.get_size() == SIZE and h.get_canonical_export_name() == "disk"
h.set_export_name("nobody")
try:
    h.opt_go()
    raise AssertionError("went")
except nbd.Error as e:
    assert e.errnum == errno.ENOENT, e.string
h.opt_abort()

# Many commands at once, answered in any order.
h = connect()
bufs = []
cookies = []
for n in range(500):
    b = nbd.Buffer(4096 + n)
    bufs.append((b, n * 1000))
    cookies.append(h.aio_pread(b, n * 1000))
while h.aio_in_flight():
    h.poll(-1)
for c in cookies:
    assert h.aio_command_completed(c)
for n, (b, at) in enumerate(bufs):
    assert b.to_bytearray() == want[at:at + 4096 + n]
h.shutdown()
print("all odd cases passed")
