//! What some runs have beside the usual: bad sectors, disks past 2^32 blocks, guests with several disks, writers from
//! elsewhere.
//!
//! Owns the drawing of it, and the numbers that drive it. Never touches the numbers of the usual events: one seed in
//! five has nothing of this, and runs as it did when the simulation was younger.

use super::Sim;
use super::rare::HINTS;
use crate::coverage::Seen;
use crate::rng::Rng;
use crate::sim_disk::SimDisk;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{DiskId, DiskOptions, Event, Lost};
use undercroft_engine::ExclusiveMode;
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;

/// Unit of a disk's offsets.
const SECTOR: u64 = 512;
/// Steps after which another partition is used.
const ACROSS_STEPS: u64 = 6000;

/// One event in so many is one of these.
const RATE: u64 = 40;

/// See the head of the file.
pub(super) struct Extras {
    pub rng: Rng,
    /// Whether there is anything of it.
    pub on: bool,
    /// Meters, scans, hashes and memory given back.
    pub calls: bool,
    /// Others write to the disks.
    pub foreign: bool,
    /// The first disk is larger than 2^32 blocks.
    pub sparse: bool,
    /// The first two disks are one guest's; see `third`.
    pub one_guest: bool,
    /// Shares, parts and hints, whatever else there is: clones, crashes.
    pub mixes: bool,
    /// Nothing ever comes to rest: what starves shows.
    pub calm: bool,
    /// Disks lose what was not flushed.
    pub loses: bool,
    /// Disks have bad sectors.
    pub bad: bool,
    /// Frames for I/O that each disk is guaranteed, where that is few: then they borrow of the pool that they share,
    /// and it runs short. With a number of its own, likewise.
    pub guaranteed: Option<u32>,
    /// How disks read ahead, and how they are exclusive of their guests, changes. With numbers of its own, so that
    /// other runs are as they were.
    pub live: Option<Rng>,
    /// Disks keep their blocks together for a while. With numbers of its own, likewise.
    pub pools: Option<Rng>,
    /// What operations of one disk may have is divided among several. With numbers of its own, likewise.
    pub divided: Option<Rng>,
    /// The disks of a guest are told at different times that its memory is another, and reset one by one. With numbers
    /// of its own, likewise.
    pub late: Option<Rng>,
    /// The third disk is that guest's as well.
    pub third: bool,
    /// Guests keep something else of some disks than what they read (encrypted file systems), and little else happens,
    /// so that there is time to find it out.
    pub opaque: bool,
    /// Caches are dropped of disks that stay on their image. One seed in eight, of those with clones: others run as
    /// they did.
    pub drops: bool,
    /// Pages of guests lie across blocks, and are folios of several. With numbers of its own, likewise.
    pub offsets: Option<Rng>,
}

impl Extras {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0e87_4a50_0000_0000);
        let on = seed % 5 != 4;
        let mut one_in = |n: u64| rng.one_in(n) && on;
        let (calls, foreign, sparse) = (one_in(2), one_in(2), one_in(6));
        let (one_guest, mixes, calm) = (one_in(3), one_in(3), one_in(5));
        let (loses, bad) = (one_in(3), one_in(4));
        let live = (on && seed % 6 == 2).then(|| Rng::new(seed ^ 0x11fe_0000_0000_0000));
        let mut few = Rng::new(seed ^ 0x9001_0000_0000_0000);
        let guaranteed = (on && seed % 7 == 6).then(|| *few.pick(&[1, 1, 2, 4, 8]));
        let pools = (on && seed % 3 == 1).then(|| Rng::new(seed ^ 0x9007_0000_0000_0000));
        let mut guests = Rng::new(seed ^ 0x9e57_0000_0000_0000);
        let third = guests.one_in(2);
        let opaque = on && seed % 13 == 8;
        let late = (on && seed % 9 == 7 && !opaque).then_some(guests);
        let offsets = (on && seed % 11 == 3 && !opaque).then(|| Rng::new(seed ^ 0x0ff5_e700_0000_0000));
        let one_guest = one_guest || late.is_some() || opaque;
        let (mixes, live, pools) = (mixes && !opaque, live.filter(|_| !opaque), pools.filter(|_| !opaque));
        let divided = (pools.is_some() && seed % 16 == 10).then(|| Rng::new(seed ^ 0xd171_ded0_0000_0000));
        let drops = on && seed % 8 == 5;
        Self {
            guaranteed,
            divided,
            rng,
            on,
            calls,
            foreign,
            sparse,
            one_guest,
            mixes,
            calm,
            loses,
            bad,
            live,
            late,
            third,
            opaque,
            drops,
            offsets,
            pools,
        }
    }

    /// How many disks a run has that would have `disks`.
    pub fn disks(&self, disks: usize) -> usize {
        if self.late.is_some() || self.opaque { disks.max(2) } else { disks }
    }

    /// Whether a disk is encrypted: all are, or every second one, so that a guest has an encrypted one and another.
    pub fn is_opaque(&self, d: usize, seed: u64) -> bool {
        self.opaque && (d.is_multiple_of(2) || (seed / 13).is_multiple_of(2))
    }

    /// How the core is to serve disks in a run about guests: so that their guests have tables.
    pub fn set(&self, options: &mut DiskOptions) {
        if self.opaque {
            (options.capacity_blocks, options.exclusive) = (options.capacity_blocks.max(64), ExclusiveMode::Auto);
        }
        if self.offsets.is_some() {
            options.align = options.align.min(512);
        }
        if self.late.is_some() || self.offsets.is_some() {
            options.capacity_blocks = options.capacity_blocks.max(64);
            if options.exclusive == ExclusiveMode::Off {
                options.exclusive = ExclusiveMode::Auto;
            }
        }
    }

    /// In a run whose guests' pages lie across blocks, most requests begin with a page: where the one at `offset` of a
    /// medium of `size` bytes begins, and its length.
    pub fn across(&mut self, (offset, len): (u64, u64), size: u64, steps: u64) -> (u64, u64) {
        let Some(rng) = &mut self.offsets else { return (offset, len) };
        // Partitions of a disk lie in ways of their own: which one is used changes.
        let behind = SECTOR * (1 + steps / ACROSS_STEPS % 7);
        if rng.one_in(12) || size < 2 * B + behind {
            return (offset, len);
        }
        let offset = (offset / B * B + behind).min((size - behind - B) / B * B + behind);
        (offset, len.next_multiple_of(B).min((size - offset) / B * B))
    }

    /// Disks that the guest of the first one has.
    pub fn disks_of_first(&self) -> usize {
        1 + usize::from(self.one_guest) + usize::from(self.one_guest && self.third)
    }

    /// How a disk differs from the usual one.
    pub fn shape(&mut self, disk: &mut SimDisk, options: &mut DiskOptions) {
        self.set(options);
        if let Some(rng) = &mut self.divided {
            options.io_disks = *rng.pick(&[1, 2, 3, 4]);
        }
        if self.offsets.is_some() {
            disk.geometry.align = disk.geometry.align.min(512);
            options.size_bytes = disk.geometry.size;
        }
        if !self.on {
            return;
        }
        disk.honest = true;
        disk.patience = 48;
        if self.bad {
            let bytes = disk.space().medium_bytes();
            for _ in 0..self.rng.between(1, 3) {
                let at = disk.space().place(self.rng.below(bytes)).0;
                disk.bad.push(at);
            }
        }
    }
}

