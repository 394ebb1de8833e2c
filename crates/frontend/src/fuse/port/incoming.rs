//! What the kernel sends, from messages to requests for the core.
//!
//! Owns no state of its own: slots and buffers are the port's. Never answers what the core was asked. Invariant: a
//! message for which there is no room stays where it was received, and no other is received meanwhile.

use super::super::device::Device;
use super::super::rules::{BODY_BYTES_MAX, FileVerdict, HINT, TRANSFER_BYTES_MAX, errno};
use super::super::wire::{self, HEAD_BYTES, HEADER_BYTES, Header, Small, opened};
use super::{FusePort, SEEK_STEP, Slot, Task, WARM_STEP};
use crate::buffers::{Buffer, HEADROOM};
use crate::faults::{PortBug, PortFaults};
use crate::filled::BLOCK;
use rustix::io::Errno;
use undercroft_cache::{Op, ReqId, Request};

/// Messages received in one turn at most, so that one file cannot keep the worker to itself.
const RECEIVES_PER_TURN: usize = 32;
/// Bytes received in one turn at most, for the same reason; the last message may go over.
const RECEIVE_BYTES_PER_TURN: usize = 96 * 1024;
/// A write of more than this keeps the buffer that it came in, which is of the class that it would be copied to.
const COPIED_BYTES_MAX: usize = TRANSFER_BYTES_MAX / 2;

/// Why no more messages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// There is none.
    Starved,
    /// There may be more, but what came is to be served first.
    Enough,
    /// There is no room for the next request.
    Stalled,
    /// The mount is gone.
    Over,
}

impl<D: Device, F: PortFaults> FusePort<D, F> {
    /// Receives messages and makes requests of them, until there are `end` in `out` or something is missing.
    pub(super) fn take_messages(&mut self, end: usize, out: &mut Vec<Request>) -> Stop {
        let (begin, mut receives, mut received) = (out.len(), 0, 0);
        loop {
            if out.len() >= end {
                return Stop::Enough;
            }
            if self.arrived.is_none() {
                if !self.receives() {
                    return Stop::Starved;
                }
                if receives >= RECEIVES_PER_TURN || received >= RECEIVE_BYTES_PER_TURN {
                    return Stop::Enough;
                }
                // As many as the last time are all that there are, as a rule: to ask whether there is one more takes a
                // system call, for which those that came would wait.
                if out.len() > begin && self.burst == self.last_burst {
                    return Stop::Enough;
                }
                if let Some(stop) = self.receive() {
                    return stop;
                }
                receives += 1;
                received += self.arrived.unwrap_or_default();
            }
            if let Some(stop) = self.begin(out) {
                return stop;
            }
        }
    }

    /// Receives one message; `Some` if there is none.
    fn receive(&mut self) -> Option<Stop> {
        match self.device.receive(&mut self.head, &mut self.data[HEADROOM..]) {
            Ok(len) => {
                self.arrived = Some(len);
                self.burst += 1;
                None
            }
            Err(Errno::AGAIN) => {
                self.drained = true;
                self.last_burst = std::mem::take(&mut self.burst).max(1);
                Some(Stop::Starved)
            }
            // A signal, or whoever asked was killed before we could see it.
            Err(Errno::INTR | Errno::NOENT) => Some(Stop::Enough),
            Err(e) => {
                if e != Errno::NODEV {
                    tracing::error!(file = self.path, "the kernel sends nothing more: {e}");
                } else {
                    tracing::info!(file = self.path, "the file was unmounted");
                }
                self.cut("the mount is gone");
                Some(Stop::Over)
            }
        }
    }

