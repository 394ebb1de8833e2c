//! The start: a region is formatted, or what it has is taken over.
//!
//! Owns what is believed. Works with a device that is asked at once, not with operations. Never panics on what
//! it reads.
//! Invariant: a block is taken over only if both copies of the table are whole and follow each other, the newer one
//! calls its owner clean, it was written since the host was started or by an orderly stop, its segment is one that
//! the table allows, and all summaries could be read; whether the image is still the same is asked when the owner is
//! attached. In doubt it is dropped.

use super::super::format::{
    BLOCK, Header, Layout, NO_BLOCK, NoHeader, Record, SEGMENTS_AT, TABLE_BYTES, TABLES_AT, Table, VERSION,
};
use super::*;
use crate::fault_injection::Bug;
use std::{fmt, io};

/// A region as it is read and written at the start: at once. Offsets and lengths are multiples of 4,096.
pub trait Media {
    /// Bytes of the region.
    fn bytes(&self) -> u64;
    /// Fills `to`.
    ///
    /// # Errors
    /// If not all of it can be read.
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()>;
    /// Fills pieces of `to`, all of one length, from these offsets; which of them could be read. Here one after the
    /// other: what is faster when several things are asked of it has them asked at the same time.
    fn read_many(&mut self, offsets: &[u64], to: &mut [u8]) -> Vec<bool> {
        let len = to.len() / offsets.len().max(1);
        let pieces = offsets.iter().zip(to.chunks_exact_mut(len.max(1)));
        pieces.map(|(offset, piece)| self.read_at(*offset, piece).is_ok()).collect()
    }
    /// Writes `from`.
    ///
    /// # Errors
    /// If not all of it can be written.
    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Makes what was written durable.
    ///
    /// # Errors
    /// If that is not certain.
    fn flush(&mut self) -> io::Result<()>;
}

/// How a region is to be formatted.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name: random, and never used before.
    pub store: StoreId,
    /// Bytes of a segment: a power of two, 256 KiB to 16 MiB.
    pub segment_bytes: u32,
}

/// Why there is no region.
#[derive(Debug)]
pub enum NoRegion {
    /// There is nothing of ours.
    Foreign,
    /// It was written by another version.
    Version(u32),
    /// It was formatted with another size of the region or of its segments.
    Size {
        /// Bytes of the region as it was formatted.
        region_bytes: u64,
        /// Bytes of its segments.
        segment_bytes: u32,
    },
    /// Its header is broken, or both copies of its table.
    Broken,
    /// A region of this size cannot be: it has less than four segments, or too many.
    NoLayout,
    /// The device cannot be read or written.
    Io(io::Error),
}

impl fmt::Display for NoRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRegion::Foreign => f.write_str("it is not formatted as a region of an SSD store"),
            NoRegion::Version(v) => {
                write!(f, "it was formatted by another version (format {v}; this version has format {VERSION})")
            }
            NoRegion::Size { region_bytes, segment_bytes } => {
                write!(f, "it was formatted with {region_bytes} bytes, and {segment_bytes} bytes for each segment")
            }
            NoRegion::Broken => f.write_str("its header is broken, or its table"),
            NoRegion::NoLayout => f.write_str("a region has at least four segments, each of 256KiB to 16MiB"),
            NoRegion::Io(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for NoRegion {}

impl From<io::Error> for NoRegion {
    fn from(e: io::Error) -> Self {
        NoRegion::Io(e)
    }
}

/// What was found in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Blocks taken over, for those who come with the same image.
    pub blocks: u64,
    /// Owners they belong to.
    pub owners: u64,
    /// Owners of which nothing was taken over: they were being changed when the store was left.
    pub dirty: u64,
    /// Everything was dropped: the host was started again, and the store had not been stopped in order.
    pub is_of_another_boot: bool,
    /// Everything was dropped: a copy of the table is broken.
    pub is_broken: bool,
    /// Summaries that could not be read. If there are any, everything was dropped: they might be read at a later start.
    pub unreadable: u64,
}

