//! How often each block was asked for lately, roughly.
//!
//! Owns counters that blocks share; an estimate may be too high, never too low (between two agings).

use crate::table::HashKey;

#[derive(Debug)]
pub(crate) struct Sketch {
    counters: Vec<u8>,
    key: HashKey,
}

impl Sketch {
    pub fn new(entries: u32, key: HashKey) -> Self {
        Self { counters: vec![0; entries as usize * 12 + 12], key }
    }
    fn places(&self, block: u64) -> [usize; 4] {
        let hash = self.key.hash(block);
        let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
        [0, 1, 2, 3].map(|i| start.wrapping_add(step.wrapping_mul(i)) as usize % self.counters.len())
    }
    pub fn estimate(&self, block: u64) -> u8 {
        self.places(block).into_iter().map(|at| self.counters[at]).min().unwrap_or(0)
    }
    pub fn add(&mut self, block: u64) {
        self.places(block).into_iter().for_each(|at| self.counters[at] = self.counters[at].saturating_add(1));
    }
    pub fn halve(&mut self) {
        self.counters.iter_mut().for_each(|c| *c >>= 1);
    }
    pub fn memory_bytes(&self) -> usize {
        self.counters.capacity()
    }
}
