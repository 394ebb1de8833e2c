//! The rule that measures: of which classes of evictions blocks are asked for again while they would be on the SSD.
//!
//! Owns a sample of all evictions of the region, the streams among them, and a record of each disk. Never keeps a block
//! and never looks at what the store has: what is measured does not depend on what was admitted. Invariant: nothing is
//! allocated but when a disk comes.

use super::shadow::{Seen, Shadow};
use super::streams::Streams;
use super::types::Class;
use super::worth::{ALL, Gone, Record};
use std::ops::Range;

/// One of 2^this blocks is sampled: of a small region more, so that there are enough.
const SHIFTS: [u32; 2] = [5, 6];
/// Slots of a region from which on it is large.
const LARGE: u32 = 1 << 18;
/// Ages are counted in this part of as many evictions as the region has slots.
const UNITS: u32 = 4096;
/// A change of more blocks than this leaves the sample as it is.
const CHANGE_MAX: u64 = 256;

/// See the head of the file.
pub(super) struct Measured {
    shadow: Shadow,
    streams: Streams,
    gone: Gone,
    records: Vec<Option<Box<Record>>>,
    shift: u32,
    unit: u32,
    /// Evictions so far, and those of them that were sampled.
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
            shift: SHIFTS[usize::from(slots >= LARGE)],
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
        self.records[at] = Some(Box::new(Record::new(self.samples)));
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

    fn is_sampled(&self, hash: u64) -> bool {
        hash >> 18 & ((1 << self.shift) - 1) == 0
    }

    fn now(&self) -> u16 {
        (self.evictions / u64::from(self.unit)) as u16
    }

    /// A block leaves RAM; whether it did before, and was used again there. Its class, and whether it is to be
    /// admitted.
    pub fn leaves(&mut self, owner: u16, block: u64, hash: u64, is_known: bool, reused: bool) -> (Class, bool) {
        let class = Class::of(self.streams.is_sequential(owner, block), is_known, reused);
        self.evictions += 1;
        if self.is_sampled(hash) {
            self.sample(owner, hash, class);
        }
        let shift = self.shift;
        let part = self.record(owner).map_or(ALL, |record| record.part(class, shift));
        (class, (hash >> 24) as u8 & (ALL - 1) < part)
    }

    fn sample(&mut self, owner: u16, hash: u64, class: Class) {
        self.samples += 1;
        self.shadow.take(hash);
        let stamp = self.now();
        self.gone.comes(self.shadow.room());
        if let Some(gone) = self.shadow.put(hash, Seen { class: class as u8, stamp }) {
            self.gone.goes(stamp.wrapping_sub(gone.stamp));
        }
        let Self { records, samples, shift, unit, gone, .. } = self;
        if let Some(record) = records.get_mut(usize::from(owner)).and_then(Option::as_mut) {
            record.left(class, *samples, *shift, *unit, gone);
        }
    }

    /// A block is asked for that is not in RAM.
    #[inline]
    pub fn asked(&mut self, owner: u16, hash: u64) {
        if !self.is_sampled(hash) {
            return;
        }
        let now = self.now();
        if let Some(seen) = self.shadow.take(hash)
            && let Some(record) = self.record(owner)
        {
            record.found(seen.class, now.wrapping_sub(seen.stamp));
        }
    }

    /// Blocks are changed: what would be on the SSD of them is not good any more.
    pub fn changes(&mut self, blocks: Range<u64>, hash: impl Fn(u64) -> u64) {
        if blocks.end.saturating_sub(blocks.start) > CHANGE_MAX {
            return;
        }
        for hash in blocks.map(hash) {
            if self.is_sampled(hash) {
                self.shadow.take(hash);
            }
        }
    }
}

#[cfg(test)]
mod tests;
