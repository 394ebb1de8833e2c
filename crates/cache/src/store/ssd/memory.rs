//! What a region takes of memory, said before there is one.
//!
//! Owns the sum. Never allocates in proportion to a region. Invariant: a region of the size never takes more,
//! but for what the rule of admission keeps of each owner that is there.

use super::admission::Admitting;
use super::format::Layout;
use super::index::Index;
use super::region::{link_bytes, owner_bytes};
use super::samples::Samples;
use super::segments::Segments;
use crate::limits::{SSD_IO_FRAMES, SSD_STAGED_MAX};
use undercroft_host::FRAME_BYTES;

/// Slots for which the rule of admission is asked at most; it takes memory in proportion to them.
const ASKED_SLOTS: u32 = 1 << 20;
/// Bytes of an arena for each of its frames besides, and of what is of no table.
const FRAME_NOTES: usize = 64;
const REST: u64 = 64 << 10;

/// Bytes of memory that a region of `region_bytes` with segments of `segment_bytes` takes at most: index, segments,
/// owners, what the rule of admission remembers (but for 1.3 KB of each owner that is there), and blocks that wait to
/// be written. 0 where there can be no such
/// region.
pub fn memory_bytes_for(region_bytes: u64, segment_bytes: u64) -> u64 {
    let layout = u32::try_from(segment_bytes).ok().and_then(|segment| Layout::new(region_bytes, segment));
    let Some(layout) = layout else { return 0 };
    let slots = layout.segments * layout.segment_blocks;
    let asked = slots.min(ASKED_SLOTS);
    let admitting = Admitting::new(asked, 0).bytes() as u64;
    let frames = (SSD_STAGED_MAX + SSD_IO_FRAMES) * (FRAME_BYTES + FRAME_NOTES);
    Index::bytes_for(slots)
        + Samples::bytes_for(slots)
        + link_bytes(&layout)
        + Segments::bytes_max(&layout)
        + (u128::from(admitting) * u128::from(slots)).div_ceil(u128::from(asked.max(1))) as u64
        + owner_bytes()
        + frames as u64
        + REST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_less_than_twelve_bytes_of_a_large_region() {
        let blocks = (1u64 << 40) / 4096;
        let bytes = memory_bytes_for(1 << 40, 2 << 20);
        assert!((10 * blocks..12 * blocks).contains(&bytes), "{bytes} for {blocks}");
        assert_eq!(memory_bytes_for(1 << 20, 2 << 20), 0, "less than there can be");
        assert_eq!(memory_bytes_for(1 << 40, 3), 0);
    }
}
