//! A split virtqueue, seen from the device: descriptor table, available ring, used ring (virtio 1.2, section 2.7).
//!
//! Owns the device's positions in the rings. Never looks at what a descriptor points to. Invariants: the three parts
//! were found inside guest memory, aligned, when the ring was made, and the mappings are held, so that no access can
//! fail later; the driver sees used entries only when they are published, all of a turn at once.
//!
//! The parts are kept as windows of host memory rather than as guest addresses, which spares a search of the memory
//! table for each of the five or so accesses per request; see docs/decisions/0050.

use super::dirty_log::{DirtyLog, Step, written};
use super::memory::{GuestMap, MemoryWindow};
use crate::faults::{PortBug, PortFaults, StoreSite};
use std::sync::atomic::{Ordering, fence};
use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};
use vm_memory::{Bytes, VolatileMemory};

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

/// Offset of `idx` in both rings; `flags` is at 0, the entries follow at 4.
const IDX: usize = 2;
const ENTRIES: usize = 4;

/// Where a front end has put a ring, in its own address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptor table.
    pub descriptors: u64,
    /// The ring that the driver writes.
    pub available: u64,
    /// The ring that the device writes.
    pub used: u64,
    /// Where that is as a guest address, if what is written there is to be marked while a log is kept.
    pub log: Option<u64>,
}

/// One descriptor, copied out of guest memory once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest physical address of the buffer.
    pub addr: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// `VRING_DESC_F_*`.
    pub flags: u16,
    /// The next descriptor if the flags say so.
    pub next: u16,
}

impl Descriptor {
    /// From its 16 bytes in memory order, read as one little-endian number.
    #[inline]
    pub fn from_bits(bits: u128) -> Descriptor {
        let bits = u128::from_le(bits);
        Descriptor {
            addr: bits as u64,
            len: (bits >> 64) as u32,
            flags: (bits >> 96) as u16,
            next: (bits >> 112) as u16,
        }
    }
}

/// What makes a queue unusable until the driver sets it up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// More entries claimed available than the ring has.
    #[error("the available index runs ahead by more than the size of the queue")]
    AvailableIndex,
    /// A head or a `next` outside its table.
    #[error("a descriptor index is outside its table")]
    DescriptorIndex,
    /// More descriptors chained than there are.
    #[error("a descriptor chain has a loop")]
    Loop,
    /// An indirect table that is nested, empty, of a bad size, not in memory, or not last.
    #[error("an indirect descriptor table is malformed")]
    Indirect,
    /// Nowhere to write the status of a request.
    #[error("a request has no writable byte for its status")]
    NoStatus,
    /// The log of requests under way does not fit the queue.
    #[error("the record of requests under way does not fit the queue")]
    InflightLog,
}

/// The device's end of one ring.
#[derive(Debug)]
pub struct SplitRing {
    descriptors: MemoryWindow,
    available: MemoryWindow,
    used: MemoryWindow,
    size: u16,
    event_idx: bool,
    /// Position of the next available entry to take.
    next_available: u16,
    /// The driver's position, when last read.
    seen_available: u16,
    /// Position of the next used entry to write; ahead of `published` by the entries that the driver cannot see yet.
    next_used: u16,
    published: u16,
    /// The guest address of the used ring, and where it is marked, if it is.
    log: Option<u64>,
    marks: Option<(DirtyLog, u64)>,
}

impl SplitRing {
    /// Finds a ring of `size` entries (a power of two) in guest memory. The device takes available entries from
    /// position `base` on, and goes on after the used entries already there. `None` if a part is not in memory.
    pub fn new(map: &GuestMap, at: &RingAddresses, size: u16, base: u16, event_idx: bool) -> Option<SplitRing> {
        debug_assert!(size.is_power_of_two());
        let n = usize::from(size);
        let mut ring = SplitRing {
            descriptors: map.window(at.descriptors, n * DESCRIPTOR_BYTES, 16)?,
            available: map.window(at.available, ENTRIES + 2 * n + 2, 2)?,
            used: map.window(at.used, Self::used_bytes(size), 4)?,
            size,
            event_idx,
            next_available: base,
            seen_available: base,
            next_used: 0,
            published: 0,
            log: at.log,
            marks: None,
        };
        ring.next_used = load(&ring.used, IDX, Ordering::Acquire);
        ring.published = ring.next_used;
        Some(ring)
    }

    /// The same ring after its memory was mapped anew or moved: positions stay, where it is marked is to be set anew.
    /// `None` as for [`SplitRing::new`].
    pub fn moved(&self, map: &GuestMap, at: &RingAddresses) -> Option<SplitRing> {
        let ring = SplitRing::new(map, at, self.size, self.next_available, self.event_idx)?;
        Some(SplitRing { next_used: self.next_used, published: self.published, ..ring })
    }

    /// Has what is written to the used ring marked in `log` from now on, if the front end wants that of this ring.
    pub(crate) fn set_marks(&mut self, log: Option<DirtyLog>) {
        self.marks = log.zip(self.log);
    }

    /// Bytes of the used ring of a queue of `size` entries.
    pub(crate) fn used_bytes(size: u16) -> usize {
        ENTRIES + 8 * usize::from(size) + 2
    }

    /// Writes to the used ring by `write`, `len` bytes at byte `at` of it, and marks that if a log is kept.
    #[inline]
    fn write_used<F: PortFaults>(&self, at: usize, len: u64, unmarked: PortBug, mut write: impl FnMut()) {
        if self.marks.is_some() { self.write_used_marked::<F>(at, len, unmarked, &mut write) } else { write() }
    }

