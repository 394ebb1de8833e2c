//! One disk of a core: what is cached, what is under way, and who waits for what.
//!
//! Owns the parts of the disk's state, each with an invariant of its own, and what is done to several of them at once:
//! `events` (what happens), `reads`, `writes`, `slots`, `capacity`, `guest`, `sharing`, `parts`, `pooled`. Never looks
//! at another disk, but for those that it keeps its blocks together with; takes frames from the core's arena only
//! within its own allowance, and what the pool lends.
//!
//! Invariants, beside those of the parts:
//! 1. A frame sits in a slot only if its bytes are what the disk holds, or held when a change of the block began that
//!    is still active.
//! 2. A block is read from the disk only while no active change covers it. A read that was under way when a change
//!    began is stale: requests that had joined it get its data, and it is not published.
//! 3. Nothing waits while it holds frames. An operation has all its frames when it is submitted, and gives them back
//!    when it completes; so whoever waits for frames gets them.

mod allowance;
mod capacity;
mod check;
mod events;
mod guest;
mod loans;
mod locking;
mod measuring;
mod members;
mod offset;
mod operations;
mod parts;
mod pooled;
mod reads;
mod records;
mod requests;
mod residents;
mod settings;
mod sharing;
mod slab;
mod slots;
mod ssd;
mod writes;

pub(crate) use allowance::{
    ARENA_BYTES_PER_FRAME, arena_frames, block_bytes, disk_frames, frame_bytes, place_bytes, usable_bytes,
};
pub use allowance::{blocks_per_disk_max, disk_bytes};
pub(crate) use guest::Raised;
pub(crate) use parts::parts_bytes;
pub(crate) use pooled::Leaving;

use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::{SharingDomain, Store};
use crate::types::{CoreOptions, DiskId, DiskOptions, DiskStats, IoNeeds, ReqId};
use allowance::Allowance;
use capacity::{Capacity, slots_max};
use guest::GuestSide;
use locking::Locking;
use measuring::Measuring;
use offset::Offset;
use operations::Operations;
use pooled::Place;
use reads::ahead::Streams;
use reads::fetch::Fetch;
use reads::near::NearBlocks;
use reads::waiters::Waiters;
use requests::Requests;
use residents::Residents;
use settings::Settings;
use sharing::Sharing;
use slab::Slab;
use std::mem::{offset_of, size_of};
use undercroft_engine::{ExclusiveMode, Index, PolicyKind};
use undercroft_host::{FRAME_BYTES, Held};
use writes::changes::Changes;
use writes::losses::Losses;
use writes::segment::Segment;

/// Bytes of a block.
pub(crate) const B: u64 = FRAME_BYTES as u64;

/// Bytes of a disk's own record, and of what is set of its locks.
const DISK_BYTES: usize = 2624 + size_of::<Locking>();

/// What a disk's methods need of the core while they run.
pub(crate) struct Cx<'a, E> {
    pub fx: &'a mut E,
    pub arena: &'a mut Store,
    pub now_ns: u64,
    /// Bytes that the event may still copy for requests; the one that finds 0 here pauses.
    pub left: u64,
}

/// One disk of a core; see the head of the file.
///
/// What a hit reads comes first, in as few lines of the processor's cache as it takes: with a thousand disks each has
/// left it when its next request comes.
#[repr(C, align(64))]
pub(crate) struct Disk<P> {
    settings: Settings,
    /// Stands on the core's list of those with something to do once the replies are out.
    spare_listed: bool,
    /// Blocks that are too many are to go once the replies are out.
    shrinks: bool,
    place: Place,
    /// Blocks' worth of the disk's own tables that its capacity, or its pool's, is used for.
    own_overhead: u32,
    measuring: Measuring,
    capacity: Capacity,
    sharing: Sharing,
    side: GuestSide,
    residents: Residents,
    requests: Requests,
    stats: DiskStats,
    streams: Streams,

    faults: P,
    /// Bytes that one event copies: [`CoreOptions::step_bytes`].
    step_bytes: u64,
    operations: Operations,
    near: NearBlocks,
    waiters: Waiters,
    /// Segments of writes that paused while they were filled.
    segments: Slab<Segment>,
    changes: Changes,
    losses: Losses,
    fetch: Fetch,
    offset: Offset,
    locking: Box<Locking>,
    /// Counts invalidations: what was submitted before one is not published after it.
    epoch: u32,
}

/// Lines of the processor's cache from the start of a disk's record to the tags of its streams: what a hit reads and
/// counts.
pub(crate) const HOT_LINES: usize = offset_of!(Disk<crate::fault_injection::NoFaults>, streams) / 64 + 2;

