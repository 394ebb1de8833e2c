//! A disk has been without changes: the device is told what is good of it.
//!
//! Owns the order: summaries that name blocks which are gone are written again, flushed and read back; then the table.
//! Never judges a stamp. Invariant: when the table calls an owner clean, no summary that a recovery would take names a
//! block of it that the disk does not hold; a change in the middle of it all ends it.

use super::io::Job;
use super::*;
use crate::fault_injection::Bug;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Summaries are read and written, one at a time.
    Rewriting,
    Flushing,
    /// Summaries are read back, one at a time.
    Checking,
}

/// What is written down of one owner.
pub(super) struct Writing {
    /// Told from others by this.
    id: u64,
    number: u16,
    stamp: Stamp,
    phase: Phase,
    /// An operation of it is under way.
    is_waiting: bool,
    /// Of this segment the summary is being read.
    reading: Option<u32>,
    /// What was read of a segment: its blocks, as the next summary is to have them.
    read: Option<(u32, Vec<(u64, u32)>)>,
    /// Summaries written again, with their sums, and those of them that were not read back yet.
    written: Vec<(u32, u64)>,
}

impl Writing {
    /// Of whom.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl<F: FaultInjection> Region<F> {
    /// An owner was not changed for a while: its image has this stamp.
    pub(in super::super) fn quiet(&mut self, number: u16, stamp: Stamp) -> Quiet {
        let owner = self.owner(number);
        if self.service.is_some() || self.stop.is_some() {
            return Quiet::OutOfService;
        }
        if !owner.changing.is_empty() || !owner.dropping.is_empty() {
            return Quiet::Changing;
        }
        if owner.state == State::Clean(stamp) {
            return Quiet::Begun;
        }
        if owner.entries == 0 && owner.state == State::Dirty {
            // Nothing would be recovered.
            return Quiet::Begun;
        }
        let lost = self.segments.queue(number).filter(|s| self.segments.get(*s).lost).count() as i64;
        let cost = 4096 * (lost * i64::from(self.layout.summary_blocks) + 2);
        if cost > self.allowance() {
            // After a start nothing was admitted yet.
            if cost > self.quiet_budget.left() {
                return Quiet::TooMuch;
            }
            self.quiet_budget.spend(cost as u64);
        }
        self.begin_quiet(number, stamp);
        Quiet::Begun
    }

    /// Has it written down, whatever it costs.
    pub(super) fn begin_quiet(&mut self, number: u16, stamp: Stamp) {
        self.abort_quiet(number);
        self.quiet.push_back((number, stamp));
    }

    /// What is being written down of an owner is not true any more.
    pub(super) fn abort_quiet(&mut self, number: u16) {
        self.quiet.retain(|(n, _)| *n != number);
        if let Some(writing) = self.writing.take_if(|w| w.number == number) {
            // Not read back: written again the next time.
            let read = writing.read.map(|(segment, _)| segment);
            for segment in writing.written.iter().map(|(s, _)| *s).chain(read) {
                self.segments.get_mut(segment).lost = true;
            }
        }
    }

    /// Whether anything is being written down, or waits for it.
    pub(super) fn is_quiet_done(&self) -> bool {
        self.quiet.is_empty() && self.writing.is_none()
    }

    /// The next operation of it.
    pub(super) fn next_quiet(&mut self) -> Option<SsdIo> {
        if self.writing.is_none() {
            let (number, stamp) = self.quiet.pop_front()?;
            self.last_writing += 1;
            let (id, phase, written) = (self.last_writing, Phase::Rewriting, Vec::new());
            let (is_waiting, reading, read) = (false, None, None);
            self.writing = Some(Writing { id, number, stamp, phase, is_waiting, reading, read, written });
        }
        let writing = self.writing.as_ref()?;
        if writing.is_waiting {
            return None;
        }
        let io = match writing.phase {
            Phase::Rewriting => self.next_rewriting(),
            Phase::Flushing => Some(self.flush(Job::QuietFlush(writing.id))),
            Phase::Checking => match writing.written.last() {
                Some(&(segment, _)) => self.read_summary(Job::QuietCheck(segment), segment),
                None => None,
            },
        };
        if let (Some(_), Some(writing)) = (&io, &mut self.writing) {
            writing.is_waiting = true;
        }
        io
    }

    /// A read of a segment's whole summary.
    pub(super) fn read_summary(&mut self, job: Job, segment: u32) -> Option<SsdIo> {
        let offset = self.layout.offset(self.segments.slots(segment).start);
        self.read(job, offset, self.layout.summary_blocks as usize * 4096)
    }

