//! What a host cache would have saved beside a real guest, from a log of the guest's transfers.
//!
//! Owns the guest that a log stands for. Never decides what a cache keeps: that is [`Host`], on the daemon's own
//! engine. Invariant: a page holds the block that was last moved through it; at its reuse it holds nothing, as in
//! guests that zero pages.
//!
//! What the log does not tell is taken as it helps: a page that the guest has changed and not written back counts as
//! holding its block, and a page that a program of the guest uses does so until it is used for another block. So an
//! exclusive cache is shown a little better than it is beside that guest. In return a run takes milliseconds and is the
//! same each time.

use crate::sim::guest::GuestMemory;
use crate::sim::host::{Count, Host, Placement};
use std::collections::HashMap;
use undercroft_engine::{AnyPolicyKind, ExclusiveStats};
use undercroft_trace::transfers::{Transfer, TransferLog};

/// What a cache did in the part of a log that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogResult {
    /// Blocks read, and those that were cached.
    pub count: Count,
    /// Evictions of the guest that were seen.
    pub evictions: u64,
    /// Those whose block was cached by then.
    pub evictions_cached: u64,
}

/// At which ages pages that reads had filled were used for another block in the measured part, in transfers since
/// the last one of the page; in order of time.
pub fn ages_at_eviction(log: &TransferLog) -> Vec<u32> {
    let mut held: Vec<Option<(usize, Transfer)>> = vec![None; log.pages() as usize];
    let mut ages = vec![];
    for (n, &now) in log.transfers().iter().enumerate() {
        let before = held[now.page as usize].replace((n, now));
        if let Some((at, what)) = before
            && n >= log.begin()
            && what.block != now.block
            && !what.write
        {
            ages.push((n - at) as u32);
        }
    }
    ages
}

/// Lets a cache of `slots` blocks serve the guest, which has `pages` pages of memory or as many as occur.
pub fn replay(
    log: &TransferLog,
    placement: Placement,
    policy: impl Into<AnyPolicyKind>,
    slots: u32,
    pages: u32,
) -> LogResult {
    let pages = pages.max(log.pages());
    let mut host = Host::new(placement, policy, slots, pages);
    let mut guest = LoggedGuest { held: vec![None; pages as usize], versions: HashMap::new(), reused: None };
    let mut before = (host.count, ExclusiveStats::default());
    for (n, &transfer) in log.transfers().iter().enumerate() {
        if n == log.begin() {
            before = (host.count, host.exclusive_stats());
        }
        let Transfer { page, block, write } = transfer;
        let stays = guest.held[page as usize].is_some_and(|(held, _)| held == block);
        guest.reused = (!stays).then_some(page);
        host.transfer(&guest, transfer);
        guest.reused = None;
        if write {
            *guest.versions.entry(block).or_default() += 1;
        }
        guest.held[page as usize] = Some((block, guest.version(block)));
    }
    let (count, stats) = (host.count, host.exclusive_stats());
    LogResult {
        count: Count { reads: count.reads - before.0.reads, hits: count.hits - before.0.hits },
        evictions: stats.evictions - before.1.evictions,
        evictions_cached: stats.evictions_cached - before.1.evictions_cached,
    }
}

/// The guest's memory, as the log tells of it.
struct LoggedGuest {
    /// Block and version that each page holds.
    held: Vec<Option<(u64, u64)>>,
    versions: HashMap<u64, u64>,
    /// The page that is being used for another block, and was zeroed for it.
    reused: Option<u32>,
}

impl GuestMemory for LoggedGuest {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        if self.reused == Some(page) { None } else { *self.held.get(page as usize)? }
    }

    fn version(&self, block: u64) -> u64 {
        self.versions.get(&block).copied().unwrap_or(0)
    }

    fn pages(&self) -> u32 {
        self.held.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::{ExclusiveMode, PolicyKind};

    /// A log of `records`: (page, block, whether it is written).
    fn log(begin: u64, records: impl IntoIterator<Item = (u32, u64, bool)>) -> TransferLog {
        let transfers = records.into_iter().map(|(page, block, write)| Transfer { block, page, write });
        TransferLog::new(transfers.collect(), begin).unwrap()
    }

    /// A block that left page 1 is there when it is read again; one that LRU keeps instead is not.
    #[test]
    fn what_a_page_held_is_evicted_when_the_page_is_used_for_another_block() {
        let records = [(0, 10, false), (0, 11, false), (1, 10, false), (2, 12, true)];
        let hits = |begin, placement| {
            let count = replay(&log(begin, records), placement, PolicyKind::Lru, 1, 0).count;
            (count.reads, count.hits)
        };
        assert_eq!(hits(0, Placement::Perfect), (3, 1));
        assert_eq!(hits(2, Placement::Perfect), (1, 1), "what comes before counts for what is cached alone");
        assert_eq!(hits(0, Placement::Inclusive), (3, 0));
        assert_eq!(ages_at_eviction(&log(0, records)), [1]);
        assert_eq!(ages_at_eviction(&log(2, records)), [0u32; 0]);
    }

    /// A guest of 640 pages that reads 960 blocks round and round, in the order of its pages: all that it evicts comes
    /// back, so an exclusive cache of 320 blocks and some room for copies saves nearly all, an inclusive one nothing.
    #[test]
    fn a_loop_is_saved_by_an_exclusive_cache_alone() {
        let log = log(20_000, (0..40_000).map(|n| (n % 640, u64::from(n % 960), false)));
        let of = |placement, policy| {
            let result = replay(&log, placement, policy, 360, 0);
            assert_eq!(result.count.reads, 20_000);
            result
        };
        assert_eq!(of(Placement::Inclusive, PolicyKind::Lru).count.hits, 0);
        let exclusive = of(Placement::Exclusive(ExclusiveMode::Auto), PolicyKind::DEFAULT);
        assert!(exclusive.count.hits > 19_000, "{exclusive:?}");
        assert!(exclusive.evictions >= exclusive.evictions_cached && exclusive.evictions_cached > 19_000);
    }
}
