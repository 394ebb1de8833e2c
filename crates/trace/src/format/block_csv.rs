//! The block traces that are published as CSV, each with its own columns: MSR Cambridge, Alibaba, Tencent, SPC.
//!
//! Owns which column is what. Sources: MSR Cambridge, README of the traces at SNIA (Narayanan et al., FAST 2008);
//! Alibaba, README of block-traces (Li et al., IISWC 2020); Tencent, README of the CBS traces (Zhang et al., ATC 2020);
//! SPC, "SPC trace file format specification" 1.0.1 (UMass trace repository).

use super::drive::Line;
use super::fields::{NS_PER_S, NS_PER_US, decimal, fields, fixed_point, number, shown};
use super::sink::Sink;
use super::sniff::second;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{DISK_TENANTS_MAX, SECTOR_BYTES, Unit};
use crate::damage::Damage;

pub(super) static MSR: Spec = Spec {
    name: "msr",
    about: "MSR Cambridge's CSV",
    record: "`Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`",
    tenant: "`host_disk`",
    endings: &["msr"],
    looks: Looks::Text(|lines| {
        fields::<7>(second(lines), b',').is_some_and(|[time, _, disk, op, offset, size, _]| {
            is_word(op, &["read", "write"]) && all_numbers([time, disk, offset, size])
        })
    }),
    begin: |_| Ok(Beginning::lines(Unit::Bytes, Msr::default())),
    ..Spec::BASE
};

pub(super) static ALIBABA: Spec = Spec {
    name: "alibaba",
    about: "Alibaba's CSV of block traces",
    record: "`device_id,opcode,offset,length,timestamp`",
    tenant: "device",
    endings: &["alibaba"],
    looks: Looks::Text(|lines| {
        let line = fields::<5>(second(lines), b',');
        line.is_some_and(|[device, op, rest @ ..]| is_word(op, &["r", "w"]) && is_number(device) && all_numbers(rest))
    }),
    begin: |_| Ok(Beginning::lines(Unit::Bytes, Alibaba)),
    ..Spec::BASE
};

pub(super) static TENCENT: Spec = Spec {
    name: "tencent",
    about: "Tencent's CSV of block traces",
    record: "`Timestamp,Offset,Size,IOType,VolumeID`",
    tenant: "volume",
    endings: &["tencent"],
    looks: Looks::Text(|lines| {
        let line = second(lines);
        let five = line.split(|&c| c == b',').count() == 5;
        let found = fields::<5>(line, b',').filter(|_| five);
        found.is_some_and(|[time, offset, size, op, volume]| {
            all_numbers([time, offset, size, volume]) && (op == b"0" || op == b"1")
        })
    }),
    begin: |_| Ok(Beginning::lines(Unit::Bytes, Tencent)),
    ..Spec::BASE
};

pub(super) static SPC: Spec = Spec {
    name: "spc",
    about: "SPC's CSV (UMass: Financial, WebSearch)",
    record: "`ASU,LBA,Size,Opcode,Timestamp`",
    tenant: "ASU",
    endings: &["spc"],
    looks: Looks::Text(|lines| {
        fields::<5>(second(lines), b',').is_some_and(|[asu, lba, size, op, time]| {
            is_word(op, &["r", "w"]) && all_numbers([asu, lba, size]) && fixed_point(time, 1).is_some()
        })
    }),
    begin: |_| Ok(Beginning::lines(Unit::Bytes, Spc)),
    ..Spec::BASE
};

fn is_word(field: &[u8], words: &[&str]) -> bool {
    words.iter().any(|w| field.eq_ignore_ascii_case(w.as_bytes()))
}

fn is_number(field: &[u8]) -> bool {
    decimal(field).is_some()
}

fn all_numbers<const N: usize>(fields: [&[u8]; N]) -> bool {
    fields.into_iter().all(is_number)
}

/// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: 100 ns since 1601, bytes. A tenant is `host_disk`.
#[derive(Default)]
struct Msr {
    tenant: Vec<u8>,
}

/// `device_id,opcode,offset,length,timestamp`: R or W, bytes, microseconds. A tenant is a device.
struct Alibaba;

