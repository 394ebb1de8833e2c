//! LIRS2: LIRS by the last two reuse distances (Zhong, Zhao and Jiang, "LIRS2: An improved LIRS replacement algorithm",
//! SYSTOR 2021).
//!
//! Owns the stack S, in which a block has an entry for the last request and one for the request before it; the queue Q
//! of cached HIR blocks; and what S tells of blocks that are not cached. A HIR block becomes LIR when it is asked for
//! while the older of its entries is in S: its last two distances together are shorter than those of the coldest LIR
//! block. (LIRS asks for one entry, so a single short distance is enough.) Never lets an entry of a HIR block stand at
//! the bottom of S. Invariants: every slot is LIR or in Q; an LIR block has both entries; no block has the older one
//! alone; what is not cached has an entry; at the bottom of S is the older entry of an LIR block, which goes to Q when
//! another becomes LIR.
//!
//! The rules are those of the authors' program. While there are too few LIR blocks, one that comes is LIR at once; its
//! two entries are then side by side. A request for the block that was asked for just before changes nothing. A
//! hundredth of the slots is for HIR blocks, four at least. S has at most eight entries for each slot: when there are
//! more, the lowest of a HIR block goes. One difference: there, HIR blocks never seen before get two entries, too, of
//! which the older tells nothing but counts; and what was seen is remembered for ever. Here what has no entry is as
//! good as new, and gets one.

mod stack;

use self::stack::{Stack, before, holder, is_last, last};
use crate::policy::{Policy, Search, Seen};
use crate::structures::list::{List, NIL, resize_exact};
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot};
use crate::structures::table::{Fill, HashKey};

/// Bits of the mark of a slot or ghost: it is LIR; it has an entry for the last request; it has one for the request
/// before.
const LIR: u8 = 1;
const LAST: u8 = 2;
const BEFORE: u8 = 4;

/// Entries of S for each slot, at most.
const ENTRIES_PER_SLOT: u32 = 8;
/// Slots for HIR blocks, at least.
const HIR_MIN: u32 = 4;
/// Nodes have 32-bit numbers, and there are fewer than 15 for each slot.
const CAPACITY_END: u32 = 1 << 28;

#[derive(Debug)]
pub(crate) struct Lirs2 {
    capacity: u32,
    /// LIR blocks at most.
    lir_max: u32,
    lir: u32,
    s: Stack,
    /// The slots that are in Q, linked through the places they all have.
    q: List,
    /// What is known of blocks that are not cached: their entries in S.
    ghosts: ChainedSlots,
    ghost_marks: Vec<u8>,
    /// Slots that S has room for.
    room: u32,
    /// The slot that was asked for last, or `NIL`.
    latest: Slot,
}

fn lir_max(capacity: u32) -> u32 {
    capacity.saturating_sub((capacity / 100).max(HIR_MIN))
}

/// With all LIR blocks there, S has no more entries of others.
fn ghosts_max(capacity: u32) -> u32 {
    ENTRIES_PER_SLOT * capacity - 2 * lir_max(capacity)
}

impl Lirs2 {
    /// # Panics
    /// With 2^28 slots or more.
    pub fn new(capacity: u32, key: HashKey) -> Self {
        assert!(capacity < CAPACITY_END, "LIRS2 is for fewer than 2^28 slots");
        let ghosts = ghosts_max(capacity);
        Self {
            capacity,
            lir_max: lir_max(capacity),
            lir: 0,
            s: Stack::new(ghosts + capacity),
            q: List::new(),
            ghosts: ChainedSlots::new(ghosts, Fill::TwoThirds, key),
            ghost_marks: vec![0; ghosts as usize],
            room: capacity,
            latest: NIL,
        }
    }

    fn of_slot(&self, slot: Slot) -> u32 {
        self.ghosts.capacity() + slot
    }

    /// The slot that an entry is of, or `None` if it is a ghost's.
    fn slot_of(&self, node: u32) -> Option<Slot> {
        holder(node).checked_sub(self.ghosts.capacity())
    }

    fn is_lir(&self, places: &Places, node: u32) -> bool {
        self.slot_of(node).is_some_and(|slot| places.marks[slot as usize] & LIR != 0)
    }

    /// Makes room for the entries of `slot`, which may be of a disk larger than this part of it.
    fn reach(&mut self, slot: Slot) {
        if slot >= self.room {
            self.room = slot + 1;
            self.s.links.resize(2 * self.of_slot(self.room) as usize);
        }
    }

    /// Takes an entry of a HIR block out of S; of a block that is not cached the last one takes all that is known of
    /// it.
    fn drop_entry(&mut self, places: &mut Places, node: u32) {
        self.s.remove(node);
        let gone = if is_last(node) { LAST } else { BEFORE };
        match self.slot_of(node) {
            Some(slot) => places.marks[slot as usize] &= !gone,
            None if is_last(node) => _ = self.ghosts.free(holder(node)),
            None => self.ghost_marks[holder(node) as usize] &= !gone,
        }
    }

