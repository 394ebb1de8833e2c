//! The memory of a table of guest pages before it is one, and after: made and given back in steps.
//!
//! Owns it meanwhile. Never knows what a page holds. Invariant: what a step takes depends on the bytes it is allowed
//! alone, however large the guest is.

use super::residency::ResidencyMemory;
use super::table::GuestTable;
use crate::structures::array::Release;
use crate::structures::blank::Blank;
use crate::structures::table::HashKey;

/// See the head of the file.
#[derive(Debug)]
pub struct TableMemory {
    pages: u32,
    residency: ResidencyMemory,
    /// What pages to be copied again wait in: nothing of it is to be made, since it is empty at first.
    again: Blank<(u32, u32)>,
}

impl TableMemory {
    /// That of a table for a guest of `pages` pages, of which nothing is made. Takes no longer for many than for few.
    pub fn new(pages: u32) -> Self {
        let again = Blank::new(GuestTable::again_for(pages), (0, 0));
        Self { pages, residency: ResidencyMemory::new(pages), again }
    }

    /// That of a table that serves nobody any more.
    pub(super) fn of(pages: u32, residency: ResidencyMemory, again: Vec<(u32, u32)>) -> Self {
        Self { pages, residency, again: Blank::over(again, (0, 0)) }
    }

    /// Pages of the guest that a table made of it is for.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Goes on with making it, at most `bytes` bytes of it. Whether all is made: see [`GuestTable::over`].
    pub fn make(&mut self, mut bytes: usize) -> bool {
        self.residency.make(&mut bytes)
    }

    /// Goes on with giving it back, at most `bytes` bytes of it. Whether all has gone; what was made is lost.
    pub fn give_back(&mut self, by: &mut impl Release, mut bytes: usize) -> bool {
        self.residency.give_back(by, &mut bytes) && self.again.give_back(by, &mut bytes)
    }

    /// What it is made of.
    pub(super) fn into_parts(self) -> (ResidencyMemory, Vec<(u32, u32)>) {
        (self.residency, self.again.into_empty())
    }
}

impl GuestTable {
    /// A table made of memory of which all is made, none of whose pages is known.
    ///
    /// # Panics
    /// If some of it is not.
    pub fn over(memory: TableMemory, key: HashKey) -> Self {
        let (residency, again) = memory.into_parts();
        Self::of(residency, again.into(), key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExclusiveMode;
    use crate::guest::residency::Class;
    use crate::structures::array::KeepAll;

    #[test]
    fn a_table_is_made_and_taken_up_again_in_steps_and_then_knows_nothing() {
        const PAGES: u32 = 10_000;
        const STEP: usize = 4096;
        let steps = |memory: &mut TableMemory| (1..).find(|_| memory.make(STEP)).unwrap();
        let least = PAGES as usize * 26 / STEP;
        let mut memory = TableMemory::new(PAGES);
        assert!(steps(&mut memory) >= least);
        let mut table = GuestTable::over(memory, HashKey::from_seed(1));
        let member = table.join(ExclusiveMode::Auto).unwrap();
        for page in 0..PAGES {
            table.residency_mut().transfer(member, page, u64::from(page) * 3, Class::Read, Some(1 << 20));
        }
        let at = table.residency().get(77);
        let mut memory = table.into_memory();
        assert!(at.is_some() && memory.pages() == PAGES && steps(&mut memory) >= least);
        let table = GuestTable::over(memory, HashKey::from_seed(2));
        assert_eq!((table.members(), table.residency().held(), table.residency().now()), (0, 0, 0));
        assert!((0..PAGES).all(|page| table.residency().get(page).is_none()));
        table.residency().check();
        let mut memory = table.into_memory();
        let gone = (1..).find(|_| memory.give_back(&mut KeepAll, STEP)).unwrap();
        assert!(gone >= least);
        // wanted once more
        assert!(steps(&mut memory) >= least);
        GuestTable::over(memory, HashKey::from_seed(3)).residency().check();
    }
}
