//! Tiers below the policy, for an index that keeps what its guest does not hold.
//!
//! Owns the cold list (blocks that the guest holds itself: they only fill free slots, and go first) and the probation
//! queue (blocks that the guest is expected to evict soon). Never decides what a guest holds: `exclusive` does.
//! Invariant: a slot is in a tier or in the policy's queues, never in both; slots for new blocks come from free ones
//! first, then from cold, then from probation beyond its share, then from the policy.
//!
//! The placement follows the demotion-based exclusive cache of Wong and Wilkes ("My cache or yours?", USENIX ATC 2002)
//! in that what the guest has is first to go; what is new is that demotions are inferred, and prepared for.

use crate::index::{AnyPolicy, Index, Outcome, Slot, with_policy};
use crate::list::{Links, List, resize_exact};
use crate::policy::{Policy, Seen};
use crate::{Access, limits};

/// Where a block of an index with tiers stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The guest has evicted it, or never held it: the policy decides how long it stays.
    Hot,
    /// The guest is about to evict it.
    Probation,
    /// The guest holds it.
    Cold,
}

/// Marks of a slot. A free slot and one in the policy's queues have none of the first two.
const COLD: u8 = 1;
const PROBATION: u8 = 2;
/// The block was hot before, so it has proved that it comes back.
const PROVEN: u8 = 4;

/// The part of the slots that probation may take from hot blocks: one in so many.
pub const PROBATION_PART: u32 = 32;

#[derive(Debug)]
pub(crate) struct Tiers {
    links: Links,
    marks: Vec<u8>,
    cold: List,
    probation: List,
    /// Slots that probation may take from hot blocks.
    share: u32,
    /// The block that last lost its slot while on probation.
    lapsed: Option<u64>,
}

impl Tiers {
    fn new(capacity: u32) -> Self {
        let slots = capacity as usize;
        let share = capacity / PROBATION_PART;
        Self {
            links: Links::new(slots),
            marks: vec![0; slots],
            cold: List::new(),
            probation: List::new(),
            share,
            lapsed: None,
        }
    }

    fn list(&mut self, mark: u8) -> (&mut List, &mut Links) {
        (if mark & COLD != 0 { &mut self.cold } else { &mut self.probation }, &mut self.links)
    }

    fn put(&mut self, slot: Slot, mark: u8) {
        self.marks[slot as usize] = mark;
        let (list, links) = self.list(mark);
        list.push(links, slot);
    }

    /// Takes a slot out of its tier; returns its marks, 0 if it is in none.
    fn take(&mut self, slot: Slot) -> u8 {
        let mark = self.marks[slot as usize];
        if mark & (COLD | PROBATION) != 0 {
            self.marks[slot as usize] = 0;
            let (list, links) = self.list(mark);
            list.remove(links, slot);
        }
        mark
    }

    pub fn moved(&mut self, from: Slot, to: Slot) -> bool {
        let mark = std::mem::take(&mut self.marks[from as usize]);
        if mark & (COLD | PROBATION) == 0 {
            return false;
        }
        self.marks[to as usize] = mark;
        let (list, links) = self.list(mark);
        list.replace(links, from, to);
        true
    }

    pub fn resize(&mut self, capacity: u32) {
        self.links.resize(capacity as usize);
        resize_exact(&mut self.marks, capacity as usize, 0);
        self.share = capacity / PROBATION_PART;
    }

    /// Bytes per slot that tiers add to an index.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.links.memory_bytes() + self.marks.capacity()
    }

    /// Checks the lists; returns how many slots they hold.
    pub fn check(&self, occupied: impl Fn(Slot) -> bool) -> u32 {
        self.cold.check(&self.links);
        self.probation.check(&self.links);
        for (list, mark) in [(&self.cold, COLD), (&self.probation, PROBATION)] {
            for slot in list.iter(&self.links) {
                assert!(self.marks[slot as usize] & mark != 0, "slot {slot} is in another tier than its mark says");
                assert!(occupied(slot), "slot {slot} is in a tier and free");
            }
        }
        let marked = self.marks.iter().filter(|&&m| m & (COLD | PROBATION) != 0).count();
        assert_eq!(marked, (self.cold.len() + self.probation.len()) as usize, "slots with a mark of a tier");
        self.cold.len() + self.probation.len()
    }
}

