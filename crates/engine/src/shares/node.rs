//! What a node of the tree is: its name, its place, what is set for it.
//!
//! Owns the vocabulary of the tree. Never divides anything.

use super::hint::Hint;
use std::fmt;
use std::sync::Arc;

/// Names a node for as long as it lives; the number of a node that is gone is never given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Where in the tree a node may stand: below any node of a higher level, so levels may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The root; there is one.
    Host,
    /// A virtual machine.
    Vm,
    /// A group of disks, or of parts of disks.
    Container,
    /// A disk, or the part of a disk that has an index of its own: the only level that holds blocks.
    Disk,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Vm => "VM",
            Self::Container => "container",
            Self::Disk => "disk",
        })
    }
}

/// The least weight.
pub const WEIGHT_MIN: u32 = 1;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// The weight of a node by default.
pub const WEIGHT_DEFAULT: u32 = 100;

/// What is set for a node. Sizes in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareSettings {
    /// Its part of what its siblings and it contend for: [`WEIGHT_MIN`]..=[`WEIGHT_MAX`].
    pub weight: u32,
    /// What it has whenever it demands it.
    pub floor: u64,
    /// What it never has more of; `None`: no bound of its own.
    pub ceiling: Option<u64>,
    /// How its blocks will be used; see [`Hint`].
    pub hint: Hint,
}

impl Default for ShareSettings {
    fn default() -> Self {
        Self { weight: WEIGHT_DEFAULT, floor: 0, ceiling: None, hint: Hint::Normal }
    }
}

/// A node of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) name: Arc<str>,
    pub(super) level: Level,
    pub(super) parent: Option<NodeId>,
    /// By name.
    pub(super) children: Vec<NodeId>,
    pub(super) settings: ShareSettings,
}

impl Node {
    /// Its name, unlike that of any sibling.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// What is above it; `None` for the host.
    pub fn parent(&self) -> Option<NodeId> {
        self.parent
    }

    /// What is below it, by name.
    pub(crate) fn children(&self) -> &[NodeId] {
        &self.children
    }

    /// What is set for it.
    pub fn settings(&self) -> &ShareSettings {
        &self.settings
    }

    /// Its ceiling, or what stands for none.
    pub(super) fn ceiling(&self) -> u64 {
        self.settings.ceiling.unwrap_or(super::BLOCKS_MAX).min(super::BLOCKS_MAX)
    }
}
