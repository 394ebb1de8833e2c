//! MQ: multi-queue (Zhou, Philbin and Li, "The Multi-Queue Replacement Algorithm for Second Level Buffer Caches",
//! USENIX ATC 2001), made for caches below other caches.
//!
//! Owns eight LRU queues (a block asked for 2^k times and more stands in queue k), the time until which each block may
//! stay there without being asked for, and the counts of blocks evicted not long ago. Never evicts from a queue while
//! a lower one has a block.
//! Invariant: the mark of a slot is its queue.
//!
//! Eight queues, a lifetime of 10,000 accesses and a history of four times the slots are libCacheSim 0.3.5's; the paper
//! takes the lifetime from the trace.

use super::history::History;
use super::per_slot::PerSlot;
use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

const QUEUES: usize = 8;
const LIFETIME: u64 = 10_000;
const HISTORY_PER_SLOT: u32 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    count: u32,
    expires: u64,
}

#[derive(Debug)]
pub(crate) struct Mq {
    queues: [List; QUEUES],
    known: PerSlot<Known>,
    history: History<u32>,
    /// The count of the block that misses.
    before: u32,
    clock: u64,
}

fn queue_of(count: u32) -> usize {
    (count.max(1).ilog2() as usize).min(QUEUES - 1)
}

impl Mq {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            queues: [const { List::new() }; QUEUES],
            known: PerSlot::new(capacity),
            history: History::new(capacity.saturating_mul(HISTORY_PER_SLOT), key),
            before: 0,
            clock: 0,
        }
    }

    fn put(&mut self, places: &mut Places, slot: Slot, queue: usize) {
        places.marks[slot as usize] = queue as u8;
        self.queues[queue].push(&mut places.links, slot);
        self.known.get_mut(slot).expires = self.clock + LIFETIME;
    }

    /// One access passes: the oldest of each queue goes down if its time is over.
    fn adjust(&mut self, places: &mut Places) {
        self.clock += 1;
        for queue in 1..QUEUES {
            let slot = self.queues[queue].tail();
            if slot != NIL && self.known.get(slot).expires < self.clock {
                self.queues[queue].remove(&mut places.links, slot);
                self.put(places, slot, queue - 1);
            }
        }
    }
}

impl Policy for Mq {
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        let from = usize::from(places.marks[slot as usize]);
        let known = self.known.get_mut(slot);
        known.count = known.count.saturating_add(1);
        let to = queue_of(known.count);
        self.queues[from].remove(&mut places.links, slot);
        self.put(places, slot, to);
        self.adjust(places);
    }

    fn miss(&mut self, block: u64) -> Seen {
        let count = self.history.take(block);
        self.before = count.unwrap_or(0);
        if count.is_some() { Seen::Once } else { Seen::Never }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        for queue in &mut self.queues {
            if let Some(slot) = oldest(queue, &places.links, &may_evict, &mut search) {
                queue.remove(&mut places.links, slot);
                places.marks[slot as usize] = 0;
                self.history.push(keys[slot as usize], self.known.get(slot).count);
                return Some(slot);
            }
            if search.is_over() {
                break;
            }
        }
        None
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, seen: Seen) {
        let count = if seen == Seen::Never { 1 } else { self.before.saturating_add(1) };
        self.known.set(slot, Known { count, expires: 0 });
        self.put(places, slot, queue_of(count));
        self.adjust(places);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let queue = std::mem::take(&mut places.marks[slot as usize]);
        self.queues[usize::from(queue)].remove(&mut places.links, slot);
    }

    fn forget(&mut self, block: u64) {
        self.history.take(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let queue = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = queue;
        self.queues[usize::from(queue)].replace(&mut places.links, from, to);
        self.known.set(to, self.known.get(from));
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.history.resize(capacity.saturating_mul(HISTORY_PER_SLOT));
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.queues.iter().for_each(|q| q.iter(&places.links).for_each(&mut *visit));
    }

    fn memory_bytes(&self) -> usize {
        self.known.memory_bytes() + self.history.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        for (n, queue) in self.queues.iter().enumerate() {
            queue.check(&places.links);
            assert!(
                queue.iter(&places.links).all(|s| usize::from(places.marks[s as usize]) == n),
                "a mark is not its queue"
            );
        }
        assert_eq!(self.queues.iter().map(List::len).sum::<u32>(), occupied, "slots in the queues");
        self.history.check();
    }
}
