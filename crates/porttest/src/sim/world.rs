//! Everything but the ports' insides: disks, the models they are held to, clients, and the way between core and ports.
//!
//! Owns what outlives a process. Never calls the core. Invariants: what a client is told is judged once; from the
//! moment at which the process dies, nothing that it does reaches anybody.

use super::coverage::Coverage;
use super::port::{OVER_NBD, SimPort};
use crate::faults::living;
use crate::work::{Finished, Part, Verb, Violation, Work};
use std::collections::BTreeMap;
use std::ops::Range;
use undercroft_cache::{DiskId, Effects, Extent, Io, IoDone, IoError, IoKind, Paused, ReqId};
use undercroft_frontend::DiskInfo;
use undercroft_frontend::faults::StoreSite;
use undercroft_frontend::turns::{LONE_SEND_BYTES, SEND_BYTES};
use undercroft_host::IoBuf;
use undercroft_testkit::model::{Change, Model};
use undercroft_testkit::rng::Rng;
use undercroft_testkit::sim_disk::SimDisk;

/// Bytes of a block.
pub(super) const B: u64 = 4096;
/// Answers of the same disk that may overtake a piece of work. Disks serve operations in any order, so that one may be
/// unlucky for long, but not for ever.
const PATIENCE: u64 = 4000;

/// One disk.
pub(super) struct Side {
    pub info: DiskInfo,
    pub disk: SimDisk,
    pub model: Model,
    /// Bytes that cannot be read; whole blocks.
    pub bad: Option<Range<u64>>,
    /// Reads that fail for that.
    pub bad_ops: Vec<Io>,
    /// Answers that clients have seen.
    pub answers: u64,
    /// Whether anything was acknowledged as durable since the last power cut.
    pub durable: (bool, bool),
    /// Losses of writes since the process began, and when the last one was.
    pub losses: u32,
    pub lost: u64,
    /// Step of the last completion.
    pub answered: u64,
    /// How far after multiples of 4096 bytes the guest's pages begin, and how far the blocks of the core do now.
    pub behind: u64,
    pub block_offset: u64,
}

impl Side {
    pub(super) fn new(info: DiskInfo, disk: SimDisk, bad: Option<Range<u64>>) -> Side {
        Side {
            info,
            model: Model::new(disk.medium()),
            disk,
            bad,
            bad_ops: Vec::new(),
            answers: 0,
            durable: (false, false),
            losses: 0,
            lost: 0,
            answered: 0,
            behind: 0,
            block_offset: 0,
        }
    }
}

/// See the head of the file.
pub(super) struct World {
    pub sides: Vec<Side>,
    pub ports: Vec<SimPort>,
    /// Counts every event.
    pub time: u64,
    /// Where the process has died, until a new one is there.
    pub dead: Option<StoreSite>,
    /// Memory of operations that a dead process has submitted.
    pub grave: Vec<IoBuf>,
    /// Whether the last port that sent was let send as much as one of a disk that is alone.
    pub large_sends: bool,
    /// Requests that the core has: port and tag, and the step at which it saw them.
    pub open: BTreeMap<(u32, u32), u64>,
    /// Ports that slept when a request of theirs was paused.
    pub to_wake: Vec<usize>,
    /// Turns that a port with work waited for at most.
    pub longest_wait: u64,
    /// One in so many pieces of data is lost on the way to a port: a core that does not keep its word.
    pub loses_one_in: u64,
    pub lossy: Rng,
    pub violation: Option<String>,
    pub log: Option<Vec<String>>,
    pub coverage: Coverage,
    pub answers: u64,
    changes: u64,
}

impl World {
    pub(super) fn new(sides: Vec<Side>, lossy: Rng, with_log: bool) -> World {
        World {
            sides,
            ports: Vec::new(),
            time: 1,
            dead: None,
            grave: Vec::new(),
            large_sends: false,
            open: BTreeMap::new(),
            to_wake: Vec::new(),
            longest_wait: 0,
            loses_one_in: 0,
            lossy,
            violation: None,
            log: with_log.then(Vec::new),
            coverage: Coverage::default(),
            answers: 0,
            changes: 0,
        }
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    pub(super) fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let time = self.time;
        if let Some(log) = &mut self.log {
            log.push(format!("{time}: {}", what()));
        }
    }

    /// The process has died at a store, if it has.
    pub(super) fn lived(&mut self, result: Result<(), StoreSite>) {
        if let Err(site) = result {
            self.note(|| format!("KILLED at {site:?}"));
            self.dead.get_or_insert(site);
        }
    }

