//! Blocks that wait until it is known whether they were written before: what a sample led to is being read.
//!
//! Owns their frames, in the order in which they were offered. Never holds one longer than the summaries that were
//! asked for until it came, and never decides what is admitted. Invariant: what waits is what its disk holds, is within
//! no change, and has no entry in the index.

use super::super::sums::Content;
use super::links::Link;
use super::*;
use crate::fault_injection::Bug;
use crate::limits::SSD_PARKED_MAX;
use undercroft_host::Frame;

/// A block that waits.
pub(super) struct Parked {
    number: u16,
    block: u64,
    content: Content,
    frame: Frame,
    /// Decided when so many summaries have been read, or given up, at the latest.
    until: u64,
}

/// See the head of the file.
#[derive(Default)]
pub(super) struct ParkedBlocks(VecDeque<Parked>);

impl ParkedBlocks {
    fn position(&self, number: u16, block: u64) -> Option<usize> {
        self.0.iter().position(|p| (p.number, p.block) == (number, block))
    }

    /// Whether blocks of an owner wait.
    pub fn has_of(&self, number: u16) -> bool {
        self.0.iter().any(|p| p.number == number)
    }

    /// All that wait: owners and blocks.
    pub fn all(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.iter().map(|p| (p.number, p.block))
    }

    /// The bytes of a block that waits.
    pub fn bytes(&self, number: u16, block: u64) -> Option<&[u8; 4096]> {
        self.position(number, block).map(|n| self.0[n].frame.bytes())
    }
}

impl<F: FaultInjection> Region<F> {
    /// Has a block wait until what was asked for by now is read. Whether there is room for it.
    pub(super) fn park(&mut self, number: u16, block: u64, bytes: &[u8; 4096], content: Content) -> bool {
        if self.parked.0.len() >= SSD_PARKED_MAX || self.staged >= SSD_STAGED_MAX {
            return false;
        }
        let Some(mut frame) = self.arena.take() else { return false };
        frame.bytes_mut().copy_from_slice(bytes);
        self.staged += 1;
        let until = self.links.asked();
        self.parked.0.push_back(Parked { number, block, content, frame, until });
        true
    }

    /// A summary was read, or will not be: blocks that it tells of become links, and those that waited for no other are
    /// written.
    pub(super) fn decide_parked(&mut self) {
        self.decide(self.links.answered());
    }

    /// Nothing waits any more: blocks whose equal is not known now are written.
    pub(super) fn decide_all_parked(&mut self) {
        self.decide(u64::MAX);
    }

    fn decide(&mut self, answered: u64) {
        for parked in std::mem::take(&mut self.parked.0) {
            let Parked { number, block, content, frame, until } = parked;
            if self.owners[usize::from(number)].is_none() {
                // With a bug alone: an owner that goes takes them along.
                self.put_back([frame]);
            } else if self.link(number, block, content) == Link::Made {
                self.put_back([frame]);
            } else if until > answered {
                self.parked.0.push_back(Parked { number, block, content, frame, until });
            } else {
                self.unlike(number);
                self.put_parked(number, block, content, frame);
            }
        }
    }

    /// Its equal was not found. What kept it from being written while it waited makes that it is not kept.
    fn put_parked(&mut self, number: u16, block: u64, content: Content, frame: Frame) {
        let may = self.admitting.may_write() && self.owner(number).share > 0;
        match self.open_segment(number, false).filter(|_| may) {
            Some(segment) => self.put_frame(segment, block, content, frame, false),
            None => self.put_back([frame]),
        }
    }

    /// Blocks of an owner do not wait any more: they are changed, or are elsewhere.
    pub(super) fn unpark(&mut self, number: u16, blocks: &Range<u64>) {
        if !self.parked.0.is_empty() {
            self.unpark_where(|p| p.number == number && blocks.contains(&p.block));
        }
    }

    /// None of an owner's do.
    pub(super) fn unpark_all_of(&mut self, number: u16) {
        if !self.faults.has(Bug::SsdParkedOutlivesDisk) {
            self.unpark_where(|p| p.number == number);
        }
    }

    /// None do.
    pub(super) fn unpark_all(&mut self) {
        self.unpark_where(|_| true);
    }

    fn unpark_where(&mut self, is_gone: impl Fn(&Parked) -> bool) {
        let (gone, kept): (VecDeque<_>, _) = std::mem::take(&mut self.parked.0).into_iter().partition(is_gone);
        self.parked.0 = kept;
        self.put_back(gone.into_iter().map(|p| p.frame));
    }
}
