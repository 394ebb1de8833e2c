//! What policies remember of each slot: its place in a queue, and a mark.
//!
//! Owns the two arrays that all policies of one index share, since a slot is in the queues of at most one of them.
//! Never knows what a mark means: the policy that has the slot does. Invariant: the mark of a slot that is in no
//! policy's queues is 0.

use crate::structures::list::{Links, resize_exact};

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Places {
    pub links: Links,
    pub marks: Vec<u8>,
}

impl Places {
    pub fn new(slots: u32) -> Self {
        Self { links: Links::new(slots as usize), marks: vec![0; slots as usize] }
    }

    /// Grows or shrinks to `slots`; slots past the end must be in no queue.
    pub fn resize(&mut self, slots: u32) {
        self.links.resize(slots as usize);
        resize_exact(&mut self.marks, slots as usize, 0);
    }

    pub fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.marks.capacity()
    }
}
