//! Calls of a core about locks: what may be locked of a disk, what is pinned, what is known of a block.
//!
//! Owns the order in which room is made and lists are taken. Never locks anything: the index does, when blocks come.
//! Invariant: a list that is refused has changed nothing.

use super::Core;
use crate::fault_injection::FaultInjection;
use crate::limits::SHRINK_BLOCKS_PER_EVENT;
use crate::types::{BlockReport, ByteRange, DiskId, LockReport, PinError};
use undercroft_engine::locking::LockSettings;
use undercroft_engine::ranges::RANGES_MAX;

impl<P: FaultInjection> Core<P> {
    /// Sets how blocks of the disk come to be locked, and its miss table and victim buffer; its pins stay. In a pool,
    /// what changes of the budget, of `keep_held` and of the victim buffer counts for all its disks, until it is
    /// changed of another one.
    pub fn set_locking(&mut self, id: DiskId, settings: LockSettings) {
        self.bring_index(id);
        let Some(disk) = self.disk(id).filter(|d| d.locking() != settings) else { return };
        let more = disk.locking_blocks(settings).saturating_sub(disk.locking_blocks(disk.locking()));
        self.make_room_for_locks(id, more);
        self.with_disk(id, |d, arena| {
            d.set_locking(settings, arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
    }

    /// Pins these ranges of the image, in place of those that were pinned: their blocks are locked when they come, or
    /// are touched next. No ranges: nothing is pinned.
    ///
    /// # Errors
    /// If there is no such disk, something is wrong with the list, or the ranges are more than the budget allows now:
    /// in a pool, more than the pins of the others leave of it; of a disk with parts, more than the budgets of all
    /// parts together. Nothing has changed then.
    pub fn set_pins(&mut self, id: DiskId, ranges: &[ByteRange]) -> Result<(), PinError> {
        self.take_pins(id, ranges, false)
    }

    /// The same with ranges that were pinned before, by this process or another one: they may be more than the budget
    /// allows now, and those that come first are locked.
    ///
    /// # Errors
    /// As [`Core::set_pins`], but that more than the budget is taken.
    pub fn set_pins_again(&mut self, id: DiskId, ranges: &[ByteRange]) -> Result<(), PinError> {
        self.take_pins(id, ranges, true)
    }

    fn take_pins(&mut self, id: DiskId, ranges: &[ByteRange], again: bool) -> Result<(), PinError> {
        if ranges.len() > RANGES_MAX {
            return Err(PinError::TooMany { ranges: ranges.len(), most: RANGES_MAX });
        }
        self.bring_index(id);
        let disk = self.disk(id).ok_or(PinError::NoDisk)?;
        let more = match disk.may_pin(ranges) {
            Err(PinError::OverBudget { .. }) if again => ranges.len().div_ceil(64) as u32,
            other => other?,
        };
        if more > disk.capacity_blocks() {
            return Err(PinError::NoRoom);
        }
        self.make_room_for_locks(id, more);
        self.with_disk(id, |d, arena| {
            d.set_pins(ranges.to_vec(), arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
        Ok(())
    }

    /// What is pinned of the disk.
    pub fn pins(&self, id: DiskId) -> Vec<ByteRange> {
        self.disk(id).map_or_else(Vec::new, |d| d.pins().to_vec())
    }

    /// The blocks that a profile names, for a disk whose mode is static: they are locked when they come, as far as the
    /// budget goes.
    ///
    /// # Errors
    /// As [`Core::set_pins`], but that more than the budget is taken.
    pub fn set_lock_profile(&mut self, id: DiskId, ranges: &[ByteRange]) -> Result<(), PinError> {
        if ranges.len() > RANGES_MAX {
            return Err(PinError::TooMany { ranges: ranges.len(), most: RANGES_MAX });
        }
        self.bring_index(id);
        let disk = self.disk(id).ok_or(PinError::NoDisk)?;
        let more = disk.may_name(ranges)?;
        if more > disk.capacity_blocks() {
            return Err(PinError::NoRoom);
        }
        self.make_room_for_locks(id, more);
        self.with_disk(id, |d, arena| {
            d.set_profile(ranges.to_vec(), arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
        Ok(())
    }

    /// What the disk's profile names.
    pub fn lock_profile(&self, id: DiskId) -> Vec<ByteRange> {
        self.disk(id).map_or_else(Vec::new, |d| d.lock_profile().to_vec())
    }

    fn make_room_for_locks(&mut self, id: DiskId, blocks: u32) {
        if blocks > 0 {
            self.with_disk(id, |d, arena| d.make_room_for(blocks, arena));
            self.make_room(0);
        }
    }

    /// What there is to say of a disk's locks, but for the blocks that missed most: for who asks again and again.
    pub fn lock_summary(&mut self, id: DiskId) -> LockReport {
        self.bring_index(id);
        self.disk(id).map_or_else(LockReport::default, |d| d.lock_summary())
    }

    /// What there is to say of a disk's locks. Sorts the table of misses.
    pub fn lock_report(&mut self, id: DiskId) -> LockReport {
        self.bring_index(id);
        self.disk(id).map_or_else(LockReport::default, |d| d.lock_report())
    }

    /// Where the disk's locked blocks begin, in bytes of the image.
    pub fn locked_at(&mut self, id: DiskId) -> Vec<u64> {
        self.bring_index(id);
        self.disk(id).map_or_else(Vec::new, |d| d.locked_at())
    }

    /// What is known of the block in which a byte of the image is; `None` if there is no such byte.
    pub fn block_report(&mut self, id: DiskId, byte: u64) -> Option<BlockReport> {
        let mut report = None;
        self.with_disk(id, |d, arena| {
            if byte < d.image_bytes() {
                report = Some(d.block_report(byte, arena));
            }
        });
        report
    }
}
