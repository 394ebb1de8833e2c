//! A simulated SSD: what it holds, what it would hold after a loss of power, and everything that can go wrong.
//!
//! Owns its bytes. Knows nothing of the store but what offsets and lengths it asks for. Invariants: a sector of 512
//! bytes is written whole or not at all; after a loss of power a sector is what it was at the last flush, or any
//! of what
//! was written to it since.

use crate::rng::Rng;
use std::collections::HashMap;
use std::io;
use undercroft_cache::ssd::{Media, SsdIo, SsdIoKind};

const SECTOR: usize = 512;

/// What goes wrong with a device, each once in so many operations; 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct SsdFaults {
    /// A write fails, after some of its sectors were written.
    pub errors: u64,
    /// A write goes to another place, and is said to be done.
    pub misdirected: u64,
    /// A flush is said to be done, and is not.
    pub lost_flushes: u64,
    /// A read fails.
    pub read_errors: u64,
    /// A read at the start fails, and the next one of the same place may not.
    pub start_read_errors: u64,
    /// Once in so many steps, a bit of the device is another one.
    pub rot: u64,
    /// Once in so many steps, the device is gone until the next start.
    pub vanishes: u64,
    /// Once in so many steps, nothing is answered for a while.
    pub stalls: u64,
}

/// See the head of the file.
pub struct SimSsd {
    bytes: Vec<u8>,
    /// Sectors written since the last flush: what they were then, and all that was written but the last.
    before: HashMap<usize, Vec<[u8; SECTOR]>>,
    pub faults: SsdFaults,
    pub is_gone: bool,
    /// Operations that are still done before the program that does them dies; for the start.
    pub until_death: Option<u64>,
    /// Faults that came about.
    pub failed: u64,
    pub rng: Rng,
}

impl SimSsd {
    pub fn new(bytes: usize, seed: u64) -> Self {
        Self {
            bytes: vec![0; bytes],
            before: HashMap::new(),
            faults: SsdFaults::default(),
            is_gone: false,
            until_death: None,
            failed: 0,
            rng: Rng::new(seed),
        }
    }

    fn sector(&self, n: usize) -> [u8; SECTOR] {
        std::array::from_fn(|i| self.bytes[n * SECTOR + i])
    }

    fn write_sector(&mut self, n: usize, to: &[u8]) {
        let old = self.sector(n);
        self.before.entry(n).or_default().push(old);
        self.bytes[n * SECTOR..(n + 1) * SECTOR].copy_from_slice(to);
    }

    /// Writes sectors of `from`, those for which `is_written` says so.
    fn write(&mut self, offset: u64, from: &[u8], is_written: impl Fn(&mut Rng) -> bool) {
        let first = offset as usize / SECTOR;
        for (n, sector) in from.chunks_exact(SECTOR).enumerate() {
            if is_written(&mut self.rng) && first + n < self.bytes.len() / SECTOR {
                self.write_sector(first + n, sector);
            }
        }
    }

    fn fails(&mut self, once_in: u64) -> bool {
        let fails = once_in > 0 && self.rng.one_in(once_in);
        self.failed += u64::from(fails);
        fails
    }

    /// Does an operation, or fails to.
    pub fn execute(&mut self, io: &mut SsdIo) -> bool {
        if self.is_gone {
            return false;
        }
        match io.kind {
            SsdIoKind::Read => {
                let mut bytes = vec![0; io.len as usize];
                self.read(io.offset, &mut bytes);
                let mut at = 0;
                for piece in io.buf.pieces_mut() {
                    piece.copy_from_slice(&bytes[at..at + piece.len()]);
                    at += piece.len();
                }
                let once_in = self.faults.read_errors;
                !self.fails(once_in)
            }
            SsdIoKind::Write => {
                let mut bytes = vec![0; io.len as usize];
                io.buf.copy_to(&mut bytes);
                let (errors, misdirected) = (self.faults.errors, self.faults.misdirected);
                if self.fails(errors) {
                    self.write(io.offset, &bytes, |rng| rng.one_in(2));
                    return false;
                }
                let offset = match self.fails(misdirected) {
                    true => self.rng.below(self.bytes.len() as u64 / 4096) * 4096,
                    false => io.offset,
                };
                self.write(offset, &bytes, |_| true);
                true
            }
            SsdIoKind::Flush => {
                let lost = self.faults.lost_flushes;
                if !self.fails(lost) {
                    self.before.clear();
                }
                true
            }
            SsdIoKind::Discard => {
                self.discard(io.offset, io.len as usize);
                let errors = self.faults.errors;
                !self.fails(errors)
            }
        }
    }

