//! The guest of a disk, as far as its memory can be seen: pages are copied and hashed, so that the cache keeps what the
//! guest does not hold.
//!
//! Owns the guest's side of a disk, what a core says and is told of it, and the contents that wait to be hashed; the
//! table of the guest's pages is its disks' together (`store/guests.rs`, and `guest/part.rs` here). Never decides what
//! a guest holds (the engine does), never hashes memory that the guest can write: what is hashed is a private copy
//! (`guest/copies.rs`). Invariants: a tag in the table of guest pages is the hash of what the disk holds now, since
//! every change of a block takes the block out of the table when it begins, and again when the disk has it; what waits
//! to be hashed is discarded at the same moments. A copied page is kept only if its hash is the tag.

mod copies;
mod gave_up;
mod part;

use crate::content::{ContentHash, ContentKey};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::LATER_MAX;
use crate::store::guests::{GuestNumber, NO_GUEST};
use crate::store::ram::Store;
use crate::types::{Effects, ExclusiveReport, ExclusiveState, Request};
use gave_up::{GaveUp, opaque};
pub(crate) use part::Raised;
use std::collections::VecDeque;
use undercroft_engine::residency::{Class, Member, Resident};
use undercroft_engine::{Departure, Exclusive, ExclusiveMode, GuestTable, HashKey, Index, Tier, Transfer};
use undercroft_host::{FRAME_BYTES, Held};

/// Content that waits to be hashed, after the replies that it must not delay.
#[derive(Debug)]
struct Job {
    /// `None`: what it was about has changed meanwhile.
    block: Option<u64>,
    held: Held,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// The content of the block as the disk has it.
    Learn,
    /// A copy of a page that held the block, perhaps.
    Verify(Resident),
}

/// The guest's side of a disk.
#[derive(Debug)]
pub(super) struct GuestSide {
    key: ContentKey,
    mode: ExclusiveMode,
    /// What is decided for the disk, if the guest's memory can be seen and there is room for the table of its pages:
    /// then the disk is a member of that table.
    exclusive: Option<Box<Exclusive>>,
    /// The guest.
    guest: GuestNumber,
    /// Copies of pages that held blocks of other disks, which those have not taken yet.
    aside: u32,
    /// Bytes of the table that the disk pays for.
    part_bytes: u64,
    /// Bytes that it pays for of tables that it is no member of any more.
    owed_bytes: u64,
    /// Bytes that were needed and allowed, where there is a guest and no room for its table.
    refused: Option<(u64, u64)>,
    /// The disk gave up its part in the table, if it did so with this guest.
    opaque: Option<Box<GaveUp>>,
    later: VecDeque<Job>,
    /// An event had no more time for copies ahead of evictions: they go on in the next one.
    copies_wait: bool,
    /// The guest's memory is scanned.
    scanned: bool,
}

impl GuestSide {
    pub(crate) fn new(key: ContentKey, mode: ExclusiveMode) -> Self {
        Self {
            key,
            mode,
            exclusive: None,
            guest: NO_GUEST,
            aside: 0,
            part_bytes: 0,
            owed_bytes: 0,
            refused: None,
            opaque: None,
            later: VecDeque::new(),
            copies_wait: false,
            scanned: false,
        }
    }

