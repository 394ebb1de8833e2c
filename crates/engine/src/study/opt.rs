//! OPT: the fewest misses that any policy can have, for a trace that is known in advance (Belady, "A study of
//! replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966; Mattson et al., 1970).
//!
//! Owns the next access of each access, and cached blocks by their next access. Not a policy of an index: it needs the
//! future. Never approximates.
//! Invariant: a block in the cache has exactly one entry that counts, that of its next access.

use std::collections::{BinaryHeap, HashMap};

/// Whether a block that is read must be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptAdmission {
    /// Every block that misses takes a slot, as with the policies of an index.
    Always,
    /// A block may pass the cache by, if all that are cached are needed sooner.
    Bypass,
}

/// Accesses that a [`Future`] may have at most.
pub const ACCESSES_MAX: usize = (u32::MAX - 2) as usize;
/// No next access.
const NEVER: u32 = u32::MAX - 1;
/// Not in the cache.
const ABSENT: u32 = u32::MAX;

/// A trace that is known to its end: for each access, when its block is asked for again.
///
/// Takes 8 bytes an access; some 30 more per distinct block while it is made.
#[derive(Clone, Debug)]
pub struct Future {
    /// The index of the next access to the same block, and the block's number among the distinct ones.
    accesses: Vec<(u32, u32)>,
    distinct: usize,
}

impl Future {
    /// Of these accesses.
    ///
    /// # Panics
    /// With more than [`ACCESSES_MAX`].
    pub fn of(blocks: &[u64]) -> Self {
        assert!(blocks.len() <= ACCESSES_MAX, "OPT is for fewer than 2^32 - 2 accesses");
        let mut seen: HashMap<u64, (u32, u32)> = HashMap::new();
        let mut accesses = vec![(NEVER, 0); blocks.len()];
        for (i, &block) in blocks.iter().enumerate().rev() {
            let new = seen.len() as u32;
            let known = seen.entry(block).or_insert((NEVER, new));
            accesses[i] = *known;
            known.0 = i as u32;
        }
        Self { accesses, distinct: seen.len() }
    }

    /// Accesses.
    pub fn len(&self) -> usize {
        self.accesses.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.accesses.is_empty()
    }
}

/// A cache that knows the future.
#[derive(Debug)]
pub struct Opt<'a> {
    future: &'a Future,
    capacity: u32,
    admission: OptAdmission,
    /// The next access of each block that is cached.
    cached: Vec<u32>,
    /// By next access, the farthest on top; entries that no longer hold stay until they come up.
    farthest: BinaryHeap<(u32, u32)>,
    len: u32,
    /// Accesses done.
    at: usize,
}

impl<'a> Opt<'a> {
    /// An empty cache of `capacity` blocks before the first access. Takes 4 bytes per distinct block and up to 40 per
    /// block of the cache.
    pub fn new(future: &'a Future, capacity: u32, admission: OptAdmission) -> Self {
        let cached = vec![ABSENT; future.distinct];
        Self { future, capacity, admission, cached, farthest: BinaryHeap::new(), len: 0, at: 0 }
    }
}

/// Whether each access is a hit, in order, to the end of the trace.
impl Iterator for Opt<'_> {
    type Item = bool;

    fn next(&mut self) -> Option<bool> {
        let &(next, id) = self.future.accesses.get(self.at)?;
        self.at += 1;
        if self.capacity == 0 {
            return Some(false);
        }
        let Self { cached, farthest, .. } = self;
        let hit = cached[id as usize] != ABSENT;
        if !hit && self.len == self.capacity {
            while farthest.peek().is_some_and(|&(at, id)| cached[id as usize] != at) {
                farthest.pop();
            }
            let &(at, victim) = farthest.peek().expect("a full cache has blocks");
            if self.admission == OptAdmission::Bypass && next >= at {
                return Some(false);
            }
            farthest.pop();
            cached[victim as usize] = ABSENT;
            self.len -= 1;
        }
        self.len += u32::from(!hit);
        cached[id as usize] = next;
        farthest.push((next, id));
        // A heap of old entries is of no use.
        if farthest.len() > 4 * self.capacity as usize + 64 {
            farthest.retain(|&(at, id)| cached[id as usize] == at);
        }
        Some(hit)
    }
}