    /// Begins a piece of work of a disk, as far as its model can follow; `None` if it cannot at all.
    pub(super) fn begin(
        &mut self,
        d: usize,
        verb: Verb,
        ranges: &[(u64, u64)],
        fua: bool,
        unmap: bool,
    ) -> Option<Work> {
        let now = self.tick();
        let side = &mut self.sides[d];
        let mut parts = Vec::new();
        for &(offset, len) in ranges {
            let mut change = 0;
            if matches!(verb, Verb::Write | Verb::Discard | Verb::Zeroes) {
                if !side.model.has_room(offset, len) {
                    continue;
                }
                self.changes += 1;
                change = self.changes;
                side.model.begin(change, what(verb, change), offset, len, now);
            }
            parts.push(Part { offset, len, change });
        }
        if parts.is_empty() && !ranges.is_empty() {
            return None;
        }
        let (failures, answers) = (side.disk.failures, side.answers);
        Some(Work { verb, parts, fua, unmap, start: now, failures, answers, marks: Vec::new() })
    }

    /// Work that nobody will hear the end of; what it changes may have been changed, or not.
    pub(super) fn forget(&mut self, d: usize, work: &Work) {
        let now = self.tick();
        for part in work.parts.iter().filter(|p| p.change != 0) {
            self.sides[d].model.end(part.change, false, false, now);
        }
    }

    /// Judges work of port `p` that its client has seen the end of.
    pub(super) fn judge(&mut self, p: usize, mut finished: Vec<Finished>) {
        // What was seen together ended at the same time; a flush makes the model forget what reads may have seen.
        // Of what is seen at once, what failed may have been answered first: it tells of lost writes.
        finished.sort_by_key(|f| u8::from(f.ok) * (1 + u8::from(f.work.verb == Verb::Flush)));
        for f in finished {
            self.note(|| format!("port {p} sees the end of {:?}: {}", f.work, if f.ok { "ok" } else { "failed" }));
            if let Err(what) = self.judge_one(p, &f) {
                self.violate(format!("port {p}: {what}"));
            }
        }
    }

    fn judge_one(&mut self, p: usize, f: &Finished) -> Result<(), Violation> {
        let now = self.tick();
        self.answers += 1;
        let d = self.ports[p].disk;
        let Finished { work, ok, data } = f;
        let over = self.ports[p].peer.over();
        self.cover(work, *ok, over, self.sides[d].block_offset);
        let oldest = {
            let reads = self.ports.iter_mut().filter(|port| port.disk == d);
            reads.flat_map(SimPort::works).filter(|w| w.verb == Verb::Read).map(|w| w.start).min()
        };
        let side = &mut self.sides[d];
        side.answers += 1;
        for part in work.parts.iter().filter(|p| p.change != 0) {
            side.model.end(part.change, *ok, work.fua && work.verb != Verb::Discard, now);
        }
        if work.verb == Verb::Wrong {
            return if *ok { Err(format!("{work:?} makes no sense, and went well").into()) } else { Ok(()) };
        }
        // Blocks may have begun at multiples of 4096 bytes, or where the guest's pages do.
        let in_bad = |part: &Part| {
            [0, side.behind].into_iter().any(|begin| {
                let lead = (B - begin) % B;
                let blocks = (part.offset + lead) / B * B..(part.offset + part.len + lead).next_multiple_of(B);
                side.bad.as_ref().is_some_and(|bad| bad.start + lead < blocks.end && blocks.start < bad.end + lead)
            })
        };
        let lost = self.loses_one_in > 0 && work.verb == Verb::Read;
        let excused = side.disk.failures != work.failures || work.parts.iter().any(in_bad) || lost;
        if let Some(judged) = self.judge_loss(p, f, excused) {
            return judged;
        }
        let side = &mut self.sides[d];
        if !ok {
            if !excused {
                return Err(format!("{work:?} failed, though the disk did not fail there").into());
            }
            return Ok(());
        }
        match work.verb {
            Verb::Read => side.model.check_read(work.parts[0].offset, data, work.start, now)?,
            Verb::Flush => {
                side.model.flushed(work.start, oldest.unwrap_or(u64::MAX));
                side.durable.1 = true;
            }
            Verb::Write | Verb::Zeroes if work.fua => side.durable.0 = true,
            _ => {}
        }
        Ok(())
    }

