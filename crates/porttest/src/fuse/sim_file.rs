//! A kernel of the simulation: requests of programs on a disk that is a file, and a careful reader of replies.
//!
//! Owns one file's port and the kernel's end of it. Never looks at the disk. Invariant: each request is answered at
//! most once, in a form that the kernel takes, under its own name; and exactly once unless the file is unmounted, in
//! whatever process its port is: what one had received and not answered when it died is asked again.

use super::messages::{allocate, attribute, message, receive, reply, seek, transfer};
use crate::faults::Switched;
use crate::work::{Finished, Verb, Violation, Work};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use undercroft_frontend::fuse::FileHint;
use undercroft_frontend::fuse::device::Device;
use undercroft_frontend::fuse::port::{FileLimits, FileTimes, FusePort, NewFile, Owner};
use undercroft_frontend::fuse::rules::{FileRules, WILLNEED, errno};
use undercroft_frontend::fuse::wire::{ASKED_AGAIN, O_DSYNC, ROOT, SEEK_DATA, SEEK_HOLE, allocate as mode, opcode};
use undercroft_frontend::{DiskInfo, Port};
use undercroft_testkit::rng::{Rng, fill_pattern};

/// The kernel's end, and what a descriptor would tell of it.
#[derive(Debug, Default)]
struct SimKernel {
    /// Sent by programs, not at the device yet.
    sent: VecDeque<Vec<u8>>,
    /// At the device.
    queue: VecDeque<Vec<u8>>,
    /// Received, and not answered, by name.
    received: BTreeMap<u64, Vec<u8>>,
    replies: VecDeque<Vec<u8>>,
    /// Something has happened of which the worker is told: an edge.
    event: bool,
    unmounted: bool,
    /// What the port has done that a kernel would not take.
    wrong: Option<String>,
}

/// A device in memory, with events as those of `/dev/fuse`.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDevice(Arc<Mutex<SimKernel>>);

impl SimDevice {
    fn with<R>(&self, f: impl FnOnce(&mut SimKernel) -> R) -> R {
        f(&mut self.0.lock().expect("nobody panics with it"))
    }
}

