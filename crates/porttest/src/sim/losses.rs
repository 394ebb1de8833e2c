//! An upstream that loses what was not flushed: each port of its disk is told by one flush, or one change that has to
//! be durable, that fails.
//!
//! Owns what a port has been told, as far as its client can know it. Never asks the core. Invariant: a failure that no
//! loss and no failed operation excuses is a violation, and so is a success that hides a loss.

use super::Sim;
use super::port::{Peer, SimPort};
use super::world::{B, World};
use crate::faults::Switched;
use crate::work::{Finished, Verb, Violation, Work};
use std::ops::Range;
use undercroft_cache::{DiskId, Event, Lost};
use undercroft_frontend::faults::{PortBug, PortFaults};
use undercroft_testkit::model::SECTOR;

/// Steps from one [`Sim::lose_and_reconnect`] to the next, in the runs that have it.
pub(super) const STEPS_BETWEEN: u64 = 256;

/// Whether a port's client has been told of the last loss of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Told {
    /// It has, or there was none.
    #[default]
    Yes,
    /// Not yet: of what asks for durability from then on the first must fail.
    No(u64),
    /// It may have been: what told it may have failed for another reason, or its answer may have been lost.
    Perhaps(u64),
}

/// Whether a port may be told by the answer to a piece of work.
fn asks_durability(work: &Work, nbd: bool) -> bool {
    match work.verb {
        Verb::Flush => true,
        Verb::Write | Verb::Zeroes => work.fua,
        // Over NBD a flush follows it.
        Verb::Discard => work.fua && nbd,
        _ => false,
    }
}

impl World {
    /// A disk loses what is volatile, here and there. Returns the blocks that were written since the last flush, which
    /// is more than was lost; nothing if there are none.
    fn lose(&mut self, d: usize) -> Vec<Range<u64>> {
        let now = self.tick();
        let side = &mut self.sides[d];
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for sector in side.disk.volatile_sectors() {
            let block = (sector * SECTOR) as u64 / B * B;
            match ranges.last_mut() {
                Some(last) if last.end >= block => last.end = block + B,
                _ => ranges.push(block..block + B),
            }
        }
        if ranges.is_empty() {
            return ranges;
        }
        // A change under way writes whole units of the alignment: what it brings back is not lost.
        let align = side.disk.geometry.align.max(SECTOR as u64);
        let model = &side.model;
        let quiet = |sector: usize| model.is_quiet((sector * SECTOR) as u64 / align * align, align);
        let lost = side.disk.lose(quiet, &mut self.lossy);
        for sector in lost {
            let held = side.disk.medium();
            let held = held[sector * SECTOR..held.len().min((sector + 1) * SECTOR)].to_vec();
            if let Err(what) = side.model.lose(sector, &held, now) {
                self.violate(what.to_string());
                return ranges;
            }
        }
        (side.losses, side.lost) = (side.losses + 1, now);
        for port in self.ports.iter_mut().filter(|port| port.disk == d) {
            port.told = Told::No(now);
            if port.works().any(|w| w.verb == Verb::Flush) {
                self.coverage.met("lost writes", "under a flush");
            }
        }
        ranges
    }

