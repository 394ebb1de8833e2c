//! What containers have of the disks that are served.
//!
//! Owns the way from a list to the disk that it is about. Never divides: what `DiskRanges::parts` says is for the core.
//! Invariant: a disk's ranges go with it; a disk that is attached anew has none.

use super::{Service, lock};
use crate::control::{ControlError, ControlErrorKind, RangesStatus, RangesTaken};
use crate::ranges::RangeList;

impl Service {
    /// What containers have of a disk.
    pub(super) fn ranges_of(&self, name: &str) -> Result<RangesStatus, ControlError> {
        let disk = self.find(name)?;
        let ranges = disk.ranges();
        Ok(RangesStatus::new(&disk.info().name, &ranges))
    }

    /// Takes a list, whole or not at all.
    pub(super) fn take_ranges(&self, list: &RangeList) -> Result<RangesTaken, ControlError> {
        // No disk comes or goes meanwhile.
        let _change = lock(&self.change);
        let disk = self.find(list.disk())?;
        let container = self.plan().find(list.disk()).and_then(|d| d.container.clone());
        if let Some(whole) = container {
            return Err(ControlError::new(
                ControlErrorKind::Conflict,
                format!("disk \"{}\" belongs to container \"{whole}\" as a whole", list.disk()),
                "take `container` away from the disk in the configuration, then divide it by ranges",
            ));
        }
        let mut ranges = disk.ranges();
        let taken = RangesTaken::new(list, &ranges);
        ranges.put(list)?;
        Ok(taken)
    }
}
