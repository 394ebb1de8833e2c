//! What happens now and then: deaths and new beginnings, of processes, hosts, guests and connections.
//!
//! Owns what is rare. Never judges data. Invariant: whoever comes back finds what outlives a death, and nothing else.

use super::Sim;
use super::losses::Told;
use super::port::{Peer, SimPort};
use super::world::what;
use crate::faults::die_at;
use crate::fuse::sim_file::SimFile;
use crate::nbd::sim_client::SimClient;
use crate::ublk::sim_device::SimBlockDevice;
use crate::work::{Verb, Work};
use undercroft_cache::{DiskId, Event, ReqId};
use undercroft_frontend::DiskInfo;
use undercroft_frontend::faults::StoreSite;
use undercroft_frontend::turns::{Backlog, Flows};
use undercroft_testkit::rng::Rng;

impl Sim {
    pub(super) fn rare(&mut self) -> bool {
        let p = self.any_port();
        let busy = self.world.ports[p].under_way() > 0;
        match self.rng.below(60) {
            0..8 => {
                if self.rng.one_in(4) {
                    self.now_ns += 6_000_000_000;
                }
                self.apply(Event::Tick);
                self.flows.tick();
            }
            8..20 => self.mask(p),
            20..26 => self.reconnect(p),
            26..30 => {
                self.arm_death();
                let Peer::Guest(g) = &mut self.world.ports[p].peer else { return false };
                let result = g.remap();
                self.world.lived(result);
                if busy {
                    self.world.coverage.met("memory mapped anew", "with chains under way");
                }
                self.after_message(p);
            }
            30..36 => {
                self.arm_death();
                let Peer::Guest(g) = &mut self.world.ports[p].peer else { return false };
                let result = g.restart(&mut self.rng);
                if let Ok(true) = result {
                    self.world.coverage.met("queue stopped", "and started");
                }
                self.world.lived(result.map(|_| ()));
                self.after_message(p);
            }
            dice @ 36..50 => return self.rare_of_client(p, dice, busy),
            50 if self.rng.one_in(2) => {
                // A guest that has broken its queue does nothing but start anew.
                let deadly = std::mem::replace(&mut self.deadly, 0);
                self.break_queue(p);
                self.deadly = deadly;
            }
            51 | 52 if self.paging.is_none() || self.rng.one_in(32) => self.start_anew(true),
            53 => self.storm(p),
            54 if self.rng.one_in(2) => self.rest(),
            55 => {
                let d = self.world.ports[p].disk;
                if self.world.sides[d].bad.is_none() {
                    self.world.sides[d].disk.geometry.fails_one_in = *self.rng.pick(&[0, 0, 20, 200]);
                }
            }
            56 => {
                // Out of nothing: no store is on the way to it.
                // With pages of a guest elsewhere than blocks, there is to be time to learn that.
                if self.rng.one_in(if self.paging.is_none() { 4 } else { 32 }) {
                    self.world.dead = Some(StoreSite::Wish);
                }
            }
            57 | 58 => self.lose_writes(self.world.ports[p].disk),
            59 if self.rng.one_in(2) => self.flood(p),
            _ => return false,
        }
        true
    }

    /// What a client of an NBD connection does now and then, by the throw of dice that led to it.
    fn rare_of_client(&mut self, p: usize, dice: u64, busy: bool) -> bool {
        let of_host = matches!(self.world.ports[p].peer, Peer::File(_) | Peer::Device(_));
        if of_host && (40..44).contains(&dice) {
            return self.pass_on(p);
        }
        if of_host {
            return (36..40).contains(&dice) && self.take_away(p, busy);
        }
        let room = if dice < 43 { 0 } else { *self.rng.pick(&[0, 0, 30, 4096, 1 << 20]) };
        let Peer::Client(c) = &mut self.world.ports[p].peer else { return false };
        let what = match dice {
            36..40 if !c.leaving => {
                c.half_close();
                "half-closed"
            }
            40 | 41 => {
                c.hang_up();
                "hung up"
            }
            42 if !c.leaving => {
                c.send_rubbish();
                "rubbish sent"
            }
            43..50 => {
                c.set_room(room);
                if room > 0 {
                    return true;
                }
                "no room for replies"
            }
            _ => return true,
        };
        if busy {
            self.world.coverage.met(what, "with requests under way");
        }
        true
    }

    /// Somebody unmounts a file, or stops a device.
    fn take_away(&mut self, p: usize, busy: bool) -> bool {
        let how = match &mut self.world.ports[p].peer {
            Peer::File(f) if !f.unmounted => {
                f.unmount();
                "unmounted"
            }
            Peer::Device(b) if !b.stopped => {
                b.stop();
                "stopped"
            }
            _ => return false,
        };
        if busy {
            self.world.coverage.met(how, "with requests under way");
        }
        true
    }

