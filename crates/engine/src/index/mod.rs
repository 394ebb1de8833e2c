//! The index of one disk: which block sits in which slot, and the one call through which a policy is reached.
//!
//! Owns the map from block to slot and the policy, or several if the disk has parts (see `parts`). Never knows where a
//! slot's bytes are.
//! Invariant: at most `capacity` slots are occupied, each by one block; a block has at most one slot; the policies'
//! queues hold exactly the occupied slots, but for those that stand in the tiers below them (see `tiers`), are locked
//! (see `locks`) or in the victim buffer (see `victims`).

pub(crate) mod locks;
pub(crate) mod origins;
pub(crate) mod parts;
pub mod ranges;
mod resize;
pub(crate) mod tiers;
pub(crate) mod victims;

use self::locks::Locks;
use self::origins::Origins;
use self::parts::{Parts, policy_of};
use self::ranges::{PartId, REST};
use self::tiers::Tiers;
use self::victims::Victims;
use crate::policy::{Outcome, Policy, PolicyKind, PolicySet, Seen};
use crate::structures::places::Places;
use crate::structures::slots::{Slot, Slots};
use crate::structures::table::{Fill, HashKey, SIMULATION_SEED};

/// Why a block is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A guest reads it.
    Read,
    /// A guest writes it.
    Write,
    /// A guest reads or writes it through a page of its own cache: from now on the guest holds it. In an index with
    /// tiers the block is then the first to go; elsewhere it is a read.
    Take,
}

/// See the head of the file. After construction only calls that say so allocate.
///
/// `K` is the set of policies that it may have: those that a disk may have, unless somebody says
/// [`AnyPolicyKind`](crate::AnyPolicyKind).
///
/// What a hit reads comes first, in as few lines of the processor's cache as it takes: with a thousand disks each has
/// left it when its next request comes.
#[repr(C)]
pub struct Index<K: PolicySet = PolicyKind> {
    /// Neither blocks in tiers nor parts, locks nor a victim buffer, nor is the number of slots changing: one question
    /// for all on the way to a hit.
    pub(crate) plain: bool,
    /// The present disk has tiers.
    pub(crate) tiered: bool,
    /// Slots that may be occupied now; at most the capacity.
    pub(crate) limit: u32,
    /// With more slots occupied than this, there is something to be done: the limit, but with parts 0 or the largest
    /// number, and 0 while tables of policies become larger or smaller.
    pub(crate) line: u32,
    /// What the numbers of blocks are counted from; 0 in an index of one disk.
    pub(crate) origin: u64,
    pub(crate) tiers: Option<Box<Tiers>>,
    pub(crate) parts: Option<Box<Parts<K>>>,
    pub(crate) slots: Slots,
    pub(crate) places: Places,
    /// The policy of the disk, or of its part 0.
    pub(crate) policy: K::Policy,
    /// Of several disks, if the index is theirs.
    pub(crate) origins: Option<Box<Origins>>,
    /// Slots that there may ever be; 0 if nobody said.
    pub(crate) most: u32,
    /// Tables of policies become larger or smaller, or their queues another length, or slots leave the tiers or become
    /// unlocked.
    pub(crate) moves: bool,
    pub(crate) locks: Option<Box<Locks>>,
    pub(crate) victims: Option<Box<Victims>>,
}

impl<K: PolicySet> Index<K> {
    /// An empty index of `capacity` slots (may be 0: every access is then a bypass), with a hash key that is the same
    /// every time.
    pub fn new(kind: K, capacity: u32) -> Self {
        Self::with_hash_key(kind, capacity, HashKey::from_seed(SIMULATION_SEED))
    }

    /// The same with a hash key of the caller's: a daemon passes [`HashKey::random`], so that a guest cannot choose
    /// blocks that collide. Only W-TinyLFU's decisions depend on the key, and hardly.
    pub fn with_hash_key(kind: K, capacity: u32, key: HashKey) -> Self {
        // the largest number means "no slot" within
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        Self::with_policy(kind.make(capacity, key), capacity, key)
    }

    /// The same for a capacity that may become `most` in time: reserves address space for so many slots, so that what
    /// is large need not be copied to grow.
    pub fn with_room(kind: K, capacity: u32, most: u32, key: HashKey) -> Self {
        assert!(capacity < u32::MAX, "an index has fewer than 2^32 - 1 slots");
        let mut policy = kind.make(capacity, key);
        policy.reserve(most);
        Self::with_policy_and_room(policy, capacity, most, key)
    }

    /// The same with a policy made for that capacity and key.
    pub(crate) fn with_policy(policy: K::Policy, capacity: u32, key: HashKey) -> Self {
        Self::with_policy_and_room(policy, capacity, 0, key)
    }

    fn with_policy_and_room(policy: K::Policy, capacity: u32, most: u32, key: HashKey) -> Self {
        Self {
            slots: Slots::with_room(capacity, most, Fill::Half, key),
            places: Places::with_room(capacity, most),
            policy,
            limit: capacity,
            line: capacity,
            plain: true,
            tiered: false,
            origin: 0,
            origins: None,
            tiers: None,
            parts: None,
            locks: None,
            victims: None,
            most,
            moves: false,
        }
    }

