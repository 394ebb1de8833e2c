//! A front end that a test drives by hand: it puts requests to a core and ends the core's operations, in the order that
//! the test chooses.
//!
//! Owns the operations under way and the answers. What data means is up to its [`Client`], what disks hold to what ends
//! the operations. Never decides what is right, but that no request fails unless the test says that some may.
//! Invariants: an operation ends once, and its memory goes back to the core; time stands still between ticks.

mod clients;
mod disks;

pub use clients::{Buffer, Guest, NoData, Numbered, Values};
pub use disks::{ValueDisks, fill_blocks, number_blocks};

use std::collections::VecDeque;
use undercroft_cache::fault_injection::FaultInjection;
use undercroft_cache::{Core, DiskId, Effects, Event, Extent, Io, IoDone, IoError, IoKind, Op, Paused, ReqId, Request};
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;

/// Who makes the requests: where their data goes to and comes from, and what is to be seen of them.
pub trait Client {
    /// Bytes `at..` of what a request reads have come.
    fn take(&mut self, req: ReqId, at: usize, bytes: &[u8]);
    /// Fills `bytes` with bytes `at..` of what a request writes.
    fn give(&mut self, req: ReqId, at: usize, bytes: &mut [u8]);
    /// The page of the client's memory that byte `at` of a request's data is the first of; `None`: memory that the
    /// core does not see.
    fn page(&mut self, _req: ReqId, _at: usize) -> Option<u32> {
        None
    }
    /// Copies a page of the memory of a disk's guest; false if there is no such page.
    fn copy_page(&mut self, _disk: DiskId, _page: u32, _to: &mut [u8; FRAME_BYTES]) -> bool {
        false
    }
    /// A request is about to be put to the core.
    fn asking(&mut self, _request: &Request) {}
    /// The core has started an operation.
    fn submitted(&mut self, _io: &Io) {}
    /// A request has been answered.
    fn answered(&mut self, _req: ReqId) {}
}

/// See the head of the file.
pub struct Front<C> {
    /// Who makes the requests.
    pub client: C,
    /// Operations under way, the oldest first.
    pub ios: Vec<Io>,
    /// Requests to be resumed, the one that was paused first at the front.
    pub paused: Vec<Paused>,
    /// What is left of operations that ended, the first of which is dealt with next.
    pub unfinished: VecDeque<IoDone>,
    /// Requests answered so far.
    pub answered: u64,
    /// Their tags and answers, in order. Empty without [`Front::noting`].
    pub answers: Vec<(u32, Result<(), IoError>)>,
    notes: bool,
}

impl<C: Client> Front<C> {
    /// A front end none of whose requests may fail. It notes no answers, so that it takes no memory for them.
    pub fn new(client: C) -> Self {
        let (ios, paused, unfinished, answers) = (Vec::new(), Vec::new(), VecDeque::new(), Vec::new());
        Self { client, ios, paused, unfinished, answered: 0, answers, notes: false }
    }

    /// A front end that notes every answer; requests may fail.
    pub fn noting(client: C) -> Self {
        Self { notes: true, ..Self::new(client) }
    }

    /// Puts a request to the core.
    #[inline]
    pub fn ask<P: FaultInjection>(&mut self, core: &mut Core<P>, request: Request) {
        self.client.asking(&request);
        core.apply(Event::Request(request), 0, self);
    }

    /// Puts a request to the core and ends all operations.
    pub fn run<P: FaultInjection>(&mut self, core: &mut Core<P>, request: Request, serve: impl FnMut(&mut Io)) {
        self.ask(core, request);
        self.end_all(core, serve);
    }

    /// Ends the operation `ios[at]` with what `serve` says, which also fills what is read, and all that the core leaves
    /// of it for later events. What kind of operation it was.
    ///
    /// # Panics
    /// If there is no such operation.
    pub fn end<P: FaultInjection>(
        &mut self,
        core: &mut Core<P>,
        at: usize,
        serve: impl FnOnce(&mut Io) -> Result<(), IoError>,
    ) -> IoKind {
        let kind = self.end_in_part(core, at, serve);
        while self.end_more(core) {}
        kind
    }

    /// The same in one event.
    ///
    /// # Panics
    /// If there is no such operation.
    pub fn end_in_part<P: FaultInjection>(
        &mut self,
        core: &mut Core<P>,
        at: usize,
        serve: impl FnOnce(&mut Io) -> Result<(), IoError>,
    ) -> IoKind {
        let mut io = self.ios.remove(at);
        let result = serve(&mut io);
        let kind = io.kind;
        let done = IoDone { op: io.op, disk: io.disk, buf: io.buf, result, extents: Vec::new() };
        core.apply(Event::IoDone(done), 0, self);
        kind
    }

    /// Goes on with what the core has left of an operation; false if there is none.
    pub fn end_more<P: FaultInjection>(&mut self, core: &mut Core<P>) -> bool {
        let rest = self.unfinished.pop_front();
        rest.map(|rest| core.apply(Event::IoDone(rest), 0, self)).is_some()
    }

