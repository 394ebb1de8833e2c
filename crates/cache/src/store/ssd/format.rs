//! The format of a region: where its parts lie, and how header, table of owners and summaries are written and read.
//!
//! Owns the bytes. Never does I/O, never panics on what it reads. Invariant: what is read was written by this version
//! for this store, this place and this size, unbroken; anything else is `None`.
//!
//! A region: its header (4 KiB at 0); two copies of the table of owners (64 KiB at 64 and 128 KiB); segments
//! from 256 KiB
//! on. A segment: its summary, then its blocks. All numbers are little-endian.

use super::bytes::{Reader, Writer};
use super::sums::Sums;
use super::types::{Identity, OWNERS_MAX, Stamp, StoreId};

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// The format's version; another one is not read.
pub(super) const VERSION: u32 = 1;
/// Where the copies of the table lie.
pub(super) const TABLES_AT: [u64; 2] = [64 << 10, 128 << 10];
/// Bytes of a copy.
pub(super) const TABLE_BYTES: usize = 64 << 10;
/// Where segments begin.
pub(super) const SEGMENTS_AT: u64 = 256 << 10;
/// Bytes of the head of a summary, of the head of a table, and of a record of it.
const SUMMARY_HEAD: usize = 192;
const RECORD: usize = 256;
/// Bytes of an entry of a summary.
const ENTRY: usize = 12;
/// Stands in a summary for a block that is there no more.
pub(super) const NO_BLOCK: u64 = u64::MAX;
/// Bytes of a segment: a power of two in this range.
pub(super) const SEGMENT_BYTES: std::ops::RangeInclusive<u32> = 256 << 10..=16 << 20;

/// Sequences and generations that a store has used are lower: it counts on from them, and none begins so many segments.
/// What says otherwise is broken, whatever its sum.
const NUMBERS_END: u64 = 1 << 62;

const _: () = assert!((OWNERS_MAX + 1) * RECORD == TABLE_BYTES);

/// Where the parts of a region lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Blocks of a segment, the summary among them.
    pub segment_blocks: u32,
    /// Of these, blocks of the summary.
    pub summary_blocks: u32,
    pub segments: u32,
}

impl Layout {
    /// That of a region of so many bytes; `None` if it has less than four segments, or more than there are numbers for.
    pub fn new(region_bytes: u64, segment_bytes: u32) -> Option<Self> {
        if !segment_bytes.is_power_of_two() || !SEGMENT_BYTES.contains(&segment_bytes) {
            return None;
        }
        let segment_blocks = segment_bytes / BLOCK as u32;
        let segments = u32::try_from(region_bytes.checked_sub(SEGMENTS_AT)? / u64::from(segment_bytes)).ok()?;
        // An entry of the index has 34 bits for a slot; blocks of a region have a 32-bit number.
        segments.checked_mul(segment_blocks).filter(|_| segments >= 4)?;
        let fits = |blocks: u32| SUMMARY_HEAD + (segment_blocks - blocks) as usize * ENTRY <= blocks as usize * BLOCK;
        let summary_blocks = (1..segment_blocks).find(|n| fits(*n))?;
        Some(Self { segment_blocks, summary_blocks, segments })
    }

    /// Blocks of a segment that are data.
    pub fn data_blocks(&self) -> u32 {
        self.segment_blocks - self.summary_blocks
    }

    /// The first byte of a slot.
    pub fn offset(&self, slot: u32) -> u64 {
        SEGMENTS_AT + u64::from(slot) * BLOCK as u64
    }

    /// The slot of a segment's data block number `position`.
    pub fn slot(&self, segment: u32, position: u32) -> u32 {
        segment * self.segment_blocks + self.summary_blocks + position
    }
}

impl Writer {
    fn pad_to(&mut self, len: usize) -> &mut Self {
        assert!(self.0.len() <= len, "what is written fits its place");
        self.0.resize(len, 0);
        self
    }

