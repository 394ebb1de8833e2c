//! The stack S of LIRS2: entries for the last two requests of a block, the latest on top.
//!
//! Owns the order of the entries. Never knows whether a block is LIR. Invariant: a holder has each of its two entries
//! at most once.

use super::{BEFORE, LAST};
use crate::structures::list::{Links, List, NIL};

/// S: its nodes are entries, those of ghosts first. Each holder, a ghost or a slot, has two: the last and the one
/// before.
#[derive(Debug)]
pub(super) struct Stack {
    pub list: List,
    pub links: Links,
    /// Below this entry all are of LIR blocks; `NIL` where that is not known.
    pub lowest: u32,
}

impl Stack {
    pub fn new(holders: u32) -> Self {
        Self { list: List::new(), links: Links::new(2 * holders as usize), lowest: NIL }
    }

    pub fn push(&mut self, node: u32) {
        self.list.push(&mut self.links, node);
    }

    pub fn remove(&mut self, node: u32) {
        if self.lowest == node {
            self.lowest = self.links.newer(node);
        }
        self.list.remove(&mut self.links, node);
    }

    pub fn replace(&mut self, from: u32, to: u32) {
        if self.lowest == from {
            self.lowest = to;
        }
        self.list.replace(&mut self.links, from, to);
    }

    /// The entries of one holder become those of another.
    pub fn hand_over(&mut self, mark: u8, from: u32, to: u32) {
        if mark & LAST != 0 {
            self.replace(last(from), last(to));
        }
        if mark & BEFORE != 0 {
            self.replace(before(from), before(to));
        }
    }
}

/// The nodes of a holder, and the holder of a node.
pub(super) fn last(holder: u32) -> u32 {
    2 * holder
}
pub(super) fn before(holder: u32) -> u32 {
    2 * holder + 1
}
pub(super) fn holder(node: u32) -> u32 {
    node / 2
}
pub(super) fn is_last(node: u32) -> bool {
    node.is_multiple_of(2)
}
