//! The summary of a trace as programs read it.
//!
//! Owns the fields of `undercroft trace info --json`, for the command line and for Python. Never reads a trace itself.

use crate::blocks::{Blocks, Unit};
use crate::reader::TraceReader;
use crate::summary::{Counts, Summary};
use crate::tenants::Tenants;
use serde::Serialize;

/// A trace, for programs.
#[derive(Debug, Serialize)]
pub struct Info {
    /// Its name, as errors have it.
    pub trace: String,
    /// Its format, as the command line writes it.
    pub format: &'static str,
    /// `bytes` or `keys`.
    pub unit: &'static str,
    /// `null` for keys and for requests that are not split.
    pub block_bytes: Option<u32>,
    /// Of the whole trace.
    #[serde(flatten)]
    pub all: Counts,
    /// Distinct blocks.
    pub footprint_blocks: u64,
    /// The same in bytes; `null` where a block has no size.
    pub footprint_bytes: Option<u64>,
    /// Whether that is exact, or an estimate.
    pub footprint_exact: bool,
    /// The earliest time.
    pub first_ns: Option<u64>,
    /// The latest time.
    pub last_ns: Option<u64>,
    /// Records that make no sense (lenient readers only).
    pub records_left_out: u64,
    /// Requests whose time is before that of one already read.
    pub times_back: u64,
    /// Whose requests they are.
    pub tenants: Vec<TenantInfo>,
}

/// One tenant's part.
#[derive(Debug, Serialize)]
pub struct TenantInfo {
    /// Its name.
    pub name: String,
    /// Of the whole trace.
    #[serde(flatten)]
    pub all: Counts,
    /// Distinct blocks that it asks for, whoever else does; `null` where only the footprint of all together is known,
    /// as an estimate.
    pub footprint_blocks: Option<u64>,
}

impl Info {
    /// Of a trace that has been read to its end, and summed up.
    pub fn of(reader: &TraceReader<'_>, summary: &Summary) -> Info {
        let mut info =
            Self::of_requests(reader.name(), reader.format().name(), reader.blocks(), reader.tenants(), summary);
        info.records_left_out = reader.tally().skipped;
        info.times_back = reader.tally().backwards;
        info
    }

    /// Of requests that come from no file: `format` says from where.
    pub fn of_requests(name: &str, format: &'static str, blocks: Blocks, tenants: &Tenants, summary: &Summary) -> Info {
        let (footprint_blocks, footprint_exact) = summary.footprint();
        let block_bytes = (blocks.unit == Unit::Bytes && !blocks.whole).then_some(blocks.block_bytes);
        let (names, none) = (tenants.names(), Counts::default());
        let counts = summary.tenants.iter().chain(std::iter::repeat(&none));
        let tenants = names.iter().zip(counts).enumerate().map(|(number, (name, all))| TenantInfo {
            name: name.clone(),
            all: *all,
            footprint_blocks: summary.footprint_of(number),
        });
        Info {
            trace: name.to_owned(),
            format,
            unit: if blocks.unit == Unit::Keys { "keys" } else { "bytes" },
            block_bytes,
            all: summary.all,
            footprint_blocks,
            footprint_bytes: block_bytes.map(|b| footprint_blocks.saturating_mul(u64::from(b))),
            footprint_exact,
            first_ns: summary.time_ns.map(|t| t.0),
            last_ns: summary.time_ns.map(|t| t.1),
            records_left_out: 0,
            times_back: 0,
            tenants: tenants.collect(),
        }
    }
}
