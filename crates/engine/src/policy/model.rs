//! What a reference model is: a policy written as naively as it can be.
//!
//! Owns the trait, and two steps that most models take. The models stand beside the policies, in `served/models` and
//! `studied/models`; the tests that hold a policy against its model are in `reference`. Invariant: a model shares no
//! code with what it tests, but for the sketch of W-TinyLFU, which has tests of its own.

/// Whether a block may be evicted.
pub(crate) type MayEvict<'a> = &'a dyn Fn(u64) -> bool;

/// A naive policy that knows which blocks it holds. While it refuses no block, `may_evict` changes nothing.
pub(crate) trait ReferenceModel {
    fn hit(&mut self, block: u64);
    /// An absent block comes. `full` tells whether room must be made: `Err` if none can be made, else the block that
    /// was evicted.
    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()>;
    fn evict(&mut self, may_evict: MayEvict) -> Option<u64>;
    /// Forgets a block, present or ghost.
    fn remove(&mut self, block: u64);
    fn resize(&mut self, capacity: usize);
    /// Every block present, in the order of eviction.
    fn coldest_first(&self) -> Vec<u64>;
}

/// The position of the oldest that may go.
pub(crate) fn oldest(queue: &[u64], may_evict: MayEvict) -> Option<usize> {
    queue.iter().position(|&b| may_evict(b))
}

pub(crate) fn take(queue: &mut Vec<u64>, block: u64) -> bool {
    let at = queue.iter().position(|&b| b == block);
    at.map(|at| queue.remove(at)).is_some()
}