    /// A file or a device comes to rest, and goes on in another process, or in this one.
    fn pass_on(&mut self, p: usize) -> bool {
        let busy = self.world.ports[p].under_way() > 0;
        for n in 0..=200 {
            let at_rest = match &mut self.world.ports[p].peer {
                Peer::File(f) if !f.unmounted => {
                    f.port.rest(true);
                    f.port.is_at_rest()
                }
                Peer::Device(b) if !b.stopped => {
                    b.port.rest(true);
                    b.port.is_at_rest()
                }
                _ => return false,
            };
            if at_rest {
                break;
            }
            if n == 200 {
                self.world.violate(format!("port {p}: it does not come to rest"));
                return true;
            }
            self.activate(p);
            self.serve_port(p);
            self.finish_operations();
            self.world.flush_ports();
            if self.world.dead.is_some() {
                return true;
            }
        }
        let d = self.world.ports[p].disk;
        let (id, info) = (DiskId(d as u32), self.world.sides[d].info.clone());
        let goes_on = self.rng.one_in(3);
        let (left, what) = match &mut self.world.ports[p].peer {
            Peer::File(f) => {
                let left = f.unanswered();
                if goes_on {
                    f.port.rest(false)
                } else {
                    f.pass_on(p as u32, &info, &mut self.rng)
                }
                (left, "a file under load")
            }
            Peer::Device(b) => {
                // What it has and has not begun is asked again.
                if goes_on {
                    b.port.rest(false)
                } else {
                    b.take_over(p as u32, &info, &mut self.rng)
                }
                (0, "a device under load")
            }
            _ => return false,
        };
        if left > 0 {
            self.world.violate(format!("port {p}: {left} requests of a file at rest have no answer"));
        }
        self.world.note(|| format!("port {p}: came to rest, and goes on here: {goes_on}"));
        if busy {
            self.world.coverage.met(if goes_on { "came to rest" } else { "passed on" }, what);
        }
        self.hear_unheard(p);
        if !goes_on {
            self.core().close_port(id, p as u32);
            self.core().open_port(id, p as u32);
            let now = self.world.tick();
            self.world.ports[p].told = self.told_of_newcomer(p, now);
        }
        self.activate(p);
        true
    }

    /// What the client of a port knows of lost writes when the port is another one to the core.
    fn told_of_newcomer(&self, p: usize, now: u64) -> Told {
        let slot = &self.world.ports[p];
        match slot.told {
            // It has read all that was sent, and knows nothing.
            Told::No(_) => Told::No(now),
            // It may be told in place of one that left untold.
            _ if self.world.sides[slot.disk].losses > 0 => Told::Perhaps(now),
            told => told,
        }
    }

    /// The front end has said something to a port: the worker looks at it afresh.
    pub(super) fn after_message(&mut self, p: usize) {
        die_at(None);
        self.hear_unheard(p);
        self.activate(p);
        let slot = &mut self.world.ports[p];
        let id = DiskId(slot.disk as u32);
        let Some((pages, afresh)) = slot.memory().map(|memory| (memory.memory_changed(), memory.began_afresh())) else {
            return;
        };
        if let Some(pages) = pages {
            self.core().set_guest(id, pages);
        }
        if afresh {
            self.core().restart_guest(id);
        }
    }

    /// The core hears of failures that a port answered and that its peer cannot have seen.
    fn hear_unheard(&mut self, p: usize) {
        let slot = &mut self.world.ports[p];
        let id = DiskId(slot.disk as u32);
        while let Some(tag) = slot.port().take_unheard() {
            self.world.coverage.met("lost writes", "a failure that was not visible when its session ended");
            self.core.as_mut().expect("a core").unheard(id, ReqId { port: p as u32, tag });
        }
    }

    fn mask(&mut self, p: usize) {
        let busy = self.world.ports[p].under_way() > 0;
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        if g.mask(&mut self.rng) && busy {
            self.world.coverage.met("masked", "with chains under way");
        }
        self.after_message(p);
    }

    /// Notes what was under way when something ended.
    fn cover_end(&mut self, p: usize, how: &'static str) {
        let slot = &mut self.world.ports[p];
        let of = match slot.peer {
            Peer::Guest(_) => None,
            Peer::Client(_) => Some("under an NBD request"),
            Peer::File(_) => Some("under a request of a file"),
            Peer::Device(_) => Some("under a request of a device"),
        };
        let mut pairs = Vec::new();
        for w in slot.works() {
            pairs.push(match w.verb {
                Verb::Read => "under a read",
                Verb::Write => "under a write",
                Verb::Flush => "under a flush",
                _ if w.parts.len() > 1 => "under several ranges",
                _ => "under another",
            });
            pairs.extend(w.marks.contains(&"indirect").then_some("under an indirect table"));
            pairs.extend(w.marks.contains(&"scattered").then_some("under scattered buffers"));
            pairs.extend(of);
        }
        pairs.into_iter().for_each(|with| self.world.coverage.met(how, with));
    }

