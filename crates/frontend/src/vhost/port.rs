//! The device on the worker's side: takes requests from the rings, copies data, answers.
//!
//! Owns the queues of one disk and the requests under way, for the whole life of the server: a session of a front end
//! only changes its state, by closures that run on the worker between two turns. Never blocks and never trusts the
//! guest. Invariants: each chain taken is given back exactly once, unless its session has ended; no memory of a guest
//! is written for a request of an ended session, and no ring is served while such requests are under way, since their
//! writes could land after those of the next session.

use super::chain::walk;
use super::config::{EVENT_IDX, FLUSH, PROTOCOL_FEATURES, Profile};
use super::inflight::{InflightArea, InflightLog};
use super::limits::{QUEUE_SIZE_MAX, RANGES_MAX};
use super::memory::{GuestMap, Region, Span};
use super::request::{Action, Range, Status, decode};
use super::ring::{Broken, Ring, RingAddresses};
use super::slots::{Maps, Slots};
use crate::faults::{self, Bug};
use crate::{GuestFile, Peer, Port, PortInterest, Protocol};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use undercroft_cache::limits::REQUESTS_PER_DISK_MAX;
use undercroft_cache::{Extent, IoError, Op, ReqId, Request};
use undercroft_host::Doorbell;
use undercroft_hostmem::pressure::GuestRoom;

/// Why requests of a guest wait that would have us charged for its memory.
const WAITS_FOR_ROOM: &str = "the guest's memory is not preallocated, so that pages that the daemon touches first are \
                              charged to its control group, which is full. Add prealloc=on to the guest's memory, or \
                              raise the group's limit (MemoryMax)";

/// Why a message about a queue is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the device has no queue of that number")]
    NoSuchQueue,
    #[error("a queue's size must be a power of two up to {QUEUE_SIZE_MAX}")]
    QueueSize,
    #[error("the queue is running")]
    Running,
    #[error("the parts of the ring are not wholly inside shared memory, or not aligned")]
    RingPlace,
    #[error("the record of requests under way has no place for the queue")]
    NoInflightLog,
    #[error(
        "a front end of this disk made its notification descriptor block, and this kernel has no other way to notify \
         one (CONFIG_AIO, fs.aio-max-nr); restart the daemon once the disk's user is trusted again"
    )]
    HeldUpBefore,
}

/// One virtqueue and what the front end has said about it.
#[derive(Debug)]
struct Queue {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    kick: Option<File>,
    call: Option<Doorbell>,
    error: Option<Doorbell>,
    enabled: bool,
    /// Between the kick descriptor's arrival and the request for the base.
    started: bool,
    /// Found in guest memory; `None` while the memory it lies in is not there.
    ring: Option<Ring>,
    broken: Option<Broken>,
    log: Option<InflightLog>,
    /// Chains that a former daemon took and did not answer, the next one last.
    again: Vec<u16>,
    /// Chains taken and not given back.
    under_way: u16,
    /// Chains to give back as soon as the memory of the ring is there again, with the bytes written.
    deferred: Vec<(u16, u32)>,
    /// Is in the port's list of queues to publish.
    dirty: bool,
    /// The front end made us wait to notify it.
    held_up: bool,
    /// Waits for the last chain; is sent the base.
    stopping: Option<SyncSender<u16>>,
}

impl Queue {
    fn new() -> Queue {
        Queue {
            size: QUEUE_SIZE_MAX,
            addresses: None,
            base: 0,
            kick: None,
            call: None,
            error: None,
            enabled: false,
            started: false,
            ring: None,
            broken: None,
            log: None,
            again: Vec::new(),
            under_way: 0,
            deferred: Vec::new(),
            dirty: false,
            held_up: false,
            stopping: None,
        }
    }

    fn runs(&self) -> bool {
        self.started && self.enabled && self.broken.is_none() && self.ring.is_some()
    }

    /// Chains that could be taken now.
    #[inline]
    fn waiting(&mut self) -> Result<u16, Broken> {
        let Some(ring) = &mut self.ring else { return Ok(0) };
        let room = ring.size().saturating_sub(self.under_way);
        if !self.again.is_empty() {
            return Ok(room.min(self.again.len() as u16));
        }
        Ok(room.min(ring.available()?))
    }

