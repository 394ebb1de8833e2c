//! CACHEUS (Rodriguez et al., "Learning cache replacement with CACHEUS", FAST 2021), with SR-LRU and CR-LFU as experts.
//!
//! Owns two queues of the slots, their order by count, what each expert evicted of late, a weight for each expert, and
//! the rate at which the weights change. SR-LRU would evict the oldest of Q, where newcomers are and what S had no room
//! for; CR-LFU what was asked for least often, and of those the most recent. Each eviction follows one of them, drawn
//! by weight. Never learns from an eviction that both wanted. Invariants: every slot is in S or in Q; those demoted
//! from S are in Q; the weights are within [0.01, 0.99], sum 1.
//!
//! The rules are those of the authors' program. Its learning rate starts at sqrt(2 ln 2 / N) and starts again there,
//! where the paper draws one at random; a block that comes back has the count it left with; one that came as new counts
//! as new until SR-LRU has evicted it and it comes back, whatever hits it had.

mod rate;
#[cfg(test)]
mod tests;

use self::rate::Rate;
use super::heap::Heap;
use super::history::History;
use super::per_slot::Lots;
use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;
use std::cmp::Reverse;

/// Bits of a slot's mark: it is in S, else in Q; it came to Q from S; it was new when it came to Q.
const IN_S: u8 = 1;
const DEMOTED: u8 = 2;
const NEW: u8 = 4;

/// The experts, as indices.
const RECENCY: usize = 0;
const FREQUENCY: usize = 1;

const WEIGHT_MAX: f64 = 0.99;

/// What is remembered of a block that one expert evicted.
#[derive(Clone, Copy, Debug, Default)]
struct Evicted {
    count: u32,
    new: bool,
}

#[derive(Debug)]
pub(crate) struct Cacheus {
    capacity: u32,
    s: List,
    q: List,
    /// Slots that are to be in Q; the others are for S.
    q_max: u32,
    /// By count; ties go to the most recent.
    frequency: Heap<(u32, Reverse<u64>)>,
    evicted: [History<Evicted>; 2],
    /// Slots in Q that were demoted.
    demoted: u32,
    /// Blocks that SR-LRU evicted and that had come as new.
    new_evicted: u32,
    /// The weight of SR-LRU; that of CR-LFU is what remains.
    weight: f64,
    rate: Rate,
    lots: Lots,
    clock: u64,
    /// The count of the block that is about to come, if it comes back.
    returning: Option<u32>,
    /// Whether another one had to go for it.
    displacing: bool,
}

fn q_max_at_first(capacity: u32) -> u32 {
    ((f64::from(capacity) * 0.01 + 0.5) as u32).max(1)
}

/// By how much a queue grows: the ratio of the mistakes of the two kinds, at least 1.
fn growth(other: u32, own: u32) -> u32 {
    let own = u64::from(own.max(1));
    ((2 * u64::from(other) + own) / (2 * own)).max(1) as u32
}

impl Cacheus {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            capacity,
            s: List::new(),
            q: List::new(),
            q_max: q_max_at_first(capacity),
            frequency: Heap::new(capacity),
            evicted: [History::new(capacity / 2, key), History::new(capacity / 2, key)],
            demoted: 0,
            new_evicted: 0,
            weight: 0.5,
            rate: Rate::new(capacity),
            lots: Lots::new(key),
            clock: 0,
            returning: None,
            displacing: false,
        }
    }

    fn s_max(&self) -> u32 {
        self.capacity.saturating_sub(self.q_max)
    }

    fn tick(&mut self) {
        self.clock += 1;
        self.rate.tick(&mut self.lots);
    }

    /// The oldest of S go to Q until at most `s_max` are left.
    fn demote(&mut self, places: &mut Places, s_max: u32) {
        while self.s.len() > s_max {
            let slot = self.s.tail();
            self.s.remove(&mut places.links, slot);
            self.q.push(&mut places.links, slot);
            let mark = &mut places.marks[slot as usize];
            *mark = *mark & NEW | DEMOTED;
            self.demoted += 1;
        }
    }

    /// Takes a slot out of everything; returns its mark.
    fn take_out(&mut self, places: &mut Places, slot: Slot) -> u8 {
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        if mark & IN_S != 0 { &mut self.s } else { &mut self.q }.remove(&mut places.links, slot);
        self.demoted -= u32::from(mark & DEMOTED != 0);
        self.frequency.remove(slot);
        mark
    }

    fn remember(&mut self, expert: usize, block: u64, evicted: Evicted) {
        let gone = self.evicted[expert].push(block, evicted);
        if expert == RECENCY {
            self.new_evicted += u32::from(evicted.new);
            self.new_evicted -= u32::from(gone.is_some_and(|gone| gone.new));
        }
    }

    /// What is remembered of a block, and of whose evictions; forgets it.
    fn recall(&mut self, block: u64) -> Option<(usize, Evicted)> {
        for expert in [RECENCY, FREQUENCY] {
            if let Some(evicted) = self.evicted[expert].take(block) {
                self.new_evicted -= u32::from(expert == RECENCY && evicted.new);
                return Some((expert, evicted));
            }
        }
        None
    }

    /// The expert that evicted what is wanted again loses weight.
    fn learn(&mut self, expert: usize) {
        let shrink = (-self.rate.now).exp();
        let (recency, frequency) = match expert {
            RECENCY => (self.weight * shrink, 1.0 - self.weight),
            _ => (self.weight, (1.0 - self.weight) * shrink),
        };
        self.weight = (recency / (recency + frequency)).clamp(1.0 - WEIGHT_MAX, WEIGHT_MAX);
    }

    fn set_capacity(&mut self, places: &mut Places, capacity: u32) {
        self.q_max = match self.capacity {
            0 | 1 => q_max_at_first(capacity),
            before => {
                let share = u64::from(self.q_max) * u64::from(capacity) / u64::from(before);
                (share as u32).clamp(1, capacity.max(2) - 1)
            }
        };
        self.capacity = capacity;
        self.rate.set_period(capacity);
        self.demote(places, self.s_max());
    }
}

