//! Which disk and which port is served next: deficit round robin by bytes, over the disks of a worker and over the
//! ports of each disk. The daemon's worker and the simulation of ports both use it.
//!
//! Owns the order of ports with work and how many bytes each has had. Never looks at a request or a clock: the caller,
//! who visits a port, says what the visit cost. Invariants: a disk or port that had more than its quantum waits until
//! others have had as much; between two visits of a disk that takes less than its quantum, disks that take all of
//! theirs get at most the quanta of [`grants`], and what their last visits went over. A port with work is in exactly
//! one queue, or is being visited.

use crate::faults::{NoPortFaults, PortBug, PortFaults};
use std::collections::VecDeque;
use std::marker::PhantomData;
use undercroft_cache::{Paused, Request};

/// Bytes that a visit of a disk or a port may cost: eleven requests of one block.
pub const QUANTUM_BYTES: i64 = 64 * 1024;
/// What a request costs besides its bytes: about the time that copying so many takes.
pub const REQUEST_BYTES: i64 = 2 * 1024;
/// Quanta that a disk may have in a turn if no other disk has work: only disks that sleep could be kept waiting.
pub const ALONE_QUANTA: i64 = 4;
/// Bytes of long replies that are sent at once where others may wait: some 10 us.
pub const SEND_BYTES: usize = 32 * 1024;
/// The same for a disk that has had the worker for itself: fewer calls.
pub const LONE_SEND_BYTES: usize = 256 * 1024;
/// With more disks than this that want little, they are looked at once in a turn.
const GLANCE_DISKS_MAX: usize = 32;
/// One disk that uses its quantum up is visited for so many that do not, and at least one in each turn.
const LIGHT_PER_HEAVY: usize = 16;

/// How many disks that use their quanta up are visited in a turn, beside `light` others.
fn grants(light: usize) -> usize {
    (light / LIGHT_PER_HEAVY).max(1)
}

/// The most turns that a port with work waits for its next visit, or its first, where there are `disks` disks of at
/// most `ports` ports each, and a visit costs at most `over` more than it may.
///
/// A disk that uses up its quantum goes behind all others once, and once more for each quantum that it went over. So
/// does a port among those of its disk; there, ports that use up their quanta and the others take turns.
pub fn wait_turns(disks: usize, ports: usize, over: i64) -> u64 {
    let passes = 1 + over / QUANTUM_BYTES;
    (2 * ports as i64 * passes * disks as i64 * passes) as u64
}

/// Bytes that one turn costs at most, where there are `disks` disks and a visit costs at most `over` more than it may.
/// Between two visits of a port, others get at most so many bytes for each turn of [`wait_turns`].
pub fn turn_bytes(disks: usize, over: i64) -> i64 {
    let disks = disks as i64;
    disks.max(ALONE_QUANTA) * QUANTUM_BYTES + disks * over
}

/// Some flows in two queues: those that took less than they might at their last visit, and those that did not.
#[derive(Debug, Default)]
struct Rounds {
    light: VecDeque<u32>,
    heavy: VecDeque<u32>,
}

impl Rounds {
    fn len(&self) -> usize {
        self.light.len() + self.heavy.len()
    }

    fn put(&mut self, id: u32, heavy: bool) {
        if heavy { self.heavy.push_back(id) } else { self.light.push_back(id) }
    }

    fn remove(&mut self, id: u32) {
        self.light.retain(|&i| i != id);
        self.heavy.retain(|&i| i != id);
    }
}

/// The ports of one disk.
#[derive(Debug, Default)]
struct DiskFlow {
    ports: Rounds,
    /// Bytes it has had beyond its quanta.
    debt: i64,
    /// Ports that use their quanta up were not visited the last time: they come first.
    heavy_first: bool,
    /// Whether it stands in a queue of disks.
    listed: bool,
}

/// How a visit of a port ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// What it cost, in bytes.
    pub cost: i64,
    /// Whether there was more to do than the port was allowed.
    pub more: bool,
    /// Whether the port is to be visited again, without being added.
    pub stays: bool,
}

