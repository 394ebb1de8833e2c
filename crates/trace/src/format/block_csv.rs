//! The block traces that are published as CSV, each with its own columns: MSR Cambridge, Alibaba, Tencent, SPC.
//!
//! Owns which column is what. Sources: MSR Cambridge, README of the traces at SNIA (Narayanan et al., FAST 2008);
//! Alibaba, README of block-traces (Li et al., IISWC 2020); Tencent, README of the CBS traces (Zhang et al., ATC 2020);
//! SPC, "SPC trace file format specification" 1.0.1 (UMass trace repository).

use super::drive::Line;
use super::fields::{decimal, fields, fixed_point, number, shown};
use super::{NS_PER_S, NS_PER_US, Sink};
use crate::Kind;
use crate::access::Request;
use crate::blocks::{DISK_TENANTS_MAX, SECTOR_BYTES};

/// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: 100 ns since 1601, bytes. A tenant is `host_disk`.
#[derive(Default)]
pub(super) struct Msr {
    tenant: Vec<u8>,
}

/// `device_id,opcode,offset,length,timestamp`: R or W, bytes, microseconds. A tenant is a device.
pub(super) struct Alibaba;

/// `Timestamp,Offset,Size,IOType,VolumeID`: seconds, sectors, 0 reads and 1 writes. A tenant is a volume.
pub(super) struct Tencent;

/// `ASU,LBA,Size,Opcode,Timestamp`: sectors, bytes, R or W, seconds. A tenant is an application's storage unit.
pub(super) struct Spc;

/// Fields of a line; `None` for an empty one, or one of names before the first record.
fn split<'l, const N: usize>(line: &'l [u8], names: &str) -> Result<Option<[&'l [u8]; N]>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    match fields::<N>(line, b',') {
        Some(f) if f[0].eq_ignore_ascii_case(names.split(',').next().unwrap_or_default().as_bytes()) => Ok(None),
        Some(f) => Ok(Some(f)),
        None => Err(format!("\"{}\" has less than {N} columns; expected are {names}", shown(line))),
    }
}

/// What a letter or a word says.
fn kind(field: &[u8]) -> Result<Kind, String> {
    match field.first() {
        Some(b'r' | b'R') => Ok(Kind::Read),
        Some(b'w' | b'W') => Ok(Kind::Write),
        _ => Err(format!("the operation is \"{}\", neither a read nor a write", shown(field))),
    }
}

fn sectors(field: &[u8], what: &str) -> Result<u64, String> {
    let n = number(field, what, decimal)?;
    n.checked_mul(u64::from(SECTOR_BYTES))
        .ok_or_else(|| format!("the {what} of {n} sectors is past the end of any disk"))
}

impl Line for Msr {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        let names = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
        let Some([time, host, disk, op, offset, size]) = split(line, names)? else { return Ok(()) };
        let (time, kind) = (number(time, "timestamp", decimal)?, kind(op)?);
        let (address, bytes) = (number(offset, "offset", decimal)?, number(size, "size", decimal)?);
        self.tenant.clear();
        self.tenant.extend_from_slice(host);
        self.tenant.push(b'_');
        self.tenant.extend_from_slice(disk);
        let tenant = to.tenant(&self.tenant, DISK_TENANTS_MAX)?;
        to.bytes(Request { time_ns: time.saturating_mul(100), address, bytes, keys: 1, tenant, kind })
    }
}

impl Line for Alibaba {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        let Some([device, op, offset, size, time]) = split(line, "device_id,opcode,offset,length,timestamp")? else {
            return Ok(());
        };
        number(device, "device", decimal)?;
        let (time, kind) = (number(time, "timestamp", decimal)?, kind(op)?);
        let (address, bytes) = (number(offset, "offset", decimal)?, number(size, "length", decimal)?);
        let tenant = to.tenant(device, DISK_TENANTS_MAX)?;
        to.bytes(Request { time_ns: time.saturating_mul(NS_PER_US), address, bytes, keys: 1, tenant, kind })
    }
}

impl Line for Tencent {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        let Some([time, offset, size, op, volume]) = split(line, "Timestamp,Offset,Size,IOType,VolumeID")? else {
            return Ok(());
        };
        let time_ns = number(time, "timestamp", |f| fixed_point(f, NS_PER_S))?;
        let (address, bytes) = (sectors(offset, "offset")?, sectors(size, "size")?);
        let kind = match op {
            b"0" => Kind::Read,
            b"1" => Kind::Write,
            _ => return Err(format!("the operation is \"{}\", neither 0 (read) nor 1 (write)", shown(op))),
        };
        number(volume, "volume", decimal)?;
        let tenant = to.tenant(volume, DISK_TENANTS_MAX)?;
        to.bytes(Request { time_ns, address, bytes, keys: 1, tenant, kind })
    }
}

impl Line for Spc {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), String> {
        let Some([asu, lba, size, op, time]) = split(line, "ASU,LBA,Size,Opcode,Timestamp")? else { return Ok(()) };
        number(asu, "ASU", decimal)?;
        let (address, bytes) = (sectors(lba, "LBA")?, number(size, "size", decimal)?);
        let kind = kind(op)?;
        let time_ns = number(time, "timestamp", |f| fixed_point(f, NS_PER_S))?;
        let tenant = to.tenant(asu, DISK_TENANTS_MAX)?;
        to.bytes(Request { time_ns, address, bytes, keys: 1, tenant, kind })
    }
}
