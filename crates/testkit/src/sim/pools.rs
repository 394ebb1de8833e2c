//! Disks that come to keep their blocks together, and go apart again, in runs that have it.
//!
//! Owns which disks may be of a pool, and what of its capacity each is said to have. Never checks what is cached: the
//! usual checks do. Invariant: the capacity of a pool stands with one of its disks in the options, so that the sum over
//! all disks fits under the ceiling when they come apart by a crash.

use super::Sim;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{AddDiskError, DiskId, Event, Op, ReqId, Request};
use undercroft_engine::shares::Hint;

/// One event in so many is one of these.
const RATE: u64 = 30;
/// Where requests are done in steps: some are to be under way when a pool changes.
const RATE_WITH_STEPS: u64 = 10;
/// While what is cached of a whole disk is dropped in steps: for that one.
const RATE_WHILE_DROPPING: u64 = 2;

impl<P: FaultInjection> Sim<P> {
    /// The disks whose blocks are kept together with those of disk `d`, it among them.
    pub(super) fn mates(&mut self, d: usize) -> Vec<usize> {
        let pool: Vec<usize> = self.core().pool(DiskId(d as u32)).iter().map(|id| id.0 as usize).collect();
        if pool.is_empty() { vec![d] } else { pool }
    }

    /// Disk `d` has a capacity of `blocks`, with those of its pool.
    pub(super) fn has_capacity(&mut self, d: usize, blocks: u32) {
        for mate in self.mates(d) {
            self.disk_options[mate].capacity_blocks = 0;
        }
        self.disk_options[d].capacity_blocks = blocks;
    }

    /// What the core says now of the capacity of a disk and its pool.
    pub(super) fn learn_capacity(&mut self, d: usize) {
        let blocks = self.core().stats(DiskId(d as u32)).capacity_blocks as u32;
        self.has_capacity(d, blocks);
    }

    /// A disk joins another one, or goes apart, in a run that has it.
    pub(super) fn change_pools(&mut self) {
        let disks = self.world.sides.len() as u64;
        let Some(rng) = &mut self.extras.pools else { return };
        let steps = self.core_options.step_bytes != u64::MAX;
        let dropping = self.world.drops_in_steps();
        let rate = match (steps, dropping) {
            (true, Some(_)) => RATE_WHILE_DROPPING,
            (true, None) => RATE_WITH_STEPS,
            (false, _) => RATE,
        };
        if disks < 2 || !rng.one_in(rate) {
            return;
        }
        let (d, with) = (dropping.unwrap_or(rng.below(disks) as usize), rng.below(disks) as usize);
        let all = if steps && dropping.is_none() { rng.below(16) } else { u64::MAX };
        let goes = rng.one_in(3);
        match all {
            0..2 => return self.whole(d, Op::Discard),
            2..8 => return self.whole(d, Op::Read),
            _ => {}
        }
        if goes {
            return self.go_apart(d);
        }
        self.join(d, with);
        self.core().check();
    }

    /// A disk joins another one, if it may.
    pub(super) fn join(&mut self, d: usize, with: usize) {
        let may = |sim: &Self, d: usize| sim.ranges[d].is_empty() && sim.hinted[d] == Hint::Normal && !sim.leaving[d];
        if d == with || !may(self, d) || !may(self, with) || self.mates(d).len() > 1 {
            return;
        }
        self.world.note(|| format!("disk {d} joins disk {with}"));
        match self.core().join_pool(DiskId(d as u32), DiskId(with as u32)) {
            Ok(()) => {
                self.outcome.joins += 1;
                self.learn_capacity(with);
                let now = self.core().stats(DiskId(d as u32));
                self.measured[d] = self.measured[with].as_ref().map(|_| now);
                if !self.mates(d).contains(&with) {
                    self.world.violate(format!("disk {d} has joined disk {with}, and is not with it"));
                }
            }
            Err(AddDiskError::NoMemory { .. }) => {}
            Err(e) => self.world.violate(format!("disk {d} may not join disk {with}: {e}")),
        }
    }

    /// A client discards or reads all of a disk: a pool may change while what is cached of it is dropped in steps. What
    /// is left by mistake is seen when it is read, and again after it was evicted, since a discard may leave what was
    /// there.
    fn whole(&mut self, d: usize, op: Op) {
        let (id, geometry) = (DiskId(d as u32), &self.world.sides[d].disk.geometry);
        let discards = geometry.can_discard && !self.disk_options[d].read_only;
        let (len, may) = (geometry.size, discards || op == Op::Read);
        let is_dense = self.world.sides[d].disk.space().is_dense();
        if !may || !is_dense || self.leaving[d] || self.world.requests.len() >= self.busy || self.core().room(id) == 0 {
            return;
        }
        let req = Request { id: ReqId { port: 0, tag: 0 }, disk: id, op, offset: 0, len };
        if let Some(req) = self.world.start(req, None) {
            self.apply(Event::Request(req));
        }
    }

    /// A disk keeps its blocks apart from now on.
    pub(super) fn go_apart(&mut self, d: usize) {
        let others: Vec<usize> = self.mates(d).into_iter().filter(|&m| m != d).collect();
        let Some(&other) = others.first() else { return };
        // What it did so far stays with the meter of the others.
        self.read_meter(d);
        let had = self.core().stats(DiskId(d as u32)).capacity_blocks;
        let blocks = match &mut self.extras.pools {
            Some(rng) => rng.below(had + 20) as u32,
            None => 0,
        };
        self.world.note(|| format!("disk {d} goes apart with {blocks} blocks of {had}"));
        if let Err(e) = self.core().leave_pool(DiskId(d as u32), blocks) {
            self.world.violate(format!("disk {d} cannot go apart: {e}"));
        }
        self.measured[d] = None;
        let now = self.core().stats(DiskId(d as u32)).capacity_blocks;
        let left = self.core().stats(DiskId(other as u32)).capacity_blocks;
        if now + left > had || now > u64::from(blocks) {
            self.world.violate(format!("disk {d} went apart with {now} blocks and left {left}, of {had}"));
        }
        self.learn_capacity(d);
        self.learn_capacity(other);
        self.core().check();
    }
}
