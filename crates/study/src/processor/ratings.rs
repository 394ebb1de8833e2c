//! Replacement by probability (section 5.3 of the thesis): which line of a set goes, by how often its block was asked
//! for in a first part of the trace and since.
//!
//! Owns the counts of all blocks. Never keeps a line. Invariant: within the window, and wherever the rule does not tell
//! blocks apart, the line that was used least recently goes. `undercroft_engine::probability`, which knows neither
//! locks nor a victim buffer, does the same, and the tests hold both to that.

use rustc_hash::FxHashMap;
use undercroft_engine::probability::{ProbabilityRule, WINDOW_PARTS, halves};

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// References in the window, since then, and in both, halved now and then.
    window: u32,
    since: u32,
    aged: u32,
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub(super) struct Ratings {
    rule: ProbabilityRule,
    /// References of the window, and how many lines the cache has.
    window: u64,
    lines: u32,
    /// References so far.
    now: u64,
    asked: FxHashMap<u64, Asked>,
}

impl Ratings {
    /// For a trace of so many references: the first tenth of them are the window.
    pub fn new(rule: ProbabilityRule, references: u64, lines: u32) -> Self {
        Self { rule, window: references / WINDOW_PARTS, lines, now: 0, asked: FxHashMap::default() }
    }

    /// A reference, before it is looked up.
    #[inline]
    pub fn note(&mut self, block: u64) {
        let past = self.now.saturating_sub(self.window);
        if self.now > self.window && halves(past, self.lines) {
            self.asked.values_mut().for_each(|asked| asked.aged /= 2);
        }
        let asked = self.asked.entry(block).or_default();
        if self.now < self.window {
            asked.window += 1
        } else {
            asked.since += 1
        }
        asked.aged = asked.aged.saturating_add(1);
        self.now += 1;
    }

    /// Which of these blocks goes, by its place; they come by their last use, the latest first. `None` for none.
    pub fn first_to_go(&self, blocks: impl DoubleEndedIterator<Item = (usize, u64)>) -> Option<usize> {
        let rated = blocks.rev().map(|(place, block)| (place, self.rating(block)));
        rated.reduce(|least, next| if next.1 < least.1 { next } else { least }).map(|(place, _)| place)
    }

    fn rating(&self, block: u64) -> f64 {
        // The reference under way is counted already.
        if self.now <= self.window {
            return 0.0;
        }
        let asked = self.asked.get(&block).copied().unwrap_or_default();
        let share = |count: u32, of: u64| f64::from(count) / of.max(1) as f64;
        match self.rule {
            ProbabilityRule::Literal => {
                (share(asked.since, self.now - self.window) - share(asked.window, self.window)).min(0.0)
            }
            ProbabilityRule::Aged => f64::from(asked.aged),
        }
    }
}