    #[cold]
    #[inline(never)]
    fn write_used_marked<F: PortFaults>(&self, at: usize, len: u64, unmarked: PortBug, write: &mut dyn FnMut()) {
        let Some((log, ring)) = &self.marks else { return };
        written::<F>(unmarked, |step| match step {
            Step::Write => write(),
            Step::Mark => log.mark::<F>(ring.saturating_add(at as u64), len),
        });
    }

    /// Writes a number of 16 bits to the used ring.
    #[inline]
    fn store_used<F: PortFaults>(&self, at: usize, value: u16, order: Ordering, site: StoreSite) {
        self.write_used::<F>(at, 2, PortBug::IndexUnmarked, || store::<F>(&self.used, at, value, order, site));
    }

    /// Entries of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Position of the next available entry to take: what the front end must be told when the ring stops.
    pub(crate) fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Sets the position of the next available entry to take.
    pub(crate) fn set_next_available(&mut self, at: u16) {
        self.next_available = at;
        self.seen_available = at;
    }

    /// Position after the last used entry that the driver can see.
    pub(crate) fn published(&self) -> u16 {
        self.published
    }

    /// Whether the driver negotiated notification by event index.
    pub fn set_event_idx(&mut self, on: bool) {
        self.event_idx = on;
    }

    /// Entries that can be taken now; asks the driver's index only if all those seen before are taken.
    #[inline]
    pub fn available(&mut self) -> Result<u16, Broken> {
        if self.seen_available == self.next_available {
            let seen = load(&self.available, IDX, Ordering::Acquire);
            if seen.wrapping_sub(self.next_available) > self.size {
                return Err(Broken::AvailableIndex);
            }
            self.seen_available = seen;
        }
        Ok(self.seen_available.wrapping_sub(self.next_available))
    }

    /// Takes the head of the next available chain; `available` must have said that there is one.
    #[inline]
    pub fn pop(&mut self) -> Result<u16, Broken> {
        debug_assert_ne!(self.seen_available, self.next_available);
        let entry = ENTRIES + 2 * usize::from(self.next_available & (self.size - 1));
        let head = load(&self.available, entry, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
        if head < self.size { Ok(head) } else { Err(Broken::DescriptorIndex) }
    }

    /// Copies a descriptor of the ring's own table.
    #[inline]
    pub fn descriptor(&self, index: u16) -> Result<Descriptor, Broken> {
        if index >= self.size {
            return Err(Broken::DescriptorIndex);
        }
        let at = usize::from(index) * DESCRIPTOR_BYTES;
        let bits = self.descriptors.slice().get_ref::<u128>(at).expect("the table holds `size` descriptors").load();
        Ok(Descriptor::from_bits(bits))
    }

    /// Writes the used entry of chain `head`, of whose buffers `written` bytes were filled. Not yet visible.
    #[inline]
    pub fn push_used<F: PortFaults>(&mut self, head: u16, written: u32) {
        let entry = ENTRIES + 8 * usize::from(self.next_used & (self.size - 1));
        let bits = u64::from(head) | u64::from(written) << 32;
        if F::has(PortBug::IndexBeforeEntry) {
            self.store_used::<F>(IDX, self.next_used.wrapping_add(1), Ordering::Release, StoreSite::UsedIndex);
        }
        self.write_used::<F>(entry, 8, PortBug::EntryUnmarked, || {
            F::store(StoreSite::UsedEntry);
            self.used.slice().get_ref::<u64>(entry).expect("the ring holds `size` entries").store(bits.to_le());
        });
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Used entries that are not visible yet.
    #[inline]
    pub(crate) fn unpublished(&self) -> u16 {
        self.next_used.wrapping_sub(self.published)
    }

    /// Makes all used entries visible to the driver. Returns whether the driver wants to be notified of them.
    #[inline]
    pub fn publish<F: PortFaults>(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        self.published = new;
        self.store_used::<F>(IDX, new, Ordering::Release, StoreSite::UsedIndex);
        // The driver writes its wish and then looks at our index; we write the index and then look at its wish. With a
        // full fence between, at least one of both sees the other's.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let wish = load(&self.available, ENTRIES + 2 * usize::from(self.size), Ordering::Relaxed);
            new.wrapping_sub(wish).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            load(&self.available, 0, Ordering::Relaxed) & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0
        }
    }

    /// Asks the driver to kick for the next entry. Returns whether there is one already: then no kick may come for it.
    pub fn arm<F: PortFaults>(&mut self) -> Result<bool, Broken> {
        if self.event_idx {
            let event = ENTRIES + 8 * usize::from(self.size);
            self.store_used::<F>(event, self.next_available, Ordering::Relaxed, StoreSite::Wish);
        } else {
            self.store_used::<F>(0, 0, Ordering::Relaxed, StoreSite::Wish);
        }
        fence(Ordering::SeqCst);
        Ok(self.available()? > 0)
    }

    /// Asks the driver not to kick. With event indices there is nothing to do: the driver kicks when it passes the
    /// index given last, and that lies behind it.
    pub fn disarm<F: PortFaults>(&mut self) {
        if !self.event_idx {
            self.store_used::<F>(0, VRING_USED_F_NO_NOTIFY as u16, Ordering::Relaxed, StoreSite::Wish);
        }
    }
}

#[inline]
fn load(part: &MemoryWindow, at: usize, order: Ordering) -> u16 {
    u16::from_le(part.slice().load(at, order).expect("ring parts are aligned and whole"))
}

#[inline]
fn store<F: PortFaults>(part: &MemoryWindow, at: usize, value: u16, order: Ordering, site: StoreSite) {
    F::store(site);
    part.slice().store(value.to_le(), at, order).expect("ring parts are aligned and whole");
}