    /// Notes which rare things have met in what is over.
    fn cover(&mut self, work: &Work, ok: bool, over: &'static str, block_offset: u64) {
        let nbd = over == OVER_NBD;
        let c = &mut self.coverage;
        let has = |mark| work.marks.contains(&mark);
        if !ok && work.verb == Verb::Wrong {
            c.met("refused", format!("over {over}"));
        } else if !ok {
            match work.verb {
                Verb::Discard if nbd && work.fua => c.met("failed", "NBD trim with FUA"),
                Verb::Zeroes if nbd && work.fua => c.met("failed", "NBD zeroes with FUA"),
                Verb::Discard | Verb::Zeroes if work.parts.len() > 1 => c.met("failed", "several ranges"),
                Verb::Cache if work.parts[0].len > 1 << 20 => c.met("failed", "NBD prefetch of several steps"),
                Verb::Read => c.met("failed", "read"),
                Verb::Write => c.met("failed", "write"),
                Verb::Flush => c.met("failed", "flush"),
                _ => {}
            }
        }
        for regions in ["read", "write"] {
            let verb = if regions == "read" { Verb::Read } else { Verb::Write };
            if has("in two regions") && work.verb == verb {
                c.met("in two regions", regions);
            }
        }
        if has("arrived in pieces") && work.verb == Verb::Write {
            c.met("arrived in pieces", "write");
        }
        if has("arrived in pieces") && work.verb == Verb::Read && has("structured") {
            c.met("arrived in pieces", "structured read");
        }
        if has("left in pieces") && work.verb == Verb::Read {
            for mark in ["structured", "unaligned"].into_iter().filter(|m| has(m)) {
                c.met("left in pieces", format!("{mark} read"));
            }
        }
        if has("wrap") {
            c.met("wrap", "of the available index");
        }
        if block_offset != 0 && ok && work.verb == Verb::Read && work.parts[0].len > B {
            c.met("blocks begin elsewhere", format!("a long read over {over}"));
        }
        if has("beside the bad sector") && ok && work.verb == Verb::Read {
            c.met("bad sector", "beside a healthy read");
        }
    }

    /// That nothing has waited while too much else was answered.
    pub(super) fn judge_patience(&mut self) {
        let mut late = None;
        for p in 0..self.ports.len() {
            let d = self.ports[p].disk;
            let answers = self.sides[d].answers;
            if let Some(work) = self.ports[p].works().find(|w| answers - w.answers > PATIENCE) {
                late = Some(format!("port {p}: {work:?} starves: {} answers since", answers - work.answers));
            }
        }
        late.into_iter().for_each(|what| self.violate(what));
    }

    /// Sends what the replies since the last time need.
    pub(super) fn flush_ports(&mut self) {
        for p in 0..self.ports.len() {
            if self.dead.is_none() && std::mem::take(&mut self.ports[p].dirty) {
                // As much as a worker sends for a disk among others, or for one that is alone.
                self.large_sends = !self.large_sends;
                let most = if self.large_sends { LONE_SEND_BYTES } else { SEND_BYTES };
                let port = self.ports[p].port();
                let mut more = false;
                let result = living(|| {
                    port.flush(most);
                    more = port.has_more_to_send();
                });
                // As with a worker, what one call did not send goes out later, whether its port sleeps or not.
                self.ports[p].dirty |= more;
                self.lived(result);
            }
        }
    }
}

/// What a change does.
pub(super) fn what(verb: Verb, number: u64) -> Change {
    match verb {
        Verb::Write => Change::Data(number),
        Verb::Zeroes => Change::Zeroes,
        _ => Change::Discard,
    }
}

impl Side {
    /// Lets one operation take effect, or a read of what cannot be read fail.
    pub(super) fn execute(&mut self, rng: &mut Rng) -> bool {
        self.disk.execute(rng)
    }

    /// The completion of some operation.
    pub(super) fn deliver(&mut self, rng: &mut Rng, now: u64) -> Option<IoDone> {
        if !self.bad_ops.is_empty() && rng.one_in(2) {
            let io = self.bad_ops.swap_remove(rng.below(self.bad_ops.len() as u64) as usize);
            let result = Err(IoError::Io);
            return Some(IoDone { op: io.op, disk: io.disk, buf: io.buf, result, extents: Vec::new() });
        }
        self.disk.deliver(rng, now)
    }

