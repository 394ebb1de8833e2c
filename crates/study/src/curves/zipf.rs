//! How far a trace is like Zipf's law: the exponent that makes its counts most likely, and how good the fit is.
//!
//! Owns the counts by block and the search. Never assumes a footprint: only blocks asked for often enough to be ranked
//! count. Invariant: the result depends on the counts alone, not on which block has which.
//!
//! Zipf's law gives the block of rank r a part of the requests that is in proportion to 1 / r^alpha. Maximum
//! likelihood: the exponent at which the mean of ln(rank) is what the law expects (as for the discrete power law of
//! Clauset, Shalizi and Newman, SIAM Review 2009). Ranks of rare blocks are mere chance, so the law is held against the
//! head: the blocks with at least [`COUNT_MIN`] requests.

use crate::curves::table::{BATCH, Table, Value};
use undercroft_engine::HashKey;

/// Requests that a block needs to have a rank that means something: counts vary by their square root.
pub const COUNT_MIN: u32 = 32;
/// Blocks without which there is nothing to fit.
const RANKS_MIN: usize = 10;
/// The exponents that are looked at.
const ALPHA_MAX: f64 = 10.0;

/// Requests by block.
pub struct Popularity {
    table: Table<u32>,
}

/// A fit of Zipf's law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZipfFit {
    /// The exponent, 0 (uniform) to 10.
    pub alpha: f64,
    /// Its standard error, by the likelihood's curvature: of chance in the requests, not of the law being wrong.
    pub error: f64,
    /// The largest difference between the parts of the head's requests that the first blocks have and should have
    /// (Kolmogorov and Smirnov's distance), 0 to 1. Below 0.01 the law is a good description.
    pub distance: f64,
    /// The blocks that were ranked.
    pub ranks: u64,
    /// The part of all requests that goes to them.
    pub part: f64,
}

impl Default for Popularity {
    fn default() -> Self {
        Self::new()
    }
}

impl Popularity {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self { table: Table::new(HashKey::from_seed(2)) }
    }

    /// Requests in any order. A count that reaches four thousand million stays there.
    pub fn observe(&mut self, blocks: &[u64]) {
        let mut homes = [0; BATCH];
        for blocks in blocks.chunks(BATCH) {
            self.table.reserve(blocks.len());
            self.table.warm(blocks, &mut homes);
            for (&block, &home) in blocks.iter().zip(&homes) {
                let count = self.table.entry(block, home);
                *count = if count.is_vacant() { 1 } else { (*count + 1).min(u32::MAX - 1) };
            }
        }
    }

    /// Different blocks so far.
    pub fn footprint(&self) -> u64 {
        self.table.len() as u64
    }

    /// Requests by block, falling.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts: Vec<u32> = self.table.values().copied().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    /// The fit; `None` if fewer than ten blocks were asked for often enough to be ranked.
    pub fn zipf(&self) -> Option<ZipfFit> {
        fit(&self.counts())
    }
}

/// Sums over ranks of weights, of weights times ln(rank), and times its square.
fn moments(logs: &[f64], alpha: f64) -> (f64, f64, f64) {
    logs.iter().fold((0.0, 0.0, 0.0), |sum, &log| {
        let weight = (-alpha * log).exp();
        (sum.0 + weight, sum.1 + weight * log, sum.2 + weight * log * log)
    })
}

/// The fit of counts that fall.
fn fit(counts: &[u32]) -> Option<ZipfFit> {
    let ranks = counts.partition_point(|&count| count >= COUNT_MIN);
    if ranks < RANKS_MIN {
        return None;
    }
    let head = &counts[..ranks];
    let logs: Vec<f64> = (1..=ranks).map(|rank| (rank as f64).ln()).collect();
    let requests: f64 = head.iter().map(|&c| f64::from(c)).sum();
    let seen = head.iter().zip(&logs).map(|(&c, log)| f64::from(c) * log).sum::<f64>() / requests;
    // the mean of ln(rank) falls as the exponent rises
    let (mut low, mut high) = (0.0, ALPHA_MAX);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        let (weight, first, _) = moments(&logs, middle);
        if first / weight > seen { low = middle } else { high = middle }
    }
    let alpha = (low + high) / 2.0;
    let (weight, first, second) = moments(&logs, alpha);
    let variance = second / weight - (first / weight).powi(2);
    let (mut is, mut should, mut distance) = (0.0, 0.0, 0.0f64);
    for (&count, log) in head.iter().zip(&logs) {
        is += f64::from(count) / requests;
        should += (-alpha * log).exp() / weight;
        distance = distance.max((is - should).abs());
    }
    let all: f64 = counts.iter().map(|&c| f64::from(c)).sum();
    Some(ZipfFit {
        alpha,
        error: 1.0 / (requests * variance.max(f64::MIN_POSITIVE)).sqrt(),
        distance,
        ranks: ranks as u64,
        part: requests / all,
    })
}
