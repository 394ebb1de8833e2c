//! Replays a workload through an index and counts.
//!
//! Owns the counting. Never looks into a policy.

use crate::lab::Workload;
use undercroft_engine::{Access, Index, Outcome, PolicyKind};

fn missed(index: &mut Index, block: u64) -> bool {
    !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_))
}

/// The misses of a policy with `capacity` blocks, from cold.
pub fn misses(policy: PolicyKind, capacity: u32, workload: &Workload) -> u64 {
    let mut index = Index::new(policy, capacity);
    workload.blocks.iter().filter(|&&block| missed(&mut index, block)).count() as u64
}

/// The same while the cache is shrunk to half and given back its whole size in turn, `periods` times in all: what a
/// policy keeps when memory is lent to somebody else.
///
/// # Panics
/// If `periods` is 0.
pub fn misses_while_resized(policy: PolicyKind, capacity: u32, workload: &Workload, periods: usize) -> u64 {
    let mut index = Index::new(policy, capacity);
    let mut misses = 0;
    for (period, blocks) in workload.blocks.chunks(workload.blocks.len().div_ceil(periods).max(1)).enumerate() {
        let size = if period % 2 == 0 { capacity } else { capacity / 2 };
        index.resize(size, |_| true, |_, _| {}, |_, _| {});
        misses += blocks.iter().filter(|&&block| missed(&mut index, block)).count() as u64;
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_fits_misses_once_per_block() {
        let workload = Workload::new("loop", (0..1000).map(|i| i % 10).collect());
        for policy in PolicyKind::ALL {
            assert_eq!(misses(policy, 10, &workload), 10, "{policy}");
            // 10 blocks, then 500 accesses of a loop of 10 with room for 5, then the 5 that were lost at least
            assert!(misses_while_resized(policy, 10, &workload, 2) > 10, "{policy}");
        }
        assert_eq!(misses_while_resized(PolicyKind::Lru, 10, &workload, 2), 10 + 500);
    }
}
