//! The driver's side of one split virtqueue (VIRTIO 1.2, 2.7), in memory shared with the server.
//!
//! Owns the descriptor table, both rings and the request headers of a queue. Never maps memory and never talks to the
//! server except through the ring. Invariant: slot `s` uses only its own descriptors, so there is no free list, and a
//! head that the server returns names its slot.
//!
//! All access goes through `vm_memory`'s volatile slices: bounds-checked, and no reference into shared memory exists.

use anyhow::{Context, Result};
use std::sync::atomic::{Ordering, fence};
use virtio_bindings::virtio_ring::{
    VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryRegion, GuestRegionMmap, VolatileMemory, VolatileSlice};

/// Bytes kept for the header, the status byte and the segment of a discard or write-zeroes of one slot.
const REQUEST_BYTES: usize = 64;
const STATUS_AT: usize = 16;
const RANGE_AT: usize = 32;
/// Bytes of one descriptor.
const DESCRIPTOR_BYTES: usize = 16;

/// A descriptor as it stands in memory.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// `VRING_DESC_F_*`.
    pub flags: u16,
    /// Next descriptor, if the flag says so.
    pub next: u16,
}

/// The bits of [`Descriptor::flags`].
pub mod flag {
    /// Another descriptor follows.
    pub const NEXT: u16 = super::VRING_DESC_F_NEXT as u16;
    /// The server writes this one.
    pub const WRITE: u16 = super::VRING_DESC_F_WRITE as u16;
    /// This one names a table of descriptors.
    pub const INDIRECT: u16 = super::VRING_DESC_F_INDIRECT as u16;
}

/// How a queue is laid out; all offsets are in bytes from the start of the shared region.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Entries of the rings: a power of two.
    pub size: u16,
    /// Requests under way at most.
    pub slots: usize,
    /// Data segments per request.
    pub segments: usize,
    /// Bytes of data per request.
    pub buffer_bytes: usize,
    /// Whether requests use an indirect table each.
    pub indirect: bool,
    table: usize,
    avail: usize,
    used: usize,
    requests: usize,
    tables: usize,
    data: usize,
    end: usize,
}

fn aligned(at: usize, to: usize) -> usize {
    at.div_ceil(to) * to
}

impl Layout {
    /// Lays a queue out from byte `start` on.
    pub fn new(start: usize, slots: usize, segments: usize, buffer_bytes: usize, indirect: bool) -> Result<Layout> {
        let per_slot = segments + 2;
        let entries = if indirect { slots } else { slots * per_slot };
        let size = u16::try_from(entries.next_power_of_two().max(128)).ok().filter(|s| *s <= 1024);
        let size = size.with_context(|| format!("depth {slots} needs more than the 1024 descriptors of a queue"))?;
        let table = aligned(start, 4096);
        let avail = table + DESCRIPTOR_BYTES * usize::from(size);
        let used = aligned(avail + 6 + 2 * usize::from(size), 64);
        let requests = aligned(used + 6 + 8 * usize::from(size), 64);
        let tables = requests + REQUEST_BYTES * slots;
        let data = aligned(tables + DESCRIPTOR_BYTES * per_slot * slots, 4096);
        let end = aligned(data + slots * buffer_bytes, 4096);
        Ok(Layout { size, slots, segments, buffer_bytes, indirect, table, avail, used, requests, tables, data, end })
    }

    /// The first byte after the queue.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Where the descriptor table, the available and the used ring start.
    pub fn parts(&self) -> (usize, usize, usize) {
        (self.table, self.avail, self.used)
    }

    /// Where slot `slot` has its data.
    pub fn data_at(&self, slot: usize) -> usize {
        self.data + slot * self.buffer_bytes
    }

    /// Where slot `slot` has its header; status and range follow it.
    pub fn request_at(&self, slot: usize) -> usize {
        self.requests + slot * REQUEST_BYTES
    }

    /// Where slot `slot` has its status byte.
    pub fn status_at(&self, slot: usize) -> usize {
        self.request_at(slot) + STATUS_AT
    }

    /// Where slot `slot` has its indirect table.
    pub fn indirect_table_at(&self, slot: usize) -> usize {
        self.tables + slot * DESCRIPTOR_BYTES * (self.segments + 2)
    }
}

/// The data part of a request.
#[derive(Clone, Copy, Debug)]
pub enum Payload {
    /// None: a flush.
    None,
    /// Bytes that the server writes into the slot's buffer.
    In(u32),
    /// Bytes that the server reads from the slot's buffer.
    Out(u32),
    /// The segment of a discard or write-zeroes: first sector, sectors, flags.
    Range(u64, u32, u32),
}

