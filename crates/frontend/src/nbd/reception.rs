//! The thread of an NBD server: accepting, handshakes, and the last bytes of connections that end.
//!
//! Owns sockets that are not on a worker. Never blocks on one client, nor on whoever stands behind what it sends.
//! Invariants: every client here has a deadline; what is kept for each is bounded.

use super::handshake::{Handshake, HandshakeStep, Menu};
use super::line::Line;
use super::server::{Leaver, Shared};
use super::tls::TlsStream;
use crate::socket::BoundSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use undercroft_host::{ClientSocket, Closing, refuse_descriptors};

/// Bytes received from a client in its handshake at a time.
const PIECE: usize = 16 * 1024;
/// Times that a client is received from before others are looked at.
const RECEIVES_PER_TURN: u32 = 16;
/// How long a connection at its end may take to fetch another part of its last replies, or to close.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// How long it may take for all of them.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(10);
/// A handshake this old makes room for a newcomer when there are too many.
const GRACE: Duration = Duration::from_secs(1);
/// While the server stops, it looks this often whether it is done.
const STOP_PAUSE: Duration = Duration::from_millis(100);
/// A TCP client that confirms nothing that was sent to it for so long is gone, in milliseconds.
const USER_TIMEOUT_MS: u32 = 120_000;
/// Pause after the kernel refused to accept a connection (no descriptors left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections closing at a time at most; more are closed at once.
const LEAVERS_MAX: usize = 256;
/// Bytes of send buffer asked for on unix sockets, so that one reply of 256 KiB and more leaves in one piece. The
/// kernel gives less if its limit (net.core.wmem_max) is lower.
const UNIX_SEND_BUFFER: usize = 1024 * 1024;

/// What is listened on.
pub(super) enum Listener {
    /// A unix socket; its file goes when this is dropped.
    Unix(BoundSocket),
    /// A TCP port.
    Tcp(TcpListener),
}

impl Listener {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(b) => b.listener.as_fd(),
            Listener::Tcp(l) => l.as_fd(),
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Unix(b) => {
                // Where the kernel cannot, the sockets take care.
                refuse_descriptors(&b.listener);
                b.listener.set_nonblocking(true)
            }
            Listener::Tcp(l) => l.set_nonblocking(true),
        }
    }

    /// Listens no more: its file goes now, and those who wait to be accepted in a moment.
    fn close(self, closing: &Closing) {
        match self {
            Listener::Unix(BoundSocket { listener, guard }) => {
                drop(guard);
                closing.close(listener);
            }
            Listener::Tcp(listener) => drop(listener),
        }
    }

    /// Accepts a client; its socket, nonblocking, and who it is. What will be closed of it is counted in `closing`.
    fn accept(&self, closing: &Closing) -> io::Result<(ClientSocket, String)> {
        match self {
            Listener::Unix(b) => {
                let (stream, _) = b.listener.accept()?;
                stream.set_nonblocking(true)?;
                let _ = sockopt::set_socket_send_buffer_size(&stream, UNIX_SEND_BUFFER);
                let peer = match sockopt::socket_peercred(&stream) {
                    Ok(c) => format!("process {} of user {}", c.pid.as_raw_nonzero(), c.uid.as_raw()),
                    Err(_) => "unknown".to_owned(),
                };
                Ok((ClientSocket::new(stream.into(), closing), peer))
            }
            Listener::Tcp(l) => {
                let (stream, address) = l.accept()?;
                stream.set_nonblocking(true)?;
                let _ = stream.set_nodelay(true);
                // A client's host that dies says nothing; this finds out after about two minutes.
                let _ = sockopt::set_socket_keepalive(&stream, true);
                let _ = sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60));
                let _ = sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(15));
                let _ = sockopt::set_tcp_keepcnt(&stream, 4);
                // With replies on their way there are no probes.
                let _ = sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS);
                Ok((ClientSocket::new(stream.into(), closing), address.to_string()))
            }
        }
    }
}

/// What comes after the bytes that wait to be sent to a client.
enum Then {
    Handshake(Handshake),
    /// TLS, in which the handshake goes on.
    StartTls(Handshake),
    /// The replies of a finished handshake, then the worker.
    Serve(Box<super::handshake::Agreed>),
    /// The end: sent, shut down, and waiting for the client to close, too.
    Close {
        shut: bool,
    },
}

