//! Segments that blocks are written to: collected in memory, written in runs, completed by a summary.
//!
//! Owns what is staged. Never decides what is admitted. Invariants: a segment's first write ends the summary that was
//! in its place, and is done before any other; its own summary is written when all of its blocks are.

use super::super::format::NO_BLOCK;
use super::io::Job;
use super::*;
use crate::fault_injection::Bug;
use crate::limits::IO_BLOCKS_MAX;
use undercroft_host::Frame;

/// How far the first write of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Wanted,
    Writing,
    Done,
}

/// A segment that is being filled or completed.
pub(super) struct Open {
    segment: u32,
    /// Its blocks in order, and their sums.
    entries: Vec<(u64, u32)>,
    /// The last of them: not yet in a run.
    filling: Vec<Frame>,
    /// Runs that wait or are under way.
    runs: u32,
    mark: Mark,
    /// No block is added any more.
    is_full: bool,
    is_sealing: bool,
}

impl Open {
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// Its blocks in order, and their sums.
    pub fn entries(&self) -> &[(u64, u32)] {
        &self.entries
    }
}

/// Neighbours that wait to be written, or are being written.
pub(super) struct Run {
    segment: u32,
    first: u32,
    blocks: u32,
    /// None while it is written.
    frames: Vec<Frame>,
}

impl<F: FaultInjection> Drop for Region<F> {
    /// Frames go back to their arena: one that is lost is a bug. An arena keeps its addresses, and its memory too, if
    /// it is not told to give that back.
    fn drop(&mut self) {
        self.abandon_all();
        self.arena.trim(0);
    }
}

impl<F: FaultInjection> Region<F> {
    fn opened(&mut self, segment: u32) -> &mut Open {
        self.open.iter_mut().find(|o| o.segment == segment).expect("an open segment")
    }

    /// The bytes of a block that is in memory still; `Some(None)` while it is being written.
    pub(super) fn waiting(&self, segment: u32, position: u32) -> Option<Option<&[u8; 4096]>> {
        let open = self.open.iter().find(|o| o.segment == segment)?;
        let first = (open.entries.len() - open.filling.len()) as u32;
        if position >= first {
            return Some(Some(open.filling[(position - first) as usize].bytes()));
        }
        let mut runs = self.runs.iter();
        let run = runs.find(|r| r.segment == segment && (r.first..r.first + r.blocks).contains(&position))?;
        Some(run.frames.get((position - run.first) as usize).map(Frame::bytes))
    }

    /// The segment that an owner's blocks go to.
    pub(super) fn open_segment(&mut self, number: u16, is_cleaning: bool) -> Option<u32> {
        if let Some(segment) = self.owner(number).open {
            return Some(segment);
        }
        if self.segments.free() <= usize::from(!is_cleaning) {
            return None;
        }
        let generation = self.owner(number).generation;
        let segment = self.segments.begin(number, generation)?;
        let is_marked = self.faults.has(Bug::SsdMarkLeftOut);
        self.open.push(Open {
            segment,
            entries: Vec::with_capacity(self.layout.data_blocks() as usize),
            filling: Vec::with_capacity(IO_BLOCKS_MAX),
            runs: 0,
            mark: if is_marked { Mark::Done } else { Mark::Wanted },
            is_full: false,
            is_sealing: false,
        });
        self.owner_mut(number).open = Some(segment);
        Some(segment)
    }

    /// Adds a block to an open segment. Its position.
    pub(super) fn stage(&mut self, segment: u32, block: u64, sum: u32, frame: Frame) -> u32 {
        let most = self.layout.data_blocks() as usize;
        let open = self.opened(segment);
        let position = open.entries.len() as u32;
        open.entries.push((block, sum));
        open.filling.push(frame);
        let is_full = open.entries.len() == most;
        if is_full {
            self.fill_up(segment);
        } else if open.filling.len() == IO_BLOCKS_MAX {
            self.cut_run(segment);
        }
        position
    }

    /// No block is added to a segment any more.
    fn fill_up(&mut self, segment: u32) {
        self.cut_run(segment);
        self.opened(segment).is_full = true;
        let number = self.segments.get(segment).owner;
        self.owner_mut(number).open = None;
    }

    fn cut_run(&mut self, segment: u32) {
        let open = self.opened(segment);
        let frames = std::mem::replace(&mut open.filling, Vec::with_capacity(IO_BLOCKS_MAX));
        if frames.is_empty() {
            return;
        }
        open.runs += 1;
        let blocks = frames.len() as u32;
        let first = open.entries.len() as u32 - blocks;
        self.runs.push_back(Run { segment, first, blocks, frames });
    }

    /// Writes what has waited longest before its run is full.
    pub(super) fn write_oldest_early(&mut self) {
        // Segments are in the order in which they were begun.
        if let Some(segment) = self.open.iter().find(|o| !o.filling.is_empty()).map(|o| o.segment) {
            self.cut_run(segment);
        }
    }

    /// Completes all segments, full or not. Whether there are any.
    pub(super) fn seal_all(&mut self) -> bool {
        let filling: Vec<_> = self.open.iter().filter(|o| !o.is_full).map(|o| o.segment).collect();
        filling.into_iter().for_each(|segment| self.fill_up(segment));
        !self.open.is_empty()
    }

    /// Whether the summary of a segment is being written.
    pub(super) fn is_sealing(&self, segment: u32) -> bool {
        self.open.iter().any(|o| o.segment == segment && o.is_sealing)
    }