    /// Bytes of metadata held now.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.own_bytes() as usize + self.later.capacity() * size_of::<Job>()
    }

    /// Bytes that what waits to be hashed takes at most, besides its frames.
    pub(super) const fn later_bytes_max() -> usize {
        2 * LATER_MAX * size_of::<Job>()
    }

    /// Bytes that the disk pays for being kept exclusive: its own, and its part of the table of guest pages.
    pub(super) fn table_bytes(&self) -> u64 {
        self.exclusive.as_ref().map_or(0, |e| e.memory_bytes_max()) + self.part_bytes
    }

    /// Those, what it still pays for, and what is known of a disk that has given up.
    fn own_bytes(&self) -> u64 {
        self.table_bytes() + self.owed_bytes + self.opaque.as_ref().map_or(0, |_| size_of::<GaveUp>() as u64)
    }

    /// What is decided for the disk and the table of its guest's pages, if it is a member of that.
    #[inline]
    pub(super) fn both<'a>(&'a mut self, arena: &'a mut Store) -> Option<(&'a mut Exclusive, &'a mut GuestTable)> {
        Some((self.exclusive.as_deref_mut()?, arena.guests.table_mut(self.guest)?))
    }

    /// Which member of its guest's table the disk is, and the table.
    #[inline]
    fn member<'a>(&self, arena: &'a Store) -> Option<(Member, &'a GuestTable)> {
        Some((self.exclusive.as_ref()?.member(), arena.guests.table(self.guest)?))
    }

    /// Whether the disk is a member of its guest's table.
    #[inline]
    pub(super) fn has_table(&self, arena: &Store) -> bool {
        self.member(arena).is_some()
    }

    /// The guest's number.
    #[inline]
    pub(super) fn guest(&self) -> GuestNumber {
        self.guest
    }

    /// Frames behind contents that wait to be hashed.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Held> {
        self.later.iter().map(|j| &j.held)
    }

    /// Contents that wait to be hashed, here or for another disk to take them.
    pub(super) fn waits(&self) -> usize {
        self.later.len() + self.aside as usize
    }

    /// Whether there is a guest whose memory can be seen, and a table of its pages.
    #[inline]
    pub(super) fn is_seen(&self) -> bool {
        self.exclusive.is_some()
    }

    /// Whether the guest is known to hold a block.
    pub(super) fn is_at_guest(&self, block: u64, arena: &Store) -> bool {
        !self.is_restarting()
            && self.member(arena).is_some_and(|(member, table)| table.residency().is_at_guest(member, block))
    }

    /// Whether the hash of `block`'s content is needed: by the scanner, or because the guest holds the block.
    #[inline]
    pub(super) fn wants_hash(&self, block: u64, arena: &Store) -> bool {
        let held = |e: &Exclusive| self.held(block, arena).is_some_and(|held| e.wants_hash(held.class));
        self.scanned || self.exclusive.as_ref().is_some_and(|e| e.wants_hash(Class::Read) && held(e))
    }

    /// What is known of the page in which the guest holds `block`.
    fn held(&self, block: u64, arena: &Store) -> Option<Resident> {
        let (member, table) = self.member(arena)?;
        let residency = table.residency();
        residency.get(residency.page_of(member, block)?)
    }

    /// The hash of a content.
    pub(super) fn hash(&self, bytes: &[u8; FRAME_BYTES]) -> ContentHash {
        self.key.hash(bytes)
    }

    /// Notes the hash of what the disk holds of a block.
    pub(super) fn note_hash(&mut self, block: u64, hash: ContentHash, arena: &mut Store) {
        if let Some((e, table)) = self.both(arena) {
            e.hashed();
            table.residency_mut().learn(e.member(), block, hash.get());
        }
    }

    /// A block was evicted: what the guest does not hold may lose its place to what it does.
    #[inline]
    pub(super) fn lapses(&mut self, index: &mut Index, arena: &mut Store) {
        if let Some((e, table)) = self.both(arena) {
            e.lapses(table, index);
        }
    }

    /// The index may keep another number of blocks.
    #[inline]
    pub(super) fn set_limit(&mut self, limit: u32) {
        if let Some(e) = &mut self.exclusive {
            e.set_limit(limit);
        }
    }

    /// Whether the disk keeps its blocks together with others of its guest.
    #[inline]
    pub(super) fn set_pooled(&mut self, pooled: bool) {
        if let Some(e) = &mut self.exclusive {
            e.set_pooled(pooled);
        }
    }

    /// Whether the guest's memory is scanned for contents.
    pub(super) fn scanned(&self) -> bool {
        self.scanned
    }

    /// Whether there is something to do once the replies are out.
    #[inline]
    pub(crate) fn wants_spare(&self) -> bool {
        !self.later.is_empty() || self.copies_wait || self.is_restarting()
    }

    /// Whether what the guest held before it began afresh is being looked through.
    #[inline]
    pub(super) fn is_restarting(&self) -> bool {
        self.exclusive.as_ref().is_some_and(|e| e.is_restarting())
    }

    /// Pages of the guest that whole blocks of the disk were moved through, modulo 2^32; `None` if its memory cannot be
    /// seen, or there is no table of its pages.
    pub(super) fn transfers(&self) -> Option<u32> {
        self.exclusive.as_ref().map(|e| e.transfers())
    }

    /// Whether so much waits to be hashed that it should not wait for the end of a batch.
    #[inline]
    pub(super) fn presses(&self) -> bool {
        self.later.len() >= LATER_MAX / 2
    }

    /// Blocks of the disk's capacity that what is known of the guest takes instead.
    pub(super) fn overhead_blocks(&self) -> u32 {
        self.overhead_blocks_with(0)
    }

    /// The same with so many bytes more.
    fn overhead_blocks_with(&self, bytes: u64) -> u32 {
        (self.own_bytes() + bytes).div_ceil(B) as u32
    }
}

impl<P: FaultInjection> Disk<P> {
    // ---- its guest ----

