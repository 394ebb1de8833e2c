//! One disk as a file, driven by the worker that owns the disk.
//!
//! Owns the requests under way: slots, buffers, replies. Never blocks; never knows what a cache is. Invariants:
//! requests taken and replies waiting are together at most `requests_max`, and what they hold is bounded (see
//! `Buffers`), besides one buffer that messages are received into; a request is answered at most once; reply data that
//! the core did not fill are never sent.

mod incoming;
mod rest;

use self::incoming::Stop;
pub use self::rest::FileTimes;
use super::device::Device;
use super::hint::FileHint;
use super::outbox::{Outbox, Sent};
use super::rules::{FileRules, NewAttributes, TRANSFER_BYTES_MAX, errno, may_set};
use super::wire::{Attributes, HEAD_BYTES, Small, Stamp, set};
use crate::budget::Account;
use crate::buffers::{Buffer, Buffers, HEADROOM};
use crate::faults::{NoPortFaults, PortBug, PortFaults};
use crate::filled::Filled;
use crate::turns::SEND_BYTES;
use crate::{Peer, Port, PortInterest, Protocol};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use undercroft_cache::{DiskId, Extent, IoError, Request};

/// Bytes that one step of a request to read into the cache reads.
const WARM_STEP: u64 = 1024 * 1024;
/// Bytes that one step of a search for data or a hole asks about.
const SEEK_STEP: u64 = 1 << 30;

/// Bounds of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Requests under way and replies waiting, together.
    pub requests_max: usize,
    /// Bytes of data in them. One request longer than this is served when it is alone.
    pub bytes_max: usize,
}

impl Default for FileLimits {
    /// 128 requests, 4 MiB: four of the largest.
    fn default() -> Self {
        Self { requests_max: 128, bytes_max: 4 * 1024 * 1024 }
    }
}

/// Whose the file is, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Free,
    Read,
    Write {
        fua: bool,
    },
    Flush,
    Zeroes {
        unmap: bool,
    },
    Warm,
    /// What it looks for was found at the slot's offset; what was described last lay before it.
    Seek {
        hole: bool,
        found: bool,
        moved: bool,
    },
}

/// A request under way.
#[derive(Debug)]
struct Slot {
    task: Task,
    unique: u64,
    offset: u64,
    len: u64,
    buffer: Buffer,
}

const FREE: Slot = Slot { task: Task::Free, unique: 0, offset: 0, len: 0, buffer: Buffer::new() };

/// How the file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are served.
    Open,
    /// None is received any more, until it is open again: those that were received are answered, others wait in the
    /// kernel.
    Resting,
    /// None is taken any more; once those under way are answered, the end.
    Shutting,
    /// Over.
    Closed,
}

/// What a port is made from.
pub struct NewFile<D: Device> {
    /// The worker's name for it.
    pub port: u32,
    /// Which disk.
    pub disk: DiskId,
    /// What the file allows.
    pub rules: FileRules,
    /// Whose it is.
    pub owner: Owner,
    /// Its bounds.
    pub limits: FileLimits,
    /// Where it is, for people.
    pub path: String,
    /// Mounted.
    pub device: D,
    /// Its part of the memory for data that all files and connections share.
    pub account: Option<Arc<Account>>,
    /// Its times, if another process has served it before.
    pub times: Option<FileTimes>,
    /// The disk's hint, as an extended attribute.
    pub hint: Arc<FileHint>,
}

