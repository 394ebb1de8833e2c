//! A socket that is connected, read and written up to a deadline, however the other end behaves.
//!
//! Owns the waiting. Never waits past the deadline, also where the other end sends a little again and again. Invariant:
//! after the deadline every step fails with `TimedOut`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Pause before a unix socket is tried again whose queue of waiting clients is full: nothing tells when it is not.
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// What is left until `deadline`.
///
/// # Errors
/// `TimedOut` if that is nothing.
pub(super) fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connects to a unix socket; the result does not block. Fails with `WouldBlock` if its queue of clients that wait to
/// be accepted was full up to the deadline.
pub(super) fn connect_unix(path: &str, deadline: Instant) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let Ok(left) = left(deadline) else { return Err(Errno::AGAIN.into()) };
                std::thread::sleep(QUEUE_PAUSE.min(left));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Connects to one of several addresses of a server; the result does not block. None of them takes the time of those
/// behind it.
pub(super) fn connect_tcp(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for (n, address) in addresses.iter().enumerate() {
        let each = left(deadline)? / (addresses.len() - n) as u32;
        match TcpStream::connect_timeout(address, each.max(Duration::from_millis(1))) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                return Ok(socket);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Reads and writes a socket that does not block.
pub(super) struct Timed<'a> {
    socket: BorrowedFd<'a>,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    pub(super) fn new(socket: &'a impl AsFd, deadline: Instant) -> Self {
        Self { socket: socket.as_fd(), deadline }
    }

    /// Takes a step as soon as it can be taken.
    fn step<T>(&self, wait_for: PollFlags, mut step: impl FnMut() -> Result<T, Errno>) -> io::Result<T> {
        loop {
            let left = left(self.deadline)?;
            match step() {
                Err(Errno::AGAIN) => {
                    let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                    match poll(&mut [PollFd::from_borrowed_fd(self.socket, wait_for)], Some(&wait)) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.step(PollFlags::IN, || rustix::io::read(self.socket, &mut *to))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.step(PollFlags::OUT, || rustix::net::send(self.socket, from, SendFlags::NOSIGNAL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
