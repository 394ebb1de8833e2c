//! The online rule: blocks are locked while that saves more misses than the slots they take, and unlocked when not.
//!
//! Owns what is worth a lock, and when. Never holds a lock: the index does, within its budget. Invariants: at most
//! half as many blocks are chosen as misses are counted of; none is chosen while the rule rests; its memory is what was
//! said of the limit that it was made for, until it is made for another; with an access it looks at [`STEP`] blocks and
//! counters, or gives up so many locks, and no more.
//!
//! After the rule of `design/locking.md` for sets of a processor's cache, whose sets are one here: at the end of each
//! epoch a locked block stays that was hit more often than what one more slot would have saved, and a block is locked
//! that missed more often than that. What one more slot saves is measured: misses of blocks that were evicted within
//! the last [`GHOST_PART`]th of the cache, for each slot of that. A guard holds it against the same cache without
//! locks, on a sample of the blocks (as in `curve`: Waldspurger and others, ATC 2017): when locks cost misses, all are
//! given up and the rule rests, each time twice as long. Where several disks have the index, the guard and what one
//! more slot saves are about all whose accesses are told; locked are blocks of those alone that have the rule.
//!
//! Shares move all the time, a little. The guard follows with every change; beyond an eighth all that is measured
//! begins anew, and the guard says nothing until it has filled, or a whole epoch has gone through it.

mod guard;
#[cfg(test)]
mod tests;

use self::guard::{GUARD_SLOTS, Guard};
use super::misses::{MissTable, Missed};
use crate::index::origins::{ORIGIN_STEP, origin_of};
use crate::index::{Access, Index};
use crate::policy::{Outcome, PolicyKind, PolicySet};
use crate::structures::ghosts::Ghosts;
use crate::structures::slots::Slot;
use crate::structures::table::HashKey;
use std::collections::BTreeMap;

/// An epoch is so many accesses for each slot, ...
const EPOCH_PER_SLOT: u64 = 4;
/// ... and no fewer than these.
const EPOCH_MIN: u64 = 1024;
/// A block that is locked has missed at least so often in about two epochs.
const MISSES_MIN: u64 = 4;
/// The last evictions that say what one more slot would save: one for so many slots, and no more than these.
const GHOST_PART: u32 = 16;
const GHOSTS_MAX: u32 = 1 << 16;
/// What is made for a limit will do for others within one part in so many, and within so many blocks.
const FITS_PART: u32 = 8;
const FITS_BLOCKS: u32 = 8;
/// Blocks and counters that are looked at with an access while the end of an epoch is under way.
const STEP: usize = 32;
/// Locks that are given up at once where nobody waits for an access.
const GIVE_UP_STEP: usize = 1024;
/// Counts of misses that are told apart when those are chosen that missed most; the last is so many and more.
const LEVELS: usize = 64;
/// Bytes that a chosen block takes: here and in the index, whose trees are half full.
const CHOSEN_BYTES: usize = 6 * size_of::<u64>();
/// Blocks whose misses are counted: at least and at most; and of a large index so many, and one for so many of its
/// slots.
const COUNTERS_MIN: usize = 64;
const COUNTERS_MAX: usize = 1 << 16;
const COUNTERS_OF_ANY: usize = 8192;
const COUNTERS_PART: usize = 8;
/// Bytes that the guard takes at most: for each slot, and whatever their number.
const GUARD_BYTES_PER_SLOT: u64 = 64;
const GUARD_BYTES: u64 = 16 << 10;
/// Bytes of a ghost.
const GHOST_BYTES: u64 = 32;
/// Epochs for which the rule rests at most.
const REST_MAX: u32 = 64;

/// What the rule has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlineStats {
    /// Blocks that it wants locked now.
    pub chosen: u32,
    /// Blocks that it has chosen, ever.
    pub locks: u64,
    /// Of these, those that it has given up.
    pub unlocks: u64,
    /// How often the guard has given all of them up.
    pub rests: u64,
    /// Epochs that are over.
    pub epochs: u64,
}

/// See the head of the file.
pub struct Online<K: PolicySet = PolicyKind> {
    misses: MissTable,
    /// The chosen blocks (by key), and their hits in about two epochs.
    chosen: BTreeMap<u64, u64>,
    ghosts: Ghosts,
    ghost_hits: u64,
    guard: Guard<K>,
    key: HashKey,
    /// The limit for which all this was made, and the one that it was last fitted to.
    made: u32,
    limit: u32,
    /// Accesses in this epoch.
    accesses: u64,
    /// What is left to do of the end of the last one, ...
    turn: Turn,
    /// ... and how many blocks that are not chosen missed how often.
    levels: [u32; LEVELS],
    /// Epochs until it locks again, and for how many it rested last.
    rests: u32,
    rested: u32,
    stats: OnlineStats,
}

