//! W-TinyLFU (Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM ToS 2017).
//!
//! Owns a small window (an LRU queue for newcomers), a main part (segmented LRU: probation and protected), and a
//! sketch of how often blocks were asked for. What falls out of the window must be asked for more often than the main
//! part's next victim, or it goes. Never searches: no ghosts.
//! Invariant: each occupied slot is in the queue that its mark says; protected is longer than its target only for a
//! while after that has become smaller.
//!
//! Parameters and rules are those of libCacheSim 0.3.5, peculiarities included, so that miss counts agree with its;
//! docs/decisions/0011 names them and what they cost.

use crate::policy::{Policy, Search, Seen, oldest};
use crate::structures::array::Release;
use crate::structures::list::List;
use crate::structures::places::Places;
use crate::structures::sketch::Sketch;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;

/// The queues, as indices and as marks.
const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// The sketch ages after this many hits in the main part per slot of it.
const HITS_PER_AGE: u64 = 32;
/// Blocks that one miss moves from the window to a main part with room. Only while a new cache first becomes full are
/// there more to move (nearly all: until then everything is in the window).
const MOVES_MAX: u32 = 64;
/// Blocks that one call takes out of protected at most, where that is longer than its target has become.
const SHORTEN_MAX: u32 = 64;

#[derive(Debug)]
pub(crate) struct WTinyLfu {
    targets: Targets,
    queues: [List; 3],
    sketch: Sketch,
    /// Entries that the sketch is to be made for: it gets there in steps.
    entries: u32,
    /// Hits in the main part since the sketch last aged.
    hits: u64,
    /// An eviction from probation that a hit called for; the next miss carries it out.
    owed: bool,
}

/// How many slots each part may take.
#[derive(Clone, Copy, Debug)]
struct Targets {
    /// A hundredth is left to the window.
    main: u32,
    /// A fifth of the main part.
    probation: u32,
    /// Four fifths of it.
    protected: u32,
}

impl Targets {
    fn new(capacity: u32) -> Self {
        let main = capacity - (capacity / 100).max(1).min(capacity);
        // both rounded down: see `WTinyLfu::promote`
        Self { main, probation: main / 5, protected: (u64::from(main) * 4 / 5) as u32 }
    }
}

impl WTinyLfu {
    fn len(&self, queue: u8) -> u32 {
        self.queues[usize::from(queue)].len()
    }

    fn main_len(&self) -> u32 {
        self.len(PROBATION) + self.len(PROTECTED)
    }

    /// Takes a slot out of the queue it is in, and puts it at the head of another one.
    fn transfer(&mut self, places: &mut Places, slot: Slot, to: u8) {
        self.remove(places, slot);
        self.put(places, slot, to);
    }

    fn put(&mut self, places: &mut Places, slot: Slot, queue: u8) {
        places.marks[slot as usize] = queue;
        self.queues[usize::from(queue)].push(&mut places.links, slot);
    }

    /// Moves a slot from the window to the lowest segment of the main part that has room.
    fn enter_main(&mut self, places: &mut Places, slot: Slot) {
        let probation_full = self.len(PROBATION) >= self.targets.probation;
        let to = if probation_full && self.len(PROTECTED) < self.targets.protected { PROTECTED } else { PROBATION };
        self.transfer(places, slot, to);
    }

    /// A hit in probation: the block becomes protected, and the coldest protected one takes its place.
    ///
    /// Where rounding leaves the two segments one slot short of the main part, probation then holds one more than its
    /// target, and the reference evicts from it at once. A hit never evicts here: the next miss does.
    fn promote(&mut self, places: &mut Places, slot: Slot) {
        self.transfer(places, slot, PROTECTED);
        if self.len(PROTECTED) > self.targets.protected {
            let coldest = self.queues[usize::from(PROTECTED)].tail();
            self.transfer(places, coldest, PROBATION);
            if self.len(PROBATION) > self.targets.probation && self.main_len() >= self.targets.main {
                self.owed = true;
            }
        }
    }

    /// Segments that are too long shrink as their blocks are evicted, but protected is not a victim's place: it gives
    /// blocks to probation, at most `most` at once. Returns how many.
    fn shorten_protected(&mut self, places: &mut Places, most: u32) -> u32 {
        let some = self.len(PROTECTED).saturating_sub(self.targets.protected).min(most);
        for _ in 0..some {
            let coldest = self.queues[usize::from(PROTECTED)].tail();
            self.transfer(places, coldest, PROBATION);
        }
        some
    }