/// Sequences that are passed over when a summary could not be read: whatever it says, its sequence is lower than the
/// next one. More than a device of 10 GB/s begins in ten years.
const SEQUENCES_PASSED_OVER: u64 = 1 << 44;

/// Bytes of summaries that are read at a time.
const READ_BYTES: usize = 2 << 20;

/// How many entries ahead of the one that is put in the processor is told which memory it will need.
const AHEAD: usize = 12;

/// What is kept of a summary while the others are read: its blocks, which would take more memory than the index, are
/// read again when it is known in which order the segments were written.
struct Head {
    segment: u32,
    owner: u16,
    sequence: u64,
    generation: u64,
    sum: u64,
}

/// The copies of the table.
struct Tables {
    newest: Option<Table>,
    /// Both are whole, and follow each other.
    is_whole: bool,
}

impl<F: FaultInjection> Region<F> {
    /// Formats a region; whatever was there is gone.
    ///
    /// # Errors
    /// If the size is none for a region, or the device fails.
    pub fn format(media: &mut dyn Media, format: Format, boot: BootId, faults: F) -> Result<Self, NoRegion> {
        let bytes = media.bytes();
        let layout = Layout::new(bytes, format.segment_bytes).ok_or(NoRegion::NoLayout)?;
        let mut region = Self::empty(faults, format.store, boot, layout)?;
        let header = Header { store: format.store, region_bytes: bytes, segment_bytes: format.segment_bytes };
        // The header last: half a format is none.
        media.write_at(0, &[0; BLOCK])?;
        media.flush()?;
        region.write_tables(media)?;
        media.write_at(0, &header.write(&region.sums))?;
        media.flush()?;
        Ok(region)
    }

    /// Takes over what a region has.
    ///
    /// # Errors
    /// If it is none of this version and size, or the device fails.
    pub fn recover(
        media: &mut dyn Media,
        segment_bytes: u32,
        boot: BootId,
        faults: F,
    ) -> Result<(Self, Recovered), NoRegion> {
        let mut first = [0; BLOCK];
        media.read_at(0, &mut first)?;
        let header = Header::read(&first).map_err(|no| match no {
            NoHeader::Foreign => NoRegion::Foreign,
            NoHeader::Version(v) => NoRegion::Version(v),
            NoHeader::Broken => NoRegion::Broken,
        })?;
        if header.region_bytes != media.bytes() || header.segment_bytes != segment_bytes {
            let Header { region_bytes, segment_bytes, .. } = header;
            return Err(NoRegion::Size { region_bytes, segment_bytes });
        }
        let layout = Layout::new(header.region_bytes, segment_bytes).ok_or(NoRegion::NoLayout)?;
        let mut region = Self::empty(faults, header.store, boot, layout)?;
        let tables = region.read_tables(media)?;
        if tables.newest.is_none() {
            // The numbers that were used are not known.
            return Err(NoRegion::Broken);
        }
        let mut recovered = Recovered::default();
        region.take_owners(&tables, &mut recovered);
        region.take_segments(media, &tables, &mut recovered);
        recovered.blocks = region.index.len() as u64;
        region.write_tables(media)?;
        Ok((region, recovered))
    }

    /// The name that the region was formatted with.
    pub fn store(&self) -> StoreId {
        self.store
    }

    fn read_tables(&self, media: &mut dyn Media) -> io::Result<Tables> {
        let mut copies = Vec::new();
        for place in TABLES_AT {
            let mut bytes = vec![0; TABLE_BYTES];
            // One that cannot be read is a broken one.
            if media.read_at(place, &mut bytes).is_ok() {
                copies.extend(Table::read(&bytes, self.store, &self.sums).map(|(table, _)| table));
            }
        }
        copies.sort_by_key(|table| table.sequence);
        let follows = |c: &[Table]| matches!(c, [a, b] if a.sequence + 1 == b.sequence);
        let is_whole = follows(&copies) || self.faults.has(Bug::SsdOneTableIsEnough);
        Ok(Tables { newest: copies.pop(), is_whole })
    }

