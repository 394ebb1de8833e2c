//! One access of a trace as caches see it, and how many distinct blocks a trace has.
//!
//! Owns the step from a trace's records to what is simulated. Never reads a file itself.

use rustc_hash::FxHashSet;
use undercroft_trace::{Access, Kind};

/// One access to one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// When, in nanoseconds since the trace's beginning; 0 throughout where it has no times.
    pub time_ns: u64,
    /// Which block.
    pub block: u64,
    /// Whether it is written. What a trace does not say is a read.
    pub write: bool,
}

impl Reference {
    /// A read of `block` at no particular time.
    pub fn read(block: u64) -> Self {
        Self { block, ..Self::default() }
    }

    /// A write of `block` at no particular time.
    pub fn write(block: u64) -> Self {
        Self { block, write: true, ..Self::default() }
    }
}

impl From<Access> for Reference {
    fn from(access: Access) -> Self {
        Self { time_ns: access.time_ns, block: access.block, write: access.kind == Kind::Write }
    }
}

/// Counts accesses and distinct blocks.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// Accesses seen.
    pub accesses: u64,
    blocks: FxHashSet<u64>,
}

impl Footprint {
    /// Counts an access.
    #[inline]
    pub fn see(&mut self, block: u64) {
        self.accesses += 1;
        self.blocks.insert(block);
    }

    /// Distinct blocks seen.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trace_does_not_say_is_a_read() {
        for (kind, write) in [(Kind::Read, false), (Kind::Unknown, false), (Kind::Write, true)] {
            let access = undercroft_trace::Reader::new(&b"7 1 0 0\n"[..], "x", undercroft_trace::Format::ArcLis)
                .and_then(|mut r| r.next().expect("one record"))
                .expect("sound");
            let reference = Reference::from(Access { kind, ..access });
            assert_eq!((reference.block, reference.write), (7, write));
        }
    }

    #[test]
    fn a_footprint_counts_each_block_once() {
        let mut footprint = Footprint::default();
        [1, 2, 1, u64::MAX, 0, 2].into_iter().for_each(|block| footprint.see(block));
        assert_eq!((footprint.accesses, footprint.blocks()), (6, 4));
    }
}
