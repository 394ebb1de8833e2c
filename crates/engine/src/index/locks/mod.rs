//! Locked blocks: they are read and written like any other, and are never evicted.
//!
//! Owns which blocks of an index are to be locked (`wanted`), the slots that are, and how many may be. Never decides
//! what is worth it: whoever pins or locks does. Invariants: a locked slot is in no queue of a policy and in no tier,
//! and its mark says so; no more are locked than the budget allows, a part of what the index (or each part of it) may
//! hold; those of each disk of the index are counted. When the budget becomes less, those locked longest ago are
//! ordinary blocks again, in steps, and the first to go meanwhile: so a lock never keeps space that a share or a floor
//! of somebody else's asks for. Where nothing but locked blocks is left and one has to go, it does.
//!
//! A block that is to be locked is locked when it comes, or when it is touched next. The idea is that of cache lines
//! that are locked by what they missed (Asaduzzaman's thesis, chapter 4); a store of blocks has one set, as large as it
//! is, so what has to be kept free for the others is a part of all slots instead of one way of each set.

mod steps;
#[cfg(test)]
mod tests;
mod wanted;

use self::wanted::Wanted;
use super::Index;
use super::origins::ORIGIN_STEP;
use super::parts::policy_of;
use super::ranges::PartId;
use super::tiers::Tier;
use crate::policy::{Policy, PolicySet, Seen};
use crate::structures::list::{List, NIL};
use crate::structures::places::{LOCKED, Places};
use crate::structures::slots::Slot;

/// The largest budget, in thousandths: something is left for what is not locked.
pub const LOCK_PERMILLE_MAX: u16 = 900;

/// What may be locked of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOptions {
    /// The budget: locked blocks at most, in thousandths of what the index, or each part of it, may hold. No more than
    /// [`LOCK_PERMILLE_MAX`]; and one block is always left for the others.
    pub permille: u16,
    /// Whether a block stays locked although the guest holds it as well. Without, it is the first to go then, and is
    /// locked again when the guest has given it up.
    pub keep_held: bool,
}

