//! What the simulation does with locks: pins set, changed and taken away, rules switched, budgets moved, shares cut.
//!
//! Owns the model of what is pinned: the ranges that were taken, searched from their beginning. Never uses time or
//! entropy. Invariants: a list that the core refuses changes nothing, and it takes what the budget that it tells of
//! leaves beside the pins of others; only what is pinned, or what a rule may choose, is locked, and no more than the
//! budget; who has to give up blocks gives up locked ones only beyond the budget; the victim buffer is as it was set.

mod watched;

use super::Sim;
use crate::rng::Rng;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{AddDiskError, ByteRange, DiskId, PinError};
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;
/// One event in so many is one of these.
const RATE: u64 = 30;

/// What is set of a run's disks.
pub(super) struct Locks {
    rng: Rng,
    /// Of each disk.
    of: Vec<OfDisk>,
}

#[derive(Clone, Default)]
struct OfDisk {
    settings: LockSettings,
    pins: Vec<ByteRange>,
    profile: Vec<ByteRange>,
}

/// Blocks that ranges touch, counted from `lead` bytes before the image.
fn blocks_of(ranges: &[ByteRange], lead: u64) -> u64 {
    let mut ends: Vec<(u64, u64)> =
        ranges.iter().map(|r| ((r.offset + lead) / B, (r.end() + lead).div_ceil(B))).collect();
    ends.sort_unstable();
    let (mut blocks, mut at) = (0, 0);
    for (first, end) in ends {
        let from = first.max(at);
        blocks += end.saturating_sub(from);
        at = at.max(end);
    }
    blocks
}

/// What one in seven of the runs has, with numbers of its own, so that other runs are as they were.
pub(super) fn drawn(seed: u64, on: bool, disks: usize) -> Option<Locks> {
    let rng = Rng::new(seed ^ 0x10c5_0000_0000_0000);
    (on && seed % 7 == 3).then(|| Locks { rng, of: vec![OfDisk::default(); disks] })
}

impl<P: FaultInjection> Sim<P> {
    /// Something happens to locks, in a run that has them.
    pub(super) fn change_locks(&mut self) {
        let disks = self.world.sides.len() as u64;
        let Some(locks) = &mut self.locks else { return };
        if !locks.rng.one_in(RATE) {
            return;
        }
        let (d, what) = (locks.rng.below(disks) as usize, locks.rng.below(12));
        if self.leaving[d] {
            return;
        }
        match what {
            0..3 => self.set_locking(d),
            3..7 => self.set_pins(d),
            7 => self.pin(d, Vec::new()),
            _ => self.cut(d),
        }
        self.judge_locks(d);
    }

    fn set_locking(&mut self, d: usize) {
        let Some(locks) = &mut self.locks else { return };
        let rng = &mut locks.rng;
        let settings = LockSettings {
            mode: *rng.pick(&LockMode::ALL),
            budget_permille: *rng.pick(&[1, 50, 300, 500, 900]),
            keep_held: rng.one_in(3),
            miss_entries: *rng.pick(&[0, 1, 20]),
            victim_blocks: *rng.pick(&[0, 0, 1, 12]),
        };
        let of = &mut locks.of[d];
        of.settings = settings;
        if settings.mode != LockMode::Static {
            of.profile.clear();
        }
        let profile = (settings.mode == LockMode::Static && rng.one_in(2)).then(|| rng.below(4));
        self.world.note(|| format!("locks of disk {d}: {settings:?}"));
        self.core().set_locking(DiskId(d as u32), settings);
        if let Some(n) = profile {
            let ranges = self.some_ranges(d, n);
            match self.core().set_lock_profile(DiskId(d as u32), &ranges) {
                Ok(()) => self.locks.iter_mut().for_each(|l| l.of[d].profile.clone_from(&ranges)),
                Err(PinError::NoRoom) => {}
                Err(e) => self.world.violate(format!("a profile of disk {d} was refused: {e}")),
            }
        }
    }

