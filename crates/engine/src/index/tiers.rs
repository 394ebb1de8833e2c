//! Tiers below the policy, for an index that keeps what its guest does not hold.
//!
//! Owns the cold list (blocks that the guest holds itself: they only fill free slots, and go first) and the probation
//! queue (blocks that the guest is expected to evict soon). Never decides what a guest holds: `exclusive` does.
//! Invariant: a slot is in a tier or in the policy's queues, never in both; slots for new blocks come from free ones
//! first, then from cold, then from probation beyond its share, then from the policy. Each part of a disk that has
//! parts has tiers of its own, over the same arrays.
//!
//! The placement follows the demotion-based exclusive cache of Wong and Wilkes ("My cache or yours?", USENIX ATC 2002)
//! in that what the guest has is first to go; what is new is that demotions are inferred, and prepared for.

use crate::index::Access;
mod leaving;

use self::leaving::{Leaving, Whose};
use crate::index::Index;
use crate::index::parts::policy_of;
use crate::index::ranges::PartId;
use crate::limits;
use crate::policy::{Outcome, Policy, PolicySet, Seen};
use crate::structures::array::{Array, Release};
use crate::structures::list::{Links, List};
use crate::structures::slots::Slot;

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
const PROBATION_PART: u32 = 32;

#[derive(Debug)]
pub(crate) struct Tiers {
    links: Links,
    marks: Array<u8>,
    /// Of each part.
    of: Vec<Lists>,
    /// The key of the block that last lost its slot while on probation.
    lapsed: Option<u64>,
    /// Some disk has tiers. Where none has, they stay for the next time.
    used: bool,
    /// Whose slots are to become the policy's.
    leave: Whose,
}

/// The tiers of one part.
#[derive(Debug)]
struct Lists {
    cold: List,
    probation: List,
    /// Those that are to leave either.
    leaving: [Leaving; 2],
    /// Slots that probation may take from hot blocks.
    share: u32,
}

/// Bytes that the tiers of one part take.
pub(crate) const LISTS_BYTES: usize = size_of::<Lists>();

impl Tiers {
    fn new(capacity: u32, most: u32, parts: usize) -> Self {
        let (slots, most) = (capacity as usize, most as usize);
        let (links, marks) = (Links::with_room(slots, most), Array::zeroed(slots, most));
        let mut tiers = Self { links, marks, of: Vec::new(), lapsed: None, used: true, leave: Whose::Nobodys };
        tiers.set_parts(parts);
        tiers
    }

    /// There are `parts` parts; those that are gone have nothing in their tiers.
    pub fn set_parts(&mut self, parts: usize) {
        let new = || Lists { cold: List::new(), probation: List::new(), leaving: [Leaving::NONE; 2], share: 0 };
        self.of.reserve_exact(parts.saturating_sub(self.of.len()));
        self.of.resize_with(parts, new);
        self.of.shrink_to_fit();
    }

    /// A part is to have `capacity` slots.
    pub fn set_capacity(&mut self, part: usize, capacity: u32) {
        self.of[part].share = capacity / PROBATION_PART;
    }

    /// Numbers of parts that have tiers, those without a part among them.
    pub fn parts(&self) -> usize {
        self.of.len()
    }

    /// Blocks in the tiers of a part: probation, cold.
    pub fn lens(&self, part: usize) -> [u32; 2] {
        [self.of[part].probation.len(), self.of[part].cold.len()]
    }

    #[inline]
    fn list(&mut self, part: PartId, mark: u8) -> (&mut List, &mut Links) {
        let of = &mut self.of[usize::from(part.0)];
        (if mark & COLD != 0 { &mut of.cold } else { &mut of.probation }, &mut self.links)
    }

    #[inline]
    fn put(&mut self, part: PartId, slot: Slot, mark: u8) {
        self.marks[slot as usize] = mark;
        let (list, links) = self.list(part, mark);
        list.push(links, slot);
    }

    /// A slot is of another part now; false if it is in no tier.
    pub fn change_part(&mut self, slot: Slot, from: PartId, to: PartId) -> bool {
        let mark = self.take(from, slot);
        let moves = mark & (COLD | PROBATION) != 0;
        if moves {
            self.put(to, slot, mark);
        }
        moves
    }

