//! Requests as text.
//!
//! Owns the lines. Invariant: what is written here, the readers of `.lis` and CSV read back to the same requests.

use crate::access::TraceRequest;
use crate::blocks::{Blocks, Unit};
use crate::tenants::Tenants;
use std::io::Write;

/// A line of the ARC paper's traces.
pub(super) fn arc_lis(first: u64, count: u64, sequence: u64, line: &mut Vec<u8>) {
    // a vector takes everything
    let _ = writeln!(line, "{first} {count} 0 {sequence}");
}

/// The first line of a CSV file.
pub(super) fn csv_names(blocks: &Blocks, line: &mut Vec<u8>) {
    let names = match blocks.unit {
        Unit::Bytes => "time_ns,tenant,op,offset_bytes,length_bytes\n",
        Unit::Keys => "time_ns,tenant,op,key,keys,size_bytes\n",
    };
    line.extend_from_slice(names.as_bytes());
}

/// A request as a line of CSV.
pub(super) fn csv(r: &TraceRequest, first: u64, blocks: &Blocks, tenants: &Tenants, line: &mut Vec<u8>) {
    let name = tenants.name(r.tenant);
    let _ = write!(line, "{},", r.time_ns);
    if name.contains([',', '"', '\n', '\r']) || name.trim() != name {
        let _ = write!(line, "\"{}\"", name.replace('"', "'").replace(['\n', '\r'], " "));
    } else {
        line.extend_from_slice(name.as_bytes());
    }
    let _ = match blocks.unit {
        Unit::Bytes => writeln!(line, ",{},{},{}", r.kind.name(), r.address, r.bytes),
        // the tenant may be part of the key
        Unit::Keys => writeln!(line, ",{},{first},{},{}", r.kind.name(), r.keys, r.bytes),
    };
}
