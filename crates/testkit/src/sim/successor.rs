//! Another process goes on with what is cached: an upgrade, or a restart whose memory stayed with the service manager.
//! And disks that go while their process stays.
//!
//! Owns when that happens, and what is passed on. Never checks a byte: coming to rest does, right after it. Invariants:
//! nothing is under way at that moment; what the disks hold stays as it is.

use super::Sim;
use super::ssd::{BASE_STAMP, stamp};
use crate::coverage::Seen;
use crate::rng::Rng;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::ssd::{OwnerId, Quiet, Ssd, SsdUse};
use undercroft_cache::{DiskId, Event, FramesIn, KeptBlocks};
use undercroft_host::SharedMemory;

/// One step in so many.
const RATE: u64 = 1200;

/// Turns after which a store that does not come to rest is not waited for any more.
const TURNS_MAX: u64 = 100_000;

/// What one process leaves to the next.
pub(super) struct Left {
    memory: SharedMemory,
    kept: Vec<KeptBlocks>,
    /// Ports of each disk that are to be told of what was lost.
    untold: Vec<u32>,
    /// The SSD store, where it is passed on as it is, and how each disk uses it.
    pub(super) ssd: Option<(Vec<u8>, Vec<Option<SsdUse>>)>,
}

/// The numbers that drive it, in one seed of four, none of which has an SSD store, and in half of those that have one.
pub(super) fn drawn(seed: u64) -> Option<Rng> {
    (seed.is_multiple_of(4) || seed % 16 == 14).then(|| Rng::new(seed ^ 0x5ccc_e550_0000_0000))
}

impl<P: FaultInjection> Sim<P> {
    /// Now and then; and a disk is told what to fetch, as one whose guest was migrated, or to fetch nothing, or loses
    /// what the SSD store has of it.
    pub(super) fn succeed(&mut self) {
        if self.succession.as_mut().is_some_and(|rng| rng.one_in(RATE / 4)) {
            self.tell_what_to_fetch();
        }
        if self.succession.as_mut().is_some_and(|rng| rng.one_in(RATE)) {
            self.hand_over();
        }
    }

    fn tell_what_to_fetch(&mut self) {
        let Some(rng) = &mut self.succession else { return };
        let d = rng.below(self.world.sides.len() as u64) as usize;
        let (id, end) = (DiskId(d as u32), self.world.sides[d].disk.geometry.size.div_ceil(4096) + 3);
        let what = rng.below(6);
        let ranges: Vec<_> = (0..rng.between(1, 4)).map(|_| (rng.below(end), rng.between(1, 40))).collect();
        self.world.note(|| format!("disk {d} is told what to fetch and keep: {what}, {ranges:?}"));
        match what {
            0 => self.core().want_nothing(id),
            1 => self.core().drop_ssd(id),
            _ => _ = self.core().want(id, &ranges),
        }
    }

    fn hand_over(&mut self) {
        self.world.note(|| "another process goes on".into());
        // What is fetched unasked would keep disks from coming to rest.
        (0..self.world.sides.len()).for_each(|d| self.core().want_nothing(DiskId(d as u32)));
        self.rest();
        let ssd = self.leave_ssd();
        if self.world.violation.is_some() {
            return;
        }
        for d in 0..self.world.sides.len() {
            self.see(Seen::Successor, d);
            self.count(d);
        }
        let Some(mut core) = self.core.take() else { return };
        core.freeze_frames(true);
        let Some(memory) = core.frames_memory() else { panic!("frames are in memory that stays") };
        let kept = (0..self.world.sides.len()).map(|d| core.kept(DiskId(d as u32))).collect();
        let untold: Vec<u32> = (0..self.world.sides.len()).map(|d| core.untold(DiskId(d as u32))).collect();
        self.world.forget_requests();
        for d in 0..self.world.sides.len() {
            self.leaving[d] = false;
            self.ranges[d].clear();
        }
        drop(core);
        self.boot_after(Some(Left { memory, kept, untold: untold.clone(), ssd }));
        for d in (0..self.world.sides.len()).filter(|d| untold[*d] > 0) {
            self.world.all_are_to_be_told(d);
        }
        if self.world.violation.is_none() {
            self.rest();
        }
    }

