//! A running NBD server: its thread, its connections, and their end.
//!
//! Owns the register of connections. Never touches a request.
//! Invariant: after `stop` its socket is gone, and no connection of this server is left on any worker but of disks
//! whose images did not answer.

use super::TlsMode;
use super::line::Line;
use super::port::{NbdPort, NewPort, OnClose};
use super::reception::{Listener, Reception};
use super::rules::ExportRules;
use super::stream::{SocketStream, Stream};
use super::{Exports, Listen, NbdError, NbdServerOptions, ServedExport, handshake::Agreed};
use crate::socket::{bind_tcp, bind_unix, tcp_place};
use crate::{AnyPort, PortHost};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use undercroft_host::{ClientSocket, EventFd};

/// One connection, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The export it uses.
    pub export: String,
    /// Who is at the other end.
    pub peer: String,
}

struct Entry {
    connection: Connection,
    host: Arc<dyn PortHost>,
    /// Its name on its worker.
    port: u32,
}

/// A connection past its last reply: what is left to send, then the end.
pub(super) struct Leaver {
    pub(super) socket: ClientSocket,
    pub(super) bytes: Vec<u8>,
}

/// What the server's thread, its owner and its ports share.
pub(super) struct Shared {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) options: NbdServerOptions,
    pub(super) stopping: AtomicBool,
    /// Nobody is accepted, and nobody served who was: another process may go on with the listener.
    pub(super) paused: AtomicBool,
    pub(super) wake_fd: EventFd,
    /// With which keys new connections encrypt.
    keys: Mutex<Option<Arc<rustls::ServerConfig>>>,
    connections: Mutex<(u64, HashMap<u64, Entry>)>,
    leavers: Mutex<Vec<Leaver>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Whether one more connection to an export may be served. Those that an export has beside its first leave a place
    /// free for each export that has none; of half of the places they need not, so that with many exports, most of them
    /// unused, one can still have several. Handshakes have no place: one that never ends keeps nobody out.
    pub(super) fn has_room(&self, export: &str) -> bool {
        // Before the lock is taken: whoever makes the list has locks of its own.
        let exports = self.exports.list();
        let connections = &lock(&self.connections).1;
        let of_export = connections.values().filter(|e| e.connection.export == export).count();
        let free = self.options.connections_max.saturating_sub(connections.len());
        if free == 0 || of_export >= self.options.connections_per_export_max {
            return false;
        }
        let used: HashSet<&str> = connections.values().map(|e| e.connection.export.as_str()).collect();
        let unused = exports.iter().filter(|e| !used.contains(e.name.as_str())).count();
        of_export == 0 || free > unused.min(self.options.connections_max / 2)
    }

    pub(super) fn keys(&self) -> Option<Arc<rustls::ServerConfig>> {
        lock(&self.keys).clone()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.connections).1.is_empty()
    }

    pub(super) fn leavers(&self) -> Vec<Leaver> {
        std::mem::take(&mut *lock(&self.leavers))
    }

    /// Moves a connection that is past its handshake to its worker. Replies in `out` go first.
    pub(super) fn serve(self: &Arc<Self>, line: Line, agreed: Agreed, peer: String) -> io::Result<()> {
        match line {
            Line::Plain(socket) => self.serve_on(SocketStream::new(socket)?, agreed, peer),
            Line::Tls(stream) => {
                let peer = format!("{peer}, {}", stream.version().unwrap_or("TLS"));
                self.serve_on(*stream, agreed, peer)
            }
        }
    }

    fn serve_on<S: Stream>(self: &Arc<Self>, stream: S, agreed: Agreed, peer: String) -> io::Result<()> {
        let Agreed { export, structured, block_status, rest } = agreed;
        let ServedExport { info, host, .. } = export;
        if self.paused.load(Ordering::Acquire) {
            return Ok(());
        }
        // There was when it was promised, but a client may leave the answer unread while others come.
        if !self.has_room(&info.name) {
            tracing::info!(%peer, disk = %info.name, "NBD client turned away: others came before it was served");
            return Ok(());
        }
        let account = self.options.budget.open(&info.name)?;
        let shared = self.clone();
        let key = {
            let mut connections = lock(&self.connections);
            connections.0 += 1;
            connections.0
        };
        let register = host.clone();
        let (whose, of) = (peer.clone(), info.name.clone());
        let port = host.attach(Box::new(move |port| {
            // Here, so that it comes before whatever else is said of it.
            tracing::info!(%peer, disk = %info.name, "NBD client connected");
            let connection = Connection { export: info.name.clone(), peer: peer.clone() };
            lock(&shared.connections).1.insert(key, Entry { connection, host: register, port });
            let rules = ExportRules::new(&info.geometry, structured, block_status);
            let limits = shared.options.port;
            let on_close: OnClose<S> = Box::new(move |stream, bytes| shared.on_close(key, stream, bytes));
            AnyPort::plain(NbdPort::new(NewPort {
                port,
                disk: info.disk,
                rules,
                limits,
                peer,
                stream,
                first: rest,
                on_close: Some(on_close),
                account: Some(account),
            }))
        }));
        if port == u32::MAX {
            tracing::info!(
                peer = %whose,
                disk = %of,
                "NBD client turned away: the disk that it was promised is gone, or its worker does not answer; it may \
                 connect again"
            );
        }
        Ok(())
    }

    /// A port is dropped: its socket comes back to the server's thread, to be closed without haste.
    fn on_close<S: Stream>(&self, key: u64, stream: S, bytes: Vec<u8>) {
        // In this order: a stopping server takes "no connections" to mean that all leavers are known.
        if let (Some(socket), bytes) = stream.take_leave(bytes) {
            lock(&self.leavers).push(Leaver { socket, bytes });
        }
        let entry = lock(&self.connections).1.remove(&key);
        if let Some(e) = entry {
            tracing::info!(peer = %e.connection.peer, disk = %e.connection.export, "NBD client disconnected");
        }
        self.wake_fd.signal();
    }
}

