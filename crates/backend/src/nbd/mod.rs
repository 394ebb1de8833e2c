//! An export of an NBD server as a disk: requests, replies, and what happens when the connection breaks.
//!
//! Owns the connection and all operations under way. Never blocks: connecting happens in `link`. Invariant: every
//! operation is in `ops`, from its submission to its completion, whatever the server does; after a broken connection
//! all of them are sent again, in order, on the next one.
//!
//! A write may be sent twice that way: it is the same bytes at the same place, and the core never has two writes to one
//! block under way. What was changed but not flushed when the connection broke may be lost if the server crashed.
//! Nobody can tell, so the core is told: what it has of those ranges goes, and flushes fail until every port has been
//! told (decision 0139).

mod handshake;
mod link;
mod location;
mod names;
mod ops;
pub mod parts;
mod replies;
mod timed;
mod transport;
mod unflushed;

use super::failures::FailureLog;
use super::registry::{Image, InUse};
use super::{Backend, Geometry, ImageSpec, OpenError, OpenOptions};
use handshake::{Export, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES};
use link::{ATTEMPT_TIMEOUT, Connection, Connector, PAUSE_MAX, PAUSE_MIN, Report};
use ops::{Op, Ops, Stage, Step};
use replies::Replies;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use undercroft_cache::{Extent, Io, IoDone, IoError, IoKind, Lost, limits};
use undercroft_host::{Epoll, EventFd, Interest, Trigger, now_ns};
use unflushed::Unflushed;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;
const CMD_BLOCK_STATUS: u16 = 7;
const FLAG_FUA: u16 = 1;
const FLAG_NO_HOLE: u16 = 2;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REQUEST_BYTES: usize = 28;

/// Bytes that one request covers at most, of those that carry no data.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Requests that one system call sends at most.
const SEND_BATCH: usize = 16;
/// Pieces of memory that one system call sends or receives at most.
const PIECES_MAX: usize = 128;
/// Bytes of replies that are buffered; data goes past the buffer.
const INPUT_BYTES: usize = 64 << 10;

const TOKEN_WAKE: u64 = 0;
const TOKEN_TIMER: u64 = 1;
const TOKEN_SOCKET: u64 = 2;

/// How long an NBD disk waits for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// How long after the connection broke operations wait for the next one before they fail. Attempts to connect go
    /// on after that.
    pub give_up_after: Duration,
    /// After how long an operation without an answer is logged and counted as stalled.
    pub stall_after: Duration,
}

impl Default for NbdOptions {
    /// A minute; five seconds.
    fn default() -> Self {
        Self { give_up_after: Duration::from_secs(60), stall_after: Duration::from_secs(5) }
    }
}

/// An export of an NBD server.
pub struct Nbd {
    location: String,
    geometry: Geometry,
    export: Export,
    options: NbdOptions,
    ops: Ops,
    /// Slots to be sent, in order; of the first one, `sent` bytes are gone already.
    queue: VecDeque<u32>,
    sent: usize,
    /// The heads of the requests for the first slots of the queue.
    heads: VecDeque<[u8; REQUEST_BYTES]>,
    link: Link,
    trouble: Trouble,
    connector: Connector,
    finished: VecDeque<IoDone>,
    /// Slots answered in this turn; empty between turns.
    answered: Vec<u32>,
    input: Input,
    /// Changes that a crash of the server would lose.
    unflushed: Unflushed,
    /// What may have been lost, until the worker fetches it.
    lost: Option<Lost>,
    stalled: usize,
    failures: FailureLog,
    /// Signalled when there is something to do that the socket does not tell.
    wake: EventFd,
    timer: OwnedFd,
    timer_armed: bool,
    epoll: Epoll,
    _claim: InUse,
}

/// The state of the connection.
enum Link {
    /// Requests can be sent.
    Up {
        socket: OwnedFd,
        replies: Replies,
        /// The socket's buffer is full: it is watched for room.
        full: bool,
        /// Since when.
        since_ns: u64,
    },
    /// Waiting for the next connection.
    Down {
        /// Operations fail at once.
        gave_up: bool,
    },
    /// The export is not what it was: operations fail at once, for good.
    Dead,
}

impl Link {
    fn up(socket: OwnedFd, export: Export) -> Self {
        let replies = Replies::new(export.structured, export.allocation);
        Self::Up { socket, replies, full: false, since_ns: now_ns() }
    }
}