    /// Gives a chain back; the driver sees it at the next publication. Returns whether the queue has to be put on the
    /// list of those to publish.
    #[inline]
    fn give_back(&mut self, head: u16, written: u32) -> bool {
        self.under_way -= 1;
        match &mut self.ring {
            Some(ring) => {
                if let Some(log) = &mut self.log {
                    log.used(head);
                }
                ring.push_used(head, written);
            }
            None => self.deferred.push((head, written)),
        }
        !std::mem::replace(&mut self.dirty, true)
    }

    /// Finds the ring in guest memory again after one of both has moved. Its positions stay.
    fn remap(&mut self, map: &GuestMap, event_idx: bool) {
        if !self.started && self.stopping.is_none() {
            return;
        }
        let Some(at) = &self.addresses else { return };
        self.ring = match &self.ring {
            Some(ring) => {
                self.base = ring.next_available();
                ring.moved(map, at)
            }
            None => Ring::new(map, at, self.size, self.base, event_idx),
        };
        if self.ring.is_some() {
            for (head, written) in std::mem::take(&mut self.deferred) {
                self.under_way += 1;
                self.give_back(head, written);
            }
            // Published here, so that it need not be on the port's list.
            self.dirty = false;
            self.publish();
        }
    }

    /// Makes used entries visible, and notifies the driver if it wants that.
    #[inline]
    fn publish(&mut self) {
        if let Some(ring) = &mut self.ring
            && ring.unpublished() > 0
        {
            if let Some(log) = &mut self.log
                && faults::has(Bug::MarkGoesEarly)
            {
                log.published(ring.published().wrapping_add(ring.unpublished()));
            }
            let wanted = ring.publish();
            if let Some(log) = &mut self.log {
                log.published(ring.published());
            }
            if wanted {
                self.held_up |= notify(self.call.as_ref());
            }
        }
    }

    /// Answers the front end that waits for the ring to stop, if it has.
    fn settle(&mut self) {
        if self.under_way == 0
            && let Some(waiter) = self.stopping.take()
        {
            self.base = self.ring.as_ref().map_or(self.base, Ring::next_available);
            self.ring = None;
            self.call = None;
            // The session may have gone meanwhile.
            let _ = waiter.try_send(self.base);
        }
    }
}

/// Signals the peer. Returns whether that was made to wait.
#[inline]
fn notify(doorbell: Option<&Doorbell>) -> bool {
    doorbell.is_some_and(|doorbell| doorbell.ring().is_err())
}

/// The device.
#[derive(Debug)]
pub struct VhostPort {
    id: u32,
    disk: Profile,
    queues: Vec<Queue>,
    /// Queues that are served, and which of them comes first in the next turn.
    running: Vec<u16>,
    first: usize,
    /// Queues with used entries to publish, or that may have come to rest.
    dirty: Vec<u16>,
    slots: Slots,
    maps: Maps,
    /// Speeds up the search for guest addresses.
    hint: u32,
    /// Pieces of the chain in hand.
    spans: Vec<Span>,
    /// Ranges of the chain in hand, if it discards or zeroes.
    ranges: Vec<Range>,
    /// Counts sessions; slots of former ones are orphans.
    session: u32,
    orphans: usize,
    /// Requests handed to the core.
    under_way: usize,
    event_idx: bool,
    /// Writes must be durable at once: the driver does not know how to flush.
    fua: bool,
    /// Wakes the worker when a reply makes room for requests that no kick will announce any more.
    wake_fd: File,
    /// Such requests wait, or may wait.
    held_up: bool,
    /// Parts of requests of several ranges for which there was no room in the turn that took them, the next one first.
    rest: VecDeque<Request>,
    fds_changed: bool,
    /// The guest's memory is another than when the worker last asked, or may hold something else altogether.
    memory_changed: bool,
    /// The front end's connection, to be closed if it does harm.
    connection: Option<UnixStream>,
    /// Harm done when the guest's memory was last found whole; see [`faults`].
    whole_at: u64,
    /// The front end was dropped for harm that it did; no other has come yet.
    dropped: bool,
    /// A front end of this disk has made us wait: from now on none is given the chance.
    careful: bool,
    /// What copies to guests may take of our control group.
    room: Arc<GuestRoom>,
    /// The next request waits for room there.
    waits: bool,
    /// The log says that this front end's requests wait for it.
    told: bool,
    shut: bool,
}