    /// Owners of which blocks may be taken over.
    fn take_owners(&mut self, tables: &Tables, recovered: &mut Recovered) {
        recovered.is_broken = !tables.is_whole;
        let Some(table) = &tables.newest else { return };
        self.tables.are(table.sequence, Vec::new());
        self.next_generation = table.next_generation + 1;
        self.segments.next_sequence = table.next_segment;
        recovered.dirty = table.records.iter().filter(|r| r.clean.is_none()).count() as u64;
        recovered.is_of_another_boot = !table.orderly && table.boot != self.boot.0;
        if !tables.is_whole || recovered.is_of_another_boot && !self.faults.has(Bug::SsdBootIgnored) {
            return;
        }
        for record in &table.records {
            let Some(stamp) = record.clean else { continue };
            recovered.owners += 1;
            let Record { identity, blocks, generation, .. } = *record;
            let owner = Owner::new(&self.sums, identity, blocks, generation, State::Clean(stamp));
            self.owners[usize::from(record.number)] = Some(owner);
        }
    }

    /// Segments of these owners, and their blocks. If a summary cannot be read, no owner is left: what it names could
    /// be changed now, and believed at a start that can read it.
    fn take_segments(&mut self, media: &mut dyn Media, tables: &Tables, recovered: &mut Recovered) {
        let passes_over = self.faults.has(Bug::SsdUnreadablePassedOver);
        let (mut heads, last) = self.read_heads(media, tables, recovered);
        if recovered.unreadable > 0 && !passes_over {
            heads.clear();
        }
        heads.sort_by_key(|head| head.sequence);
        for Head { segment, owner, sequence, generation, sum } in &heads {
            self.segments.recover(*segment, *owner, *sequence, *generation, *sum);
        }
        self.drop_incomplete(tables);
        heads.retain(|head| self.segments.get(head.segment).owner == head.owner);
        self.take_blocks(media, &heads, recovered);
        if recovered.unreadable > 0 && !passes_over {
            self.take_nothing(recovered);
        }
        self.segments.recovered();
        // Segments that had been begun and left no summary: more than there are have none.
        let mut begun = u64::from(self.layout.segments) + 1;
        if recovered.unreadable > 0 && !passes_over {
            begun += SEQUENCES_PASSED_OVER;
        }
        self.segments.next_sequence = self.segments.next_sequence.max(last) + begun;
    }

    /// The summaries that the table allows, and the highest sequence of all.
    fn read_heads(&self, media: &mut dyn Media, tables: &Tables, recovered: &mut Recovered) -> (Vec<Head>, u64) {
        let (mut heads, mut last) = (Vec::new(), 0);
        let all: Vec<u32> = (0..self.layout.segments).collect();
        each_summary(self.layout, media, &all, |segment, bytes| {
            let Some(bytes) = bytes else {
                recovered.unreadable += 1;
                return;
            };
            let Some((summary, sum)) = Summary::read(bytes, self.store, &self.sums) else { return };
            last = last.max(summary.sequence);
            if self.is_allowed(&summary, segment, tables) {
                let Summary { owner, sequence, generation, .. } = summary;
                heads.push(Head { segment, owner, sequence, generation, sum });
            }
        });
        (heads, last)
    }

    /// The blocks of these segments, in their order. What is not there any more, as it was a moment ago, was not read.
    fn take_blocks(&mut self, media: &mut dyn Media, heads: &[Head], recovered: &mut Recovered) {
        let segments: Vec<u32> = heads.iter().map(|head| head.segment).collect();
        let mut sums = heads.iter().map(|head| head.sum);
        each_summary(self.layout, media, &segments, |_, bytes| {
            let read = bytes.and_then(|bytes| Summary::read(bytes, self.store, &self.sums));
            let expected = sums.next();
            match read.filter(|(_, sum)| Some(*sum) == expected) {
                Some((summary, _)) => self.take_segment(&summary),
                None => recovered.unreadable += 1,
            }
        });
    }

    /// Nothing is taken over after all.
    fn take_nothing(&mut self, recovered: &mut Recovered) {
        for number in 0..self.owners.len() as u16 {
            while self.segments.oldest(number).is_some() {
                self.segments.give_up_oldest(number);
            }
        }
        self.owners.fill_with(|| None);
        self.index.clear();
        recovered.owners = 0;
    }

