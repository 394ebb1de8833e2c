//! The file that remembers what the driver asked for and what the server promised.
//!
//! Owns the journal's format: records of 32 bytes, appended. Never reads the disk. Invariant: a write's record is in
//! the file before the server can see the write, so the file knows at least as much as the disk, whoever dies first.

use crate::pattern::mix;
use anyhow::{Context, Result, ensure};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Write};
use std::path::Path;

const RECORD_BYTES: usize = 32;

/// What a request does to its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They get stamps.
    Stamps,
    /// They read as zeroes.
    Zeroes,
    /// They read as zeroes or stay as they were.
    Discard,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first record of a file: what the stamps are made from.
    Seed(u64),
    /// A change is about to be sent. Sequences count from 1 without gaps.
    Issued {
        /// The change's number.
        sequence: u64,
        /// What it does.
        change: Change,
        /// First sector.
        sector: u64,
        /// Sectors.
        count: u32,
    },
    /// The server said that change `0` is done.
    Acknowledged(u64),
    /// The server refused change `0`: it happened wholly, partly or not at all.
    Refused(u64),
    /// Flush `0` is about to be sent: it covers every change acknowledged before this record.
    FlushIssued(u64),
    /// The server said that flush `0` is done.
    FlushAcknowledged(u64),
    /// The server is gone, with whatever was not flushed.
    ServerLost,
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let (op, change, count, sector, number) = match *self {
            Record::Seed(seed) => (1u8, 0u8, 0u32, 0u64, seed),
            Record::Issued { sequence, change, sector, count } => (2, change as u8, count, sector, sequence),
            Record::Acknowledged(n) => (3, 0, 0, 0, n),
            Record::Refused(n) => (4, 0, 0, 0, n),
            Record::FlushIssued(n) => (5, 0, 0, 0, n),
            Record::FlushAcknowledged(n) => (6, 0, 0, 0, n),
            Record::ServerLost => (7, 0, 0, 0, 0),
        };
        let mut b = [0; RECORD_BYTES];
        b[0] = op;
        b[1] = change;
        b[4..8].copy_from_slice(&count.to_le_bytes());
        b[8..16].copy_from_slice(&sector.to_le_bytes());
        b[16..24].copy_from_slice(&number.to_le_bytes());
        let check = check(&b);
        b[24..].copy_from_slice(&check.to_le_bytes());
        b
    }

    fn decode(b: &[u8; RECORD_BYTES]) -> Option<Record> {
        let word = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        if word(24) != check(b) {
            return None;
        }
        let number = word(16);
        Some(match b[0] {
            1 => Record::Seed(number),
            2 => Record::Issued {
                sequence: number,
                change: match b[1] {
                    0 => Change::Stamps,
                    1 => Change::Zeroes,
                    2 => Change::Discard,
                    _ => return None,
                },
                sector: word(8),
                count: u32::from_le_bytes(b[4..8].try_into().expect("four bytes")),
            },
            3 => Record::Acknowledged(number),
            4 => Record::Refused(number),
            5 => Record::FlushIssued(number),
            6 => Record::FlushAcknowledged(number),
            7 => Record::ServerLost,
            _ => return None,
        })
    }
}

fn check(b: &[u8; RECORD_BYTES]) -> u64 {
    b[..24]
        .chunks_exact(8)
        .fold(0x6a09_e667_f3bc_c908, |key, w| mix(key ^ u64::from_le_bytes(w.try_into().expect("eight bytes"))))
}

/// A journal open for appending.
pub struct Journal {
    file: File,
    waiting: Vec<u8>,
}

impl Journal {
    /// Opens or makes the file.
    pub fn append_to(path: &Path) -> Result<Journal> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.with_context(|| format!("cannot open the journal {}", path.display()))?;
        Ok(Journal { file, waiting: Vec::new() })
    }

    /// Queues a record.
    pub fn add(&mut self, record: Record) {
        self.waiting.extend(record.encode());
    }

    /// Hands everything queued to the kernel: it outlives this process.
    pub fn write_out(&mut self) -> std::io::Result<()> {
        if !self.waiting.is_empty() {
            self.file.write_all(&self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }
}

/// All records of a file, in order; none if it is not there. A last record cut short (the driver was killed) is left
/// out; a damaged one is an error.
pub fn read_all(path: &Path) -> Result<Vec<Record>> {
    let file = match File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("cannot open the journal {}", path.display())),
    };
    let mut bytes = Vec::new();
    BufReader::new(file).read_to_end(&mut bytes)?;
    let mut records = Vec::with_capacity(bytes.len() / RECORD_BYTES);
    for (i, b) in bytes.as_chunks::<RECORD_BYTES>().0.iter().enumerate() {
        let record = Record::decode(b).with_context(|| format!("record {i} of {} is damaged", path.display()))?;
        ensure!((i == 0) == matches!(record, Record::Seed(_)), "record {i} of {} is out of place", path.display());
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_file_and_damage_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let records = [
            Record::Seed(9),
            Record::Issued { sequence: 1, change: Change::Discard, sector: u64::MAX, count: 128 },
            Record::Acknowledged(1),
            Record::Refused(2),
            Record::FlushIssued(1),
            Record::FlushAcknowledged(1),
            Record::ServerLost,
        ];
        let mut j = Journal::append_to(&path).unwrap();
        records.iter().for_each(|r| j.add(*r));
        j.write_out().unwrap();
        assert_eq!(read_all(&path).unwrap(), records);
        let mut bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read_all(&path).unwrap(), records[..6], "the record cut short is left out");
        bytes[40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read_all(&path).is_err());
        assert_eq!(read_all(&dir.path().join("none")).unwrap(), []);
    }
}