/// One turn: each disk at most once.
#[derive(Debug, Default)]
pub struct Turn {
    light: usize,
    heavy: usize,
    quanta: i64,
    now: Option<Now>,
}

/// The disk being visited.
#[derive(Debug)]
struct Now {
    disk: u32,
    left: i64,
    light: usize,
    heavy_first: bool,
    heavy_served: bool,
    more: bool,
}

/// Which disks have had work of late: one for itself, or several.
#[derive(Debug, Default)]
struct Company {
    now: Period,
    before: Period,
}

/// Which disks had work between two ticks.
#[derive(Debug, Default)]
struct Period {
    first: Option<u32>,
    /// Others than the first had, too.
    several: bool,
}

impl Period {
    #[inline]
    fn has_work(&mut self, disk: u32) {
        self.several |= *self.first.get_or_insert(disk) != disk;
    }

    fn has_others(&self, disk: u32) -> bool {
        self.several || self.first.is_some_and(|first| first != disk)
    }
}

impl Company {
    /// A period ends; those of `listed` go on with their work.
    fn tick(&mut self, listed: impl Iterator<Item = u32>) {
        self.before = std::mem::take(&mut self.now);
        listed.for_each(|disk| self.now.has_work(disk));
    }

    fn is_lone(&self, disk: u32) -> bool {
        !self.now.has_others(disk) && !self.before.has_others(disk)
    }

    /// Whether it was several.
    fn is_several(&self) -> bool {
        self.now.several || self.before.several || self.now.first.is_some_and(|disk| self.before.has_others(disk))
    }
}

/// All ports with work, by disk.
#[derive(Debug, Default)]
pub struct Flows<F: PortFaults = NoPortFaults> {
    disks: Rounds,
    of: Vec<DiskFlow>,
    /// By port: bytes that it may still have of its quantum; below 0, what it has had beyond it.
    credits: Vec<i64>,
    /// Ports in queues, or being visited.
    ports: usize,
    company: Company,
    faults: PhantomData<F>,
}