    /// Starts on the message at hand; `Some` if that has to wait, in which case it stays.
    fn begin(&mut self, out: &mut Vec<Request>) -> Option<Stop> {
        let len = self.arrived?;
        let Some(header) = Header::parse(&self.head[..len.min(HEAD_BYTES)]) else {
            self.cut("the kernel sent something that is not a request");
            return Some(Stop::Over);
        };
        if self.used() + self.outbox.len() >= self.limits.requests_max {
            self.stalled = true;
            return Some(Stop::Stalled);
        }
        let mut body = [0; BODY_BYTES_MAX];
        let body = self.body(&header, len, &mut body);
        let verdict = self.rules.judge(&header, body, len);
        let bytes = match verdict {
            FileVerdict::Read { len, .. } | FileVerdict::Write { len, .. } => len as usize,
            _ => 0,
        };
        let keeps = matches!(verdict, FileVerdict::Write { .. }) && bytes > COPIED_BYTES_MAX;
        let class = if keeps { TRANSFER_BYTES_MAX } else { bytes };
        if bytes > 0 && !self.buffers.has_room(class) {
            self.stalled = true;
            return Some(Stop::Stalled);
        }
        if bytes > 0 && !self.buffers.make(class) {
            return Some(Stop::Enough);
        }
        self.arrived = None;
        let Some((task, offset, len)) = task(verdict) else {
            self.answer(&header, verdict);
            return None;
        };
        let mut buffer = if bytes > 0 { self.buffers.take(class) } else { Buffer::new() };
        if keeps && buffer.len() == self.data.len() {
            std::mem::swap(&mut buffer, &mut self.data);
        } else if let Task::Write { .. } = task {
            buffer[HEADROOM..HEADROOM + bytes].copy_from_slice(&self.data[HEADROOM..HEADROOM + bytes]);
        }
        let tag = self.free.pop().expect("fewer slots are used than there are");
        self.slots[tag as usize] = Slot { task, unique: header.unique, offset, len, buffer };
        if task == Task::Read {
            self.filled[tag as usize].begin(len as usize);
            if F::has(PortBug::BlocksAtMultiples) {
                self.filled[tag as usize].begins_at(offset as usize % BLOCK);
            }
        }
        out.push(self.request(tag));
        None
    }

    /// What is behind the header of a message of `len` bytes, but for the data of a write: at most what fits `space`.
    fn body<'a>(&'a self, header: &Header, len: usize, space: &'a mut [u8; BODY_BYTES_MAX]) -> &'a [u8] {
        let in_head = &self.head[HEADER_BYTES..len.clamp(HEADER_BYTES, HEAD_BYTES)];
        if matches!(header.opcode, wire::opcode::READ | wire::opcode::WRITE) || len <= HEAD_BYTES {
            return in_head;
        }
        let behind = (len - HEAD_BYTES).min(BODY_BYTES_MAX - in_head.len()).min(self.data.len() - HEADROOM);
        space[..in_head.len()].copy_from_slice(in_head);
        space[in_head.len()..in_head.len() + behind].copy_from_slice(&self.data[HEADROOM..HEADROOM + behind]);
        &space[..in_head.len() + behind]
    }

    /// Answers what the core need not be asked.
    fn answer(&mut self, header: &Header, verdict: FileVerdict) {
        let unique = header.unique;
        let small = match verdict {
            FileVerdict::Refuse(error) => return self.outbox.error(unique, error, None),
            FileVerdict::Silence => return,
            FileVerdict::Init(agreement) => {
                tracing::debug!(file = self.path, "agreed with the kernel: {agreement:?}");
                agreement.encode()
            }
            FileVerdict::Version => wire::version(),
            FileVerdict::Attributes => self.attributes(),
            FileVerdict::Set(new) => match self.set_attributes(&new) {
                Ok(small) => small,
                Err(error) => return self.outbox.error(unique, error, None),
            },
            FileVerdict::Open => Small::EMPTY.u64(0).u32(OPENED).u32(0),
            FileVerdict::FileSystem => wire::file_system(self.rules.size_bytes),
            FileVerdict::Written(len) => Small::EMPTY.u32(len).u32(0),
            FileVerdict::AskHint(word) if !self.hint.ask(word.bytes()) => {
                return self.outbox.error(unique, errno::EINVAL, None);
            }
            FileVerdict::TellHint(_) | FileVerdict::List(_) => match told(verdict, self.hint.now()) {
                Ok(small) => small,
                Err(error) => return self.outbox.error(unique, error, None),
            },
            _ => Small::EMPTY,
        };
        self.outbox.small(unique, small);
    }

