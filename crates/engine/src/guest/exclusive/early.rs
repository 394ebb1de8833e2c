//! Early copies: which page to copy before its eviction, and what becomes of the copies.
//!
//! Owns no state beside [`Exclusive`]'s and the table's. Never copies: the caller does. Invariant: one call looks at a
//! bounded number of pages, and gives out no more copies than transfers have paid for.

use super::Exclusive;
use crate::guest::mode::{Copied, Due};
use crate::guest::residency::Class;
use crate::guest::table::GuestTable;
use crate::index::Index;
use crate::index::tiers::Tier;
use crate::policy::PolicySet;

/// Schedule entries looked at for one copy.
const LOOKS_MAX: u32 = 64;

impl<K: PolicySet> Exclusive<K> {
    /// A page to copy now, if there is one and it has been paid for. The caller copies it and calls
    /// [`Exclusive::copied`].
    pub fn due(&mut self, table: &mut GuestTable, index: &mut Index<K>) -> Option<Due> {
        if table.credit == 0 || table.throttled || !table.wants_early(self.member) {
            return None;
        }
        let mut looks = 0;
        while looks < LOOKS_MAX {
            looks += 1;
            let due = self.next_due(table)?;
            if !self.evidence.wants(due.what.class) || !table.yields.worth(due.what.class) {
                continue;
            }
            if let Some(slot) = index.peek(due.what.block) {
                // it need not be copied: it is here
                if index.tier(slot) == Tier::Cold {
                    index.set_tier(slot, Tier::Probation);
                    self.made(table, due.what.class);
                }
                continue;
            }
            if due.what.tag.is_none() {
                continue;
            }
            table.credit -= 1;
            self.stats.early_tried += 1;
            return Some(due);
        }
        None
    }

    fn next_due(&mut self, table: &mut GuestTable) -> Option<Due> {
        self.follow_others(table);
        let now = table.residency.now();
        let memory = table.residency.memory();
        for class in [Class::Read, Class::Write] {
            let age = (self.ages[class as usize] as u32).min(memory - 1);
            // What is older than copies last beyond that age was to be copied when the age was another: it would keep
            // those waiting whose turn it is, for as many transfers as the age has fallen.
            let oldest = age.saturating_add(self.lasts).min(memory - 1);
            let next = &mut self.next[class as usize];
            let behind = now.wrapping_sub(*next);
            if behind > oldest && behind < u32::MAX / 2 {
                *next = now.wrapping_sub(oldest);
            } else if behind.wrapping_add(1) < age || behind >= u32::MAX / 2 {
                // The age has risen. Those that have come to it were looked at when it was less, or when their blocks
                // were cached anyway: without another look none would be copied until the younger ones are as old.
                *next = now.wrapping_sub(age);
            }
            let mut looks = 0;
            while looks < LOOKS_MAX && now.wrapping_sub(*next) >= age && now.wrapping_sub(*next) < u32::MAX / 2 {
                let seq = *next;
                *next = seq.wrapping_add(1);
                looks += 1;
                if let Some((page, what)) = table.residency.transferred(seq)
                    && what.member == self.member
                    && what.class == class
                    && !what.doubtful
                {
                    return Some(Due { page, what });
                }
            }
        }
        let mut looks = 0;
        while looks < LOOKS_MAX
            && let Some(&(page, seq)) = table.again.front()
            && now.wrapping_sub(seq) >= self.ages[Class::Kept as usize] as u32
        {
            looks += 1;
            let what = table.residency.get(page).filter(|what| now.wrapping_sub(what.age) == seq);
            if what.is_some_and(|what| what.member != self.member && table.wants_early(what.member)) {
                // It is for another disk to copy, which is asked as well.
                break;
            }
            table.again.pop_front();
            if let Some(what) = what.filter(|what| what.member == self.member) {
                return Some(Due { page, what });
            }
        }
        None
    }

    /// What came of a copy.
    pub fn copied(&mut self, table: &mut GuestTable, index: &mut Index<K>, due: &Due, copied: Copied) {
        self.tell(table, copied, due.what.class);
        if copied == Copied::Held {
            self.stats.early += 1;
            self.made(table, due.what.class);
        } else {
            // dirty in the guest, or lost to another use: decided when the page is next seen
            table.residency.doubt(due.page);
        }
        self.lapses(table, index);
    }