impl<F: PortFaults> Flows<F> {
    /// Whether no port has work.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ports == 0
    }

    /// Whether disks that want little wait for the end of a visit.
    #[inline]
    pub fn keeps_waiting(&self) -> bool {
        !self.disks.light.is_empty()
    }

    /// Whether a disk used all of its quantum up at its last visit.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        !self.disks.heavy.is_empty()
    }

    /// Whether no disk but this one has work.
    pub fn is_alone(&self, disk: u32) -> bool {
        self.disks.len() <= usize::from(self.of.get(disk as usize).is_some_and(|flow| flow.listed))
    }

    /// Whether no other disk has had work since the tick before the last one: nobody waits, and nobody is expected.
    pub fn is_lone(&self, disk: u32) -> bool {
        self.company.is_lone(disk)
    }

    /// A while has passed, a quarter of a second or more; see [`Flows::is_lone`].
    pub fn tick(&mut self) {
        self.company.tick(self.disks.light.iter().chain(&self.disks.heavy).copied());
    }

    /// Port `port` of `disk` has work. It must not be in a queue.
    pub fn add(&mut self, disk: u32, port: u32) {
        self.company.now.has_work(disk);
        if self.of.len() <= disk as usize {
            self.of.resize_with(disk as usize + 1, DiskFlow::default);
        }
        if self.credits.len() <= port as usize {
            self.credits.resize(port as usize + 1, 0);
        }
        let flow = &mut self.of[disk as usize];
        flow.ports.put(port, false);
        self.ports += 1;
        if !flow.listed {
            flow.listed = true;
            // What it owes it owes still: to sleep a moment pays nothing back.
            self.disks.put(disk, flow.debt > 0);
        }
    }

    /// Port `port` of `disk` is gone; it was in a queue. Not within a turn.
    pub fn remove(&mut self, disk: u32, port: u32) {
        let Some(flow) = self.of.get_mut(disk as usize) else { return };
        let before = flow.ports.len();
        flow.ports.remove(port);
        self.ports -= before - flow.ports.len();
        self.credits[port as usize] = 0;
        if flow.ports.len() == 0 && flow.listed {
            flow.listed = false;
            flow.debt = 0;
            self.disks.remove(disk);
        }
    }

    /// Something was done for a disk between two turns; its next visit has so much less, or does not take place.
    pub fn charge(&mut self, disk: u32, cost: i64) {
        let most = if self.is_alone(disk) { ALONE_QUANTA * QUANTUM_BYTES } else { QUANTUM_BYTES };
        if let Some(flow) = self.of.get_mut(disk as usize) {
            // What it had while it asked for nothing kept nobody waiting.
            flow.debt = (flow.debt + cost).min(flow.debt.max(most));
        }
    }

    /// Begins a turn.
    pub fn begin(&self) -> Turn {
        let light = self.disks.light.len();
        let heavy = grants(light).min(self.disks.heavy.len());
        let quanta = if self.disks.len() == 1 { ALONE_QUANTA } else { 1 };
        Turn { light, heavy, quanta, now: None }
    }

    /// Begins a look at the disks that took less than they might; none if that would take long, or if but one has had
    /// work of late.
    pub fn glance(&self) -> Option<Turn> {
        let light = self.disks.light.len();
        // A disk that floods need not be in a queue: its operations are work, too.
        let worth = (1..=GLANCE_DISKS_MAX).contains(&light) && (self.disks.len() > 1 || self.company.is_several());
        worth.then_some(Turn { light, heavy: 0, quanta: 1, now: None })
    }

    /// The disk whose port will probably be visited next, if that is another one.
    #[inline]
    pub fn next_disk(&self) -> Option<u32> {
        self.disks.light.front().or(self.disks.heavy.front()).copied()
    }

    /// The next port to visit and the bytes it may have; `None` when the turn is over. [`Flows::done`] has to follow.
    #[inline]
    pub fn next(&mut self, turn: &mut Turn) -> Option<(u32, i64)> {
        loop {
            if let Some(now) = &mut turn.now {
                let ports = &mut self.of[now.disk as usize].ports;
                let heavy_first = now.heavy_first || F::has(PortBug::HeavyAlwaysFirst);
                if now.left > 0 && now.light > 0 && (!heavy_first || ports.heavy.is_empty()) {
                    now.light -= 1;
                    if let Some(port) = ports.light.pop_front() {
                        return Some((port, now.left));
                    }
                }
                if now.left > 0
                    && let Some(port) = ports.heavy.pop_front()
                {
                    let credit = &mut self.credits[port as usize];
                    if ports.heavy.is_empty() && ports.light.is_empty() && *credit > -QUANTUM_BYTES {
                        // There is no other port of the disk: it may have all that the disk may.
                        *credit = now.left;
                    } else if *credit <= 0 {
                        *credit += QUANTUM_BYTES;
                    }
                    if *credit <= 0 {
                        // Its last visit went over by more than a quantum.
                        ports.heavy.push_back(port);
                        continue;
                    }
                    (now.heavy_first, now.heavy_served) = (false, true);
                    return Some((port, now.left.min(*credit)));
                }
                self.end_visit(turn);
            }
            let disk = if turn.light > 0 {
                turn.light -= 1;
                self.disks.light.pop_front()?
            } else if turn.heavy > 0 {
                turn.heavy -= 1;
                self.disks.heavy.pop_front()?
            } else {
                return None;
            };
            let flow = &mut self.of[disk as usize];
            let left = QUANTUM_BYTES * turn.quanta - flow.debt;
            let (light, heavy_first) = (flow.ports.light.len(), flow.heavy_first);
            if left <= 0 {
                // Its last visit went over by more than a quantum.
                flow.debt -= QUANTUM_BYTES;
                self.disks.put(disk, true);
                continue;
            }
            turn.now = Some(Now { disk, left, light, heavy_first, heavy_served: false, more: false });
        }
    }

    /// The visit of `port` is over.
    #[inline]
    pub fn done(&mut self, turn: &mut Turn, port: u32, visit: Visit) {
        let Some(now) = &mut turn.now else { return };
        now.left -= visit.cost;
        now.more |= visit.more;
        let credit = &mut self.credits[port as usize];
        *credit -= visit.cost;
        if !visit.more {
            // It wants no more now: what it had too much it still owes, and a visit pays back what a visit may cost.
            *credit = (*credit + QUANTUM_BYTES).min(0);
        }
        let ports = &mut self.of[now.disk as usize].ports;
        if !visit.stays {
            self.ports -= 1;
        } else if visit.more && *credit <= 0 && F::has(PortBug::OverQuantumForgotten) {
            // It is in no queue, and nobody adds it.
        } else if visit.more && *credit > 0 {
            // The disk's turn ended before its own did: it goes on from there.
            ports.heavy.push_front(port);
        } else {
            ports.put(port, visit.more);
        }
    }

    fn end_visit(&mut self, turn: &mut Turn) {
        let Some(now) = turn.now.take() else { return };
        let flow = &mut self.of[now.disk as usize];
        flow.debt = (-now.left).max(0);
        flow.heavy_first = !flow.ports.heavy.is_empty() && !now.heavy_served;
        let unvisited = now.light > 0 || !flow.ports.heavy.is_empty();
        flow.listed = flow.ports.len() > 0;
        if flow.listed {
            self.disks.put(now.disk, now.left <= 0 && (now.more || unvisited));
        }
    }
}

