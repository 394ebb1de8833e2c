//! How much a disk may keep: its capacity, what of it is paid for, its slots, and memory used for something else.
//!
//! Owns those numbers, and how a disk takes on others step by step. Never takes memory that was not promised.
//! Invariants: a disk pays for its capacity or more, and for more only until others pay for what they hold together
//! with it; the index's limit is the disk's frames and what deduplication saves it, so its charge stays within its
//! share; frames beyond the limit leave before others come.

use super::allowance::{ARENA_BYTES_PER_FRAME, block_bytes};
use super::{B, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{
    METADATA_BYTES_PER_BLOCK_MAX, SHRINK_BLOCKS_PER_EVENT, SLOT_CONTENT_BYTES_MAX, SLOTS_PER_BLOCK_MAX, UNIT_BYTES,
    UNITS_MIN,
};
use crate::store::ram::{DEDUPLICATION_BYTES_PER_FRAME, Store};
use crate::types::{CoreOptions, DiskId, DiskOptions};
use undercroft_engine::shares::Admission;
use undercroft_host::FRAME_BYTES;

/// Bytes that a slot takes, whatever is in it.
const SLOT_BYTES: u64 = (METADATA_BYTES_PER_BLOCK_MAX - ARENA_BYTES_PER_FRAME + SLOT_CONTENT_BYTES_MAX) as u64;
/// Bytes that a frame takes, whoever holds it.
const FRAME_COST: u64 = (FRAME_BYTES + ARENA_BYTES_PER_FRAME + DEDUPLICATION_BYTES_PER_FRAME) as u64;

/// Most slots that a disk can have.
const SLOTS_MAX: u32 = u32::MAX - 1;

/// Frames that a disk of `blocks` blocks can pay for if it has `slots` slots: the more slots, the fewer frames.
fn frames_for(blocks: u32, slots: u32) -> u32 {
    let more = u64::from(slots.saturating_sub(blocks)) * SLOT_BYTES;
    blocks.saturating_sub(u32::try_from(more.div_ceil(FRAME_COST)).unwrap_or(u32::MAX))
}

/// Slots that a disk of a core may have in time: as many as the whole of the core's memory would be blocks of.
pub(super) fn slots_max(core: &CoreOptions, disk: &DiskOptions) -> u32 {
    let per_block = if disk.group.is_some() { u64::from(SLOTS_PER_BLOCK_MAX) } else { 1 };
    let slots = core.memory_bytes / block_bytes(core) * per_block;
    slots.min(u64::from(SLOTS_MAX)) as u32
}

/// The numbers; see the head of the file.
#[derive(Debug)]
pub(super) struct Capacity {
    blocks: u32,
    paid: u32,
    slots: u32,
    /// Blocks' worth of tables of guests and maps of bases, of all disks of a pool.
    overhead: u32,
    /// The same of meters.
    meters: u32,
    /// The same of the rule that locks blocks.
    rule: u32,
    limit: u32,
    block_bytes: u64,
    /// The disk under whose number the store counts it: the disk itself, or one of its pool.
    account: DiskId,
}

impl Capacity {
    /// A capacity of `blocks`, of which each takes `block_bytes` of the core's ceiling, counted as that of `account`.
    pub(super) fn new(account: DiskId, blocks: u32, block_bytes: u64) -> Self {
        Self {
            blocks,
            paid: blocks,
            slots: blocks,
            overhead: 0,
            meters: 0,
            rule: 0,
            limit: u32::MAX,
            block_bytes,
            account,
        }
    }

    /// That of a disk whose pool has it.
    pub(super) fn none(account: DiskId, block_bytes: u64) -> Self {
        Self::new(account, 0, block_bytes)
    }

    /// Takes another capacity in, with what of it is paid for and used for something else; its meters are gone, and its
    /// rule.
    pub(super) fn add(&mut self, other: &Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.paid = self.paid.saturating_add(other.paid);
        self.slots = self.slots.saturating_add(other.slots).min(SLOTS_MAX);
        self.overhead += other.overhead;
        self.limit = self.limit.saturating_add(other.limit);
    }

    /// Blocks' worth of tables of guests and maps of bases.
    pub(super) fn overhead(&self) -> u32 {
        self.overhead
    }

    /// Bytes of the core's ceiling that each block takes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The disk under whose number the store counts it.
    pub(super) fn account(&self) -> DiskId {
        self.account
    }

    /// From now on the store counts it under this number.
    pub(super) fn set_account(&mut self, disk: DiskId) {
        self.account = disk;
    }

    /// A disk of the pool goes, which used so many blocks' worth of tables.
    pub(super) fn give_up_overhead(&mut self, blocks: u32) {
        self.overhead -= blocks;
    }

    /// The capacity asked for, in blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Whether it pays for its capacity alone.
    #[inline]
    fn is_settled(&self) -> bool {
        self.paid == self.blocks
    }

    /// The slots for it; the index follows step by step when it shrinks.
    #[inline]
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Gives the disk other slots for the same capacity.
    fn set_slots(&mut self, slots: u32) {
        self.slots = slots;
    }

    /// Blocks of the capacity that the disk may keep for now: fewer while memory is short elsewhere.
    pub(super) fn limited(&self) -> u32 {
        self.limit.min(self.blocks)
    }

    /// Another capacity; the slots stand in the same proportion to it as before.
    fn set(&mut self, blocks: u32) {
        let slots = match self.blocks {
            0 => blocks,
            before => (u64::from(self.slots) * u64::from(blocks) / u64::from(before)) as u32,
        };
        self.slots = slots.max(blocks).min(SLOTS_MAX);
        self.ask(blocks);
    }

    /// Another capacity, as one of many small steps: the slots stay as they are while they will do, that is up to
    /// `per_block` for each block, and are a quarter more than needed when they will not, so that few steps rebuild
    /// anything.
    fn step(&mut self, blocks: u32, per_block: u32) {
        if blocks > self.slots || self.slots > blocks.saturating_mul(per_block) {
            self.slots = blocks.saturating_add(blocks / 4).min(SLOTS_MAX);
        }
        self.ask(blocks);
    }

    fn ask(&mut self, blocks: u32) {
        self.blocks = blocks;
        self.paid = self.paid.max(blocks);
    }
}

impl<P: FaultInjection> Disk<P> {
    // ---- what it is promised ----

    /// The capacity asked for, in blocks.
    pub(crate) fn capacity_blocks(&self) -> u32 {
        self.capacity.blocks
    }

    /// Slots that the index has now.
    pub(crate) fn slots(&self) -> u32 {
        self.residents.index().capacity()
    }

    /// Units of work that were done at most on tables that became larger or smaller.
    pub(crate) fn table_units(&self) -> u64 {
        self.residents.units()
    }

    /// Slots that there are or are to be.
    pub(crate) fn slots_max(&self) -> u32 {
        self.capacity.slots.max(self.residents.index().capacity_max())
    }

    /// Slots that there are to be.
    pub(crate) fn slots_wanted(&self) -> u32 {
        self.capacity.slots
    }

    /// Frames that the disk is promised.
    fn frames_promised(&self) -> u32 {
        frames_for(self.capacity.paid, self.slots_max())
    }

    /// Bytes of the core's ceiling that are this disk's.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.promised_bytes_for(self.capacity.paid)
    }

    /// The same with a capacity of `blocks`.
    pub(crate) fn promised_bytes_for(&self, blocks: u32) -> u64 {
        self.operations.allowance().bytes(blocks) + u64::from(blocks) * self.capacity.block_bytes
    }

    /// The same with a capacity of `blocks`, while what is paid for now still is.
    pub(crate) fn promised_bytes_up_to(&self, blocks: u32) -> u64 {
        self.promised_bytes_for(self.capacity.paid.max(blocks))
    }

    /// Bytes that the disk would bring more into the pool of frames for I/O than both do apart, with another disk's
    /// capacity in its own.
    pub(crate) fn brings_more(&self, other: &Self) -> u64 {
        let bytes = |disk: &Self, blocks| disk.operations.allowance().bytes(blocks);
        let (own, others) = (self.capacity.paid, other.capacity.paid);
        let together = bytes(self, own.saturating_add(others)) + bytes(other, 0);
        together.saturating_sub(bytes(self, own) + bytes(other, others))
    }

    /// Frames that its operations are guaranteed, and what it brings into the pool.
    pub(crate) fn io_frames(&self) -> usize {
        let allowance = self.operations.allowance();
        allowance.guaranteed_frames() + allowance.pool_part(self.capacity.paid) as usize
    }

    /// Of those, bytes of metadata.
    pub(crate) fn promised_metadata_bytes(&self) -> u64 {
        let frames = u64::from(self.frames_promised()) + self.io_frames() as u64;
        self.promised_bytes() - frames * B + u64::from(self.overhead_with(self.slots_max())) * B
    }

    /// Blocks of the capacity whose memory is used for something else, if there are `slots` slots: guests' tables, maps
    /// of bases, meters, the rule that locks blocks, parts.
    fn overhead_with(&self, slots: u32) -> u32 {
        let Capacity { overhead, meters, rule, .. } = self.capacity;
        (overhead + meters + rule).saturating_add(self.parts_blocks(slots))
    }

    /// Takes note of how much memory is used for something else than blocks; the limit follows later.
    pub(super) fn note_overhead(&mut self) {
        self.note_overhead_with(0);
    }

    fn note_overhead_with(&mut self, more: u32) {
        let own = self.side.overhead_blocks() + self.sharing.overhead_blocks() + self.locking.overhead_blocks() + more;
        self.capacity.overhead = self.capacity.overhead - std::mem::replace(&mut self.own_overhead, own) + own;
        self.capacity.meters = self.measuring.overhead_blocks();
        self.capacity.rule = self.residents.overhead_blocks();
    }

    /// Takes note of how much memory is used for something else than blocks, and keeps to it.
    pub(super) fn account_overhead(&mut self, arena: &mut Store) {
        self.account_overhead_with(0, arena);
    }

    /// The same, with `blocks` blocks' worth of tables that are about to come.
    pub(super) fn account_overhead_with(&mut self, blocks: u32, arena: &mut Store) {
        self.note_overhead_with(blocks);
        self.apply_limit(arena);
    }

    /// Makes room for `blocks` blocks' worth of tables, before they come.
    pub(crate) fn make_room_for(&mut self, blocks: u32, arena: &mut Store) {
        self.own_overhead += blocks;
        self.capacity.overhead += blocks;
        self.apply_limit(arena);
        self.resize_step(u32::MAX, arena);
    }

    // ---- what it may keep ----

    /// Frames that the disk may keep now.
    fn frames_limit(&self) -> u32 {
        let frames = frames_for(self.capacity.blocks, self.capacity.slots).min(self.frames_promised());
        let keeps = self.has_base() && self.faults.has(Bug::UnneededCloneKeeps);
        if self.settings.hint().admission() == Admission::Never && !self.is_pooled() && !keeps {
            return 0;
        }
        self.capacity.limit.min(frames.saturating_sub(self.overhead_with(self.slots_max())))
    }

    /// Frames that deduplication saves the disk: blocks in RAM less what it is charged for them.
    fn saved(&self, arena: &Store) -> u32 {
        if !self.holds_in_common() {
            return 0;
        }
        let charge = self.charge(arena).min(u64::from(self.residents.count()));
        self.residents.count() - charge as u32
    }

    /// Lets the index keep as many blocks as the disk can pay for now, beside what the rule that locks blocks takes,
    /// which is made for as many.
    pub(super) fn apply_limit(&mut self, arena: &mut Store) {
        self.capacity.rule = self.residents.overhead_blocks();
        self.limit_index(arena);
        if let Some(blocks) = self.residents.unfit_overhead() {
            self.fit_rule(blocks, arena);
        }
    }

    /// The rule that locks blocks becomes one for what the index may hold now, which takes `blocks` blocks' worth: paid
    /// for before it is made, and given back after. It will do for what the index may hold then
    /// ([`Online::is_unfit`](undercroft_engine::locking::Online::is_unfit)), so the two do not follow each other again.
    #[cold]
    fn fit_rule(&mut self, blocks: u32, arena: &mut Store) {
        let more = blocks.saturating_sub(self.capacity.rule);
        if more > 0 {
            self.capacity.rule = blocks;
            self.limit_index(arena);
            if self.excess() > 0 {
                // Later: when what is too much has gone.
                return;
            }
            // Unused frames that hold memory give it to the rule.
            arena.trim(arena.arena().warm().saturating_sub(more as usize));
        }
        self.residents.fit_online();
        self.capacity.rule = self.residents.overhead_blocks();
        self.limit_index(arena);
    }

    /// Checks that what the rule that locks blocks was made for is paid for; for tests.
    pub(super) fn check_rule(&self) {
        let paid = self.capacity.rule;
        assert!(self.residents.overhead_blocks() <= paid, "{paid} blocks are not what the rule for locks takes");
    }

    fn limit_index(&mut self, arena: &mut Store) {
        debug_assert!(!self.is_away(), "the limit of a pool is set by a disk that has not its index");
        self.sharing.settled();
        let frames = self.frames_limit();
        let account = self.capacity.account;
        arena.set_frames(account, self.frames_promised(), frames);
        if let Some(members) = self.residents.members() {
            arena.set_limit_together(members.ids(), frames);
        }
        arena.set_pool_part(account, self.operations.allowance().pool_part(self.capacity.paid));
        let index = self.residents.index();
        let limit = frames.saturating_add(self.saved(arena)).min(index.capacity());
        let now = index.limit();
        // More is allowed when it is needed: a limit that goes up and down with every block costs time.
        if limit < now || (limit > now && (!self.holds_in_common() || index.len() >= now)) {
            if self.faults.has(Bug::LockOutlivesFloor) {
                self.keep_locks();
            }
            self.residents.index_mut().set_limit(limit);
            self.side.set_limit(self.own_part(limit));
        }
    }

    /// The number of slots that fits what deduplication saves, if that is far from the present one.
    pub(crate) fn better_slots(&self, arena: &Store) -> Option<u32> {
        let (slots, blocks) = (self.capacity.slots, self.capacity.blocks);
        if !self.holds_in_common() || slots != self.slots() || blocks == 0 {
            return None;
        }
        let could = self.frames_limit().saturating_add(self.saved(arena));
        let most = blocks.saturating_mul(SLOTS_PER_BLOCK_MAX).min(SLOTS_MAX);
        if could > slots.saturating_add(slots / 16) && self.len() >= slots - slots / 16 && slots < most {
            let more = slots.saturating_mul(2).min(most);
            let frames = frames_for(blocks, more).saturating_sub(self.overhead_with(more)).min(self.capacity.limit);
            return (self.charge(arena) <= u64::from(frames)).then_some(more);
        }
        (slots > blocks && could < slots / 3).then(|| (slots / 2).max(blocks))
    }

    /// Gives the disk as many slots, for the same capacity.
    pub(crate) fn set_slots(&mut self, slots: u32) {
        self.capacity.set_slots(slots);
    }

    // ---- changes of it ----

    /// Gives the disk another capacity; the slots stand in the same proportion to it as before.
    pub(crate) fn set_capacity(&mut self, blocks: u32) {
        self.capacity.set(blocks);
    }

    /// Gives the disk another capacity, as one of many small steps that seldom rebuild anything.
    pub(crate) fn set_share(&mut self, blocks: u32) {
        self.capacity.step(blocks, if self.holds_in_common() { SLOTS_PER_BLOCK_MAX } else { 2 });
    }

    /// Lets the disk keep at most `limit` frames for now.
    pub(crate) fn set_limit(&mut self, limit: u32, arena: &mut Store) {
        self.capacity.limit = limit;
        self.apply_limit(arena);
    }

    /// Whether there is something to do for `resize_step`.
    #[inline]
    pub(crate) fn is_resizing(&self) -> bool {
        let index = self.residents.index();
        self.capacity.slots != index.capacity()
            || index.is_over()
            || !self.capacity.is_settled()
            || !self.operations.is_split_settled()
    }

    /// Blocks that have a slot.
    pub(crate) fn len(&self) -> u32 {
        self.residents.index().len()
    }

    /// Blocks that are to go.
    pub(crate) fn excess(&self) -> u32 {
        let index = self.residents.index();
        let keeps = self.measuring.has_parts() && self.faults.has(Bug::PartKeepsExcess);
        let excess = if keeps { index.len().saturating_sub(index.limit()) } else { index.excess() };
        excess.max(index.len().saturating_sub(self.capacity.slots))
    }

    /// Moves towards the capacity and the limit asked for, as far as takes the time of `step` evictions: blocks that
    /// are too many go first, then the tables become larger or smaller, which goes on in spare time. Returns how many
    /// went, what was done to tables counted as evictions.
    pub(crate) fn resize_step(&mut self, step: u32, arena: &mut Store) -> u32 {
        let went = self.evict_step(step, arena);
        if self.excess() > 0 {
            return went;
        }
        went + self.fit_tables((step - went).min(SHRINK_BLOCKS_PER_EVENT), arena)
    }

    /// Evicts all blocks that are too many, at once.
    pub(super) fn evict_excess(&mut self, arena: &mut Store) {
        self.evict_step(u32::MAX, arena);
    }

    /// Evicts at most `step` of the blocks that are too many; returns how many.
    pub(super) fn evict_step(&mut self, step: u32, arena: &mut Store) -> u32 {
        self.move_ahead(arena);
        self.apply_limit(arena);
        let before = self.len();
        for _ in 0..step {
            if self.excess() == 0 || !self.evict_one(arena) {
                break;
            }
            if self.holds_in_common() {
                // What one slot less saves depends on who else holds its frame.
                self.apply_limit(arena);
            }
        }
        before.saturating_sub(self.len())
    }

    /// Keeps to the share that the disk has now, as others' charges have changed: evicts, at most as much as an event
    /// may. Whether there is more to do than spare time does.
    pub(crate) fn keep_to_share(&mut self, arena: &mut Store) -> bool {
        self.evict_step(SHRINK_BLOCKS_PER_EVENT, arena);
        if self.excess() == 0 {
            // many disks may do this in one event: their tables have time, where that counts
            let step = if self.step_bytes == u64::MAX { SHRINK_BLOCKS_PER_EVENT } else { 0 };
            self.fit_tables(step, arena);
        }
        self.is_resizing() && (self.excess() > 0 || !self.residents.index().is_moving())
    }

    /// Makes the index fit the slots that there are to be, for the time of `step` evictions; all blocks that have to go
    /// have gone. Returns what it took.
    fn fit_tables(&mut self, step: u32, arena: &mut Store) -> u32 {
        let (index, slots) = (self.residents.index(), self.capacity.slots);
        if !index.is_resizing() && index.capacity() != slots {
            self.residents.begin_resize(slots);
        }
        let moved = self.residents.index().is_moving();
        if moved {
            // the part of a whole event's
            let whole = self.step_bytes / UNIT_BYTES;
            let units = whole / u64::from(SHRINK_BLOCKS_PER_EVENT) * u64::from(step);
            let units = units.clamp(UNITS_MIN, u64::from(u32::MAX)) as u32;
            let lost = self.faults.has(Bug::MoveLosesFrame);
            if step == 0 || !self.residents.step(units, self.settings.contents(), lost) {
                self.shrinks = true;
                self.apply_limit(arena);
                return step;
            }
        }
        // Until the core has seen whether the guest's table still has room, the disk pays for it.
        if self.slots() == slots && self.affords_table() {
            self.pay_less(arena);
        }
        self.apply_limit(arena);
        if moved { step } else { 0 }
    }

    /// The disk pays for its capacity alone, once others pay for what they hold together with it, or have given it up.
    fn pay_less(&mut self, arena: &mut Store) {
        let frames = self.frames_promised();
        let now = std::mem::replace(&mut self.capacity.paid, self.capacity.blocks);
        let unpaid = arena.overdrawn(frames.saturating_sub(self.frames_promised()));
        if unpaid > 0 && !self.faults.has(Bug::PaysLessEarly) {
            self.capacity.paid = now;
            arena.look_at_all();
        }
    }
}
