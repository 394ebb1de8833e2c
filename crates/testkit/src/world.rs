//! What surrounds the core in a simulation: disks, their models, and the clients with their requests.
//!
//! Owns what the core must not know, and checks everything the core does against it. Never calls the core.
//! Invariant: a request is in `requests` from its start until its answer, and is answered once.

mod effects;
mod guests;
mod judge;

use crate::alike::{SimBase, number_of};
use crate::coverage::{Conditions, Coverage, Seen, While};
use crate::model::{Change, Model, SECTOR};
use crate::rng::{Rng, fill_pattern};
use crate::sim_disk::SimDisk;
use crate::sim_guest::SimGuest;
use crate::violation::Violation;
use std::collections::{BTreeMap, HashMap};
use undercroft_cache::{DiskId, Found, Io, IoDone, IoError, IoKind, Op, OpId, Paused, ReqId, Request};
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
    /// How its blocks were found, if not all were cached.
    pub found: Option<Found>,
    /// Operations that its disk had delivered when it started, and those that it delivered while the request waited to
    /// be resumed: that is for the run to decide, and no fault of the core's.
    pub deliveries: u64,
    /// What had to be done then on that disk, for this request and those before it, and later for changes that it waits
    /// for: see [`work_of`].
    pub work: u64,
    /// It must fail, since the disk has lost what it had not flushed.
    pub doomed: bool,
}

/// A request that waits to be resumed.
#[derive(Clone, Copy, Debug)]
pub struct Resumable {
    /// What the core is told.
    pub paused: Paused,
    /// The request's tag.
    pub tag: u32,
    /// How many had gone on when it was paused.
    pub at: u64,
    /// Operations that its disk had delivered then.
    pub deliveries: u64,
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
    /// The memory of a guest that its port sees, if it sees one: a key of `memories`.
    pub sees: Option<u64>,
    /// What it is to see from some later moment on, while other disks of the guest see that already.
    pub awaits: Option<Option<u64>>,
    /// Counts the guests and their memories.
    pub memory: u32,
    /// The disk that has the guest: another one, if the guest has several.
    pub guest_of: usize,
    /// The guest's pages hold something else than what was read from the disk or written to it: it is encrypted.
    pub opaque: bool,
    /// Requests under way.
    pub pending: u64,
    /// The most that were under way together.
    pub crowd: u64,
    /// The work of those: see [`work_of`].
    pub work: u64,
    /// Conditions that the disk is in, as far as its operations do not show them.
    pub conditions: Conditions,
    /// Operations delivered when it was last invalidated.
    pub invalidated: u64,
    /// A read has hit since a write failed, not long ago.
    hit_since_failed: bool,
    /// Its ports that have not been told yet that writes were lost.
    pub untold: Vec<u32>,
    /// When that was.
    pub lost: u64,
    /// The core is about to flush the disk by itself.
    pub expects_flush: bool,
    /// Such flushes that are under way.
    pub own_flushes: Vec<OpId>,
}

/// Operations of its disk that a request may see pass without any of its own, before it counts as slow: more than a
/// patient disk has others go first, and so do the disks of some runs.
const PATIENCE: u64 = 128;

/// Operations that a request may wait for at most, for each that it, or one before it, needs. A request is passed by
/// others that it has nothing to do with, hits and changes of other blocks among them. Three are the most seen without
/// a bug in hundreds of runs, eight in tens of thousands (small requests among paused ones, of which a step is 64
/// operations); who is forgotten waits without end.
const WAITS_MAX: u64 = 12;

/// Operations that something counts as recent for.
const RECENT: u64 = 16;

/// What a request may take of its disk, in operations: one for each block, as the smallest disk has it, and as much
/// again for what fails and is done a second time.
pub(crate) fn work_of(req: &Request) -> u64 {
    match req.op {
        Op::Flush | Op::Status | Op::Discard => 2,
        Op::WriteZeroes { .. } | Op::Read | Op::Write { .. } => {
            2 + 2 * req.len.min(1 << 24).div_ceil(FRAME_BYTES as u64)
        }
    }
}

/// The bytes of a request as its disk can read or write them.
fn aligned(req: &Request, align: u64) -> (u64, u64) {
    (req.offset / align * align, (req.offset + req.len).next_multiple_of(align))
}