    /// The SSD store is passed on as it is, or stopped in order, and found again.
    fn leave_ssd(&mut self) -> Option<(Vec<u8>, Vec<Option<SsdUse>>)> {
        self.ssd.as_ref()?;
        let passes = self.succession.as_mut().is_some_and(|rng| rng.one_in(2));
        if !passes || self.core().ssd().is_none() {
            self.world.sides.iter_mut().for_each(|side| side.disk.sync());
            self.stop_ssd();
            self.crash_ssd(false);
            return None;
        }
        self.core().ssd_mut().into_iter().for_each(Ssd::rest);
        let mut left = TURNS_MAX;
        while left > 0 && self.world.violation.is_none() && !self.core().ssd().is_none_or(Ssd::is_at_rest) {
            self.apply(Event::Tick);
            if !self.device_acts() {
                self.hear_of_given_up();
            }
            left -= 1;
        }
        let told = self.core().ssd().and_then(Ssd::hand_over);
        if told.is_none() {
            self.world.violate("an SSD store does not come to rest for another process".to_owned());
        }
        let uses = (0..self.world.sides.len()).map(|d| self.core().ssd_use_of(DiskId(d as u32))).collect();
        Some((told?, uses))
    }

    /// A disk that is about to go, after which its image is looked at: what the SSD store has of it stays with these
    /// owners, of itself and of its base. In half of the cases.
    pub(super) fn part_from_ssd(&mut self, d: usize) -> Option<(OwnerId, Option<OwnerId>)> {
        let parts = self.succession.as_mut().is_some_and(|rng| rng.one_in(2));
        if parts { self.core().part_ssd(DiskId(d as u32)) } else { None }
    }

    /// It has gone, its image flushed: what that says is written down, if there is time.
    pub(super) fn leave_ssd_after(&mut self, d: usize, (own, base): (OwnerId, Option<OwnerId>)) {
        self.world.sides[d].disk.sync();
        let of_base = base.map(|base| (base, false));
        for (owner, is_own) in of_base.into_iter().chain([(own, true)]) {
            let stamp = if is_own { self.stamp_of(d) } else { stamp(BASE_STAMP) };
            let Some(ssd) = self.core().ssd_mut() else { return };
            let mut turns = if ssd.quiet(owner, stamp) == Quiet::Begun { self.rng.below(300) } else { 0 };
            if is_own && turns > 0 {
                self.is_recorded(d);
            }
            while turns > 0 && !self.core().ssd().is_none_or(|ssd| ssd.owner_stats(owner).is_clean) {
                self.apply(Event::Tick);
                self.device_acts();
                turns -= 1;
            }
            let clean = self.core().ssd().is_some_and(|ssd| ssd.owner_stats(owner).is_clean);
            self.world.note(|| format!("disk {d} has gone from the SSD store, written down: {clean}"));
            self.outcome.written_down += u64::from(clean);
            self.core().ssd_mut().into_iter().for_each(|ssd| ssd.detach(owner));
        }
    }

    /// How the frames of the core that is about to start are had.
    pub(super) fn frames_after(&self, left: Option<&Left>) -> FramesIn {
        match left {
            Some(left) => FramesIn::Left(left.memory.clone()),
            None if self.succession.is_some() => FramesIn::Shared,
            None => FramesIn::Own,
        }
    }

    /// The disks, which are there, cache what was left of them; in the daemon's order.
    pub(super) fn take_over(&mut self, left: Left) {
        if left.ssd.is_none() {
            self.boot_ssd();
        }
        // As disks of one VM do when they come.
        let disks = self.world.sides.len();
        if disks > 1 && self.extras.pools.is_some() && self.succession.as_mut().is_some_and(|rng| rng.one_in(2)) {
            self.join(disks - 1, 0);
        }
        // A worker's turn may come before all is there, and disks may have been told to fetch.
        if self.succession.as_mut().is_some_and(|rng| rng.one_in(2)) {
            (0..disks).for_each(|d| _ = self.core().want(DiskId(d as u32), &[(0, 40)]));
            self.apply(Event::Tick);
        }
        let mut blocks = 0;
        for (d, kept) in left.kept.iter().enumerate() {
            blocks += self.core().restore(DiskId(d as u32), kept);
        }
        self.core().settle_frames();
        (0..disks).for_each(|d| self.core().owe(DiskId(d as u32), left.untold[d]));
        if let Some((told, uses)) = &left.ssd {
            self.adopt_ssd(told, uses);
        }
        self.core().check();
        self.outcome.taken_over += blocks;
        self.world.note(|| format!("{blocks} blocks are taken over"));
    }
}
