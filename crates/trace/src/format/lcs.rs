//! libCacheSim's own format (lcs), versions 1 to 8: a header of 8192 bytes, then little-endian records of one length.
//!
//! The header: u64 magic, u64 version, 8000 bytes of statistics (the second number is how many requests there are), and
//! the magic again in its last 8 bytes. Version 1 has oracleGeneral's records. Version 2 is u32 seconds, u64 key, u32
//! size, u8 operation, u24 tenant, i64 next access; version 3 has an i64 size and a u32 time to live before the next
//! access; versions 4 to 8 add 1, 2, 4, 8 or 16 features of 4 bytes, which are not read.

use super::drive::Varying;
use super::fields::{NS_PER_S, u32_at, u64_at};
use super::sink::Sink;
use super::spec::{Beginning, Spec};
use crate::access::{AccessKind, TraceRequest};
use crate::blocks::Unit;
use crate::damage::Damage;
use crate::tenants::TENANTS_MAX;

pub(super) static SPEC: Spec = Spec {
    name: "lcs",
    about: "libCacheSim's lcs, versions 1 to 8",
    record: "libCacheSim's, versions 1 to 8 (written: 3)",
    access: "the key",
    tenant: "its tenant",
    endings: &["lcs"],
    magic: Some(&MAGIC_BYTES),
    begin: |_| Ok(Beginning { sizes: true, ..Beginning::varying(Unit::Keys, Lcs::default()) }),
    ..Spec::BASE
};

pub(crate) const MAGIC: u64 = 0x1234_5678_9abc_def0;
const MAGIC_BYTES: [u8; 8] = MAGIC.to_le_bytes();
pub(crate) const HEADER_BYTES: usize = 8192;

#[derive(Default)]
struct Lcs {
    version: Option<u64>,
    /// Bytes of a record.
    bytes: usize,
}

impl Varying for Lcs {
    fn head(&self) -> usize {
        if self.version.is_none() { HEADER_BYTES } else { self.bytes }
    }

    #[inline]
    fn length(&mut self, head: &[u8]) -> Result<usize, Damage> {
        Ok(head.len())
    }

    #[inline]
    fn record(&mut self, r: &[u8], to: &mut Sink<'_>) -> Result<(), Damage> {
        let time_ns = u64::from(u32_at(r, 0)) * NS_PER_S;
        match self.version {
            None => self.header(r),
            Some(1) => {
                let (address, bytes) = (u64_at(r, 4), u64::from(u32_at(r, 12)));
                to.key(TraceRequest { time_ns, address, bytes, keys: 1, tenant: 0, kind: AccessKind::Unknown })
            }
            Some(version) => {
                let (bytes, at) = if version == 2 { (u64::from(u32_at(r, 12)), 16) } else { (u64_at(r, 12), 20) };
                if bytes > i64::MAX as u64 {
                    return Err(Damage::Size(bytes as i64));
                }
                let op_and_tenant = u32_at(r, at);
                let mut digits = [0; 8];
                let tenant = to.tenant(decimal_digits(op_and_tenant >> 8, &mut digits), TENANTS_MAX)?;
                let kind = kind(op_and_tenant as u8);
                to.key(TraceRequest { time_ns, address: u64_at(r, 4), bytes, keys: 1, tenant, kind })
            }
        }
    }
}

impl Lcs {
    fn header(&mut self, r: &[u8]) -> Result<(), Damage> {
        if u64_at(r, 0) != MAGIC || u64_at(r, HEADER_BYTES - 8) != MAGIC {
            return Err(Damage::Malformed("it does not begin with an lcs header"));
        }
        let version = u64_at(r, 8);
        self.bytes = match version {
            1 => 24,
            2 => 28,
            3 => 36,
            4..=8 => 36 + (4 << (version - 4)),
            found => return Err(Damage::Version { found, format: "lcs", known: "1 to 8" }),
        };
        self.version = Some(version);
        Ok(())
    }
}

/// The tenant's number as its name.
fn decimal_digits(mut n: u32, digits: &mut [u8; 8]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &digits[at..];
        }
    }
}

/// libCacheSim's operations: what looks up reads, what stores or changes writes.
fn kind(op: u8) -> AccessKind {
    match op {
        1 | 2 | 12 => AccessKind::Read,
        3..=8 | 10 | 11 | 13 | 14 => AccessKind::Write,
        _ => AccessKind::Unknown,
    }
}
