//! Blocks that are looked up, verified, held, let go and offered.
//!
//! Owns these calls. Never does I/O. Invariant: what is found has an entry in the index now, and no change of it is
//! under way.

use super::super::index::At;
use super::super::sums::{Content, Of};
use super::links::Link;
use super::*;
use crate::fault_injection::Bug;
use undercroft_host::Frame;

impl<F: FaultInjection> Region<F> {
    /// Where a block is.
    #[inline]
    pub(in super::super) fn lookup(&mut self, number: u16, block: u64) -> Option<SsdFound<'_>> {
        self.admitting.asked(number, block);
        let found = if self.is_stalled { None } else { self.find_whole(number, block) };
        let is_parked = found.is_none() && !self.is_stalled && self.parked.bytes(number, block).is_some();
        let owner = self.owner_mut(number);
        if found.is_some() || is_parked {
            owner.stats.hits += 1;
        } else {
            owner.stats.misses += 1;
        }
        if is_parked {
            return self.parked.bytes(number, block).map(SsdFound::Staged);
        }
        let (at, slot) = found?;
        self.index.give_chance(at);
        let segment = self.segments.number_of(slot);
        let it = *self.segments.get(segment);
        let position = slot - self.layout.slot(segment, 0);
        if it.state == Segment::Open
            && let Some(waiting) = self.waiting(segment, position)
        {
            // One that is being written is in the frames of that operation.
            return waiting.map(SsdFound::Staged);
        }
        let token = Token { sequence: it.sequence, slot };
        Some(SsdFound::Stored { device: self.device, offset: self.layout.offset(slot), token })
    }

    /// Whether a block is there.
    #[inline]
    pub(in super::super) fn has(&self, number: u16, block: u64) -> bool {
        !self.is_stalled && (self.find_whole(number, block).is_some() || self.parked.bytes(number, block).is_some())
    }

    /// The entry of a block, if nothing keeps it from being served.
    #[inline]
    pub(super) fn find_whole(&self, number: u16, block: u64) -> Option<(At, u32)> {
        if self.service.is_some() || block >= BLOCKS_MAX {
            return None;
        }
        let owner = self.owner(number);
        if owner.dropping.iter().any(|r| r.contains(&block)) {
            return None;
        }
        self.index.find(&self.segments, number, block).map(|(at, entry)| (at, entry.slot))
    }

    /// Whether bytes that were read are the block's.
    pub(in super::super) fn verify(&mut self, number: u16, block: u64, token: Token, bytes: &[u8; 4096]) -> Verified {
        let owner = self.owner(number);
        let found = match self.service {
            None if block < BLOCKS_MAX => self.index.find(&self.segments, number, block),
            _ => None,
        };
        let is_there = |slot| {
            let segment = self.segments.get(self.segments.number_of(slot));
            slot == token.slot && segment.sequence == token.sequence
        };
        let Some((at, entry)) = found.filter(|_| owner.dropping.iter().all(|r| !r.contains(&block))) else {
            // The bytes were read from where the block was.
            return if self.faults.has(Bug::SsdReadOutlivesChange) { Verified::Good } else { Verified::Gone };
        };
        if !is_there(entry.slot) && !self.faults.has(Bug::SsdRecycledNotSeen) {
            return Verified::Gone;
        }
        let segment = self.segments.get(self.segments.number_of(entry.slot));
        let of = Of { tag: owner.tag, generation: segment.generation, sequence: segment.sequence, block };
        if entry.is_sum(self.sums.block(of, bytes)) || self.faults.has(Bug::SsdUnverified) {
            return Verified::Good;
        }
        self.index.remove(at);
        self.removed(number, &entry, true);
        self.mismatch(number);
        Verified::Corrupt
    }

    /// A read of a block from a place that `lookup` gave has failed.
    pub(in super::super) fn read_failed(&mut self, number: u16, block: u64, token: Token) {
        let found = self.index.find(&self.segments, number, block.min(BLOCKS_MAX - 1));
        if let Some((at, entry)) = found.filter(|(_, e)| e.slot == token.slot)
            && self.service.is_none()
        {
            self.index.remove(at);
            self.removed(number, &entry, true);
            self.mismatch(number);
        }
    }

    /// The block is in RAM too, or a guest holds it: it is the first to go.
    pub(in super::super) fn hold(&mut self, number: u16, block: u64) {
        if let Some((at, _)) = self.find_whole(number, block) {
            self.index.set_held(at, true);
        }
        // It is offered again when it is needed.
        self.unpark(number, &(block..block + 1));
    }

    /// The block is not held any more, and was used again meanwhile or not. Whether it is still there.
    pub(in super::super) fn let_go(&mut self, number: u16, block: u64, reused: bool) -> bool {
        let Some((at, _)) = self.find_whole(number, block) else { return false };
        self.admitting.returns(number, block, reused);
        if !self.faults.has(Bug::SsdHeldNotCleared) {
            self.index.set_held(at, false);
        }
        true
    }

    /// Offers a block with the bytes that the disk holds.
    pub(in super::super) fn offer(
        &mut self,
        number: u16,
        block: u64,
        bytes: &[u8; 4096],
        hint: Hint,
        now: u64,
    ) -> Offered {
        self.advance(now);
        match self.try_offer(number, block, bytes, hint) {
            Ok(offered) => {
                self.owner_mut(number).stats.admitted += u64::from(offered == Offered::Admitted);
                offered
            }
            Err(why) => {
                let place = Refusal::ALL.iter().position(|r| *r == why).unwrap_or_default();
                self.owner_mut(number).stats.refused[place] += 1;
                Offered::Refused(why)
            }
        }
    }

    fn try_offer(&mut self, number: u16, block: u64, bytes: &[u8; 4096], hint: Hint) -> Result<Offered, Refusal> {
        if self.service.is_some() || self.is_stalled || self.stop.is_some() {
            return Err(Refusal::OutOfService);
        }
        let owner = self.owner(number);
        let within = |ranges: &[Range<u64>]| ranges.iter().any(|r| r.contains(&block));
        let is_changing = within(&owner.changing) && !self.faults.has(Bug::SsdChangingAdmitted);
        if block >= owner.blocks.min(BLOCKS_MAX) || is_changing || within(&owner.dropping) {
            return Err(Refusal::Range);
        }
        let has_share = owner.share > 0;
        if hint.guest_holds {
            return Err(Refusal::GuestHolds);
        }
        if let Some((at, _)) = self.find_whole(number, block) {
            self.index.set_held(at, false);
            self.admitting.returns(number, block, hint.reused);
            return Ok(Offered::Present);
        }
        if self.parked.bytes(number, block).is_some() {
            return Ok(Offered::Present);
        }
        if !has_share {
            return Err(Refusal::NoShare);
        }
        let has_room = self.segments.free() > self.wanted_free();
        let verdict = self.admitting.judge(number, block, hint.reused, has_room);
        let is_exempt = hint.pinned && self.admitting.admits_pinned();
        if let Some(class) = verdict.class.filter(|_| !is_exempt) {
            let counts = &mut self.owner_mut(number).stats.classes[class as usize];
            *(if verdict.admits { &mut counts.admitted } else { &mut counts.refused }) += 1;
        }
        if !(verdict.admits || is_exempt) {
            return Err(Refusal::Rule);
        }
        // Not made for who compares nothing: many are refused below.
        let content = (self.owner(number).domain != 0).then(|| self.sums.content(bytes));
        if let Some(content) = content {
            let is_taken = match self.link(number, block, content) {
                Link::Made => true,
                Link::Awaited => self.park(number, block, bytes, content),
                Link::No => false,
            };
            if is_taken {
                return Ok(Offered::Admitted);
            }
            self.unlike(number);
        }
        if !self.admitting.may_write() {
            return Err(Refusal::Budget);
        }
        self.put(number, block, bytes, content, false)?;
        Ok(Offered::Admitted)
    }

    /// Puts a block into its owner's open segment; `content` is that of the bytes, where it is known already. For
    /// cleaning, the last free segment may be taken.
    pub(super) fn put(
        &mut self,
        number: u16,
        block: u64,
        bytes: &[u8; 4096],
        content: Option<Content>,
        is_cleaning: bool,
    ) -> Result<(), Refusal> {
        if self.staged >= SSD_STAGED_MAX / 4 * 3 {
            self.write_oldest_early();
        }
        if self.staged >= SSD_STAGED_MAX {
            return Err(Refusal::Staging);
        }
        let segment = self.open_segment(number, is_cleaning).ok_or(Refusal::NoRoom)?;
        let mut frame = self.arena.take().ok_or(Refusal::Staging)?;
        frame.bytes_mut().copy_from_slice(bytes);
        self.staged += 1;
        let content = content.unwrap_or_else(|| self.sums.content(bytes));
        self.put_frame(segment, block, content, frame, is_cleaning);
        Ok(())
    }

    /// Puts a block that is in a frame of its own, a staged one, into an open segment.
    pub(super) fn put_frame(&mut self, segment: u32, block: u64, content: Content, frame: Frame, is_cleaning: bool) {
        let number = self.segments.get(segment).owner;
        let of = self.segments.get(segment);
        let tag = self.owner(number).tag;
        let of = Of { tag, generation: of.generation, sequence: of.sequence, block };
        let sum = self.sums.of(of, content);
        let position = self.stage(segment, block, sum, frame);
        let slot = self.layout.slot(segment, position);
        self.forget_link(number, block);
        let gone = self.index.insert(&self.segments, number, block, slot, sum);
        let owner = self.owner_mut(number);
        owner.entries += 1;
        if owner.domain != 0 {
            self.samples.written(content.number(), slot);
        }
        if let Some(gone) = gone {
            self.pushed_out(gone);
        }
        self.admitting.spend(4096);
        *(if is_cleaning { &mut self.written.cleaning } else { &mut self.written.admitted }) += 4096;
    }
}
