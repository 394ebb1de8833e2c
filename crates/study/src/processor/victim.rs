//! A few lines beside a cache that take what it evicts (N. Jouppi, "Improving Direct-Mapped Cache Performance by the
//! Addition of a Small Fully-Associative Cache and Prefetch Buffers", ISCA 1990).
//!
//! Owns them. Invariants: no block is in them and in the cache, and none is locked.

/// As many as the thesis has.
pub const VICTIM_LINES: u32 = 12;

/// Where the lines of a victim buffer come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// From the cache: its sets give one line each in turn, and keep one at least.
    #[default]
    Carved,
    /// They are added to it.
    Extra,
}

/// Fully associative; the one that has been there longest goes first.
#[derive(Clone, Debug)]
pub(super) struct VictimBuffer {
    /// Blocks, and whether they were changed; the latest one first.
    lines: Vec<(u64, bool)>,
    room: usize,
}

impl VictimBuffer {
    pub fn new(room: usize) -> Self {
        Self { lines: Vec::with_capacity(room + 1), room }
    }

    /// Takes a block out, for the cache. Whether it was changed, if it was here.
    #[inline]
    pub fn take(&mut self, block: u64) -> Option<bool> {
        let n = self.lines.iter().position(|(b, _)| *b == block)?;
        Some(self.lines.remove(n).1)
    }

    /// Takes in what the cache has evicted. What goes for it.
    #[inline]
    pub fn put(&mut self, block: u64, dirty: bool) -> Option<(u64, bool)> {
        if self.room == 0 {
            return Some((block, dirty));
        }
        self.lines.insert(0, (block, dirty));
        if self.lines.len() > self.room { self.lines.pop() } else { None }
    }
}
