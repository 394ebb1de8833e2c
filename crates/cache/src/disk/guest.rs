//! The guest of a disk, as far as its memory can be seen: pages are copied and hashed, so that the cache keeps what the
//! guest does not hold.
//!
//! Owns the guest's side of a disk, what a core says and is told of it, and the contents that wait to be hashed. Never
//! decides what a guest holds (the engine does), never hashes memory that the guest can write: what is hashed is a
//! private copy.
//! Invariants: a tag in the table of guest pages is the hash of what the disk holds now, since every change of a
//! block takes the block out of the table when it begins, and again when the disk has it; what waits to be hashed is
//! discarded at the same moments. A copied page is kept only if its hash is the tag.

use crate::content::{ContentHash, ContentKey, is_zeroes};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::{EARLY_COPIES_MAX, GUEST_TABLE_PART, LATER_MAX};
use crate::store::ram::Store;
use crate::types::{Effects, ExclusiveReport, ExclusiveState, Request};
use std::collections::VecDeque;
use undercroft_engine::residency::{Class, Resident};
use undercroft_engine::{Departure, Exclusive, ExclusiveMode, Index, Outcome, Tier};
use undercroft_host::{FRAME_BYTES, Frame, Held};

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
    /// The guest, if its memory can be seen and there is room for its table.
    exclusive: Option<Box<Exclusive>>,
    /// Pages of the guest's memory, whether there is room for their table or not; 0 without a guest.
    pages: u32,
    /// Bytes that its table would have needed.
    refused_bytes: u64,
    later: VecDeque<Job>,
    /// The guest's memory is scanned.
    scanned: bool,
}

impl GuestSide {
    pub(crate) fn new(key: ContentKey, mode: ExclusiveMode) -> Self {
        Self { key, mode, exclusive: None, pages: 0, refused_bytes: 0, later: VecDeque::new(), scanned: false }
    }

    /// Bytes of metadata held now.
    pub(crate) fn memory_bytes(&self) -> usize {
        let table = self.exclusive.as_ref().map_or(0, |e| e.memory_bytes_max());
        table as usize + self.later.capacity() * size_of::<Job>()
    }

    /// Bytes that what waits to be hashed takes at most, besides its frames.
    pub(super) const fn later_bytes_max() -> usize {
        2 * LATER_MAX * size_of::<Job>()
    }

    /// Checks the table of guest pages; for tests.
    pub(super) fn check(&self) {
        if let Some(e) = &self.exclusive {
            e.residency().check();
        }
    }

