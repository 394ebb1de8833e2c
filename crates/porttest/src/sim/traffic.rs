//! What clients do all the time: ask, send, and look at what came back.
//!
//! Owns the mix of requests. Never judges. Invariant: no more is under way than the model of a disk can follow.

use super::Sim;
use super::port::Peer;
use super::world::B;
use crate::vhost::sim_guest::{DATA_MAX, PAGES_MAX, WHOLE_PAGES};
use crate::work::{Verb, Work};

impl Sim {
    /// A client of some port asks for something, if it may.
    pub(super) fn ask(&mut self) -> bool {
        let p = self.asking_port();
        let most = if self.rng.one_in(8) { 3 * self.busy } else { self.busy };
        if self.world.ports[p].under_way() >= most {
            return self.serve();
        }
        self.ask_port(p)
    }

    /// A port whose client may ask for something: a guest more often than others, where pages of guests lie across
    /// blocks.
    fn asking_port(&mut self) -> usize {
        let p = self.any_port();
        let again = self.paging.is_some() && matches!(self.world.ports[p].peer, Peer::Client(_)) && self.rng.one_in(2);
        if again { self.any_port() } else { p }
    }

    /// The client of a port asks for something.
    pub(super) fn ask_port(&mut self, p: usize) -> bool {
        match &self.world.ports[p].peer {
            Peer::Guest(g) => {
                let queue = self.rng.below(u64::from(g.shape().0)) as u16;
                self.post(p, queue, None)
            }
            peer if peer.is_leaving() => false,
            Peer::Client(_) => self.send(p),
            Peer::File(_) => self.send_to_file(p),
            Peer::Device(_) => self.send_to_device(p),
        }
    }

    /// A guest posts a chain.
    pub(super) fn post(&mut self, p: usize, queue: u16, verb: Option<Verb>) -> bool {
        let d = self.world.ports[p].disk;
        let Peer::Guest(g) = &self.world.ports[p].peer else { return false };
        if !g.has_room(queue) {
            return false;
        }
        let through = g.writes_through();
        let geometry = self.world.sides[d].info.geometry.clone();
        let verb = verb.unwrap_or_else(|| match self.rng.below(100) {
            0..42 => Verb::Read,
            42..70 => Verb::Write,
            70..78 => Verb::Flush,
            78..88 => Verb::Zeroes,
            88..93 if geometry.can_discard => Verb::Discard,
            93..96 => Verb::Serial,
            96..100 => Verb::Wrong,
            _ => Verb::Write,
        });
        let sectors = geometry.size_bytes / 512;
        let range = |sim: &mut Sim, most: u64| {
            let (offset, len) = sim.range(sectors * 512, 512, most);
            (offset, len)
        };
        let data = matches!(verb, Verb::Read | Verb::Write);
        let pages = if data { self.pages(geometry.size_bytes) } else { None };
        let ranges: Vec<(u64, u64)> = match verb {
            Verb::Read | Verb::Write => vec![pages.unwrap_or_else(|| range(self, DATA_MAX))],
            Verb::Zeroes | Verb::Discard => {
                let n = if self.rng.one_in(2) { 1 } else { self.rng.between(2, 16) };
                (0..n).map(|_| range(self, 4 * B)).collect()
            }
            _ => Vec::new(),
        };
        let unmap = self.rng.one_in(2);
        let Some(mut work) = self.world.begin(d, verb, &ranges, through, unmap) else { return false };
        self.beside_bad(d, &mut work);
        if pages.is_some() {
            work.mark(WHOLE_PAGES);
        }
        self.world.note(|| format!("port {p} queue {queue} posts {work:?}"));
        let Peer::Guest(g) = &mut self.world.ports[p].peer else { return false };
        if g.post(work, queue, &mut self.rng).is_err() {
            self.world.violate("a chain for which there was room was not posted".into());
        }
        true
    }

