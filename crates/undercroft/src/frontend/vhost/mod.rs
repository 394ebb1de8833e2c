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
#[doc(hidden)]
pub mod exercise;
mod inflight;
pub mod limits;
#[cfg(test)]
mod live;
mod memory;
#[doc(hidden)]
pub mod messages;
#[cfg(test)]
mod outcomes;
mod port;
mod request;
mod rig;
mod ring;
mod server;
mod session;
#[cfg(test)]
pub(super) mod sim_guest;
mod slots;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

use super::socket::{SocketAccess, SocketError};
use std::io;

pub use ring::Broken;
pub use server::VhostServer;

/// How a device is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostOptions {
    /// Queues offered, 1 to [`limits::QUEUES_MAX`]. A front end may use fewer; QEMU refuses to start if it wants more.
    pub queues: u16,
    /// Entries of a queue at most: a power of two up to [`limits::QUEUE_SIZE_MAX`].
    pub queue_size: u16,
    /// Who may connect.
    pub access: SocketAccess,
}

impl Default for VhostOptions {
    fn default() -> Self {
        VhostOptions { queues: limits::QUEUES_MAX, queue_size: limits::QUEUE_SIZE_MAX, access: SocketAccess::default() }
    }
}

/// Why a device cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// A number of queues out of range.
    #[error("a vhost-user device can have 1 to {max} queues, not {0}", max = limits::QUEUES_MAX)]
    Queues(u16),
    /// A size of queues out of range.
    #[error("the queues of a vhost-user device have a power of two of entries up to {max}, not {0}", max = limits::QUEUE_SIZE_MAX)]
    QueueSize(u16),
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel refuses a descriptor or a thread.
    #[error("the system has no room for another vhost-user device: {0}")]
    Os(io::Error),
}
