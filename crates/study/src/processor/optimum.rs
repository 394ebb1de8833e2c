//! The fewest misses that a cache of this shape can have, and those of other policies in its sets.
//!
//! Owns the cut of a trace into sets, each of which is a cache of its own. Never decides what is evicted: the engine's
//! policies do, and its OPT (Belady 1966), with bypass: a line that is needed later than all that are cached passes.

use super::shape::Shape;
use undercroft_engine::AnyPolicyKind;
use undercroft_engine::opt::{self, OptAdmission};
use undercroft_engine::replay::replay;

/// The references of each set, in order.
fn sets_of(blocks: &[u64], shape: Shape) -> Vec<Vec<u64>> {
    let mut sets = vec![Vec::new(); shape.sets() as usize];
    blocks.iter().for_each(|block| sets[shape.set_of(*block)].push(*block));
    sets
}

/// The misses of OPT with bypass, from cold.
///
/// # Panics
/// With 2^32 - 2 references of one set or more.
pub fn optimum_misses(blocks: &[u64], shape: Shape) -> u64 {
    let sets = sets_of(blocks, shape);
    sets.iter().map(|set| opt::misses(set, shape.ways(), OptAdmission::Bypass)).sum()
}

/// The misses of a policy of the engine that each set has for itself, from cold.
pub(super) fn policy_misses(blocks: &[u64], shape: Shape, policy: AnyPolicyKind) -> u64 {
    let sets = sets_of(blocks, shape);
    sets.iter().map(|set| replay(policy, shape.ways(), set)).sum()
}
