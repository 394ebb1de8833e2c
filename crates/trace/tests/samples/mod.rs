//! A small sound file of each format, as its documentation lays it out, and the requests that it holds.
//!
//! Owns what a sample is; `text` and `binary` have one function for each format. Where a tool was at hand (fio 3.33,
//! QEMU
//! 7.2, Valgrind 3.19), the lines are its own. A new format needs a function in one of the two, and a line in its
//! `all`.
#![allow(dead_code, unused_imports)]

mod binary;
mod text;

pub use binary::{blktrace, lcs, lcs_header, oracle_general, vscsi_1, vscsi_2};
pub use text::*;
use undercroft_trace::{AccessKind, Format, TraceRequest};

pub const R: AccessKind = AccessKind::Read;
pub const W: AccessKind = AccessKind::Write;
pub const F: AccessKind = AccessKind::Fetch;
pub const U: AccessKind = AccessKind::Unknown;

pub fn bytes(time_ns: u64, tenant: u16, kind: AccessKind, address: u64, bytes: u64) -> TraceRequest {
    TraceRequest { time_ns, address, bytes, keys: 1, tenant, kind }
}

pub fn key(time_ns: u64, tenant: u16, kind: AccessKind, address: u64, size: u64) -> TraceRequest {
    bytes(time_ns, tenant, kind, address, size)
}

/// A small file, and what is to be found in it.
pub struct Sample {
    pub format: Format,
    pub file: Vec<u8>,
    pub requests: Vec<TraceRequest>,
    /// The names of its tenants.
    pub tenants: Vec<&'static str>,
    /// Where records end, of a file whose records cannot be told from others when they are cut; `None` of text, where a
    /// number that is cut is another number.
    pub ends: Option<Vec<usize>>,
    /// Whether its beginning tells the format.
    pub recognised: bool,
    /// Bytes of its beginning among which one is like the other: they need not all be tried.
    pub dull: usize,
}

impl Sample {
    fn text(format: Format, file: &[u8], requests: Vec<TraceRequest>, tenants: Vec<&'static str>) -> Self {
        Sample { format, file: file.to_vec(), requests, tenants, ends: None, recognised: true, dull: 0 }
    }

    /// Of a header, if there is one, and records.
    fn binary(format: Format, parts: &[Vec<u8>], requests: Vec<TraceRequest>, tenants: Vec<&'static str>) -> Self {
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        });
        let ends = Some([0].into_iter().chain(ends).collect());
        Sample { ends, ..Self::text(format, &parts.concat(), requests, tenants) }
    }
}

/// A file of each format that is read as a stream, and what it holds.
pub fn all() -> Vec<Sample> {
    binary::all().into_iter().chain(text::all()).collect()
}
