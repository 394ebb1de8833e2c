//! Runs: cached blocks beside each other that one request gives to the guest, noted together.
//!
//! Owns what was looked up for one run. Never decides otherwise than block by block: the calls and their order are
//! those of [`Exclusive::arrives`] after an access to each block. Invariant: what was looked up holds as long as no
//! block gets a slot or loses one, which the caller sees to until the run is noted.
//!
//! To look all blocks up first lets the processor wait for their lines of memory together, and not for one after
//! another (docs/decisions/0191).

use super::{Exclusive, Transfer};
use crate::guest::mode::Departure;
use crate::guest::residency::Class;
use crate::guest::table::GuestTable;
use crate::index::{Access, Index};
use crate::policy::PolicySet;
use crate::structures::slots::Slot;

/// Blocks of a run at most. More than the reads that a processor has under way at once; few enough that what was looked
/// up is still near when it is needed.
pub const RUN_MAX: usize = 32;

/// No slot.
const NONE: Slot = Slot::MAX;

/// See the head of the file.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first block.
    first: u64,
    len: usize,
    /// Blocks that have been noted.
    noted: usize,
    /// The slot of each block.
    slots: [Slot; RUN_MAX],
    /// The page that each block goes to.
    pages: [u32; RUN_MAX],
    /// The slot of what that page held before, if it was a cached block of the same disk.
    gone: [Slot; RUN_MAX],
}

impl Run {
    /// The blocks from `first` on, at most `most` of them, as far as they have slots of which `is_here` says that their
    /// content is here, which a free slot's never is. They go to no pages yet.
    #[inline]
    pub fn of<K: PolicySet>(index: &Index<K>, first: u64, most: usize, is_here: impl Fn(Slot) -> bool) -> Run {
        let none = [NONE; RUN_MAX];
        let mut run = Run { first, len: 0, noted: 0, slots: none, pages: none, gone: none };
        let mut before = NONE;
        for (n, at) in run.slots.iter_mut().take(most).enumerate() {
            let block = first + n as u64;
            // Blocks that came together are in slots beside each other, as a rule.
            let beside = before.wrapping_add(1);
            let found = if index.may_hold(beside, block) && is_here(beside) { Some(beside) } else { index.peek(block) };
            match found {
                Some(slot) if is_here(slot) => *at = slot,
                _ => break,
            }
            (run.len, before) = (n + 1, *at);
        }
        run
    }

    /// Blocks in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Cuts it to as many blocks as there are pages for them: `fill` fills in the pages of the first ones, and says of
    /// how many it knows.
    #[inline]
    pub fn cut_to_pages(&mut self, fill: impl FnOnce(&mut [u32]) -> usize) {
        let known = fill(&mut self.pages[..self.len]);
        self.len = self.len.min(known);
    }

    /// The blocks and their slots.
    #[inline]
    pub fn blocks(&self) -> impl Iterator<Item = (u64, Slot)> + '_ {
        self.slots[..self.len].iter().enumerate().map(|(n, &slot)| (self.first + n as u64, slot))
    }
}

impl<K: PolicySet> Exclusive<K> {
    /// Looks up what the pages of a run held before.
    #[inline]
    pub fn look_behind(&self, table: &GuestTable, index: &Index<K>, run: &mut Run) {
        let mut before = NONE;
        for (gone, &page) in run.gone.iter_mut().zip(&run.pages[..run.len]) {
            let Some(block) = table.residency.block_at(self.member, page) else { continue };
            let beside = before.wrapping_add(1);
            let found = if index.holds_low(beside, block) { Some(beside) } else { index.peek(block) };
            *gone = found.unwrap_or(NONE);
            before = *gone;
        }
    }