struct Guest {
    /// `None` only while it changes to TLS.
    line: Option<Line>,
    peer: String,
    since: Instant,
    deadline: Instant,
    out: Vec<u8>,
    sent: usize,
    /// It may have more to say than has been looked at.
    more: bool,
    then: Then,
}

/// What became of a guest.
enum Fate {
    Stays,
    Gone,
    /// To its worker.
    Served(Box<super::handshake::Agreed>),
}

impl Guest {
    fn wants(&self) -> PollFlags {
        self.line.as_ref().map_or(PollFlags::IN, |l| l.wants(self.sent < self.out.len()))
    }

    fn is_handshaking(&self) -> bool {
        matches!(self.then, Then::Handshake(_) | Then::StartTls(_) | Then::Serve(_))
    }

    /// Does all that can be done without waiting.
    fn go_on(&mut self, shared: &Shared) -> Fate {
        let mut receives = 0;
        self.more = false;
        loop {
            if let Some(fate) = self.send_out() {
                return fate;
            }
            match &mut self.then {
                Then::Handshake(_) => {
                    // Options may wait that were held back while replies were: look at them before receiving.
                    if let Some(fate) = self.shake(&[], shared) {
                        return fate;
                    }
                    if !self.out.is_empty() || !self.is_handshaking() {
                        continue;
                    }
                    receives += 1;
                    if receives > RECEIVES_PER_TURN {
                        self.more = true;
                        return Fate::Stays;
                    }
                    let mut piece = [0; PIECE];
                    let Some(line) = &mut self.line else { return Fate::Gone };
                    let n = match line.receive(&mut piece) {
                        Ok(0) => return Fate::Gone,
                        Ok(n) => n,
                        Err(Errno::INTR) => continue,
                        Err(Errno::AGAIN) => return Fate::Stays,
                        Err(_) => return Fate::Gone,
                    };
                    if let Some(fate) = self.shake(&piece[..n], shared) {
                        return fate;
                    }
                }
                Then::StartTls(_) => {
                    if let Some(fate) = self.start_tls(shared) {
                        return fate;
                    }
                }
                Then::Serve(_) => {
                    let Then::Serve(agreed) = std::mem::replace(&mut self.then, Then::Close { shut: true }) else {
                        return Fate::Gone;
                    };
                    return Fate::Served(agreed);
                }
                Then::Close { shut } => {
                    let ended = std::mem::replace(shut, true);
                    return self.leave(ended);
                }
            }
        }
    }

