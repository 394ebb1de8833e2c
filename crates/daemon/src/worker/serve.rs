//! Visits of ports: new requests are put to the core, and those that it has served in part go on.
//!
//! Owns what one visit may do. Never decides who is visited: `frontend::turns` does. Invariant: a visit costs at
//! most what it is allowed and one step more; a request that the core has begun is never dropped.

use super::Worker;
use super::effects::{Live, number, op_kind};
use undercroft_cache::limits::{BATCH, STEP_BYTES};
use undercroft_cache::{DiskId, Event, Op, Request};
use undercroft_frontend::turns::{QUANTUM_BYTES, REQUEST_BYTES, SEND_BYTES, Turn, Visit};
use undercroft_host::{FRAME_BYTES, now_ns, probes};

/// Requests or completions of a batch after which what they led to is handed over.
const HAND_OVER: usize = 4;
/// Before so many bytes are copied at once, the replies given so far go out.
pub(super) const LARGE_BYTES: usize = 32 * 1024;
/// Requests taken at a time at least, as far as there is room: front ends have some that become so many.
const TAKE_MIN: usize = 16;
/// While a disk uses its visits up, a port without requests is looked at for so many nanoseconds before it sleeps: to
/// be woken takes longer then.
const LINGER_NS: u64 = 100_000;

/// Whether, after the first `n` of a batch, what they led to goes out before the rest is looked at. Were everything
/// sent at the end of the batch, guest, worker and disk would work one after the other, each idle meanwhile (measured:
/// decision 0002); the first one wakes the other side, the later ones mostly find it awake and cost it nothing.
pub(super) fn hands_over(n: usize) -> bool {
    n == 1 || n > 0 && n.is_multiple_of(HAND_OVER)
}

/// What putting a request to the core costs, at most.
#[inline]
fn cost(r: &Request) -> i64 {
    REQUEST_BYTES
        + match r.op {
            Op::Read | Op::Write { .. } | Op::WriteZeroes { .. } => r.len.min(STEP_BYTES) as i64,
            Op::Flush | Op::Discard | Op::Status => 0,
        }
}

/// Requests to take for `left` bytes: so many of one block.
fn batch(left: i64) -> usize {
    (left.max(0) as usize).div_ceil(REQUEST_BYTES as usize + FRAME_BYTES).clamp(TAKE_MIN, BATCH)
}

impl Worker {
    /// Visits ports with work, each disk's at most once; arms those that have been idle long enough.
    pub(super) fn serve(&mut self) -> bool {
        let busy = self.take_turn(self.flows.begin());
        if busy && self.starved {
            self.feed_starved();
        }
        busy
    }

    /// Looks, between two pieces of work that each may take some 20 us, at the disks that want little: so they wait for
    /// the longest of those, and not for all that a turn has.
    pub(super) fn glance(&mut self) {
        if let Some(turn) = self.flows.glance() {
            self.take_turn(turn);
            self.flush_ports();
        }
    }

    /// The same between two pieces of work for a disk, whether it wants something now or not.
    pub(super) fn glance_beside(&mut self, disk: u32) {
        if let Some(turn) = self.flows.glance_beside(disk) {
            self.take_turn(turn);
            self.flush_ports();
        }
    }

    fn take_turn(&mut self, mut turn: Turn) -> bool {
        let mut busy = false;
        while let Some((port, left)) = self.flows.next(&mut turn) {
            if let Some(next) = self.flows.next_disk() {
                self.core.approach(DiskId(next));
            }
            let visit = self.visit(port, left);
            busy |= visit.cost > 0;
            self.flows.done(&mut turn, port, visit);
        }
        busy
    }

    /// Lets port `id` have `allowed` bytes.
    fn visit(&mut self, id: u32, allowed: i64) -> Visit {
        let Some(slot) = self.ports[id as usize].as_mut() else { return Visit { cost: 0, more: false, stays: false } };
        let mut left = allowed;
        if slot.backlog.has_paused() {
            slot.worked_ns = self.now_ns;
        }
        if slot.backlog.begin_visit() {
            self.resume(id, &mut left);
        }
        let more = self.put_new(id, &mut left);
        self.resume(id, &mut left);
        let cost = allowed - left;
        let Some(slot) = self.ports[id as usize].as_mut() else { return Visit { cost, more: false, stays: false } };
        if slot.port.has_more_to_send() && !slot.dirty && !slot.sends {
            slot.dirty = true;
            self.dirty.ports.push(id);
        }
        let unfinished = !slot.backlog.is_empty();
        if cost > 0 || unfinished && more != More::NoRoom {
            return Visit { cost, more: left <= 0 && (unfinished || more == More::Yes), stays: true };
        }
        if more == More::NoRoom && !slot.backlog.has_paused() {
            // What the disk has no room for stays with the guest; completions bring the port back.
            slot.active = false;
            slot.starved = true;
            self.starved = true;
            return Visit { cost, more: false, stays: false };
        }
        if more == More::Yes {
            // It has answered by itself all that it took, or has received a part of a request as long as a turn.
            slot.worked_ns = self.now_ns;
            return Visit { cost: QUANTUM_BYTES, more: true, stays: true };
        }
        let idle_ns = self.now_ns.saturating_sub(slot.worked_ns);
        if slot.port.is_closed() {
            self.leaving = true;
        }
        let linger_ns = if self.flows.is_crowded() { LINGER_NS } else { 0 };
        if idle_ns < self.polling.window_ns().max(linger_ns) {
            return Visit { cost, more: false, stays: true };
        }
        // The replies of this turn must be out before the port sleeps, or on their way.
        if !slot.sends {
            slot.port.flush(SEND_BYTES);
        }
        if slot.port.arm() {
            slot.worked_ns = self.now_ns;
            return Visit { cost: REQUEST_BYTES, more: false, stays: true };
        }
        slot.active = false;
        Visit { cost, more: false, stays: false }
    }

