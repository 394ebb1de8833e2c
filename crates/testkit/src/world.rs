//! What surrounds the core in a simulation: disks, their models, and the clients with their requests.
//!
//! Owns what the core must not know, and checks everything the core does against it. Never calls the core.
//! Invariant: a request is in `requests` from its start until its answer, and is answered once.

use crate::alike::{SimBase, number_of};
use crate::model::{Change, Model};
use crate::rng::{Rng, fill_pattern};
use crate::sim_disk::SimDisk;
use crate::sim_guest::SimGuest;
use std::collections::HashMap;
use undercroft_cache::{DiskId, Effects, Extent, Io, IoError, IoKind, Op, Paused, ReqId, Request};
use undercroft_host::FRAME_BYTES;

/// A request under way, as its client sees it.
pub struct Pending {
    /// The request.
    pub req: Request,
    /// The data read, or room for marking which bytes were fetched.
    pub data: Vec<u8>,
    /// Per byte: how often it was copied.
    pub copied: Vec<u8>,
    /// The change in the model, if it makes one.
    pub change: u64,
    /// The number of the data that it writes.
    pub number: u64,
    /// When it started.
    pub start: u64,
    /// Failures of the disk delivered until then.
    pub failures: u64,
    /// The answer that is right whatever the disk does.
    pub must: Option<IoError>,
    /// The guest's pages for the request's data, in order, if it comes from a guest whose memory can be seen; the data
    /// starts at the beginning of the first.
    pub pages: Vec<u32>,
    /// Which memory of the guest they are pages of.
    pub memory: u32,
}

/// One disk as the outside knows it.
pub struct SimSide {
    /// The disk itself.
    pub disk: SimDisk,
    /// What it may contain.
    pub model: Model,
    /// Where the sequential client reads next.
    pub sequential: u64,
    /// Whose patterns it writes: those of its group, or its own.
    pub group: u64,
    /// What it stands on.
    pub base: Option<SimBase>,
    /// The guest, if it has one whose memory can be seen, and how often that memory was mapped anew.
    pub guest: Option<SimGuest>,
    /// Counts the guests and their memories.
    pub memory: u32,
}

/// See the head of the file.
pub struct World {
    /// The disks, by number.
    pub sides: Vec<SimSide>,
    /// Requests under way, by tag.
    pub requests: HashMap<u32, Pending>,
    /// Counts every event.
    pub time: u64,
    /// The first thing that went wrong.
    pub violation: Option<String>,
    /// The last events, if they are wanted.
    pub log: Option<Vec<String>>,
    /// Answers given.
    pub answers: u64,
    /// Copies of guest pages that became cached.
    pub captures: u64,
    /// Requests that wait to be resumed.
    pub paused: Vec<Paused>,
    /// What guests do by themselves; apart from what drives the run.
    pub guest_rng: Rng,
    changes: u64,
    tags: u32,
}

impl World {
    /// A world with these disks.
    pub fn new(disks: Vec<SimDisk>, guest_seed: u64, with_log: bool) -> Self {
        let sides = disks
            .into_iter()
            .map(|disk| {
                let model = Model::new(disk.medium());
                SimSide { model, disk, sequential: 0, group: 0, base: None, guest: None, memory: 0 }
            })
            .collect();
        Self {
            sides,
            requests: HashMap::new(),
            time: 1,
            violation: None,
            log: with_log.then(Vec::new),
            answers: 0,
            captures: 0,
            paused: Vec::new(),
            guest_rng: Rng::new(guest_seed),
            changes: 0,
            tags: 0,
        }
    }

