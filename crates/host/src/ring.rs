//! A safe io_uring for the operations on one file.
//!
//! Owns the kernel's queues and every operation given to them. Never waits but in `drop`. Invariant: memory that an
//! entry in the queue or the kernel points to (frames, lists of pieces) belongs to a slot of the ring until the
//! completion for that entry has been taken, and is leaked if the ring is dropped before.

use crate::file::OpenFile;
use crate::frame::FRAME_BYTES;
use crate::io_buf::IoBuf;
use crate::operation::{Action, FileDone, FileOp};
use crate::wait::now_ns;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Entries of the submission queue: one `kick` starts so many operations with one system call.
const SQ_ENTRIES: u32 = 128;
/// Entries of the completion queue; so many operations are with the kernel at most, the others wait in the ring.
const CQ_ENTRIES: u32 = 1024;
/// Pieces of memory of one system call at most (`IOV_MAX`); what is longer goes in several steps.
const PIECES_MAX: usize = 1024;
/// Times that an operation is tried again when the kernel says `EAGAIN` or `EINTR`.
const RETRIES_MAX: u8 = 16;
/// Reads and writes of at least so many bytes are started by a thread of the kernel while others wait for ours: to pin
/// the pages of 256 KiB and to make requests of a device of them takes 30 us.
const HANDED_OVER_BYTES: u32 = 128 * 1024;
/// An operation counts for at least so many bytes of what one `kick` starts.
const START_BYTES_MIN: u32 = 8 * 1024;
/// How long `drop` waits for the kernel before it leaks what is under way.
const DROP_WAIT_NS: u64 = 5_000_000_000;

/// An io_uring with one file.
pub struct Ring<T> {
    ring: IoUring,
    /// Kept open as long as the kernel may use it.
    file: Arc<OpenFile>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Slots whose next step has not been put in the submission queue yet, in order.
    waiting: VecDeque<u32>,
    /// Entries in the submission queue or with the kernel.
    entered: usize,
    /// Entries in the submission queue that the kernel has not taken.
    unsubmitted: usize,
    inflight: usize,
    /// Whether others wait while this thread starts operations.
    shared: bool,
    /// Whether threads of the kernel have a processor besides this thread's to start long operations on.
    helped: bool,
    /// The last `kick` left operations for the next one.
    held_back: bool,
}