    /// Puts requests of port `id` to the core while any of the `left` bytes are left, new ones and those that waited.
    fn put_new(&mut self, id: u32, left: &mut i64) -> More {
        while *left > 0 {
            let Some(slot) = self.ports[id as usize].as_mut() else { return More::No };
            let room = self.core.room(slot.disk);
            if room == 0 {
                return More::NoRoom;
            }
            if slot.backlog.has_waiting() {
                slot.backlog.take_waiting(room.min(BATCH), &mut self.requests);
                self.put_to_core(id, left);
                continue;
            }
            let more = slot.port.take(room.min(batch(*left)), &mut self.requests);
            if self.requests.is_empty() {
                return if more { More::Yes } else { More::No };
            }
            slot.worked_ns = self.now_ns;
            self.put_to_core(id, left);
            if !more {
                return More::No;
            }
        }
        More::Yes
    }

    /// Lets requests of port `id` go on that are paused, while any of the `left` bytes are left.
    fn resume(&mut self, id: u32, left: &mut i64) {
        while *left > 0 {
            let Some(slot) = self.ports[id as usize].as_mut() else { return };
            let Some((_, paused)) = slot.backlog.next_paused() else { return };
            *left -= STEP_BYTES as i64;
            if !self.dirty.ports.is_empty() || !self.dirty.disks.is_empty() {
                self.hand_over();
            }
            self.apply(Event::Resume(paused));
        }
    }

    /// Puts the batch in `self.requests`, all of port `id`, to the core, while any of the `left` bytes are left. The
    /// rest waits with the port.
    fn put_to_core(&mut self, id: u32, left: &mut i64) {
        let requests = std::mem::take(&mut self.requests);
        let mut at_once = 0;
        for r in &requests {
            self.core.prefetch(r);
        }
        for (n, &r) in requests.iter().enumerate() {
            if *left <= 0 {
                if let Some(slot) = self.ports[id as usize].as_mut() {
                    slot.backlog.put_back(&requests[n..]);
                }
                break;
            }
            let cost = cost(&r);
            *left -= cost;
            if hands_over(n) || n == 0 && cost >= LARGE_BYTES as i64 {
                self.hand_over();
                if self.core.presses_for_spare() {
                    self.use_spare_time();
                }
            }
            if let Some(slot) = self.ports[id as usize].as_mut() {
                slot.start(&r, self.now_ns);
            }
            probes::request(r.disk.0, number(r.id), op_kind(r.op), r.offset, r.len);
            let noted = self.tap.as_mut().is_some_and(|tap| tap.begin(&r, self.now_ns));
            let mut fx = Live {
                ports: &mut self.ports,
                disks: &mut self.disks,
                devices: &mut self.devices,
                dirty: &mut self.dirty,
                check_captures: self.check_captures,
                current: Some(r.id),
                all_found: false,
                at_once: &mut at_once,
                tap: self.tap.as_deref_mut(),
                noted,
                torn: false,
                refused: &mut self.refused,
                now_ns: self.now_ns,
            };
            self.core.apply(Event::Request(r), self.now_ns, &mut fx);
            let answered = fx.current.is_none();
            if !answered {
                self.tell_of_wait(&r);
            }
            if noted
                && !answered
                && let Some(tap) = &mut self.tap
            {
                tap.wait_for(r.id, self.now_ns);
            }
        }
        if at_once > 0 {
            // One look at the clock for the batch; each hit waited for those before it, which this over-estimates.
            let took_ns = now_ns().saturating_sub(self.now_ns);
            let disk = self.ports[id as usize].as_ref().map(|s| s.disk);
            if let Some(d) = disk.and_then(|d| self.disks[d.0 as usize].as_mut()) {
                d.latencies.read_hit.record_n(took_ns, u64::from(at_once));
            }
        }
        self.requests = requests;
        self.requests.clear();
    }
}

impl Worker {
    /// Fires the probes of a request that was not answered at once.
    fn tell_of_wait(&self, r: &Request) {
        let steps = self.ports[r.id.port as usize].as_ref().and_then(|slot| slot.backlog.last_paused());
        // A long read that goes in steps may find everything in RAM.
        if r.op == Op::Read && steps != Some(r.id.tag) {
            probes::miss(number(r.id));
        }
        probes::evict(r.disk.0, || self.core.stats(r.disk).evicted_blocks);
    }
}

/// Whether a port has more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Yes,
    No,
    /// The disk has no room for any.
    NoRoom,
}

const _: () = assert!(QUANTUM_BYTES >= STEP_BYTES as i64);
