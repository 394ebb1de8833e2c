//! The rule that measures: of which classes of evictions blocks are asked for again while they would be on the SSD.
//!
//! Owns a sample of all evictions of the region, the streams among them, and a record of each disk. Never keeps a block
//! and never looks at what the store has: what is measured does not depend on what was admitted. Invariant: nothing is
//! allocated but when a disk comes.

use super::shadow::{Seen, Shadow};
use super::streams::Streams;
use super::types::{CLASSES, Class};
use super::worth::{ALL, Gone, Record};
use std::ops::Range;

/// One of 2^this blocks is sampled...
const SHIFT: u32 = 6;
/// ... and of streams of which nothing is admitted one of so many of those: they would fill the sample.
const SPARSE: u64 = 8;
/// Ages are counted in this part of as many evictions as the region has slots.
const UNITS: u32 = 4096;
/// Stands for a class in the sample: the block is in RAM again, and before that it was known.
const KEPT: u8 = CLASSES as u8;
/// Stands for a class, too: the block is one of few of a stream.
const FEW: u8 = KEPT + 1;
/// A change of more blocks than this leaves the sample as it is.
const CHANGE_MAX: u64 = 256;

/// Whether a block is sampled: by other bits of its hash than those of its place in the sample.
#[inline]
fn is_sampled(hash: u64) -> bool {
    hash >> 18 & ((1 << SHIFT) - 1) == 0
}

/// See the head of the file.
pub(super) struct Measured {
    shadow: Shadow,
    streams: Streams,
    gone: Gone,
    records: Vec<Option<Box<Record>>>,
    unit: u32,
    /// Evictions so far, and samples of them.
    evictions: u64,
    samples: u64,
}

impl Measured {
    /// For a region of so many slots.
    pub fn new(slots: u32) -> Self {
        Self {
            shadow: Shadow::new(slots),
            streams: Streams::default(),
            gone: Gone::new(),
            records: Vec::new(),
            unit: (slots / UNITS).max(1),
            evictions: 0,
            samples: 0,
        }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        self.shadow.bytes()
            + self.records.capacity() * size_of::<Option<Box<Record>>>()
            + self.records.iter().flatten().count() * size_of::<Record>()
    }

    /// A disk comes, or comes back.
    pub fn attach(&mut self, owner: u16) {
        let at = usize::from(owner);
        if self.records.len() <= at {
            self.records.resize_with(at + 1, || None);
        }
        self.records[at] = Some(Box::new(Record::new(self.samples, SHIFT)));
    }

    /// It goes.
    pub fn detach(&mut self, owner: u16) {
        if let Some(record) = self.records.get_mut(usize::from(owner)) {
            *record = None;
        }
    }

    fn record(&mut self, owner: u16) -> Option<&mut Record> {
        self.records.get_mut(usize::from(owner))?.as_deref_mut()
    }

    /// A disk may have so many blocks.
    pub fn set_room(&mut self, owner: u16, blocks: u64) {
        if let Some(record) = self.record(owner) {
            record.set_room(blocks);
        }
    }

    fn now(&self) -> u16 {
        (self.evictions / u64::from(self.unit)) as u16
    }

    /// A block leaves RAM; whether it did before, and was used again there. Its class, and whether it is to be
    /// admitted.
    pub fn leaves(&mut self, owner: u16, block: u64, hash: u64, is_known: bool, reused: bool) -> (Class, bool) {
        let is_sequential = self.streams.is_sequential(owner, block);
        let class = Class::of(is_sequential, is_known, reused);
        let part = self.record(owner).map_or(ALL, |record| record.part(class));
        self.evictions += 1;
        if is_sampled(hash) {
            // If such blocks alone were admitted they would stay for longer than now: it would be there.
            let is_kept = self.shadow.take(hash).is_some_and(|seen| seen.class == KEPT);
            let class = Class::of(is_sequential, is_known || is_kept, reused);
            let is_sparse = class == Class::FirstSequential && part == 0;
            if !is_sparse || (hash >> 12).is_multiple_of(SPARSE) {
                self.sample(owner, hash, class, is_sparse);
            }
        }
        (class, (hash >> 24) as u8 & (ALL - 1) < part)
    }

    fn sample(&mut self, owner: u16, hash: u64, class: Class, is_sparse: bool) {
        let stamp = self.now();
        let weight = if is_sparse { SPARSE } else { 1 };
        self.samples += weight;
        self.gone.comes(self.shadow.room());
        let gone = self.shadow.put(hash, Seen { class: if is_sparse { FEW } else { class as u8 }, stamp });
        if let Some(gone) = gone.filter(|gone| gone.class != KEPT) {
            self.gone.goes(stamp.wrapping_sub(gone.stamp));
        }
        let Self { records, samples, unit, gone, .. } = self;
        if let Some(record) = records.get_mut(usize::from(owner)).and_then(Option::as_mut) {
            record.left(class, weight, *samples, *unit, gone);
        }
    }

    /// A block is asked for that is not in RAM.
    #[inline]
    pub fn asked(&mut self, owner: u16, hash: u64) {
        if is_sampled(hash) {
            self.sample_is_asked_for(owner, hash);
        }
    }

    fn sample_is_asked_for(&mut self, owner: u16, hash: u64) {
        let stamp = self.now();
        let Some(seen) = self.shadow.take(hash) else { return };
        let (class, weight) = match seen.class {
            FEW => (Some(Class::FirstSequential), SPARSE),
            n => (Class::ALL.get(usize::from(n)).copied(), 1),
        };
        if let (Some(class), Some(record)) = (class, self.record(owner)) {
            record.found(class, weight, stamp.wrapping_sub(seen.stamp));
        }
        if class.is_none_or(|class| !class.is_first()) {
            self.shadow.put(hash, Seen { class: KEPT, stamp });
        }
    }

    /// Blocks are changed: what would be on the SSD of them is not good any more.
    pub fn changes(&mut self, blocks: Range<u64>, hash: impl Fn(u64) -> u64) {
        if blocks.end.saturating_sub(blocks.start) > CHANGE_MAX {
            return;
        }
        for hash in blocks.map(hash) {
            if is_sampled(hash) {
                self.shadow.take(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests;
