//! The device on the worker's side: takes requests from the rings, copies data, answers.
//!
//! Owns the queues of one disk and the requests under way, for the whole life of the server: a session of a front end
//! only changes its state, by closures that run on the worker between two turns. Never blocks and never trusts the
//! guest. Invariants: each chain taken is given back exactly once, unless its session has ended; no memory of a guest
//! is written for a request of an ended session, and no ring is served while such requests are under way, since their
//! writes could land after those of the next session.

mod holes;
mod leaving;
mod logging;
mod queue;
mod requests;
mod setup;
mod unseen;

pub use queue::RestNotice;
pub use setup::QueueRefusal;

use self::holes::Holes;
use self::logging::Logging;
use self::queue::Queue;
use self::unseen::Failures;
use super::config::Profile;
use super::inflight::InflightLog;
use super::limits::RANGES_MAX;
use super::memory::{GuestSpan, MemoryRegion, PAGE_BYTES};
use super::request::Range;
use super::ring::SplitRing;
use super::slots::{Maps, Slots};
use crate::faults::{NoPortFaults, PortBug, PortFaults};
use crate::turns::SEND_BYTES;
use crate::{GuestFile, GuestMemory, Peer, Port, PortInterest, Protocol};
use std::collections::VecDeque;
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use undercroft_cache::limits::REQUESTS_PER_DISK_MAX;
use undercroft_cache::{Extent, IoError, Request};
use undercroft_hostmem::pressure::GuestRoom;

/// Why requests of a guest wait that would have us charged for its memory.
const WAITS_FOR_ROOM: &str = "the guest's memory is not preallocated, or a balloon gave some of it back, so that pages \
                              that the daemon touches first are charged to its control group, which is full. Add \
                              prealloc=on to the guest's memory, or raise the group's limit (MemoryMax)";

/// The device.
#[derive(Debug)]
pub struct VhostPort<F: PortFaults = NoPortFaults> {
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
    spans: Vec<GuestSpan>,
    /// Ranges of the chain in hand, if it discards or zeroes.
    ranges: Vec<Range>,
    /// Counts sessions; slots of former ones are orphans.
    session: u32,
    orphans: usize,
    /// Requests handed to the core.
    under_way: usize,
    /// The last answer was to a session that has ended.
    unheard: bool,
    /// Failures answered to this session that it cannot see yet.
    failures: Failures,
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
    /// The guest's driver was reset, or begins with the first entries of rings that had got further.
    began_afresh: bool,
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
    /// What is marked for a front end that migrates the guest.
    logging: Logging,
    /// Pages of the guest that are missing.
    holes: Holes,
    /// The next request waits for room there.
    waits: bool,
    /// The log says that this front end's requests wait for it.
    told: bool,
    shut: bool,
    faults: PhantomData<F>,
}

impl VhostPort {
    /// A device with `queues` queues, none of them set up. `wake_fd` is an eventfd of its own.
    pub fn new(id: u32, disk: Profile, queues: u16, wake_fd: File) -> VhostPort {
        VhostPort::with_faults(id, disk, queues, wake_fd)
    }
}

impl<F: PortFaults> VhostPort<F> {
    /// [`VhostPort::new`] with bugs and deaths that a test may switch on.
    pub fn with_faults(id: u32, disk: Profile, queues: u16, wake_fd: File) -> VhostPort<F> {
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
            unheard: false,
            failures: Failures::default(),
            event_idx: false,
            fua: true,
            wake_fd,
            held_up: false,
            rest: VecDeque::with_capacity(RANGES_MAX),
            fds_changed: false,
            memory_changed: false,
            began_afresh: false,
            connection: None,
            whole_at: u64::MAX,
            dropped: false,
            careful: false,
            room: Arc::default(),
            logging: Logging::default(),
            holes: Holes::default(),
            waits: false,
            told: false,
            shut: false,
            faults: PhantomData,
        }
    }

    /// The same, taking memory of guests from `room`.
    pub(crate) fn with_room(mut self, room: Arc<GuestRoom>) -> VhostPort<F> {
        self.room = room;
        self
    }

    /// A front end has connected.
    pub(crate) fn welcome(&mut self, connection: UnixStream) {
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

    /// Finds out anew which queues run.
    fn refresh(&mut self) {
        self.running.clear();
        self.running.extend((0..self.queues.len() as u16).filter(|&i| self.queues[usize::from(i)].runs()));
        self.first = 0;
    }

    /// Forgets failures that the guest can see by now: what waits for a ring's memory is all that was not published.
    #[inline]
    fn forget_seen(&mut self) {
        if self.failures.any() {
            let queues = &self.queues;
            self.failures.published(|queue| queues[usize::from(queue)].deferred.is_empty());
        }
    }

    /// Whether the front end made us wait where it is notified.
    fn was_held_up(&self) -> bool {
        self.logging.is_held_up() || self.queues.iter().any(|q| q.held_up)
    }

    /// Whether no request is under way, not even one of a former session.
    pub fn is_at_rest(&self) -> bool {
        self.slots.used() == 0 && self.orphans == 0 && self.under_way == 0
    }
}