    /// Takes a slot out of its tier; returns its marks, 0 if it is in none.
    #[inline]
    fn take(&mut self, part: PartId, slot: Slot) -> u8 {
        let mark = self.marks[slot as usize];
        if mark & (COLD | PROBATION) != 0 {
            self.marks[slot as usize] = 0;
            if self.are_leaving() {
                self.note_taken(part, mark, slot);
            }
            let (list, links) = self.list(part, mark);
            list.remove(links, slot);
        }
        mark
    }

    pub fn moved(&mut self, part: PartId, from: Slot, to: Slot) -> bool {
        let mark = std::mem::take(&mut self.marks[from as usize]);
        if mark & (COLD | PROBATION) == 0 {
            return false;
        }
        self.marks[to as usize] = mark;
        if self.are_leaving() {
            self.note_moved(part, mark, from, to);
        }
        let (list, links) = self.list(part, mark);
        list.replace(links, from, to);
        true
    }

    /// There are `capacity` slots, on the way to `end`.
    pub fn set_len(&mut self, capacity: u32, end: u32) {
        self.links.set_len(capacity as usize, end as usize);
        self.marks.set_len(capacity as usize, end as usize, 0);
        if self.of.len() == 1 {
            self.set_capacity(0, capacity);
        }
    }

    /// Gives up memory that is there for more slots, unless there is on purpose.
    pub fn fit(&mut self) {
        self.links.fit();
        self.marks.fit();
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.links.release(by, bytes);
        self.marks.release(by, bytes);
    }

    /// Bytes per slot that tiers add to an index.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.links.memory_bytes() + self.marks.memory_bytes() + self.of.capacity() * LISTS_BYTES
    }

    /// Checks the lists; returns how many slots they hold.
    pub fn check(&self, occupied: impl Fn(Slot) -> bool) -> u32 {
        let mut held = 0;
        for of in &self.of {
            of.cold.check(&self.links);
            of.probation.check(&self.links);
            for (list, mark) in [(&of.cold, COLD), (&of.probation, PROBATION)] {
                for slot in list.iter(&self.links) {
                    assert!(self.marks[slot as usize] & mark != 0, "slot {slot} is in another tier than its mark says");
                    assert!(occupied(slot), "slot {slot} is in a tier and free");
                }
            }
            held += of.cold.len() + of.probation.len();
        }
        self.check_leaving();
        let marked = self.marks.iter().filter(|&&m| m & (COLD | PROBATION) != 0).count();
        assert_eq!(marked, held as usize, "slots with a mark of a tier");
        held
    }

    /// The slots in the tiers of a part, the coldest first.
    pub fn slots_of(&self, part: usize) -> impl Iterator<Item = Slot> + '_ {
        let of = &self.of[part];
        of.cold.iter(&self.links).chain(of.probation.iter(&self.links))
    }
}

impl<K: PolicySet> Index<K> {
    /// Gives the index tiers, or takes them away. Allocates 9 bytes a slot, which the kernel brings as they are
    /// touched.
    ///
    /// Blocks in tiers that are taken away become the policy's: at once in an index that was made without room to grow;
    /// in others by [`Index::step`], until when they go as early as before. There the memory stays for the next time.
    ///
    /// Of several disks, this is about the present one.
    pub fn set_tiers(&mut self, on: bool) {
        let had = self.tiered;
        let any = self.note_tiered(on);
        match &mut self.tiers {
            None if any => {
                let parts = self.parts.as_ref().map_or(1, |p| p.count());
                let mut tiers = Tiers::new(self.capacity(), self.most, parts);
                match &self.parts {
                    None => tiers.set_capacity(0, self.capacity()),
                    Some(p) => p.fit_tiers(&mut tiers, self.capacity()),
                }
                self.tiers = Some(Box::new(tiers));
            }
            None => {}
            Some(tiers) => {
                tiers.used = any;
                if had && !on {
                    tiers.begin_leaving(any.then_some(self.origin));
                }
            }
        }
        self.leave_tiers();
        self.choose_way();
    }

    /// Whether the index has tiers, for the present disk.
    pub fn has_tiers(&self) -> bool {
        self.tiered
    }

    /// Where an occupied slot stands; [`Tier::Hot`] in an index without tiers.
    #[inline]
    pub fn tier(&self, slot: Slot) -> Tier {
        match self.tiers.as_ref().map_or(0, |t| t.marks[slot as usize]) {
            m if m & COLD != 0 => Tier::Cold,
            m if m & PROBATION != 0 => Tier::Probation,
            _ => Tier::Hot,
        }
    }

