//! One cache, some of whose blocks are locked, while a trace goes through it.
//!
//! Owns the index, the daemon's rule if it is to lock, and what is counted. Never decides what is locked. Invariants:
//! the rule hears of every access, as it does in the daemon; what the rule or the list of locked blocks takes is not
//! there for blocks, as in the daemon (`undercroft_cache`, where a disk's share is divided).

use super::profile::Ranking;
use super::{LocksPlan, LocksResult};
use crate::sim::batch::Take;
use crate::sim::cell::CacheCounts;
use crate::sim::error::SimError;
use crate::sim::reference::Reference;
use undercroft_engine::locking::Online;
use undercroft_engine::{Access, HashKey, Index, Outcome, PolicyKind};

/// Bytes that the daemon takes for each range of blocks that is to be locked.
const RANGE_BYTES: u64 = 64;

/// One cache, and what was counted of it.
pub(super) struct Running<'a> {
    plan: &'a LocksPlan,
    index: Index,
    online: Option<Box<Online>>,
    lock_bytes: u64,
    clock: fn() -> u64,
    counts: CacheCounts,
    locked_read_hits: u64,
    /// Hits in the buffer during the warm-up.
    cold_buffer_hits: u64,
    took_ns: u64,
}

impl Take for Running<'_> {
    fn take(&mut self, batch: &[Reference], cold: usize) {
        if cold > 0 {
            self.feed(&batch[..cold]);
            (self.counts, self.locked_read_hits) = (CacheCounts::default(), 0);
            self.cold_buffer_hits = self.index.victims().2;
        }
        let began = (self.clock)();
        self.feed(&batch[cold..]);
        self.took_ns += (self.clock)().saturating_sub(began);
    }
}

impl<'a> Running<'a> {
    /// Of a plan, before the first access. What the rule samples depends on the seed.
    ///
    /// # Errors
    /// The first run that it needs has not been made.
    pub fn new(
        plan: &'a LocksPlan,
        rankings: &[((PolicyKind, u32), Ranking)],
        seed: u64,
        clock: fn() -> u64,
    ) -> Result<Self, SimError> {
        let mut index = Index::new(plan.policy, plan.blocks);
        let (mut online, mut lock_bytes) = (None, 0);
        match plan.arm.lock {
            Some((choice, _)) if choice.needs_profile() => {
                let ranking = rankings.iter().find(|(cache, _)| *cache == plan.unlocked());
                let none = || SimError::Options(format!("{}: a first run has to say what is locked", plan.arm));
                let (_, ranking) = ranking.ok_or_else(none)?;
                let count = plan.arm.named_in(plan.blocks);
                let ranges = ranges_of(ranking.first(choice, count));
                lock_bytes = ranges.len() as u64 * RANGE_BYTES;
                index.set_limit(plan.left_beside(lock_bytes));
                index.set_locks(plan.arm.options(index.limit(), count));
                index.set_pins(ranges);
            }
            Some(_) => {
                // Room is made for the rule of a whole cache, which then is one of what is left.
                index.set_limit(plan.left_beside(Online::<PolicyKind>::bytes_max(plan.blocks)));
                let rule = Online::new(plan.policy, index.limit(), HashKey::from_seed(seed));
                lock_bytes = Online::<PolicyKind>::bytes_max(index.limit());
                index.set_limit(plan.left_beside(lock_bytes));
                index.set_locks(plan.arm.options(index.limit(), 0));
                online = Some(Box::new(rule));
            }
            None => {}
        }
        index.set_victims(plan.arm.buffer);
        let counts = CacheCounts::default();
        let (locked_read_hits, cold_buffer_hits, took_ns) = (0, 0, 0);
        Ok(Self { plan, index, online, lock_bytes, clock, counts, locked_read_hits, cold_buffer_hits, took_ns })
    }

    fn feed(&mut self, batch: &[Reference]) {
        for same in batch.chunk_by(|a, b| a.write == b.write) {
            let access = if same[0].write { Access::Write } else { Access::Read };
            let misses = same.iter().filter(|reference| !self.hits(reference.block, access)).count();
            self.counts.count_run(same[0].write, same.len() as u64, misses as u64);
        }
    }

    /// One access, as the daemon's `Residents` do it. Whether it hit.
    #[inline]
    fn hits(&mut self, block: u64, access: Access) -> bool {
        let outcome = self.index.access(block, access, |_| true);
        let slot = if let Outcome::Hit(slot) = outcome { Some(slot) } else { None };
        // The rule may end its epoch now, and unlock it.
        let of_locked = slot.is_some_and(|slot| access == Access::Read && self.index.is_locked(slot));
        self.locked_read_hits += u64::from(of_locked);
        if let Some(online) = &mut self.online {
            online.note(&mut self.index, block, access, outcome);
        }
        slot.is_some()
    }

    /// What became of it.
    pub fn result(self) -> LocksResult {
        let (locked_blocks, budget_blocks) = self.index.locked();
        LocksResult {
            plan: self.plan.clone(),
            counts: self.counts,
            locked_read_hits: self.locked_read_hits,
            buffer_hits: self.index.victims().2 - self.cold_buffer_hits,
            locked_blocks,
            budget_blocks,
            limit_blocks: self.index.limit(),
            online: self.online.as_ref().map(|online| online.stats()),
            lock_bytes: self.lock_bytes,
            took_ns: self.took_ns,
        }
    }
}

/// Blocks as ranges, in order: the first one of each, and how many there are.
fn ranges_of(blocks: &[u64]) -> Vec<(u64, u64)> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    let next_to = |a: &u64, b: &u64| a + 1 == *b;
    sorted.chunk_by(next_to).map(|run| (run[0], run.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_beside_each_other_are_one_range() {
        assert_eq!(ranges_of(&[7, 3, 9, 4, 5, 8]), [(3, 3), (7, 3)]);
        assert!(ranges_of(&[]).is_empty());
    }
}
