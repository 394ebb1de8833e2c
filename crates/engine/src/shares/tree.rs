//! The tree host > VM > container > disk, and every change of it.
//!
//! Owns names, places and settings. Never divides (see `divide`), never touches an index. Invariant: a refused change
//! changes nothing; siblings differ in name and stand in the order of their names, so the order in which nodes came
//! never shows.

use super::error::TreeError;
use super::fill::BLOCKS_MAX;
use super::node::{Level, Node, NodeId, ShareSettings, WEIGHT_MAX, WEIGHT_MIN};
use std::sync::Arc;

/// Nodes that a tree may have.
pub(crate) const NODES_MAX: usize = 65_536;
/// Bytes that a name may have.
const NAME_BYTES_MAX: usize = 255;

#[derive(Clone, Debug)]
pub(super) struct Slot {
    generation: u32,
    pub(super) node: Option<Node>,
}

/// A node whose children's floors do not fit into what it is entitled to: a change above has made it so since. The
/// floors are then kept in turn by weight, as far as it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The parent.
    pub node: NodeId,
    /// The sum of its children's floors, in blocks.
    pub floors: u64,
    /// What it is entitled to, in blocks.
    pub entitled: u64,
}

/// See the head of the file.
///
/// Settings of a VM are made without knowledge of those of its containers: a floor is checked against what the parent
/// is entitled to, so no node can take from those beside its parent; and a change above is never refused for what was
/// set below (see [`Tree::shortfalls`]).
#[derive(Clone, Debug)]
pub struct Tree {
    pub(super) slots: Vec<Slot>,
    free: Vec<u32>,
    total: u64,
}

impl Tree {
    /// A host named `name` that has `total` blocks and nothing below it.
    pub fn new(name: &str, total: u64) -> Self {
        let host = Node {
            name: name.into(),
            level: Level::Host,
            parent: None,
            children: vec![],
            settings: ShareSettings::default(),
        };
        Self { slots: vec![Slot { generation: 0, node: Some(host) }], free: vec![], total: total.min(BLOCKS_MAX) }
    }

    /// The host.
    pub fn root(&self) -> NodeId {
        NodeId { index: 0, generation: 0 }
    }

    /// Blocks there are.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// There are `total` blocks from now on; at most [`BLOCKS_MAX`] count.
    pub fn set_total(&mut self, total: u64) {
        self.total = total.min(BLOCKS_MAX);
    }

    /// How many nodes there are, the host among them.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is nothing below the host.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    /// The node.
    ///
    /// # Errors
    /// [`TreeError::Unknown`].
    pub fn node(&self, id: NodeId) -> Result<&Node, TreeError> {
        let slot = self.slots.get(id.index as usize).filter(|s| s.generation == id.generation);
        slot.and_then(|s| s.node.as_ref()).ok_or(TreeError::Unknown { node: id })
    }

    pub(super) fn at(&self, id: NodeId) -> &Node {
        self.node(id).expect("ids within the tree are of nodes that live")
    }

    fn at_mut(&mut self, id: NodeId) -> &mut Node {
        self.slots[id.index as usize].node.as_mut().expect("ids within the tree are of nodes that live")
    }

