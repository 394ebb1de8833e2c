//! Equal bytes that were written before: a block that is offered becomes a link to where they are.
//!
//! Owns which segments blocks are compared with: those that a sample of contents, or the segment before, led to. Never
//! compares across sharing domains, never writes links down: after a restart they are found again.
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
/// Summaries that may wait to be read.
const WANTED_MAX: usize = 8;
/// Segments after one that is led to whose summaries are read as well: a guest that reads a file is past a segment
/// before its summary has come.
const SEGMENTS_AHEAD: usize = 3;
/// While fewer segments are free, one that waits for its links to be taken out is not left waiting.
const FREE_ENOUGH: usize = 2;

/// What a segment was written with, in order, with sums.
struct Summary {
    segment: u32,
    sequence: u64,
    entries: Vec<(u64, u32)>,
}

/// Where the last match of an owner's blocks was.
struct Cursor {
    number: u16,
    segment: u32,
    sequence: u64,
    /// The place after it.
    next: usize,
    /// Blocks without a match since.
    misses: u32,
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
    /// Those read or used last are last.
    summaries: Vec<Summary>,
    cursors: Vec<Cursor>,
    /// Segments, with their sequences, whose summaries are to be read.
    wanted: VecDeque<(u32, u64)>,
    /// That one is being read.
    reading: Option<(u32, u64)>,
    /// So many were wanted so far, and so many of them were read or given up, in that order.
    asked: u64,
    answered: u64,
    sweep: Option<Sweep>,
}

impl Links {
    /// What summaries to compare with take of memory at most.
    pub fn bytes_max(layout: &Layout) -> u64 {
        (SSD_LINK_SEGMENTS + 1) as u64 * u64::from(layout.data_blocks()) * size_of::<(u64, u32)>() as u64
    }

    /// Nothing is compared any more.
    pub fn forget(&mut self) {
        (self.summaries, self.cursors) = (Vec::new(), Vec::new());
        (self.wanted, self.reading) = (VecDeque::new(), None);
        self.answered = self.asked;
    }

    /// Summaries that were wanted so far.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Those of them that were read, or are not wanted any more.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether that of a segment is still to be read.
    fn is_awaited(&self, segment: u32, sequence: u64) -> bool {
        let wanted = (segment, sequence);
        self.wanted.contains(&wanted) || self.reading == Some(wanted)
    }

    fn find(&self, segment: u32, sequence: u64) -> Option<usize> {
        self.summaries.iter().position(|s| (s.segment, s.sequence) == (segment, sequence))
    }
}

/// What is known of where the bytes of a block were written before.
enum Equal {
    At(u32, usize),
    /// What is being read may tell.
    Awaited,
    Unknown,
}

