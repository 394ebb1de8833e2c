//! Sizes of caches as people write them.
//!
//! Owns the notation and the step to blocks, for simulations and curves, the command line and Python. Never guesses a
//! footprint.

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
}