impl Device for SimDevice {
    fn receive(&mut self, head: &mut [u8], data: &mut [u8]) -> Result<usize, Errno> {
        self.with(|k| {
            if k.unmounted {
                return Err(Errno::NODEV);
            }
            let first = k.queue.front().cloned();
            let len = receive(&mut k.queue, head, data)?;
            first.into_iter().for_each(|message| _ = k.received.insert(name_of(&message), message));
            Ok(len)
        })
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Errno> {
        self.with(|k| {
            if k.unmounted {
                return Err(Errno::NOENT);
            }
            let unique = reply(message).unique;
            if k.received.remove(&unique).is_none() {
                k.wrong.get_or_insert(format!("a reply under a name of no request: {unique:#x}"));
                return Err(Errno::NOENT);
            }
            k.replies.push_back(message.to_vec());
            Ok(())
        })
    }

    fn wake(&mut self) {
        self.with(|k| k.event = true);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn close(&mut self) {
        self.with(|k| {
            if !k.unmounted {
                k.wrong.get_or_insert("a file was closed for no reason".into());
            }
        });
    }
}

/// The kernel's name for the request of a message.
fn name_of(message: &[u8]) -> u64 {
    u64::from_ne_bytes(message[8..16].try_into().expect("eight bytes"))
}

/// See the head of the file.
pub(crate) struct SimFile {
    /// The file's port.
    pub port: FusePort<SimDevice, Switched>,
    device: SimDevice,
    works: BTreeMap<u64, Work>,
    uniques: u64,
    /// It was unmounted from outside.
    pub unmounted: bool,
    limits: FileLimits,
}

impl SimFile {
    /// A file on port `id`.
    pub(crate) fn new(id: u32, info: &DiskInfo, rng: &mut Rng) -> SimFile {
        let device = SimDevice::default();
        let (port, limits) = port_on(id, info, device.clone(), None, rng);
        let uniques = 2 * (rng.bits() >> 2);
        SimFile { port, device, works: BTreeMap::new(), uniques, unmounted: false, limits }
    }

    /// The process of the port has died. A fresh one goes on, and has the kernel ask again.
    pub(crate) fn revive(&mut self, id: u32, info: &DiskInfo, rng: &mut Rng) {
        (self.port, self.limits) = port_on(id, info, self.device.clone(), None, rng);
        self.device.with(|k| {
            for (unique, mut message) in std::mem::take(&mut k.received).into_iter().rev() {
                message[8..16].copy_from_slice(&(unique | ASKED_AGAIN).to_ne_bytes());
                k.queue.push_front(message);
            }
            k.event = true;
        });
    }

    /// The port, which is at rest, is another process's from now on.
    pub(crate) fn pass_on(&mut self, id: u32, info: &DiskInfo, rng: &mut Rng) {
        let times = self.port.times();
        (self.port, self.limits) = port_on(id, info, self.device.clone(), Some(times), rng);
        self.device.with(|k| k.event = true);
    }

    /// Requests that the port has received and not answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.device.with(|k| k.received.len())
    }

    /// What is under way.
    pub(crate) fn works(&mut self) -> impl Iterator<Item = &mut Work> {
        self.works.values_mut()
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> usize {
        self.works.len()
    }

    /// Requests that have been sent and are not at the device.
    pub(crate) fn on_the_way(&self) -> usize {
        self.device.with(|k| k.sent.len())
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, work: Work, size: u64, rng: &mut Rng) {
        self.uniques += 2;
        let (offset, len) = work.parts.first().map_or((0, 0), |p| (p.offset, p.len));
        let (code, node, body) = match work.verb {
            Verb::Read => (opcode::READ, ROOT, transfer(offset, len as u32, 0)),
            Verb::Write => {
                let mut body = transfer(offset, len as u32, if work.fua { O_DSYNC } else { 0 });
                let at = body.len();
                body.resize(at + len as usize, 0);
                fill_pattern(work.parts[0].change, offset, &mut body[at..]);
                (opcode::WRITE, ROOT, body)
            }
            Verb::Flush => (opcode::FSYNC, ROOT, vec![0; 16]),
            Verb::Zeroes | Verb::Discard => {
                let mode = if work.unmap { mode::PUNCH_HOLE | mode::KEEP_SIZE } else { mode::ZERO_RANGE };
                (opcode::FALLOCATE, ROOT, allocate(offset, len, mode))
            }
            Verb::Cache => (opcode::SETXATTR, ROOT, attribute(WILLNEED, format!("{offset} {len}").as_bytes())),
            Verb::Extents => (opcode::LSEEK, ROOT, seek(offset, if rng.one_in(2) { SEEK_DATA } else { SEEK_HOLE })),
            Verb::Serial | Verb::Wrong => match rng.below(6) {
                0 => (opcode::READ, 7, transfer(0, 512, 0)),
                1 => (opcode::READ, ROOT, transfer(0, 2 << 20, 0)),
                2 => (opcode::WRITE, ROOT, transfer(0, 512, 0)),
                3 => (opcode::LSEEK, ROOT, seek(size, SEEK_DATA)),
                4 => (opcode::SETXATTR, ROOT, attribute(b"user.other", b"1")),
                _ => (99, ROOT, Vec::new()),
            },
        };
        let bytes = message(code, self.uniques, node, &body);
        self.device.with(|k| k.sent.push_back(bytes));
        self.works.insert(self.uniques, work);
    }

    /// Some of what was sent comes to the device.
    pub(crate) fn arrive(&mut self, rng: &mut Rng) {
        self.device.with(|k| {
            let most = *rng.pick(&[1, 2, 100]);
            let n = rng.between(1, most).min(k.sent.len() as u64);
            let some = k.sent.drain(..n as usize);
            k.queue.extend(some);
            k.event |= n > 0;
        });
    }

    /// Programs see at most `most` replies. Returns what is over.
    ///
    /// # Errors
    /// What the port has done wrong.
    pub(crate) fn read(&mut self, most: usize) -> Result<Vec<Finished>, Violation> {
        if let Some(what) = self.device.with(|k| k.wrong.take()) {
            return Err(what.into());
        }
        let some: Vec<Vec<u8>> = self.device.with(|k| {
            let n = most.min(k.replies.len());
            k.replies.drain(..n).collect()
        });
        some.iter().map(|bytes| self.take_back(bytes)).collect()
    }

    fn take_back(&mut self, bytes: &[u8]) -> Result<Finished, Violation> {
        let reply = reply(bytes);
        let Some(work) = self.works.remove(&(reply.unique & !ASKED_AGAIN)) else {
            return Err(format!("a reply under a name of no request: {:#x}", reply.unique).into());
        };
        let len = work.parts.first().map_or(0, |p| p.len as usize);
        let fits = match work.verb {
            _ if reply.error != 0 => true,
            Verb::Read => reply.body.len() == len,
            Verb::Write => reply.body.len() == 8 && reply.body[..4] == (len as u32).to_ne_bytes(),
            Verb::Extents => reply.body.len() == 8,
            _ => reply.body.is_empty(),
        };
        if !fits {
            return Err(format!("{work:?} was answered with {} bytes", reply.body.len()).into());
        }
        // That there is no data behind a byte is an answer.
        let ok = reply.error == 0 || work.verb == Verb::Extents && reply.error == errno::ENXIO;
        let data = if work.verb == Verb::Read && ok { reply.body } else { Vec::new() };
        Ok(Finished { work, ok, data })
    }

    /// Somebody unmounts the file.
    pub(crate) fn unmount(&mut self) {
        self.unmounted = true;
        self.device.with(|k| (k.unmounted, k.event) = (true, true));
    }

    /// Whether something has happened that wakes the worker.
    pub(crate) fn wakes(&mut self) -> bool {
        self.device.with(|k| std::mem::take(&mut k.event))
    }

    /// Replies that programs could see.
    pub(crate) fn readable(&self) -> usize {
        self.device.with(|k| k.replies.len())
    }

    /// Whether the port holds as many requests as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.port.inflight() >= self.limits.requests_max
    }

    /// The file is gone: what was not answered.
    pub(crate) fn end(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.works).into_values().collect()
    }

    /// The port, for the worker.
    pub(crate) fn as_port(&mut self) -> &mut dyn Port {
        &mut self.port
    }
}

/// A port of the file behind `device`, with bounds of its own.
fn port_on(
    id: u32,
    info: &DiskInfo,
    device: SimDevice,
    times: Option<FileTimes>,
    rng: &mut Rng,
) -> (FusePort<SimDevice, Switched>, FileLimits) {
    let limits =
        FileLimits { requests_max: *rng.pick(&[1, 2, 8, 128]), bytes_max: *rng.pick(&[8 << 10, 64 << 10, 4 << 20]) };
    let port = FusePort::with_faults(NewFile {
        port: id,
        disk: info.disk,
        rules: FileRules::new(&info.geometry, limits.requests_max),
        owner: Owner { mode: 0o600, uid: 0, gid: 0 },
        limits,
        path: String::new(),
        device,
        account: None,
        times,
        hint: Arc::new(FileHint::new(vec!["normal"], Arc::default())),
    });
    (port, limits)
}