    /// A front end's connection breaks; it comes back and finds requests of the former session still under way.
    pub(super) fn reconnect(&mut self, p: usize) {
        if !matches!(self.world.ports[p].peer, Peer::Guest(_)) {
            return;
        }
        self.cover_end(p, "reconnected");
        self.world.note(|| format!("port {p}: the front end connects anew"));
        self.arm_death();
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        let result = g.reconnect();
        self.world.lived(result);
        self.after_message(p);
    }

    /// A connection is over: its client reads what is left of the replies, and connects anew.
    pub(super) fn connect_anew(&mut self, p: usize) {
        let readable = |peer: &Peer| match peer {
            Peer::Client(c) => c.readable(),
            Peer::File(f) => f.readable(),
            Peer::Device(b) => b.readable(),
            Peer::Guest(_) => 0,
        };
        while readable(&self.world.ports[p].peer) > 0 && self.world.violation.is_none() {
            self.listen_at(p, true, 1 << 20);
        }
        let d = self.world.ports[p].disk;
        let leaving = self.world.ports[p].peer.is_leaving();
        let lost = match &mut self.world.ports[p].peer {
            Peer::Client(c) => c.end(),
            Peer::File(f) => f.end(),
            Peer::Device(b) => b.end(),
            Peer::Guest(_) => return,
        };
        if !leaving {
            return self.world.violate(format!("port {p}: a connection was closed for no reason"));
        }
        lost.iter().for_each(|work| self.world.forget(d, work));
        let info = self.world.sides[d].info.clone();
        let peer = anew(&self.world.ports[p].peer, p as u32, &info, &mut self.rng);
        let id = DiskId(d as u32);
        if self.world.ports[p].active {
            self.flows.remove(d as u32, p as u32);
        }
        self.hear_unheard(p);
        self.core().close_port(id, p as u32);
        self.core().open_port(id, p as u32);
        let now = self.world.tick();
        let mut slot = SimPort::new(peer, d);
        slot.told = self.told_of_newcomer(p, now);
        self.world.ports[p] = slot;
        self.activate(p);
    }

    /// A guest posts what breaks a queue, and starts anew when it is told.
    fn break_queue(&mut self, p: usize) {
        let busy = self.world.ports[p].under_way() > 0;
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        if !g.break_queue(&mut self.rng) {
            return;
        }
        self.world.note(|| format!("port {p}: a chain that breaks its queue"));
        let mut broken = false;
        // Chains posted before it may be many, and the room for them little.
        for _ in 0..200 {
            self.wake();
            self.serve_port(p);
            self.finish_operations();
            if self.world.dead.is_some() {
                return;
            }
            let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
            broken |= g.is_broken();
            if broken {
                break;
            }
        }
        if !broken {
            return self.world.violate(format!("port {p}: a queue that makes no sense is not said to be broken"));
        }
        if busy {
            self.world.coverage.met("queue broken", "with chains under way");
        }
        self.reboot(p);
    }

    /// A guest starts anew.
    fn reboot(&mut self, p: usize) {
        let d = self.world.ports[p].disk;
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        let mut rests = g.stop();
        self.world.ports[p].answers_may_be_lost();
        for _ in 0..200 {
            self.activate(p);
            self.serve_port(p);
            self.finish_operations();
            self.world.flush_ports();
            if self.world.dead.is_some() {
                return;
            }
            rests.retain(|rest| rest.try_recv().is_err());
        }
        if !rests.is_empty() {
            return self.world.violate(format!("port {p}: a queue with nothing under way does not stop"));
        }
        self.listen_at(p, true, 0);
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        let lost = g.reboot();
        let result = g.connect();
        self.world.lived(result);
        lost.iter().for_each(|work| self.world.forget(d, work));
        self.after_message(p);
    }

