//! What happens now and then: capacities, policies, hints, stalls, faults, disks that leave, crashes.
//!
//! Owns the choice of it. Never checks more than the answer to what it did. Invariant: what is refused was so for a
//! reason that can be seen from outside.

use super::Sim;
use super::setup::options_for;
use crate::alike::SimBase;
use crate::coverage::Seen;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{AddDiskError, DiskId, Event};
use undercroft_engine::shares::Hint;
use undercroft_engine::{ExclusiveMode, PolicyKind};

/// The hints that disks are given: half of them have the disk fetch.
pub(super) const HINTS: [Hint; 10] = {
    let [normal, sequential, random, no_reuse, dont_need, will_need] = Hint::ALL;
    [normal, sequential, random, no_reuse, dont_need, will_need, will_need, will_need, will_need, will_need]
};

impl<P: FaultInjection> Sim<P> {
    /// What happens now and then.
    pub(super) fn rare(&mut self) -> bool {
        let d = self.any_disk();
        let id = DiskId(d as u32);
        // Not for every seed: those of faults that were found long ago are to run as they did.
        if self.shares && self.rng.one_in(8) {
            self.change_parts(d);
            return true;
        }
        match self.rng.below(40) {
            // Neither guest nor table goes, so that there is time to find out what pages hold.
            8..14 | 30..32 | 38 | 39 if self.extras.opaque => {}
            0..8 => {
                if self.rng.one_in(4) {
                    self.now_ns += 6_000_000_000;
                }
                self.apply(Event::Tick);
            }
            8..14 => {
                let blocks = *self.rng.pick(&[0, 1, 5, 20, 64, 200]) as u32;
                self.see(Seen::Capacity, d);
                self.world.note(|| format!("capacity of disk {d}: {blocks}"));
                match self.core().set_capacity(id, blocks) {
                    Ok(()) => self.has_capacity(d, blocks),
                    Err(AddDiskError::NoMemory { needed_bytes, left_bytes }) if needed_bytes > left_bytes => {}
                    Err(AddDiskError::Unknown(_)) => {}
                    Err(e) => self.world.violate(format!("a change of capacity was refused: {e}")),
                }
            }
            38 => {
                let blocks = *self.rng.pick(&[0, 1, 7, 40, u32::MAX]);
                self.see(Seen::Limit, d);
                self.world.note(|| format!("limit of disk {d}: {blocks}"));
                self.core().set_limit(id, blocks);
            }
            14..20 => {
                let kind = *self.rng.pick(&PolicyKind::ALL);
                self.see(Seen::Policy, d);
                self.world.note(|| format!("policy of disk {d}: {kind}"));
                self.core().set_policy(id, kind);
            }
            20..23 => {
                // The image is taken up again in one of two cases; where there is none, no number is drawn.
                let again = self.world.sides[d].base.is_some() && self.rng.one_in(2);
                let kept = again && self.extras.drops && self.steps.is_multiple_of(2);
                if kept { self.drop_cache(d) } else { self.invalidate(d, again) }
            }
            23..28 => self.stalled[d] = self.steps + self.rng.below(400),
            28..30 => {
                let side = &mut self.world.sides[d];
                side.disk.geometry.fails_one_in = *self.rng.pick(&[0, 0, 20, 200]);
            }
            30..32 => {
                self.leaving[d] = true;
                self.world.note(|| format!("disk {d} leaves"));
                self.core().begin_shutdown(id);
                self.leave(d);
            }
            32..34 if self.crashes => self.crash(),
            // Not for every seed: those of faults that were found long ago are to run as they did.
            32..34 if self.shares && self.hints && self.rng.one_in(4) => {
                let hint = *self.rng.pick(&HINTS);
                self.hint(d, hint);
            }
            32..34 if self.shares => self.move_share(d),
            34..36 if self.extras.calm => {}
            34..36 => self.rest(),
            36 => self.world.sides[d].sequential = 0,
            37 => self.count_guest(d),
            39 => {
                self.count_guest(d);
                self.guest_changes(d);
            }
            _ => {}
        }
        true
    }

    /// The core is told that a disk's content may be another; a disk that stands on an image may do so again.
    pub(super) fn invalidate(&mut self, d: usize, again: bool) {
        let id = DiskId(d as u32);
        self.world.note(|| format!("invalidate disk {d}"));
        self.see(Seen::Invalidate, d);
        self.core().invalidate(id);
        self.nothing_is_cached(d);
        if let Some(base) = self.world.sides[d].base.as_ref().filter(|_| again).map(SimBase::told) {
            self.core().set_base(id, base);
            self.use_ssd_for_base(d);
        }
    }

    /// What is cached is to go, of a disk that holds what it held: it stands on its image all the time.
    fn drop_cache(&mut self, d: usize) {
        self.world.note(|| format!("drop the cache of disk {d}"));
        self.see(Seen::Invalidate, d);
        self.core().drop_cache(DiskId(d as u32));
        self.nothing_is_cached(d);
    }

