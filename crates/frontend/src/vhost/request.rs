//! What a request asks for: virtio-blk headers and their payloads, checked (virtio 1.2, section 5.2.6).
//!
//! Owns the checks against the disk. Never trusts guest memory twice: a header is copied once, and the copy is checked.
//! Invariant: every range in an [`Action`] lies inside the disk and is within the limits.

use super::chain::Chain;
use super::config::Profile;
use super::limits::RANGES_MAX;
use super::memory::{GuestMap, GuestSpan};
use crate::faults::{PortBug, PortFaults};
use undercroft_cache::limits::REQUEST_BYTES_MAX;
use undercroft_cache::{IoError, Op};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use vm_memory::VolatileMemory;

/// Bytes of a sector, the unit of the protocol whatever the disk's block size.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Bytes of a request's header, where its sector stands, and bytes of one range of a discard or write-zeroes request.
const HEADER_BYTES: usize = 16;
const SECTOR_AT: usize = 8;
const RANGE_BYTES: usize = 16;

/// The status byte of a finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    IoError,
    Unsupported,
}

impl Status {
    /// The byte.
    pub(super) fn code(self) -> u8 {
        (match self {
            Status::Ok => VIRTIO_BLK_S_OK,
            Status::IoError => VIRTIO_BLK_S_IOERR,
            Status::Unsupported => VIRTIO_BLK_S_UNSUPP,
        }) as u8
    }
}

impl From<Result<(), IoError>> for Status {
    fn from(result: Result<(), IoError>) -> Status {
        match result {
            Ok(()) => Status::Ok,
            Err(IoError::Unsupported) => Status::Unsupported,
            Err(_) => Status::IoError,
        }
    }
}

/// One range of a discard or write-zeroes request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; not 0.
    pub len: u64,
}

/// What to do for a request.
#[derive(Debug)]
pub(super) enum Action {
    /// A read: fill the chain's writable pieces.
    Read { offset: u64, len: u32 },
    /// A write: its data is what remains of the readable pieces from byte `skip` of piece `first` on.
    Write { offset: u64, len: u32, first: usize, skip: u32 },
    /// A flush.
    Flush,
    /// A discard or write-zeroes of the ranges found.
    Ranges,
    /// Write the disk's serial number.
    Serial,
    /// Nothing is left to do but to say so.
    Answer(Status),
}

/// Finds out what a chain asks for. `spans` are its pieces; `ranges` becomes what it discards or zeroes.
#[inline]
pub(super) fn decode<F: PortFaults>(
    map: &GuestMap,
    spans: &[GuestSpan],
    chain: &Chain,
    disk: &Profile,
    ranges: &mut Vec<Range>,
) -> Action {
    if chain.fault.is_some() {
        return Action::Answer(Status::IoError);
    }
    let readable = &spans[..chain.readable];
    let Some((header, first, skip)) = header::<F>(map, readable) else {
        return Action::Answer(Status::IoError);
    };
    let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let sector = u64::from_le_bytes(std::array::from_fn(|i| header[SECTOR_AT + i]));
    let payload = chain.readable_bytes - HEADER_BYTES as u64;
    let place = |bytes| {
        let (offset, len) = extent(sector, bytes, disk)?;
        let again = F::has(PortBug::HeaderReadTwice).then(|| read_again::<F>(map, readable, 0, SECTOR_AT));
        Some((again.unwrap_or(offset), len))
    };
    match kind {
        VIRTIO_BLK_T_IN => match place(chain.writable_bytes) {
            Some((_, 0)) => Action::Answer(Status::Ok),
            Some((offset, len)) => Action::Read { offset, len },
            None => Action::Answer(Status::IoError),
        },
        VIRTIO_BLK_T_OUT if disk.read_only => Action::Answer(Status::IoError),
        VIRTIO_BLK_T_OUT => match place(payload) {
            Some((_, 0)) => Action::Answer(Status::Ok),
            Some((offset, len)) => Action::Write { offset, len, first, skip },
            None => Action::Answer(Status::IoError),
        },
        VIRTIO_BLK_T_FLUSH => Action::Flush,
        VIRTIO_BLK_T_GET_ID => Action::Serial,
        VIRTIO_BLK_T_DISCARD if disk.discard_sectors_max == 0 => Action::Answer(Status::Unsupported),
        VIRTIO_BLK_T_WRITE_ZEROES if disk.write_zeroes_sectors_max == 0 => Action::Answer(Status::Unsupported),
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
            let discard = kind == VIRTIO_BLK_T_DISCARD;
            match read_ranges::<F>(map, &readable[first..], skip, payload, discard, disk, ranges) {
                Ok(()) if ranges.is_empty() => Action::Answer(Status::Ok),
                Ok(()) => Action::Ranges,
                Err(status) => Action::Answer(status),
            }
        }
        _ => Action::Answer(Status::Unsupported),
    }
}

