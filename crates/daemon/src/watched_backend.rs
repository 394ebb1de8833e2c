//! A back end of tests that passes everything on to a real one, and lets a test see what passes.
//!
//! Owns the real back end. Never changes what passes. Invariant: what the real one would have done is done.

use std::os::fd::BorrowedFd;
use undercroft_backend::Backend;
use undercroft_cache::{Geometry, Io, IoDone};

/// What is told of a back end.
pub(crate) trait Watch: Send {
    /// An operation was passed on.
    fn submitted(&mut self, _io: &Io) {}

    /// Those that were passed on are about to be begun.
    fn kicked(&mut self) {}

    /// These have been done.
    fn done(&mut self, _done: &[IoDone]) {}
}

/// See the head of the file.
pub(crate) struct Watched<W: Watch> {
    /// Dropped first.
    pub watch: W,
    pub real: Box<dyn Backend>,
}

impl<W: Watch> Backend for Watched<W> {
    fn geometry(&self) -> &Geometry {
        self.real.geometry()
    }

    fn submit(&mut self, io: Io) {
        self.watch.submitted(&io);
        self.real.submit(io);
    }

    fn kick(&mut self) {
        self.watch.kicked();
        self.real.kick();
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        let before = done.len();
        let more = self.real.poll(done);
        self.watch.done(&done[before..]);
        more
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.real.wake_fd()
    }

    fn describe(&self) -> String {
        self.real.describe()
    }

    fn inflight(&self) -> usize {
        self.real.inflight()
    }
}
