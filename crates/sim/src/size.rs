//! How large a cache is to be: in blocks, in bytes, or as a share of what the trace touches.
//!
//! Owns the step from such a size to blocks. Never guesses a footprint.

use crate::Error;

/// Slots that a simulated cache may have at most: what an index of them takes fits in the memory of a large machine.
pub const SLOTS_MAX: u32 = 1 << 30;

/// The size of a simulated cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// So many blocks.
    Blocks(u64),
    /// So many bytes: as many whole blocks as they hold.
    Bytes(u64),
    /// This part (0 to 1) of the distinct blocks of the trace, at least one block.
    Share(f64),
}

impl CacheSize {
    /// Whether the footprint must be known.
    pub fn needs_footprint(self) -> bool {
        matches!(self, CacheSize::Share(_))
    }

    /// The size in blocks of `block_bytes` for a trace of `footprint` distinct blocks, if that is known.
    ///
    /// A cache that can hold the whole footprint is no larger than that: the rest would stay empty.
    ///
    /// # Errors
    /// A share without a footprint; more than [`SLOTS_MAX`].
    pub fn blocks(self, block_bytes: u32, footprint: Option<u64>) -> Result<u32, Error> {
        let blocks = match self {
            CacheSize::Blocks(blocks) => blocks,
            CacheSize::Bytes(bytes) => bytes / u64::from(block_bytes.max(1)),
            CacheSize::Share(share) => {
                let footprint = footprint.ok_or_else(|| {
                    Error::Options("a share of the footprint needs the footprint; give it, or absolute sizes".into())
                })?;
                // The reference counts round down, too.
                ((footprint as f64 * share) as u64).max(1)
            }
        };
        let blocks = footprint.map_or(blocks, |all| blocks.min(all.max(1)));
        match u32::try_from(blocks) {
            Ok(blocks) if blocks <= SLOTS_MAX => Ok(blocks),
            _ => Err(Error::TooLarge { blocks, max: SLOTS_MAX }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_to_blocks() {
        let blocks = |size: CacheSize, footprint| size.blocks(4096, footprint).ok();
        assert_eq!(blocks(CacheSize::Blocks(7), None), Some(7));
        assert_eq!(blocks(CacheSize::Bytes(8191), None), Some(1));
        assert_eq!(blocks(CacheSize::Share(0.1), Some(186_880)), Some(18_688));
        assert_eq!(blocks(CacheSize::Share(0.001), Some(5)), Some(1), "never nothing");
        assert_eq!(blocks(CacheSize::Share(0.1), None), None);
        assert_eq!(blocks(CacheSize::Bytes(1 << 62), None), None);
        assert_eq!(blocks(CacheSize::Bytes(1 << 62), Some(1000)), Some(1000), "the rest would stay empty");
        assert_eq!(blocks(CacheSize::Blocks(0), Some(1000)), Some(0));
    }
}
