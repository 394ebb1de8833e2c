//! The blocks that are locked for a whole run, and how they are chosen.
//!
//! Owns the choice. Never looks at a cache. Invariants: no set has all of its ways locked, unless the whole cache is to
//! be; there are no more than the miss table holds, unless it is.

use super::shape::Shape;
use rustc_hash::{FxHashMap, FxHashSet};

/// Entries of a miss table: as many as the thesis has for each VM.
pub const LOCKED_MAX: usize = 20;

/// Blocks that are to be locked.
#[derive(Clone, Debug, Default)]
pub struct LockSet {
    blocks: Vec<u64>,
    known: FxHashSet<u64>,
    whole: bool,
}

impl LockSet {
    /// Of blocks in their order of rank, the first `table` of them: as many as `percent` of the cache's lines are (one
    /// at least, and no more than the table holds). A block is passed over whose set would have no other way left.
    pub fn choose(ranked: impl IntoIterator<Item = u64>, shape: Shape, percent: f64, table: usize) -> Self {
        let most = wanted(shape, percent, table);
        let mut locked: FxHashMap<usize, u32> = FxHashMap::default();
        let mut set = Self::default();
        for block in ranked.into_iter().take(table) {
            if set.blocks.len() == most {
                break;
            }
            let of_set = locked.entry(shape.set_of(block)).or_insert(0);
            if *of_set + 1 < shape.ways() && set.known.insert(block) {
                *of_set += 1;
                set.blocks.push(block);
            }
        }
        set
    }

    /// All of a cache: of blocks in their order of rank, as many as there are ways in the set of each. Nothing else is
    /// cached then, however little there is to lock (section 3.4 of the thesis: "entire cache locking").
    pub fn whole(ranked: impl IntoIterator<Item = u64>, shape: Shape) -> Self {
        let mut locked: FxHashMap<usize, u32> = FxHashMap::default();
        let mut set = Self { whole: true, ..Self::default() };
        for block in ranked {
            let of_set = locked.entry(shape.set_of(block)).or_insert(0);
            if *of_set < shape.ways() && set.known.insert(block) {
                *of_set += 1;
                set.blocks.push(block);
            }
        }
        set
    }

    /// Whether it is of all of a cache.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether a block is one.
    #[inline]
    pub fn has(&self, block: u64) -> bool {
        !self.blocks.is_empty() && self.known.contains(&block)
    }

    /// All of them, by rank.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// What part of a cache they are, in percent.
    pub(super) fn percent_of(&self, shape: Shape) -> f64 {
        100.0 * self.blocks.len() as f64 / shape.lines() as f64
    }
}

/// Lines to be locked.
fn wanted(shape: Shape, percent: f64, table: usize) -> usize {
    let lines = (percent / 100.0 * shape.lines() as f64).ceil() as usize;
    lines.max(1).min(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_locked_as_the_percentage_says_and_the_table_holds() {
        let shape = Shape::new(4096, 4, 64).unwrap();
        let locked = |percent, table| LockSet::choose(0..1000, shape, percent, table).blocks().len();
        assert_eq!([locked(5.0, 20), locked(0.1, 20), locked(30.0, 20), locked(100.0, 20)], [4, 1, 20, 20]);
        assert_eq!(locked(100.0, 1000), 48, "a way of each set stays");
        let set = LockSet::choose([3, 3, 5], shape, 5.0, 20);
        assert_eq!((set.blocks(), set.has(3), set.has(4)), (&[3, 5][..], true, false));
        assert_eq!(set.percent_of(shape), 3.125);
    }

    #[test]
    fn the_whole_cache_has_each_way_of_each_set() {
        let shape = Shape::new(1024, 4, 64).unwrap();
        let set = LockSet::whole([0, 4, 8, 12, 16, 1, 0, 20], shape);
        assert_eq!((set.blocks(), set.is_whole()), (&[0, 4, 8, 12, 1][..], true));
        assert!(!LockSet::choose([0], shape, 5.0, 20).is_whole() && !LockSet::default().is_whole());
    }

    #[test]
    fn a_block_is_passed_over_whose_set_is_locked_but_for_one_way() {
        let shape = Shape::new(4096, 4, 64).unwrap();
        let ranked = [0, 16, 32, 48, 64, 1];
        assert_eq!(LockSet::choose(ranked, shape, 10.0, 20).blocks(), [0, 16, 32, 1]);
    }
}
