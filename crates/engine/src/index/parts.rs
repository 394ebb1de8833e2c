//! The parts of a disk: a policy, a share and a limit for each, over the slots of one index.
//!
//! Owns which part has which slot, how many each has and may have, and how blocks change from one part to another.
//! Never knows where a slot's bytes are, and never looks a block's part up on a hit: the slot's record says it.
//! Invariants: a slot is of the part that its block's number says; the limits of all parts together are the index's
//! limit; a part takes no slot while it has as many as its limit allows, so it is above it only after that went down.
//!
//! Parts divide what the index may hold in proportion to their shares, by rounding the running sum, so that the whole
//! is given out to the block. While they come to the index's limit, each has exactly its share.

mod change;
mod shares;
#[cfg(test)]
mod tests;

use crate::index::Index;
use crate::index::ranges::{PARTS_MAX, PartId, PartsError, RANGE_BYTES, REST, RangeMap};
use crate::index::tiers::{LISTS_BYTES, Tiers};
use crate::policy::{Makes, Policy, PolicyKind, PolicySet};
use crate::structures::array::{Array, Release};
use crate::structures::ghosts::Ghosts;
use crate::structures::places::Places;
use crate::structures::slots::Slot;

/// What a part is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSetting<K = PolicyKind> {
    /// Its number; not [`REST`].
    pub part: PartId,
    /// Its policy.
    pub policy: K,
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
    /// They are to become larger: after those of others have become smaller.
    grows: bool,
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
const BYTES_PER_PART: u64 = (size_of::<<PolicyKind as Makes>::Policy>()
    + size_of::<Account>()
    + LISTS_BYTES
    + size_of::<Ghosts>()
    + 24 * TABLE_EXCESS_SLOTS as usize
    + 256) as u64;

/// See the head of the file.
pub(crate) struct Parts<K: PolicySet> {
    map: RangeMap,
    /// The part of each occupied slot.
    of: Array<u8>,
    /// The policies of the parts from 1 on; part 0 has the index's own. Numbers without a part have an empty one.
    more: Vec<K::Policy>,
    accounts: Vec<Account>,
    /// Slots above their part's limit.
    over: u32,
}

/// The policy of `part`.
#[inline]
pub(crate) fn policy_of<'a, K: PolicySet>(
    first: &'a mut K::Policy,
    parts: &'a mut Option<Box<Parts<K>>>,
    part: PartId,
) -> &'a mut K::Policy {
    match parts {
        Some(parts) if part != REST => &mut parts.more[usize::from(part.0) - 1],
        _ => first,
    }
}

/// `whole` divided in proportion to `shares`, to the last block; all of it to the first where there are none.
fn divided(whole: u32, shares: impl Iterator<Item = u32> + Clone) -> impl Iterator<Item = u32> {
    let sum: u64 = shares.clone().map(u64::from).sum();
    let (mut so_far, mut given) = (0u64, 0u32);
    shares.map(move |share| {
        so_far += u64::from(share);
        // at most `whole`, and not above 2^64: a sum of 256 numbers of 32 bits times one of 32
        let upto = if sum == 0 { whole } else { (u128::from(whole) * u128::from(so_far) / u128::from(sum)) as u32 };
        upto - std::mem::replace(&mut given, upto)
    })
}

impl<K: PolicySet> Parts<K> {
    /// Numbers of parts, those without one among them.
    pub fn count(&self) -> usize {
        self.accounts.len()
    }

    /// The policies of the parts from 1 on.
    pub fn policies(&self) -> impl Iterator<Item = &K::Policy> {
        self.more.iter()
    }

    pub fn over(&self) -> u32 {
        self.over
    }

    pub fn len_and_limit(&self, part: PartId) -> (u32, u32) {
        let a = &self.accounts[usize::from(part.0)];
        (a.len, a.limit)
    }

    /// The part to take a slot from, if it is not for a certain part: the one that is farthest above its limit, or, if
    /// none is, the one that has most of what it may have.
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

    /// There are `capacity` slots, on the way to `end`.
    pub fn set_len(&mut self, capacity: u32, end: u32) {
        self.of.set_len(capacity as usize, end as usize, REST.0);
    }

    /// Gives up memory that is there for more slots, unless there is on purpose.
    pub fn fit(&mut self) {
        self.of.fit();
    }

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        self.of.release(by, bytes);
        self.more.iter_mut().for_each(|policy| policy.release(by, bytes));
    }

    /// Goes on with the tables of all parts' policies, those that become smaller before the others. Whether all is
    /// done.
    pub fn step(&mut self, first: &mut K::Policy, places: &mut Places, left: &mut u32) -> bool {
        for grows in [false, true] {
            let mut done = true;
            for (n, account) in self.accounts.iter().enumerate() {
                let policy = if n == 0 { &mut *first } else { &mut self.more[n - 1] };
                done &= account.grows != grows || policy.step(places, left);
            }
            if !done {
                return false;
            }
        }
        true
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
            + self.of.memory_bytes()
            + self.more.capacity() * size_of::<K::Policy>()
            + self.more.iter().map(|policy| policy.memory_bytes()).sum::<usize>()
            + self.accounts.capacity() * size_of::<Account>()
    }

    /// Checks the accounts, and has `see` check each policy with the slots it should have.
    pub fn check(&self, index: &Index<K>, mut see: impl FnMut(&K::Policy, u32, &dyn Fn(Slot) -> bool)) {
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
            let apart = index.held_apart(PartId(n as u8));
            see(policy, a.len - in_tiers - apart, &|slot| usize::from(self.of[slot as usize]) == n);
        }
        assert_eq!(over, self.over, "slots above the limits of their parts");
        let line = if over > 0 || index.moves { 0 } else { u32::MAX };
        assert_eq!(index.line, line, "the line does not say whether something is to be done");
        let limits: u64 = self.accounts.iter().map(|a| u64::from(a.limit)).sum();
        assert_eq!(limits, u64::from(index.limit), "the limits of the parts are not the index's");
        assert_eq!(self.of.len(), index.capacity() as usize);
    }
}

impl Index {
    /// Bytes that an index of `capacity` slots takes at most for `ranges` ranges and parts up to number `last`, besides
    /// what it takes without.
    pub fn parts_bytes_max(capacity: u32, ranges: usize, last: PartId) -> u64 {
        u64::from(capacity) * BYTES_PER_SLOT
            + (ranges * RANGE_BYTES + size_of::<Parts<PolicyKind>>()) as u64
            + (u64::from(last.0) + 1) * BYTES_PER_PART
    }
}

/// The accounts of parts that are to be, by number, with nothing in them.
fn accounts_of<K: PolicySet>(
    map: &RangeMap,
    settings: &[PartSetting<K>],
    whole_blocks: u32,
) -> Result<Vec<Account>, PartsError> {
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
