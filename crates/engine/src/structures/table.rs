//! A hash table from block numbers to slots, over an array of keys that the caller owns.
//!
//! Owns cells of 4 bytes, two or one and a half for each slot, in linear probing with deletion by shifting back (no
//! tombstones). Never stores a key: a cell is a slot number and, in the bits that the number leaves free, the cell's
//! distance from its key's home (4 bits) and a tag of the key's hash (the others). So a look-up reads a key, which
//! costs a cache miss, almost only where it is the one sought, and a deletion almost never. Invariant: the cells are
//! never fuller than the table was made for, and each full cell can be reached from its key's home without crossing an
//! empty one.
//!
//! Homes are in the order of hashes, so a table is made larger or smaller where it is, in steps: see `rehash`.

mod rehash;

use crate::structures::array::{Array, Release};
use crate::structures::slots::Map;
use rehash::Rehash;
use std::hash::{BuildHasher, RandomState};

/// No cell content: slots are smaller than `u32::MAX` in the bits they take, so no full cell looks like this.
const EMPTY: u32 = u32::MAX;

/// The secret of the hash functions of one index. Guests choose block numbers; a guest that knows
/// the key can make them collide.
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

    /// A key that cannot be guessed, for a daemon that serves guests it does not trust.
    pub fn random() -> Self {
        Self::from_seed(RandomState::new().hash_one(0u64))
    }

    /// Another key, unrelated for all practical purposes, for a structure beside the one that uses this.
    pub fn derived(&self) -> Self {
        Self::from_seed(self.0[0] ^ self.0[2].rotate_left(32))
    }

    /// The hash of a block number: two folded multiplications with secret factors (the mixing step of wyhash).
    #[inline]
    pub fn hash(&self, key: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product as u64) ^ ((product >> 64) as u64)
        };
        fold(fold(key ^ self.0[0], self.0[1]) ^ self.0[2], 0xE703_7ED1_A0B4_28DB)
    }
}

/// The seed of keys where the caller gives none: a fixed one, so that simulations repeat.
pub(crate) const SIMULATION_SEED: u64 = 0;

/// Bits of a cell for the distance from home; the largest number there means "so far or farther".
const DISTANCE_BITS: u32 = 4;

/// How full a table may become.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// Two cells per slot, 8 bytes: for look-ups that mostly succeed and must be fast.
    Half,
    /// Three cells for two slots, 6 bytes: for ghosts, which are asked on misses only.
    TwoThirds,
}

/// How a cell tells its slot, its distance from home and its tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The bits of a cell that are the slot.
    pub(crate) slot_mask: u32,
    /// Where the distance begins, above the slot.
    pub(crate) distance_shift: u32,
    /// The largest distance told exactly is one less; 0 where the slot leaves no bits.
    pub(crate) far: u32,
    /// The bits that are the tag.
    pub(crate) tag_mask: u32,
}

impl Layout {
    /// That of a table for slots `0..slots`.
    pub(crate) fn new(slots: u32) -> Self {
        let slot_bits = u32::BITS - slots.leading_zeros();
        let distance_bits = DISTANCE_BITS.min(u32::BITS - slot_bits);
        let ones = |bits: u32| u32::MAX.checked_shr(u32::BITS - bits).unwrap_or(0);
        Self {
            slot_mask: ones(slot_bits),
            distance_shift: slot_bits.min(u32::BITS - 1),
            far: ones(distance_bits),
            tag_mask: !ones(slot_bits + distance_bits),
        }
    }

    /// The content of a cell `distance` cells from its key's home.
    #[inline]
    pub(crate) fn cell(&self, slot: u32, hash: u64, distance: usize) -> u32 {
        // without bits for it the distance is 0 and adds nothing
        let distance = distance.min(self.far as usize) as u32;
        hash as u32 & self.tag_mask | distance << self.distance_shift | slot
    }
}

/// Where among `cells` cells a hash is at home.
#[inline]
pub(in crate::structures) fn home_among(hash: u64, cells: usize) -> usize {
    (((hash >> 32) * cells as u64) >> 32) as usize
}

/// See the head of the file. The callers pass the array of keys, indexed by slot.
#[derive(Debug)]
pub(crate) struct Table {
    cells: Array<u32>,
    layout: Layout,
    /// While the table changes its size: every call goes by this then.
    rehash: Option<Box<Rehash>>,
    key: HashKey,
    fill: Fill,
}

