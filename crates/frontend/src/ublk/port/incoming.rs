//! What the kernel asks, from tags to requests for the core.
//!
//! Owns no state of its own: slots and buffers are the port's. Never answers what the core was asked. Invariant:
//! requests are begun in the order in which they came; one for which there is no room stays the first.

use super::super::device::BlockQueue;
use super::super::rules::{DeviceVerdict, result as code};
use super::{Slot, State, Task, UblkPort};
use crate::buffers::{Buffer, HEADROOM};
use crate::faults::{PortBug, PortFaults};
use undercroft_cache::{Op, ReqId, Request};

/// Bytes of writes copied in one turn at most, so that one device cannot keep the worker to itself; the last one may go
/// over.
const COPIED_BYTES_PER_TURN: usize = 96 * 1024;

/// Why no more requests are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// There is none.
    Starved,
    /// There may be more, but what came is to be served first.
    Enough,
    /// There is no room for the next request.
    Stalled,
}

impl<D: BlockQueue, F: PortFaults> UblkPort<D, F> {
    /// Makes requests of what came, until there are `end` in `out` or something is missing.
    pub(super) fn take_requests(&mut self, end: usize, out: &mut Vec<Request>) -> Stop {
        let mut copied = 0;
        loop {
            if out.len() >= end || copied >= COPIED_BYTES_PER_TURN {
                return Stop::Enough;
            }
            let Some(&tag) = self.came.front() else {
                match self.device.take_done() {
                    Some((tag, result)) => self.came(tag, result),
                    None => return Stop::Starved,
                }
                if self.state != State::Open {
                    return Stop::Starved;
                }
                continue;
            };
            match self.begin(tag) {
                Err(stop) => return stop,
                Ok(begun) => {
                    self.came.pop_front();
                    if let Some(request) = begun {
                        copied += if matches!(request.op, Op::Write { .. }) { request.len as usize } else { 0 };
                        out.push(request);
                    }
                }
            }
        }
    }

    /// The kernel has done with a command.
    fn came(&mut self, tag: u16, result: i32) {
        let slot = self.slots.get_mut(usize::from(tag)).filter(|s| s.task == Task::Free);
        match (slot, result) {
            (Some(slot), 0) => {
                slot.task = Task::Came;
                self.came.push_back(tag);
            }
            (Some(slot), _) => {
                slot.task = Task::Gone;
                self.gone += 1;
                if result != -rustix::io::Errno::NODEV.raw_os_error() {
                    let e = rustix::io::Errno::from_raw_os_error(result.saturating_neg());
                    tracing::error!(device = self.path, "the kernel asks nothing more with tag {tag}: {e}");
                }
                if self.gone == self.slots.len() {
                    self.cut("it was stopped");
                }
            }
            (None, _) => self.cut("the kernel asked twice with one tag"),
        }
    }

    /// Begins a request: `None` if it is answered already, an error if it has to wait.
    fn begin(&mut self, tag: u16) -> Result<Option<Request>, Stop> {
        let verdict = self.rules.judge(&self.device.request(tag));
        let mut buffer = Buffer::new();
        let (task, offset, len) = match verdict {
            DeviceVerdict::Read { offset, len } => (Task::Read, offset, u64::from(len)),
            DeviceVerdict::Write { offset, len, fua } => {
                let bytes = len as usize;
                if !self.buffers.has_room(bytes) {
                    self.stalled = true;
                    return Err(Stop::Stalled);
                }
                if !self.buffers.make(bytes) {
                    return Err(Stop::Enough);
                }
                buffer = self.buffers.take(bytes);
                // All of it now: what cannot be had must not be written in part, or not at all be noticed.
                if let Err(e) = self.device.take_data(tag, 0, &mut buffer[HEADROOM..HEADROOM + bytes]) {
                    tracing::error!(device = self.path, "the data of a write cannot be had: {e}; I/O error");
                    self.buffers.give(buffer);
                    self.answer(tag, code::IO);
                    return Ok(None);
                }
                (Task::Write { fua }, offset, u64::from(len))
            }
            DeviceVerdict::Flush => (Task::Flush, 0, 0),
            DeviceVerdict::Discard { offset, len } => (Task::Discard, offset, len),
            DeviceVerdict::Zeroes { offset, len, unmap, fua } => (Task::Zeroes { unmap, fua }, offset, len),
            DeviceVerdict::Answer(result) => {
                self.answer(tag, result);
                return Ok(None);
            }
        };
        if task == Task::Read {
            self.filled[usize::from(tag)].begin(len as usize);
        }
        self.slots[usize::from(tag)] = Slot { task, offset, len, buffer, failed: false };
        self.used += 1;
        Ok(Some(self.request(tag)))
    }

    /// The request to the core.
    fn request(&self, tag: u16) -> Request {
        let slot = &self.slots[usize::from(tag)];
        let op = match slot.task {
            Task::Read => Op::Read,
            Task::Write { fua } => Op::Write { fua: fua && !F::has(PortBug::SyncForgotten) },
            Task::Flush => Op::Flush,
            Task::Discard => Op::Discard,
            Task::Zeroes { unmap, fua } => Op::WriteZeroes { unmap, fua },
            Task::Free | Task::Came | Task::Gone => unreachable!("a request that was not begun"),
        };
        let id = ReqId { port: self.port, tag: tag.into() };
        Request { id, disk: self.disk, op, offset: slot.offset, len: slot.len }
    }
}
