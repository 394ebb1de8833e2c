//! How an index comes to have parts, other parts, or none, and how their limits follow.
//!
//! Owns the moves of blocks from part to part and the sizes of their tables. Never evicts. Invariant: see `parts`; it
//! holds after every call.

use super::{
    Account, PartSetting, Parts, TABLE_EXCESS_PART, TABLE_EXCESS_SLOTS, TABLE_SLACK_PART, accounts_of, divided,
    policy_of,
};
use crate::index::Index;
use crate::index::ranges::{PartId, PartRange, PartsError, REST, RangeMap};
use crate::policy::{Policy, PolicySet, Seen};
use crate::structures::array::Array;
use crate::structures::slots::Slot;

impl<K: PolicySet> Index<K> {
    /// Divides the index into parts: `ranges` of a disk of `disk_blocks` blocks, with what each part in them is to be.
    /// Part 0 is the rest, and has of `whole_blocks` what the others' shares leave. Every block keeps its slot, and
    /// moves to the part that has its range now; parts that stay keep what their policies know. What is locked stays so
    /// as far as the budget of its part goes; a victim buffer ends.
    ///
    /// Allocates, and takes time in proportion to the capacity.
    ///
    /// # Errors
    /// What is wrong with the lists; nothing has changed then.
    pub fn set_parts(
        &mut self,
        ranges: &[PartRange],
        disk_blocks: u64,
        settings: &[PartSetting<K>],
        whole_blocks: u32,
    ) -> Result<(), PartsError> {
        let map = RangeMap::new(ranges, disk_blocks)?;
        let accounts = accounts_of(&map, settings, whole_blocks)?;
        self.finish_leaving();
        self.set_victims(0);
        let locked = self.release_locked();
        let key = self.slots.hash_key();
        let mut parts = match self.parts.take() {
            Some(parts) => parts,
            None => {
                let first = Account { len: self.slots.len(), capacity: self.capacity(), ..Account::default() };
                let of = Array::new(self.capacity() as usize, self.most as usize, REST.0);
                let map = RangeMap::default();
                Box::new(Parts { map, of, more: Vec::new(), accounts: vec![first], over: 0 })
            }
        };
        // Numbers that go keep their place until their blocks have moved.
        let count = accounts.len().max(parts.count());
        parts.more.reserve_exact(count - 1 - parts.more.len());
        parts.more.resize_with(count - 1, || K::FIFO.make(0, key));
        parts.accounts.reserve_exact(count - parts.accounts.len());
        parts.accounts.resize(count, Account::default());
        for (n, old) in parts.accounts.iter_mut().enumerate() {
            let new = accounts.get(n).copied().unwrap_or_default();
            (old.present, old.share) = (new.present, new.share);
        }
        parts.map = map;
        self.parts = Some(parts);
        self.plain = false;
        if let Some(tiers) = &mut self.tiers {
            tiers.set_parts(count);
        }
        self.locks.iter_mut().for_each(|l| l.set_parts(count));
        // New policies come before the blocks do; those of parts that stay are exchanged only if they are others.
        for setting in settings {
            let Some(parts) = &mut self.parts else { unreachable!("just set") };
            let n = usize::from(setting.part.0);
            if K::of(&parts.more[n - 1]) != setting.policy {
                if parts.accounts[n].len == 0 {
                    parts.more[n - 1] = setting.policy.make(0, key);
                    if self.most > 0 {
                        parts.more[n - 1].reserve(self.most);
                    }
                    parts.accounts[n].capacity = 0;
                } else {
                    self.switch_part(setting.part, setting.policy);
                }
            }
        }
        self.fit_parts();
        self.change_hands();
        if let Some(parts) = &mut self.parts {
            for n in (1..count).filter(|&n| accounts.get(n).is_none_or(|a| !a.present)) {
                parts.more[n - 1] = K::FIFO.make(0, key);
                parts.accounts[n] = Account::default();
            }
            parts.more.truncate(accounts.len() - 1);
            parts.more.shrink_to_fit();
            parts.accounts.truncate(accounts.len());
            parts.accounts.shrink_to_fit();
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.set_parts(accounts.len());
        }
        self.locks.iter_mut().for_each(|l| l.set_parts(accounts.len()));
        self.limit_parts();
        self.finish_policies();
        self.lock_again(locked);
        Ok(())
    }

