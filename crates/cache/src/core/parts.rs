//! Calls of a core about the parts of a disk: to set them, to change their shares, to measure them.
//!
//! Owns the order in which room is made and tables are built. Never counts anything: the disk does. Invariant: a list
//! that is refused has changed nothing.

use super::Core;
use crate::disk::{B, parts_bytes};
use crate::fault_injection::FaultInjection;
use crate::limits::SHRINK_BLOCKS_PER_EVENT;
use crate::types::{AddDiskError, DiskId, PartStats, SetPartsError};
use undercroft_engine::ranges::REST;
use undercroft_engine::{PartId, PartRange, PartSetting, PolicyKind, Telemetry};

impl<P: FaultInjection> Core<P> {
    /// Divides the disk into parts, each with a policy and a share of its own. The blocks in `ranges` belong to the
    /// parts in `settings`, all others to part 0, whose share is what the others leave of the disk's capacity. This
    /// replaces the former parts; those whose numbers stay keep what their policies and meters know. Cached blocks keep
    /// their frames and count for the part that has their range now; a part that then has more than its share gives the
    /// rest up as with [`Core::set_share`]. A map of the ranges and 13 bytes for each slot come out of the disk's
    /// share.
    ///
    /// Takes time in proportion to the disk's slots.
    ///
    /// # Errors
    /// If there is no such disk, or something is wrong with the lists. Nothing has changed then.
    pub fn set_parts(
        &mut self,
        id: DiskId,
        ranges: &[PartRange],
        settings: &[PartSetting],
    ) -> Result<(), SetPartsError> {
        let disk = self.disk(id).ok_or(SetPartsError::Disk(AddDiskError::Unknown(id)))?;
        let blocks = disk.size_blocks();
        if !self.pool(id).is_empty() {
            let why = "a disk that keeps its blocks together with others has no parts";
            return Err(SetPartsError::Disk(AddDiskError::Options(why)));
        }
        let last =
            disk.index().check_parts(ranges, blocks, settings, disk.capacity_blocks()).map_err(SetPartsError::Parts)?;
        let needed = parts_bytes(disk.slots_max(), ranges.len(), last).div_ceil(B) as u32;
        if needed > disk.capacity_blocks() {
            let (needed_blocks, disk_blocks) = (needed.into(), disk.capacity_blocks().into());
            return Err(SetPartsError::NoRoom { needed_blocks, disk_blocks });
        }
        // Room first, the tables then.
        self.with_disk(id, |d, arena| {
            d.make_room_for(needed.saturating_sub(d.parts_blocks(d.slots_max())), arena);
        });
        self.make_room(0);
        let mut set = Ok(());
        self.with_disk(id, |d, arena| {
            set = d.set_parts(ranges, settings, arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
        set
    }

    /// Removes the parts: the disk has the policy of part 0 and the shares of all parts together. Cached blocks stay.
    pub fn clear_parts(&mut self, id: DiskId) {
        self.with_disk(id, |d, arena| {
            d.clear_parts(arena);
        });
    }

    /// Sets the shares of some of the disk's parts (of part 0 too, if it is named); the others keep theirs, and the
    /// disk's capacity follows as their sum. Moves gradually, as [`Core::set_share`] does, which scales all parts
    /// alike.
    ///
    /// # Errors
    /// If the ceiling does not allow it, or there is no such disk or part. Nothing has changed then.
    pub fn set_part_shares(&mut self, id: DiskId, shares: &[(PartId, u32)]) -> Result<(), SetPartsError> {
        let disk = self.disk(id).ok_or(SetPartsError::Disk(AddDiskError::Unknown(id)))?;
        let (shares, sum) =
            disk.index().changed_shares(disk.capacity_blocks(), shares).map_err(SetPartsError::Parts)?;
        self.may_share(id, sum).map_err(SetPartsError::Disk)?;
        self.with_disk(id, |d, arena| {
            d.set_part_shares(&shares, sum);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
        Ok(())
    }

    /// Gives a part another policy; cached blocks stay. False if there is no such part.
    pub fn set_part_policy(&mut self, id: DiskId, part: PartId, kind: PolicyKind) -> bool {
        let mut found = false;
        self.with_disk(id, |d, _| {
            found = d.set_part_policy(part, kind);
        });
        found
    }

    /// Sizes and counts of each part of the disk, part 0 first; empty if the disk has no parts, or there is no such
    /// disk.
    pub fn part_stats(&self, id: DiskId) -> Vec<PartStats> {
        let charged = self.stats(id).charged_blocks;
        self.disk(id).map_or_else(Vec::new, |d| d.part_stats(charged))
    }

    /// Measures the miss-ratio curve of one part from now on, as [`Core::measure`] does for a disk; `None` ends it.
    /// False if there is no such part. Part 0 of a disk without parts is the disk.
    pub fn measure_part(&mut self, id: DiskId, part: PartId, blocks_max: Option<u64>) -> bool {
        let mut found = false;
        self.with_disk(id, |d, arena| {
            found = d.measure_part(part, blocks_max, arena);
        });
        found
    }

    /// What the requests of one part showed since this was asked last, as [`Core::telemetry`] does for a disk; `None`
    /// if nothing is measured, or there is no such part.
    pub fn part_telemetry(&mut self, id: DiskId, part: PartId) -> Option<Telemetry> {
        let mut telemetry = None;
        self.with_disk(id, |d, arena| {
            telemetry = d.part_telemetry(part, arena);
        });
        telemetry
    }

    /// The part that a block of the disk belongs to; part 0 if there is no such disk.
    pub fn part_of(&self, id: DiskId, block: u64) -> PartId {
        self.disk(id).map_or(REST, |d| d.index().part_of_block(block))
    }
}
