//! The policies again, as naively as they can be written, and the index held against them step by step.
//!
//! Owns the reference models: queues are vectors of blocks (oldest first), marks are sets and maps. Never shares code
//! with what it tests, but for the sketch of W-TinyLFU, which has tests of its own. Invariant: after every step index
//! and model hold the same blocks, evicted the same ones, and `Index::check` passes.

mod adaptive;
mod distances;
mod driver;
mod learning;
mod segmented;
mod simple;
mod tests;

use crate::PolicyKind;

/// Whether a block may be evicted.
pub(crate) type MayEvict<'a> = &'a dyn Fn(u64) -> bool;

/// A naive policy that knows which blocks it holds. While it refuses nobody, `may_evict` changes nothing.
pub(crate) trait ReferenceModel {
    fn hit(&mut self, block: u64);
    /// An absent block comes. `full` tells whether room must be made: `Err` if there is none to be made, else who left.
    fn miss(&mut self, block: u64, full: bool, may_evict: MayEvict) -> Result<Option<u64>, ()>;
    fn evict(&mut self, may_evict: MayEvict) -> Option<u64>;
    /// Forgets a block, present or ghost.
    fn remove(&mut self, block: u64);
    fn resize(&mut self, capacity: usize);
    /// Every block present, in the order of eviction.
    fn coldest_first(&self) -> Vec<u64>;
}

/// The policies that have one: all that a disk may have, and of the others those that are easiest to get wrong.
pub(crate) fn kinds() -> impl Iterator<Item = PolicyKind> {
    PolicyKind::ALL.into_iter().chain([PolicyKind::Lirs2, PolicyKind::Cacheus, PolicyKind::S4Fifo])
}

pub(crate) fn model(kind: PolicyKind, capacity: usize) -> Box<dyn ReferenceModel> {
    match kind {
        PolicyKind::Fifo => Box::new(simple::Queue::new(false)),
        PolicyKind::Lru => Box::new(simple::Queue::new(true)),
        PolicyKind::Clock => Box::<simple::Clock>::default(),
        PolicyKind::Sieve => Box::<simple::Sieve>::default(),
        PolicyKind::Arc => Box::new(adaptive::Adaptive::new(capacity, false)),
        PolicyKind::Car => Box::new(adaptive::Adaptive::new(capacity, true)),
        PolicyKind::S3Fifo => Box::new(segmented::S3Fifo::new(capacity)),
        // at these sizes there are no miniatures: the knobs stay as they are
        PolicyKind::S4Fifo => Box::new(segmented::S3Fifo::new(capacity)),
        PolicyKind::WTinyLfu => Box::new(segmented::WTinyLfu::new(capacity)),
        PolicyKind::Lirs2 => Box::new(distances::Lirs2::new(capacity)),
        PolicyKind::Cacheus => Box::new(learning::Cacheus::new(capacity)),
        kind => panic!("{kind} has no model"),
    }
}

/// The position of the oldest that may go.
pub(crate) fn oldest(queue: &[u64], may_evict: MayEvict) -> Option<usize> {
    queue.iter().position(|&b| may_evict(b))
}

pub(crate) fn take(queue: &mut Vec<u64>, block: u64) -> bool {
    let at = queue.iter().position(|&b| b == block);
    at.map(|at| queue.remove(at)).is_some()
}
