//! What a studied policy keeps of each slot beyond a place and a mark.
//!
//! Owns flat arrays that grow with the largest slot in use: a part of a disk has any of the disk's slots. Never
//! shrinks. Invariant: a slot's value means something only while the slot is occupied.

use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// One value per slot.
#[derive(Debug)]
pub(super) struct PerSlot<T>(Vec<T>);

impl<T: Copy + Default> PerSlot<T> {
    pub fn new(slots: u32) -> Self {
        Self(vec![T::default(); slots as usize])
    }

    #[inline]
    pub fn set(&mut self, slot: Slot, value: T) {
        let at = slot as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, T::default());
        }
        self.0[at] = value;
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> T {
        self.0[slot as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> &mut T {
        &mut self.0[slot as usize]
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

/// The slots of a policy in an array without holes, so that one can be drawn at random.
#[derive(Debug)]
pub(super) struct Members {
    slots: Vec<Slot>,
    /// Where in `slots` a slot stands.
    at: PerSlot<u32>,
}

impl Members {
    pub fn new(slots: u32) -> Self {
        Self { slots: Vec::with_capacity(slots as usize), at: PerSlot::new(slots) }
    }

    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn add(&mut self, slot: Slot) {
        self.at.set(slot, self.len());
        self.slots.push(slot);
    }

    pub fn remove(&mut self, slot: Slot) {
        let at = self.at.get(slot);
        self.slots.swap_remove(at as usize);
        if let Some(&other) = self.slots.get(at as usize) {
            self.at.set(other, at);
        }
    }

    pub fn moved(&mut self, from: Slot, to: Slot) {
        let at = self.at.get(from);
        self.slots[at as usize] = to;
        self.at.set(to, at);
    }

    /// One of the slots, if there are any.
    #[inline]
    pub fn draw(&self, lots: &mut Lots) -> Option<Slot> {
        self.slots.get(lots.below(self.len()) as usize).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.slots.iter().copied()
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.at.memory_bytes()
    }

    pub fn check(&self, occupied: u32) {
        assert_eq!(self.len(), occupied, "slots that can be drawn");
        for (at, &slot) in self.slots.iter().enumerate() {
            assert_eq!(self.at.get(slot) as usize, at, "slot {slot} stands elsewhere");
        }
    }
}

/// Random numbers, the same ones for the same key.
#[derive(Debug)]
pub(super) struct Lots {
    key: HashKey,
    drawn: u64,
}

impl Lots {
    pub fn new(key: HashKey) -> Self {
        Self { key: key.derived(), drawn: 0 }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        self.key.hash(self.drawn)
    }

    /// A number below `end`, or 0.
    #[inline]
    pub fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// A number in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * 0.5f64.powi(53)
    }
}
