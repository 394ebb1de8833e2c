//! The NBD front end: disks as exports of an NBD server, over unix sockets and TCP.
//!
//! Owns the listeners and connections. Never knows about caching or images; what is served and what is refused, and
//! why, stands in docs/decisions/0040-nbd.md.
//! Invariants: handshakes run on a thread of the server, everything after on the worker that owns the disk; the number
//! of connections, and what each may hold, are bounded; nothing a client sends causes a panic.

pub mod handshake;
mod inbox;
mod line;
mod outbox;
pub mod port;
mod reception;
pub mod rules;
mod server;
pub mod stream;
pub mod tls;
pub mod wire;

pub use port::{NbdPort, PortLimits};
pub use server::{Connection, NbdServer};
use undercroft_config::plan::lists;
pub use undercroft_config::tls::{self as certificates, TlsFiles, TlsMode};

use super::budget::{BUDGET_BYTES_DEFAULT, Budget, PATIENCE_DEFAULT};
use super::socket::{SocketError, SocketPermissions};
use super::{DiskInfo, PortHost};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What clients see in the list of exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The export's name: that of the disk.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}

/// A disk to be served.
#[derive(Clone)]
pub struct ServedExport {
    /// The disk.
    pub info: DiskInfo,
    /// For people; may be empty.
    pub description: String,
    /// The way to its worker.
    pub host: Arc<dyn PortHost>,
}

impl fmt::Debug for ServedExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedExport").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The disks that a server offers; asked afresh by each client, so that they may come and go.
pub trait Exports: Send + Sync {
    /// All of them, in the order shown to clients.
    fn list(&self) -> Vec<ExportInfo>;

    /// One by its name.
    fn find(&self, name: &str) -> Option<ServedExport>;
}

/// Some exports of others: those of one tenant. The rest is as if it did not exist.
pub struct Listed {
    /// All of them.
    pub all: Arc<dyn Exports>,
    /// Names: of an export, or of a VM, whose disks are `VM:DISK`.
    pub names: Vec<String>,
}

impl Exports for Listed {
    fn list(&self) -> Vec<ExportInfo> {
        self.all.list().into_iter().filter(|e| lists(&self.names, &e.name)).collect()
    }

    fn find(&self, name: &str) -> Option<ServedExport> {
        if lists(&self.names, name) { self.all.find(name) } else { None }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket, and who may connect.
    Unix(PathBuf, SocketPermissions),
    /// A TCP port; 0 lets the kernel choose one.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path, _) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Bounds of a server, and its keys.
#[derive(Clone, Debug)]
pub struct NbdServerOptions {
    /// Connections in transmission at most. As many as there are exports without a connection, but no more than half,
    /// are kept for the first ones of those.
    pub connections_max: usize,
    /// Of all of them, to one export at most.
    pub connections_per_export_max: usize,
    /// Handshakes under way at most; when there are more, newcomers wait, and the oldest makes room after a second.
    pub handshakes_max: usize,
    /// A client that is not done with its handshake by then is cut off.
    pub handshake_timeout: Duration,
    /// Bounds of each connection.
    pub port: PortLimits,
    /// Memory for the data of requests, perhaps together with other servers.
    pub budget: Arc<Budget>,
    /// Whether clients may, or must, encrypt.
    pub tls: TlsMode,
    /// With which keys; needed unless `tls` is off.
    pub keys: Option<Arc<rustls::ServerConfig>>,
    /// The export that the empty name stands for; if `None`, the only one, if there is only one.
    pub default_export: Option<String>,
}

impl Default for NbdServerOptions {
    /// 64 connections, half of them to one export, 64 handshakes of 10 seconds at most, no TLS.
    fn default() -> Self {
        Self {
            connections_max: 64,
            connections_per_export_max: 32,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(10),
            port: PortLimits::default(),
            budget: Budget::new(BUDGET_BYTES_DEFAULT, PATIENCE_DEFAULT),
            tls: TlsMode::Off,
            keys: None,
            default_export: None,
        }
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The unix socket could not be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The TCP port could not be opened.
    #[error("cannot listen on {address}: {source}{}", hint(.source))]
    Tcp {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its certificates are of no use.
    #[error(transparent)]
    Tls(#[from] certificates::TlsError),
    /// The kernel refused a thread or a descriptor.
    #[error("cannot start the NBD server: {0}")]
    Os(#[from] io::Error),
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AddrInUse => ": stop the other server, or choose another port",
        io::ErrorKind::AddrNotAvailable => ": give an address of this host",
        io::ErrorKind::PermissionDenied => ": choose a port from 1024 on",
        _ => "",
    }
}
