//! What QEMU traces of its disks (`-trace 'blk_co_p*'`): the log's text, and that of scripts/simpletrace.py.
//!
//! Log: `15648@1795358294.591847:blk_co_preadv blk 0x55 bs 0x56 offset 0 bytes 8192 flags 0x0`, its time only with
//! `-msg timestamp=on`. simpletrace.py:
//! `blk_co_preadv 12.500 pid=1 blk=0x55 bs=0x56 offset=0x0 bytes=0x2000 flags=0x0`, the time being microseconds since
//! the line before. Other events are passed over.
//!
//! Several layers tell of the same request: the first of them that shows up (`blk_co_*`, `bdrv_co_*` or
//! `virtio_blk_handle_*`) counts, the others do not. A tenant is the device or node, by its address.

use super::drive::Line;
use super::fields::{NS_PER_S, NS_PER_US, any_base, decimal, fixed_point, number, shown, words};
use super::sink::Sink;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{DISK_TENANTS_MAX, SECTOR_BYTES, Unit};
use crate::damage::Damage;

pub(super) static SPEC: Spec = Spec {
    name: "qemu",
    about: "QEMU's log of blk_co_preadv and its like",
    record: "the log of `-trace 'blk_co_p*'`, or simpletrace.py's output",
    tenant: "device",
    endings: &["qemu"],
    looks: Looks::Text(|lines| lines.iter().any(|line| is_event(line))),
    begin: |_| Ok(Beginning::lines(Unit::Bytes, Qemu::default())),
    ..Spec::BASE
};

/// Event, layer, kind, and the argument that tells devices apart.
const EVENTS: [(&str, u8, AccessKind, &str); 7] = [
    ("blk_co_preadv", 1, AccessKind::Read, "blk"),
    ("blk_co_pwritev", 1, AccessKind::Write, "blk"),
    ("bdrv_co_preadv_part", 2, AccessKind::Read, "bs"),
    ("bdrv_co_pwritev_part", 2, AccessKind::Write, "bs"),
    ("bdrv_co_pwrite_zeroes", 2, AccessKind::Write, "bs"),
    ("virtio_blk_handle_read", 3, AccessKind::Read, "vdev"),
    ("virtio_blk_handle_write", 3, AccessKind::Write, "vdev"),
];

#[derive(Default)]
struct Qemu {
    /// The layer whose events count; 0 before the first.
    layer: u8,
    /// What simpletrace.py's differences have come to.
    elapsed_ns: u64,
    /// Something like an event has been seen.
    known: bool,
}

/// The event that a line tells of, its time if it has one, and the rest.
fn event(line: &[u8]) -> Option<(&[u8], Option<u64>, &[u8])> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    let (time, name) = match word.iter().position(|&c| c == b':') {
        Some(colon) => {
            let at = word[..colon].iter().position(|&c| c == b'@')?;
            decimal(&word[..at])?;
            (Some(fixed_point(&word[at + 1..colon], NS_PER_S)?), &word[colon + 1..])
        }
        None => (None, word),
    };
    let is_name = name.first().is_some_and(u8::is_ascii_lowercase)
        && name.contains(&b'_')
        && name.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'_');
    is_name.then_some((name, time, rest))
}

/// Whether a line tells of a disk.
fn is_event(line: &[u8]) -> bool {
    event(line).is_some_and(|(name, ..)| EVENTS.iter().any(|e| e.0.as_bytes() == name))
}

impl Line for Qemu {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let Some((name, logged, rest)) = event(line) else {
            // QEMU's log holds other messages, too; only a file without any event is none
            let unknown = || Damage::Unknown { found: shown(line), kind: "event of QEMU" };
            return if self.known { Ok(()) } else { Err(unknown()) };
        };
        self.known = true;
        let mut all = words(rest).peekable();
        if logged.is_none()
            && let Some(difference) = all.peek().filter(|w| w.contains(&b'.')).and_then(|w| fixed_point(w, NS_PER_US))
        {
            self.elapsed_ns = self.elapsed_ns.saturating_add(difference);
            all.next();
        }
        let Some(&(_, layer, kind, device)) = EVENTS.iter().find(|e| e.0.as_bytes() == name) else { return Ok(()) };
        if self.layer == 0 {
            self.layer = layer;
        }
        if self.layer != layer {
            return Ok(());
        }
        let (mut who, mut first, mut length) = (&b""[..], None, None);
        while let Some(word) = all.next() {
            let (key, value) = match word.iter().position(|&c| c == b'=') {
                Some(at) => (&word[..at], &word[at + 1..]),
                None => (word, all.next().unwrap_or_default()),
            };
            match key {
                b"offset" => first = Some(number(value, "offset", any_base)?),
                b"bytes" => length = Some(number(value, "length", any_base)?),
                b"sector" => first = number(value, "sector", any_base)?.checked_mul(u64::from(SECTOR_BYTES)),
                b"nsectors" => length = number(value, "length", any_base)?.checked_mul(u64::from(SECTOR_BYTES)),
                k if k == device.as_bytes() => who = value,
                _ => {}
            }
        }
        let (Some(address), Some(bytes)) = (first, length) else {
            return Err(Damage::Malformed("it names no range of bytes or sectors that a disk can have"));
        };
        let tenant = to.tenant(who, DISK_TENANTS_MAX)?;
        let time_ns = logged.unwrap_or(self.elapsed_ns);
        to.bytes(TraceRequest { time_ns, address, bytes, keys: 1, tenant, kind })
    }
}
