//! What is counted of a pair of stores, and how it is added up over warm-up and restarts.
//!
//! Owns these numbers. Never simulates. Invariant: what was written and refused during the warm-up is in none of them.

use super::StoresPlan;
use super::pair::Pair;
use serde::Serialize;
use undercroft_cache::ssd::{OwnerStats, Refusal, SsdStats};

/// Where blocks were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoresCounts {
    /// Blocks read.
    pub reads: u64,
    /// Blocks written.
    pub writes: u64,
    /// Of those read: found in RAM.
    pub ram_hits: u64,
    /// Found on the SSD, or in memory on their way there.
    pub ssd_hits: u64,
    /// Read from the image.
    pub misses: u64,
}

impl StoresCounts {
    /// Adds those of another time.
    pub fn add(&mut self, other: &StoresCounts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.ram_hits += other.ram_hits;
        self.ssd_hits += other.ssd_hits;
        self.misses += other.misses;
    }

    /// Hits in either store of reads; 0 where there were none.
    pub fn hit_ratio(&self) -> f64 {
        (self.ram_hits + self.ssd_hits) as f64 / self.reads.max(1) as f64
    }
}

/// Bytes written to the SSD, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SsdWritten {
    /// Blocks admitted.
    pub admitted_bytes: u64,
    /// Blocks of the oldest segment that were kept.
    pub cleaning_bytes: u64,
    /// Summaries of segments.
    pub summary_bytes: u64,
    /// Tables of owners.
    pub table_bytes: u64,
}

impl SsdWritten {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.admitted_bytes + self.cleaning_bytes + self.summary_bytes + self.table_bytes
    }

    /// Bytes written for each byte admitted; 1 before any was.
    pub fn amplification(&self) -> f64 {
        if self.admitted_bytes == 0 { 1.0 } else { self.total() as f64 / self.admitted_bytes as f64 }
    }
}

/// What followed a restart, in intervals of equal length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestartResult {
    /// After so many accesses.
    pub at: u64,
    /// Blocks that the store had still.
    pub recovered_blocks: u64,
    /// What was found with them.
    pub warm: Vec<StoresCounts>,
    /// What was found of the same accesses where both stores began with nothing.
    pub cold: Vec<StoresCounts>,
}

/// The result of one plan.
#[derive(Clone, Debug, PartialEq)]
pub struct StoresResult {
    /// The plan.
    pub plan: StoresPlan,
    /// Where blocks were found.
    pub counts: StoresCounts,
    /// What was written.
    pub written: SsdWritten,
    /// Seconds of the trace from the first counted access to the last; 0 where it has no times.
    pub seconds: f64,
    /// Blocks admitted.
    pub admitted_blocks: u64,
    /// Blocks not admitted, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Blocks that did not hold what was written: a fault of the store, if there are any.
    pub mismatches: u64,
    /// Blocks that the store has room for.
    pub room_blocks: u64,
    /// Blocks that it has at the end.
    pub ssd_blocks: u64,
    /// Bytes of memory of its tables, and of blocks on their way.
    pub table_bytes: u64,
    /// Bytes of memory that the simulation took for what the store wrote about itself.
    pub device_bytes: u64,
    /// What followed the restart, if the trace came so far.
    pub restart: Option<RestartResult>,
}

impl StoresResult {
    /// Bytes written to the SSD in a day of the trace's time, if it has times.
    pub fn written_per_day(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.written.total() as f64 * 86_400.0 / self.seconds)
    }
}

/// Why a block was refused, in a word.
fn reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::GuestHolds => "guest-holds",
        Refusal::Rule => "rule",
        Refusal::Budget => "budget",
        Refusal::NoRoom => "no-room",
        Refusal::Staging => "staging",
        Refusal::Range => "range",
        Refusal::OutOfService => "out-of-service",
        Refusal::NoShare => "no-share",
    }
}

/// Numbers of a store that was started and ended once or more often.
#[derive(Default)]
pub(super) struct Sum {
    /// At the beginning of what is counted.
    before: Option<(SsdStats, OwnerStats)>,
    written: SsdWritten,
    admitted_blocks: u64,
    refused: [u64; 8],
    mismatches: u64,
    last: SsdStats,
    device_bytes: u64,
}

impl Sum {
    /// Counting begins now.
    pub fn before(pair: &Pair) -> Self {
        Self { before: pair.stats(), ..Self::default() }
    }

    /// A store has been started again, with numbers from 0 on.
    pub fn begins(&mut self, pair: &Pair) {
        self.before = pair.stats();
    }

    /// The store ends, or the trace does.
    pub fn ends(&mut self, pair: &Pair) {
        let Some((device, owner)) = pair.stats() else { return };
        let (device_before, owner_before) = self.before.unwrap_or_default();
        let (now, before) = (device.written, device_before.written);
        self.written.admitted_bytes += now.admitted - before.admitted;
        self.written.cleaning_bytes += now.cleaning - before.cleaning;
        self.written.summary_bytes += now.summaries - before.summaries;
        self.written.table_bytes += now.tables - before.tables;
        self.admitted_blocks += owner.admitted - owner_before.admitted;
        for (all, (now, before)) in self.refused.iter_mut().zip(owner.refused.iter().zip(owner_before.refused)) {
            *all += now - before;
        }
        self.mismatches += device.mismatches - device_before.mismatches;
        (self.last, self.device_bytes) = (device, pair.device_bytes());
    }

    /// All of it.
    pub fn result(
        self,
        plan: &StoresPlan,
        counts: StoresCounts,
        seconds: f64,
        restart: Option<RestartResult>,
    ) -> StoresResult {
        StoresResult {
            plan: plan.clone(),
            counts,
            written: self.written,
            seconds,
            admitted_blocks: self.admitted_blocks,
            refused: Refusal::ALL.into_iter().map(reason).zip(self.refused).collect(),
            mismatches: self.mismatches,
            room_blocks: self.last.room,
            ssd_blocks: self.last.blocks,
            table_bytes: self.last.memory,
            device_bytes: self.device_bytes,
            restart,
        }
    }
}
