//! Connecting to an NBD server, again and again, on a thread of its own.
//!
//! Owns everything that may block: names, connections, handshakes. Never sees an operation. Invariants: an attempt ends
//! within the time that it is given, whatever the server does; at most one attempt is under way, and none unless it was
//! asked for.

use super::handshake::{Export, HandshakeError, handshake};
use super::location::{Location, Server};
use super::{names, timed};
use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use undercroft_host::{EventFd, set_thread_name};

/// How long an attempt may take in all: name, connection and handshake. Others wait meanwhile when a disk is opened.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
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
    /// Its queue of clients that wait to be accepted is full all the time.
    #[error(
        "the server has accepted no connection for {} s, and as many wait already as it lets wait; it hangs or has too \
         many clients: look at it, and start it again if it hangs", .0.as_secs_f32()
    )]
    QueueFull(Duration),
    /// The handshake has no end.
    #[error(
        "the server has not finished the handshake {} s after it was called; it hangs, or is no NBD server: look at \
         it, and start it again if it hangs", .0.as_secs_f32()
    )]
    Late(Duration),
    /// The name means nothing.
    #[error("the name of the server cannot be resolved ({0})")]
    Resolve(names::Unresolved),
    /// The name may mean something.
    #[error(
        "the name of the server was not resolved within {} s; give its address in place of the name, or see to the \
         resolver", .0.as_secs_f32()
    )]
    ResolverSilent(Duration),
    /// The name has no address.
    #[error("the name of the server has no address")]
    NoAddress,
    /// The socket takes a setting not.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The server answers, and there is no export.
    #[error(transparent)]
    Handshake(HandshakeError),
}

/// Connects once, within `limit`, whatever the server does.
///
/// # Errors
/// See [`ConnectError`].
pub(super) fn connect(location: &Location, limit: Duration) -> Result<Connection, ConnectError> {
    let deadline = Instant::now() + limit;
    let socket: OwnedFd = match &location.server {
        Server::Unix(path) => timed::connect_unix(path, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => ConnectError::QueueFull(limit),
            _ => ConnectError::Unreachable(e),
        })?,
        Server::Tcp { host, port } => {
            let answer = names::resolve(host, *port, deadline).ok_or(ConnectError::ResolverSilent(limit))?;
            let addresses = answer.map_err(ConnectError::Resolve)?;
            if addresses.is_empty() {
                return Err(ConnectError::NoAddress);
            }
            let socket = timed::connect_tcp(&addresses, deadline).map_err(ConnectError::Unreachable)?;
            set_up(&socket)?;
            socket.into()
        }
    };
    let export = handshake(&mut timed::Timed::new(&socket, deadline), &location.export).map_err(|e| match e {
        HandshakeError::Lost(e) if e.kind() == io::ErrorKind::TimedOut => ConnectError::Late(limit),
        e => ConnectError::Handshake(e),
    })?;
    Ok(Connection { socket, export })
}

/// A peer that is gone without a word is noticed within half a minute, also while something is sent.
fn set_up(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let seconds = Duration::from_secs;
    let s = socket.as_fd();
    sockopt::set_socket_keepalive(s, true)
        .and_then(|()| sockopt::set_tcp_keepidle(s, seconds(10)))
        .and_then(|()| sockopt::set_tcp_keepintvl(s, seconds(5)))
        .and_then(|()| sockopt::set_tcp_keepcnt(s, 4))
        .and_then(|()| sockopt::set_tcp_user_timeout(s, 30_000))
        .map_err(io::Error::from)
}

