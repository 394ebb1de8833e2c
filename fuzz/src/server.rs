//! An NBD server that may say anything, to the client that the back end is.
//!
//! Owns the target and what the server is asked for, never a parser. Invariant: as for all targets, a panic is a defect
//! of the client: nothing that a server sends brings data to another request than the one it is for.

use std::cell::RefCell;
use std::io::{Read, Result, Write};
use undercroft_backend::nbd::parts::{Ops, Replies, Stage, handshake};
use undercroft_cache::{DiskId, Io, IoKind, IoTarget, OpId};
use undercroft_host::{Arena, FRAME_BYTES, IoBuf};

/// Frames of an operation with data.
const FRAMES: usize = 2;

/// A stream on which some bytes come, whatever is sent.
struct Says<'a>(&'a [u8]);

impl Read for Says<'_> {
    fn read(&mut self, b: &mut [u8]) -> Result<usize> {
        self.0.read(b)
    }
}

impl Write for Says<'_> {
    fn write(&mut self, b: &[u8]) -> Result<usize> {
        Ok(b.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Operations that the server has been sent.
fn under_way(arena: &mut Arena) -> Ops {
    let mut ops = Ops::default();
    let kinds = [IoKind::Read, IoKind::Read, IoKind::Write { fua: false }, IoKind::Flush, IoKind::Status];
    for (i, kind) in kinds.into_iter().enumerate() {
        let len = if kind == IoKind::Flush { 0 } else { (FRAMES * FRAME_BYTES) as u32 };
        let mut buf = IoBuf::default();
        if matches!(kind, IoKind::Read | IoKind::Write { .. }) {
            buf = IoBuf { frames: (0..FRAMES).filter_map(|_| arena.take()).collect(), head: 0, len };
        }
        let (op, disk, target, len64) = (OpId(i as u64), DiskId(0), IoTarget::Image, len.into());
        let slot = ops.add(Io { op, disk, target, kind, offset: 4096, len: len64, buf }, 0);
        ops.new_cookie(slot);
        let op = ops.get(slot);
        (op.stage, op.step_len) = (Stage::Sent, len);
    }
    ops
}

/// What an NBD server sends: to the handshake, and then as replies to some operations.
///
/// # Panics
/// If data came for an operation that takes none, or a frame was lost.
pub fn nbd_client(data: &[u8]) {
    let _ = handshake(&mut Says(data), "export");
    let Some((&how, rest)) = data.split_first() else { return };
    // One for all calls: an arena's pages are never unmapped, and a fuzzer calls millions of times.
    thread_local!(static ARENA: RefCell<Option<Arena>> = RefCell::new(Arena::new(8).ok()));
    let Some(mut arena) = ARENA.take() else { return };
    let mut ops = under_way(&mut arena);
    let mut replies = Replies::new(how & 1 != 0, (how & 2 != 0).then_some(1));
    let mut answered = Vec::new();
    let (mut start, mut end) = (0, 0);
    // Bytes come in pieces of any size.
    let piece = usize::from(how >> 2) + 1;
    while end < rest.len() {
        end = (end + piece).min(rest.len());
        match replies.take(&rest[start..end], &mut ops, &mut answered) {
            Ok(used) => start += used,
            Err(_) => break,
        }
        for slot in answered.drain(..) {
            let op = ops.get(slot);
            assert!(!op.is_covered() || op.io.kind == IoKind::Read, "data for an operation that takes none");
            op.stage = Stage::Queued;
        }
    }
    for slot in ops.in_order() {
        ops.remove(slot).io.buf.frames.into_iter().for_each(|f| arena.put(f));
    }
    assert!(arena.available() == arena.reserved(), "a frame was lost");
    ARENA.set(Some(arena));
}
