//! Where the disk's blocks begin. With file systems of 1 KiB blocks, and in partitions that begin anywhere, the pages
//! of a guest are not blocks of 4 KiB counted from the first byte of the disk: each is the end of one and the beginning
//! of the next, so none is ever known to hold a block. Then blocks are counted from where the guest's pages begin.
//!
//! Owns the evidence for that, the change, and the way from the bytes that a disk's blocks are counted in to those of
//! its back end: the former have a lead of up to 4095 bytes, which nobody reads and nobody writes. Never guesses from
//! contents: requests show where pages begin. Invariants: the lead changes only while nothing of the disk is under way
//! and nothing is cached of it, at the beginning of an event; no operation reaches into the lead, and what is cached of
//! it are zeroes.

use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::{Effects, IoKind, Op, Request};
use undercroft_engine::ExclusiveMode;
use undercroft_host::IoBuf;

/// Pages that lie across blocks, all in the same way, before blocks are counted otherwise; twice as many after each
/// such change, and never fewer than there are blocks cached, which are lost by it.
const PAGES_MIN: u64 = 256;
const CHANGES_MAX: u32 = 12;
/// So much of all pages moved must lie in that way: 3 of 4.
const OF_ALL: (u64, u64) = (3, 4);
/// Unit of offsets of requests, in bytes.
const SECTOR: u64 = 512;

/// How pages of the guest have been seen to lie across blocks.
#[derive(Debug, Default)]
pub(super) struct Offset {
    /// Bytes by which they begin behind the beginning of a block, most often; pages that do, and that begin elsewhere.
    behind: u64,
    seen: u64,
    others: u64,
    /// Transfers of whole blocks when counting began.
    since: u32,
    changes: u32,
}

impl<P: FaultInjection> Disk<P> {
    /// The byte of the disk that a block begins with; the first block begins with byte 0.
    #[inline]
    pub(crate) fn place_of(&self, block: u64) -> u64 {
        (block * B).saturating_sub(self.settings.lead())
    }

    /// The block that has a byte of the disk.
    #[inline]
    pub(crate) fn block_at(&self, offset: u64) -> u64 {
        offset.saturating_add(self.settings.lead()) / B
    }

    /// Where blocks begin, in bytes after each multiple of 4096.
    pub(super) fn block_offset(&self) -> u32 {
        ((B - self.settings.lead()) % B) as u32
    }

    /// Whether the first block does not begin with the image's first byte.
    pub(crate) fn is_displaced(&self) -> bool {
        self.settings.lead() != 0
    }

    /// Whether blocks are to be counted otherwise once nothing is under way.
    #[inline]
    pub(crate) fn shifts(&self) -> bool {
        self.settings.shifts()
    }

    /// A request for at least a block does not begin with one: if it begins with a page of the guest, that counts.
    #[cold]
    pub(super) fn note_offset<E: Effects>(&mut self, req: &Request, cx: &mut Cx<'_, E>) {
        let Some(transfers) = self.side.transfers() else { return };
        let (behind, align) = (req.offset % B, self.settings.align().max(SECTOR));
        let moves = matches!(req.op, Op::Read | Op::Write { .. });
        if !moves || !behind.is_multiple_of(align) || cx.fx.guest_page(req.id, 0).is_none() || self.has_base() {
            return;
        }
        let (pages, o) = (req.len / B, &mut self.offset);
        if o.behind == behind {
            o.seen += pages;
        } else {
            o.others += pages;
            if o.others > o.seen {
                (o.behind, o.seen, o.others) = (behind, pages, o.others - pages + o.seen);
            }
        }
        let enough = (PAGES_MIN << o.changes).max(u64::from(self.residents.index().len()));
        if o.seen < enough {
            return;
        }
        let all = o.seen + o.others + u64::from(transfers.wrapping_sub(o.since));
        if o.seen * OF_ALL.1 >= all * OF_ALL.0 {
            self.settings.set_shifts(true);
        } else {
            (o.seen, o.others, o.since) = (0, 0, transfers);
        }
    }

    /// Counts blocks from where the guest's pages begin, if nothing is under way. What is cached goes.
    #[cold]
    pub(crate) fn shift(&mut self, arena: &mut Store) {
        if !self.is_idle() && !self.faults.has(Bug::OffsetWhileBusy) {
            return;
        }
        let lead = (self.settings.lead() + B - self.offset.behind) % B;
        if self.has_base() {
            self.settings.set_shifts(false);
        } else {
            if !self.faults.has(Bug::OffsetKeepsCache) {
                self.invalidate(arena);
            }
            self.set_lead(lead, arena);
        }
        let changes = (self.offset.changes + 1).min(CHANGES_MAX);
        self.offset = Offset { changes, since: self.side.transfers().unwrap_or(0), ..Offset::default() };
    }

    fn set_lead(&mut self, lead: u64, arena: &mut Store) {
        self.settings.set_lead(lead);
        // Both know blocks by their numbers, which are other blocks' now.
        self.locking.forget_misses(self.settings.hash_key());
        self.residents.forget_chosen();
        self.apply_locking();
        if let Some(tier) = arena.tier_mut() {
            tier.set_displaced(self.settings.id(), lead != 0);
        }
    }

    /// Counts blocks as another process did, before anything is cached of the disk. Whether that can be.
    pub(super) fn count_from(&mut self, lead: u64, arena: &mut Store) -> bool {
        if lead == self.settings.lead() {
            return true;
        }
        // One that does not follow its guest's pages would never count otherwise again.
        let follows = self.exclusive_mode() != ExclusiveMode::Off;
        let nothing_ahead = self.near.iter_ahead().next().is_none();
        let is_new = follows && self.is_idle() && self.own_count() == 0 && nothing_ahead && !self.has_base();
        let fits = lead < B && lead.is_multiple_of(self.settings.align().max(SECTOR));
        if is_new && fits {
            self.set_lead(lead, arena);
        }
        is_new && fits
    }

    /// Where on the disk an operation is. One that would read the lead reads what comes after it.
    #[inline]
    pub(super) fn onto_disk(&self, kind: IoKind, offset: u64, len: u64, mut buf: IoBuf) -> (u64, u64, IoBuf) {
        let lead = self.settings.lead();
        if lead == 0 || kind == IoKind::Flush {
            return (offset, len, buf);
        }
        let Some(cut) = lead.checked_sub(offset).filter(|&cut| cut > 0) else { return (offset - lead, len, buf) };
        assert!(kind == IoKind::Read && offset == 0, "an operation reaches before the disk");
        if let Some(frame) = buf.frames.first_mut() {
            frame.bytes_mut()[..lead as usize].fill(0);
        }
        (buf.head, buf.len) = (buf.head + cut as u32, buf.len - cut as u32);
        (0, len - cut, buf)
    }
}
