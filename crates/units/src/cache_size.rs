//! Sizes of caches as people write them.
//!
//! Owns the notation, and the steps to blocks and to slots of a simulated cache, for simulations and curves, the
//! command line and Python. Never guesses a footprint.

use crate::{Percent, Size, UnitError, fail};
use std::num::IntErrorKind;
use std::str::FromStr;

/// The size of a cache: `1000blocks` or plain `1000`, `512MiB`, or `10%` of the distinct blocks that a trace asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Blocks.
    Blocks(u64),
    /// Bytes: as many whole blocks as they hold.
    Bytes(u64),
    /// A share of the footprint, above 0 to 1; at least a block.
    Share(f64),
}

impl FromStr for CacheSize {
    type Err = UnitError;

    /// # Errors
    /// A sentence that names the text and says what to write instead.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        if text.ends_with('%') {
            return text.parse::<Percent>().map(|p| CacheSize::Share(p.value() / 100.0));
        }
        let blocks = text.strip_suffix("blocks").or_else(|| text.strip_suffix("block"));
        let number = blocks.unwrap_or(text).trim_end();
        let (size, amount) = if blocks.is_some() || (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())) {
            let remedy = "write it like 1000blocks";
            let shown: String = text.chars().take(40).collect();
            let number = number.parse().map_err(|e: std::num::ParseIntError| match e.kind() {
                IntErrorKind::PosOverflow => {
                    fail(format!("\"{shown}\" is too large for a number of blocks: at most {}", u64::MAX), remedy)
                }
                _ => fail(format!("\"{shown}\" is not a number of blocks"), remedy),
            })?;
            (CacheSize::Blocks(number), number)
        } else {
            let Size(bytes) = text.parse().map_err(|e: UnitError| fail(e.problem, e.remedy + ", 10% or 1000blocks"))?;
            (CacheSize::Bytes(bytes), bytes)
        };
        if amount == 0 {
            return Err(fail(format!("\"{text}\" is no cache"), "give a block or more"));
        }
        Ok(size)
    }
}

impl CacheSize {
    /// Whether the footprint must be known.
    pub fn needs_footprint(self) -> bool {
        matches!(self, CacheSize::Share(_))
    }

    /// In blocks of `block_bytes`, rounded down, for a trace of `footprint` distinct ones; `None` for a share of a
    /// footprint that is not known.
    pub fn blocks(self, block_bytes: u64, footprint: Option<u64>) -> Option<u64> {
        match self {
            CacheSize::Blocks(blocks) => Some(blocks),
            CacheSize::Bytes(bytes) => Some(bytes / block_bytes.max(1)),
            CacheSize::Share(share) => footprint.map(|all| ((all as f64 * share) as u64).max(1)),
        }
    }

    /// The slots of a simulated cache of this size, in blocks of `block_bytes`, for a trace of `footprint` distinct
    /// blocks, if that is known. A cache that can hold the whole footprint is no larger than that: the rest would stay
    /// empty.
    ///
    /// # Errors
    /// A share without a footprint; more than [`SLOTS_MAX`].
    pub fn slots(self, block_bytes: u32, footprint: Option<u64>) -> Result<u32, SlotsError> {
        let blocks = self.blocks(block_bytes.into(), footprint).ok_or(SlotsError::NoFootprint)?;
        let blocks = footprint.map_or(blocks, |all| blocks.min(all.max(1)));
        let slots = u32::try_from(blocks).ok().filter(|slots| *slots <= SLOTS_MAX);
        slots.ok_or(SlotsError::TooLarge { blocks })
    }

    /// Several sizes in blocks of `block_bytes`, for a trace of `footprint` distinct ones: rising, each once, and none
    /// without a block.
    pub fn rising(sizes: &[CacheSize], block_bytes: u64, footprint: u64) -> Vec<u64> {
        let blocks = sizes.iter().filter_map(|s| s.blocks(block_bytes, Some(footprint)));
        let mut blocks: Vec<u64> = blocks.map(|n| n.max(1)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }
}

/// Slots that a simulated cache may have at most: what an index of them takes fits in the memory of a large machine.
pub const SLOTS_MAX: u32 = 1 << 30;

/// Why a cache of a size cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotsError {
    /// A share of what is not known.
    #[error("a share of the footprint needs the footprint; give it, or absolute sizes")]
    NoFootprint,
    /// More than [`SLOTS_MAX`].
    #[error("a cache of {blocks} blocks is larger than the {SLOTS_MAX} that can be simulated; give a smaller size")]
    TooLarge {
        /// Blocks asked for.
        blocks: u64,
    },
}

