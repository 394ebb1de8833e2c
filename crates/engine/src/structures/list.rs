//! Doubly linked lists of slots over one flat array of links: the queues of every policy.
//!
//! Owns the order of slots in queues. Never knows what is in a slot.
//! Invariant: a slot is in at most one list at a time; the lists that share one `Links` never share a slot.

use crate::structures::array::{Array, Release};
use std::hint::black_box;

/// No slot: the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// The neighbours of one slot in whichever list it is. A pair of integers, so that those of slots that were never in
/// one take no memory: they are zeroes of the kernel's ([`Array::zeroed`]).
type Node = [u32; 2];
/// Towards the head: put in or moved up later.
const NEWER: usize = 0;
/// Towards the tail.
const OLDER: usize = 1;

/// The links of all slots. What stands for a slot that is in no list means nothing.
#[derive(Debug)]
pub(crate) struct Links(Array<Node>);

impl Links {
    pub fn new(slots: usize) -> Self {
        Self::with_room(slots, 0)
    }

    /// The same for a number of slots that may grow to `most` in time; 0 if that is not known.
    pub fn with_room(slots: usize, most: usize) -> Self {
        Self(Array::zeroed(slots, most))
    }

    /// The neighbour of `slot` towards the head, or `NIL`.
    #[inline]
    pub fn newer(&self, slot: u32) -> u32 {
        self.0[slot as usize][NEWER]
    }

    /// The neighbour of `slot` towards the tail, or `NIL`.
    pub fn older(&self, slot: u32) -> u32 {
        self.0[slot as usize][OLDER]
    }

    /// Reads the places of these slots (or `NIL`) and those beside them, to no other effect.
    #[inline]
    pub fn read_ahead(&self, slots: &[u32]) {
        let Some(last) = self.0.len().checked_sub(1) else { return };
        let node = |slot: u32| self.0[(slot as usize).min(last)];
        let all = slots.iter().fold(0, |all, &slot| {
            let [newer, older] = node(slot);
            all ^ node(newer)[NEWER] ^ node(older)[OLDER]
        });
        black_box(all);
    }

    /// Grows or shrinks to `slots`; slots past the end must be in no list.
    pub fn resize(&mut self, slots: usize) {
        self.0.resize(slots, [0, 0]);
    }

    /// Grows or shrinks to `slots` on the way to `end`; slots past the end must be in no list.
    pub fn set_len(&mut self, slots: usize, end: usize) {
        self.0.set_len(slots, end, [0, 0]);
    }

    /// Gives up memory that is there for more slots, unless there is on purpose.
    pub fn fit(&mut self) {
        self.0.fit();
    }

    /// There may be `most` slots in time.
    pub fn reserve(&mut self, most: usize) {
        self.0.reserve(most);
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.0.release(by, bytes);
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}

/// Sets a vector's length and gives back (or asks for) exactly the memory that takes.
pub(crate) fn resize_exact<T: Clone>(v: &mut Vec<T>, len: usize, fill: T) {
    v.reserve_exact(len.saturating_sub(v.len()));
    v.resize(len, fill);
    v.shrink_to_fit();
}

/// A queue: new slots enter at the head, the oldest is the tail.
#[derive(Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub const fn new() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The newest slot, or `NIL`.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// The oldest slot, or `NIL`.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Puts `slot`, which is in no list, at the head.
    #[inline]
    pub fn push(&mut self, links: &mut Links, slot: u32) {
        links.0[slot as usize] = [NIL, self.head];
        match self.head {
            NIL => self.tail = slot,
            head => links.0[head as usize][NEWER] = slot,
        }
        self.head = slot;
        self.len += 1;
    }

    /// Takes `slot` out of this list.
    #[inline]
    pub fn remove(&mut self, links: &mut Links, slot: u32) {
        let [newer, older] = links.0[slot as usize];
        match newer {
            NIL => self.head = older,
            n => links.0[n as usize][OLDER] = older,
        }
        match older {
            NIL => self.tail = newer,
            o => links.0[o as usize][NEWER] = newer,
        }
        self.len -= 1;
    }

    /// Moves `slot`, which is in this list, to the head.
    #[inline]
    pub fn renew(&mut self, links: &mut Links, slot: u32) {
        if self.head != slot {
            self.remove(links, slot);
            self.push(links, slot);
        }
    }

    /// Puts `to`, which is in no list, in the place that `from` has, and takes `from` out.
    pub fn replace(&mut self, links: &mut Links, from: u32, to: u32) {
        let node = links.0[from as usize];
        links.0[to as usize] = node;
        match node[NEWER] {
            NIL => self.head = to,
            n => links.0[n as usize][OLDER] = to,
        }
        match node[OLDER] {
            NIL => self.tail = to,
            o => links.0[o as usize][NEWER] = to,
        }
    }

    /// The slots from the oldest to the newest.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.tail;
        std::iter::from_fn(move || {
            let slot = (at != NIL).then_some(at)?;
            at = links.newer(slot);
            Some(slot)
        })
    }

    /// The slots from the newest to the oldest.
    pub fn iter_newest<'a>(&self, links: &'a Links) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let slot = (at != NIL).then_some(at)?;
            at = links.0[slot as usize][OLDER];
            Some(slot)
        })
    }

    /// Panics unless both directions agree and the length is right.
    pub fn check(&self, links: &Links) {
        let (mut older, mut len) = (NIL, 0);
        for slot in self.iter(links) {
            assert_eq!(links.0[slot as usize][OLDER], older, "slot {slot} points back elsewhere");
            (older, len) = (slot, len + 1);
            assert!(len <= self.len, "the list is longer than it says, or a ring");
        }
        assert_eq!((older, len), (self.head, self.len), "head and length of the list");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_by_every_operation() {
        let mut links = Links::new(5);
        let mut list = List::new();
        (0..4).for_each(|s| list.push(&mut links, s));
        list.renew(&mut links, 0);
        list.remove(&mut links, 2);
        list.replace(&mut links, 1, 4);
        list.check(&links);
        assert_eq!(list.iter(&links).collect::<Vec<_>>(), [4, 3, 0]);
        assert_eq!((list.len(), list.tail()), (3, 4));
        [0, 3, 4].into_iter().for_each(|s| list.remove(&mut links, s));
        list.check(&links);
        assert_eq!(list.tail(), NIL);
    }
}