    /// The blocks of a run are found by a read, and put into their pages. `tag` tells the tag of the content in a slot,
    /// `each` is told of each block, with its slot and the block of the disk that has left for it. Returns what the
    /// caller has to deal with, and the page that is about to be written to; then there may be more to note.
    #[inline]
    pub fn arrive(
        &mut self,
        table: &mut GuestTable,
        index: &mut Index<K>,
        run: &mut Run,
        tag: impl Fn(Slot) -> Option<u64>,
        mut each: impl FnMut(&Index<K>, u64, Slot, Option<u64>),
    ) -> Option<(u32, Departure)> {
        while run.noted < run.len {
            let n = run.noted;
            run.noted += 1;
            let (block, slot, page) = (run.first + n as u64, run.slots[n], run.pages[n]);
            index.hit(slot, Access::Take);
            let moved = Transfer { page, block, class: Class::Read, tag: tag(slot), found: Some(true) };
            let gone = (run.gone[n] != NONE).then_some(run.gone[n]);
            let departure = self.arrives_behind(table, index, moved, gone);
            each(index, block, slot, departure.block());
            if matches!(departure, Departure::Capture(_) | Departure::Other(_)) {
                return Some((page, departure));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::mode::ExclusiveMode;
    use crate::policy::{Outcome, PolicyKind};
    use crate::reference::may_go;
    use crate::structures::table::HashKey;

    struct Side {
        table: GuestTable,
        index: Index,
        exclusive: Exclusive,
    }

    const BLOCKS: u64 = 600;
    const PAGES: u32 = 150;

    impl Side {
        fn new(kind: PolicyKind) -> Side {
            let key = HashKey::from_seed(5);
            let mut table = GuestTable::new(PAGES, key);
            let mut index = Index::with_hash_key(kind, 400, key);
            index.set_tiers(true);
            let member = table.join(ExclusiveMode::Auto).unwrap();
            let exclusive = Exclusive::new(&table, member, ExclusiveMode::Auto, kind, 400, key);
            Side { table, index, exclusive }
        }

        /// One block; whether it was cached, and what left the guest for it.
        fn one(&mut self, block: u64, page: u32) -> (bool, Departure) {
            let hit = matches!(self.index.access(block, Access::Take, may_go), Outcome::Hit(_));
            self.exclusive.lapses(&mut self.table, &mut self.index);
            let moved = Transfer { page, block, class: Class::Read, tag: Some(block << 8), found: Some(hit) };
            (hit, self.exclusive.arrives(&mut self.table, &mut self.index, moved))
        }

        fn run(&mut self, first: u64, pages: &[u32], seen: &mut Vec<(bool, Departure)>) -> usize {
            let Side { table, index, exclusive } = self;
            let mut run = Run::of(index, first, pages.len(), |slot| index.block_of(slot).is_some());
            run.cut_to_pages(|to| {
                to.copy_from_slice(&pages[..to.len()]);
                to.len()
            });
            exclusive.look_behind(table, index, &mut run);
            loop {
                let blocks: Vec<u64> = run.blocks().map(|(block, _)| block << 8).collect();
                let at = run.slots;
                let tag = |slot| at.iter().position(|&s| s == slot).map(|n| blocks[n]);
                let before = seen.len();
                let departed = exclusive.arrive(table, index, &mut run, tag, |_, _, _, left| {
                    seen.push((true, left.map_or(Departure::None, Departure::Kept)));
                });
                let Some((_, departure)) = departed else { return run.len() };
                assert!(seen.len() > before, "a departure without its block");
                seen.last_mut().unwrap().1 = departure;
            }
        }

        fn state(&self) -> impl PartialEq + std::fmt::Debug {
            let order: Vec<_> = self.index.coldest().collect();
            let pages: Vec<_> = (0..PAGES).map(|page| self.table.residency.get(page)).collect();
            (order, pages, self.exclusive.stats(&self.table))
        }
    }

    #[test]
    fn a_run_does_what_its_blocks_one_by_one_would() {
        for kind in PolicyKind::ALL {
            let (mut ones, mut runs) = (Side::new(kind), Side::new(kind));
            let (mut state, mut longest, mut captures) = (kind as u64, 0, 0);
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % below
            };
            for round in 0..3000 {
                let (first, len) = (random(BLOCKS), 1 + random(RUN_MAX as u64));
                let (page, adjacent) = (random(u64::from(PAGES)), round % 3 != 0);
                let pages: Vec<u32> = (0..len)
                    .map(|n| (if adjacent { page + n } else { random(u64::from(PAGES)) }) as u32 % PAGES)
                    .collect();
                let (mut seen, mut expected) = (vec![], vec![]);
                let mut n = 0;
                while n < pages.len() {
                    let done = runs.run(first + n as u64, &pages[n..], &mut seen);
                    longest = longest.max(done);
                    n += done;
                    if n < pages.len() {
                        seen.push(runs.one(first + n as u64, pages[n]));
                        n += 1;
                    }
                }
                for (n, &page) in pages.iter().enumerate() {
                    expected.push(ones.one(first + n as u64, page));
                }
                captures += expected.iter().filter(|(_, what)| matches!(what, Departure::Capture(_))).count();
                // A block that was lost is not said to be so apart from one that was kept.
                let plain = |what: Departure| match what {
                    Departure::Lost(block) => Departure::Kept(block),
                    other => other,
                };
                let alike = |all: &[(bool, Departure)]| all.iter().map(|&(hit, d)| (hit, plain(d))).collect::<Vec<_>>();
                assert_eq!(alike(&seen), alike(&expected), "{kind}, round {round}");
                if round % 50 == 0 {
                    assert_eq!(runs.state(), ones.state(), "{kind}, round {round}");
                    runs.index.check();
                    runs.table.residency.check();
                }
            }
            assert!(longest > 16 && captures > 0, "{kind}: {longest} in a run, {captures} captures");
        }
    }
}
