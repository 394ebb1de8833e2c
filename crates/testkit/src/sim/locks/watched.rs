//! What a request does to locks: reads take no locked block's place, and what is read, or given up by its guest, is
//! locked if it is pinned.
//!
//! Owns what was looked at before the request. Never changes anything. Invariant: nothing is told that the request may
//! do: blocks that it reads may go to the guest, a budget may be full, and may have become smaller meanwhile.

use super::super::Sim;
use super::B;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{BlockReport, DiskId, LockReport, Op, Request};
use undercroft_engine::locking::LockMode;

/// One request in so many is watched.
const RATE: u64 = 4;
/// Pinned blocks of a disk that are looked at.
const PINNED_MAX: usize = 48;

/// What was so before a request.
pub(in crate::sim) struct Watched {
    req: Request,
    lead: u64,
    report: LockReport,
    /// Locked blocks that it does not read, of all disks of the pool; none if it is no read.
    locked: Vec<(DiskId, u64)>,
    /// Pinned blocks that the guest had as well.
    held: Vec<u64>,
    /// Pinned blocks that it reads, and that are here.
    read: Vec<u64>,
}

/// Blocks that may be locked beside those that are.
fn room(report: &LockReport) -> u64 {
    report.budget_blocks.saturating_sub(report.pool_locked_blocks)
}

/// Whether a block is here as any other is that is not locked.
fn is_ordinary(r: &BlockReport) -> bool {
    r.cached && !r.locked && !r.first_to_go && !r.on_probation && !r.buffered
}

impl<P: FaultInjection> Sim<P> {
    /// A request is about to come. Nothing to watch if the run has no locks, or locks change by themselves.
    pub(in crate::sim) fn watch_locks(&mut self, req: &Request) -> Option<Watched> {
        if !self.locks.as_mut()?.rng.one_in(RATE) {
            return None;
        }
        let (req, d) = (*req, req.disk.0 as usize);
        let end = req.offset.checked_add(req.len).filter(|&end| end <= self.image_bytes(d))?;
        let mates = self.mates(d);
        let locks = self.locks.as_ref()?;
        let online = mates.iter().any(|&m| locks.of[m].settings.mode == LockMode::Online);
        let pins = locks.of[d].pins.clone();
        let report = self.core().lock_summary(req.disk);
        let over = report.settling || report.pool_locked_blocks > report.budget_blocks;
        if online || over || self.leaving[d] || !self.ranges[d].is_empty() {
            return None;
        }
        let mut locked = Vec::new();
        let reads = req.op == Op::Read;
        for mate in mates.into_iter().filter(|_| reads) {
            let id = DiskId(mate as u32);
            locked.extend(self.core().locked_at(id).into_iter().map(|at| (id, at)));
        }
        locked.retain(|&(id, at)| id != req.disk || at >= end || at + B <= req.offset);
        let places = pins.iter().flat_map(|r| (r.offset..r.end()).step_by(B as usize)).take(PINNED_MAX);
        let (mut held, mut read) = (Vec::new(), Vec::new());
        for at in places {
            let Some(r) = self.core().block_report(req.disk, at) else { continue };
            if r.cached && r.first_to_go {
                held.push(at);
            }
            if r.cached && reads && (req.offset..end).contains(&at) {
                read.push(at);
            }
        }
        Some(Watched { req, lead: self.lead_of(req.disk), report, locked, held, read })
    }

    /// It has come.
    pub(in crate::sim) fn judge_watched(&mut self, watched: Option<Watched>) {
        let Some(Watched { req, lead, report, locked, held, read }) = watched else { return };
        let (id, now) = (req.disk, self.core().lock_summary(req.disk));
        if now.settling || self.lead_of(id) != lead {
            return;
        }
        let is = |sim: &mut Self, id: DiskId, at: u64, what: &dyn Fn(&BlockReport) -> bool| {
            sim.core().block_report(id, at).is_some_and(|r| what(&r))
        };
        // What it reads may be locked itself, and more than may be then, if less may.
        let locks_max = report.budget_blocks.min(report.pool_locked_blocks + req.len / B + 2);
        let there = |r: &BlockReport| r.cached || r.on_its_way;
        if now.budget_blocks >= locks_max
            && let Some((id, at)) = locked.into_iter().find(|&(id, at)| !is(self, id, at, &there))
        {
            self.world.violate(format!("the locked block at {at} of {id:?} went for {req:?}: {now:?}"));
        }
        // What it reads may have been locked, and as much may have been given up.
        if room(&report).min(room(&now)) <= 2 * (req.len / B + 2) {
            return;
        }
        if let Some(at) = held.into_iter().find(|&at| is(self, id, at, &is_ordinary)) {
            let what = format!("the guest has given the pinned block at {at} of {id:?} up, unlocked: {now:?}");
            self.world.violate(what);
        }
        let waits = self.world.requests.values().any(|p| p.req.id == req.id);
        let keeps = now.settings.keep_held;
        let missed = |r: &BlockReport| is_ordinary(r) || (keeps && r.cached && !r.locked);
        if !waits && let Some(at) = read.into_iter().find(|&at| is(self, id, at, &missed)) {
            self.world.violate(format!("the pinned block at {at} of {id:?} was read and is not locked: {now:?}"));
        }
    }
}
