//! A sample of the blocks that left RAM, whether they were admitted or not: four bytes each.
//!
//! Owns the table. Never decides, never allocates after the start. Invariant: a block has one entry at most, and of
//! each set of 16 the oldest entry goes first.

/// Entries of a set, one line of a processor's cache.
const WAYS: usize = 16;
/// One entry for so many slots of the region.
const SLOTS_PER_ENTRY: u32 = 16;
const TAG_BITS: u32 = 13;
const CLASS_BITS: u32 = 3;
const STAMP_BITS: u32 = 16;
const _: () = assert!(TAG_BITS + CLASS_BITS + STAMP_BITS == 32, "an entry has four bytes");
/// No entry: no class has this number.
const NONE: u32 = ((1 << CLASS_BITS) - 1) << STAMP_BITS;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Below 7.
    pub class: u8,
    /// When the block left RAM, in the units of whoever asks.
    pub stamp: u16,
}

impl Seen {
    fn of(entry: u32) -> Option<Self> {
        let class = entry >> STAMP_BITS & ((1 << CLASS_BITS) - 1);
        (class != NONE >> STAMP_BITS).then_some(Self { class: class as u8, stamp: entry as u16 })
    }
}

/// See the head of the file. Sets have the latest entry first.
pub(super) struct Shadow {
    sets: Box<[[u32; WAYS]]>,
}

impl Shadow {
    /// For a region of so many slots.
    pub fn new(slots: u32) -> Self {
        let sets = (slots / SLOTS_PER_ENTRY / WAYS as u32).max(1);
        Self { sets: vec![[NONE; WAYS]; sets as usize].into_boxed_slice() }
    }

    /// Entries that it has room for.
    pub fn room(&self) -> u64 {
        (self.sets.len() * WAYS) as u64
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Set and tag of a hash: other bits of it than those below the 31st.
    fn place(&mut self, hash: u64) -> (&mut [u32; WAYS], u32) {
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        (&mut self.sets[set as usize], (hash >> 31) as u32 & ((1 << TAG_BITS) - 1))
    }

    /// Takes the entry of a block out.
    pub fn take(&mut self, hash: u64) -> Option<Seen> {
        let (set, tag) = self.place(hash);
        let at = set.iter().position(|e| e >> (CLASS_BITS + STAMP_BITS) == tag && Seen::of(*e).is_some())?;
        let entry = set[at];
        set[at..].rotate_left(1);
        set[WAYS - 1] = NONE;
        Seen::of(entry)
    }

    /// Puts a block in that has no entry. The one that had to go for it, if one had.
    pub fn put(&mut self, hash: u64, seen: Seen) -> Option<Seen> {
        let (set, tag) = self.place(hash);
        let gone = Seen::of(set[WAYS - 1]);
        set.rotate_right(1);
        set[0] = tag << (CLASS_BITS + STAMP_BITS) | u32::from(seen.class) << STAMP_BITS | u32::from(seen.stamp);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::super::permutation::mix;
    use super::*;

    #[test]
    fn what_was_put_in_last_is_found_once_and_the_oldest_goes() {
        let mut shadow = Shadow::new(1 << 16);
        assert_eq!((shadow.room(), shadow.bytes()), (4096, 4 * 4096));
        let seen = |n: u64| Seen { class: (n % 7) as u8, stamp: n as u16 };
        let gone = (0..20_000).filter_map(|n| shadow.put(mix(n), seen(n))).count();
        assert_eq!(gone, 20_000 - 4096);
        let found = (0..20_000u64).rev().filter(|n| shadow.take(mix(*n)) == Some(seen(*n))).count();
        assert!((4000..=4096).contains(&found), "{found}");
        assert!((0..20_000).all(|n| shadow.take(mix(n)).is_none()));
    }
}