struct Slot<T> {
    op: Option<FileOp<T>>,
    /// Bytes done by earlier steps.
    progress: u32,
    /// Bytes that the step under way covers.
    step: u32,
    retries: u8,
    /// The step's pieces; its memory is kept from use to use.
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers in `pieces` name frames that the slot's operation owns, which may move between threads; they
// are used only by the kernel.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T> Ring<T> {
    /// A ring for `file`.
    ///
    /// # Errors
    /// No io_uring, or one that lacks what is used here; the message says which and the remedy.
    pub fn new(file: Arc<OpenFile>) -> io::Result<Self> {
        let ring = build()?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self {
            ring,
            file,
            slots: Vec::with_capacity(SQ_ENTRIES as usize),
            free: Vec::with_capacity(SQ_ENTRIES as usize),
            waiting: VecDeque::with_capacity(SQ_ENTRIES as usize),
            entered: 0,
            unsubmitted: 0,
            inflight: 0,
            shared: false,
            helped: false,
            held_back: false,
        })
    }

    /// Whether others wait for this thread, which starts operations. Long ones are started by threads of the kernel
    /// then, which takes more processor time in all. Where this thread has but one processor, they would have the same
    /// one, and take it when they like for as many operations as there are: so this thread starts them, and one `kick`
    /// starts one.
    #[inline]
    pub fn set_shared(&mut self, shared: bool) {
        if shared && !self.shared {
            self.helped = rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.count() > 1);
        }
        self.shared = shared;
    }

    /// Whether the last `kick` has left operations for the next one, because others wait for this thread.
    #[inline]
    pub fn holds_back(&self) -> bool {
        self.held_back
    }

    /// Operations submitted and not yet handed over.
    pub fn inflight(&self) -> usize {
        self.inflight
    }

    /// Takes an operation over; it starts at the next `kick`.
    #[inline]
    pub fn submit(&mut self, op: FileOp<T>) {
        check(&op);
        let n = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { op: None, progress: 0, step: 0, retries: 0, pieces: Vec::new() });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[n as usize];
        (slot.progress, slot.retries) = (0, 0);
        debug_assert!(slot.op.is_none());
        slot.op = Some(op);
        self.inflight += 1;
        self.waiting.push_back(n);
    }

    /// Hands what waits to the kernel.
    #[inline]
    pub fn kick(&mut self) {
        loop {
            let full = self.fill();
            if self.unsubmitted == 0 || !self.enter() || !full {
                return;
            }
        }
    }

    /// Moves waiting steps to the submission queue; true if some are left because it is full.
    fn fill(&mut self) -> bool {
        self.held_back = false;
        let mut started = 0;
        if self.waiting.is_empty() {
            return false;
        }
        let mut sq = self.ring.submission();
        while self.entered < CQ_ENTRIES as usize {
            let Some(&n) = self.waiting.front() else { return false };
            if sq.is_full() {
                return true;
            }
            if started >= HANDED_OVER_BYTES && self.shared && !self.helped {
                self.held_back = true;
                return false;
            }
            self.waiting.pop_front();
            let slot = &mut self.slots[n as usize];
            started += slot.op.as_ref().map_or(0, |op| op.buf.len.max(START_BYTES_MIN));
            let entry = slot.entry().user_data(n.into());
            let long = self.shared && self.helped && slot.op.as_ref().is_some_and(|op| op.buf.len >= HANDED_OVER_BYTES);
            let entry = if long { entry.flags(squeue::Flags::ASYNC) } else { entry };
            // SAFETY: the entry points to frames and pieces of the slot, which stay there, unmoved (both are on the
            // heap) and untouched until `poll` has taken the entry's completion; `drop` leaks them otherwise. The
            // file is registered and kept open. There is room, so the push succeeds.
            let pushed = unsafe { sq.push(&entry) };
            assert!(pushed.is_ok(), "a submission queue with room refused an entry");
            self.entered += 1;
            self.unsubmitted += 1;
        }
        false
    }

    /// Lets the kernel take the submission queue; true if it took something.
    fn enter(&mut self) -> bool {
        loop {
            match self.ring.submit() {
                Ok(n) => {
                    self.unsubmitted -= n.min(self.unsubmitted);
                    return n > 0;
                }
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // EAGAIN, EBUSY: out of memory, or completions to be taken first. `poll` tries again.
                Err(_) => return false,
            }
        }
    }

    /// Hands over at most `max` finished operations; true if there may be more.
    #[inline]
    pub fn poll(&mut self, max: usize, done: &mut impl FnMut(FileDone<T>)) -> bool {
        if self.entered == 0 {
            return false;
        }
        let mut taken = 0;
        loop {
            let mut queue = self.ring.completion();
            while taken < max {
                let Some(c) = queue.next() else { break };
                self.entered -= 1;
                let n = c.user_data() as u32;
                let slot = &mut self.slots[n as usize];
                let Some(result) = slot.finish(c.result()) else {
                    self.waiting.push_back(n);
                    continue;
                };
                let FileOp { token, buf, .. } = slot.op.take().expect("a completion for a slot without operation");
                self.free.push(n);
                self.inflight -= 1;
                taken += 1;
                done(FileDone { token, buf, result, regions: Vec::new() });
            }
            drop(queue);
            if taken == max {
                break;
            }
            let sq = self.ring.submission();
            let hidden = sq.taskrun() || sq.cq_overflow();
            drop(sq);
            // Completions may wait inside the kernel until this thread enters it.
            if !hidden || self.ring.submitter().submit_with_args(0, &types::SubmitArgs::new()).is_err() {
                break;
            }
            if self.ring.completion().is_empty() {
                break;
            }
        }
        if !self.waiting.is_empty() || self.unsubmitted > 0 {
            self.kick();
        }
        taken == max || (self.unsubmitted > 0 && self.entered == self.unsubmitted)
    }
}

