//! Slots that are to leave the tiers for the policy, because their disk has none any more: a few at a time.
//!
//! Owns which of the slots in a list those are. Never frees one. Invariant: those that come into a tier later stay,
//! whoever has tiers again meanwhile; until one has left it stands where it stood, and goes as early as it would have.

use super::{COLD, Tier, Tiers};
use crate::index::Index;
use crate::index::origins::origin_of;
use crate::index::ranges::PartId;
use crate::policy::{PolicySet, Seen};
use crate::structures::list::{Links, List, NIL};
use crate::structures::slots::Slot;

/// The slots of a list that are to leave it, or are to be looked at: from the oldest of them up to the newest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    next: Slot,
    last: Slot,
}

impl Leaving {
    /// None are.
    pub const NONE: Leaving = Leaving { next: NIL, last: NIL };

    /// All that are in the list now.
    pub fn all(list: &List) -> Self {
        Self { next: list.tail(), last: list.head() }
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.next != NIL
    }

    /// The next one, which counts as looked at.
    fn take_next(&mut self, links: &Links) -> Option<Slot> {
        let slot = (self.next != NIL).then_some(self.next)?;
        self.goes(links, slot);
        Some(slot)
    }

    /// A slot is about to be taken out of the list, or has been looked at.
    fn goes(&mut self, links: &Links, slot: Slot) {
        match (slot == self.next, slot == self.last) {
            (true, true) => *self = Self::NONE,
            (true, false) => self.next = links.newer(slot),
            (false, true) => self.last = links.older(slot),
            (false, false) => {}
        }
    }

    /// What was in one slot is in another.
    fn moved(&mut self, from: Slot, to: Slot) {
        for slot in [&mut self.next, &mut self.last] {
            if *slot == from {
                *slot = to;
            }
        }
    }
}

/// Whose slots leave.
#[derive(Debug)]
pub(super) enum Whose {
    Nobodys,
    /// Those of these disks, by origin.
    Of(Vec<u64>),
    Everybodys,
}

impl Whose {
    fn is(&self, key: u64) -> bool {
        match self {
            Whose::Nobodys => false,
            Whose::Of(origins) => origins.contains(&origin_of(key)),
            Whose::Everybodys => true,
        }
    }
}

impl Tiers {
    /// All slots of one disk, or of all, are to become the policy's.
    pub(super) fn begin_leaving(&mut self, of: Option<u64>) {
        if self.is_empty() {
            return;
        }
        for lists in &mut self.of {
            lists.leaving = [Leaving::all(&lists.cold), Leaving::all(&lists.probation)];
        }
        match (&mut self.leave, of) {
            (_, None) => self.leave = Whose::Everybodys,
            (Whose::Everybodys, _) => {}
            (Whose::Of(origins), Some(origin)) if origins.contains(&origin) => {}
            (Whose::Of(origins), Some(origin)) => origins.push(origin),
            (Whose::Nobodys, Some(origin)) => self.leave = Whose::Of(vec![origin]),
        }
    }

    /// Whether there are slots that are to leave, or to be looked at for that.
    pub(in crate::index) fn are_leaving(&self) -> bool {
        !matches!(self.leave, Whose::Nobodys)
    }

    /// Whether nobody has tiers, so that none is in one.
    pub(in crate::index) fn are_idle(&self) -> bool {
        !self.used && !self.are_leaving()
    }

    /// Whether no slot is in a tier.
    fn is_empty(&self) -> bool {
        self.of.iter().all(|of| of.cold.len() == 0 && of.probation.len() == 0)
    }

    /// A slot is about to be taken out of its tier.
    #[cold]
    pub(super) fn note_taken(&mut self, part: PartId, mark: u8, slot: Slot) {
        let Self { of, links, .. } = self;
        of[usize::from(part.0)].leaving[usize::from(mark & COLD == 0)].goes(links, slot);
    }

    /// What is in a slot is about to be in another one.
    #[cold]
    pub(super) fn note_moved(&mut self, part: PartId, mark: u8, from: Slot, to: Slot) {
        self.of[usize::from(part.0)].leaving[usize::from(mark & COLD == 0)].moved(from, to);
    }

    /// The next slot to look at, with its part: the coldest first, so that they are the oldest to the policy.
    fn next_leaving(&mut self) -> Option<(PartId, Slot)> {
        let Self { of, links, .. } = self;
        of.iter_mut().enumerate().find_map(|(part, of)| {
            let slot = of.leaving.iter_mut().find_map(|leaving| leaving.take_next(links))?;
            Some((PartId(part as u8), slot))
        })
    }

    /// Checks that what is to leave stands between the ends; for tests.
    pub(super) fn check_leaving(&self) {
        assert!(!self.are_idle() || self.is_empty(), "slots stand in tiers that nobody has");
        for of in &self.of {
            for (list, leaving) in [&of.cold, &of.probation].into_iter().zip(&of.leaving) {
                let mut found = list.iter(&self.links).skip_while(|&slot| slot != leaving.next);
                let ends = !leaving.any() || found.any(|slot| slot == leaving.last);
                assert!(
                    ends && (self.are_leaving() || !leaving.any()),
                    "slots that are to leave are not in their list"
                );
            }
        }
    }
}

impl<K: PolicySet> Index<K> {
    /// Slots are to leave the tiers: at once, where nobody does it in steps.
    pub(super) fn leave_tiers(&mut self) {
        if self.most == 0 {
            self.finish_leaving();
            if self.tiers.as_ref().is_some_and(|t| !t.used) {
                self.tiers = None;
            }
        } else if self.tiers.as_ref().is_some_and(|t| t.are_leaving()) {
            self.moves = true;
            self.line_up();
        }
    }

    /// All that are to leave the tiers do.
    pub(in crate::index) fn finish_leaving(&mut self) {
        self.step_leaving(&mut { u32::MAX });
    }

    /// Looks at no more than `left` slots, which are counted down. Whether all have left.
    pub(in crate::index) fn step_leaving(&mut self, left: &mut u32) -> bool {
        loop {
            let Some(tiers) = self.tiers.as_mut().filter(|t| t.are_leaving()) else { return true };
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let Some((part, slot)) = tiers.next_leaving() else {
                tiers.leave = Whose::Nobodys;
                self.choose_way();
                return true;
            };
            if !tiers.leave.is(self.slots.keys()[slot as usize]) {
                continue;
            }
            if matches!(tiers.leave, Whose::Everybodys) {
                tiers.take(part, slot);
                self.become_hot(part, slot, Seen::Never);
            } else {
                self.set_tier(slot, Tier::Hot);
            }
        }
    }
}
