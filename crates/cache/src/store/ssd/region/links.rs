//! Equal bytes that were written before: a block that is offered becomes a link to where they are.
//!
//! Owns which segment the blocks of an owner are compared with: one that a sample of contents, or the segment before,
//! led to. Never compares across sharing domains, never writes links down: after a restart they are found again.
//! Invariants: a link is made to a slot of a segment that was not given up, whose sum says that its bytes are those of
//! the block; a segment that has links is not used again before they are taken out. A link's own sum says the same of
//! the block once more whenever it is read.
//!
//! Source: as for [`samples`](super::super::samples).

use super::super::format::NO_BLOCK;
use super::super::index::OwnerOf;
use super::super::sums::{Content, Of};
use super::io::Job;
use super::*;
use crate::fault_injection::Bug;
use crate::limits::{SSD_LINK_SEGMENTS, SSD_SWEPT_BUCKETS};

/// A block is compared with so many of the segment, before and from where the one after the last match is: owners offer
/// equal blocks in much the same order.
const BEFORE: usize = 8;
const AHEAD: usize = 24;
/// After so many blocks without a match the segment is not compared with any more.
const MISSES_MAX: u32 = 64;
/// While fewer segments are free, one that waits for its links to be taken out is not left waiting.
const FREE_ENOUGH: usize = 2;

/// A segment that blocks of an owner are compared with.
struct Donor {
    /// Whose blocks.
    number: u16,
    segment: u32,
    sequence: u64,
    /// What was written there, in order, with sums.
    entries: Vec<(u64, u32)>,
    /// The place after the last match.
    next: usize,
    misses: u32,
}

/// A segment whose summary is to be read for that.
struct Wanted {
    number: u16,
    segment: u32,
    sequence: u64,
    /// The slot that should have these bytes, or it is not the one that was looked for.
    proof: Option<(u32, Content)>,
    is_reading: bool,
}

/// Links of segments that were given up are taken out of the index, a part of it at a time.
struct Sweep {
    segments: Vec<u32>,
    /// The first bucket that was not looked at.
    next: usize,
}

/// See the head of the file.
#[derive(Default)]
pub(super) struct Links {
    donors: Vec<Donor>,
    wanted: Option<Wanted>,
    sweep: Option<Sweep>,
}

impl Links {
    /// What segments to compare with take of memory at most.
    pub fn bytes_max(layout: &Layout) -> u64 {
        (SSD_LINK_SEGMENTS + 1) as u64 * u64::from(layout.data_blocks()) * size_of::<(u64, u32)>() as u64
    }

    /// Nothing is compared any more.
    pub fn forget(&mut self) {
        (self.donors, self.wanted) = (Vec::new(), None);
    }
}

impl<F: FaultInjection> Region<F> {
    /// Blocks of owners of one domain that are equal are kept once; 0 is no domain.
    pub(in super::super) fn set_domain(&mut self, number: u16, domain: u16) {
        self.owner_mut(number).domain = domain;
    }

    /// Whether a segment is one that blocks of a domain may be linked to.
    fn is_donor(&self, segment: u32, sequence: u64, domain: u16) -> bool {
        let it = self.segments.get(segment);
        let is_filled = matches!(it.state, Segment::Open | Segment::Sealed);
        let owner = || self.owners.get(usize::from(it.owner)).and_then(Option::as_ref);
        let is_within = |o: &Owner| o.domain == domain || self.faults.has(Bug::SsdLinkAcross);
        is_filled && it.sequence == sequence && owner().is_some_and(is_within)
    }

    /// Whether the slot in a segment, written with this entry, has these bytes.
    fn has_content(&self, segment: u32, (block, sum): (u64, u32), content: Content) -> bool {
        let it = self.segments.get(segment);
        let tag = self.owner(it.owner).tag;
        let of = Of { tag, generation: it.generation, sequence: it.sequence, block };
        block != NO_BLOCK && self.sums.of(of, content) == sum
    }

