//! Floods: of one queue of a guest beside its others, and of one port of a disk beside its others.
//!
//! Owns what is posted and sent then. Never judges a wait of others: turns are judged as they end. Invariants: whoever
//! had a request when a flood began has its answer when it ends; what a storm answers, in which one port alone is
//! served, is nobody else's wait.

use super::Sim;
use super::port::Peer;
use crate::work::Verb;

/// Turns of a flood.
const FLOOD_TURNS: usize = 40;
/// Requests under way of whoever floods.
const FLOOD_DEPTH: usize = 64;

impl Sim {
    /// A guest posts to one queue without end; a request in each of the others is served all the same.
    pub(super) fn storm(&mut self, p: usize) {
        let Peer::Guest(g) = &self.world.ports[p].peer else { return };
        let (queues, _) = g.shape();
        if queues < 2 {
            return;
        }
        for queue in 1..queues {
            self.post(p, queue, Some(Verb::Read));
        }
        let waits: Vec<u64> = self.world.ports[p].works().map(|w| w.start).collect();
        let d = self.world.ports[p].disk;
        let before = self.world.sides[d].answers;
        self.storm_turns(p);
        let alone = self.world.sides[d].answers - before;
        for (q, port) in self.world.ports.iter_mut().enumerate() {
            if q != p && port.disk == d {
                port.works().for_each(|work| work.answers += alone);
            }
        }
        if self.world.dead.is_some() || self.world.violation.is_some() {
            return;
        }
        self.world.coverage.met("storm", "with a request in every queue");
        let starved = self.world.ports[p].works().find(|w| waits.contains(&w.start)).map(|w| w.clone());
        if let Some(work) = starved {
            let what = format!("port {p}: {work:?} starves while another queue is served");
            self.world.violate(what);
        }
    }

    /// Turns of one guest alone, whose first queue is full.
    fn storm_turns(&mut self, p: usize) {
        for _ in 0..60 {
            while self.post(p, 0, Some(Verb::Read)) {}
            self.wake();
            self.activate(p);
            self.serve_port(p);
            if self.world.dead.is_some() || self.world.violation.is_some() {
                return;
            }
            self.finish_operations();
            self.world.flush_ports();
            if self.world.dead.is_some() {
                return;
            }
            self.listen_at(p, true, 0);
        }
    }

    /// A port of a disk always has more requests than one turn serves; the others of the disk have one each.
    pub(super) fn flood(&mut self, p: usize) {
        let d = self.world.ports[p].disk;
        if let Peer::Client(c) = &mut self.world.ports[p].peer {
            c.set_room(1 << 20);
        }
        let beside: Vec<usize> =
            (0..self.world.ports.len()).filter(|&q| q != p && self.world.ports[q].disk == d).collect();
        for _ in 0..FLOOD_TURNS {
            for &q in &beside {
                if self.world.ports[q].under_way() == 0 && self.ask_port(q) {
                    self.world.coverage.met("flood", "beside another port's requests");
                }
            }
            for _ in 0..FLOOD_DEPTH {
                if self.world.ports[p].under_way() < FLOOD_DEPTH {
                    self.ask_port(p);
                }
            }
            self.wake();
            while self.visit_next().is_some() {
                if self.world.dead.is_some() || self.world.violation.is_some() {
                    return;
                }
            }
            self.finish_operations();
            self.world.flush_ports();
            if self.world.dead.is_some() || self.world.violation.is_some() {
                return;
            }
            for q in 0..self.world.ports.len() {
                self.listen_at(q, false, 1 << 20);
            }
        }
    }
}
