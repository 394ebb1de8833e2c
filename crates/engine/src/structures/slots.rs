//! Which block is in which slot: the map of an index, without any policy.
//!
//! Owns the keys by slot, the hash table over them, and the list of free slots.
//! Never decides which block is evicted.
//! Invariant: every slot below `capacity` is either free or holds one block that the table finds there.

mod resize;
#[cfg(test)]
pub(in crate::structures) mod tests;

use crate::structures::array::{Array, Release};
use crate::structures::chains::Chains;
use crate::structures::list::NIL;
use crate::structures::table::{Fill, HashKey, Table};
use resize::Resize;

/// A place in the cache of one disk, `0..capacity`. Dense, so that per-slot state can live in flat arrays.
pub type Slot = u32;

/// What finds the slot of a block, over an array of keys indexed by slot that the caller owns.
pub(crate) trait Map {
    /// An empty table for slots `0..slots`, of which there may be `most` in time; 0 if that is not known.
    fn new(slots: u32, most: u32, fill: Fill, key: HashKey) -> Self;
    /// The slot of `key`, whose hash is `hash`.
    fn find(&self, key: u64, hash: u64, keys: &[u64]) -> Option<u32>;
    /// Adds a key that is absent.
    fn insert(&mut self, hash: u64, slot: u32);
    /// Takes `key` out, which is in `slot`; `keys` must still hold it and all others.
    fn remove(&mut self, key: u64, slot: u32, keys: &[u64]);
    /// Replaces the slot of a key that is present; both slots are within the table.
    fn relocate(&mut self, key: u64, keys: &[u64], from: u32, to: u32);
    /// Every slot in the table, in no particular order.
    fn slots(&self) -> impl Iterator<Item = u32> + '_;
    /// Begins to make the table fit slots `0..slots`; all keys are in such.
    fn begin(&mut self, slots: u32);
    /// Goes on with that, for at most `left` units, which it counts down; whether it is done.
    fn step(&mut self, keys: &[u64], left: &mut u32) -> bool;
    /// There may be `most` slots in time.
    fn reserve(&mut self, most: u32);
    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    fn release(&mut self, by: &mut impl Release, bytes: &mut usize);
    fn memory_bytes(&self) -> usize;
    /// Panics unless the table holds exactly `len` keys and each can be found.
    fn check(&self, keys: &[u64], len: usize);
}

/// Slots found through chains: see `chains` for what that is good at.
pub(crate) type ChainedSlots = Slots<Chains>;

#[derive(Debug)]
pub(crate) struct Slots<M = Table> {
    table: M,
    key: HashKey,
    /// The block of an occupied slot; of a free one, the next free slot.
    keys: Array<u64>,
    /// The first of the free slots below `fresh`, or `NIL`.
    free: u32,
    /// Slots from here on have never been used.
    fresh: u32,
    len: u32,
    /// While the number of slots changes.
    resize: Option<Box<Resize>>,
}

impl<M: Map> Slots<M> {
    pub fn new(capacity: u32, fill: Fill, key: HashKey) -> Self {
        Self::with_room(capacity, 0, fill, key)
    }

    /// The same for a number of slots that may grow to `most` in time; 0 if that is not known.
    pub fn with_room(capacity: u32, most: u32, fill: Fill, key: HashKey) -> Self {
        let keys = Array::zeroed(capacity as usize, most as usize);
        Self { table: M::new(capacity, most, fill, key), key, keys, free: NIL, fresh: 0, len: 0, resize: None }
    }

    pub fn capacity(&self) -> u32 {
        self.keys.len() as u32
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn hash_key(&self) -> HashKey {
        self.key
    }

    /// The blocks by slot; only occupied slots mean anything.
    #[inline]
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    #[inline]
    pub fn hash(&self, block: u64) -> u64 {
        self.key.hash(block)
    }

    #[inline]
    pub fn find(&self, block: u64, hash: u64) -> Option<Slot> {
        self.table.find(block, hash, &self.keys)
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len as usize == self.keys.len()
    }

    /// The block in an occupied slot.
    pub fn block_of(&self, slot: Slot) -> Option<u64> {
        let block = *self.keys.get(slot as usize)?;
        // a free slot holds a number too, but no block is found to be in a free slot
        (self.find(block, self.hash(block)) == Some(slot)).then_some(block)
    }

    /// Gives an absent block a free slot; there must be one.
    #[inline]
    pub fn insert(&mut self, block: u64, hash: u64) -> Slot {
        let slot = self.take_free();
        self.keys[slot as usize] = block;
        self.table.insert(hash, slot);
        self.len += 1;
        slot
    }

    fn take_free(&mut self) -> Slot {
        match self.free {
            NIL => self.take_other(),
            slot => {
                self.free = self.keys[slot as usize] as u32;
                slot
            }
        }
    }

    /// Puts an absent block in the place of another one.
    #[inline]
    pub fn replace(&mut self, slot: Slot, block: u64, hash: u64) -> u64 {
        let old = self.keys[slot as usize];
        self.table.remove(old, slot, &self.keys);
        self.keys[slot as usize] = block;
        self.table.insert(hash, slot);
        old
    }

    /// Frees an occupied slot; returns its block.
    pub fn free(&mut self, slot: Slot) -> u64 {
        let block = self.keys[slot as usize];
        debug_assert_eq!(self.find(block, self.hash(block)), Some(slot), "a slot that is freed is occupied");
        self.table.remove(block, slot, &self.keys);
        self.len -= 1;
        if !self.goes(slot) {
            self.keys[slot as usize] = u64::from(self.free);
            self.free = slot;
        }
        block
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.table.slots().map(|slot| (self.keys[slot as usize], slot))
    }

    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.keys.memory_bytes()
    }

    pub fn check(&self) {
        self.table.check(&self.keys, self.len as usize);
        let mut free = 0;
        let kept = self.resize.as_ref().map_or(NIL, |resize| resize.kept());
        for first in [self.free, kept] {
            let mut at = first;
            while at != NIL {
                assert!(at < self.fresh, "free slot {at} is past the used ones");
                assert_eq!(self.block_of(at), None, "slot {at} is free and occupied");
                free += 1;
                assert!(free <= self.fresh, "the free list is a ring");
                at = self.keys[at as usize] as u32;
            }
        }
        assert!(self.len <= self.most(), "more blocks than there will be slots");
        assert!(self.fresh as usize <= self.keys.len(), "slots past the end are in use");
        match &self.resize {
            None => assert_eq!(self.len + free, self.fresh, "every used slot is free or occupied"),
            Some(resize) => resize.check(self, free),
        }
    }
}

impl Slots {
    /// As [`Slots::find`], while the number of slots does not change: what a hit pays for.
    #[inline]
    pub fn find_still(&self, block: u64, hash: u64) -> Option<Slot> {
        self.table.find_still(block, hash, &self.keys)
    }
}

impl ChainedSlots {
    /// What is first in the chain of a hash, for [`ChainedSlots::look`].
    #[inline]
    pub fn first(&self, hash: u64) -> u32 {
        self.table.first(hash)
    }

    /// The slot of `block` or `NIL`, and whether it is surely absent, as far as a short look tells. There must be
    /// slots.
    #[inline]
    pub fn look(&self, first: u32, block: u64) -> (Slot, bool) {
        self.table.look(first, block, &self.keys)
    }

    /// Reads what a search for blocks of these hashes will need, to no other effect.
    #[inline]
    pub fn read_ahead(&self, hashes: &[u64]) {
        self.table.read_ahead(hashes, &self.keys);
    }
}
