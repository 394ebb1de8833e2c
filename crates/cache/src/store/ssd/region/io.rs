//! I/O of the store: what is asked for next, and what follows when it is done.
//!
//! Owns the list of what is under way, and the frames of what is not staged blocks. Never carries anything out.
//! Invariant: each operation comes back once, and a segment that has one under way is not free.

use super::*;
use crate::fault_injection::Bug;
use crate::limits::SSD_OPS_MAX;
use undercroft_host::Frame;

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Table,
    TableFlush,
    TableCheck,
    Mark(u32),
    Run { segment: u32, first: u32 },
    Seal(u32),
    CleanSummary(u32),
    CleanBlock(u32),
    QuietRead(u32),
    QuietWrite(u32),
    QuietFlush(u64),
    QuietCheck(u32),
    LinkSummary(u32),
    Discard(u32),
}

impl Job {
    /// The segment that it goes to.
    fn segment(self) -> Option<u32> {
        match self {
            Job::Table | Job::TableFlush | Job::TableCheck | Job::QuietFlush(_) => None,
            Job::Run { segment, .. } => Some(segment),
            Job::Mark(s) | Job::Seal(s) | Job::CleanSummary(s) | Job::CleanBlock(s) | Job::Discard(s) => Some(s),
            Job::QuietRead(s) | Job::QuietWrite(s) | Job::QuietCheck(s) | Job::LinkSummary(s) => Some(s),
        }
    }
}

/// Operations under way.
#[derive(Default)]
pub(super) struct Jobs {
    /// Number, what for, and since when.
    list: Vec<(u64, Job, u64)>,
    last: u64,
}

