//! Logs of a guest's transfers: which page of its memory each block was moved through.
//!
//! Owns the format, which experiments/guest/iolog.c writes and `make lab-exclusive LAB=--keep-transfers` keeps. Never
//! decides what a cache keeps. Invariant: pages are numbered as they first occur, so the numbers tell nothing of the
//! process that wrote the log, and are less than [`TransferLog::pages`].

use std::collections::HashMap;

/// Bytes before the first record: how many there are, and which is the first that is measured.
const HEADER_BYTES: usize = 16;
/// Bytes of a record: the page's address (8), the block (4), read or write (1), and what is of no use here (3).
const RECORD_BYTES: usize = 16;
const WRITE: u8 = 1;

/// A request of the guest to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The block.
    pub block: u64,
    /// The page of guest memory that it is read into or written from.
    pub page: u32,
    /// Whether it is written.
    pub write: bool,
}

/// Why a file is no log of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferLogError {
    /// It ends before what it says that it has.
    #[error("it has {has} bytes where its first eight announce {wanted}: it is cut off, or no log of transfers")]
    Short {
        /// Bytes there are.
        has: usize,
        /// Bytes there should be.
        wanted: u64,
    },
    /// The part that is measured is empty.
    #[error("what is measured begins at record {begin} of {count}: nothing is measured in it")]
    Nothing {
        /// The first record that is measured.
        begin: u64,
        /// Records.
        count: u64,
    },
}

/// A log.
#[derive(Clone, Debug)]
pub struct TransferLog {
    transfers: Vec<Transfer>,
    begin: usize,
    pages: u32,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

impl TransferLog {
    /// Reads a log.
    ///
    /// # Errors
    /// If it is cut off, or nothing in it is measured.
    pub fn parse(bytes: &[u8]) -> Result<Self, TransferLogError> {
        let short = |wanted| TransferLogError::Short { has: bytes.len(), wanted };
        let (header, records) = bytes.split_at_checked(HEADER_BYTES).ok_or(short(HEADER_BYTES as u64))?;
        let (count, begin) = (number(&header[..8]), number(&header[8..]));
        if count > (records.len() / RECORD_BYTES) as u64 {
            return Err(short(count.saturating_mul(RECORD_BYTES as u64).saturating_add(HEADER_BYTES as u64)));
        }
        // Addresses are those of a process: pages are numbered as they first occur.
        let mut pages = HashMap::new();
        let transfers = records.chunks_exact(RECORD_BYTES).take(count as usize).map(|record| {
            let next = pages.len() as u32;
            let page = *pages.entry(number(&record[..8])).or_insert(next);
            Transfer { page, block: number(&record[8..12]), write: record[12] == WRITE }
        });
        Self::new(transfers.collect(), begin)
    }

    /// A log of these transfers, measured from number `begin` on.
    ///
    /// # Errors
    /// If nothing is measured then.
    pub fn new(transfers: Vec<Transfer>, begin: u64) -> Result<Self, TransferLogError> {
        let count = transfers.len() as u64;
        if begin >= count {
            return Err(TransferLogError::Nothing { begin, count });
        }
        let pages = transfers.iter().map(|t| t.page).max().map_or(0, |last| last.saturating_add(1));
        Ok(Self { transfers, begin: begin as usize, pages })
    }

    /// Pages of the guest: one more than the highest number of one that occurs.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// All transfers, in order of time.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// The number of the first transfer that is measured.
    pub fn begin(&self) -> usize {
        self.begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of `records`: (address of the page, block, whether it is written).
    fn log(begin: u64, records: &[(u64, u32, bool)]) -> Vec<u8> {
        let mut bytes = [(records.len() as u64).to_le_bytes(), begin.to_le_bytes()].concat();
        for &(page, block, write) in records {
            bytes.extend(page.to_le_bytes());
            bytes.extend(block.to_le_bytes());
            bytes.extend([u8::from(write), 2, 0, 0]);
        }
        bytes
    }

    #[test]
    fn a_log_that_is_no_log_is_refused() {
        let whole = log(1, &[(1, 10, false), (2, 11, false)]);
        for cut in 0..whole.len() {
            let error = TransferLog::parse(&whole[..cut]).unwrap_err();
            assert!(matches!(error, TransferLogError::Short { has, .. } if has == cut), "{cut}: {error}");
        }
        assert_eq!(TransferLog::parse(&whole).unwrap().pages(), 2);
        let nothing = TransferLog::parse(&log(2, &[(1, 10, false), (2, 11, false)])).unwrap_err();
        assert_eq!(nothing, TransferLogError::Nothing { begin: 2, count: 2 });
        assert!(TransferLog::parse(&[0xff; 64]).unwrap_err().to_string().contains("cut off"));
    }
}
