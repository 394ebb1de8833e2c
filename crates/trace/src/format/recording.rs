//! Recordings of the daemon as requests: reads, writes and zeroes, in the order of the file.
//!
//! Owns which rows are accesses, and which of their blocks. Never reads the file itself.

use super::spec::Spec;
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{Blocks, REQUEST_BYTES_MAX};
use crate::error::TraceError;
use crate::recording::{MAGIC, RecordedOp, Recording, in_sample};

pub(super) static SPEC: Spec = Spec {
    name: "undercroft-parquet",
    about: "what `undercroft record` writes",
    record: "as above",
    tenant: "disk",
    endings: &["parquet"],
    magic: Some(&MAGIC),
    ..Spec::BASE
};

/// Adds the requests of the next row group to `out`; false after the last.
pub(crate) fn next_group(
    recording: &mut Recording,
    blocks: &Blocks,
    out: &mut Vec<TraceRequest>,
) -> Result<bool, TraceError> {
    let Some(rows) = recording.next_group()? else { return Ok(false) };
    let (one_of, block_bytes) = (recording.header().sample, u64::from(recording.header().block_bytes));
    for row in rows {
        let kind = match row.op {
            RecordedOp::Read => AccessKind::Read,
            RecordedOp::Write | RecordedOp::WriteZeroes => AccessKind::Write,
            RecordedOp::Flush | RecordedOp::Discard => continue,
        };
        if row.failure.is_some() || row.length_bytes == 0 {
            continue;
        }
        // zeroes may cover a whole disk
        let bytes = row.length_bytes.min(REQUEST_BYTES_MAX);
        let address = row.offset_bytes;
        let request = TraceRequest { time_ns: row.time_ns, address, bytes, keys: 1, tenant: row.disk, kind };
        if blocks.fits(&request).is_err() {
            continue;
        }
        if one_of <= 1 {
            out.push(request);
            continue;
        }
        let (first, last) = (address / block_bytes, (address + (bytes - 1)) / block_bytes);
        for block in (first..=last).filter(|&b| in_sample(b, one_of)) {
            out.push(TraceRequest { address: block * block_bytes, bytes: block_bytes, ..request });
        }
    }
    Ok(true)
}
