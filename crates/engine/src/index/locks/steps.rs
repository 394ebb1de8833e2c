//! How locks follow what may be locked: a few slots at a time, where somebody else waits meanwhile.
//!
//! Owns the steps, and what policies are told of the slots that are not theirs. Never evicts. Invariant: when the steps
//! are done, every locked block is wanted and no part has more of them than its budget.

use super::TOLD_PART;
use crate::index::Index;
use crate::index::parts::policy_of;
use crate::index::ranges::PartId;
use crate::policy::{Policy, PolicySet};
use crate::structures::list::NIL;

impl<K: PolicySet> Index<K> {
    /// Something has changed of what may or is to be locked: at once, where nobody does it in steps.
    pub(super) fn go_on_with_locks(&mut self) {
        if self.most == 0 {
            self.finish_locks();
        } else {
            self.moves = true;
            self.line_up();
        }
    }

    /// The limit has changed: what is locked beyond the budget is to become ordinary.
    pub(in crate::index) fn fit_locks(&mut self) {
        if self.locks.is_none() && self.victims.is_none() {
            return;
        }
        let parts: Vec<PartId> = self.parts().collect();
        let over = |index: &Self, part: PartId| {
            let len = index.locks.as_ref().map_or(0, |l| l.len_of(usize::from(part.0)));
            len > index.locks_max(part)
        };
        if parts.iter().any(|&part| over(self, part)) {
            self.go_on_with_locks();
        }
        parts.into_iter().for_each(|part| self.tell_policy(part, true));
    }

    /// All steps at once.
    pub(in crate::index) fn finish_locks(&mut self) {
        self.step_locks(&mut { u32::MAX });
    }

    /// Looks at no more than `left` slots, which are counted down. Whether all is done.
    pub(in crate::index) fn step_locks(&mut self, left: &mut u32) -> bool {
        let Some(parts) = self.locks.as_ref().map(|l| l.of.len()) else { return true };
        for part in (0..parts).map(|n| PartId(n as u8)) {
            while self.step_part(part) {
                if *left == 0 {
                    return false;
                }
                *left -= 1;
            }
        }
        if self.locks.as_ref().is_some_and(|l| l.ends && l.len() == 0) {
            self.locks = None;
            self.choose_way();
            self.parts().collect::<Vec<_>>().into_iter().for_each(|part| self.tell_policy(part, true));
        }
        true
    }

    /// Looks at the slot of a part that has been locked longest, if there is a reason to.
    fn step_part(&mut self, part: PartId) -> bool {
        let max = self.locks_max(part);
        let n = usize::from(part.0);
        let Self { places, locks, slots, .. } = self;
        let Some(locks) = locks else { return false };
        let of = &mut locks.of[n];
        let oldest = of.list.tail();
        if oldest == NIL || (of.unasked == 0 && of.list.len() <= max) {
            return false;
        }
        let wanted = !locks.ends && locks.wanted.has(slots.keys()[oldest as usize]);
        if of.list.len() > max || !wanted {
            of.unasked = of.unasked.saturating_sub(1);
            self.unlock_slot(oldest);
        } else {
            of.unasked -= 1;
            of.list.renew(&mut places.links, oldest);
        }
        true
    }

    /// Tells the policy of a part how many slots are left for it, if that has changed enough; in any case with `now`.
    pub(in crate::index) fn tell_policy(&mut self, part: PartId, now: bool) {
        let (limit, apart) = (self.limit_of(part), self.apart_of(part));
        let Self { places, policy, parts, locks, .. } = self;
        if let Some(of) = locks.as_mut().and_then(|l| l.of.get_mut(usize::from(part.0))) {
            if !now && of.told.abs_diff(of.list.len()) <= limit / TOLD_PART {
                return;
            }
            of.told = of.list.len();
        }
        policy_of::<K>(policy, parts, part).limit(places, limit.saturating_sub(apart));
    }

    /// Slots of a part that are not its policy's: locked ones, and those kept for the victim buffer.
    pub(in crate::index) fn apart_of(&self, part: PartId) -> u32 {
        self.locks.as_ref().map_or(0, |l| l.len_of(usize::from(part.0))) + self.victims_len_max()
    }
}