    /// What is discarded reads as anything: as it was, as zeroes, as something else.
    fn discard(&mut self, offset: u64, len: usize) {
        let filling = *self.rng.pick(&[0, 0xa5]);
        self.write(offset, &vec![filling; len], |rng| !rng.one_in(4));
    }

    /// The bytes at a place.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let at = offset as usize;
        to.copy_from_slice(&self.bytes[at..at + to.len()]);
    }

    /// The program that asked for an operation died before it heard of it: it is done, or a part of it, or nothing.
    pub fn cut_short(&mut self, io: &mut SsdIo) {
        if io.kind == SsdIoKind::Discard && !self.is_gone && self.rng.one_in(2) {
            self.discard(io.offset, io.len as usize);
        }
        if io.kind != SsdIoKind::Write || self.is_gone {
            return;
        }
        let mut bytes = vec![0; io.len as usize];
        io.buf.copy_to(&mut bytes);
        match self.rng.below(5) {
            0 | 1 => self.write(io.offset, &bytes, |_| true),
            2 => self.write(io.offset, &bytes, |rng| rng.one_in(2)),
            _ => {}
        }
    }

    /// Power is lost: what was not flushed is there, or is not, sector by sector.
    pub fn lose_power(&mut self) {
        let mut before: Vec<_> = std::mem::take(&mut self.before).into_iter().collect();
        before.sort_unstable_by_key(|(n, _)| *n);
        let mut page = (usize::MAX, 0);
        for (n, mut versions) in before {
            versions.push(self.sector(n));
            // Most pages are there as a whole or not at all.
            if page.0 != n / 8 {
                page = (n / 8, self.rng.below(3));
            }
            let kept = match page.1 {
                0 => versions[0],
                1 => self.sector(n),
                _ => *self.rng.pick(&versions),
            };
            self.bytes[n * SECTOR..(n + 1) * SECTOR].copy_from_slice(&kept);
        }
    }

    /// A bit is another one. More often one of what the store says about itself.
    pub fn rot(&mut self) {
        let at = match self.rng.below(4) {
            // A table of owners, a summary, anything.
            0 => (64 << 10) * self.rng.between(1, 2) + self.rng.below(1024),
            1 => (256 << 10) * self.rng.between(1, self.bytes.len() as u64 / (256 << 10) - 1) + self.rng.below(1024),
            _ => self.rng.below(self.bytes.len() as u64),
        } as usize;
        self.bytes[at] ^= 1 << self.rng.below(8);
        self.failed += 1;
    }

    fn lives(&mut self) -> io::Result<()> {
        let left = self.until_death.map(|n| n.saturating_sub(1));
        if left == Some(0) || self.is_gone {
            return Err(io::Error::other("the program died here"));
        }
        self.until_death = left;
        Ok(())
    }
}

impl Media for SimSsd {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.lives()?;
        let once_in = self.faults.start_read_errors;
        if self.fails(once_in) {
            return Err(io::Error::other("a read failed"));
        }
        self.read(offset, to);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        if let Err(e) = self.lives() {
            // The one it died in.
            if self.rng.one_in(2) && !self.is_gone {
                self.write(offset, from, |rng| rng.one_in(2));
            }
            return Err(e);
        }
        let misdirected = self.faults.misdirected;
        let offset = match self.fails(misdirected) {
            true => self.rng.below(self.bytes.len() as u64 / 4096) * 4096,
            false => offset,
        };
        self.write(offset, from, |_| true);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lives()?;
        let lost = self.faults.lost_flushes;
        if !self.fails(lost) {
            self.before.clear();
        }
        Ok(())
    }
}