impl Index {
    /// Gives the index tiers, or takes them away; blocks in them then become the policy's. Allocates 9 bytes a slot.
    pub fn set_tiers(&mut self, on: bool) {
        match (on, self.tiers.take()) {
            (true, None) => self.tiers = Some(Box::new(Tiers::new(self.capacity()))),
            (true, tiers) => self.tiers = tiers,
            (false, None) => {}
            (false, Some(mut tiers)) => {
                // the coldest first, so that they are the oldest to the policy
                for mark in [COLD, PROBATION] {
                    loop {
                        let slot = tiers.list(mark).0.tail();
                        if slot == crate::list::NIL {
                            break;
                        }
                        tiers.take(slot);
                        self.insert_hot(slot, Seen::Never);
                    }
                }
            }
        }
    }

    /// Whether the index has tiers.
    pub fn has_tiers(&self) -> bool {
        self.tiers.is_some()
    }

    /// Where an occupied slot stands; [`Tier::Hot`] in an index without tiers.
    pub fn tier(&self, slot: Slot) -> Tier {
        match self.tiers.as_ref().map_or(0, |t| t.marks[slot as usize]) {
            m if m & COLD != 0 => Tier::Cold,
            m if m & PROBATION != 0 => Tier::Probation,
            _ => Tier::Hot,
        }
    }

    /// Blocks in each tier: hot, probation, cold.
    pub fn tier_lens(&self) -> [u32; 3] {
        let (probation, cold) = self.tiers.as_ref().map_or((0, 0), |t| (t.probation.len(), t.cold.len()));
        [self.len() - probation - cold, probation, cold]
    }

    /// Moves an occupied slot to a tier. Without tiers, does nothing.
    pub fn set_tier(&mut self, slot: Slot, tier: Tier) {
        let Some(tiers) = &mut self.tiers else { return };
        let mark = tiers.take(slot);
        let was_hot = mark & (COLD | PROBATION) == 0;
        match tier {
            Tier::Hot if was_hot => {}
            Tier::Hot => {
                self.insert_hot(slot, if mark & PROVEN != 0 { Seen::Once } else { Seen::Never });
            }
            Tier::Cold | Tier::Probation => {
                if was_hot {
                    with_policy!(&mut self.policy, p => p.remove(slot));
                }
                let proven = if was_hot { PROVEN } else { mark & PROVEN };
                self.mark(slot, proven | if tier == Tier::Cold { COLD } else { PROBATION });
            }
        }
    }

    /// Puts a slot that is in no queue into the queue of its tier.
    #[inline]
    fn mark(&mut self, slot: Slot, mark: u8) {
        if let Some(tiers) = &mut self.tiers {
            tiers.put(slot, mark);
        }
    }

    /// Puts `block` in a tier: moves it there, or gives it a slot if one can be had for that tier. A cold block takes
    /// free slots and other cold blocks' only; one on probation those as well, and its share of the hot ones'.
    pub fn place(&mut self, block: u64, tier: Tier, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        let hash = self.slots.hash(block);
        match self.slots.find(block, hash) {
            Some(slot) => {
                self.set_tier(slot, tier);
                Outcome::Hit(slot)
            }
            None => self.fill_tier(block, hash, tier, may_evict),
        }
    }

    pub(crate) fn access_in_tiers(
        &mut self,
        block: u64,
        hash: u64,
        access: Access,
        may_evict: impl Fn(Slot) -> bool,
    ) -> Outcome {
        let Some(slot) = self.slots.find(block, hash) else {
            let tier = if access == Access::Take { Tier::Cold } else { Tier::Hot };
            return self.fill_tier(block, hash, tier, may_evict);
        };
        let hot = self.tier(slot) == Tier::Hot;
        match access {
            Access::Take => {
                if hot {
                    with_policy!(&mut self.policy, p => {
                        p.touch(slot, block);
                        p.remove(slot);
                    });
                }
                let mark = self.tiers.as_mut().map_or(0, |t| t.take(slot));
                let proven = if hot { PROVEN } else { mark & PROVEN };
                self.mark(slot, COLD | proven);
            }
            Access::Read | Access::Write if hot => with_policy!(&mut self.policy, p => p.touch(slot, block)),
            // Whoever reads it without keeping it may want it again.
            Access::Read | Access::Write => self.set_tier(slot, Tier::Hot),
        }
        Outcome::Hit(slot)
    }