impl VhostPort {
    /// A device with `queues` queues, none of them set up. `wake_fd` is an eventfd of its own.
    pub fn new(id: u32, disk: Profile, queues: u16, wake_fd: File) -> VhostPort {
        VhostPort {
            id,
            disk,
            queues: (0..queues).map(|_| Queue::new()).collect(),
            running: Vec::with_capacity(usize::from(queues)),
            first: 0,
            dirty: Vec::with_capacity(usize::from(queues)),
            slots: Slots::new(REQUESTS_PER_DISK_MAX),
            maps: Maps::new(),
            hint: 0,
            spans: Vec::with_capacity(8),
            ranges: Vec::with_capacity(RANGES_MAX),
            session: 0,
            orphans: 0,
            under_way: 0,
            event_idx: false,
            fua: true,
            wake_fd,
            held_up: false,
            rest: VecDeque::with_capacity(RANGES_MAX),
            fds_changed: false,
            memory_changed: false,
            connection: None,
            whole_at: u64::MAX,
            dropped: false,
            careful: false,
            room: Arc::default(),
            waits: false,
            told: false,
            shut: false,
        }
    }

    /// The same, taking memory of guests from `room`.
    pub fn with_room(mut self, room: Arc<GuestRoom>) -> VhostPort {
        self.room = room;
        self
    }

    /// A front end has connected.
    pub fn welcome(&mut self, connection: UnixStream) {
        self.told = false;
        self.connection = Some(connection);
        self.dropped = false;
    }

    /// Whether the guest's memory is still what the front end shares. What was read before this says no is not used.
    #[inline]
    fn is_whole(maps: &Maps, whole_at: &mut u64) -> bool {
        let now = undercroft_host::faults();
        if now == *whole_at {
            return true;
        }
        if maps.current().is_broken() {
            return false;
        }
        *whole_at = now;
        true
    }

