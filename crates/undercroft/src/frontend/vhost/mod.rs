//! A vhost-user-blk device: a guest's disk without the hypervisor in the path of its requests.
//!
//! Owns one socket, one session thread and one [`Port`](crate::frontend::Port) per disk. Never serves a request on a
//! thread of its own: the rings belong to the worker that owns the disk. Invariant: nothing a guest or a front end
//! sends causes a panic, unbounded work or memory, or a disturbance of another queue's or disk's requests.
//!
//! From the outside in: `server` (socket, sessions), `session` (messages), `port` (queues and requests under way, on
//! the worker), `ring` and `chain` (what a guest posts), `request` (what it means), `memory` (where guest addresses
//! lie), `slots` (requests under way), `inflight` (their record that survives the daemon), `config` (what is offered).

mod chain;
mod config;
mod inflight;
pub mod limits;
mod memory;
mod port;
mod request;
#[cfg(test)]
mod rig;
mod ring;
mod server;
mod session;
mod slots;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use ring::Broken;
pub use server::VhostServer;

/// How a device is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostOptions {
    /// Queues offered, 1 to [`limits::QUEUES_MAX`]. A front end may use fewer; QEMU refuses to start if it wants more.
    pub queues: u16,
    /// Permissions of the socket file.
    pub socket_mode: u32,
}

impl Default for VhostOptions {
    fn default() -> Self {
        VhostOptions { queues: limits::QUEUES_MAX, socket_mode: 0o600 }
    }
}

/// Why a device cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// A number of queues out of range.
    #[error("a vhost-user device can have 1 to {max} queues, not {0}", max = limits::QUEUES_MAX)]
    Queues(u16),
    /// The socket cannot be made.
    #[error("cannot serve on socket {}: {source}", path.display())]
    Socket {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}
