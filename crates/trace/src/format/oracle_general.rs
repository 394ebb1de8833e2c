//! libCacheSim's oracleGeneral: 24-byte little-endian records of u32 seconds, u64 key, u32 size, i64 next access.
//!
//! The next access (an index into the trace, or a negative number) is what an oracle would know; it is not read.

use super::{Decode, Run};
use crate::error::Error;
use crate::input::Input;
use crate::{Access, Kind};

const NS_PER_S: u64 = 1_000_000_000;

pub(super) struct OracleGeneral;

impl Decode for OracleGeneral {
    fn next(&mut self, input: &mut Input<'_>) -> Result<Option<Run>, Error> {
        let Some(record) = input.bytes::<24>()? else { return Ok(None) };
        let (seconds, rest) = record.split_first_chunk::<4>().expect("24 bytes");
        let (key, rest) = rest.split_first_chunk::<8>().expect("20 bytes");
        let (size, _) = rest.split_first_chunk::<4>().expect("12 bytes");
        let first = Access {
            time_ns: u64::from(u32::from_le_bytes(*seconds)) * NS_PER_S,
            block: u64::from_le_bytes(*key),
            bytes: u32::from_le_bytes(*size),
            kind: Kind::Unknown,
        };
        Ok(Some(Run { first, blocks: 1 }))
    }
}