    /// The policy in use; of part 0, if there are parts.
    pub fn kind(&self) -> K {
        K::of(&self.policy)
    }

    /// Slots in all.
    pub fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Slots occupied.
    pub fn len(&self) -> u32 {
        self.slots.len()
    }

    /// Whether no slot is occupied.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// The one way to a policy: looks `block` up, tells the policy, and on a miss makes room for it.
    ///
    /// A slot for which `may_evict` is false is never evicted (its I/O is under way). The policies do not yet treat
    /// reads and writes differently.
    #[inline]
    pub fn access(&mut self, block: u64, access: Access, may_evict: impl Fn(Slot) -> bool) -> Outcome {
        let key = block | self.origin;
        let hash = self.slots.hash(key);
        if !self.plain {
            return self.access_apart(key, hash, access, may_evict);
        }
        let Self { slots, places, policy, limit, .. } = self;
        policy.access(slots, places, key, hash, *limit, may_evict)
    }

    /// The same for a block that was found in `slot`, and has been there ever since.
    #[inline]
    pub fn hit(&mut self, slot: Slot, access: Access) {
        let key = self.key_of(slot);
        if !self.plain {
            return self.hit_apart(slot, key, access);
        }
        self.policy.touch(&mut self.places, slot, key);
    }

    /// Slots that may be occupied now: what [`Index::set_limit`] said.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Lets at most `limit` slots be occupied from now on, without rebuilding anything: what is over goes by
    /// [`Index::evict`], which the caller calls at its own pace; until then the number of blocks does not grow. At
    /// most the capacity; a change of capacity sets it to that.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(self.slots.most());
        if self.parts.is_some() {
            return self.limit_parts();
        }
        self.line_up();
        self.policy.limit(&mut self.places, self.limit);
        self.fit_locks();
    }

    fn is_plain(&self) -> bool {
        let apart = self.parts.is_some() || self.locks.is_some() || self.victims.is_some();
        self.tiers.as_ref().is_none_or(|t| t.are_idle()) && !apart && !self.slots.is_resizing()
    }

    /// Chooses the way to a hit: what it depends on has changed.
    pub(crate) fn choose_way(&mut self) {
        self.plain = self.is_plain();
    }

    /// Sets the line, where there are parts and where there are none.
    pub(crate) fn line_up(&mut self) {
        self.line = match &self.parts {
            _ if self.moves => 0,
            None => self.limit,
            Some(parts) => {
                if parts.over() > 0 {
                    0
                } else {
                    u32::MAX
                }
            }
        };
    }

    /// Blocks that are over a limit, that of the index or that of their part.
    pub fn excess(&self) -> u32 {
        match &self.parts {
            Some(parts) => parts.over(),
            None => self.len().saturating_sub(self.limit),
        }
    }

    /// Whether there are any such, or [`Index::step`] has something to do.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.slots.len() > self.line
    }

    /// Where `block` is, without telling the policy.
    #[inline]
    pub fn peek(&self, block: u64) -> Option<Slot> {
        let key = block | self.origin;
        self.slots.find(key, self.slots.hash(key))
    }

    /// The block in an occupied slot, if it is one of the present disk.
    pub fn block_of(&self, slot: Slot) -> Option<u64> {
        self.slots.block_of(slot).and_then(|key| self.own(key))
    }

    /// The key in a slot, which must be occupied.
    #[inline]
    pub fn key_of(&self, slot: Slot) -> u64 {
        self.slots.keys()[slot as usize]
    }

    /// Whether the slot, which must be occupied, is that of `block`.
    #[inline]
    pub fn holds(&self, slot: Slot, block: u64) -> bool {
        self.key_of(slot) == block | self.origin
    }

    /// Whether the slot is that of `block`, unless it is free: then this says nothing. There may be no such slot.
    #[inline]
    pub fn may_hold(&self, slot: Slot, block: u64) -> bool {
        self.slots.keys().get(slot as usize) == Some(&(block | self.origin))
    }

    /// Forgets `block` (and any ghost of it); returns the slot it had.
    pub fn remove(&mut self, block: u64) -> Option<Slot> {
        match self.peek(block) {
            Some(slot) => {
                if self.take_buffered(slot) {
                    // The policy takes it for evicted.
                    self.policy.forget(block | self.origin);
                } else if !(self.take_locked(slot) || self.leave_tier(slot)) {
                    let part = self.part_of_slot(slot);
                    let policy = policy_of::<K>(&mut self.policy, &mut self.parts, part);
                    policy.remove(&mut self.places, slot);
                }
                self.slots.free(slot);
                self.note_freed(slot);
                Some(slot)
            }
            None => {
                let part = self.part_of_block(block);
                policy_of::<K>(&mut self.policy, &mut self.parts, part).forget(block | self.origin);
                None
            }
        }
    }

    /// Every slot of a block of the present disk, with that, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.slots.iter().filter_map(|(key, slot)| Some((self.own(key)?, slot)))
    }

    /// The same with the keys of all disks.
    pub fn keys(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.slots.iter()
    }

    /// Evicts one block, of whatever disk, for a cache that gives memory back: its key. `None` if nothing may go, or
    /// nothing that the policy's bounded search came across: try again when I/O has completed.
    pub fn evict(&mut self, may_evict: impl Fn(Slot) -> bool) -> Option<(u64, Slot)> {
        let part = self.parts.as_ref().map_or(REST, |parts| parts.worst());
        let slot = self.victim_of(part, &may_evict)?;
        let block = self.slots.free(slot);
        self.note_freed(slot);
        Some((block, slot))
    }

    /// A slot of `part` that is to be freed, but not for a certain block, taken out of its tier or policy. One function
    /// for all callers, as those that it calls: each of their closures would have a copy of every policy of its own.
    pub(crate) fn victim_of(&mut self, part: PartId, may_evict: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let first = match self.locked_victim(part, may_evict) {
            Some(slot) => Some(slot),
            None => self.tier_victim(part, 0, may_evict),
        };
        match first {
            Some(slot) => Some(slot),
            None => match self.hot_victim(part, may_evict, Seen::Never) {
                Some(slot) => Some(slot),
                None if self.has_only_locked(part) => self.last_victim(part, may_evict),
                // What else there is may go later.
                None => None,
            },
        }
    }

    /// Changes the policy (of part 0, if there are parts) and keeps every block in its slot, coldest first as far as
    /// the old policy can tell. Ghosts and counts of the old policy are lost. Allocates, and takes time in proportion
    /// to the capacity.
    pub fn switch(&mut self, kind: K) {
        self.switch_part(REST, kind);
    }

    /// The blocks in the order in which they would go if nothing were accessed any more, as far as the policy knows.
    #[cfg(test)]
    pub(crate) fn coldest_first(&self) -> Vec<u64> {
        let mut order = vec![];
        let see = &mut |slot: Slot| order.push(self.slots.keys()[slot as usize]);
        self.policy.coldest_first(&self.places, see);
        order
    }

    /// Bytes of memory that the index and its policies (ghosts included) hold.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.slots.memory_bytes()
            + self.places.memory_bytes()
            + self.policy.memory_bytes()
            + self.tiers.as_ref().map_or(0, |t| t.memory_bytes())
            + self.origins_bytes()
            + self.parts.as_ref().map_or(0, |p| p.memory_bytes())
            + self.locks.as_ref().map_or(0, |l| l.memory_bytes())
            + self.victims.as_ref().map_or(0, |_| size_of::<Victims>())
    }

    /// Checks the invariants of index and policy; for tests. Panics with what is broken. Takes time in proportion to
    /// the capacity.
    pub fn check(&self) {
        self.slots.check();
        assert!(self.limit <= self.slots.most(), "more blocks are allowed than there are slots");
        assert_eq!(self.plain, self.is_plain(), "the index takes the wrong way to a hit");
        assert!(self.tiers.is_some() || !self.tiered, "a disk has tiers that the index has not");
        assert!(self.origins.is_some() || self.origin == 0, "an index of one disk counts from elsewhere");
        let occupied = |slot| self.slots.block_of(slot).is_some();
        let in_tiers = self.tiers.as_ref().map_or(0, |t| t.check(occupied));
        self.locks.iter().for_each(|l| l.check(&self.places, self.slots.keys(), occupied));
        self.victims.iter().for_each(|v| v.check(&self.places, occupied));
        let mut marked = 0;
        let mut see = |policy: &K::Policy, in_policy: u32, of_part: &dyn Fn(Slot) -> bool| {
            policy.check(&self.places, in_policy);
            let mut ordered = 0;
            policy.coldest_first(&self.places, &mut |slot| {
                assert!(self.slots.block_of(slot).is_some(), "the policy queues slot {slot}, which is free");
                assert!(of_part(slot), "the policy queues slot {slot}, which is of another part");
                ordered += 1;
                marked += usize::from(self.places.marks[slot as usize] != 0);
            });
            assert_eq!(ordered, in_policy, "slots that the policy can name");
        };
        match &self.parts {
            None => {
                see(&self.policy, self.slots.len() - in_tiers - self.held_apart(REST), &|_| true);
                let line = if self.moves { 0 } else { self.limit };
                assert_eq!(self.line, line, "the line is not the limit");
            }
            Some(parts) => parts.check(self, see),
        }
        let all = self.places.marks.iter().filter(|&&mark| mark != 0).count();
        let apart: u32 = self.parts().map(|part| self.held_apart(part)).sum();
        assert_eq!(all, marked + apart as usize, "a slot that no policy queues has a mark");
    }

    /// Slots of a part that are locked or in the victim buffer.
    pub(crate) fn held_apart(&self, part: PartId) -> u32 {
        let locked = self.locks.as_ref().map_or(0, |l| l.len_of(usize::from(part.0)));
        locked + self.victims.as_ref().map_or(0, |v| v.len())
    }
}