/// The bytes that `bytes` of data at `sector` cover; `None` if they are not whole sectors inside the disk, or too many.
fn extent(sector: u64, bytes: u64, disk: &Profile) -> Option<(u64, u32)> {
    let offset = sector.checked_mul(SECTOR_BYTES)?;
    let end = offset.checked_add(bytes)?;
    let fits = bytes.is_multiple_of(SECTOR_BYTES) && bytes <= u64::from(REQUEST_BYTES_MAX) && end <= disk.size_bytes;
    fits.then_some((offset, bytes as u32))
}

/// Copies the header out, and says at which byte of which piece the payload starts.
#[inline]
fn header<F: PortFaults>(map: &GuestMap, readable: &[GuestSpan]) -> Option<([u8; HEADER_BYTES], usize, u32)> {
    let first = readable.first()?;
    if first.len as usize >= HEADER_BYTES {
        F::fetch();
        let bits = map.slice(*first, 0, HEADER_BYTES).get_ref::<u128>(0).expect("16 bytes").load();
        let rest = first.len - HEADER_BYTES as u32;
        return Some((bits.to_ne_bytes(), usize::from(rest == 0), if rest == 0 { 0 } else { HEADER_BYTES as u32 }));
    }
    let mut bytes = [0; HEADER_BYTES];
    let (first, skip) = gather::<F>(map, readable, 0, &mut bytes)?;
    Some((bytes, first, skip))
}

/// Copies `to.len()` bytes from the pieces, from byte `skip` of the first on. Returns where it stopped; `None` if the
/// pieces are too short.
fn gather<F: PortFaults>(map: &GuestMap, pieces: &[GuestSpan], skip: u32, to: &mut [u8]) -> Option<(usize, u32)> {
    let (mut piece, mut skip, mut done) = (0, skip, 0);
    while done < to.len() {
        let span = pieces.get(piece)?;
        let here = (to.len() - done).min((span.len - skip) as usize);
        F::fetch();
        map.slice(*span, skip as usize, here).copy_to(&mut to[done..done + here]);
        done += here;
        skip += here as u32;
        if skip == span.len {
            piece += 1;
            skip = 0;
        }
    }
    Some((piece, skip))
}

/// The offset of the sector whose number is at byte `at` of the pieces. Only planted bugs read what was read before.
#[cold]
fn read_again<F: PortFaults>(map: &GuestMap, pieces: &[GuestSpan], skip: u32, at: usize) -> u64 {
    let mut bytes = vec![0; at + 8];
    gather::<F>(map, pieces, skip, &mut bytes).expect("it was read before");
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])).wrapping_mul(SECTOR_BYTES)
}

/// Reads and checks the ranges of a discard or write-zeroes request: all of them before the first is acted on.
fn read_ranges<F: PortFaults>(
    map: &GuestMap,
    pieces: &[GuestSpan],
    skip: u32,
    payload: u64,
    discard: bool,
    disk: &Profile,
    ranges: &mut Vec<Range>,
) -> Result<(), Status> {
    ranges.clear();
    let bytes = usize::try_from(payload).map_err(|_| Status::IoError)?;
    if bytes == 0 || !bytes.is_multiple_of(RANGE_BYTES) || bytes > RANGES_MAX * RANGE_BYTES {
        return Err(Status::IoError);
    }
    let mut copy = [0; RANGES_MAX * RANGE_BYTES];
    gather::<F>(map, pieces, skip, &mut copy[..bytes]).ok_or(Status::IoError)?;
    let sectors_max = if discard { disk.discard_sectors_max } else { disk.write_zeroes_sectors_max };
    for (n, entry) in copy[..bytes].chunks_exact(RANGE_BYTES).enumerate() {
        let sector = u64::from_le_bytes(std::array::from_fn(|i| entry[i]));
        let sectors = u32::from_le_bytes(std::array::from_fn(|i| entry[8 + i]));
        let flags = u32::from_le_bytes(std::array::from_fn(|i| entry[12 + i]));
        let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
        if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 || (discard && unmap) {
            return Err(Status::Unsupported);
        }
        let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::IoError)?;
        let len = u64::from(sectors) * SECTOR_BYTES;
        let end = offset.checked_add(len).ok_or(Status::IoError)?;
        if sectors > sectors_max || end > disk.size_bytes {
            return Err(Status::IoError);
        }
        if len == 0 {
            continue;
        }
        let op = if discard { Op::Discard } else { Op::WriteZeroes { unmap, fua: false } };
        let again = F::has(PortBug::RangesReadTwice).then(|| read_again::<F>(map, pieces, skip, RANGE_BYTES * n));
        ranges.push(Range { op, offset: again.unwrap_or(offset), len });
    }
    Ok(())
}
