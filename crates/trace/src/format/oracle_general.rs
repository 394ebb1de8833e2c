//! libCacheSim's oracleGeneral: 24-byte little-endian records of u32 seconds, u64 key, u32 size, i64 next access.
//!
//! The next access (an index into the trace, or a negative number) is what an oracle would know; it is not read.

use super::drive::Fixed;
use super::{NS_PER_S, Sink, u32_at, u64_at};
use crate::Kind;
use crate::access::Request;

/// The size of the object in a record.
#[inline]
pub(super) fn size(record: &[u8]) -> u64 {
    u64::from(u32_at(record, 12))
}

pub(super) struct OracleGeneral;

impl Fixed for OracleGeneral {
    const BYTES: usize = 24;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        to.key(Request {
            time_ns: u64::from(u32_at(r, 0)) * NS_PER_S,
            address: u64_at(r, 4),
            bytes: size(r),
            keys: 1,
            tenant: 0,
            kind: Kind::Unknown,
        })
    }
}
