//! What the API shows of workers, disks, memory and recordings, from their own numbers.
//!
//! Owns the translation. Never asks anybody: what it translates is given. Invariant: every counter in the table of the
//! core is shown, because this is made from the table, too.

use crate::latency::Histogram;
use crate::record::Recorder;
use undercroft_api::{
    CacheStatus, DiskCounters, DiskLatency, DiskState, DiskStatus, ExclusiveStatus, LatencyBucket, LatencySnapshot,
    LockStatus, LogStatus, OnlineStatus, PressureDirection, PressureStatus, RecordingStatus, ScanStatus, SharingStatus,
    VictimBufferStatus,
};
use undercroft_cache::{DiskStats, ExclusiveReport, ExclusiveState, LockReport};
use undercroft_config::{DiskPlan, ImageFormat, ScanPlan};
use undercroft_engine::PolicyKind;
use undercroft_hostmem::pressure::{Direction, View};
use undercroft_hostmem::scan::scanner::ScanReport;

/// Lines that were not logged.
pub(crate) fn log_status() -> LogStatus {
    let (limited_lines, unread_lines) = crate::logging::lines_lost();
    LogStatus { limited_lines, unread_lines }
}

/// What a disk shares, from the core's numbers.
pub fn sharing_status(trust: Option<String>, base: bool, s: &DiskStats) -> SharingStatus {
    let bytes = |blocks: u64| blocks.saturating_mul(4096);
    SharingStatus {
        trust,
        base,
        zero_bytes: bytes(s.zero_blocks),
        shared_bytes: bytes(s.shared_blocks),
        charged_bytes: bytes(s.charged_blocks),
    }
}

/// The scan: what was asked for and what was done.
pub(crate) fn scan_status(plan: &ScanPlan, r: &ScanReport) -> ScanStatus {
    let seconds = |ns: u64| ns as f64 / 1e9;
    ScanStatus {
        passes: r.passes,
        guests: r.guests,
        period_seconds: seconds(r.period_ns),
        pass_seconds: seconds(r.pass_ns),
        cpu_seconds: seconds(r.cpu_ns),
        cpu_limit_percent: plan.cpu.value(),
        read_pages: r.walked.present.saturating_sub(r.walked.unreadable + r.unread_pages),
        hole_pages: r.walked.absent + r.walked.zero_frames,
        swapped_pages: r.walked.swapped,
        unreadable_pages: r.walked.unreadable,
        zero_pages: r.zero_pages,
        unchanged_pages: r.unchanged_pages,
        equal_pages: r.equal_pages,
        lookahead_hits: r.lookahead_hits,
        lookahead_misses: r.lookahead_misses,
        unindexed_pages: r.unindexed,
        unread_pages: r.unread_pages,
        index_bytes: r.index_bytes,
        found_blocks: r.found_blocks,
        cooled_blocks: r.cooled_blocks,
        problems: r.problems.clone(),
    }
}

/// Which way the store goes.
fn direction(d: Direction) -> PressureDirection {
    match d {
        Direction::Full => PressureDirection::Full,
        Direction::Giving => PressureDirection::Giving,
        Direction::Waiting => PressureDirection::Waiting,
        Direction::Growing => PressureDirection::Growing,
    }
}

/// What the watch over memory sees.
pub(crate) fn pressure_status(v: &View) -> PressureStatus {
    PressureStatus {
        watching: v.watching,
        source: v.source.clone(),
        direction: direction(v.direction),
        room_bytes: v.room_bytes,
        guests_bytes: v.shared_bytes,
        given_count: v.given_count,
        given_bytes: v.given_bytes,
        last_cause: v.last_cause.clone(),
        last_seconds_ago: v.last_at.and_then(|t| t.elapsed().ok()).map(|t| t.as_secs()),
        ignored_stalls: v.others,
    }
}

