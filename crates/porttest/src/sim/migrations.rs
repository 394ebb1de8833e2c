//! Guests that migrate: their memory is logged while they run, and now and then one goes on somewhere else.
//!
//! Owns the pace of it. Never judges data of the disk. Invariant: whenever the logs were looked at, the copy that was
//! made from them alone is the guest's memory; a guest that goes on elsewhere takes its memory and the positions of its
//! rings along, and nothing else: no record of requests under way.

use super::Sim;
use super::port::Peer;

/// Visits that a queue gets at most until it is at rest.
const VISITS_MAX: usize = 200;

impl Sim {
    /// Some guest's migration begins, goes on, ends or is called off.
    pub(super) fn migrate_now_and_then(&mut self) {
        let ports = self.world.ports.len() as u64;
        let Some(rng) = &mut self.migrations else { return };
        let (p, dice) = (rng.below(ports) as usize, rng.below(16));
        if self.world.dead.is_some() || self.world.violation.is_some() {
            return;
        }
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        let result = match dice {
            _ if !g.migrates() => g.begin_migration(),
            0 => g.end_migration(),
            1 => return self.move_guest(p),
            _ => return self.compare(p),
        };
        self.world.note(|| format!("port {p}: migration begins or is called off"));
        self.world.lived(result);
        self.after_message(p);
    }

    /// A process took the place of one that died: now and then guests leave it at once.
    pub(super) fn migrate_after_death(&mut self) {
        let Some(rng) = &mut self.migrations else { return };
        if rng.one_in(4) {
            (0..self.world.ports.len()).for_each(|p| self.move_guest(p));
        }
    }

    /// The copy is brought up to date, and must be the guest's memory.
    fn compare(&mut self, p: usize) {
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        if let Some(at) = g.differs() {
            let what = format!("port {p}: a page of guest memory at {at:#x} was written and is not in the log");
            self.world.violate(what);
        } else {
            self.world.coverage.met("migration", "memory compared");
        }
    }

    /// A guest stops, and goes on with another device that knows nothing of it.
    fn move_guest(&mut self, p: usize) {
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        if self.world.dead.is_some() || self.world.violation.is_some() {
            return;
        }
        let busy = g.under_way() > 0;
        let deadly = std::mem::replace(&mut self.deadly, 0);
        let mut bases = Vec::new();
        let mut rests = g.stop().into_iter().peekable();
        self.after_message(p);
        for _ in 0..VISITS_MAX {
            while let Some(base) = rests.peek().and_then(|rest| rest.try_recv().ok()) {
                bases.push(base);
                rests.next();
            }
            if rests.peek().is_none() {
                break;
            }
            self.activate(p);
            self.serve_port(p);
            self.finish_operations();
            self.world.flush_ports();
        }
        self.deadly = deadly;
        if rests.next().is_some() {
            return self.world.violate(format!("port {p}: a queue of a guest that migrates does not stop"));
        }
        self.compare(p);
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return };
        let result = g.go_on_elsewhere(&bases);
        self.world.note(|| format!("port {p}: its guest goes on elsewhere"));
        self.world.coverage.met("migration", if busy { "with chains under way" } else { "of a guest at rest" });
        self.world.lived(result);
        self.after_message(p);
    }
}