impl Jobs {
    /// Since when the oldest is under way.
    pub fn oldest(&self) -> Option<u64> {
        self.list.iter().map(|(_, _, since)| *since).min()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl<F: FaultInjection> Region<F> {
    /// The next operation, if one is wanted.
    pub(in super::super) fn next_io(&mut self, now: u64) -> Option<SsdIo> {
        self.advance(now);
        self.drop_some();
        self.take_links_out();
        if self.service.is_some() || self.jobs.list.len() >= SSD_OPS_MAX {
            return None;
        }
        self.go_on_stopping();
        let io = self.next_table().or_else(|| self.next_quiet());
        // Before the writes that it is to spare.
        let io = io.or_else(|| self.next_link()).or_else(|| self.next_write());
        io.or_else(|| self.next_cleaning()).or_else(|| self.next_discard())
    }

    /// A free segment that will not be used soon is discarded, one at a time.
    fn next_discard(&mut self) -> Option<SsdIo> {
        let is_under_way = self.jobs.list.iter().any(|(_, job, _)| matches!(job, Job::Discard(_)));
        if !self.discards || is_under_way || self.stop.is_some() {
            return None;
        }
        let segment = self.segments.discard(self.wanted_free())?;
        let mut slots = self.segments.slots(segment);
        if self.faults.has(Bug::SsdDiscardsOther) {
            slots = self.segments.slots(segment ^ 1);
        }
        let buf = IoBuf { frames: Vec::new(), head: 0, len: 0 };
        let mut io = self.submit(Job::Discard(segment), SsdIoKind::Discard, self.layout.offset(slots.start), buf);
        io.len = slots.len() as u64 * 4096;
        Some(io)
    }

    /// Whether there are frames for an operation, besides those for blocks that may be staged.
    pub(super) fn has_frames(&self, frames: usize) -> bool {
        self.arena.available() >= SSD_STAGED_MAX - self.staged + frames
    }

    /// An operation with its buffer.
    pub(super) fn submit(&mut self, job: Job, kind: SsdIoKind, offset: u64, buf: IoBuf) -> SsdIo {
        self.jobs.last += 1;
        let id = self.jobs.last;
        self.jobs.list.push((id, job, self.now));
        if let Some(segment) = job.segment() {
            self.segments.begin_io(segment);
        }
        SsdIo { id, device: self.device, kind, offset, len: u64::from(buf.len), buf }
    }

    /// A write of bytes that the store says about itself, if there are frames for it.
    pub(super) fn write(&mut self, job: Job, offset: u64, bytes: &[u8]) -> Option<SsdIo> {
        let mut buf = self.frames(bytes.len())?;
        let blocks = bytes.chunks_exact(4096);
        buf.frames.iter_mut().zip(blocks).for_each(|(frame, block)| frame.bytes_mut().copy_from_slice(block));
        let of = match job {
            Job::Table => &mut self.written.tables,
            _ => &mut self.written.summaries,
        };
        *of += bytes.len() as u64;
        self.admitting.spend(bytes.len() as u64);
        Some(self.submit(job, SsdIoKind::Write, offset, buf))
    }

    /// A read, if there are frames for it.
    pub(super) fn read(&mut self, job: Job, offset: u64, bytes: usize) -> Option<SsdIo> {
        let buf = self.frames(bytes)?;
        Some(self.submit(job, SsdIoKind::Read, offset, buf))
    }

    /// A flush.
    pub(super) fn flush(&mut self, job: Job) -> SsdIo {
        self.submit(job, SsdIoKind::Flush, 0, IoBuf { frames: Vec::new(), head: 0, len: 0 })
    }

    fn frames(&mut self, bytes: usize) -> Option<IoBuf> {
        let n = bytes.div_ceil(4096);
        if !self.has_frames(n) {
            return None;
        }
        let mut frames = Vec::with_capacity(n);
        assert!(self.arena.take_for_io(n, &mut frames), "frames that were counted are there");
        Some(IoBuf { frames, head: 0, len: bytes as u32 })
    }

    fn give_back(&mut self, frames: Vec<Frame>) {
        frames.into_iter().for_each(|frame| self.arena.put(frame));
    }

    /// An operation will never complete.
    pub(in super::super) fn reclaim(&mut self, buf: IoBuf) {
        self.give_back(buf.frames);
    }

    /// An operation is done, or has failed.
    pub(in super::super) fn io_done(&mut self, done: SsdDone) {
        let Some(n) = self.jobs.list.iter().position(|(id, ..)| *id == done.id) else {
            debug_assert!(false, "an operation came back twice");
            std::mem::forget(done.buf.frames);
            return;
        };
        let (_, job, _) = self.jobs.list.swap_remove(n);
        let is_wanted = job.segment().is_none_or(|segment| self.segments.end_io(segment));
        let SsdDone { buf, is_done, .. } = done;
        if let Job::Run { segment, first } = job {
            self.run_written(segment, first, buf.frames);
            if !is_done {
                self.fail(OutOfService::Write);
            }
            return;
        }
        if let Job::Discard(_) = job {
            // Nobody needs it: a device that cannot is not asked again.
            self.discards &= is_done;
            return;
        }
        let mut bytes = vec![0; buf.len as usize];
        buf.copy_to(&mut bytes);
        self.give_back(buf.frames);
        if let Job::LinkSummary(segment) = job {
            return self.link_summary_read(segment, Some(&*bytes).filter(|_| is_done && is_wanted));
        }
        if self.service.is_some() || !is_wanted {
            return;
        }
        let bytes = is_done.then_some(&*bytes);
        match job {
            Job::Table | Job::Mark(_) | Job::Seal(_) | Job::QuietWrite(_) if !is_done => self.fail(OutOfService::Write),
            Job::TableFlush | Job::QuietFlush(_) if !is_done => self.fail(OutOfService::Flush),
            Job::Table | Job::TableFlush | Job::TableCheck => self.table_done(bytes),
            Job::Mark(segment) => self.marked(segment),
            Job::Run { .. } | Job::Discard(_) | Job::LinkSummary(_) => {}
            Job::Seal(segment) => self.sealed(segment),
            Job::CleanSummary(segment) => self.cleaning_begins(segment, bytes),
            Job::CleanBlock(segment) => self.cleaning_goes_on(segment, bytes),
            Job::QuietRead(segment) => self.quiet_read(segment, bytes),
            Job::QuietWrite(segment) => self.quiet_written(segment),
            Job::QuietFlush(id) => self.quiet_flushed(id),
            Job::QuietCheck(segment) => self.quiet_checked(segment, bytes),
        }
    }
}
