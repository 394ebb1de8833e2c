//! The kernel's end of a device of ublk, as drivers/block/ublk_drv.c of Linux 6.12 behaves.
//!
//! Owns the tags and the requests that wait. Never moves data by itself. Invariants: what the driver refuses is refused
//! with the same number; a request is finished once, or is asked again of the next server.

use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use undercroft_frontend::ublk::device::BlockQueue;
use undercroft_host::ublk::{Request, operation};

/// What is in a reader's memory before it is answered.
pub const POISON: u8 = 0xee;
/// That a command will have no request any more.
const ABORT: i32 = -19;
/// An answer to what was not asked.
const INVALID: i32 = -22;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Which of all.
    pub name: u64,
    /// As the server sees it.
    pub request: Request,
    /// The data of a write, or room for those of a read.
    pub data: Vec<u8>,
}

impl Asked {
    /// A request for so many sectors, with data of `byte` if it writes.
    pub fn new(name: u64, request: Request, byte: u8) -> Asked {
        let bytes = match request.operation {
            operation::READ | operation::WRITE => request.sectors as usize * 512,
            _ => 0,
        };
        let fill = if request.operation == operation::WRITE { byte } else { POISON };
        Asked { name, request, data: vec![fill; bytes] }
    }
}

/// How a tag stands.
#[derive(Clone, Debug)]
enum Tag {
    /// The driver has a command for it.
    Fetched,
    /// The server has a request.
    Served(Asked),
    /// The driver takes no command for it.
    Gone,
}

/// See the head of the file.
#[derive(Debug)]
pub struct UblkKernel {
    tags: Vec<Tag>,
    queue: VecDeque<Asked>,
    /// Completions that the server has not taken.
    done: VecDeque<(u16, i32)>,
    /// Answers that were not handed over.
    answers: Vec<(u16, i32)>,
    /// Requests that are finished, with their tags and results.
    pub finished: Vec<(Asked, u16, i32)>,
    /// Answers that the driver refused.
    pub refused: usize,
    /// Data cannot be copied.
    pub data_fails: bool,
    /// Handing over fails with this.
    pub submit_fails: Option<Errno>,
    stopping: bool,
    /// The server has given the device up.
    pub closed: bool,
    /// Descriptors of the server's have fired: a command is done, or the server has asked to be looked at.
    pub woken: bool,
}

impl UblkKernel {
    /// A device of so many tags, all of which are asked with.
    pub fn new(depth: u16) -> UblkKernel {
        UblkKernel {
            tags: vec![Tag::Fetched; depth.into()],
            queue: VecDeque::new(),
            done: VecDeque::new(),
            answers: Vec::new(),
            finished: Vec::new(),
            refused: 0,
            data_fails: false,
            submit_fails: None,
            stopping: false,
            closed: false,
            woken: false,
        }
    }

    /// Asks, as soon as there is a tag for it.
    pub fn ask(&mut self, asked: Asked) {
        self.queue.push_back(asked);
        self.dispatch();
    }

    /// Requests that are not finished.
    pub fn unfinished(&self) -> usize {
        self.queue.len() + self.tags.iter().filter(|t| matches!(t, Tag::Served(_))).count()
    }

    /// The name of the request that the server has with a tag.
    pub fn name_of(&self, tag: u16) -> Option<u64> {
        match self.tags.get(usize::from(tag)) {
            Some(Tag::Served(asked)) => Some(asked.name),
            _ => None,
        }
    }

    fn dispatch(&mut self) {
        while !self.closed && !self.queue.is_empty() {
            let Some(n) = self.tags.iter().position(|t| matches!(t, Tag::Fetched)) else { return };
            if let Some(asked) = self.queue.pop_front() {
                self.tags[n] = Tag::Served(asked);
                self.done.push_back((n as u16, 0));
                self.woken = true;
            }
        }
        let is_idle = self.queue.is_empty() && self.tags.iter().all(|t| !matches!(t, Tag::Served(_)));
        if self.stopping && is_idle {
            for (n, tag) in self.tags.iter_mut().enumerate().filter(|(_, t)| matches!(t, Tag::Fetched)) {
                *tag = Tag::Gone;
                self.done.push_back((n as u16, ABORT));
                self.woken = true;
            }
        }
    }

