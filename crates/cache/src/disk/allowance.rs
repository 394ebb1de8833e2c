//! What a disk costs in memory, data and metadata, before it is added; what a core has beyond that.
//!
//! Owns the arithmetic of the ceiling. Never allocates. Invariant: the sum of what is promised to the disks stays under
//! the ceiling. A disk is promised its blocks, the tables for the most that it can ever have under way, frames for a
//! part of that, and what it brings into the pool out of which its core lends frames for the rest; so all disks
//! together stay under what they were promised.

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
    CONTENT_BYTES_PER_BLOCK_MAX, IO_FRAMES_GUARANTEED_LEAST, IO_FRAMES_LEAST, LATER_GUARANTEED, LATER_GUARANTEED_LEAST,
    METADATA_BYTES_PER_BLOCK_MAX, OPS_LEAST, OPS_PER_DISK_MAX, POOL_PART, REQUEST_OPS_MAX, REQUESTS_LEAST,
};
use crate::store::ram::{DEDUPLICATION_BYTES_PER_FRAME, PAGE_BYTES};
use crate::types::{CoreOptions, IoNeeds};
use undercroft_host::FRAME_BYTES;

/// Bytes of metadata that an arena keeps per frame it reserves: its place in the list of free ones, and its holders.
pub(crate) const ARENA_BYTES_PER_FRAME: usize = 6;

/// Bytes of metadata that a frame reserved may take while it is not in use.
pub(crate) fn place_bytes(contents: bool) -> usize {
    ARENA_BYTES_PER_FRAME + if contents { PAGE_BYTES } else { 0 }
}

/// Bytes that a frame in use takes.
pub(crate) fn frame_bytes(contents: bool) -> usize {
    FRAME_BYTES + ARENA_BYTES_PER_FRAME + if contents { DEDUPLICATION_BYTES_PER_FRAME } else { 0 }
}

/// Bytes that each block of capacity takes from a ceiling.
pub(crate) fn block_bytes(options: &CoreOptions) -> u64 {
    let contents = if options.contents { CONTENT_BYTES_PER_BLOCK_MAX } else { 0 };
    (FRAME_BYTES + METADATA_BYTES_PER_BLOCK_MAX + contents) as u64
}

/// What an index holds whatever its capacity: the least size of its tables.
const INDEX_FIXED_BYTES: usize = 16 * 1024;

/// What operations of one disk may have under way, and what of it the disk is guaranteed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// Frames for reads and writes that requests wait for.
    pub demand: usize,
    /// Frames for blocks read ahead, under way and unused: apart, so that read-ahead never keeps a request waiting.
    pub ahead: usize,
    /// Of either, how many need no loan.
    pub guaranteed: usize,
    /// Operations with frames, read-ahead not counted.
    pub ops: usize,
    /// The most that they may be.
    ops_max: usize,
    /// Operations and joined reads that one request waits for at a time.
    pub window: u32,
    /// Requests.
    pub requests: usize,
    /// Reads joined and waited for.
    pub waiters: usize,
    /// Frames behind contents that wait to be hashed which need no loan.
    pub later: usize,
    /// The most that the disk brings into the pool of its core: the same for all disks of a pool, whichever pays.
    pool_part_max: u32,
    /// Bytes that each of those frames takes.
    frame_bytes: usize,
    /// Bytes of metadata that were promised with it.
    promised_fixed_bytes: usize,
}