/// A disk as a file.
pub struct FusePort<D: Device, F: PortFaults = NoPortFaults> {
    port: u32,
    disk: DiskId,
    rules: FileRules,
    owner: Owner,
    limits: FileLimits,
    path: String,
    device: D,
    /// What messages are received into: the head, and what follows it from [`HEADROOM`] on.
    head: [u8; HEAD_BYTES],
    data: Buffer,
    /// Bytes of the message in there that is not dealt with.
    arrived: Option<usize>,
    /// The device had no message when it was asked last: the next one is an event.
    drained: bool,
    /// Messages that came since it had none, and those that came between the two times before.
    burst: usize,
    last_burst: usize,
    outbox: Outbox,
    buffers: Buffers,
    slots: Vec<Slot>,
    /// By tag: what has come of the data of the read there.
    filled: Vec<Filled>,
    free: Vec<u32>,
    /// Tags whose request has another step to go.
    again: Vec<u32>,
    state: State,
    /// The message at hand found no room.
    stalled: bool,
    /// The last flush sent as much as one should, and there is more.
    unsent: bool,
    /// `arm` said that we sleep.
    asleep: bool,
    /// The last answer was to a mount that is gone.
    unheard: bool,
    attributes: Attributes,
    /// Something was written since the times were told last.
    written: bool,
    hint: Arc<FileHint>,
    faults: PhantomData<F>,
}

fn now() -> Stamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Stamp { seconds: since.as_secs(), nanoseconds: since.subsec_nanos() }
}

impl<D: Device> FusePort<D> {
    /// Makes the port of a file.
    pub fn new(new: NewFile<D>) -> Self {
        FusePort::with_faults(new)
    }
}

impl<D: Device, F: PortFaults> FusePort<D, F> {
    /// [`FusePort::new`] with bugs that a test may switch on.
    pub fn with_faults(new: NewFile<D>) -> Self {
        let n = new.limits.requests_max.clamp(1, 1 << 16);
        let Owner { mode, uid, gid } = new.owner;
        let now = now();
        let times = new.times.unwrap_or(FileTimes { read: now, written: now, changed: now });
        Self {
            port: new.port,
            disk: new.disk,
            rules: new.rules,
            owner: new.owner,
            limits: FileLimits { requests_max: n, ..new.limits },
            path: new.path,
            device: new.device,
            head: [0; HEAD_BYTES],
            // Of the class of the largest transfers, so that it can change places with a buffer of theirs.
            data: vec![0; HEADROOM + TRANSFER_BYTES_MAX],
            arrived: None,
            drained: false,
            burst: 0,
            last_burst: 1,
            outbox: Outbox::new(n + 1),
            buffers: Buffers::new(new.limits.bytes_max, n, new.account),
            slots: std::iter::repeat_with(|| FREE).take(n).collect(),
            filled: vec![Filled::new(); n],
            free: (0..n as u32).rev().collect(),
            again: Vec::with_capacity(n),
            state: State::Open,
            stalled: false,
            unsent: false,
            asleep: false,
            unheard: false,
            attributes: Attributes {
                size_bytes: new.rules.size_bytes,
                mode,
                uid,
                gid,
                read: times.read,
                written: times.written,
                changed: times.changed,
            },
            written: false,
            hint: new.hint,
            faults: PhantomData,
        }
    }

    fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of memory that requests under way and replies waiting hold.
    pub fn held_bytes(&self) -> usize {
        self.buffers.held_bytes()
    }

    /// Replies that wait to be sent.
    pub fn replies_waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Whether `take` would get further than it did.
    fn can_go_on(&self) -> bool {
        let at_hand = match self.arrived {
            Some(_) => !self.stalled && matches!(self.state, State::Open | State::Resting),
            None => !self.drained && self.state == State::Open,
        };
        !self.again.is_empty() || at_hand
    }

    /// The mount is of no more use: requests under way finish unheard.
    fn cut(&mut self, why: &str) {
        if self.state != State::Closed {
            tracing::debug!(file = self.path, "a disk is no file any more: {why}");
            self.state = State::Closed;
            self.arrived = None;
            if F::has(PortBug::UnseenForgotten) {
                self.outbox.forget_failures();
            }
            self.outbox.clear(&mut self.buffers);
            while let Some(tag) = self.again.pop() {
                self.release(tag);
            }
            self.device.close();
        }
    }

