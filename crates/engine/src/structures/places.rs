//! What policies remember of each slot: its place in a queue, and a mark.
//!
//! Owns the two arrays that all policies of one index share, since a slot is in the queues of at most one of them.
//! Never knows what a policy's mark means: the policy that has the slot does. Invariant: the mark of a slot that is in
//! no policy's queues is 0, or says where the index keeps it apart from them; no policy uses such a mark.

use crate::structures::array::{Array, Release};
use crate::structures::list::Links;

/// The mark of a slot that is locked (`index::locks`).
pub(crate) const LOCKED: u8 = 0x80;
/// The mark of a slot in the victim buffer (`index::victims`).
pub(crate) const BUFFERED: u8 = 0x40;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Places {
    pub links: Links,
    pub marks: Array<u8>,
}

impl Places {
    pub fn new(slots: u32) -> Self {
        Self::with_room(slots, 0)
    }

    /// The same for a number of slots that may grow to `most` in time; 0 if that is not known.
    pub fn with_room(slots: u32, most: u32) -> Self {
        let (slots, most) = (slots as usize, most as usize);
        Self { links: Links::with_room(slots, most), marks: Array::zeroed(slots, most) }
    }

    /// Grows or shrinks to `slots` on the way to `end`; slots past the end must be in no queue.
    pub fn set_len(&mut self, slots: u32, end: u32) {
        self.links.set_len(slots as usize, end as usize);
        self.marks.set_len(slots as usize, end as usize, 0);
    }

    /// Gives up memory that is there for more slots, unless there is on purpose.
    pub fn fit(&mut self) {
        self.links.fit();
        self.marks.fit();
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.links.release(by, bytes);
        self.marks.release(by, bytes);
    }

    pub fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.marks.memory_bytes()
    }
}
