//! Who waits for which blocks of a read: one list per read operation.
//!
//! Owns the places of all lists of a disk. Never serves anybody. Invariants: a place is in one list; a request that
//! joins neighbouring blocks of a read one after the other has one place for all of them.

use crate::disk::records::ReadOp;
use crate::disk::slab::Slab;

/// Marks the end of a list of waiters.
pub(in crate::disk) const NONE: u32 = u32::MAX;

/// A request that waits for blocks `first..first+count` of a read.
#[derive(Clone, Copy, Debug)]
pub(in crate::disk) struct Waiter {
    pub rec: u32,
    pub first: u16,
    pub count: u16,
    /// Whether the read was started for this request.
    pub own: bool,
    pub next: u32,
}

/// See the head of the file.
#[derive(Debug)]
pub(in crate::disk) struct Waiters {
    places: Slab<Waiter>,
}

impl Waiters {
    /// At most `max` places.
    pub(in crate::disk) fn new(max: usize) -> Self {
        Self { places: Slab::new(max) }
    }

    /// Bytes that `max` places hold at most.
    pub(in crate::disk) const fn bytes_max(max: usize) -> usize {
        Slab::<Waiter>::bytes_max(max)
    }

    /// Bytes held now.
    pub(in crate::disk) fn memory_bytes(&self) -> usize {
        self.places.memory_bytes()
    }

    /// Places taken.
    pub(in crate::disk) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no place for one more.
    pub(in crate::disk) fn is_full(&self) -> bool {
        self.places.is_full()
    }

    /// The list of a read of `count` blocks that is started for a request: it waits for all of them.
    pub(in crate::disk) fn begin(&mut self, rec: u32, count: u64) -> u32 {
        self.places.insert(Waiter { rec, first: 0, count: count as u16, own: true, next: NONE })
    }

    /// Lets a request wait for block `at` of a read. False if it did for the block before: then it has that place.
    pub(in crate::disk) fn join(&mut self, read: &mut ReadOp, rec: u32, at: u32) -> bool {
        read.wanted |= 1 << at;
        read.joined += 1;
        if read.tail != NONE {
            let w = &mut self.places[read.tail];
            if w.rec == rec && u32::from(w.first + w.count) == at {
                w.count += 1;
                return false;
            }
        }
        let w = self.places.insert(Waiter { rec, first: at as u16, count: 1, own: false, next: NONE });
        match read.tail {
            NONE => read.head = w,
            tail => self.places[tail].next = w,
        }
        read.tail = w;
        true
    }

    /// The one at a place.
    pub(in crate::disk) fn get(&self, place: u32) -> Waiter {
        self.places[place]
    }

    /// Gives up the first place of a list: `head` is the next one then.
    pub(in crate::disk) fn pop(&mut self, head: &mut u32) -> Option<Waiter> {
        if *head == NONE {
            return None;
        }
        let w = self.places.remove(*head);
        *head = w.next;
        Some(w)
    }

    /// Gives up a place of a list that stands behind `last`, or in front if that is [`NONE`].
    pub(in crate::disk) fn unlink(&mut self, head: &mut u32, last: u32, place: u32) {
        let next = self.places.remove(place).next;
        match last {
            NONE => *head = next,
            last => self.places[last].next = next,
        }
    }
}