impl<F: PortFaults> Port for VhostPort<F> {
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
        if F::has(PortBug::FirstQueueFirst) {
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
        self.flush(SEND_BYTES);
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
        if self.logging.marks().is_some() {
            return self.copy_out_marked(tag, at, bytes);
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
        let slot = self.slots.get(tag);
        let (parent, ended) = (slot.parent, slot.session != self.session);
        self.unheard = ended && !F::has(PortBug::UnheardForgotten);
        if result == Err(IoError::Lost) && !ended {
            let queue = parent.map_or(slot.queue, |whole| self.slots.get(whole).queue);
            self.failures.failed(tag, queue, parent);
        }
        let Some(parent) = parent else { return self.finish(tag, result) };
        self.release(tag);
        let whole = self.slots.get(parent);
        whole.failed = match whole.parts {
            _ if F::has(PortBug::LastRangeCounts) => result.err(),
            1 if F::has(PortBug::LastRangeIgnored) => whole.failed,
            _ => whole.failed.or(result.err()),
        };
        whole.parts -= 1;
        if whole.parts == 0 {
            let result = whole.failed.map_or(Ok(()), Err);
            self.finish(parent, result);
            self.failures.answered(parent);
        }
    }

    fn unheard(&self) -> bool {
        self.unheard
    }

    fn take_unheard(&mut self) -> Option<u32> {
        self.failures.take_unheard()
    }

    fn flush(&mut self, _most: usize) {
        for index in self.dirty.drain(..) {
            let queue = &mut self.queues[usize::from(index)];
            queue.dirty = false;
            queue.publish::<F>();
            queue.settle();
        }
        self.logging.tell();
        self.forget_seen();
    }

    fn arm(&mut self) -> bool {
        let mut more = false;
        for &index in &self.running {
            let queue = &mut self.queues[usize::from(index)];
            match (queue.ring.as_mut().map_or(Ok(false), SplitRing::arm::<F>), queue.waiting()) {
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
                ring.disarm::<F>();
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

impl<F: PortFaults> GuestMemory for VhostPort<F> {
    fn began_afresh(&mut self) -> bool {
        std::mem::take(&mut self.began_afresh)
    }

    fn memory_changed(&mut self) -> Option<u32> {
        std::mem::take(&mut self.memory_changed).then(|| self.maps.current().pages())
    }

    #[inline]
    fn page(&mut self, tag: u32, at: usize) -> Option<u32> {
        let slot = self.slots.get(tag);
        // Pages of a map that is no longer the guest's have no numbers.
        if slot.session != self.session || !self.maps.is_current(slot.map) {
            return None;
        }
        let (span, skip) = slot.place(at)?;
        self.maps.current().page(span, skip)
    }

    #[inline]
    fn pages(&mut self, tag: u32, at: usize, pages: &mut [u32]) -> usize {
        let slot = self.slots.get(tag);
        if slot.session != self.session || !self.maps.is_current(slot.map) {
            return 0;
        }
        let map = self.maps.current();
        let mut known = 0;
        while known < pages.len() {
            let place = slot.place(at + known * PAGE_BYTES as usize);
            let Some((first, count)) = place.and_then(|(span, skip)| map.page_run(span, skip)) else { break };
            for (page, number) in pages[known..].iter_mut().zip(first..first + count) {
                *page = number;
                known += 1;
            }
        }
        known
    }

    #[inline]
    fn copy_page(&mut self, page: u32, to: &mut [u8; 4096]) -> bool {
        let map = self.maps.current();
        // A page that the guest gave back has nothing of it: to read it would take memory again.
        let absent = self.holes.matter(map, to.len() as u64) && map.is_absent(page);
        (!absent || F::has(PortBug::HolesCopied)) && map.copy_page(page, to)
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
            || self.logging.is_broken()
        {
            return Some(
                "memory that it shares is gone: its file was made shorter, or there was no room for it (a full tmpfs, \
                 no huge pages left). Set prealloc=on and seal=on for the guest's memory",
            );
        }
        self.was_held_up().then_some(
            "it made its notification descriptor block (a full counter without O_NONBLOCK), which no hypervisor does: \
             look who uses this disk's socket. From now on this disk notifies in a way that cannot block, and is \
             slower",
        )
    }

    fn drop_peer(&mut self) {
        self.careful |= self.was_held_up();
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

    fn files(&self) -> Vec<GuestFile> {
        let piece = |r: &MemoryRegion| {
            let place = r.mapping.file_offset()?;
            Some(GuestFile { file: Arc::clone(place.arc()), offset: place.start(), guest: r.guest, len: r.len })
        };
        self.maps.current().regions().iter().filter_map(piece).collect()
    }
}