/// What there is to do of the end of an epoch, [`STEP`] blocks at a time: each in turn, but for the first two.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// Nothing.
    Done,
    /// All locks are given up.
    GiveUp,
    /// Chosen blocks from this key on are looked at, and given up if they are not worth it.
    Idle { from: u64, worth: u64 },
    /// Counters from this place on are looked at: what there is to choose from.
    Survey { at: usize, worth: u64 },
    /// Blocks of counters from this place on are chosen: those of this level and above, and so many of the one below.
    Choose { at: usize, worth: u64, level: usize, below: u32 },
}

/// Blocks whose misses are told apart, for an index that may hold `limit`: those of a loop twice as large, where that
/// is small, and a part of a large one, so that counting takes little of it.
fn counters_for(limit: u32) -> usize {
    let limit = limit as usize;
    (2 * limit).min(COUNTERS_OF_ANY + limit / COUNTERS_PART).clamp(COUNTERS_MIN, COUNTERS_MAX)
}

/// Blocks that the rule locks at most, whatever the budget is.
fn locks_max(limit: u32) -> usize {
    counters_for(limit) / 2
}

fn ghosts_for(limit: u32) -> u32 {
    (limit / GHOST_PART).clamp(1, GHOSTS_MAX)
}

/// How often a block missed for sure.
fn sure(missed: &Missed) -> u64 {
    missed.misses - missed.error
}

fn level_of(missed: &Missed) -> usize {
    sure(missed).min(LEVELS as u64 - 1) as usize
}

/// Whether one more slot, which saves `worth` thousandths of a miss, is better used for this block.
fn is_worth(missed: &Missed, worth: u64) -> bool {
    sure(missed) >= MISSES_MIN && sure(missed).saturating_mul(1000) > worth
}

impl<K: PolicySet> Online<K> {
    /// The rule for an index under `kind` that may hold `limit` blocks. What is sampled depends on the key.
    pub fn new(kind: K, limit: u32, key: HashKey) -> Self {
        Self {
            misses: MissTable::with_counters(locks_max(limit), counters_for(limit), key),
            chosen: BTreeMap::new(),
            ghosts: Ghosts::new(ghosts_for(limit), key),
            ghost_hits: 0,
            guard: Guard::new(kind, limit, key),
            key,
            made: limit,
            limit,
            accesses: 0,
            turn: Turn::Done,
            levels: [0; LEVELS],
            rests: 0,
            rested: 0,
            stats: OnlineStats::default(),
        }
    }

    /// Whether a rule is to be made for this limit, since the one that there is was made for another.
    pub fn is_unfit(&self, limit: u32) -> bool {
        limit.abs_diff(self.made) > (self.made / FITS_PART).max(FITS_BLOCKS)
    }

    /// The index may hold more or less than the rule was made for ([`Online::is_unfit`]): what is measured begins anew.
    /// The locks stay, as far as a rule for this limit may have them; the others are given up first, a bounded number
    /// at a time. Whether all is done; until then its memory is what it was.
    pub fn fit(&mut self, index: &mut Index<K>) -> bool {
        self.fit_by(index, GIVE_UP_STEP)
    }

    fn fit_by(&mut self, index: &mut Index<K>, most: usize) -> bool {
        let limit = index.limit();
        let over = self.chosen.len().saturating_sub(locks_max(limit));
        self.give_up_some(index, over.min(most));
        if over <= most {
            self.make_anew(index.kind(), limit);
        }
        over <= most
    }

    fn make_anew(&mut self, kind: K, limit: u32) {
        let (counters, key) = (counters_for(limit), self.key);
        if self.misses.counters() != counters {
            // The old memory goes before the new one comes.
            self.misses = MissTable::with_counters(1, 1, key);
            self.misses = MissTable::with_counters(locks_max(limit), counters, key);
        }
        self.ghosts = Ghosts::new(ghosts_for(limit), key);
        self.guard = Guard::new(kind, limit, key);
        (self.made, self.limit) = (limit, limit);
        (self.ghost_hits, self.accesses) = (0, 0);
    }

    /// The index may hold another number of blocks than before.
    #[cold]
    fn follow(&mut self, index: &mut Index<K>) {
        let limit = index.limit();
        if self.is_unfit(limit) {
            self.fit_by(index, STEP);
        } else {
            self.limit = limit;
            self.guard.follow(plain_limit(index), false);
        }
    }

    /// What the rule has done so far.
    pub fn stats(&self) -> OnlineStats {
        OnlineStats { chosen: self.chosen.len() as u32, ..self.stats }
    }

