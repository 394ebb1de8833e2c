//! LeCaR (Vietri et al., "Driving cache replacement with ML-based LeCaR", HotStorage 2018).
//!
//! Owns an LRU queue and LFU classes of the same slots, a weight for each of the two, and what each of them evicted of
//! late. A miss on what one of them evicted shifts weight to the other; each eviction follows one, drawn by
//! weight.
//! Never learns from an eviction that both wanted.
//! Invariants: the weights are positive and sum to 1; queue and classes hold the same slots.
//!
//! Learning rate 0.45, discount 0.005^(1/N), histories of half the slots each: libCacheSim 0.3.5, after the authors'.

use super::frequencies::Frequencies;
use super::history::History;
use super::per_slot::Lots;
use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::list::{Links, List};
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

const LEARNING_RATE: f64 = 0.45;
const DISCOUNT_BASE: f64 = 0.005;
/// Keeps a weight from becoming 0.
const WEIGHT_MIN: f64 = 1e-10;

#[derive(Debug)]
pub(crate) struct LeCar {
    recency: List,
    frequencies: Frequencies,
    frequency_links: Links,
    /// Slots that `frequency_links` has room for.
    room: u32,
    /// When blocks were evicted by LRU's choice, and by LFU's.
    evicted: [History<u64>; 2],
    /// The weight of LRU; that of LFU is what remains.
    weight: f64,
    discount: f64,
    lots: Lots,
    clock: u64,
}

fn discount(capacity: u32) -> f64 {
    DISCOUNT_BASE.powf(1.0 / f64::from(capacity.max(1)))
}

impl LeCar {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            recency: List::new(),
            frequencies: Frequencies::new(capacity),
            frequency_links: Links::new(capacity as usize),
            room: capacity,
            evicted: [History::new(capacity / 2, key), History::new(capacity / 2, key)],
            weight: 0.5,
            discount: discount(capacity),
            lots: Lots::new(key),
            clock: 0,
        }
    }

    fn reach(&mut self, slot: Slot) {
        if slot >= self.room {
            self.room = slot + 1;
            self.frequency_links.resize(self.room as usize);
        }
    }

    /// The one of the two that evicted what is wanted again loses weight, the less the longer ago that was.
    fn learn(&mut self, lru: bool, evicted: u64) {
        let regret = self.discount.powf((self.clock - evicted) as f64);
        let shrink = (-LEARNING_RATE * regret).exp();
        let (w_lru, w_lfu) = (self.weight, 1.0 - self.weight);
        let (w_lru, w_lfu) = if lru { (w_lru * shrink, w_lfu) } else { (w_lru, w_lfu * shrink) };
        self.weight = (w_lru + WEIGHT_MIN) / (w_lru + w_lfu + 2.0 * WEIGHT_MIN);
    }
}

impl Policy for LeCar {
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        self.clock += 1;
        self.recency.renew(&mut places.links, slot);
        self.frequencies.touch(&mut self.frequency_links, slot);
    }

    fn miss(&mut self, block: u64) -> Seen {
        self.clock += 1;
        for (lru, n) in [(true, 0), (false, 1)] {
            if let Some(evicted) = self.evicted[n].take(block) {
                self.learn(lru, evicted);
                return Seen::Once;
            }
        }
        Seen::Never
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let by_lru = oldest(&self.recency, &places.links, &may_evict, &mut Search::default());
        let by_lfu = self.frequencies.least(&self.frequency_links, &may_evict, &mut Search::default());
        let follow_lru = self.lots.unit() < self.weight;
        let slot = match (by_lru, by_lfu) {
            (Some(lru), Some(lfu)) if lru == lfu => lru,
            (Some(lru), Some(lfu)) => {
                let (slot, n) = if follow_lru { (lru, 0) } else { (lfu, 1) };
                self.evicted[n].push(keys[slot as usize], self.clock);
                slot
            }
            (one, other) => one.or(other)?,
        };
        self.remove(places, slot);
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.reach(slot);
        self.recency.push(&mut places.links, slot);
        self.frequencies.add(&mut self.frequency_links, slot, 1);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.recency.remove(&mut places.links, slot);
        self.frequencies.remove(&mut self.frequency_links, slot);
    }

    fn forget(&mut self, block: u64) {
        self.evicted.iter_mut().for_each(|h| _ = h.take(block));
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.reach(to);
        self.recency.replace(&mut places.links, from, to);
        self.frequencies.moved(&mut self.frequency_links, from, to);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.discount = discount(capacity);
        self.evicted.iter_mut().for_each(|h| h.resize(capacity / 2));
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.recency.iter(&places.links).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.frequencies.memory_bytes()
            + self.frequency_links.memory_bytes()
            + self.evicted.iter().map(History::memory_bytes).sum::<usize>()
    }

    fn check(&self, places: &Places, occupied: u32) {
        self.recency.check(&places.links);
        assert_eq!(self.recency.len(), occupied, "slots by recency");
        self.frequencies.check(&self.frequency_links, occupied);
        self.evicted.iter().for_each(History::check);
        assert!(self.weight > 0.0 && self.weight < 1.0, "the weight is {}", self.weight);
    }
}
