//! The SSD store below the cores of some runs: its devices, how it is set up, stopped and found again.
//!
//! Owns the drawing of it, and what is known of disks when a core starts. Never checks a byte: what clients read is
//! checked as ever. Invariant: what is told of an image is what the daemon could know of it: that it was changed, as
//! long as the host did not lose its power.

use super::Sim;
use crate::rng::Rng;
use crate::sim_disk::{SimDisk, SimGeometry};
use std::io;
use undercroft_cache::fault_injection::{FaultInjection, NoFaults};
use undercroft_cache::ssd::{
    Admission, BootId, Format, Identity, Kept, Known, Media, OutOfService, Region, Ssd, SsdUse, Stamp, StoreId,
};
use undercroft_cache::{DiskId, DiskOptions, Durability, Event, Op, ReqId, Request, SSD};

/// Bytes of a region: the tables, and some segments.
const REGION_BYTES: u64 = 6 << 20;
const SEGMENT_BYTES: u32 = 256 << 10;
/// What comes before the segments ends before here.
const TABLES_BYTES: u64 = 1 << 20;
/// One step in so many has something of this happen.
const RATE: u64 = 60;
/// Steps in which a store that is stopped must be done.
const STOP_STEPS: u64 = 100_000;

/// What is known of a base, which nobody changes.
pub(super) const BASE_STAMP: u64 = 7;

/// See the head of the file.
pub(super) struct SsdRun {
    rng: Rng,
    boot: u8,
    /// Formatted so far.
    names: u8,
    /// Of each disk: the stamp that its record had last.
    recorded: Vec<u64>,
    admission: Admission,
    /// Images that disks stand on are no owners of their own.
    bases_apart: bool,
    /// Bits of the devices change.
    rots: bool,
    /// Steps until there is a store at all: the disks are served before.
    late: u64,
    /// Steps until the host dies, where that is to be soon after a start.
    dies_in: Option<u64>,
    /// Steps in a row in which no device does anything.
    stalled: u64,
    /// Draws which disks are flushed before their images are looked at, and when images lose what is not durable.
    flushing: Rng,
}

impl SsdRun {
    /// One seed in eight has a store, and one in 32 below disks that stand on images.
    pub fn below(disks: &mut [DiskOptions], seed: u64) -> Option<Self> {
        let mut run = Self::new(seed)?;
        disks.iter_mut().for_each(|options| run.shape(options));
        Some(run)
    }

    fn new(seed: u64) -> Option<Self> {
        if seed % 8 != 6 && seed % 32 != 29 {
            return None;
        }
        let mut rng = Rng::new(seed ^ 0x55d0_0000_0000_0000);
        let admission = *rng.pick(&[Admission::All, Admission::All, Admission::Second, Admission::Measured]);
        let rots = rng.one_in(2);
        let mut more = Rng::new(seed ^ 0xba5e_0000_0000_0000);
        let bases_apart = more.one_in(4);
        let late = if more.one_in(8) { more.below(3000) } else { 0 };
        let (recorded, dies_in, flushing) = (Vec::new(), None, Rng::new(seed ^ 0xf105_0000_0000_0000));
        let (boot, names, stalled) = (1, 0, 0);
        Some(Self { rng, boot, names, recorded, admission, bases_apart, rots, late, dies_in, stalled, flushing })
    }

    /// Its devices.
    fn devices(&mut self) -> Vec<SimDisk> {
        let fails_one_in = *self.rng.pick(&[0, 0, 0, 300]);
        let garbles_one_in = *self.rng.pick(&[0, 8, 40]);
        let device = || {
            let mut device = SimDisk::new(geometry(fails_one_in));
            device.garbles_one_in = garbles_one_in;
            device
        };
        (0..self.rng.between(1, 2)).map(|_| device()).collect()
    }

    /// How a disk is served above the store: much of it does not fit into RAM.
    pub fn shape(&mut self, options: &mut DiskOptions) {
        options.capacity_blocks = options.capacity_blocks.min(*self.rng.pick(&[1, 4, 8, 20]));
    }