    fn oldest(
        &self,
        places: &Places,
        queue: u8,
        may_evict: &impl Fn(Slot) -> bool,
        search: &mut Search,
    ) -> Option<Slot> {
        oldest(&self.queues[usize::from(queue)], &places.links, may_evict, search)
    }
}

impl WTinyLfu {
    pub fn new(capacity: u32, key: HashKey) -> Self {
        let targets = Targets::new(capacity);
        Self {
            targets,
            queues: [const { List::new() }; 3],
            sketch: Sketch::new(targets.main, key),
            entries: targets.main,
            hits: 0,
            owed: false,
        }
    }
}

impl Policy for WTinyLfu {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64) {
        match places.marks[slot as usize] {
            PROBATION => self.promote(places, slot),
            queue => self.queues[usize::from(queue)].renew(&mut places.links, slot),
        }
        if places.marks[slot as usize] != WINDOW {
            self.sketch.add(block);
            self.hits += 1;
            if self.hits >= HITS_PER_AGE * u64::from(self.targets.main) {
                self.hits = 0;
                self.sketch.age();
            }
        }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        self.shorten_protected(places, SHORTEN_MAX);
        let mut search = Search::default();
        if std::mem::take(&mut self.owed)
            && let Some(slot) = self.oldest(places, PROBATION, &may_evict, &mut search)
        {
            self.remove(places, slot);
            return Some(slot);
        }
        for _ in 0..MOVES_MAX {
            if self.len(WINDOW) == 0 || self.main_len() >= self.targets.main {
                break;
            }
            let slot = self.queues[usize::from(WINDOW)].tail();
            self.enter_main(places, slot);
            self.sketch.add(keys[slot as usize]);
        }
        let candidate = self.oldest(places, WINDOW, &may_evict, &mut search);
        let resident = self
            .oldest(places, PROBATION, &may_evict, &mut search)
            .or_else(|| self.oldest(places, PROTECTED, &may_evict, &mut search));
        let victim = match (candidate, resident) {
            (Some(candidate), Some(resident)) => {
                let block = keys[candidate as usize];
                let wins = self.sketch.estimate(block) > self.sketch.estimate(keys[resident as usize]);
                self.sketch.add(block);
                if wins {
                    self.remove(places, resident);
                    self.enter_main(places, candidate);
                    return Some(resident);
                }
                candidate
            }
            (one, other) => one.or(other)?,
        };
        self.remove(places, victim);
        Some(victim)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, _seen: Seen) {
        self.put(places, slot, WINDOW);
        self.sketch.add(block);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let queue = std::mem::take(&mut places.marks[slot as usize]);
        self.queues[usize::from(queue)].remove(&mut places.links, slot);
    }

    /// The sketch cannot forget one block; others share its counters.
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        let queue = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = queue;
        self.queues[usize::from(queue)].replace(&mut places.links, from, to);
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.targets = Targets::new(limit);
        self.shorten_protected(places, SHORTEN_MAX);
    }

    fn resize(&mut self, _places: &mut Places, capacity: u32, _keys: &[u64]) {
        self.targets = Targets::new(capacity);
        self.entries = self.targets.main;
    }

    fn step(&mut self, places: &mut Places, left: &mut u32) -> bool {
        *left -= self.shorten_protected(places, *left);
        self.len(PROTECTED) <= self.targets.protected && self.sketch.step(self.entries, left)
    }

    fn reserve(&mut self, most: u32) {
        self.sketch.reserve(Targets::new(most).main);
    }

    fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.sketch.release(by, bytes);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        for queue in [PROBATION, WINDOW, PROTECTED] {
            self.queues[usize::from(queue)].iter(&places.links).for_each(&mut *visit);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.sketch.memory_bytes()
    }

    fn check(&self, places: &Places, occupied: u32) {
        for queue in [WINDOW, PROBATION, PROTECTED] {
            let list = &self.queues[usize::from(queue)];
            list.check(&places.links);
            assert!(
                list.iter(&places.links).all(|s| places.marks[s as usize] == queue),
                "a slot of {queue} is mismarked"
            );
        }
        assert_eq!(self.len(WINDOW) + self.main_len(), occupied, "slots in the queues");
    }
}