    /// The node at `path`: names from below the host on, with `/` between; the empty path is the host.
    pub fn find(&self, path: &str) -> Option<NodeId> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(self.root(), |at, name| {
            let children = &self.at(at).children;
            children.binary_search_by(|&child| (*self.at(child).name).cmp(name)).ok().map(|i| children[i])
        })
    }

    /// The path of a node, for messages; the host's is its name.
    ///
    /// # Errors
    /// [`TreeError::Unknown`].
    pub fn path(&self, id: NodeId) -> Result<String, TreeError> {
        let mut node = self.node(id)?;
        let mut names = vec![node.name.as_ref()];
        while let Some(parent) = node.parent {
            node = self.at(parent);
            names.push(&node.name);
        }
        if names.len() > 1 {
            names.pop();
        }
        names.reverse();
        Ok(names.join("/"))
    }

    /// The node and everything below it, parents before children, siblings by name. Empty for an unknown node.
    pub fn below(&self, id: NodeId) -> Vec<NodeId> {
        let mut found = vec![];
        let mut open: Vec<NodeId> = self.node(id).map(|_| id).into_iter().collect();
        while let Some(at) = open.pop() {
            found.push(at);
            open.extend(self.at(at).children.iter().rev());
        }
        found
    }

    /// Every disk, in the order of [`Tree::below`].
    pub fn leaves(&self) -> Vec<NodeId> {
        self.below(self.root()).into_iter().filter(|&id| self.at(id).level == Level::Disk).collect()
    }

    /// Adds a node.
    ///
    /// # Errors
    /// All but [`TreeError::Host`] and [`TreeError::Changed`].
    pub fn add(
        &mut self,
        parent: NodeId,
        level: Level,
        name: &str,
        settings: ShareSettings,
    ) -> Result<NodeId, TreeError> {
        let name: Arc<str> = name.into();
        let above = self.node(parent)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(|c: char| c == '/' || c.is_control()) {
            return Err(TreeError::Name { name });
        }
        if level <= above.level {
            let (parent, parent_level) = (above.name.clone(), above.level);
            return Err(TreeError::Level { name, level, parent, parent_level });
        }
        let at = match above.children.binary_search_by(|&child| self.at(child).name.cmp(&name)) {
            Ok(_) => return Err(TreeError::Duplicate { name, parent: above.name.clone() }),
            Err(at) => at,
        };
        if self.len() >= NODES_MAX {
            return Err(TreeError::Full { nodes: self.len() });
        }
        check_alone(&name, &settings)?;
        self.check_floor(parent, None, &name, settings.floor)?;
        let node = Node { name, level, parent: Some(parent), children: vec![], settings };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, node: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.node = Some(node);
        let id = NodeId { index, generation: slot.generation };
        self.at_mut(parent).children.insert(at, id);
        Ok(id)
    }

    /// Takes a node out with everything below it; returns what is gone, parents before children.
    ///
    /// # Errors
    /// [`TreeError::Unknown`], [`TreeError::Host`].
    pub fn remove(&mut self, id: NodeId) -> Result<Vec<NodeId>, TreeError> {
        let parent = self.node(id)?.parent.ok_or(TreeError::Host)?;
        self.at_mut(parent).children.retain(|&child| child != id);
        let gone = self.below(id);
        for id in &gone {
            let slot = &mut self.slots[id.index as usize];
            slot.node = None;
            // a slot whose generations are used up is not used again
            if let Some(next) = slot.generation.checked_add(1) {
                slot.generation = next;
                self.free.push(id.index);
            }
        }
        Ok(gone)
    }

    /// Sets what is set for a node, all at once.
    ///
    /// # Errors
    /// [`TreeError::Unknown`], and what is wrong with the settings.
    pub fn change(&mut self, id: NodeId, settings: ShareSettings) -> Result<(), TreeError> {
        let node = self.node(id)?;
        let name = node.name.clone();
        check_alone(&name, &settings)?;
        // a floor that stays or falls cannot be at fault, whatever was set above since
        if settings.floor > node.settings.floor {
            match node.parent {
                Some(parent) => self.check_floor(parent, Some(id), &name, settings.floor)?,
                None if settings.floor > self.total => {
                    let (parent, entitled) = (name.clone(), self.total);
                    return Err(TreeError::FloorsAboveParent {
                        node: name,
                        floor: settings.floor,
                        parent,
                        entitled,
                        others: 0,
                    });
                }
                None => {}
            }
        }
        self.at_mut(id).settings = settings;
        Ok(())
    }

    /// Whether a child of `parent` (a new one, or `child`) may have `floor`.
    fn check_floor(&self, parent: NodeId, child: Option<NodeId>, name: &Arc<str>, floor: u64) -> Result<(), TreeError> {
        if floor == 0 {
            return Ok(());
        }
        let above = self.at(parent);
        let siblings = above.children.iter().filter(|&&c| Some(c) != child);
        let others = siblings.fold(0u64, |sum, &c| sum.saturating_add(self.at(c).settings.floor));
        let sum = others.saturating_add(floor);
        let (node, parent_name) = (name.clone(), above.name.clone());
        if let Some(ceiling) = above.settings.ceiling.filter(|&ceiling| sum > ceiling) {
            return Err(TreeError::FloorsAboveCeiling { node, floor, parent: parent_name, ceiling, others });
        }
        let entitled = self.entitled(parent);
        if sum > entitled {
            return Err(TreeError::FloorsAboveParent { node, floor, parent: parent_name, entitled, others });
        }
        Ok(())
    }

    /// Every node whose children's floors are more than it is entitled to.
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        let entitled = self.entitlements();
        let mut found = vec![];
        for node in self.below(self.root()) {
            let floors =
                self.at(node).children.iter().fold(0u64, |sum, &c| sum.saturating_add(self.at(c).settings.floor));
            if floors > entitled[node.index as usize] {
                found.push(Shortfall { node, floors, entitled: entitled[node.index as usize] });
            }
        }
        found
    }
}

/// What can be said of settings without looking at other nodes.
fn check_alone(name: &Arc<str>, settings: &ShareSettings) -> Result<(), TreeError> {
    if !(WEIGHT_MIN..=WEIGHT_MAX).contains(&settings.weight) {
        return Err(TreeError::Weight { node: name.clone(), weight: settings.weight });
    }
    match settings.ceiling {
        Some(ceiling) if ceiling < settings.floor => {
            Err(TreeError::CeilingBelowFloor { node: name.clone(), floor: settings.floor, ceiling })
        }
        _ => Ok(()),
    }
}
