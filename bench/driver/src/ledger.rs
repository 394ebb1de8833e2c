//! What each sector may contain, given what was asked, acknowledged and flushed.
//!
//! Owns the model. Never does I/O. Invariant: a sector's history lists its changes in the order they were issued, and
//! the driver has at most one change of a sector under way, so a later change acknowledged supersedes all before it.

use crate::journal::{Change, Record};
use crate::stamp::{SECTOR_BYTES, Seen, Stamp, look};
use anyhow::{Result, bail, ensure};
use std::collections::HashMap;

#[derive(Clone, Debug)]
struct Issue {
    change: Change,
    sector: u64,
    count: u32,
}

#[derive(Clone, Debug, Default)]
struct Sector {
    history: Vec<u64>,
    /// The last change acknowledged, and the last flushed, that was no discard: a discard need not have any effect, so
    /// it obliges to nothing.
    acknowledged: u64,
    durable: u64,
}

/// The model of a disk that is written with stamps.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    seed: u64,
    issues: Vec<Issue>,
    sectors: HashMap<u64, Sector>,
    /// Changes in the order of their acknowledgement, and how many of them are durable.
    acknowledged: Vec<u64>,
    durable: usize,
    /// Flushes under way: number, and how many acknowledgements came before.
    flushes: HashMap<u64, usize>,
    flushed: u64,
}

/// Counts for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Changes asked for.
    pub issued: u64,
    /// Of which acknowledged.
    pub acknowledged: u64,
    /// Of which flushed.
    pub durable: u64,
    /// Flushes acknowledged.
    pub flushes: u64,
}

/// Which promise a sector is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Everything acknowledged is there: what a running server must keep, and a write-through one after `kill -9`.
    Acknowledged,
    /// Everything acknowledged and then flushed is there.
    Flushed,
}

/// What a sector was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Found {
    /// Only zeroes.
    #[error("zeroes")]
    Zeroes,
    /// What no run of the driver has written: its first bytes.
    #[error("foreign bytes {0:02x?}...")]
    Foreign([u8; 16]),
    /// The head of a stamp, and not all of it.
    #[error("a torn stamp (sector {}, change {})", .0.sector, .0.sequence)]
    Torn(Stamp),
    /// A stamp of another journal.
    #[error("a stamp of another run")]
    OfAnotherRun,
    /// What belongs elsewhere.
    #[error("the stamp of sector {}, change {}", .0.sector, .0.sequence)]
    OfAnotherSector(Stamp),
    /// A change that it may not hold.
    #[error("change {0}")]
    Change(u64),
}

/// A sector that breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sector {sector} has {found}; it must have change {floor} or a later one (last ones: {last:?})")]
pub struct BrokenPromise {
    /// The sector.
    pub sector: u64,
    /// What it has.
    pub found: Found,
    /// The change that must have taken effect; 0 if none.
    pub floor: u64,
    /// The last changes of the sector, at most four.
    pub last: Vec<u64>,
}

impl Ledger {
    /// An untouched disk whose stamps will be made from `seed`.
    pub fn new(seed: u64) -> Ledger {
        Ledger { seed, ..Ledger::default() }
    }

    /// Rebuilds the model from a journal.
    pub fn replay(records: &[Record]) -> Result<Ledger> {
        let mut ledger = Ledger::default();
        for r in records {
            ledger.apply(*r)?;
        }
        Ok(ledger)
    }

    /// The number that the next change gets.
    pub fn next_sequence(&self) -> u64 {
        self.issues.len() as u64 + 1
    }

    /// Counts for the report.
    pub fn totals(&self) -> Totals {
        Totals {
            issued: self.issues.len() as u64,
            acknowledged: self.acknowledged.len() as u64,
            durable: self.durable as u64,
            flushes: self.flushed,
        }
    }

    fn issue(&self, sequence: u64) -> Result<&Issue> {
        let issue = sequence.checked_sub(1).and_then(|i| self.issues.get(i as usize));
        issue.ok_or_else(|| anyhow::anyhow!("change {sequence} was never issued"))
    }