    /// The way to signal the front end at `eventfd`.
    fn doorbell(&self, eventfd: Option<File>) -> Result<Option<Doorbell>, Refusal> {
        match eventfd {
            Some(fd) if self.careful => Doorbell::careful(fd).map(Some).map_err(|_| Refusal::HeldUpBefore),
            fd => Ok(fd.map(Doorbell::new)),
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue, Refusal> {
        self.queues.get_mut(index as usize).ok_or(Refusal::NoSuchQueue)
    }

    /// Finds out anew which queues run.
    fn refresh(&mut self) {
        self.running.clear();
        self.running.extend((0..self.queues.len() as u16).filter(|&i| self.queues[usize::from(i)].runs()));
        self.first = 0;
    }

    /// Takes the driver's features over.
    pub fn set_features(&mut self, features: u64) {
        self.event_idx = features & EVENT_IDX != 0;
        self.fua = features & FLUSH == 0;
        for queue in &mut self.queues {
            if let Some(ring) = &mut queue.ring {
                ring.set_event_idx(self.event_idx);
            }
            // Without the protocol's own way to enable rings they are enabled from the start.
            queue.enabled |= features & PROTOCOL_FEATURES == 0;
        }
        self.refresh();
    }

    /// Replaces the memory table. Requests under way go on with the memory they were taken with.
    pub fn set_memory(&mut self, map: Arc<GuestMap>) {
        self.flush();
        self.maps.set(map);
        self.memory_changed = true;
        self.whole_at = u64::MAX;
        self.hint = 0;
        let map = self.maps.current();
        self.queues.iter_mut().for_each(|queue| queue.remap(map, self.event_idx));
        self.refresh();
    }

    /// Sets how many entries a queue has.
    pub fn set_size(&mut self, index: u32, size: u32) -> Result<(), Refusal> {
        let queue = self.queue(index)?;
        if queue.started {
            return Err(Refusal::Running);
        }
        queue.size = u16::try_from(size)
            .ok()
            .filter(|n| n.is_power_of_two() && *n <= QUEUE_SIZE_MAX)
            .ok_or(Refusal::QueueSize)?;
        Ok(())
    }

    /// Sets where a ring lies.
    pub fn set_addresses(&mut self, index: u32, at: RingAddresses) -> Result<(), Refusal> {
        self.flush();
        let queue = self.queues.get_mut(index as usize).ok_or(Refusal::NoSuchQueue)?;
        queue.addresses = Some(at);
        queue.remap(self.maps.current(), self.event_idx);
        self.refresh();
        Ok(())
    }

    /// Sets the position from which available entries are taken.
    pub fn set_base(&mut self, index: u32, base: u32) -> Result<(), Refusal> {
        let queue = self.queue(index)?;
        if queue.started {
            return Err(Refusal::Running);
        }
        queue.base = base as u16;
        Ok(())
    }

    /// Hands over the record of requests under way; used from the next start of each queue on.
    pub fn set_inflight(&mut self, area: &InflightArea) {
        for (i, queue) in self.queues.iter_mut().enumerate() {
            if !queue.started {
                queue.log = area.queue(i as u16);
            }
        }
    }

    /// Starts a queue, or replaces the kick descriptor of one that runs. `logged` says whether requests under way are
    /// recorded in this session.
    pub fn start(&mut self, index: u32, kick: File, logged: bool) -> Result<(), Refusal> {
        let queue = self.queues.get_mut(index as usize).ok_or(Refusal::NoSuchQueue)?;
        if !queue.started {
            let at = queue.addresses.ok_or(Refusal::RingPlace)?;
            let mut ring = Ring::new(self.maps.current(), &at, queue.size, queue.base, self.event_idx)
                .ok_or(Refusal::RingPlace)?;
            queue.broken = None;
            queue.again.clear();
            queue.deferred.clear();
            if logged {
                let log = queue.log.as_mut().ok_or(Refusal::NoInflightLog)?;
                match log.recover(queue.size, ring.published()) {
                    Ok(Some(left)) => {
                        // What was taken was either used or is still under way, in whatever order.
                        ring.set_next_available(ring.published().wrapping_add(left.len() as u16));
                        queue.again = left;
                        queue.again.reverse();
                    }
                    Ok(None) => {}
                    Err(broken) => queue.broken = Some(broken),
                }
            } else {
                queue.log = None;
            }
            if let Some(broken) = queue.broken {
                report(&self.disk, index as u16, queue, broken);
            }
            queue.ring = Some(ring);
            queue.started = true;
        }
        queue.kick = Some(kick);
        self.fds_changed = true;
        self.refresh();
        Ok(())
    }

    /// Sets where the driver is notified; `None` if it polls.
    pub fn set_call(&mut self, index: u32, call: Option<File>) -> Result<(), Refusal> {
        let call = self.doorbell(call)?;
        let queue = self.queue(index)?;
        // Entries may have been used before the driver could be told.
        if !faults::has(Bug::MaskedCallLost) {
            queue.held_up |= notify(call.as_ref());
        }
        queue.call = call;
        Ok(())
    }

    /// Sets where the front end is told that a queue is broken.
    pub fn set_error(&mut self, index: u32, error: Option<File>) -> Result<(), Refusal> {
        let error = self.doorbell(error)?;
        self.queue(index)?.error = error;
        Ok(())
    }

    /// Enables or disables a queue; a disabled one is not served.
    pub fn enable(&mut self, index: u32, on: bool) -> Result<(), Refusal> {
        self.queue(index)?.enabled = on;
        self.refresh();
        Ok(())
    }

    /// Stops a queue. When its last chain has been given back and published, `done` is sent the position of the next
    /// available entry.
    pub fn stop(&mut self, index: u32, done: SyncSender<u16>) -> Result<(), Refusal> {
        self.flush();
        let queue = self.queue(index)?;
        queue.started = false;
        queue.kick = None;
        // What a former daemon left and this one did not get to stays in the record.
        queue.again.clear();
        queue.stopping = Some(done);
        queue.settle();
        self.fds_changed = true;
        self.refresh();
        Ok(())
    }

    /// Forgets what the driver has set up, but not the memory table. All queues must have stopped.
    pub fn reset(&mut self) {
        debug_assert!(self.queues.iter().all(|queue| queue.under_way == 0), "reset of a device that is not at rest");
        self.dirty.clear();
        self.queues.iter_mut().for_each(|queue| *queue = Queue::new());
        self.event_idx = false;
        self.fua = true;
        self.fds_changed = true;
        self.memory_changed = true;
        self.refresh();
    }

    /// Ends the session: forgets all that the front end said. Requests under way go on, but their answers go nowhere.
    pub fn sever(&mut self) {
        self.waits = false;
        self.connection = None;
        self.whole_at = u64::MAX;
        self.session = self.session.wrapping_add(1);
        self.orphans = self.slots.used();
        self.dirty.clear();
        self.queues.iter_mut().for_each(|queue| *queue = Queue::new());
        self.maps.set(Arc::default());
        self.memory_changed = true;
        self.hint = 0;
        self.event_idx = false;
        self.fua = true;
        self.fds_changed = true;
        self.refresh();
    }

    /// Whether no request is under way, not even one of a former session.
    pub fn is_at_rest(&self) -> bool {
        self.slots.used() == 0 && self.orphans == 0 && self.under_way == 0
    }

    /// Takes one chain of queue `index`, of which there must be one. Of several ranges those for which there is no
    /// `room` wait for the next turn. Returns false if the chain has to wait.
    fn take_one(&mut self, index: u16, room: usize, out: &mut Vec<Request>) -> Result<bool, Broken> {
        let Self { queues, slots, maps, spans, ranges, hint, disk, rest, whole_at, room: guest_room, .. } = self;
        let queue = &mut queues[usize::from(index)];
        let ring = queue.ring.as_mut().expect("a running queue has a ring");
        let repeated = queue.again.pop();
        let head = match repeated {
            Some(head) => head,
            None => ring.pop()?,
        };
        let map = maps.current();
        let chain = walk(ring, map, head, hint, spans)?;
        let action = decode(map, spans, &chain, disk, ranges);
        if !Self::is_whole(maps, whole_at) {
            // Nobody may have posted this: the worker drops the front end before it looks here again.
            return Ok(false);
        }
        // Pages that nobody has touched yet are charged to us, and stay so; only asked where a control group limits us.
        self.waits = guest_room.is_limited()
            && !map.is_allocated()
            && matches!(action, Action::Read { .. } | Action::Write { .. })
            && !guest_room.take(map.absent_bytes(spans));
        if self.waits {
            match repeated {
                Some(head) => queue.again.push(head),
                None => ring.set_next_available(ring.next_available().wrapping_sub(1)),
            }
            return Ok(false);
        }
        if let (None, Some(log)) = (repeated, &mut queue.log) {
            log.taken(head);
        }
        queue.under_way += 1;
        let id = |tag| ReqId { port: self.id, tag };
        let request = |tag, op, offset, len| Request { id: id(tag), disk: disk.disk, op, offset, len };
        let answer = match action {
            Action::Answer(status) => Some((status, 0)),
            Action::Serial => {
                let mut done = 0;
                for span in &spans[chain.readable..] {
                    let here = (disk.serial.len() - done).min(span.len as usize);
                    map.slice(*span, 0, here).copy_from(&disk.serial[done..done + here]);
                    done += here;
                }
                Some((Status::Ok, done as u32))
            }
            _ => None,
        };
        if let Some((status, written)) = answer {
            map.put_byte(chain.status, status.code());
            if queue.give_back(head, written + 1) {
                self.dirty.push(index);
            }
            return Ok(true);
        }
        let map = maps.hold();
        let (tag, slot) = slots.take();
        slot.head = head;
        slot.queue = index;
        slot.session = self.session;
        slot.map = map;
        slot.status = chain.status;
        slot.written = 1;
        match action {
            Action::Read { offset, len } => {
                slot.spans.extend_from_slice(&spans[chain.readable..]);
                slot.written = len + 1;
                slot.filled.begin(offset, len as usize);
                debug_assert!(slot.holds(len));
                out.push(request(tag, Op::Read, offset, u64::from(len)));
                self.under_way += 1;
            }
            Action::Write { offset, len, first, skip } => {
                slot.spans.extend_from_slice(&spans[first..chain.readable]);
                if let Some(span) = slot.spans.first_mut() {
                    span.offset += u64::from(skip);
                    span.len -= skip;
                }
                debug_assert!(slot.holds(len));
                out.push(request(tag, Op::Write { fua: self.fua }, offset, u64::from(len)));
                self.under_way += 1;
            }
            Action::Flush => {
                out.push(request(tag, Op::Flush, 0, 0));
                self.under_way += 1;
            }
            Action::Ranges => {
                slot.parts = ranges.len() as u16;
                for (n, range) in ranges.iter().enumerate() {
                    let map = maps.hold();
                    let (part, slot) = slots.take();
                    slot.parent = Some(tag);
                    slot.session = self.session;
                    slot.map = map;
                    let op = match range.op {
                        Op::WriteZeroes { unmap, .. } => Op::WriteZeroes { unmap, fua: self.fua },
                        op => op,
                    };
                    let request = request(part, op, range.offset, range.len);
                    if n < room {
                        out.push(request)
                    } else {
                        rest.push_back(request)
                    }
                    self.under_way += 1;
                }
            }
            Action::Answer(_) | Action::Serial => unreachable!("answered above"),
        }
        Ok(true)
    }

    /// Gives a slot back that nothing refers to any more.
    fn release(&mut self, tag: u32) {
        let slot = self.slots.get(tag);
        let (map, orphan) = (slot.map, slot.session != self.session);
        self.maps.release(map);
        self.slots.put(tag);
        self.orphans -= usize::from(orphan);
        if self.held_up && self.orphans == 0 {
            self.held_up = false;
            // Our own: it never blocks.
            let _ = (&self.wake_fd).write(&1u64.to_ne_bytes());
        }
    }

    /// A request is finished, with all its parts.
    fn finish(&mut self, tag: u32, result: Result<(), IoError>) {
        let slot = self.slots.get(tag);
        if slot.session == self.session {
            let mut status = Status::from(result);
            if status == Status::Ok && !slot.filled.is_whole() && !faults::has(Bug::ShortReadSent) {
                // What was in the buffers before is not what the disk holds.
                tracing::error!(disk = self.disk.name, "a read was answered without all of its data: I/O error");
                status = Status::IoError;
            }
            self.maps.get(slot.map).put_byte(slot.status, status.code());
            // Of a failed read nothing but the status is sure to be there.
            let written = if status == Status::Ok { slot.written } else { 1 };
            if self.queues[usize::from(slot.queue)].give_back(slot.head, written) {
                self.dirty.push(slot.queue);
            }
        }
        self.release(tag);
    }

    /// Takes a queue out of service until the driver sets it up again.
    fn break_queue(&mut self, index: u16, broken: Broken) {
        if !Self::is_whole(&self.maps, &mut self.whole_at) {
            return;
        }
        let queue = &mut self.queues[usize::from(index)];
        queue.broken = Some(broken);
        report(&self.disk, index, queue, broken);
    }
}

/// Says once, in the log and to the front end, that a queue is out of service.
fn report(disk: &Profile, index: u16, queue: &mut Queue, broken: Broken) {
    tracing::error!(
        disk = disk.name,
        queue = index,
        "queue taken out of service: {broken}; it works again after the guest resets the device"
    );
    queue.held_up |= notify(queue.error.as_ref());
}

impl Port for VhostPort {
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool {
        // First what was begun, in whichever session: others wait for its end.
        let begun = self.rest.len().min(budget);
        out.extend(self.rest.drain(..begun));
        if !self.rest.is_empty() {
            return true;
        }
        if self.shut || self.dropped || self.orphans > 0 {
            return false;
        }
        let budget = budget - begun;
        if faults::has(Bug::FirstQueueFirst) {
            self.first = 0;
        }
        let (start, mut chains, mut more) = (out.len(), 0usize, false);
        let mut failed = None;
        let n = self.running.len();
        'queues: for i in 0..n {
            let at = (self.first + i) % n;
            let index = self.running[at];
            let before = chains;
            loop {
                let queue = &mut self.queues[usize::from(index)];
                let room = budget.saturating_sub(out.len() - start);
                // The next turn starts with the first queue that got nothing in this one.
                let next = if chains == before { at } else { (at + 1) % n };
                match queue.waiting() {
                    Ok(0) => break,
                    Ok(_) if room == 0 || chains >= budget => {
                        self.first = next;
                        more = true;
                        break 'queues;
                    }
                    Ok(_) if self.slots.available() <= RANGES_MAX => {
                        // Replies make room, and the worker looks again after them.
                        self.first = next;
                        break 'queues;
                    }
                    Ok(_) => {}
                    Err(broken) => {
                        failed = Some((index, broken));
                        break;
                    }
                }
                match self.take_one(index, room, out) {
                    Ok(true) => chains += 1,
                    Ok(false) => {
                        self.first = at;
                        more = !self.waits;
                        break 'queues;
                    }
                    Err(broken) => {
                        failed = Some((index, broken));
                        break;
                    }
                }
            }
            if let Some((index, broken)) = failed.take() {
                self.break_queue(index, broken);
            }
        }
        if self.running.iter().any(|&i| self.queues[usize::from(i)].broken.is_some()) {
            self.refresh();
        }
        // No reply will follow for what was answered here.
        self.flush();
        if self.waits && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(disk = self.disk.name, "requests wait: {WAITS_FOR_ROOM}");
        }
        more || !self.rest.is_empty()
    }

