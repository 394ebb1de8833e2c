//! The parts of a disk: a policy, a share and a limit for each, over the slots of one index.
//!
//! Owns who has which slot, how many each part has and may have, and how blocks change from one part to another. Never
//! knows where a slot's bytes are, and never looks a block's part up on a hit: the slot's record says it.
//! Invariants: a slot is of the part that its block's number says; the limits of all parts together are the index's
//! limit; a part takes no slot while it has as many as its limit allows, so it is above it only after that went down.
//!
//! Parts divide what the index may hold in proportion to their shares, by rounding the running sum, so that the whole
//! is given out to the block. While they come to the index's limit, each has exactly its share.

use crate::index::ranges::{PARTS_MAX, PartId, PartRange, PartsError, RANGE_BYTES, REST, RangeMap};
use crate::index::tiers::{LISTS_BYTES, Tiers};
use crate::index::{AnyPolicy, Index, with_policy};
use crate::policy::{Policy, PolicyKind};
use crate::structures::list::resize_exact;
use crate::structures::slots::Slot;

/// What a part is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSetting {
    /// Its number; not [`REST`].
    pub part: PartId,
    /// Its policy.
    pub policy: PolicyKind,
    /// Its share of the disk, in blocks.
    pub share_blocks: u32,
}

/// What is counted for a part.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Whether there is such a part.
    present: bool,
    /// Its share, in the same measure as the others'.
    share: u32,
    /// Slots it has.
    len: u32,
    /// Slots it may have.
    limit: u32,
    /// Slots that its policy's tables are made for.
    capacity: u32,
}

/// A policy's tables are made for so many slots more than needed, as a part of those, so that a share that moves by
/// small steps rebuilds few.
const TABLE_SLACK_PART: u32 = 4;
/// They may be larger than needed by one part in so many, and by so many slots, before they are made anew.
const TABLE_EXCESS_PART: u32 = 2;
const TABLE_EXCESS_SLOTS: u32 = 64;

/// Bytes that parts add to an index, per slot: the slot's part, and tables of ghosts that are too large by half.
const BYTES_PER_SLOT: u64 = 13;
/// Bytes that each number of a part takes: its policy, its account, and what its tables hold at least.
const BYTES_PER_PART: u64 =
    (size_of::<AnyPolicy>() + size_of::<Account>() + LISTS_BYTES + 24 * TABLE_EXCESS_SLOTS as usize + 256) as u64;

/// See the head of the file.
pub(crate) struct Parts {
    map: RangeMap,
    /// The part of each occupied slot.
    of: Vec<u8>,
    /// The policies of the parts from 1 on; part 0 has the index's own. Numbers without a part have an empty one.
    more: Vec<AnyPolicy>,
    accounts: Vec<Account>,
    /// Slots above their part's limit.
    over: u32,
}

/// The policy of `part`.
#[inline]
pub(crate) fn policy_of<'a>(
    first: &'a mut AnyPolicy,
    parts: &'a mut Option<Box<Parts>>,
    part: PartId,
) -> &'a mut AnyPolicy {
    match parts {
        Some(parts) if part != REST => &mut parts.more[usize::from(part.0) - 1],
        _ => first,
    }
}

/// `whole` divided in proportion to `shares`, to the last block; all of it to the first where there are none.
pub fn divided(whole: u32, shares: impl Iterator<Item = u32> + Clone) -> impl Iterator<Item = u32> {
    let sum: u64 = shares.clone().map(u64::from).sum();
    let (mut so_far, mut given) = (0u64, 0u32);
    shares.map(move |share| {
        so_far += u64::from(share);
        // at most `whole`, and not above 2^64: a sum of 256 numbers of 32 bits times one of 32
        let upto = if sum == 0 { whole } else { (u128::from(whole) * u128::from(so_far) / u128::from(sum)) as u32 };
        upto - std::mem::replace(&mut given, upto)
    })
}

impl Parts {
    /// Numbers of parts, those without one among them.
    pub fn count(&self) -> usize {
        self.accounts.len()
    }

    pub fn over(&self) -> u32 {
        self.over
    }

    pub fn len_and_limit(&self, part: PartId) -> (u32, u32) {
        let a = &self.accounts[usize::from(part.0)];
        (a.len, a.limit)
    }

