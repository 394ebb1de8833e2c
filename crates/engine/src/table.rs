//! A hash table from block numbers to slots, over an array of keys that somebody else owns.
//!
//! Owns cells of 4 bytes, two or one and a half for each slot, in linear probing with deletion by shifting back (no tombstones).
//! Never stores a key: a cell is a slot number and, in the bits that the number leaves free, a tag of the key's hash,
//! so that a probe reads a key (a cache miss) almost only where it is the one sought.
//! Invariant: the cells are never fuller than the table was made for, and each full cell can be reached from its key's home without
//! crossing an empty one.

use std::hash::{BuildHasher, RandomState};

/// No cell content: slots are smaller than `u32::MAX` in the bits they take, so no full cell looks like this.
const EMPTY: u32 = u32::MAX;

/// The secret of the hash functions of one index. Guests choose block numbers; who knows the key can make them collide.
#[derive(Clone, Copy, Debug)]
pub struct HashKey([u64; 3]);

impl HashKey {
    /// A key made from `seed`; the same on every machine, for simulation.
    pub fn from_seed(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            // splitmix64 (Steele, Lea and Flood, OOPSLA 2014)
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        };
        Self([next(), next() | 1, next()])
    }

    /// A key that nobody can guess, for a daemon that serves guests it does not trust.
    pub fn random() -> Self {
        Self::from_seed(RandomState::new().hash_one(0u64))
    }

    /// The hash of a block number: two folded multiplications with secret factors (the mixing step of wyhash).
    #[inline]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64) ^ ((product >> 64) as u64)
        };
        fold(fold(key ^ self.0[0], self.0[1]) ^ self.0[2], 0xE703_7ED1_A0B4_28DB)
    }
}

/// How full a table may become.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// Two cells per slot, 8 bytes: for look-ups that mostly succeed and must be fast.
    Half,
    /// Three cells for two slots, 6 bytes: for ghosts, which are asked on misses only.
    TwoThirds,
}

/// See the head of the file. The callers pass the array of keys, indexed by slot.
#[derive(Debug)]
pub(crate) struct Table {
    cells: Vec<u32>,
    /// The bits of a cell that are the slot; the others are the tag.
    slot_mask: u32,
    tag_shift: u32,
    key: HashKey,
    fill: Fill,
}

impl Table {
    /// An empty table for slots `0..slots`.
    pub fn new(slots: u32, fill: Fill, key: HashKey) -> Self {
        let cells = match fill {
            Fill::Half => slots as usize * 2,
            Fill::TwoThirds => slots as usize * 3 / 2,
        };
        let cells = cells.max(slots as usize + 1);
        let bits = u32::BITS - slots.leading_zeros();
        Self {
            cells: vec![EMPTY; cells],
            slot_mask: u32::MAX.checked_shr(u32::BITS - bits).unwrap_or(0),
            tag_shift: bits,
            key,
            fill,
        }
    }

    /// An empty table of the same kind for another number of slots.
    pub fn resized(&self, slots: u32) -> Self {
        Self::new(slots, self.fill, self.key)
    }

    #[inline]
    pub fn hash(&self, key: u64) -> u64 {
        self.key.hash(key)
    }

