//! A front end without a protocol: a port that always has requests, as many at a time as a test says.
//!
//! Owns tags. Never keeps data: what is asked for, and what comes of it, is the load's. Invariant: a tag is under way
//! from the turn that takes it to its reply.

use std::any::Any;
use std::os::fd::BorrowedFd;
use undercroft_cache::{DiskId, Extent, IoError, Op, ReqId, Request};
use undercroft_frontend::{Peer, Port, PortInterest};

/// What a [`TestPort`] asks for, and what becomes of it.
pub trait Load: Send + 'static {
    /// The next request: what is done, where it begins, and how many bytes it has.
    fn next(&mut self) -> (Op, u64, u64);

    /// Data of a read, from byte `at` of it on.
    fn copied_out(&mut self, _at: usize, _bytes: &[u8]) {}

    /// Data of a write is wanted, from byte `at` of it on.
    fn copy_in(&mut self, _at: usize, _bytes: &mut [u8]) {}

    /// A request is answered.
    fn replied(&mut self, result: Result<(), IoError>);

    /// Bytes of replies that are not sent.
    fn unsent(&self) -> usize {
        0
    }

    /// Sends `most` of them.
    fn send(&mut self, _most: usize) {}
}

/// See the head of the file.
pub struct TestPort<L> {
    id: u32,
    disk: DiskId,
    depth: usize,
    free: Vec<u32>,
    load: L,
    shut: bool,
}

impl<L: Load> TestPort<L> {
    /// A port of `disk` that has `depth` requests under way as soon as it is served.
    pub fn new(id: u32, disk: DiskId, depth: usize, load: L) -> TestPort<L> {
        TestPort { id, disk, depth, free: (0..depth as u32).collect(), load, shut: false }
    }
}

impl<L: Load> Port for TestPort<L> {
    fn take(&mut self, budget: usize, out: &mut Vec<Request>) -> bool {
        if self.shut {
            return false;
        }
        for _ in 0..budget {
            let Some(tag) = self.free.pop() else { return false };
            let (op, offset, len) = self.load.next();
            out.push(Request { id: ReqId { port: self.id, tag }, disk: self.disk, op, offset, len });
        }
        !self.free.is_empty()
    }

    fn copy_out(&mut self, _tag: u32, at: usize, bytes: &[u8]) {
        self.load.copied_out(at, bytes);
    }

    fn copy_in(&mut self, _tag: u32, at: usize, bytes: &mut [u8]) {
        self.load.copy_in(at, bytes);
    }

    fn extents(&mut self, _tag: u32, _extents: &[Extent]) {}

    fn reply(&mut self, tag: u32, result: Result<(), IoError>) {
        self.free.push(tag);
        self.load.replied(result);
    }

    fn flush(&mut self, most: usize) {
        self.load.send(most);
    }

    fn has_more_to_send(&self) -> bool {
        self.load.unsent() > 0
    }

    fn bytes_to_send(&self) -> usize {
        self.load.unsent()
    }

    fn arm(&mut self) -> bool {
        !self.free.is_empty() && !self.shut
    }

    fn disarm(&mut self) {}

    fn fds(&self) -> Vec<(BorrowedFd<'_>, PortInterest)> {
        Vec::new()
    }

    fn fds_changed(&mut self) -> bool {
        false
    }

    fn inflight(&self) -> usize {
        self.depth - self.free.len()
    }

    fn is_closed(&self) -> bool {
        self.shut
    }

    fn shut(&mut self) {
        self.shut = true;
    }

    fn peer(&self) -> Option<Peer> {
        None
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