    fn release(&mut self, tag: u32) {
        let slot = std::mem::replace(&mut self.slots[tag as usize], FREE);
        assert!(slot.task != Task::Free, "request {tag} was answered twice");
        self.buffers.give(slot.buffer);
        self.free.push(tag);
        self.stalled = false;
    }

    /// The attributes, as they are now.
    fn attributes(&mut self) -> Small {
        if std::mem::take(&mut self.written) {
            // Later than the write was, never earlier: who compares times sees that there was one.
            (self.attributes.written, self.attributes.changed) = (now(), now());
        }
        self.attributes.encode()
    }

    /// Sets attributes; the error if they may not be set.
    fn set_attributes(&mut self, new: &NewAttributes) -> Result<Small, i32> {
        let Owner { mode, uid, gid } = self.owner;
        if !may_set(new, self.rules.size_bytes, mode, [uid, gid]) {
            return Err(if self.rules.read_only { errno::EROFS } else { errno::EPERM });
        }
        self.attributes();
        let a = &mut self.attributes;
        for (bit, at_once, place, value) in [
            (set::ATIME, set::ATIME_NOW, &mut a.read, new.read),
            (set::MTIME, set::MTIME_NOW, &mut a.written, new.written),
            (set::CTIME, 0, &mut a.changed, new.changed),
        ] {
            if new.which & at_once != 0 {
                *place = now();
            } else if new.which & bit != 0 {
                *place = value;
            }
        }
        if new.which & set::CTIME == 0 {
            a.changed = now();
        }
        Ok(self.attributes())
    }
}

/// The kernel's number for a failure.
fn error_number(e: IoError) -> i32 {
    match e {
        IoError::Io | IoError::Lost => errno::EIO,
        IoError::NoSpace => errno::ENOSPC,
        IoError::Invalid => errno::EINVAL,
        IoError::ReadOnly => errno::EROFS,
        IoError::Unsupported => errno::EOPNOTSUPP,
        IoError::Shutdown => errno::ENODEV,
    }
}

impl<D: Device, F: PortFaults> Port for FusePort<D, F> {
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool {
        self.asleep = false;
        // An event may have brought us here.
        self.drained = false;
        if self.buffers.was_called() {
            self.stalled = false;
            // The kernel takes replies at once, so that it never keeps others waiting: it is never ended for that.
            self.buffers.tend();
        }
        if (1..=SEND_BYTES).contains(&self.outbox.bytes()) {
            // Whoever waits for these goes on while we look for more: that takes a system call.
            self.flush(SEND_BYTES);
        }
        let start = out.len();
        let end = start + budget;
        while out.len() < end
            && let Some(tag) = self.again.pop()
        {
            out.push(self.request(tag));
        }
        let mut more = false;
        if matches!(self.state, State::Open | State::Resting) {
            more = self.take_messages(end, out) == Stop::Enough;
        }
        if out.len() == start && (!self.outbox.is_empty() || self.state != State::Open) {
            // Only errors, or the end: no reply of the core will remind anybody to send them, or to close.
            self.flush(SEND_BYTES);
        }
        more || self.can_go_on()
    }

    #[inline]
    fn copy_out(&mut self, tag: u32, at: usize, bytes: &[u8]) {
        let slot = &mut self.slots[tag as usize];
        if slot.task == Task::Read {
            slot.buffer[HEADROOM + at..HEADROOM + at + bytes.len()].copy_from_slice(bytes);
            self.filled[tag as usize].copied(at, bytes.len());
        }
    }

    #[inline]
    fn copy_in(&mut self, tag: u32, at: usize, bytes: &mut [u8]) {
        let slot = &self.slots[tag as usize];
        bytes.copy_from_slice(&slot.buffer[HEADROOM + at..HEADROOM + at + bytes.len()]);
    }