    pub fn hash_key(&self) -> HashKey {
        self.key
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.cells.len() as u64) >> 32) as usize
    }

    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        // in 64 bits, where shifting by 32 is allowed: no tag is left then
        (u64::from(hash as u32) << self.tag_shift) as u32
    }

    #[inline]
    fn after(&self, cell: usize) -> usize {
        if cell + 1 == self.cells.len() { 0 } else { cell + 1 }
    }

    /// The slot of `key`, whose hash is `hash`.
    #[inline]
    pub fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        self.find_cell(key, hash, keys).map(|(_, slot)| slot)
    }

    #[inline]
    fn find_cell(&self, key: u64, hash: u64, keys: &[u64]) -> Option<(usize, u32)> {
        let tag = self.tag(hash);
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            let slot = cell & self.slot_mask;
            if cell & !self.slot_mask == tag && keys[slot as usize] == key {
                return Some((at, slot));
            }
            at = self.after(at);
        }
    }

    /// Adds a key that is absent.
    #[inline]
    pub fn insert(&mut self, hash: u64, slot: u32) {
        debug_assert!(slot & !self.slot_mask == 0);
        let mut at = self.home(hash);
        while self.cells[at] != EMPTY {
            at = self.after(at);
        }
        self.cells[at] = self.tag(hash) | slot;
    }

    /// Takes `key` out; `keys` must still hold it and all others.
    #[inline]
    pub fn remove(&mut self, key: u64, keys: &[u64]) -> Option<u32> {
        let (mut hole, slot) = self.find_cell(key, self.hash(key), keys)?;
        let cells = self.cells.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + cells - from };
        let mut at = hole;
        loop {
            at = self.after(at);
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let home = self.home(self.hash(keys[(cell & self.slot_mask) as usize]));
            if distance(home, at) >= distance(hole, at) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = EMPTY;
        Some(slot)
    }

    /// Replaces the slot of a key that is present.
    pub fn relocate(&mut self, key: u64, keys: &[u64], to: u32) {
        let hash = self.hash(key);
        let (cell, _) = self.find_cell(key, hash, keys).expect("a key that moves is in the table");
        self.cells[cell] = self.tag(hash) | to;
    }

    /// Every slot in the table, in no particular order.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.cells.iter().filter(|&&cell| cell != EMPTY).map(|&cell| cell & self.slot_mask)
    }

    pub fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }

    /// Panics unless the table holds exactly `len` keys and each can be found.
    pub fn check(&self, keys: &[u64], len: usize) {
        assert!(len < self.cells.len(), "the table is full: a search for an absent key would not end");
        let mut seen = 0;
        for slot in self.slots() {
            let key = keys[slot as usize];
            assert_eq!(self.find(key, self.hash(key), keys), Some(slot), "key {key} cannot be reached");
            seen += 1;
        }
        assert_eq!(seen, len, "keys in the table");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a BTreeMap; few homes (tables are small), so that clusters form, wrap round and shift back.
        #[test]
        fn behaves_like_a_map(seed: u64, dense: bool, ops in prop::collection::vec((0u64..24, any::<bool>()), 1..200)) {
            let mut table = Table::new(12, if dense { Fill::TwoThirds } else { Fill::Half }, HashKey::from_seed(seed));
            let mut keys = vec![0; 12];
            let mut free: Vec<u32> = (0..12).collect();
            let mut model = BTreeMap::new();
            for (key, add) in ops {
                let hash = table.hash(key);
                prop_assert_eq!(table.find(key, hash, &keys), model.get(&key).copied());
                if add && !model.contains_key(&key) {
                    if let Some(slot) = free.pop() {
                        keys[slot as usize] = key;
                        table.insert(hash, slot);
                        model.insert(key, slot);
                    }
                } else if !add {
                    let slot = table.remove(key, &keys);
                    prop_assert_eq!(slot, model.remove(&key));
                    free.extend(slot);
                }
                table.check(&keys, model.len());
            }
        }
    }

    #[test]
    fn slots_fit_beside_their_tags_at_every_size() {
        for slots in [0, 1, 2, 3, 4, 255, 256, 257] {
            let mut table = Table::new(slots, Fill::TwoThirds, HashKey::from_seed(1));
            let keys: Vec<u64> = (0..u64::from(slots)).map(|k| k << 32).collect();
            for slot in 0..slots {
                table.insert(table.hash(keys[slot as usize]), slot);
            }
            table.check(&keys, slots as usize);
        }
    }

    #[test]
    fn neighbours_and_strides_spread_evenly() {
        for stride in [1, 8, 64, 1 << 20, 1 << 40] {
            let key = HashKey::from_seed(7);
            let mut buckets = vec![0u32; 1024];
            for i in 0..102_400u64 {
                buckets[(key.hash(i * stride) >> 54) as usize] += 1;
            }
            // 100 expected with standard deviation 10: six of them
            assert!(buckets.iter().all(|&n| (40..=160).contains(&n)), "stride {stride}: {buckets:?}");
        }
    }

    #[test]
    fn keys_differ_by_seed() {
        let same = (0..1000).filter(|&k| HashKey::from_seed(1).hash(k) == HashKey::from_seed(2).hash(k)).count();
        assert_eq!(same, 0);
    }
}
