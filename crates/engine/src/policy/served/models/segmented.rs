//! Reference models of the policies with a place for newcomers: S3-FIFO and S4-FIFO, which is the same with other
//! knobs, and W-TinyLFU.

use crate::policy::model::{MayEvict, ReferenceModel, oldest, take};
use crate::policy::studied::s4queues::Knobs;
use crate::structures::sketch::Sketch;
use crate::structures::table::HashKey;
use crate::structures::table::SIMULATION_SEED;
use std::collections::BTreeMap;

pub(crate) struct S3Fifo {
    knobs: Knobs,
    capacity: usize,
    small: Vec<u64>,
    main: Vec<u64>,
    ghosts: Vec<u64>,
    hits: BTreeMap<u64, u32>,
    /// Of the blocks in small and the ghosts.
    ghost_hits: BTreeMap<u64, u8>,
    /// All that ever came to small, oldest first.
    came: Vec<u64>,
}

impl S3Fifo {
    pub fn new(capacity: usize) -> Self {
        Self::with_knobs(Knobs { small: 10, proven: 2, ghost_hits: 0, ghosts: 90, skip: 0 }, capacity)
    }

    /// S4-FIFO.
    pub fn with_knobs(knobs: Knobs, capacity: usize) -> Self {
        let (small, main, ghosts, came) = Default::default();
        Self { knobs, capacity, small, main, ghosts, hits: BTreeMap::new(), ghost_hits: BTreeMap::new(), came }
    }

    fn small_target(&self) -> usize {
        usize::max(1, self.capacity * self.knobs.small as usize / 100)
    }

    fn ghosts_max(&self) -> usize {
        self.capacity * self.knobs.ghosts as usize / 100
    }

    fn is_proven(&self, block: u64) -> bool {
        self.hits[&block] >= u32::from(self.knobs.proven)
    }

    /// Whether a block of small is still among the newest, whose hits do not count.
    fn is_too_new(&self, block: u64) -> bool {
        let newer = self.came.iter().rev().take_while(|&&b| b != block).count();
        newer < self.small_target() * self.knobs.skip as usize / 100
    }

    fn evict_small(&mut self, may_evict: MayEvict) -> Option<u64> {
        // the proven ones on the way to the victim move to main, whether they may be evicted or not
        let victim = self.small.iter().position(|&b| !self.is_proven(b) && may_evict(b));
        let proven: Vec<u64> =
            self.small[..victim.unwrap_or(self.small.len())].iter().copied().filter(|&b| self.is_proven(b)).collect();
        let victim = victim.map(|at| self.small[at]);
        for block in proven {
            take(&mut self.small, block);
            self.main.push(block);
            self.hits.insert(block, 0);
            self.ghost_hits.remove(&block);
        }
        let victim = victim?;
        take(&mut self.small, victim);
        self.hits.remove(&victim);
        self.ghosts.push(victim);
        if self.ghosts.len() > self.ghosts_max() {
            let forgotten = self.ghosts.remove(0);
            self.ghost_hits.remove(&forgotten);
        }
        Some(victim)
    }

    fn evict_main(&mut self, may_evict: MayEvict) -> Option<u64> {
        loop {
            let block = self.main.remove(oldest(&self.main, may_evict)?);
            match self.hits[&block] {
                0 => {
                    self.hits.remove(&block);
                    return Some(block);
                }
                n => {
                    self.hits.insert(block, n.min(3) - 1);
                    self.main.push(block);
                }
            }
        }
    }
}

impl ReferenceModel for S3Fifo {
    fn hit(&mut self, block: u64) {
        if self.small.contains(&block) && self.is_too_new(block) {
            return;
        }
        *self.hits.get_mut(&block).expect("present") += 1;
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        let known = take(&mut self.ghosts, block);
        let before = self.ghost_hits.remove(&block).unwrap_or(0);
        let ghost_hits = if known { before + 1 } else { 0 };
        let evicted = if full { Some(self.evict(may_evict).ok_or(())?) } else { None };
        let to_main = ghost_hits > self.knobs.ghost_hits || (!full && self.small.len() >= self.small_target());
        if to_main {
            self.main.push(block);
        } else {
            self.small.push(block);
            self.came.push(block);
            self.ghost_hits.insert(block, ghost_hits);
        }
        self.hits.insert(block, 0);
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        let main_target = self.capacity.saturating_sub(self.small_target());
        if self.main.len() > main_target || self.small.is_empty() {
            self.evict_main(may_evict).or_else(|| self.evict_small(may_evict))
        } else {
            self.evict_small(may_evict).or_else(|| self.evict_main(may_evict))
        }
    }