    /// Makes a block a link to where the same bytes are, if that is known. It has no entry.
    pub(super) fn link(&mut self, number: u16, block: u64, content: Content) -> bool {
        let domain = self.owner(number).domain;
        let Some(n) = self.links.donors.iter().position(|d| d.number == number) else { return false };
        let (segment, sequence) = (self.links.donors[n].segment, self.links.donors[n].sequence);
        if domain == 0 || !self.is_donor(segment, sequence, domain) {
            self.links.donors.remove(n);
            return false;
        }
        self.see_more(n);
        let donor = &self.links.donors[n];
        let (next, len) = (donor.next, donor.entries.len());
        let near = (next..(next + AHEAD).min(len)).chain((next.saturating_sub(BEFORE)..next.min(len)).rev());
        let is_it = |at: &usize| {
            self.has_content(segment, donor.entries[*at], content) || self.faults.has(Bug::SsdLinkUnproven)
        };
        let found = near.into_iter().find(is_it);
        let donor = &mut self.links.donors[n];
        let Some(at) = found else {
            donor.misses += 1;
            if donor.misses > MISSES_MAX {
                self.links.donors.remove(n);
            }
            return false;
        };
        (donor.next, donor.misses) = (at + 1, 0);
        if at + 1 == len {
            self.want_next(number, segment);
        }
        let slot = self.layout.slot(segment, at as u32);
        self.segments.get_mut(segment).is_linked = true;
        let (tag, generation) = (self.owner(number).tag, self.segments.get(segment).generation);
        let of = Of { tag, generation, sequence, block };
        let sum = self.sums.of(of, content);
        self.forget_link(number, block);
        let gone = self.index.insert_link(&self.segments, number, block, slot, sum);
        let owner = self.owner_mut(number);
        owner.entries += 1;
        owner.stats.linked += 1;
        gone.into_iter().for_each(|gone| self.pushed_out(gone));
        true
    }

    /// What was added to an open segment since it was looked at.
    fn see_more(&mut self, n: usize) {
        let donor = &mut self.links.donors[n];
        if donor.next + AHEAD > donor.entries.len()
            && let Some(entries) = self.open.iter().find(|o| o.segment() == donor.segment).map(Open::entries)
        {
            donor.entries.extend_from_slice(&entries[donor.entries.len()..]);
        }
    }

    /// A block with these bytes was not linked: where the sample says that they are, there may be those of the next.
    pub(super) fn look_for_donor(&mut self, number: u16, content: Content) {
        let domain = self.owner(number).domain;
        let Some(slot) = self.samples.find(content.number()).filter(|_| domain != 0) else { return };
        let segment = self.segments.number_of(slot);
        let sequence = self.segments.get(segment).sequence;
        let is_known =
            self.links.donors.iter().any(|d| (d.number, d.segment, d.sequence) == (number, segment, sequence));
        if !is_known && self.is_donor(segment, sequence, domain) {
            self.want(Wanted { number, segment, sequence, proof: Some((slot, content)), is_reading: false });
        }
    }

    /// The last block of a segment was matched: the next ones may be in the one that its owner began after it.
    fn want_next(&mut self, number: u16, segment: u32) {
        let Some(after) = self.segments.after(segment) else { return };
        let sequence = self.segments.get(after).sequence;
        if self.is_donor(after, sequence, self.owner(number).domain) {
            self.want(Wanted { number, segment: after, sequence, proof: None, is_reading: false });
        }
    }

    fn want(&mut self, wanted: Wanted) {
        if let Some(entries) = self.open.iter().find(|o| o.segment() == wanted.segment).map(|o| o.entries().to_vec()) {
            self.compare_with(wanted, entries);
        } else if self.links.wanted.is_none() {
            self.links.wanted = Some(wanted);
        }
    }