    fn name(&mut self) -> StoreId {
        self.names += 1;
        StoreId([self.names; 16])
    }
}

fn geometry(fails_one_in: u64) -> SimGeometry {
    let (size, align) = (REGION_BYTES, 4096);
    SimGeometry { size, align, can_discard: true, can_write_zeroes: false, zeroes_lie: false, fails_one_in }
}

impl Media for SimDisk {
    fn bytes(&self) -> u64 {
        REGION_BYTES
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.read_now(offset, to);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write_now(offset, from);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn stamp(of: u64) -> Stamp {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&of.to_le_bytes());
    Stamp(bytes)
}

impl<P: FaultInjection> Sim<P> {
    /// Puts the store below a core that is about to start, as it is found on the devices.
    pub(super) fn boot_ssd(&mut self) {
        let Some(run) = self.ssd.as_mut().filter(|run| run.late == 0) else { return };
        if self.world.devices.is_empty() {
            self.world.devices = run.devices();
        }
        let boot = BootId([run.boot; 16]);
        let mut regions = Vec::new();
        for device in &mut self.world.devices {
            device.geometry.fails_one_in = *run.rng.pick(&[0, 0, 0, 300]);
            let found = Region::recover(device, SEGMENT_BYTES, boot, NoFaults);
            let region = found.map(|(region, _)| region).or_else(|_| {
                let format = Format { store: run.name(), segment_bytes: SEGMENT_BYTES };
                Region::format(device, format, boot, NoFaults)
            });
            match region {
                Ok(region) => regions.push(region),
                Err(e) => return self.world.violate(format!("a device cannot be formatted: {e}")),
            }
        }
        let mut ssd = Ssd::new(regions);
        ssd.set_admission(run.admission);
        self.core().set_ssd(ssd);
        for d in 0..self.world.sides.len() {
            self.use_ssd(d);
        }
    }

    /// Puts a store below a core that is about to start, as another process has told it; these disks used it so.
    pub(super) fn adopt_ssd(&mut self, told: &[u8], uses: &[Option<SsdUse>]) {
        let Some(run) = &mut self.ssd else { return };
        let sizes: Vec<_> = self.world.devices.iter().map(|_| (REGION_BYTES, SEGMENT_BYTES)).collect();
        let mut ssd = match Ssd::take_over(told, &sizes, NoFaults) {
            Ok(ssd) => ssd,
            Err(e) => return self.world.violate(format!("an SSD store is not taken over: {e}")),
        };
        ssd.set_admission(run.admission);
        self.core().set_ssd(ssd);
        for (d, used) in uses.iter().enumerate() {
            let (id, Some(used)) = (DiskId(d as u32), used) else { continue };
            if !self.core().adopt_ssd(id, &SsdUse { base: None, ..*used }) {
                self.world.violate(format!("disk {d} does not go on with the SSD store"));
            }
            let known = self.known_base(d).zip(used.base);
            if !known.is_some_and(|(known, base)| self.core().adopt_ssd_base(id, base, &known)) {
                self.use_ssd_for_base(d);
            }
        }
        self.core().settle_ssd();
        self.core().ssd_mut().into_iter().for_each(Ssd::go_on);
        self.outcome.adopted += 1;
    }

    /// A disk comes to use the store.
    ///
    /// What a region has of disks that were served before it came may be what they held then; here it has nothing yet.
    pub(super) fn use_ssd(&mut self, d: usize) {
        let Some(run) = &mut self.ssd else { return };
        let disk = &self.world.sides[d].disk;
        let mut identity = [0; 64];
        identity[0] = d as u8 + 1;
        let blocks = disk.geometry.size.div_ceil(4096);
        let known = Known { identity: Identity(identity), stamp: Some(stamp(disk.changes)), blocks };
        let share = *run.rng.pick(&[0, 64, 300, 4000]);
        let (core, id) = (self.core.as_mut().expect("a core"), DiskId(d as u32));
        match core.use_ssd(id, &known) {
            Ok(Some(Kept::Blocks(n))) => {
                self.world.note(|| format!("disk {d} has {n} blocks in the SSD store"));
                self.outcome.recovered += n;
            }
            Ok(kept) => self.world.note(|| format!("disk {d} in the SSD store: {kept:?}")),
            Err(e) => self.world.violate(format!("disk {d}: {e}")),
        }
        core.set_ssd_share(id, share);
        self.use_ssd_for_base(d);
    }

