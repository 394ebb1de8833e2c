//! The kernel's end of a device, as the data path uses it: never blocking.
//!
//! Owns the queue. Never knows what a request means. Invariant: once the device is given up, the kernel has what was
//! not answered asked of whoever serves the device next, or failed if it is stopped.

use crate::reach::Closed;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use undercroft_host::EventFd;
use undercroft_host::ublk::{Request, UblkQueue};

/// What a port needs of it.
pub trait BlockQueue: Send + 'static {
    /// Tags that there are.
    fn depth(&self) -> u16;

    /// A command that the kernel has done with: its tag, and 0 if there is a request, else a number of errno below 0,
    /// after which there is none with this tag any more.
    fn take_done(&mut self) -> Option<(u16, i32)>;

    /// Whether `take_done` would have something.
    fn has_done(&mut self) -> bool;

    /// What the request with this tag asks for.
    fn request(&self, tag: u16) -> Request;

    /// Copies data that the request brings, from its byte `at` on.
    fn take_data(&mut self, tag: u16, at: usize, to: &mut [u8]) -> Result<(), Errno>;

    /// Copies data to whoever has asked for them, to byte `at` on.
    fn give_data(&mut self, tag: u16, at: usize, from: &[u8]) -> Result<(), Errno>;

    /// Answers a request, once `submit` is called: bytes that were moved, or a number of errno below 0.
    fn answer(&mut self, tag: u16, result: i32);

    /// Hands answers over; what could not be is handed over by the next call.
    fn submit(&mut self) -> Result<(), Errno>;

    /// Answers that were not handed over.
    fn unsubmitted(&self) -> usize;

    /// Has one of `fds` fire, so that the worker looks at the port again.
    fn wake(&mut self);

    /// Descriptors that become readable, edge-triggered, when there is something for `take_done`, or after `wake`.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Gives the device up.
    fn close(&mut self);
}

/// The queue of a device of the kernel.
pub(super) struct KernelDevice {
    /// `None` once it is closed.
    queue: Option<UblkQueue>,
    depth: u16,
    wake: EventFd,
    closed: Closed,
    /// It is another process's once this one has ended.
    is_left: bool,
}

impl KernelDevice {
    /// Takes over a queue that was begun.
    pub(super) fn new(queue: UblkQueue, wake: EventFd, closed: Closed) -> Self {
        Self { depth: queue.depth(), queue: Some(queue), wake, closed, is_left: false }
    }

    /// Once it is given up, nothing is closed before this process ends: Linux 6.12 was seen to crash when a queue of a
    /// device that lives was closed while the thread that served it lived, too.
    pub(super) fn leave(&mut self) {
        self.is_left = true;
    }

    /// What will tell that it is closed.
    pub(super) fn closed(&self) -> &Closed {
        &self.closed
    }

    fn queue(&mut self) -> Result<&mut UblkQueue, Errno> {
        self.queue.as_mut().ok_or(Errno::NODEV)
    }
}

impl BlockQueue for KernelDevice {
    fn depth(&self) -> u16 {
        self.depth
    }

    #[inline]
    fn take_done(&mut self) -> Option<(u16, i32)> {
        self.queue.as_mut()?.take_done()
    }

    #[inline]
    fn has_done(&mut self) -> bool {
        self.queue.as_mut().is_some_and(UblkQueue::has_done)
    }

    #[inline]
    fn request(&self, tag: u16) -> Request {
        const NOTHING: Request = Request { operation: u8::MAX, flags: 0, sectors: 0, start_sector: 0 };
        self.queue.as_ref().map_or(NOTHING, |queue| queue.request(tag))
    }

    #[inline]
    fn take_data(&mut self, tag: u16, at: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.queue()?.take_data(tag, at, to)
    }

    #[inline]
    fn give_data(&mut self, tag: u16, at: usize, from: &[u8]) -> Result<(), Errno> {
        self.queue()?.give_data(tag, at, from)
    }

    #[inline]
    fn answer(&mut self, tag: u16, result: i32) {
        if let Some(queue) = &mut self.queue {
            queue.answer(tag, result);
        }
    }

    #[inline]
    fn submit(&mut self) -> Result<(), Errno> {
        self.queue()?.submit().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    fn unsubmitted(&self) -> usize {
        self.queue.as_ref().map_or(0, UblkQueue::unsubmitted)
    }

    fn wake(&mut self) {
        self.wake.signal();
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.queue.iter().map(UblkQueue::event).chain([self.wake.as_fd()]).collect()
    }

    fn close(&mut self) {
        if let Some(queue) = self.queue.take()
            && self.is_left
        {
            std::mem::forget(queue);
        }
        self.closed.close();
    }
}