/// Cells of a table for slots `0..slots`.
fn cells_for(slots: usize, fill: Fill) -> usize {
    let cells = match fill {
        Fill::Half => slots * 2,
        Fill::TwoThirds => slots * 3 / 2,
    };
    cells.max(slots + 1)
}

impl Table {
    /// An empty table for slots `0..slots`, of which there may be `most` in time.
    pub fn new(slots: u32, most: u32, fill: Fill, key: HashKey) -> Self {
        let most = if most > 0 { cells_for(most as usize, fill) } else { 0 };
        Self::with_cells(cells_for(slots as usize, fill), most, slots, fill, key)
    }

    /// A table with cells as they are laid out for slots `0..slots`.
    fn with_cells(cells: usize, most: usize, slots: u32, fill: Fill, key: HashKey) -> Self {
        Self { cells: Array::new(cells, most, EMPTY), layout: Layout::new(slots), rehash: None, key, fill }
    }

    #[inline]
    pub fn hash(&self, key: u64) -> u64 {
        self.key.hash(key)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        home_among(hash, self.cells.len())
    }

    #[inline]
    fn after(&self, cell: usize) -> usize {
        if cell + 1 == self.cells.len() { 0 } else { cell + 1 }
    }

    /// How many cells `to` comes after `from`.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells.len() - from }
    }

    /// How far the key of the full cell `at` is from its home.
    #[inline]
    fn distance_from_home(&self, at: usize, keys: &[u64]) -> usize {
        let cell = self.cells[at];
        let told = cell >> self.layout.distance_shift & self.layout.far;
        if told < self.layout.far {
            return told as usize;
        }
        self.distance(self.home(self.hash(keys[(cell & self.layout.slot_mask) as usize])), at)
    }

    /// The slot of `key`, whose hash is `hash`.
    #[inline]
    pub fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        match &self.rehash {
            None => self.find_still(key, hash, keys),
            Some(rehash) => rehash.find(&self.cells, key, hash, keys),
        }
    }

    /// The same in a table that does not change its size.
    #[inline]
    pub fn find_still(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        debug_assert!(self.rehash.is_none(), "a table that changes its size is asked as if it did not");
        self.find_cell(key, hash, keys).map(|(_, slot)| slot)
    }

    #[inline]
    fn find_cell(&self, key: u64, hash: u64, keys: &[u64]) -> Option<(usize, u32)> {
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            let slot = cell & self.layout.slot_mask;
            if (cell ^ hash as u32) & self.layout.tag_mask == 0 && keys[slot as usize] == key {
                return Some((at, slot));
            }
            at = self.after(at);
        }
    }

    /// Adds a key that is absent.
    #[inline]
    pub fn insert(&mut self, hash: u64, slot: u32) {
        if let Some(rehash) = &self.rehash {
            return rehash.insert(&mut self.cells, hash, slot);
        }
        debug_assert!(slot & !self.layout.slot_mask == 0);
        let mut at = self.home(hash);
        let mut distance = 0;
        while self.cells[at] != EMPTY {
            at = self.after(at);
            distance += 1;
        }
        self.cells[at] = self.layout.cell(slot, hash, distance);
    }

    /// Takes `key` out; `keys` must still hold it and all others.
    #[inline]
    pub fn remove(&mut self, key: u64, keys: &[u64]) -> Option<u32> {
        let hash = self.hash(key);
        if let Some(rehash) = &self.rehash {
            let (at, slot) = rehash.find_cell(&self.cells, key, hash, keys)?;
            rehash.remove_at(&mut self.cells, at, keys);
            return Some(slot);
        }
        let (mut hole, slot) = self.find_cell(key, hash, keys)?;
        let mut at = hole;
        loop {
            at = self.after(at);
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let from_home = self.distance_from_home(at, keys);
            let back = self.distance(hole, at);
            if from_home >= back {
                let Layout { far, distance_shift, .. } = self.layout;
                let told = ((from_home - back).min(far as usize) as u32) << distance_shift;
                self.cells[hole] = cell & !(far << distance_shift) | told;
                hole = at;
            }
        }
        self.cells[hole] = EMPTY;
        Some(slot)
    }

    /// Replaces the slot of a key that is present.
    pub fn relocate(&mut self, key: u64, keys: &[u64], to: u32) {
        let hash = self.hash(key);
        let (found, layout) = match &self.rehash {
            Some(rehash) => {
                let found = rehash.find_cell(&self.cells, key, hash, keys);
                (found, found.map_or(self.layout, |(at, _)| rehash.layout_at(at)))
            }
            None => (self.find_cell(key, hash, keys), self.layout),
        };
        let (at, _) = found.expect("a key that moves is in the table");
        self.cells[at] = self.cells[at] & !layout.slot_mask | to;
    }

    /// Every slot in the table, in no particular order.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let layout_at = |at| self.rehash.as_ref().map_or(self.layout, |rehash| rehash.layout_at(at));
        let full = self.cells.iter().enumerate().filter(|&(_, &cell)| cell != EMPTY);
        full.map(move |(at, &cell)| cell & layout_at(at).slot_mask)
    }

    /// Begins to make the table fit slots `0..slots`; all keys are in such. [`Table::step`] does it.
    pub fn begin(&mut self, slots: u32) {
        debug_assert!(self.rehash.is_none(), "a table changes its size twice at once");
        let cells = cells_for(slots as usize, self.fill);
        if cells != self.cells.len() {
            self.rehash = Some(Box::new(Rehash::new(self.cells.len(), cells, self.layout, slots, self.key)));
        }
    }

    /// Goes on with that, for at most `left` units, which it counts down; whether it is done.
    pub fn step(&mut self, keys: &[u64], left: &mut u32) -> bool {
        let Some(rehash) = &mut self.rehash else { return true };
        if rehash.step(&mut self.cells, keys, left) {
            self.layout = rehash.layout();
            self.rehash = None;
        }
        self.rehash.is_none()
    }

    /// There may be `most` slots in time.
    pub fn reserve(&mut self, most: u32) {
        self.cells.reserve(cells_for(most as usize, self.fill));
    }

    pub fn memory_bytes(&self) -> usize {
        self.cells.memory_bytes()
    }

    /// Panics unless the table holds exactly `len` keys and each can be found.
    pub fn check(&self, keys: &[u64], len: usize) {
        assert!(len < self.cells.len(), "the table is full: a search for an absent key would not end");
        let mut seen = 0;
        for slot in self.slots() {
            let key = keys[slot as usize];
            let hash = self.hash(key);
            assert_eq!(self.find(key, hash, keys), Some(slot), "key {key} cannot be reached, or is there twice");
            if self.rehash.is_none()
                && let Some((at, _)) = self.find_cell(key, hash, keys)
            {
                let distance = self.distance(self.home(hash), at);
                assert_eq!(
                    self.cells[at],
                    self.layout.cell(slot, hash, distance),
                    "the cell of {key} tells it wrongly"
                );
            }
            seen += 1;
        }
        if let Some(rehash) = &self.rehash {
            rehash.check(&self.cells, keys);
        }
        assert_eq!(seen, len, "keys in the table");
    }
}