    /// STOP_DEV: what is under way is finished first, then every command is done.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.dispatch();
    }

    /// A completion that the driver would never make.
    pub fn lie(&mut self, tag: u16, result: i32) {
        self.done.push_back((tag, result));
    }

    /// The server is gone and another one has taken over: what was not answered is asked again.
    pub fn recover(&mut self) {
        assert!(self.closed, "a server that is there is not taken over from");
        let mut again = Vec::new();
        for tag in &mut self.tags {
            if let Tag::Served(asked) = std::mem::replace(tag, Tag::Fetched) {
                again.push(asked);
            }
        }
        again.into_iter().rev().for_each(|asked| self.queue.push_front(asked));
        self.done.clear();
        self.answers.clear();
        self.closed = false;
        self.dispatch();
    }

    /// The data of the request with a tag, if they are copied in this direction, from byte `at` on.
    fn data(&mut self, tag: u16, kind: u8, at: usize, len: usize) -> Result<&mut [u8], Errno> {
        if self.data_fails {
            return Err(Errno::NOMEM);
        }
        match self.tags.get_mut(usize::from(tag)) {
            Some(Tag::Served(asked)) if asked.request.operation != kind => Err(Errno::ACCESS),
            // The driver copies what there is, and the queue tells that it was less.
            Some(Tag::Served(asked)) => asked.data.get_mut(at..at + len).ok_or(Errno::IO),
            _ => Err(Errno::INVAL),
        }
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if let Some(e) = self.submit_fails {
            return Err(e);
        }
        for (n, result) in std::mem::take(&mut self.answers) {
            let tag = &mut self.tags[usize::from(n)];
            match std::mem::replace(tag, Tag::Fetched) {
                Tag::Served(asked) => self.finished.push((asked, n, result)),
                was => {
                    *tag = was;
                    self.refused += 1;
                    self.done.push_back((n, INVALID));
                    self.woken = true;
                }
            }
        }
        self.dispatch();
        Ok(())
    }
}

/// A device between a port and a test.
#[derive(Clone, Debug)]
pub struct TestDevice(pub Arc<Mutex<UblkKernel>>);

impl TestDevice {
    /// A device of so many tags.
    pub fn new(depth: u16) -> TestDevice {
        TestDevice(Arc::new(Mutex::new(UblkKernel::new(depth))))
    }

    /// Runs `f` on the kernel's end.
    pub fn with<R>(&self, f: impl FnOnce(&mut UblkKernel) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl BlockQueue for TestDevice {
    fn depth(&self) -> u16 {
        self.with(|k| k.tags.len() as u16)
    }

    fn take_done(&mut self) -> Option<(u16, i32)> {
        self.with(|k| k.done.pop_front())
    }

    fn has_done(&mut self) -> bool {
        self.with(|k| !k.done.is_empty())
    }

    fn request(&self, tag: u16) -> Request {
        self.with(|k| match &k.tags[usize::from(tag)] {
            Tag::Served(asked) => asked.request,
            _ => panic!("a descriptor was read of which the kernel has said nothing"),
        })
    }

    fn take_data(&mut self, tag: u16, at: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.with(|k| k.data(tag, operation::WRITE, at, to.len()).map(|data| to.copy_from_slice(data)))
    }

    fn give_data(&mut self, tag: u16, at: usize, from: &[u8]) -> Result<(), Errno> {
        self.with(|k| k.data(tag, operation::READ, at, from.len()).map(|data| data.copy_from_slice(from)))
    }

    fn answer(&mut self, tag: u16, result: i32) {
        self.with(|k| {
            assert!(!k.closed, "an answer to a device that was given up");
            k.answers.push((tag, result));
        });
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.with(UblkKernel::submit)
    }

    fn unsubmitted(&self) -> usize {
        self.with(|k| k.answers.len())
    }

    fn wake(&mut self) {
        self.with(|k| k.woken = true);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn close(&mut self) {
        self.with(|k| {
            k.closed = true;
            k.answers.clear();
        });
    }
}
