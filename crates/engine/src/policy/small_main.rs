//! A small FIFO queue for newcomers before a main CLOCK queue: what S3-FIFO, S4-FIFO and Clock2Q+ have in common.
//!
//! Owns both queues and the part of a slot's mark that tells the queue and counts hits. Never counts a hit (when one
//! counts is where the policies differ), never sizes a queue, never sees a ghost: what left the small queue unproven is
//! returned, and each policy remembers of it what it needs. Invariant: a slot is in the queue that its mark says, and
//! the mark of a slot in neither is 0.

use super::Search;
use crate::structures::list::{List, NIL};
use crate::structures::places::Places;
use crate::structures::slots::Slot;

/// The part of a mark that counts hits: up to 3.
pub(crate) const HITS: u8 = 3;
/// The part of a mark that says that the slot is in the main queue. Higher bits are the policy's own.
pub(crate) const IN_MAIN: u8 = 4;

/// A slot that was taken out of its queue to be given to another block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub slot: Slot,
    /// The mark it had in the small queue; `None` if it was in the main queue.
    pub of_small: Option<u8>,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct SmallMain {
    small: List,
    main: List,
}

impl SmallMain {
    pub const fn new() -> Self {
        Self { small: List::new(), main: List::new() }
    }

    pub fn small_len(&self) -> u32 {
        self.small.len()
    }

    /// Of the main queue.
    #[cfg(test)]
    pub fn main_len(&self) -> u32 {
        self.main.len()
    }

    /// Puts a slot that is in no queue into the small one.
    #[inline]
    pub fn push_small(&mut self, places: &mut Places, slot: Slot, mark: u8) {
        self.small.push(&mut places.links, slot);
        places.marks[slot as usize] = mark;
    }

    /// Puts a slot that is in no queue into the main one.
    #[inline]
    pub fn push_main(&mut self, places: &mut Places, slot: Slot) {
        self.main.push(&mut places.links, slot);
        places.marks[slot as usize] = IN_MAIN;
    }

    /// Takes a slot out of its queue; returns the mark it had.
    #[inline]
    pub fn remove(&mut self, places: &mut Places, slot: Slot) -> u8 {
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        if mark & IN_MAIN != 0 { &mut self.main } else { &mut self.small }.remove(&mut places.links, slot);
        mark
    }

    /// The block in `from` is in `to` now; returns the slot's mark.
    pub fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) -> u8 {
        let mark = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = mark;
        if mark & IN_MAIN != 0 { &mut self.main } else { &mut self.small }.replace(&mut places.links, from, to);
        mark
    }

    /// Takes a slot out of the main queue if that is longer than `main_target`, else out of the small one; out of the
    /// other one where the first has none to give. `proven` hits in the small queue make a block worth keeping.
    #[inline]
    pub fn take_victim(
        &mut self,
        places: &mut Places,
        main_target: u32,
        proven: u8,
        may_evict: &impl Fn(Slot) -> bool,
    ) -> Option<Taken> {
        let mut search = Search::default();
        if self.main.len() > main_target || self.small.len() == 0 {
            self.take_of_main(places, may_evict, &mut search)
                .or_else(|| self.take_of_small(places, proven, may_evict, &mut search))
        } else {
            self.take_of_small(places, proven, may_evict, &mut search)
                .or_else(|| self.take_of_main(places, may_evict, &mut search))
        }
    }

    /// The oldest of the small queue that is not proven, after the proven ones before it went to main.
    fn take_of_small(
        &mut self,
        places: &mut Places,
        proven: u8,
        may_evict: &impl Fn(Slot) -> bool,
        search: &mut Search,
    ) -> Option<Taken> {
        let mut at = self.small.tail();
        while at != NIL {
            let next = places.links.newer(at);
            if places.marks[at as usize] & HITS >= proven && search.spared() {
                self.small.remove(&mut places.links, at);
                self.push_main(places, at);
            } else if may_evict(at) {
                let mark = self.remove(places, at);
                return Some(Taken { slot: at, of_small: Some(mark) });
            } else if search.refused() {
                return None;
            }
            at = next;
        }
        None
    }

    /// The oldest of the main queue whose count has run down; those before it lose one and go round.
    fn take_of_main(
        &mut self,
        places: &mut Places,
        may_evict: &impl Fn(Slot) -> bool,
        search: &mut Search,
    ) -> Option<Taken> {
        let mut at = self.main.tail();
        while at != NIL {
            let next = places.links.newer(at);
            if !may_evict(at) {
                if search.refused() {
                    return None;
                }
                at = next;
            } else if places.marks[at as usize] & HITS != 0 && search.spared() {
                places.marks[at as usize] -= 1;
                self.main.renew(&mut places.links, at);
                at = if next == NIL { at } else { next };
            } else {
                self.remove(places, at);
                return Some(Taken { slot: at, of_small: None });
            }
        }
        None
    }

    /// Visits every slot in the order of eviction. Proven blocks of the small queue leave it for the main queue, behind
    /// the others there that were not hit.
    pub fn coldest_first(&self, places: &Places, proven: u8, visit: &mut dyn FnMut(Slot)) {
        let hits_of = |s: Slot| places.marks[s as usize] & HITS;
        self.small.iter(&places.links).filter(|&s| hits_of(s) < proven).for_each(&mut *visit);
        for hits in 0..=HITS {
            self.main.iter(&places.links).filter(|&s| hits_of(s) == hits).for_each(&mut *visit);
            if hits == 0 {
                self.small.iter(&places.links).filter(|&s| hits_of(s) >= proven).for_each(&mut *visit);
            }
        }
    }

    /// The slots of the small queue, the oldest first.
    pub fn small<'a>(&self, places: &'a Places) -> impl Iterator<Item = Slot> + 'a {
        self.small.iter(&places.links)
    }

    /// Panics if an invariant is broken; `occupied` is the number of slots that should be in the queues.
    pub fn check(&self, places: &Places, occupied: u32) {
        self.small.check(&places.links);
        self.main.check(&places.links);
        assert_eq!(self.small.len() + self.main.len(), occupied, "slots in both queues");
        let mark = |s: Slot| places.marks[s as usize];
        assert!(self.main.iter(&places.links).all(|s| mark(s) & !HITS == IN_MAIN), "a mark of main is not of main");
        assert!(self.small.iter(&places.links).all(|s| mark(s) & IN_MAIN == 0), "a slot of small is marked as main");
    }
}
