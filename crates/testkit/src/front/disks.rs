//! What operations find on disks whose blocks are easily told apart: by one value each, or by their numbers.
//!
//! Owns the content of such disks. Never fails an operation, and knows no sectors. Invariant: operations begin where a
//! block does.

use super::B;
use std::collections::BTreeMap;
use undercroft_cache::{Io, IoKind};

/// Fills each block that is read with the value that `value` says for its number. Nothing for other operations.
pub fn fill_blocks(io: &mut Io, mut value: impl FnMut(u64) -> u8) {
    if io.kind == IoKind::Read {
        assert!(io.offset.is_multiple_of(B), "the operation begins within a block");
        io.buf.pieces_mut().zip(io.offset / B..).for_each(|(piece, block)| piece.fill(value(block)));
    }
}

/// Fills each block that is read with its number in the first eight bytes, as little endian, and 1 in the others.
pub fn number_blocks(io: &mut Io) {
    let first = io.offset / B;
    fill_blocks(io, |_| 1);
    if io.kind == IoKind::Read {
        for (piece, block) in io.buf.pieces_mut().zip(first..) {
            piece[..8].copy_from_slice(&block.to_le_bytes());
        }
    }
}

/// Disks of which every block holds one value: what was written last, else what `content` says.
#[derive(Debug)]
pub struct ValueDisks {
    /// Values of blocks by disk and number.
    content: fn(u32, u64) -> u8,
    /// Those of blocks that are changed. A test that changes one here does what others do behind the core's back.
    pub changed: BTreeMap<(u32, u64), u8>,
}

impl ValueDisks {
    /// Disks that nobody has written to.
    pub fn new(content: fn(u32, u64) -> u8) -> Self {
        Self { content, changed: BTreeMap::new() }
    }

    /// The value of a block.
    pub fn value(&self, disk: u32, block: u64) -> u8 {
        self.changed.get(&(disk, block)).copied().unwrap_or_else(|| (self.content)(disk, block))
    }

    /// Does what an operation asks for.
    pub fn serve(&mut self, io: &mut Io) {
        let (disk, first) = (io.disk.0, io.offset / B);
        fill_blocks(io, |block| self.value(disk, block));
        match io.kind {
            IoKind::Write { .. } => {
                let values = io.buf.pieces().zip(first..).map(|(piece, block)| ((disk, block), piece[0]));
                self.changed.extend(values);
            }
            IoKind::Discard | IoKind::WriteZeroes { .. } => {
                self.changed.extend((first..first + io.len / B).map(|block| ((disk, block), 0)));
            }
            IoKind::Read | IoKind::Flush | IoKind::Status => {}
        }
    }
}
