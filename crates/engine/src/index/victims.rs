//! The victim buffer: blocks that the policy has evicted stay for a moment longer, the last few of them.
//!
//! Owns the buffer's order. Never takes a locked block or one that the guest holds. Invariants: a buffered slot is in
//! no queue of the policy and in no tier, and its mark says so; the buffer's slots are carved out of what the index may
//! hold, at most half of it.
//!
//! A hit there counts as a hit, and changes places with the block that the policy would evict next (Jouppi, "Improving
//! Direct-Mapped Cache Performance by the Addition of a Small Fully-Associative Cache and Prefetch Buffers", ISCA 1990;
//! 12 blocks in Asaduzzaman's thesis). A set of its own for each disk: an index with parts has none.

use super::Index;
use super::ranges::REST;
use crate::limits;
use crate::policy::{Policy, PolicySet, Seen};
use crate::structures::list::List;
use crate::structures::places::{BUFFERED, Places};
use crate::structures::slots::Slot;
use std::cmp::Ordering;

/// Blocks that a victim buffer may have at most.
pub const VICTIMS_MAX: u32 = 4096;

/// Blocks that come into a buffer with room at one eviction.
const COME_AT_ONCE: u32 = 2;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Victims {
    list: List,
    /// Blocks that it is to have.
    size: u32,
    /// Hits so far.
    hits: u64,
}

impl Victims {
    fn put(&mut self, places: &mut Places, slot: Slot) {
        self.list.push(&mut places.links, slot);
        places.marks[slot as usize] = BUFFERED;
    }

    fn take(&mut self, places: &mut Places, slot: Slot) {
        self.list.remove(&mut places.links, slot);
        places.marks[slot as usize] = 0;
    }

    /// Blocks in it.
    pub fn len(&self) -> u32 {
        self.list.len()
    }

    /// What was in one slot is in another.
    pub fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        places.marks[to as usize] = std::mem::take(&mut places.marks[from as usize]);
        self.list.replace(&mut places.links, from, to);
    }

    /// Its slots, the oldest first.
    pub fn slots<'a>(&'a self, places: &'a Places) -> impl Iterator<Item = Slot> + 'a {
        self.list.iter(&places.links)
    }

    /// Checks the list; for tests.
    pub fn check(&self, places: &Places, occupied: impl Fn(Slot) -> bool) {
        self.list.check(&places.links);
        for slot in self.list.iter(&places.links) {
            assert_eq!(places.marks[slot as usize], BUFFERED, "slot {slot} is buffered and its mark does not say so");
            assert!(occupied(slot), "slot {slot} is buffered and free");
        }
    }
}

impl<K: PolicySet> Index<K> {
    /// Keeps the last `size` blocks that the policy evicts a moment longer, in slots out of those that the index may
    /// have; no more than [`VICTIMS_MAX`], and none in an index with parts. 0 ends it: what is there becomes the
    /// policy's again.
    pub fn set_victims(&mut self, size: u32) {
        let size = if self.parts.is_some() { 0 } else { size.min(VICTIMS_MAX) };
        match (&mut self.victims, size) {
            (None, 0) => return,
            (None, size) => self.victims = Some(Box::new(Victims { list: List::new(), size, hits: 0 })),
            (Some(victims), size) => victims.size = size,
        }
        if size == 0 {
            while let Some(slot) = self.oldest_buffered(&|_| true) {
                self.take_buffered(slot);
                self.insert_hot(REST, slot, Seen::Never);
            }
            self.victims = None;
        }
        self.choose_way();
        self.tell_policy(REST, true);
        self.fit_locks();
    }

    /// Blocks that the victim buffer has, may have, and hits that it had so far; zeroes without one.
    pub fn victims(&self) -> (u32, u32, u64) {
        self.victims.as_ref().map_or((0, 0, 0), |v| (v.len(), v.size, v.hits))
    }

    /// Slots that the buffer may take now.
    pub(super) fn victims_len_max(&self) -> u32 {
        self.victims.as_ref().map_or(0, |v| v.size.min(self.limit / 2))
    }

    /// Whether an occupied slot is in the victim buffer.
    #[inline]
    pub fn is_buffered(&self, slot: Slot) -> bool {
        self.victims.is_some() && self.places.marks[slot as usize] == BUFFERED
    }

    /// Takes a slot out of the buffer, to be put elsewhere or freed; false if it is not there.
    pub(super) fn take_buffered(&mut self, slot: Slot) -> bool {
        let found = self.is_buffered(slot);
        if let Some(victims) = self.victims.as_mut().filter(|_| found) {
            victims.take(&mut self.places, slot);
        }
        found
    }

    fn put_buffered(&mut self, slot: Slot) {
        if let Some(victims) = &mut self.victims {
            victims.put(&mut self.places, slot);
        }
    }

    fn oldest_buffered(&self, may_evict: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let victims = self.victims.as_ref()?;
        victims.slots(&self.places).take(limits::REFUSALS_MAX as usize).find(|&slot| may_evict(slot))
    }

    fn policy_victim(&mut self, may_evict: &dyn Fn(Slot) -> bool, seen: Seen) -> Option<Slot> {
        let Self { slots, places, policy, .. } = self;
        policy.victim(places, slots.keys(), may_evict, seen)
    }

    /// A slot that is to be freed, of an index with a buffer: the oldest there, after the policy's own victim has come;
    /// two while there is room for more.
    pub(super) fn victim_by_buffer(&mut self, may_evict: &dyn Fn(Slot) -> bool, seen: Seen) -> Option<Slot> {
        let come = match self.victims.as_ref().map_or(0, |v| v.len()).cmp(&self.victims_len_max()) {
            Ordering::Less => COME_AT_ONCE,
            Ordering::Equal => 1,
            Ordering::Greater => 0,
        };
        for n in 0..come {
            let seen = if n == 0 { seen } else { Seen::Never };
            let Some(slot) = self.policy_victim(may_evict, seen) else { break };
            self.put_buffered(slot);
        }
        match self.oldest_buffered(may_evict) {
            Some(oldest) => {
                self.take_buffered(oldest);
                Some(oldest)
            }
            None => self.policy_victim(may_evict, seen),
        }
    }

    /// A hit on a block in the buffer: it becomes the policy's, and the policy's next victim takes its place; or, if
    /// the guest takes it (`cold`), one of those that go first.
    pub(super) fn hit_buffered(&mut self, slot: Slot, cold: bool) {
        self.take_buffered(slot);
        if let Some(victims) = &mut self.victims {
            victims.hits += 1;
        }
        if cold {
            return self.put_cold(REST, slot);
        }
        if let Some(next) = self.policy_victim(&|_| true, Seen::Never) {
            self.put_buffered(next);
        }
        self.insert_hot(REST, slot, Seen::Once);
    }
}