    /// The number of the disk's guest.
    pub(crate) fn guest(&self) -> GuestNumber {
        self.side.guest()
    }

    /// The disk has another guest, or none, and no part in its table.
    pub(crate) fn set_guest(&mut self, guest: GuestNumber) {
        self.side.guest = guest;
        (self.side.refused, self.side.opaque) = (None, None);
    }

    /// Which member of its guest's table the disk is.
    pub(crate) fn member(&self) -> Option<Member> {
        self.side.exclusive.as_ref().map(|e| e.member())
    }

    /// How the disk is kept exclusive of its guest from now on; false if it was so before. What the guest holds is
    /// learned anew: it was not looked at, or by other rules.
    pub(crate) fn set_exclusive(&mut self, mode: ExclusiveMode) -> bool {
        let mode = if self.settings.contents() { mode } else { ExclusiveMode::Off };
        let changes = std::mem::replace(&mut self.side.mode, mode) != mode;
        self.settings.set_exclusive(mode);
        (self.side.refused, self.side.opaque) = (None, None);
        changes
    }

    /// The key of its hash tables.
    pub(crate) fn hash_key(&self) -> HashKey {
        self.settings.hash_key()
    }

    /// How it is kept exclusive.
    pub(crate) fn exclusive_mode(&self) -> ExclusiveMode {
        self.side.mode
    }

    /// What is known of the disk's blocks in the guest's pages goes, and what waits to be hashed.
    pub(crate) fn forget_guest(&mut self, arena: &mut Store) {
        self.cancel(0, u64::MAX);
        if let Some((e, table)) = self.side.both(arena) {
            table.residency_mut().forget_member(e.member());
        }
    }

    /// The guest begins afresh: what its pages still hold of the disk is copied, and then forgotten.
    pub(crate) fn restart_guest(&mut self, arena: &mut Store) {
        let Self { side, residents, .. } = self;
        if let Some((e, table)) = side.both(arena) {
            e.restart(table, residents.index_mut());
        }
    }

    /// Calls `see` with every page that is thought to hold a block of the disk, and that block; for tests.
    pub(crate) fn for_each_guest_page(&self, arena: &Store, see: impl FnMut(u32, u64)) {
        if let Some((member, table)) = self.side.member(arena) {
            table.residency().for_each(member, see);
        }
    }

    /// Whether the memory of the disk's guest is scanned for contents: then the hash of everything cached is wanted,
    /// and what the guest is found to hold goes first, also where requests tell nothing about its memory.
    pub(crate) fn set_scanned(&mut self, scanned: bool) {
        self.side.scanned = scanned && self.settings.contents() && !self.faults.has(Bug::ScanForgotten);
        let inclusive = self.side.exclusive.as_ref().is_some_and(|e| e.is_inclusive());
        let wanted = self.side.scanned || self.side.exclusive.is_some();
        self.residents.index_mut().set_tiers(self.settings.first_to_go() || !inclusive && wanted);
    }

    /// Appends the hashes and numbers of cached blocks to `out`, from those of slot `from` on, of at most `most` slots.
    /// Returns the slot to go on with, if there are more.
    pub(crate) fn cached_hashes(&self, from: u32, most: u32, out: &mut Vec<(ContentHash, u64)>) -> Option<u32> {
        let end = self.residents.hashable().min(from.saturating_add(most));
        for slot in from..end {
            if let Some(hash) = self.residents.hash(slot)
                && let Some(block) = self.residents.index().block_of(slot)
            {
                out.push((hash, block));
            }
        }
        (end < self.residents.hashable()).then_some(end)
    }

    /// The guest holds these blocks with these contents: those that are cached so are the first to go from now on.
    /// Returns how many.
    pub(crate) fn cool(&mut self, found: &[(ContentHash, u64)]) -> u32 {
        let mut cooled = 0;
        for &(hash, block) in found {
            if let Some(slot) = self.residents.slot(block)
                && (self.residents.hash(slot) == Some(hash) || self.faults.has(Bug::CoolsAnything))
                && self.residents.index().has_tiers()
                && self.residents.index().tier(slot) == Tier::Hot
            {
                self.residents.index_mut().set_tier(slot, Tier::Cold);
                // One that is locked may stay where it is.
                cooled += u32::from(self.residents.index().tier(slot) == Tier::Cold);
            }
        }
        cooled
    }

    /// Whether the cache keeps what the guest does not hold, so that what blocks are worth is measured so.
    pub(super) fn is_exclusive(&self) -> bool {
        self.side.exclusive.as_ref().is_some_and(|e| !e.is_inclusive())
            && self.residents.index().has_tiers()
            && !self.measuring.has_parts()
    }

