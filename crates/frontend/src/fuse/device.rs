//! The kernel's end of a mount, as the data path uses it: never blocking, one message a call.
//!
//! Owns the descriptor. Never knows what a message means. Invariants: no call blocks; once the descriptor is given up,
//! nobody keeps it for a next process, unless it was left to one.

use super::passing::KeptFile;
use crate::reach::Closed;
use rustix::io::Errno;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
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
pub(super) struct FuseDevice {
    /// `None` once it is closed.
    fd: Option<OwnedFd>,
    wake: EventFd,
    /// Who keeps it for the next process.
    kept: Option<Arc<dyn KeptFile>>,
    closed: Closed,
}

impl FuseDevice {
    /// Takes over a descriptor, which must be nonblocking.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(super) fn new(fd: OwnedFd, kept: Option<Arc<dyn KeptFile>>) -> io::Result<Self> {
        Ok(Self { fd: Some(fd), wake: EventFd::new()?, kept, closed: Closed::default() })
    }

    /// What will tell that it is closed.
    pub(super) fn closed(&self) -> &Closed {
        &self.closed
    }

    /// The same descriptor once more, for another process.
    pub(super) fn passable(&self) -> io::Result<OwnedFd> {
        self.fd()?.try_clone_to_owned()
    }

    /// Whoever keeps it goes on to do so when this one is closed.
    pub(super) fn leave(&mut self) {
        self.kept = None;
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
        self.closed.close();
        if let Some(kept) = self.kept.take() {
            kept.forget();
        }
    }
}