    /// Ranges of a disk, as they come: some overlap, few begin with a block.
    fn some_ranges(&mut self, d: usize, n: u64) -> Vec<ByteRange> {
        let size = self.image_bytes(d);
        let Some(locks) = &mut self.locks else { return Vec::new() };
        let rng = &mut locks.rng;
        let range = |_| {
            let offset = rng.below(size);
            let bytes = if rng.one_in(2) { rng.between(1, 4 * B) } else { rng.between(1, size) };
            ByteRange { offset, bytes: bytes.min(size - offset) }
        };
        if size == 0 { Vec::new() } else { (0..n).map(range).collect() }
    }

    fn image_bytes(&self, d: usize) -> u64 {
        let g = &self.world.sides[d].disk.geometry;
        g.size / g.align * g.align
    }

    fn set_pins(&mut self, d: usize) {
        let n = self.locks.as_mut().map_or(0, |l| l.rng.between(1, 4));
        let mut ranges = self.some_ranges(d, n);
        let size = self.image_bytes(d);
        let bad = self.locks.as_mut().is_some_and(|l| l.rng.one_in(8));
        if bad && let Some(last) = ranges.last_mut() {
            let empty = last.offset % 2 == 0;
            last.bytes = if empty { 0 } else { size - last.offset + 1 };
        }
        self.pin(d, ranges);
    }

    fn pin(&mut self, d: usize, ranges: Vec<ByteRange>) {
        let id = DiskId(d as u32);
        let size = self.image_bytes(d);
        let bad = ranges.iter().any(|r| r.bytes == 0 || r.end() > size);
        let before = self.core().pins(id);
        let left = self.left_for_pins(d);
        let counted = blocks_of(&ranges, self.lead_of(id));
        self.world.note(|| format!("pins of disk {d}: {ranges:?}"));
        let refused = match self.core().set_pins(id, &ranges) {
            Ok(()) if bad => return self.world.violate(format!("pins that make no sense were taken: {ranges:?}")),
            Ok(()) if counted > left => {
                return self.world.violate(format!("{counted} blocks of disk {d} are pinned, and {left} may be"));
            }
            Ok(()) => {
                self.locks.iter_mut().for_each(|l| l.of[d].pins.clone_from(&ranges));
                return;
            }
            Err(e) => e,
        };
        match refused {
            PinError::OutOfDisk { .. } if bad => {}
            PinError::OverBudget { pinned_bytes, budget_bytes } if !bad && pinned_bytes > budget_bytes => {
                if (counted * B, left * B) != (pinned_bytes, budget_bytes) {
                    self.world.violate(format!(
                        "{counted} blocks of disk {d} are {pinned_bytes} bytes to the core, and {left} that may be \
                         pinned {budget_bytes}"
                    ));
                }
            }
            PinError::NoRoom => {}
            e => self.world.violate(format!("pins of disk {d} were refused: {e}")),
        }
        if self.core().pins(id) != before {
            self.world.violate(format!("pins of disk {d} that were refused changed something"));
        }
    }

    /// Bytes before the image that the blocks of a disk are counted from.
    fn lead_of(&mut self, id: DiskId) -> u64 {
        self.core().exclusive(id).map_or(0, |r| (B - u64::from(r.block_offset)) % B)
    }

    /// Blocks that may be pinned of a disk: what the pins of the others of its pool leave of the budget that is told.
    fn left_for_pins(&mut self, d: usize) -> u64 {
        let budget = self.core().lock_report(DiskId(d as u32)).budget_blocks;
        let others: Vec<usize> = self.mates(d).into_iter().filter(|&m| m != d).collect();
        let pinned = others.into_iter().map(|m| {
            let pins = self.locks.as_ref().map_or_else(Vec::new, |l| l.of[m].pins.clone());
            blocks_of(&pins, self.lead_of(DiskId(m as u32)))
        });
        let pinned: u64 = pinned.sum();
        budget.saturating_sub(pinned)
    }