    /// An NBD client sends a request.
    fn send(&mut self, p: usize) -> bool {
        let d = self.world.ports[p].disk;
        let Peer::Client(c) = &self.world.ports[p].peer else { return false };
        let extents = c.knows_extents();
        let geometry = self.world.sides[d].info.geometry.clone();
        let verb = match self.rng.below(100) {
            0..42 => Verb::Read,
            42..68 => Verb::Write,
            68..76 => Verb::Flush,
            76..84 => Verb::Zeroes,
            84..90 if geometry.can_discard => Verb::Discard,
            90..94 => Verb::Cache,
            94..97 if extents => Verb::Extents,
            97..100 => Verb::Wrong,
            _ => Verb::Read,
        };
        let fua = self.rng.one_in(3);
        let unmap = self.rng.one_in(2);
        let unit = *self.rng.pick(&[1, 512, B]);
        let range = match verb {
            Verb::Cache if self.rng.one_in(2) => Some((0, geometry.size_bytes)),
            Verb::Flush | Verb::Wrong => None,
            _ => Some(self.range(geometry.size_bytes, unit, 40 << 10)),
        };
        let Some(work) = self.begun(p, verb, range, fua, unmap) else { return false };
        let Peer::Client(c) = &mut self.world.ports[p].peer else { return false };
        c.send(work, &mut self.rng);
        self.arrive_at(p);
        true
    }

    /// A program asks something of a file.
    fn send_to_file(&mut self, p: usize) -> bool {
        let d = self.world.ports[p].disk;
        let size = self.world.sides[d].info.geometry.size_bytes;
        let align = u64::from(self.world.sides[d].info.geometry.align);
        // What is behind the last whole sector is no part of the file.
        let size = size - size % align.max(1);
        let verb = match self.rng.below(100) {
            0..42 => Verb::Read,
            42..70 => Verb::Write,
            70..80 => Verb::Flush,
            80..90 => Verb::Zeroes,
            90..94 => Verb::Cache,
            94..97 => Verb::Extents,
            _ => Verb::Wrong,
        };
        let fua = verb == Verb::Write && self.rng.one_in(3);
        let unmap = self.rng.one_in(2);
        let unit = *self.rng.pick(&[1, 512, B]);
        let range = match verb {
            Verb::Cache if self.rng.one_in(2) => Some((0, size)),
            Verb::Flush | Verb::Wrong => None,
            _ => Some(self.range(size, unit, 40 << 10)),
        };
        let Some(work) = self.begun(p, verb, range, fua, unmap) else { return false };
        let Peer::File(f) = &mut self.world.ports[p].peer else { return false };
        f.send(work, size, &mut self.rng);
        self.arrive_at(p);
        true
    }

    /// A program, or a file system, asks something of a block device.
    fn send_to_device(&mut self, p: usize) -> bool {
        let d = self.world.ports[p].disk;
        let geometry = self.world.sides[d].info.geometry.clone();
        let verb = match self.rng.below(100) {
            0..42 => Verb::Read,
            42..70 => Verb::Write,
            70..80 => Verb::Flush,
            80..90 => Verb::Zeroes,
            90..96 if geometry.can_discard => Verb::Discard,
            96..100 => Verb::Wrong,
            _ => Verb::Read,
        };
        let fua = matches!(verb, Verb::Write | Verb::Zeroes) && self.rng.one_in(3);
        let unmap = self.rng.one_in(2);
        let unit = *self.rng.pick(&[512, B]);
        let size = geometry.size_bytes / 512 * 512;
        let range = match verb {
            Verb::Flush | Verb::Wrong => None,
            _ => Some(self.range(size, unit, 40 << 10)),
        };
        let Some(work) = self.begun(p, verb, range, fua, unmap) else { return false };
        let Peer::Device(b) = &mut self.world.ports[p].peer else { return false };
        b.send(work, size, &mut self.rng);
        self.arrive_at(p);
        true
    }

    /// Work of the client of a port, as far as the model of its disk can follow.
    fn begun(&mut self, p: usize, verb: Verb, range: Option<(u64, u64)>, fua: bool, unmap: bool) -> Option<Work> {
        let slot = &self.world.ports[p];
        let (d, over) = (slot.disk, slot.peer.over());
        let mut work = self.world.begin(d, verb, range.as_slice(), fua, unmap)?;
        self.beside_bad(d, &mut work);
        self.world.note(|| format!("port {p} is asked over {over}: {work:?}"));
        Some(work)
    }