impl Map for Table {
    fn new(slots: u32, most: u32, fill: Fill, key: HashKey) -> Self {
        Self::new(slots, most, fill, key)
    }
    #[inline]
    fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32> {
        self.find(key, hash, keys)
    }
    #[inline]
    fn insert(&mut self, hash: u64, slot: u32) {
        self.insert(hash, slot);
    }
    #[inline]
    fn remove(&mut self, key: u64, slot: u32, keys: &[u64]) {
        let removed = self.remove(key, keys);
        assert_eq!(removed, Some(slot), "a slot that is freed is occupied");
    }
    fn relocate(&mut self, key: u64, keys: &[u64], _from: u32, to: u32) {
        self.relocate(key, keys, to);
    }
    fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots()
    }
    fn begin(&mut self, slots: u32) {
        self.begin(slots);
    }
    fn step(&mut self, keys: &[u64], left: &mut u32) -> bool {
        self.step(keys, left)
    }
    fn reserve(&mut self, most: u32) {
        self.reserve(most);
    }
    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.cells.release(by, bytes);
    }
    fn memory_bytes(&self) -> usize {
        self.memory_bytes()
    }
    fn check(&self, keys: &[u64], len: usize) {
        self.check(keys, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        /// Against a BTreeMap; few homes, so that clusters form, wrap round and shift back.
        /// `slots` gives cells with much, little and no room for distance and tag; 14 cells make far distances common.
        fn behaves_like_a_map(
            seed: u64,
            slots in prop::sample::select(vec![12, 1 << 20, 1 << 27, 1 << 29, 1 << 31]),
            cells in prop::sample::select(vec![14, 18, 24]),
            ops in prop::collection::vec((0u64..24, any::<bool>()), 1..200),
        ) {
            let mut table = Table::with_cells(cells, 0, slots, Fill::Half, HashKey::from_seed(seed));
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
            let mut table = Table::new(slots, 0, Fill::TwoThirds, HashKey::from_seed(1));
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