/// The state of a disk whose blocks pages of its guest never hold, and why.
fn opaque(tried: u64, held: u64, ordered: bool) -> (&'static str, Option<String>) {
    let word = if held == 0 { "never" } else { "hardly ever" };
    let found = format!(
        "pages of this guest {word} matched ({held} of {tried} copies), as with an encrypted or compressed file system"
    );
    if ordered {
        let why = "nothing is copied, but what the guest was given goes first, which saves more than keeping all";
        ("opaque", Some(format!("{found}; {why}")))
    } else {
        ("inclusive", Some(format!("{found}; asked again from time to time")))
    }
}

/// How exclusive a disk is, from the core's numbers.
pub(crate) fn exclusive_status(r: &ExclusiveReport) -> ExclusiveStatus {
    let (state, reason) = match r.state {
        ExclusiveState::Off => ("off", None),
        ExclusiveState::NoGuest => ("no guest", None),
        ExclusiveState::NoMemory { needed_bytes, allowed_bytes } => (
            "no memory",
            Some(format!(
                "the table of the guest's pages takes {}, and at most a quarter of the share of the guest's disks, {}, \
                 may be spent on it; give them a larger share, or set exclusive = \"off\"",
                undercroft_units::human_size(needed_bytes),
                undercroft_units::human_size(allowed_bytes)
            )),
        ),
        ExclusiveState::On { capture: true, delay: true } => ("capture and delayed", None),
        ExclusiveState::On { capture: true, delay: false } => ("capture", None),
        ExclusiveState::On { capture: false, delay: true } => ("delayed", None),
        ExclusiveState::On { capture: false, delay: false } => ("learning", None),
        ExclusiveState::Inclusive => (
            "inclusive",
            Some("with this guest and load, keeping whatever passes saves more; tried again from time to time".into()),
        ),
        ExclusiveState::Opaque { tried, held, ordered } => opaque(tried, held, ordered),
    };
    let s = &r.stats;
    let [hot, probation, cold] = r.tiers.map(u64::from);
    ExclusiveStatus {
        mode: r.mode.name().to_string(),
        state: state.to_string(),
        reason,
        hot_blocks: hot,
        probation_blocks: probation,
        cold_blocks: cold,
        guest_pages: s.pages.into(),
        guest_pages_held: s.pages_held.into(),
        guest_pages_held_by_all: s.pages_held_by_all.into(),
        block_offset: r.block_offset.into(),
        table_bytes: r.table_bytes,
        table_disks: r.table_disks.into(),
        evictions: s.evictions,
        evictions_cached: s.evictions_cached,
        captures_tried: s.captures_tried,
        captures: s.captures,
        captures_zeroed: s.captures_zeroed,
        captures_compared: 0,
        captures_wrong: 0,
        early_tried: s.early_tried,
        early: s.early,
        early_lapsed: s.early_lapsed,
        restart_tried: s.restart_tried,
        restart_copied: s.restart_copied,
        age_read: s.age_read.into(),
        age_write: s.age_write.into(),
    }
}

/// What is locked of a disk, from the core's numbers, and why not what should be.
pub fn lock_status(r: &LockReport, problem: Option<String>) -> LockStatus {
    let bytes = |blocks: u64| blocks.saturating_mul(4096);
    LockStatus {
        mode: r.settings.mode.name().to_string(),
        held: r.settings.keep_held,
        locked_bytes: bytes(r.locked_blocks),
        shared_locked_bytes: bytes(r.pool_locked_blocks),
        pinned_bytes: bytes(r.pinned_blocks),
        budget_bytes: bytes(r.budget_blocks),
        settling: r.settling,
        problem,
        miss_table: r.settings.miss_entries.into(),
        counted_misses: r.misses,
        victim_buffer: VictimBufferStatus {
            blocks: r.buffered_blocks,
            max_blocks: r.buffer_blocks,
            hits: r.buffer_hits,
        },
        online: r.online.map(|o| OnlineStatus {
            chosen_blocks: o.chosen.into(),
            locks: o.locks,
            unlocks: o.unlocks,
            rests: o.rests,
            epochs: o.epochs,
        }),
    }
}

