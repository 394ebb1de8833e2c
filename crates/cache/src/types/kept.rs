//! A cached block as another process is told of it.
//!
//! Owns nothing. Invariant: a frame's number means something together with the memory of its core alone.

mod list;

pub use list::{KeptDisk, KeptList, UnusableList};

use undercroft_engine::Tier;

/// The cached blocks of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptBlocks {
    /// Bytes that are counted before the disk's first one, less than a block: the numbers of blocks mean something
    /// together with them.
    pub lead_bytes: u32,
    /// Those first that would be evicted first.
    pub blocks: Vec<KeptBlock>,
}

/// A cached block, and the number of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBlock {
    /// The block.
    pub block: u64,
    /// Its frame in the memory of the core, or [`KeptBlock::ZEROES`].
    pub frame: u32,
    /// Its tier.
    pub tier: Tier,
}

impl KeptBlock {
    /// In place of a frame: a block of zeroes has none.
    pub const ZEROES: u32 = u32::MAX;
}