impl Policy for Cacheus {
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        self.tick();
        self.rate.hits += 1;
        let (count, _) = self.frequency.key(slot);
        self.frequency.change(slot, (count.saturating_add(1), Reverse(self.clock)));
        let mark = places.marks[slot as usize];
        if mark & IN_S != 0 {
            return self.s.renew(&mut places.links, slot);
        }
        if mark & DEMOTED != 0 {
            let shrunk = self.q_max.saturating_sub(growth(self.new_evicted, self.demoted));
            self.q_max = shrunk.max(1);
            self.demoted -= 1;
        }
        places.marks[slot as usize] = mark & NEW | IN_S;
        self.q.remove(&mut places.links, slot);
        self.s.push(&mut places.links, slot);
        self.demote(places, self.s_max());
    }

    fn miss(&mut self, block: u64) -> Seen {
        self.tick();
        self.displacing = false;
        self.returning = None;
        let Some((expert, evicted)) = self.recall(block) else { return Seen::Never };
        self.returning = Some(evicted.count);
        if expert == RECENCY && evicted.new {
            let grown = self.q_max.saturating_add(growth(self.demoted, self.new_evicted));
            self.q_max = grown.min(self.capacity.max(2) - 1);
        }
        self.learn(expert);
        Seen::Once
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        let by_recency = oldest(&self.q, &places.links, &may_evict, &mut search)
            .or_else(|| oldest(&self.s, &places.links, &may_evict, &mut search));
        let by_frequency = self.frequency.first_that(&may_evict, &mut Search::default()).map(|(_, slot)| slot);
        let follow_recency = self.lots.unit() < self.weight;
        let (slot, expert) = match (by_recency, by_frequency) {
            (Some(recency), Some(frequency)) if recency == frequency => (recency, None),
            (Some(recency), Some(_)) if follow_recency => (recency, Some(RECENCY)),
            (Some(_), Some(frequency)) => (frequency, Some(FREQUENCY)),
            (one, other) => (one.or(other)?, None),
        };
        let (count, _) = self.frequency.key(slot);
        let mark = self.take_out(places, slot);
        if let Some(expert) = expert {
            self.remember(expert, keys[slot as usize], Evicted { count, new: mark & NEW != 0 });
        }
        self.displacing = true;
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        let filling = !std::mem::take(&mut self.displacing);
        let returning = self.returning.take();
        let mark = match returning {
            Some(_) => IN_S,
            None if filling && self.q.len() == 0 && self.s.len() < self.s_max() => IN_S,
            None if filling && self.q.len() < self.q_max => 0,
            None => NEW,
        };
        places.marks[slot as usize] = mark;
        if mark == IN_S { &mut self.s } else { &mut self.q }.push(&mut places.links, slot);
        self.frequency.push(slot, (returning.unwrap_or(1), Reverse(self.clock)));
        if returning.is_some() || mark == NEW {
            // one place is left free for what is hit in Q
            self.demote(places, self.s_max().saturating_sub(1));
        }
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        self.take_out(places, slot);
    }

    fn forget(&mut self, block: u64) {
        self.recall(block);
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let mark = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = mark;
        if mark & IN_S != 0 { &mut self.s } else { &mut self.q }.replace(&mut places.links, from, to);
        self.frequency.moved(from, to);
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.set_capacity(places, limit);
    }

    fn resize(&mut self, places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.evicted.iter_mut().for_each(|h| h.resize(capacity / 2));
        self.new_evicted = self.evicted[RECENCY].values().filter(|evicted| evicted.new).count() as u32;
        self.set_capacity(places, capacity);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.q.iter(&places.links).chain(self.s.iter(&places.links)).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.frequency.memory_bytes() + self.evicted.iter().map(History::memory_bytes).sum::<usize>()
    }

    fn check(&self, places: &Places, occupied: u32) {
        let marked = |list: &List, bit: u8| {
            list.iter(&places.links).filter(|&slot| places.marks[slot as usize] & bit != 0).count() as u32
        };
        self.s.check(&places.links);
        self.q.check(&places.links);
        assert_eq!(self.s.len() + self.q.len(), occupied, "slots in S and Q");
        assert_eq!((marked(&self.s, IN_S), marked(&self.q, IN_S)), (self.s.len(), 0), "slots marked as in S");
        assert_eq!((marked(&self.s, DEMOTED), marked(&self.q, DEMOTED)), (0, self.demoted), "demoted slots");
        self.frequency.check(occupied);
        self.evicted.iter().for_each(History::check);
        let new = self.evicted[RECENCY].values().filter(|evicted| evicted.new).count();
        assert_eq!(self.new_evicted as usize, new, "new blocks that SR-LRU evicted");
        assert!(self.q_max >= 1 && self.q_max < self.capacity.max(2), "Q is to have {}", self.q_max);
        let within = 1.0 - WEIGHT_MAX..=WEIGHT_MAX;
        assert!(within.contains(&self.weight), "the weight is {}", self.weight);
        self.rate.check();
    }
}
