//! Descriptor chains: from a head index to pieces of guest memory.
//!
//! Owns the walk. Never reads a descriptor twice or what a buffer holds, and never follows more descriptors than a
//! table holds. Invariant: a chain that comes back has one byte for its status; whatever else is wrong with it is a
//! [`Fault`], to be answered with an I/O error, while a chain that cannot be answered breaks the queue.

use super::limits::{QUEUE_SIZE_MAX, SPANS_MAX};
use super::memory::{GuestMap, GuestSpan};
use super::ring::{Broken, DESCRIPTOR_BYTES, Descriptor, SplitRing};
use crate::faults::{PortBug, PortFaults};
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::VolatileMemory;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// What is wrong with a chain that can still be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A buffer is not in guest memory.
    Unmapped,
    /// A buffer to read follows one to write.
    Order,
    /// More pieces than a request may have.
    TooLong,
}

/// A chain's buffers: its pieces stand in the vector given to [`walk`], those to read first.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// How many of the pieces the driver filled; the others are to be filled by the device, without the status byte.
    pub readable: usize,
    /// Bytes of the pieces to read.
    pub readable_bytes: u64,
    /// Bytes of the pieces to fill.
    pub writable_bytes: u64,
    /// Where the status goes: the last byte of the last writable descriptor.
    pub status: GuestSpan,
    /// What is wrong; if something is, the pieces are not complete.
    pub fault: Option<Fault>,
}

/// Where descriptors come from: the ring's own table or an indirect one.
enum Table<'a> {
    Own(&'a SplitRing),
    Indirect(&'a GuestMap, GuestSpan),
    /// At a guest address, across regions of memory: rare, since regions are large.
    Scattered {
        map: &'a GuestMap,
        at: u64,
        entries: u16,
    },
}

impl Table<'_> {
    /// The indirect table that descriptor `d` of this table names.
    fn indirect<'a>(&self, d: &Descriptor, map: &'a GuestMap, hint: &mut u32) -> Result<Table<'a>, Broken> {
        let bytes = d.len as usize;
        let entries = bytes / DESCRIPTOR_BYTES;
        let nested = !matches!(self, Table::Own(_));
        if nested
            || d.flags & NEXT != 0
            || !bytes.is_multiple_of(DESCRIPTOR_BYTES)
            || entries == 0
            || entries > usize::from(QUEUE_SIZE_MAX)
        {
            return Err(Broken::Indirect);
        }
        match map.locate(d.addr, d.len, hint) {
            Some(span) => Ok(Table::Indirect(map, span)),
            None if map.locate_all(d.addr, d.len, hint, |_| true) => {
                Ok(Table::Scattered { map, at: d.addr, entries: entries as u16 })
            }
            None => Err(Broken::Indirect),
        }
    }

    fn entries(&self) -> u16 {
        match self {
            Table::Own(ring) => ring.size(),
            // Checked against QUEUE_SIZE_MAX when it was made.
            Table::Indirect(_, span) => (span.len as usize / DESCRIPTOR_BYTES) as u16,
            Table::Scattered { entries, .. } => *entries,
        }
    }

    #[inline]
    fn read<F: PortFaults>(&self, index: u16) -> Result<Descriptor, Broken> {
        F::fetch();
        if !matches!(self, Table::Own(_)) && index >= self.entries() {
            return Err(Broken::DescriptorIndex);
        }
        match self {
            Table::Own(ring) => ring.descriptor(index),
            Table::Indirect(map, span) => {
                let entry = map.slice(*span, usize::from(index) * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES);
                Ok(Descriptor::from_bits(entry.get_ref::<u128>(0).expect("an entry is 16 bytes").load()))
            }
            Table::Scattered { map, at, .. } => {
                let (mut entry, mut done) = ([0; DESCRIPTOR_BYTES], 0);
                // The whole table is in the map, so each of its entries is.
                map.locate_all(
                    at + u64::from(index) * DESCRIPTOR_BYTES as u64,
                    DESCRIPTOR_BYTES as u32,
                    &mut 0,
                    |span| {
                        let len = span.len as usize;
                        map.slice(span, 0, len).copy_to(&mut entry[done..done + len]);
                        done += len;
                        true
                    },
                );
                Ok(Descriptor::from_bits(u128::from_ne_bytes(entry)))
            }
        }
    }
}

/// Follows the chain at `head` and fills `spans` with its pieces. `hint` speeds up the search in the map.
///
/// # Errors
/// The chain cannot be answered, so the queue cannot go on.
#[inline]
pub fn walk<F: PortFaults>(
    ring: &SplitRing,
    map: &GuestMap,
    head: u16,
    hint: &mut u32,
    spans: &mut Vec<GuestSpan>,
) -> Result<Chain, Broken> {
    spans.clear();
    let mut table = Table::Own(ring);
    let mut left = table.entries();
    let mut index = head;
    let mut readable = 0;
    let (mut readable_bytes, mut writable_bytes) = (0u64, 0u64);
    let mut fault = None;
    // Guest address after the last writable byte so far.
    let mut writable_end = None;
    loop {
        left = left.checked_sub(1).ok_or(Broken::Loop)?;
        let d = table.read::<F>(index)?;
        if d.flags & INDIRECT != 0 {
            table = table.indirect(&d, map, hint)?;
            left = table.entries();
            index = 0;
            continue;
        }
        let write = d.flags & WRITE != 0;
        // A buffer of no bytes is legal and says nothing.
        if d.len > 0 {
            if write {
                writable_end = d.addr.checked_add(u64::from(d.len));
                writable_bytes += u64::from(d.len);
            } else {
                readable_bytes += u64::from(d.len);
                if writable_bytes > 0 {
                    fault = fault.or(Some(Fault::Order));
                }
            }
            if fault.is_none() {
                let d = if F::has(PortBug::DescriptorReadTwice) { table.read::<F>(index)? } else { d };
                let mapped = map.locate_all(d.addr, d.len, hint, |span| {
                    let room = spans.len() < SPANS_MAX;
                    if room {
                        spans.push(span);
                    }
                    room
                });
                if !mapped {
                    fault = Some(if spans.len() < SPANS_MAX { Fault::Unmapped } else { Fault::TooLong });
                } else if !write {
                    readable = spans.len();
                }
            }
        }
        if d.flags & NEXT == 0 {
            break;
        }
        index = d.next;
    }
    let last = writable_end.ok_or(Broken::NoStatus)? - 1;
    let status = if fault.is_none() {
        let tail = spans.last_mut().expect("a chain with a writable byte has a piece");
        tail.len -= 1;
        let status = GuestSpan { offset: tail.offset + u64::from(tail.len), len: 1, ..*tail };
        if tail.len == 0 {
            spans.pop();
        }
        status
    } else {
        map.locate(last, 1, hint).ok_or(Broken::NoStatus)?
    };
    Ok(Chain { readable, readable_bytes, writable_bytes: writable_bytes - 1, status, fault })
}
