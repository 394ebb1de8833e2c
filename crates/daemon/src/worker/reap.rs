//! Taking finished operations from the back ends.
//!
//! Owns how many of them a turn deals with. Never looks inside one. Invariant: operations of a disk reach the core in
//! the order in which its back end gave them; those that are too many for a turn wait with their disk.

use super::Worker;
use super::serve::{LARGE_BYTES, hands_over};
use std::collections::VecDeque;
use undercroft_cache::{DiskId, Event, IoDone};
use undercroft_host::probes;

/// Bytes of finished operations that one turn deals with, all disks together; the last one may go over by its length.
const REAP_BYTES: usize = 256 * 1024;
/// The same for one disk, where several have operations under way.
const REAP_BYTES_EACH: usize = 64 * 1024;
/// What one operation counts for, besides its bytes.
const OPERATION_BYTES: usize = 2 * 1024;

impl Worker {
    /// Takes finished operations from the back ends.
    pub(super) fn reap(&mut self) -> bool {
        let mut busy = false;
        while let Some(refused) = self.refused.pop() {
            busy = true;
            self.apply(Event::IoDone(refused));
        }
        if self.devices.any() {
            busy |= self.reap_ssd();
        }
        let mut left = REAP_BYTES as isize;
        let mut i = 0;
        while i < self.busy_disks.len() {
            if left <= 0 {
                // The others first, next time.
                self.busy_disks.rotate_left(i);
                break;
            }
            let id = self.busy_disks[i];
            let Some(disk) = self.disks[id as usize].as_mut() else {
                self.busy_disks.swap_remove(i);
                continue;
            };
            if disk.done.is_empty() {
                disk.backend.poll(&mut self.done);
                disk.done.extend(self.done.drain(..));
                if disk.backend.holds_back() && !disk.dirty {
                    disk.dirty = true;
                    self.dirty.disks.push_back(id);
                }
                // Before what this poll brought: none of it is older.
                if let Some(lost) = disk.backend.take_lost() {
                    self.apply(Event::Lost { disk: DiskId(id), lost });
                }
            }
            let Some(disk) = self.disks[id as usize].as_mut() else { continue };
            if disk.done.is_empty() {
                if disk.backend.inflight() == 0 {
                    disk.listed = false;
                    self.busy_disks.swap_remove(i);
                } else {
                    i += 1;
                }
                continue;
            }
            busy = true;
            disk.progress_ns = self.now_ns;
            let each = if self.busy_disks.len() == 1 { REAP_BYTES } else { REAP_BYTES_EACH };
            left -= self.finish_operations(id, each.min(left as usize));
            i += 1;
        }
        if busy && self.starved {
            self.feed_starved();
        }
        busy
    }

    /// Tells the core of finished operations of disk `id`, until they come to `bytes`. Returns what they came to.
    fn finish_operations(&mut self, id: u32, bytes: usize) -> isize {
        let (mut n, mut had) = (0, 0);
        // What they bring has to be hashed, as a rule: they wait where that is behind.
        while had < bytes && !self.core.is_behind(DiskId(id)) {
            let Some(disk) = self.disks[id as usize].as_mut() else { break };
            let Some(done) = disk.done.pop_front() else { break };
            let (bytes, waiting) = (done_bytes(&done), disk.done.len());
            n += 1;
            probes::done(id, done.op.0, done.result.is_ok());
            self.apply(Event::IoDone(done));
            // What the core has left of it comes first, next time.
            let done = self.disks[id as usize].as_ref().map(|disk| &disk.done);
            let left = done.filter(|done| done.len() > waiting).and_then(VecDeque::front).map_or(0, done_bytes);
            let cost = bytes - left;
            had += OPERATION_BYTES + cost;
            if hands_over(n) || cost >= LARGE_BYTES {
                self.flush_ports();
            }
            if cost >= LARGE_BYTES {
                self.glance_beside(id);
            }
        }
        had as isize
    }

    /// Brings ports back whose disks have room for requests again.
    pub(super) fn feed_starved(&mut self) {
        self.starved = false;
        for (id, slot) in self.ports.iter_mut().enumerate() {
            let Some(slot) = slot.as_mut().filter(|s| s.starved) else { continue };
            if self.core.room(slot.disk) == 0 {
                self.starved = true;
                continue;
            }
            slot.starved = false;
            slot.wake(id as u32, &mut self.flows, self.now_ns);
        }
    }
}

/// Bytes that may be copied for a finished operation.
fn done_bytes(done: &IoDone) -> usize {
    done.buf.len as usize
}
