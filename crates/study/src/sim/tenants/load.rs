//! What tenants ask for: patterns, mixes, phases, and the loads of the experiments.
//!
//! Owns the generators. Invariant: a load is the same sequence on every machine and for every arm.

use std::iter;
use undercroft_trace::synth::Zipf;

/// Which blocks are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockPattern {
    /// Zipf popularity over `blocks` blocks from `first` on.
    Zipf {
        /// The first block.
        first: u64,
        /// How many.
        blocks: u32,
        /// The exponent.
        alpha: f64,
    },
    /// Each of `blocks` blocks as likely as the others.
    Uniform {
        /// The first block.
        first: u64,
        /// How many.
        blocks: u32,
    },
    /// One after the other, again and again.
    Loop {
        /// The first block.
        first: u64,
        /// How many.
        blocks: u32,
    },
    /// Blocks that are asked for once.
    Once,
}

/// A pattern and how many of a thousand requests follow it.
pub type Mix = Vec<(u32, BlockPattern)>;

/// What one tenant does in one phase.
#[derive(Clone, Debug)]
pub struct TenantActivity {
    /// Requests per interval.
    pub rate: u32,
    /// What for.
    pub mix: Mix,
}

/// A stretch of time in which everybody keeps to one activity.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What tables call it.
    pub name: &'static str,
    /// How long it is.
    pub intervals: u32,
    /// One for each tenant.
    pub activities: Vec<TenantActivity>,
}

/// A name: of an experiment's own, or of a file.
pub type Name = std::borrow::Cow<'static, str>;

/// A load of several tenants on one cache.
#[derive(Clone, Debug)]
pub struct TenantLoad {
    /// What tables call it.
    pub name: Name,
    /// Blocks of the cache.
    pub total: u32,
    /// The tenants' names.
    pub tenants: Vec<Name>,
    /// One after the other.
    pub phases: Vec<Phase>,
    /// Whether tenants run one after the other within an interval, rather than taking turns at each request.
    pub bursts: bool,
}

/// A small generator of our own (xorshift64*): patterns differ by seed only.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(n)) >> 64) as u64
    }
}

/// Blocks from here on are those asked for once.
const ONCE: u64 = 1 << 40;

impl TenantLoad {
    /// Intervals of all phases.
    pub fn intervals(&self) -> u32 {
        self.phases.iter().map(|p| p.intervals).sum()
    }

    /// For each interval the phase, and every request as (tenant, block): tenants take turns in proportion
    /// to their rates.
    pub(crate) fn intervals_of_requests(&self) -> Vec<(usize, Vec<(usize, u64)>)> {
        let mut once = ONCE;
        let mut intervals = vec![];
        // where loops stand goes on from phase to phase
        let mut loops: std::collections::HashMap<(usize, u64), u64> = std::collections::HashMap::new();
        for (p, phase) in self.phases.iter().enumerate() {
            let mut sources: Vec<(Random, Vec<Option<Zipf>>)> = phase
                .activities
                .iter()
                .enumerate()
                .map(|(tenant, activity)| {
                    let zipf = activity.mix.iter().map(|(_, pattern)| match pattern {
                        BlockPattern::Zipf { blocks, alpha, .. } => Some(Zipf::new(*blocks, *alpha, 77 + p as u64)),
                        _ => None,
                    });
                    (Random(0x9e37_79b9 + (p * 64 + tenant) as u64), zipf.collect())
                })
                .collect();
            for _ in 0..phase.intervals {
                let mut requests = vec![];
                for tenant in turns(&phase.activities, self.bursts) {
                    let (random, zipf) = &mut sources[tenant];
                    let mut ticket = random.below(1000) as u32;
                    let mix = &phase.activities[tenant].mix;
                    let chosen = mix.iter().position(|(part, _)| {
                        let here = ticket < *part;
                        ticket = ticket.wrapping_sub(*part);
                        here
                    });
                    let chosen = chosen.expect("the parts of a mix are a thousand");
                    let block = match mix[chosen].1 {
                        BlockPattern::Zipf { first, .. } => {
                            first + zipf[chosen].as_mut().and_then(iter::Iterator::next).expect("endless")
                        }
                        BlockPattern::Uniform { first, blocks } => first + random.below(u64::from(blocks)),
                        BlockPattern::Loop { first, blocks } => {
                            let at = loops.entry((tenant, first)).or_default();
                            *at = (*at + 1) % u64::from(blocks);
                            first + *at
                        }
                        BlockPattern::Once => {
                            once += 1;
                            once
                        }
                    };
                    requests.push((tenant, block));
                }
                intervals.push((p, requests));
            }
        }
        intervals
    }
}

/// The order of tenants within one interval.
fn turns(activities: &[TenantActivity], bursts: bool) -> Vec<usize> {
    if bursts {
        return activities.iter().enumerate().flat_map(|(t, a)| iter::repeat_n(t, a.rate as usize)).collect();
    }
    // the k-th request of a tenant with n is due at (k + 1/2) / n
    let mut due: Vec<(u64, usize)> = activities
        .iter()
        .enumerate()
        .flat_map(|(tenant, a)| (0..u64::from(a.rate)).map(move |k| (((2 * k + 1) << 32) / u64::from(a.rate), tenant)))
        .collect();
    due.sort_unstable();
    due.into_iter().map(|(_, tenant)| tenant).collect()
}
