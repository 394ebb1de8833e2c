//! A sample of what a region holds, by content: whether bytes that are offered were written before, and where.
//!
//! Owns a table of places, of a size fixed at the start; at least one in 64 contents is in the sample, chosen by the
//! content itself, so that of equal blocks either all are or none. Never knows whether a place still holds what it did.
//! Invariant: what is found is a hint alone.
//!
//! Source: Lillibridge et al., "Sparse Indexing: Large Scale, Inline Deduplication Using Sampling and Locality"
//! (FAST 2009): equal blocks come in runs, as files do, so a few of them lead to the others.

const WAYS: usize = 4;
/// One in so many contents is in the sample of a large region, as a power of two.
const SHIFT_MAX: u32 = 6;
/// Contents of a region that are all in the sample.
const ALL: u32 = 1 << 16;

/// Slot 0 is none.
#[derive(Clone, Copy, Default)]
struct Set {
    slots: [u32; WAYS],
    tags: [u16; WAYS],
}

/// See the head of the file.
pub(super) struct Samples {
    sets: Box<[Set]>,
    /// Contents whose lowest bits are zeroes are in the sample: so many.
    shift: u32,
    /// Whose place is taken when there is none left, in turn.
    turn: usize,
}

impl Samples {
    /// An empty sample of a region of so many slots.
    pub fn new(slots: u32) -> Self {
        let room = Self::room(slots);
        let shift = (0..SHIFT_MAX).find(|shift| slots >> shift <= room).unwrap_or(SHIFT_MAX);
        Self { sets: vec![Set::default(); room as usize / WAYS].into_boxed_slice(), shift, turn: 0 }
    }

    fn room(slots: u32) -> u32 {
        (slots >> SHIFT_MAX).max(slots.min(ALL)).next_multiple_of(WAYS as u32)
    }

    /// Bytes of the table for a region of so many slots.
    pub fn bytes_for(slots: u32) -> u64 {
        u64::from(Self::room(slots)) / WAYS as u64 * size_of::<Set>() as u64
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Set and tag of a content, if that is in the sample.
    fn place(&self, content: u64) -> Option<(usize, u16)> {
        let is_sampled = content & ((1 << self.shift) - 1) == 0;
        let set = (u128::from(content) * self.sets.len() as u128) >> 64;
        is_sampled.then_some((set as usize, (content >> SHIFT_MAX) as u16))
    }

    /// Where bytes were written for which this number stands, as far as is known.
    #[inline]
    pub fn find(&self, content: u64) -> Option<u32> {
        let (set, tag) = self.place(content)?;
        let set = &self.sets[set];
        (0..WAYS).find(|way| set.slots[*way] != 0 && set.tags[*way] == tag).map(|way| set.slots[way])
    }

    /// Bytes for which this number stands were written to a slot.
    #[inline]
    pub fn written(&mut self, content: u64, slot: u32) {
        let Some((set, tag)) = self.place(content) else { return };
        let set = &mut self.sets[set];
        let same = (0..WAYS).find(|way| set.tags[*way] == tag && set.slots[*way] != 0);
        let way = same.or_else(|| (0..WAYS).find(|way| set.slots[*way] == 0)).unwrap_or_else(|| {
            self.turn = (self.turn + 1) % WAYS;
            self.turn
        });
        (set.slots[way], set.tags[way]) = (slot, tag);
    }
}

#[cfg(test)]
mod tests {
    use super::super::permutation::mix;
    use super::*;

    #[test]
    fn what_was_written_is_found_where_it_was_written_last() {
        // All contents of a small region; of a large one, one in 64.
        for (slots, written, at_least) in [(1 << 12, 1000, 950), (1 << 16, 40_000, 37_000), (1 << 26, 640_000, 9000)] {
            let mut samples = Samples::new(slots);
            (1..=written).for_each(|n| samples.written(mix(n), n as u32));
            let found = (1..=written).filter(|n| samples.find(mix(*n)) == Some(*n as u32)).count();
            assert!(found >= at_least, "{found} of {written}");
            assert!((written + 1..2 * written).filter(|n| samples.find(mix(*n)).is_some()).count() < 50);
            (1..=written).for_each(|n| samples.written(mix(n), 9));
            assert!((1..=written).filter_map(|n| samples.find(mix(n))).all(|slot| slot == 9));
            assert_eq!(samples.bytes() as u64, Samples::bytes_for(slots));
        }
    }
}