    /// Ends all operations with success, the oldest first, and those that the core starts meanwhile.
    pub fn end_all<P: FaultInjection>(&mut self, core: &mut Core<P>, mut serve: impl FnMut(&mut Io)) {
        while !self.ios.is_empty() {
            self.end(core, 0, |io| {
                serve(io);
                Ok(())
            });
        }
    }

    /// A tick, and what it leaves for spare time; no page of a guest is copied.
    pub fn tick<P: FaultInjection>(&mut self, core: &mut Core<P>, now_ns: u64) {
        core.apply(Event::Tick, now_ns, self);
        while core.wants_spare() {
            core.apply(Event::Spare { copies: false }, now_ns, self);
        }
    }
}

impl<C: Client> Effects for Front<C> {
    #[inline]
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]) {
        self.client.take(req, at, bytes);
    }

    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]) {
        self.client.give(req, at, bytes);
    }

    #[inline]
    fn guest_page(&mut self, req: ReqId, at: usize) -> Option<u32> {
        self.client.page(req, at)
    }

    fn copy_guest_page(&mut self, disk: DiskId, page: u32, to: &mut [u8; FRAME_BYTES]) -> bool {
        self.client.copy_page(disk, page, to)
    }

    fn submit(&mut self, io: Io) {
        self.client.submitted(&io);
        self.ios.push(io);
    }

    fn unfinished(&mut self, done: IoDone) {
        self.unfinished.push_back(done);
    }

    fn extents(&mut self, _req: ReqId, _extents: &[Extent]) {}

    fn paused(&mut self, _req: ReqId, paused: Paused) {
        self.paused.push(paused);
    }

    #[inline]
    fn reply(&mut self, req: ReqId, result: Result<(), IoError>) {
        self.answered += 1;
        if self.notes {
            self.answers.push((req.tag, result));
        } else {
            assert_eq!(result, Ok(()), "{req:?}");
        }
        self.client.answered(req);
    }
}

/// A request for `len` bytes from `offset` on.
pub fn request(tag: u32, disk: DiskId, op: Op, offset: u64, len: u64) -> Request {
    Request { id: ReqId { port: 0, tag }, disk, op, offset, len }
}

/// A request for `blocks` blocks from block `first` on; its tag is 0.
pub fn block_request(disk: DiskId, op: Op, first: u64, blocks: u64) -> Request {
    request(0, disk, op, first * B, blocks * B)
}

/// The core holds no more than its ceiling: what [`Core::check`] checks among much else, and cheap.
///
/// # Panics
/// If it holds more.
pub fn check_ceiling<P: FaultInjection>(core: &Core<P>) {
    let m = core.memory();
    assert!(m.frames_bytes + m.metadata_bytes <= m.ceiling_bytes, "{m:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_cache::{CoreOptions, DiskOptions, Geometry};
    use undercroft_engine::PolicyKind;

    const DISK: DiskId = DiskId(0);

    fn core() -> Core {
        let mut core = Core::new(CoreOptions::new(16 << 20)).unwrap();
        core.add_disk(DISK, DiskOptions::new(&Geometry::new(1 << 20), PolicyKind::Lru, 64)).unwrap();
        core
    }

    #[test]
    #[should_panic(expected = "Err(Io)")]
    fn a_failure_that_nobody_expects_fails_the_test() {
        let (mut core, mut front) = (core(), Front::new(NoData));
        front.ask(&mut core, block_request(DISK, Op::Read, 0, 1));
        front.end(&mut core, 0, |_| Err(IoError::Io));
    }

    #[test]
    #[should_panic(expected = "not what block 7 holds")]
    fn another_blocks_content_is_seen() {
        let (mut core, mut front) = (core(), Front::new(Numbered::default()));
        front.run(&mut core, block_request(DISK, Op::Read, 0, 7), number_blocks);
        front.run(&mut core, block_request(DISK, Op::Read, 7, 1), |io| fill_blocks(io, |_| 1));
    }

    #[test]
    #[should_panic(expected = "mixed content")]
    fn content_of_two_blocks_in_one_is_seen() {
        let (mut core, mut front) = (core(), Front::new(Values::default()));
        front.run(&mut core, block_request(DISK, Op::Read, 0, 1), number_blocks);
    }

    #[test]
    fn disks_read_as_what_was_written_last() {
        let (mut core, mut front) = (core(), Front::new(Values { write: Some(9), ..Values::default() }));
        let mut disks = ValueDisks::new(|disk, block| disk as u8 + block as u8);
        for (op, first, blocks) in [(Op::Write { fua: false }, 1, 2), (Op::Discard, 2, 1), (Op::Read, 0, 4)] {
            // What is cached must not hide what the disk holds.
            core.invalidate(DISK);
            front.run(&mut core, block_request(DISK, op, first, blocks), |io| disks.serve(io));
        }
        assert_eq!(
            front.client.seen,
            [0, 9, 0, 3].into_iter().enumerate().map(|(n, v)| (0, n * 4096, v)).collect::<Vec<_>>()
        );
    }
}