impl<P: FaultInjection> Sim<P> {
    /// Something of that happens, in a run that has it.
    pub(super) fn extra(&mut self) {
        if !self.extras.on || !self.extras.rng.one_in(RATE) {
            return;
        }
        let d = self.extras.rng.below(self.world.sides.len() as u64) as usize;
        match self.extras.rng.below(10) {
            0..4 if self.extras.calls => self.call(d),
            4..6 if self.extras.foreign => self.written_elsewhere(d),
            6 if self.extras.mixes => self.move_share(d),
            7 if self.extras.mixes => self.change_parts(d),
            8 if self.extras.mixes && self.extras.rng.one_in(4) => {
                let hint = *self.extras.rng.pick(&HINTS);
                self.hint(d, hint);
            }
            9 if self.extras.loses => self.lose_writes(d),
            _ => {}
        }
    }

    /// A disk reads ahead farther or less far, or is exclusive of its guest in another way, in a run that has it.
    pub(super) fn change_live(&mut self) {
        let disks = self.world.sides.len() as u64;
        let Some(rng) = &mut self.extras.live else { return };
        if !rng.one_in(RATE) {
            return;
        }
        let (d, readahead) = (rng.below(disks) as usize, rng.one_in(2));
        let bytes = *rng.pick(&[0, 16 << 10, 64 << 10, 512 << 10, 4 << 20]);
        let mode = *rng.pick(&ExclusiveMode::ALL);
        let id = DiskId(d as u32);
        if readahead {
            self.world.note(|| format!("read-ahead of disk {d}: {bytes}"));
            self.core().set_readahead(id, bytes);
        } else if !self.weak {
            self.see(Seen::Guest, d);
            self.count_guest(d);
            self.world.note(|| format!("disk {d} exclusive: {mode}"));
            self.core().set_exclusive(id, mode);
        }
    }

    /// The disk's content is another, here and there, and the core is told so, as when a back end is opened again.
    fn written_elsewhere(&mut self, d: usize) {
        let bytes = self.world.sides[d].disk.space().medium_bytes();
        let mut any = false;
        for _ in 0..self.extras.rng.between(1, 6) {
            let hot = if self.extras.rng.one_in(2) { bytes.min(4 * B) } else { bytes };
            let at = self.extras.rng.below(hot) / 512 * 512;
            let side = &self.world.sides[d];
            let (mut offset, left) = side.disk.space().place(at);
            let mut len = (512 * self.extras.rng.between(1, 12)).min(left);
            if self.extras.rng.one_in(2)
                && let Some(change) = side.model.some_change(&mut self.extras.rng)
            {
                // Next to what is being changed, in the same block.
                offset = (change / B * B + 512 * self.extras.rng.below(8)).min(side.disk.geometry.size - 1) / 512 * 512;
                len = (512 * self.extras.rng.between(1, 3)).min(side.disk.geometry.size - offset);
            }
            any |= self.world.write_elsewhere(d, offset, len);
        }
        if any {
            self.see(Seen::Foreign, d);
            self.outcome.faults.foreign += 1;
            self.invalidate(d, self.steps.is_multiple_of(2));
        }
    }

    /// The core is told of a disk's ports, as a worker tells it.
    pub(super) fn open_ports(&mut self, d: usize) {
        self.world.sides[d].untold.clear();
        // With an SSD store below it the core flushes disks by itself, and tells ports what that has failed to do.
        if self.extras.loses || self.ssd.is_some() {
            let id = DiskId(d as u32);
            for port in 0..self.world.ports {
                let port = self.world.port_of(id, port);
                self.core().open_port(id, port);
            }
        }
    }

    /// The disk loses what was not flushed, and its back end says so.
    fn lose_writes(&mut self, d: usize) {
        self.see(Seen::Lost, d);
        let ranges = self.world.lose(d);
        self.outcome.faults.lost += 1;
        self.world.note(|| format!("disk {d} loses writes of {ranges:?}"));
        let unflushed = !ranges.is_empty();
        self.apply(Event::Lost { disk: DiskId(d as u32), lost: Lost { ranges, unflushed } });
    }
}