/// See the head of the file.
pub struct World {
    /// The disks, by number.
    pub sides: Vec<SimSide>,
    /// The devices of the SSD store.
    pub devices: Vec<SimDisk>,
    /// Memories of guests, by number.
    pub memories: BTreeMap<u64, SimGuest>,
    /// Requests under way, by tag.
    pub requests: HashMap<u32, Pending>,
    /// Counts every event.
    pub time: u64,
    /// The first thing that went wrong.
    pub violation: Option<Violation>,
    /// The last events, if they are wanted.
    pub log: Option<Vec<String>>,
    /// Answers given.
    pub answers: u64,
    /// Copies of guest pages that became cached.
    pub captures: u64,
    /// Those of them that do not begin at a multiple of 4096.
    pub captures_across: u64,
    /// Requests that wait to be resumed.
    pub paused: Vec<Resumable>,
    /// Requests that have gone on.
    pub resumed: u64,
    /// What guests do by themselves; apart from what drives the run.
    pub guest_rng: Rng,
    /// What was seen under which conditions.
    pub coverage: Coverage,
    /// The longest that a request waited, in operations of its disk for each of its work.
    pub slowest: u64,
    /// Ports of each disk: requests come from them in turn.
    pub ports: u32,
    changes: u64,
    tags: u32,
    /// Memories that there have been.
    seen: u64,
}

impl World {
    /// A world with these disks.
    pub fn new(disks: Vec<SimDisk>, guest_seed: u64, with_log: bool) -> Self {
        let sides = disks
            .into_iter()
            .map(|disk| {
                let model = Model::sparse(disk.medium(), disk.space().clone());
                SimSide {
                    model,
                    disk,
                    sequential: 0,
                    group: 0,
                    base: None,
                    sees: None,
                    awaits: None,
                    memory: 0,
                    guest_of: 0,
                    opaque: false,
                    pending: 0,
                    crowd: 0,
                    work: 0,
                    conditions: Conditions::default(),
                    invalidated: 0,
                    hit_since_failed: false,
                    untold: Vec::new(),
                    lost: 0,
                    expects_flush: false,
                    own_flushes: Vec::new(),
                }
            })
            .enumerate()
            .map(|(i, side)| SimSide { guest_of: i, ..side })
            .collect();
        Self {
            sides,
            devices: Vec::new(),
            memories: BTreeMap::new(),
            requests: HashMap::new(),
            time: 1,
            violation: None,
            log: with_log.then(Vec::new),
            answers: 0,
            captures: 0,
            captures_across: 0,
            paused: Vec::new(),
            resumed: 0,
            guest_rng: Rng::new(guest_seed),
            coverage: Coverage::default(),
            slowest: 0,
            ports: 1,
            changes: 0,
            tags: 0,
            seen: 0,
        }
    }

