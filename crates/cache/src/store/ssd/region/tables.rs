//! The table of owners on the device: when it is written, and what it may say there.
//!
//! Owns the order: write, flush, read back. Never decides what it says. Invariant: `may_be_clean` is true for every
//! owner that any copy which a recovery could take calls clean.

use super::super::bytes::{Reader, Writer};
use super::super::format::{Record, TABLES_AT, Table};
use super::io::Job;
use super::*;

/// How far a write of the table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Writing,
    Written,
    Flushing,
    Flushed,
    Checking,
}

/// See the head of the file.
#[derive(Default)]
pub(super) struct Tables {
    /// Of the copy that is durable.
    pub sequence: u64,
    /// What is durable is not what it is to say.
    pub is_wanted: bool,
    phase: Phase,
    /// The sum and length of the copy that is being written, and which owners it calls clean.
    sum: u64,
    len: usize,
    clean: Vec<u16>,
    /// Owners that the durable copy calls clean.
    durable: Vec<u16>,
    /// The copy that is being written says that the stop was orderly.
    is_last: bool,
}

impl Tables {
    /// After format or recovery: the copies on the device say this.
    pub fn are(&mut self, sequence: u64, clean: Vec<u16>) {
        (self.sequence, self.durable) = (sequence, clean);
    }

    /// What the device says, for another process; nothing is being written, and nothing has to be.
    pub fn hand_over(&self, to: &mut Writer) {
        to.u64(self.sequence).u32(self.durable.len() as u32);
        self.durable.iter().for_each(|n| _ = to.u32(u32::from(*n)));
    }

    /// The same, told by another process.
    pub fn take_over(from: &mut Reader<'_>) -> Option<Self> {
        let (sequence, count) = (from.number()?, from.u32()?);
        let durable = (0..count).map(|_| u16::try_from(from.u32()?).ok()).collect::<Option<_>>()?;
        Some(Self { sequence, durable, ..Self::default() })
    }

    /// Whether a recovery might take what the device says for an owner's present state.
    pub fn may_be_clean(&self, number: u16) -> bool {
        self.durable.contains(&number) || self.phase != Phase::Idle && self.clean.contains(&number)
    }

    /// Whether it calls any owner clean.
    pub fn any_clean(&self) -> bool {
        !self.durable.is_empty() || self.phase != Phase::Idle && !self.clean.is_empty()
    }

    /// Whether none is being written.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }
}

impl<F: FaultInjection> Region<F> {
    /// What the table says of all owners now.
    pub(super) fn table(&self, orderly: bool) -> Table {
        let record = |(number, owner): (usize, &Option<Owner>)| {
            let (number, owner) = (number as u16, owner.as_ref()?);
            let clean = match owner.state {
                State::Clean(stamp) => Some(stamp),
                State::Dirty => None,
            };
            let (identity, blocks, generation) = (owner.identity, owner.blocks, owner.generation);
            let (oldest, digest) = (self.segments.floor(number), self.segments.digest(number));
            Some(Record { number, identity, clean, blocks, generation, oldest, digest })
        };
        Table {
            sequence: self.tables.sequence + 1,
            next_segment: self.segments.next_sequence,
            next_generation: self.next_generation,
            boot: self.boot.0,
            orderly,
            records: self.owners.iter().enumerate().filter_map(record).collect(),
        }
    }

    /// The next step of writing the table.
    pub(super) fn next_table(&mut self) -> Option<SsdIo> {
        match self.tables.phase {
            Phase::Idle if self.tables.is_wanted && self.has_frames(16) => {
                let orderly = self.stop == Some(Stop::Table);
                let table = self.table(orderly);
                let bytes = table.write(self.store, &self.sums);
                let place = TABLES_AT[(table.sequence % 2) as usize];
                let io = self.write(Job::Table, place, &bytes)?;
                let tables = &mut self.tables;
                tables.clean.clear();
                tables.clean.extend(table.records.iter().filter(|r| r.clean.is_some()).map(|r| r.number));
                let sum = u64::from_le_bytes(std::array::from_fn(|n| bytes[8 + n]));
                (tables.sum, tables.len, tables.is_last) = (sum, bytes.len(), orderly);
                (tables.is_wanted, tables.phase) = (false, Phase::Writing);
                Some(io)
            }
            Phase::Written => {
                self.tables.phase = Phase::Flushing;
                Some(self.flush(Job::TableFlush))
            }
            Phase::Flushed => {
                let place = TABLES_AT[((self.tables.sequence + 1) % 2) as usize];
                let io = self.read(Job::TableCheck, place, self.tables.len)?;
                self.tables.phase = Phase::Checking;
                Some(io)
            }
            _ => None,
        }
    }

    /// A step of it is done; `bytes` are what was read.
    pub(super) fn table_done(&mut self, bytes: Option<&[u8]>) {
        match self.tables.phase {
            Phase::Writing => self.tables.phase = Phase::Written,
            Phase::Flushing => self.tables.phase = Phase::Flushed,
            Phase::Checking => {
                let read = bytes.and_then(|bytes| Table::read(bytes, self.store, &self.sums));
                if read.is_none_or(|(_, sum)| sum != self.tables.sum) {
                    return self.fail(OutOfService::Mismatches);
                }
                let tables = &mut self.tables;
                tables.sequence += 1;
                tables.durable = std::mem::take(&mut tables.clean);
                tables.phase = Phase::Idle;
                if tables.is_last {
                    self.stop = Some(Stop::Done);
                }
            }
            Phase::Idle | Phase::Written | Phase::Flushed => {}
        }
    }
}
