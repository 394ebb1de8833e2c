//! A file under arbitrary messages, without a mount: what the fuzz target and the tests run.
//!
//! Owns a disk of bytes and a device in memory. Never opens a descriptor. Invariant checked here: each message that
//! wants an answer gets exactly one, in a form that the kernel takes, of the length that it must have; memory stays
//! within its bound.

use super::messages::{Reply, allocate, attribute, init, is_answered, message, receive, reply, seek, transfer, wanted};
use crate::faults::Switched;
use crate::nbd::exercise::{ByteDisk, geometry};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use undercroft_cache::{DiskId, Geometry, IoError, Request};
use undercroft_frontend::Port;
use undercroft_frontend::fuse::FileHint;
use undercroft_frontend::fuse::device::Device;
use undercroft_frontend::fuse::port::{FileLimits, FusePort, NewFile, Owner};
use undercroft_frontend::fuse::rules::{FileRules, HINT, TRANSFER_BYTES_MAX, WILLNEED};
use undercroft_frontend::fuse::wire::{Fields, HEAD_BYTES, HEADER_BYTES, ROOT, opcode};
use undercroft_frontend::turns::SEND_BYTES;

/// The kernel's end of a [`ByteDevice`].
#[derive(Debug, Default)]
pub struct Kernel {
    /// Messages that the port has not received.
    pub queue: VecDeque<Vec<u8>>,
    /// What it has answered.
    pub replies: Vec<Vec<u8>>,
    /// One in so many replies finds nobody that waits for it; 0 for none.
    pub killed_one_in: u64,
    /// Names of requests whose replies found nobody.
    pub killed: Vec<u64>,
    /// Calls to receive.
    pub receives: usize,
    /// The port has given the device up.
    pub closed: bool,
    /// The port has asked to be looked at.
    pub woken: bool,
}

/// A device between a port and a test.
#[derive(Clone, Debug, Default)]
pub struct ByteDevice(pub Arc<Mutex<Kernel>>);

