//! How everything comes to an end: every chain and request is answered, and whoever waits for it is told.
//!
//! Owns the way there, and what must hold then. Never lets a process die. Invariant: whoever sleeps is not looked at
//! unless something told of him.

use super::Sim;
use super::port::Peer;
use crate::faults::die_at;
use undercroft_cache::{DiskId, Event};

/// Visits until requests that are paused have come to an end, at most.
const PAUSES_MAX: usize = 5000;

impl Sim {
    /// A disk does what it was told, and what follows from it.
    pub(super) fn finish_disk(&mut self, d: usize) {
        while self.world.sides[d].under_way() > 0 && self.world.violation.is_none() && self.world.dead.is_none() {
            self.world.sides[d].execute(&mut self.rng);
            let now = self.world.tick();
            if let Some(done) = self.world.sides[d].deliver(&mut self.rng, now) {
                self.world.sides[d].answered = self.steps;
                self.apply(Event::IoDone(done));
            }
        }
    }

    /// All disks do what they were told, and what was paused goes on, until nothing is left of both.
    pub(super) fn finish_operations(&mut self) {
        for _ in 0..PAUSES_MAX {
            (0..self.world.sides.len()).for_each(|d| self.finish_disk(d));
            self.wake();
            let paused = self.world.ports.iter().any(|p| p.active && p.backlog.has_paused());
            if !paused || self.world.violation.is_some() || self.world.dead.is_some() {
                return;
            }
            self.visit_next();
        }
    }

    /// Everything comes to an end: every chain and request is answered, and whoever waits for it is told.
    pub(super) fn rest(&mut self) {
        self.world.note(|| "rest".into());
        die_at(None);
        let deadly = std::mem::replace(&mut self.deadly, 0);
        self.come_to_rest();
        if self.world.violation.is_none() {
            self.judge_rest();
        }
        self.deadly = deadly;
    }

    fn come_to_rest(&mut self) {
        for p in 0..self.world.ports.len() {
            match &mut self.world.ports[p].peer {
                Peer::Guest(g) => {
                    if g.is_masked() {
                        g.unmask();
                        self.after_message(p);
                    }
                }
                Peer::Client(c) => c.set_room(1 << 20),
                Peer::File(_) | Peer::Device(_) => {}
            }
        }
        let mut quiet = 0;
        for _ in 0..20_000 {
            let before = self.world.answers;
            let mut moved = false;
            for p in 0..self.world.ports.len() {
                match &mut self.world.ports[p].peer {
                    Peer::Client(c) => {
                        moved |= c.on_the_way() > 0;
                        c.arrive(&mut self.rng);
                    }
                    Peer::File(f) => {
                        moved |= f.on_the_way() > 0;
                        f.arrive(&mut self.rng);
                    }
                    Peer::Device(b) => {
                        moved |= b.on_the_way() > 0;
                        b.arrive(&mut self.rng);
                    }
                    Peer::Guest(_) => {}
                }
            }
            self.wake();
            self.let_go();
            while let Some((_, busy)) = self.visit_next() {
                moved |= busy;
            }
            moved |= self.world.sides.iter().any(|s| s.under_way() > 0);
            self.finish_operations();
            self.world.flush_ports();
            for p in 0..self.world.ports.len() {
                // Nobody looks who was not told.
                self.listen_at(p, false, 1 << 20);
            }
            if self.world.violation.is_some() {
                return;
            }
            quiet = if moved || self.world.answers > before { 0 } else { quiet + 1 };
            if quiet > 2 {
                return;
            }
        }
        self.world.violate("the ports never come to rest".into());
    }

    fn judge_rest(&mut self) {
        for p in 0..self.world.ports.len() {
            let slot = &mut self.world.ports[p];
            let leaving = slot.peer.is_leaving();
            let left = slot.works().next().map(|w| w.clone());
            if let Some(work) = left {
                let visible = match &mut slot.peer {
                    Peer::Guest(g) => !g.look().map_or(true, |seen| seen.is_empty()),
                    Peer::Client(_) | Peer::File(_) | Peer::Device(_) => false,
                };
                let how = if visible { "its end was never announced" } else { "it was never answered" };
                return self.world.violate(format!("at rest, port {p}: {work:?}: {how}"));
            }
            if slot.port().inflight() > 0 || leaving {
                return self.world.violate(format!("at rest, port {p} is not at rest"));
            }
        }
        self.core().check();
        for d in 0..self.world.sides.len() {
            let now = self.world.tick();
            let side = &mut self.world.sides[d];
            let idle = self.core.as_ref().expect("a core").is_idle(DiskId(d as u32));
            if let Err(what) = side.model.check_read(0, side.disk.medium(), now, now) {
                self.world.violate(format!("at rest, disk {d}: {what}"));
            }
            if !idle {
                self.world.violate(format!("at rest, disk {d} is not idle"));
            }
        }
    }
}
