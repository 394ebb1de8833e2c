//! libCacheSim's oracleGeneral: 24-byte little-endian records of u32 seconds, u64 key, u32 size, i64 next access.
//!
//! The next access (an index into the trace, or a negative number) is what an oracle would know; it is not read.

use super::drive::Fixed;
use super::fields::{NS_PER_S, u32_at, u64_at};
use super::sink::Sink;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::Unit;
use crate::damage::Damage;

pub(super) static SPEC: Spec = Spec {
    name: "oracle-general",
    about: "libCacheSim's oracleGeneral",
    record: "u32 seconds, u64 key, u32 size, i64 next access",
    access: "the key",
    endings: &["oraclegeneral", "oracle-general"],
    bin: Some("oraclegeneral"),
    looks: Looks::Binary(looks_like),
    begin: |told| {
        // of each record: one that is not 0, which says nothing, nor 1, which counts
        let sizes = told.head.chunks_exact(BYTES).any(|r| size(r) > 1);
        Ok(Beginning { sizes, ..Beginning::records(Unit::Keys, OracleGeneral) })
    },
    ..Spec::BASE
};

/// Bytes of a record.
const BYTES: usize = 24;
/// Records that must make sense together, as there is no magic number.
const RECORDS: usize = 8;

/// Times that do not go back, and next accesses that come later.
fn looks_like(first: &[u8]) -> bool {
    let records: Vec<&[u8]> = first.chunks_exact(BYTES).take(RECORDS).collect();
    let mut time = 0;
    records.len() >= 2
        && records.iter().enumerate().all(|(n, r)| {
            let (next, size, before) = (u64_at(r, 16) as i64, u32_at(r, 12), time);
            time = u32_at(r, 0);
            let later = next == -1 || next == i64::MAX || (next > n as i64 && next < 1 << 40);
            later && time >= before && size < 1 << 31
        })
}

/// The size of the object in a record.
#[inline]
fn size(record: &[u8]) -> u64 {
    u64::from(u32_at(record, 12))
}

struct OracleGeneral;

impl Fixed for OracleGeneral {
    const BYTES: usize = BYTES;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        to.key(TraceRequest {
            time_ns: u64::from(u32_at(r, 0)) * NS_PER_S,
            address: u64_at(r, 4),
            bytes: size(r),
            keys: 1,
            tenant: 0,
            kind: AccessKind::Unknown,
        })
    }
}
