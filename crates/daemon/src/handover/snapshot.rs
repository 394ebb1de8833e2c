//! The list of what is cached, as bytes: for each disk its blocks, in which frame of which worker's memory they are,
//! and the file that its image was when it was closed.
//!
//! Owns the form. Never reads a frame. Invariant: bytes that are not exactly what was written, whichever of them
//! differ, are refused as a whole; so is the list of another version of the program, or of another layout of the
//! store.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use undercroft_cache::KeptBlock;
use undercroft_engine::Tier;

/// The first bytes: what it is, and of which form.
const MAGIC: &[u8; 8] = b"uckept01";
/// Bytes of a block: its number, its frame, its tier.
const BLOCK_BYTES: usize = 8 + 4 + 1;
/// The sum at the end.
const SUM_BYTES: usize = 8;

/// What is cached of all disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The ceiling of the store in bytes, and how many workers divide it.
    pub(crate) memory_bytes: u64,
    pub(crate) workers: u64,
    pub(crate) disks: Vec<KeptDisk>,
}

/// What is cached of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptDisk {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Which worker's frames.
    pub(crate) worker: u64,
    /// What the file of its image was; `None` if it is not one regular file, so that nobody can tell.
    pub(crate) file: Option<FileState>,
    /// Those first that would be evicted first.
    pub(crate) blocks: Vec<KeptBlock>,
}

/// What tells whether a file was changed: device, inode, size, and the times of its last changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState([u64; 7]);

impl FileState {
    /// That of the regular file at `path`; `None` of anything else.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let m = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()].map(i64::cast_unsigned);
        let [a, b, c, d] = times;
        Some(Self([m.dev(), m.ino(), m.size(), a, b, c, d]))
    }
}

/// Why a list is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it is damaged")]
    Damaged,
    #[error("it is of another version of the program")]
    Version,
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
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
    fn take(&mut self, n: usize) -> Result<&'a [u8], Unusable> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Unusable::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, Unusable> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| Unusable::Damaged)
    }

    fn count(&mut self, bytes_each: usize) -> Result<usize, Unusable> {
        let n = usize::try_from(self.number()?).map_err(|_| Unusable::Damaged)?;
        if n.checked_mul(bytes_each).is_none_or(|bytes| bytes > self.0.len()) { Err(Unusable::Damaged) } else { Ok(n) }
    }

    fn text(&mut self) -> Result<&'a str, Unusable> {
        let n = self.count(1)?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Unusable::Damaged)
    }

    fn block(&mut self) -> Result<KeptBlock, Unusable> {
        let block = self.number()?;
        let frame = self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| Unusable::Damaged)?;
        let tier = match self.take(1)? {
            [0] => Tier::Hot,
            [1] => Tier::Probation,
            [2] => Tier::Cold,
            _ => return Err(Unusable::Damaged),
        };
        Ok(KeptBlock { block, frame, tier })
    }

    fn disk(&mut self) -> Result<KeptDisk, Unusable> {
        let (name, size_bytes, worker) = (self.text()?.to_owned(), self.number()?, self.number()?);
        let mut state = [0; 7];
        for n in &mut state {
            *n = self.number()?;
        }
        let file = Some(FileState(state)).filter(|_| state != [0; 7]);
        let count = self.count(BLOCK_BYTES)?;
        let blocks = (0..count).map(|_| self.block()).collect::<Result<_, _>>()?;
        Ok(KeptDisk { name, size_bytes, worker, file, blocks })
    }
}

