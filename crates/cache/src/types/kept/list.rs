//! The list of what is cached, as bytes: for each disk its blocks, in which frame of which worker's memory they are,
//! and what the files of its image said when it was closed.
//!
//! Owns the form. Never reads a frame. Invariant: bytes that are not exactly what was written, whichever of them
//! differ, are refused as a whole; so is the list of another version of the program.

use super::{KeptBlock, KeptBlocks};
use highway::{HighwayHash, HighwayHasher, Key};
use std::fmt;
use undercroft_engine::Tier;

/// The first bytes: what it is, and of which form.
const MAGIC: &[u8; 8] = b"uckept03";
/// How lists of all forms begin.
const ANY_FORM: &[u8] = b"uckept";
/// Bytes of a block: its number, its frame, its tier.
const BLOCK_BYTES: usize = 8 + 4 + 1;
/// The sum at the end.
const SUM_BYTES: usize = 8;

/// What is cached of all disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptList {
    /// The ceiling of the store in bytes.
    pub memory_bytes: u64,
    /// How many workers divide it.
    pub workers: u64,
    /// The disks.
    pub disks: Vec<KeptDisk>,
}

/// What is cached of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptDisk {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Which worker's frames.
    pub worker: u64,
    /// What the files of its image said when it was closed; the list only keeps it. `None` if nobody can tell whether
    /// they are changed.
    pub image: Option<[u8; KeptDisk::IMAGE_BYTES]>,
    /// What is cached.
    pub kept: KeptBlocks,
}

impl KeptDisk {
    /// Bytes of what is kept of an image's files.
    pub const IMAGE_BYTES: usize = 32;
}

/// Why a list is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnusableList {
    /// It is not what was written.
    Damaged,
    /// Another version of the program has written it.
    Version,
}

impl fmt::Display for UnusableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnusableList::Damaged => "it is damaged",
            UnusableList::Version => "it is of another version of the program",
        })
    }
}

impl std::error::Error for UnusableList {}

/// HighwayHash with a key of zeroes: against damage, not against those who may write the list.
fn sum(bytes: &[u8]) -> u64 {
    HighwayHasher::new(Key([0; 4])).hash64(bytes)
}

fn put(bytes: &mut Vec<u8>, n: u64) {
    bytes.extend(n.to_le_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put(bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
}

fn tier_number(tier: Tier) -> u8 {
    match tier {
        Tier::Hot => 0,
        Tier::Probation => 1,
        Tier::Cold => 2,
    }
}

/// Bytes that are read in their order.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], UnusableList> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(UnusableList::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, UnusableList> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| UnusableList::Damaged)
    }

    fn count(&mut self, bytes_each: usize) -> Result<usize, UnusableList> {
        let n = usize::try_from(self.number()?).map_err(|_| UnusableList::Damaged)?;
        let fits = n.checked_mul(bytes_each).is_some_and(|bytes| bytes <= self.0.len());
        if fits { Ok(n) } else { Err(UnusableList::Damaged) }
    }

    fn text(&mut self) -> Result<&'a str, UnusableList> {
        let n = self.count(1)?;
        std::str::from_utf8(self.take(n)?).map_err(|_| UnusableList::Damaged)
    }

    fn block(&mut self) -> Result<KeptBlock, UnusableList> {
        let block = self.number()?;
        let frame = self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| UnusableList::Damaged)?;
        let tier = match self.take(1)? {
            [0] => Tier::Hot,
            [1] => Tier::Probation,
            [2] => Tier::Cold,
            _ => return Err(UnusableList::Damaged),
        };
        Ok(KeptBlock { block, frame, tier })
    }

    fn disk(&mut self) -> Result<KeptDisk, UnusableList> {
        let (name, size_bytes, worker) = (self.text()?.to_owned(), self.number()?, self.number()?);
        let image = match self.take(1)? {
            [0] => None,
            [1] => Some(self.take(KeptDisk::IMAGE_BYTES)?.try_into().map_err(|_| UnusableList::Damaged)?),
            _ => return Err(UnusableList::Damaged),
        };
        let lead_bytes = u32::try_from(self.number()?).map_err(|_| UnusableList::Damaged)?;
        let count = self.count(BLOCK_BYTES)?;
        let blocks = (0..count).map(|_| self.block()).collect::<Result<_, _>>()?;
        Ok(KeptDisk { name, size_bytes, worker, image, kept: KeptBlocks { lead_bytes, blocks } })
    }
}