fn unreachable(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::NotFound => "there is no such socket; is the server running?".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens there; is the server running?".to_owned(),
        io::ErrorKind::PermissionDenied => "this process may not use the socket; change its permissions".to_owned(),
        io::ErrorKind::TimedOut => {
            "the server does not answer; is it running, and does a firewall let this machine reach it?".to_owned()
        }
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
    /// Starts the thread; it gives each attempt `limit`, and signals `wake` at every report.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn new(location: Location, limit: Duration, wake: EventFd) -> io::Result<Self> {
        let (orders, order) = mpsc::channel();
        let (report, reports) = mpsc::channel();
        std::thread::Builder::new().name("nbd-connect".into()).spawn(move || {
            set_thread_name("nbd-connect");
            serve(&location, limit, &wake, &order, &report);
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

fn serve(location: &Location, limit: Duration, wake: &EventFd, order: &Receiver<Duration>, report: &Sender<Report>) {
    while let Ok(first) = order.recv() {
        let mut pause = PAUSE_MIN;
        if !first.is_zero() && order.recv_timeout(first) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        loop {
            let result = connect(location, limit);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    /// What the tests give an attempt, and after what time they take it for one without an end.
    const LIMIT: Duration = Duration::from_millis(300);
    const PATIENCE: Duration = Duration::from_secs(10);

    fn unix(path: &Path) -> Location {
        Location { server: Server::Unix(path.to_str().unwrap().to_owned()), export: "disk".to_owned() }
    }

    /// Why opening fails, and why a connection that is lost is not had again.
    fn both_ways(location: &Location) -> [String; 2] {
        let (told, tells) = mpsc::channel();
        let its = location.clone();
        std::thread::spawn(move || told.send(connect(&its, LIMIT).err().map(|e| e.to_string())));
        let opened = tells.recv_timeout(PATIENCE).expect("opening has an end").expect("nobody serves there");
        let connector = Connector::new(location.clone(), LIMIT, EventFd::new().unwrap()).unwrap();
        connector.reconnect(Duration::ZERO);
        match connector.reports.recv_timeout(PATIENCE).expect("an attempt to connect again has an end") {
            Report::Failed(e) => [opened, e.to_string()],
            Report::Up(c) => panic!("{c:?}"),
        }
    }

    /// A listener that accepts nobody, and clients that fill its queue.
    fn full_queue(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
        let socket = |flags| rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let address = SocketAddrUnix::new(path).unwrap();
        let listener = socket(SocketFlags::CLOEXEC);
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut clients = Vec::new();
        loop {
            let client = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            if rustix::net::connect(&client, &address).is_err() {
                return (listener, clients);
            }
            clients.push(client);
        }
    }

    #[test]
    fn a_server_that_accepts_nobody_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _full = full_queue(&path);
        for why in both_ways(&unix(&path)) {
            assert!(why.contains("accepted no connection for 0.3 s") && why.contains("start it again"), "{why}");
        }
    }

    #[test]
    fn a_place_in_the_queue_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, mut clients) = full_queue(&path);
        std::thread::scope(|s| {
            let late = s.spawn(|| timed::connect_unix(path.to_str().unwrap(), Instant::now() + PATIENCE));
            std::thread::sleep(Duration::from_millis(20));
            clients.clear();
            let listener = UnixListener::from(listener);
            let _accepted = listener.accept().unwrap();
            assert!(late.join().unwrap().is_ok());
        });
    }

    /// Begins a handshake well and goes on with what an option may have, one byte after the other, without an end.
    fn drip(mut stream: impl Read + Write) {
        let answer = |option: u32, kind: u32, data: &[u8]| {
            let mut b = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
            b.extend_from_slice(&option.to_be_bytes());
            b.extend_from_slice(&kind.to_be_bytes());
            b.extend_from_slice(&(data.len() as u32).to_be_bytes());
            b.extend_from_slice(data);
            b
        };
        let mut begin = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
        begin.extend(answer(8, 1, &[]));
        let one = answer(10, 4, b"\0\0\0\x01base:other");
        if stream.write_all(&begin).is_err() {
            return;
        }
        for byte in one.iter().cycle() {
            std::thread::sleep(Duration::from_millis(1));
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
        }
    }

    #[test]
    fn a_handshake_byte_by_byte_without_an_end_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (by_unix, by_tcp) = (UnixListener::bind(&path).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let tcp = Server::Tcp { host: "127.0.0.1".to_owned(), port: by_tcp.local_addr().unwrap().port() };
        std::thread::spawn(move || {
            by_unix.incoming().flatten().for_each(|s: UnixStream| drop(std::thread::spawn(|| drip(s))));
        });
        std::thread::spawn(move || {
            by_tcp.incoming().flatten().for_each(|s: TcpStream| drop(std::thread::spawn(|| drip(s))));
        });
        for location in [unix(&path), Location { server: tcp, export: "disk".to_owned() }] {
            for why in both_ways(&location) {
                assert!(why.contains("not finished the handshake 0.3 s after"), "{location}: {why}");
            }
        }
    }

    #[test]
    fn a_server_that_reads_nothing_and_says_nothing_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _accepts_by_its_queue = UnixListener::bind(&path).unwrap();
        for why in both_ways(&unix(&path)) {
            assert!(why.contains("not finished the handshake"), "{why}");
        }
    }
}
