//! Hints that a program could give of its blocks: how each range of them is used.
//!
//! Owns the ranges and their counts, taken from the trace itself before it is simulated: of the whole trace, or anew
//! after every so many accesses. Never decides where a block is kept. Invariant: the counts of all ranges of all
//! windows add up to the accesses seen, and every window but the last is as long as the others.
//!
//! Stands for the hints of Karma (Yadgar, Factor and Schuster, FAST 2007), which come from a database's query plans,
//! again for each query. The hints of a window are taken from the window itself, so they know its future.

use crate::sim::reference::{Reference, look_through};
use crate::sim::run::Go;
use rustc_hash::{FxHashMap, FxHashSet};
use std::num::NonZeroU64;

/// How a range is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeUse {
    /// Its blocks are not used again, or hardly.
    Once,
    /// Its blocks are used in order, again and again.
    Loop,
    /// Anything else.
    Random,
}

/// What is known of one range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeHint {
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
    pub(crate) fn pattern(&self) -> RangeUse {
        if self.accesses * 2 < self.blocks * 3 {
            RangeUse::Once
        } else if self.in_order * 4 >= self.accesses * 3 {
            RangeUse::Loop
        } else {
            RangeUse::Random
        }
    }
}

/// What is known of the ranges in one window of a trace.
#[derive(Clone, Debug, Default)]
pub struct HintWindow {
    ranges: FxHashMap<u64, RangeHint>,
}

impl HintWindow {
    /// Accesses in it.
    pub fn accesses(&self) -> u64 {
        self.ranges.values().map(|r| r.accesses).sum()
    }

    /// The ranges whose blocks come back, those with most accesses for each block first: keeping a block of them gains
    /// that much.
    pub(crate) fn by_gain(&self) -> Vec<(u64, RangeHint)> {
        let mut ranges: Vec<_> =
            self.ranges.iter().filter(|(_, r)| r.pattern() != RangeUse::Once).map(|(&n, &r)| (n, r)).collect();
        let gain = |r: &RangeHint| u128::from(r.accesses);
        ranges.sort_unstable_by(|(m, a), (n, b)| {
            (gain(b) * u128::from(a.blocks)).cmp(&(gain(a) * u128::from(b.blocks))).then(m.cmp(n))
        });
        ranges
    }
}

/// What is known of each range of blocks, for each window of a trace.
#[derive(Clone, Debug)]
pub struct Hints {
    range_blocks: u64,
    /// Accesses of a window; `None`: the whole trace is one.
    every: Option<NonZeroU64>,
    windows: Vec<HintWindow>,
    /// Accesses of the last window.
    seen: u64,
    /// Distinct blocks of the last window.
    blocks: FxHashSet<u64>,
}

impl Hints {
    /// For ranges of `range_blocks` blocks (at least 1), anew after `every` accesses; without, of the whole trace.
    pub fn new(range_blocks: u64, every: Option<NonZeroU64>) -> Self {
        let (range_blocks, windows) = (range_blocks.max(1), vec![HintWindow::default()]);
        Self { range_blocks, every, windows, seen: 0, blocks: FxHashSet::default() }
    }

    /// Those of a trace, up to its end or to damage, or up to `limit` accesses. `watch` is told every so often how many
    /// there have been; `None` if it says to stop.
    pub fn of(
        range_blocks: u64,
        every: Option<NonZeroU64>,
        trace: impl Iterator<Item = Result<Reference, undercroft_trace::TraceError>>,
        limit: Option<u64>,
        watch: &mut dyn FnMut(u64) -> Go,
    ) -> Option<Self> {
        let mut hints = Self::new(range_blocks, every);
        look_through(trace, limit, watch, |r| hints.see(r)).then_some(hints)
    }

    /// The range of a block.
    #[inline]
    pub(crate) fn range_of(&self, block: u64) -> u64 {
        block / self.range_blocks
    }

