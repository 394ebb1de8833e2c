//! Numbers of blocks that are too large for what a trace is run through.
//!
//! Owns the numbers that stand for them. Never changes a smaller one. Invariant: a block has the same number each time,
//! and no other block has it.

use crate::sim::reference::Reference;
use rustc_hash::FxHashMap;

/// Gives blocks from a number on other numbers from there on, in the order in which they come.
pub(crate) struct Near {
    far: u64,
    numbers: FxHashMap<u64, u64>,
}

impl Near {
    /// Numbers below `far` stay as they are.
    pub fn below(far: u64) -> Self {
        Self { far, numbers: FxHashMap::default() }
    }

    /// The access, with the number that its block has here.
    #[inline]
    pub fn of(&mut self, reference: Reference) -> Reference {
        if reference.block < self.far {
            return reference;
        }
        let next = self.far + self.numbers.len() as u64;
        Reference { block: *self.numbers.entry(reference.block).or_insert(next), ..reference }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_far_blocks_have_other_numbers_and_keep_them() {
        let mut near = Near::below(100);
        let blocks = [3, u64::MAX, 99, 100, u64::MAX, 100].map(|block| near.of(Reference::write(block)));
        assert_eq!(blocks.map(|r| r.block), [3, 100, 99, 101, 100, 101]);
        assert!(blocks.iter().all(|r| r.write));
    }
}
