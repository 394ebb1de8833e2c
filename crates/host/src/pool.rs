//! File operations with blocking calls on threads, where io_uring is missing or cannot do one.
//!
//! Owns how an operation becomes calls. Never blocks its caller. Invariant: an operation that a thread works on owns
//! its frames, so a thread that hangs in a call touches no memory of anybody else's.

use crate::file::{self, OpenFile};
use crate::io_buf::IoBuf;
use crate::operation::{Action, FileDone, FileOp, Region};
use crate::ring::check;
use crate::thread_pool::{ThreadPool, Work};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Pieces of memory of one system call at most (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// A queue of operations on one file, and the threads that carry them out.
pub(crate) struct Pool<T: Send + 'static>(ThreadPool<Calls<T>>);

struct Calls<T> {
    file: Arc<OpenFile>,
    _token: PhantomData<fn(T) -> T>,
}

impl<T: Send + 'static> Work for Calls<T> {
    type Job = FileOp<T>;
    type Done = FileDone<T>;

    fn carry_out(&self, mut op: FileOp<T>) -> FileDone<T> {
        let mut regions = Vec::new();
        let result = carry_out(&self.file, &mut op, &mut regions);
        FileDone { token: op.token, buf: op.buf, result, regions }
    }

    fn refuse(&self, op: FileOp<T>, why: &io::Error) -> FileDone<T> {
        let result = Err(Errno::from_io_error(why).unwrap_or(Errno::AGAIN));
        FileDone { token: op.token, buf: op.buf, result, regions: Vec::new() }
    }
}

impl<T: Send + 'static> Pool<T> {
    /// A pool for `file` of at most `threads_max` threads, which are started when needed.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn new(file: Arc<OpenFile>, threads_max: usize) -> io::Result<Self> {
        Ok(Self(ThreadPool::new("disk-io", threads_max, Calls { file, _token: PhantomData })?))
    }

    /// Takes an operation over and starts it as soon as a thread is free.
    pub fn submit(&mut self, op: FileOp<T>) {
        check(&op);
        self.0.submit(op);
    }

    /// Hands over at most `max` finished operations; true if there may be more.
    pub fn poll(&mut self, max: usize, done: &mut impl FnMut(FileDone<T>)) -> bool {
        self.0.poll(max, done)
    }

    /// Operations submitted and not yet handed over.
    pub fn inflight(&self) -> usize {
        self.0.inflight()
    }
}

fn carry_out<T>(file: &File, op: &mut FileOp<T>, regions: &mut Vec<Region>) -> Result<(), Errno> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match op.action {
        Action::Read => transfer(op.len, |done| {
            let mut pieces = skip_mut(&mut op.buf, done);
            rustix::io::preadv(file, &mut pieces, op.offset + done)
        }),
        Action::Write { dsync } => transfer(op.len, |done| {
            let pieces = skip(&op.buf, done);
            if dsync {
                rustix::io::pwritev2(file, &pieces, op.offset + done, ReadWriteFlags::DSYNC)
            } else {
                rustix::io::pwritev(file, &pieces, op.offset + done)
            }
        }),
        Action::Nothing => Ok(()),
        Action::Sync => uninterrupted(|| rustix::fs::fdatasync(file)),
        Action::PunchHole => uninterrupted(|| fallocate(file, punch, op.offset, op.len)),
        Action::ZeroRange => uninterrupted(|| fallocate(file, zero, op.offset, op.len)),
        Action::DeviceDiscard => uninterrupted(|| file::device_discard(file, op.offset, op.len)),
        Action::Map => {
            *regions = file::map_regions(file, op.offset, op.len)?;
            Ok(())
        }
    }
}

/// Repeats `step`, which is told the bytes done so far, until `len` bytes are done.
fn transfer(len: u64, mut step: impl FnMut(u64) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Err(Errno::IO), // the end of the file
            Ok(n) => done += n as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn uninterrupted(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn skip(buf: &IoBuf, mut bytes: u64) -> Vec<IoSlice<'_>> {
    let mut out = Vec::new();
    for p in buf.pieces() {
        let cut = bytes.min(p.len() as u64);
        bytes -= cut;
        if (cut as usize) < p.len() && out.len() < PIECES_MAX {
            out.push(IoSlice::new(&p[cut as usize..]));
        }
    }
    out
}

fn skip_mut(buf: &mut IoBuf, mut bytes: u64) -> Vec<IoSliceMut<'_>> {
    let mut out = Vec::new();
    for p in buf.pieces_mut() {
        let cut = bytes.min(p.len() as u64);
        bytes -= cut;
        if (cut as usize) < p.len() && out.len() < PIECES_MAX {
            out.push(IoSliceMut::new(&mut p[cut as usize..]));
        }
    }
    out
}

/// Readable (level-triggered) when `poll` has something.
impl<T: Send + 'static> AsFd for Pool<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<T: Send + 'static> std::fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
