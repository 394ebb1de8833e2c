//! A sample of requests, spread evenly over time, each watched until its block is asked for again.
//!
//! Owns which requests are picked and which blocks are watched. Never counts: it hands out what it has watched.
//! Invariant: of every `gap` requests one is picked; a block is watched from its latest request on, or not at all.
//!
//! A spatial sample (all requests of some blocks) is far off where few blocks have many of the requests, depending on
//! whether the hottest block is in the sample. A sample of requests has no such error: it holds the hottest block as
//! often as that block is asked for.

use crate::curves::table::{Table, Value};
use undercroft_engine::HashKey;

/// The request that is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// Its number, from 1.
    pub time: u64,
    /// A value of the sample's user.
    pub mark: u32,
}

impl Value for Watched {
    const VACANT: Self = Self { time: 0, mark: 0 };

    #[inline]
    fn is_vacant(&self) -> bool {
        self.time == 0
    }
}

/// Filter cells for each watched block.
const CELLS: usize = 8;
/// Filter cells at first.
const CELLS_MIN: usize = 1 << 14;

/// Picks requests, and tells when the block of a picked one is requested again.
pub(crate) struct Watch {
    key: HashKey,
    gap: u64,
    /// Requests so far.
    time: u64,
    /// The next request that is picked.
    next: u64,
    /// Watched blocks by a part of their hash: one byte tells that a block is not watched, for almost all requests.
    filter: Vec<u8>,
    table: Table<Watched>,
    picked: u64,
}

impl Watch {
    /// Picks one request in `1 / rate`, at least 1, rounded.
    pub fn new(rate: f64, key: HashKey) -> Self {
        let gap = (1.0 / rate).round().clamp(1.0, 1e15) as u64;
        let table = Table::new(key.derived());
        let mut watch = Self { key, gap, time: 0, next: 0, filter: vec![0; CELLS_MIN], table, picked: 0 };
        watch.next = watch.pick_after(0);
        watch
    }

    /// The request to pick among those after `start`, of which there are `gap`.
    fn pick_after(&self, start: u64) -> u64 {
        start + 1 + self.key.hash(!start) % self.gap
    }

    #[inline]
    fn cell(&self, hash: u64) -> usize {
        // the low bits: whoever samples blocks by the same hash looks at the high ones
        hash as usize & (self.filter.len() - 1)
    }

    /// The next request, for a block with this hash by the key that was given: what was watched of the block, if
    /// anything.
    #[inline]
    pub fn request(&mut self, block: u64, hash: u64) -> Option<Watched> {
        self.time += 1;
        if self.filter[self.cell(hash)] == 0 { None } else { self.seen_again(block, hash) }
    }

    #[cold]
    fn seen_again(&mut self, block: u64, hash: u64) -> Option<Watched> {
        let watched = self.table.remove(block)?;
        let cell = self.cell(hash);
        // a cell that is full has lost count, and stays
        if self.filter[cell] < u8::MAX {
            self.filter[cell] -= 1;
        }
        Some(watched)
    }

    /// Whether the latest request is picked; if so, [`Watch::watch`] must be called.
    #[inline]
    pub fn is_picked(&self) -> bool {
        self.time == self.next
    }

    /// Watches the latest request, which was for this block.
    #[cold]
    pub fn watch(&mut self, block: u64, hash: u64, mark: u32) {
        self.picked += 1;
        let start = (self.time - 1) / self.gap * self.gap + self.gap;
        self.next = self.pick_after(start);
        self.table.reserve(1);
        let home = self.table.home(block);
        *self.table.entry(block, home) = Watched { time: self.time, mark };
        if self.table.len() * CELLS > self.filter.len() {
            // twice the cells: a block's cell is its old one or the one half a filter further, so both are taken for
            // full
            self.filter.extend_from_within(..);
        }
        let cell = self.cell(hash);
        self.filter[cell] = self.filter[cell].saturating_add(1);
    }

    /// Requests so far.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Requests picked so far.
    pub fn picked(&self) -> u64 {
        self.picked
    }

    /// What is being watched.
    pub fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.table.values()
    }

    /// The marks of what is being watched, to be changed.
    pub fn marks(&mut self) -> impl Iterator<Item = &mut u32> {
        self.table.values_mut().map(|watched| &mut watched.mark)
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.filter.capacity()
    }
}