/// What has gone wrong since the last answer, or since a connection was kept for long with nothing to answer.
#[derive(Default)]
struct Trouble {
    /// Since when the disk is without the server; 0 if it never was.
    since_ns: u64,
    /// The last reason that was logged.
    logged: String,
    /// Connections that broke without one answer.
    strikes: u32,
    /// One of them broke while something waited for its answer.
    unanswered: bool,
}

impl Trouble {
    /// One more connection broke, now, after it had had nothing to answer for `idle_ns`, or had something
    /// `unanswered`. Returns how long to wait before the next attempt.
    ///
    /// Where nothing was left unanswered, the server did all that was asked of it: the disk is without it since this
    /// break, not since an earlier one. A strike it is all the same, or a server that closes every connection at once
    /// would be called without a pause; being idle for `patience_ns` ends those as well.
    fn breaks(&mut self, now_ns: u64, idle_ns: u64, unanswered: bool, patience_ns: u64) -> Duration {
        if idle_ns >= patience_ns {
            *self = Self::default();
        }
        if !self.unanswered {
            self.since_ns = now_ns;
        }
        self.unanswered |= unanswered;
        let pause = match self.strikes {
            0 => Duration::ZERO,
            n => (PAUSE_MIN * (1 << n.min(10))).min(PAUSE_MAX),
        };
        self.strikes += 1;
        pause
    }
}

