//! One disk as a block device, driven by the worker that owns the disk.
//!
//! Owns the requests under way: one slot for each tag of the kernel, which is our tag, too. Never blocks; never knows
//! what a cache is. Invariants: a request is answered at most once, since its tag is the kernel's again then; what
//! writes hold is bounded (see `Buffers`), reads hold nothing; no read is answered with success whose data did not all
//! come.

mod incoming;
mod rest;

use self::incoming::Stop;
use super::device::BlockQueue;
use super::rules::{DeviceRules, error_number, result as code};
use crate::budget::Account;
use crate::buffers::{Buffer, Buffers, HEADROOM};
use crate::faults::{NoPortFaults, PortBug, PortFaults};
use crate::filled::Filled;
use crate::{Peer, Port, PortInterest, Protocol};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use undercroft_cache::{DiskId, Extent, IoError, Request};

/// Bounds of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Requests under way at most: the depth of the kernel's queue.
    pub requests_max: u16,
    /// Bytes of data in writes under way. One longer than this is served when it is alone.
    pub bytes_max: usize,
}

impl Default for DeviceLimits {
    /// 128 requests, 4 MiB: four of the largest.
    fn default() -> Self {
        Self { requests_max: 128, bytes_max: 4 * 1024 * 1024 }
    }
}

/// What a tag is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The kernel has it.
    Free,
    /// It came, and was not looked at.
    Came,
    Read,
    Write {
        fua: bool,
    },
    Flush,
    Discard,
    Zeroes {
        unmap: bool,
        fua: bool,
    },
    /// The kernel asks nothing with it any more.
    Gone,
}

/// A request under way.
#[derive(Debug)]
struct Slot {
    task: Task,
    offset: u64,
    len: u64,
    /// The data of a write.
    buffer: Buffer,
    /// Data did not reach whoever has asked for them.
    failed: bool,
}

const FREE: Slot = Slot { task: Task::Free, offset: 0, len: 0, buffer: Buffer::new(), failed: false };

/// How the device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are served.
    Open,
    /// None is taken any more, until it is open again.
    Resting,
    /// None is taken any more; once those under way are answered, the end.
    Shutting,
    /// Over.
    Closed,
}

/// What a port is made from.
pub struct NewBlockPort<D: BlockQueue> {
    /// The worker's name for it.
    pub port: u32,
    /// Which disk.
    pub disk: DiskId,
    /// What the device allows.
    pub rules: DeviceRules,
    /// Bytes of data in writes under way.
    pub bytes_max: usize,
    /// Where it is, for people.
    pub path: String,
    /// Its queue.
    pub device: D,
    /// Its part of the memory for data that all devices, files and connections share.
    pub account: Option<Arc<Account>>,
}

/// A disk as a block device.
pub struct UblkPort<D: BlockQueue, F: PortFaults = NoPortFaults> {
    port: u32,
    disk: DiskId,
    rules: DeviceRules,
    path: String,
    device: D,
    slots: Vec<Slot>,
    /// By tag: what has come of the data of the read there.
    filled: Vec<Filled>,
    /// Tags that came and are not begun, in order.
    came: VecDeque<u16>,
    buffers: Buffers,
    /// Requests that the core has.
    used: usize,
    /// Tags with which the kernel asks nothing any more.
    gone: usize,
    /// Tags of failures that were answered since answers were handed over last, and of those that reached nobody.
    failures: Vec<u16>,
    unheard_failures: Vec<u16>,
    state: State,
    /// The first of `came` found no room.
    stalled: bool,
    /// `arm` said that we sleep.
    asleep: bool,
    /// The last answer was to a device that is closed.
    unheard: bool,
    faults: PhantomData<F>,
}

impl<D: BlockQueue> UblkPort<D> {
    /// Makes the port of a device.
    pub fn new(new: NewBlockPort<D>) -> Self {
        UblkPort::with_faults(new)
    }
}

impl<D: BlockQueue, F: PortFaults> UblkPort<D, F> {
    /// [`UblkPort::new`] with bugs that a test may switch on.
    pub fn with_faults(new: NewBlockPort<D>) -> Self {
        let n = usize::from(new.device.depth());
        Self {
            port: new.port,
            disk: new.disk,
            rules: new.rules,
            path: new.path,
            device: new.device,
            slots: std::iter::repeat_with(|| FREE).take(n).collect(),
            filled: vec![Filled::new(); n],
            came: VecDeque::with_capacity(n),
            buffers: Buffers::new(new.bytes_max, n, new.account),
            used: 0,
            gone: 0,
            failures: Vec::with_capacity(n),
            unheard_failures: Vec::with_capacity(n),
            state: State::Open,
            stalled: false,
            asleep: false,
            unheard: false,
            faults: PhantomData,
        }
    }

    /// Bytes of memory that requests under way hold.
    pub fn held_bytes(&self) -> usize {
        self.buffers.held_bytes()
    }

    /// The way to the kernel.
    pub(in crate::ublk) fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Whether `take` would get further than it did.
    fn can_go_on(&mut self) -> bool {
        self.state == State::Open && (!self.came.is_empty() && !self.stalled || self.device.has_done())
    }

    /// The device is of no more use: requests under way finish unheard.
    fn cut(&mut self, why: &str) {
        if self.state != State::Closed {
            tracing::debug!(device = self.path, "a disk is no block device any more: {why}");
            self.state = State::Closed;
            self.came.clear();
            self.unheard_failures.append(&mut self.failures);
            self.device.close();
        }
    }