impl<P: FaultInjection> Disk<P> {
    /// A disk that shares frames with the others of `group`, and whose capacity the core's ceiling has room for.
    pub(crate) fn new(id: DiskId, options: DiskOptions, core: &CoreOptions, group: SharingDomain, faults: P) -> Self {
        let capacity = options.capacity_blocks;
        let allowance = Allowance::new(core, IoNeeds::from(&options));
        let mode = if core.contents { options.exclusive } else { ExclusiveMode::Off };
        let settings = Settings::new(id, options, core);
        let (kind, key, most) = (settings.options().policy, settings.hash_key(), slots_max(core, settings.options()));
        Self {
            spare_listed: false,
            shrinks: false,
            place: Place::default(),
            own_overhead: 0,
            measuring: Measuring::default(),
            capacity: Capacity::new(id, capacity, block_bytes(core)),
            sharing: Sharing::new(group),
            side: GuestSide::new(core.content_key.clone(), mode),
            residents: Residents::new(kind, capacity, most, key, core.contents),
            requests: Requests::new(allowance.requests),
            stats: DiskStats::default(),
            streams: Streams::new(settings.options().readahead_bytes, allowance.ahead),
            faults,
            step_bytes: core.step_bytes,
            near: NearBlocks::new(&allowance, core.hash_seed),
            waiters: Waiters::new(allowance.waiters),
            segments: Slab::new(allowance.ops),
            operations: Operations::new(allowance),
            changes: Changes::default(),
            losses: Losses::default(),
            fetch: Fetch::default(),
            offset: Offset::default(),
            locking: Box::default(),
            epoch: 0,
            settings,
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> DiskId {
        self.settings.id()
    }

    /// Whether nothing is under way, neither requests nor operations.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.len() == 0 && self.operations.len() == 0
    }

    /// Its blocks, the last one perhaps partial.
    pub(crate) fn size_blocks(&self) -> u64 {
        self.settings.blocks()
    }

    /// Blocks of the image, as they are counted from its first byte, but for a last one that is partial.
    pub(crate) fn whole_blocks(&self) -> u64 {
        (self.settings.size() - self.settings.lead()) / B
    }

    /// Bytes of the image.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.settings.size() - self.settings.lead()
    }

    /// How many more requests may be under way.
    pub(crate) fn requests_room(&self) -> usize {
        if self.settings.shifts() && !self.is_idle() && !self.faults.has(Bug::OffsetWhileBusy) {
            // Those under way end first.
            return 0;
        }
        self.operations.allowance().requests - self.requests.len()
    }

    /// From now on new requests are refused.
    pub(crate) fn close(&mut self) {
        self.settings.close();
    }

    /// Bytes of the core's ceiling that the disk takes besides its blocks, if it has `blocks` of them.
    pub(crate) fn io_bytes(&self, blocks: u32) -> u64 {
        self.operations.allowance().bytes(blocks)
    }

    /// The most blocks of `block_bytes` each for which `bytes` will do, with what they bring into the pool.
    pub(crate) fn blocks_within(&self, bytes: u64, block_bytes: u64) -> u64 {
        self.operations.allowance().blocks_within(bytes, block_bytes)
    }

    /// The index, for those who ask about policies and parts.
    pub(crate) fn index(&self) -> &Index {
        self.residents.index()
    }

    /// Every page that a slot holds, with the disk whose block it is.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (DiskId, &Held)> {
        self.residents.pages_owned().map(|(owner, page)| (owner.unwrap_or(self.settings.id()), page))
    }

    /// Every page that waits to be hashed.
    pub(crate) fn pages_waiting(&self) -> impl Iterator<Item = &Held> {
        self.side.waiting()
    }

    /// Whether the disk belongs to a trust group.
    pub(crate) fn deduplicates(&self) -> bool {
        self.sharing.is_on()
    }

    /// Gives the disk another policy; cached blocks stay.
    pub(crate) fn set_policy(&mut self, kind: PolicyKind) {
        self.residents.index_mut().switch(kind);
        self.follow_policy();
    }

    /// A port comes, and goes.
    pub(crate) fn open_port(&mut self, port: u32) {
        self.losses.open(port);
    }

    /// The failure of `req` reached nobody.
    pub(crate) fn unheard(&mut self, req: ReqId) {
        self.losses.unheard(req);
    }

    pub(crate) fn close_port(&mut self, port: u32) {
        self.losses.close(port);
    }

    /// Ports that another process has to tell of what was lost.
    pub(crate) fn untold(&self) -> u32 {
        self.losses.untold()
    }

    /// Another process has left so many ports to be told of what it lost.
    pub(crate) fn owe(&mut self, untold: u32) {
        if !self.faults.has(Bug::LossEndsWithProcess) {
            self.losses.owe(untold);
        }
    }

    /// Bytes of metadata held now.
    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.residents.memory_bytes()
            + self.requests.memory_bytes()
            + self.operations.memory_bytes()
            + self.waiters.memory_bytes()
            + self.segments.memory_bytes()
            + self.near.memory_bytes(self.operations.allowance())
            + self.changes.memory_bytes()
            + self.side.memory_bytes()
            + self.measuring.memory_bytes()
            + self.sharing.memory_bytes()
            + self.losses.memory_bytes()
            + size_of::<Locking>()
            + self.locking.memory_bytes()
    }

    /// The counters, with the gauges of this moment; those of blocks are the pool's for the disk that has its index.
    pub(crate) fn stats(&self) -> DiskStats {
        DiskStats {
            cached_blocks: u64::from(self.residents.count()),
            capacity_blocks: u64::from(self.capacity.blocks()),
            limit_blocks: u64::from(self.capacity.limited()),
            inflight_requests: self.requests.len() as u64,
            inflight_ops: self.operations.len() as u64,
            ..self.stats
        }
    }

    /// Calls `see` with every block of disk `of` in RAM, cached or read ahead, and its bytes; this disk has the index.
    pub(crate) fn for_each_cached_of(&self, of: &Self, see: &mut impl FnMut(u64, &[u8])) {
        let mut see = |block: u64, bytes: &[u8; FRAME_BYTES]| {
            let lead = if block == 0 { of.settings.lead() } else { 0 };
            see(block, &bytes[lead as usize..of.settings.block_bytes(block) as usize]);
        };
        for (block, slot) in self.residents.index().keys().filter_map(|(key, slot)| Some((of.block(key)?, slot))) {
            if let Some(page) = self.residents.page(slot) {
                see(block, page.bytes());
            }
        }
        for (block, frame) in of.near.iter_ahead() {
            see(block, frame.bytes());
        }
    }
}

const _: () =
    assert!(size_of::<Disk<crate::fault_injection::NoFaults>>() <= DISK_BYTES, "the ceiling counts a disk as smaller");
