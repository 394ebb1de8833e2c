//! A load as it is run: every request with its stack distance, made once for all arms.
//!
//! Owns the sequence. Invariant: distances are those within a tenant, over the whole load.

use super::above::{Ask, Asked};
use super::distance::Distances;
use super::load::TenantLoad;
use std::collections::HashSet;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRequest {
    /// The tenant, by its place in the load.
    pub tenant: usize,
    /// The block.
    pub block: u64,
    /// How many other blocks the tenant asked for since; `None`: the block's first. Where blocks are handed down: how
    /// many others have been, of those still there, since this one was.
    pub distance: Option<u64>,
    /// What is wanted of the block.
    pub ask: Ask,
}

/// One interval.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Which phase it is part of.
    pub phase: usize,
    /// In their order.
    pub requests: Vec<TenantRequest>,
    /// Distinct blocks of each tenant.
    pub distinct: Vec<u64>,
}

/// The requests of a load, with their stack distances.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What it was made from.
    pub load: TenantLoad,
    /// One after the other.
    pub intervals: Vec<Interval>,
    /// Whether the cache holds what it is handed, and nothing else.
    pub of_victims: bool,
}

impl Trace {
    /// Makes the requests of `load`.
    pub fn new(load: TenantLoad) -> Self {
        let intervals = load.intervals_of_requests();
        let read = |(tenant, block)| (tenant, block, Ask::Read);
        let intervals = intervals.into_iter().map(|(phase, all)| (phase, all.into_iter().map(read).collect()));
        Self::of(load, intervals.collect(), false)
    }

    /// The same of requests that are there already: for each interval its phase, and every request as tenant, block and
    /// what is wanted.
    pub(super) fn of(load: TenantLoad, all: Vec<(usize, Vec<Asked>)>, of_victims: bool) -> Self {
        let mut distances = vec![Distances::default(); load.tenants.len()];
        let mut intervals = vec![];
        for (phase, requests) in all {
            let mut seen: Vec<HashSet<u64>> = vec![HashSet::new(); load.tenants.len()];
            let requests = requests.into_iter().map(|(tenant, block, ask)| {
                let distances = &mut distances[tenant];
                let distance = match ask {
                    Ask::Read if of_victims => distances.take(block),
                    Ask::Read | Ask::Take => distances.access(block),
                };
                if ask == Ask::Read {
                    seen[tenant].insert(block);
                }
                TenantRequest { tenant, block, distance, ask }
            });
            let requests = requests.collect();
            intervals.push(Interval { phase, requests, distinct: seen.iter().map(|s| s.len() as u64).collect() });
        }
        Self { load, intervals, of_victims }
    }
}
