//! How much of the store each disk may keep: the tree host > VM > container > disk, and the division among its nodes.
//!
//! Owns settings, entitlements and the arithmetic of shares, in blocks. Never touches an index: the caller takes
//! the shares from here (or targets from `control`) and moves limits towards them. Invariant: parts sum to the
//! whole, exactly, at every node.

mod divide;
mod error;
mod fill;
mod hint;
mod node;
#[cfg(test)]
mod tests;
mod tree;

pub use divide::{Division, Share};
pub use error::TreeError;
pub use fill::{BLOCKS_MAX, Claim, fill};
pub(crate) use hint::Growth;
pub use hint::{Admission, Hint, ReadAhead};
pub use node::{Level, Node, NodeId, ShareSettings, WEIGHT_DEFAULT, WEIGHT_MAX, WEIGHT_MIN};
pub use tree::{Shortfall, Tree};
