//! What may change of a disk while it runs: capacity, share, limit, policy, hint, content, and what is measured of it.
//!
//! Owns how such a change takes effect, and how memory comes back when a disk may have less. Never adds or removes a
//! disk. Invariants: more memory is promised to a disk only after the ceiling has allowed it; a disk that has become
//! smaller evicts a bounded number of blocks at a time.

use super::Core;
use crate::disk::{B, block_bytes, usable_bytes};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{SHRINK_BLOCKS_PER_EVENT, TRIM_FRAMES_PER_EVENT};
use crate::types::{AddDiskError, CoreOptions, DiskId};
use undercroft_engine::shares::Hint;
use undercroft_engine::{PolicyKind, Telemetry};

impl<P: FaultInjection> Core<P> {
    /// Gives the disk another capacity, while it runs. Both ways that goes on with the next events, and once the
    /// replies are out: a bounded number of blocks, or places for them, each.
    ///
    /// # Errors
    /// If the ceiling does not allow it, or there is no such disk. Memory of a disk that shrinks is free for others
    /// when it has shrunk: [`DiskStats::cached_blocks`](crate::DiskStats::cached_blocks).
    pub fn set_capacity(&mut self, id: DiskId, blocks: u32) -> Result<(), AddDiskError> {
        self.bring_index(id);
        let disk = self.disk(id).ok_or(AddDiskError::Unknown(id))?;
        let now = disk.promised_bytes();
        self.promise(disk.promised_bytes_up_to(blocks), now)?;
        let has = disk.capacity_blocks();
        let slots = u64::from(disk.slots().max(has)) / u64::from(has).max(1) + 1;
        let more = u64::from(blocks.saturating_sub(has)) * slots * (block_bytes(&self.options) - B);
        self.make_room(more);
        if let Some(d) = self.disks[id.0 as usize].as_mut() {
            d.set_capacity(blocks);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, &mut self.arena);
        }
        Ok(())
    }

    /// Moves the disk's capacity, as one of many small steps of a share that follows the load. As
    /// [`Core::set_capacity`], but most steps rebuild nothing: a disk that has grown keeps its slots when it shrinks,
    /// up to twice as many as it needs. They cost it about a hundredth of a block each.
    ///
    /// # Errors
    /// As [`Core::set_capacity`].
    pub fn set_share(&mut self, id: DiskId, blocks: u32) -> Result<(), AddDiskError> {
        self.may_share(id, blocks)?;
        if let Some(d) = self.disks[id.0 as usize].as_mut() {
            d.set_share(blocks);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, &mut self.arena);
        }
        Ok(())
    }

    /// Sees that the disk can have a share of `blocks`, and makes room for its tables.
    pub(crate) fn may_share(&mut self, id: DiskId, blocks: u32) -> Result<(), AddDiskError> {
        self.bring_index(id);
        let disk = self.disk(id).ok_or(AddDiskError::Unknown(id))?;
        self.promise(disk.promised_bytes_up_to(blocks), disk.promised_bytes())?;
        let more = u64::from(blocks.saturating_add(blocks / 4).saturating_sub(disk.slots_wanted()));
        self.make_room(more * (block_bytes(&self.options) - B));
        Ok(())
    }

    /// Measures the disk's miss-ratio curve from now on, for capacities of up to `blocks_max` blocks; what was measured
    /// before is forgotten. `None` ends it. Its memory comes out of the disk's share.
    pub fn measure(&mut self, id: DiskId, blocks_max: Option<u64>) {
        self.with_disk(id, |d, arena| d.measure(blocks_max, arena));
    }

    /// Measures as well what RAM and the SSD store together would miss, up to so many blocks, if the disk is measured;
    /// `None` ends that. It is a part of what [`Core::telemetry`] says, and takes 160 KiB at most.
    pub fn measure_reach(&mut self, id: DiskId, blocks_max: Option<u64>) {
        self.with_disk(id, |d, arena| d.measure_reach(blocks_max, arena));
    }

    /// What the disk's requests showed since this was asked last; `None` if nothing is measured. What is measured
    /// follows the disk's capacity and policy as they are now.
    pub fn telemetry(&mut self, id: DiskId) -> Option<Telemetry> {
        self.bring_index(id);
        let disk = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut)?;
        disk.telemetry(&mut self.arena)
    }

    /// Blocks that the disk can keep with a share of `bytes`: less what its operations under way are
    /// guaranteed, and what it brings into the pool for more of them.
    pub fn blocks_for(&self, id: DiskId, bytes: u64) -> u32 {
        let disk = self.disk(id);
        let fixed = self.fixed_bytes(id, 0);
        // Whoever asks bounds it by `blocks_per_disk_max`, which knows the read-ahead of now, not what this disk was
        // promised: then what an arena takes itself is not in that bound, and has to be in this one.
        let changed = disk.is_some_and(|d| d.is_readahead_changed());
        let bytes =
            if changed { usable_bytes(&CoreOptions { memory_bytes: bytes, ..self.options.clone() }) } else { bytes };
        let (left, block) = (bytes.saturating_sub(fixed), block_bytes(&self.options));
        let blocks = disk.map_or(left / block, |d| d.blocks_within(left, block));
        blocks.min(u64::from(u32::MAX / 2)) as u32
    }

    /// Bytes of a share that `blocks` blocks take, what operations under way are guaranteed and its part of the
    /// pool included.
    pub fn bytes_for(&self, id: DiskId, blocks: u64) -> u64 {
        let of_disk = u32::try_from(blocks).unwrap_or(u32::MAX);
        let fixed = self.fixed_bytes(id, of_disk);
        fixed.saturating_add(blocks.saturating_mul(block_bytes(&self.options)))
    }

    /// Places for blocks that the disk has tables for, 0 if there is no such disk.
    pub fn slots(&self, id: DiskId) -> u32 {
        self.index_holder(id).map_or(0, |d| d.slots())
    }

    /// Work that was done at most so far on tables of the disk that became larger or smaller, in units of
    /// [`UNIT_BYTES`](crate::limits::UNIT_BYTES).
    pub fn table_units(&self, id: DiskId) -> u64 {
        self.index_holder(id).map_or(0, |d| d.table_units())
    }

    /// Lets the disk keep at most `blocks` blocks for now, of those its capacity allows: memory is short on the host.
    /// `u32::MAX` ends it. Nothing is rebuilt and nothing goes that need not; what is over goes with the next events
    /// and ticks, a bounded number of blocks each, and its memory back to the kernel with the ticks.
    pub fn set_limit(&mut self, id: DiskId, blocks: u32) {
        self.with_disk(id, |d, arena| {
            d.set_limit(blocks, arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
    }

    /// Goes on with giving memory back, for a caller that has promised it sooner than ticks would bring it: evicts at
    /// most `frames` blocks that are over the limits, and gives the memory of at most `frames` unused frames back to
    /// the kernel. Returns how many frames are still to go.
    pub fn give_back(&mut self, frames: u32) -> usize {
        let mut left = frames;
        for id in 0..self.disks.len() {
            let step = if self.faults.has(Bug::GiveBackEvictsNothing) { 0 } else { left };
            left -= self.give_back_of(DiskId(id as u32), step).0.min(left);
        }
        // What one gives up of a content that several hold is charged to the others, which have had their turn.
        let over = (0..self.disks.len()).map(|id| self.give_back_of(DiskId(id as u32), 0).1).sum::<usize>();
        over + self.trim(frames as usize)
    }

    /// Evicts at most `step` of a disk's blocks that are too many. How many went, and are left.
    fn give_back_of(&mut self, id: DiskId, step: u32) -> (u32, usize) {
        self.bring_index(id);
        let Some(disk) = &mut self.disks[id.0 as usize] else { return (0, 0) };
        let before = disk.len();
        disk.resize_step(step, &mut self.arena);
        (before.saturating_sub(disk.len()), disk.excess() as usize)
    }

    /// Gives the memory of at most `frames` unused frames back to the kernel; those that operations need again and
    /// again stay. Returns how many more could go.
    pub(super) fn trim(&mut self, frames: usize) -> usize {
        let keep: usize = self.disks.iter().flatten().map(|d| d.io_frames()).sum();
        let warm = self.arena.arena().warm();
        if warm > keep {
            self.arena.trim(keep.max(warm.saturating_sub(frames)));
        }
        self.arena.arena().warm().saturating_sub(keep)
    }

    /// Goes on with what a tick allowed to be given back to the kernel.
    pub(super) fn trim_step(&mut self) {
        let left = self.trim(TRIM_FRAMES_PER_EVENT);
        self.to_trim = self.to_trim.saturating_sub(TRIM_FRAMES_PER_EVENT).min(left);
    }

    /// Disks whose charge has gone up by what others gave up keep to their share, a bounded number of blocks at a time.
    #[cold]
    pub(super) fn balance(&mut self) {
        for _ in 0..self.arena.to_look_at() {
            let Some(id) = self.arena.next_to_look_at() else { break };
            self.bring_index(id);
            let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else { continue };
            if disk.keep_to_share(&mut self.arena) {
                self.arena.look_at(id);
            }
        }
    }

    /// Disks that deduplication saves frames get slots to use them, and give them back when it does no longer; those
    /// that are to read ahead farther do, where there is room for it now.
    pub(super) fn fit_slots(&mut self) {
        for i in 0..self.disks.len() {
            let Some(disk) = &self.disks[i] else { continue };
            let Some(slots) = disk.better_slots(&self.arena) else { continue };
            let more = u64::from(slots.saturating_sub(disk.slots_wanted())) * (block_bytes(&self.options) - B);
            self.make_room(more);
            if let Some(disk) = &mut self.disks[i] {
                disk.set_slots(slots);
                disk.resize_step(SHRINK_BLOCKS_PER_EVENT, &mut self.arena);
            }
        }
        self.follow_readaheads();
    }

    /// Gives the disk another policy, while it runs; cached blocks stay.
    pub fn set_policy(&mut self, id: DiskId, kind: PolicyKind) {
        if let Some(d) = self.disk_mut(id) {
            d.set_policy(kind);
        }
    }

    /// How the disk will be used from now on, until told otherwise: what is read may be the first to go, or not be kept
    /// at all, and read-ahead reaches twice as far or is off ([`Hint`] has the table). Growth is the controllers'
    /// business.
    pub fn set_hint(&mut self, id: DiskId, hint: Hint) {
        self.with_disk(id, |d, arena| {
            d.set_hint(hint, arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
    }

    /// How far the disk reads ahead of a proven stream at most, in bytes, from now on; 0 ends it. Frames move between
    /// requests and read-ahead as they come free. What tables for more of them take comes out of the disk's share
    /// ([`Core::blocks_for`]) and stays with it; where the ceiling does not allow that yet, ticks try it again.
    pub fn set_readahead(&mut self, id: DiskId, bytes: u32) {
        if self.disk_mut(id).is_some_and(|d| d.set_readahead(bytes)) {
            self.follow_readahead(id);
        }
    }

    /// The same for all disks that do not yet.
    #[cold]
    pub(super) fn follow_readaheads(&mut self) {
        for id in 0..self.disks.len() as u32 {
            if self.disk(DiskId(id)).is_some_and(|d| d.awaits_readahead()) {
                self.follow_readahead(DiskId(id));
            }
        }
    }

    /// Lets a disk read ahead as far as its configuration says, if the ceiling allows it.
    pub(super) fn follow_readahead(&mut self, id: DiskId) {
        self.bring_index(id);
        let Some(d) = self.disk(id) else { return };
        let (more, now) = (d.ahead_more_bytes(), d.promised_bytes());
        if self.promise(now + more, now).is_err() {
            return;
        }
        self.make_room(more);
        if let Some(d) = self.disks[id.0 as usize].as_mut() {
            d.follow_readahead(&mut self.arena);
        }
    }

    /// Drops everything cached of the disk, whose content is what it was: it stands on its base as before. Results of
    /// operations submitted before will not be cached.
    pub fn drop_cache(&mut self, id: DiskId) {
        self.with_disk(id, |d, arena| d.drop_cache(arena));
    }

    /// Drops everything cached of the disk, because its content may be another now (a back end opened again): nobody
    /// knows any more what it has in common with its base. Results of operations submitted before will not be cached.
    pub fn invalidate(&mut self, id: DiskId) {
        self.with_disk(id, |d, arena| d.invalidate(arena));
    }

    /// Has the disk fetch ranges of blocks (first, count), in their order, where slots are free and nothing else is to
    /// be done; nothing is evicted for them. Returns how many of them were taken over: no more than
    /// [`WANTED_RANGES_MAX`](crate::limits::WANTED_RANGES_MAX) wait at a time.
    pub fn want(&mut self, id: DiskId, ranges: &[(u64, u64)]) -> usize {
        self.disk_mut(id).map_or(0, |d| d.want(ranges))
    }

    /// Has the disk fetch nothing unasked, whatever its hint: until it is given one, or begins anew
    /// ([`Core::invalidate`]).
    pub fn want_nothing(&mut self, id: DiskId) {
        if let Some(d) = self.disk_mut(id) {
            d.want_nothing();
        }
    }

    /// Ranges that the disk has still to fetch.
    pub fn wanted(&self, id: DiskId) -> usize {
        self.disk(id).map_or(0, |d| d.wanted())
    }

    /// Blocks of the disk that are cached, those first that would go last; `most` of them. Takes time and memory for
    /// each block of the disk.
    pub fn hottest(&mut self, id: DiskId, most: usize) -> Vec<u64> {
        self.bring_index(id);
        self.disk(id).map_or_else(Vec::new, |d| d.hottest(most))
    }
}
