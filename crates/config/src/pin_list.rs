//! Files of blocks that are to be pinned, or locked by a profile: which blocks, of a disk of which size.
//!
//! Owns their form, in which `undercroft pin --write` and `undercroft hot-set` write them, and its bounds. Never looks
//! at a disk. Invariants of a [`PinList`]: its ranges are in order, neither touch nor overlap, none is empty, and none
//! is past the end of the disk that it is of; there are no more of them than a disk may have.

use super::keys::PIN_LIST_BYTES_MAX;
use super::written::WrittenError;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use undercroft_cache::ByteRange;
pub use undercroft_engine::ranges::RANGES_MAX;
use undercroft_units::Size;

/// Bytes of a block: the unit that is counted.
const BLOCK_BYTES: u64 = 4096;

/// Blocks of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinList {
    size_bytes: u64,
    /// The first block, and how many.
    ranges: Vec<(u64, u64)>,
}

/// As it is written; more may stand in it, which is for others.
#[derive(Deserialize)]
struct WrittenList {
    size_bytes: u64,
    ranges: Vec<(u64, u64)>,
}

impl PinList {
    /// Of ranges of blocks (the first, and how many) of a disk of `size_bytes`, in any order.
    ///
    /// # Errors
    /// One is empty or past the end of the disk; or there are too many, even after those that touch were joined.
    pub fn new(size_bytes: u64, mut ranges: Vec<(u64, u64)>) -> Result<Self, WrittenError> {
        let blocks = size_bytes.div_ceil(BLOCK_BYTES);
        for &(first, count) in &ranges {
            // One more than the size has: a cache may count blocks from before the disk's first byte.
            if count == 0 || first.checked_add(count).is_none_or(|end| end > blocks.saturating_add(1)) {
                return Err(WrittenError {
                    error: format!("{count} blocks from block {first} on are not on a disk of {blocks} blocks"),
                    remedy: "give the number of the first block, and how many there are, at least 1".to_owned(),
                });
            }
        }
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let end = last.0 + last.1;
            let joins = next.0 <= end;
            if joins {
                last.1 = end.max(next.0 + next.1) - last.0;
            }
            joins
        });
        if ranges.len() > RANGES_MAX {
            return Err(WrittenError {
                error: format!("{} ranges that do not touch are more than {RANGES_MAX}", ranges.len()),
                remedy: "leave out what is least needed, or fill small gaps".to_owned(),
            });
        }
        Ok(Self { size_bytes, ranges })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no such file, or holds what is no list; each error names the file.
    pub fn read(path: &Path) -> Result<Self, WrittenError> {
        let shown = path.display();
        let wrong = |error: String, remedy: &str| WrittenError { error, remedy: remedy.to_owned() };
        // A pipe that nobody writes to would keep who opens it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty()).map(File::from);
        let opened = opened.map_err(std::io::Error::from);
        let file = opened.and_then(|f| Ok((f.metadata()?.is_file(), f)));
        let (is_file, file) = file.map_err(|e| {
            let remedy = match e.kind() {
                std::io::ErrorKind::NotFound => "correct the path, or write it with `undercroft pin DISK --write FILE`",
                _ => "give a file that the daemon's user can read",
            };
            wrong(format!("the list of blocks {shown} cannot be read: {e}"), remedy)
        })?;
        if !is_file {
            return Err(wrong(format!("the list of blocks {shown} is no file"), REMEDY));
        }
        let mut bytes = Vec::new();
        file.take(PIN_LIST_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| wrong(format!("the list of blocks {shown} cannot be read: {e}"), "look at its disk"))?;
        if bytes.len() as u64 > PIN_LIST_BYTES_MAX {
            let error = format!("the list of blocks {shown} is longer than {}", Size(PIN_LIST_BYTES_MAX));
            return Err(wrong(error, "is it the right file?"));
        }
        Self::parse(&bytes).map_err(|e| WrittenError { error: format!("the list of blocks {shown}: {}", e.error), ..e })
    }

    /// Reads what a file holds.
    ///
    /// # Errors
    /// It is no list, or one that [`PinList::new`] refuses.
    pub fn parse(bytes: &[u8]) -> Result<Self, WrittenError> {
        let list: WrittenList = serde_json::from_slice(bytes).map_err(|e| WrittenError {
            error: format!("the text holds no list of blocks: {e}"),
            remedy: REMEDY.to_owned(),
        })?;
        Self::new(list.size_bytes, list.ranges)
    }

    /// Bytes of the disk that it is of.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The first block, and how many, of each range.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// The same as bytes of the disk, past whose end nothing is.
    pub fn byte_ranges(&self) -> Vec<ByteRange> {
        let of = |&(first, count): &(u64, u64)| {
            let (offset, end) = (first.saturating_mul(BLOCK_BYTES), (first + count).saturating_mul(BLOCK_BYTES));
            let bytes = end.min(self.size_bytes).saturating_sub(offset);
            (bytes > 0).then_some(ByteRange { offset, bytes })
        };
        self.ranges.iter().filter_map(of).collect()
    }
}