/// Bytes that came from the server and were not used yet.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Nbd {
    /// Connects to the server.
    pub(super) fn open(spec: &ImageSpec, options: &OpenOptions) -> Result<Self, OpenError> {
        let location = location::parse(&spec.location)
            .map_err(|e| OpenError::Location { location: spec.location.clone(), what: e.to_string() })?;
        let claim = InUse::claim(Image::Export(location.to_string()), &spec.location, &spec.location, !spec.read_only)?;
        let nbd = |what: String| OpenError::Nbd { location: spec.location.clone(), what };
        let Connection { socket, export } =
            link::connect(&location, ATTEMPT_TIMEOUT).map_err(|e| nbd(e.to_string()))?;
        let align = export.block_min.unwrap_or(if export.size_bytes.is_multiple_of(512) { 512 } else { 1 });
        let size_bytes = export.size_bytes / u64::from(align) * u64::from(align);
        if size_bytes == 0 {
            return Err(nbd("the export is empty; give it a size on the server".to_owned()));
        }
        if export.flags & READ_ONLY != 0 && !spec.read_only {
            return Err(nbd("the server exports it read-only; open it read-only, or change the server".to_owned()));
        }
        let can = |flag| !spec.read_only && export.flags & flag != 0;
        let geometry = Geometry {
            size_bytes,
            align,
            read_only: spec.read_only,
            can_discard: can(SEND_TRIM),
            can_write_zeroes: can(SEND_WRITE_ZEROES),
        };
        let failed =
            |source| OpenError::Io { image: spec.location.clone(), doing: "setting up the connection", source };
        let wake = EventFd::new().map_err(failed)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(|e| failed(e.into()))?;
        let epoll = Epoll::new().map_err(failed)?;
        let connector = wake.try_clone().and_then(|w| Connector::new(location, ATTEMPT_TIMEOUT, w)).map_err(failed)?;
        let watch = |fd, token| epoll.add(fd, token, Interest::Read, Trigger::Level).map_err(failed);
        watch(wake.as_fd(), TOKEN_WAKE)?;
        watch(timer.as_fd(), TOKEN_TIMER)?;
        watch(socket.as_fd(), TOKEN_SOCKET)?;
        Ok(Self {
            location: spec.location.clone(),
            geometry,
            export,
            options: options.nbd,
            ops: Ops::default(),
            queue: VecDeque::new(),
            sent: 0,
            heads: VecDeque::new(),
            trouble: Trouble::default(),
            link: Link::up(socket, export),
            connector,
            finished: VecDeque::new(),
            answered: Vec::new(),
            input: Input { bytes: vec![0; INPUT_BYTES].into_boxed_slice(), start: 0, end: 0 },
            unflushed: Unflushed::new(size_bytes),
            lost: None,
            stalled: 0,
            failures: FailureLog::default(),
            wake,
            timer,
            timer_armed: false,
            epoll,
            _claim: claim,
        })
    }

    /// What can be said about an operation without the server, if anything.
    fn verdict(&mut self, io: &Io) -> Option<Result<(), IoError>> {
        let g = &self.geometry;
        let align = u64::from(g.align);
        if matches!(self.link, Link::Dead | Link::Down { gave_up: true, .. }) {
            return Some(Err(IoError::Io));
        }
        if io.kind == IoKind::Flush {
            // A server that knows no flush is taken at its word: what it has answered is durable.
            return (self.export.flags & SEND_FLUSH == 0 || g.read_only).then_some(Ok(()));
        }
        let ends = io.offset.checked_add(io.len);
        if ends.is_none_or(|end| end > g.size_bytes)
            || io.len == 0
            || !io.offset.is_multiple_of(align)
            || !io.len.is_multiple_of(align)
        {
            return Some(Err(IoError::Invalid));
        }
        let wrong_buffer = io.len != u64::from(io.buf.len);
        match io.kind {
            IoKind::Read => wrong_buffer.then_some(Err(IoError::Invalid)),
            IoKind::Status => self.export.allocation.is_none().then_some(Ok(())),
            _ if g.read_only => Some(Err(IoError::ReadOnly)),
            IoKind::Write { .. } => wrong_buffer.then_some(Err(IoError::Invalid)),
            IoKind::Discard => (!g.can_discard).then_some(Err(IoError::Unsupported)),
            _ => (!g.can_write_zeroes).then_some(Err(IoError::Unsupported)),
        }
    }

    fn finish_now(&mut self, io: Io, result: Result<(), IoError>) {
        let mut extents = Vec::new();
        if io.kind == IoKind::Status && result.is_ok() {
            extents.push(Extent { len: io.len, hole: false, zero: false });
        }
        self.finished.push_back(IoDone { op: io.op, disk: io.disk, buf: io.buf, result, extents });
        self.wake.signal();
    }

    /// Ends the operation in a slot.
    fn finish(&mut self, slot: u32, result: Result<(), IoError>) {
        let op = self.ops.remove(slot);
        if op.stalled {
            self.stalled -= 1;
            if self.stalled == 0 {
                tracing::info!(image = self.location, "the server answers again");
            }
        }
        let Io { op, disk, kind, offset, len, buf, .. } = op.io;
        if let Err(e) = result {
            self.failures.note(&self.location, kind, offset, len, format_args!("the server says: {e}"));
            if kind.changes() {
                // All, some or nothing of it was done.
                self.unflushed.note(offset, len, false);
            }
        }
        self.finished.push_back(IoDone { op, disk, buf, result, extents: Vec::new() });
    }

    /// Goes on with the operation in a slot, whose request has been answered.
    fn answered(&mut self, slot: u32) {
        let fua = self.export.flags & SEND_FUA != 0;
        let op = self.ops.get(slot);
        if let Some(e) = op.error {
            let hint = op.io.kind == IoKind::Discard && e == IoError::Unsupported;
            return self.finish(slot, if hint { Ok(()) } else { Err(e) });
        }
        match op.io.kind {
            IoKind::Flush => {
                self.unflushed.flushed(op.acked_before);
                return self.finish(slot, Ok(()));
            }
            IoKind::Status => {
                let extents = std::mem::take(&mut op.extents);
                self.finish(slot, Ok(()));
                if let Some(done) = self.finished.back_mut() {
                    done.extents = extents;
                }
                return;
            }
            _ => {}
        }
        if op.step == Step::Flush {
            self.unflushed.flushed(op.acked_before);
            return self.finish(slot, Ok(()));
        }
        op.progress += u64::from(op.step_len);
        let whole = op.progress == op.io.len;
        let wants_fua = matches!(op.io.kind, IoKind::Write { fua: true } | IoKind::WriteZeroes { fua: true, .. });
        if !whole {
            return self.enqueue(slot);
        }
        let flush_follows = wants_fua && !fua && self.export.flags & SEND_FLUSH != 0;
        if op.io.kind.changes() && !(wants_fua && fua) {
            self.unflushed.note(op.io.offset, op.io.len, !flush_follows);
        }
        if flush_follows {
            op.step = Step::Flush;
            return self.enqueue(slot);
        }
        self.finish(slot, Ok(()));
    }

    fn enqueue(&mut self, slot: u32) {
        self.ops.get(slot).stage = Stage::Queued;
        self.queue.push_back(slot);
    }

    /// Writes down the request for a slot.
    fn request(&mut self, slot: u32) -> [u8; REQUEST_BYTES] {
        let cookie = self.ops.new_cookie(slot);
        let (block_max, fua_flag) = (self.export.block_max, self.export.flags & SEND_FUA != 0);
        let op = self.ops.get(slot);
        if op.step == Step::Flush || op.io.kind == IoKind::Flush {
            op.acked_before = self.unflushed.flush_sent();
        }
        op.error = None;
        op.covered.clear();
        op.extents.clear();
        let left = op.io.len - op.progress;
        let fua = |on: bool| if on && fua_flag { FLAG_FUA } else { 0 };
        let (command, flags, len) = match op.io.kind {
            _ if op.step == Step::Flush => (CMD_FLUSH, 0, 0),
            IoKind::Flush => (CMD_FLUSH, 0, 0),
            IoKind::Read => (CMD_READ, 0, left.min(block_max.into())),
            IoKind::Write { fua: on } => (CMD_WRITE, fua(on), left.min(block_max.into())),
            IoKind::Discard => (CMD_TRIM, 0, left.min(RANGE_BYTES_MAX)),
            IoKind::WriteZeroes { unmap, fua: on } => {
                let hole = if unmap { 0 } else { FLAG_NO_HOLE };
                (CMD_WRITE_ZEROES, fua(on) | hole, left.min(RANGE_BYTES_MAX))
            }
            IoKind::Status => (CMD_BLOCK_STATUS, 0, left.min(RANGE_BYTES_MAX)),
        };
        op.step_len = len as u32;
        let offset = if command == CMD_FLUSH { 0 } else { op.io.offset + op.progress };
        let mut b = [0; REQUEST_BYTES];
        b[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        b[4..6].copy_from_slice(&flags.to_be_bytes());
        b[6..8].copy_from_slice(&command.to_be_bytes());
        b[8..16].copy_from_slice(&cookie.to_be_bytes());
        b[16..24].copy_from_slice(&offset.to_be_bytes());
        b[24..28].copy_from_slice(&(len as u32).to_be_bytes());
        b
    }
}

