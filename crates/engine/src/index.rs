//! The index of one disk: which block sits in which slot, and the one call through which anybody reaches a policy.
//!
//! Owns the map from block to slot and the policy. Never knows where a slot's bytes are.
//! Invariant: at most `capacity` slots are occupied, each by one block; a block has at most one slot.

use crate::policy::PolicyKind;
use std::collections::HashMap;

/// A place in the cache of one disk, `0..capacity`. Dense, so that per-slot state can live in flat arrays.
pub type Slot = u32;

/// Why a block is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A guest reads it.
    Read,
    /// A guest writes it.
    Write,
}

/// What the index decided about one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The block is in this slot (or on its way there).
    Hit(Slot),
    /// The block was absent and has now been given this slot; the block that had to make room, if any.
    Fill {
        /// The slot now holding the accessed block.
        slot: Slot,
        /// The block and slot that were evicted; its slot may equal `slot`.
        evicted: Option<(u64, Slot)>,
    },
    /// The block was absent and is not to be cached (the policy refuses it, or nothing may be evicted).
    Bypass,
}

/// PLACEHOLDER until the engine lands: an unordered map with FIFO eviction. Same public interface.
pub struct Index {
    kind: PolicyKind,
    capacity: u32,
    map: HashMap<u64, Slot>,
    keys: Vec<u64>,
    free: Vec<Slot>,
    order: std::collections::VecDeque<u64>,
}

impl Index {
    /// An empty index of `capacity` slots (may be 0: every access is then a bypass).
    pub fn new(kind: PolicyKind, capacity: u32) -> Self {
        Self {
            kind,
            capacity,
            map: HashMap::new(),
            keys: vec![0; capacity as usize],
            free: (0..capacity).rev().collect(),
            order: Default::default(),
        }
    }

    /// The policy in use.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Slots in all.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Slots occupied.
    pub fn len(&self) -> u32 {
        self.map.len() as u32
    }

    /// Whether no slot is occupied.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The one way to a policy: looks `block` up, tells the policy, and on a miss makes room for it.
    ///
    /// A slot for which `may_evict` is false is never evicted (its I/O is under way).
    pub fn access(&mut self, block: u64, _access: Access, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        if let Some(&s) = self.map.get(&block) {
            return Outcome::Hit(s);
        }
        let mut evicted = None;
        if self.free.is_empty() {
            let Some(i) = self.order.iter().take(64).position(|b| may_evict(self.map[b])) else {
                return Outcome::Bypass;
            };
            let Some(old) = self.order.remove(i) else { return Outcome::Bypass };
            if let Some(s) = self.map.remove(&old) {
                evicted = Some((old, s));
                self.free.push(s);
            }
        }
        let Some(slot) = self.free.pop() else { return Outcome::Bypass };
        self.map.insert(block, slot);
        self.keys[slot as usize] = block;
        self.order.push_back(block);
        Outcome::Fill { slot, evicted }
    }

    /// Where `block` is, without telling the policy.
    #[inline]
    pub fn peek(&self, block: u64) -> Option<Slot> {
        self.map.get(&block).copied()
    }

    /// The block in an occupied slot.
    pub fn block_of(&self, slot: Slot) -> Option<u64> {
        let b = *self.keys.get(slot as usize)?;
        (self.map.get(&b) == Some(&slot)).then_some(b)
    }

    /// Forgets `block` (and any ghost of it); returns the slot it had.
    pub fn remove(&mut self, block: u64) -> Option<Slot> {
        let s = self.map.remove(&block)?;
        self.order.retain(|&b| b != block);
        self.free.push(s);
        Some(s)
    }

    /// Every occupied slot with its block, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.map.iter().map(|(&b, &s)| (b, s))
    }

    /// Evicts one block, for a cache that gives memory back. `None` if nothing may go.
    pub fn evict(&mut self, may_evict: impl Fn(Slot) -> bool) -> Option<(u64, Slot)> {
        let i = self.order.iter().position(|b| may_evict(self.map[b]))?;
        let b = self.order.remove(i)?;
        let s = self.map.remove(&b)?;
        self.free.push(s);
        Some((b, s))
    }

    /// Changes the capacity. Growing keeps every slot number. Shrinking first evicts down to the new capacity
    /// (calling `evicted`), then moves blocks out of slots past the end: `moved(from, to)` for each.
    /// Slots for which `may_evict` is false are neither evicted nor moved; where they stand in the way the index
    /// shrinks as far as it can and returns the capacity reached: call again later.
    pub fn resize(
        &mut self,
        capacity: u32,
        may_evict: impl Fn(Slot) -> bool,
        mut evicted: impl FnMut(u64, Slot),
        mut moved: impl FnMut(Slot, Slot),
    ) -> u32 {
        let _ = &mut moved;
        while self.len() > capacity {
            match self.evict(&may_evict) {
                Some((b, s)) => evicted(b, s),
                None => return self.capacity,
            }
        }
        if capacity > self.capacity {
            self.keys.resize(capacity as usize, 0);
            self.free.extend(self.capacity..capacity);
            self.capacity = capacity;
        }
        self.capacity
    }

    /// Changes the policy and keeps every block in its slot, coldest first as far as the old policy can tell.
    pub fn switch(&mut self, kind: PolicyKind) {
        self.kind = kind;
    }

    /// Bytes of memory that the index and its policy (ghosts included) hold.
    pub fn memory_bytes(&self) -> usize {
        self.capacity as usize * 32
    }

    /// Checks the invariants of index and policy; for tests. Panics with what is broken.
    pub fn check(&self) {
        assert!(self.map.len() <= self.capacity as usize);
    }
}