/// The misses of OPT with `capacity` blocks over `blocks`, from cold.
///
/// # Panics
/// With more than [`ACCESSES_MAX`] accesses.
///
/// ```
/// use undercroft_engine::opt::{OptAdmission, misses};
/// let blocks = [1, 2, 3, 1, 2, 4, 1, 2];
/// assert_eq!(misses(&blocks, 2, OptAdmission::Always), 6);
/// assert_eq!(misses(&blocks, 2, OptAdmission::Bypass), 4);
/// ```
pub fn misses(blocks: &[u64], capacity: u32, admission: OptAdmission) -> u64 {
    let future = Future::of(blocks);
    Opt::new(&future, capacity, admission).filter(|hit| !hit).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::locks::{LOCK_PERMILLE_MAX, LockOptions};
    use crate::index::{Access, Index};
    use crate::policy::{AnyPolicyKind, Outcome, PolicyKind};
    use crate::reference::may_go;
    use crate::study::replay::replay;
    use proptest::prelude::*;

    /// The fewest misses, by trying every choice.
    fn least(blocks: &[u64], cached: &mut Vec<u64>, capacity: usize, admission: OptAdmission) -> u64 {
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
        if admission == OptAdmission::Bypass {
            best = best.min(least(rest, cached, capacity, admission));
        }
        1 + best
    }

    /// All traces of up to six reads of three blocks.
    fn short_traces() -> impl Iterator<Item = Vec<u64>> {
        let trace = |len: u32, n: u64| (0..len).map(|at| n / 3u64.pow(at) % 3).collect::<Vec<u64>>();
        (0..=6).flat_map(move |len| (0..3u64.pow(len)).map(move |n| trace(len, n)))
    }

    /// The misses of an index some of whose blocks are locked when they come: those of the bits of `pinned`.
    fn with_locks(kind: PolicyKind, capacity: u32, pinned: u64, blocks: &[u64]) -> u64 {
        let mut index = Index::new(kind, capacity);
        index.set_locks(Some(LockOptions { permille: LOCK_PERMILLE_MAX, keep_held: false }));
        index.set_pins((0..3u64).filter(|block| pinned >> block & 1 != 0).map(|block| (block, 1)));
        let mut misses = 0;
        for &block in blocks {
            misses += u64::from(!matches!(index.access(block, Access::Read, may_go), Outcome::Hit(_)));
        }
        misses
    }

    #[test]
    fn of_all_short_traces_it_is_the_best_of_all_choices_and_no_cache_with_locks_misses_less() {
        for blocks in short_traces() {
            for capacity in 1..=2 {
                for admission in [OptAdmission::Always, OptAdmission::Bypass] {
                    let best = least(&blocks, &mut vec![], capacity as usize, admission);
                    assert_eq!(misses(&blocks, capacity, admission), best, "{blocks:?} in {capacity}: {admission:?}");
                }
                let optimum = misses(&blocks, capacity, OptAdmission::Bypass);
                for (kind, pinned) in PolicyKind::ALL.into_iter().flat_map(|kind| (0..8).map(move |p| (kind, p))) {
                    let locked = with_locks(kind, capacity, pinned, &blocks);
                    assert!(locked >= optimum, "{blocks:?} in {capacity}, {pinned:b} locked: {kind}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn nobody_can_miss_less(blocks in prop::collection::vec(0u64..6, 0..11), capacity in 1u32..4) {
            for admission in [OptAdmission::Always, OptAdmission::Bypass] {
                let expected = least(&blocks, &mut vec![], capacity as usize, admission);
                prop_assert_eq!(misses(&blocks, capacity, admission), expected, "{:?}", admission);
            }
        }

        #[test]
        fn no_policy_misses_less(blocks in prop::collection::vec(0u64..60, 0..600), capacity in 1u32..40) {
            let optimum = misses(&blocks, capacity, OptAdmission::Always);
            prop_assert!(misses(&blocks, capacity, OptAdmission::Bypass) <= optimum);
            for kind in AnyPolicyKind::ALL {
                prop_assert!(replay(kind, capacity, &blocks) >= optimum, "{}", kind);
            }
        }
    }
}