    /// A disk is to give up blocks: of those that are locked, it gives up what is beyond its budget.
    fn cut(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let mates = self.mates(d);
        let settling = self.core().lock_report(id).settling;
        let mut locked = Vec::new();
        for &mate in &mates {
            let id = DiskId(mate as u32);
            locked.extend(self.core().locked_at(id).into_iter().map(|at| (id, at)));
        }
        let now = self.core().stats(id).capacity_blocks as u32;
        let Some(locks) = &mut self.locks else { return };
        let (limits, part) = (locks.rng.one_in(2), locks.rng.below(u64::from(now) + 1) as u32);
        if limits {
            let limit = if locks.rng.one_in(3) { u32::MAX } else { part };
            self.world.note(|| format!("limit of disk {d}: {limit}"));
            self.core().set_limit(id, limit);
        } else {
            self.world.note(|| format!("share of disk {d}: {part}"));
            match self.core().set_share(id, part) {
                Ok(()) => self.has_capacity(d, part),
                Err(AddDiskError::NoMemory { .. }) => {}
                Err(e) => self.world.violate(format!("a smaller share of disk {d} was refused: {e}")),
            }
        }
        if settling || !self.ranges[d].is_empty() {
            // Some of it was to be unlocked, and was perhaps before it went; and each part of a disk has its own
            // budget.
            return;
        }
        let budget = self.core().lock_report(id).budget_blocks;
        let gone = |sim: &mut Self, &(id, at): &(DiskId, u64)| {
            sim.core().block_report(id, at).is_none_or(|r| !r.cached && !r.on_its_way)
        };
        let had = locked.len() as u64;
        locked.retain(|at| gone(self, at));
        let lost = locked.len() as u64;
        if lost > had.saturating_sub(budget) {
            self.world.violate(format!(
                "{lost} of {had} locked blocks went with a share of disk {d} that lets {budget} stay: {locked:?}"
            ));
        }
    }

    /// What is locked of a disk is what was asked for, and no more than may be.
    fn judge_locks(&mut self, d: usize) {
        let id = DiskId(d as u32);
        let report = self.core().lock_report(id);
        let at = self.core().locked_at(id);
        self.outcome.locked += report.locked_blocks;
        let Some(of) = self.locks.as_ref().map(|l| l.of[d].clone()) else { return };
        if at.len() as u64 != report.locked_blocks {
            self.world.violate(format!("{} blocks of disk {d} are locked, and {report:?} is told", at.len()));
        }
        let (alone, parts) = (self.mates(d).len() == 1, !self.ranges[d].is_empty());
        let buffer = if parts { 0 } else { u64::from(report.settings.victim_blocks) };
        if report.buffer_blocks != buffer || (alone && report.settings != of.settings) {
            let set = of.settings;
            self.world.violate(format!("disk {d} has another buffer or other settings than {set:?}: {report:?}"));
        }
        if report.settling {
            return;
        }
        if report.pool_locked_blocks > report.budget_blocks {
            self.world.violate(format!("more of disk {d} is locked than may be: {report:?}"));
        }
        let stats = self.core().stats(id);
        // What disks hold in common takes fewer frames than blocks.
        let keeps = stats.limit_blocks + stats.cached_blocks.saturating_sub(stats.charged_blocks);
        if alone && !parts && at.len() as u64 > keeps * u64::from(of.settings.budget_permille) / 1000 {
            let locked = at.len();
            self.world
                .violate(format!("{locked} blocks of disk {d} are locked, which keeps {keeps}: {:?}", of.settings));
        }
        // Blocks may be counted from elsewhere than the image's first byte; a block is less than this.
        let named = |at: u64| {
            let ranges = of.pins.iter().chain(&of.profile);
            ranges.into_iter().any(|r| r.offset < at + B && at < r.end())
        };
        if of.settings.mode != LockMode::Online
            && let Some(at) = at.into_iter().find(|&at| !named(at))
        {
            self.world.violate(format!("the block at {at} of disk {d} is locked, and nothing says so: {:?}", of.pins));
        }
    }

    /// Everything is at rest: what locks were to do is done.
    pub(super) fn judge_locks_at_rest(&mut self) {
        if self.locks.is_some() {
            (0..self.world.sides.len()).for_each(|d| self.judge_locks(d));
        }
    }

    /// Nothing is set of a disk's locks: it has come anew.
    pub(super) fn forget_locks(&mut self, d: usize) {
        self.locks.iter_mut().for_each(|l| l.of[d] = OfDisk::default());
    }
}