    /// A range: hot or anywhere, of whole units, short or long.
    fn range(&mut self, size: u64, unit: u64, most: u64) -> (u64, u64) {
        let hot = if self.rng.one_in(2) { size.min(6 * B) } else { size };
        let unit = if size < unit { 1 } else { unit };
        let offset = self.rng.below(hot) / unit * unit;
        let offset = offset.min((size - 1) / unit * unit);
        let most = if self.rng.one_in(4) { most } else { most.min(B) };
        let len = self.rng.between(1, most).div_ceil(unit) * unit;
        let left = size - offset;
        (offset, if len <= left { len } else { left })
    }

    /// Whole pages of a guest's, in a run in which these begin elsewhere than blocks do: hot ones or any.
    fn pages(&mut self, size: u64) -> Option<(u64, u64)> {
        let behind = self.paging?;
        let pages = size.saturating_sub(behind) / B;
        if pages == 0 || self.rng.one_in(12) {
            return None;
        }
        let first = if self.rng.one_in(2) { self.rng.below(pages.min(6)) } else { self.rng.below(pages) };
        let count = self.rng.between(1, PAGES_MAX).min(pages - first);
        Some((behind + first * B, count * B))
    }

    /// Marks reads of which a neighbour may fail.
    fn beside_bad(&self, d: usize, work: &mut Work) {
        let Some(bad) = &self.world.sides[d].bad else { return };
        if let (Verb::Read, Some(part)) = (work.verb, work.parts.first())
            && (part.offset + part.len + 8 * B > bad.start && part.offset < bad.end + 8 * B)
        {
            work.mark("beside the bad sector");
        }
    }

    /// Some of what clients have sent arrives.
    pub(super) fn arrive(&mut self) -> bool {
        let p = self.any_port();
        self.arrive_at(p)
    }

    fn arrive_at(&mut self, p: usize) -> bool {
        if let Peer::File(f) = &mut self.world.ports[p].peer {
            let arrives = !self.rng.one_in(4);
            arrives.then(|| f.arrive(&mut self.rng));
            return arrives;
        }
        if let Peer::Device(b) = &mut self.world.ports[p].peer {
            let arrives = !self.rng.one_in(4);
            arrives.then(|| b.arrive(&mut self.rng));
            return arrives;
        }
        let Peer::Client(c) = &mut self.world.ports[p].peer else { return false };
        if self.rng.one_in(4) {
            return false;
        }
        if c.arrive(&mut self.rng) {
            c.works().for_each(|w| w.mark("arrived in pieces"));
        }
        true
    }

    /// A client looks whether it has been answered.
    pub(super) fn listen(&mut self) -> bool {
        let p = self.any_port();
        let poll = self.rng.one_in(10);
        let most = *self.rng.pick(&[1, 20, 300, 5000, 1 << 20]);
        self.listen_at(p, poll, most)
    }

    /// The client of a port looks; a guest only if it was told, or looks by itself.
    pub(super) fn listen_at(&mut self, p: usize, poll: bool, most: usize) -> bool {
        let finished = match &mut self.world.ports[p].peer {
            Peer::Guest(g) => {
                if !g.is_told() && !poll {
                    return false;
                }
                g.look()
            }
            Peer::Client(c) => {
                let before = c.fragments;
                let finished = c.read(most);
                if c.fragments > before {
                    c.works().for_each(|w| w.mark("left in pieces"));
                }
                finished
            }
            // One reply is one message.
            Peer::File(f) => f.read(most),
            Peer::Device(b) => b.read(most),
        };
        match finished {
            Ok(finished) => self.world.judge(p, finished),
            Err(what) => self.world.violate(format!("port {p}: {what}")),
        }
        true
    }

    /// Notes when a client is held up.
    pub(super) fn cover_client(&mut self, p: usize) {
        if let Peer::Client(c) = &self.world.ports[p].peer
            && c.is_full()
        {
            self.world.coverage.met("full", "client");
        }
        if let Peer::File(f) = &self.world.ports[p].peer
            && f.is_full()
        {
            self.world.coverage.met("full", "file");
        }
        if let Peer::Device(b) = &self.world.ports[p].peer
            && b.is_full()
        {
            self.world.coverage.met("full", "device");
        }
    }
}