    /// Takes from the bottom of S what is not LIR.
    fn prune(&mut self, places: &mut Places) {
        loop {
            let node = self.s.list.tail();
            if node == NIL || self.is_lir(places, node) {
                return;
            }
            self.drop_entry(places, node);
        }
    }

    /// Takes the lowest entry of a HIR block out of S; whether there was one.
    fn cut(&mut self, places: &mut Places) -> bool {
        let mut node = if self.s.lowest == NIL { self.s.list.tail() } else { self.s.lowest };
        while node != NIL && self.is_lir(places, node) {
            node = self.s.links.newer(node);
        }
        self.s.lowest = node;
        if node == NIL {
            return false;
        }
        self.drop_entry(places, node);
        true
    }

    /// Cuts S until it is not longer than it may be.
    fn limit_s(&mut self, places: &mut Places) {
        while self.s.list.len() > ENTRIES_PER_SLOT * self.capacity && self.cut(places) {}
    }

    /// The LIR block at the bottom of S becomes HIR and goes to Q, until there are at most `lir_max` LIR blocks.
    fn demote(&mut self, places: &mut Places) {
        while self.lir > self.lir_max {
            let node = self.s.list.tail();
            let slot = self.slot_of(node).expect("an LIR block is cached");
            self.s.remove(node);
            // its other entry may be lower than those of all HIR blocks
            self.s.lowest = NIL;
            places.marks[slot as usize] = LAST;
            self.q.push(&mut places.links, slot);
            self.lir -= 1;
            self.prune(places);
        }
    }

    /// A slot that is not in Q becomes LIR; it has both entries.
    fn promote(&mut self, places: &mut Places, slot: Slot) {
        places.marks[slot as usize] |= LIR;
        self.lir += 1;
        self.demote(places);
    }

    /// The entries of a block that is asked for; whether the older one was in S.
    fn renew(&mut self, places: &mut Places, slot: Slot) -> bool {
        let of_slot = self.of_slot(slot);
        let mark = &mut places.marks[slot as usize];
        let was = *mark;
        if was & BEFORE != 0 {
            self.s.remove(before(of_slot));
        }
        *mark = was & LIR | LAST;
        if was & LAST != 0 {
            self.s.replace(last(of_slot), before(of_slot));
            *mark |= BEFORE;
        }
        self.s.push(last(of_slot));
        was & BEFORE != 0
    }

    /// The first in Q that may go; else the LIR block nearest to the bottom of S.
    fn candidate(&self, places: &Places, may_evict: &impl Fn(Slot) -> bool) -> Option<Slot> {
        let mut search = Search::default();
        for slot in self.q.iter(&places.links).chain(self.lir_slots(places)) {
            if may_evict(slot) {
                return Some(slot);
            }
            if search.refused() {
                return None;
            }
        }
        None
    }

    /// The LIR blocks from the bottom of S upwards, by their older entries.
    fn lir_slots<'a>(&'a self, places: &'a Places) -> impl Iterator<Item = Slot> + 'a {
        let older = self.s.list.iter(&self.s.links).filter(|&node| !is_last(node));
        older.filter(|&node| self.is_lir(places, node)).filter_map(|node| self.slot_of(node))
    }
}

impl Policy for Lirs2 {
    #[inline]
    fn touch(&mut self, places: &mut Places, slot: Slot, _block: u64) {
        if slot == self.latest {
            return;
        }
        self.latest = slot;
        let again = self.renew(places, slot);
        if places.marks[slot as usize] & LIR != 0 {
            return self.prune(places);
        }
        if again {
            self.q.remove(&mut places.links, slot);
            self.promote(places, slot);
        } else {
            self.q.renew(&mut places.links, slot);
            // without any LIR block nothing stays in S
            self.prune(places);
        }
        self.limit_s(places);
    }