    /// Whether a summary is one that the table allows.
    fn is_allowed(&self, summary: &Summary, segment: u32, tables: &Tables) -> bool {
        let Some(Some(owner)) = self.owners.get(usize::from(summary.owner)) else { return false };
        let record = tables.newest.iter().flat_map(|t| &t.records).find(|r| r.number == summary.owner);
        let is_old = record.is_none_or(|r| summary.sequence < r.oldest) && !self.faults.has(Bug::SsdOldestIgnored);
        summary.segment == segment
            && summary.identity == owner.identity
            && summary.generation <= owner.generation
            && !is_old
            && !summary.entries.is_empty()
            && summary.entries.len() <= self.layout.data_blocks() as usize
    }

    /// After an orderly stop the summaries are those that the table was written with, or something was lost: then
    /// nothing of the owner is taken over.
    fn drop_incomplete(&mut self, tables: &Tables) {
        let Some(table) = tables.newest.as_ref().filter(|table| table.orderly) else { return };
        if self.faults.has(Bug::SsdDigestIgnored) {
            return;
        }
        for record in &table.records {
            let is_kept = self.owners[usize::from(record.number)].is_some();
            if is_kept && self.segments.digest(record.number) != record.digest {
                while self.segments.oldest(record.number).is_some() {
                    self.segments.give_up_oldest(record.number);
                }
                self.owners[usize::from(record.number)] = None;
            }
        }
    }

    fn take_segment(&mut self, summary: &Summary) {
        let Summary { segment, owner: number, .. } = *summary;
        for (n, (block, sum)) in summary.entries.iter().enumerate() {
            if let Some((next, _)) = summary.entries.get(n + AHEAD) {
                self.index.prefetch(number, *next);
            }
            if *block >= self.owner(number).blocks.min(BLOCKS_MAX) {
                self.segments.get_mut(segment).lost |= *block != NO_BLOCK;
                continue;
            }
            let slot = self.layout.slot(segment, n as u32);
            // Of two that are there, either is what the image holds.
            if let Some((at, entry)) = self.index.find(&self.segments, number, *block) {
                self.index.remove(at);
                self.removed(number, &entry, true);
            }
            let gone = self.index.insert(&self.segments, number, *block, slot, *sum);
            self.owner_mut(number).entries += 1;
            if let Some(gone) = gone {
                self.pushed_out(gone);
            }
        }
    }

    /// Writes both copies of the table: from now on none says that the store was stopped in order.
    fn write_tables(&mut self, media: &mut dyn Media) -> io::Result<()> {
        for _ in 0..2 {
            let table = self.table(false);
            let place = TABLES_AT[(table.sequence % 2) as usize];
            media.write_at(place, &table.write(self.store, &self.sums))?;
            media.flush()?;
            let clean = table.records.iter().filter(|r| r.clean.is_some()).map(|r| r.number).collect();
            self.tables.are(table.sequence, clean);
        }
        Ok(())
    }
}

/// Reads the summaries of these segments, in this order; `None` stands for one that cannot be read.
fn each_summary(layout: Layout, media: &mut dyn Media, segments: &[u32], mut each: impl FnMut(u32, Option<&[u8]>)) {
    let len = layout.summary_blocks as usize * BLOCK;
    let most = (READ_BYTES / len).clamp(1, segments.len().max(1));
    let mut bytes = vec![0; most * len];
    for segments in segments.chunks(most) {
        let offsets: Vec<u64> = segments.iter().map(|n| layout.offset(n * layout.segment_blocks)).collect();
        let bytes = &mut bytes[..segments.len() * len];
        let read = media.read_many(&offsets, bytes);
        for ((segment, bytes), is_read) in segments.iter().zip(bytes.chunks_exact(len)).zip(read) {
            each(*segment, is_read.then_some(bytes));
        }
    }
}

const _: () = assert!(SEGMENTS_AT >= TABLES_AT[1] + TABLE_BYTES as u64);