impl ByteDevice {
    /// Runs `f` on the kernel's end.
    pub fn with<R>(&self, f: impl FnOnce(&mut Kernel) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for ByteDevice {
    fn receive(&mut self, head: &mut [u8], data: &mut [u8]) -> Result<usize, Errno> {
        assert_eq!((head.len(), data.len()), (HEAD_BYTES, TRANSFER_BYTES_MAX), "what the kernel wants room for");
        self.with(|k| {
            k.receives += 1;
            receive(&mut k.queue, head, data)
        })
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Errno> {
        self.with(|k| {
            assert!(!k.closed, "a reply to a device that was given up");
            let Reply { unique, .. } = reply(message);
            if k.killed_one_in > 0 && unique % k.killed_one_in == 0 {
                k.killed.push(unique);
                return Err(Errno::NOENT);
            }
            k.replies.push(message.to_vec());
            Ok(())
        })
    }

    fn wake(&mut self) {
        self.with(|k| k.woken = true);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn close(&mut self) {
        self.with(|k| k.closed = true);
    }
}

/// The hints that its disk may have.
const HINTS: [&str; 2] = ["random", "willneed"];

/// A port, its disk, and the kernel's end.
pub struct FileRun {
    /// The port.
    pub port: FusePort<ByteDevice, Switched>,
    /// Its disk.
    pub disk: ByteDisk,
    /// The kernel's end.
    pub device: ByteDevice,
    /// What its file says of the disk's hint.
    pub hint: Arc<FileHint>,
    rules: FileRules,
    limits: FileLimits,
    waiting: Vec<(Request, Result<(), IoError>)>,
    random: u64,
}

impl FileRun {
    /// A port; `order` decides about the order of replies.
    pub fn new(geometry: &Geometry, limits: FileLimits, order: u64) -> FileRun {
        let device = ByteDevice::default();
        let rules = FileRules::new(geometry, limits.requests_max);
        let hint = Arc::new(FileHint::new(HINTS.to_vec(), Arc::default()));
        let port = FusePort::with_faults(NewFile {
            port: 7,
            disk: DiskId(3),
            rules,
            owner: Owner { mode: 0o640, uid: 1, gid: 2 },
            limits,
            path: String::new(),
            device: device.clone(),
            account: None,
            times: None,
            hint: hint.clone(),
        });
        let disk = ByteDisk::new(rules.size_bytes as usize);
        FileRun { port, disk, device, hint, rules, limits, waiting: Vec::new(), random: order | 1 }
    }

    fn dice(&mut self, sides: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % sides
    }

    /// Has all messages at the device served, replies given in any order.
    pub fn serve(&mut self) {
        let mut requests = Vec::new();
        let mut quiet = 0;
        while quiet < 3 {
            let budget = 1 + self.dice(8);
            let more = self.port.take(budget, &mut requests);
            assert!(requests.len() <= budget);
            for r in std::mem::take(&mut requests) {
                assert_eq!((r.id.port, r.disk), (7, DiskId(3)));
                assert!(r.offset.checked_add(r.len).is_some_and(|end| end <= self.rules.size_bytes));
                let result = self.disk.execute(&r, &mut self.port);
                self.waiting.push((r, result));
            }
            assert!(self.waiting.len() <= self.limits.requests_max);
            let held = self.port.held_bytes();
            assert!(held <= self.limits.bytes_max.max(64 + 2 * TRANSFER_BYTES_MAX), "{held} bytes are held");
            let all = quiet > 0 || self.waiting.len() == self.limits.requests_max;
            let n = if all { self.waiting.len() } else { self.dice(self.waiting.len() + 1) };
            for _ in 0..n {
                let k = self.dice(self.waiting.len());
                let (r, result) = self.waiting.swap_remove(k);
                self.port.reply(r.id.tag, result);
            }
            self.port.flush(SEND_BYTES);
            while self.port.take_unheard().is_some() {}
            let idle = !more && n == 0 && !self.port.has_more_to_send() && !self.port.arm();
            quiet = if idle { quiet + 1 } else { 0 };
        }
        assert!(self.port.is_closed() || self.device.with(|k| k.queue.is_empty()), "it sleeps with messages at hand");
        assert_eq!((self.port.inflight(), self.port.replies_waiting()), (0, 0));
    }

    /// Serves one message, and returns what it was answered.
    #[cfg(test)]
    pub(crate) fn ask(&mut self, opcode: u32, body: &[u8]) -> Reply {
        self.device.with(|k| k.queue.push_back(message(opcode, 2, ROOT, body)));
        self.serve();
        let replies = self.device.with(|k| std::mem::take(&mut k.replies));
        let [one] = &replies[..] else { panic!("{} replies to one message", replies.len()) };
        reply(one)
    }
}

/// Bytes of the disk under arbitrary messages.
const SIZE: u64 = (1 << 20) + 300_000;

/// Feeds messages to a port in all manner of ways, and checks all replies.
pub fn fuzz_messages(data: &[u8]) {
    let Some((&[mode, order, requests, bytes], mut rest)) = data.split_first_chunk() else { return };
    let mut geometry = geometry(SIZE + 300);
    geometry.align = if mode & 1 != 0 { 512 } else { 1 };
    geometry.read_only = mode & 2 != 0;
    let limits = FileLimits { requests_max: 1 + usize::from(requests & 15), bytes_max: usize::from(bytes) << 12 };
    let mut run = FileRun::new(&geometry, limits, order.into());
    run.disk.fails = (mode & 4 != 0).then_some(IoError::NoSpace);
    run.device.with(|k| k.killed_one_in = if mode & 8 != 0 { 6 } else { 0 });
    let mut sent = BTreeMap::new();
    let mut cut = false;
    while let Some((&[kind, a, b, c], tail)) = rest.split_first_chunk() {
        rest = tail;
        let unique = 2 * (sent.len() as u64 + 1);
        let message = if kind & 0x80 != 0 {
            let (raw, tail) = tail.split_at(tail.len().min(usize::from(a) + 1));
            rest = tail;
            raw_message(raw, unique, kind & 1 != 0)
        } else {
            sensible(kind, [a, b, c], unique)
        };
        cut |= message.len() < HEADER_BYTES;
        if is_answered(&message) {
            sent.insert(unique, message.clone());
        } else {
            // Its name is used up, too.
            sent.insert(unique, Vec::new());
        }
        run.device.with(|k| k.queue.push_back(message));
        if c & 3 == 0 {
            run.serve();
        }
    }
    run.serve();
    let (replies, killed) = run.device.with(|k| (std::mem::take(&mut k.replies), std::mem::take(&mut k.killed)));
    sent.retain(|_, message| !message.is_empty());
    for bytes in &replies {
        let reply = reply(bytes);
        let message = sent.remove(&reply.unique).expect("one reply to a message");
        check(&run, &message, &reply);
    }
    killed.iter().for_each(|unique| assert!(sent.remove(unique).is_some(), "one reply to a message"));
    assert!(cut || sent.is_empty(), "messages without replies: {:?}", sent.keys());
    assert_eq!(run.port.is_closed(), cut);
}

/// Arbitrary bytes, with a name, and mostly the right length.
fn raw_message(raw: &[u8], unique: u64, honest: bool) -> Vec<u8> {
    let mut m = raw.to_vec();
    if honest && m.len() < HEADER_BYTES {
        m.resize(HEADER_BYTES, 0);
    }
    if honest {
        let len = m.len() as u32;
        m[..4].copy_from_slice(&len.to_ne_bytes());
    }
    if m.len() >= HEADER_BYTES {
        m[8..16].copy_from_slice(&unique.to_ne_bytes());
        // Of the codes that there are, as a rule.
        m[5..8].fill(0);
    }
    m
}

/// A message that makes sense, most of the time.
fn sensible(kind: u8, [a, b, c]: [u8; 3], unique: u64) -> Vec<u8> {
    let offset = u64::from(a) * 5_200 + u64::from(b & 7);
    let len = match c >> 6 {
        0 => u32::from(c),
        1 => u32::from(c) * 300,
        2 => u32::from(c) * 4096,
        _ => u32::from(b) * 4096,
    };
    let (code, body) = match kind & 15 {
        0..4 => (opcode::READ, transfer(offset, len, 0)),
        4..7 => {
            // One without data now and then, or with more of it than the kernel would send.
            let mut body = transfer(offset, len.wrapping_sub(u32::from(kind >> 6 & 1)), u32::from(b) << 8);
            body.resize(body.len() + (len as usize).min(TRANSFER_BYTES_MAX), a);
            (opcode::WRITE, body)
        }
        7 => (opcode::FALLOCATE, allocate(offset, u64::from(len) << (b & 15), u32::from(kind >> 4 | b & 16))),
        8 => (opcode::LSEEK, seek(offset, 3 + u32::from(b & 1))),
        9 => (opcode::SETXATTR, attribute(WILLNEED, format!("{offset} {}", u64::from(len) << (b & 31)).as_bytes())),
        10 => (opcode::INIT, init(7, u32::from(a), u32::MAX)),
        11 => (opcode::SETATTR, [u32::from(a), 0].iter().flat_map(|n| n.to_ne_bytes()).chain([b; 80]).collect()),
        12 => (opcode::FSYNC, vec![0; 16]),
        13 => (opcode::OPEN, u32::from(b).to_ne_bytes().repeat(2)),
        14 if b & 1 == 0 => (opcode::SETXATTR, attribute(HINT, HINTS[usize::from(a) % HINTS.len()].as_bytes())),
        14 => (opcode::GETXATTR, wanted(HINT, u32::from(c))),
        _ => (u32::from(b), vec![c; usize::from(a)]),
    };
    message(code, unique, if b == 255 { 2 } else { ROOT }, &body)
}

/// What a reply must be, whatever was asked.
fn check(run: &FileRun, message: &[u8], reply: &Reply) {
    let code = u32::from_ne_bytes(message[4..8].try_into().expect("four bytes"));
    if reply.error != 0 {
        return;
    }
    let mut f = Fields(&message[HEADER_BYTES..]);
    let (offset, len) = match (f.u64(), f.u64(), f.u32()) {
        (_, Some(offset), Some(len)) => (offset, u64::from(len)),
        _ => (0, 0),
    };
    let there = len.min(run.rules.size_bytes.saturating_sub(offset));
    match code {
        opcode::READ => assert_eq!(reply.body.len() as u64, there, "{len} bytes at {offset}"),
        opcode::WRITE => assert_eq!(reply.body, [(there as u32).to_ne_bytes(), [0; 4]].concat()),
        opcode::LSEEK => {
            let at = u64::from_ne_bytes(reply.body[..].try_into().expect("a place"));
            assert!((offset..=run.rules.size_bytes).contains(&at), "from {offset} on, and found at {at}");
        }
        opcode::INIT => assert_eq!(reply.body.len(), 64),
        opcode::GETATTR | opcode::SETATTR => assert_eq!(reply.body.len(), 104),
        opcode::OPEN => assert_eq!(reply.body.len(), 16),
        opcode::STATFS => assert_eq!(reply.body.len(), 80),
        opcode::LISTXATTR => {
            assert!(reply.body == b"user.undercroft.hint\0" || reply.body == [21, 0, 0, 0, 0, 0, 0, 0])
        }
        opcode::GETXATTR => {
            let now = run.hint.now();
            assert!(reply.body == now.as_bytes() || reply.body == [now.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
        }
        _ => assert!(reply.body.is_empty()),
    }
}

#[cfg(test)]
mod tests;
