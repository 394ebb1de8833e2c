//! Sizes of caches as people write them for curves.
//!
//! Owns the notation and the step to blocks, for the command line and for Python. Never guesses a footprint.

use std::str::FromStr;
use undercroft_units::{Percent, Size, UnitError};

/// The size of a cache: `1000` blocks, `512MiB`, or `10%` of the blocks that the trace asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Blocks.
    Blocks(u64),
    /// Bytes.
    Bytes(u64),
    /// A part of the footprint, above 0 to 1.
    Part(f64),
}

impl FromStr for CacheSize {
    type Err = String;

    /// # Errors
    /// A sentence that says what to write instead.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.ends_with('%') {
            return text.parse::<Percent>().map(|p| CacheSize::Part(p.value() / 100.0)).map_err(|e| e.to_string());
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            let blocks = text.parse::<u64>().ok().filter(|&n| n > 0);
            return blocks.map(CacheSize::Blocks).ok_or_else(|| format!("{text} blocks are no cache; give 1 or more"));
        }
        let bytes: Size = text.parse().map_err(|e: UnitError| e.to_string())?;
        if bytes.0 == 0 { Err(format!("{text} is no cache; give more")) } else { Ok(CacheSize::Bytes(bytes.0)) }
    }
}

impl CacheSize {
    /// In blocks, at least 1.
    pub fn blocks(self, block_bytes: u64, footprint: u64) -> u64 {
        let blocks = match self {
            CacheSize::Blocks(blocks) => blocks,
            CacheSize::Bytes(bytes) => bytes / block_bytes.max(1),
            CacheSize::Part(part) => (footprint as f64 * part).round() as u64,
        };
        blocks.max(1)
    }
}

/// The sizes in blocks, rising, each once, for blocks of `block_bytes` and a trace of `footprint` distinct ones.
pub fn in_blocks(sizes: &[CacheSize], block_bytes: u64, footprint: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> = sizes.iter().map(|s| s.blocks(block_bytes, footprint)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_blocks_bytes_or_parts() {
        let read = |text: &str| text.parse::<CacheSize>();
        assert_eq!(read("1000"), Ok(CacheSize::Blocks(1000)));
        assert_eq!(read("512MiB"), Ok(CacheSize::Bytes(512 << 20)));
        assert_eq!(read("0.5%"), Ok(CacheSize::Part(0.005)));
        for bad in ["", "0", "0B", "101%", "5x", "512M"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(CacheSize::Bytes(8192).blocks(4096, 0), 2);
        assert_eq!(CacheSize::Part(0.1).blocks(4096, 57), 6);
        assert_eq!(CacheSize::Part(0.001).blocks(4096, 10), 1, "a cache has a block");
    }
}