    /// Deals with a block that had to go while on probation; to be called after whatever may evict one.
    pub fn lapses(&mut self, table: &mut GuestTable, index: &mut Index<K>) {
        let Some(block) = index.take_lapsed() else { return };
        self.stats.early_lapsed += 1;
        let Some(page) = table.residency.page_of(self.member, block) else { return };
        let Some(what) = table.residency.get(page) else { return };
        let now = table.residency.now();
        table.residency.set_class(page, Class::Kept);
        // A second copy that lapses came too early for a page that is kept longest of all.
        let again = what.class != Class::Kept || what.age < self.ages[Class::Kept as usize] as u32;
        if again && table.again.len() < table.again.capacity() {
            table.again.push_back((page, now.wrapping_sub(what.age)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::exclusive::Transfer;
    use crate::guest::mode::ExclusiveMode;
    use crate::guest::residency::Resident;
    use crate::policy::PolicyKind;
    use crate::structures::table::HashKey;

    /// Pages that were young when pages were copied young are copied when they have come to the age that holds now.
    #[test]
    fn pages_that_have_come_to_an_age_that_rose_are_copied_at_once() {
        let key = HashKey::from_seed(3);
        let mut table = GuestTable::new(4096, key);
        let mut index = Index::with_hash_key(PolicyKind::DEFAULT, 64, key);
        index.set_tiers(true);
        let member = table.join(ExclusiveMode::Auto).unwrap();
        let mut exclusive = Exclusive::new(&table, member, ExclusiveMode::Auto, PolicyKind::DEFAULT, 64, key);
        let due = |exclusive: &mut Exclusive, table: &mut GuestTable, index: &mut Index, n: u32| {
            let moved =
                Transfer { page: n, block: n.into(), class: Class::Read, tag: Some(u64::from(n) << 8), found: None };
            exclusive.arrives(table, index, moved);
            exclusive.due(table, index).map(|due| due.page)
        };
        exclusive.ages = [100.0; 3];
        let young: Vec<_> = (0..1000).filter_map(|n| due(&mut exclusive, &mut table, &mut index, n)).collect();
        assert_eq!(young, (0..900).collect::<Vec<u32>>(), "each page at the age of 100");
        exclusive.ages = [700.0; 3];
        let older: Vec<_> = (1000..1100).filter_map(|n| due(&mut exclusive, &mut table, &mut index, n)).collect();
        assert_eq!(older, (300..400).collect::<Vec<u32>>(), "and each at 700, though it was looked at before");
    }

    /// What one disk finds out of its guest's evictions holds for the others: it is one order.
    #[test]
    fn what_a_disk_loses_has_all_disks_of_the_guest_copy_earlier() {
        let key = HashKey::from_seed(3);
        let mut table = GuestTable::new(1 << 16, key);
        let mut index = Index::with_hash_key(PolicyKind::DEFAULT, 64, key);
        let disk = |table: &mut GuestTable| {
            let member = table.join(ExclusiveMode::Auto).unwrap();
            let mut disk = Exclusive::new(table, member, ExclusiveMode::Auto, PolicyKind::DEFAULT, 64, key);
            disk.ages = [10_000.0; 3];
            disk
        };
        let (mut one, mut other) = (disk(&mut table), disk(&mut table));
        let step = f64::from(table.seen[Class::Read as usize].step());
        let mut lose = |one: &mut Exclusive, table: &mut GuestTable, age| {
            let what = Resident { member: one.member, block: 7, tag: None, age, class: Class::Read, doubtful: false };
            one.departs(table, &mut index, what, false);
        };
        lose(&mut one, &mut table, 9_900);
        lose(&mut one, &mut table, 9_800);
        lose(&mut one, &mut table, 3_000);
        lose(&mut other, &mut table, 9_700);
        let expected = [10_000.0 - 3.0 * step, 10_000.0, 10_000.0];
        assert_eq!(other.ages, expected, "each that came shortly before its copy counts once");
        table.pay();
        assert_eq!(one.due(&mut table, &mut index), None);
        assert_eq!(one.ages, expected);
    }
}