impl<T> Slot<T> {
    /// The entry for the next step of the operation.
    #[inline]
    fn entry(&mut self) -> squeue::Entry {
        let op = self.op.as_ref().expect("a step of a slot without operation");
        let file = types::Fixed(0);
        let offset = op.offset + u64::from(self.progress);
        match op.action {
            Action::Read | Action::Write { .. } => {
                self.step = list_pieces(&op.buf, self.progress, &mut self.pieces);
                let dsync = match op.action {
                    Action::Write { dsync: true } => libc::RWF_DSYNC,
                    _ => 0,
                };
                match (op.action, &self.pieces[..]) {
                    (Action::Read, &[one]) => {
                        opcode::Read::new(file, one.iov_base.cast(), one.iov_len as u32).offset(offset).build()
                    }
                    (Action::Read, many) => {
                        opcode::Readv::new(file, many.as_ptr(), many.len() as u32).offset(offset).build()
                    }
                    (_, &[one]) => opcode::Write::new(file, one.iov_base.cast(), one.iov_len as u32)
                        .offset(offset)
                        .rw_flags(dsync)
                        .build(),
                    (_, many) => opcode::Writev::new(file, many.as_ptr(), many.len() as u32)
                        .offset(offset)
                        .rw_flags(dsync)
                        .build(),
                }
            }
            Action::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Action::PunchHole => opcode::Fallocate::new(file, op.len)
                .offset(op.offset)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            Action::ZeroRange => opcode::Fallocate::new(file, op.len)
                .offset(op.offset)
                .mode(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            // The engine sends the last two elsewhere.
            Action::Nothing | Action::DeviceDiscard | Action::Map => opcode::Nop::new().build(),
        }
    }

    /// Takes the result of a step: the result of the operation, or `None` if it needs another step.
    #[inline]
    fn finish(&mut self, result: i32) -> Option<Result<(), Errno>> {
        let op = self.op.as_ref().expect("a completion for a slot without operation");
        if matches!(op.action, Action::DeviceDiscard | Action::Map) {
            return Some(Err(Errno::OPNOTSUPP));
        }
        if result < 0 {
            let e = Errno::from_raw_os_error(-result);
            let again = matches!(e, Errno::AGAIN | Errno::INTR) && self.retries < RETRIES_MAX;
            self.retries += u8::from(again);
            return if again { None } else { Some(Err(e)) };
        }
        if !matches!(op.action, Action::Read | Action::Write { .. }) {
            return Some(Ok(()));
        }
        let bytes = result as u32;
        assert!(bytes <= self.step, "the kernel moved more bytes than it was given");
        self.progress += bytes;
        if self.progress == op.buf.len {
            Some(Ok(()))
        } else if bytes == 0 {
            Some(Err(Errno::IO)) // the end of the file, or a device that takes nothing
        } else {
            None
        }
    }
}

/// Lists the pieces of `buf` from byte `skip` on, neighbours in memory joined. Returns how many bytes they have.
#[inline]
fn list_pieces(buf: &IoBuf, skip: u32, pieces: &mut Vec<libc::iovec>) -> u32 {
    pieces.clear();
    let from = (buf.head + skip) as usize;
    let end = (buf.head + buf.len) as usize;
    let mut at = from;
    for frame in &buf.frames[from / FRAME_BYTES..] {
        if at >= end {
            break;
        }
        let within = at % FRAME_BYTES;
        let n = (FRAME_BYTES - within).min(end - at);
        let base = frame.as_ptr().wrapping_add(within);
        let full = pieces.len() == PIECES_MAX;
        match pieces.last_mut() {
            Some(last) if last.iov_base as usize + last.iov_len == base as usize => last.iov_len += n,
            _ if full => break,
            _ => pieces.push(libc::iovec { iov_base: base.cast(), iov_len: n }),
        }
        at += n;
    }
    (at - from) as u32
}

/// Panics if the operation's buffer and length do not agree: a bug in the caller, which would let the kernel write
/// outside the frames.
#[inline]
pub(crate) fn check<T>(op: &FileOp<T>) {
    let b = &op.buf;
    match op.action {
        Action::Read | Action::Write { .. } => {
            assert!(op.len == u64::from(b.len) && b.len > 0, "an operation of another length than its buffer");
            assert!(
                (b.head as usize) < FRAME_BYTES
                    && b.head as usize + b.len as usize <= b.frames.len() * FRAME_BYTES
                    && b.frames.len() * FRAME_BYTES <= i32::MAX as usize,
                "a buffer that ends outside its frames"
            );
            assert!(i64::try_from(op.offset).is_ok(), "an offset past the end of any file");
        }
        _ => {}
    }
}

fn build() -> io::Result<IoUring> {
    let mut b = IoUring::builder();
    b.setup_cqsize(CQ_ENTRIES).setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    let ring = b.build(SQ_ENTRIES).or_else(|e| {
        if e.raw_os_error() != Some(libc::EINVAL) {
            return Err(e);
        }
        // Linux before 5.19 does not know the newer flags, which only save time.
        IoUring::builder().setup_cqsize(CQ_ENTRIES).build(SQ_ENTRIES)
    });
    let ring = ring.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSYS) => io::Error::new(e.kind(), "this kernel has no io_uring"),
        Some(libc::EPERM) => io::Error::new(
            e.kind(),
            "io_uring is forbidden to this process (see `sysctl kernel.io_uring_disabled`, or the container's seccomp \
             profile)",
        ),
        Some(libc::ENOMEM) => {
            io::Error::new(e.kind(), "no memory for io_uring (raise the limit on locked memory: `ulimit -l`)")
        }
        _ => io::Error::new(e.kind(), format!("io_uring cannot be set up: {e}")),
    })?;
    let p = ring.params();
    if !(p.is_feature_nodrop() && p.is_feature_submit_stable()) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring of this kernel is too old (Linux 5.6 is needed)",
        ));
    }
    let mut probe = Probe::new();
    let known = ring.submitter().register_probe(&mut probe);
    let needed =
        [opcode::Read::CODE, opcode::Write::CODE, opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE];
    if known.is_err() || !needed.iter().chain(&[opcode::Fallocate::CODE]).all(|&c| probe.is_supported(c)) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring of this kernel is too old (Linux 5.6 is needed)",
        ));
    }
    Ok(ring)
}