    fn fill_tier(&mut self, block: u64, hash: u64, tier: Tier, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        if self.limit == 0 {
            return Outcome::Bypass;
        }
        let mut seen = Seen::Never;
        if tier == Tier::Hot {
            seen = with_policy!(&mut self.policy, p => p.miss(block));
        }
        let (slot, evicted) = if self.slots.len() < self.limit {
            (self.slots.insert(block, hash), None)
        } else {
            let (share, full) = self.tiers.as_ref().map_or((0, true), |t| (t.share, t.probation.len() >= t.share));
            let victim = match tier {
                Tier::Cold => self.cold_victim(&may_evict),
                Tier::Probation if full => self.tier_victim(0, &may_evict),
                Tier::Probation => self.tier_victim(u32::MAX, &may_evict).or_else(|| self.hot_victim(&may_evict, seen)),
                Tier::Hot => self
                    .tier_victim(share, &may_evict)
                    .or_else(|| self.hot_victim(&may_evict, seen))
                    .or_else(|| self.tier_victim(0, &may_evict)),
            };
            let Some(slot) = victim else { return Outcome::Bypass };
            (slot, Some((self.slots.replace(slot, block, hash), slot)))
        };
        match tier {
            Tier::Hot => self.insert_hot_seen(slot, block, seen),
            Tier::Cold => self.mark(slot, COLD),
            Tier::Probation => self.mark(slot, PROBATION),
        }
        Outcome::Fill { slot, evicted }
    }

    fn hot_victim(&mut self, may_evict: &impl Fn(Slot) -> bool, seen: Seen) -> Option<Slot> {
        with_policy!(&mut self.policy, p => p.victim(self.slots.keys(), may_evict, seen))
    }

    /// The cold block that came last: the guest keeps it longest, the others are nearer to their eviction.
    fn cold_victim(&mut self, may_evict: &impl Fn(Slot) -> bool) -> Option<Slot> {
        let tiers = self.tiers.as_mut()?;
        let slot = tiers.cold.iter_newest(&tiers.links).take(limits::REFUSALS_MAX as usize).find(|&s| may_evict(s))?;
        tiers.take(slot);
        Some(slot)
    }

    /// A slot from the tiers: cold ones first, then the oldest on probation if those are more than `probation_keep`.
    pub(crate) fn tier_victim(&mut self, probation_keep: u32, may_evict: &impl Fn(Slot) -> bool) -> Option<Slot> {
        if let Some(slot) = self.cold_victim(may_evict) {
            return Some(slot);
        }
        let tiers = self.tiers.as_mut()?;
        if tiers.probation.len() <= probation_keep {
            return None;
        }
        let slot = tiers.probation.iter(&tiers.links).take(limits::REFUSALS_MAX as usize).find(|&s| may_evict(s))?;
        tiers.take(slot);
        tiers.lapsed = Some(self.slots.keys()[slot as usize]);
        Some(slot)
    }

    /// The block that had to go while on probation since the last call, if any.
    pub(crate) fn take_lapsed(&mut self) -> Option<u64> {
        self.tiers.as_mut()?.lapsed.take()
    }

    /// Takes a slot that is about to be freed out of its tier; false if it is in none.
    pub(crate) fn leave_tier(&mut self, slot: Slot) -> bool {
        self.tiers.as_mut().is_some_and(|t| t.take(slot) & (COLD | PROBATION) != 0)
    }

    fn insert_hot(&mut self, slot: Slot, at_least: Seen) {
        let block = self.slots.keys()[slot as usize];
        let seen = match with_policy!(&mut self.policy, p => p.miss(block)) {
            Seen::Never => at_least,
            seen => seen,
        };
        self.insert_hot_seen(slot, block, seen);
    }

    fn insert_hot_seen(&mut self, slot: Slot, block: u64, seen: Seen) {
        with_policy!(&mut self.policy, p => p.insert(slot, block, seen));
    }
}
