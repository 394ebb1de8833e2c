//! `lock` and the keys beside it: which blocks of a disk are never evicted, and how many may be.
//!
//! Owns their bounds and defaults. Never locks a block. Invariant: what is planned is what the core takes as it is.

use super::checks::Checker;
use super::keys::{LOCK_BUDGET_DEFAULT, LOCK_BUDGET_RANGE, MISS_TABLE_DEFAULT, MISS_TABLE_MAX, VICTIM_BUFFER_MAX};
use super::spec::DiskSpec;
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_units::Percent;

/// What holds for a disk of which nothing is said.
pub(crate) const LOCKS_DEFAULT: LockSettings = LockSettings {
    mode: LockMode::Off,
    budget_permille: permille(LOCK_BUDGET_DEFAULT),
    keep_held: false,
    miss_entries: MISS_TABLE_DEFAULT,
    victim_blocks: 0,
};

/// What is not a whole thousandth is left out.
const fn permille(part: Percent) -> u16 {
    (part.0 / 10) as u16
}

impl Checker<'_> {
    /// What is set of a disk's locks.
    pub(crate) fn locks(&mut self, spec: &DiskSpec, place: &str) -> LockSettings {
        let at = |key: &str| spec.lines.get(key).copied();
        let known = LockMode::ALL.map(LockMode::name);
        let mode = spec.lock.as_deref().and_then(|t| self.named(at("lock"), place, "lock: unknown mode", t, &known));
        let [least, most] = LOCK_BUDGET_RANGE;
        let budget = spec.lock_budget.filter(|part| {
            let fits = (least..=most).contains(part);
            if !fits {
                let remedy = format!("give {least} to {most}: something has to be left for what is not locked");
                self.error(at("lock_budget"), place, format!("lock_budget must not be {part}"), remedy);
            }
            fits
        });
        let mut blocks = |key: &'static str, value, most: u16, default| {
            self.bounded(at(key), place, key, value, 0, most.into()).map_or(default, |n| n as u16)
        };
        LockSettings {
            mode: mode.unwrap_or_default(),
            budget_permille: permille(budget.unwrap_or(LOCK_BUDGET_DEFAULT)),
            keep_held: spec.lock_held.unwrap_or(LOCKS_DEFAULT.keep_held),
            miss_entries: blocks("miss_table", spec.miss_table, MISS_TABLE_MAX, MISS_TABLE_DEFAULT),
            victim_blocks: blocks("victim_buffer", spec.victim_buffer, VICTIM_BUFFER_MAX, 0),
        }
    }
}