    #[inline]
    fn copy_out(&mut self, tag: u32, at: usize, bytes: &[u8]) {
        let slot = self.slots.get(tag);
        if slot.session != self.session {
            return;
        }
        let map = self.maps.get(slot.map);
        slot.pieces(map, at, bytes.len(), |done, to| to.copy_from(&bytes[done..done + to.len()]));
        slot.filled.copied(at, bytes.len());
    }

    #[inline]
    fn copy_in(&mut self, tag: u32, at: usize, bytes: &mut [u8]) {
        let slot = self.slots.get(tag);
        let map = self.maps.get(slot.map);
        slot.pieces(map, at, bytes.len(), |done, from| {
            from.copy_to(&mut bytes[done..done + from.len()]);
        });
    }

    fn extents(&mut self, _tag: u32, _extents: &[Extent]) {
        debug_assert!(false, "virtio-blk asks for no extents");
    }

    #[inline]
    fn reply(&mut self, tag: u32, result: Result<(), IoError>) {
        self.under_way -= 1;
        let Some(parent) = self.slots.get(tag).parent else { return self.finish(tag, result) };
        self.release(tag);
        let whole = self.slots.get(parent);
        whole.failed = match whole.parts {
            _ if faults::has(Bug::LastRangeCounts) => result.err(),
            1 if faults::has(Bug::LastRangeIgnored) => whole.failed,
            _ => whole.failed.or(result.err()),
        };
        whole.parts -= 1;
        if whole.parts == 0 {
            let result = whole.failed.map_or(Ok(()), Err);
            self.finish(parent, result);
        }
    }