/// A disk of `plan` that is not served, for `reason`.
pub(crate) fn waiting_disk(plan: &DiskPlan, reason: String) -> DiskStatus {
    let stats = DiskStats::default();
    let nothing = latency(&Histogram::default());
    let format = match plan.image.format {
        Some(ImageFormat::Raw) => "raw",
        Some(ImageFormat::Qcow2) => "qcow2",
        Some(ImageFormat::Nbd) => "nbd",
        None => "unknown",
    };
    DiskStatus {
        name: plan.name.clone(),
        vm: plan.vm.clone(),
        state: DiskState::Waiting,
        reason: Some(reason),
        image: plan.image.location.clone(),
        format: format.to_string(),
        backend: "none".to_string(),
        read_only: plan.image.read_only,
        size_bytes: 0,
        socket: plan.socket.as_ref().map(|s| s.display().to_string()),
        nbd: plan.nbd,
        file: plan.file.as_ref().map(|f| f.display().to_string()),
        device: plan.device.as_ref().map(|d| d.display().to_string()),
        frontends: Vec::new(),
        cache: cache_status(plan.policy, plan.share_bytes, &stats),
        exclusive: ExclusiveStatus::default(),
        locks: lock_status(&LockReport { settings: plan.settings.locking, ..LockReport::default() }, None),
        sharing: sharing_status(None, false, &stats),
        counters: counters(&stats),
        latency: DiskLatency { read_hit: nothing.clone(), read_miss: nothing.clone(), write: nothing },
        stalled_ops: 0,
        inflight_requests: 0,
        inflight_ops: 0,
        queues: plan.queues,
        queue_size: plan.queue_size,
        poll_us: plan.poll.as_secs_f64() * 1e6,
        worker: 0,
    }
}

macro_rules! counters {
    ($($(#[$what:meta])* $name:ident: $unit:ident, $metric:literal;)*) => {
        /// A disk's counters, from the core's.
        pub fn counters(s: &DiskStats) -> DiskCounters {
            DiskCounters { $($name: s.$name,)* }
        }
    };
}
undercroft_cache::disk_counters!(counters);

/// What a disk has of the cache, from the core's numbers and the share that was planned.
pub fn cache_status(policy: PolicyKind, share_bytes: u64, s: &DiskStats) -> CacheStatus {
    let block = 4096u64;
    let looked_up = s.hit_blocks + s.miss_blocks;
    CacheStatus {
        policy: policy.name().to_string(),
        share_bytes,
        capacity_bytes: s.capacity_blocks.saturating_mul(block),
        cached_bytes: s.cached_blocks.saturating_mul(block),
        hit_ratio: (looked_up > 0).then(|| s.hit_blocks as f64 / looked_up as f64),
        pool: Vec::new(),
    }
}

/// A histogram with the usual numbers worked out.
pub fn latency(h: &Histogram) -> LatencySnapshot {
    let us = |ns: u64| ns as f64 / 1000.0;
    LatencySnapshot {
        count: h.count(),
        sum_us: us(h.sum_ns()),
        p50_us: us(h.quantile_ns(0.5)),
        p99_us: us(h.quantile_ns(0.99)),
        p999_us: us(h.quantile_ns(0.999)),
        max_us: us(h.max_ns()),
        buckets: h.filled().map(|(le, count)| LatencyBucket { le_ns: (le != u64::MAX).then_some(le), count }).collect(),
    }
}

/// How a recording stands; `heard` renews its lease.
pub(crate) fn recording_status(recorder: &Recorder, heard: bool) -> RecordingStatus {
    let p = recorder.progress(heard);
    RecordingStatus {
        id: recorder.id,
        path: recorder.order.path.display().to_string(),
        running: p.ended.is_none(),
        ending: p.ending.map(str::to_string),
        ended: p.ended.map(str::to_string),
        failed: p.failed,
        seconds: p.elapsed.as_secs_f64(),
        requests: p.tally.rows,
        waiting: p.waiting,
        dropped: p.tally.dropped,
        bytes: p.tally.bytes,
        waiting_bytes: p.spool_bytes,
        read_blocks: p.tally.read_blocks,
        hit_blocks: p.tally.hit_blocks,
    }
}
