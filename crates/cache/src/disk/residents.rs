//! The slots of a disk: the index that gives blocks their slots, the frame in each slot, and the hash of its content.
//!
//! Owns the pages that the disk holds, or that the disks of a pool hold together. Never decides what is kept (the
//! index's policy does), never counts who pays for a frame (the store does, so a page that is taken out here is given
//! back there). Invariants: a slot without a block has no frame; a hash is known only of a slot with a frame;
//! `resident` counts the frames; without knowledge of contents there are no hashes at all.

use super::locking::Common;
use super::members::{Members, origin};
use crate::content::ContentHash;
use crate::store::ToKernel;
use crate::types::DiskId;
use undercroft_engine::locking::{LockSettings, Online, OnlineStats};
use undercroft_engine::{Access, Array, HashKey, Index, Outcome, PartId, Placed, PolicyKind, Tier};
use undercroft_host::{FRAME_BYTES, Held, empty_slots};

/// Bytes of memory that a step gives back at most, of what stands here: more than a step cuts off.
const RELEASE_BYTES: usize = 256 << 10;

/// See the head of the file. What a hit reads comes first.
#[repr(C)]
pub(super) struct Residents {
    /// The frame of each slot, if its block is here.
    frames: Array<Option<Held>>,
    resident: u32,
    /// There is a rule that locks blocks.
    notes: bool,
    /// It may lock some of the present disk.
    locks_own: bool,
    index: Index,
    /// The hash of each slot's content; 0 if it is not known. Empty if contents are not known at all.
    hashes: Array<u64>,
    /// A bit for each slot whose block was read again since its page came; empty until somebody asks.
    reused: Vec<u64>,
    /// Slots that there may be in time: address space is reserved for them.
    most: u32,
    /// How often a block has changed its slot.
    moves: u32,
    /// Units of work on tables so far.
    units: u64,
    /// The rule that locks blocks, if there is one.
    online: Option<Box<Online>>,
    /// The disks whose blocks these are, if they are several.
    members: Option<Box<Members>>,
    /// What is set of locks for all of them.
    common: Common,
}

/// Blocks' worth of memory that a rule for so many blocks takes at most.
pub(super) fn online_blocks(limit: u32) -> u32 {
    blocks_of_bytes(Online::<PolicyKind>::bytes_max(limit))
}

fn blocks_of_bytes(bytes: u64) -> u32 {
    bytes.div_ceil(FRAME_BYTES as u64) as u32
}

/// A block on its way from one index to another.
pub(super) struct Moving {
    placed: Placed,
    page: Option<Held>,
    hash: u64,
}

impl Moving {
    /// Its page, of one that stays behind.
    pub(super) fn into_page(self) -> Option<Held> {
        self.page
    }
}

impl Residents {
    /// `slots` slots, of which there may be `most` in time.
    pub(super) fn new(kind: PolicyKind, slots: u32, most: u32, key: HashKey, contents: bool) -> Self {
        let room = Array::<Option<Held>>::room_for(slots as usize, most as usize);
        let frames = Array::from_made(empty_slots(slots as usize, room), most as usize);
        let hashes = Array::zeroed(if contents { slots as usize } else { 0 }, most as usize);
        let index = Index::with_room(kind, slots, most, key);
        Self {
            frames,
            resident: 0,
            index,
            hashes,
            reused: Vec::new(),
            most,
            moves: 0,
            units: 0,
            online: None,
            notes: false,
            locks_own: false,
            members: None,
            common: Common::of(LockSettings::default()),
        }
    }