    fn flush(&mut self) {
        for index in self.dirty.drain(..) {
            let queue = &mut self.queues[usize::from(index)];
            queue.dirty = false;
            queue.publish();
            queue.settle();
        }
    }

    fn arm(&mut self) -> bool {
        let mut more = false;
        for &index in &self.running {
            let queue = &mut self.queues[usize::from(index)];
            match (queue.ring.as_mut().map_or(Ok(false), Ring::arm), queue.waiting()) {
                // What the ring holds beyond the room for it was posted before it was armed: no kick will come.
                (Ok(any), Ok(0)) => self.held_up |= any,
                // An index that makes no sense is for `take` to deal with.
                _ => more = true,
            }
        }
        if !self.rest.is_empty() {
            return true;
        }
        let full = self.slots.available() <= RANGES_MAX;
        if more && (full || self.orphans > 0 || self.waits) {
            self.held_up = true;
            more = false;
        }
        more && !self.shut
    }

    fn disarm(&mut self) {
        for &index in &self.running {
            if let Some(ring) = &mut self.queues[usize::from(index)].ring {
                ring.disarm();
            }
        }
    }

    fn fds(&self) -> Vec<(BorrowedFd<'_>, PortInterest)> {
        // Those of disabled and broken queues as well: what is watched changes with messages only.
        let kicks = self.queues.iter().filter_map(|queue| queue.kick.as_ref());
        kicks.chain([&self.wake_fd]).map(|fd| (fd.as_fd(), PortInterest::Read)).collect()
    }