    /// The part to take a slot from, for nobody in particular: the one that is farthest above its limit, or, if none
    /// is, the one that has most of what it may have.
    pub fn worst(&self) -> PartId {
        let held = self.accounts.iter().enumerate().filter(|(_, a)| a.len > 0);
        let worst = match self.over {
            0 => held.reduce(|x, y| {
                let (a, b) = (x.1, y.1);
                if u64::from(b.len) * u64::from(a.limit) > u64::from(a.len) * u64::from(b.limit) { y } else { x }
            }),
            _ => held.max_by_key(|(n, a)| (a.len.saturating_sub(a.limit), usize::MAX - n)),
        };
        worst.map_or(REST, |(n, _)| PartId(n as u8))
    }

    fn filled(&mut self, slot: Slot, part: PartId) {
        self.of[slot as usize] = part.0;
        let a = &mut self.accounts[usize::from(part.0)];
        a.len += 1;
        self.over += u32::from(a.len > a.limit);
    }

    fn freed(&mut self, slot: Slot) {
        let a = &mut self.accounts[usize::from(self.of[slot as usize])];
        self.over -= u32::from(a.len > a.limit);
        a.len -= 1;
    }

    /// The block in `from` is in `to` now; returns its part.
    pub fn moved(&mut self, from: Slot, to: Slot) -> PartId {
        self.of[to as usize] = self.of[from as usize];
        PartId(self.of[to as usize])
    }

    fn shares(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        self.accounts.iter().map(|a| a.share)
    }

    pub fn fit_tiers(&self, tiers: &mut Tiers, capacity: u32) {
        for (part, slots) in divided(capacity, self.shares()).enumerate() {
            tiers.set_capacity(part, slots);
        }
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.map.memory_bytes()
            + self.of.capacity()
            + self.more.capacity() * size_of::<AnyPolicy>()
            + self.more.iter().map(|policy| with_policy!(policy, p => p.memory_bytes())).sum::<usize>()
            + self.accounts.capacity() * size_of::<Account>()
    }

    /// Checks the accounts, and has `see` check each policy with the slots it should have.
    pub fn check(&self, index: &Index, mut see: impl FnMut(&AnyPolicy, u32, &dyn Fn(Slot) -> bool)) {
        let mut lens = vec![0; self.count()];
        for (block, slot) in index.slots.iter() {
            let part = self.of[slot as usize];
            assert_eq!(part, self.map.part_of(block).0, "block {block} is kept by another part than its number says");
            lens[usize::from(part)] += 1;
        }
        let mut over = 0;
        for (n, a) in self.accounts.iter().enumerate() {
            assert_eq!(a.len, lens[n], "slots of part {n}");
            assert!(a.present || (a.len, a.limit, a.share) == (0, 0, 0), "part {n} is none and has something");
            over += a.len.saturating_sub(a.limit);
            let in_tiers: u32 = index.tiers.as_ref().map_or(0, |t| t.lens(n).iter().sum());
            let tiers = index.tiers.iter().flat_map(|t| t.slots_of(n));
            assert!(
                tiers.into_iter().all(|s| usize::from(self.of[s as usize]) == n),
                "a slot in the tiers of another part"
            );
            let policy = if n == 0 { &index.policy } else { &self.more[n - 1] };
            see(policy, a.len - in_tiers, &|slot| usize::from(self.of[slot as usize]) == n);
        }
        assert_eq!(over, self.over, "slots above the limits of their parts");
        assert_eq!(index.line, if over > 0 { 0 } else { u32::MAX }, "the line does not say whether something must go");
        let limits: u64 = self.accounts.iter().map(|a| u64::from(a.limit)).sum();
        assert_eq!(limits, u64::from(index.limit), "the limits of the parts are not the index's");
        assert_eq!(self.of.len(), index.capacity() as usize);
    }
}