    /// A later moment.
    pub fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Notes what went wrong, if nothing did before.
    pub fn violate(&mut self, what: impl Into<Violation>) {
        let what = what.into();
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
        let port = self.tags % self.ports;
        req.id = ReqId { port: self.port_of(req.disk, port), tag: self.tags };
        self.see_start(&req, must.is_some());
        let d = req.disk.0 as usize;
        let side = &mut self.sides[d];
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
            found: None,
            deliveries: side.disk.deliveries,
            work: side.work,
            doomed: false,
        };
        let mut pending = pending;
        let (sees, opaque) = (side.sees, side.opaque);
        if let Some(guest) = sees.and_then(|id| self.memories.get_mut(&id))
            && bytes > 0
        {
            let n = bytes.div_ceil(FRAME_BYTES);
            pending.pages = (0..n).map(|_| guest.take_page(&mut self.guest_rng)).collect();
            if change.is_some() {
                let mut data = vec![0; bytes];
                fill_pattern(number, req.offset, &mut data);
                for (page, part) in pending.pages.iter().zip(data.chunks(FRAME_BYTES)) {
                    guest.fill(*page, 0, part, opaque);
                }
            }
        }
        self.requests.insert(self.tags, pending);
        self.note(|| format!("request {req:?}"));
        Some(req)
    }

    /// Notes what a request that begins means for its disk.
    fn see_start(&mut self, req: &Request, refused: bool) {
        let d = req.disk.0 as usize;
        let work = if refused { 0 } else { work_of(req) };
        let side = &mut self.sides[d];
        side.pending += 1;
        side.crowd = side.crowd.max(side.pending);
        side.work += work;
        if refused {
            return;
        }
        if matches!(req.op, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Discard) {
            // Reads that have not come to these blocks yet will wait for it, and for what it waits for.
            let (before, blocks) = (side.work, |r: &Request| {
                (r.offset / FRAME_BYTES as u64, (r.offset + r.len).div_ceil(FRAME_BYTES as u64))
            });
            let (first, end) = blocks(req);
            for p in self
                .requests
                .values_mut()
                .filter(|p| p.req.disk == req.disk && p.req.op == Op::Read && p.must.is_none())
            {
                let (from, to) = blocks(&p.req);
                if from < end && first < to {
                    p.work += before;
                }
            }
        }
        let what = match req.op {
            Op::Write { .. } => Seen::Write,
            Op::Flush => Seen::Flush,
            Op::Discard => Seen::Discard,
            Op::WriteZeroes { .. } => Seen::Zeroes,
            Op::Status => Seen::Status,
            Op::Read => return,
        };
        self.see(what, d);
    }

    /// Counts an event of a disk under the conditions that the disk is in.
    pub fn see(&mut self, what: Seen, d: usize) {
        let side = &self.sides[d];
        let mut c = side.conditions;
        let disk = &side.disk;
        c.set(While::Reading, disk.has_under_way(|io| io.kind == IoKind::Read));
        c.set(While::Writing, disk.has_under_way(|io| matches!(io.kind, IoKind::Write { .. })));
        let clears = |io: &Io| matches!(io.kind, IoKind::WriteZeroes { .. } | IoKind::Discard);
        c.set(While::Clearing, disk.has_under_way(clears));
        c.set(While::Flushing, disk.has_under_way(|io| io.kind == IoKind::Flush));
        c.set(While::AfterReadFailed, disk.failed_lately(RECENT, |f| f.kind == IoKind::Read));
        let failed = disk.failed_lately(RECENT, |f| matches!(f.kind, IoKind::Write { .. }));
        let hit = failed && side.hit_since_failed;
        c.set(While::AfterWriteFailed, failed);
        c.set(While::AfterWriteFailedAndHit, hit);
        c.set(While::AfterInvalidate, side.invalidated > 0 && disk.deliveries - side.invalidated < RECENT);
        c.set(While::Guest, side.sees.is_some());
        let shared = self.sides.iter().filter(|s| s.guest_of == side.guest_of).count() > 1;
        c.set(While::TwoDisks, shared && c.has(While::Guest));
        c.set(While::Base, side.base.is_some());
        c.set(While::BaseParts, side.base.is_some() && c.has(While::Parts));
        c.set(While::BaseOver, side.base.is_some() && c.has(While::Over));
        c.set(While::Sparse, !disk.space().is_dense());
        c.set(While::Bad, !disk.bad.is_empty());
        self.coverage.saw(what, c);
        self.sides[d].hit_since_failed = failed && (hit || what == Seen::Hit);
    }

    /// Forgets failures of disks that no request under way has seen.
    pub(crate) fn forget_failures(&mut self) {
        for (d, side) in self.sides.iter_mut().enumerate() {
            let those = self.requests.values().filter(|p| p.req.disk.0 as usize == d);
            side.disk.forget_failures(those.map(|p| p.start).min().unwrap_or(u64::MAX));
        }
    }

    /// A disk of which all is discarded, and whose discard waits to be resumed.
    pub(crate) fn drops_in_steps(&self) -> Option<usize> {
        self.paused.iter().filter_map(|p| self.requests.get(&p.tag)).find_map(|p| {
            let d = p.req.disk.0 as usize;
            (p.req.op == Op::Discard && p.req.len == self.sides[d].disk.geometry.size).then_some(d)
        })
    }

    /// A request that waits to be resumed, by its place among them, goes on: what the core is to be told.
    pub(crate) fn goes_on(&mut self, i: usize) -> Paused {
        let Resumable { paused, tag, deliveries, .. } = self.paused.swap_remove(i);
        self.resumed += 1;
        if let Some(req) = self.requests.get_mut(&tag) {
            req.deliveries += self.sides[paused.disk.0 as usize].disk.deliveries - deliveries;
        }
        paused
    }

    /// The core is gone, and every request with it.
    pub(crate) fn forget_requests(&mut self) {
        self.requests.clear();
        self.paused.clear();
        for side in &mut self.sides {
            (side.pending, side.work) = (0, 0);
            side.untold.clear();
            side.own_flushes.clear();
        }
    }

    /// An operation of a disk is delivered: a flush of the core's own that failed has taken the failure from that of a
    /// client, so every port is to be told, and flushes under way fail.
    pub(crate) fn delivered(&mut self, done: &IoDone) {
        let d = done.disk.0 as usize;
        let Some(side) = self.sides.get_mut(d) else { return };
        let Some(at) = side.own_flushes.iter().position(|op| *op == done.op) else { return };
        side.own_flushes.swap_remove(at);
        if done.result.is_err() {
            self.time += 1;
            self.sides[d].lost = self.time;
            self.all_are_to_be_told(d);
            self.doom_flushes(d);
        }
    }

    /// Flushes of a disk that are under way would vouch for what is lost.
    fn doom_flushes(&mut self, d: usize) {
        for p in self.requests.values_mut().filter(|p| p.req.disk.0 as usize == d && p.must.is_none()) {
            p.doomed |= p.req.op == Op::Flush;
        }
    }

    /// Every port of a disk is to be told of a loss, once.
    pub(crate) fn all_are_to_be_told(&mut self, d: usize) {
        self.sides[d].untold = (0..self.ports).map(|n| self.port_of(DiskId(d as u32), n)).collect();
    }

    /// The number of a disk's port.
    pub(crate) fn port_of(&self, disk: DiskId, nth: u32) -> u32 {
        disk.0 + 16 * nth
    }

    /// A disk loses what is volatile, here and there. Returns the blocks that were written since the last flush, which
    /// is more than was lost; nothing if there are none.
    pub fn lose(&mut self, d: usize) -> Vec<std::ops::Range<u64>> {
        self.time += 1;
        let now = self.time;
        let ports: Vec<u32> = (0..self.ports).map(|n| self.port_of(DiskId(d as u32), n)).collect();
        let side = &mut self.sides[d];
        let disk = &mut side.disk;
        let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
        for sector in disk.volatile_sectors() {
            let block = disk.space().place((sector * SECTOR) as u64).0 / FRAME_BYTES as u64 * FRAME_BYTES as u64;
            let end = block + FRAME_BYTES as u64;
            match ranges.last_mut() {
                Some(last) if last.end >= block => last.end = end,
                _ => ranges.push(block..end),
            }
        }
        if ranges.is_empty() {
            return ranges;
        }
        let space = disk.space().clone();
        let model = &side.model;
        // A change under way writes whole units of the alignment: what it brings back is not lost.
        let align = disk.geometry.align.max(SECTOR as u64);
        let quiet = |sector: usize| {
            let at = space.place((sector * SECTOR) as u64).0 / align * align;
            model.is_quiet(at, align)
        };
        let lost = disk.lose(quiet, &mut self.guest_rng);
        for sector in lost {
            let held = disk.medium();
            let held = held[sector * SECTOR..held.len().min((sector + 1) * SECTOR)].to_vec();
            if let Err(what) = side.model.lose(sector, &held, now) {
                return self.fail(what, ranges);
            }
        }
        side.lost = now;
        side.untold = ports;
        self.doom_flushes(d);
        ranges
    }

    fn fail<T>(&mut self, what: impl Into<Violation>, t: T) -> T {
        self.violate(what);
        t
    }

    /// Another program writes to a disk: the model and the disk have it at once. False if that cannot be now, because a
    /// change of these bytes is under way.
    pub(crate) fn write_elsewhere(&mut self, d: usize, offset: u64, len: u64) -> bool {
        let side = &mut self.sides[d];
        let align = side.disk.geometry.align.max(512);
        let (lo, hi) = (offset / align * align, (offset + len).next_multiple_of(align));
        if !side.model.is_quiet(lo, hi - lo) || !side.model.has_room(offset, len) {
            return false;
        }
        self.changes += 1;
        self.time += 2;
        let number = number_of(self.changes, side.group);
        let mut bytes = vec![0; len as usize];
        fill_pattern(number, offset, &mut bytes);
        side.model.begin(self.changes, Change::Data(number), offset, len, self.time - 1);
        side.disk.written_elsewhere(offset, &bytes);
        side.model.end(self.changes, true, true, self.time);
        if let Some(base) = &mut side.base {
            base.change(offset, len);
        }
        true
    }
}