    /// A later moment.
    pub fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Notes what went wrong, if nothing did before.
    pub fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    /// Writes an event down.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        let time = self.time;
        if let Some(log) = &mut self.log {
            if log.len() >= 400 {
                log.drain(..200);
            }
            log.push(format!("{time}: {}", what()));
        }
    }

    /// Registers a request; `must` is the answer it must get, if that is known before. Returns it with its name, or
    /// nothing if the model cannot follow it.
    pub fn start(&mut self, mut req: Request, must: Option<IoError>) -> Option<Request> {
        let side = &mut self.sides[req.disk.0 as usize];
        let change = match req.op {
            _ if must.is_some() || req.len == 0 => None,
            Op::Write { .. } => Some(Change::Data(number_of(self.changes + 1, side.group))),
            Op::WriteZeroes { .. } => Some(Change::Zeroes),
            Op::Discard => Some(Change::Discard),
            Op::Read | Op::Flush | Op::Status => None,
        };
        self.time += 1;
        let mut number = 0;
        if let Some(change) = change {
            if !side.model.has_room(req.offset, req.len) {
                return None;
            }
            self.changes += 1;
            number = self.changes;
            side.model.begin(number, change, req.offset, req.len, self.time);
        }
        self.tags += 1;
        req.id = ReqId { port: req.disk.0, tag: self.tags };
        let bytes = match req.op {
            Op::Read | Op::Write { .. } if must.is_none() => req.len as usize,
            _ => 0,
        };
        let pending = Pending {
            req,
            data: vec![0; bytes],
            copied: vec![0; bytes],
            change: number,
            number: number_of(number, side.group),
            start: self.time,
            failures: side.disk.failures,
            must,
            pages: Vec::new(),
            memory: side.memory,
        };
        let mut pending = pending;
        if let Some(guest) = &mut side.guest
            && bytes > 0
        {
            let n = bytes.div_ceil(FRAME_BYTES);
            pending.pages = (0..n).map(|_| guest.take_page(&mut self.guest_rng)).collect();
            if change.is_some() {
                let mut data = vec![0; bytes];
                fill_pattern(number, req.offset, &mut data);
                for (page, part) in pending.pages.iter().zip(data.chunks(FRAME_BYTES)) {
                    guest.fill(*page, 0, part);
                }
            }
        }
        self.requests.insert(self.tags, pending);
        self.note(|| format!("request {req:?}"));
        Some(req)
    }

    fn judge(&mut self, p: Pending, result: Result<(), IoError>) -> Result<(), String> {
        let Pending { req, .. } = p;
        let side = &mut self.sides[req.disk.0 as usize];
        if let Some(must) = p.must {
            return match result {
                Err(e) if e == must => Ok(()),
                other => Err(format!("{req:?} was answered {other:?}, not {must:?}")),
            };
        }
        if p.change != 0 {
            let fua = matches!(req.op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. });
            side.model.end(p.change, result.is_ok(), fua, self.time);
        }
        if let Err(e) = result {
            if side.disk.failures == p.failures {
                return Err(format!("{req:?} failed ({e}) though the disk did not"));
            }
            return Ok(());
        }
        match req.op {
            Op::Read if req.len > 0 => {
                if p.copied.contains(&0) {
                    return Err(format!("{req:?} was answered without all of its data"));
                }
                side.model.check_read(req.offset, &p.data, p.start, self.time)
            }
            Op::Write { .. } if p.copied.iter().any(|&n| n != 1) => {
                Err(format!("{req:?} was answered, and its data not fetched exactly once"))
            }
            Op::Flush => {
                let reads = self.requests.values().filter(|r| r.req.op == Op::Read);
                side.model.flushed(p.start, reads.map(|r| r.start).min().unwrap_or(u64::MAX));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Effects for World {
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        let Some(p) = self.requests.get_mut(&req.tag) else {
            return self.violate(format!("data for {req:?}, which is not under way"));
        };
        if p.req.op != Op::Read || at + bytes.len() > p.data.len() {
            let what = format!("data past the end of {:?}", p.req);
            return self.violate(what);
        }
        p.data[at..at + bytes.len()].copy_from_slice(bytes);
        p.copied[at..at + bytes.len()].fill(1);
        let side = &mut self.sides[p.req.disk.0 as usize];
        if let Some(guest) = side.guest.as_mut().filter(|_| p.memory == side.memory) {
            let mut done = 0;
            while done < bytes.len() {
                let (page, skip) = ((at + done) / FRAME_BYTES, (at + done) % FRAME_BYTES);
                let here = (FRAME_BYTES - skip).min(bytes.len() - done);
                if let Some(&page) = p.pages.get(page) {
                    guest.fill(page, skip, &bytes[done..done + here]);
                }
                done += here;
            }
        }
    }

    fn guest_page(&mut self, req: ReqId, at: usize) -> Option<u32> {
        let p = self.requests.get(&req.tag)?;
        let side = &self.sides[p.req.disk.0 as usize];
        if !at.is_multiple_of(FRAME_BYTES) || p.memory != side.memory || at + FRAME_BYTES > p.data.len() {
            return None;
        }
        p.pages.get(at / FRAME_BYTES).copied()
    }

    fn copy_guest_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; FRAME_BYTES]) -> bool {
        let guest = self.sides[disk.0 as usize].guest.as_mut();
        guest.is_some_and(|g| g.copy(page, to, &mut self.guest_rng))
    }

    fn captured(&mut self, disk: DiskId, block: u64, bytes: &[u8; FRAME_BYTES]) -> bool {
        self.captures += 1;
        self.note(|| format!("  captured block {block} of disk {}", disk.0));
        let now = self.time;
        let side = &mut self.sides[disk.0 as usize];
        // As if somebody had read it at this moment: it must be what the disk holds, or may hold.
        if let Err(what) = side.model.check_read(block * FRAME_BYTES as u64, bytes, now, now) {
            self.violate(format!("a captured page is not the block: {what}"));
        }
        true
    }

    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        let Some(p) = self.requests.get_mut(&req.tag) else {
            return self.violate(format!("fetching from {req:?}, which is not under way"));
        };
        if !matches!(p.req.op, Op::Write { .. }) || at + bytes.len() > p.copied.len() {
            let what = format!("fetching past the end of {:?}", p.req);
            return self.violate(what);
        }
        p.copied[at..at + bytes.len()].iter_mut().for_each(|n| *n += 1);
        fill_pattern(p.number, p.req.offset + at as u64, bytes);
    }

    fn submit(&mut self, io: Io) {
        self.note(|| format!("  submit {:?} disk {} {:?} {}+{}", io.op, io.disk.0, io.kind, io.offset, io.len));
        self.time += 1;
        let now = self.time;
        let side = &mut self.sides[io.disk.0 as usize];
        let changes = matches!(io.kind, IoKind::Write { .. } | IoKind::WriteZeroes { .. } | IoKind::Discard);
        if let Some(base) = side.base.as_mut().filter(|_| changes) {
            base.change(io.offset, io.len);
        }
        if let Err(why) = self.sides[io.disk.0 as usize].disk.submit(io, now) {
            self.violate(why);
        }
    }

    fn paused(&mut self, req: ReqId, paused: Paused) {
        self.note(|| format!("  paused {req:?}"));
        self.paused.push(paused);
    }

    fn extents(&mut self, req: ReqId, extents: &[Extent]) {
        let Some(p) = self.requests.get_mut(&req.tag) else {
            return self.violate(format!("extents for {req:?}, which is not under way"));
        };
        let sum: u64 = extents.iter().map(|e| e.len).sum();
        if p.req.op != Op::Status || sum == 0 || sum > p.req.len {
            let what = format!("extents of {sum} bytes for {:?}", p.req);
            return self.violate(what);
        }
        p.copied = vec![1];
    }

    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        self.note(|| format!("  reply {req:?} {result:?}"));
        self.time += 1;
        self.answers += 1;
        let Some(p) = self.requests.remove(&req.tag) else {
            return self.violate(format!("an answer for {req:?}, which is not under way"));
        };
        if p.req.op == Op::Status && p.must.is_none() && result.is_ok() && p.req.len > 0 && p.copied.is_empty() {
            return self.violate(format!("{:?} was answered without extents", p.req));
        }
        if let Err(what) = self.judge(p, result) {
            self.violate(what);
        }
    }
}
