//! Visits of ports, in the order of `frontend::turns`, as the daemon's worker makes them.
//!
//! Owns what a visit does, and what ports with work wait for meanwhile. Never chooses a port. Invariant: a port stands
//! among the flows exactly if it is active.

use super::Sim;
use super::port::Peer;
use crate::faults::{die_at, living};
use undercroft_cache::limits::{BATCH, STEP_BYTES};
use undercroft_cache::{DiskId, Event, Op, Request};
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::turns::{QUANTUM_BYTES, REQUEST_BYTES, Visit, turn_bytes, wait_turns};

/// Visits within which a port that is active is visited, with a margin over what [`wait_turns`] promises.
const VISITS_MAX: usize = 2000;
/// Steps within which a request that the core has is answered once its disk has answered all of its operations.
const ANSWER_STEPS: u64 = 1500;

/// Whether a port has more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Yes,
    No,
    /// The disk has no room for any.
    NoRoom,
}

/// What a port with work has waited for since it was visited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waited {
    turns: u64,
    bytes: i64,
}

/// What putting a request to the core costs, as a worker counts it.
fn cost(r: &Request) -> i64 {
    REQUEST_BYTES
        + match r.op {
            Op::Read => r.len.min(STEP_BYTES) as i64,
            Op::Write { .. } | Op::WriteZeroes { .. } => r.len as i64,
            Op::Flush | Op::Discard | Op::Status => 0,
        }
}

impl Sim {
    /// Port `p` is visited from now on.
    pub(super) fn activate(&mut self, p: usize) {
        let slot = &mut self.world.ports[p];
        if !slot.active {
            slot.active = true;
            slot.waited = Waited::default();
            self.flows.add(slot.disk as u32, p as u32);
        }
    }

    /// Ports of which an event tells are visited, and those for which there is room again.
    pub(super) fn wake(&mut self) {
        for p in std::mem::take(&mut self.world.to_wake) {
            self.activate(p);
        }
        for p in 0..self.world.ports.len() {
            let disk = DiskId(self.world.ports[p].disk as u32);
            let room = self.core().room(disk);
            let port = &mut self.world.ports[p];
            let woken = match &mut port.peer {
                Peer::Guest(g) => g.wakes(),
                Peer::Client(c) => c.wakes(),
                Peer::File(f) => f.wakes(),
                Peer::Device(b) => b.wakes(),
            };
            // Like the worker: a socket with room again may have replies waiting.
            port.dirty |= woken;
            if !port.active && (woken || port.starved && room > 0) {
                port.starved = false;
                // A store, but one of which nothing depends on dying or not.
                die_at(None);
                port.port().disarm();
                self.activate(p);
            }
        }
    }

    /// Visits the next port; `None` at the end of a turn. Otherwise which one, and whether there was anything to do.
    pub(super) fn visit_next(&mut self) -> Option<(usize, bool)> {
        let mut turn = self.turn.take().unwrap_or_else(|| self.flows.begin());
        let Some((port, left)) = self.flows.next(&mut turn) else {
            self.end_turn();
            return None;
        };
        let p = port as usize;
        let visit = self.visit(p, left);
        if self.world.dead.is_some() {
            return Some((p, true));
        }
        self.flows.done(&mut turn, port, visit);
        self.turn = Some(turn);
        self.turn_bytes += visit.cost;
        for (n, other) in self.world.ports.iter_mut().enumerate() {
            other.waited.bytes += if n == p { 0 } else { visit.cost };
        }
        self.world.ports[p].waited = Waited::default();
        Some((p, visit.cost > 0))
    }

    /// Visits the next port, whichever it is.
    pub(super) fn serve(&mut self) -> bool {
        matches!(self.visit_next(), Some((_, true)))
    }

    /// Visits ports in their order until port `p` was visited. False if that had nothing to do.
    pub(super) fn serve_port(&mut self, p: usize) -> bool {
        for _ in 0..VISITS_MAX {
            if !self.world.ports[p].active {
                return false;
            }
            match self.visit_next() {
                Some((visited, busy)) if visited == p => return busy,
                _ if self.world.dead.is_some() || self.world.violation.is_some() => return true,
                _ => {}
            }
        }
        self.world.violate(format!("port {p} has work, and is not visited"));
        false
    }

    /// Judges a turn: what it cost, and what ports with work that it did not visit have waited for.
    fn end_turn(&mut self) {
        let disks = self.world.sides.len();
        let ports = (0..disks).map(|d| self.world.ports.iter().filter(|p| p.disk == d).count()).max().unwrap_or(0);
        let over = (REQUEST_BYTES + (40 << 10).max(STEP_BYTES as i64)).max(QUANTUM_BYTES - 1);
        let (turns, bytes) = (wait_turns(disks, ports, over), turn_bytes(disks, over));
        let cost = std::mem::take(&mut self.turn_bytes);
        if cost > bytes {
            self.world.violate(format!("one turn cost {cost} bytes, of {bytes} that it may"));
        }
        for p in 0..self.world.ports.len() {
            let port = &mut self.world.ports[p];
            if !port.active {
                continue;
            }
            port.waited.turns += 1;
            let waited = port.waited;
            self.world.longest_wait = self.world.longest_wait.max(waited.turns);
            if waited.turns > turns || waited.bytes > turns as i64 * bytes {
                let Waited { turns, bytes } = waited;
                self.world.violate(format!("port {p} starves: others had {turns} turns and {bytes} bytes meanwhile"));
            }
        }
        self.let_go();
    }