    /// The table of misses that it goes by, halved with each epoch.
    pub fn misses(&self) -> &MissTable {
        &self.misses
    }

    /// The index was asked for a block of its present disk, and said `outcome`. A write that misses costs no reading,
    /// so it is no miss here. At the end of an epoch locks and unlocks blocks, in steps.
    #[inline]
    pub fn note(&mut self, index: &mut Index<K>, block: u64, access: Access, outcome: Outcome) {
        self.hear(index, block, access, outcome, true);
    }

    /// The same of a disk none of whose blocks are to be locked, beside others in the index.
    #[inline]
    pub fn note_other(&mut self, index: &mut Index<K>, block: u64, access: Access, outcome: Outcome) {
        self.hear(index, block, access, outcome, false);
    }

    #[inline]
    fn hear(&mut self, index: &mut Index<K>, block: u64, access: Access, outcome: Outcome, locks: bool) {
        if index.limit() != self.limit {
            self.follow(index);
        }
        let key = block | index.origin;
        let counts = access != Access::Write;
        self.accesses += 1;
        self.guard.note(key, counts, !matches!(outcome, Outcome::Hit(_)));
        match outcome {
            Outcome::Hit(slot) if locks => self.hit(index, key, slot),
            Outcome::Hit(_) => {}
            _ => self.missed(key, counts, locks),
        }
        if let Outcome::Fill { evicted: Some((gone, _)), .. } = outcome {
            // It may have been read again meanwhile for somebody of whom nothing is heard.
            self.ghosts.forget(gone);
            self.ghosts.push(0, gone);
        }
        if !matches!(self.turn, Turn::Done) {
            self.go_on(index);
        }
        if self.accesses >= (u64::from(self.made) * EPOCH_PER_SLOT).max(EPOCH_MIN) {
            self.end_epoch(index);
        }
    }

    #[inline]
    fn hit(&mut self, index: &Index<K>, key: u64, slot: Slot) {
        if index.is_locked(slot)
            && let Some(hits) = self.chosen.get_mut(&key)
        {
            *hits += 1;
        }
    }

    fn missed(&mut self, key: u64, counts: bool, locks: bool) {
        let was_ghost = self.ghosts.forget(key).is_some();
        self.ghost_hits += u64::from(counts && was_ghost);
        if counts && locks {
            self.misses.count(key);
        }
    }

    /// Misses that one more slot would have saved in about two epochs, in thousandths.
    fn worth(&self) -> u64 {
        self.ghost_hits * 1000 / u64::from(self.ghosts.len(0).max(1))
    }

    #[cold]
    fn end_epoch(&mut self, index: &mut Index<K>) {
        // An epoch is longer than its end takes.
        while !matches!(self.turn, Turn::Done) {
            self.go_on(index);
        }
        self.accesses = 0;
        self.stats.epochs += 1;
        let worth = self.worth();
        if !self.chosen.is_empty() && self.guard.objects() {
            self.rested = (self.rested * 2).clamp(1, REST_MAX);
            self.rests = self.rested;
            self.stats.rests += 1;
            self.misses.halve();
            self.turn = Turn::GiveUp;
        } else if self.rests > 0 {
            self.rests -= 1;
            self.misses.halve();
        } else {
            self.turn = Turn::Idle { from: 0, worth };
        }
        self.ghost_hits /= 2;
        self.guard.end_epoch();
        if index.kind() != self.guard.kind() {
            self.guard = Guard::new(index.kind(), self.made, self.key);
        }
        self.guard.follow(plain_limit(index), true);
    }

    /// Goes on with the end of an epoch.
    #[cold]
    fn go_on(&mut self, index: &mut Index<K>) {
        match self.turn {
            Turn::Done => {}
            Turn::GiveUp => {
                self.give_up_some(index, STEP);
                if self.chosen.is_empty() {
                    self.turn = Turn::Done;
                }
            }
            Turn::Idle { from, worth } => self.unlock_idle(index, from, worth),
            Turn::Survey { at, worth } => self.survey(index, at, worth),
            Turn::Choose { at, worth, level, below } => self.choose(index, at, worth, (level, below)),
        }
    }

    fn give_up(&mut self, index: &mut Index<K>, key: u64) {
        if self.chosen.remove(&key).is_some() {
            self.stats.unlocks += 1;
            index.unlock_key(key);
        }
    }

    fn give_up_some(&mut self, index: &mut Index<K>, most: usize) {
        for _ in 0..most {
            let Some((&key, _)) = self.chosen.first_key_value() else { return };
            self.give_up(index, key);
        }
    }

