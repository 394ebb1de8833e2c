//! Ghosts: blocks that were evicted not long ago, remembered by number only.
//!
//! Owns up to two queues of block numbers with a hash table of their own; every operation takes constant time and no
//! memory beyond what was taken at the start. Never decides what a ghost means: ARC, CAR and S3-FIFO do.
//! Invariant: a block is in at most one of the queues, and all of them together hold at most `capacity`, but for the
//! time in which that is getting less.

use crate::structures::array::{Array, Release};
use crate::structures::list::{Links, List, NIL};
use crate::structures::slots::ChainedSlots;
use crate::structures::table::{Fill, HashKey};

/// See the head of the file. Queues are named 0 and 1.
#[derive(Debug)]
pub(crate) struct Ghosts {
    slots: ChainedSlots,
    links: Links,
    queues: [List; 2],
    /// Which queue an occupied slot is in.
    second: Array<bool>,
    /// Places there are to be, once nothing is left to be done for that.
    capacity: u32,
}

impl Ghosts {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            slots: ChainedSlots::new(capacity, Fill::TwoThirds, key),
            links: Links::new(capacity as usize),
            queues: [List::new(), List::new()],
            second: Array::new(capacity as usize, 0, false),
            capacity,
        }
    }

    /// There may be `most` places in time.
    pub fn reserve(&mut self, most: u32) {
        self.slots.reserve(most);
        self.links.reserve(most as usize);
        self.second.reserve(most as usize);
    }

    #[inline]
    pub fn len(&self, queue: usize) -> u32 {
        self.queues[queue].len()
    }

    /// Which queue remembers `block`.
    #[inline]
    pub fn find(&self, block: u64) -> Option<usize> {
        if self.slots.len() == 0 {
            // A cache that is not full remembers nothing, and need not look.
            return None;
        }
        let slot = self.slots.find(block, self.slots.hash(block))?;
        Some(usize::from(self.second[slot as usize]))
    }

    /// Reads what a search for blocks of these hashes (by the key that the ghosts were made with) will need.
    #[inline]
    pub fn read_ahead(&self, hashes: &[u64]) {
        self.slots.read_ahead(hashes);
    }

    /// Remembers an absent block as the newest of `queue`. Where all places are taken, the oldest of that queue is
    /// forgotten, or of the other one if it is empty; with no places, nothing is remembered.
    pub fn push(&mut self, queue: usize, block: u64) {
        while self.slots.len() >= self.slots.most().min(self.capacity) {
            if !(self.forget_oldest(queue) || self.forget_oldest(1 - queue)) {
                return;
            }
            // Places that are too many go with the steps.
            if self.slots.len() < self.slots.most() {
                break;
            }
        }
        let slot = self.slots.insert(block, self.slots.hash(block));
        self.second[slot as usize] = queue == 1;
        self.queues[queue].push(&mut self.links, slot);
    }

    /// Forgets `block`; returns the queue it was in.
    #[inline]
    pub fn forget(&mut self, block: u64) -> Option<usize> {
        if self.slots.len() == 0 {
            return None;
        }
        self.forget_one(block)
    }

    fn forget_one(&mut self, block: u64) -> Option<usize> {
        let slot = self.slots.find(block, self.slots.hash(block))?;
        let queue = usize::from(self.second[slot as usize]);
        self.queues[queue].remove(&mut self.links, slot);
        self.slots.free(slot);
        Some(queue)
    }

    /// Forgets the oldest of `queue`; whether there was one.
    pub fn forget_oldest(&mut self, queue: usize) -> bool {
        let slot = self.queues[queue].tail();
        if slot == NIL {
            return false;
        }
        self.queues[queue].remove(&mut self.links, slot);
        self.slots.free(slot);
        true
    }

    /// Changes the number of places. Where there are too few, the oldest of each queue in turn are forgotten; callers
    /// with rules of their own forget enough before.
    pub fn resize(&mut self, capacity: u32) {
        self.begin(capacity);
        while !self.step(&mut { u32::MAX }) {}
    }

    /// Begins with that. [`Ghosts::step`] does it.
    pub fn begin(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// Goes on with that, for at most `left` units, which it counts down; whether it is done.
    pub fn step(&mut self, left: &mut u32) -> bool {
        loop {
            if !self.slots.is_resizing() {
                if self.capacity == self.slots.capacity() {
                    return true;
                }
                while self.slots.len() > self.capacity {
                    if *left == 0 {
                        return false;
                    }
                    *left -= 1;
                    let longer = usize::from(self.len(1) > self.len(0));
                    self.forget_oldest(longer);
                }
                self.slots.begin(self.capacity);
            }
            let Self { slots, links, queues, second, .. } = self;
            let done = slots.step(left, true, |from, to| {
                second[to as usize] = second[from as usize];
                queues[usize::from(second[to as usize])].replace(links, from, to);
            });
            let (now, end) = (slots.capacity() as usize, slots.capacity_max() as usize);
            links.set_len(now, end);
            second.set_len(now, end, false);
            if !done {
                return false;
            }
            links.fit();
            second.fit();
        }
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.slots.release(by, bytes);
        self.links.release(by, bytes);
        self.second.release(by, bytes);
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.slots.memory_bytes() + self.links.memory_bytes() + self.second.memory_bytes()
    }

    pub fn check(&self) {
        self.slots.check();
        self.queues.iter().for_each(|q| q.check(&self.links));
        assert_eq!(self.len(0) + self.len(1), self.slots.len(), "ghosts in the queues");
        for queue in [0, 1] {
            for slot in self.queues[queue].iter(&self.links) {
                assert_eq!(usize::from(self.second[slot as usize]), queue, "ghost {slot} is in the other queue");
            }
        }
    }
}
