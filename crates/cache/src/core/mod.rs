//! The core of one worker: its disks, the memory they share, and the one way in.
//!
//! Owns the arena and the ceiling. Never reads a clock, never does I/O, never blocks.
//! Invariant: what has been promised to disks, data and metadata, is at most `memory_bytes`; so no operation ever
//! finds the memory gone, and no disk can take another's. What disks lend each other for operations (the pool) is
//! within that, and each is guaranteed enough of its own to go on.

mod guest;
mod kept;
mod live;
mod locking;
mod parts;
mod pools;
mod settings;
mod ssd;
mod state;
mod tables;

pub use live::DiskSettings;
pub use ssd::SSD;
pub use state::{IoPoolUse, MemoryUse};

use crate::content::ContentKey;
use crate::disk::{
    B, Cx, Disk, HOT_LINES, arena_frames, disk_bytes, disk_frames, frame_bytes, place_bytes, usable_bytes,
};
use crate::fault_injection::{Bug, FaultInjection, NoFaults};
use crate::limits::{DISKS_MAX, READAHEAD_KEEP_NS, SHRINK_BLOCKS_PER_EVENT, TRIM_FRAMES_PER_TICK};
use crate::store::ram::Store;
use crate::store::tier::Tier;
use crate::types::{
    AddDiskError, Base, CoreOptions, DiskId, DiskOptions, Effects, Event, IoError, IoNeeds, Op, ReqId, Request,
};
use pools::Pool;
use std::collections::VecDeque;
use std::io;
use undercroft_host::{FRAME_BYTES, IoBuf, prefetch_lines};

/// The data path of one worker. `P` is [`NoFaults`] but in tests of the simulation.
pub struct Core<P: FaultInjection = NoFaults> {
    options: CoreOptions,
    pub(crate) arena: Store,
    pub(crate) disks: Vec<Option<Box<Disk<P>>>>,
    /// Disks that keep their blocks together; a number that is free has none.
    pools: Vec<Option<Pool>>,
    content_key: ContentKey,
    /// Disks that have something to do once the replies are out; each at most once.
    spare: VecDeque<DiskId>,
    /// One of them should not wait for the end of a batch.
    spare_presses: bool,
    /// Unused frames that may go back to the kernel before the next tick.
    to_trim: usize,
    faults: P,
}

impl Core {
    /// A core without disks. Reserves address space for the ceiling and commits next to nothing of it.
    ///
    /// # Errors
    /// If the address space cannot be reserved.
    pub fn new(options: CoreOptions) -> io::Result<Self> {
        Core::with_faults(options, NoFaults)
    }
}

impl<P: FaultInjection> Core<P> {
    /// A core with a planted bug, for tests of the simulation.
    ///
    /// # Errors
    /// If the address space cannot be reserved.
    pub fn with_faults(options: CoreOptions, faults: P) -> io::Result<Self> {
        let arena = Store::new(arena_frames(&options), &options.frames, options.contents, options.hash_seed)?;
        let content_key = options.content_key.clone();
        Ok(Self {
            options,
            arena,
            disks: Vec::new(),
            pools: Vec::new(),
            content_key,
            spare: VecDeque::new(),
            spare_presses: false,
            to_trim: 0,
            faults,
        })
    }

    /// Adds a disk.
    ///
    /// # Errors
    /// If the ceiling does not allow it, the number is in use, or the options make no sense. Nothing has changed then.
    pub fn add_disk(&mut self, id: DiskId, options: DiskOptions) -> Result<(), AddDiskError> {
        let i = id.0 as usize;
        if i >= DISKS_MAX {
            return Err(AddDiskError::Options("the disk's number is past the most disks a daemon serves"));
        }
        if self.disks.get(i).is_some_and(Option::is_some) {
            return Err(AddDiskError::Exists(id));
        }
        if !options.align.is_power_of_two() || options.align as usize > FRAME_BYTES {
            return Err(AddDiskError::Options("the alignment must be a power of two from 1 to 4096 bytes"));
        }
        if options.size_bytes > i64::MAX as u64 {
            return Err(AddDiskError::Options("the disk is larger than 8EiB"));
        }
        let needed = disk_bytes(&self.options, options.capacity_blocks, &options);
        self.promise(needed, 0)?;
        let frames = disk_frames(&self.options, options.capacity_blocks, IoNeeds::from(&options));
        self.make_room(needed - frames * B);
        if self.disks.len() <= i {
            self.disks.resize_with(i + 1, || None);
        }
        self.arena.enter(id, options.group, options.capacity_blocks);
        let group = self.arena.group_of(id);
        let disk = Box::new(Disk::new(id, options, &self.options, group, self.faults));
        disk.come(&mut self.arena);
        self.disks[i] = Some(disk);
        Ok(())
    }

