//! A pipelined NBD client on non-blocking sockets.
//!
//! Owns its connections and the buffers of the tags. Never blocks in a write: a server that wants its replies read
//! before it takes more requests gets that, so the two cannot wait for each other.
//! Invariant: a tag belongs to one connection for good, `tag % connections`; the cookie of a request is its tag.

pub mod handshake;
pub mod uri;
pub mod wire;

use crate::target::{Counters, Done, Fault, Geometry, Kind, Operation, PATIENCE, Target};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use uri::{Place, Uri};

/// Bytes read from a socket at once when no large payload is awaited.
const INPUT_BYTES: usize = 128 << 10;
/// Bytes of a large payload read from a socket at once: a kernel without preemption would let nobody else run on this
/// processor until all is copied, 16 MiB if the server keeps up.
const RECEIVE_MAX: usize = 16 << 10;
/// Longest chunk without data that is taken (an error's text).
const CHUNK_BYTES_MAX: u32 = 16 << 10;

/// A connected socket of either kind.
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    fn connect(place: &Place) -> Result<Socket> {
        match place {
            Place::Unix(path) => {
                let s = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
                s.set_read_timeout(Some(PATIENCE))?;
                Ok(Socket::Unix(s))
            }
            Place::Tcp(address) => {
                let s = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
                s.set_nodelay(true)?;
                s.set_read_timeout(Some(PATIENCE))?;
                Ok(Socket::Tcp(s))
            }
        }
    }

    fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Socket::Unix(s) => s.set_nonblocking(true),
            Socket::Tcp(s) => s.set_nonblocking(true),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(s) => s.as_fd(),
            Socket::Tcp(s) => s.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Unix(s) => s.read(buf),
            Socket::Tcp(s) => s.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Unix(s) => s.write(buf),
            Socket::Tcp(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What the next bytes from the server are.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// A simple reply or the head of a chunk.
    Head,
    /// The offset before the data of a chunk of `left` bytes in all.
    DataOffset { tag: usize, left: u32, last: bool },
    /// Data for the tag's buffer.
    Data { tag: usize, at: usize, left: usize, last: bool },
    /// The rest of a chunk: a hole or an error, of `left` bytes.
    Small { tag: usize, kind: u16, left: u32, last: bool },
}

/// One connection.
struct Connection {
    socket: Socket,
    structured: bool,
    out: Vec<u8>,
    sent: usize,
    input: Box<[u8]>,
    filled: usize,
    taken: usize,
    expect: Expect,
}

/// What is under way for a tag.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    busy: bool,
    is_read: bool,
    offset: u64,
    length: u32,
    error: Option<u32>,
}

/// An NBD export, over one connection or several.
pub struct NbdTarget {
    connections: Vec<Connection>,
    buffers: Vec<Vec<u8>>,
    pending: Vec<Pending>,
    geometry: Geometry,
    counters: Counters,
    fua: bool,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections to open.
    pub connections: usize,
    /// Operations under way at most, over all connections.
    pub depth: usize,
    /// Bytes of each buffer.
    pub buffer_bytes: usize,
    /// Ask for structured replies.
    pub structured: bool,
    /// Write with FUA.
    pub fua: bool,
}

impl NbdTarget {
    /// Connects and negotiates.
    pub fn connect(uri: &Uri, o: &Options) -> Result<NbdTarget> {
        let mut connections = Vec::new();
        let mut geometry = Geometry::default();
        for _ in 0..o.connections.max(1) {
            let mut socket = Socket::connect(&uri.place)?;
            let agreed = handshake::negotiate(&mut socket, &uri.export, o.structured)?;
            geometry = agreed.geometry;
            socket.set_nonblocking()?;
            connections.push(Connection {
                socket,
                structured: agreed.structured,
                out: Vec::with_capacity(INPUT_BYTES),
                sent: 0,
                input: vec![0; INPUT_BYTES].into_boxed_slice(),
                filled: 0,
                taken: 0,
                expect: Expect::Head,
            });
        }
        Ok(NbdTarget {
            connections,
            buffers: vec![vec![0; o.buffer_bytes]; o.depth],
            pending: vec![Pending::default(); o.depth],
            geometry,
            counters: Counters::default(),
            fua: o.fua,
        })
    }
}

fn header(out: &mut Vec<u8>, flags: u16, command: u16, cookie: u64, offset: u64, length: u32) {
    out.extend(wire::REQUEST_MAGIC.to_be_bytes());
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(length.to_be_bytes());
}

fn gone(what: &str) -> Fault {
    Fault::Gone(what.to_owned())
}

fn broke(what: String) -> Fault {
    Fault::Protocol(what)
}