    fn next_rewriting(&mut self) -> Option<SsdIo> {
        let writing = self.writing.as_ref()?;
        if let Some((segment, entries)) = &writing.read {
            let segment = *segment;
            // Once more: blocks may have gone while it was read.
            let entries = self.still_there(segment, entries);
            let bytes = self.summary(segment, entries).write(self.store, &self.sums);
            let sum = u64::from_le_bytes(std::array::from_fn(|n| bytes[8 + n]));
            let offset = self.layout.offset(self.segments.slots(segment).start);
            let io = self.write(Job::QuietWrite(segment), offset, &bytes)?;
            let it = self.segments.get_mut(segment);
            (it.lost, it.sum) = (false, sum);
            let writing = self.writing.as_mut()?;
            writing.read = None;
            writing.written.push((segment, sum));
            return Some(io);
        }
        let number = writing.number;
        let is_lost = |s: &u32| self.segments.get(*s).lost && !self.faults.has(Bug::SsdSummaryKept);
        let lost: Vec<u32> = self.segments.queue(number).filter(is_lost).collect();
        let is_ready = |s: &&u32| self.segments.get(**s).state == Segment::Sealed && self.segments.get(**s).busy == 0;
        if let Some(&segment) = lost.iter().find(is_ready) {
            let io = self.read_summary(Job::QuietRead(segment), segment)?;
            self.writing.as_mut()?.reading = Some(segment);
            return Some(io);
        }
        // One that is not complete has no summary yet: nothing of it is recovered. One that is being
        // emptied names blocks
        // that are gone, whatever was changed.
        let will_be = |s: &u32| self.segments.get(*s).state != Segment::Open || self.is_sealing(*s);
        let is_emptied = |s: u32| self.segments.get(s).state == Segment::Evicting;
        if lost.iter().any(will_be) || self.segments.queue(number).any(is_emptied) {
            return None;
        }
        let writing = self.writing.as_mut()?;
        writing.phase = Phase::Flushing;
        let id = writing.id;
        Some(self.flush(Job::QuietFlush(id)))
    }

    /// The summary of a segment, if these bytes are the one that was written last: of one that went elsewhere, what was
    /// there before is whole, too.
    pub(super) fn parse_summary(&self, segment: u32, bytes: Option<&[u8]>) -> Option<Summary> {
        let (summary, sum) = Summary::read(bytes?, self.store, &self.sums)?;
        (sum == self.segments.get(segment).sum).then_some(summary)
    }

    /// A summary was read.
    pub(super) fn quiet_read(&mut self, segment: u32, bytes: Option<&[u8]>) {
        if self.writing.as_ref().is_none_or(|w| w.reading != Some(segment)) {
            return;
        }
        let entries = match self.parse_summary(segment, bytes) {
            Some(summary) => summary.entries,
            None => {
                // Whatever it is, it is to be no summary of blocks.
                self.lose_segment(segment);
                Vec::new()
            }
        };
        if let Some(writing) = &mut self.writing {
            (writing.read, writing.reading) = (Some((segment, entries)), None);
            writing.is_waiting = false;
        }
    }

    /// A summary was written.
    pub(super) fn quiet_written(&mut self, segment: u32) {
        if let Some(writing) = self.writing.as_mut().filter(|w| w.written.last().is_some_and(|(s, _)| *s == segment)) {
            writing.is_waiting = false;
        }
    }

    /// Summaries are durable.
    pub(super) fn quiet_flushed(&mut self, id: u64) {
        // Of one that was given up, the flush began too early.
        let Some(writing) = self.writing.as_mut().filter(|w| w.id == id) else { return };
        writing.is_waiting = false;
        writing.phase = Phase::Checking;
        if self.faults.has(Bug::SsdNotReadBack) {
            writing.written.clear();
        }
        self.finish_quiet();
    }

    /// A summary was read back.
    pub(super) fn quiet_checked(&mut self, segment: u32, bytes: Option<&[u8]>) {
        let read = bytes.and_then(|bytes| Summary::read(bytes, self.store, &self.sums)).map(|(_, sum)| sum);
        let Some(writing) = self.writing.as_mut().filter(|w| w.phase == Phase::Checking) else { return };
        if writing.written.last().is_none_or(|(s, _)| *s != segment) {
            return;
        }
        let wanted = writing.written.pop().map(|(_, sum)| sum);
        writing.is_waiting = false;
        if read != wanted {
            return self.fail(OutOfService::Mismatches);
        }
        self.finish_quiet();
    }

    /// When all is read back, the table is to call the owner clean.
    fn finish_quiet(&mut self) {
        if let Some(writing) = self.writing.take_if(|w| w.written.is_empty()) {
            self.owner_mut(writing.number).state = State::Clean(writing.stamp);
            self.tables.is_wanted = true;
        }
    }
}