impl Allowance {
    /// The allowance of a disk with these needs.
    pub(crate) fn new(options: &CoreOptions, needs: IoNeeds) -> Self {
        // A part of what one disk has, and no less than the least.
        let part = |all: usize, least: usize| (all / needs.disks.max(1) as usize).max(least.min(all)).max(1);
        let frames = part(options.io_frames_per_disk as usize, IO_FRAMES_LEAST);
        let mut allowance = Self {
            demand: frames,
            ahead: 0,
            guaranteed: part(options.io_frames_guaranteed as usize, IO_FRAMES_GUARANTEED_LEAST),
            later: if options.contents { part(LATER_GUARANTEED, LATER_GUARANTEED_LEAST) } else { 0 },
            pool_part_max: options.io_frames_per_disk.max(1),
            ops: 0,
            ops_max: part(OPS_PER_DISK_MAX, OPS_LEAST),
            window: 0,
            requests: part(options.requests_per_disk as usize, REQUESTS_LEAST),
            waiters: 2 * frames + 64,
            frame_bytes: frame_bytes(options.contents),
            promised_fixed_bytes: 0,
        };
        allowance.split(allowance.ahead_for(needs.readahead_bytes));
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
        self.ops = self.demand.min(self.ops_max);
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

    /// Frames of all kinds that the disk is guaranteed.
    pub(crate) fn guaranteed_frames(&self) -> usize {
        (2 * self.guaranteed).min(self.demand + self.ahead) + self.later
    }

    /// Frames that a disk of `blocks` blocks brings into the pool of its core.
    pub(crate) fn pool_part(&self, blocks: u32) -> u32 {
        (blocks / POOL_PART).min(self.pool_part_max)
    }

    /// Operations of any kind that may be under way at a time: with frames, and one without per request.
    pub(super) fn ops_of_any_kind(&self) -> usize {
        self.ops + self.ahead + self.requests
    }

    /// Blocks that the table of blocks near at hand must hold.
    pub(super) fn near_blocks(&self) -> usize {
        self.demand + self.ahead
    }

    /// Bytes that a disk of `blocks` blocks takes from a ceiling, besides those blocks: what its operations are
    /// guaranteed, their tables, and what it brings into the pool.
    pub(crate) fn bytes(&self, blocks: u32) -> u64 {
        let frames = (self.guaranteed_frames() + self.pool_part(blocks) as usize) * self.frame_bytes;
        (frames + self.promised_fixed_bytes) as u64
    }

    /// The most blocks of `block_bytes` each that take no more than `bytes` with what they bring into the pool.
    pub(crate) fn blocks_within(&self, bytes: u64, block_bytes: u64) -> u64 {
        let (part, frame) = (u64::from(POOL_PART), self.frame_bytes as u64);
        let most = u64::from(self.pool_part(u32::MAX)) * frame;
        // Up to its most, the part grows with the blocks.
        let growing = (u128::from(bytes) * u128::from(part) / u128::from(block_bytes * part + frame)) as u64;
        growing.max(bytes.saturating_sub(most) / block_bytes)
    }

    /// Bytes of metadata that a disk with this allowance holds at most, those per block not counted.
    fn fixed_bytes(&self) -> usize {
        DISK_BYTES
            + PORTS_BYTES
            + INDEX_FIXED_BYTES
            + Requests::bytes_max(self.requests)
            + Operations::bytes_max(self.ops_of_any_kind())
            + Operations::lists_bytes_max(self.demand + self.ahead)
            + Waiters::bytes_max(self.waiters)
            + Slab::<Segment>::bytes_max(self.ops)
            + Changes::bytes_max(self.requests)
            + NearBlocks::bytes_max(self)
            + GuestSide::later_bytes_max()
            + Sharing::queue_bytes_max()
    }
}

/// Bytes that a disk of `capacity_blocks` takes from a core's ceiling: its blocks, their metadata, what its operations
/// under way are guaranteed, and what it brings into the pool that the disks of the core share.
pub fn disk_bytes(options: &CoreOptions, capacity_blocks: u32, needs: impl Into<IoNeeds>) -> u64 {
    let allowance = Allowance::new(options, needs.into());
    u64::from(capacity_blocks) * block_bytes(options) + allowance.bytes(capacity_blocks)
}

/// Frames of that.
pub(crate) fn disk_frames(options: &CoreOptions, capacity_blocks: u32, needs: IoNeeds) -> u64 {
    let allowance = Allowance::new(options, needs);
    let pool_part = allowance.pool_part(capacity_blocks);
    u64::from(capacity_blocks) + u64::from(pool_part) + allowance.guaranteed_frames() as u64
}

/// The most blocks that each of `disks` equal disks can keep under the ceiling of `options`; 0 if not even disks
/// without a cache fit.
pub fn blocks_per_disk_max(options: &CoreOptions, disks: u32, needs: impl Into<IoNeeds>) -> u32 {
    let needs = needs.into();
    let share = usable_bytes(options) / u64::from(disks.max(1));
    // `disk_bytes` grows with the capacity, so the answer can be searched for by halves.
    let (mut fits, mut over) = (0u32, u32::MAX);
    while over - fits > 1 {
        let mid = fits + (over - fits) / 2;
        if disk_bytes(options, mid, needs) <= share { fits = mid } else { over = mid }
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
    fn a_share_of_eleven_mib_caches_nine() {
        let nine = (9 << 20) / FRAME_BYTES as u32;
        for disks in [1, 2, 7] {
            let o = CoreOptions::new(u64::from(disks) * (11 << 20));
            let blocks = blocks_per_disk_max(&o, disks, 512 << 10);
            assert!(blocks >= nine, "{blocks} blocks for each of {disks}");
        }
    }

    #[test]
    fn what_a_share_holds_is_the_same_whichever_way_it_is_asked() {
        let o = CoreOptions::new(1 << 30);
        let allowance = Allowance::new(&o, (512 << 10).into());
        let block = block_bytes(&o);
        for blocks in [0u32, 1, 63, 64, 2500, 70_000, 131_071, 131_072, 200_000, 3_000_000] {
            let bytes = u64::from(blocks) * block + allowance.bytes(blocks);
            let within = allowance.blocks_within(bytes - allowance.bytes(0), block);
            assert!(within <= u64::from(blocks) && within + 1 >= u64::from(blocks), "{within} of {blocks}");
            let more = u64::from(blocks) * block * 3 / 2;
            let most = allowance.blocks_within(more, block) as u32;
            assert!(u64::from(most) * block + allowance.bytes(most) <= more + allowance.bytes(0));
        }
    }

    #[test]
    fn disks_of_a_pool_take_little_more_than_one() {
        let o = CoreOptions::new(1 << 30);
        let bytes = |disks| Allowance::new(&o, IoNeeds { readahead_bytes: 512 << 10, disks }).bytes(0);
        for disks in [2u32, 4] {
            // What each has whatever its operations may have: records, the least of tables.
            let own = u64::from(disks) * (96 << 10);
            let all = u64::from(disks) * bytes(disks);
            assert!(all < bytes(1) + own, "{disks} disks: {all} bytes, one: {}", bytes(1));
        }
        let least = Allowance::new(&o, IoNeeds { readahead_bytes: 512 << 10, disks: 1000 });
        assert_eq!((least.demand + least.ahead, least.requests), (IO_FRAMES_LEAST, REQUESTS_LEAST));
        assert!(least.demand >= IO_FRAMES_LEAST / 2 && least.window > 1, "{least:?}");
        assert_eq!(least.guaranteed_frames(), 2 * IO_FRAMES_GUARANTEED_LEAST + LATER_GUARANTEED_LEAST);
        // Who pays for a pool brings the same part, whatever its own operations may have.
        assert_eq!(least.pool_part(1 << 30), Allowance::new(&o, 0.into()).pool_part(1 << 30));
    }

    #[test]
    fn what_disks_are_guaranteed_does_not_depend_on_their_capacity() {
        let o = CoreOptions::new(1 << 30);
        let some = Allowance::new(&o, (1 << 20).into());
        assert_eq!(some.guaranteed_frames(), 2 * crate::limits::IO_FRAMES_GUARANTEED + LATER_GUARANTEED);
        assert_eq!((some.pool_part(6400), some.pool_part(1 << 30)), (100, crate::limits::IO_FRAMES_PER_DISK as u32));
        let none = Allowance::new(&o, 0.into());
        assert_eq!((none.demand, none.ahead), (crate::limits::IO_FRAMES_PER_DISK, 0));
        let least = Allowance::new(&CoreOptions { io_frames_per_disk: 1, contents: false, ..o }, (1 << 20).into());
        assert_eq!((least.guaranteed_frames(), least.demand, least.ahead), (1, 1, 0));
    }
}