    /// The image that a disk stands on comes to use the store.
    pub(super) fn use_ssd_for_base(&mut self, d: usize) {
        let Some(known) = self.known_base(d) else { return };
        match self.core.as_mut().expect("a core").use_ssd_for_base(DiskId(d as u32), &known) {
            Ok(kept) => self.world.note(|| format!("the base of disk {d} in the SSD store: {kept:?}")),
            Err(e) => self.world.violate(format!("the base of disk {d}: {e}")),
        }
    }

    /// What is known of the image that a disk stands on, where that is an owner of its own.
    fn known_base(&self, d: usize) -> Option<Known> {
        let (run, base) = (self.ssd.as_ref()?, self.world.sides[d].base.as_ref()?);
        let mut identity = [0xba; 64];
        identity[..8].copy_from_slice(&base.layer().to_le_bytes());
        let (identity, stamp) = (Identity(identity), Some(stamp(BASE_STAMP)));
        (!run.bases_apart).then_some(Known { identity, stamp, blocks: 1 << 32 })
    }

    /// A device does something, and now and then the store is told something.
    pub(super) fn step_ssd(&mut self) {
        let Some(run) = &mut self.ssd else { return };
        if let Some(left) = run.dies_in.take() {
            if left == 0 {
                return self.crash();
            }
            run.dies_in = Some(left - 1);
        }
        if run.late > 0 {
            run.late -= 1;
            return self.boot_ssd();
        }
        let Some(run) = &mut self.ssd else { return };
        if run.stalled > 0 {
            run.stalled -= 1;
        } else if run.rng.one_in(3) {
            self.device_acts();
        }
        let Some(run) = &mut self.ssd else { return };
        if !run.rng.one_in(RATE) {
            return;
        }
        let d = run.rng.below(self.world.sides.len() as u64) as usize;
        match run.rng.below(12) {
            0..6 => self.rest_in_ssd(d),
            6 => run.stalled = run.rng.below(600),
            7 => {
                let blocks = *run.rng.pick(&[0, 64, 300, 4000]);
                self.core().set_ssd_share(DiskId(d as u32), blocks);
            }
            8 if run.rng.one_in(8) => {
                let device = run.rng.below(self.world.devices.len() as u64) as u16;
                self.world.note(|| format!("device {device} is taken out of service"));
                if let Some(ssd) = self.core().ssd_mut() {
                    ssd.take_out_of_service(device, OutOfService::Operator);
                }
                self.apply(Event::Tick);
            }
            9 => self.read_all(d),
            10 if run.rots => (0..64).for_each(|_| self.rot()),
            _ => self.hear_of_given_up(),
        }
    }

    /// A sector of a device is not what was written.
    fn rot(&mut self) {
        let Some(run) = &mut self.ssd else { return };
        let n = run.rng.below(self.world.devices.len() as u64) as usize;
        // Segments, not the tables: to lose one of those loses all there is.
        let at = run.rng.between(TABLES_BYTES, REGION_BYTES - 1) / 512 * 512;
        let mut sector = [0; 512];
        self.world.devices[n].read_now(at, &mut sector);
        sector[run.rng.below(512) as usize] ^= 1 << run.rng.below(8);
        self.world.note(|| format!("a bit of device {n} changes at {at}"));
        self.world.devices[n].write_now(at, &sector);
    }

