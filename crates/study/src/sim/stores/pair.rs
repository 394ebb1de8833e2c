//! A core over an SSD store, asked for one block at a time.
//!
//! Owns how both are set up, the time that they are told, and where each block was found. Never decides what either
//! keeps, and never holds a byte of data: nothing is copied to or from requests, so that frames stay untouched and
//! every block is one of zeroes. Invariant: a request is answered, and all that follows from it has been done, before
//! the next one; so every block that is read was found in one place.

use super::flash::Flash;
use super::{StoresCounts, StoresPlan};
use crate::sim::error::SimError;
use crate::sim::reference::Reference;
use std::collections::VecDeque;
use undercroft_cache::ssd::{BootId, Format, Identity, Kept, Known, OwnerStats, Region, Ssd, SsdStats, Stamp, StoreId};
use undercroft_cache::{
    ContentKey, Core, CoreOptions, DiskId, DiskOptions, Durability, Effects, Event, Extent, Found, Geometry, Io,
    IoDone, IoError, IoKind, IoTarget, NoFaults, Op, ReqId, Request, disk_bytes,
};
use undercroft_engine::ExclusiveMode;

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const BOOT: BootId = BootId([1; 16]);
/// Nanoseconds between two ticks of a core, as in a worker that is at work.
const TICK_NS: u64 = 250_000_000;
/// Ticks that are caught up with at most, after a long pause: what they do is done by then.
const TICKS_MAX: u64 = 64;
/// How long the disk has to be without changes until the daemon has that written down, and between two tries.
const REST_AFTER_NS: u64 = 5_000_000_000;
const REST_AGAIN_NS: u64 = 60_000_000_000;
/// Segments of a store are the largest that leave it so many of them.
const SEGMENTS_WANTED: u64 = 64;
const SEGMENT_BYTES: std::ops::RangeInclusive<u32> = 256 << 10..=2 << 20;
/// Blocks of the disk: the store takes none behind them.
const DISK_BLOCKS: u64 = 1 << 40;
/// Blocks from here on are given other numbers, in the order in which they come.
pub(super) const FAR_BLOCKS: u64 = DISK_BLOCKS - (1 << 32);

/// Bytes of a segment, for a region of so many bytes.
fn segment_bytes(region_bytes: u64) -> u32 {
    let (least, most) = (*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end());
    let mut bytes = most;
    while bytes > least && region_bytes / u64::from(bytes) < SEGMENTS_WANTED {
        bytes /= 2;
    }
    bytes
}

/// The image's stamp, after so many changes.
fn stamp(changes: u64) -> Stamp {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&changes.to_le_bytes());
    Stamp(bytes)
}

/// Carries out what the core asks for.
#[derive(Default)]
struct World {
    ios: VecDeque<Io>,
    /// The request under way: what of it was read from the image and from the store, and whether it was answered.
    of_image: bool,
    of_store: bool,
    found: Option<Found>,
    answer: Option<Result<(), IoError>>,
}

impl Effects for World {
    fn copy_out(&mut self, _req: ReqId, _at: usize, _bytes: &[u8]) {}

    fn copy_in(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}

    fn submit(&mut self, io: Io) {
        if io.disk == DISK && io.kind == IoKind::Read {
            *(if io.target == IoTarget::Image { &mut self.of_image } else { &mut self.of_store }) = true;
        }
        self.ios.push_back(io);
    }

    fn found(&mut self, _req: ReqId, found: Found) {
        self.found = Some(found);
    }

    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}

    fn reply(&mut self, _req: ReqId, result: Result<(), IoError>) {
        self.answer = Some(result);
    }
}

/// See the head of the file.
pub(super) struct Pair {
    core: Core<NoFaults>,
    flash: Option<Flash>,
    world: World,
    now_ns: u64,
    tick_ns: u64,
    /// Changes so far, when the last one was, how many the store has written down, and when it is to do so next.
    changes: u64,
    changed_ns: u64,
    rested: u64,
    rest_ns: u64,
}

impl Pair {
    /// As the plan says, with nothing in RAM and on a device that is new.
    pub fn new(plan: &StoresPlan) -> Result<Self, SimError> {
        let mut flash = (plan.ssd_bytes > 0).then(|| Flash::new(plan.ssd_bytes));
        let store = StoreId(*b"a simulated one ");
        let format = Format { store, segment_bytes: segment_bytes(plan.ssd_bytes) };
        let region = flash.as_mut().map(|flash| Region::format(flash, format, BOOT, NoFaults));
        let region = region.transpose().map_err(|e| SimError::Options(format!("the SSD of {}: {e}", plan.ssd)))?;
        Self::with(plan, flash, region, 0, 0).map(|(pair, _)| pair)
    }

    fn with(
        plan: &StoresPlan,
        flash: Option<Flash>,
        region: Option<Region<NoFaults>>,
        now_ns: u64,
        changes: u64,
    ) -> Result<(Self, Kept), SimError> {
        let disk = DiskOptions {
            exclusive: ExclusiveMode::Off,
            ..DiskOptions::new(&Geometry::new(DISK_BLOCKS * B), plan.policy, plan.ram_blocks)
        };
        let mut limits =
            CoreOptions { hash_seed: 0, contents: false, content_key: ContentKey::from_seed(0), ..CoreOptions::new(0) };
        limits.memory_bytes = disk_bytes(&limits, plan.ram_blocks, &disk);
        limits.memory_bytes += limits.memory_bytes / 64 + (1 << 20);
        let failed = |e: &dyn std::fmt::Display| SimError::Options(format!("{} of RAM cannot be had: {e}", plan.ram));
        let mut core = Core::new(limits).map_err(|e| failed(&e))?;
        core.add_disk(DISK, disk).map_err(|e| failed(&e))?;
        let mut kept = Kept::New;
        if let Some(region) = region {
            let mut ssd = Ssd::new(vec![region]);
            ssd.set_admission(plan.admission);
            ssd.set_budget(plan.writes_per_day);
            let room = ssd.stats()[0].room;
            core.set_ssd(ssd);
            let known = Known { identity: Identity([1; 64]), stamp: Some(stamp(changes)), blocks: DISK_BLOCKS };
            let used = core.use_ssd(DISK, &known).map_err(|e| SimError::Options(e.to_string()))?;
            kept = used.unwrap_or(kept);
            core.set_ssd_share(DISK, room);
        }
        let tick_ns = now_ns.saturating_add(TICK_NS);
        let world = World::default();
        let (changed_ns, rest_ns) = (now_ns, now_ns);
        let pair = Self { core, flash, world, now_ns, tick_ns, changes, changed_ns, rested: changes, rest_ns };
        Ok((pair, kept))
    }

