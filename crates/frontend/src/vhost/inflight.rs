//! The record of requests under way that survives the daemon: memory shared with the front end, from which a restarted
//! daemon learns which requests to serve again (vhost-user protocol, "Inflight I/O tracking", split rings).
//!
//! Owns the layout and the order of its updates. Never trusts what it reads: the memory is the front end's, too.
//! Invariant: at any moment at which the process may be killed, each chain taken and not yet visibly used is either
//! marked here or not yet counted as taken, so that a restart serves it exactly once more.

use super::limits::{INFLIGHT_SLACK_MAX, QUEUE_SIZE_MAX, QUEUES_MAX};
use super::memory::MemoryWindow;
use super::ring::Broken;
use crate::faults::{PortBug, PortFaults, StoreSite};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use undercroft_host::Guarded;
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{Bytes, FileOffset, MmapRegion};

// One queue: { features u64, version u16, desc_num u16, last_batch_head u16, used_idx u16, entries }, then per
// descriptor { inflight u8, padding [u8; 5], next u16, counter u64 }. Rounded up to 64 bytes as libvhost-user does.
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const BATCH_HEAD_AT: usize = 12;
const USED_AT: usize = 14;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const ENTRY_NEXT_AT: usize = 6;
const ENTRY_COUNTER_AT: usize = 8;
const ALIGN: usize = 64;
const VERSION: u16 = 1;

/// Bytes of the record of one queue of `size` entries.
fn queue_bytes(size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(size)).next_multiple_of(ALIGN)
}

/// The records of all queues of a device.
#[derive(Clone, Debug)]
pub struct InflightArea {
    mapping: Arc<Guarded>,
    queues: u16,
    queue_size: u16,
}

impl InflightArea {
    /// Makes an empty area, for the front end to keep. Returns what to tell it.
    ///
    /// # Errors
    /// More or larger queues than the device has, or no memory.
    pub fn create(queues: u16, queue_size: u16) -> io::Result<(VhostUserInflight, File)> {
        check(queues, queue_size)?;
        let bytes = usize::from(queues) * queue_bytes(queue_size);
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("undercroft-inflight", flags)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok((VhostUserInflight::new(bytes as u64, 0, queues, queue_size), File::from(fd)))
    }

    /// Maps the area that a front end hands over, and keeps `place` as long as it is mapped.
    ///
    /// # Errors
    /// It does not fit the device, or the file is shorter than it says, or much longer.
    pub fn open(said: &VhostUserInflight, file: File, place: impl Send + Sync + 'static) -> io::Result<InflightArea> {
        check(said.num_queues, said.queue_size)?;
        let bytes = usize::from(said.num_queues) * queue_bytes(said.queue_size);
        let end = said.mmap_offset.checked_add(said.mmap_size);
        let file_bytes = file.metadata()?.len();
        if said.mmap_size < bytes as u64 || end.is_none_or(|end| file_bytes < end) {
            return Err(invalid("the shared memory for requests under way is too small"));
        }
        if file_bytes > bytes as u64 + INFLIGHT_SLACK_MAX {
            return Err(invalid("the shared memory for requests under way is much larger than their record"));
        }
        let mapping =
            MmapRegion::from_file(FileOffset::new(file, said.mmap_offset), bytes).map_err(io::Error::other)?;
        Ok(InflightArea {
            mapping: Arc::new(Guarded::new(mapping)?.holding(place)),
            queues: said.num_queues,
            queue_size: said.queue_size,
        })
    }

    /// What to say of it to whoever is to map it, and its file.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub(super) fn said(&self) -> io::Result<(VhostUserInflight, OwnedFd)> {
        let place = self.mapping.file_offset().ok_or_else(|| invalid("the record has no file"))?;
        let bytes = usize::from(self.queues) * queue_bytes(self.queue_size);
        let said = VhostUserInflight::new(bytes as u64, place.start(), self.queues, self.queue_size);
        Ok((said, place.file().try_clone()?.into()))
    }

    /// The record of one queue; `None` if the area has none for it.
    pub fn queue(&self, index: u16) -> Option<InflightLog> {
        let bytes = queue_bytes(self.queue_size);
        let window = MemoryWindow::new(Arc::clone(&self.mapping), usize::from(index) * bytes, bytes)?;
        (index < self.queues).then_some(InflightLog { window, entries: self.queue_size, counter: 0, batch: Vec::new() })
    }
}