    /// Puts the sum of all of it into its bytes 8..16, and fills the last block up.
    fn summed(mut self, sums: &Sums) -> Vec<u8> {
        let sum = sums.text(&self.0);
        self.0[8..16].copy_from_slice(&sum.to_le_bytes());
        let len = self.0.len().next_multiple_of(BLOCK);
        self.0.resize(len, 0);
        self.0
    }
}

impl Reader<'_> {
    /// A sequence or a generation.
    pub fn number(&mut self) -> Option<u64> {
        self.u64().filter(|n| *n < NUMBERS_END)
    }
}

/// Whether bytes 8..16 are the sum of the rest, with zeroes in their place; and that sum.
fn check(sums: &Sums, bytes: &[u8]) -> Option<u64> {
    let mut copy = bytes.to_vec();
    let said = u64::from_le_bytes(*copy.get(8..16)?.first_chunk()?);
    copy[8..16].fill(0);
    (sums.text(&copy) == said).then_some(said)
}

/// The magic, room for the sum, the version: the beginning of all that a store writes about itself.
fn begin(magic: &[u8; 8], store: StoreId) -> Writer {
    let mut w = Writer::with(magic);
    w.u64(0).u32(VERSION).bytes(&store.0);
    w
}

const HEADER_MAGIC: &[u8; 8] = b"UCSSDREG";
const TABLE_MAGIC: &[u8; 8] = b"UCSSDTAB";
const SUMMARY_MAGIC: &[u8; 8] = b"UCSSDSUM";

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub store: StoreId,
    pub region_bytes: u64,
    pub segment_bytes: u32,
}

/// Why a header is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// It is none.
    Foreign,
    /// It is one of another version.
    Version(u32),
    /// It is one, and broken.
    Broken,
}

impl Header {
    pub fn write(&self, sums: &Sums) -> Vec<u8> {
        let mut w = begin(HEADER_MAGIC, self.store);
        w.u64(self.region_bytes).u32(self.segment_bytes).pad_to(BLOCK);
        w.summed(sums)
    }

    pub fn read(bytes: &[u8]) -> Result<Self, NoHeader> {
        if !bytes.starts_with(HEADER_MAGIC) {
            return Err(NoHeader::Foreign);
        }
        let mut r = Reader(&bytes[16.min(bytes.len())..]);
        let version = r.u32().ok_or(NoHeader::Broken)?;
        if version != VERSION {
            return Err(NoHeader::Version(version));
        }
        let mut read = || Some((StoreId(r.array()?), r.u64()?, r.u32()?));
        let (store, region_bytes, segment_bytes) = read().ok_or(NoHeader::Broken)?;
        check(&Sums::new(store), bytes).ok_or(NoHeader::Broken)?;
        Ok(Self { store, region_bytes, segment_bytes })
    }
}

/// What is recorded of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub number: u16,
    pub identity: Identity,
    /// `None`: it is being changed, so nothing of it is recovered.
    pub clean: Option<Stamp>,
    pub blocks: u64,
    pub generation: u64,
    /// Segments of lower sequences are no longer its.
    pub oldest: u64,
    /// Stands for all of its summaries; looked at after an orderly stop, when there are no later ones.
    pub digest: u64,
}

/// What a table says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub sequence: u64,
    pub next_segment: u64,
    pub next_generation: u64,
    pub boot: [u8; 16],
    /// Written by an orderly stop: good for another boot as well.
    pub orderly: bool,
    pub records: Vec<Record>,
}

impl Table {
    pub fn write(&self, store: StoreId, sums: &Sums) -> Vec<u8> {
        let mut w = begin(TABLE_MAGIC, store);
        w.u32(self.records.len() as u32).u32(u32::from(self.orderly)).bytes(&self.boot);
        w.u64(self.sequence).u64(self.next_segment).u64(self.next_generation).pad_to(RECORD);
        for (n, r) in self.records.iter().enumerate() {
            w.u32(u32::from(r.number)).u32(u32::from(r.clean.is_some())).bytes(&r.identity.0);
            w.bytes(&r.clean.map_or([0; 64], |s| s.0)).u64(r.blocks).u64(r.generation).u64(r.oldest).u64(r.digest);
            w.pad_to((n + 2) * RECORD);
        }
        w.summed(sums)
    }

