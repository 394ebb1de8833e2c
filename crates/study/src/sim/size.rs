//! The slots of a simulated cache.
//!
//! Owns the step from a size to slots, and their limit. Never guesses a footprint.

use crate::sim::Error;
use undercroft_units::CacheSize;

/// Slots that a simulated cache may have at most: what an index of them takes fits in the memory of a large machine.
pub const SLOTS_MAX: u32 = 1 << 30;

/// The slots of a cache of `size`, in blocks of `block_bytes`, for a trace of `footprint` distinct blocks, if that is
/// known.
///
/// A cache that can hold the whole footprint is no larger than that: the rest would stay empty.
///
/// # Errors
/// A share without a footprint; more than [`SLOTS_MAX`].
pub fn slots(size: CacheSize, block_bytes: u32, footprint: Option<u64>) -> Result<u32, Error> {
    let blocks = size.blocks(block_bytes.into(), footprint).ok_or_else(|| {
        Error::Options("a share of the footprint needs the footprint; give it, or absolute sizes".into())
    })?;
    let blocks = footprint.map_or(blocks, |all| blocks.min(all.max(1)));
    match u32::try_from(blocks) {
        Ok(blocks) if blocks <= SLOTS_MAX => Ok(blocks),
        _ => Err(Error::TooLarge { blocks, max: SLOTS_MAX }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_no_larger_than_the_footprint_and_the_limit() {
        let slots = |size, footprint| slots(size, 4096, footprint).ok();
        assert_eq!(slots(CacheSize::Bytes(8192), None), Some(2));
        assert_eq!(slots(CacheSize::Share(0.1), None), None);
        assert_eq!(slots(CacheSize::Bytes(1 << 62), None), None);
        assert_eq!(slots(CacheSize::Bytes(1 << 62), Some(1000)), Some(1000), "the rest would stay empty");
        assert_eq!(slots(CacheSize::Blocks(0), Some(1000)), Some(0));
    }
}
