//! What an NBD server sends after the handshake: simple replies and chunks of structured ones.
//!
//! Owns the reading of it, a piece at a time as it comes. Never trusts a number in it. Invariant: reply data goes only
//! into the range of the request it answers, each byte once; anything else ends the connection.

use super::ops::{Op, Ops, Stage, Step};
use undercroft_cache::{Extent, IoError, IoKind};

const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;

const FLAG_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_STATUS: u16 = 5;
const CHUNK_ERROR_BIT: u16 = 1 << 15;

/// Extents that one answer to `Status` has at most.
const EXTENTS_MAX: usize = 256;
/// Bytes of a chunk that is not data, at most.
const OTHER_BYTES_MAX: u32 = 1 << 20;

/// Why a connection is given up.
pub type Violation = &'static str;

/// What comes next from the server.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// The head of a reply.
    Head,
    /// The offset in front of a chunk of data.
    DataOffset { slot: u32, bytes: u32, done: bool },
    /// Data for the operation's buffer, from byte `at` of it.
    Data { slot: u32, at: u32, left: u32, done: bool },
    /// Offset and length of a hole.
    Hole { slot: u32, done: bool },
    /// The number of the context of block status.
    StatusContext { slot: u32, bytes: u32, done: bool },
    /// Block status, entry by entry.
    StatusEntries { slot: u32, bytes: u32, done: bool },
    /// An error number.
    Error { slot: u32, bytes: u32, done: bool },
    /// Bytes of no interest.
    Skip { slot: u32, bytes: u32, done: bool },
}

/// Reads what a server sends on one connection.
#[derive(Debug)]
pub struct Replies {
    expect: Expect,
    structured: bool,
    context: Option<u32>,
    shutting_down: bool,
}

impl Replies {
    /// For a connection where structured replies and this number for `base:allocation` were agreed on.
    pub fn new(structured: bool, context: Option<u32>) -> Self {
        Self { expect: Expect::Head, structured, context, shutting_down: false }
    }

    /// Where the next bytes go straight to: slot, place in its buffer, how many. Then `direct` says how many came.
    pub(super) fn wants_data(&self) -> Option<(u32, u32, u32)> {
        match self.expect {
            Expect::Data { slot, at, left, .. } => Some((slot, at, left)),
            _ => None,
        }
    }

    /// Notes that `bytes` bytes have been put where `wants_data` said.
    pub(super) fn direct(&mut self, bytes: u32, answered: &mut Vec<u32>) {
        if let Expect::Data { slot, at, left, done } = self.expect {
            self.expect = Expect::Data { slot, at: at + bytes, left: left - bytes, done };
            if left == bytes {
                self.end_chunk(slot, done, answered);
            }
        }
    }

    /// Takes bytes as they came; returns how many were used. The rest must be offered again, with more behind it.
    /// Slots whose request is answered are added to `answered`.
    ///
    /// # Errors
    /// The server broke the protocol: nothing more that it says can be trusted.
    pub fn take(&mut self, bytes: &[u8], ops: &mut Ops, answered: &mut Vec<u32>) -> Result<usize, Violation> {
        let mut used = 0;
        loop {
            let n = self.step(&bytes[used..], ops, answered)?;
            used += n;
            if n == 0 {
                return Ok(used);
            }
        }
    }

