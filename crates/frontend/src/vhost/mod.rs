//! A vhost-user-blk device: a guest's disk without the hypervisor in the path of its requests.
//!
//! Owns one socket and one [`Port`](crate::Port) per disk, and one event loop for the sockets of all disks. Never
//! serves a request on a thread of its own: the rings belong to the worker that owns the disk. Invariant: nothing a
//! guest or a front end sends causes a panic, unbounded work or memory, or a disturbance of another queue's or disk's
//! requests.
//!
//! From the outside in: `server` (one disk's socket, for its owner), `event_loop` (the thread of all sockets), `device`
//! (listener and session of one disk, on that thread), `connection` (messages in pieces), `tasks` (what may take a
//! moment), `exchange` and `session` (what messages mean), `port` (queues and requests under way, on the worker),
//! `ring` and `chain` (what a guest posts), `request` (what it means), `memory` (where guest addresses lie),
//! `dirty_log` (what of it was written, while the guest migrates), `shared` (of which kind that memory is), `slots`
//! (requests under way), `inflight` (their record that survives the daemon), `config` (what is offered), `lending` and
//! `established` (a session that goes on in another process).

mod chain;
mod config;
mod connection;
mod device;
mod dirty_log;
mod established;
mod event_loop;
mod exchange;
mod inflight;
mod lending;
pub mod limits;
mod mappings;
mod memory;
mod port;
mod request;
mod ring;
mod server;
mod session;
mod shared;
mod slots;
mod tasks;

use super::socket::{SocketError, SocketPermissions};
use std::io;
use std::sync::Arc;
use undercroft_hostmem::pressure::GuestRoom;

pub use established::{Established, Malformed};
pub use event_loop::EventLoop;
pub use lending::{LentDevice, Starter};
pub use ring::Broken;
pub use server::VhostServer;
pub use shared::Trust;

/// What a device is made of, for those who set one up without a socket: tests, the simulation of ports, fuzz targets.
#[doc(hidden)]
pub mod parts {
    pub use super::chain::walk;
    pub use super::config::{EVENT_IDX, FLUSH, LOG_ALL, Profile};
    pub use super::connection::{ControlConnection, Gone, Message, MessageArrival};
    pub use super::dirty_log::DirtyLog;
    pub use super::exchange::Exchange;
    pub use super::inflight::InflightArea;
    pub use super::mappings::Mappings;
    pub use super::memory::{GuestMap, MemoryRegion, MemoryWindow};
    pub use super::port::{QueueRefusal, VhostPort};
    pub use super::ring::{RingAddresses, SplitRing};
    pub use super::session::Session;
}

/// How a device is set up.
#[derive(Clone, Debug)]
pub struct VhostOptions {
    /// Queues offered, 1 to [`limits::QUEUES_MAX`]. A front end may use fewer; QEMU refuses to start if it wants more.
    pub queues: u16,
    /// Entries of a queue at most: a power of two up to [`limits::QUEUE_SIZE_MAX`].
    pub queue_size: u16,
    /// Who may connect.
    pub access: SocketPermissions,
    /// Which files a front end may share as memory.
    pub trust: Trust,
    /// What copies to guests may take of our control group.
    pub room: Arc<GuestRoom>,
}

impl Default for VhostOptions {
    fn default() -> Self {
        VhostOptions {
            queues: limits::QUEUES_MAX,
            queue_size: limits::QUEUE_SIZE_MAX,
            access: SocketPermissions::default(),
            trust: Trust::default(),
            room: Arc::default(),
        }
    }
}

/// Why a device cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// A number of queues out of range.
    #[error("a vhost-user device can have 1 to {max} queues, not {0}", max = limits::QUEUES_MAX)]
    Queues(u16),
    /// A size of queues out of range.
    #[error("the queues of a vhost-user device have a power of two of entries up to {max}, not \
        {0}", max = limits::QUEUE_SIZE_MAX)]
    QueueSize(u16),
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel refuses a descriptor or a thread.
    #[error("the system has no room for another vhost-user device: {0}")]
    Os(io::Error),
}
