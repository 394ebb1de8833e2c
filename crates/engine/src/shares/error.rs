//! What can be wrong with a change of the tree.
//!
//! Owns the errors and their sentences. Each names the node and what to do.

use super::node::{Level, NodeId, WEIGHT_MAX, WEIGHT_MIN};
use std::fmt;
use std::sync::Arc;

/// Why a change of the tree was refused; the tree is as it was. Sizes in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// There is no such node (any more).
    Unknown {
        /// What was asked for.
        node: NodeId,
    },
    /// A sibling has that name.
    Duplicate {
        /// The name.
        name: Arc<str>,
        /// Below which node.
        parent: Arc<str>,
    },
    /// A name that a path cannot contain.
    Name {
        /// The name.
        name: Arc<str>,
    },
    /// A node of that level cannot be below one of that.
    Level {
        /// The name of the node to be.
        name: Arc<str>,
        /// Its level.
        level: Level,
        /// The name of the parent.
        parent: Arc<str>,
        /// The parent's level.
        parent_level: Level,
    },
    /// The host itself cannot be removed.
    Host,
    /// A weight out of range.
    Weight {
        /// Which node's.
        node: Arc<str>,
        /// The weight.
        weight: u32,
    },
    /// A ceiling below the floor of the same node.
    CeilingBelowFloor {
        /// Which node's.
        node: Arc<str>,
        /// Its floor.
        floor: u64,
        /// Its ceiling.
        ceiling: u64,
    },
    /// With this floor the children's floors would be above the parent's ceiling.
    FloorsAboveCeiling {
        /// Whose floor.
        node: Arc<str>,
        /// The floor asked for.
        floor: u64,
        /// The parent.
        parent: Arc<str>,
        /// The parent's ceiling.
        ceiling: u64,
        /// The floors of the siblings together.
        others: u64,
    },
    /// With this floor the children's floors would be above what the parent is entitled to.
    FloorsAboveParent {
        /// Whose floor.
        node: Arc<str>,
        /// The floor asked for.
        floor: u64,
        /// The parent.
        parent: Arc<str>,
        /// What the parent is entitled to.
        entitled: u64,
        /// The floors of the siblings together.
        others: u64,
    },
    /// There are as many nodes as there may be.
    Full {
        /// How many.
        nodes: usize,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { node } => {
                write!(f, "there is no node {node} (any more); list the nodes and take one of them")
            }
            Self::Duplicate { name, parent } => {
                write!(f, "`{parent}` has a node `{name}` already; take another name, or change that node")
            }
            Self::Name { name } => {
                write!(f, "`{name}` cannot name a node: a name is 1 to 255 bytes without `/` and control characters")
            }
            Self::Level { name, level, parent, parent_level } => write!(
                f,
                "`{name}` is a {level} and cannot be below `{parent}`, a {parent_level}; the order is host, VM, \
                 container, disk"
            ),
            Self::Host => write!(f, "the host cannot be removed; remove the nodes below it"),
            Self::Weight { node, weight } => {
                write!(f, "weight {weight} of `{node}` is out of range; take {WEIGHT_MIN} to {WEIGHT_MAX}")
            }
            Self::CeilingBelowFloor { node, floor, ceiling } => write!(
                f,
                "the ceiling of `{node}`, {ceiling} blocks, is below its floor of {floor}; raise the ceiling or lower \
                 the floor"
            ),
            Self::FloorsAboveCeiling { node, floor, parent, ceiling, others } => write!(
                f,
                "a floor of {floor} blocks for `{node}` does not fit: `{parent}` has a ceiling of {ceiling} and its \
                 other nodes have floors of {others}; take at most {}, or raise that ceiling",
                ceiling.saturating_sub(*others)
            ),
            Self::FloorsAboveParent { node, floor, parent, entitled, others } => write!(
                f,
                "a floor of {floor} blocks for `{node}` does not fit: `{parent}` is entitled to {entitled} and its \
                 other nodes have floors of {others}; take at most {}, lower those, or give `{parent}` more weight or \
                 a floor",
                entitled.saturating_sub(*others)
            ),
            Self::Full { nodes } => write!(f, "there are {nodes} nodes already; remove some first"),
        }
    }
}

impl std::error::Error for TreeError {}
