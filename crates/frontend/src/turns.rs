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
/// Quanta that a disk may have in a turn if no other disk has had work of late: with a neighbour that asks for
/// something now and then, and sleeps between, it has one, since a worker hears of what sleeps between two turns.
pub const ALONE_QUANTA: i64 = 4;
/// Bytes of long replies that are sent at once where others may wait: some 5 to 15 us.
pub const SEND_BYTES: usize = 16 * 1024;
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
/// does a port among those of its disk; there, ports that use up their quanta and the others alternate.
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

/// One turn of a worker: visits, of each disk at most one.
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

    /// Whether a disk used all of its quantum up at its last visit.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        !self.disks.heavy.is_empty()
    }

    /// Whether no disk but this one has work.
    fn is_alone(&self, disk: u32) -> bool {
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
        let most = if self.is_alone(disk) && self.is_lone(disk) { ALONE_QUANTA * QUANTUM_BYTES } else { QUANTUM_BYTES };
        if let Some(flow) = self.of.get_mut(disk as usize) {
            // What it had while it asked for nothing kept nobody waiting.
            flow.debt = (flow.debt + cost).min(flow.debt.max(most));
        }
    }

    /// Begins a turn.
    pub fn begin(&self) -> Turn {
        let light = self.disks.light.len();
        let heavy = grants(light).min(self.disks.heavy.len());
        let only = self.disks.light.front().or(self.disks.heavy.front()).filter(|_| self.disks.len() == 1);
        let quanta = if only.is_some_and(|&disk| self.is_lone(disk)) { ALONE_QUANTA } else { 1 };
        Turn { light, heavy, quanta, now: None }
    }

    /// Begins a look at the disks that took less than they might; none if that would take long, or if there is but one
    /// with work.
    pub fn glance(&self) -> Option<Turn> {
        let light = self.disks.light.len();
        let worth = self.disks.len() > 1 && (1..=GLANCE_DISKS_MAX).contains(&light);
        worth.then_some(Turn { light, heavy: 0, quanta: 1, now: None })
    }

    /// The same between two pieces of work for `disk`, whose ports may all sleep while it waits for its image.
    pub fn glance_beside(&self, disk: u32) -> Option<Turn> {
        let light = self.disks.light.len();
        let worth = !self.is_alone(disk) && (1..=GLANCE_DISKS_MAX).contains(&light);
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
            // The disk's visit ended before its own did: it goes on from there.
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
/// had used up what a visit may cost, and those that the core has served in part.
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

    /// A visit begins. Whether paused requests go on before new ones are taken: they and new ones alternate.
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
mod tests;