    fn extents(&mut self, tag: u32, extents: &[Extent]) {
        let slot = &mut self.slots[tag as usize];
        let Task::Seek { hole, found, moved } = &mut slot.task else { return };
        // Never past what was asked about, whatever is described.
        let mut left = slot.len.min(SEEK_STEP);
        for extent in extents {
            let len = extent.len.min(left);
            // What reads as zeroes is a hole, whether space is set aside for it or not.
            if extent.zero == *hole && len > 0 {
                *found = true;
                break;
            }
            *moved |= len > 0;
            (slot.offset, slot.len, left) = (slot.offset + len, slot.len - len, left - len);
        }
    }

    fn reply(&mut self, tag: u32, result: Result<(), IoError>) {
        self.unheard = self.state == State::Closed;
        if self.unheard {
            return self.release(tag);
        }
        let unique = self.unique_of(tag);
        let slot = &mut self.slots[tag as usize];
        match (slot.task, result) {
            (Task::Read, Ok(())) => {
                let len = slot.len as usize;
                if !self.filled[tag as usize].is_whole() && !F::has(PortBug::ShortReadSent) {
                    // What was in the buffer before is not this reader's to see.
                    tracing::error!("a read of {len} bytes was answered without all of its data: I/O error");
                    self.outbox.error(unique, errno::EIO, None);
                } else {
                    let buffer = std::mem::take(&mut slot.buffer);
                    self.outbox.data(unique, buffer, len);
                }
            }
            (Task::Write { .. }, Ok(())) => {
                self.written = true;
                self.outbox.small(unique, Small::EMPTY.u32(slot.len as u32).u32(0));
            }
            (Task::Zeroes { .. }, Ok(())) => {
                self.written = true;
                self.outbox.small(unique, Small::EMPTY);
            }
            (Task::Warm, Ok(())) if slot.len > WARM_STEP => {
                (slot.offset, slot.len) = (slot.offset + WARM_STEP, slot.len - WARM_STEP);
                return self.again.push(tag);
            }
            (Task::Seek { .. }, Ok(()) | Err(IoError::Unsupported)) => {
                if !self.found(tag, result.is_err()) {
                    return self.again.push(tag);
                }
            }
            (Task::Flush, Err(_)) if F::has(PortBug::LossUnsaid) => self.outbox.small(unique, Small::EMPTY),
            (_, Ok(())) => self.outbox.small(unique, Small::EMPTY),
            (_, Err(e)) => self.outbox.error(unique, error_number(e), (e == IoError::Lost).then_some(tag)),
        }
        self.release(tag);
    }

    fn unheard(&self) -> bool {
        self.unheard && !F::has(PortBug::UnheardForgotten)
    }

    fn take_unheard(&mut self) -> Option<u32> {
        self.outbox.take_unheard()
    }

    fn flush(&mut self, most: usize) {
        if self.state != State::Closed && !self.outbox.is_empty() {
            let sent = self.outbox.send(&mut self.device, &mut self.buffers, most);
            self.unsent = sent == Sent::Enough;
            // Replies count as requests under way, and hold buffers.
            self.stalled = false;
            if sent == Sent::Gone {
                self.cut("the mount is gone");
            }
        }
        if self.state == State::Shutting && self.inflight() == 0 && self.outbox.is_empty() {
            self.cut("all was answered");
        }
        if self.asleep && self.can_go_on() {
            // Something that we wait for no event of has become possible: have the worker look at us again.
            self.asleep = false;
            if !F::has(PortBug::FileNotWoken) {
                self.device.wake();
            }
        }
    }

    fn has_more_to_send(&self) -> bool {
        self.unsent && self.state != State::Closed
    }

    fn bytes_to_send(&self) -> usize {
        self.outbox.bytes()
    }

    fn arm(&mut self) -> bool {
        let more = self.can_go_on();
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
        self.used()
    }

    fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn shut(&mut self) {
        if matches!(self.state, State::Open | State::Resting) {
            self.state = State::Shutting;
            // It was not begun: the kernel answers it when the descriptor is closed.
            self.arrived = None;
        }
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer { protocol: Protocol::Fuse, name: self.path.clone() })
    }

    fn as_any(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
