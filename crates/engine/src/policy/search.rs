//! The bounded search for a victim, and the walks along a queue that several policies share.
//!
//! Owns the count of what one search has passed over. Never changes a queue. Invariant: no search looks at more slots
//! than `limits` says.

use crate::limits::{REFUSALS_MAX, SECOND_CHANCES_MAX};
use crate::structures::list::{Links, List, NIL};
use crate::structures::slots::Slot;

/// Counts what one search for a victim has passed over.
#[derive(Default)]
pub(crate) struct Search {
    refused: u32,
    chances: u32,
}

impl Search {
    /// Counts a slot that may not go; whether the search is over.
    #[inline]
    pub fn refused(&mut self) -> bool {
        self.refused += 1;
        self.refused >= REFUSALS_MAX
    }

    /// Whether so many slots refused that the search is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.refused >= REFUSALS_MAX
    }

    /// Counts a marked slot; whether it is spared.
    #[inline]
    pub fn spared(&mut self) -> bool {
        self.chances += 1;
        self.chances <= SECOND_CHANCES_MAX
    }
}

/// The oldest slot in `queue` that may go; not taken out.
#[inline]
pub(crate) fn oldest(
    queue: &List,
    links: &Links,
    may_evict: &impl Fn(Slot) -> bool,
    search: &mut Search,
) -> Option<Slot> {
    let mut at = queue.tail();
    while at != NIL {
        if may_evict(at) {
            return Some(at);
        }
        if search.refused() {
            return None;
        }
        at = links.newer(at);
    }
    None
}
