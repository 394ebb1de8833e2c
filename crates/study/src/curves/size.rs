//! The sizes that a curve is asked at.
//!
//! Owns their order. Never guesses a footprint. Invariant: sizes rise, and no cache is without a block.

use undercroft_units::CacheSize;

/// The sizes in blocks, rising, each once, for blocks of `block_bytes` and a trace of `footprint` distinct ones.
pub fn in_blocks(sizes: &[CacheSize], block_bytes: u64, footprint: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> =
        sizes.iter().filter_map(|s| s.blocks(block_bytes, Some(footprint))).map(|n| n.max(1)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rise_and_are_there_once() {
        let sizes = [CacheSize::Share(0.5), CacheSize::Bytes(8192), CacheSize::Blocks(2), CacheSize::Bytes(1)];
        assert_eq!(in_blocks(&sizes, 4096, 100), [1, 2, 50]);
    }
}