/// What became of a block that may be a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Made,
    /// Perhaps when what is being read has come.
    Awaited,
    No,
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

    /// What a segment was written with, if that is in memory.
    fn written(&self, segment: u32, sequence: u64) -> Option<&[(u64, u32)]> {
        let open = || self.open.iter().find(|o| o.segment() == segment).map(Open::entries);
        self.links.find(segment, sequence).map(|n| &*self.links.summaries[n].entries).or_else(open)
    }

    /// Whether the slot in a segment, written with this entry, has these bytes.
    fn has_content(&self, segment: u32, (block, sum): (u64, u32), content: Content) -> bool {
        let it = self.segments.get(segment);
        let tag = self.owner(it.owner).tag;
        let of = Of { tag, generation: it.generation, sequence: it.sequence, block };
        block != NO_BLOCK && self.sums.of(of, content) == sum || self.faults.has(Bug::SsdLinkUnproven)
    }

    /// Makes a block a link to where the same bytes are, if that is known. It has no entry.
    pub(super) fn link(&mut self, number: u16, block: u64, content: Content) -> Link {
        let domain = self.owner(number).domain;
        if domain == 0 {
            return Link::No;
        }
        let (segment, at) = match self.look_where_sampled(domain, content) {
            Equal::At(segment, at) => (segment, at),
            sampled => match self.look_near_last(number, domain, content) {
                Equal::At(segment, at) => (segment, at),
                Equal::Awaited => return Link::Awaited,
                Equal::Unknown if matches!(sampled, Equal::Awaited) => return Link::Awaited,
                // One that came before it was led somewhere: its neighbours follow it.
                Equal::Unknown if self.parked.has_of(number) => return Link::Awaited,
                Equal::Unknown => return Link::No,
            },
        };
        let sequence = self.segments.get(segment).sequence;
        self.links.cursors.retain(|c| c.number != number);
        if self.links.cursors.len() == SSD_LINK_SEGMENTS {
            self.links.cursors.remove(0);
        }
        self.links.cursors.push(Cursor { number, segment, sequence, next: at + 1, misses: 0 });
        if let Some(n) = self.links.find(segment, sequence) {
            self.links.summaries[n..].rotate_left(1);
        }
        self.want_next(segment, domain);
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
        if let Some(gone) = gone {
            self.pushed_out(gone);
        }
        Link::Made
    }

    /// Segment and place of these bytes, if the sample says where they are and is right. What it would take to know
    /// that is read.
    fn look_where_sampled(&mut self, domain: u16, content: Content) -> Equal {
        let Some(slot) = self.samples.find(content.number()) else { return Equal::Unknown };
        let segment = self.segments.number_of(slot);
        let sequence = self.segments.get(segment).sequence;
        if !self.is_donor(segment, sequence, domain) {
            return Equal::Unknown;
        }
        let Some(entries) = self.written(segment, sequence) else {
            self.want(segment, sequence);
            self.want_next(segment, domain);
            return if self.links.is_awaited(segment, sequence) { Equal::Awaited } else { Equal::Unknown };
        };
        let at = slot.wrapping_sub(self.layout.slot(segment, 0)) as usize;
        let is_it = entries.get(at).is_some_and(|entry| self.has_content(segment, *entry, content));
        if is_it { Equal::At(segment, at) } else { Equal::Unknown }
    }

    /// The same, if they are near the last match of the owner's, which may be at the end of a segment.
    fn look_near_last(&mut self, number: u16, domain: u16, content: Content) -> Equal {
        let Some(n) = self.links.cursors.iter().position(|c| c.number == number) else { return Equal::Unknown };
        let cursor = &self.links.cursors[n];
        let (segment, sequence, next) = (cursor.segment, cursor.sequence, cursor.next);
        let is_donor = self.is_donor(segment, sequence, domain);
        let entries = self.written(segment, sequence).filter(|_| is_donor && cursor.misses < MISSES_MAX);
        let Some(entries) = entries else {
            self.links.cursors.remove(n);
            return Equal::Unknown;
        };
        let len = entries.len();
        let (from, to) = (next.saturating_sub(BEFORE), (next + AHEAD).min(len));
        let mut near = (next..to).chain((from..next.min(len)).rev());
        if let Some(at) = near.find(|at| self.has_content(segment, entries[*at], content)) {
            return Equal::At(segment, at);
        }
        // What would be further on is where its owner went on.
        let after = self.segments.after(segment).filter(|_| next + AHEAD > len);
        let Some(after) = after else { return Equal::Unknown };
        let sequence = self.segments.get(after).sequence;
        if !self.is_donor(after, sequence, domain) {
            return Equal::Unknown;
        }
        match self.written(after, sequence) {
            Some(entries) => {
                let mut first = entries.iter().take(AHEAD);
                let at = first.position(|entry| self.has_content(after, *entry, content));
                at.map_or(Equal::Unknown, |at| Equal::At(after, at))
            }
            None if self.links.is_awaited(after, sequence) => Equal::Awaited,
            None => Equal::Unknown,
        }
    }

    /// A block of an owner is like none of those that it was compared with.
    pub(super) fn unlike(&mut self, number: u16) {
        self.links.cursors.iter_mut().filter(|c| c.number == number).for_each(|c| c.misses += 1);
    }

    /// The blocks after those of a segment may be in those that its owner began after it.
    fn want_next(&mut self, segment: u32, domain: u16) {
        let mut after = segment;
        for _ in 0..SEGMENTS_AHEAD {
            let Some(next) = self.segments.after(after) else { return };
            after = next;
            let sequence = self.segments.get(after).sequence;
            if !self.is_donor(after, sequence, domain) {
                return;
            }
            self.want(after, sequence);
        }
    }

    fn want(&mut self, segment: u32, sequence: u64) {
        let is_asked = self.links.is_awaited(segment, sequence);
        if !is_asked && self.links.wanted.len() < WANTED_MAX && self.written(segment, sequence).is_none() {
            self.links.wanted.push_back((segment, sequence));
            self.links.asked += 1;
        }
    }

    /// The read of a summary that is wanted.
    pub(super) fn next_link(&mut self) -> Option<SsdIo> {
        if self.links.reading.is_some() || self.stop.is_some() {
            return None;
        }
        while let Some((segment, sequence)) = self.links.wanted.front().copied() {
            let it = self.segments.get(segment);
            if it.state == Segment::Sealed && it.sequence == sequence {
                let io = self.read_summary(Job::LinkSummary(segment), segment)?;
                self.links.reading = self.links.wanted.pop_front();
                return Some(io);
            }
            self.links.wanted.pop_front();
            self.links.answered += 1;
            self.decide_parked();
        }
        None
    }

    /// It was read.
    pub(super) fn link_summary_read(&mut self, segment: u32, bytes: Option<&[u8]>) {
        let Some((_, sequence)) = self.links.reading.take_if(|(s, _)| *s == segment) else { return };
        self.links.answered += 1;
        if self.service.is_some() {
            return;
        }
        if self.segments.get(segment).sequence == sequence {
            self.keep_summary(segment, sequence, bytes);
        }
        self.decide_parked();
    }

    fn keep_summary(&mut self, segment: u32, sequence: u64, bytes: Option<&[u8]>) {
        // One that cannot be read is as good as empty: it would be read again for every block that leads there.
        let entries = self.parse_summary(segment, bytes).map_or(Vec::new(), |read| read.entries);
        if self.links.summaries.len() == SSD_LINK_SEGMENTS {
            self.links.summaries.remove(0);
        }
        self.links.summaries.push(Summary { segment, sequence, entries });
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
            let gone_of = item.link_of.filter(|_| !segments.is_kept(item.slot));
            if let Some(number) = gone_of {
                leaves(owners, number);
            }
            gone_of.is_some()
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