/// A size of a cache with the text that said it, which results repeat: `1GiB`, `10%`, `1000blocks`.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenSize {
    /// As it was written, without blanks around it.
    pub text: String,
    /// What it means.
    pub size: CacheSize,
}

impl FromStr for WrittenSize {
    type Err = UnitError;

    /// # Errors
    /// Those of [`CacheSize`].
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        Ok(WrittenSize { text: text.to_owned(), size: text.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_blocks_bytes_or_shares() {
        let read = |text: &str| text.parse::<CacheSize>();
        for text in ["1000", "1000blocks", "1000 blocks", " 1000block "] {
            assert_eq!(read(text), Ok(CacheSize::Blocks(1000)), "{text}");
        }
        assert_eq!(read("512MiB"), Ok(CacheSize::Bytes(512 << 20)));
        assert_eq!(read("4096B"), Ok(CacheSize::Bytes(4096)));
        assert_eq!(read(" 10% "), Ok(CacheSize::Share(0.1)));
        assert_eq!(read("0.5%"), Ok(CacheSize::Share(0.005)));
        for (bad, needle) in [
            ("512M", "write 512MiB"),
            ("0%", "write it like 5%"),
            ("101%", "is more than 100%; write it like 5%"),
            ("99999999999999999999999%", "is more than 100%"),
            ("-1%", "%"),
            ("xblocks", "1000blocks"),
            ("blocks", "1000blocks"),
            ("99999999999999999999", "is too large for a number of blocks"),
            ("18446744073709551616blocks", "is too large for a number of blocks"),
            ("99999999999999999999GiB", "is too large for a size"),
            ("", "10% or 1000blocks"),
            ("5x", "10% or 1000blocks"),
            ("0", "is no cache"),
            ("0blocks", "is no cache"),
            ("0B", "is no cache"),
        ] {
            let said = read(bad).expect_err(bad).to_string();
            assert!(said.contains(needle), "{bad}: {said}");
        }
    }

    #[test]
    fn sizes_come_to_blocks() {
        let blocks = |size: CacheSize, footprint| size.blocks(4096, footprint);
        assert_eq!(blocks(CacheSize::Blocks(7), None), Some(7));
        assert_eq!(blocks(CacheSize::Bytes(8191), None), Some(1));
        assert_eq!(blocks(CacheSize::Share(0.1), Some(186_889)), Some(18_688), "rounded down, as in the reference");
        assert_eq!(blocks(CacheSize::Share(0.001), Some(5)), Some(1), "never nothing");
        assert_eq!(blocks(CacheSize::Share(0.1), None), None);
        assert!(CacheSize::Share(0.1).needs_footprint() && !CacheSize::Bytes(1).needs_footprint());
    }

    #[test]
    fn a_cache_is_no_larger_than_the_footprint_and_the_limit() {
        let slots = |size: CacheSize, footprint| size.slots(4096, footprint);
        assert_eq!(slots(CacheSize::Bytes(8192), None), Ok(2));
        assert_eq!(slots(CacheSize::Share(0.1), None), Err(SlotsError::NoFootprint));
        assert_eq!(slots(CacheSize::Bytes(1 << 62), None), Err(SlotsError::TooLarge { blocks: 1 << 50 }));
        assert_eq!(slots(CacheSize::Bytes(1 << 62), Some(1000)), Ok(1000), "the rest would stay empty");
        assert_eq!(slots(CacheSize::Blocks(0), Some(1000)), Ok(0));
    }

    #[test]
    fn sizes_rise_and_are_there_once() {
        let sizes = [CacheSize::Share(0.5), CacheSize::Bytes(8192), CacheSize::Blocks(2), CacheSize::Bytes(1)];
        assert_eq!(CacheSize::rising(&sizes, 4096, 100), [1, 2, 50]);
    }

    #[test]
    fn a_size_keeps_its_text() {
        let read = " 1024MiB ".parse::<WrittenSize>().expect("a size");
        assert_eq!((read.text.as_str(), read.size), ("1024MiB", CacheSize::Bytes(1 << 30)));
    }
}