    /// The request to the core for the present step of a slot.
    pub(super) fn request(&self, tag: u32) -> Request {
        let slot = &self.slots[tag as usize];
        let (op, len) = match slot.task {
            Task::Read => (Op::Read, slot.len),
            Task::Write { fua } => (Op::Write { fua: fua && !F::has(PortBug::SyncForgotten) }, slot.len),
            Task::Flush => (Op::Flush, 0),
            Task::Zeroes { unmap } => (Op::WriteZeroes { unmap, fua: false }, slot.len),
            // Any length may be asked for; the core reads a bounded part at a time.
            Task::Warm => (Op::Read, slot.len.min(WARM_STEP)),
            Task::Seek { .. } => (Op::Status, slot.len.min(SEEK_STEP)),
            Task::Free => unreachable!("a free slot has no request"),
        };
        Request { id: ReqId { port: self.port, tag }, disk: self.disk, op, offset: slot.offset, len }
    }

    /// The kernel's name for the request of a slot.
    pub(super) fn unique_of(&self, tag: u32) -> u64 {
        let unique = self.slots[tag as usize].unique;
        if F::has(PortBug::AskedAgainUnmarked) {
            return unique & !wire::ASKED_AGAIN;
        }
        if F::has(PortBug::WrongCookie)
            && let Some(other) = self.slots.iter().find(|s| s.task != Task::Free && s.unique != unique)
        {
            return other.unique;
        }
        unique
    }

    /// Answers a search for data or a hole, if it is over; `unknown` if the disk cannot tell, and so is all data.
    pub(super) fn found(&mut self, tag: u32, unknown: bool) -> bool {
        let slot = &mut self.slots[tag as usize];
        let Task::Seek { hole, found, moved } = &mut slot.task else { return true };
        // One that says nothing cannot tell either; behind the last byte is a hole.
        let unknown = unknown || !*found && !*moved;
        *moved = false;
        let at = match *hole {
            true if unknown || slot.len == 0 && !*found => Some(self.rules.size_bytes),
            false if slot.len == 0 && !*found => None,
            _ if unknown || *found => Some(slot.offset),
            _ => return false,
        };
        let unique = slot.unique;
        match at {
            Some(at) => self.outbox.small(unique, Small::EMPTY.u64(at)),
            None => self.outbox.error(unique, errno::ENXIO, None),
        }
        true
    }
}

/// The disk's hint, or the list of extended attributes, which that is alone on; or its length, if that is asked for.
fn told(asked: FileVerdict, hint: &str) -> Result<Small, i32> {
    let (value, end, room) = match asked {
        FileVerdict::List(room) => (HINT, &[0][..], room),
        FileVerdict::TellHint(room) => (hint.as_bytes(), &[][..], room),
        _ => return Ok(Small::EMPTY),
    };
    let len = (value.len() + end.len()) as u32;
    match room {
        0 => Ok(Small::EMPTY.u32(len).u32(0)),
        room if room < len => Err(errno::ERANGE),
        _ => Ok(Small::EMPTY.put(value).put(end)),
    }
}

/// What the kernel is told of every opened file.
const OPENED: u32 = opened::DIRECT_IO | opened::PARALLEL_DIRECT_WRITES | opened::NOFLUSH;

/// What is to be done for a verdict that the core has to be asked about: task, first byte, bytes.
fn task(verdict: FileVerdict) -> Option<(Task, u64, u64)> {
    Some(match verdict {
        FileVerdict::Read { offset, len } => (Task::Read, offset, len.into()),
        FileVerdict::Write { offset, len, fua } => (Task::Write { fua }, offset, len.into()),
        FileVerdict::Flush => (Task::Flush, 0, 0),
        FileVerdict::Zeroes { offset, len, unmap } => (Task::Zeroes { unmap }, offset, len),
        FileVerdict::Seek { offset, len, hole } => (Task::Seek { hole, found: false, moved: false }, offset, len),
        FileVerdict::Warm { offset, len } => (Task::Warm, offset, len),
        _ => return None,
    })
}