    /// The table, and its sum.
    pub fn read(bytes: &[u8], store: StoreId, sums: &Sums) -> Option<(Self, u64)> {
        let mut r = Reader(bytes.strip_prefix(TABLE_MAGIC)?.get(8..)?);
        let (version, id, count) = (r.u32()?, r.array::<16>()?, r.u32()? as usize);
        if version != VERSION || id != store.0 || count > OWNERS_MAX {
            return None;
        }
        let sum = check(sums, bytes.get(..(count + 1) * RECORD)?)?;
        let orderly = r.u32()? == 1;
        let (boot, sequence, next_segment, next_generation) = (r.array()?, r.number()?, r.number()?, r.number()?);
        let records = bytes[RECORD..].chunks_exact(RECORD).take(count).map(|bytes| {
            let mut r = Reader(bytes);
            let (number, clean) = (u16::try_from(r.u32()?).ok()?, r.u32()? == 1);
            let (identity, stamp) = (Identity(r.array()?), Stamp(r.array()?));
            let clean = clean.then_some(stamp);
            let number = Some(number).filter(|n| usize::from(*n) < OWNERS_MAX)?;
            let (blocks, generation, oldest, digest) = (r.u64()?, r.number()?, r.number()?, r.u64()?);
            Some(Record { number, identity, clean, blocks, generation, oldest, digest })
        });
        let records = records.collect::<Option<Vec<_>>>()?;
        Some((Self { sequence, next_segment, next_generation, boot, orderly, records }, sum))
    }
}

/// What a segment's summary says. One without entries is written before the first block of a segment: it makes an end
/// of the summary that was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub segment: u32,
    pub owner: u16,
    pub identity: Identity,
    pub sequence: u64,
    pub generation: u64,
    /// The blocks of the segment in order, and their sums.
    pub entries: Vec<(u64, u32)>,
}

impl Summary {
    pub fn write(&self, store: StoreId, sums: &Sums) -> Vec<u8> {
        let mut w = begin(SUMMARY_MAGIC, store);
        w.u32(self.entries.len() as u32).u32(self.segment).u32(u32::from(self.owner));
        w.u64(self.sequence).u64(self.generation).bytes(&self.identity.0).pad_to(SUMMARY_HEAD);
        self.entries.iter().for_each(|(block, sum)| {
            w.u64(*block).u32(*sum);
        });
        w.summed(sums)
    }

    /// The summary, and its sum.
    pub fn read(bytes: &[u8], store: StoreId, sums: &Sums) -> Option<(Self, u64)> {
        let mut r = Reader(bytes.strip_prefix(SUMMARY_MAGIC)?.get(8..)?);
        let (version, id, count) = (r.u32()?, r.array::<16>()?, r.u32()? as usize);
        let len = count.checked_mul(ENTRY)?.checked_add(SUMMARY_HEAD)?;
        if version != VERSION || id != store.0 {
            return None;
        }
        let sum = check(sums, bytes.get(..len)?)?;
        let (segment, owner) = (r.u32()?, u16::try_from(r.u32()?).ok()?);
        let (sequence, generation, identity) = (r.number()?, r.number()?, Identity(r.array()?));
        let entries = bytes[SUMMARY_HEAD..len].chunks_exact(ENTRY).map(|bytes| {
            let mut r = Reader(bytes);
            Some((r.u64()?, r.u32()?))
        });
        let entries = entries.collect::<Option<Vec<_>>>()?;
        Some((Self { segment, owner, identity, sequence, generation, entries }, sum))
    }
}

#[cfg(test)]
mod tests;