/// Requests that were taken from a port and are not finished: those that the core has not seen yet, because the port
/// had used up its part of the turn, and those that the core has served in part.
#[derive(Debug, Default)]
pub struct Backlog<F: PortFaults = NoPortFaults> {
    waiting: VecDeque<Request>,
    paused: VecDeque<(u32, Paused)>,
    /// Whether those paused go before new ones at the next visit.
    paused_first: bool,
    faults: PhantomData<F>,
}

impl<F: PortFaults> Backlog<F> {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.paused.is_empty() && self.waiting.is_empty()
    }

    /// Whether the core has served some request in part.
    #[inline]
    pub fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// The tag of the request that was paused last, if any is.
    #[inline]
    pub fn last_paused(&self) -> Option<u32> {
        self.paused.back().map(|&(tag, _)| tag)
    }

    /// A visit begins. Whether paused requests go on before new ones are taken: they and new ones take turns.
    #[inline]
    pub fn begin_visit(&mut self) -> bool {
        if self.paused.is_empty() {
            return false;
        }
        self.paused_first = !self.paused_first;
        self.paused_first
    }

    /// The core has served request `tag` in part. Returns whether the port has to be woken: it sleeps, and nothing else
    /// would have it visited.
    #[inline]
    pub fn pause(&mut self, tag: u32, paused: Paused, active: bool) -> bool {
        self.paused.push_back((tag, paused));
        !active && !F::has(PortBug::PausedNotWoken)
    }

    /// The next request that is to go on, and its tag.
    #[inline]
    pub fn next_paused(&mut self) -> Option<(u32, Paused)> {
        self.paused.pop_front()
    }

    /// Whether requests wait that the core has not seen.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Moves at most `most` requests that waited to `to`, in order.
    #[inline]
    pub fn take_waiting(&mut self, most: usize, to: &mut Vec<Request>) {
        let n = self.waiting.len().min(most);
        to.extend(self.waiting.drain(..n));
    }

    /// Requests that the core is not to see before the next visit, before those that wait already.
    pub fn put_back(&mut self, requests: &[Request]) {
        requests.iter().rev().for_each(|r| self.waiting.push_front(*r));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// What one step of a long request costs here: more than any does there.
    const STEP: i64 = 256 * 1024;

    /// Bytes that disks which use their quanta up may have in one turn, beside `light` others.
    fn crowd_bytes(light: usize) -> i64 {
        grants(light) as i64 * QUANTUM_BYTES
    }

    /// A port that has `cost` to do for each request and never runs out, or asks for one small thing per turn.
    #[derive(Clone, Copy, Debug)]
    struct Client {
        disk: u32,
        request: i64,
        endless: bool,
    }

    /// Lets the clients run for `turns` turns; calls `see` with each visit's port and cost.
    fn run(clients: &[Client], turns: usize, mut see: impl FnMut(u32, i64)) {
        let mut flows: Flows = Flows::default();
        for (port, c) in clients.iter().enumerate() {
            flows.add(c.disk, port as u32);
        }
        for _ in 0..turns {
            let mut turn = flows.begin();
            while let Some((port, left)) = flows.next(&mut turn) {
                assert!(left > 0, "a visit that allows nothing");
                let c = clients[port as usize];
                let mut cost = c.request;
                while c.endless && cost < left {
                    cost += c.request;
                }
                see(port, cost);
                flows.done(&mut turn, port, Visit { cost, more: c.endless, stays: true });
            }
        }
    }

    fn small(disk: u32) -> Client {
        Client { disk, request: REQUEST_BYTES + 4096, endless: false }
    }

    fn flood(disk: u32, request: i64) -> Client {
        Client { disk, request, endless: true }
    }

    /// The most that others have between two visits of port 0, once the classes are known.
    fn longest_wait(clients: &[Client]) -> i64 {
        let (mut since, mut worst, mut seen) = (0, 0, 0);
        run(clients, 400, |port, cost| {
            if port == 0 {
                seen += 1;
                if seen > 3 {
                    worst = worst.max(since);
                }
                since = 0;
            } else {
                since += cost;
            }
        });
        worst
    }

    #[test]
    fn beside_any_flood_a_neighbour_waits_for_one_quantum_and_one_step() {
        let long: Vec<Client> = (0..64).map(|_| flood(1, STEP)).collect();
        let many: Vec<Client> = (0..64).map(|n| flood(1 + n, 64 * 1024 + REQUEST_BYTES)).collect();
        let deep: Vec<Client> = (0..64).map(|_| flood(1, REQUEST_BYTES + 4096)).collect();
        let crowd: Vec<Client> = (0..64).map(|_| small(1)).collect();
        for others in [long, many, deep, crowd] {
            let mut clients = vec![small(0)];
            clients.extend(others);
            let waited = longest_wait(&clients);
            assert!(waited <= crowd_bytes(1) + STEP, "waited for {waited} bytes of {:?}", clients[1]);
        }
    }

    #[test]
    fn a_small_client_of_a_flooded_disk_waits_for_little_more() {
        let mut clients = vec![small(0)];
        clients.extend((0..63).map(|_| flood(0, 64 * 1024 + REQUEST_BYTES)));
        let waited = longest_wait(&clients);
        assert!(waited <= ALONE_QUANTA * QUANTUM_BYTES + 2 * 64 * 1024, "waited for {waited} bytes");
    }

    #[test]
    fn a_thousand_quiet_disks_leave_the_busy_ones_their_part() {
        let mut clients: Vec<Client> = (0..1000).map(small).collect();
        clients.push(flood(1000, 64 * 1024));
        clients.extend((0..100).map(|n| flood(1001 + n, 64 * 1024)));
        let mut had = 0;
        run(&clients, 100, |port, cost| had += if port >= 1000 { cost } else { 0 });
        assert!(had >= 60 * crowd_bytes(1000), "100 turns had {had} bytes for those with much to do");
    }

    #[test]
    fn a_disk_is_lone_once_others_have_been_silent_for_a_period() {
        let mut flows: Flows = Flows::default();
        let run = |flows: &mut Flows, stays| {
            let mut turn = flows.begin();
            while let Some((port, _)) = flows.next(&mut turn) {
                flows.done(&mut turn, port, Visit { cost: 1, more: false, stays });
            }
        };
        flows.add(0, 0);
        assert!(flows.is_lone(0));
        flows.add(1, 1);
        assert!(!flows.is_lone(0) && !flows.is_lone(1));
        run(&mut flows, false);
        flows.add(0, 0);
        flows.tick();
        assert!(!flows.is_lone(0), "the other one had work in the period before");
        flows.tick();
        assert!(flows.is_lone(0) && !flows.is_lone(1));
        run(&mut flows, false);
        flows.add(1, 1);
        assert!(!flows.is_lone(0) && !flows.is_lone(1));
    }

    #[test]
    fn a_port_that_goes_leaves_nothing_behind() {
        let mut flows: Flows = Flows::default();
        for port in 0..8 {
            flows.add(port % 2, port);
        }
        for port in 0..8 {
            flows.remove(port % 2, port);
        }
        assert!(flows.is_empty() && flows.next(&mut flows.begin()).is_none());
        assert!(flows.of.iter().all(|f| !f.listed && f.ports.len() == 0));
    }

    proptest! {
        /// Disks that never run out have equal parts, whatever their requests are like and however many ports they
        /// have; the ports of one disk nearly so.
        #[test]
        fn equal_parts_by_bytes(disks in prop::collection::vec((1usize..6, 1i64..=STEP), 2..12)) {
            let mut clients = Vec::new();
            for (disk, &(ports, request)) in disks.iter().enumerate() {
                clients.extend((0..ports).map(|_| flood(disk as u32, request)));
            }
            let mut had = vec![0i64; clients.len()];
            let turns = 400 * disks.len();
            // Counted once each port has been visited, and is known to be heavy.
            let mut visits = 0;
            run(&clients, turns, |port, cost| {
                visits += 1;
                had[port as usize] += if visits > 20 * disks.len() { cost } else { 0 };
            });
            let mut of: HashMap<u32, i64> = HashMap::new();
            for (c, had) in clients.iter().zip(&had) {
                *of.entry(c.disk).or_default() += had;
            }
            let (least, most) = (of.values().min().unwrap(), of.values().max().unwrap());
            prop_assert!(most - least <= 4 * (QUANTUM_BYTES + STEP), "{of:?}");
            for (disk, &(_, request)) in disks.iter().enumerate() {
                let of_disk = || clients.iter().zip(&had).filter(|(c, _)| c.disk == disk as u32).map(|(_, &had)| had);
                let (least, most) = (of_disk().min().unwrap(), of_disk().max().unwrap());
                let slack = 4 * (QUANTUM_BYTES + request.max(REQUEST_BYTES));
                prop_assert!(most - least <= slack, "{least} to {most}");
            }
        }

        /// Whatever comes and goes, every port with work is visited, and none that has gone.
        #[test]
        fn nobody_is_forgotten(steps in prop::collection::vec((0u32..24, 0u8..4, 0i64..2 * STEP), 1..300)) {
            let mut flows: Flows = Flows::default();
            let mut awake = [false; 24];
            for (port, what, cost) in steps {
                if !awake[port as usize] {
                    flows.add(port % 5, port);
                    awake[port as usize] = true;
                } else if what == 0 {
                    flows.remove(port % 5, port);
                    awake[port as usize] = false;
                }
                let mut turn = flows.begin();
                while let Some((p, _)) = flows.next(&mut turn) {
                    prop_assert!(awake[p as usize]);
                    let stays = what != 1 || p != port;
                    awake[p as usize] = stays;
                    flows.done(&mut turn, p, Visit { cost, more: what == 2, stays });
                }
                prop_assert_eq!(flows.is_empty(), !awake.contains(&true));
            }
            let mut seen = [false; 24];
            for _ in 0..2000 {
                let mut turn = flows.begin();
                while let Some((p, _)) = flows.next(&mut turn) {
                    seen[p as usize] = true;
                    flows.done(&mut turn, p, Visit { cost: 1, more: false, stays: true });
                }
            }
            prop_assert_eq!(seen, awake);
        }
    }
}
