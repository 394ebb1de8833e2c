//! Slots by a key, the smallest first, where keys change: a binary heap that knows where each slot stands.
//!
//! Owns the order. Never knows what a key means. Every change takes time in the logarithm of the number of slots.
//! Invariant: no slot has a smaller key than its parent; `at` tells each slot's place.

use super::per_slot::PerSlot;
use crate::policy::Search;
use crate::structures::slots::Slot;

#[derive(Debug)]
pub(super) struct Heap<K> {
    nodes: Vec<(K, Slot)>,
    at: PerSlot<u32>,
}

impl<K: Ord + Copy + Default> Heap<K> {
    pub fn new(slots: u32) -> Self {
        Self { nodes: Vec::with_capacity(slots as usize), at: PerSlot::new(slots) }
    }

    pub fn len(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The slot with the smallest key.
    pub fn first(&self) -> Option<(K, Slot)> {
        self.nodes.first().copied()
    }

    pub fn key(&self, slot: Slot) -> K {
        self.nodes[self.at.get(slot) as usize].0
    }

    pub fn push(&mut self, slot: Slot, key: K) {
        self.nodes.push((key, slot));
        self.at.set(slot, self.len() - 1);
        self.up(self.nodes.len() - 1);
    }

    pub fn remove(&mut self, slot: Slot) {
        let at = self.at.get(slot) as usize;
        self.nodes.swap_remove(at);
        if at < self.nodes.len() {
            self.at.set(self.nodes[at].1, at as u32);
            self.up(at);
            self.down(at);
        }
    }

    /// Gives `slot` another key.
    pub fn change(&mut self, slot: Slot, key: K) {
        let at = self.at.get(slot) as usize;
        self.nodes[at].0 = key;
        self.up(at);
        self.down(self.at.get(slot) as usize);
    }

    pub fn moved(&mut self, from: Slot, to: Slot) {
        let at = self.at.get(from);
        self.nodes[at as usize].1 = to;
        self.at.set(to, at);
    }

    fn put(&mut self, at: usize, node: (K, Slot)) {
        self.nodes[at] = node;
        self.at.set(node.1, at as u32);
    }

    fn up(&mut self, mut at: usize) {
        let node = self.nodes[at];
        while at > 0 && self.nodes[(at - 1) / 2].0 > node.0 {
            self.put(at, self.nodes[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.put(at, node);
    }

    fn down(&mut self, mut at: usize) {
        let node = self.nodes[at];
        loop {
            let mut child = 2 * at + 1;
            if child + 1 < self.nodes.len() && self.nodes[child + 1].0 < self.nodes[child].0 {
                child += 1;
            }
            if child >= self.nodes.len() || self.nodes[child].0 >= node.0 {
                break;
            }
            self.put(at, self.nodes[child]);
            at = child;
        }
        self.put(at, node);
    }

    /// The slot with the smallest key among those that may go; not taken out.
    pub fn first_that(&mut self, may_evict: &impl Fn(Slot) -> bool, search: &mut Search) -> Option<(K, Slot)> {
        let mut held = vec![];
        let mut found = None;
        while let Some((key, slot)) = self.first() {
            if may_evict(slot) {
                found = Some((key, slot));
                break;
            }
            held.push((key, slot));
            if search.refused() {
                break;
            }
            self.remove(slot);
        }
        for (key, slot) in held {
            if self.nodes.get(self.at.get(slot) as usize).is_none_or(|n| n.1 != slot) {
                self.push(slot, key);
            }
        }
        found
    }

    /// The slots, the smallest key first. Takes memory and time; for tests and for changes of policy.
    pub fn sorted(&self) -> Vec<Slot> {
        let mut nodes = self.nodes.clone();
        nodes.sort_unstable();
        nodes.into_iter().map(|n| n.1).collect()
    }

    pub fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<(K, Slot)>() + self.at.memory_bytes()
    }

    pub fn check(&self, occupied: u32) {
        assert_eq!(self.len(), occupied, "slots in the heap");
        for (at, &(key, slot)) in self.nodes.iter().enumerate() {
            assert_eq!(self.at.get(slot) as usize, at, "slot {slot} stands elsewhere");
            assert!(
                at == 0 || self.nodes[(at - 1) / 2].0 <= key,
                "the key of slot {slot} is smaller than its parent's"
            );
        }
    }
}