    /// Ends connections whose ports are over, and has their clients connect anew. Not within a turn.
    pub(super) fn let_go(&mut self) {
        if self.turn.is_some() || self.world.dead.is_some() {
            return;
        }
        for p in 0..self.world.ports.len() {
            let slot = &mut self.world.ports[p];
            if slot.port().is_closed() && slot.port().inflight() == 0 {
                self.connect_anew(p);
            }
        }
    }

    /// Lets port `p` have `allowed` bytes.
    fn visit(&mut self, p: usize, allowed: i64) -> Visit {
        self.arm_death();
        let mut left = allowed;
        if self.world.ports[p].backlog.begin_visit() {
            self.resume(p, &mut left);
        }
        let more = self.put_new(p, &mut left);
        self.resume(p, &mut left);
        let visit = if self.world.dead.is_some() {
            Visit { cost: 0, more: false, stays: false }
        } else {
            self.end_visit(p, allowed - left, left <= 0, more)
        };
        if self.rng.one_in(2) {
            self.world.flush_ports();
        }
        die_at(None);
        visit
    }

    fn end_visit(&mut self, p: usize, cost: i64, used_up: bool, more: More) -> Visit {
        let slot = &mut self.world.ports[p];
        let unsent = slot.port().has_more_to_send();
        slot.dirty |= unsent;
        let unfinished = !slot.backlog.is_empty();
        if cost > 0 || unfinished && more != More::NoRoom {
            return Visit { cost, more: used_up && (unfinished || more == More::Yes), stays: true };
        }
        if more == More::NoRoom && !slot.backlog.has_paused() {
            (slot.active, slot.starved) = (false, true);
            return Visit { cost, more: false, stays: false };
        }
        if more == More::Yes {
            return Visit { cost: QUANTUM_BYTES, more: true, stays: true };
        }
        let port = slot.port();
        let mut armed = false;
        let lived = living(|| {
            port.flush(SEND_BYTES);
            armed = port.arm();
        });
        self.world.lived(lived);
        if armed {
            return Visit { cost: REQUEST_BYTES, more: false, stays: true };
        }
        let slot = &mut self.world.ports[p];
        slot.active = false;
        let who = match slot.peer {
            Peer::Guest(_) => "guest",
            Peer::Client(_) => "client",
            Peer::File(_) => "file",
            Peer::Device(_) => "device",
        };
        self.world.coverage.met("slept", who);
        Visit { cost, more: false, stays: false }
    }

    /// Puts requests of a port to the core, those that waited first, while any of the `left` bytes are left.
    fn put_new(&mut self, p: usize, left: &mut i64) -> More {
        while *left > 0 && self.world.dead.is_none() {
            let slot = &mut self.world.ports[p];
            let room = self.core.as_ref().expect("a core").room(DiskId(slot.disk as u32)).min(BATCH);
            if room == 0 {
                return More::NoRoom;
            }
            let mut requests = Vec::new();
            if slot.backlog.has_waiting() {
                slot.backlog.take_waiting(room, &mut requests);
                self.put_to_core(p, &requests, left);
                continue;
            }
            let (port, mut more) = (slot.port(), false);
            let lived = living(|| more = port.take(room, &mut requests));
            self.world.lived(lived);
            if self.world.dead.is_some() {
                return More::No;
            }
            assert!(requests.len() <= room, "more requests than the disk has room for");
            self.cover_client(p);
            if requests.is_empty() {
                return if more { More::Yes } else { More::No };
            }
            self.put_to_core(p, &requests, left);
            if !more {
                return More::No;
            }
        }
        More::Yes
    }

    fn put_to_core(&mut self, p: usize, requests: &[Request], left: &mut i64) {
        for (n, &r) in requests.iter().enumerate() {
            if *left <= 0 {
                self.world.ports[p].backlog.put_back(&requests[n..]);
                self.world.coverage.met("requests waited", "for the next visit of their port");
                return;
            }
            *left -= cost(&r);
            self.world.note(|| format!("  port {p} puts {r:?}"));
            if n > 0 && self.rng.one_in(4) {
                self.world.flush_ports();
            }
            if self.world.dead.is_some() {
                return;
            }
            self.world.open.insert((r.id.port, r.id.tag), self.steps);
            self.apply(Event::Request(r));
        }
    }

    /// Lets requests of a port go on that are paused, while any of the `left` bytes are left.
    fn resume(&mut self, p: usize, left: &mut i64) {
        while *left > 0 && self.world.dead.is_none() {
            let Some((_, paused)) = self.world.ports[p].backlog.next_paused() else { return };
            *left -= self.core_options.step_bytes.clamp(4096, STEP_BYTES) as i64;
            self.world.coverage.met("paused", "and resumed");
            self.apply(Event::Resume(paused));
        }
    }

    /// That each request which the core has is answered soon after its disk has answered all of its operations.
    pub(super) fn judge_answers(&mut self) {
        let mut late = None;
        for (&(port, tag), &since) in &self.world.open {
            let side = &self.world.sides[self.world.ports[port as usize].disk];
            let since = since.max(side.answered);
            if side.under_way() == 0 && self.steps - since > ANSWER_STEPS {
                late = Some(format!(
                    "port {port}: request {tag} is not answered, {} steps after its disk",
                    self.steps - since
                ));
            }
        }
        late.into_iter().for_each(|what| self.world.violate(what));
    }
}
