//! Copies of guest pages: at their reuse, and before their eviction; and what becomes of contents that wait to be
//! hashed.
//!
//! Owns no state beside the disk's. Never hashes memory that the guest can write. Invariants: a copied page is kept
//! only if its hash is the tag, and only as a block of the disk that the table had it for; a copy that waits for
//! another disk counts for the disk that made it until that one has taken it.

use super::{Job, Purpose};
use crate::content::{ContentHash, is_zeroes};
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::EARLY_COPIES_MAX;
use crate::store::guests::Left;
use crate::store::ram::Store;
use crate::types::Effects;
use undercroft_engine::residency::{Class, Resident};
use undercroft_engine::{Copied, Departure, Due, Outcome, Rescue, Tier};
use undercroft_host::{FRAME_BYTES, Frame, Held};

impl<P: FaultInjection> Disk<P> {
    // ---- at reuse ----

    pub(in crate::disk) fn copy_at_reuse<E: Effects>(&mut self, page: u32, what: Resident, cx: &mut Cx<'_, E>) {
        // Nothing that waits may be dealt with here: it could evict the very slot that is being served.
        if !self.later_room(cx.arena) {
            if let Some(e) = &mut self.side.exclusive {
                e.missed();
            }
            return;
        }
        let mut frame = cx.arena.take().expect("the ceiling covers what disks are guaranteed and the pool");
        if cx.fx.copy_guest_page(self.settings.id(), page, frame.bytes_mut()) {
            let held = cx.arena.share(frame);
            self.side.later.push_back(Job { block: Some(what.block), held, purpose: Purpose::Verify(what) });
            self.note_loan(cx.arena);
        } else {
            cx.arena.put(frame);
            self.captured(&what, Copied::Nothing, cx.arena);
        }
    }

    /// What came of a copy at reuse.
    fn captured(&mut self, what: &Resident, copied: Copied, arena: &mut Store) {
        if self.counts(copied)
            && let Some((e, table)) = self.side.both(arena)
        {
            e.captured(table, what, copied);
        }
    }

    /// Whether the engine is told what came of a copy.
    fn counts(&self, copied: Copied) -> bool {
        copied == Copied::Held || !self.faults.has(Bug::FailedCopiesForgotten)
    }

    /// The content of `block`, which is what the disk holds, is to be hashed when there is time.
    pub(in crate::disk) fn learn_later<E: Effects>(&mut self, block: u64, held: Held, cx: &mut Cx<'_, E>) {
        if !self.settings.is_whole(block) {
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
        self.side.note_hash(block, hash, cx.arena);
        if let Some(slot) = self.residents.slot(block)
            && self.residents.page(slot).is_some_and(|f| f.is_same(&held))
        {
            self.residents.set_hash(slot, hash.get());
            self.stats.hashed_blocks += 1;
            self.deduplicate(slot, hash, cx.arena);
        }
        cx.arena.release(held);
    }

    // ---- blocks of the guest's other disks ----

    /// A page that is about to be written to for this disk held a block of another one, which is told when the event is
    /// over. What the page holds is copied now, if that one may want it.
    #[cold]
    pub(in crate::disk) fn other_left<E: Effects>(
        &mut self,
        page: u32,
        what: Resident,
        class: Class,
        cx: &mut Cx<'_, E>,
    ) {
        if !cx.arena.guests.has_room() {
            return;
        }
        let (guest, by) = (self.side.guest, self.settings.id());
        let wanted = arena_wants(cx.arena, guest, &what) && class != Class::Write;
        let mut copy = None;
        if wanted && self.later_room(cx.arena) {
            let mut frame = cx.arena.take().expect("the ceiling covers what disks are guaranteed and the pool");
            if cx.fx.copy_guest_page(by, page, frame.bytes_mut()) {
                copy = Some(cx.arena.share(frame));
                self.side.aside += 1;
                self.note_loan(cx.arena);
            } else {
                cx.arena.put(frame);
            }
        }
        cx.arena.guests.note(Left { guest, by, what, copy });
    }

    /// A block of this disk has left its guest through a request to another disk, and this is a copy of what its page
    /// held, if one was made.
    pub(crate) fn left(&mut self, what: Resident, copy: Option<Held>, arena: &mut Store) {
        let room = self.later_room(arena);
        let Self { side, residents, .. } = self;
        let departure = match side.both(arena) {
            Some((e, table)) => e.departs(table, residents.index_mut(), what, copy.is_some() && room),
            None => Departure::None,
        };
        if let Some(block) = departure.block() {
            self.measuring.left(block);
        }
        match (departure, copy) {
            (Departure::Capture(what), Some(held)) => {
                self.side.later.push_back(Job { block: Some(what.block), held, purpose: Purpose::Verify(what) });
                self.note_loan(arena);
            }
            (_, Some(held)) => arena.release(held),
            (_, None) => {}
        }
    }

    /// A copy that was made for another disk counts for this one no more.
    pub(crate) fn handed_over(&mut self, arena: &mut Store) {
        self.side.aside -= 1;
        self.note_loan(arena);
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
        self.copy_at_restart(cx);
        self.copy_early(copies, cx);
    }

    /// Copies what the guest still holds from the time before it began afresh. That does not wait for what copies may
    /// take of the processor: the memory will be overwritten soon.
    fn copy_at_restart<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        while cx.left > 0 && self.side.later.is_empty() && self.side.is_restarting() {
            cx.left = cx.left.saturating_sub(B);
            let Self { side, residents, .. } = self;
            let Some((e, table)) = side.both(cx.arena) else { return };
            let Rescue::Copy(due) = e.rescue(table, residents.index_mut()) else { continue };
            let held = self.copy_page(&due, Tier::Hot, cx) == Copied::Held;
            if let Some((e, table)) = self.side.both(cx.arena) {
                e.rescued(table, &due, held);
            }
        }
    }