/// One virtqueue, seen from the driver.
pub struct Ring<'m> {
    memory: VolatileSlice<'m>,
    base: GuestAddress,
    layout: Layout,
    event_idx: bool,
    avail_idx: u16,
    kicked_idx: u16,
    used_idx: u16,
}

impl<'m> Ring<'m> {
    /// A fresh queue in the shared region, which must reach to `layout.end()` and be zeroed.
    pub fn new(region: &'m GuestRegionMmap<()>, layout: Layout, event_idx: bool) -> Result<Ring<'m>> {
        let memory = VolatileMemory::as_volatile_slice(&**region);
        anyhow::ensure!(layout.end <= memory.len(), "the shared region is too small for the queue");
        Ok(Ring { memory, base: region.start_addr(), layout, event_idx, avail_idx: 0, kicked_idx: 0, used_idx: 0 })
    }

    /// How the queue is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The guest address of a byte of the shared region.
    pub fn address(&self, at: usize) -> u64 {
        self.base.0 + at as u64
    }

    /// Bytes of the shared region from `at` on.
    pub fn bytes(&self, at: usize, length: usize) -> VolatileSlice<'m> {
        self.memory.subslice(at, length).expect("inside the layout, checked when the ring was made")
    }

    /// Writes descriptor `index` of the table at `table`.
    pub fn describe(&self, table: usize, index: usize, d: Descriptor) {
        let tail = u64::from(d.length) | u64::from(d.flags) << 32 | u64::from(d.next) << 48;
        let raw = [d.address.to_le(), tail.to_le()];
        self.memory.write_obj(raw, table + index * DESCRIPTOR_BYTES).expect("inside the layout");
    }

    /// Offers a chain to the server: what `submit` ends with, and what a hostile guest may do with any head.
    pub fn offer(&mut self, head: u16) {
        let place = usize::from(self.avail_idx % self.layout.size);
        self.memory.write_obj(head.to_le(), self.layout.avail + 4 + 2 * place).expect("inside the layout");
        self.set_avail_idx(self.avail_idx.wrapping_add(1));
    }

    /// Publishes an index of the available ring, whatever was put there.
    pub fn set_avail_idx(&mut self, index: u16) {
        self.avail_idx = index;
        // Release: the server must not see the index before the descriptors.
        self.memory.store(index.to_le(), self.layout.avail + 2, Ordering::Release).expect("inside the layout");
    }

    /// The index that was published last.
    pub fn avail_idx(&self) -> u16 {
        self.avail_idx
    }

    /// Queues a request of virtio-blk type `kind` in `slot`.
    pub fn submit(&mut self, slot: usize, kind: u32, sector: u64, payload: Payload) {
        let l = self.layout;
        let request = l.request_at(slot);
        let header = [u64::from(kind).to_le(), sector.to_le()];
        self.memory.write_obj(header, request).expect("inside the layout");
        self.memory.write_obj(0xffu8, request + STATUS_AT).expect("inside the layout");
        let (table, first) =
            if l.indirect { (l.indirect_table_at(slot), 0) } else { (l.table, slot * (l.segments + 2)) };
        let mut n = first;
        let mut add = |ring: &Self, at: usize, length: u32, flags: u16| {
            let next = u16::try_from(n + 1).expect("a queue has at most 1024 descriptors");
            ring.describe(table, n, Descriptor { address: ring.address(at), length, flags, next });
            n += 1;
        };
        add(self, request, 16, flag::NEXT);
        match payload {
            Payload::None => {}
            Payload::Range(first_sector, sectors, flags) => {
                let range = [first_sector.to_le(), (u64::from(sectors) | u64::from(flags) << 32).to_le()];
                self.memory.write_obj(range, request + RANGE_AT).expect("inside the layout");
                add(self, request + RANGE_AT, 16, flag::NEXT);
            }
            Payload::In(bytes) | Payload::Out(bytes) => {
                let write = if matches!(payload, Payload::In(_)) { flag::WRITE } else { 0 };
                let count = (l.segments as u32).min(bytes / 512).max(1);
                let each = bytes / 512 / count * 512;
                for i in 0..count {
                    let length = if i + 1 == count { bytes - each * i } else { each };
                    add(self, l.data_at(slot) + (each * i) as usize, length, flag::NEXT | write);
                }
            }
        }
        add(self, request + STATUS_AT, 1, flag::WRITE);
        let head = if l.indirect {
            let length = ((n - first) * DESCRIPTOR_BYTES) as u32;
            let d = Descriptor { address: self.address(table), length, flags: flag::INDIRECT, next: 0 };
            self.describe(l.table, slot, d);
            slot
        } else {
            first
        };
        self.offer(u16::try_from(head).expect("a queue has at most 1024 descriptors"));
    }

