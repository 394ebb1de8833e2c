//! Holds a disk, after the fact, to what a journal says was promised.
//!
//! Owns the comparison. Never writes to the disk. Invariant: every sector is looked at, touched or not.

use crate::journal::read_all;
use crate::ledger::{Ledger, Promise, Totals};
use crate::load::read_padded;
use crate::stamp::SECTOR_BYTES;
use crate::target::{Kind, Operation, Target};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

/// Bytes read at once; a target must have a buffer of that size.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Wrong sectors that are described; the others are only counted.
const DESCRIBED_MAX: usize = 10;

/// Where the disk's contents come from.
pub enum Source {
    /// A raw image.
    Image(File),
    /// A running server.
    Target(Box<dyn Target>),
}

/// The findings.
#[derive(Debug, serde::Serialize)]
pub struct Findings {
    /// Whether every sector is right.
    pub ok: bool,
    /// Sectors looked at.
    pub sectors: u64,
    /// Of which the journal knows.
    pub touched: u64,
    /// What the journal says.
    pub totals: Totals,
    /// Sectors that break what is promised.
    pub wrong: u64,
    /// Sectors that lack a change that was acknowledged, though not flushed: allowed after a power cut, and not
    /// expected of a write-through server that was only killed.
    pub unflushed_lost: u64,
    /// The first wrong sectors, described.
    pub described: Vec<String>,
}

/// Compares the disk with the journal at `journal`; `base` is what the disk held at first, `strict` holds it to
/// everything acknowledged.
pub fn audit(journal: &Path, source: &mut Source, base: Option<&File>, strict: bool) -> Result<Findings> {
    let records = read_all(journal)?;
    if records.is_empty() {
        bail!("the journal {} is empty or not there", journal.display());
    }
    let ledger = Ledger::replay(&records)?;
    let size = match source {
        Source::Image(file) => file.seek(SeekFrom::End(0))?,
        Source::Target(target) => target.geometry().size_bytes,
    };
    let mut findings = Findings {
        ok: true,
        sectors: 0,
        touched: ledger.touched() as u64,
        totals: ledger.totals(),
        wrong: 0,
        unflushed_lost: 0,
        described: Vec::new(),
    };
    let (mut bytes, mut first) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut offset = 0;
    while offset < size {
        let length = (size - offset).min(CHUNK_BYTES as u64) as usize / SECTOR_BYTES * SECTOR_BYTES;
        if length == 0 {
            break;
        }
        read(source, offset, &mut bytes[..length])?;
        if let Some(base) = base {
            read_padded(base, offset, &mut first[..length])?;
        }
        for (i, got) in bytes[..length].chunks_exact(SECTOR_BYTES).enumerate() {
            let sector = offset / SECTOR_BYTES as u64 + i as u64;
            let base = base.map(|_| &first[i * SECTOR_BYTES..(i + 1) * SECTOR_BYTES]);
            findings.sectors += 1;
            let flushed = ledger.judge(sector, got, ledger.floor(sector, Promise::Flushed), base);
            let all = ledger.judge(sector, got, ledger.floor(sector, Promise::Acknowledged), base);
            if flushed.is_ok() && all.is_err() {
                findings.unflushed_lost += 1;
            }
            if let Err(broken) = if strict { all } else { flushed } {
                findings.ok = false;
                findings.wrong += 1;
                if findings.described.len() < DESCRIBED_MAX {
                    findings.described.push(broken.to_string());
                }
            }
        }
        offset += length as u64;
    }
    Ok(findings)
}

fn read(source: &mut Source, offset: u64, into: &mut [u8]) -> Result<()> {
    match source {
        Source::Image(file) => read_padded(file, offset, into).context("cannot read the image"),
        Source::Target(target) => {
            let length = into.len() as u32;
            target.submit(&Operation { kind: Kind::Read, offset, length, tag: 0 })?;
            target.send()?;
            let mut done = Vec::new();
            target.reap(&mut done)?;
            if let Some(Err(errno)) = done.first().map(|d| d.result) {
                bail!("error {errno} for a read of {offset}+{length}");
            }
            target.fetch(0, into);
            Ok(())
        }
    }
}