    /// Takes the next thing if it is complete; returns its bytes, or 0.
    fn step(&mut self, b: &[u8], ops: &mut Ops, answered: &mut Vec<u32>) -> Result<usize, Violation> {
        match self.expect {
            Expect::Head => self.head(b, ops, answered),
            Expect::DataOffset { slot, bytes, done } => {
                let Some((offset, _)) = b.split_first_chunk::<8>() else { return Ok(0) };
                let op = ops.get(slot);
                let at = within(op, u64::from_be_bytes(*offset), bytes)?;
                self.expect = Expect::Data { slot, at: op.progress as u32 + at, left: bytes, done };
                Ok(8)
            }
            Expect::Data { slot, at, left, .. } => {
                let n = b.len().min(left as usize);
                if n > 0 {
                    fill(ops.get(slot), at as usize, &b[..n]);
                    self.direct(n as u32, answered);
                }
                Ok(n)
            }
            Expect::Hole { slot, done } => {
                let Some((head, _)) = b.split_first_chunk::<12>() else { return Ok(0) };
                let (offset, len) = (be64(&head[..8]), be64(&head[8..]) as u32);
                let op = ops.get(slot);
                let at = op.progress as usize + within(op, offset, len)? as usize;
                zero(op, at, len as usize);
                self.end_chunk(slot, done, answered);
                Ok(12)
            }
            Expect::StatusContext { slot, bytes, done } => {
                let Some((id, _)) = b.split_first_chunk::<4>() else { return Ok(0) };
                if Some(u32::from_be_bytes(*id)) != self.context {
                    return Err("it sent block status for a context that was not asked for");
                }
                self.expect = Expect::StatusEntries { slot, bytes: bytes - 4, done };
                Ok(4)
            }
            Expect::StatusEntries { slot, bytes, done } => {
                let Some((entry, _)) = b.split_first_chunk::<8>() else { return Ok(0) };
                status_entry(ops.get(slot), be64(&entry[..4]), be64(&entry[4..]) as u32)?;
                if bytes == 8 {
                    self.end_chunk(slot, done, answered);
                } else {
                    self.expect = Expect::StatusEntries { slot, bytes: bytes - 8, done };
                }
                Ok(8)
            }
            Expect::Error { slot, bytes, done } => {
                let Some((number, _)) = b.split_first_chunk::<4>() else { return Ok(0) };
                self.verdict(ops.get(slot), u32::from_be_bytes(*number));
                self.skip(slot, bytes - 4, done, answered);
                Ok(4)
            }
            Expect::Skip { slot, bytes, done } => {
                let n = b.len().min(bytes as usize);
                if n > 0 {
                    self.skip(slot, bytes - n as u32, done, answered);
                }
                Ok(n)
            }
        }
    }

    fn head(&mut self, b: &[u8], ops: &mut Ops, answered: &mut Vec<u32>) -> Result<usize, Violation> {
        let Some((magic, _)) = b.split_first_chunk::<4>() else { return Ok(0) };
        match u32::from_be_bytes(*magic) {
            SIMPLE => {
                let Some((head, _)) = b.split_first_chunk::<16>() else { return Ok(0) };
                let error = be64(&head[4..8]) as u32;
                let slot = ops.find(be64(&head[8..])).ok_or(UNKNOWN)?;
                let op = ops.get(slot);
                op.stage = Stage::Answered;
                if error != 0 {
                    self.verdict(op, error);
                } else if op.step == Step::Part && op.io.kind == IoKind::Read {
                    if self.structured {
                        return Err("it answered a read with a simple reply, though structured ones were agreed on");
                    }
                    let len = op.step_len;
                    op.cover(0, len);
                    self.expect = Expect::Data { slot, at: op.progress as u32, left: len, done: true };
                    return Ok(16);
                } else if op.io.kind == IoKind::Status {
                    return Err("it answered a request for block status without any");
                }
                self.end_chunk(slot, true, answered);
                Ok(16)
            }
            STRUCTURED if self.structured => {
                let Some((head, _)) = b.split_first_chunk::<20>() else { return Ok(0) };
                let (flags, kind) = (be64(&head[4..6]) as u16, be64(&head[6..8]) as u16);
                let slot = ops.find(be64(&head[8..16])).ok_or(UNKNOWN)?;
                self.chunk(slot, ops.get(slot), flags & FLAG_DONE != 0, kind, be64(&head[16..]) as u32, answered)?;
                Ok(20)
            }
            _ => Err("it sent something that is no reply"),
        }
    }