    /// Whether `block` is in this slot and in a tier below the policy. There may be no such slot.
    #[inline]
    pub(crate) fn holds_low(&self, slot: Slot, block: u64) -> bool {
        let mark = self.tiers.as_ref().and_then(|t| t.marks.get(slot as usize)).copied().unwrap_or(0);
        mark & (COLD | PROBATION) != 0 && self.may_hold(slot, block)
    }

    /// Blocks in each tier: hot, probation, cold.
    pub fn tier_lens(&self) -> [u32; 3] {
        let sum =
            |k: usize| self.tiers.as_ref().map_or(0, |t| (0..t.of.len()).map(|part| t.lens(part)[k]).sum::<u32>());
        let (probation, cold) = (sum(0), sum(1));
        [self.len() - probation - cold, probation, cold]
    }

    /// Moves an occupied slot to a tier. Without tiers for the present disk there is one tier, the policy's.
    #[inline]
    pub fn set_tier(&mut self, slot: Slot, tier: Tier) {
        if !self.tiered && tier != Tier::Hot {
            return;
        }
        let part = self.part_of_slot(slot);
        if !self.plain && (self.is_locked(slot) || self.is_buffered(slot)) {
            return self.set_tier_apart(part, slot, tier);
        }
        let Some(tiers) = &mut self.tiers else { return };
        let mark = tiers.take(part, slot);
        let was_hot = mark & (COLD | PROBATION) == 0;
        match tier {
            Tier::Hot if was_hot => {}
            Tier::Hot => {
                self.become_hot(part, slot, if mark & PROVEN != 0 { Seen::Once } else { Seen::Never });
            }
            Tier::Cold | Tier::Probation => {
                if was_hot {
                    let policy = policy_of::<K>(&mut self.policy, &mut self.parts, part);
                    policy.remove(&mut self.places, slot);
                }
                let proven = if was_hot { PROVEN } else { mark & PROVEN };
                self.mark(part, slot, proven | if tier == Tier::Cold { COLD } else { PROBATION });
            }
        }
    }

    /// A slot that has left its tier is locked, if its block is to be, or becomes the policy's.
    pub(super) fn become_hot(&mut self, part: PartId, slot: Slot, at_least: Seen) {
        if self.locks.is_some() && self.wants_lock(part, self.key_of(slot)) {
            return self.put_locked(part, slot);
        }
        self.insert_hot(part, slot, at_least);
    }

    /// [`Index::set_tier`] of a slot that is locked, which the guest's evicting its block changes nothing of, or
    /// buffered.
    #[cold]
    fn set_tier_apart(&mut self, part: PartId, slot: Slot, tier: Tier) {
        match tier {
            Tier::Hot => {}
            Tier::Probation | Tier::Cold if self.is_locked(slot) => {
                if tier == Tier::Cold && self.gives_held() {
                    self.take_locked(slot);
                    self.put_cold(part, slot);
                }
            }
            Tier::Probation | Tier::Cold => {
                self.take_buffered(slot);
                self.mark(part, slot, PROVEN | if tier == Tier::Cold { COLD } else { PROBATION });
            }
        }
    }

    /// Puts a slot that is in no queue among the cold ones; its block was hot before.
    pub(crate) fn put_cold(&mut self, part: PartId, slot: Slot) {
        self.mark(part, slot, COLD | PROVEN);
    }

    /// Puts a slot that is in no queue into the queue of its tier.
    #[inline]
    fn mark(&mut self, part: PartId, slot: Slot, mark: u8) {
        if let Some(tiers) = &mut self.tiers {
            tiers.put(part, slot, mark);
        }
    }

    /// Puts `block` in a tier: moves it there, or gives it a slot if one can be had for that tier. A cold block takes
    /// free slots and other cold blocks' only; one on probation those as well, and its share of the hot ones'.
    pub fn place(&mut self, block: u64, tier: Tier, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        let tier = if self.tiered { tier } else { Tier::Hot };
        let key = block | self.origin;
        let hash = self.slots.hash(key);
        match self.slots.find(key, hash) {
            Some(slot) => {
                self.set_tier(slot, tier);
                Outcome::Hit(slot)
            }
            None => self.fill_tier(key, hash, tier, may_evict),
        }
    }

