//! What a disk costs in memory, data and metadata, before it is added; what a core has beyond that.
//!
//! Owns the arithmetic of the ceiling. Never allocates. Invariant: the sum of what is promised to the disks stays
//! under the ceiling, and each disk stays under what it was promised, at the most it can ever have under way.

use super::DISK_BYTES;
use super::guest::GuestSide;
use super::operations::Operations;
use super::reads::near::NearBlocks;
use super::reads::waiters::Waiters;
use super::requests::Requests;
use super::sharing::Sharing;
use super::slab::Slab;
use super::writes::changes::Changes;
use super::writes::losses::PORTS_BYTES;
use super::writes::segment::Segment;
use crate::limits::{
    CONTENT_BYTES_PER_BLOCK_MAX, IO_BLOCKS_MAX, IO_FRAMES_PER_DISK_MIN, LATER_MAX, METADATA_BYTES_PER_BLOCK_MAX,
    OPS_PER_DISK_MAX, REQUEST_OPS_MAX, SPARE_LISTS_MAX,
};
use crate::store::ram::{PAGE_BYTES, SHARE_BYTES_PER_FRAME};
use crate::types::CoreOptions;
use undercroft_host::{FRAME_BYTES, Frame};

/// Bytes of metadata that an arena keeps per frame it reserves: its place in the list of free ones, and its holders.
pub(crate) const ARENA_BYTES_PER_FRAME: usize = 6;

/// Bytes of metadata that a frame reserved may take while it is not in use.
pub(crate) fn place_bytes(contents: bool) -> usize {
    ARENA_BYTES_PER_FRAME + if contents { PAGE_BYTES } else { 0 }
}

/// Bytes that a frame in use takes.
fn frame_bytes(contents: bool) -> usize {
    FRAME_BYTES + ARENA_BYTES_PER_FRAME + if contents { SHARE_BYTES_PER_FRAME } else { 0 }
}

/// Bytes that each block of capacity takes from a ceiling.
pub(crate) fn block_bytes(options: &CoreOptions) -> u64 {
    let contents = if options.contents { CONTENT_BYTES_PER_BLOCK_MAX } else { 0 };
    (FRAME_BYTES + METADATA_BYTES_PER_BLOCK_MAX + contents) as u64
}

/// What an index holds whatever its capacity: the least size of its tables.
const INDEX_FIXED_BYTES: usize = 16 * 1024;

/// What operations of one disk may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// Frames for reads and writes that requests wait for.
    pub demand: usize,
    /// Frames for blocks read ahead, under way and unused: apart, so that read-ahead never keeps a request waiting.
    pub ahead: usize,
    /// Frames behind contents that wait to be hashed.
    pub later: usize,
    /// Operations with frames, read-ahead not counted.
    pub ops: usize,
    /// Operations and joined reads that one request waits for at a time.
    pub window: u32,
    /// Requests.
    pub requests: usize,
    /// Reads joined and waited for.
    pub waiters: usize,
    /// Bytes that each of those frames takes.
    frame_bytes: usize,
    /// Bytes of metadata that were promised with it.
    promised_fixed_bytes: usize,
}

impl Allowance {
    /// The allowance of a disk of `capacity_blocks` that reads ahead `readahead_bytes` at most.
    pub(crate) fn new(options: &CoreOptions, capacity_blocks: u32, readahead_bytes: u32) -> Self {
        let most = options.io_frames_per_disk.max(1) as usize;
        let frames = (capacity_blocks as usize / 4).max(IO_FRAMES_PER_DISK_MIN).min(most);
        let mut allowance = Self {
            demand: frames,
            ahead: 0,
            later: if options.contents { LATER_MAX } else { 0 },
            ops: 0,
            window: 0,
            requests: options.requests_per_disk.max(1) as usize,
            waiters: 2 * frames + 64,
            frame_bytes: frame_bytes(options.contents),
            promised_fixed_bytes: 0,
        };
        allowance.split(allowance.ahead_for(readahead_bytes));
        allowance.promised_fixed_bytes = allowance.fixed_bytes();
        allowance
    }

    /// Frames for blocks to be read ahead, where `readahead_bytes` are read ahead at most.
    pub(super) fn ahead_for(&self, readahead_bytes: u32) -> usize {
        ((self.demand + self.ahead) / 2).min(readahead_bytes as usize / FRAME_BYTES * 2)
    }

    /// Gives `ahead` of the frames to read-ahead, the others to requests; what is promised stays.
    pub(super) fn split(&mut self, ahead: usize) {
        let frames = self.demand + self.ahead;
        (self.ahead, self.demand) = (ahead, frames - ahead);
        self.ops = self.demand.min(OPS_PER_DISK_MAX);
        self.window = (self.ops as u32).div_ceil(2).min(REQUEST_OPS_MAX);
    }

    /// The same with `ahead` frames for read-ahead.
    pub(super) fn with_ahead(mut self, ahead: usize) -> Self {
        self.split(ahead);
        self
    }

    /// Bytes of metadata beyond those promised, with `ahead` frames for read-ahead.
    pub(super) fn more_bytes(&self, ahead: usize) -> usize {
        self.with_ahead(ahead).fixed_bytes().saturating_sub(self.promised_fixed_bytes)
    }

    /// So many bytes of metadata more are promised.
    pub(super) fn promise_more(&mut self, bytes: usize) {
        self.promised_fixed_bytes += bytes;
    }