    /// Frames behind contents that wait to be hashed.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Held> {
        self.later.iter().map(|j| &j.held)
    }

    /// Contents that wait to be hashed.
    pub(super) fn waits(&self) -> usize {
        self.later.len()
    }

    /// Whether there is a guest whose memory can be seen, and a table of its pages.
    #[inline]
    pub(super) fn is_seen(&self) -> bool {
        self.exclusive.is_some()
    }

    /// Whether the guest is known to hold a block.
    pub(super) fn is_at_guest(&self, block: u64) -> bool {
        self.exclusive.as_ref().is_some_and(|e| e.residency().is_at_guest(block))
    }

    /// Whether the hash of `block`'s content is needed: by the scanner, or because the guest holds the block.
    #[inline]
    pub(super) fn wants_hash(&self, block: u64) -> bool {
        self.scanned || self.exclusive.as_ref().is_some_and(|e| e.residency().page_of(block).is_some())
    }

    /// The hash of a content.
    pub(super) fn hash(&self, bytes: &[u8; FRAME_BYTES]) -> ContentHash {
        self.key.hash(bytes)
    }

    /// Notes the hash of what the disk holds of a block.
    pub(super) fn note_hash(&mut self, block: u64, hash: ContentHash) {
        if let Some(e) = &mut self.exclusive {
            e.residency_mut().learn(block, hash.get());
        }
    }

    /// A block was evicted: what the guest does not hold may lose its place to what it does.
    #[inline]
    pub(super) fn lapses(&mut self, index: &mut Index) {
        if let Some(e) = &mut self.exclusive {
            e.lapses(index);
        }
    }

    /// The index may keep another number of blocks.
    #[inline]
    pub(super) fn set_limit(&mut self, limit: u32) {
        if let Some(e) = &mut self.exclusive {
            e.set_limit(limit);
        }
    }

    /// Pages of the guest that is seen.
    pub(super) fn pages_seen(&self) -> Option<u32> {
        self.exclusive.as_ref().map(|e| e.residency().pages())
    }

    /// Whether the guest's memory is scanned for contents.
    pub(super) fn scanned(&self) -> bool {
        self.scanned
    }

    /// Whether there is something to do once the replies are out.
    #[inline]
    pub(crate) fn wants_spare(&self) -> bool {
        !self.later.is_empty()
    }

    /// Whether so much waits to be hashed that it should not wait for the end of a batch.
    #[inline]
    pub(super) fn presses(&self) -> bool {
        self.later.len() >= LATER_MAX / 2
    }

    /// Blocks of the disk's capacity that the table of guest pages takes instead.
    pub(super) fn overhead_blocks(&self) -> u32 {
        let bytes = self.exclusive.as_ref().map_or(0, |e| e.memory_bytes_max());
        bytes.div_ceil(B) as u32
    }
}

impl<P: FaultInjection> Disk<P> {
    /// The disk's guest has `pages` pages of memory from now on, none of them known; 0 if there is no guest whose
    /// memory can be seen. The table of them takes room from the disk's share; the caller trims the arena.
    pub(crate) fn set_guest(&mut self, pages: u32, arena: &mut Store) {
        self.side.exclusive = None;
        self.side.pages = pages;
        self.side.refused_bytes = 0;
        self.cancel(0, u64::MAX);
        self.residents.index_mut().set_tiers(self.side.scanned || self.settings.first_to_go());
        if self.side.mode != ExclusiveMode::Off && pages > 0 {
            let needed = Exclusive::bytes_for(pages, self.capacity.slots());
            if needed > self.guest_table_bytes_max() {
                self.side.refused_bytes = needed;
            } else {
                self.residents.index_mut().set_tiers(true);
                // room first, the table then
                self.account_overhead_with(needed.div_ceil(B) as u32, arena);
                self.resize_step(u32::MAX, arena);
                let key = self.settings.hash_key();
                self.side.exclusive = Some(Box::new(Exclusive::new(
                    pages,
                    self.side.mode,
                    self.residents.index().kind(),
                    self.capacity.slots(),
                    key,
                )));
            }
        }
        self.account_overhead(arena);
    }

    /// How the disk is kept exclusive of its guest from now on. What the guest holds is learned anew: it was not looked
    /// at, or by other rules.
    pub(crate) fn set_exclusive(&mut self, mode: ExclusiveMode, arena: &mut Store) {
        let mode = if self.settings.contents() { mode } else { ExclusiveMode::Off };
        if std::mem::replace(&mut self.side.mode, mode) != mode {
            self.settings.set_exclusive(mode);
            self.set_guest(self.side.pages, arena);
        }
    }

    fn guest_table_bytes_max(&self) -> u64 {
        self.own_blocks() * B / GUEST_TABLE_PART
    }

    /// Drops the table of guest pages if the disk's share has become too small for it.
    pub(super) fn check_guest_table(&mut self, arena: &mut Store) {
        if let Some(e) = &self.side.exclusive {
            let pages = e.residency().pages();
            if Exclusive::bytes_for(pages, self.capacity.slots()) > self.guest_table_bytes_max() {
                self.set_guest(pages, arena);
            }
        }
    }