    /// One operation of a device takes effect or comes back.
    pub(super) fn device_acts(&mut self) -> bool {
        let Some(run) = &mut self.ssd else { return false };
        let n = run.rng.below(self.world.devices.len() as u64) as usize;
        let now = self.world.tick();
        let Some(device) = self.world.devices.get_mut(n) else { return false };
        if run.rng.one_in(2) && device.execute(&mut run.rng) {
            return true;
        }
        let Some(done) = device.deliver(&mut run.rng, now) else { return device.execute(&mut run.rng) };
        self.world.note(|| format!("device {n} delivers {:?} of {:?} {:?}", done.op, done.disk, done.result));
        self.apply(Event::IoDone(done));
        true
    }

    /// All operations of devices end.
    pub(super) fn finish_devices(&mut self) {
        if let Some(run) = &mut self.ssd {
            run.stalled = 0;
        }
        let mut left = STOP_STEPS;
        while self.world.devices.iter().any(|d| d.under_way() > 0) && left > 0 && self.world.violation.is_none() {
            self.device_acts();
            self.hear_of_given_up();
            left -= 1;
        }
        while self.core().ssd().is_some_and(Ssd::has_more_to_drop) && left > 0 {
            self.apply(Event::Spare { copies: true });
            left -= 1;
        }
        self.hear_of_given_up();
        if left == 0 {
            self.world.violate("the devices of the SSD store do not come to rest".to_owned());
        }
    }

    pub(super) fn hear_of_given_up(&mut self) {
        while let Some(ssd) = self.core().ssd_mut() {
            let Some(given_up) = ssd.given_up() else { return };
            ssd.given_up_is_recorded(given_up.device);
            // Recorded: nothing of it is believed at the next start.
            let device = usize::from(given_up.device);
            self.world.note(|| format!("device {device} is given up"));
            self.world.devices[device].write_now(0, &[0; 4096]);
            self.apply(Event::Tick);
        }
    }

    /// The core flushes a disk by itself.
    fn flush_unasked(&mut self, d: usize) {
        let id = DiskId(d as u32);
        // Clients may begin requests while there is room for one.
        if self.core().room(id) < 2 {
            return;
        }
        self.world.note(|| format!("disk {d} is flushed unasked"));
        self.world.sides[d].expects_flush = true;
        self.apply(Event::MakeDurable { disk: id });
        self.world.sides[d].expects_flush = false;
    }

    /// Some crashes come when all disks have come to rest, which is written down; then the images lose what is not
    /// durable though the host goes on, and their stamps stay as they are: a server of files has died, or a file system
    /// that could not write something back has given it up. Whether that happens now.
    pub(super) fn rest_before_crash(&mut self) -> bool {
        let is_stopped = self.core().ssd().is_none_or(Ssd::is_stopped);
        if is_stopped || !self.ssd.as_mut().is_some_and(|run| run.flushing.one_in(3)) {
            return false;
        }
        self.rest();
        for _ in 0..2 {
            // What was to be flushed first is written down the second time.
            for d in 0..self.world.sides.len() {
                self.rest_in_ssd(d);
            }
            if self.world.violation.is_none() {
                self.finish_operations();
            }
        }
        if self.world.violation.is_none() && self.ssd.as_mut().is_some_and(|run| run.flushing.one_in(2)) {
            self.world.note(|| "the SSD store is stopped, and no image answers".into());
            self.end_ssd(&[]);
        }
        true
    }

    /// A disk has not been changed for a while: its image is looked at, perhaps before all of it is durable.
    fn rest_in_ssd(&mut self, d: usize) {
        let id = DiskId(d as u32);
        if let Some(base) = self.core().ssd_base_of(id) {
            let written = self.core().ssd_mut().map(|ssd| ssd.quiet(base, stamp(BASE_STAMP)));
            self.world.note(|| format!("the base of disk {d} rests in the SSD store: {written:?}"));
        }
        let Some(since) = self.core().quiet_since(id) else { return };
        let flushes = self.ssd.as_mut().is_some_and(|run| run.flushing.one_in(2));
        if flushes && self.core().durability(id) == Durability::Unflushed {
            return self.flush_unasked(d);
        }
        let changes = self.world.sides[d].disk.changes;
        if self.core().rest_ssd(id, since, stamp(changes)) {
            self.outcome.stamped += 1;
            self.world.note(|| format!("disk {d} rests in the SSD store with stamp {changes}"));
            self.is_recorded(d);
            self.apply(Event::Tick);
        }
    }

