//! How many other blocks were asked for since a block was asked for last: its stack distance, which says in how large
//! an LRU cache the request hits (Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal 1970).
//!
//! Owns the position in time of each block. Never counts requests. Invariant: each block of the table has one live
//! position.
//!
//! Positions are bits, and counts of bits (see [`Recency`]): for a million blocks they fit into a core's own cache,
//! where a tree over time of the usual kind (Bennett and Kruskal, 1975; Olken, 1981) does not. When all positions are
//! taken the live ones are made dense, so the memory follows the footprint and not the length of the trace.

use crate::curves::table::{BATCH, Table, Value};
use undercroft_engine::HashKey;
use undercroft_engine::curve::Recency;

/// Positions at first.
const POSITIONS_MIN: u32 = 1 << 16;
/// Positions for each live one after making dense: it happens at least three times the footprint's requests apart.
const POSITIONS_PER_BLOCK: u32 = 4;
/// No distance: the first request for its block.
const FIRST: u32 = u32::MAX;
/// Positions that there can be: one below the value that is vacant.
const POSITIONS_MAX: u32 = u32::MAX - 1023;

/// Computes the stack distance of each request.
pub struct StackDistances {
    table: Table<u32>,
    recency: Recency,
}

impl Default for StackDistances {
    fn default() -> Self {
        Self::new()
    }
}

impl StackDistances {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self { table: Table::new(HashKey::from_seed(1)), recency: Recency::new(POSITIONS_MIN) }
    }

    /// Requests in order; `each` gets the place of a request in `blocks` and its distance: how many other blocks were
    /// asked for since its block was, or `None` if it never was. Longer slices are faster than single requests.
    ///
    /// # Panics
    /// If there are more than four thousand million different blocks; the table of so many takes 128 GiB.
    #[inline]
    pub fn observe(&mut self, blocks: &[u64], mut each: impl FnMut(usize, Option<u32>)) {
        let mut homes = [0; BATCH];
        let mut distances = [FIRST; BATCH];
        for (batch, blocks) in blocks.chunks(BATCH).enumerate() {
            self.table.reserve(blocks.len());
            self.table.warm(blocks, &mut homes);
            for ((&block, &home), distance) in blocks.iter().zip(&homes).zip(&mut distances) {
                if self.recency.is_used_up() {
                    self.make_dense();
                }
                let position = self.table.entry(block, home);
                *distance = if position.is_vacant() {
                    FIRST
                } else {
                    let older = self.recency.older_than(*position);
                    self.recency.remove(*position);
                    // without the block itself there is one live position less
                    self.recency.live() - older
                };
                *position = self.recency.push();
            }
            // apart, since each counts somewhere in a large array: a short loop has many of these misses under way at
            // once
            for (i, &distance) in distances[..blocks.len()].iter().enumerate() {
                each(batch * BATCH + i, (distance != FIRST).then_some(distance));
            }
        }
    }

    #[cold]
    fn make_dense(&mut self) {
        self.recency.sum_up();
        for position in self.table.values_mut() {
            *position = self.recency.rank(*position);
        }
        let live = self.recency.live();
        assert!(live < POSITIONS_MAX / 2, "{live} different blocks are too many");
        let positions = live.saturating_mul(POSITIONS_PER_BLOCK).clamp(POSITIONS_MIN, POSITIONS_MAX);
        self.recency.make_dense(live, positions);
    }

    /// Different blocks so far.
    pub fn footprint(&self) -> u64 {
        self.table.len() as u64
    }

    /// Bytes of memory held: 32 to 64 for each block, and one bit for each of the positions, two to four of a block.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.recency.memory_bytes()
    }
}