    /// Sends what waits to be sent; `Some` unless all of it went.
    fn send_out(&mut self) -> Option<Fate> {
        let Some(line) = &mut self.line else { return Some(Fate::Gone) };
        while self.sent < self.out.len() {
            match line.send(&self.out[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    if let Then::Close { .. } = self.then {
                        self.deadline = (Instant::now() + LEAVE_TIME).min(self.since + LEAVE_TIME_MAX);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Some(Fate::Stays),
                Err(_) => return Some(Fate::Gone),
            }
        }
        self.out.clear();
        self.sent = 0;
        match line.flush() {
            Ok(()) => None,
            Err(Errno::INTR | Errno::AGAIN) => Some(Fate::Stays),
            Err(_) => Some(Fate::Gone),
        }
    }

    /// Puts TLS between us and the client, and goes on with the handshake in it; `Some` if that is not possible.
    fn start_tls(&mut self, shared: &Shared) -> Option<Fate> {
        let Then::StartTls(handshake) = std::mem::replace(&mut self.then, Then::Close { shut: true }) else {
            return Some(Fate::Gone);
        };
        let (Some(Line::Plain(socket)), Some(keys)) = (self.line.take(), shared.keys()) else {
            return Some(Fate::Gone);
        };
        match TlsStream::new(socket, keys) {
            Ok(stream) => self.line = Some(Line::Tls(Box::new(stream))),
            Err(e) => {
                tracing::error!("cannot begin TLS with an NBD client: {e}");
                return Some(Fate::Gone);
            }
        }
        self.then = Then::Handshake(handshake);
        None
    }

    /// Says that nothing more will be sent, unless that was `ended` before, and waits for the client to close, too.
    fn leave(&mut self, ended: bool) -> Fate {
        let Some(line) = &mut self.line else { return Fate::Gone };
        if !ended {
            line.end();
        }
        // Closing with bytes unread would make TCP throw away what the client has not read yet.
        let mut piece = [0; PIECE];
        match line.discard(&mut piece) {
            Ok(n) if n > 0 => Fate::Stays,
            Err(Errno::INTR | Errno::AGAIN) => Fate::Stays,
            _ => Fate::Gone,
        }
    }

    fn shake(&mut self, bytes: &[u8], shared: &Shared) -> Option<Fate> {
        let Then::Handshake(handshake) = &mut self.then else { return None };
        let menu = Menu {
            exports: &*shared.exports,
            default: shared.options.default_export.as_deref(),
            room: &|export| shared.has_room(export),
            tls: shared.options.tls,
        };
        match handshake.push(bytes, menu, &mut self.out) {
            HandshakeStep::More => {}
            HandshakeStep::Close(why) => {
                tracing::debug!(peer = %self.peer, "NBD handshake ended: {why}");
                if self.out.is_empty() {
                    return Some(Fate::Gone);
                }
                self.then = Then::Close { shut: false };
                self.since = Instant::now();
                self.deadline = self.since + LEAVE_TIME;
            }
            HandshakeStep::StartTls => {
                let Then::Handshake(handshake) = std::mem::replace(&mut self.then, Then::Close { shut: true }) else {
                    return Some(Fate::Gone);
                };
                self.then = Then::StartTls(handshake);
            }
            HandshakeStep::Agreed(agreed) => self.then = Then::Serve(Box::new(agreed)),
        }
        None
    }
}

/// The state of the server's thread.
pub(super) struct Reception {
    listener: Option<Listener>,
    shared: Arc<Shared>,
    guests: VecDeque<Guest>,
    accept_after: Instant,
    /// Sockets of clients that are being closed.
    closing: Closing,
    /// Refusals not logged since the last that was.
    quiet: bool,
}

impl Reception {
    pub(super) fn new(listener: Listener, shared: Arc<Shared>) -> io::Result<Self> {
        listener.set_nonblocking()?;
        Ok(Self {
            listener: Some(listener),
            shared,
            guests: VecDeque::new(),
            accept_after: Instant::now(),
            closing: Closing::default(),
            quiet: false,
        })
    }

    /// Serves until the server stops.
    pub(super) fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) {
            self.step();
        }
        // First the socket's file, so that a successor can come; then those who have not begun; then the connections.
        if let Some(listener) = self.listener.take() {
            listener.close(&self.closing);
        }
        self.guests.retain(|g| !g.is_handshaking());
        self.shared.detach_all();
        // A worker that has ended never lets go of a port, nor one whose disk does not answer: hence the limit.
        let limit = Instant::now() + LEAVE_TIME_MAX;
        loop {
            let gone = self.shared.is_empty();
            self.welcome_leavers();
            if self.guests.is_empty() && (gone || Instant::now() >= limit) {
                if !gone {
                    tracing::warn!("NBD requests are still under way after {LEAVE_TIME_MAX:?}; stopping without them");
                }
                return;
            }
            self.step();
        }
    }

    /// Waits for something to do, and does it.
    fn step(&mut self) {
        let now = Instant::now();
        let accepting = self.may_accept(now);
        self.wait(now, accepting);
        self.welcome_leavers();
        if accepting {
            self.accept();
        }
        let now = Instant::now();
        for _ in 0..self.guests.len() {
            let Some(mut guest) = self.guests.pop_front() else { break };
            match guest.go_on(&self.shared) {
                Fate::Gone => {}
                Fate::Stays if now >= guest.deadline => {
                    if guest.is_handshaking() {
                        tracing::debug!(peer = %guest.peer, "NBD handshake took too long; connection closed");
                    }
                }
                Fate::Stays => self.guests.push_back(guest),
                Fate::Served(agreed) => {
                    let Some(line) = guest.line else { continue };
                    if let Err(e) = self.shared.serve(line, *agreed, guest.peer) {
                        tracing::error!("cannot serve an NBD client: {e}");
                    }
                }
            }
        }
    }

    /// Whether there is room for one more handshake, or room can be made.
    fn may_accept(&mut self, now: Instant) -> bool {
        if self.listener.is_none() || now < self.accept_after || self.shared.paused.load(Ordering::Acquire) {
            return false;
        }
        if !self.closing.has_room() {
            self.accept_after = now + ACCEPT_PAUSE;
            return false;
        }
        let handshakes = self.guests.iter().filter(|g| g.is_handshaking()).count();
        handshakes < self.shared.options.handshakes_max
            || self.guests.iter().any(|g| g.is_handshaking() && now.duration_since(g.since) >= GRACE)
    }

