//! VMware vscsi traces (CloudPhysics), as libCacheSim's sample has them: little-endian binary records.
//!
//! Version 1 is 32 bytes: u32 serial number, u32 length in bytes, u32 scatter-gather elements, u16 command,
//! u16 version, u64 logical block number (512-byte sectors), u64 microseconds. Version 2 is 40 bytes: u16 command,
//! u16 version, u32 serial number, u32 length, u32 elements, u64 block number, u64 microseconds, u64 response time.
//! The high byte of the version tells them apart.
//!
//! Unless a size of blocks is asked for, a record counts as one access to its block number, whatever its length: the
//! reference counts have it so.

use super::drive::Varying;
use super::fields::{NS_PER_US, u16_at, u32_at, u64_at};
use super::sink::Sink;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{SECTOR_BYTES, Unit};
use crate::damage::Damage;

pub(super) static SPEC: Spec = Spec {
    name: "vscsi",
    about: "VMware vscsi records (CloudPhysics)",
    record: "VMware's binary records, version 1 (32 bytes) or 2 (40 bytes)",
    access: "a record's first sector; with `--block-size`, each block",
    endings: &["vscsi"],
    looks: Looks::Binary(looks_like),
    begin: |_| Ok(Beginning { whole: true, own_disks: false, ..Beginning::varying(Unit::Bytes, Vscsi::default()) }),
    ..Spec::BASE
};

#[derive(Default)]
struct Vscsi {
    version: Option<Version>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

/// The version of a record that begins so.
fn version(head: &[u8]) -> Option<Version> {
    // a version 2 record has its number of elements where version 1 has the version; it is never that large
    match (head[15], head[3]) {
        (1, _) => Some(Version::One),
        (_, 2) => Some(Version::Two),
        _ => None,
    }
}

/// Whether two records in a row begin so.
fn looks_like(head: &[u8]) -> bool {
    let first = head.get(..32).and_then(version);
    let bytes = if first == Some(Version::One) { 32 } else { 40 };
    let fits = |r: &[u8]| u32_at(r, if first == Some(Version::One) { 4 } else { 8 }) < 1 << 26;
    first.is_some() && fits(head) && head.get(bytes..bytes + 32).is_some_and(|r| version(r) == first && fits(r))
}

impl Varying for Vscsi {
    fn head(&self) -> usize {
        32
    }

    fn length(&mut self, head: &[u8]) -> Result<usize, Damage> {
        let found = version(head).ok_or(Damage::Malformed("it has neither version 1 nor 2 of the vscsi format"))?;
        if *self.version.get_or_insert(found) != found {
            return Err(Damage::Malformed("its version differs from that of the records before"));
        }
        Ok(if found == Version::One { 32 } else { 40 })
    }

    fn after_bad(&self, rest: &[u8]) -> usize {
        if self.version == Some(Version::Two) { 40.min(rest.len()) } else { 32 }
    }

    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let (command, bytes) = if r.len() == 32 { (u16_at(r, 12), u32_at(r, 4)) } else { (u16_at(r, 0), u32_at(r, 8)) };
        let sector = u64_at(r, 16);
        let address = sector.checked_mul(u64::from(SECTOR_BYTES));
        to.bytes(TraceRequest {
            time_ns: u64_at(r, 24).saturating_mul(NS_PER_US),
            address: address.ok_or(Damage::SectorPastEnd(sector))?,
            bytes: u64::from(bytes),
            keys: 1,
            tenant: 0,
            kind: kind(command),
        })
    }
}

/// Reads and writes among the SCSI commands.
fn kind(command: u16) -> AccessKind {
    match command {
        0x08 | 0x28 | 0x88 | 0xA8 => AccessKind::Read,
        0x0A | 0x2A | 0x8A | 0xAA | 0x2E | 0x8E | 0xAE => AccessKind::Write,
        _ => AccessKind::Unknown,
    }
}
