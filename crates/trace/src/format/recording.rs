//! Recordings of the daemon as runs of accesses: reads, writes and zeroes, in the order of the file.
//!
//! Owns which rows are accesses, and which of their blocks. Never reads the file itself.

use super::Run;
use crate::error::Error;
use crate::recording::{Op, Recording, Row, in_sample};
use crate::{Access, Kind};

/// Where the number of the disk stands in the number of a block.
const DISK_SHIFT: u32 = 51;
/// Blocks of one row at most; more is damage. Zeroes may cover a whole disk: 512 GiB in pages.
const BLOCKS_MAX: u64 = 1 << 27;

/// The accesses of a recording.
pub(crate) struct Runs {
    recording: Recording,
    rows: std::vec::IntoIter<Row>,
    /// What of the row at hand is left: its first access, and how many blocks.
    left: Option<Run>,
}

impl Runs {
    pub fn new(recording: Recording) -> Self {
        Self { recording, rows: Vec::new().into_iter(), left: None }
    }

    pub fn next(&mut self) -> Result<Option<Run>, Error> {
        loop {
            if let Some(run) = self.next_sampled() {
                return Ok(Some(run));
            }
            match self.rows.next() {
                Some(row) => self.left = run_of(&row, self.recording.header().block_bytes),
                None => match self.recording.next_group()? {
                    Some(rows) => self.rows = rows.into_iter(),
                    None => return Ok(None),
                },
            }
        }
    }

    /// The next run of blocks that are in the sample.
    fn next_sampled(&mut self) -> Option<Run> {
        let one_of = self.recording.header().sample;
        let mut left = self.left.take()?;
        if one_of <= 1 {
            return Some(left);
        }
        while left.blocks > 0 {
            let run = Run { blocks: 1, ..left };
            left = Run { first: Access { block: left.first.block + 1, ..left.first }, blocks: left.blocks - 1 };
            if in_sample(run.first.block & ((1 << DISK_SHIFT) - 1), one_of) {
                self.left = Some(left);
                return Some(run);
            }
        }
        None
    }
}

/// What a row accesses; a failed one, a flush and a discard access nothing.
fn run_of(row: &Row, block_bytes: u32) -> Option<Run> {
    let kind = match row.op {
        Op::Read => Kind::Read,
        Op::Write | Op::WriteZeroes => Kind::Write,
        Op::Flush | Op::Discard => return None,
    };
    let (block, blocks) = row.blocks(block_bytes);
    if row.failure.is_some() || blocks == 0 || block + blocks > 1 << DISK_SHIFT {
        return None;
    }
    let bytes = u32::try_from(row.length_bytes).unwrap_or(u32::MAX);
    let block = u64::from(row.disk) << DISK_SHIFT | block;
    Some(Run { first: Access { time_ns: row.time_ns, block, bytes, kind }, blocks: blocks.min(BLOCKS_MAX) })
}
