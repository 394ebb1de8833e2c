//! What is known of single blocks of disks: where one is and why, and which miss most.
//!
//! Owns the way from the core's reports to the API's words. Never changes anything. Invariant: places are in bytes of
//! the disk.

use super::Service;
use super::disk::{self, ServedDisk};
use undercroft_api::ranges::RangeBody;
use undercroft_api::{BlockStatus, MissedBlock, MissesStatus};
use undercroft_cache::LockReport;
use undercroft_config::{ControlError, ControlErrorKind, keys};
use undercroft_host::FRAME_BYTES;

const BLOCK: u64 = FRAME_BYTES as u64;

impl Service {
    /// What is known of the block that has this byte of a disk.
    pub(super) fn block_of(&self, name: &str, byte: u64) -> Result<BlockStatus, ControlError> {
        let disk = self.find(name)?;
        let (id, size_bytes) = (disk.id(), disk.info().geometry.size_bytes);
        let told = disk.host().worker.call(move |w| {
            let core = w.core();
            Some((core.block_report(id, byte)?, core.lock_summary(id)))
        });
        let told = told.map_err(|e| disk::silent(e, disk.worker_number()))?;
        let (block, locks) = told.ok_or_else(|| {
            ControlError::new(
                ControlErrorKind::Invalid,
                format!("disk \"{name}\" has no byte {byte}: it ends after {size_bytes} bytes"),
                "name a byte of the disk, from its first one on, not of a partition",
            )
        })?;
        let plan = self.plan();
        let own = plan.find(name);
        let part = own.and_then(|p| p.parts.iter().find(|part| part.number == block.part.0));
        let pinned_by = block.pinned_by.map(|r| RangeBody { offset_bytes: r.offset, length_bytes: r.bytes });
        Ok(BlockStatus {
            disk: disk.info().name.clone(),
            offset_bytes: block.offset,
            cached: block.cached,
            on_its_way: block.on_its_way,
            locked: block.locked,
            buffered: block.buffered,
            first_to_go: block.first_to_go,
            on_probation: block.on_probation,
            container: part.map(|part| part.container.clone()),
            policy: block.policy.name().to_owned(),
            hint: own.map_or_else(String::new, |p| p.hint_name().to_owned()),
            guest_holds: block.guest_holds,
            on_ssd: block.on_ssd,
            pinned_by,
            pinned_from: pinned_by.and_then(|_| disk.pinning().pins_from()),
            named_by_profile: block.named_by_profile,
            chosen: block.chosen,
            misses: block.missed.map(|m| m.misses),
            misses_error: block.missed.map(|m| m.error),
            keeps_nothing: block.keeps_nothing,
            lock_held: locks.settings.keep_held,
            locked_bytes: block.part_locked_blocks * BLOCK,
            budget_bytes: block.part_budget_blocks * BLOCK,
        })
    }

    /// The blocks that miss most of a node. Disks whose worker does not answer are left out, unless it is one of them
    /// that is asked for.
    pub(super) fn misses_of(&self, name: &str) -> Result<MissesStatus, ControlError> {
        let plan = self.plan();
        // What a container has of a disk by ranges is a node of the tree of shares.
        let mut parts = plan.disks.iter().flat_map(|d| d.leaves().skip(1).map(move |(part, leaf, _)| (d, part, leaf)));
        if let Some((own, part, _)) = parts.find(|(.., leaf)| leaf == name) {
            return misses_of_disk(&*self.find(&own.name)?, Some(part));
        }
        let node = plan.node_name(name)?;
        if plan.disks.iter().any(|d| d.name == node) {
            return misses_of_disk(&*self.find(&node)?, None);
        }
        let tables = self.disks().into_iter().filter_map(|disk| {
            let own = plan.disks.iter().find(|p| p.name == disk.info().name)?;
            let part = own.part_of(&node).map(|part| part.number);
            let is_in = node == keys::HOST || own.is_of(&node);
            is_in.then(|| misses_of_disk(&disk, part).ok()).flatten()
        });
        Ok(MissesStatus::merged(tables))
    }
}

/// Leaves blocks out of the table of those that miss most, by where they begin; their misses are not counted then.
fn retain_blocks(report: &mut LockReport, mut which: impl FnMut(u64) -> bool) {
    report.most_missed.retain(|m| which(m.block));
    report.misses = report.most_missed.iter().map(|m| m.misses.saturating_sub(m.error)).sum();
}

/// The table of a disk, or what is in it of a part of the disk.
fn misses_of_disk(disk: &ServedDisk, part: Option<u8>) -> Result<MissesStatus, ControlError> {
    let id = disk.id();
    let report = disk.host().worker.call(move |w| {
        let core = w.core();
        let mut report = core.lock_report(id);
        if let Some(part) = part {
            let is_of_part = |byte| core.block_report(id, byte).is_some_and(|block| block.part.0 == part);
            retain_blocks(&mut report, is_of_part);
        }
        report
    });
    let report = report.map_err(|e| disk::silent(e, disk.worker_number()))?;
    let name = &disk.info().name;
    let blocks = report.most_missed.iter().map(|m| MissedBlock {
        disk: name.clone(),
        offset_bytes: m.block,
        misses: m.misses,
        error: m.error,
    });
    Ok(MissesStatus {
        counted_misses: report.misses,
        miss_table: report.settings.miss_entries.into(),
        blocks: blocks.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_engine::locking::Missed;

    #[test]
    fn what_others_have_missed_is_left_out() {
        let missed = |block, misses, error| Missed { block, misses, error };
        let most_missed = vec![missed(0, 9, 2), missed(8192, 7, 0), missed(4096, 5, 1)];
        let mut report = LockReport { misses: 100, most_missed, ..LockReport::default() };
        retain_blocks(&mut report, |byte| byte != 8192);
        assert_eq!((report.misses, report.most_missed), (11, vec![missed(0, 9, 2), missed(4096, 5, 1)]));
    }
}