    /// Operations under way.
    pub(super) fn under_way(&self) -> usize {
        self.disk.under_way() + self.bad_ops.len()
    }
}

impl Effects for World {
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        if self.dead.is_some() || self.loses_one_in > 0 && self.lossy.one_in(self.loses_one_in) {
            return;
        }
        let port = self.ports[req.port as usize].port();
        // Where its guest migrates, data are marked in a log that outlives the process.
        let lived = living(|| port.copy_out(req.tag, at, bytes));
        self.lived(lived);
    }

    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        if self.dead.is_none() {
            self.ports[req.port as usize].port().copy_in(req.tag, at, bytes);
        }
    }

    fn guest_page(&mut self, req: ReqId, at: usize) -> Option<u32> {
        if self.dead.is_some() { None } else { self.ports[req.port as usize].memory()?.page(req.tag, at) }
    }

    fn guest_pages(&mut self, req: ReqId, at: usize, pages: &mut [u32]) -> usize {
        if self.dead.is_some() {
            return 0;
        }
        let Some(memory) = self.ports[req.port as usize].memory() else { return 0 };
        let known = memory.pages(req.tag, at, pages);
        for (n, &page) in pages[..known].iter().enumerate() {
            assert_eq!(
                memory.page(req.tag, at + n * 4096),
                Some(page),
                "a page by itself is another than among others"
            );
        }
        known
    }

    fn copy_guest_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; 4096]) -> bool {
        // One guest for each disk.
        let guest = self.ports.iter_mut().filter(|p| p.disk == disk.0 as usize).find_map(SimPort::guest);
        match guest.map(|guest| guest.copy_page(page, to)) {
            Some(Ok(copied)) => {
                self.coverage.met("page of a guest", "copied for the cache");
                if !copied {
                    self.coverage.met("memory given back", "before it was to be copied");
                }
                copied
            }
            Some(Err(what)) => {
                self.violate(what.to_string());
                false
            }
            None => false,
        }
    }

    fn captured(&mut self, disk: DiskId, at: u64, bytes: &[u8; 4096]) -> bool {
        let now = self.time;
        // As if somebody had read it at this moment.
        if self.dead.is_none()
            && let Err(what) = self.sides[disk.0 as usize].model.check_read(at, bytes, now, now)
        {
            self.violate(format!("a captured page is not the block: {what}"));
        }
        true
    }

    fn submit(&mut self, io: Io) {
        if self.dead.is_some() {
            self.grave.push(io.buf);
            return;
        }
        let now = self.tick();
        let side = &mut self.sides[io.disk.0 as usize];
        let bad = side.bad.as_ref().is_some_and(|bad| bad.start < io.offset + io.len && io.offset < bad.end);
        if bad && io.kind == IoKind::Read {
            side.bad_ops.push(io);
        } else if let Err(why) = side.disk.submit(io, now) {
            self.violate(why.to_string());
        }
    }

    fn paused(&mut self, req: ReqId, paused: Paused) {
        self.note(|| format!("  core pauses {req:?}"));
        let slot = &mut self.ports[req.port as usize];
        let active = slot.active;
        if slot.backlog.pause(req.tag, paused, active) {
            self.coverage.met("paused", "while its port slept");
            self.to_wake.push(req.port as usize);
        }
    }

    fn unfinished(&mut self, done: IoDone) {
        if self.dead.is_some() {
            self.grave.push(done.buf);
            return;
        }
        self.note(|| format!("  a part of an operation, {:?} is left", done.op));
        self.coverage.met("finished operation", "in steps");
        self.sides[done.disk.0 as usize].disk.deliver_later(done);
    }

    fn extents(&mut self, req: ReqId, extents: &[Extent]) {
        if self.dead.is_none() {
            self.ports[req.port as usize].port().extents(req.tag, extents);
        }
    }

    fn unheard(&mut self, req: ReqId) -> bool {
        let unheard = self.dead.is_none() && self.ports[req.port as usize].port().unheard();
        if unheard {
            self.coverage.met("lost writes", "a failure answered to nobody");
        }
        unheard
    }

    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        if self.dead.is_some() {
            return;
        }
        self.note(|| format!("  core answers {req:?} {result:?}"));
        self.open.remove(&(req.port, req.tag));
        let slot = &mut self.ports[req.port as usize];
        slot.dirty = true;
        let port = slot.port();
        let lived = living(|| port.reply(req.tag, result));
        self.lived(lived);
    }
}