/// `Timestamp,Offset,Size,IOType,VolumeID`: seconds, sectors, 0 reads and 1 writes. A tenant is a volume.
struct Tencent;

/// `ASU,LBA,Size,Opcode,Timestamp`: sectors, bytes, R or W, seconds. A tenant is an application's storage unit.
struct Spc;

/// Fields of a line; `None` for an empty one, or one of names before the first record.
fn split<'l, const N: usize>(line: &'l [u8], names: &'static str) -> Result<Option<[&'l [u8]; N]>, Damage> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    match fields::<N>(line, b',') {
        Some(f) if f[0].eq_ignore_ascii_case(names.split(',').next().unwrap_or_default().as_bytes()) => Ok(None),
        Some(f) => Ok(Some(f)),
        None => Err(Damage::FewColumns { found: shown(line), columns: N, names }),
    }
}

/// What a letter or a word says.
fn kind(field: &[u8]) -> Result<AccessKind, Damage> {
    match field.first() {
        Some(b'r' | b'R') => Ok(AccessKind::Read),
        Some(b'w' | b'W') => Ok(AccessKind::Write),
        _ => Err(Damage::Operation { found: shown(field), known: "a read nor a write" }),
    }
}

fn sectors(field: &[u8], what: &'static str) -> Result<u64, Damage> {
    let n = number(field, what, decimal)?;
    n.checked_mul(u64::from(SECTOR_BYTES)).ok_or(Damage::SectorsPastEnd { field: what, sectors: n })
}

impl Line for Msr {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let names = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
        let Some([time, host, disk, op, offset, size]) = split(line, names)? else { return Ok(()) };
        let (time, kind) = (number(time, "timestamp", decimal)?, kind(op)?);
        let (address, bytes) = (number(offset, "offset", decimal)?, number(size, "size", decimal)?);
        self.tenant.clear();
        self.tenant.extend_from_slice(host);
        self.tenant.push(b'_');
        self.tenant.extend_from_slice(disk);
        let tenant = to.tenant(&self.tenant, DISK_TENANTS_MAX)?;
        to.bytes(TraceRequest { time_ns: time.saturating_mul(100), address, bytes, keys: 1, tenant, kind })
    }
}

impl Line for Alibaba {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let Some([device, op, offset, size, time]) = split(line, "device_id,opcode,offset,length,timestamp")? else {
            return Ok(());
        };
        number(device, "device", decimal)?;
        let (time, kind) = (number(time, "timestamp", decimal)?, kind(op)?);
        let (address, bytes) = (number(offset, "offset", decimal)?, number(size, "length", decimal)?);
        let tenant = to.tenant(device, DISK_TENANTS_MAX)?;
        to.bytes(TraceRequest { time_ns: time.saturating_mul(NS_PER_US), address, bytes, keys: 1, tenant, kind })
    }
}

impl Line for Tencent {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let Some([time, offset, size, op, volume]) = split(line, "Timestamp,Offset,Size,IOType,VolumeID")? else {
            return Ok(());
        };
        let time_ns = number(time, "timestamp", |f| fixed_point(f, NS_PER_S))?;
        let (address, bytes) = (sectors(offset, "offset")?, sectors(size, "size")?);
        let kind = match op {
            b"0" => AccessKind::Read,
            b"1" => AccessKind::Write,
            _ => return Err(Damage::Operation { found: shown(op), known: "0 (read) nor 1 (write)" }),
        };
        number(volume, "volume", decimal)?;
        let tenant = to.tenant(volume, DISK_TENANTS_MAX)?;
        to.bytes(TraceRequest { time_ns, address, bytes, keys: 1, tenant, kind })
    }
}

impl Line for Spc {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let Some([asu, lba, size, op, time]) = split(line, "ASU,LBA,Size,Opcode,Timestamp")? else { return Ok(()) };
        number(asu, "ASU", decimal)?;
        let (address, bytes) = (sectors(lba, "LBA")?, number(size, "size", decimal)?);
        let kind = kind(op)?;
        let time_ns = number(time, "timestamp", |f| fixed_point(f, NS_PER_S))?;
        let tenant = to.tenant(asu, DISK_TENANTS_MAX)?;
        to.bytes(TraceRequest { time_ns, address, bytes, keys: 1, tenant, kind })
    }
}