    /// Bytes of metadata held now.
    pub(super) fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.frames.memory_bytes()
            + self.hashes.memory_bytes()
            + self.reused.capacity() * size_of::<u64>()
            + self.members.as_ref().map_or(0, |m| m.memory_bytes())
            + self.online.as_ref().map_or(0, |o| o.memory_bytes())
    }

    // ---- the index ----

    /// What the index says and does about a block that is read or written. Whoever calls this deals with the block that
    /// had to go: its frame is still in the slot.
    #[inline]
    pub(super) fn access(&mut self, block: u64, access: Access) -> Outcome {
        let outcome = self.index.access(block, access, |_| true);
        if self.notes {
            self.note(block, access, outcome);
        }
        outcome
    }

    /// The rule that locks blocks hears of an access to the present disk, of whichever it may lock some: what others of
    /// a pool ask for takes room as well. Of one whose guest's pages are followed it does not, as long as the cache
    /// keeps what that guest does not hold: what it reads again it holds itself, and what comes here is what it has
    /// evicted.
    #[cold]
    fn note(&mut self, block: u64, access: Access, outcome: Outcome) {
        let Some(online) = self.online.as_mut().filter(|_| !self.index.has_tiers()) else { return };
        match self.locks_own {
            true => online.note(&mut self.index, block, access, outcome),
            false => online.note_other(&mut self.index, block, access, outcome),
        }
    }

    /// Whether a rule is to hear of each access to the present disk.
    #[inline]
    pub(super) fn is_heard(&self) -> bool {
        self.notes && !self.index.has_tiers()
    }

    // ---- locks ----

    /// What is set of locks for all disks whose blocks these are.
    pub(super) fn common(&self) -> Common {
        self.common
    }

    /// The same, to change; the index has to be told.
    pub(super) fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    /// Nothing may be locked any more if no disk is left of which anything is to be.
    pub(super) fn end_unused_locks(&mut self) {
        if self.members.as_ref().is_some_and(|m| !m.have_locks()) {
            self.index.set_locks(None);
        }
    }

    /// What the rule has learnt of the present disk says nothing of its blocks any more.
    pub(super) fn forget_chosen(&mut self) {
        if let Some(online) = &mut self.online {
            online.leave(&mut self.index);
        }
    }

    /// A rule chooses what is locked of the present disk, or none does. In a pool it is one for all disks, and stays
    /// while any may want it.
    pub(super) fn set_online(&mut self, on: bool, pooled: bool, key: HashKey) {
        match (&mut self.online, on) {
            (None, true) => {
                let online = Online::new(self.index.kind(), self.index.limit(), key);
                self.online = Some(Box::new(online));
            }
            (Some(online), false) if pooled => online.leave(&mut self.index),
            (Some(online), false) => {
                online.leave(&mut self.index);
                self.online = None;
            }
            _ => {}
        }
        self.note_for(on);
    }

    /// The present disk is another one, of which the rule may lock some, or not.
    pub(super) fn note_for(&mut self, on: bool) {
        (self.notes, self.locks_own) = (self.online.is_some(), on);
    }

    /// What the rule has done so far, if there is one for the present disk.
    pub(super) fn online_stats(&self) -> Option<OnlineStats> {
        self.online.as_ref().filter(|_| self.locks_own).map(|o| o.stats())
    }

    /// Whether the rule wants the block with this key locked.
    pub(super) fn is_chosen(&self, key: u64) -> bool {
        self.online.as_ref().is_some_and(|o| o.has_chosen(key))
    }

    /// The present disk, of which nothing is here any more, leaves the index.
    pub(super) fn leave(&mut self) {
        self.forget_chosen();
        self.index.leave();
    }

    /// Blocks' worth of memory that is used for the rule, as it was made.
    pub(super) fn overhead_blocks(&self) -> u32 {
        self.online.as_ref().map_or(0, |o| blocks_of_bytes(o.bytes_made()))
    }

    /// Blocks' worth of memory that a rule would take for what the index may hold now, if there is one and it was made
    /// for so much more or less that another is to be made.
    #[inline]
    pub(super) fn unfit_overhead(&self) -> Option<u32> {
        let limit = self.index.limit();
        self.online.as_ref().filter(|o| o.is_unfit(limit)).map(|_| online_blocks(limit))
    }

    /// The rule becomes one for what the index may hold now, or a step is done towards that.
    #[cold]
    pub(super) fn fit_online(&mut self) {
        if let Some(online) = &mut self.online {
            online.fit(&mut self.index);
        }
    }

    /// The index.
    #[inline]
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The index, for what takes no slot from its block: tiers, limits, parts, policies; and for whoever empties the
    /// slot that it names.
    #[inline]
    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// The slot of `block`, if it has one.
    #[inline]
    pub(super) fn slot(&self, block: u64) -> Option<u32> {
        self.index.peek(block)
    }

    /// The part that a slot's block belongs to.
    #[inline]
    pub(super) fn part_of_slot(&self, slot: u32) -> PartId {
        self.index.part_of_slot(slot)
    }

    /// The part that a block belongs to.
    #[inline]
    pub(super) fn part_of_block(&self, block: u64) -> PartId {
        self.index.part_of_block(block)
    }

    // ---- frames ----

    /// How often a block has changed its slot: who looks through the slots in several steps begins anew then.
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }

    /// Blocks that stood in slots of other tables, which counted so many moves, are looked through here from now on:
    /// who looked through those finds another number, whatever it was there and here.
    pub(super) fn moved_from(&mut self, moves: u32) {
        self.moves = self.moves.max(moves).wrapping_add(1);
    }

    /// Units of work that were done at most on tables that became larger or smaller.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// Slots with a frame, of all disks.
    pub(super) fn count(&self) -> u32 {
        self.resident
    }

    /// The disks whose blocks these are, if they are several.
    #[inline]
    pub(super) fn members(&self) -> Option<&Members> {
        self.members.as_deref()
    }

    /// The same, to count.
    pub(super) fn members_mut(&mut self) -> Option<&mut Members> {
        self.members.as_deref_mut()
    }

    /// From now on blocks may be those of several disks.
    pub(super) fn begin_members(&mut self, members: Members) {
        self.members = Some(Box::new(members));
        self.set_present(0);
    }

    /// The member of this ordinal is the present disk.
    pub(super) fn set_present(&mut self, ordinal: u16) {
        self.index.set_origin(origin(ordinal));
    }

    /// Takes all blocks of the present disk out, those that would go first before the others. Their pages stay counted
    /// where the store counts them.
    pub(super) fn take_out(&mut self) -> Vec<Moving> {
        let order: Vec<Placed> = self.index.coldest().collect();
        self.moves = self.moves.wrapping_add(1);
        let mut moving = Vec::with_capacity(order.len());
        for placed in order {
            let hash = self.hash(placed.slot).map_or(0, ContentHash::get);
            let page = self.take(placed.slot, self.index.key_of(placed.slot));
            self.index.remove(placed.block);
            moving.push(Moving { placed, page, hash });
        }
        moving
    }

    /// Blocks of the present disk that have a page, those first that would go last; `most` of them.
    pub(super) fn hottest(&self, most: usize) -> Vec<u64> {
        let mut blocks: Vec<u64> =
            self.index.coldest().filter(|p| self.page(p.slot).is_some()).map(|p| p.block).collect();
        blocks.reverse();
        blocks.truncate(most);
        blocks
    }

    /// Gives blocks that were taken out elsewhere a slot each, as far as there are free ones; where there are not
    /// enough, the first of them get none, and their pages are given to `gone`.
    pub(super) fn put_in(&mut self, moving: Vec<Moving>, mut gone: impl FnMut(Held)) {
        self.moves = self.moves.wrapping_add(1);
        let free = self.index.limit().saturating_sub(self.index.len()) as usize;
        let over = moving.len().saturating_sub(free);
        for (n, Moving { placed, page, hash }) in moving.into_iter().enumerate() {
            let tier = if self.index.has_tiers() { placed.tier } else { Tier::Hot };
            let slot = match (n >= over).then(|| self.index.place(placed.block, tier, |_| false)) {
                Some(Outcome::Fill { slot, .. }) => slot,
                _ => {
                    page.into_iter().for_each(&mut gone);
                    continue;
                }
            };
            if let Some(page) = page {
                self.put(slot, page);
                self.set_hash(slot, hash);
            }
        }
    }

    /// The page in a slot.
    #[inline]
    pub(super) fn page(&self, slot: u32) -> Option<&Held> {
        self.frames[slot as usize].as_ref()
    }

    /// The page of `block`, if it is cached.
    #[inline]
    pub(super) fn cached(&self, block: u64) -> Option<&Held> {
        self.page(self.index.peek(block)?)
    }

    /// The page of the block with this key, if it is cached.
    #[inline]
    pub(super) fn cached_key(&self, key: u64) -> Option<&Held> {
        self.page(self.index.find(key)?)
    }

    /// Every page in a slot.
    pub(super) fn pages(&self) -> impl Iterator<Item = &Held> {
        self.frames.iter().flatten()
    }

    /// Every page in a slot with its owner, if there are several.
    pub(super) fn pages_owned(&self) -> impl Iterator<Item = (Option<DiskId>, &Held)> {
        let owner = |key| self.members.as_ref().map(|m| m.owner(key));
        self.index.keys().filter_map(move |(key, slot)| Some((owner(key), self.page(slot)?)))
    }

    /// Every block of the present disk whose page is here, with its slot.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, u32)> {
        self.index.iter().filter(|&(_, slot)| self.page(slot).is_some())
    }

    /// Puts a page into an empty slot of a block.
    pub(super) fn put(&mut self, slot: u32, page: Held) {
        let other = self.frames[slot as usize].replace(page);
        debug_assert!(other.is_none(), "a slot that holds a page takes another");
        self.resident += 1;
        if let Some(bits) = self.reused.get_mut(slot as usize / 64) {
            *bits &= !(1 << (slot % 64));
        }
        if let Some(members) = &mut self.members {
            members.came(self.index.key_of(slot));
        }
    }

    /// Takes the page out of a slot, if there is one, and forgets its hash; it was that of the block with this key.
    #[inline]
    pub(super) fn take(&mut self, slot: u32, key: u64) -> Option<Held> {
        let page = self.frames[slot as usize].take()?;
        self.resident -= 1;
        if let Some(members) = &mut self.members {
            members.went(key);
        }
        self.set_hash(slot, 0);
        Some(page)
    }

    /// Puts a page of equal content in place of the one in a slot; returns that.
    pub(super) fn replace(&mut self, slot: u32, equal: Held) -> Option<Held> {
        self.frames[slot as usize].replace(equal)
    }

    /// The block in a slot is read, and has its page.
    #[inline]
    pub(super) fn is_read(&mut self, slot: u32) {
        if let Some(bits) = self.reused.get_mut(slot as usize / 64) {
            *bits |= 1 << (slot % 64);
        }
    }

    /// Whether the block in a slot was read again since its page came. It is noted from the first such question on.
    pub(super) fn was_read(&mut self, slot: u32) -> bool {
        if self.reused.is_empty() {
            self.reused = vec![0; self.frames.len().div_ceil(64)];
        }
        self.reused.get(slot as usize / 64).is_some_and(|bits| bits >> (slot % 64) & 1 != 0)
    }

    // ---- hashes ----

    /// The hash of the content in `slot`, if it is known.
    #[inline]
    pub(super) fn hash(&self, slot: u32) -> Option<ContentHash> {
        ContentHash::new(self.hashes.get(slot as usize).copied().unwrap_or(0))
    }

    /// The index, and the hash of the content in each slot, 0 where it is not known; empty if contents are not.
    #[inline]
    pub(super) fn index_and_hashes(&mut self) -> (&mut Index, &[u64]) {
        (&mut self.index, &self.hashes)
    }

    /// Notes the hash of the content in a slot; 0 if it is not known.
    #[inline]
    pub(super) fn set_hash(&mut self, slot: u32, hash: u64) {
        if let Some(h) = self.hashes.get_mut(slot as usize) {
            *h = hash;
        }
    }

    /// Slots whose hashes can be known.
    pub(super) fn hashable(&self) -> u32 {
        self.hashes.len() as u32
    }

    // ---- how many slots there are ----

    /// A new index in place of the old one, whose slots are all empty.
    pub(super) fn forget_index(&mut self, key: HashKey) {
        let (kind, capacity, tiers) = (self.index.kind(), self.index.capacity(), self.index.has_tiers());
        // The old index's memory goes before the new one's comes.
        (self.online, self.notes, self.locks_own) = (None, false, false);
        self.index = Index::new(kind, 0);
        self.index = Index::with_room(kind, capacity, self.most, key);
        self.index.set_tiers(tiers);
    }

    /// Begins to change the number of slots, of which no more than `slots` have a block. [`Residents::step`] does it.
    pub(super) fn begin_resize(&mut self, slots: u32) {
        self.index.begin_resize(slots);
    }

    /// Goes on with changes of the index's size for `units` units; whether they are done. With `lost`, a planted bug,
    /// pages are mixed up on the way.
    pub(super) fn step(&mut self, units: u32, contents: bool, lost: bool) -> bool {
        self.units += u64::from(units);
        let Self { index, frames, hashes, reused, moves, .. } = self;
        let done = index.step(units, &mut ToKernel, |from, to| {
            assert!(frames[to as usize].is_none(), "a block moved into a slot that is taken");
            frames[to as usize] = frames[from as usize].take();
            *moves = moves.wrapping_add(1);
            if !reused.is_empty() {
                let was = reused[from as usize / 64] >> (from % 64) & 1;
                reused[to as usize / 64] &= !(1 << (to % 64));
                reused[to as usize / 64] |= was << (to % 64);
            }
            if !hashes.is_empty() {
                hashes[to as usize] = std::mem::take(&mut hashes[from as usize]);
            }
            if lost {
                frames.swap(0, to as usize);
            }
        });
        let (slots, end) = (index.capacity() as usize, index.capacity_max() as usize);
        if !reused.is_empty() {
            reused.resize(slots.div_ceil(64), 0);
        }
        if slots < frames.len() {
            assert!(frames[slots..].iter().all(Option::is_none), "a shrunk slot still has a frame");
            frames.cut(slots);
            hashes.cut(slots);
            let mut bytes = RELEASE_BYTES;
            frames.release(&mut ToKernel, &mut bytes);
            hashes.release(&mut ToKernel, &mut bytes);
        } else if slots > frames.len() {
            frames.stretch_with(slots, end, || None);
            hashes.stretch_with(if contents { slots } else { 0 }, end, || 0);
        }
        if slots == end {
            frames.fit();
            hashes.fit();
        }
        done
    }

    /// Checks the invariants; for tests.
    pub(super) fn check(&self, contents: bool) {
        self.index.check();
        let fits = self.online.iter().all(|o| o.memory_bytes() as u64 <= o.bytes_made());
        assert!(fits, "the rule that locks blocks takes more than is said");
        if let Some(members) = &self.members {
            members.check(self.index.keys().filter(|&(_, slot)| self.page(slot).is_some()).map(|(key, _)| key));
        }
        let hashed = self.hashes.iter().zip(self.frames.iter()).all(|(&h, f)| h == 0 || f.is_some());
        assert!(hashed && (!contents || self.hashes.len() == self.frames.len()), "a hash without its content");
        let resident = self.pages().count();
        assert!(resident == self.resident as usize, "resident blocks are miscounted");
        assert!(self.pages_owned().count() == resident, "a frame sits in a slot without a block");
    }
}