impl Snapshot {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let blocks: usize = self.disks.iter().map(|d| d.blocks.len()).sum();
        let mut bytes = Vec::with_capacity(blocks * BLOCK_BYTES + 4096);
        bytes.extend(MAGIC);
        put_text(&mut bytes, env!("CARGO_PKG_VERSION"));
        [self.memory_bytes, self.workers, self.disks.len() as u64].iter().for_each(|&n| put(&mut bytes, n));
        for d in &self.disks {
            put_text(&mut bytes, &d.name);
            [d.size_bytes, d.worker].iter().for_each(|&n| put(&mut bytes, n));
            d.file.map_or([0; 7], |f| f.0).iter().for_each(|&n| put(&mut bytes, n));
            put(&mut bytes, d.blocks.len() as u64);
            for k in &d.blocks {
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
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unusable> {
        let (body, said) = bytes.split_last_chunk::<SUM_BYTES>().ok_or(Unusable::Damaged)?;
        let mut reader = Reader(body);
        if reader.take(MAGIC.len())? != MAGIC || sum(body) != u64::from_le_bytes(*said) {
            return Err(Unusable::Damaged);
        }
        if reader.text()? != env!("CARGO_PKG_VERSION") {
            return Err(Unusable::Version);
        }
        let (memory_bytes, workers) = (reader.number()?, reader.number()?);
        let count = reader.count(BLOCK_BYTES)?;
        let disks = (0..count).map(|_| reader.disk()).collect::<Result<_, _>>()?;
        if reader.0.is_empty() { Ok(Self { memory_bytes, workers, disks }) } else { Err(Unusable::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some() -> Snapshot {
        let kept = |n: u64| KeptBlock {
            block: n * n,
            frame: n as u32,
            tier: [Tier::Hot, Tier::Probation, Tier::Cold][n as usize % 3],
        };
        let disk = |name: &str, n| KeptDisk {
            name: name.into(),
            size_bytes: 1 << 40,
            worker: n,
            file: (n == 1).then_some(FileState([1, 2, 3, 4, 5, 6, 7])),
            blocks: (0..20 * n).map(kept).collect(),
        };
        Snapshot { memory_bytes: 4 << 30, workers: 2, disks: vec![disk("web:root", 1), disk("db", 0), disk("", 2)] }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Snapshot::decode(&some().encode()), Ok(some()));
        assert_eq!(Snapshot::decode(&Snapshot::default().encode()), Ok(Snapshot::default()));
    }

    #[test]
    fn each_byte_counts() {
        let good = some().encode();
        for at in 0..good.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= change;
                assert!(Snapshot::decode(&bytes).is_err(), "byte {at} ^ {change:#x}");
            }
            assert!(Snapshot::decode(&good[..at]).is_err(), "cut at {at}");
        }
        assert!(Snapshot::decode(&[&good[..], &[0]].concat()).is_err());
    }

    #[test]
    fn that_of_another_version_is_refused() {
        let mut bytes = some().encode();
        bytes.truncate(bytes.len() - SUM_BYTES);
        bytes[16] ^= 1; // the first byte of the version
        let sum = sum(&bytes);
        put(&mut bytes, sum);
        assert_eq!(Snapshot::decode(&bytes), Err(Unusable::Version));
    }

    #[test]
    fn a_file_that_was_written_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "a").unwrap();
        let at = path.to_str().unwrap();
        let before = FileState::of(at).unwrap();
        assert_eq!(FileState::of(at), Some(before));
        fs::write(&path, "bb").unwrap();
        assert_ne!(FileState::of(at), Some(before));
        assert!(FileState::of("/dev/null").is_none() && FileState::of("nbd://there/x").is_none());
    }

    proptest! {
        /// Bytes whose sum is right, whatever they say: no panic, and no more memory than they have bytes.
        #[test]
        fn nonsense_with_a_good_sum_is_no_harm(mut at in prop::collection::vec((0usize..600, any::<u8>()), 1..6)) {
            let mut bytes = some().encode();
            bytes.truncate(bytes.len() - SUM_BYTES);
            let len = bytes.len();
            at.drain(..).for_each(|(at, to)| bytes[8 + at % (len - 8)] = to);
            let sum = sum(&bytes);
            put(&mut bytes, sum);
            if let Ok(read) = Snapshot::decode(&bytes) {
                prop_assert!(read.disks.iter().map(|d| d.blocks.len()).sum::<usize>() * BLOCK_BYTES <= bytes.len());
            }
        }
    }
}
