//! What Linux's block layer says of itself: blktrace's binary records, and the text that blkparse makes of them.
//!
//! Binary (`blkparse -d`, or one processor's file): u32 magic 0x65617407, u32 sequence, u64 nanoseconds, u64 sector,
//! u32 bytes, u32 action (low 16 bits) with category (high 16 bits), u32 process, u32 device (major << 20 | minor), u32
//! processor, u16 error, u16 bytes of data that follow; 48 bytes in the byte order of the machine
//! (linux/blktrace_api.h). Text: `8,0 3 11 0.009507758 697 Q W 223490 + 56 [kjournald]`, sectors; a summary may follow.
//!
//! A request shows up several times; one event of it counts, by default its coming (Q). A tenant is a device.

use super::drive::{Line, Varying};
use super::fields::{NS_PER_S, decimal, fixed_point, number, shown, u16_at, u32_at, u64_at, words};
use super::sink::Sink;
use super::sniff::second;
use super::spec::{Beginning, Looks, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::{DISK_TENANTS_MAX, SECTOR_BYTES, Unit};
use crate::damage::Damage;
use crate::event::Event;

pub(super) static BLKPARSE: Spec = Spec {
    name: "blkparse",
    about: "the text that blkparse prints",
    record: "blkparse's text, one event of a request (`--event`)",
    tenant: "device",
    endings: &["blkparse"],
    looks: Looks::Text(|lines| {
        let mut words = words(second(lines));
        words.next().is_some_and(is_device) && words.nth(2).and_then(|time| fixed_point(time, 1)).is_some()
    }),
    begin: |told| Ok(Beginning::lines(Unit::Bytes, Blkparse { event: told.event, summary: false })),
    ..Spec::BASE
};

pub(super) static BLKTRACE: Spec = Spec {
    name: "blktrace",
    about: "blktrace's binary records",
    record: "blktrace's binary records, `--event` as above",
    tenant: "device",
    endings: &["blktrace"],
    magic: Some(&MAGIC_BYTES),
    begin: |told| Ok(Beginning::varying(Unit::Bytes, Blktrace { event: told.event })),
    ..Spec::BASE
};

/// Of version 7, the only one since 2006.
const MAGIC: u32 = 0x6561_7407;
const MAGIC_BYTES: [u8; 4] = MAGIC.to_le_bytes();
const HEAD_BYTES: usize = 48;
const CATEGORY_READ: u32 = 1 << 16;
const CATEGORY_WRITE: u32 = 1 << 17;
const CATEGORY_NOTIFY: u32 = 1 << 26;
const CATEGORY_DISCARD: u32 = 1 << 29;

struct Blktrace {
    event: Event,
}

impl Varying for Blktrace {
    fn head(&self) -> usize {
        HEAD_BYTES
    }

    fn length(&mut self, head: &[u8]) -> Result<usize, Damage> {
        match u32_at(head, 0) {
            MAGIC => Ok(HEAD_BYTES + usize::from(u16_at(head, 46))),
            m if m.swap_bytes() == MAGIC => Err(Damage::Malformed(
                "it was made on a machine of the other byte order; convert it there with blkparse",
            )),
            m => Err(Damage::Beginning { found: format!("{m:#x}"), expected: "blktrace's 0x65617407" }),
        }
    }

    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let action = u32_at(r, 28);
        let bytes = u32_at(r, 24);
        let kind = match action & (CATEGORY_READ | CATEGORY_WRITE) {
            CATEGORY_READ => AccessKind::Read,
            CATEGORY_WRITE => AccessKind::Write,
            _ => return Ok(()),
        };
        // the low byte alone: bit 8 says that a control group's number follows
        if action & 0xff != self.event.number() || action & (CATEGORY_NOTIFY | CATEGORY_DISCARD) != 0 || bytes == 0 {
            return Ok(());
        }
        let device = u32_at(r, 36);
        let name = format!("{},{}", device >> 20, device & 0xf_ffff);
        let tenant = to.tenant(name.as_bytes(), DISK_TENANTS_MAX)?;
        let address = bytes_of(u64_at(r, 16))?;
        to.bytes(TraceRequest { time_ns: u64_at(r, 8), address, bytes: u64::from(bytes), keys: 1, tenant, kind })
    }

    fn after_bad(&self, rest: &[u8]) -> usize {
        memchr::memmem::find(&rest[1..], &MAGIC_BYTES).map_or(rest.len(), |n| n + 1)
    }
}

fn bytes_of(sectors: u64) -> Result<u64, Damage> {
    let bytes = sectors.checked_mul(u64::from(SECTOR_BYTES));
    bytes.ok_or(Damage::SectorPastEnd(sectors))
}

struct Blkparse {
    event: Event,
    /// The summary at the end has begun.
    summary: bool,
}

/// Whether it reads like `8,0`.
fn is_device(word: &[u8]) -> bool {
    let mut parts = word.splitn(2, |&c| c == b',');
    parts.next().and_then(decimal).is_some() && parts.next().and_then(decimal).is_some()
}

impl Line for Blkparse {
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let mut all = words(line);
        let Some(device) = all.next() else { return Ok(()) };
        if self.summary || device.starts_with(b"CPU") || device.starts_with(b"Total") {
            self.summary = true;
            return Ok(());
        }
        if !is_device(device) {
            return Err(Damage::Beginning { found: format!("\"{}\"", shown(device)), expected: "a device like 8,0" });
        }
        let (_cpu, _sequence) = (all.next(), all.next());
        let time_ns = number(all.next().unwrap_or_default(), "time", |f| fixed_point(f, NS_PER_S))?;
        let _process = all.next();
        let (action, what) = (all.next().ok_or(Damage::Malformed("it has no action"))?, all.next().unwrap_or_default());
        if action != [self.event.letter()] {
            return Ok(());
        }
        let kind = match what {
            w if w.contains(&b'D') => return Ok(()),
            w if w.contains(&b'R') => AccessKind::Read,
            w if w.contains(&b'W') => AccessKind::Write,
            _ => return Ok(()),
        };
        let (sector, plus) = (all.next().unwrap_or_default(), all.next());
        if plus != Some(b"+") {
            // a flush has neither sector nor length
            return Ok(());
        }
        let sectors = number(all.next().unwrap_or_default(), "length", decimal)?;
        let address = bytes_of(number(sector, "sector", decimal)?)?;
        let tenant = to.tenant(device, DISK_TENANTS_MAX)?;
        to.bytes(TraceRequest { time_ns, address, bytes: bytes_of(sectors)?, keys: 1, tenant, kind })
    }
}