/// A running NBD server on one socket.
pub struct NbdServer {
    shared: Arc<Shared>,
    address: Listen,
    /// Where it was asked to listen, and the listener, for another process to go on with.
    place: String,
    listener: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl NbdServer {
    /// Starts to listen, and a thread that serves handshakes.
    ///
    /// # Errors
    /// If the socket cannot be made; see [`NbdError`].
    pub fn start(listen: Listen, exports: Arc<dyn Exports>, options: NbdServerOptions) -> Result<Self, NbdError> {
        let place = match &listen {
            Listen::Unix(path, _) => path.to_string_lossy().into_owned(),
            Listen::Tcp(address) => tcp_place(*address),
        };
        let (listener, address) = match listen {
            Listen::Unix(path, access) => {
                let bound = bind_unix(&path, access)?;
                (Listener::Unix(bound), Listen::Unix(path, access))
            }
            Listen::Tcp(address) => {
                let tcp = |source| NbdError::Tcp { address, source };
                let listener = bind_tcp(address).map_err(tcp)?;
                let address = listener.local_addr().map_err(tcp)?;
                if !address.ip().is_loopback() && options.tls != TlsMode::Require {
                    tracing::warn!(
                        "NBD on {address} is open to the network without encryption or passwords: use 127.0.0.1, a \
                         unix socket, or a listener with tls = \"require\" unless the network is trusted"
                    );
                }
                (Listener::Tcp(listener), Listen::Tcp(address))
            }
        };
        let wake_fd = EventFd::new()?;
        options.budget.add_wake_fd(wake_fd.try_clone()?);
        let shared = Arc::new(Shared {
            exports,
            keys: Mutex::new(options.keys.clone()),
            options,
            stopping: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            wake_fd,
            connections: Mutex::new((0, HashMap::new())),
            leavers: Mutex::new(Vec::new()),
        });
        let passable = listener.fd().try_clone_to_owned()?;
        let reception = Reception::new(listener, shared.clone())?;
        let thread = std::thread::Builder::new().name("nbd".to_owned()).spawn(move || reception.run())?;
        Ok(Self { shared, address, place, listener: Some(passable), thread: Some(thread) })
    }

    /// Accepts nobody from now on, and serves nobody who was accepted and is not served yet; or, does so again. Those
    /// who are served stay.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Release);
        self.shared.wake_fd.signal();
    }