    /// Takes one record in.
    pub fn apply(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Seed(seed) => self.seed = seed,
            Record::Issued { sequence, change, sector, count } => {
                ensure!(sequence == self.next_sequence(), "change {sequence} is out of order");
                self.issues.push(Issue { change, sector, count });
                for s in sector..sector + u64::from(count) {
                    self.sectors.entry(s).or_default().history.push(sequence);
                }
            }
            Record::Acknowledged(sequence) => {
                let Issue { change, sector, count } = *self.issue(sequence)?;
                self.acknowledged.push(sequence);
                if change != Change::Discard {
                    for s in sector..sector + u64::from(count) {
                        let sector = self.sectors.entry(s).or_default();
                        sector.acknowledged = sector.acknowledged.max(sequence);
                    }
                }
            }
            Record::Refused(sequence) => {
                self.issue(sequence)?;
            }
            Record::FlushIssued(flush) => {
                self.flushes.insert(flush, self.acknowledged.len());
            }
            Record::FlushAcknowledged(flush) => {
                let Some(covers) = self.flushes.remove(&flush) else { bail!("flush {flush} was never issued") };
                self.flushed += 1;
                while self.durable < covers {
                    let sequence = self.acknowledged[self.durable];
                    let Issue { change, sector, count } = *self.issue(sequence)?;
                    self.durable += 1;
                    if change == Change::Discard {
                        continue;
                    }
                    for s in sector..sector + u64::from(count) {
                        let sector = self.sectors.entry(s).or_default();
                        sector.durable = sector.durable.max(sequence);
                    }
                }
            }
            Record::ServerLost => {
                self.flushes.clear();
                // What was acknowledged but not flushed may be gone: nobody may be held to it any more.
                self.sectors.values_mut().for_each(|s| s.acknowledged = s.durable);
                self.acknowledged.truncate(self.durable);
            }
        }
        Ok(())
    }

    /// The change of `sector` that a read issued now must at least see; 0 if none.
    pub fn floor(&self, sector: u64, promise: Promise) -> u64 {
        let Some(s) = self.sectors.get(&sector) else { return 0 };
        match promise {
            Promise::Acknowledged => s.acknowledged,
            Promise::Flushed => s.durable,
        }
    }

    /// Whether `bytes` may stand in `sector` if change `floor` must have taken effect and any later one may have.
    /// `base` is what stood there at first; zeroes if `None`.
    ///
    /// # Errors
    /// What stands there instead.
    pub fn judge(
        &self,
        sector: u64,
        bytes: &[u8],
        floor: u64,
        base: Option<&[u8]>,
    ) -> std::result::Result<(), BrokenPromise> {
        let seen = look(bytes);
        let empty = Vec::new();
        let history = self.sectors.get(&sector).map_or(&empty, |s| &s.history);
        for sequence in history.iter().rev().copied().take_while(|sequence| *sequence >= floor) {
            let matches = match (self.issues[sequence as usize - 1].change, seen) {
                (Change::Stamps, Seen::Stamp(s)) => (s.seed, s.sector, s.sequence) == (self.seed, sector, sequence),
                (Change::Zeroes | Change::Discard, Seen::Zeroes) => true,
                _ => false,
            };
            if matches {
                return Ok(());
            }
        }
        let unchanged = match base {
            Some(base) => base == bytes,
            None => seen == Seen::Zeroes,
        };
        if floor == 0 && unchanged {
            return Ok(());
        }
        let found = match seen {
            Seen::Zeroes => Found::Zeroes,
            Seen::Foreign => Found::Foreign(std::array::from_fn(|i| bytes[i])),
            Seen::Torn(s) => Found::Torn(s),
            Seen::Stamp(s) if s.seed != self.seed => Found::OfAnotherRun,
            Seen::Stamp(s) if s.sector != sector => Found::OfAnotherSector(s),
            Seen::Stamp(s) => Found::Change(s.sequence),
        };
        let last = history.iter().rev().take(4).rev().copied().collect();
        Err(BrokenPromise { sector, found, floor, last })
    }

    /// Sectors that were ever changed.
    pub fn touched(&self) -> usize {
        self.sectors.len()
    }
}

