//! Replacement by probability: blocks are rated by how often they were asked for in a first part of the trace, against
//! how often they are asked for since.
//!
//! Owns a set-associative cache, its history window, and two rules (docs/decisions/0118 says how the source was read).
//! Not a policy of an index: the window is a part of a trace whose length is known, and the cache has sets. Never reads
//! the future. Invariant: within the window, and wherever a rule does not tell blocks apart, replacement is LRU.

mod whole;

use std::collections::HashMap;
pub use whole::WholeCache;

/// Which block of a set goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbabilityRule {
    /// That with the most negative P_c - P_h, where P_h is its share of the accesses in the window and P_c that of the
    /// accesses since; LRU where no block is below 0.
    Literal,
    /// That with the fewest accesses since the window began, all counts being halved after the first 256 accesses for
    /// each line past the window and after every 128 from then on.
    Aged,
}

impl ProbabilityRule {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Literal => "probability-literal",
            Self::Aged => "probability-aged",
        }
    }
}

/// The shape of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in all; a multiple of `ways`.
    pub lines: u32,
    /// Blocks of a set; a block's set is its number modulo the number of sets.
    pub ways: u32,
}

/// The window is the first of so many parts of the trace.
pub const WINDOW_PARTS: u64 = 10;
const FIRST_HALVING_PER_LINE: u64 = 256;
const HALVING_PER_LINE: u64 = 128;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    window: u32,
    since: u32,
    /// Accesses since, under the aged rule with those in the window; halved now and then.
    aged: u32,
    last: u64,
}

impl Counts {
    /// With one access more, in the window or past it.
    fn after(self, now: u64, in_window: bool) -> Self {
        Self {
            window: self.window + u32::from(in_window),
            since: self.since + u32::from(!in_window),
            aged: self.aged.saturating_add(1),
            last: now,
        }
    }
}

/// What of a set goes first is least; 0 at most under the literal rule.
fn rating(rule: ProbabilityRule, c: &Counts, now: u64, window: u64) -> f64 {
    if now < window {
        return 0.0;
    }
    match rule {
        ProbabilityRule::Literal => {
            let share = |count: u32, of: u64| f64::from(count) / of.max(1) as f64;
            (share(c.since, now - window + 1) - share(c.window, window)).min(0.0)
        }
        ProbabilityRule::Aged => f64::from(c.aged),
    }
}

/// The misses over `blocks`, from cold, with the first tenth of them as the window. `None` for a shape that is none.
pub fn misses(blocks: &[u64], shape: Shape, rule: ProbabilityRule) -> Option<u64> {
    let Shape { lines, ways } = shape;
    if lines == 0 || ways == 0 || lines % ways != 0 {
        return None;
    }
    let (sets, ways) = (u64::from(lines / ways), ways as usize);
    let window = blocks.len() / WINDOW_PARTS as usize;
    let mut cached: Vec<Vec<u64>> = vec![Vec::with_capacity(ways); sets as usize];
    let mut counts: HashMap<u64, Counts> = HashMap::new();
    let mut misses = 0;
    for (now, &block) in blocks.iter().enumerate() {
        let past = (now as u64).saturating_sub(window as u64);
        if now > window && halves(past, lines) {
            counts.values_mut().for_each(|c| c.aged /= 2);
        }
        let known = counts.entry(block).or_default();
        *known = known.after(now as u64, now < window);
        let set = &mut cached[(block % sets) as usize];
        if set.contains(&block) {
            continue;
        }
        misses += 1;
        if set.len() < ways {
            set.push(block);
            continue;
        }
        let by_rule = |at: &usize| {
            let c = counts[&set[*at]];
            (rating(rule, &c, now as u64, window as u64), c.last)
        };
        let victim = (0..ways).min_by(|a, b| {
            let ((x, last_x), (y, last_y)) = (by_rule(a), by_rule(b));
            x.total_cmp(&y).then(last_x.cmp(&last_y))
        });
        set[victim.expect("a set has ways")] = block;
    }
    Some(misses)
}

/// Whether the aged rule halves counts before the access that comes `past` accesses after the window, in a cache of so
/// many lines.
pub fn halves(past: u64, lines: u32) -> bool {
    let (first, each) = (FIRST_HALVING_PER_LINE * u64::from(lines), HALVING_PER_LINE * u64::from(lines));
    past >= first && (past - first).is_multiple_of(each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PolicyKind, study::replay::replay};

    const SHAPE: Shape = Shape { lines: 4, ways: 4 };

    #[test]
    fn a_shape_needs_whole_sets() {
        for (lines, ways) in [(0, 4), (4, 0), (6, 4)] {
            assert_eq!(misses(&[1, 2], Shape { lines, ways }, ProbabilityRule::Literal), None);
        }
        assert_eq!(misses(&[], SHAPE, ProbabilityRule::Aged), Some(0));
    }

    /// With nothing in the window that comes again, no difference is below 0: what is left is LRU.
    #[test]
    fn blocks_that_the_window_does_not_know_are_replaced_by_lru() {
        let blocks: Vec<u64> = (100..200u64).chain((0..900).map(|i| i * i % 11)).collect();
        assert_eq!(misses(&blocks, SHAPE, ProbabilityRule::Literal), Some(replay(PolicyKind::Lru, 4, &blocks)));
    }

    /// A block that was popular in the window and is not any more goes first under the literal rule; the aged one keeps
    /// it, by its count, until that was halved often enough.
    #[test]
    fn the_rules_disagree_about_what_was_popular_in_the_window() {
        // the window: block 0, 100 times; then 1, 2 and 3, and 4 for which one must go, and 0 again
        let mut blocks = vec![0; 100];
        blocks.extend([1, 2, 3, 4, 0]);
        blocks.extend([4; 895]);
        assert_eq!(misses(&blocks, SHAPE, ProbabilityRule::Literal), Some(6), "0 went for 4 and came back");
        assert_eq!(misses(&blocks, SHAPE, ProbabilityRule::Aged), Some(5), "0 stayed");
    }

    #[test]
    fn counts_are_halved_when_the_rule_says() {
        let at: Vec<u64> = (0..3000).filter(|&past| halves(past, 4)).collect();
        assert_eq!(at, [1024, 1536, 2048, 2560]);
    }

    #[test]
    fn a_set_does_not_lend_to_another() {
        // blocks of one set of two in a loop of three over two ways: all miss; the other set's room is of no use
        let blocks: Vec<u64> = (0..300).map(|i| 2 * (i % 3)).collect();
        assert_eq!(
            misses(&blocks, Shape { lines: 4, ways: 2 }, ProbabilityRule::Literal),
            Some(misses(&blocks, Shape { lines: 2, ways: 2 }, ProbabilityRule::Literal).unwrap())
        );
    }
}
