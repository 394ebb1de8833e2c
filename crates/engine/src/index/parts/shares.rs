//! What an index tells of its parts, and what can be set for one: its share and its policy.
//!
//! Owns no state. Never moves a block to another part. Invariant: see `parts`.

use super::{divided, policy_of};
use crate::index::Index;
use crate::index::ranges::{PartId, PartsError, REST};
use crate::policy::{Policy, PolicySet};
use crate::structures::slots::Slot;

impl<K: PolicySet> Index<K> {
    /// Whether the index has parts.
    pub fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// The parts, [`REST`] first; it alone in an index without.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + '_ {
        let present = |n: &usize| self.parts.as_ref().map_or(*n == 0, |p| p.accounts[*n].present);
        (0..self.parts.as_ref().map_or(1, |p| p.count())).filter(present).map(|n| PartId(n as u8))
    }

    /// Whether there is such a part.
    pub fn has_part(&self, part: PartId) -> bool {
        match &self.parts {
            Some(parts) => parts.accounts.get(usize::from(part.0)).is_some_and(|a| a.present),
            None => part == REST,
        }
    }

    /// The part that has an occupied slot. Reads one byte.
    #[inline]
    pub fn part_of_slot(&self, slot: Slot) -> PartId {
        self.parts.as_ref().map_or(REST, |parts| PartId(parts.of[slot as usize]))
    }

    /// The part that `block` belongs to, cached or not: a search through the ranges.
    #[inline]
    pub fn part_of_block(&self, block: u64) -> PartId {
        self.parts.as_ref().map_or(REST, |parts| parts.map.part_of(block))
    }

    /// Slots that a part has, and slots it may have now.
    pub fn part_len_and_limit(&self, part: PartId) -> (u32, u32) {
        match &self.parts {
            Some(parts) if self.has_part(part) => parts.len_and_limit(part),
            None if part == REST => (self.len(), self.limit),
            _ => (0, 0),
        }
    }

    /// What each part has of `whole_blocks`, in the order of [`Index::parts`].
    pub fn part_shares(&self, whole_blocks: u32) -> Vec<(PartId, u32)> {
        let Some(parts) = &self.parts else { return vec![(REST, whole_blocks)] };
        let shares = divided(whole_blocks, parts.shares()).enumerate();
        shares.map(|(n, share)| (PartId(n as u8), share)).filter(|(part, _)| self.has_part(*part)).collect()
    }

    /// The shares of all parts of `whole_blocks` after those in `changed` are changed: with their sum what
    /// [`Index::set_part_shares`] takes.
    ///
    /// # Errors
    /// If there is no such part, one is named twice, or the sum is more than an index can have.
    pub fn changed_shares(
        &self,
        whole_blocks: u32,
        changed: &[(PartId, u32)],
    ) -> Result<(Vec<(PartId, u32)>, u32), PartsError> {
        let mut shares = self.part_shares(whole_blocks);
        for (i, &(part, share)) in changed.iter().enumerate() {
            if changed[..i].iter().any(|c| c.0 == part) {
                return Err(PartsError::Twice(part));
            }
            let old = shares.iter_mut().find(|s| s.0 == part).ok_or(PartsError::UnknownPart(part))?;
            old.1 = share;
        }
        let sum: u64 = shares.iter().map(|s| u64::from(s.1)).sum();
        match u32::try_from(sum) {
            Ok(sum) if sum <= u32::MAX / 2 => Ok((shares, sum)),
            _ => Err(PartsError::Shares { wanted_blocks: sum, disk_blocks: u64::from(u32::MAX / 2) }),
        }
    }

    /// Sets the shares of parts; those not named have none. What a part has too many goes by [`Index::evict`], or when
    /// another one needs it.
    pub fn set_part_shares(&mut self, shares: &[(PartId, u32)]) {
        let Some(parts) = &mut self.parts else { return };
        for (n, a) in parts.accounts.iter_mut().enumerate() {
            a.share = shares.iter().find(|s| usize::from(s.0.0) == n).map_or(0, |s| s.1);
        }
        self.fit_parts();
    }

    /// The policy of a part.
    pub fn part_kind(&self, part: PartId) -> Option<K> {
        let policy = match &self.parts {
            _ if !self.has_part(part) => return None,
            Some(parts) if part != REST => &parts.more[usize::from(part.0) - 1],
            _ => &self.policy,
        };
        Some(K::of(policy))
    }

    /// Changes the policy of a part and keeps every block in its slot, as [`Index::switch`] does.
    pub fn switch_part(&mut self, part: PartId, kind: K) {
        let n = usize::from(part.0);
        let (capacity, limit) = match &self.parts {
            Some(parts) if n < parts.count() => (parts.accounts[n].capacity, parts.accounts[n].limit),
            None if part == REST => (self.capacity(), self.limit),
            _ => return,
        };
        let key = self.slots.hash_key();
        let Self { slots, places, policy, parts, most, .. } = self;
        let policy = policy_of::<K>(policy, parts, part);
        let mut order = Vec::new();
        policy.coldest_first(places, &mut |slot| order.push(slot));
        for &slot in &order {
            policy.remove(places, slot);
        }
        // the old policy's memory goes before the new one's comes
        *policy = K::FIFO.make(0, key);
        *policy = kind.make(capacity, key);
        if *most > 0 {
            policy.reserve(*most);
        }
        for slot in order {
            let block = slots.keys()[slot as usize];
            let seen = policy.miss(block);
            policy.insert(places, slot, block, seen);
        }
        policy.limit(places, limit);
        self.tell_policy(part, true);
    }

    /// How many ranges there are, and the highest number of a part.
    pub fn parts_size(&self) -> (usize, PartId) {
        self.parts.as_ref().map_or((0, REST), |parts| (parts.map.len(), PartId((parts.count() - 1) as u8)))
    }
}
