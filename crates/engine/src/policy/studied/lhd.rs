//! LHD: least hit density (Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit Density", NSDI
//! 2018), for blocks of one size.
//!
//! Owns for each slot when it was last asked for and how old it then was, and for each class of slots how many were hit
//! and evicted at each age. From that, now and then, the hits to be expected per access for which a block of that age
//! still takes a slot; of slots drawn at random, and those that came last and looked bad, the one with the fewest goes.
//! Never keeps any order.
//! Invariant: random numbers depend on the key and on how many were drawn, so replays with the same key agree.
//!
//! Classes by the ages at the last two hits, and all parameters, are those of the authors' code, as libCacheSim 0.3.5
//! has it.

use super::per_slot::{Lots, Members, PerSlot};
use crate::policy::{Policy, Search, Seen};
use crate::structures::list::NIL;
use crate::structures::places::Places;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

const CLASSES: usize = 16;
const AGES: usize = 20_000;
/// Slots drawn for an eviction, and while little is known.
const SAMPLE: u32 = 32;
const SAMPLE_EARLY: u32 = 8;
/// Slots that came last and looked as bad as victims do; they are asked too.
const NEWCOMERS: usize = 8;
/// Accesses between two looks at what was learned.
const INTERVAL: u64 = 1 << 20;
/// What was learned counts so much less after each.
const DECAY: f32 = 0.9;
/// Intervals in which little is known.
const EARLY: u32 = 50;
/// Of so many accesses one marks a block that stays, to learn about great ages; at most a hundredth of the slots.
const EXPLORE_ONE_IN: u32 = 32;
/// Intervals after which ages are given the scale that the number of blocks asks for.
const RESCALE: [u32; 2] = [5, 25];
const SCALE_TOLERANCE: f32 = 0.01;
const SHIFT_FIRST: u32 = 10;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    asked: u64,
    last_age: u32,
    age_before: u32,
    explorer: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Events {
    hits: f32,
    evictions: f32,
    density: f32,
}

#[derive(Debug)]
pub(crate) struct Lhd {
    members: Members,
    known: PerSlot<Known>,
    /// By class, then age.
    events: Vec<Events>,
    newcomers: [Slot; NEWCOMERS],
    newcomer: usize,
    /// The usual density of victims.
    victims: f32,
    explorers_left: i64,
    shift: u32,
    intervals: u32,
    /// Mean number of blocks: the sum and its weight.
    blocks: (f32, f32),
    lots: Lots,
    clock: u64,
}

fn explorers_max(capacity: u32) -> i64 {
    i64::from(capacity / 100)
}

/// Something like the logarithm of what is left to the largest age.
fn class_of(age: u32) -> usize {
    if age == 0 {
        return CLASSES - 1;
    }
    let doublings = (0..CLASSES).take_while(|&n| (u64::from(age) << n) < AGES as u64).count();
    doublings.min(CLASSES - 1)
}

impl Lhd {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        let mut events = vec![Events::default(); CLASSES * AGES];
        for (n, event) in events.iter_mut().enumerate() {
            // to begin with, the later class is the better and the older block the worse; the authors' code numbers
            // the classes of its usual application from 16 on
            event.density = (n / AGES + 1 + CLASSES) as f32 / (n % AGES + 1) as f32;
        }
        Self {
            members: Members::new(capacity),
            known: PerSlot::new(capacity),
            events,
            newcomers: [NIL; NEWCOMERS],
            newcomer: 0,
            victims: 0.0,
            explorers_left: explorers_max(capacity),
            shift: SHIFT_FIRST,
            intervals: 0,
            blocks: (0.0, 0.0),
            lots: Lots::new(key),
            clock: 0,
        }
    }

    fn age(&self, known: Known) -> usize {
        (((self.clock - known.asked) >> self.shift) as usize).min(AGES - 1)
    }

    fn event(&self, known: Known) -> usize {
        class_of(known.last_age + known.age_before) * AGES + self.age(known)
    }

    fn density(&self, slot: Slot) -> f32 {
        let known = self.known.get(slot);
        // an explorer stays
        if known.explorer { f32::MAX } else { self.events[self.event(known)].density }
    }

    /// One access passes, to a block in `slot`.
    fn pass(&mut self, slot: Slot, mut known: Known, new: bool) {
        known.asked = self.clock;
        let explores = self.lots.below(EXPLORE_ONE_IN) == 0;
        known.explorer = explores && self.explorers_left > 0 && self.intervals < EARLY;
        self.explorers_left -= i64::from(known.explorer);
        self.known.set(slot, known);
        if new && !explores && self.density(slot) < self.victims {
            self.newcomers[self.newcomer] = slot;
            self.newcomer = (self.newcomer + 1) % NEWCOMERS;
        }
        self.clock += 1;
        if self.clock.is_multiple_of(INTERVAL) {
            self.learn();
        }
    }

    fn learn(&mut self) {
        for event in &mut self.events {
            event.hits *= DECAY;
            event.evictions *= DECAY;
        }
        self.blocks = (self.blocks.0 * DECAY + self.members.len() as f32, self.blocks.1 * DECAY + 1.0);
        if RESCALE.contains(&self.intervals) {
            self.rescale();
        }
        self.intervals += 1;
        for class in self.events.chunks_mut(AGES) {
            // from the greatest age down: hits and events to come, and accesses that pass until then
            let (mut hits, mut events, mut passed) = (0.0, 0.0, 0.0);
            for event in class.iter_mut().rev() {
                hits += event.hits;
                events += event.hits + event.evictions;
                passed += events;
                event.density = if events > 1e-5 { hits / passed } else { 0.0 };
            }
        }
    }

    /// Ages in steps so long that few blocks grow older than the largest.
    fn rescale(&mut self) {
        let steps = self.blocks.0 / self.blocks.1 / (SCALE_TOLERANCE * AGES as f32);
        let shift = (steps.max(2.0).log2().ceil() as u32).clamp(1, 40);
        let by = shift as i32 - self.shift as i32;
        self.shift = shift;
        self.blocks = (self.blocks.0 * 8.0, self.blocks.1 * 8.0);
        for class in self.events.chunks_mut(AGES) {
            let old = class.to_vec();
            for event in class.iter_mut() {
                (event.hits, event.evictions) = (0.0, 0.0);
            }
            for (age, event) in old.iter().enumerate() {
                let copies = if by < 0 { 1usize << (-by).min(20) } else { 1 };
                let first = if by < 0 { age * copies } else { age >> by.min(20) };
                for to in first..first + copies {
                    let to = &mut class[to.min(AGES - 1)];
                    to.hits += event.hits / copies as f32;
                    to.evictions += event.evictions / copies as f32;
                }
            }
        }
    }

    fn drop_explorer(&mut self, known: Known) {
        self.explorers_left += i64::from(known.explorer);
    }
}