    /// An access to an index with tiers, parts, or both, or whose number of slots is changing.
    pub(crate) fn access_apart(
        &mut self,
        key: u64,
        hash: u64,
        access: Access,
        may_evict: impl Fn(Slot) -> bool,
    ) -> Outcome {
        let Some(slot) = self.slots.find(key, hash) else {
            let tier = if access == Access::Take && self.tiered { Tier::Cold } else { Tier::Hot };
            return self.fill_tier(key, hash, tier, may_evict);
        };
        self.hit_apart(slot, key, access);
        Outcome::Hit(slot)
    }

    /// The same for a block that is in `slot`.
    #[inline]
    pub(crate) fn hit_apart(&mut self, slot: Slot, key: u64, access: Access) {
        let part = self.part_of_slot(slot);
        if self.locks.is_some() || self.victims.is_some() {
            return self.hit_locking(part, slot, key, access);
        }
        self.hit_in_tiers(part, slot, key, access);
    }

    /// The same of an index with locks or a victim buffer.
    fn hit_locking(&mut self, part: PartId, slot: Slot, key: u64, access: Access) {
        let taken = access == Access::Take && self.tiered;
        if self.is_locked(slot) {
            if taken && self.gives_held() {
                self.take_locked(slot);
                self.put_cold(part, slot);
            }
            return;
        }
        // What is locked though the guest holds it is read like any other.
        let locks = taken && !self.gives_held() && self.wants_lock(part, key);
        let (taken, access) = if locks { (false, Access::Read) } else { (taken, access) };
        if self.is_buffered(slot) {
            self.hit_buffered(slot, taken);
        } else {
            self.hit_in_tiers(part, slot, key, access);
        }
        if !taken {
            self.lock_if_wanted(part, slot, key);
        }
    }

    #[inline]
    fn hit_in_tiers(&mut self, part: PartId, slot: Slot, key: u64, access: Access) {
        let hot = self.tier(slot) == Tier::Hot;
        let Self { places, policy, parts, tiers, tiered, .. } = self;
        match access {
            Access::Take if *tiered => {
                if hot {
                    let policy = policy_of::<K>(policy, parts, part);
                    policy.touch(places, slot, key);
                    policy.remove(places, slot);
                }
                let mark = tiers.as_mut().map_or(0, |t| t.take(part, slot));
                let proven = if hot { PROVEN } else { mark & PROVEN };
                self.mark(part, slot, COLD | proven);
            }
            _ if hot => policy_of::<K>(policy, parts, part).touch(places, slot, key),
            // Whoever reads it without keeping it may want it again.
            _ => self.set_tier(slot, Tier::Hot),
        }
    }

    fn fill_tier(&mut self, key: u64, hash: u64, tier: Tier, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        // an index of parts is one disk's, whose keys are the numbers of blocks
        let part = self.part_of_block(key);
        // What is locked though the guest holds it takes a slot as any other does.
        let keeps = tier == Tier::Cold && !self.gives_held() && self.wants_lock(part, key);
        let tier = if keeps { Tier::Hot } else { tier };
        let (len, limit) = match &self.parts {
            Some(parts) => parts.len_and_limit(part),
            None => (self.slots.len(), self.limit),
        };
        if limit == 0 {
            return Outcome::Bypass;
        }
        let mut seen = Seen::Never;
        if tier == Tier::Hot {
            seen = policy_of::<K>(&mut self.policy, &mut self.parts, part).miss(key);
        }
        let victim = if len < limit {
            if self.slots.len() < self.limit {
                let slot = self.slots.insert(key, hash);
                self.note_filled(slot, part);
                self.enter(part, slot, key, tier, seen);
                return Outcome::Fill { slot, evicted: None };
            }
            // All is taken and this part has not all that is its own: so another one has too much.
            let worst = self.parts.as_ref().map_or(part, |parts| parts.worst());
            self.victim_of(worst, &may_evict)
        } else {
            let of = self.tiers.as_ref().map(|t| &t.of[usize::from(part.0)]);
            let (share, full) = of.map_or((0, true), |of| (of.share, of.probation.len() >= of.share));
            match tier {
                Tier::Cold => self.cold_victim(part, &may_evict),
                Tier::Probation if full => self.tier_victim(part, 0, &may_evict),
                Tier::Probation => {
                    self.tier_victim(part, u32::MAX, &may_evict).or_else(|| self.hot_victim(part, &may_evict, seen))
                }
                Tier::Hot => self
                    .tier_victim(part, share, &may_evict)
                    .or_else(|| self.hot_victim(part, &may_evict, seen))
                    .or_else(|| self.tier_victim(part, 0, &may_evict))
                    .or_else(|| self.locked_victim(part, &may_evict)),
            }
        };
        let Some(slot) = victim else { return Outcome::Bypass };
        self.note_freed(slot);
        let evicted = Some((self.slots.replace(slot, key, hash), slot));
        self.note_filled(slot, part);
        self.enter(part, slot, key, tier, seen);
        Outcome::Fill { slot, evicted }
    }