    /// Whether an answer is right for a port that has been told of lost writes, or has not. `None` if it has nothing to
    /// do with that.
    pub(super) fn judge_loss(&mut self, p: usize, f: &Finished, excused: bool) -> Option<Result<(), Violation>> {
        let Finished { work, ok, .. } = f;
        let now = self.tick();
        let slot = &mut self.ports[p];
        let (nbd, over) = (matches!(slot.peer, Peer::Client(_)), slot.peer.over());
        if !asks_durability(work, nbd) {
            return None;
        }
        let lost = self.sides[slot.disk].lost;
        match (slot.told, ok) {
            (Told::Yes, true) => None,
            // Flushes under way at a loss fail, all of them: they cannot vouch for what came before.
            (Told::Yes, false) if work.start <= lost && (work.verb == Verb::Flush || work.verb == Verb::Discard) => {
                Some(Ok(()))
            }
            (Told::Yes, false) if lost > 0 && work.start <= slot.told_at => Some(Ok(())),
            (Told::Yes, false) => None,
            (Told::No(since), true) if work.start > since => {
                if slot.works().any(|w| asks_durability(w, nbd)) {
                    // What is still under way may have told: a client need not see answers in the order in which they
                    // were given, and of several ranges each may tell, before they are answered together.
                    slot.told = Told::Perhaps(since);
                    return None;
                }
                Some(Err(format!("{work:?} went well, and its client was not told of lost writes").into()))
            }
            (Told::Perhaps(since), true) if work.start > since => {
                if !slot.works().any(|w| asks_durability(w, nbd)) {
                    (slot.told, slot.told_at) = (Told::Yes, now);
                }
                None
            }
            (_, true) => None,
            (Told::No(since), false) => {
                let certain = work.start > since && (!excused || work.verb == Verb::Flush);
                // What was under way then may tell of an earlier loss, or of a later one: its answer may have been
                // given before this loss and seen after it.
                (slot.told, slot.told_at) = (if certain { Told::Yes } else { Told::Perhaps(since) }, now);
                let structured = work.marks.contains(&"structured");
                self.coverage.met("lost writes", format!("told over {over}"));
                if structured {
                    self.coverage.met("lost writes", "told by a structured reply");
                }
                Some(Ok(()))
            }
            (Told::Perhaps(since), false) => {
                // As above: what was under way at the loss may tell of an earlier one.
                if !excused && work.start > since {
                    (slot.told, slot.told_at) = (Told::Yes, now);
                }
                Some(Ok(()))
            }
        }
    }
}

impl SimPort {
    /// Answers of this port may not have reached its client.
    pub(super) fn answers_may_be_lost(&mut self) {
        if let Told::No(since) = self.told {
            self.told = Told::Perhaps(since);
        }
    }
}

impl Sim {
    /// A disk loses what was not flushed, and its back end says so.
    pub(super) fn lose_writes(&mut self, d: usize) {
        if !self.loses {
            return;
        }
        let ranges = self.world.lose(d);
        self.world.note(|| format!("disk {d} loses writes of {ranges:?}"));
        if ranges.is_empty() || self.world.violation.is_some() {
            return;
        }
        let disks = self.world.sides.len();
        let told = if Switched::has(PortBug::LossOfAnotherDisk) { (d + disks - 1) % disks } else { d };
        if Switched::has(PortBug::LossSaidTwice) {
            self.lost_again = Some((told, ranges.clone()));
        }
        self.report_lost(told, ranges);
    }

    /// A disk loses writes, and a front end connects anew while a flush of its guest is under way that is to say so.
    pub(super) fn lose_and_reconnect(&mut self) {
        let p = (self.steps / STEPS_BETWEEN) as usize % self.world.ports.len();
        if !matches!(&self.world.ports[p].peer, Peer::Guest(g) if !g.writes_through()) {
            return;
        }
        self.lose_writes(self.world.ports[p].disk);
        if !matches!(self.world.ports[p].told, Told::No(_)) || !self.post(p, 0, Some(Verb::Flush)) {
            return;
        }
        self.activate(p);
        self.serve_port(p);
        if self.world.dead.is_none() && self.world.violation.is_none() {
            self.reconnect(p);
        }
    }

    /// The worker hears of a loss.
    pub(super) fn report_lost(&mut self, d: usize, ranges: Vec<Range<u64>>) {
        self.apply(Event::Lost { disk: DiskId(d as u32), lost: Lost { ranges, unflushed: true } });
    }

    /// The core is told of the ports of all disks, as a worker tells it.
    pub(super) fn open_ports(&mut self) {
        for side in &mut self.world.sides {
            (side.losses, side.lost) = (0, 0);
        }
        self.lost_again = None;
        for p in 0..self.world.ports.len() {
            self.world.ports[p].told = Told::Yes;
            let d = DiskId(self.world.ports[p].disk as u32);
            self.core().open_port(d, p as u32);
        }
    }
}