    fn unlock_idle(&mut self, index: &mut Index<K>, from: u64, worth: u64) {
        let least = worth.max(1000);
        let (mut idle, mut found) = ([0; STEP], 0);
        let mut next = None;
        for (n, (&key, hits)) in self.chosen.range_mut(from..).enumerate() {
            if n == STEP {
                next = Some(key);
                break;
            }
            if hits.saturating_mul(1000) < least {
                idle[found] = key;
                found += 1;
            }
            *hits /= 2;
        }
        idle[..found].iter().for_each(|&key| self.give_up(index, key));
        self.turn = match next {
            Some(from) => Turn::Idle { from, worth },
            None => {
                self.levels = [0; LEVELS];
                Turn::Survey { at: 0, worth }
            }
        };
    }

    /// Blocks that may be chosen beside those that are.
    fn room(&self, index: &Index<K>) -> u32 {
        let (_, max) = index.locked();
        let max = (max as usize).min(locks_max(self.made));
        max.saturating_sub(self.chosen.len()) as u32
    }

    fn survey(&mut self, index: &Index<K>, at: usize, worth: u64) {
        let end = (at + STEP).min(self.misses.len());
        for missed in (at..end).filter_map(|at| self.misses.at(at)) {
            if is_worth(&missed, worth) && !self.chosen.contains_key(&missed.block) {
                self.levels[level_of(&missed)] += 1;
            }
        }
        if end < self.misses.len() {
            self.turn = Turn::Survey { at: end, worth };
            return;
        }
        let (mut level, mut below) = (LEVELS, self.room(index));
        while level > 0 && self.levels[level - 1] <= below {
            level -= 1;
            below -= self.levels[level];
        }
        self.turn = Turn::Choose { at: 0, worth, level, below };
    }

    fn choose(&mut self, index: &mut Index<K>, at: usize, worth: u64, (level, mut below): (usize, u32)) {
        let end = (at + STEP).min(self.misses.len());
        for at in at..end {
            let Some(missed) = self.misses.at(at) else { break };
            let own = level_of(&missed);
            let within = own >= level || (own + 1 == level && below > 0);
            if !within || !is_worth(&missed, worth) || self.chosen.contains_key(&missed.block) {
                continue;
            }
            if self.room(index) == 0 {
                break;
            }
            below -= u32::from(own < level);
            index.lock_key(missed.block);
            // As many as it would have had if it had been locked before: half of them, now that the epoch is over.
            self.chosen.insert(missed.block, sure(&missed) / 2);
            self.stats.locks += 1;
        }
        self.turn = if end < self.misses.len() && self.room(index) > 0 {
            Turn::Choose { at: end, worth, level, below }
        } else {
            self.misses.halve();
            Turn::Done
        };
    }

    /// The present disk of the index goes: nothing is known of it any more.
    pub fn leave(&mut self, index: &mut Index<K>) {
        let origin = index.origin;
        let own: Vec<u64> = self.chosen.keys().copied().filter(|&key| origin_of(key) == origin).collect();
        for key in own {
            self.chosen.remove(&key);
            index.unlock_key(key);
        }
        self.misses.forget_all(|key| key / ORIGIN_STEP == origin / ORIGIN_STEP);
    }

    /// Whether the rule wants the block with this key locked.
    pub fn has_chosen(&self, key: u64) -> bool {
        self.chosen.contains_key(&key)
    }

    /// Bytes of memory that a rule takes at most that was made for an index that may hold `limit` blocks.
    pub fn bytes_max(limit: u32) -> u64 {
        let guard = u64::from(limit.min(GUARD_SLOTS)) * GUARD_BYTES_PER_SLOT + GUARD_BYTES;
        let ghosts = u64::from(ghosts_for(limit)) * GHOST_BYTES;
        let chosen = locks_max(limit) * CHOSEN_BYTES;
        guard + ghosts + (size_of::<Self>() + MissTable::bytes_for(counters_for(limit)) + chosen) as u64
    }

    /// Bytes of memory that it takes at most as it was made.
    pub fn bytes_made(&self) -> u64 {
        Self::bytes_max(self.made)
    }

    /// Bytes of memory held; what a tree takes is estimated.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.misses.memory_bytes()
            + self.chosen.len() * CHOSEN_BYTES
            + self.ghosts.memory_bytes()
            + self.guard.memory_bytes()
    }
}

/// What an index may hold, less what stands in tiers below its policy: blocks of disks whose guests' pages are
/// followed, of whose accesses nothing is heard.
fn plain_limit<K: PolicySet>(index: &Index<K>) -> u32 {
    let [_, probation, cold] = index.tier_lens();
    index.limit().saturating_sub(probation + cold)
}