    fn miss(&mut self, block: u64) -> Seen {
        self.latest = NIL;
        match self.ghosts.find(block, self.ghosts.hash(block)) {
            None => Seen::Never,
            Some(ghost) if self.ghost_marks[ghost as usize] & BEFORE != 0 => Seen::Often,
            Some(_) => Seen::Once,
        }
    }

    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        _seen: Seen,
    ) -> Option<Slot> {
        let slot = self.candidate(places, &may_evict)?;
        let is_in_s = |places: &Places| places.marks[slot as usize] & (LIR | LAST) == LAST;
        // full only where LIR blocks were removed: their entries are others' now
        while is_in_s(places) && self.ghosts.is_full() && self.cut(places) {}
        if !is_in_s(places) {
            self.remove(places, slot);
            return Some(slot);
        }
        // its entries stay
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        self.q.remove(&mut places.links, slot);
        let block = keys[slot as usize];
        let ghost = self.ghosts.insert(block, self.ghosts.hash(block));
        self.ghost_marks[ghost as usize] = mark;
        self.s.hand_over(mark, self.of_slot(slot), ghost);
        if self.latest == slot {
            self.latest = NIL;
        }
        Some(slot)
    }

    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen) {
        self.reach(slot);
        self.latest = slot;
        let of_slot = self.of_slot(slot);
        // to make room may have taken a ghost's entries
        let ghost = (seen != Seen::Never).then(|| self.ghosts.find(block, self.ghosts.hash(block))).flatten();
        if let Some(ghost) = ghost {
            let mark = self.ghost_marks[ghost as usize];
            places.marks[slot as usize] = mark;
            self.s.hand_over(mark, ghost, of_slot);
            self.ghosts.free(ghost);
        } else if self.lir < self.lir_max {
            places.marks[slot as usize] = LAST;
            self.s.push(last(of_slot));
        }
        if self.renew(places, slot) || self.lir < self.lir_max {
            self.promote(places, slot);
        } else {
            self.q.push(&mut places.links, slot);
        }
        self.prune(places);
        self.limit_s(places);
    }

    fn remove(&mut self, places: &mut Places, slot: Slot) {
        let of_slot = self.of_slot(slot);
        let mark = std::mem::take(&mut places.marks[slot as usize]);
        if mark & LAST != 0 {
            self.s.remove(last(of_slot));
        }
        if mark & BEFORE != 0 {
            self.s.remove(before(of_slot));
        }
        if mark & LIR != 0 {
            self.lir -= 1;
            self.prune(places);
        } else {
            self.q.remove(&mut places.links, slot);
        }
        if self.latest == slot {
            self.latest = NIL;
        }
    }

    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], hashes: &[u64]) {
        self.ghosts.read_ahead(hashes);
    }

    fn forget(&mut self, block: u64) {
        if let Some(ghost) = self.ghosts.find(block, self.ghosts.hash(block)) {
            self.s.remove(last(ghost));
            if self.ghost_marks[ghost as usize] & BEFORE != 0 {
                self.s.remove(before(ghost));
            }
            self.ghosts.free(ghost);
        }
    }

    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot) {
        self.reach(to);
        let mark = std::mem::take(&mut places.marks[from as usize]);
        places.marks[to as usize] = mark;
        self.s.hand_over(mark, self.of_slot(from), self.of_slot(to));
        if mark & LIR == 0 {
            self.q.replace(&mut places.links, from, to);
        }
        if self.latest == from {
            self.latest = to;
        }
    }

    fn limit(&mut self, places: &mut Places, limit: u32) {
        self.capacity = limit;
        self.lir_max = lir_max(limit);
        self.demote(places);
        self.limit_s(places);
    }

    /// Blocks that are not cached are forgotten.
    fn resize(&mut self, places: &mut Places, capacity: u32, _keys: &[u64]) {
        assert!(capacity < CAPACITY_END, "LIRS2 is for fewer than 2^28 slots");
        let stays = |node| Some((self.slot_of(node)?, is_last(node)));
        let entries: Vec<(Slot, bool)> = self.s.list.iter(&self.s.links).filter_map(stays).collect();
        let ghosts = ghosts_max(capacity);
        self.ghosts = ChainedSlots::new(ghosts, Fill::TwoThirds, self.ghosts.hash_key());
        resize_exact(&mut self.ghost_marks, ghosts as usize, 0);
        self.room = entries.iter().map(|&(slot, _)| slot + 1).fold(capacity, u32::max);
        self.s = Stack::new(ghosts + self.room);
        for (slot, is_last) in entries {
            let of_slot = self.of_slot(slot);
            self.s.push(if is_last { last(of_slot) } else { before(of_slot) });
        }
        self.limit(places, capacity);
    }

    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot)) {
        self.q.iter(&places.links).chain(self.lir_slots(places)).for_each(visit);
    }

    fn memory_bytes(&self) -> usize {
        self.s.links.memory_bytes() + self.ghosts.memory_bytes() + self.ghost_marks.capacity()
    }

    fn check(&self, places: &Places, occupied: u32) {
        let Stack { list: s, links, lowest } = &self.s;
        s.check(links);
        self.q.check(&places.links);
        self.ghosts.check();
        assert_eq!(self.q.len() + self.lir, occupied, "slots in Q and LIR slots");
        assert!(self.lir <= self.lir_max, "LIR blocks");
        assert!(self.q.iter(&places.links).all(|s| places.marks[s as usize] & LIR == 0), "an LIR block is in Q");
        let mark = |node| {
            self.slot_of(node)
                .map_or_else(|| self.ghost_marks[holder(node) as usize], |slot| places.marks[slot as usize])
        };
        let (mut lir, mut ghosts, mut hir_entries) = (0, 0, 0);
        // bottom first: the older entry of a block comes before the other
        let mut older = std::collections::BTreeSet::new();
        for node in s.iter(links) {
            assert!(mark(node) & if is_last(node) { LAST } else { BEFORE } != 0, "an entry of S is not marked so");
            if is_last(node) {
                assert_eq!(older.remove(&holder(node)), mark(node) & BEFORE != 0, "the older entry is below the other");
                lir += u32::from(self.is_lir(places, node));
                ghosts += u32::from(self.slot_of(node).is_none());
                assert!(mark(node) & (LIR | BEFORE) != LIR, "an LIR block has one entry");
            } else {
                older.insert(holder(node));
            }
            assert!(*lowest != node || hir_entries == 0, "an entry of a HIR block is below the lowest");
            hir_entries += u32::from(!self.is_lir(places, node));
        }
        assert!(older.is_empty(), "a block has the older entry alone");
        assert_eq!((lir, ghosts), (self.lir, self.ghosts.len()), "LIR blocks and ghosts in S");
        assert!(s.len() <= ENTRIES_PER_SLOT * self.capacity || hir_entries == 0, "S is too long");
        let bottom = s.tail();
        assert!(
            bottom == NIL || self.is_lir(places, bottom) && !is_last(bottom),
            "what is at the bottom of S is not the older entry of an LIR block"
        );
        let latest = self.latest;
        assert!(
            latest == NIL
                || mark(last(self.of_slot(latest))) & LIR != 0
                || self.q.iter(&places.links).any(|s| s == latest),
            "the slot asked for last is not occupied"
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::{AnyPolicyKind, StudiedPolicyKind};
    use crate::reference::may_go;
    use crate::study::replay::replay;
    use crate::{Access, Index};

    /// After each request, what the index would evict: Q, then the LIR blocks.
    fn order_after(index: &mut Index<AnyPolicyKind>, block: u64) -> Vec<u64> {
        index.access(block, Access::Read, may_go);
        index.check();
        index.coldest_first()
    }

    /// Four slots are for HIR blocks, so 1 and 2 are LIR.
    #[test]
    fn one_short_distance_makes_no_block_lir_but_two_do() {
        let mut index = Index::new(StudiedPolicyKind::Lirs2.into(), 6);
        (1..=6).for_each(|block| _ = order_after(&mut index, block));
        assert_eq!(order_after(&mut index, 7), [4, 5, 6, 7, 1, 2]);
        assert_eq!(order_after(&mut index, 3), [5, 6, 7, 3, 1, 2], "3 is in S, and LIRS would have it LIR now");
        assert_eq!(order_after(&mut index, 3), [5, 6, 7, 3, 1, 2], "to be asked for again at once is nothing");
        assert_eq!(order_after(&mut index, 8), [6, 7, 3, 8, 1, 2]);
        assert_eq!(order_after(&mut index, 3), [6, 7, 8, 1, 2, 3], "its two distances are shorter than those of 1");
        assert_eq!(order_after(&mut index, 1), [6, 7, 8, 1, 2, 3], "1 has lost its entries");
        assert_eq!(order_after(&mut index, 9), [7, 8, 1, 9, 2, 3]);
        assert_eq!(order_after(&mut index, 1), [7, 8, 9, 1, 2, 3], "one distance is known");
        assert_eq!(order_after(&mut index, 6), [8, 9, 1, 6, 2, 3]);
        assert_eq!(order_after(&mut index, 1), [8, 9, 6, 2, 3, 1], "two are");
    }

    /// Up and down again: of a block's distances one is short and the next is long, by turns, and their sum is the same
    /// for all blocks. LIRS goes by the short ones and exchanges its LIR blocks at every turn; LIRS2 keeps them.
    #[test]
    fn a_zigzag_leaves_the_lir_blocks_alone() {
        const BLOCKS: u64 = 500;
        const SWEEPS: u64 = 20;
        let sweep = |n: u64| (0..BLOCKS).map(move |b| if n.is_multiple_of(2) { b } else { BLOCKS - 1 - b });
        let blocks: Vec<u64> = (0..SWEEPS).flat_map(sweep).collect();
        let misses = |kind: StudiedPolicyKind| replay(kind, 400, &blocks);
        // either has four slots for HIR blocks, and 396 for LIR blocks: 104 do not fit, of which four are still there
        let least = BLOCKS + (SWEEPS - 1) * (BLOCKS - 400);
        assert_eq!(misses(StudiedPolicyKind::Lirs2), least);
        assert!(misses(StudiedPolicyKind::Lirs) > least * 3 / 2);
    }
}