    /// Takes the head of a chunk with `bytes` bytes behind it.
    fn chunk(
        &mut self,
        slot: u32,
        op: &mut Op,
        done: bool,
        kind: u16,
        bytes: u32,
        answered: &mut Vec<u32>,
    ) -> Result<(), Violation> {
        if done {
            op.stage = Stage::Answered;
        }
        let reads = op.step == Step::Part && op.io.kind == IoKind::Read;
        let asks_status = op.io.kind == IoKind::Status;
        match kind {
            CHUNK_NONE if bytes == 0 && done => self.end_chunk(slot, done, answered),
            CHUNK_DATA if reads && bytes > 8 && bytes - 8 <= op.step_len => {
                self.expect = Expect::DataOffset { slot, bytes: bytes - 8, done };
            }
            CHUNK_HOLE if reads && bytes == 12 => self.expect = Expect::Hole { slot, done },
            CHUNK_STATUS if asks_status && (12..=OTHER_BYTES_MAX).contains(&bytes) && (bytes - 4).is_multiple_of(8) => {
                self.expect = Expect::StatusContext { slot, bytes, done };
            }
            k if k & CHUNK_ERROR_BIT != 0 && (6..=OTHER_BYTES_MAX).contains(&bytes) => {
                self.expect = Expect::Error { slot, bytes, done };
            }
            CHUNK_NONE | CHUNK_DATA | CHUNK_HOLE | CHUNK_STATUS => {
                return Err("it sent a chunk that does not fit the request");
            }
            _ => return Err("it sent a chunk of an unknown kind"),
        }
        Ok(())
    }

    fn verdict(&mut self, op: &mut Op, error: u32) {
        const ESHUTDOWN: u32 = 108;
        if error == ESHUTDOWN {
            self.shutting_down = true;
        }
        op.error.get_or_insert(match error {
            1 => IoError::ReadOnly,
            22 => IoError::Invalid,
            28 => IoError::NoSpace,
            95 => IoError::Unsupported,
            ESHUTDOWN => IoError::Shutdown,
            _ => IoError::Io,
        });
    }

    /// Whether the server said that it is shutting down.
    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    fn skip(&mut self, slot: u32, bytes: u32, done: bool, answered: &mut Vec<u32>) {
        if bytes == 0 {
            self.end_chunk(slot, done, answered);
        } else {
            self.expect = Expect::Skip { slot, bytes, done };
        }
    }

    fn end_chunk(&mut self, slot: u32, done: bool, answered: &mut Vec<u32>) {
        self.expect = Expect::Head;
        if done {
            answered.push(slot);
        }
    }
}

const UNKNOWN: Violation = "it answered a request that was not sent";

/// Where in the request's range bytes `offset..offset + len` of the disk are, if they are and came for the first time.
fn within(op: &mut Op, offset: u64, len: u32) -> Result<u32, Violation> {
    let start = op.io.offset + op.progress;
    let at = offset.checked_sub(start).and_then(|at| u32::try_from(at).ok());
    match at.and_then(|at| Some((at, at.checked_add(len)?))) {
        Some((at, end)) if op.cover(at, end) => Ok(at),
        _ => Err("it sent data outside of the request, or twice"),
    }
}

fn status_entry(op: &mut Op, len: u64, flags: u32) -> Result<(), Violation> {
    if len == 0 {
        return Err("it sent block status for no bytes");
    }
    let so_far: u64 = op.extents.iter().map(|e| e.len).sum();
    let left = op.io.len.saturating_sub(so_far);
    if left == 0 || op.extents.len() >= EXTENTS_MAX {
        return Ok(()); // more than was asked for
    }
    op.extents.push(Extent { len: len.min(left), hole: flags & 1 != 0, zero: flags & 2 != 0 });
    Ok(())
}

