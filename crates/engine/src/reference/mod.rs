//! The policies held against their reference models, through an index, step by step.
//!
//! Owns the comparison and its tests. The models are `policy`'s: queues are vectors of blocks (oldest first), marks are
//! sets and maps. Invariant: after every step index and model hold the same blocks, evicted the same ones, and
//! `Index::check` passes.

mod driver;
mod tests;

use crate::Slot;
use crate::policy::AnyPolicyKind;

/// The policies that have a model: all that a disk may have, and of the others those that are easiest to get wrong.
pub(crate) fn kinds() -> impl Iterator<Item = AnyPolicyKind> {
    AnyPolicyKind::ALL.into_iter().filter(|kind| kind.model(1).is_some())
}

/// Every slot may be evicted. Tests say so by this one function: the index with all policies is compiled anew for each
/// closure.
pub(crate) fn may_go(_: Slot) -> bool {
    true
}
