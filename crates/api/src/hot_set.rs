//! Which blocks of a disk are hot: numbers without data, that a daemon gives away and another one fetches.
//!
//! Owns the notation and its bounds. Never holds a byte of a disk. Invariants of a [`HotSet`] that was parsed: at most
//! [`RANGES_MAX`] ranges, none of them empty, none past the end of the disk that it was made of.

use crate::body::parse as parse_object;
use serde::{Deserialize, Serialize};
use undercroft_config::{ControlError, ControlErrorKind};
use utoipa::ToSchema;

/// Bytes of a hot set at most, as text.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Ranges of a hot set at most; colder ones are left out.
pub const RANGES_MAX: usize = 1 << 19;
/// Bytes of a block: the unit that is counted.
pub const BLOCK_BYTES: u64 = 4096;
/// Into how many classes of about equal size a disk's blocks are divided by their heat: within one, blocks stand in the
/// order of their numbers, so that those that follow each other are one range.
const CLASSES: usize = 64;

/// The blocks that a disk's cache would keep longest, before the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HotSet {
    /// Bytes of the disk that it was made of: it is for disks of that size.
    pub size_bytes: u64,
    /// Ranges of blocks of 4096 bytes, the hottest first: the number of the first block, and how many there are.
    #[schema(value_type = Vec<Vec<u64>>)]
    pub ranges: Vec<(u64, u64)>,
}

/// The answer of `POST /v1/disks/{name}/warm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warming {
    /// Bytes of the blocks that are fetched from now on, those among them that are cached already not left out.
    pub wanted_bytes: u64,
    /// Bytes of blocks that are left out: for lack of room in the disk's cache, or past what was allowed.
    pub left_bytes: u64,
    /// Whether it begins only when the guest runs here.
    pub waits: bool,
}

impl HotSet {
    /// From a disk's cached blocks, the hottest first.
    pub fn new(size_bytes: u64, mut hottest: Vec<u64>) -> Self {
        let class = hottest.len().div_ceil(CLASSES).max(1);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for blocks in hottest.chunks_mut(class) {
            blocks.sort_unstable();
            let begins = ranges.len();
            for &mut block in blocks {
                match ranges[begins..].last_mut() {
                    Some((first, count)) if *first + *count == block => *count += 1,
                    _ => ranges.push((block, 1)),
                }
            }
        }
        ranges.truncate(RANGES_MAX);
        Self { size_bytes, ranges }
    }

    /// Bytes of all its blocks.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum: u64, &(_, count)| sum.saturating_add(count.saturating_mul(BLOCK_BYTES)))
    }

    /// Leaves out what is past the first `blocks` blocks. Returns how many bytes that is.
    pub fn cut(&mut self, blocks: u64) -> u64 {
        let (before, mut left) = (self.bytes(), blocks);
        for (_, count) in &mut self.ranges {
            *count = (*count).min(left);
            left -= *count;
        }
        self.ranges.retain(|&(_, count)| count > 0);
        before - self.bytes()
    }
}

/// Reads a hot set.
///
/// # Errors
/// `Invalid`: it is no such text, is too long, or names blocks that its disk has not.
pub fn parse(bytes: &[u8]) -> Result<HotSet, ControlError> {
    let bad = |error: String| ControlError::new(ControlErrorKind::Invalid, error, REMEDY);
    if bytes.len() > BODY_BYTES_MAX {
        return Err(bad(format!("a hot set of more than {BODY_BYTES_MAX} bytes")));
    }
    let set: HotSet = parse_object(bytes, &["size_bytes", "ranges"]).map_err(|e| bad(e.error))?;
    if set.ranges.len() > RANGES_MAX {
        return Err(bad(format!("a hot set of {} ranges; {RANGES_MAX} are the most", set.ranges.len())));
    }
    let blocks = set.size_bytes.div_ceil(BLOCK_BYTES);
    for &(first, count) in &set.ranges {
        // One more than the size has: blocks may begin elsewhere than the disk does.
        if count == 0 || first.checked_add(count).is_none_or(|end| end > blocks.saturating_add(1)) {
            return Err(bad(format!("{count} blocks from block {first} on are not on a disk of {blocks} blocks")));
        }
    }
    Ok(set)
}

const REMEDY: &str = "`undercroft hot-set DISK` writes one";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_follow_each_other_are_one_range_and_the_hottest_are_first() {
        // 640 blocks, the hottest at the end of the disk, and downwards, as a scan leaves them.
        let set = HotSet::new(4096 * 640, (0..640).rev().collect());
        assert_eq!((set.ranges.len(), set.ranges[0], set.bytes()), (64, (630, 10), 4096 * 640));
        let text = serde_json::to_vec(&set).unwrap();
        assert_eq!(parse(&text).unwrap(), set);
        assert_eq!(HotSet::new(4096, vec![]).ranges, []);
        assert_eq!(HotSet::new(4096 * 9, vec![7, 3]).ranges, [(7, 1), (3, 1)]);
    }

    #[test]
    fn a_budget_leaves_out_the_coldest() {
        let mut set = HotSet { size_bytes: 4096 * 100, ranges: vec![(50, 10), (0, 5), (20, 5)] };
        assert_eq!((set.cut(12), &set.ranges[..]), (8 * 4096, &[(50, 10), (0, 2)][..]));
        assert_eq!((set.cut(100), set.bytes()), (0, 12 * 4096));
        assert_eq!((set.cut(0), set.ranges.len()), (12 * 4096, 0));
    }

    #[test]
    fn what_is_no_hot_set_is_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"size_bytes": 4096}"#,
            r#"{"size_bytes": 4096, "ranges": [[0, 0]]}"#,
            r#"{"size_bytes": 4096, "ranges": [[1, 2]]}"#,
            r#"{"size_bytes": 4096, "ranges": [[0, 1, 2]]}"#,
            r#"{"size_bytes": 4096, "ranges": [[-1, 2]]}"#,
            r#"{"size_bytes": 18446744073709551615, "ranges": [[18446744073709551615, 2]]}"#,
            r#"{"size_bytes": 4096, "ranges": [], "more": 1}"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse(&vec![b' '; BODY_BYTES_MAX + 1]).is_err());
        assert!(parse(br#"{"size_bytes": 4096, "ranges": [[0, 1]]}"#).is_ok());
    }
}