    fn remove(&mut self, block: u64) {
        let _ = take(&mut self.small, block) || take(&mut self.main, block) || take(&mut self.ghosts, block);
        self.hits.remove(&block);
        self.ghost_hits.remove(&block);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        let too_many = self.ghosts.len().saturating_sub(self.ghosts_max());
        self.ghosts.drain(..too_many);
    }

    fn coldest_first(&self) -> Vec<u64> {
        let proven = u32::from(self.knobs.proven);
        let of = |queue: &[u64], hits: &dyn Fn(u32) -> bool| -> Vec<u64> {
            queue.iter().copied().filter(|b| hits(self.hits[b])).collect()
        };
        [
            of(&self.small, &|n| n < proven),
            of(&self.main, &|n| n == 0),
            of(&self.small, &|n| n >= proven),
            of(&self.main, &|n| n == 1),
            of(&self.main, &|n| n == 2),
            of(&self.main, &|n| n >= 3),
        ]
        .concat()
    }
}

pub(crate) struct WTinyLfu {
    capacity: usize,
    window: Vec<u64>,
    probation: Vec<u64>,
    protected: Vec<u64>,
    sketch: Sketch,
    main_hits: usize,
    owed: bool,
}

impl WTinyLfu {
    pub fn new(capacity: usize) -> Self {
        let (window, probation, protected) = Default::default();
        let mut model =
            Self { capacity, window, probation, protected, sketch: Sketch::new(0, key()), main_hits: 0, owed: false };
        model.sketch = Sketch::new(model.main_target() as u32, key());
        model
    }

    fn main_target(&self) -> usize {
        self.capacity.saturating_sub(usize::max(1, self.capacity / 100))
    }

    fn protected_target(&self) -> usize {
        self.main_target() * 4 / 5
    }

    fn main_full(&self) -> bool {
        self.probation.len() + self.protected.len() >= self.main_target()
    }

    fn enter_main(&mut self, block: u64) {
        take(&mut self.window, block);
        if self.probation.len() >= self.main_target() / 5 && self.protected.len() < self.protected_target() {
            self.protected.push(block);
        } else {
            self.probation.push(block);
        }
    }
}

impl ReferenceModel for WTinyLfu {
    fn hit(&mut self, block: u64) {
        if take(&mut self.window, block) {
            self.window.push(block);
            return;
        }
        if take(&mut self.protected, block) {
            self.protected.push(block);
        } else {
            take(&mut self.probation, block);
            self.protected.push(block);
            if self.protected.len() > self.protected_target() {
                let coldest = self.protected.remove(0);
                self.probation.push(coldest);
                self.owed |= self.probation.len() > self.main_target() / 5 && self.main_full();
            }
        }
        self.sketch.add(block);
        self.main_hits += 1;
        if self.main_hits >= 32 * self.main_target() {
            self.main_hits = 0;
            self.sketch.age();
        }
    }

    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()> {
        let evicted = if full { Some(self.evict(may_evict).ok_or(())?) } else { None };
        self.window.push(block);
        self.sketch.add(block);
        Ok(evicted)
    }

    fn evict(&mut self, may_evict: MayEvict) -> Option<u64> {
        if std::mem::take(&mut self.owed)
            && let Some(at) = oldest(&self.probation, may_evict)
        {
            return Some(self.probation.remove(at));
        }
        while !self.window.is_empty() && !self.main_full() {
            let block = self.window[0];
            self.enter_main(block);
            self.sketch.add(block);
        }
        let newcomer = oldest(&self.window, may_evict).map(|at| self.window[at]);
        let main: Vec<u64> = [&self.probation[..], &self.protected].concat();
        let resident = oldest(&main, may_evict).map(|at| main[at]);
        let victim = match (newcomer, resident) {
            (Some(newcomer), Some(resident)) => {
                let resident_loses = self.sketch.estimate(newcomer) > self.sketch.estimate(resident);
                self.sketch.add(newcomer);
                if resident_loses {
                    self.remove(resident);
                    self.enter_main(newcomer);
                    return Some(resident);
                }
                newcomer
            }
            (newcomer, resident) => newcomer.or(resident)?,
        };
        self.remove(victim);
        Some(victim)
    }

    fn remove(&mut self, block: u64) {
        for queue in [&mut self.window, &mut self.probation, &mut self.protected] {
            take(queue, block);
        }
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        let entries = self.main_target() as u32;
        while !self.sketch.step(entries, &mut { u32::MAX }) {}
        while self.protected.len() > self.protected_target() {
            let coldest = self.protected.remove(0);
            self.probation.push(coldest);
        }
    }

    fn coldest_first(&self) -> Vec<u64> {
        [&self.probation[..], &self.window, &self.protected].concat()
    }
}

fn key() -> HashKey {
    HashKey::from_seed(SIMULATION_SEED)
}