    /// Whether the server wants to be notified of what was offered since the last call (2.7.7.2, 2.7.10).
    pub fn kick_needed(&mut self) -> bool {
        let old = std::mem::replace(&mut self.kicked_idx, self.avail_idx);
        // The index must be visible before the server's wish is read: the server does it the other way round.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let at = self.layout.used + 4 + 8 * usize::from(self.layout.size);
            let event: u16 = self.memory.load(at, Ordering::Relaxed).expect("inside the layout");
            crossed(u16::from_le(event), self.avail_idx, old)
        } else {
            let flags: u16 = self.memory.load(self.layout.used, Ordering::Relaxed).expect("inside the layout");
            u32::from(u16::from_le(flags)) & VRING_USED_F_NO_NOTIFY == 0 && old != self.avail_idx
        }
    }

    /// Asks for a notification of the next completion. True if one is there already: then do not sleep.
    pub fn arm(&mut self) -> bool {
        if self.event_idx {
            let at = self.layout.avail + 4 + 2 * usize::from(self.layout.size);
            self.memory.store(self.used_idx.to_le(), at, Ordering::Relaxed).expect("inside the layout");
        } else {
            self.memory.store(0u16, self.layout.avail, Ordering::Relaxed).expect("inside the layout");
        }
        fence(Ordering::SeqCst);
        self.server_idx() != self.used_idx
    }

    /// Asks for no notifications. With EVENT_IDX there is nothing to do: an index in the past asks for none.
    pub fn disarm(&mut self) {
        if !self.event_idx {
            let flags = (VRING_AVAIL_F_NO_INTERRUPT as u16).to_le();
            self.memory.store(flags, self.layout.avail, Ordering::Relaxed).expect("inside the layout");
        }
    }

    /// The server's index of the used ring.
    pub fn server_idx(&self) -> u16 {
        let index: u16 = self.memory.load(self.layout.used + 2, Ordering::Acquire).expect("inside the layout");
        u16::from_le(index)
    }

    /// The next head that the server has returned, as it stands in the ring.
    pub fn returned(&mut self) -> Option<u32> {
        if self.server_idx() == self.used_idx {
            return None;
        }
        let at = self.layout.used + 4 + 8 * usize::from(self.used_idx % self.layout.size);
        let id: u32 = self.memory.read_obj(at).expect("inside the layout");
        self.used_idx = self.used_idx.wrapping_add(1);
        Some(u32::from_le(id))
    }

    /// The next finished slot and its status byte.
    pub fn completed(&mut self) -> Option<Result<(usize, u8)>> {
        let id = self.returned()? as usize;
        let per_head = if self.layout.indirect { 1 } else { self.layout.segments + 2 };
        if !id.is_multiple_of(per_head) || id / per_head >= self.layout.slots {
            return Some(Err(anyhow::anyhow!("descriptor {id} came back, which was never offered")));
        }
        let slot = id / per_head;
        let status: u8 = self.memory.read_obj(self.layout.status_at(slot)).expect("inside the layout");
        Some(Ok((slot, status)))
    }
}

/// VIRTIO 1.2, 2.7.10: whether going from `old` to `new` passes the index at which the other side wants to be told.
fn crossed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_is_due_only_when_the_event_index_is_passed() {
        assert!(crossed(0, 1, 0), "the first entry");
        assert!(!crossed(5, 5, 0), "not yet reached: entry 5 is not offered");
        assert!(crossed(5, 6, 5));
        assert!(!crossed(5, 7, 6), "passed earlier");
        assert!(crossed(u16::MAX, 0, u16::MAX), "round the end");
        assert!(!crossed(3, 3, 3), "nothing new");
    }

    #[test]
    fn parts_of_a_queue_are_aligned_and_do_not_overlap() {
        for indirect in [false, true] {
            let l = Layout::new(100, 32, 4, 4096, indirect).unwrap();
            let n = usize::from(l.size);
            assert!(l.table.is_multiple_of(16) && l.used.is_multiple_of(4) && l.data.is_multiple_of(4096));
            assert!(l.avail >= l.table + 16 * n && l.used >= l.avail + 6 + 2 * n && l.requests >= l.used + 6 + 8 * n);
            assert!(l.tables >= l.request_at(l.slots) && l.data >= l.indirect_table_at(l.slots));
            assert!(l.end >= l.data_at(l.slots));
        }
        assert!(Layout::new(0, 1024, 4, 512, false).is_err(), "6144 descriptors are too many");
    }
}