    fn fds_changed(&mut self) -> bool {
        std::mem::take(&mut self.fds_changed)
    }

    fn guest_memory_changed(&mut self) -> Option<u32> {
        std::mem::take(&mut self.memory_changed).then(|| self.maps.current().pages())
    }

    #[inline]
    fn guest_page(&mut self, tag: u32, at: usize) -> Option<u32> {
        let slot = self.slots.get(tag);
        // Pages of a map that is no longer the guest's have no numbers.
        if slot.session != self.session || !self.maps.is_current(slot.map) {
            return None;
        }
        let (span, skip) = slot.place(at)?;
        self.maps.current().page(span, skip)
    }

    #[inline]
    fn copy_guest_page(&mut self, page: u32, to: &mut [u8; 4096]) -> bool {
        self.maps.current().copy_page(page, to)
    }

    fn waits(&self) -> Option<&'static str> {
        self.waits.then_some(WAITS_FOR_ROOM)
    }

    fn harm(&self) -> Option<&'static str> {
        if self.dropped {
            return None;
        }
        if self.maps.current().is_broken()
            || self.queues.iter().any(|q| q.log.as_ref().is_some_and(InflightLog::is_broken))
        {
            return Some(
                "memory that it shares is gone: its file was made shorter, or there was no room for it (a full tmpfs, no \
                 huge pages left). Set prealloc=on and seal=on for the guest's memory",
            );
        }
        self.queues.iter().any(|q| q.held_up).then_some(
            "it made its notification descriptor block (a full counter without O_NONBLOCK), which no hypervisor does: \
             look who uses this disk's socket. From now on this disk notifies in a way that cannot block, and is slower",
        )
    }

    fn drop_peer(&mut self) {
        self.careful |= self.queues.iter().any(|q| q.held_up);
        if let Some(connection) = self.connection.take() {
            // The session's thread is woken by this, and ends the session.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        self.sever();
        self.dropped = true;
    }

    fn is_torn(&mut self, tag: u32) -> bool {
        let map = self.slots.get(tag).map;
        self.maps.get(map).is_broken()
    }

    fn guest_files(&self) -> Vec<GuestFile> {
        let piece = |r: &Region| {
            let place = r.mapping.file_offset()?;
            Some(GuestFile { file: Arc::clone(place.arc()), offset: place.start(), len: r.len })
        };
        self.maps.current().regions().iter().filter_map(piece).collect()
    }

    fn inflight(&self) -> usize {
        self.under_way
    }

    fn is_closed(&self) -> bool {
        self.shut
    }

    fn shut(&mut self) {
        self.shut = true;
    }

    fn peer(&self) -> Option<Peer> {
        // A guest shares its memory as soon as its machine has been set up, long before its driver starts a queue.
        if self.maps.current().is_empty() {
            return None;
        }
        let name = match self.running.len() {
            0 => "no queue yet".to_string(),
            1 => "1 queue".to_string(),
            n => format!("{n} queues"),
        };
        Some(Peer { protocol: Protocol::VhostUser, name })
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