const REMEDY: &str = "give what `undercroft pin --write` or `undercroft hot-set` wrote";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_put_in_order_and_those_that_touch_are_joined() {
        let list = PinList::new(10 * 4096 + 1, vec![(8, 1), (0, 2), (1, 3), (4, 1), (9, 3), (6, 1)]).unwrap();
        assert_eq!(list.ranges(), [(0, 5), (6, 1), (8, 4)]);
        let bytes: Vec<_> = list.byte_ranges().iter().map(|r| (r.offset, r.bytes)).collect();
        assert_eq!(bytes, [(0, 5 * 4096), (6 * 4096, 4096), (8 * 4096, 2 * 4096 + 1)], "the disk ends there");
        assert_eq!(PinList::new(4096, vec![(1, 1)]).unwrap().byte_ranges(), [], "it is past the end of the disk");
        let last = PinList::new(u64::MAX, vec![(1 << 52, 1)]).unwrap();
        assert_eq!(last.byte_ranges(), [], "nor has the largest disk anything there");
        assert_eq!(PinList::new(4096, Vec::new()).unwrap(), PinList { size_bytes: 4096, ranges: Vec::new() });
    }

    #[test]
    fn what_is_not_on_the_disk_is_refused() {
        for bad in [(0, 0), (11, 2), (12, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let e = PinList::new(10 * 4096 + 1, vec![(0, 1), bad]).unwrap_err();
            assert!(e.error.contains("are not on a disk of 11 blocks"), "{bad:?}: {e}");
        }
        let apart = |n: usize| (0..n as u64).map(|n| (2 * n, 1)).collect::<Vec<_>>();
        assert!(PinList::new(1 << 40, apart(RANGES_MAX)).is_ok());
        let e = PinList::new(1 << 40, apart(RANGES_MAX + 1)).unwrap_err();
        assert!(e.error.contains("65537 ranges"), "{e}");
        let touching = (0..2 * RANGES_MAX as u64).map(|n| (n, 1)).collect();
        assert_eq!(PinList::new(1 << 40, touching).unwrap().ranges().len(), 1);
    }

    #[test]
    fn an_error_names_the_file_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, text, says) in [
            ("none.pins", None, "--write FILE"),
            ("text.pins", Some("hello"), "holds no list of blocks: expected value"),
            ("empty.pins", Some(""), "holds no list of blocks"),
            ("half.pins", Some(r#"{"size_bytes": 4096}"#), "missing field `ranges`"),
            ("past.pins", Some(r#"{"size_bytes": 4096, "ranges": [[2, 1]]}"#), "are not on a disk of 1 blocks"),
        ] {
            text.iter().for_each(|text| std::fs::write(at(name), text).unwrap());
            let e = PinList::read(&at(name)).expect_err(name).to_string();
            assert!(e.contains(name) && e.contains(says), "{name}: {e}");
        }
        let e = PinList::read(dir.path()).unwrap_err().to_string();
        assert!(e.contains("is no file"), "{e}");
        let long = File::create(at("long.pins")).unwrap();
        long.set_len(PIN_LIST_BYTES_MAX + 1).unwrap();
        assert!(PinList::read(&at("long.pins")).unwrap_err().error.contains("longer than 16MiB"));
        std::fs::write(at("good.pins"), r#"{"size_bytes": 8192, "ranges": [[1, 1], [0, 1]]}"#).unwrap();
        assert_eq!(PinList::read(&at("good.pins")).unwrap().ranges(), [(0, 2)]);
    }
}