    /// What is known of a disk's image now.
    pub(super) fn stamp_of(&self, d: usize) -> Stamp {
        stamp(self.world.sides[d].disk.changes)
    }

    /// That is written down, or is about to be.
    pub(super) fn is_recorded(&mut self, d: usize) {
        if let Some(run) = &mut self.ssd {
            run.recorded.resize(self.world.sides.len(), 0);
            run.recorded[d] = self.world.sides[d].disk.changes;
        }
    }

    /// A client reads all of a disk, so that what the store has of it is compared.
    fn read_all(&mut self, d: usize) {
        let size = self.world.sides[d].disk.geometry.size;
        let mut at = 0;
        while at < size.min(200 * 4096) && !self.leaving[d] && self.core().room(DiskId(d as u32)) > 0 {
            let len = (16 * 4096).min(size - at);
            let request =
                Request { id: ReqId { port: 0, tag: 0 }, disk: DiskId(d as u32), op: Op::Read, offset: at, len };
            if self.world.sides[d].pending >= self.busy as u64 {
                return;
            }
            if let Some(request) = self.world.start(request, None) {
                self.apply(Event::Request(request));
            }
            at += len;
        }
    }

    /// The daemon is stopped in order: the store is told of all disks, and writes that down.
    pub(super) fn stop_ssd(&mut self) {
        if self.ssd.is_none() || self.world.violation.is_some() {
            return;
        }
        self.world.note(|| "the SSD store is stopped".into());
        let stamps: Vec<_> =
            (0..self.world.sides.len()).map(|d| (DiskId(d as u32), stamp(self.world.sides[d].disk.changes))).collect();
        if let Some(run) = &mut self.ssd {
            run.recorded = self.world.sides.iter().map(|side| side.disk.changes).collect();
        }
        self.end_ssd(&stamps);
    }

    /// The store stops in order, and is told these stamps.
    fn end_ssd(&mut self, stamps: &[(DiskId, Stamp)]) {
        self.core().stop_ssd(stamps);
        let mut left = STOP_STEPS;
        while left > 0 && self.world.violation.is_none() {
            self.apply(Event::Tick);
            if self.core().ssd().is_none_or(Ssd::is_stopped) {
                return;
            }
            if !self.device_acts() {
                self.hear_of_given_up();
            }
            left -= 1;
        }
        if self.world.violation.is_none() {
            self.world.violate("the SSD store is not stopped".to_owned());
        }
    }

    /// Some crashes come after an orderly stop: nothing is under way any more, and the images are durable.
    pub(super) fn stop_before_crash(&mut self) {
        if !self.ssd.as_mut().is_some_and(|run| run.rng.one_in(3)) {
            return;
        }
        self.rest();
        self.world.sides.iter_mut().for_each(|side| side.disk.sync());
        self.stop_ssd();
        if let Some(run) = &mut self.ssd {
            // What the first changes after a start rely on shows only if the host dies then.
            run.dies_in = run.rng.one_in(2).then(|| run.rng.below(80));
        }
    }

    /// The core is gone, and with `power_cut` the host was; what was under way on the devices is, or is not, done.
    pub(super) fn crash_ssd(&mut self, power_cut: bool) {
        let (Some(run), Some(core)) = (&mut self.ssd, &mut self.core) else { return };
        for (n, device) in self.world.devices.iter_mut().enumerate() {
            for (disk, buf) in device.crash_of(power_cut, &mut run.rng) {
                if disk == SSD { core.reclaim_in_ssd(n as u16, buf) } else { core.reclaim(buf) }
            }
        }
        if power_cut {
            run.boot += 1;
            // What the file system knew of times may be old, too.
            for (side, recorded) in self.world.sides.iter_mut().zip(&run.recorded) {
                if run.rng.one_in(2) {
                    side.disk.changes = *recorded;
                }
            }
        }
    }
}