    /// Sleeps until something is to do.
    fn wait(&mut self, now: Instant, accepting: bool) {
        let mut until = self.guests.iter().map(|g| g.deadline).min();
        if self.guests.iter().any(|g| g.more) {
            until = Some(now);
        }
        if let Some(pause) = self.shared.options.budget.look(now) {
            until = Some(until.map_or(now + pause, |u| u.min(now + pause)));
        }
        if self.listener.is_none() {
            let soon = now + STOP_PAUSE;
            until = Some(until.map_or(soon, |u| u.min(soon)));
        }
        if self.listener.is_some() && !accepting {
            let paused = self.shared.paused.load(Ordering::Acquire);
            let retry = match self.guests.iter().filter(|g| g.is_handshaking()).map(|g| g.since + GRACE).min() {
                Some(t) if now >= self.accept_after => t,
                _ if paused => now + STOP_PAUSE,
                _ => self.accept_after,
            };
            until = Some(until.map_or(retry, |u| u.min(retry)));
        }
        let timeout = until.map(|u| {
            // Rounded up: waking a little early would only make us wait again.
            let left = u.saturating_duration_since(now);
            let left = if left.is_zero() { left } else { left + Duration::from_millis(1) };
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let wake_fd = self.shared.wake_fd.as_fd();
        let mut fds = vec![PollFd::from_borrowed_fd(wake_fd, PollFlags::IN)];
        if let (true, Some(l)) = (accepting, &self.listener) {
            fds.push(PollFd::from_borrowed_fd(l.fd(), PollFlags::IN));
        }
        fds.extend(self.guests.iter().filter_map(|g| Some(PollFd::new(g.line.as_ref()?.socket(), g.wants()))));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                tracing::error!("poll failed in the NBD server: {e}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
        self.shared.wake_fd.drain();
    }

    fn welcome_leavers(&mut self) {
        for Leaver { socket, bytes } in self.shared.leavers() {
            if self.guests.len() >= LEAVERS_MAX + self.shared.options.handshakes_max {
                continue;
            }
            let now = Instant::now();
            self.guests.push_back(Guest {
                line: Some(Line::Plain(socket)),
                peer: String::new(),
                since: now,
                deadline: now + LEAVE_TIME,
                out: bytes,
                sent: 0,
                more: false,
                then: Then::Close { shut: false },
            });
        }
    }

    fn accept(&mut self) {
        loop {
            let now = Instant::now();
            if !self.may_accept(now) {
                return;
            }
            let Some(listener) = &self.listener else { return };
            match listener.accept(&self.closing) {
                Ok((socket, peer)) => {
                    self.quiet = false;
                    self.make_room();
                    let mut out = Vec::new();
                    let then = Then::Handshake(Handshake::new(&mut out));
                    let deadline = now + self.shared.options.handshake_timeout;
                    let line = Some(Line::Plain(socket));
                    self.guests.push_back(Guest { line, peer, since: now, deadline, out, sent: 0, more: false, then });
                }
                Err(e) => {
                    match e.kind() {
                        io::ErrorKind::WouldBlock => {}
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                        _ => {
                            if !std::mem::replace(&mut self.quiet, true) {
                                tracing::warn!("cannot accept an NBD client, and will try again: {e}");
                            }
                            self.accept_after = now + ACCEPT_PAUSE;
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Cuts off the oldest handshake if there are too many.
    fn make_room(&mut self) {
        let handshakes = self.guests.iter().filter(|g| g.is_handshaking()).count();
        if handshakes < self.shared.options.handshakes_max {
            return;
        }
        let oldest = self.guests.iter().enumerate().filter(|(_, g)| g.is_handshaking()).min_by_key(|(_, g)| g.since);
        if let Some((n, _)) = oldest {
            tracing::debug!("an NBD client that was slow in its handshake made room for another");
            self.guests.remove(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    /// Its host may have lost its power: nothing but silence comes from there, and its place is wanted.
    #[test]
    fn a_client_over_tcp_that_says_nothing_more_is_found_out() {
        let bound = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(bound.local_addr().unwrap()).unwrap();
        let (socket, _) = Listener::Tcp(bound).accept(&Closing::default()).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap(), "nothing is on the way to it: it is asked");
        let asked = sockopt::tcp_keepintvl(&socket).unwrap() * sockopt::tcp_keepcnt(&socket).unwrap();
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap() + asked, Duration::from_secs(120));
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 120_000, "replies are on the way to it");
    }
}
