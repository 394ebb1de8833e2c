//! Locks that nobody has profiled: which lines are locked, and how many, follows what misses, and a look at what the
//! cache would do without says whether it pays.
//!
//! Owns the counts by which that is decided, and the tags of the cache without locks. Never locks all ways of a set.
//! Invariant: as long as more references have missed since the beginning than would have without locks, nothing is
//! locked, but for an epoch now and then.
//!
//! Source: the design page's rule (docs/processor-caches.md says where this departs from it: what waits for its lock is
//! chosen anew in each epoch, and the guard compares all misses so far instead of the latest).

use super::LineReference;
use super::cache::{Cache, CacheOptions};
use super::shape::Shape;
use rustc_hash::FxHashMap;

/// An epoch is so many references for each line.
const EPOCH_PER_LINE: u64 = 64;
/// A block that has missed less often in an epoch is not locked.
const MISSES_MIN: u32 = 4;
/// After the guard has unlocked all, nothing is locked for 1, 2, 4 ... epochs, and for so many at most.
const PAUSE_MAX: u32 = 64;
/// Counts are in halves, quarters and so on of a reference: shifted by so many bits.
const FRACTION: u32 = 8;
const ONE: u32 = 1 << FRACTION;

/// A line of a set, the one used last first.
#[derive(Clone, Copy, Default)]
struct Line {
    block: u64,
    is_locked: bool,
    /// Of a locked one, hits, halved in each epoch.
    hits: u32,
}

#[derive(Default)]
struct Set {
    lines: Vec<Line>,
    /// Hits at each depth among lines that are not locked.
    at_depth: Vec<u32>,
    /// To be locked when they are touched next.
    waiting: Vec<u64>,
}

impl Set {
    /// Ways that are not locked, and will not be by what waits.
    fn open(&self, ways: u32) -> usize {
        ways as usize - self.lines.iter().filter(|l| l.is_locked).count() - self.waiting.len()
    }

    /// Whether a block that is touched is to be locked now.
    fn locks(&mut self, block: u64) -> bool {
        let waiting = self.waiting.iter().position(|b| *b == block);
        waiting.map(|n| self.waiting.swap_remove(n)).is_some()
    }
}

/// What became of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlineResult {
    /// References.
    pub references: u64,
    /// Misses.
    pub misses: u64,
    /// Misses without locks.
    pub misses_without: u64,
    /// Lines that were locked.
    pub locked: u64,
    /// Lines that were unlocked since they were of less use than a way.
    pub unlocked: u64,
    /// How often the guard has unlocked all.
    pub guarded: u64,
}

/// See the head of the file.
pub struct OnlineLocks {
    shape: Shape,
    sets: Vec<Set>,
    without: Cache,
    misses: FxHashMap<u64, u32>,
    pause: u32,
    next_pause: u32,
    result: OnlineResult,
}

impl OnlineLocks {
    /// An empty cache.
    pub fn new(shape: Shape) -> Self {
        let depths = shape.ways() as usize + 1;
        let set = || Set { at_depth: vec![0; depths], ..Set::default() };
        Self {
            shape,
            sets: (0..shape.sets()).map(|_| set()).collect(),
            without: Cache::new(shape, CacheOptions::default()),
            misses: FxHashMap::default(),
            pause: 0,
            next_pause: 1,
            result: OnlineResult::default(),
        }
    }

    /// What became of it so far.
    pub fn result(&self) -> OnlineResult {
        OnlineResult { misses_without: self.without.counts().misses, ..self.result }
    }

    /// A reference. Whether it hit.
    pub fn access(&mut self, reference: LineReference) -> bool {
        self.without.access(reference);
        let block = reference.block();
        let set = &mut self.sets[self.shape.set_of(block)];
        let found = set.lines.iter().position(|line| line.block == block);
        match found {
            Some(n) => {
                let mut line = set.lines.remove(n);
                if line.is_locked {
                    line.hits += ONE;
                } else {
                    let above = set.lines[..n].iter().filter(|line| !line.is_locked).count();
                    set.at_depth[above + 1] += ONE;
                    if set.locks(block) {
                        line = Line { block, is_locked: true, hits: 0 };
                        self.result.locked += 1;
                    }
                }
                set.lines.insert(0, line);
            }
            None => {
                self.result.misses += 1;
                *self.misses.entry(block).or_insert(0) += ONE;
                if set.lines.len() == self.shape.ways() as usize {
                    let victim = set.lines.iter().rposition(|line| !line.is_locked);
                    set.lines.remove(victim.expect("a set has a line that is not locked"));
                }
                let is_locked = set.locks(block);
                self.result.locked += u64::from(is_locked);
                set.lines.insert(0, Line { block, is_locked, hits: 0 });
            }
        }
        self.result.references += 1;
        if self.result.references.is_multiple_of(EPOCH_PER_LINE * self.shape.lines()) {
            self.end_epoch();
        }
        found.is_some()
    }

    fn end_epoch(&mut self) {
        let is_any_locked = self.sets.iter().any(|set| set.lines.iter().any(|line| line.is_locked));
        if is_any_locked && self.result.misses > self.without.counts().misses {
            self.unlock_all();
        } else {
            self.pause = self.pause.saturating_sub(1);
        }
        self.sets.iter_mut().for_each(|set| set.waiting.clear());
        if self.pause == 0 {
            self.unlock_weak();
            self.choose();
        }
        for set in &mut self.sets {
            set.at_depth.iter_mut().for_each(|hits| *hits /= 2);
            set.lines.iter_mut().for_each(|line| line.hits /= 2);
        }
        self.misses.retain(|_, misses| {
            *misses /= 2;
            *misses >= ONE / 4
        });
    }

    fn unlock_all(&mut self) {
        for line in self.sets.iter_mut().flat_map(|set| &mut set.lines) {
            line.is_locked = false;
        }
        self.result.guarded += 1;
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).min(PAUSE_MAX);
    }

    /// Unlocks lines with fewer hits than the way would have that they take.
    fn unlock_weak(&mut self) {
        let ways = self.shape.ways();
        for set in &mut self.sets {
            loop {
                let least = set.at_depth[set.open(ways)].max(ONE);
                let locked = set.lines.iter_mut().filter(|line| line.is_locked);
                match locked.min_by_key(|line| line.hits).filter(|line| line.hits < least) {
                    Some(weakest) => weakest.is_locked = false,
                    None => break,
                }
                self.result.unlocked += 1;
            }
        }
    }

    /// Chooses what is locked next: what misses more often than the way hits that it takes.
    fn choose(&mut self) {
        let often = self.misses.iter().filter(|(_, misses)| **misses >= MISSES_MIN * ONE);
        let mut often: Vec<_> = often.map(|(block, misses)| (*misses, *block)).collect();
        often.sort_unstable_by(|(x, a), (y, b)| y.cmp(x).then(a.cmp(b)));
        for (misses, block) in often {
            let set = &mut self.sets[self.shape.set_of(block)];
            let open = set.open(self.shape.ways());
            let is_locked = set.lines.iter().any(|line| line.block == block && line.is_locked);
            if open > 1 && !is_locked && misses > set.at_depth[open] {
                set.waiting.push(block);
            }
        }
    }
}