    /// Counts an access.
    #[inline]
    pub fn see(&mut self, reference: Reference) {
        if self.every.is_some_and(|every| self.seen == every.get()) {
            self.windows.push(HintWindow::default());
            self.seen = 0;
            self.blocks.clear();
        }
        self.seen += 1;
        let window = self.windows.last_mut().expect("there is always one");
        let range = window.ranges.entry(reference.block / self.range_blocks).or_default();
        let ends = range.blocks > 1 && reference.block < range.last;
        range.in_order += u64::from(ends || reference.block == range.last.wrapping_add(1));
        range.accesses += 1;
        range.last = reference.block;
        range.blocks += u64::from(self.blocks.insert(reference.block));
    }

    /// Accesses seen, in all windows.
    pub fn accesses(&self) -> u64 {
        self.windows.iter().map(HintWindow::accesses).sum()
    }

    /// The windows, one after the other; at least one.
    pub fn windows(&self) -> &[HintWindow] {
        &self.windows
    }

    /// What is known from access `at` on (from 0), if that begins a window.
    #[inline]
    pub(super) fn given_at(&self, at: u64) -> Option<&HintWindow> {
        let every = self.every?.get();
        if at.is_multiple_of(every) { self.windows.get(usize::try_from(at / every).ok()?) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: impl Iterator<Item = u64>) -> Hints {
        Hints::of(100, None, blocks.map(|b| Ok(Reference::read(b))), None, &mut |_| Go::On).expect("to the end")
    }

    fn patterns(hints: &Hints) -> Vec<RangeUse> {
        let [window] = hints.windows() else { panic!("one window") };
        let mut all: Vec<_> = window.ranges.iter().map(|(&n, r)| (n, r.pattern())).collect();
        all.sort_unstable_by_key(|&(n, _)| n);
        all.into_iter().map(|(_, p)| p).collect()
    }

    #[test]
    fn ranges_are_told_by_how_they_are_used() {
        let once = 0..100;
        let looped = (0..4).flat_map(|_| 100..200);
        let random = (0..400u64).map(|i| 200 + i.wrapping_mul(2_654_435_769) % 97);
        let hints = of(once.chain(looped).chain(random));
        assert_eq!(patterns(&hints), [RangeUse::Once, RangeUse::Loop, RangeUse::Random]);
        assert_eq!(hints.accesses(), 900);
        // A loop that is used more, by the block, comes first; what is used once does not come.
        assert_eq!(hints.windows()[0].by_gain().iter().map(|r| r.0).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_loop_over_many_ranges_is_a_loop_in_each() {
        let hints = of((0..5).flat_map(|_| 0..1000));
        assert_eq!(patterns(&hints), [RangeUse::Loop; 10]);
    }

    #[test]
    fn windows_are_told_of_by_themselves() {
        // The range goes round in the first ten accesses, is read once in the next ten, and at random in what is left.
        let trace = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 7, 5, 9, 5, 7, 9];
        let trace = || trace.into_iter().map(|b| Ok(Reference::read(b)));
        let given = |every| Hints::of(100, NonZeroU64::new(every), trace(), None, &mut |_| Go::On).expect("to the end");
        let hints = given(10);
        assert_eq!(hints.accesses(), 26);
        let seen: Vec<_> =
            hints.windows().iter().map(|w| (w.accesses(), w.ranges[&0].blocks, w.ranges[&0].pattern())).collect();
        assert_eq!(seen, [(10, 5, RangeUse::Loop), (10, 10, RangeUse::Once), (6, 3, RangeUse::Random)]);
        let begins: Vec<u64> = (0..60).filter(|&at| hints.given_at(at).is_some()).collect();
        assert_eq!(begins, [0, 10, 20], "what is past the windows is told nothing new");
        // No window is empty where the trace ends with one.
        assert_eq!(given(13).windows().iter().map(HintWindow::accesses).collect::<Vec<_>>(), [13, 13]);
        assert_eq!((given(26).windows().len(), given(27).windows().len(), given(0).windows().len()), (1, 1, 1));
    }
}