    /// Answers a request, of which the core has no part any more.
    fn answer(&mut self, tag: u16, result: i32) {
        let slot = std::mem::replace(&mut self.slots[usize::from(tag)], FREE);
        assert!(!matches!(slot.task, Task::Free | Task::Gone), "request {tag} was answered twice");
        self.buffers.give(slot.buffer);
        self.stalled = false;
        if self.state != State::Closed {
            self.device.answer(tag, result);
        }
    }
}

impl<D: BlockQueue, F: PortFaults> Port for UblkPort<D, F> {
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool {
        self.asleep = false;
        if self.buffers.was_called() {
            self.stalled = false;
            // The kernel keeps no answer waiting: nobody is ever ended for that.
            self.buffers.tend();
        }
        if self.device.unsubmitted() > 0 {
            // Whoever waits for these goes on while we look for more.
            self.flush(usize::MAX);
        }
        let start = out.len();
        let mut more = false;
        if self.state == State::Open {
            more = self.take_requests(start + budget, out) == Stop::Enough;
        }
        if out.len() == start && (self.device.unsubmitted() > 0 || self.state != State::Open) {
            // Only errors, or the end: no reply of the core will remind anybody to hand them over, or to close.
            self.flush(usize::MAX);
        }
        more || self.can_go_on()
    }

    #[inline]
    fn copy_out(&mut self, tag: u32, at: usize, bytes: &[u8]) {
        let slot = &mut self.slots[tag as usize];
        if slot.task == Task::Read && self.state != State::Closed {
            // Straight from the frame: the kernel copies it to whoever reads, before it is told how the read went.
            match self.device.give_data(tag as u16, at, bytes) {
                Ok(()) => self.filled[tag as usize].copied(at, bytes.len()),
                Err(e) => {
                    tracing::error!(device = self.path, "{} bytes of a read cannot be handed over: {e}", bytes.len());
                    slot.failed = true;
                }
            }
        }
    }

    #[inline]
    fn copy_in(&mut self, tag: u32, at: usize, bytes: &mut [u8]) {
        let slot = &self.slots[tag as usize];
        bytes.copy_from_slice(&slot.buffer[HEADROOM + at..HEADROOM + at + bytes.len()]);
    }

    fn extents(&mut self, _tag: u32, _extents: &[Extent]) {}

    fn reply(&mut self, tag: u32, result: Result<(), IoError>) {
        self.unheard = self.state == State::Closed;
        self.used -= 1;
        let slot = &self.slots[tag as usize];
        let (tag, whole) = (tag as u16, self.filled[tag as usize].is_whole() || F::has(PortBug::ShortReadSent));
        let result = match (slot.task, result) {
            (Task::Read, Ok(())) if slot.failed || !whole => {
                // What was in the reader's memory before is no answer.
                tracing::error!(device = self.path, "a read was answered without all of its data: I/O error");
                code::IO
            }
            (Task::Read | Task::Write { .. }, Ok(())) => slot.len as i32,
            (Task::Flush, Err(_)) if F::has(PortBug::LossUnsaid) => 0,
            (_, Ok(())) => 0,
            (_, Err(e)) => {
                if e == IoError::Lost && !self.unheard {
                    self.failures.push(tag);
                }
                error_number(e)
            }
        };
        self.answer(tag, result);
    }

    fn unheard(&self) -> bool {
        self.unheard && !F::has(PortBug::UnheardForgotten)
    }

    fn take_unheard(&mut self) -> Option<u32> {
        self.unheard_failures.pop().map(u32::from)
    }

    fn flush(&mut self, _most: usize) {
        if self.state != State::Closed && self.device.unsubmitted() > 0 {
            match self.device.submit() {
                Ok(()) if self.device.unsubmitted() == 0 => self.failures.clear(),
                // Out of memory for the moment, or completions to be taken first: the next call goes on.
                Ok(()) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::BUSY) => {}
                Err(e) => {
                    tracing::error!(device = self.path, "the kernel takes no answers: {e}");
                    self.cut("the kernel takes no answers");
                }
            }
        }
        if self.state == State::Shutting && self.used == 0 && self.device.unsubmitted() == 0 {
            self.cut("all was answered");
        }
        if self.asleep && (self.can_go_on() || self.has_more_to_send()) {
            // Something that we wait for no event of has become possible: have the worker look at us again.
            self.asleep = false;
            if !F::has(PortBug::DeviceNotWoken) {
                self.device.wake();
            }
        }
    }

    fn has_more_to_send(&self) -> bool {
        self.state != State::Closed && self.device.unsubmitted() > 0
    }

    fn arm(&mut self) -> bool {
        let more = self.can_go_on() || self.has_more_to_send();
        self.asleep = !more;
        more
    }

    fn disarm(&mut self) {}

    fn fds(&self) -> Vec<(BorrowedFd<'_>, PortInterest)> {
        let fds = self.device.fds().into_iter().chain(self.buffers.fd());
        fds.map(|fd| (fd, PortInterest::Read)).collect()
    }

    fn fds_changed(&mut self) -> bool {
        false
    }

    fn inflight(&self) -> usize {
        self.used
    }

    fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn shut(&mut self) {
        if matches!(self.state, State::Open | State::Resting) {
            self.state = State::Shutting;
            // What was not begun is asked again of whoever serves the device next.
            self.came.clear();
        }
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer { protocol: Protocol::Ublk, name: self.path.clone() })
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