    /// Pages of a guest that is there without its table, if the disk's share has grown enough for it. A quarter more
    /// than the table takes is asked for: a share that moves to and fro would otherwise empty it each time.
    pub(crate) fn guest_to_restore(&self) -> Option<u32> {
        if self.side.refused_bytes == 0 {
            return None;
        }
        let needed = Exclusive::bytes_for(self.side.pages, self.capacity.slots());
        (needed + needed / 4 <= self.guest_table_bytes_max()).then_some(self.side.pages)
    }

    /// Whether the memory of the disk's guest is scanned for contents: then the hash of everything cached is wanted,
    /// and what the guest is found to hold goes first, also where requests tell nothing about its memory.
    pub(crate) fn set_scanned(&mut self, scanned: bool) {
        self.side.scanned = scanned && self.settings.contents();
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
                && (self.residents.hash(slot) == Some(hash) || self.plant.has(Bug::CoolsAnything))
                && self.residents.index().has_tiers()
                && self.residents.index().tier(slot) == Tier::Hot
            {
                self.residents.index_mut().set_tier(slot, Tier::Cold);
                cooled += 1;
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
    pub(crate) fn exclusive_report(&self) -> ExclusiveReport {
        let side = &self.side;
        let state = match &side.exclusive {
            _ if side.mode == ExclusiveMode::Off => ExclusiveState::Off,
            None if side.refused_bytes > 0 => ExclusiveState::NoMemory {
                needed_bytes: side.refused_bytes,
                allowed_bytes: self.guest_table_bytes_max(),
            },
            None => ExclusiveState::NoGuest,
            Some(e) if e.is_inclusive() || !self.residents.index().has_tiers() => ExclusiveState::Inclusive,
            Some(e) => ExclusiveState::On { capture: e.ways().capture, delay: e.ways().delay },
        };
        ExclusiveReport {
            mode: side.mode,
            state,
            tiers: self.residents.index().tier_lens(),
            table_bytes: side.exclusive.as_ref().map_or(0, |e| e.memory_bytes_max()),
            stats: side.exclusive.as_ref().map(|e| e.stats()).unwrap_or_default(),
        }
    }

    // ---- requests ----

    /// The guest page of `block` in a request, if the request moves all of the block through one page.
    #[inline]
    pub(super) fn page_of<E: Effects>(&self, req: &Request, block: u64, cx: &mut Cx<'_, E>) -> Option<u32> {
        self.side.exclusive.as_ref()?;
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
        let Some(exclusive) = &mut side.exclusive else { return };
        let departure = exclusive.arrives(residents.index_mut(), page, block, class, tag.map(ContentHash::get), found);
        if let Some(left) = departure.block() {
            self.measuring.left(left);
        }
        if let Departure::Capture(what) = departure {
            self.copy_at_reuse(page, what, cx);
        }
    }

    fn copy_at_reuse<E: Effects>(&mut self, page: u32, what: Resident, cx: &mut Cx<'_, E>) {
        // Nothing that waits may be dealt with here: it could evict the very slot that is being served.
        if !self.later_room(cx.arena) {
            return self.exclusive_mut().missed();
        }
        let mut frame = cx.arena.take().expect("the ceiling covers what disks are guaranteed and the pool");
        if cx.fx.copy_guest_page(self.settings.id(), page, frame.bytes_mut()) {
            let held = cx.arena.share(frame);
            self.side.later.push_back(Job { block: Some(what.block), held, purpose: Purpose::Verify(what) });
            self.note_loan(cx.arena);
        } else {
            cx.arena.put(frame);
            self.exclusive_mut().captured(&what, false, false);
        }
    }

    fn exclusive_mut(&mut self) -> &mut Exclusive {
        self.side.exclusive.as_mut().expect("only called with a guest")
    }

    /// The content of `block`, which is what the disk holds, is to be hashed when there is time.
    pub(super) fn learn_later<E: Effects>(&mut self, block: u64, held: Held, cx: &mut Cx<'_, E>) {
        if self.settings.block_bytes(block) < B {
            cx.arena.release(held);
            return;
        }
        if !self.later_room(cx.arena) {
            let page = self.residents.cached(block);
            if page.is_none_or(|page| !page.is_same(&held)) {
                return self.learn(block, held, cx);
            }
            // It waits where it is: that holds up nobody who waits for this event.
            cx.arena.release(held);
            return self.learn_in_slot_later(block, cx.arena);
        }
        self.side.later.push_back(Job { block: Some(block), held, purpose: Purpose::Learn });
        self.note_loan(cx.arena);
    }

    /// Notes the hash of what the disk holds of `block`.
    fn learn<E: Effects>(&mut self, block: u64, held: Held, cx: &mut Cx<'_, E>) {
        let hash = self.side.key.hash(held.bytes());
        self.side.note_hash(block, hash);
        if let Some(slot) = self.residents.slot(block)
            && self.residents.page(slot).is_some_and(|f| f.is_same(&held))
        {
            self.residents.set_hash(slot, hash.get());
            self.stats.hashed_blocks += 1;
            self.share_content(slot, hash, cx.arena);
        }
        cx.arena.release(held);
    }

    // ---- changes ----

    /// Blocks `first..end` change, or have changed: nothing that is known of their content holds any more.
    pub(super) fn doubt(&mut self, first: u64, end: u64) {
        self.cancel(first, end);
        if let Some(e) = &mut self.side.exclusive
            && !self.plant.has(Bug::WriteKeepsResidency)
        {
            e.residency_mut().forget_range(first, end);
        }
    }

    /// The disk has a new content of `block`, or none that is known: what was noted of an older one while the change
    /// was under way goes. What its own writer noted stays.
    pub(super) fn changed(&mut self, block: u64, known: bool) {
        self.cancel(block, block + 1);
        if let Some(e) = &mut self.side.exclusive
            && !self.plant.has(Bug::WriteKeepsResidency)
            && !(known && e.residency().awaits_tag(block))
        {
            e.residency_mut().forget(block);
        }
    }

    fn cancel(&mut self, first: u64, end: u64) {
        if self.plant.has(Bug::WriteKeepsLater) {
            return;
        }
        for job in &mut self.side.later {
            if job.block.is_some_and(|b| (first..end).contains(&b)) {
                job.block = None;
            }
        }
    }

    /// Forgets what the guest holds and what waits to be hashed; the guest itself stays.
    pub(super) fn forget_guest(&mut self) {
        self.cancel(0, u64::MAX);
        if let Some(e) = &mut self.side.exclusive {
            e.reset();
        }
    }

    // ---- when the replies are out ----

    /// Hashes what waits, and copies pages whose eviction is near.
    pub(crate) fn spare<E: Effects>(&mut self, copies: bool, cx: &mut Cx<'_, E>) {
        while !self.side.later.is_empty() && cx.left > 0 {
            self.run_oldest(cx);
            cx.left = cx.left.saturating_sub(B);
        }
        self.note_loan(cx.arena);
        while self.sharing.wants_spare() && cx.left > 0 {
            self.learn_oldest(cx.arena);
            cx.left = cx.left.saturating_sub(B);
        }
        if let Some(e) = &mut self.side.exclusive {
            e.set_throttled(!copies);
        }
        for _ in 0..EARLY_COPIES_MAX {
            if cx.left == 0 {
                // What waits to be hashed goes first with the next one.
                break;
            }
            cx.left = cx.left.saturating_sub(B);
            let Self { side, residents, .. } = self;
            let Some(due) = side.exclusive.as_mut().and_then(|e| e.due(residents.index_mut())) else { break };
            let block = due.what.block;
            let mut frame =
                cx.arena.take().expect("nothing waits to be hashed, so what is guaranteed for that is free");
            let mut slot = None;
            let mut held = false;
            if self.may_keep(block) && cx.fx.copy_guest_page(self.settings.id(), due.page, frame.bytes_mut()) {
                let hash = self.side.key.hash(frame.bytes());
                held = self.is_content_of(due.page, hash);
                if held {
                    slot = self.keep_copy(block, Tier::Probation, frame, hash, cx);
                } else {
                    cx.arena.put(frame);
                }
            } else {
                cx.arena.put(frame);
            }
            let Self { side, residents, .. } = self;
            if let Some(e) = &mut side.exclusive {
                e.copied(residents.index_mut(), &due, held, slot);
            }
        }
    }

    fn is_content_of(&self, page: u32, hash: ContentHash) -> bool {
        let known = self.side.exclusive.as_ref().is_some_and(|e| e.residency().matches(page, hash.get()));
        known || self.plant.has(Bug::CaptureUnverified)
    }

    /// Whether content of `block` from elsewhere than the disk may become what is cached of it.
    fn may_keep(&self, block: u64) -> bool {
        let changing = self.changes.active_in(block, block + 1);
        !changing && !self.near.contains(block) && self.settings.block_bytes(block) == B
    }

    fn run_oldest<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        let Some(Job { block, held, purpose }) = self.side.later.pop_front() else { return };
        let Some(block) = block else {
            cx.arena.release(held);
            if let Purpose::Verify(what) = purpose
                && let Some(e) = &mut self.side.exclusive
            {
                e.captured(&what, false, false);
            }
            return;
        };
        match purpose {
            Purpose::Learn => self.learn(block, held, cx),
            Purpose::Verify(what) => {
                let hash = self.side.key.hash(held.bytes());
                let same = what.has_tag(hash.get()) || self.plant.has(Bug::CaptureUnverified);
                let zeroes = !same && is_zeroes(held.bytes());
                if let Some(e) = &mut self.side.exclusive {
                    e.captured(&what, same, zeroes);
                }
                // It may have become cached meanwhile.
                if same && self.may_keep(block) && self.residents.cached(block).is_none() {
                    self.keep_held(block, Tier::Hot, held, hash, cx);
                } else {
                    cx.arena.release(held);
                }
            }
        }
    }

    fn keep_copy<E: Effects>(
        &mut self,
        block: u64,
        tier: Tier,
        frame: Frame,
        hash: ContentHash,
        cx: &mut Cx<'_, E>,
    ) -> Option<u32> {
        let held = cx.arena.share(frame);
        self.keep_held(block, tier, held, hash, cx)
    }

    /// Caches verified content; returns its slot, if it got one.
    fn keep_held<E: Effects>(
        &mut self,
        block: u64,
        tier: Tier,
        held: Held,
        hash: ContentHash,
        cx: &mut Cx<'_, E>,
    ) -> Option<u32> {
        if !cx.fx.captured(self.settings.id(), block, held.bytes()) {
            cx.arena.release(held);
            return None;
        }
        let outcome = self.residents.index_mut().place(block, tier, |_| true);
        self.make_room(outcome, cx.arena);
        let slot = match outcome {
            Outcome::Fill { slot, .. } | Outcome::Hit(slot) => slot,
            Outcome::Bypass => {
                cx.arena.release(held);
                return None;
            }
        };
        let (domain, base) = self.domain_for_copy(block);
        if !self.put_in_slot(slot, held, domain, cx.arena) {
            self.drop_block(block, cx.arena);
            return None;
        }
        self.residents.set_hash(slot, hash.get());
        if let (Some(n), Some(held)) = (base, self.residents.page(slot)) {
            cx.arena.register_base(held, n);
        }
        self.share_content(slot, hash, cx.arena);
        Some(slot)
    }

    /// Frees what waits to be hashed: the disk goes.
    pub(super) fn release_later(&mut self, arena: &mut Store) {
        for job in self.side.later.drain(..) {
            arena.release(job.held);
        }
    }
}

const _: () = assert!(FRAME_BYTES as u64 == B);
