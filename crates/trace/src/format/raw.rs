//! Little-endian block numbers and nothing else: u32 (the CloudPhysics traces as Caffeine's simulator has them) and
//! u64.

use super::drive::Fixed;
use super::sink::Sink;
use super::spec::{Beginning, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::Unit;
use crate::damage::Damage;

pub(super) static U32LE: Spec = Spec {
    name: "u32le",
    about: "little-endian u32 numbers and nothing else",
    record: "u32 numbers and nothing else",
    access: "the number",
    endings: &["u32le", "u32"],
    begin: |_| Ok(Beginning::records(Unit::Keys, U32Le)),
    ..Spec::BASE
};

pub(super) static U64LE: Spec = Spec {
    name: "u64le",
    about: "little-endian u64 numbers and nothing else",
    record: "u64 numbers and nothing else",
    access: "the number",
    endings: &["u64le", "u64"],
    begin: |_| Ok(Beginning::records(Unit::Keys, U64Le)),
    ..Spec::BASE
};

struct U32Le;

impl Fixed for U32Le {
    const BYTES: usize = 4;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        to.key(of(u64::from(u32::from_le_bytes([r[0], r[1], r[2], r[3]]))))
    }
}

struct U64Le;

impl Fixed for U64Le {
    const BYTES: usize = 8;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        to.key(of(u64::from_le_bytes([r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]])))
    }
}

#[inline]
fn of(address: u64) -> TraceRequest {
    TraceRequest { time_ns: 0, address, bytes: 0, keys: 1, tenant: 0, kind: AccessKind::Unknown }
}