/// The stamped contents of `count` sectors from `sector` on.
pub fn stamped(ledger: &Ledger, sector: u64, count: u32, sequence: u64, into: &mut Vec<u8>) {
    into.resize(count as usize * SECTOR_BYTES, 0);
    for (i, bytes) in into.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        Stamp { seed: ledger.seed, sector: sector + i as u64, sequence }.write(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(sequence: u64, change: Change) -> Record {
        Record::Issued { sequence, change, sector: 10, count: 2 }
    }

    fn content(ledger: &Ledger, sector: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        stamped(ledger, sector, 1, sequence, &mut bytes);
        bytes
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_issued() {
        let mut l = Ledger::new(1);
        for r in [
            issued(1, Change::Stamps),
            Record::Acknowledged(1),
            Record::FlushIssued(1),
            issued(2, Change::Stamps),
            Record::Acknowledged(2),
            Record::FlushAcknowledged(1),
        ] {
            l.apply(r).unwrap();
        }
        assert_eq!(l.floor(10, Promise::Flushed), 1);
        assert_eq!(l.floor(11, Promise::Acknowledged), 2);
        let (first, second) = (content(&l, 10, 1), content(&l, 10, 2));
        let zero = [0; SECTOR_BYTES];
        assert!(l.judge(10, &first, 1, None).is_ok() && l.judge(10, &second, 1, None).is_ok());
        let found = |sector, bytes, floor| l.judge(sector, bytes, floor, None).map_err(|e| e.found);
        assert_eq!(found(10, &zero[..], 1), Err(Found::Zeroes), "a flushed write is lost");
        assert_eq!(found(10, &first[..], 2), Err(Found::Change(1)), "stale");
        let elsewhere = Stamp { seed: 1, sector: 10, sequence: 1 };
        assert_eq!(found(11, &first[..], 0), Err(Found::OfAnotherSector(elsewhere)));
        assert!(l.judge(12, &zero, 0, None).is_ok() && l.judge(12, &first, 0, None).is_err());
        assert_eq!(found(10, &[7; SECTOR_BYTES][..], 0), Err(Found::Foreign([7; 16])));
        let said = l.judge(10, &first, 2, None).unwrap_err().to_string();
        assert_eq!(said, "sector 10 has change 1; it must have change 2 or a later one (last ones: [1, 2])");
        assert_eq!(l.totals(), Totals { issued: 2, acknowledged: 2, durable: 1, flushes: 1 });
        l.apply(Record::ServerLost).unwrap();
        assert_eq!(l.floor(10, Promise::Acknowledged), 1, "what was not flushed need not be there any more");
    }

    #[test]
    fn a_discard_leaves_zeroes_or_what_was_there_but_nothing_older() {
        let mut l = Ledger::new(1);
        for (n, change) in [(1, Change::Stamps), (2, Change::Stamps), (3, Change::Discard)] {
            l.apply(issued(n, change)).unwrap();
            l.apply(Record::Acknowledged(n)).unwrap();
        }
        assert_eq!(l.floor(10, Promise::Acknowledged), 2);
        assert!(l.judge(10, &[0; SECTOR_BYTES], 2, None).is_ok());
        assert!(l.judge(10, &content(&l, 10, 2), 2, None).is_ok());
        assert!(l.judge(10, &content(&l, 10, 1), 2, None).is_err());
        l.apply(issued(4, Change::Zeroes)).unwrap();
        l.apply(Record::Acknowledged(4)).unwrap();
        assert!(l.judge(10, &content(&l, 10, 2), 4, None).is_err(), "zeroes are owed");
        assert!(l.judge(10, &[0; SECTOR_BYTES], 4, None).is_ok());
    }

    #[test]
    fn a_write_lost_before_a_flushed_discard_obliges_to_nothing() {
        // As found: write 1 acknowledged, crash, write 2 never acknowledged, crash, discard 3 flushed.
        let mut l = Ledger::new(1);
        for r in [
            issued(1, Change::Stamps),
            Record::Acknowledged(1),
            Record::ServerLost,
            issued(2, Change::Stamps),
            Record::ServerLost,
            issued(3, Change::Discard),
            Record::Acknowledged(3),
            Record::FlushIssued(1),
            Record::FlushAcknowledged(1),
        ] {
            l.apply(r).unwrap();
        }
        let floor = l.floor(10, Promise::Flushed);
        for bytes in [content(&l, 10, 1), content(&l, 10, 2), vec![0; SECTOR_BYTES]] {
            assert!(l.judge(10, &bytes, floor, None).is_ok());
        }
    }

    #[test]
    fn the_base_is_right_until_a_change_is_owed() {
        let mut l = Ledger::new(1);
        let base = [3u8; SECTOR_BYTES];
        assert!(l.judge(10, &base, 0, Some(&base)).is_ok());
        assert!(l.judge(10, &[0; SECTOR_BYTES], 0, Some(&base)).is_err(), "the base is lost");
        l.apply(issued(1, Change::Stamps)).unwrap();
        assert!(l.judge(10, &base, 0, Some(&base)).is_ok(), "not acknowledged yet");
        assert!(l.judge(10, &base, 1, Some(&base)).is_err());
    }

    #[test]
    fn a_journal_that_contradicts_itself_is_refused() {
        assert!(Ledger::new(1).apply(Record::Acknowledged(1)).is_err());
        assert!(Ledger::new(1).apply(issued(2, Change::Stamps)).is_err());
        assert!(Ledger::new(1).apply(Record::FlushAcknowledged(1)).is_err());
    }
}
