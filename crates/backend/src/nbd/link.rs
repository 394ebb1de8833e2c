//! Connecting to an NBD server, again and again, on a thread of its own.
//!
//! Owns everything that may block: names, connections, handshakes. Never sees an operation. Invariant: at most one
//! attempt is under way, and none unless it was asked for.

use super::handshake::{Export, HandshakeError, handshake};
use super::location::{Location, Server};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use undercroft_host::{EventFd, set_thread_name};

/// How long a server may take for one step of connecting or of the handshake.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the first failed attempt; doubled after each further one.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Pause between attempts at most.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A connection on which requests can be sent.
#[derive(Debug)]
pub(super) struct Connection {
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// What the server said about the export.
    pub export: Export,
}

/// Why a connection cannot be had: a part of a sentence.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// Nobody answers there.
    #[error("{}", unreachable(.0))]
    Unreachable(io::Error),
    /// The name means nothing.
    #[error("the name of the server cannot be resolved ({0})")]
    Resolve(io::Error),
    /// The name has no address.
    #[error("the name of the server has no address")]
    NoAddress,
    /// The socket takes a setting not.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The server answers, and there is no export.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// Connects once. May take tens of seconds if the server is slow.
///
/// # Errors
/// See [`ConnectError`].
pub(super) fn connect(location: &Location) -> Result<Connection, ConnectError> {
    match &location.server {
        Server::Unix(path) => {
            let mut s = UnixStream::connect(path).map_err(ConnectError::Unreachable)?;
            s.set_read_timeout(Some(STEP_TIMEOUT))?;
            s.set_write_timeout(Some(STEP_TIMEOUT))?;
            let export = shake(&mut s, location)?;
            s.set_nonblocking(true)?;
            Ok(Connection { socket: s.into(), export })
        }
        Server::Tcp { host, port } => {
            let addresses = (host.as_str(), *port).to_socket_addrs().map_err(ConnectError::Resolve)?;
            let mut last = ConnectError::NoAddress;
            for address in addresses {
                match TcpStream::connect_timeout(&address, STEP_TIMEOUT) {
                    Ok(s) => return tcp(s, location),
                    Err(e) => last = ConnectError::Unreachable(e),
                }
            }
            Err(last)
        }
    }
}

fn tcp(mut s: TcpStream, location: &Location) -> Result<Connection, ConnectError> {
    s.set_nodelay(true)?;
    s.set_read_timeout(Some(STEP_TIMEOUT))?;
    s.set_write_timeout(Some(STEP_TIMEOUT))?;
    // A peer that is gone without a word is noticed within half a minute, also while something is sent.
    let seconds = Duration::from_secs;
    let alive = sockopt::set_socket_keepalive(&s, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&s, seconds(10)))
        .and_then(|()| sockopt::set_tcp_keepintvl(&s, seconds(5)))
        .and_then(|()| sockopt::set_tcp_keepcnt(&s, 4))
        .and_then(|()| sockopt::set_tcp_user_timeout(&s, 30_000));
    alive.map_err(io::Error::from)?;
    let export = shake(&mut s, location)?;
    s.set_nonblocking(true)?;
    Ok(Connection { socket: s.into(), export })
}

fn shake<S: Read + Write>(s: &mut S, location: &Location) -> Result<Export, HandshakeError> {
    handshake(s, &location.export)
}

fn unreachable(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::NotFound => "there is no such socket; is the server running?".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens there; is the server running?".to_owned(),
        io::ErrorKind::PermissionDenied => "this process may not use the socket; change its permissions".to_owned(),
        io::ErrorKind::TimedOut => "the server does not answer".to_owned(),
        _ => format!("the server cannot be reached: {e}"),
    }
}

/// What the thread reports.
#[derive(Debug)]
pub(super) enum Report {
    /// Connected.
    Up(Connection),
    /// An attempt failed; the next one follows by itself.
    Failed(ConnectError),
}

/// The thread that connects.
#[derive(Debug)]
pub(super) struct Connector {
    orders: Sender<Duration>,
    reports: Receiver<Report>,
}

impl Connector {
    /// Starts the thread; it signals `wake` at every report.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn new(location: Location, wake: EventFd) -> io::Result<Self> {
        let (orders, order) = mpsc::channel();
        let (report, reports) = mpsc::channel();
        std::thread::Builder::new().name("nbd-connect".into()).spawn(move || {
            set_thread_name("nbd-connect");
            serve(&location, &wake, &order, &report);
        })?;
        Ok(Self { orders, reports })
    }

    /// Asks for a new connection after a pause: attempts follow until one succeeds.
    pub(super) fn reconnect(&self, pause: Duration) {
        // The thread ends only after this is dropped.
        let _ = self.orders.send(pause);
    }

    /// The next report, if there is one.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }
}

fn serve(location: &Location, wake: &EventFd, order: &Receiver<Duration>, report: &Sender<Report>) {
    while let Ok(first) = order.recv() {
        let mut pause = PAUSE_MIN;
        if !first.is_zero() && order.recv_timeout(first) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        loop {
            let result = connect(location);
            let up = result.is_ok();
            if report.send(result.map_or_else(Report::Failed, Report::Up)).is_err() {
                return; // the disk is closed
            }
            wake.signal();
            if up {
                break;
            }
            match order.recv_timeout(pause) {
                Ok(_) | Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(PAUSE_MAX),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
