//! Dividing what there is among the nodes of the tree: hierarchical weighted max-min fairness with floors and ceilings.
//!
//! Owns the meaning of entitled, lent and borrowed. Never changes the tree.
//! Invariant: the leaves' shares sum to the node's share, at every node, exactly.
//!
//! The rule, at every node from the host down: what the node has is raised by weight among its children, first to their
//! floors (a child that demands less: to that), then to their demands, then to their ceilings. From it follows:
//! - *entitled* is what a node has when all demand everything: it depends on settings alone. A node has at least
//!   the smaller of its demand and its entitlement, whatever others do: what it lent comes back when it demands it.
//! - what a node does not demand goes to those who do, by weight, among its siblings first, because what its parent has
//!   is less only if the parent's children together demand less.
//! - a floor is kept whenever it is demanded, if the floors of siblings fit into their parent's entitlement, which
//!   [`Tree::add`] and [`Tree::change`] see to; if a change above has taken that away since, floors are kept by weight.
//! - what no node demands is divided by weight too, so that it is there on demand; only what ceilings forbid is left.

use super::fill::{BLOCKS_MAX, Claim, fill};
use super::node::{Level, NodeId};
use super::tree::Tree;

/// What one node has, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// What it would have if all demanded everything.
    pub entitled: u64,
    /// What it demands, as far as ceilings allow.
    pub demand: u64,
    /// What it has.
    pub share: u64,
    /// What ceilings, its own and those below it, let it have at most; 0 without a disk.
    pub room: u64,
}

impl Share {
    /// What others have of its entitlement.
    pub fn lent(&self) -> u64 {
        self.entitled.saturating_sub(self.share)
    }

    /// What it has of the entitlements of others.
    #[cfg(test)]
    pub(crate) fn borrowed(&self) -> u64 {
        self.share.saturating_sub(self.entitled)
    }
}

/// Who has what.
#[derive(Clone, Debug)]
pub struct Division {
    /// By index of the node, with its generation.
    shares: Vec<Share>,
    generations: Vec<Option<u32>>,
    /// In the order of [`Tree::below`].
    nodes: Vec<NodeId>,
}

impl Division {
    /// What `node` has; nothing if it was unknown.
    pub fn get(&self, node: NodeId) -> Share {
        let known = self.generations.get(node.index as usize) == Some(&Some(node.generation));
        if known { self.shares[node.index as usize] } else { Share::default() }
    }

    /// Every node, parents before children, siblings by name.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Share)> + '_ {
        self.nodes.iter().map(|&node| (node, self.shares[node.index as usize]))
    }
}

impl Tree {
    /// Divides what there is, given what each disk could use (in blocks; asked once for each disk).
    pub fn divide(&self, mut demand: impl FnMut(NodeId) -> u64) -> Division {
        let nodes = self.below(self.root());
        let mut shares = vec![Share::default(); self.slots.len()];
        for &id in nodes.iter().rev() {
            let (node, i) = (self.at(id), id.index as usize);
            let (wanted, room_below) = if node.level == Level::Disk {
                (demand(id), BLOCKS_MAX)
            } else {
                let below = |of: &dyn Fn(usize) -> u64| {
                    node.children.iter().fold(0u64, |sum, c| sum.saturating_add(of(c.index as usize)))
                };
                (below(&|c| shares[c].demand), below(&|c| shares[c].room))
            };
            shares[i].room = room_below.min(node.ceiling());
            shares[i].demand = wanted.min(shares[i].room);
        }
        for (share, entitled) in shares.iter_mut().zip(self.entitlements()) {
            share.entitled = entitled;
        }
        shares[0].share = self.total().min(shares[0].room);
        for &id in &nodes {
            let node = self.at(id);
            let claims: Vec<Claim> = node
                .children
                .iter()
                .map(|&child| {
                    let settings = self.at(child).settings();
                    let Share { demand, room, .. } = shares[child.index as usize];
                    Claim { weight: settings.weight, steps: [settings.floor.min(demand), demand, room] }
                })
                .collect();
            for (child, blocks) in node.children.iter().zip(fill(shares[id.index as usize].share, &claims)) {
                shares[child.index as usize].share = blocks;
            }
        }
        let mut generations = vec![None; self.slots.len()];
        for id in &nodes {
            generations[id.index as usize] = Some(id.generation);
        }
        Division { shares, generations, nodes }
    }

    /// What every node is entitled to, by index.
    pub(super) fn entitlements(&self) -> Vec<u64> {
        let mut entitled = vec![0; self.slots.len()];
        entitled[0] = self.total().min(self.at(self.root()).ceiling());
        for id in self.below(self.root()) {
            self.entitle_children(id, &mut entitled);
        }
        entitled
    }

    fn entitle_children(&self, id: NodeId, entitled: &mut [u64]) {
        let children = &self.at(id).children;
        let claims: Vec<Claim> = children
            .iter()
            .map(|&child| {
                let node = self.at(child);
                Claim { weight: node.settings.weight, steps: [node.settings.floor, node.ceiling(), node.ceiling()] }
            })
            .collect();
        for (child, blocks) in children.iter().zip(fill(entitled[id.index as usize], &claims)) {
            entitled[child.index as usize] = blocks;
        }
    }

    /// What one node is entitled to: looks only at the nodes on the way to it.
    pub(super) fn entitled(&self, id: NodeId) -> u64 {
        let mut way = vec![id];
        while let Some(parent) = self.at(way[way.len() - 1]).parent {
            way.push(parent);
        }
        let mut entitled = vec![0; self.slots.len()];
        entitled[0] = self.total().min(self.at(self.root()).ceiling());
        for &above in way[1..].iter().rev() {
            self.entitle_children(above, &mut entitled);
        }
        entitled[id.index as usize]
    }
}