impl KeptList {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let blocks: usize = self.disks.iter().map(|d| d.kept.blocks.len()).sum();
        let mut bytes = Vec::with_capacity(blocks * BLOCK_BYTES + 4096);
        bytes.extend(MAGIC);
        put_text(&mut bytes, env!("CARGO_PKG_VERSION"));
        [self.memory_bytes, self.workers, self.disks.len() as u64].iter().for_each(|&n| put(&mut bytes, n));
        for d in &self.disks {
            put_text(&mut bytes, &d.name);
            [d.size_bytes, d.worker].iter().for_each(|&n| put(&mut bytes, n));
            bytes.push(u8::from(d.image.is_some()));
            bytes.extend(d.image.iter().flatten());
            [u64::from(d.kept.lead_bytes), d.kept.blocks.len() as u64].iter().for_each(|&n| put(&mut bytes, n));
            for k in &d.kept.blocks {
                put(&mut bytes, k.block);
                bytes.extend(k.frame.to_le_bytes());
                bytes.push(tier_number(k.tier));
            }
        }
        let sum = sum(&bytes);
        put(&mut bytes, sum);
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are not what this version of the program has written.
    pub fn decode(bytes: &[u8]) -> Result<Self, UnusableList> {
        let (body, said) = bytes.split_last_chunk::<SUM_BYTES>().ok_or(UnusableList::Damaged)?;
        let mut reader = Reader(body);
        let magic = reader.take(MAGIC.len())?;
        if sum(body) != u64::from_le_bytes(*said) || !magic.starts_with(ANY_FORM) {
            return Err(UnusableList::Damaged);
        }
        if magic != MAGIC || reader.text()? != env!("CARGO_PKG_VERSION") {
            return Err(UnusableList::Version);
        }
        let (memory_bytes, workers) = (reader.number()?, reader.number()?);
        let count = reader.count(BLOCK_BYTES)?;
        let disks = (0..count).map(|_| reader.disk()).collect::<Result<_, _>>()?;
        if reader.0.is_empty() { Ok(Self { memory_bytes, workers, disks }) } else { Err(UnusableList::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> KeptList {
        let kept = |n: u64| KeptBlock {
            block: n * n,
            frame: n as u32,
            tier: [Tier::Hot, Tier::Probation, Tier::Cold][n as usize % 3],
        };
        let disk = |name: &str, n| KeptDisk {
            name: name.into(),
            size_bytes: 1 << 40,
            worker: n,
            image: (n == 1).then_some([7; KeptDisk::IMAGE_BYTES]),
            kept: KeptBlocks { lead_bytes: 512 * n as u32, blocks: (0..20 * n).map(kept).collect() },
        };
        KeptList { memory_bytes: 4 << 30, workers: 2, disks: vec![disk("web:root", 1), disk("db", 0), disk("", 2)] }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(KeptList::decode(&some().encode()), Ok(some()));
        assert_eq!(KeptList::decode(&KeptList::default().encode()), Ok(KeptList::default()));
    }

    #[test]
    fn each_byte_counts() {
        let good = some().encode();
        for at in 0..good.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= change;
                assert!(KeptList::decode(&bytes).is_err(), "byte {at} ^ {change:#x}");
            }
            assert!(KeptList::decode(&good[..at]).is_err(), "cut at {at}");
        }
        assert!(KeptList::decode(&[&good[..], &[0]].concat()).is_err());
    }

    #[test]
    fn that_of_another_version_is_refused() {
        // The form, and the first byte of the version.
        for at in [MAGIC.len() - 1, 16] {
            let mut bytes = some().encode();
            bytes.truncate(bytes.len() - SUM_BYTES);
            bytes[at] ^= 1;
            let sum = sum(&bytes);
            put(&mut bytes, sum);
            assert_eq!(KeptList::decode(&bytes), Err(UnusableList::Version));
        }
    }
}