fn check(queues: u16, queue_size: u16) -> io::Result<()> {
    if queues == 0 || queues > QUEUES_MAX || queue_size == 0 || queue_size > QUEUE_SIZE_MAX {
        return Err(invalid("requests under way can be recorded for at most 64 queues of 1024 entries"));
    }
    Ok(())
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The record of one queue.
#[derive(Clone, Debug)]
pub struct InflightLog {
    window: MemoryWindow,
    entries: u16,
    /// Order of the next chain taken.
    counter: u64,
    /// Chains used but not yet published.
    batch: Vec<u16>,
}

impl InflightLog {
    /// Whether its memory was taken away.
    pub fn is_broken(&self) -> bool {
        self.window.is_broken()
    }

    /// Reads what an earlier daemon has left, given the ring's size and its used index. Returns the chains to serve
    /// again, in the order in which they were taken; `None` if the record is new, so that nothing was under way.
    ///
    /// # Errors
    /// The record does not fit the ring.
    pub fn recover<F: PortFaults>(&mut self, ring_size: u16, used: u16) -> Result<Option<Vec<u16>>, Broken> {
        if ring_size > self.entries {
            return Err(Broken::InflightLog);
        }
        self.batch.clear();
        if self.load(VERSION_AT) == 0 {
            self.store::<F>(ENTRIES_AT, self.entries, StoreSite::LogHead);
            self.store::<F>(USED_AT, used, StoreSite::LogIndex);
            self.store::<F>(VERSION_AT, VERSION, StoreSite::LogHead);
            return Ok(None);
        }
        if self.load(VERSION_AT) != VERSION || self.load(ENTRIES_AT) != self.entries {
            return Err(Broken::InflightLog);
        }
        // The last batch was made visible to the driver, but perhaps not all of it was unmarked.
        let batch = used.wrapping_sub(self.load(USED_AT));
        let mut head = self.load(BATCH_HEAD_AT);
        for _ in 0..batch.min(self.entries) {
            if head >= self.entries {
                return Err(Broken::InflightLog);
            }
            self.mark::<F>(head, false);
            head = self.load(entry(head) + ENTRY_NEXT_AT);
        }
        self.store::<F>(USED_AT, used, StoreSite::LogIndex);
        let mut left: Vec<(u64, u16)> = (0..self.entries)
            .filter(|&head| self.marked(head))
            .map(|head| (self.window.slice().load(entry(head) + ENTRY_COUNTER_AT, Ordering::Acquire), head))
            .map(|(counter, head)| (counter.expect("entries are aligned"), head))
            .collect();
        if left.len() > usize::from(ring_size) || left.iter().any(|&(_, head)| head >= ring_size) {
            return Err(Broken::InflightLog);
        }
        left.sort_unstable();
        self.counter = left.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        Ok(Some(left.into_iter().map(|(_, head)| head).collect()))
    }

    /// Chain `head` was taken from the available ring.
    #[inline]
    pub fn taken<F: PortFaults>(&mut self, head: u16) {
        if F::has(PortBug::TakenUnmarked) {
            return;
        }
        let counter = self.counter;
        self.counter = counter.wrapping_add(1);
        let at = entry(head) + ENTRY_COUNTER_AT;
        F::store(StoreSite::Counter);
        self.window.slice().store(counter, at, Ordering::Release).expect("entries are aligned");
        self.mark::<F>(head, true);
    }

    /// Chain `head` was written to the used ring, to be published with others.
    #[inline]
    pub fn used<F: PortFaults>(&mut self, head: u16) {
        self.store::<F>(entry(head) + ENTRY_NEXT_AT, self.load(BATCH_HEAD_AT), StoreSite::Link);
        self.store::<F>(BATCH_HEAD_AT, head, StoreSite::BatchHead);
        self.batch.push(head);
    }

    /// The chains used since the last call are visible to the driver; its used index is now `used`.
    #[inline]
    pub fn published<F: PortFaults>(&mut self, used: u16) {
        let mut batch = std::mem::take(&mut self.batch);
        for head in batch.drain(..) {
            self.mark::<F>(head, false);
        }
        self.batch = batch;
        self.store::<F>(USED_AT, used, StoreSite::LogIndex);
    }

    #[inline]
    fn mark<F: PortFaults>(&self, head: u16, on: bool) {
        F::store(if on { StoreSite::Mark } else { StoreSite::Unmark });
        self.window.slice().store(u8::from(on), entry(head), Ordering::Release).expect("entries are whole");
    }

    fn marked(&self, head: u16) -> bool {
        self.window.slice().load::<u8>(entry(head), Ordering::Acquire).expect("entries are whole") == 1
    }

    #[inline]
    fn load(&self, at: usize) -> u16 {
        self.window.slice().load(at, Ordering::Acquire).expect("the record is aligned")
    }

    #[inline]
    fn store<F: PortFaults>(&self, at: usize, value: u16, site: StoreSite) {
        F::store(site);
        self.window.slice().store(value, at, Ordering::Release).expect("the record is aligned");
    }
}

fn entry(head: u16) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::NoPortFaults;

    fn log(size: u16) -> (InflightArea, InflightLog) {
        let (said, file) = InflightArea::create(2, size).unwrap();
        let area = InflightArea::open(&said, file, ()).unwrap();
        let mut log = area.queue(1).unwrap();
        assert_eq!(log.recover::<NoPortFaults>(size, 7).unwrap(), None);
        (area, log)
    }

    #[test]
    fn chains_under_way_come_back_in_the_order_in_which_they_were_taken() {
        let (area, mut log) = log(16);
        [9, 3, 12, 5].into_iter().for_each(|h| log.taken::<NoPortFaults>(h));
        log.used::<NoPortFaults>(3);
        log.published::<NoPortFaults>(8);
        let mut again = area.queue(1).unwrap();
        assert_eq!(again.recover::<NoPortFaults>(16, 8).unwrap(), Some(vec![9, 12, 5]));
        again.taken::<NoPortFaults>(3);
        assert_eq!(
            area.queue(1).unwrap().recover::<NoPortFaults>(16, 8).unwrap(),
            Some(vec![9, 12, 5, 3]),
            "the order goes on"
        );
        assert_eq!(
            area.queue(0).unwrap().recover::<NoPortFaults>(16, 0).unwrap(),
            None,
            "queues have records of their own"
        );
        assert!(area.queue(2).is_none());
    }

    #[test]
    fn death_between_two_steps_of_a_batch_neither_loses_nor_repeats_a_chain() {
        let (area, mut log) = log(16);
        [1, 2, 3, 4].into_iter().for_each(|h| log.taken::<NoPortFaults>(h));
        log.used::<NoPortFaults>(2);
        log.used::<NoPortFaults>(4);
        // Killed before the used index was written: the driver saw none of both.
        assert_eq!(area.queue(1).unwrap().recover::<NoPortFaults>(16, 7).unwrap(), Some(vec![1, 2, 3, 4]));
        // Killed right after: the driver saw both, though they are still marked.
        assert_eq!(area.queue(1).unwrap().recover::<NoPortFaults>(16, 9).unwrap(), Some(vec![1, 3]));
    }

    #[test]
    fn a_record_full_of_garbage_is_refused_or_bounded() {
        let (area, log) = log(16);
        for at in (0..HEADER_BYTES + 16 * ENTRY_BYTES).step_by(2) {
            log.store::<NoPortFaults>(at, 0xa5a5, StoreSite::LogHead);
        }
        assert_eq!(area.queue(1).unwrap().recover::<NoPortFaults>(16, 0), Err(Broken::InflightLog));
        log.store::<NoPortFaults>(VERSION_AT, VERSION, StoreSite::LogHead);
        log.store::<NoPortFaults>(ENTRIES_AT, 16, StoreSite::LogHead);
        assert_eq!(
            area.queue(1).unwrap().recover::<NoPortFaults>(16, 0),
            Err(Broken::InflightLog),
            "the batch list leads outside"
        );
        log.store::<NoPortFaults>(BATCH_HEAD_AT, 3, StoreSite::BatchHead);
        log.store::<NoPortFaults>(entry(3) + ENTRY_NEXT_AT, 3, StoreSite::Link);
        assert!(
            area.queue(1).unwrap().recover::<NoPortFaults>(16, 0).is_ok(),
            "a list that loops ends after one round"
        );
        assert_eq!(
            area.queue(1).unwrap().recover::<NoPortFaults>(32, 0),
            Err(Broken::InflightLog),
            "the ring is larger"
        );
    }

    #[test]
    fn areas_that_lie_about_their_size_are_refused() {
        assert!(InflightArea::create(QUEUES_MAX + 1, 16).is_err());
        assert!(InflightArea::create(1, QUEUE_SIZE_MAX + 1).is_err());
        let (said, file) = InflightArea::create(2, 16).unwrap();
        let lie = |size, offset, queues| {
            let said = VhostUserInflight::new(size, offset, queues, 16);
            InflightArea::open(&said, file.try_clone().unwrap(), ()).is_err()
        };
        assert!(lie(said.mmap_size, 0, 3) && lie(said.mmap_size + 1, 0, 2) && lie(said.mmap_size, u64::MAX, 2));
        let long = |bytes: u64| {
            let fd = rustix::fs::memfd_create("long", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, bytes).unwrap();
            InflightArea::open(&said, File::from(fd), ())
        };
        assert!(long(said.mmap_size + INFLIGHT_SLACK_MAX).is_ok(), "one huge page");
        assert!(long(said.mmap_size + INFLIGHT_SLACK_MAX + 1).is_err(), "memory that nobody can use is kept by us");
    }

    #[test]
    fn an_area_that_we_hand_out_cannot_be_cut_short() {
        let (said, file) = InflightArea::create(2, 16).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(said.mmap_size * 2).is_err());
        let more = rustix::fs::SealFlags::WRITE;
        assert!(rustix::fs::fcntl_add_seals(&file, more).is_err(), "a front end must not keep us from writing it");
    }
}
