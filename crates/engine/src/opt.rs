//! OPT: the fewest misses that any policy can have, for a trace that is known in advance (Belady, "A study of replacement
//! algorithms for a virtual-storage computer", IBM Systems Journal 1966; Mattson et al., 1970).
//!
//! Owns the next access of each access, and cached blocks by their next access. Not a policy of an index: it needs the
//! future. Never approximates.
//! Invariant: a block in the cache has exactly one entry that counts, that of its next access.

use std::collections::{BinaryHeap, HashMap};

/// Whether a block that is read must be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every block that misses takes a slot, as with the policies of an index.
    Always,
    /// A block may pass the cache by, if all that are cached are needed sooner.
    Bypass,
}

/// No next access.
const NEVER: u32 = u32::MAX;

/// The misses of OPT with `capacity` blocks over `blocks`, from cold. Takes 8 bytes an access and some 50 per distinct
/// block.
///
/// # Panics
/// With 2^32 - 1 accesses or more.
///
/// ```
/// use undercroft_engine::opt::{Admission, misses};
/// let blocks = [1, 2, 3, 1, 2, 4, 1, 2];
/// assert_eq!(misses(&blocks, 2, Admission::Always), 6);
/// assert_eq!(misses(&blocks, 2, Admission::Bypass), 4);
/// ```
pub fn misses(blocks: &[u64], capacity: u32, admission: Admission) -> u64 {
    assert!(blocks.len() < NEVER as usize, "OPT is for fewer than 2^32 - 1 accesses");
    if capacity == 0 {
        return blocks.len() as u64;
    }
    let (next, ids, distinct) = next_accesses(blocks);
    // the next access of each block that is cached
    let mut cached = vec![None; distinct];
    // by next access, the farthest on top; entries that no longer hold stay until they come up
    let mut farthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let (mut misses, mut len) = (0, 0);
    for (&next, &id) in next.iter().zip(&ids) {
        let hit = cached[id as usize].is_some();
        misses += u64::from(!hit);
        if !hit && len == capacity {
            while farthest.peek().is_some_and(|&(at, id)| cached[id as usize] != Some(at)) {
                farthest.pop();
            }
            let &(at, victim) = farthest.peek().expect("a full cache has blocks");
            if admission == Admission::Bypass && next >= at {
                continue;
            }
            farthest.pop();
            cached[victim as usize] = None;
            len -= 1;
        }
        len += u32::from(!hit);
        cached[id as usize] = Some(next);
        farthest.push((next, id));
        // a heap of old entries is of no use
        if farthest.len() > 4 * capacity as usize + 64 {
            let holds: Vec<_> = farthest.drain().filter(|&(at, id)| cached[id as usize] == Some(at)).collect();
            farthest = holds.into();
        }
    }
    misses
}

/// For each access the index of the next one to the same block, and the block's number among the distinct ones.
fn next_accesses(blocks: &[u64]) -> (Vec<u32>, Vec<u32>, usize) {
    let mut seen: HashMap<u64, (u32, u32)> = HashMap::new();
    let (mut next, mut ids) = (vec![NEVER; blocks.len()], vec![0; blocks.len()]);
    for (i, &block) in blocks.iter().enumerate().rev() {
        let new = seen.len() as u32;
        let (later, id) = seen.entry(block).or_insert((NEVER, new));
        (next[i], ids[i]) = (*later, *id);
        *later = i as u32;
    }
    (next, ids, seen.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PolicyKind, replay::replay};
    use proptest::prelude::*;

    /// The fewest misses, by trying every choice.
    fn least(blocks: &[u64], cached: &mut Vec<u64>, capacity: usize, admission: Admission) -> u64 {
        let Some((block, rest)) = blocks.split_first() else { return 0 };
        if cached.contains(block) {
            return least(rest, cached, capacity, admission);
        }
        let mut best = u64::MAX;
        if cached.len() < capacity {
            cached.push(*block);
            best = least(rest, cached, capacity, admission);
            cached.pop();
        } else {
            for i in 0..cached.len() {
                let victim = std::mem::replace(&mut cached[i], *block);
                best = best.min(least(rest, cached, capacity, admission));
                cached[i] = victim;
            }
        }
        if admission == Admission::Bypass {
            best = best.min(least(rest, cached, capacity, admission));
        }
        1 + best
    }

    proptest! {
        #[test]
        fn nobody_can_miss_less(blocks in prop::collection::vec(0u64..6, 0..11), capacity in 1u32..4) {
            for admission in [Admission::Always, Admission::Bypass] {
                let expected = least(&blocks, &mut vec![], capacity as usize, admission);
                prop_assert_eq!(misses(&blocks, capacity, admission), expected, "{:?}", admission);
            }
        }

        #[test]
        fn no_policy_misses_less(blocks in prop::collection::vec(0u64..60, 0..600), capacity in 1u32..40) {
            let optimum = misses(&blocks, capacity, Admission::Always);
            prop_assert!(misses(&blocks, capacity, Admission::Bypass) <= optimum);
            for kind in PolicyKind::every() {
                prop_assert!(replay(kind, capacity, &blocks) >= optimum, "{}", kind);
            }
        }
    }
}
