//! Which ranges of a disk are being changed: writes, write-zeroes and discards, in order of arrival.
//!
//! Owns the order of overlapping changes. Never touches data. Invariant: of two changes that overlap, the later one
//! is not active before the earlier one has left; so a block has at most one active change.
//!
//! One flat list, scanned: it is as long as the changes under way, some dozens at most on a busy disk, and the scan
//! costs less than any tree would. A change counts its blockers once, when it enters; each one that leaves counts
//! down the later ones it overlaps. So a range as large as the disk costs no more than a block.

use std::mem::size_of;

#[derive(Clone, Copy, Debug)]
struct Change {
    first: u64,
    end: u64,
    rec: u32,
    blockers: u32,
    active: bool,
}

impl Change {
    fn overlaps(&self, first: u64, end: u64) -> bool {
        self.first < end && first < self.end
    }
}

/// The changes of one disk under way, in order of arrival.
#[derive(Debug, Default)]
pub(in crate::disk) struct Changes {
    list: Vec<Change>,
    active: usize,
}

impl Changes {
    /// Bytes that the list holds at most when `requests` are under way.
    pub(in crate::disk) const fn bytes_max(requests: usize) -> usize {
        2 * requests * size_of::<Change>()
    }

    pub(in crate::disk) fn memory_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Change>()
    }

    pub(in crate::disk) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Enters a change of blocks `first..end` by request `rec`, which need not wait if `freely` (a planted bug). True
    /// if nothing stands before it.
    pub(in crate::disk) fn enter(&mut self, first: u64, end: u64, rec: u32, freely: bool) -> bool {
        let earlier = self.list.iter().filter(|c| c.overlaps(first, end)).count() as u32;
        let blockers = if freely { 0 } else { earlier };
        self.list.push(Change { first, end, rec, blockers, active: false });
        blockers == 0
    }

    /// Starts the change of `rec`; returns its blocks.
    pub(in crate::disk) fn activate(&mut self, rec: u32) -> (u64, u64) {
        let c = self.list.iter_mut().find(|c| c.rec == rec).expect("a change starts that never entered");
        assert!(!c.active, "a change started twice");
        c.active = true;
        self.active += 1;
        (c.first, c.end)
    }

    /// Ends the change of `rec`; returns the blocks it held. `unblock` follows.
    pub(in crate::disk) fn leave(&mut self, rec: u32) -> (u64, u64) {
        let at = self.list.iter().position(|c| c.rec == rec).expect("a change ends that never entered");
        let gone = self.list.remove(at);
        assert!(gone.active, "a change ended before it started");
        self.active -= 1;
        (gone.first, gone.end)
    }

    /// Counts a change of `first..end` that just left off the later ones that it held up; calls `ready` with those that
    /// nothing holds up any more, in order of arrival.
    pub(in crate::disk) fn unblock(&mut self, first: u64, end: u64, mut ready: impl FnMut(u32)) {
        for c in self.list.iter_mut().filter(|c| !c.active && c.overlaps(first, end)) {
            // Every waiting one that overlaps came later, or the one that left would have waited for it.
            if c.blockers > 0 {
                c.blockers -= 1;
                if c.blockers == 0 {
                    ready(c.rec);
                }
            }
        }
    }

    /// The blocks of the active changes.
    pub(in crate::disk) fn active(&self) -> impl Iterator<Item = (u64, u64)> {
        self.list.iter().filter(|c| c.active).map(|c| (c.first, c.end))
    }

    /// Whether an active change overlaps blocks `first..end`.
    #[inline]
    pub(in crate::disk) fn active_in(&self, first: u64, end: u64) -> bool {
        self.active != 0 && self.list.iter().any(|c| c.active && c.overlaps(first, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(c: &mut Changes, rec: u32) -> Vec<u32> {
        let mut ready = Vec::new();
        let (first, end) = c.leave(rec);
        c.unblock(first, end, |rec| ready.push(rec));
        ready
    }

    #[test]
    fn overlapping_changes_go_in_order_of_arrival() {
        let mut c = Changes::default();
        assert!(c.enter(0, 4, 1, false));
        assert!(!c.enter(2, 8, 2, false));
        assert!(!c.enter(6, 9, 3, false), "waits for one that waits itself");
        assert!(c.enter(20, 21, 4, false), "nothing in common");
        assert_eq!(c.activate(1), (0, 4));
        assert!(c.active_in(3, 4) && !c.active_in(4, 20));
        assert_eq!(leave(&mut c, 1), [2]);
        c.activate(2);
        assert_eq!(leave(&mut c, 2), [3]);
        c.activate(4);
        assert!(leave(&mut c, 4).is_empty());
        c.activate(3);
        leave(&mut c, 3);
        assert!(c.is_empty());
    }

    #[test]
    fn a_change_waits_for_all_that_came_before() {
        let mut c = Changes::default();
        c.enter(0, 1, 1, false);
        c.enter(5, 6, 2, false);
        assert!(!c.enter(0, 10, 3, false));
        c.activate(1);
        c.activate(2);
        assert!(leave(&mut c, 2).is_empty());
        assert_eq!(leave(&mut c, 1), [3]);
    }
}