/// Readable (level-triggered) when `poll` has something.
impl<T> AsFd for Ring<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's and open as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl<T> Drop for Ring<T> {
    /// Waits for what the kernel has, for a bounded time, so that no write of ours lands after the file's lock is
    /// gone; then leaks the operations that are left, and lets frames that came back go lost: their arena may be gone.
    fn drop(&mut self) {
        let end = now_ns() + DROP_WAIT_NS;
        while self.entered > self.unsubmitted && now_ns() < end {
            let wait = types::Timespec::new().nsec(50_000_000);
            let args = types::SubmitArgs::new().timespec(&wait);
            // Entries still in the queue are submitted along; waiting for them is as good.
            let entered = self.ring.submitter().submit_with_args(1, &args);
            self.unsubmitted -= entered.unwrap_or(0).min(self.unsubmitted);
            let mut finished = 0;
            for _ in self.ring.completion() {
                finished += 1;
            }
            self.entered -= finished;
        }
        if self.entered > self.unsubmitted {
            // What is still under way may yet write: the file stays open and locked.
            std::mem::forget(Arc::clone(&self.file));
        }
        for slot in self.slots.drain(..) {
            if slot.op.is_some() {
                // The kernel may still read the pieces and write to the frames.
                std::mem::forget(slot);
            }
        }
    }
}