    /// Stops in order.
    pub fn stop(&mut self) {
        self.core.stop_ssd(&[(DISK, stamp(self.changes))]);
        while self.core.ssd().is_some_and(|ssd| !ssd.is_stopped()) {
            self.core.apply(Event::Tick, self.now_ns, &mut self.world);
            self.rest();
        }
    }

    /// Starts again, after a stop, over what the device has: the blocks taken over.
    pub fn again(self, plan: &StoresPlan) -> Result<(Self, u64), SimError> {
        let Self { core, mut flash, now_ns, changes, .. } = self;
        drop(core);
        let segment_bytes = segment_bytes(plan.ssd_bytes);
        let region = flash.as_mut().map(|flash| Region::recover(flash, segment_bytes, BOOT, NoFaults));
        let region = region.transpose().map_err(|e| SimError::Options(format!("the SSD of {}: {e}", plan.ssd)))?;
        let (pair, kept) = Self::with(plan, flash, region.map(|(region, _)| region), now_ns, changes)?;
        Ok((pair, if let Kept::Blocks(blocks) = kept { blocks } else { 0 }))
    }

    /// One access: where its block was found, if it is a read.
    pub fn access(&mut self, reference: Reference, counts: &mut StoresCounts) {
        self.pass_time(reference.time_ns);
        let op = if reference.write { Op::Write { fua: false } } else { Op::Read };
        let id = ReqId { port: 0, tag: 0 };
        let request = Request { id, disk: DISK, op, offset: reference.block * B, len: B };
        self.world = World { ios: std::mem::take(&mut self.world.ios), ..World::default() };
        self.core.apply(Event::Request(request), self.now_ns, &mut self.world);
        self.rest();
        if self.core.wants_spare() {
            self.core.apply(Event::Spare { copies: false }, self.now_ns, &mut self.world);
            self.rest();
        }
        assert_eq!(self.world.answer, Some(Ok(())), "a request that cannot fail is answered");
        if reference.write {
            counts.writes += 1;
            self.changes += 1;
            self.changed_ns = self.now_ns;
            return;
        }
        counts.reads += 1;
        let missed = self.world.found.is_some_and(|found| found.missed > 0);
        if !missed {
            counts.ram_hits += 1;
        } else if self.world.of_image {
            counts.misses += 1;
        } else {
            counts.ssd_hits += 1;
        }
    }

    /// Completes operations until there are none.
    fn rest(&mut self) {
        while let Some(mut io) = self.world.ios.pop_front() {
            if let (IoTarget::Ssd(_), Some(flash)) = (io.target, &mut self.flash) {
                flash.serve(&mut io);
            }
            let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result: Ok(()), extents: vec![] };
            self.core.apply(Event::IoDone(done), self.now_ns, &mut self.world);
        }
    }

    /// Time goes on to `until_ns`, or stays if that has been.
    fn pass_time(&mut self, until_ns: u64) {
        let until_ns = until_ns.max(self.now_ns);
        let behind = until_ns.saturating_sub(self.tick_ns) / TICK_NS;
        self.tick_ns += behind.saturating_sub(TICKS_MAX) * TICK_NS;
        while self.tick_ns <= until_ns && self.tick_ns < u64::MAX {
            self.now_ns = self.tick_ns;
            self.tick_ns = self.tick_ns.saturating_add(TICK_NS);
            self.core.apply(Event::Tick, self.now_ns, &mut self.world);
            self.rest();
            self.write_down();
        }
        self.now_ns = until_ns;
    }

    /// A disk that was not changed for a while is written down as such, as the daemon does.
    fn write_down(&mut self) {
        let is_quiet = self.now_ns - self.changed_ns >= REST_AFTER_NS && self.now_ns >= self.rest_ns;
        if !is_quiet || self.rested == self.changes {
            return;
        }
        self.rest_ns = self.now_ns + REST_AGAIN_NS;
        let Some(since) = self.core.quiet_since(DISK) else { return };
        if self.core.durability(DISK) == Durability::Unflushed {
            self.core.apply(Event::MakeDurable { disk: DISK }, self.now_ns, &mut self.world);
            self.rest();
        }
        if self.core.rest_ssd(DISK, since, stamp(self.changes)) {
            self.rested = self.changes;
        }
        self.core.apply(Event::Tick, self.now_ns, &mut self.world);
        self.rest();
    }

    /// Numbers of the store, and of the disk's part of it.
    pub fn stats(&self) -> Option<(SsdStats, OwnerStats)> {
        Some((*self.core.ssd()?.stats().first()?, self.core.ssd_stats_of(DISK)?))
    }

    /// Bytes of memory that stand for the device.
    pub fn device_bytes(&self) -> u64 {
        self.flash.as_ref().map_or(0, Flash::kept_bytes)
    }
}
