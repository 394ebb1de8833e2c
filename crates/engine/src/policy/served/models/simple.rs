//! Reference models of the policies with one queue: FIFO, LRU, CLOCK, SIEVE.

use crate::policy::model::{MayEvict, ReferenceModel, oldest, take};
use std::collections::BTreeSet;

/// FIFO and LRU.
pub(crate) struct Queue {
    queue: Vec<u64>,
    renews: bool,
}

impl Queue {
    pub fn new(renews: bool) -> Self {
        Self { queue: Vec::new(), renews }
    }
}

impl ReferenceModel for Queue {
    fn hit(&mut self, block: u64) {
        if self.renews {
            take(&mut self.queue, block);
            self.queue.push(block);
        }
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        let evicted = if full { Some(self.evict(may_evict).ok_or(())?) } else { None };
        self.queue.push(block);
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        Some(self.queue.remove(oldest(&self.queue, may_evict)?))
    }

    fn remove(&mut self, block: u64) {
        take(&mut self.queue, block);
    }

    fn resize(&mut self, _capacity: usize) {}

    fn coldest_first(&self) -> Vec<u64> {
        self.queue.clone()
    }
}

#[derive(Default)]
pub(crate) struct Clock {
    queue: Vec<u64>,
    referenced: BTreeSet<u64>,
}

impl ReferenceModel for Clock {
    fn hit(&mut self, block: u64) {
        self.referenced.insert(block);
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        let evicted = if full { Some(self.evict(may_evict).ok_or(())?) } else { None };
        self.queue.push(block);
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        loop {
            let at = oldest(&self.queue, may_evict)?;
            let block = self.queue.remove(at);
            if !self.referenced.remove(&block) {
                return Some(block);
            }
            self.queue.push(block);
        }
    }

    fn remove(&mut self, block: u64) {
        take(&mut self.queue, block);
        self.referenced.remove(&block);
    }

    fn resize(&mut self, _capacity: usize) {}

    fn coldest_first(&self) -> Vec<u64> {
        let (hot, cold): (Vec<_>, Vec<_>) = self.queue.iter().partition(|b| self.referenced.contains(b));
        [cold, hot].concat()
    }
}

/// The hand is the block it stands on.
#[derive(Default)]
pub(crate) struct Sieve {
    queue: Vec<u64>,
    visited: BTreeSet<u64>,
    hand: Option<u64>,
}

impl Sieve {
    /// The queue in the order in which the hand will meet it.
    fn in_hand_order(&self) -> Vec<u64> {
        let at = self.hand.map_or(0, |h| self.queue.iter().position(|&b| b == h).expect("the hand is on a block"));
        [&self.queue[at..], &self.queue[..at]].concat()
    }

    fn leave(&mut self, block: u64) {
        let at = self.queue.iter().position(|&b| b == block).expect("it is there");
        if self.hand == Some(block) {
            self.hand = self.queue.get(at + 1).copied();
        }
        self.queue.remove(at);
        self.visited.remove(&block);
    }
}

impl ReferenceModel for Sieve {
    fn hit(&mut self, block: u64) {
        self.visited.insert(block);
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        let evicted = if full { Some(self.evict(may_evict).ok_or(())?) } else { None };
        self.queue.push(block);
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        if !self.queue.iter().any(|&b| may_evict(b)) {
            return None;
        }
        for block in self.in_hand_order().repeat(2) {
            if may_evict(block) && !self.visited.remove(&block) {
                self.hand = Some(block);
                self.leave(block);
                return Some(block);
            }
        }
        unreachable!("the second round finds every mark cleared")
    }

    fn remove(&mut self, block: u64) {
        if self.queue.contains(&block) {
            self.leave(block);
        }
    }

    fn resize(&mut self, _capacity: usize) {}

    fn coldest_first(&self) -> Vec<u64> {
        let (hot, cold): (Vec<_>, Vec<_>) = self.in_hand_order().iter().partition(|b| self.visited.contains(b));
        [cold, hot].concat()
    }
}
