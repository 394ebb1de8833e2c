//! What a program could tell of its blocks: how each range of them is used.
//!
//! Owns the ranges and their counts, taken from the trace itself before it is simulated. Never decides where a block is
//! kept. Invariant: the counts of all ranges add up to the accesses seen.
//!
//! Stands for the hints of Karma (Yadgar, Factor and Schuster, FAST 2007), which come from a database's query plans, again for
//! each query. Those of a whole trace know the future, and stay as they are.

use crate::reference::{Reference, look_through};
use crate::sweep::Go;
use rustc_hash::{FxHashMap, FxHashSet};

/// How a range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Its blocks are not used again, or hardly.
    Once,
    /// Its blocks are used in order, again and again.
    Loop,
    /// Anything else.
    Random,
}

/// What is known of one range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeHint {
    /// Accesses to it.
    pub accesses: u64,
    /// Distinct blocks of it that are used.
    pub blocks: u64,
    /// Accesses to the block after the one before, or to an earlier one that begins a new pass.
    in_order: u64,
    last: u64,
}

impl RangeHint {
    /// How it is used: in order if three accesses in four are, once if fewer than half of its blocks come back.
    pub fn pattern(&self) -> Pattern {
        if self.accesses * 2 < self.blocks * 3 {
            Pattern::Once
        } else if self.in_order * 4 >= self.accesses * 3 {
            Pattern::Loop
        } else {
            Pattern::Random
        }
    }
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Hints {
    range_blocks: u64,
    ranges: FxHashMap<u64, RangeHint>,
    blocks: FxHashSet<u64>,
}

impl Hints {
    /// For ranges of `range_blocks` blocks (at least 1).
    pub fn new(range_blocks: u64) -> Self {
        Self { range_blocks: range_blocks.max(1), ranges: FxHashMap::default(), blocks: FxHashSet::default() }
    }

    /// Those of a trace, up to its end or to damage, or up to `limit` accesses. `watch` is told every so often how many
    /// there have been; `None` if it says to stop.
    pub fn of(
        range_blocks: u64,
        trace: impl Iterator<Item = Result<Reference, undercroft_trace::Error>>,
        limit: Option<u64>,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Option<Self> {
        let mut hints = Self::new(range_blocks);
        look_through(trace, limit, watch, |r| hints.see(r)).then_some(hints)
    }

    /// The range of a block.
    #[inline]
    pub fn range_of(&self, block: u64) -> u64 {
        block / self.range_blocks
    }

    /// Counts an access.
    #[inline]
    pub fn see(&mut self, reference: Reference) {
        let range = self.ranges.entry(reference.block / self.range_blocks).or_default();
        let ends = range.blocks > 1 && reference.block < range.last;
        range.in_order += u64::from(ends || reference.block == range.last.wrapping_add(1));
        range.accesses += 1;
        range.last = reference.block;
        range.blocks += u64::from(self.blocks.insert(reference.block));
    }

    /// Accesses seen.
    pub fn accesses(&self) -> u64 {
        self.ranges.values().map(|r| r.accesses).sum()
    }

    /// The ranges whose blocks come back, those with most accesses for each block first: keeping a block of them gains
    /// that much.
    pub fn by_gain(&self) -> Vec<(u64, RangeHint)> {
        let mut ranges: Vec<_> =
            self.ranges.iter().filter(|(_, r)| r.pattern() != Pattern::Once).map(|(&n, &r)| (n, r)).collect();
        let gain = |r: &RangeHint| u128::from(r.accesses);
        ranges.sort_unstable_by(|(m, a), (n, b)| {
            (gain(b) * u128::from(a.blocks)).cmp(&(gain(a) * u128::from(b.blocks))).then(m.cmp(n))
        });
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: impl Iterator<Item = u64>) -> Hints {
        Hints::of(100, blocks.map(|b| Ok(Reference::read(b))), None, &mut |_| Go::On).expect("to the end")
    }

    fn patterns(hints: &Hints) -> Vec<Pattern> {
        let mut all: Vec<_> = hints.ranges.iter().map(|(&n, r)| (n, r.pattern())).collect();
        all.sort_unstable_by_key(|&(n, _)| n);
        all.into_iter().map(|(_, p)| p).collect()
    }

    #[test]
    fn ranges_are_told_by_how_they_are_used() {
        let once = 0..100;
        let looped = (0..4).flat_map(|_| 100..200);
        let random = (0..400u64).map(|i| 200 + i.wrapping_mul(2_654_435_769) % 97);
        let hints = of(once.chain(looped).chain(random));
        assert_eq!(patterns(&hints), [Pattern::Once, Pattern::Loop, Pattern::Random]);
        assert_eq!(hints.accesses(), 900);
        // A loop that is used more, by the block, comes first; what is used once does not come.
        assert_eq!(hints.by_gain().iter().map(|r| r.0).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_loop_over_many_ranges_is_a_loop_in_each() {
        let hints = of((0..5).flat_map(|_| 0..1000));
        assert_eq!(patterns(&hints), [Pattern::Loop; 10]);
    }
}
