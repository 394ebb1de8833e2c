//! One access of a trace as caches see it, and how many distinct blocks a trace has.
//!
//! Owns the step from a trace's records to what is simulated. Never reads a file itself.

use crate::sim::run::Go;
use rustc_hash::FxHashSet;
use undercroft_trace::{Access, AccessKind};

/// Accesses between two looks at whether to go on.
const LOOK_EVERY: u64 = 1 << 15;

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
        Self { time_ns: access.time_ns, block: access.block, write: access.kind == AccessKind::Write }
    }
}

/// Shows a trace to `see` up to its end or to damage, which a second pass meets at the same place, or up to `limit`
/// accesses. `watch` is told every so often how many there have been; false if it says to stop.
pub(crate) fn look_through(
    trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
    limit: Option<u64>,
    watch: &mut dyn FnMut(u64) -> Go,
    mut see: impl FnMut(Reference),
) -> bool {
    let mut seen = 0;
    for reference in trace.take(limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))) {
        let Ok(reference) = reference else { break };
        see(reference);
        seen += 1;
        if seen % LOOK_EVERY == 0 && watch(seen) == Go::Stop {
            return false;
        }
    }
    true
}

/// Counts accesses and distinct blocks.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// Accesses seen.
    pub accesses: u64,
    blocks: FxHashSet<u64>,
}

impl Footprint {
    /// Counts a trace: as far as [`look_through`] goes; `None` if `watch` says to stop.
    pub fn of(
        trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
        limit: Option<u64>,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Option<Self> {
        let mut footprint = Self::default();
        look_through(trace, limit, watch, |r| footprint.see(r.block)).then_some(footprint)
    }

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
        for (kind, write) in [(AccessKind::Read, false), (AccessKind::Unknown, false), (AccessKind::Write, true)] {
            let access = undercroft_trace::TraceReader::new(&b"7 1 0 0\n"[..], "x", undercroft_trace::Format::ArcLis)
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
