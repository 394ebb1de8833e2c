//! The kernel's end of a mount, as the data path uses it: never blocking, one message a call.
//!
//! Owns the descriptor. Never knows what a message means. Invariant: no call blocks.

use rustix::io::Errno;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use undercroft_host::EventFd;

/// What a port needs of it.
pub trait Device: Send + 'static {
    /// Receives one message into `head`, then `data`; returns its length. `AGAIN` if there is none now, `INTR` or
    /// `NOENT` if it is to be asked again, `NODEV` if the mount is gone.
    fn receive(&mut self, head: &mut [u8], data: &mut [u8]) -> Result<usize, Errno>;

    /// Sends one message. `NOENT` if nobody waits for it any more.
    fn send(&mut self, message: &[u8]) -> Result<(), Errno>;

    /// Has one of `fds` fire, so that the worker looks at the port again.
    fn wake(&mut self);

    /// Descriptors that become readable, edge-triggered, when there is a message, or after `wake`.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Gives the descriptor up: whoever waits for an answer gets none.
    fn close(&mut self);
}

/// `/dev/fuse`, opened and mounted.
#[derive(Debug)]
pub(super) struct FuseDevice {
    /// `None` once it is closed.
    fd: Option<OwnedFd>,
    wake: EventFd,
}

impl FuseDevice {
    /// Takes over a descriptor, which must be nonblocking.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: Some(fd), wake: EventFd::new()? })
    }

    fn fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.fd.as_ref().map(AsFd::as_fd).ok_or(Errno::NODEV)
    }
}

impl Device for FuseDevice {
    #[inline]
    fn receive(&mut self, head: &mut [u8], data: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::readv(self.fd()?, &mut [IoSliceMut::new(head), IoSliceMut::new(data)])
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<(), Errno> {
        rustix::io::write(self.fd()?, message).map(|_| ())
    }

    fn wake(&mut self) {
        self.wake.signal();
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fd.iter().map(AsFd::as_fd).chain([self.wake.as_fd()]).collect()
    }

    fn close(&mut self) {
        self.fd = None;
    }
}
