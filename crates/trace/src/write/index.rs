//! libCacheSim's formats, whose records name the next access of their block: written forwards, then gone through
//! backwards.
//!
//! Owns the records and the header of lcs. Needs memory for each distinct block (some 30 bytes), not for each access.
//! Invariant: the index of the next access is that of the record in the file, from 0; -1 where there is none.

use super::Bad;
use super::packed::{Packed, Packing};
use super::target::Target;
use crate::access::{AccessKind, TraceRequest};
use crate::error::UnfitRequest;
use crate::format::lcs;
use crate::hashed::NumberMap;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

pub(super) const NS_PER_S: u64 = 1_000_000_000;
/// Bytes of a record.
const ORACLE_BYTES: usize = 24;
const LCS_BYTES: usize = 36;
/// Records that are read at once on the way back.
const RECORDS_BACK: u64 = 16 << 10;
/// lcs: the version that is written, and libCacheSim's numbers of operations.
const LCS_VERSION: u64 = 3;
const OP_READ: u32 = 12;
const OP_WRITE: u32 = 13;
/// lcs has 24 bits for tenants, so that all of ours fit.
const TENANT_SHIFT: u32 = 8;

pub(super) struct Indexed {
    /// Records as they will be, but without their next accesses.
    plain: BufWriter<Target>,
    /// Where they go if that is another file.
    to: Option<(Target, Packing)>,
    is_lcs: bool,
    records: u64,
    about: About,
}

/// What the header of lcs says.
#[derive(Default)]
struct About {
    bytes: u64,
    first_s: u32,
    last_s: u32,
    reads: u64,
    writes: u64,
    tenants: u32,
    size_min: u64,
    size_max: u64,
}

impl Indexed {
    pub fn new(target: Target, packing: Packing, is_lcs: bool) -> io::Result<Self> {
        let (plain, to) = if target.is_file() && packing == Packing::None {
            (target, None)
        } else {
            (target.beside()?, Some((target, packing)))
        };
        let mut plain = BufWriter::with_capacity(256 << 10, plain);
        if is_lcs {
            plain.write_all(&[0; lcs::HEADER_BYTES])?;
        }
        let about = About { size_min: u64::MAX, ..About::default() };
        Ok(Self { plain, to, is_lcs, records: 0, about })
    }

    /// One access.
    pub fn push(&mut self, r: &TraceRequest, block: u64, bytes: u64) -> Result<(), Bad> {
        let seconds = u32::try_from(r.time_ns / NS_PER_S).map_err(|_| Bad::Unfit(UnfitRequest::Time))?;
        let about = &mut self.about;
        if self.records == 0 {
            about.first_s = seconds;
        }
        about.last_s = about.last_s.max(seconds);
        about.bytes = about.bytes.saturating_add(bytes);
        (about.size_min, about.size_max) = (about.size_min.min(bytes), about.size_max.max(bytes));
        about.tenants = about.tenants.max(u32::from(r.tenant) + 1);
        let mut record = [0; LCS_BYTES];
        record[..4].copy_from_slice(&seconds.to_le_bytes());
        record[4..12].copy_from_slice(&block.to_le_bytes());
        let length = if self.is_lcs {
            let op = match r.kind {
                AccessKind::Read | AccessKind::Fetch => OP_READ,
                AccessKind::Write => OP_WRITE,
                AccessKind::Unknown => 0,
            };
            about.reads += u64::from(op == OP_READ);
            about.writes += u64::from(op == OP_WRITE);
            record[12..20].copy_from_slice(&bytes.to_le_bytes());
            record[20..24].copy_from_slice(&(op | u32::from(r.tenant) << TENANT_SHIFT).to_le_bytes());
            LCS_BYTES
        } else {
            let bytes = u32::try_from(bytes).map_err(|_| Bad::Unfit(UnfitRequest::Object(bytes)))?;
            record[12..16].copy_from_slice(&bytes.to_le_bytes());
            ORACLE_BYTES
        };
        self.plain.write_all(&record[..length])?;
        self.records += 1;
        Ok(())
    }

    /// Fills in the next accesses, and compresses if that is wanted.
    pub fn finish(self) -> io::Result<Target> {
        let mut plain = self.plain.into_inner().map_err(io::IntoInnerError::into_error)?;
        let (begin, bytes) = if self.is_lcs { (lcs::HEADER_BYTES, LCS_BYTES) } else { (0, ORACLE_BYTES) };
        let found = fill_in(&mut plain, self.records, begin as u64, bytes)?;
        if self.is_lcs {
            plain.seek(SeekFrom::Start(0))?;
            plain.write_all(&self.about.header(self.records, &found))?;
        }
        let Some((to, packing)) = self.to else { return Ok(plain) };
        plain.seek(SeekFrom::Start(0))?;
        let mut packed = Packed::new(to, packing)?;
        io::copy(&mut plain, &mut packed)?;
        packed.finish()
    }
}

/// What the pass backwards counted.
struct Found {
    blocks: u64,
    bytes: u64,
}

fn fill_in(file: &mut Target, records: u64, begin: u64, bytes: usize) -> io::Result<Found> {
    let mut next: NumberMap<u64> = NumberMap::default();
    let mut found = Found { blocks: 0, bytes: 0 };
    let mut buffer = Vec::new();
    let mut end = records;
    while end > 0 {
        let from = end.saturating_sub(RECORDS_BACK);
        buffer.resize((end - from) as usize * bytes, 0);
        let at = SeekFrom::Start(begin + from * bytes as u64);
        file.seek(at)?;
        file.read_exact(&mut buffer)?;
        for (n, record) in buffer.chunks_exact_mut(bytes).enumerate().rev() {
            let n = from + n as u64;
            let block = u64::from_le_bytes(record[4..12].try_into().expect("8 bytes"));
            let later = next.insert(block, n);
            if later.is_none() {
                found.blocks += 1;
                let size = if bytes == LCS_BYTES { &record[12..20] } else { &record[12..16] };
                let size = size.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
                found.bytes = found.bytes.saturating_add(size);
            }
            let later = later.map_or(-1, |n| n as i64);
            record[bytes - 8..].copy_from_slice(&later.to_le_bytes());
        }
        file.seek(at)?;
        file.write_all(&buffer)?;
        end = from;
    }
    Ok(found)
}

impl About {
    /// 8192 bytes: magic, version, statistics (those that are not known are 0, as libCacheSim has it), magic.
    fn header(&self, records: u64, found: &Found) -> Vec<u8> {
        let numbers = [
            lcs::MAGIC,
            LCS_VERSION,
            // version of the statistics, then what they are
            1,
            records,
            found.blocks,
            self.bytes,
            found.bytes,
            u64::from(self.first_s),
            u64::from(self.last_s),
            self.reads,
            self.writes,
            0,
            if records == 0 { 0 } else { self.size_min },
            self.size_max,
        ];
        let mut header: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        header.resize(lcs::HEADER_BYTES, 0);
        // the number of tenants stands after 69 numbers of statistics
        let at = 16 + 69 * 8;
        header[at..at + 4].copy_from_slice(&self.tenants.to_le_bytes());
        header[lcs::HEADER_BYTES - 8..].copy_from_slice(&lcs::MAGIC.to_le_bytes());
        header
    }
}