    /// Whether a disk with these options could be added now, as far as memory goes.
    ///
    /// # Errors
    /// If the ceiling does not allow it.
    pub fn may_add(&self, capacity_blocks: u32, needs: impl Into<IoNeeds>) -> Result<(), AddDiskError> {
        self.promise(disk_bytes(&self.options, capacity_blocks, needs), 0)
    }

    /// Bytes promised to disks. What operations have borrowed of the part of a disk that is gone, or smaller now, stays
    /// promised until they end.
    fn promised_bytes(&self) -> u64 {
        let owed = self.arena.pool().over() * frame_bytes(self.options.contents);
        self.disks.iter().flatten().map(|d| d.promised_bytes()).sum::<u64>() + owed as u64
    }

    /// Checks that `needed` bytes can be promised in place of `instead_of`.
    fn promise(&self, needed: u64, instead_of: u64) -> Result<(), AddDiskError> {
        let instead_of = if self.faults.has(Bug::RefusesWhatFits) { 0 } else { instead_of };
        let left_bytes = (usable_bytes(&self.options) + instead_of).saturating_sub(self.promised_bytes());
        if needed > left_bytes {
            return Err(AddDiskError::NoMemory { needed_bytes: needed, left_bytes });
        }
        Ok(())
    }

    /// Gives memory of unused frames back, where `more` bytes of metadata could otherwise break the ceiling.
    pub(crate) fn make_room(&mut self, more: u64) {
        let arena = self.arena.arena();
        let in_use = arena.reserved() - arena.available();
        let places = (arena.reserved() * place_bytes(self.options.contents)) as u64;
        let promised: u64 = self.disks.iter().flatten().map(|d| d.promised_metadata_bytes()).sum();
        let frames = self.options.memory_bytes.saturating_sub(promised + places + more) / B;
        self.arena.trim((frames as usize).saturating_sub(in_use));
    }

    /// Removes a disk and frees all it held.
    ///
    /// # Panics
    /// If anything of it is under way: see [`Core::is_idle`].
    pub fn remove_disk(&mut self, id: DiskId) {
        assert!(self.is_idle(id), "a disk was removed with requests under way");
        self.leave_guest(id);
        self.settle_debts(id);
        self.leave_for_good(id);
        let Some(mut disk) = self.disks.get_mut(id.0 as usize).and_then(Option::take) else { return };
        disk.release(&mut self.arena);
        if let Some(tier) = self.arena.tier_mut() {
            tier.detach(id);
        }
        self.arena.leave(id);
        self.keep_to_promises();
        self.arena.fit();
    }

    /// Disks that held frames together with one that is gone give up what none of them is promised.
    fn keep_to_promises(&mut self) {
        let mut went = !self.faults.has(Bug::HeirsKeepAll);
        while went && self.arena.overdrawn(0) > 0 {
            went = false;
            self.arena.look_at_all();
            for _ in 0..self.arena.to_look_at() {
                let Some(id) = self.arena.next_to_look_at() else { break };
                self.bring_index(id);
                let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else { continue };
                let before = disk.len();
                // A block that goes need not set a frame free: others may hold it too, or it has none yet.
                disk.resize_step(self.arena.overdrawn(0), &mut self.arena);
                went |= disk.len() < before;
            }
        }
    }