    /// The read of a summary that is wanted.
    pub(super) fn next_link(&mut self) -> Option<SsdIo> {
        let wanted = self.links.wanted.as_ref().filter(|w| !w.is_reading)?;
        let (segment, sequence) = (wanted.segment, wanted.sequence);
        let domain = self.owners[usize::from(wanted.number)].as_ref().map_or(0, |o| o.domain);
        let is_sealed = self.segments.get(segment).state == Segment::Sealed;
        if domain == 0 || !is_sealed || !self.is_donor(segment, sequence, domain) || self.stop.is_some() {
            self.links.wanted = None;
            return None;
        }
        let io = self.read_summary(Job::LinkSummary(segment), segment)?;
        self.links.wanted.as_mut()?.is_reading = true;
        Some(io)
    }

    /// It was read.
    pub(super) fn link_summary_read(&mut self, segment: u32, bytes: Option<&[u8]>) {
        let Some(wanted) = self.links.wanted.take_if(|w| w.is_reading && w.segment == segment) else { return };
        let domain = self.owners[usize::from(wanted.number)].as_ref().map_or(0, |o| o.domain);
        if domain == 0 || !self.is_donor(segment, wanted.sequence, domain) {
            return;
        }
        if let Some(summary) = self.parse_summary(segment, bytes) {
            self.compare_with(wanted, summary.entries);
        }
    }

    fn compare_with(&mut self, wanted: Wanted, entries: Vec<(u64, u32)>) {
        let Wanted { number, segment, sequence, proof, .. } = wanted;
        let mut next = 0;
        if let Some((slot, content)) = proof {
            let at = slot.checked_sub(self.layout.slot(segment, 0)).map_or(usize::MAX, |at| at as usize);
            let is_it = |entry: &(u64, u32)| self.has_content(segment, *entry, content);
            if !entries.get(at).is_some_and(is_it) {
                return;
            }
            next = at + 1;
        }
        let donors = &mut self.links.donors;
        donors.retain(|d| d.number != number);
        if donors.len() == SSD_LINK_SEGMENTS {
            donors.remove(0);
        }
        donors.push(Donor { number, segment, sequence, entries, next, misses: 0 });
    }

    // ---- segments that were given up ----

    /// A block is about to get an entry: it has no other, not even a link to nothing.
    pub(super) fn forget_link(&mut self, number: u16, block: u64) {
        if self.has_no_links_to_nothing() {
            return;
        }
        if let Some(at) = self.index.find_link_to_nothing(&self.segments, number, block) {
            self.index.remove(at);
            self.owner_mut(number).entries -= 1;
        }
    }

    /// Whether links are to be taken out at once.
    pub(super) fn has_links_to_take_out(&self) -> bool {
        let (waiting, enough) = (self.segments.waiting(), (self.segments.len() / 64).max(1));
        let is_urgent = waiting >= enough || self.segments.free() < FREE_ENOUGH || self.stop.is_some();
        self.links.sweep.is_some() || waiting > 0 && is_urgent
    }

    /// A step of taking them out, of a part of the index.
    pub(super) fn take_links_out(&mut self) {
        if !self.has_links_to_take_out() {
            return;
        }
        let mut sweep = self.links.sweep.take().unwrap_or_else(|| {
            let segments = self.segments.take_waiting();
            Sweep { segments, next: 0 }
        });
        let Self { index, segments, owners, .. } = self;
        let part = sweep.next..sweep.next + SSD_SWEPT_BUCKETS;
        let has_more = index.remove_some(part, |item| {
            let owner = item.link_of.filter(|_| !segments.is_kept(item.slot));
            owner.and_then(|n| owners[usize::from(n)].as_mut()).into_iter().for_each(|o| o.entries -= 1);
            owner.is_some()
        });
        sweep.next += SSD_SWEPT_BUCKETS;
        if has_more {
            self.links.sweep = Some(sweep);
            return;
        }
        sweep.segments.into_iter().for_each(|segment| self.segments.unlinked(segment));
    }

    /// Whether every segment that was given up is free.
    pub(super) fn has_no_links_to_nothing(&self) -> bool {
        self.links.sweep.is_none() && self.segments.waiting() == 0
    }
}