    /// The process has died, or the whole host has; another takes its place.
    pub(super) fn start_anew(&mut self, power_cut: bool) {
        die_at(None);
        let site = self.world.dead.take();
        self.kills += 1;
        self.world.note(|| format!("A NEW PROCESS, power cut: {power_cut}"));
        let how = if power_cut { "power cut" } else { "killed" };
        if !power_cut {
            for p in 0..self.world.ports.len() {
                self.cover_end(p, how);
                // What was made visible before the death has happened.
                self.listen_at(p, true, 1 << 20);
                if let Peer::Guest(g) = &self.world.ports[p].peer
                    && g.is_masked()
                {
                    self.world.coverage.met(how, "with calls masked");
                }
            }
            site.into_iter().for_each(|site| self.world.coverage.met(how, format!("at {site:?}")));
        }
        let mut core = self.core.take().expect("a core");
        let mut bufs = std::mem::take(&mut self.world.grave);
        self.world.open.clear();
        self.world.to_wake.clear();
        (self.flows, self.turn, self.turn_bytes) = (Flows::default(), None, 0);
        for d in 0..self.world.sides.len() {
            let now = self.world.tick();
            let side = &mut self.world.sides[d];
            let (fua, flushed) = std::mem::take(&mut side.durable);
            if side.disk.under_way() > 0 && !power_cut {
                self.world.coverage.met(how, "with an operation executed");
            }
            bufs.extend(side.disk.crash(power_cut, &mut self.rng));
            bufs.extend(side.bad_ops.drain(..).map(|io| io.buf));
            if power_cut && fua {
                self.world.coverage.met(how, "after FUA");
            }
            if power_cut && flushed {
                self.world.coverage.met(how, "after a flush");
            }
            let medium = side.disk.medium();
            // Without a power cut nothing that was acknowledged may be missing, durable or not.
            let lost = if power_cut { Ok(()) } else { side.model.check_read(0, medium, now, now) };
            if let Err(what) = lost.and_then(|()| side.model.restart(medium, now)) {
                self.world.violate(format!("disk {d}: {what}"));
            }
        }
        bufs.into_iter().for_each(|buf| core.reclaim(buf));
        drop(core);
        self.boot();
        self.open_ports();
        for p in 0..self.world.ports.len() {
            self.revive(p, power_cut);
        }
    }

    /// A fresh port takes the place of one that died.
    fn revive(&mut self, p: usize, power_cut: bool) {
        let d = self.world.ports[p].disk;
        let info = self.world.sides[d].info.clone();
        let slot = &mut self.world.ports[p];
        (slot.active, slot.starved, slot.dirty) = (false, false, false);
        slot.backlog = Backlog::default();
        self.activate(p);
        let slot = &mut self.world.ports[p];
        let is_asked_again = !power_cut && !slot.peer.is_leaving();
        match &mut slot.peer {
            Peer::File(_) | Peer::Device(_) if is_asked_again => {
                let now = self.world.time;
                let works = slot.works().map(|work| begin_again(&mut self.world.sides[d].model, work, now)).count();
                let of = match &mut slot.peer {
                    Peer::File(f) => {
                        f.revive(p as u32, &info, &mut self.rng);
                        "of a file"
                    }
                    Peer::Device(b) => {
                        b.take_over(p as u32, &info, &mut self.rng);
                        "of a device"
                    }
                    Peer::Client(_) | Peer::Guest(_) => return,
                };
                if works > 0 {
                    self.world.coverage.met("asked again", of);
                }
            }
            // Of what was not answered nobody knows; the model has seen to it.
            Peer::Client(_) | Peer::File(_) | Peer::Device(_) => {
                slot.peer = anew(&slot.peer, p as u32, &info, &mut self.rng)
            }
            Peer::Guest(_) if power_cut => {
                let guest = crate::vhost::sim_guest::SimGuest::new(p as u32, &info, &mut self.rng);
                slot.peer = Peer::Guest(Box::new(guest));
                if let Peer::Guest(g) = &mut slot.peer {
                    let result = g.connect();
                    self.world.lived(result);
                }
                self.after_message(p);
            }
            Peer::Guest(g) => {
                let now = self.world.time;
                for work in g.works() {
                    begin_again(&mut self.world.sides[d].model, work, now);
                }
                if self.deadly > 0 && self.rng.one_in(4) {
                    die_at(Some(self.rng.below(12)));
                }
                // A death while it recovers is not the last word: the next one recovers as well.
                while let Err(site) = g.revive() {
                    self.world.coverage.met("killed", "while recovering");
                    self.world.coverage.met("killed", format!("at {site:?}"));
                }
                self.after_message(p);
            }
        }
    }
}

/// A client in the place of one, a file, or a device.
fn anew(former: &Peer, id: u32, info: &DiskInfo, rng: &mut Rng) -> Peer {
    match former {
        Peer::File(_) => Peer::File(Box::new(SimFile::new(id, info, rng))),
        Peer::Device(_) => Peer::Device(Box::new(SimBlockDevice::new(id, info, rng))),
        _ => Peer::Client(Box::new(SimClient::new(id, info, rng))),
    }
}

/// Work that outlives a process is under way again, since it will be done once more.
fn begin_again(model: &mut undercroft_testkit::model::Model, work: &mut Work, now: u64) {
    for part in work.parts.iter().filter(|p| p.change != 0) {
        model.begin(part.change, what(work.verb, part.change), part.offset, part.len, now);
    }
}