    /// Puts a slot that a block has just been given into its tier, or to the policy.
    fn enter(&mut self, part: PartId, slot: Slot, key: u64, tier: Tier, seen: Seen) {
        if self.locks.is_some() && (tier != Tier::Cold || !self.gives_held()) && self.wants_lock(part, key) {
            return self.put_locked(part, slot);
        }
        match tier {
            Tier::Hot => self.insert_hot_seen(part, slot, key, seen),
            Tier::Cold => self.mark(part, slot, COLD),
            Tier::Probation => self.mark(part, slot, PROBATION),
        }
    }

    pub(crate) fn hot_victim(&mut self, part: PartId, may_evict: &dyn Fn(Slot) -> bool, seen: Seen) -> Option<Slot> {
        if self.victims.is_some() {
            return self.victim_by_buffer(may_evict, seen);
        }
        let Self { slots, places, policy, parts, .. } = self;
        policy_of::<K>(policy, parts, part).victim(places, slots.keys(), may_evict, seen)
    }

    /// The cold block that came last: the guest keeps it longest, the others are nearer to their eviction.
    fn cold_victim(&mut self, part: PartId, may_evict: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let tiers = self.tiers.as_mut()?;
        let cold = tiers.of[usize::from(part.0)].cold.iter_newest(&tiers.links);
        let slot = cold.take(limits::REFUSALS_MAX as usize).find(|&s| may_evict(s))?;
        tiers.take(part, slot);
        Some(slot)
    }

    /// A slot from the tiers: cold ones first, then the oldest on probation if those are more than `probation_keep`.
    pub(crate) fn tier_victim(
        &mut self,
        part: PartId,
        probation_keep: u32,
        may_evict: &dyn Fn(Slot) -> bool,
    ) -> Option<Slot> {
        if let Some(slot) = self.cold_victim(part, may_evict) {
            return Some(slot);
        }
        let tiers = self.tiers.as_mut()?;
        let probation = &tiers.of[usize::from(part.0)].probation;
        if probation.len() <= probation_keep {
            return None;
        }
        let slot = probation.iter(&tiers.links).take(limits::REFUSALS_MAX as usize).find(|&s| may_evict(s))?;
        tiers.take(part, slot);
        tiers.lapsed = Some(self.slots.keys()[slot as usize]);
        Some(slot)
    }

    /// The block that had to go while on probation since the last call, if any; of several disks, one of the
    /// present one.
    pub(crate) fn take_lapsed(&mut self) -> Option<u64> {
        let key = self.tiers.as_mut()?.lapsed.take();
        self.lapsed_of_own(key)
    }

    /// Takes a slot that is about to be freed out of its tier; false if it is in none.
    pub(crate) fn leave_tier(&mut self, slot: Slot) -> bool {
        let part = self.part_of_slot(slot);
        self.tiers.as_mut().is_some_and(|t| t.take(part, slot) & (COLD | PROBATION) != 0)
    }

    #[inline]
    pub(crate) fn insert_hot(&mut self, part: PartId, slot: Slot, at_least: Seen) {
        let block = self.slots.keys()[slot as usize];
        let seen = match policy_of::<K>(&mut self.policy, &mut self.parts, part).miss(block) {
            Seen::Never => at_least,
            seen => seen,
        };
        self.insert_hot_seen(part, slot, block, seen);
    }

    #[inline]
    fn insert_hot_seen(&mut self, part: PartId, slot: Slot, block: u64, seen: Seen) {
        let Self { places, policy, parts, .. } = self;
        policy_of::<K>(policy, parts, part).insert(places, slot, block, seen);
    }
}
