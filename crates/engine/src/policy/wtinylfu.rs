//! W-TinyLFU
use super::fifo::oldest;
use super::{Policy, Search, Seen};
use crate::index::Slot;
use crate::list::{Links, List, resize_exact};
use crate::sketch::Sketch;
use crate::table::HashKey;

const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

#[derive(Debug)]
pub(crate) struct WTinyLfu {
    capacity: u32,
    links: Links,
    window: List,
    probation: List,
    protected: List,
    /// Which queue an occupied slot is in.
    queue: Vec<u8>,
    sketch: Sketch,
    hits: u64,
}

fn window_target(capacity: u32) -> u32 {
    (capacity / 100).max(1)
}
fn main_target(capacity: u32) -> u32 {
    capacity - window_target(capacity)
}
fn probation_target(capacity: u32) -> u32 {
    main_target(capacity) / 5
}
fn protected_target(capacity: u32) -> u32 {
    main_target(capacity) - probation_target(capacity)
}

impl WTinyLfu {
    fn into_main(&mut self, slot: Slot) {
        if self.probation.len() < probation_target(self.capacity)
            || self.protected.len() >= protected_target(self.capacity)
        {
            self.queue[slot as usize] = PROBATION;
            self.probation.push(&mut self.links, slot);
        } else {
            self.queue[slot as usize] = PROTECTED;
            self.protected.push(&mut self.links, slot);
        }
    }
}

impl Policy for WTinyLfu {
    fn new(capacity: u32, key: HashKey) -> Self {
        Self {
            capacity,
            links: Links::new(capacity as usize),
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            queue: vec![0; capacity as usize],
            sketch: Sketch::new(capacity, key),
            hits: 0,
        }
    }

    #[inline]
    fn touch(&mut self, slot: Slot, block: u64) {
        match self.queue[slot as usize] {
            WINDOW => return self.window.renew(&mut self.links, slot),
            PROTECTED => self.protected.renew(&mut self.links, slot),
            _ => {
                self.probation.remove(&mut self.links, slot);
                self.protected.push(&mut self.links, slot);
                self.queue[slot as usize] = PROTECTED;
                if self.protected.len() > protected_target(self.capacity) {
                    let cool = self.protected.tail();
                    self.protected.remove(&mut self.links, cool);
                    self.probation.push(&mut self.links, cool);
                    self.queue[cool as usize] = PROBATION;
                }
            }
        }
        self.sketch.add(block);
        self.hits += 1;
        if self.hits >= 32 * u64::from(main_target(self.capacity)) {
            self.hits = 0;
            self.sketch.halve();
        }
    }

    fn miss(&mut self, _block: u64) -> Seen {
        Seen::Never
    }

    fn victim(&mut self, keys: &[u64], may_evict: impl Fn(Slot) -> bool, _seen: Seen) -> Option<Slot> {
        let mut search = Search::default();
        while self.window.len() > 0 && self.probation.len() + self.protected.len() < main_target(self.capacity) {
            let slot = self.window.tail();
            self.window.remove(&mut self.links, slot);
            self.into_main(slot);
            self.sketch.add(keys[slot as usize]);
        }
        let candidate = oldest(&self.window, &self.links, &may_evict, &mut search);
        let main = oldest(&self.probation, &self.links, &may_evict, &mut search)
            .or_else(|| oldest(&self.protected, &self.links, &may_evict, &mut search));
        let slot = match (candidate, main) {
            (Some(c), Some(m)) => {
                let wins = self.sketch.estimate(keys[c as usize]) > self.sketch.estimate(keys[m as usize]);
                self.sketch.add(keys[c as usize]);
                if wins {
                    self.remove(m);
                    self.window.remove(&mut self.links, c);
                    self.into_main(c);
                    return Some(m);
                }
                c
            }
            (one, other) => one.or(other)?,
        };
        self.remove(slot);
        Some(slot)
    }

    fn insert(&mut self, slot: Slot, block: u64, _seen: Seen) {
        self.window.push(&mut self.links, slot);
        self.queue[slot as usize] = WINDOW;
        self.sketch.add(block);
    }

    fn remove(&mut self, slot: Slot) {
        match self.queue[slot as usize] {
            WINDOW => &mut self.window,
            PROBATION => &mut self.probation,
            _ => &mut self.protected,
        }
        .remove(&mut self.links, slot);
    }

    fn forget(&mut self, _block: u64) {}

    fn moved(&mut self, from: Slot, to: Slot) {
        self.queue[to as usize] = self.queue[from as usize];
        match self.queue[from as usize] {
            WINDOW => &mut self.window,
            PROBATION => &mut self.probation,
            _ => &mut self.protected,
        }
        .replace(&mut self.links, from, to);
    }

    fn resize(&mut self, capacity: u32, _keys: &[u64]) {
        self.capacity = capacity;
        self.links.resize(capacity as usize);
        resize_exact(&mut self.queue, capacity as usize, 0);
    }

    fn coldest_first(&self, visit: &mut dyn FnMut(Slot)) {
        self.probation
            .iter(&self.links)
            .chain(self.window.iter(&self.links))
            .chain(self.protected.iter(&self.links))
            .for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.queue.capacity() + self.sketch.memory_bytes()
    }

    fn check(&self, _occupied: u32) {}
}