    /// Copies a page, and keeps what it holds if that is the block's content; what it turned out to be.
    fn copy_page<E: Effects>(&mut self, due: &Due, tier: Tier, cx: &mut Cx<'_, E>) -> Copied {
        let block = due.what.block;
        let mut frame = cx.arena.take().expect("nothing waits to be hashed, so what is guaranteed for that is free");
        if self.may_keep(block) && cx.fx.copy_guest_page(self.settings.id(), due.page, frame.bytes_mut()) {
            let hash = self.side.key.hash(frame.bytes());
            let copied = copied_of(self.is_content_of(due.page, hash, cx.arena), frame.bytes());
            match copied {
                Copied::Held => _ = self.keep_copy(block, tier, frame, hash, cx),
                _ => cx.arena.put(frame),
            }
            return copied;
        }
        cx.arena.put(frame);
        Copied::Nothing
    }

    /// Copies pages of the guest that hold blocks of this disk and whose eviction is near, if copies are allowed; and
    /// goes on with what is to be forgotten of the guest's table.
    pub(crate) fn copy_early<E: Effects>(&mut self, copies: bool, cx: &mut Cx<'_, E>) {
        self.side.copies_wait = false;
        let Some((_, table)) = self.side.both(cx.arena) else { return };
        table.set_throttled(!copies);
        table.sweep();
        for _ in 0..EARLY_COPIES_MAX {
            if cx.left == 0 || !self.side.later.is_empty() {
                // What waits to be hashed goes first with the next one. Behind long reads, hashing alone takes all the
                // time of several events: pages that are due would be evicted, had they to wait for other requests.
                self.side.copies_wait = copies;
                break;
            }
            cx.left = cx.left.saturating_sub(B);
            let Self { side, residents, .. } = self;
            let due = side.both(cx.arena).and_then(|(e, table)| e.due(table, residents.index_mut()));
            let Some(due) = due else { break };
            let copied = self.copy_page(&due, Tier::Probation, cx);
            let counts = self.counts(copied);
            let Self { side, residents, .. } = self;
            if counts && let Some((e, table)) = side.both(cx.arena) {
                e.copied(table, residents.index_mut(), &due, copied);
            }
        }
    }

    fn is_content_of(&self, page: u32, hash: ContentHash, arena: &Store) -> bool {
        let known = self.side.member(arena).is_some_and(|(_, table)| table.residency().matches(page, hash.get()));
        known || self.faults.has(Bug::CaptureUnverified)
    }

    /// Whether content of `block` from elsewhere than the disk may become what is cached of it.
    fn may_keep(&self, block: u64) -> bool {
        let changing = self.changes.active_in(block, block + 1);
        !changing && !self.near.contains(block) && self.settings.is_whole(block)
    }

    fn run_oldest<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        let Some(Job { block, held, purpose }) = self.side.later.pop_front() else { return };
        let Some(block) = block else {
            cx.arena.release(held);
            if let Purpose::Verify(what) = purpose {
                self.captured(&what, Copied::Nothing, cx.arena);
            }
            return;
        };
        match purpose {
            Purpose::Learn => self.learn(block, held, cx),
            Purpose::Verify(what) => {
                let hash = self.side.key.hash(held.bytes());
                let same = what.has_tag(hash.get()) || self.faults.has(Bug::CaptureUnverified);
                self.captured(&what, copied_of(same, held.bytes()), cx.arena);
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
        if !cx.fx.captured(self.settings.id(), self.place_of(block), held.bytes()) {
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
        self.deduplicate(slot, hash, cx.arena);
        Some(slot)
    }

    /// Frees what waits to be hashed: the disk goes.
    pub(in crate::disk) fn release_later(&mut self, arena: &mut Store) {
        for job in self.side.later.drain(..) {
            arena.release(job.held);
        }
    }
}

/// What a copy of a page turned out to be; `held`: what it was thought to hold.
fn copied_of(held: bool, bytes: &[u8; FRAME_BYTES]) -> Copied {
    match held {
        true => Copied::Held,
        false if is_zeroes(bytes) => Copied::Zeroes,
        false => Copied::Other,
    }
}

/// Whether what the page of a block held that has left its guest is to be copied.
fn arena_wants(arena: &Store, guest: u16, what: &Resident) -> bool {
    arena.guests.table(guest).is_some_and(|table| table.wants_copy(what))
}

const _: () = assert!(FRAME_BYTES as u64 == B);