impl Connection {
    /// Writes what it can; true if all is out.
    fn push(&mut self, kicks: &mut u64) -> Result<bool, Fault> {
        while self.sent < self.out.len() {
            *kicks += 1;
            match self.socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(gone("the NBD connection takes no more")),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(gone(&e.to_string())),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Takes `N` bytes of input, if they are there.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.input[self.taken..self.filled].first_chunk::<N>().copied()?;
        self.taken += N;
        Some(bytes)
    }

    /// Reads once from the socket: into the tag's buffer if a large payload is awaited, else into the input buffer.
    /// False if nothing is there now.
    fn pull(&mut self, buffers: &mut [Vec<u8>]) -> Result<bool, Fault> {
        let empty = self.taken == self.filled;
        if empty {
            (self.taken, self.filled) = (0, 0);
        } else if self.taken > 0 {
            self.input.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        let read = match self.expect {
            Expect::Data { tag, at, left, last } if empty && left >= 16 << 10 => {
                let most = left.min(RECEIVE_MAX);
                let r = self.socket.read(&mut buffers[tag][at..at + most]);
                if let Ok(n) = r {
                    self.expect = Expect::Data { tag, at: at + n, left: left - n, last };
                }
                r
            }
            _ => {
                let r = self.socket.read(&mut self.input[self.filled..]);
                if let Ok(n) = r {
                    self.filled += n;
                }
                r
            }
        };
        match read {
            Ok(0) => Err(gone("the NBD connection was closed")),
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(true),
            Err(e) => Err(gone(&e.to_string())),
        }
    }

    /// Understands the input as far as it goes.
    fn parse(&mut self, buffers: &mut [Vec<u8>], pending: &mut [Pending], done: &mut Vec<Done>) -> Result<(), Fault> {
        loop {
            match self.expect {
                Expect::Head => {
                    let have = &self.input[self.taken..self.filled];
                    let Some(magic) = have.first_chunk::<4>().map(|m| u32::from_be_bytes(*m)) else { return Ok(()) };
                    if magic == wire::SIMPLE_REPLY_MAGIC {
                        let Some(h) = self.take::<16>() else { return Ok(()) };
                        let error = u32::from_be_bytes(h[4..8].try_into().expect("four bytes"));
                        let tag = tag_of(&h[8..16], pending)?;
                        if self.structured && pending[tag].is_read && error == 0 {
                            return Err(broke("a simple reply to a read, though replies are structured".to_owned()));
                        }
                        if error != 0 {
                            pending[tag].error = Some(error);
                        }
                        if error == 0 && pending[tag].is_read {
                            let left = pending[tag].length as usize;
                            self.expect = Expect::Data { tag, at: 0, left, last: true };
                        } else {
                            finish(tag, pending, done);
                        }
                    } else if magic == wire::STRUCTURED_REPLY_MAGIC && self.structured {
                        let Some(h) = self.take::<20>() else { return Ok(()) };
                        let last = u16::from_be_bytes([h[4], h[5]]) & wire::CHUNK_DONE != 0;
                        let kind = u16::from_be_bytes([h[6], h[7]]);
                        let tag = tag_of(&h[8..16], pending)?;
                        let left = u32::from_be_bytes(h[16..20].try_into().expect("four bytes"));
                        self.expect = match kind {
                            wire::chunk::OFFSET_DATA => Expect::DataOffset { tag, left, last },
                            _ if left > CHUNK_BYTES_MAX => return Err(broke(format!("a chunk of {left} bytes"))),
                            _ => Expect::Small { tag, kind, left, last },
                        };
                    } else {
                        return Err(broke(format!("a reply starts with {magic:#x}")));
                    }
                }
                Expect::DataOffset { tag, left, last } => {
                    let Some(offset) = self.take::<8>().map(u64::from_be_bytes) else { return Ok(()) };
                    let left = left.checked_sub(8).ok_or_else(|| broke("a chunk without its offset".to_owned()))?;
                    let at = place(&pending[tag], offset, left)?;
                    self.expect = Expect::Data { tag, at, left: left as usize, last };
                }
                Expect::Data { tag, at, left, last } => {
                    let n = left.min(self.filled - self.taken);
                    buffers[tag][at..at + n].copy_from_slice(&self.input[self.taken..self.taken + n]);
                    self.taken += n;
                    if n < left {
                        self.expect = Expect::Data { tag, at: at + n, left: left - n, last };
                        return Ok(());
                    }
                    self.expect = Expect::Head;
                    if last {
                        finish(tag, pending, done);
                    }
                }
                Expect::Small { tag, kind, left, last } => {
                    let have = &self.input[self.taken..self.filled];
                    let Some(body) = have.get(..left as usize) else { return Ok(()) };
                    small_chunk(kind, body, tag, pending, buffers)?;
                    self.taken += left as usize;
                    self.expect = Expect::Head;
                    if last {
                        finish(tag, pending, done);
                    }
                }
            }
        }
    }
}

/// Takes a chunk that holds no data: a hole, an error, or nothing.
fn small_chunk(
    kind: u16,
    body: &[u8],
    tag: usize,
    pending: &mut [Pending],
    buffers: &mut [Vec<u8>],
) -> Result<(), Fault> {
    match (kind, body) {
        (wire::chunk::NONE, []) => {}
        (wire::chunk::OFFSET_HOLE, b) if b.len() == 12 => {
            let offset = u64::from_be_bytes(b[..8].try_into().expect("eight bytes"));
            let length = u32::from_be_bytes(b[8..].try_into().expect("four bytes"));
            let at = place(&pending[tag], offset, length)?;
            buffers[tag][at..at + length as usize].fill(0);
        }
        (wire::chunk::ERROR | wire::chunk::ERROR_OFFSET, [a, b, c, d, ..]) => {
            pending[tag].error = Some(u32::from_be_bytes([*a, *b, *c, *d]));
        }
        _ => return Err(broke(format!("a chunk of kind {kind:#x} with {} bytes", body.len()))),
    }
    Ok(())
}

fn tag_of(cookie: &[u8], pending: &[Pending]) -> Result<usize, Fault> {
    let cookie = u64::from_be_bytes(cookie.try_into().expect("eight bytes"));
    let tag = usize::try_from(cookie).ok().filter(|t| pending.get(*t).is_some_and(|p| p.busy));
    tag.ok_or_else(|| broke(format!("a reply to {cookie:#x}, which was not asked")))
}

/// Where in the buffer a chunk belongs.
fn place(p: &Pending, offset: u64, length: u32) -> Result<usize, Fault> {
    let at = offset.checked_sub(p.offset).filter(|at| p.is_read && at + u64::from(length) <= u64::from(p.length));
    let at = at.ok_or_else(|| broke(format!("data at {offset}+{length} in a reply to {}+{}", p.offset, p.length)))?;
    Ok(at as usize)
}

fn finish(tag: usize, pending: &mut [Pending], done: &mut Vec<Done>) {
    let p = std::mem::take(&mut pending[tag]);
    done.push(Done { tag, result: p.error.map_or(Ok(()), Err) });
}

impl Target for NbdTarget {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn fill(&mut self, tag: usize, bytes: &[u8]) {
        self.buffers[tag][..bytes.len()].copy_from_slice(bytes);
    }

    fn fetch(&self, tag: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.buffers[tag][..into.len()]);
    }

    fn submit(&mut self, o: &Operation) -> Result<(), Fault> {
        let count = self.connections.len();
        let out = &mut self.connections[o.tag % count].out;
        let fua = if self.fua { wire::COMMAND_FUA } else { 0 };
        let (command, flags) = match o.kind {
            Kind::Read => (wire::command::READ, 0),
            Kind::Write => (wire::command::WRITE, fua),
            Kind::Flush => (wire::command::FLUSH, 0),
            Kind::Discard => (wire::command::TRIM, fua),
            Kind::WriteZeroes => (wire::command::WRITE_ZEROES, fua),
        };
        header(out, flags, command, o.tag as u64, o.offset, o.length);
        if o.kind == Kind::Write {
            out.extend(&self.buffers[o.tag][..o.length as usize]);
        }
        self.pending[o.tag] =
            Pending { busy: true, is_read: o.kind == Kind::Read, offset: o.offset, length: o.length, error: None };
        Ok(())
    }

    fn send(&mut self) -> Result<(), Fault> {
        for c in &mut self.connections {
            c.push(&mut self.counters.kicks)?;
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>) -> Result<(), Fault> {
        let before = done.len();
        loop {
            for c in &mut self.connections {
                // One read takes all small replies there are; more are looked for only if the input was filled.
                while c.pull(&mut self.buffers)? {
                    c.parse(&mut self.buffers, &mut self.pending, done)?;
                    if c.filled < c.input.len() && matches!(c.expect, Expect::Head) {
                        break;
                    }
                }
            }
            if done.len() > before {
                return Ok(());
            }
            let mut fds = Vec::with_capacity(self.connections.len());
            for c in &mut self.connections {
                let all_out = c.push(&mut self.counters.kicks)?;
                let want = if all_out { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
                fds.push(PollFd::from_borrowed_fd(c.socket.fd(), want));
            }
            let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(Fault::Silent),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(std::io::Error::from(e).into()),
            }
            self.counters.wakes += 1;
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn close(mut self: Box<Self>) -> Result<(), Fault> {
        for c in &mut self.connections {
            header(&mut c.out, 0, wire::command::DISCONNECT, 0, 0, 0);
            c.push(&mut self.counters.kicks)?;
        }
        Ok(())
    }
}