impl Policy for Lhd {
    fn touch(&mut self, _places: &mut Places, slot: Slot, _block: u64) {
        let known = self.known.get(slot);
        let event = self.event(known);
        self.events[event].hits += 1.0;
        self.drop_explorer(known);
        let last_age = self.age(known) as u32;
        self.pass(slot, Known { last_age, age_before: known.last_age, ..known }, false);
    }

    fn victim(
        &mut self,
        places: &mut Places,
        _keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let mut search = Search::default();
        let mut least: Option<(f32, Slot)> = None;
        let sample = if self.intervals > EARLY { SAMPLE } else { SAMPLE_EARLY };
        for n in 0..sample as usize + NEWCOMERS {
            let slot = match n.checked_sub(sample as usize) {
                None => self.members.draw(&mut self.lots)?,
                Some(newcomer) if self.newcomers[newcomer] == NIL => continue,
                Some(newcomer) => self.newcomers[newcomer],
            };
            if !may_evict(slot) {
                if search.refused() {
                    break;
                }
                continue;
            }
            let density = self.density(slot);
            if least.is_none_or(|(d, _)| density < d) {
                least = Some((density, slot));
            }
        }
        let (density, slot) = least?;
        self.victims = DECAY * self.victims + (1.0 - DECAY) * density.min(1.0);
        let event = self.event(self.known.get(slot));
        self.events[event].evictions += 1.0;
        self.remove(places, slot);
        Some(slot)
    }

    fn insert(&mut self, _places: &mut Places, slot: Slot, _block: u64, _seen: Seen) {
        self.members.add(slot);
        self.pass(slot, Known { last_age: 0, age_before: AGES as u32, ..Known::default() }, true);
    }

    fn remove(&mut self, _places: &mut Places, slot: Slot) {
        self.drop_explorer(self.known.get(slot));
        self.members.remove(slot);
        self.newcomers.iter_mut().filter(|s| **s == slot).for_each(|s| *s = NIL);
    }

    fn moved(&mut self, _places: &mut Places, from: Slot, to: Slot) {
        self.members.moved(from, to);
        self.known.set(to, self.known.get(from));
        self.newcomers.iter_mut().filter(|s| **s == from).for_each(|s| *s = to);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        let explorers = self.members.iter().filter(|&s| self.known.get(s).explorer).count();
        self.explorers_left = explorers_max(capacity) - explorers as i64;
    }

    fn coldest_first(&self, _places: &Places, visit: &mut dyn FnMut(Slot)) {
        let mut slots: Vec<Slot> = self.members.iter().collect();
        slots.sort_by(|&a, &b| self.density(a).total_cmp(&self.density(b)));
        slots.into_iter().for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.members.memory_bytes() + self.known.memory_bytes() + self.events.capacity() * size_of::<Events>()
    }

    fn check(&self, _places: &Places, occupied: u32) {
        self.members.check(occupied);
        let mut newcomers = self.newcomers.iter().filter(|&&s| s != NIL);
        assert!(newcomers.all(|&s| self.members.iter().any(|m| m == s)), "a newcomer that is gone");
    }
}