    /// Frames of all kinds.
    pub(crate) fn frames(&self) -> usize {
        self.demand + self.ahead + self.later
    }

    /// Operations of any kind that may be under way at a time: with frames, and one without per request.
    pub(super) fn ops_of_any_kind(&self) -> usize {
        self.ops + self.ahead + self.requests
    }

    /// Blocks that the table of blocks near at hand must hold.
    pub(super) fn near_blocks(&self) -> usize {
        self.demand + self.ahead
    }

    /// Bytes that a disk with this allowance takes from a ceiling, besides its blocks.
    pub(crate) fn bytes(&self) -> u64 {
        let frames = self.frames() * self.frame_bytes;
        (frames + self.promised_fixed_bytes) as u64
    }

    /// Bytes of metadata that a disk with this allowance holds at most, those per block not counted.
    fn fixed_bytes(&self) -> usize {
        let lists = (self.ops + self.ahead + SPARE_LISTS_MAX) * IO_BLOCKS_MAX * size_of::<Frame>();
        DISK_BYTES
            + PORTS_BYTES
            + INDEX_FIXED_BYTES
            + Requests::bytes_max(self.requests)
            + Operations::bytes_max(self.ops_of_any_kind())
            + Waiters::bytes_max(self.waiters)
            + Slab::<Segment>::bytes_max(self.ops)
            + Changes::bytes_max(self.requests)
            + NearBlocks::bytes_max(self)
            + GuestSide::later_bytes_max()
            + Sharing::queue_bytes_max()
            + lists
    }
}

/// Bytes that a disk of `capacity_blocks` takes from a core's ceiling: its blocks, their metadata, and what its
/// operations under way may hold.
pub fn disk_bytes(options: &CoreOptions, capacity_blocks: u32, readahead_bytes: u32) -> u64 {
    let allowance = Allowance::new(options, capacity_blocks, readahead_bytes);
    u64::from(capacity_blocks) * block_bytes(options) + allowance.bytes()
}

/// Frames that such a disk may hold, operations included.
pub(crate) fn disk_frames(options: &CoreOptions, capacity_blocks: u32, readahead_bytes: u32) -> u64 {
    let allowance = Allowance::new(options, capacity_blocks, readahead_bytes);
    u64::from(capacity_blocks) + allowance.frames() as u64
}

/// The most blocks that each of `disks` equal disks can keep under the ceiling of `options`; 0 if not even disks
/// without a cache fit.
pub fn blocks_per_disk_max(options: &CoreOptions, disks: u32, readahead_bytes: u32) -> u32 {
    let share = usable_bytes(options) / u64::from(disks.max(1));
    // `disk_bytes` grows with the capacity, so the answer can be searched for by halves.
    let (mut fits, mut over) = (0u32, u32::MAX);
    while over - fits > 1 {
        let mid = fits + (over - fits) / 2;
        if disk_bytes(options, mid, readahead_bytes) <= share { fits = mid } else { over = mid }
    }
    fits
}

/// Frames that an arena under the ceiling reserves.
pub(crate) fn arena_frames(options: &CoreOptions) -> usize {
    let frames = options.memory_bytes / frame_bytes(options.contents) as u64;
    usize::try_from(frames).unwrap_or(usize::MAX / (2 * FRAME_BYTES)).max(1)
}

/// What is left of a ceiling for disks: `disk_bytes` charges each frame for its place in the arena, but the arena
/// keeps a place for every frame that could be.
pub(crate) fn usable_bytes(options: &CoreOptions) -> u64 {
    let blocks_at_most = options.memory_bytes / block_bytes(options);
    let idle_places = (arena_frames(options) as u64).saturating_sub(blocks_at_most);
    options.memory_bytes.saturating_sub(idle_places * place_bytes(options.contents) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_blocks_fit_and_one_more_does_not() {
        for (mib, disks) in [(64u64, 1u32), (64, 4), (1024, 1), (1024, 7), (1 << 20, 1)] {
            let o = CoreOptions::new(mib << 20);
            let n = blocks_per_disk_max(&o, disks, 1 << 20);
            let share = usable_bytes(&o) / u64::from(disks);
            assert!(disk_bytes(&o, n, 1 << 20) <= share && disk_bytes(&o, n + 1, 1 << 20) > share);
            assert!(n > 0, "{mib} MiB for {disks} disks");
        }
        assert_eq!(blocks_per_disk_max(&CoreOptions::new(1 << 16), 1, 0), 0);
    }

    #[test]
    fn a_large_store_spends_little_but_on_blocks() {
        for (contents, percent) in [(false, 97), (true, 96)] {
            let o = CoreOptions { contents, ..CoreOptions::new(1 << 30) };
            let n = blocks_per_disk_max(&o, 1, 1 << 20) as u64;
            assert!(n * 4096 > (1 << 30) * percent / 100, "{n} blocks of 1GiB");
        }
    }

    #[test]
    fn a_small_disk_gets_a_small_allowance() {
        let o = CoreOptions::new(1 << 30);
        let small = Allowance::new(&o, 16, 1 << 20);
        assert_eq!(small.demand + small.ahead, IO_FRAMES_PER_DISK_MIN);
        let none = Allowance::new(&o, 1 << 20, 0);
        assert_eq!((none.demand, none.ahead), (crate::limits::IO_FRAMES_PER_DISK, 0));
    }
}