impl Index {
    /// Divides the index into parts: `ranges` of a disk of `disk_blocks` blocks, with what each part in them is to be.
    /// Part 0 is the rest, and has of `whole_blocks` what the others' shares leave. Every block keeps its slot, and
    /// moves to the part that has its range now; parts that stay keep what their policies know.
    ///
    /// Allocates, and takes time in proportion to the capacity.
    ///
    /// # Errors
    /// What is wrong with the lists; nothing has changed then.
    pub fn set_parts(
        &mut self,
        ranges: &[PartRange],
        disk_blocks: u64,
        settings: &[PartSetting],
        whole_blocks: u32,
    ) -> Result<(), PartsError> {
        let map = RangeMap::new(ranges, disk_blocks)?;
        let accounts = accounts_of(&map, settings, whole_blocks)?;
        let key = self.slots.hash_key();
        let mut parts = match self.parts.take() {
            Some(parts) => parts,
            None => {
                let first = Account { len: self.slots.len(), capacity: self.capacity(), ..Account::default() };
                let of = vec![REST.0; self.capacity() as usize];
                let map = RangeMap::default();
                Box::new(Parts { map, of, more: Vec::new(), accounts: vec![first], over: 0 })
            }
        };
        // Numbers that go keep their place until their blocks have moved.
        let count = accounts.len().max(parts.count());
        parts.more.reserve_exact(count - 1 - parts.more.len());
        parts.more.resize_with(count - 1, || AnyPolicy::new(PolicyKind::Fifo, 0, key));
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
        // New policies come before the blocks do; those of parts that stay are exchanged only if they are others.
        for setting in settings {
            let Some(parts) = &mut self.parts else { unreachable!("just set") };
            let n = usize::from(setting.part.0);
            if parts.more[n - 1].kind() != setting.policy {
                if parts.accounts[n].len == 0 {
                    parts.more[n - 1] = AnyPolicy::new(setting.policy, 0, key);
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
                parts.more[n - 1] = AnyPolicy::new(PolicyKind::Fifo, 0, key);
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
        self.limit_parts();
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
        settings: &[PartSetting],
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
        self.plain = self.tiers.is_none();
        let (limit, capacity) = (self.limit, self.capacity());
        with_policy!(&mut self.policy, p => p.resize(&mut self.places, capacity, self.slots.keys()));
        if let Some(tiers) = &mut self.tiers {
            tiers.set_capacity(0, capacity);
        }
        self.set_limit(limit);
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
            with_policy!(policy, p => p.coldest_first(places, &mut |slot| in_policy += usize::from(see(slot))));
            if let Some(tiers) = tiers {
                tiers.slots_of(n).for_each(|slot| _ = see(slot));
            }
            for (i, &(slot, to)) in moving.iter().enumerate() {
                if i >= in_policy {
                    if let Some(tiers) = &mut self.tiers {
                        tiers.change_part(slot, from, to);
                    }
                } else {
                    let policy = policy_of(&mut self.policy, &mut self.parts, from);
                    with_policy!(policy, p => p.remove(&mut self.places, slot));
                    self.insert_hot(to, slot, crate::policy::Seen::Never);
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
        let Self { slots, places, policy, parts, tiers, .. } = self;
        let Some(parts) = parts else { return };
        resize_exact(&mut parts.of, capacity as usize, REST.0);
        let wanted: Vec<u32> = divided(capacity, parts.shares()).collect();
        for (n, &slots_wanted) in wanted.iter().enumerate() {
            let a = &mut parts.accounts[n];
            let excess = slots_wanted / TABLE_EXCESS_PART + TABLE_EXCESS_SLOTS;
            if (slots_wanted..=slots_wanted.saturating_add(excess)).contains(&a.capacity) {
                continue;
            }
            // One that grows is likely to go on.
            let slack = if (1..slots_wanted).contains(&a.capacity) { slots_wanted / TABLE_SLACK_PART } else { 0 };
            a.capacity = slots_wanted.saturating_add(slack).min(capacity);
            let policy = if n == 0 { &mut *policy } else { &mut parts.more[n - 1] };
            with_policy!(policy, p => p.resize(places, a.capacity, slots.keys()));
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
                with_policy!(policy, p => p.limit(places, limit));
            }
            over += a.len.saturating_sub(limit);
        }
        parts.over = over;
        self.line = if over > 0 { 0 } else { u32::MAX };
    }

    /// A slot has been given to a block of `part`.
    #[inline]
    pub(crate) fn note_filled(&mut self, slot: Slot, part: PartId) {
        if let Some(parts) = &mut self.parts {
            parts.filled(slot, part);
            self.line = if parts.over > 0 { 0 } else { u32::MAX };
        }
    }

    /// A slot has been taken from its block.
    #[inline]
    pub(crate) fn note_freed(&mut self, slot: Slot) {
        if let Some(parts) = &mut self.parts {
            parts.freed(slot);
            self.line = if parts.over > 0 { 0 } else { u32::MAX };
        }
    }

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
    pub fn part_kind(&self, part: PartId) -> Option<PolicyKind> {
        let policy = match &self.parts {
            _ if !self.has_part(part) => return None,
            Some(parts) if part != REST => &parts.more[usize::from(part.0) - 1],
            _ => &self.policy,
        };
        Some(policy.kind())
    }

    /// Changes the policy of a part and keeps every block in its slot, as [`Index::switch`] does.
    pub fn switch_part(&mut self, part: PartId, kind: PolicyKind) {
        let n = usize::from(part.0);
        let (capacity, limit) = match &self.parts {
            Some(parts) if n < parts.count() => (parts.accounts[n].capacity, parts.accounts[n].limit),
            None if part == REST => (self.capacity(), self.limit),
            _ => return,
        };
        let key = self.slots.hash_key();
        let Self { slots, places, policy, parts, .. } = self;
        let policy = policy_of(policy, parts, part);
        let mut order = Vec::new();
        with_policy!(&*policy, p => p.coldest_first(places, &mut |slot| order.push(slot)));
        for &slot in &order {
            with_policy!(&mut *policy, p => p.remove(places, slot));
        }
        // the old policy's memory goes before the new one's comes
        *policy = AnyPolicy::new(PolicyKind::Fifo, 0, key);
        *policy = AnyPolicy::new(kind, capacity, key);
        with_policy!(policy, p => {
            for slot in order {
                let block = slots.keys()[slot as usize];
                let seen = p.miss(block);
                p.insert(places, slot, block, seen);
            }
            p.limit(places, limit);
        });
    }

    /// Bytes that an index of `capacity` slots takes at most for `ranges` ranges and parts up to number `last`, besides
    /// what it takes without.
    pub fn parts_bytes_max(capacity: u32, ranges: usize, last: PartId) -> u64 {
        u64::from(capacity) * BYTES_PER_SLOT
            + (ranges * RANGE_BYTES + size_of::<Parts>()) as u64
            + (u64::from(last.0) + 1) * BYTES_PER_PART
    }

    /// How many ranges there are, and the highest number of a part.
    pub fn parts_size(&self) -> (usize, PartId) {
        self.parts.as_ref().map_or((0, REST), |parts| (parts.map.len(), PartId((parts.count() - 1) as u8)))
    }
}

/// The accounts of parts that are to be, by number, with nothing in them.
fn accounts_of(map: &RangeMap, settings: &[PartSetting], whole_blocks: u32) -> Result<Vec<Account>, PartsError> {
    if settings.is_empty() {
        return Err(PartsError::Empty);
    }
    let mut accounts = vec![Account::default(); PARTS_MAX];
    accounts[0].present = true;
    let mut sum = 0;
    for &PartSetting { part, share_blocks, .. } in settings {
        let a = &mut accounts[usize::from(part.0)];
        match a.present {
            _ if part == REST => return Err(PartsError::Rest),
            true => return Err(PartsError::Twice(part)),
            false => (a.present, a.share) = (true, share_blocks),
        }
        sum += u64::from(share_blocks);
    }
    if let Some(part) = map.parts().find(|part| !accounts[usize::from(part.0)].present) {
        return Err(PartsError::UnknownPart(part));
    }
    let disk_blocks = u64::from(whole_blocks);
    let rest = disk_blocks.checked_sub(sum).ok_or(PartsError::Shares { wanted_blocks: sum, disk_blocks })?;
    accounts[0].share = rest as u32;
    let last = accounts.iter().rposition(|a| a.present).unwrap_or(0);
    accounts.truncate(last + 1);
    Ok(accounts)
}

#[cfg(test)]
mod tests;