/// Copies `bytes` to byte `at` of the operation's buffer.
fn fill(op: &mut Op, at: usize, mut bytes: &[u8]) {
    let mut skip = at;
    for piece in op.io.buf.pieces_mut() {
        let from = skip.min(piece.len());
        skip -= from;
        let n = (piece.len() - from).min(bytes.len());
        piece[from..from + n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        if bytes.is_empty() {
            return;
        }
    }
}

/// Zeroes `len` bytes from byte `at` of the operation's buffer on.
fn zero(op: &mut Op, at: usize, mut len: usize) {
    let mut skip = at;
    for piece in op.io.buf.pieces_mut() {
        let from = skip.min(piece.len());
        skip -= from;
        let n = (piece.len() - from).min(len);
        piece[from..from + n].fill(0);
        len -= n;
    }
}

/// A big-endian number of up to eight bytes.
fn be64(b: &[u8]) -> u64 {
    b.iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_cache::{DiskId, Io, IoTarget, OpId};
    use undercroft_host::{Arena, IoBuf};

    /// Operations 0: read of 8192 at 4096; 1: write; 2: status of 1 MiB. All sent.
    fn ops(arena: &mut Arena) -> (Ops, Vec<u64>) {
        let mut ops = Ops::default();
        let mut cookies = Vec::new();
        for (kind, len, frames) in
            [(IoKind::Read, 8192, 2), (IoKind::Write { fua: false }, 4096, 1), (IoKind::Status, 1 << 20, 0)]
        {
            let frames: Vec<_> = (0..frames).map(|_| arena.take().unwrap()).collect();
            let buf = IoBuf { len: if frames.is_empty() { 0 } else { len as u32 }, head: 0, frames };
            let slot =
                ops.add(Io { op: OpId(1), disk: DiskId(1), target: IoTarget::Image, kind, offset: 4096, len, buf }, 0);
            cookies.push(ops.new_cookie(slot));
            let op = ops.get(slot);
            (op.stage, op.step_len) = (Stage::Sent, len as u32);
        }
        (ops, cookies)
    }

    fn put_back(mut ops: Ops, arena: &mut Arena) {
        for slot in ops.in_order() {
            ops.remove(slot).io.buf.frames.into_iter().for_each(|f| arena.put(f));
        }
    }

    fn simple(cookie: u64, error: u32) -> Vec<u8> {
        [&SIMPLE.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
    }

    fn chunk(cookie: u64, flags: u16, kind: u16, body: &[u8]) -> Vec<u8> {
        let len = (body.len() as u32).to_be_bytes();
        let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
        [&STRUCTURED.to_be_bytes()[..], &flags, &kind, &cookie.to_be_bytes(), &len, body].concat()
    }

    fn data(offset: u64, byte: u8, len: usize) -> Vec<u8> {
        [&offset.to_be_bytes()[..], &vec![byte; len]].concat()
    }

    fn hole(offset: u64, len: u32) -> Vec<u8> {
        [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat()
    }

    /// Feeds `stream` in pieces of `piece` bytes; returns what was answered.
    fn feed(replies: &mut Replies, ops: &mut Ops, stream: &[u8], piece: usize) -> Result<Vec<u32>, Violation> {
        let (mut start, mut end, mut answered) = (0, 0, Vec::new());
        while end < stream.len() {
            end = (end + piece).min(stream.len());
            start += replies.take(&stream[start..end], ops, &mut answered)?;
        }
        let _ = start;
        Ok(answered)
    }

    #[test]
    fn chunks_in_any_order_and_any_pieces_fill_the_buffer() {
        for piece in [1, 7, 19, 4096, 1 << 20] {
            let mut arena = Arena::new(8).unwrap();
            let (mut ops, c) = ops(&mut arena);
            let status = [1u32, 65536, 0, 1 << 20, 3].iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<_>>();
            let stream = [
                chunk(c[0], 0, CHUNK_DATA, &data(4096 + 5000, 7, 3192)),
                chunk(c[2], 1, CHUNK_STATUS, &status),
                chunk(c[0], 0, CHUNK_HOLE, &hole(4096, 1000)),
                simple(c[1], 0),
                chunk(c[0], 0, CHUNK_DATA, &data(4096 + 1000, 9, 4000)),
                chunk(c[0], 1, CHUNK_NONE, &[]),
            ]
            .concat();
            let mut replies = Replies::new(true, Some(1));
            assert_eq!(feed(&mut replies, &mut ops, &stream, piece), Ok(vec![2, 1, 0]));
            assert!(ops.get(0).is_covered());
            let mut got = vec![1; 8192];
            ops.get(0).io.buf.copy_to(&mut got);
            let expected = [vec![0; 1000], vec![9; 4000], vec![7; 3192]].concat();
            assert!(got == expected, "in pieces of {piece}");
            let extents =
                [Extent { len: 65536, hole: false, zero: false }, Extent { len: 983_040, hole: true, zero: true }];
            assert_eq!(ops.get(2).extents, extents);
            put_back(ops, &mut arena);
        }
    }

    #[test]
    fn errors_are_the_operations_not_the_connections() {
        let mut arena = Arena::new(8).unwrap();
        let (mut ops, c) = ops(&mut arena);
        let error = |number: u32, words: &[u8]| {
            [&number.to_be_bytes()[..], &(words.len() as u16).to_be_bytes(), words].concat()
        };
        let stream = [
            chunk(c[0], 1, CHUNK_ERROR_BIT | 1, &error(5, b"out of luck")),
            simple(c[1], 28),
            chunk(c[2], 1, CHUNK_ERROR_BIT | 99, &error(0, b"")),
        ]
        .concat();
        let mut replies = Replies::new(true, Some(1));
        assert_eq!(feed(&mut replies, &mut ops, &stream, 5), Ok(vec![0, 1, 2]));
        let errors: Vec<_> = (0..3).map(|i| ops.get(i).error).collect();
        assert_eq!(errors, [Some(IoError::Io), Some(IoError::NoSpace), Some(IoError::Io)]);
        put_back(ops, &mut arena);
    }

    #[test]
    fn what_breaks_the_protocol_ends_the_connection() {
        type Make = fn(&[u64]) -> Vec<u8>;
        let bad: [(&str, Make); 15] = [
            ("no magic", |_| vec![1; 16]),
            ("unknown cookie", |_| simple(77, 0)),
            ("old cookie", |c| simple(c[1] - (1 << 32), 0)),
            ("answered twice", |c| [simple(c[1], 0), simple(c[1], 0)].concat()),
            ("answered after the last chunk", |c| {
                [chunk(c[1], 1, CHUNK_NONE, &[]), chunk(c[1], 1, CHUNK_NONE, &[])].concat()
            }),
            ("simple reply to a read", |c| simple(c[0], 0)),
            ("data past the end", |c| chunk(c[0], 1, CHUNK_DATA, &data(4096 + 4096, 1, 8192))),
            ("data before the start", |c| chunk(c[0], 1, CHUNK_DATA, &data(0, 1, 4096))),
            ("more data than asked for", |c| chunk(c[0], 1, CHUNK_DATA, &data(4096, 1, 8193))),
            ("data twice", |c| {
                [chunk(c[0], 0, CHUNK_DATA, &data(4096, 1, 512)), chunk(c[0], 1, CHUNK_HOLE, &hole(4100, 8))].concat()
            }),
            ("data for a write", |c| chunk(c[1], 1, CHUNK_DATA, &data(4096, 1, 512))),
            ("a hole past the end", |c| chunk(c[0], 1, CHUNK_HOLE, &hole(4096 + 8000, u32::MAX))),
            ("status of another context", |c| chunk(c[2], 1, CHUNK_STATUS, &[0, 0, 0, 9, 0, 0, 1, 0, 0, 0, 0, 0])),
            ("status for nothing", |c| chunk(c[2], 1, CHUNK_STATUS, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])),
            ("an endless error", |c| {
                let mut b = chunk(c[0], 1, CHUNK_ERROR_BIT | 1, &[]);
                b[16..20].fill(0xff);
                b
            }),
        ];
        for (what, make) in bad {
            let mut arena = Arena::new(8).unwrap();
            let (mut ops, c) = ops(&mut arena);
            let stream = make(&c);
            let mut replies = Replies::new(true, Some(1));
            assert!(feed(&mut replies, &mut ops, &stream, 1 << 20).is_err(), "{what}");
            put_back(ops, &mut arena);
        }
    }

    #[test]
    fn no_stream_makes_it_panic() {
        let mut arena = Arena::new(8).unwrap();
        let (_, c) = {
            let (o, c) = ops(&mut arena);
            put_back(o, &mut arena);
            ((), c)
        };
        let good = [
            chunk(c[0], 0, CHUNK_DATA, &data(4096, 7, 4096)),
            chunk(c[0], 1, CHUNK_HOLE, &hole(8192, 4096)),
            chunk(c[2], 1, CHUNK_STATUS, &[0, 0, 0, 1, 0, 16, 0, 0, 0, 0, 0, 3]),
            simple(c[1], 5),
        ]
        .concat();
        let mut seed = 7u64;
        for _ in 0..20_000 {
            let mut stream = good.clone();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let head = [0, 4124, 4156, 4188][(seed >> 40) as usize % 4];
                let at = (head + (seed >> 33) as usize % 32).min(stream.len() - 1);
                stream[at] = (seed >> 20) as u8 & 0x0f;
            }
            let (mut ops, _) = ops(&mut arena);
            let _ = feed(&mut Replies::new(true, Some(1)), &mut ops, &stream, 1 + (seed >> 50) as usize % 100);
            put_back(ops, &mut arena);
        }
    }
}