impl<T> std::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("inflight", &self.inflight).field("entered", &self.entered).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Arena;

    fn lengths(buf: &IoBuf, skip: u32) -> (Vec<usize>, u32) {
        let mut pieces = Vec::new();
        let n = list_pieces(buf, skip, &mut pieces);
        (pieces.iter().map(|p| p.iov_len).collect(), n)
    }

    #[test]
    fn neighbouring_frames_make_one_piece() {
        let mut a = Arena::new(8).unwrap();
        let f: Vec<_> = (0..8).map(|_| a.take().unwrap()).collect();
        let b = IoBuf { frames: f, head: 512, len: 8 * 4096 - 1024 };
        assert_eq!(lengths(&b, 0), (vec![8 * 4096 - 1024], 8 * 4096 - 1024));
        // After a short step, in the middle of a frame and at its edge.
        assert_eq!(lengths(&b, 5000), (vec![8 * 4096 - 6024], 8 * 4096 - 6024));
        assert_eq!(lengths(&b, 4096 - 512), (vec![7 * 4096 - 512], 7 * 4096 - 512));
        b.frames.into_iter().for_each(|f| a.put(f));
    }

    #[test]
    fn scattered_frames_make_one_piece_each_and_stop_at_the_limit() {
        let mut a = Arena::new(2 * PIECES_MAX + 4).unwrap();
        let all: Vec<_> = (0..2 * PIECES_MAX + 4).map(|_| a.take().unwrap()).collect();
        let (odd, even): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(i, _)| i % 2 == 1);
        let odd: Vec<_> = odd.into_iter().map(|(_, f)| f).collect();
        let len = (odd.len() * FRAME_BYTES) as u32 - 100;
        let b = IoBuf { frames: odd, head: 100, len };
        let (l, n) = lengths(&b, 0);
        assert_eq!(l.len(), PIECES_MAX);
        assert_eq!(l[0], FRAME_BYTES - 100);
        assert_eq!(n as usize, PIECES_MAX * FRAME_BYTES - 100);
        // The rest comes with the next step.
        assert_eq!(lengths(&b, n), (vec![FRAME_BYTES; 2], 2 * FRAME_BYTES as u32));
        b.frames.into_iter().chain(even.into_iter().map(|(_, f)| f)).for_each(|f| a.put(f));
    }

    /// A thread with one processor starts long operations itself while others wait for it: one with each kick.
    #[test]
    #[cfg(not(miri))]
    fn a_kick_starts_one_long_operation_while_others_wait() {
        let mut r = Ring::new(Arc::new(std::fs::File::open("/dev/zero").unwrap().into())).unwrap();
        let mut a = Arena::new(4 * 32 + 40).unwrap();
        let mut read = |r: &mut Ring<u32>, token, blocks: usize| {
            let buf = IoBuf {
                frames: (0..blocks).map(|_| a.take().unwrap()).collect(),
                head: 0,
                len: (blocks * FRAME_BYTES) as u32,
            };
            let len = u64::from(buf.len);
            r.submit(FileOp { token, action: Action::Read, offset: 0, len, buf });
        };
        r.set_shared(true);
        r.helped = false;
        (0..4).for_each(|n| read(&mut r, n, 32));
        (4..44).for_each(|n| read(&mut r, n, 1));
        for started in [1, 2, 3, 4, 20, 36, 44] {
            r.kick();
            assert_eq!((r.entered, r.holds_back()), (started, started < 44));
        }
        r.set_shared(false);
        r.helped = true;
        let mut back = Vec::new();
        while r.inflight() > 0 {
            r.poll(64, &mut |d| back.push(d));
        }
        assert_eq!(back.len(), 44);
        back.into_iter().flat_map(|d| d.buf.frames).for_each(|f| a.put(f));
    }

    #[test]
    #[cfg(not(miri))]
    #[should_panic(expected = "outside its frames")]
    fn a_buffer_that_ends_outside_its_frames_is_refused() {
        let mut r = Ring::new(Arc::new(std::fs::File::open("/dev/null").unwrap().into())).unwrap();
        let mut a = Arena::new(1).unwrap();
        let buf = IoBuf { frames: vec![a.take().unwrap()], head: 1, len: 4096 };
        r.submit(FileOp { token: (), action: Action::Read, offset: 0, len: 4096, buf });
    }
}
