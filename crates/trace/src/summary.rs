//! A summary of a trace: counts, times, tenants, and the number of distinct blocks.
//!
//! Owns the sums. Exact up to [`EXACT_MAX`] distinct blocks, an estimate beyond. Invariant: memory is bounded, however
//! large a trace is.

use crate::access::{AccessKind, TraceRequest};
use crate::blocks::Blocks;
use crate::hashed::{NumberSet, mixed};
use serde::Serialize;

/// Distinct blocks that are counted one by one; they take up to 300 MB.
pub const EXACT_MAX: usize = 1 << 24;
/// Registers of the estimate, as a power of two: a standard error of 1.04 / sqrt(2^14) = 0.8 %.
const REGISTER_BITS: u32 = 14;

/// Counts of some of a trace's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Records.
    pub requests: u64,
    /// Accesses to blocks that they are made of.
    pub accesses: u64,
    /// Requests that read.
    pub reads: u64,
    /// Requests that write.
    pub writes: u64,
    /// Bytes that requests move, or sizes of objects.
    pub bytes: u64,
    /// Of those, written.
    pub bytes_written: u64,
}

/// Counts, times and distinct blocks of a trace, as far as requests have been added.
#[derive(Clone, Debug)]
pub struct Summary {
    blocks: Blocks,
    /// Of the whole trace.
    pub all: Counts,
    /// Of each tenant, by number.
    pub tenants: Vec<Counts>,
    /// The earliest and the latest time.
    pub time_ns: Option<(u64, u64)>,
    seen: Seen,
    by_tenant: ByTenant,
}

/// Distinct blocks of each tenant, by number.
#[derive(Clone, Debug)]
enum ByTenant {
    /// All requests so far are of one tenant, or there are none: its blocks are all there are.
    One(usize),
    /// Each has a disk of its own, so each block is of one tenant alone: how many.
    Apart(Vec<u64>),
    /// Tenants use the same keys: those of each, and how many these are together.
    Sets(Vec<NumberSet>, usize),
    /// There are more than can be counted one by one.
    Unknown,
}

#[derive(Clone, Debug)]
enum Seen {
    Exact(NumberSet),
    About(Box<HyperLogLog>),
}

impl Summary {
    /// Of nothing yet; `blocks` is the trace's.
    pub fn new(blocks: Blocks) -> Self {
        Self {
            blocks,
            all: Counts::default(),
            tenants: Vec::new(),
            time_ns: None,
            seen: Seen::Exact(NumberSet::default()),
            by_tenant: if blocks.own_disks { ByTenant::Apart(vec![]) } else { ByTenant::One(0) },
        }
    }

    /// Adds requests.
    pub fn add(&mut self, requests: &[TraceRequest]) {
        for r in requests {
            let tenant = usize::from(r.tenant);
            if tenant >= self.tenants.len() {
                self.tenants.resize(tenant + 1, Counts::default());
            }
            let (first, count) = self.blocks.of(r);
            self.by_tenant.begin(tenant, self.all.requests == 0, &self.seen);
            for block in (0..count).map(|n| first + n) {
                let new = self.seen.insert(block);
                self.by_tenant.insert(tenant, block, new);
            }
            if matches!(self.seen, Seen::About(_)) {
                self.by_tenant = ByTenant::Unknown;
            }
            for c in [&mut self.all, &mut self.tenants[tenant]] {
                c.requests += 1;
                c.accesses += count;
                c.bytes = c.bytes.saturating_add(r.bytes);
                match r.kind {
                    AccessKind::Read | AccessKind::Fetch => c.reads += 1,
                    AccessKind::Write => {
                        c.writes += 1;
                        c.bytes_written = c.bytes_written.saturating_add(r.bytes);
                    }
                    AccessKind::Unknown => {}
                }
            }
            let (from, to) = self.time_ns.unwrap_or((r.time_ns, r.time_ns));
            self.time_ns = Some((from.min(r.time_ns), to.max(r.time_ns)));
        }
    }

    /// Distinct blocks, and whether that is exact.
    pub fn footprint(&self) -> (u64, bool) {
        match &self.seen {
            Seen::Exact(set) => (set.len() as u64, true),
            Seen::About(registers) => (registers.estimate(), false),
        }
    }

    /// Distinct blocks of a tenant's requests, those that others use too among them; `None` where there are more than
    /// [`EXACT_MAX`] of all tenants together.
    pub fn footprint_of(&self, tenant: usize) -> Option<u64> {
        match &self.by_tenant {
            ByTenant::One(only) => Some(if tenant == *only { self.footprint().0 } else { 0 }),
            ByTenant::Apart(counts) => Some(counts.get(tenant).copied().unwrap_or(0)),
            ByTenant::Sets(sets, _) => Some(sets.get(tenant).map_or(0, |set| set.len() as u64)),
            ByTenant::Unknown => None,
        }
    }
}