    /// The listener, for another process to go on with, and where it was asked to listen.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub fn passable(&self) -> io::Result<Option<(String, OwnedFd)>> {
        let copy = self.listener.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(copy.map(|listener| (self.place.clone(), listener)))
    }

    /// Where it listens; for TCP with the port that the kernel chose.
    pub fn local_addr(&self) -> &Listen {
        &self.address
    }

    /// Connections that come from now on encrypt with other keys.
    pub fn set_keys(&self, keys: Arc<rustls::ServerConfig>) {
        *lock(&self.shared.keys) = Some(keys);
    }

    /// The connections in transmission now.
    pub fn connections(&self) -> Vec<Connection> {
        lock(&self.shared.connections).1.values().map(|e| e.connection.clone()).collect()
    }

    /// Takes no more clients, has requests under way answered, and closes all connections. Waits some seconds at most
    /// for requests under way and for clients to take their replies: an image that does not answer must not hold up
    /// what else is to be stopped. What is left then goes when it can.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.listener = None;
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake_fd.signal();
        if thread.join().is_err() {
            tracing::error!("the thread of an NBD server panicked");
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Has all connections ended; called by the server's thread once it takes no more clients. They are gone when
    /// `is_empty` says so: those of an image that does not answer go when it does.
    pub(super) fn detach_all(&self) {
        let ports: Vec<_> = lock(&self.connections).1.values().map(|e| (e.host.clone(), e.port)).collect();
        // All at once, and nobody waits for them: each may wait for a disk.
        for (host, port) in ports {
            let wait = move || host.detach(port);
            if let Err(e) = std::thread::Builder::new().name("nbd-detach".to_owned()).spawn(wait) {
                tracing::error!("cannot end an NBD connection in good order: {e}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::ExportInfo;
    use crate::{DiskInfo, MakePort, OnPort};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;
    use undercroft_cache::{DiskId, Geometry};
    use undercroft_host::Closing;

    /// Has ports and does nothing with them.
    #[derive(Default)]
    struct Ports(AtomicU32);

    thread_local! {
        static KEPT: std::cell::RefCell<Vec<AnyPort>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    impl PortHost for Ports {
        fn attach(&self, make: MakePort) -> u32 {
            let port = self.0.fetch_add(1, Ordering::Relaxed);
            KEPT.with(|kept| kept.borrow_mut().push(make(port)));
            port
        }

        fn with(&self, _: u32, _: OnPort) -> bool {
            false
        }

        fn detach(&self, _: u32) {}
    }

    /// Exports that are listed, and not to be had.
    struct Names(Vec<String>);

    impl Exports for Names {
        fn list(&self) -> Vec<ExportInfo> {
            self.0.iter().map(|name| ExportInfo { name: name.clone(), description: String::new() }).collect()
        }

        fn find(&self, _: &str) -> Option<ServedExport> {
            None
        }
    }

    fn shared(names: Vec<String>, connections_max: usize, connections_per_export_max: usize) -> Shared {
        let options = NbdServerOptions { connections_max, connections_per_export_max, ..NbdServerOptions::default() };
        Shared {
            exports: Arc::new(Names(names)),
            keys: Mutex::default(),
            options,
            stopping: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            wake_fd: EventFd::new().unwrap(),
            connections: Mutex::default(),
            leavers: Mutex::default(),
        }
    }

    /// One more connection to an export, if there is room.
    fn connects(shared: &Shared, export: &str) -> bool {
        let has_room = shared.has_room(export);
        if has_room {
            let mut connections = lock(&shared.connections);
            connections.0 += 1;
            let key = connections.0;
            let connection = Connection { export: export.to_owned(), peer: String::new() };
            connections.1.insert(key, Entry { connection, host: Arc::new(Ports::default()), port: 0 });
        }
        has_room
    }

    #[test]
    fn an_export_without_a_connection_finds_a_place_whatever_the_others_have() {
        let cases: [(usize, usize); 6] = [(1, 1), (2, 2), (3, 4), (3, 64), (5, 8), (33, 64)];
        for (exports, connections_max) in cases {
            for per_export in [1, connections_max.div_ceil(2), connections_max] {
                let names: Vec<String> = (0..exports).map(|n| n.to_string()).collect();
                let shared = shared(names.clone(), connections_max, per_export);
                for name in &names {
                    let case = format!("{name} of {exports} exports, {per_export} of {connections_max} connections");
                    assert!(connects(&shared, name), "{case}");
                    // As many as it can have.
                    while connects(&shared, name) {}
                }
            }
        }
    }

    #[test]
    fn a_place_that_is_given_back_is_the_first_one_of_an_export_again() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let shared = shared(names.into(), 4, 4);
        assert!(["a", "a", "b"].iter().all(|name| connects(&shared, name)));
        assert!(!connects(&shared, "a") && !connects(&shared, "b"), "the last place is for c");
        assert!(connects(&shared, "c"));
        assert!(!connects(&shared, "c"), "all are taken");
        lock(&shared.connections).1.retain(|_, e| e.connection.export != "b");
        assert!(!connects(&shared, "a") && !connects(&shared, "c"), "b has none any more");
        assert!(connects(&shared, "b"));
    }

    #[test]
    fn many_unused_exports_leave_one_half_of_the_places() {
        let count = |exports: usize, per_export: usize| {
            let shared = shared((0..exports).map(|n| n.to_string()).collect(), 64, per_export);
            (0..100).take_while(|_| connects(&shared, "0")).count()
        };
        assert_eq!((count(1, 64), count(2, 64), count(11, 64), count(1000, 64)), (64, 63, 54, 32));
        assert_eq!((count(1, 32), count(1000, 32)), (32, 32), "the default is to be had beside any number of exports");
    }

    /// Whether there is room is found out before a client is promised its export; it may leave the answer unread while
    /// others are promised the same, and all are served at the end.
    #[test]
    fn clients_that_were_all_promised_the_last_place_do_not_all_get_it() {
        let names = ["a", "b"].map(str::to_owned);
        let shared = Arc::new(shared(names.into(), 3, 2));
        let host: Arc<dyn PortHost> = Arc::new(Ports::default());
        let agreed = |name: &str| {
            let geometry = Geometry::new(1 << 20);
            let info = DiskInfo { name: name.into(), disk: DiskId(0), geometry, serial: String::new() };
            let export = ServedExport { info, description: String::new(), host: host.clone() };
            Agreed { export, structured: false, block_status: false, rest: Vec::new() }
        };
        let promised: Vec<Agreed> = ["a", "a", "a", "b", "b"].map(agreed).into();
        assert!(promised.iter().all(|a| shared.has_room(&a.export.info.name)), "all of them were promised");
        let mut clients = Vec::new();
        for agreed in promised {
            let (client, socket) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let line = Line::Plain(ClientSocket::new(socket.into(), &Closing::default()));
            shared.serve(line, agreed, "a client".into()).unwrap();
            clients.push(client);
        }
        let mut served: Vec<String> =
            lock(&shared.connections).1.values().map(|e| e.connection.export.clone()).collect();
        served.sort();
        assert_eq!(served, ["a", "a", "b"]);
        for (n, mut client) in clients.into_iter().enumerate() {
            if matches!(n, 2 | 4) {
                client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                assert_eq!(client.read(&mut [0]).unwrap(), 0, "client {n} is turned away");
            } else {
                client.set_nonblocking(true).unwrap();
                assert!(client.read(&mut [0]).is_err(), "client {n} stays");
            }
        }
        KEPT.with(|kept| kept.borrow_mut().clear());
    }
}