    /// Drops what is staged for a segment that nobody wants any more.
    pub(super) fn abandon(&mut self, segment: u32) {
        if let Some(n) = self.open.iter().position(|o| o.segment == segment) {
            let open = self.open.remove(n);
            self.put_back(open.filling);
        }
        let (gone, kept) = std::mem::take(&mut self.runs).into_iter().partition(|r| r.segment == segment);
        self.runs = kept;
        let gone: VecDeque<Run> = gone;
        gone.into_iter().for_each(|run| self.put_back(run.frames));
        if self.cleaning.as_ref().is_some_and(|c| c.segment() == segment) {
            self.cleaning = None;
        }
    }

    /// Frames of staged blocks are free again.
    pub(super) fn put_back(&mut self, frames: impl IntoIterator<Item = Frame>) {
        for frame in frames {
            self.staged -= 1;
            self.arena.put(frame);
        }
    }

    /// The summary of a segment, with these blocks.
    pub(super) fn summary(&self, segment: u32, entries: Vec<(u64, u32)>) -> Summary {
        let it = self.segments.get(segment);
        let identity = self.owner(it.owner).identity;
        Summary { segment, owner: it.owner, identity, sequence: it.sequence, generation: it.generation, entries }
    }

    /// Of blocks that a segment was written with, those that still are there: others have no number. One that has been
    /// changed, and is the same again by a link, is not: nobody would write the summary again when the link goes.
    pub(super) fn still_there(&self, segment: u32, entries: &[(u64, u32)]) -> Vec<(u64, u32)> {
        let number = self.segments.get(segment).owner;
        let here = |n: usize, block: u64| {
            let found = self.index.find(&self.segments, number, block.min(BLOCKS_MAX - 1));
            let is_it = |e: &Entry| !e.is_link || self.faults.has(Bug::SsdLinkTakenForBlock);
            found.is_some_and(|(_, entry)| is_it(&entry) && entry.slot == self.layout.slot(segment, n as u32))
        };
        let entries = entries.iter().enumerate();
        entries.map(|(n, (block, sum))| (if here(n, *block) { *block } else { NO_BLOCK }, *sum)).collect()
    }

    /// The next write of blocks, or of a summary.
    pub(super) fn next_write(&mut self) -> Option<SsdIo> {
        if let Some(segment) = self.open.iter().find(|o| o.mark == Mark::Wanted).map(|o| o.segment) {
            let bytes = self.summary(segment, Vec::new()).write(self.store, &self.sums);
            let io = self.write(Job::Mark(segment), self.layout.offset(self.segments.slots(segment).start), &bytes)?;
            self.opened(segment).mark = Mark::Writing;
            return Some(io);
        }
        let marked = |s: u32| self.open.iter().any(|o| o.segment == s && o.mark == Mark::Done);
        if let Some(n) = self.runs.iter().position(|r| !r.frames.is_empty() && marked(r.segment)) {
            let run = &mut self.runs[n];
            let (segment, first, frames) = (run.segment, run.first, std::mem::take(&mut run.frames));
            let len = (frames.len() * 4096) as u32;
            let buf = IoBuf { frames, head: 0, len };
            let offset = self.layout.offset(self.layout.slot(segment, first));
            return Some(self.submit(Job::Run { segment, first }, SsdIoKind::Write, offset, buf));
        }
        let early = self.faults.has(Bug::SsdSummaryBeforeData);
        let ready = |o: &&Open| o.is_full && !o.is_sealing && o.mark == Mark::Done && (o.runs == 0 || early);
        let open = self.open.iter().find(ready)?;
        let segment = open.segment;
        let entries = self.still_there(segment, &open.entries);
        let bytes = self.summary(segment, entries).write(self.store, &self.sums);
        let io = self.write(Job::Seal(segment), self.layout.offset(self.segments.slots(segment).start), &bytes)?;
        self.opened(segment).is_sealing = true;
        let it = self.segments.get_mut(segment);
        (it.lost, it.sum) = (false, u64::from_le_bytes(std::array::from_fn(|n| bytes[8 + n])));
        Some(io)
    }

    /// The first write of a segment is done.
    pub(super) fn marked(&mut self, segment: u32) {
        self.opened(segment).mark = Mark::Done;
    }

    /// A run is written; its frames are back. `segment` may be unwanted by now.
    pub(super) fn run_written(&mut self, segment: u32, first: u32, frames: Vec<Frame>) {
        self.put_back(frames);
        let is_it = |r: &Run| r.segment == segment && r.first == first && r.frames.is_empty();
        if let Some(n) = self.runs.iter().position(is_it) {
            self.runs.remove(n);
            self.open.iter_mut().filter(|o| o.segment == segment).for_each(|o| o.runs -= 1);
        }
    }

    /// A segment is complete.
    pub(super) fn sealed(&mut self, segment: u32) {
        self.open.retain(|o| o.segment != segment);
        self.segments.get_mut(segment).state = Segment::Sealed;
    }

    /// The device is out of service: nothing waits any more.
    pub(super) fn abandon_all(&mut self) {
        self.unpark_all();
        for open in std::mem::take(&mut self.open) {
            self.put_back(open.filling);
        }
        for run in std::mem::take(&mut self.runs) {
            self.put_back(run.frames);
        }
    }
}