impl ByTenant {
    /// A request of `tenant` comes, the first of all perhaps; `seen` is what came before it.
    #[inline]
    fn begin(&mut self, tenant: usize, first: bool, seen: &Seen) {
        match self {
            ByTenant::One(only) if first => *only = tenant,
            ByTenant::One(only) if *only != tenant => {
                let Seen::Exact(all) = seen else { return };
                let mut sets = vec![NumberSet::default(); tenant.max(*only) + 1];
                sets[*only] = all.clone();
                *self = ByTenant::Sets(sets, all.len());
            }
            ByTenant::Apart(counts) if tenant >= counts.len() => counts.resize(tenant + 1, 0),
            ByTenant::Sets(sets, _) if tenant >= sets.len() => sets.resize_with(tenant + 1, NumberSet::default),
            _ => {}
        }
    }

    /// It asks for `block`, which is `new` or was asked for before.
    #[inline]
    fn insert(&mut self, tenant: usize, block: u64, new: bool) {
        match self {
            ByTenant::Apart(counts) => counts[tenant] += u64::from(new),
            ByTenant::Sets(sets, together) => {
                *together += usize::from(sets[tenant].insert(block));
                if *together > EXACT_MAX {
                    *self = ByTenant::Unknown;
                }
            }
            ByTenant::One(_) | ByTenant::Unknown => {}
        }
    }
}

impl Seen {
    /// Whether it is known to be new.
    #[inline]
    fn insert(&mut self, block: u64) -> bool {
        match self {
            Seen::Exact(set) => {
                let new = set.insert(block);
                if set.len() > EXACT_MAX {
                    let mut registers = Box::new(HyperLogLog::new());
                    set.iter().for_each(|&b| registers.insert(b));
                    *self = Seen::About(registers);
                }
                new
            }
            Seen::About(registers) => {
                registers.insert(block);
                false
            }
        }
    }
}

/// HyperLogLog (Flajolet, Fusy, Gandouet and Meunier 2007), with 64-bit hashes, which need no correction for large
/// numbers.
#[derive(Clone, Debug)]
struct HyperLogLog {
    registers: Vec<u8>,
}

impl HyperLogLog {
    fn new() -> Self {
        Self { registers: vec![0; 1 << REGISTER_BITS] }
    }

    #[inline]
    fn insert(&mut self, block: u64) {
        let hash = mixed(block);
        let rank = ((hash << REGISTER_BITS | 1 << (REGISTER_BITS - 1)).leading_zeros() + 1) as u8;
        let register = &mut self.registers[(hash >> (64 - REGISTER_BITS)) as usize];
        *register = rank.max(*register);
    }

    fn estimate(&self) -> u64 {
        let m = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|&r| (-f64::from(r)).exp2()).sum();
        let raw = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
        let empty = self.registers.iter().filter(|&&r| r == 0).count();
        let few = raw <= 2.5 * m && empty > 0;
        (if few { m * (m / empty as f64).ln() } else { raw }).round() as u64
    }
}

/// Whether `block` is in a sample of `rate` (0 to 1) of all blocks, by hash; of seed 0, samples of one in N are those
/// of recordings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    threshold: u128,
    seed: u64,
}

impl Sample {
    /// A sample of `rate` (0 to 1) of all blocks; another seed, other blocks.
    pub fn new(rate: f64, seed: u64) -> Self {
        let threshold = (rate.clamp(0.0, 1.0) * (u64::MAX as f64 + 1.0)) as u128;
        let seed = if seed == 0 { 0 } else { mixed(seed) };
        Self { threshold, seed }
    }

    /// Whether it holds a block.
    #[inline]
    pub fn holds(&self, block: u64) -> bool {
        u128::from(mixed(block ^ self.seed)) < self.threshold
    }

    /// Adds to `out` what of `requests` is in the sample: each block that is, as a request of its own.
    pub fn of_requests(&self, requests: &[TraceRequest], blocks: &Blocks, out: &mut Vec<TraceRequest>) {
        for r in requests {
            let (first, count) = blocks.of(r);
            if count == 1 {
                if self.holds(first) {
                    out.push(*r);
                }
                continue;
            }
            for n in (0..count).filter(|n| self.holds(first + n)) {
                out.push(blocks.part(r, n));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_within_four_standard_errors() {
        for n in [0u64, 1, 100, 10_000, 40_000, 300_000, 5_000_000] {
            let mut h = HyperLogLog::new();
            (0..n).for_each(|b| h.insert(b * 7919));
            (0..n.min(1000)).for_each(|b| h.insert(b * 7919));
            let error = (h.estimate() as f64 - n as f64).abs();
            assert!(error <= 0.0325 * n as f64, "{n}: {}", h.estimate());
        }
    }

    #[test]
    fn samples_of_seed_0_are_those_of_recordings() {
        for one_of in [1u32, 2, 8, 100] {
            let sample = Sample::new(1.0 / f64::from(one_of), 0);
            for block in 0..100_000 {
                assert_eq!(sample.holds(block), crate::recording::in_sample(block, one_of), "{block} of 1/{one_of}");
            }
        }
        let held = |seed| (0..100_000).filter(|&b| Sample::new(0.1, seed).holds(b)).collect::<Vec<u64>>();
        assert!((9_500..10_500).contains(&held(1).len()) && held(1) != held(2), "{}", held(1).len());
        assert_eq!((0..1000).filter(|&b| Sample::new(0.0, 3).holds(b)).count(), 0);
    }
}