    /// How the disk stands to its guest.
    pub(crate) fn exclusive_report(&self, arena: &Store) -> ExclusiveReport {
        let side = &self.side;
        let table = arena.guests.table(side.guest);
        let state = match (&side.exclusive, table) {
            _ if side.mode == ExclusiveMode::Off => ExclusiveState::Off,
            (Some(e), Some(table)) if e.is_opaque() => opaque(&e.stats(table), !e.is_inclusive()),
            (Some(e), Some(_)) if e.is_inclusive() || !self.residents.index().has_tiers() => ExclusiveState::Inclusive,
            (Some(e), Some(table)) => {
                let ways = e.ways(table);
                ExclusiveState::On { capture: ways.capture, delay: ways.delay }
            }
            _ => match (side.refused, &side.opaque) {
                (Some((needed_bytes, allowed_bytes)), _) => ExclusiveState::NoMemory { needed_bytes, allowed_bytes },
                (None, Some(gave_up)) => opaque(gave_up.stats(), false),
                (None, None) => ExclusiveState::NoGuest,
            },
        };
        let both = side.exclusive.as_ref().zip(table);
        let past = side.opaque.as_ref().map(|gave_up| *gave_up.stats());
        ExclusiveReport {
            mode: side.mode,
            state,
            tiers: self.residents.index().tier_lens(),
            block_offset: self.block_offset(),
            table_bytes: side.table_bytes(),
            table_disks: both.map_or(0, |(_, table)| table.members() as u32),
            stats: both.map(|(e, table)| e.stats(table)).or(past).unwrap_or_default(),
        }
    }

    // ---- requests ----

    /// The guest page of `block` in a request, if the request moves all of the block through one page.
    #[inline]
    pub(super) fn page_of<E: Effects>(&self, req: &Request, block: u64, cx: &mut Cx<'_, E>) -> Option<u32> {
        self.side.exclusive.as_ref()?;
        self.page_in(req, block, cx)
    }

    #[inline]
    fn page_in<E: Effects>(&self, req: &Request, block: u64, cx: &mut Cx<'_, E>) -> Option<u32> {
        if self.settings.first_to_go() {
            // The hint says that it is read once: whether the guest keeps it does not matter.
            return None;
        }
        let start = block * B;
        if start < req.offset || start + B > req.offset + req.len {
            return None;
        }
        cx.fx.guest_page(req.id, (start - req.offset) as usize)
    }

    /// `block` is about to be copied into (or has been copied out of) guest page `page`.
    #[inline]
    pub(super) fn arrives<E: Effects>(
        &mut self,
        page: u32,
        block: u64,
        class: Class,
        tag: Option<ContentHash>,
        found: Option<bool>,
        cx: &mut Cx<'_, E>,
    ) {
        let Self { side, residents, .. } = self;
        let Some((exclusive, table)) = side.both(cx.arena) else { return };
        let moved = Transfer { page, block, class, tag: tag.map(ContentHash::get), found };
        let departure = exclusive.arrives(table, residents.index_mut(), moved);
        if let Some(left) = departure.block() {
            self.measuring.left(left);
        }
        match departure {
            Departure::Capture(what) => self.copy_at_reuse(page, what, cx),
            Departure::Other(what) => self.other_left(page, what, class, cx),
            Departure::None | Departure::Kept(_) | Departure::Lost(_) => {}
        }
    }

    // ---- changes ----

    /// Blocks `first..end` change, or have changed: nothing that is known of their content holds any more.
    pub(super) fn doubt(&mut self, first: u64, end: u64, arena: &mut Store) {
        self.cancel(first, end);
        if !self.faults.has(Bug::WriteKeepsResidency)
            && let Some((e, table)) = self.side.both(arena)
        {
            table.residency_mut().forget_range(e.member(), first, end);
        }
    }

    /// The disk has a new content of `block`, or none that is known: what was noted of an older one while the change
    /// was under way goes. What its own writer noted stays.
    pub(super) fn changed(&mut self, block: u64, known: bool, arena: &mut Store) {
        self.cancel(block, block + 1);
        if !self.faults.has(Bug::WriteKeepsResidency)
            && let Some((e, table)) = self.side.both(arena)
            && !(known && table.residency().awaits_tag(e.member(), block))
        {
            table.residency_mut().forget(e.member(), block);
        }
    }

    fn cancel(&mut self, first: u64, end: u64) {
        if self.faults.has(Bug::WriteKeepsLater) {
            return;
        }
        for job in &mut self.side.later {
            if job.block.is_some_and(|b| (first..end).contains(&b)) {
                job.block = None;
            }
        }
    }
}
