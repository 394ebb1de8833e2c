//! Memory accesses of a program, packed: a little-endian u64 each, with the address in its lowest 48 bits, the bytes
//! accessed in the next 8, and in the highest 8 what is done: 1 loads, 2 stores, 3 loads and stores, 4 fetches an
//! instruction.

use super::drive::Fixed;
use super::sink::Sink;
use super::spec::{Beginning, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::Unit;
use crate::damage::Damage;
use crate::memory::{MemoryRecords, Modifies};

pub(super) static SPEC: Spec = Spec {
    name: "memory",
    about: "packed memory accesses of a program: u64 of address, size and kind",
    record: "u64 numbers: 48 bits of address, 8 of size, 8 of kind (1 load, 2 store, 3 both, 4 instruction)",
    access: "each block (`--block-size 64` for cache lines)",
    endings: &["memory"],
    begin: |told| Ok(Beginning { own_disks: false, ..Beginning::records(Unit::Bytes, Memory(told.memory)) }),
    ..Spec::BASE
};

struct Memory(MemoryRecords);

impl Fixed for Memory {
    const BYTES: usize = 8;

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let record = u64::from_le_bytes([r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]]);
        let (address, bytes) = (record & ((1 << 48) - 1), record >> 48 & 0xff);
        let kind = match record >> 56 {
            1 => Kind::Load,
            2 => Kind::Store,
            3 => Kind::Modify,
            4 => Kind::Fetch,
            kind => {
                let known = "kind of memory access: 1 loads, 2 stores, 3 does both, 4 fetches an instruction";
                return Err(Damage::Unknown { found: kind.to_string(), kind: known });
            }
        };
        access(self.0, kind, address, bytes, to)
    }
}

/// What an instruction does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fetch,
    Load,
    Store,
    Modify,
}

/// A record. What is above the lowest 48 bits of an address is not kept, nor more than 255 bytes.
pub(super) fn packed(kind: Kind, address: u64, bytes: u64) -> u64 {
    let kind = match kind {
        Kind::Load => 1,
        Kind::Store => 2,
        Kind::Modify => 3,
        Kind::Fetch => 4,
    };
    address & ((1 << 48) - 1) | bytes.min(255) << 48 | kind << 56
}

/// Adds what is to be read of a record.
#[inline]
pub(super) fn access(
    records: MemoryRecords,
    kind: Kind,
    address: u64,
    bytes: u64,
    to: &mut Sink<'_>,
) -> Result<(), Damage> {
    let of = |kind| TraceRequest { time_ns: 0, address, bytes, keys: 1, tenant: 0, kind };
    let MemoryRecords { fetches, stores, modifies } = records;
    match kind {
        Kind::Fetch if fetches => to.bytes(of(AccessKind::Fetch)),
        Kind::Store if stores => to.bytes(of(AccessKind::Write)),
        Kind::Fetch | Kind::Store => Ok(()),
        Kind::Modify if stores && modifies == Modifies::Two => {
            to.bytes(of(AccessKind::Read)).and_then(|()| to.bytes(of(AccessKind::Write)))
        }
        Kind::Modify if stores => to.bytes(of(AccessKind::Write)),
        Kind::Load | Kind::Modify => to.bytes(of(AccessKind::Read)),
    }
}