    fn nothing_is_cached(&mut self, d: usize) {
        if let Some(guest) = self.world.guest(d) {
            guest.forget(Some(d));
        }
        let side = &mut self.world.sides[d];
        side.invalidated = side.disk.deliveries;
    }

    /// A disk is to be used in another way.
    pub(super) fn hint(&mut self, d: usize, hint: Hint) {
        self.go_apart(d);
        self.world.note(|| format!("hint of disk {d}: {hint}"));
        self.see(Seen::Hint, d);
        self.core().set_hint(DiskId(d as u32), hint);
        self.hinted[d] = hint;
    }

    /// A small step of a disk's share, as a controller would take it; now and then a large one.
    pub(super) fn move_share(&mut self, d: usize) {
        let now = self.core().stats(DiskId(d as u32)).capacity_blocks as u32;
        let step = self.rng.below(u64::from(now) / 4 + 4) as u32;
        let blocks = match self.rng.below(8) {
            0 => self.rng.below(200) as u32,
            1..5 => now.saturating_sub(step),
            _ => now + step,
        };
        self.see(Seen::Share, d);
        self.world.note(|| format!("share of disk {d}: {blocks}"));
        match self.core().set_share(DiskId(d as u32), blocks) {
            Ok(()) => self.has_capacity(d, blocks),
            Err(AddDiskError::NoMemory { needed_bytes, left_bytes }) if needed_bytes > left_bytes => {}
            Err(AddDiskError::Unknown(_)) => {}
            Err(e) => self.world.violate(format!("a step of a share was refused: {e}")),
        }
    }

    /// Removes a disk that is to leave, if it can, and adds it again with other options.
    pub(super) fn leave(&mut self, d: usize) {
        let id = DiskId(d as u32);
        if !self.leaving[d] || !self.core().is_idle(id) {
            return;
        }
        self.see(Seen::Leave, d);
        self.count(d);
        self.ranges[d].clear();
        let other = self.mates(d).into_iter().find(|&m| m != d);
        if other.is_some() {
            self.read_meter(d);
        }
        (self.hinted[d], self.scanned[d], self.measured[d]) = (Hint::Normal, false, None);
        self.forget_locks(d);
        let parted = self.part_from_ssd(d);
        self.core().remove_disk(id);
        self.world.goes(d);
        if let Some(owners) = parted {
            self.leave_ssd_after(d, owners);
        }
        if let Some(other) = other {
            self.disk_options[d].capacity_blocks = 0;
            self.learn_capacity(other);
        }
        // Without it, the others have what they are promised and no more.
        self.core().check();
        self.leaving[d] = false;
        let room = self.disk_options[d].clone();
        let mut options = options_for(&self.world.sides[d].disk.geometry, &mut self.rng);
        options.readahead_bytes = room.readahead_bytes;
        options.io_disks = room.io_disks;
        options.group = room.group;
        self.extras.set(&mut options);
        if let Some(ssd) = &mut self.ssd {
            ssd.shape(&mut options);
        }
        if self.weak {
            options.exclusive = ExclusiveMode::Off;
        }
        if self.core().add_disk(id, options.clone()).is_err() {
            options.capacity_blocks = 0;
            if let Err(e) = self.core().add_disk(id, options.clone()) {
                return self.world.violate(format!("a disk does not fit where it was: {e}"));
            }
        }
        if let Some(base) = self.world.sides[d].base.as_ref().map(SimBase::told) {
            self.core().set_base(id, base);
        }
        self.disk_options[d] = options;
        self.use_ssd(d);
        self.open_ports(d);
        self.guest_comes_back(d);
    }

    pub(super) fn crash(&mut self) {
        self.world.note(|| "CRASH".into());
        let power_cut = self.rng.one_in(2);
        self.stop_before_crash();
        let images_lose = self.rest_before_crash() || power_cut;
        self.crash_ssd(power_cut);
        for d in 0..self.world.sides.len() {
            self.see(Seen::Crash, d);
            self.count(d);
        }
        self.outcome.faults.power_cuts += u64::from(power_cut);
        let Some(mut core) = self.core.take() else { return };
        self.world.forget_requests();
        for d in 0..self.world.sides.len() {
            let now = self.world.tick();
            let side = &mut self.world.sides[d];
            side.disk.crash(images_lose, &mut self.rng).into_iter().for_each(|buf| core.reclaim(buf));
            if let Err(what) = side.model.restart(side.disk.medium(), now) {
                self.world.violate(format!("disk {d}: {what}"));
            }
            self.stalled[d] = 0;
            self.leaving[d] = false;
            self.ranges[d].clear();
        }
        drop(core);
        self.outcome.crashes += 1;
        self.boot();
    }
}