    /// From now on new requests of the disk are answered with [`IoError::Shutdown`]; those under way go on.
    pub fn begin_shutdown(&mut self, id: DiskId) {
        if let Some(d) = self.disk_mut(id) {
            d.close();
        }
    }

    /// Whether nothing of the disk is under way, neither requests nor operations.
    pub fn is_idle(&self, id: DiskId) -> bool {
        self.disk(id).is_none_or(Disk::is_idle)
    }

    /// How many more requests of the disk may be under way. A request too many is answered with [`IoError::Io`], so
    /// workers take no more than this from front ends.
    pub fn room(&self, id: DiskId) -> usize {
        self.disk(id).map_or(0, Disk::requests_room)
    }

    /// Deals with something that has happened. What is to be done outside of the core is asked of `fx`. `now_ns` is the
    /// time of a monotonic clock.
    ///
    /// # Panics
    /// If a back end reports an operation that is not under way.
    #[inline]
    pub fn apply<E: Effects>(&mut self, event: Event, now_ns: u64, fx: &mut E) {
        let left = self.options.step_bytes;
        self.arena.set_now(now_ns);
        match event {
            Event::IoDone(done) if done.disk == SSD => self.ssd_done(done),
            Event::Request(req) => {
                let Some(disk) = self.disks.get_mut(req.disk.0 as usize).and_then(Option::as_mut) else {
                    return fx.reply(req.id, Err(IoError::Shutdown));
                };
                prefetch_lines::<HOT_LINES, _>(&**disk);
                if disk.is_away() {
                    self.hand_over(req.disk);
                }
                let Some(disk) = &mut self.disks[req.disk.0 as usize] else { unreachable!("just looked at") };
                if disk.shifts() {
                    disk.shift(&mut self.arena);
                }
                let cx = &mut Cx { fx, arena: &mut self.arena, now_ns, left };
                disk.request(req, cx);
                disk.go_on(cx);
                self.spare_presses |= disk.presses_for_spare();
                if disk.may_want_spare() && disk.enlist() {
                    self.spare.push_back(req.disk);
                }
            }
            Event::Resume(paused) => {
                self.bring_index(paused.disk);
                let disk = self.disks.get_mut(paused.disk.0 as usize).and_then(Option::as_mut);
                let Some(disk) = disk.filter(|d| d.is_paused(paused.rec)) else { return };
                let cx = &mut Cx { fx, arena: &mut self.arena, now_ns, left };
                disk.drive(paused.rec, cx);
                disk.go_on(cx);
                if disk.may_want_spare() && disk.enlist() {
                    self.spare.push_back(paused.disk);
                }
            }
            Event::IoDone(done) => {
                let id = done.disk;
                self.bring_index(id);
                let disk = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut);
                let disk = disk.expect("a back end reported an operation of a disk that is gone");
                let cx = &mut Cx { fx, arena: &mut self.arena, now_ns, left };
                disk.done(done, cx);
                disk.go_on(cx);
                disk.fetch_on(cx);
                if disk.wants_spare() && disk.enlist() {
                    self.spare.push_back(id);
                }
            }
            Event::Lost { disk, lost } => {
                self.bring_index(disk);
                let Some(disk) = self.disks.get_mut(disk.0 as usize).and_then(Option::as_mut) else { return };
                let cx = &mut Cx { fx, arena: &mut self.arena, now_ns, left };
                disk.lose(&lost, cx);
                disk.note_loan(cx.arena);
                disk.go_on(cx);
            }
            Event::MakeDurable { disk } => {
                self.bring_index(disk);
                let Some(disk) = self.disks.get_mut(disk.0 as usize).and_then(Option::as_mut) else { return };
                disk.make_durable(&mut Cx { fx: &mut *fx, arena: &mut self.arena, now_ns, left });
            }
            Event::Spare { copies } => self.use_spare_time(copies, now_ns, fx),
            Event::Tick => self.tick(now_ns, fx),
        }
        if self.arena.has_tier() {
            self.serve_ssd(now_ns, fx);
        }
        if self.arena.guests.any_left() {
            self.tell_left();
        }
        if self.arena.to_look_at() > 0 {
            self.balance();
        }
    }

    /// The replies are out: disks that have something to do then do it, as much in all as one event should copy.
    fn use_spare_time<E: Effects>(&mut self, copies: bool, now_ns: u64, fx: &mut E) {
        self.spare_presses = false;
        // To hash a block takes about as long as to copy two.
        let mut left = (self.options.step_bytes / 2).max(B);
        if self.arena.guests.are_busy() {
            let half = left / 2;
            left -= half - self.step_tables(half);
        }
        for _ in 0..self.spare.len() {
            if left == 0 {
                break;
            }
            let Some(id) = self.spare.pop_front() else { break };
            self.bring_index(id);
            let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else { continue };
            disk.delist();
            let cx = &mut Cx { fx: &mut *fx, arena: &mut self.arena, now_ns, left };
            disk.spare(copies, cx);
            disk.shrink_in_spare_time(cx);
            disk.go_on(cx);
            left = cx.left;
            if disk.wants_spare() && disk.enlist() {
                self.spare.push_back(id);
            }
            left = self.copy_for_others(id, copies, left, now_ns, fx);
        }
        if left > 0 && self.to_trim > 0 {
            self.trim_step();
        }
    }

    /// Time has passed: what waits for nothing else goes on.
    fn tick<E: Effects>(&mut self, now_ns: u64, fx: &mut E) {
        self.fit_slots();
        self.fit_guests();
        if self.arena.guests.are_busy() {
            self.step_tables(self.options.step_bytes);
        }
        self.arena.fit();
        self.arena.look_at_all();
        let left = self.options.step_bytes;
        if let Some(tier) = self.arena.tier_mut() {
            tier.tick(now_ns);
        }
        let mut evictions = SHRINK_BLOCKS_PER_EVENT;
        for id in 0..self.disks.len() {
            self.bring_index(DiskId(id as u32));
            let Some(disk) = &mut self.disks[id] else { continue };
            let cx = &mut Cx { fx: &mut *fx, arena: &mut self.arena, now_ns, left };
            disk.follow_pool();
            if cx.arena.has_tier() {
                disk.race_late_reads(cx);
            }
            disk.expire_ahead(READAHEAD_KEEP_NS, cx);
            disk.note_loan(cx.arena);
            evictions -= disk.shrink_step(evictions, cx.arena);
            disk.go_on(cx);
            disk.fetch_on(cx);
            // What is left of that has time once the replies are out.
            if disk.wants_spare() && disk.enlist() {
                self.spare.push_back(disk.id());
            }
        }
        // Frames set free by a smaller capacity or limit go back to the kernel, a bounded number at a time.
        self.to_trim = TRIM_FRAMES_PER_TICK;
        self.trim_step();
    }

    /// The disk has a read-only base image: blocks that it has not of its own are shared with other disks of
    /// this core on the same one. False if the disk shares nothing, or the map of its own clusters would take more than
    /// a sixteenth of its share.
    pub fn set_base(&mut self, id: DiskId, base: Base) -> bool {
        self.make_room(base.own.len() as u64 * 8);
        self.bring_index(id);
        let Self { disks, arena, .. } = self;
        disks.get_mut(id.0 as usize).and_then(Option::as_mut).is_some_and(|d| d.set_base(base, arena))
    }

    /// Whether the disk shares blocks with others on the same image.
    pub fn has_base(&self, id: DiskId) -> bool {
        self.disk(id).is_some_and(|d| d.has_base())
    }

    /// Whether there is something to do once the replies are out: [`Event::Spare`].
    #[inline]
    pub fn wants_spare(&self) -> bool {
        !self.spare.is_empty() || self.to_trim > 0 || self.arena.guests.are_busy() || self.arena.tier_presses()
    }

    /// Whether so much of that has gathered that it should not wait for the end of a batch.
    #[inline]
    pub fn presses_for_spare(&self) -> bool {
        self.spare_presses
    }

    /// Whether so much of that has gathered for the disk that its operations had better finish later: what they bring
    /// would be hashed at once.
    #[inline]
    pub fn is_behind(&self, id: DiskId) -> bool {
        self.disk(id).is_some_and(Disk::is_behind)
    }

    /// The key of all hashes of contents in this core.
    pub fn content_key(&self) -> ContentKey {
        self.content_key.clone()
    }

    /// A hint that a request to a disk will come soon: brings what every request reads of the disk into the processor's
    /// cache. Best before [`Core::prefetch`], which waits for it.
    #[inline]
    pub fn approach(&self, id: DiskId) {
        if let Some(disk) = self.disk(id) {
            prefetch_lines::<HOT_LINES, _>(disk);
        }
    }

    /// A hint that `req` will come soon: brings what it needs first into the processor's cache.
    #[inline]
    pub fn prefetch(&self, req: &Request) {
        if req.op == Op::Read
            && let Some(disk) = self.disk(req.disk)
            && let Some(holder) = self.index_holder(req.disk)
            && let Some(frame) = holder.cached_of(disk, disk.block_at(req.offset))
        {
            frame.prefetch();
        }
    }

    /// Takes back the memory of an operation that will never complete, because its back end was torn down. The
    /// request that waits for it stays unanswered: only for a core that is about to be dropped.
    pub fn reclaim(&mut self, mut buf: IoBuf) {
        for f in buf.frames.drain(..) {
            self.arena.put(f);
        }
    }

    #[inline]
    pub(crate) fn disk(&self, id: DiskId) -> Option<&Disk<P>> {
        self.disks.get(id.0 as usize)?.as_deref()
    }

    /// Does something to a disk, if there is one, and to what the core's disks share.
    pub(crate) fn with_disk(&mut self, id: DiskId, act: impl FnOnce(&mut Disk<P>, &mut Store)) {
        self.bring_index(id);
        if let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) {
            act(disk, &mut self.arena);
        }
    }

    pub(crate) fn disk_mut(&mut self, id: DiskId) -> Option<&mut Disk<P>> {
        self.bring_index(id);
        self.disks.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// A port will send requests to the disk. What the disk lost before does not concern it
    /// ([`Event::Lost`](crate::Event::Lost)).
    pub fn open_port(&mut self, id: DiskId, port: u32) {
        if let Some(d) = self.disk_mut(id) {
            d.open_port(port);
        }
    }

    /// The failure of `req` was answered, [`IoError::Lost`], but its peer has gone without having seen it: what it was
    /// to tell of is told by the next one, as after [`Effects::unheard`].
    pub fn unheard(&mut self, id: DiskId, req: ReqId) {
        if let Some(d) = self.disk_mut(id) {
            d.unheard(req);
        }
    }

    /// A port sends no more requests to the disk, and waits for none.
    pub fn close_port(&mut self, id: DiskId, port: u32) {
        if let Some(d) = self.disk_mut(id) {
            d.close_port(port);
        }
    }

    /// How many ports of the disk another process has to tell of what was lost, if it goes on with the disk: 0 if all
    /// have been told. See [`Core::owe`].
    pub fn untold(&self, id: DiskId) -> u32 {
        self.disk(id).map_or(0, |d| d.untold())
    }

    /// Another process has left so many ports of the disk to be told ([`Core::untold`]): each that is open, or that
    /// opens next, is told once, as after [`Event::Lost`](crate::Event::Lost).
    pub fn owe(&mut self, id: DiskId, untold: u32) {
        if let Some(d) = self.disk_mut(id) {
            d.owe(untold);
        }
    }
}

impl<P: FaultInjection> Drop for Core<P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whatever broke, it should not break again here.
            return;
        }
        while let Some(buf) = self.arena.tier_mut().and_then(Tier::take_unsent) {
            self.reclaim(buf);
        }
        for id in 0..self.disks.len() {
            self.with_disk(DiskId(id as u32), |d, arena| d.release(arena));
        }
        self.arena.trim(0);
    }
}
