//! The exact miss curve of LRU at every size, for reads, writes and both.
//!
//! Owns the counts by stack distance. Never rounds: a size has as many misses as a cache of that size.
//! Invariant: requests are the sum of all counts and of the first requests of blocks.

use crate::curves::stack::StackDistances;
use undercroft_engine::curve::Curve;

/// Which requests a curve is of. Reads and writes share the cache: a block that was written hits when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// All.
    All,
    /// What is not a write.
    Reads,
    /// Writes.
    Writes,
}

/// Requests of one kind by stack distance.
#[derive(Clone, Debug, Default)]
struct Counts {
    by_distance: Vec<u64>,
    /// Requests for blocks that were never asked for before.
    first: u64,
}

impl Counts {
    #[inline]
    fn add(&mut self, distance: Option<u32>) {
        let Some(distance) = distance else {
            self.first += 1;
            return;
        };
        match self.by_distance.get_mut(distance as usize) {
            Some(count) => *count += 1,
            None => self.grow(distance),
        }
    }

    #[cold]
    fn grow(&mut self, distance: u32) {
        self.by_distance.resize((distance as usize + 1).next_power_of_two().max(1024), 0);
        self.by_distance[distance as usize] += 1;
    }

    fn requests(&self) -> u64 {
        self.first + self.by_distance.iter().sum::<u64>()
    }
}

/// Counts requests by stack distance, reads and writes apart.
#[derive(Default)]
pub struct ExactLru {
    distances: StackDistances,
    reads: Counts,
    writes: Counts,
}

impl ExactLru {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests in order, all of them reads.
    pub fn observe(&mut self, blocks: &[u64]) {
        let Self { distances, reads, .. } = self;
        distances.observe(blocks, |_, distance| reads.add(distance));
    }

    /// Requests in order; `writes` says for each whether it is a write.
    ///
    /// # Panics
    /// If the two are not of one length.
    pub fn observe_kinds(&mut self, blocks: &[u64], writes: &[bool]) {
        assert_eq!(blocks.len(), writes.len(), "a kind for each request");
        let Self { distances, reads, writes: written, .. } = self;
        distances.observe(blocks, |i, distance| if writes[i] { written.add(distance) } else { reads.add(distance) });
    }

    fn of(&self, which: Requests) -> Vec<&Counts> {
        match which {
            Requests::All => vec![&self.reads, &self.writes],
            Requests::Reads => vec![&self.reads],
            Requests::Writes => vec![&self.writes],
        }
    }

    /// Requests so far.
    pub fn requests(&self, which: Requests) -> u64 {
        self.of(which).iter().map(|counts| counts.requests()).sum()
    }

    /// Different blocks so far, by whatever requests.
    pub fn footprint(&self) -> u64 {
        self.distances.footprint()
    }

    /// The misses of an LRU cache of `blocks` blocks that is empty at first. In proportion to the size.
    pub fn misses_at(&self, which: Requests, blocks: u64) -> u64 {
        let hits = |counts: &&Counts| counts.by_distance.iter().take(blocks as usize).sum::<u64>();
        self.requests(which) - self.of(which).iter().map(hits).sum::<u64>()
    }

    /// The whole curve: at every whole size it says what [`ExactLru::misses_at`] does.
    pub fn curve(&self, which: Requests) -> Curve {
        let counts = self.of(which);
        let requests = self.requests(which);
        let longest = counts.iter().map(|c| c.by_distance.len()).max().unwrap_or(0);
        let mut points = vec![];
        // where the curve last had a corner, and the misses there
        let (mut last, mut misses) = (0u64, requests);
        for distance in 0..longest {
            let hits: u64 = counts.iter().map(|c| c.by_distance.get(distance).copied().unwrap_or(0)).sum();
            if hits > 0 {
                let size = distance as u64;
                if size > last {
                    points.push((size, misses as f64));
                }
                misses -= hits;
                last = size + 1;
                points.push((last, misses as f64));
            }
        }
        Curve::new(requests as f64, points)
    }

    /// Bytes of memory held: about 45 to 80 for each block, and 8 for each distance that occurred.
    pub fn memory_bytes(&self) -> usize {
        self.distances.memory_bytes()
            + (self.reads.by_distance.capacity() + self.writes.by_distance.capacity()) * size_of::<u64>()
    }
}