impl Backend for Nbd {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, io: Io) {
        match self.verdict(&io) {
            Some(result) => self.finish_now(io, result),
            None => {
                let slot = self.ops.add(io, now_ns());
                self.queue.push_back(slot);
                self.arm_timer();
            }
        }
    }

    fn kick(&mut self) {
        self.send();
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        let mut more = false;
        if self.finished.len() < limits::BATCH {
            more = self.advance();
        }
        let n = self.finished.len().min(limits::BATCH);
        done.extend(self.finished.drain(..n));
        more || !self.finished.is_empty()
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn describe(&self) -> String {
        let state = match &self.link {
            Link::Up { .. } => "",
            Link::Down { gave_up: false, .. } => ", connecting again",
            Link::Down { gave_up: true, .. } => ", server gone",
            Link::Dead => ", out of service",
        };
        format!("nbd ({}{state})", self.location)
    }

    fn inflight(&self) -> usize {
        self.ops.len() + self.finished.len()
    }

    fn stalled_ops(&self) -> usize {
        self.stalled
    }

    fn take_lost(&mut self) -> Option<Lost> {
        self.lost.take()
    }
}

impl Drop for Nbd {
    /// Says good-bye if that can be said at once. What is left of operations goes lost with its frames: their arena
    /// may be gone.
    fn drop(&mut self) {
        if let Link::Up { socket, .. } = &self.link
            && self.heads.is_empty()
        {
            let mut b = [0; REQUEST_BYTES];
            b[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            b[6..8].copy_from_slice(&CMD_DISC.to_be_bytes());
            let _ = sendmsg(socket, &[IoSlice::new(&b)], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        }
        for slot in self.ops.in_order() {
            std::mem::forget(self.ops.remove(slot));
        }
        self.finished.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn time_without_the_server_counts_from_the_first_break_that_left_something_unanswered() {
        let mut t = Trouble::default();
        assert_eq!(t.breaks(100 * S, 9 * S, false, 60 * S), Duration::ZERO);
        t.breaks(110 * S, 9 * S, false, 60 * S);
        t.breaks(120 * S, 9 * S, true, 60 * S);
        assert_eq!(t.since_ns, 120 * S);
        // A server that takes connections and answers nothing is not a server that is back, with or without a request.
        t.breaks(130 * S, 0, true, 60 * S);
        t.breaks(140 * S, 9 * S, false, 60 * S);
        assert_eq!(t.since_ns, 120 * S);
        t.breaks(999 * S, 60 * S, false, 60 * S);
        assert_eq!((t.since_ns, t.strikes, t.unanswered), (999 * S, 1, false));
    }

    #[test]
    fn a_server_that_closes_every_connection_at_once_is_called_ever_more_rarely() {
        let mut t = Trouble::default();
        let pauses: Vec<Duration> = (1..20).map(|n| t.breaks(n, 1, false, 60 * S)).collect();
        assert!(pauses.is_sorted() && pauses[1] > PAUSE_MIN && pauses[18] == PAUSE_MAX, "{pauses:?}");
    }
}