impl LockOptions {
    /// Blocks that may be locked where `limit` may be held.
    pub fn max(self, limit: u32) -> u32 {
        let permille = u64::from(self.permille.min(LOCK_PERMILLE_MAX));
        ((u64::from(limit) * permille / 1000) as u32).min(limit.saturating_sub(1))
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Locks {
    options: LockOptions,
    wanted: Wanted,
    /// Of each part.
    of: Vec<Locked>,
    /// Locked blocks of each disk, by the number of its origin.
    disks: Vec<u32>,
    /// Nothing is to be locked any more.
    ends: bool,
}

/// The locked slots of a part.
#[derive(Debug)]
struct Locked {
    /// Those locked longest ago at its old end.
    list: List,
    /// Slots at the old end whose blocks may not be wanted any more.
    unasked: u32,
    /// How many there were when the policy was last told what is left for it.
    told: u32,
}

impl Locked {
    const NONE: Locked = Locked { list: List::new(), unasked: 0, told: 0 };

    fn take(&mut self, places: &mut Places, slot: Slot) {
        self.list.remove(&mut places.links, slot);
        places.marks[slot as usize] = 0;
        self.unasked = self.unasked.min(self.list.len());
    }

    fn put(&mut self, places: &mut Places, slot: Slot) {
        self.list.push(&mut places.links, slot);
        places.marks[slot as usize] = LOCKED;
    }
}

/// A policy is told again what is left for it when that has changed by one part in so many.
const TOLD_PART: u32 = 64;

impl Locks {
    fn new(options: LockOptions, parts: usize) -> Self {
        let mut locks = Self { options, wanted: Wanted::default(), of: Vec::new(), disks: Vec::new(), ends: false };
        locks.set_parts(parts);
        locks
    }

    /// There are `parts` parts; those that are gone have nothing locked.
    pub fn set_parts(&mut self, parts: usize) {
        self.of.truncate(parts);
        self.of.resize_with(parts, || Locked::NONE);
    }

    /// Slots of a part that are locked.
    pub fn len_of(&self, part: usize) -> u32 {
        self.of.get(part).map_or(0, |of| of.list.len())
    }

    fn len(&self) -> u32 {
        self.of.iter().map(|of| of.list.len()).sum()
    }

    fn put(&mut self, places: &mut Places, part: PartId, slot: Slot, key: u64) {
        self.of[usize::from(part.0)].put(places, slot);
        let disk = disk_of(key);
        if disk >= self.disks.len() {
            self.disks.resize(disk + 1, 0);
        }
        self.disks[disk] += 1;
    }

    fn take(&mut self, places: &mut Places, part: PartId, slot: Slot, key: u64) {
        self.of[usize::from(part.0)].take(places, slot);
        self.disks[disk_of(key)] -= 1;
    }

    /// What was in one slot is in another.
    pub fn moved(&mut self, places: &mut Places, part: PartId, from: Slot, to: Slot) {
        places.marks[to as usize] = std::mem::take(&mut places.marks[from as usize]);
        self.of[usize::from(part.0)].list.replace(&mut places.links, from, to);
    }

    /// The slots of a part that are locked, those locked longest ago first.
    pub fn slots_of<'a>(&'a self, places: &'a Places, part: usize) -> impl Iterator<Item = Slot> + 'a {
        self.of[part].list.iter(&places.links)
    }

    pub fn memory_bytes(&self) -> usize {
        let lists = self.of.capacity() * size_of::<Locked>() + self.disks.capacity() * size_of::<u32>();
        size_of::<Self>() + lists + self.wanted.memory_bytes()
    }

    /// Checks the lists, and the counts against the keys of the slots; for tests.
    pub fn check(&self, places: &Places, keys: &[u64], occupied: impl Fn(Slot) -> bool) {
        let mut disks = vec![0u32; self.disks.len()];
        let locked = self.of.iter().flat_map(|of| of.list.iter(&places.links));
        locked.for_each(|slot| disks[disk_of(keys[slot as usize])] += 1);
        assert_eq!(disks, self.disks, "locked blocks of disks");
        for of in &self.of {
            of.list.check(&places.links);
            for slot in of.list.iter(&places.links) {
                assert_eq!(places.marks[slot as usize], LOCKED, "slot {slot} is locked and its mark does not say so");
                assert!(occupied(slot), "slot {slot} is locked and free");
            }
            assert!(of.unasked <= of.list.len(), "more locked slots are to be looked at than there are");
        }
    }
}

/// The number of the disk that a key is of.
fn disk_of(key: u64) -> usize {
    (key / ORIGIN_STEP) as usize
}

impl<K: PolicySet> Index<K> {
    /// How much may be locked from now on; `None` ends it for all disks of the index. What is then too much becomes
    /// ordinary: at once in an index that was made without room to grow, in others by [`Index::step`]. What was to be
    /// locked stays so while there are options.
    pub fn set_locks(&mut self, options: Option<LockOptions>) {
        match (&mut self.locks, options) {
            (None, None) => return,
            (None, Some(options)) => {
                let parts = self.parts.as_ref().map_or(1, |p| p.count());
                self.locks = Some(Box::new(Locks::new(options, parts)));
            }
            (Some(locks), Some(options)) => {
                if locks.ends {
                    locks.wanted = Wanted::default();
                }
                (locks.options, locks.ends) = (options, false);
            }
            (Some(locks), None) => locks.ends = true,
        }
        self.choose_way();
        self.go_on_with_locks();
    }

    /// How much may be locked; `None` if nothing may.
    pub fn locks(&self) -> Option<LockOptions> {
        self.locks.as_ref().filter(|l| !l.ends).map(|l| l.options)
    }

    /// The blocks in these ranges (first, count) of the present disk are to be locked, in place of those of the last
    /// such call. Ranges may overlap. Those that are cached are locked when they are touched next, the others when they
    /// come, as far as the budget goes. Nothing without [`Index::set_locks`].
    pub fn set_pins(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let origin = self.origin;
        let Some(locks) = &mut self.locks else { return };
        locks.wanted.set_pins(origin, ranges);
        locks.of.iter_mut().for_each(|of| of.unasked = of.list.len());
        self.go_on_with_locks();
    }

    /// The same of the blocks that a profile names. They are not pinned, and pins do not take their place.
    pub fn set_profile(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let origin = self.origin;
        let Some(locks) = &mut self.locks else { return };
        locks.wanted.set_profile(origin, ranges);
        locks.of.iter_mut().for_each(|of| of.unasked = of.list.len());
        self.go_on_with_locks();
    }

    /// `block` is to be locked, at once if it is here. Whether it is locked now. Nothing without [`Index::set_locks`].
    pub fn lock(&mut self, block: u64) -> bool {
        self.lock_key(block | self.origin)
    }

    /// The same of a block named by its key, whosever it is.
    pub(crate) fn lock_key(&mut self, key: u64) -> bool {
        let Some(locks) = self.locks.as_mut().filter(|l| !l.ends) else { return false };
        locks.wanted.choose(key);
        match self.find(key) {
            Some(slot) if self.tier(slot) == Tier::Hot && !self.is_locked(slot) => {
                let part = self.part_of_slot(slot);
                self.lock_if_wanted(part, slot, key);
                self.is_locked(slot)
            }
            slot => slot.is_some_and(|slot| self.is_locked(slot)),
        }
    }

    /// `block` is not to be locked any more, unless it is pinned.
    #[cfg(test)]
    pub(crate) fn unlock(&mut self, block: u64) {
        self.unlock_key(block | self.origin);
    }

    /// A block named by its key, whosever it is, is not to be locked any more, unless it is pinned.
    pub(crate) fn unlock_key(&mut self, key: u64) {
        let Some(locks) = &mut self.locks else { return };
        locks.wanted.choose_not(key);
        if let Some(slot) = self.find(key).filter(|&slot| self.is_locked(slot))
            && self.locks.as_ref().is_some_and(|l| !l.wanted.has(key))
        {
            self.unlock_slot(slot);
        }
    }

    /// Nothing of the present disk is to be locked any more; what is becomes ordinary as with [`Index::set_pins`].
    pub fn unlock_all(&mut self) {
        let origin = self.origin;
        if let Some(locks) = &mut self.locks {
            locks.wanted.forget(origin);
            locks.of.iter_mut().for_each(|of| of.unasked = of.list.len());
            self.go_on_with_locks();
        }
    }

    /// Whether an occupied slot is locked.
    #[inline]
    pub fn is_locked(&self, slot: Slot) -> bool {
        self.locks.is_some() && self.places.marks[slot as usize] == LOCKED
    }

    /// Whether `block` is in a range that is pinned.
    pub fn is_pinned(&self, block: u64) -> bool {
        self.is_pinned_key(block | self.origin)
    }

    /// The same of a block named by its key, whosever it is.
    #[inline]
    pub fn is_pinned_key(&self, key: u64) -> bool {
        self.locks.as_ref().is_some_and(|l| !l.ends && l.wanted.is_pinned(key))
    }

    /// Blocks that are locked, of all disks of the index; and how many may be.
    pub fn locked(&self) -> (u32, u32) {
        let Some(locks) = &self.locks else { return (0, 0) };
        let max = if locks.ends { 0 } else { self.parts().map(|part| self.locks_max(part)).sum() };
        (locks.len(), max)
    }

    /// Blocks of the present disk that are locked.
    pub fn locked_of_present(&self) -> u32 {
        self.locks.as_ref().and_then(|l| l.disks.get(disk_of(self.origin))).copied().unwrap_or(0)
    }

    /// Blocks of a part that are locked, and that may be.
    pub fn part_locked(&self, part: PartId) -> (u32, u32) {
        let locked = self.locks.as_ref().map_or(0, |l| l.len_of(usize::from(part.0)));
        (locked, self.locks_max(part))
    }

    /// Blocks that may be locked with these options, of all parts together, whatever is set.
    pub fn budget_of(&self, options: LockOptions) -> u32 {
        self.parts().map(|part| options.max(self.lockable_of(part))).sum()
    }

    /// The keys of all blocks that are locked.
    pub fn locked_keys(&self) -> impl Iterator<Item = u64> + '_ {
        let parts = 0..self.locks.as_ref().map_or(0, |l| l.of.len());
        let slots = parts.flat_map(move |part| self.locks.iter().flat_map(move |l| l.slots_of(&self.places, part)));
        slots.map(|slot| self.slots.keys()[slot as usize])
    }

    /// What a part may hold.
    pub(super) fn limit_of(&self, part: PartId) -> u32 {
        self.parts.as_ref().map_or(self.limit, |parts| parts.len_and_limit(part).1)
    }

    /// What a budget of a part is a part of: the victim buffer's slots are not.
    fn lockable_of(&self, part: PartId) -> u32 {
        self.limit_of(part).saturating_sub(self.victims_len_max())
    }

    /// Slots of a part that may be locked.
    fn locks_max(&self, part: PartId) -> u32 {
        self.locks.as_ref().filter(|l| !l.ends).map_or(0, |l| l.options.max(self.lockable_of(part)))
    }

    /// Whether one more slot of a part may be locked.
    fn may_lock(&self, part: PartId) -> bool {
        self.locks.as_ref().is_some_and(|l| l.len_of(usize::from(part.0)) < self.locks_max(part))
    }

    /// Locks a slot that the policy has or the victim buffer, if its block is to be locked and there is room for it.
    /// One that is locked stays so.
    #[inline]
    pub(super) fn lock_if_wanted(&mut self, part: PartId, slot: Slot, key: u64) {
        if !self.is_locked(slot) && self.wants_lock(part, key) {
            if !self.take_buffered(slot) {
                let Self { places, policy, parts, .. } = self;
                policy_of::<K>(policy, parts, part).remove(places, slot);
            }
            self.put_locked(part, slot);
        }
    }

    /// Whether a block of a part that has come is to be locked, and may be.
    #[inline]
    pub(super) fn wants_lock(&self, part: PartId, key: u64) -> bool {
        self.may_lock(part) && self.locks.as_ref().is_some_and(|l| l.wanted.has(key))
    }

    /// Locks a slot that is in no queue.
    pub(super) fn put_locked(&mut self, part: PartId, slot: Slot) {
        let key = self.key_of(slot);
        let Self { places, locks, .. } = self;
        if let Some(locks) = locks {
            locks.put(places, part, slot, key);
            self.tell_policy(part, false);
        }
    }

    /// Takes a locked slot out, to be put elsewhere or freed; false if it is not locked.
    pub(super) fn take_locked(&mut self, slot: Slot) -> bool {
        if !self.is_locked(slot) {
            return false;
        }
        let (part, key) = (self.part_of_slot(slot), self.key_of(slot));
        let Self { places, locks, .. } = self;
        if let Some(locks) = locks {
            locks.take(places, part, slot, key);
            self.tell_policy(part, false);
        }
        true
    }

    /// All that is locked becomes ordinary, at once; what is to be locked stays to be. The slots, those locked longest
    /// ago first, for [`Index::lock_again`].
    pub(super) fn release_locked(&mut self) -> Vec<Slot> {
        let mut released = Vec::new();
        for part in self.parts().collect::<Vec<_>>() {
            while let Some(slot) = self.oldest_locked(part) {
                self.unlock_slot(slot);
                released.push(slot);
            }
        }
        released
    }

    /// Of slots that were locked and are the policies' now, those are locked again whose blocks are to be, as far as
    /// their parts' budgets go.
    pub(super) fn lock_again(&mut self, released: Vec<Slot>) {
        for slot in released {
            let (part, key) = (self.part_of_slot(slot), self.key_of(slot));
            self.lock_if_wanted(part, slot, key);
        }
    }

    fn oldest_locked(&self, part: PartId) -> Option<Slot> {
        let oldest = self.locks.as_ref()?.of.get(usize::from(part.0))?.list.tail();
        (oldest != NIL).then_some(oldest)
    }

    /// A locked slot becomes an ordinary one.
    fn unlock_slot(&mut self, slot: Slot) {
        let part = self.part_of_slot(slot);
        self.take_locked(slot);
        self.insert_hot(part, slot, Seen::Never);
    }

    /// The slot of a part that has been locked longest, if more are than may be: taken out, to be freed.
    pub(super) fn locked_victim(&mut self, part: PartId, may_evict: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let locks = self.locks.as_ref()?;
        if locks.len_of(usize::from(part.0)) <= self.locks_max(part) {
            return None;
        }
        self.last_victim(part, may_evict)
    }

    /// Whether a part has nothing but locked slots.
    pub(super) fn has_only_locked(&self, part: PartId) -> bool {
        let len = self.parts.as_ref().map_or(self.slots.len(), |parts| parts.len_and_limit(part).0);
        self.locks.as_ref().is_some_and(|l| l.len_of(usize::from(part.0)) == len)
    }

    /// The slot of a part that has been locked longest, where nothing else is left that could go: taken out, to be
    /// freed.
    pub(super) fn last_victim(&mut self, part: PartId, may_evict: &dyn Fn(Slot) -> bool) -> Option<Slot> {
        let slot = self.oldest_locked(part).filter(|&slot| may_evict(slot))?;
        self.take_locked(slot);
        Some(slot)
    }

    /// Whether the guest's holding a block ends its lock.
    #[inline]
    pub(super) fn gives_held(&self) -> bool {
        self.locks.as_ref().is_none_or(|l| !l.options.keep_held)
    }
}
