//! Little-endian block numbers and nothing else: u32 (the CloudPhysics traces as Caffeine's simulator has them) and
//! u64.

use super::Sink;
use super::drive::Fixed;
use crate::Kind;
use crate::access::Request;

pub(super) struct U32Le;

impl Fixed for U32Le {
    const BYTES: usize = 4;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        to.key(of(u64::from(u32::from_le_bytes([r[0], r[1], r[2], r[3]]))))
    }
}

pub(super) struct U64Le;

impl Fixed for U64Le {
    const BYTES: usize = 8;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        to.key(of(u64::from_le_bytes([r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]])))
    }
}

#[inline]
fn of(address: u64) -> Request {
    Request { time_ns: 0, address, bytes: 0, keys: 1, tenant: 0, kind: Kind::Unknown }
}