    /// Checks lists for [`Index::set_parts`]; returns the highest number of a part.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check_parts(
        &self,
        ranges: &[PartRange],
        disk_blocks: u64,
        settings: &[PartSetting<K>],
        whole_blocks: u32,
    ) -> Result<PartId, PartsError> {
        let map = RangeMap::new(ranges, disk_blocks)?;
        let accounts = accounts_of(&map, settings, whole_blocks)?;
        Ok(PartId((accounts.len() - 1) as u8))
    }

    /// Forgets every block, and what the policies know; parts, limits and tiers stay.
    pub fn forget_all(&mut self) {
        let blocks: Vec<u64> = self.iter().map(|(block, _)| block).collect();
        for block in blocks {
            self.remove(block);
        }
        let parts: Vec<PartId> = self.parts().collect();
        for part in parts {
            if let Some(kind) = self.part_kind(part) {
                self.switch_part(part, kind);
            }
        }
    }

    /// Makes the index one again. Every block keeps its slot and is the first policy's.
    pub fn clear_parts(&mut self) {
        self.finish_leaving();
        if self.parts.is_none() {
            return;
        }
        let locked = self.release_locked();
        let Some(parts) = &mut self.parts else { return };
        parts.map = RangeMap::default();
        for a in &mut parts.accounts[1..] {
            (a.present, a.share) = (false, 0);
        }
        // The first is made for all before it gets all.
        self.fit_parts();
        self.change_hands();
        self.parts = None;
        if let Some(tiers) = &mut self.tiers {
            tiers.set_parts(1);
        }
        self.locks.iter_mut().for_each(|l| l.set_parts(1));
        self.choose_way();
        let (limit, capacity) = (self.limit, self.capacity());
        self.policy.resize(&mut self.places, capacity, self.slots.keys());
        self.moves = true;
        if let Some(tiers) = &mut self.tiers {
            tiers.set_capacity(0, capacity);
        }
        self.set_limit(limit);
        self.finish_policies();
        self.lock_again(locked);
    }

    /// Gives every block to the part that its number says, the coldest of each part first.
    fn change_hands(&mut self) {
        let mut moving = Vec::new();
        let count = self.parts.as_ref().map_or(0, |p| p.count());
        for n in 0..count {
            let from = PartId(n as u8);
            moving.clear();
            let Self { slots, places, policy, parts, tiers, .. } = self;
            let Some(parts) = parts else { return };
            let mut see = |slot: Slot| {
                let to = parts.map.part_of(slots.keys()[slot as usize]);
                if to != from {
                    moving.push((slot, to));
                }
                to != from
            };
            let policy = if from == REST { &*policy } else { &parts.more[n - 1] };
            let mut in_policy = 0;
            policy.coldest_first(places, &mut |slot| in_policy += usize::from(see(slot)));
            if let Some(tiers) = tiers {
                tiers.slots_of(n).for_each(|slot| _ = see(slot));
            }
            for (i, &(slot, to)) in moving.iter().enumerate() {
                if i >= in_policy {
                    if let Some(tiers) = &mut self.tiers {
                        tiers.change_part(slot, from, to);
                    }
                } else {
                    let policy = policy_of::<K>(&mut self.policy, &mut self.parts, from);
                    policy.remove(&mut self.places, slot);
                    self.insert_hot(to, slot, Seen::Never);
                }
                if let Some(parts) = &mut self.parts {
                    parts.freed(slot);
                    parts.filled(slot, to);
                }
            }
        }
    }

    /// Makes the tables of all parts fit their shares of the capacity, if they are too small or much too large, and
    /// sets the limits.
    pub(crate) fn fit_parts(&mut self) {
        let capacity = self.capacity();
        let Self { slots, places, policy, parts, tiers, moves, .. } = self;
        let Some(parts) = parts else { return };
        parts.set_len(capacity, slots.capacity_max());
        let wanted: Vec<u32> = divided(capacity, parts.shares()).collect();
        for (n, &slots_wanted) in wanted.iter().enumerate() {
            let a = &mut parts.accounts[n];
            let excess = slots_wanted / TABLE_EXCESS_PART + TABLE_EXCESS_SLOTS;
            if (slots_wanted..=slots_wanted.saturating_add(excess)).contains(&a.capacity) {
                continue;
            }
            // One that grows is likely to go on.
            let slack = if (1..slots_wanted).contains(&a.capacity) { slots_wanted / TABLE_SLACK_PART } else { 0 };
            let made_for = slots_wanted.saturating_add(slack).min(capacity);
            a.grows = made_for > std::mem::replace(&mut a.capacity, made_for);
            let policy = if n == 0 { &mut *policy } else { &mut parts.more[n - 1] };
            policy.resize(places, a.capacity, slots.keys());
            *moves = true;
            // until the limits are set
            a.limit = u32::MAX;
        }
        if let Some(tiers) = tiers {
            for (part, &slots_wanted) in wanted.iter().enumerate() {
                tiers.set_capacity(part, slots_wanted);
            }
        }
        self.limit_parts();
    }

    /// Divides the limit among the parts.
    pub(crate) fn limit_parts(&mut self) {
        let limit = self.limit;
        let Self { places, policy, parts, .. } = self;
        let Some(parts) = parts else { return };
        let Parts { accounts, more, .. } = &mut **parts;
        let mut over = 0;
        let limits = divided(limit, accounts.clone().into_iter().map(|a| a.share));
        for (n, (a, limit)) in accounts.iter_mut().zip(limits).enumerate() {
            if a.limit != limit {
                a.limit = limit;
                let policy = if n == 0 { &mut *policy } else { &mut more[n - 1] };
                policy.limit(places, limit);
            }
            over += a.len.saturating_sub(limit);
        }
        parts.over = over;
        self.line_up();
        self.fit_locks();
    }

    /// A slot has been given to a block of `part`.
    #[inline]
    pub(crate) fn note_filled(&mut self, slot: Slot, part: PartId) {
        if let Some(parts) = &mut self.parts {
            parts.filled(slot, part);
            self.line = if parts.over > 0 || self.moves { 0 } else { u32::MAX };
        }
    }

    /// A slot has been taken from its block.
    #[inline]
    pub(crate) fn note_freed(&mut self, slot: Slot) {
        if let Some(parts) = &mut self.parts {
            parts.freed(slot);
            self.line = if parts.over > 0 || self.moves { 0 } else { u32::MAX };
        }
    }
}
