//! What another process has to know of the queues to go on with them.
//!
//! Owns nothing. Never changes the port. Invariant: what is told does not say where a queue stands: that is known only
//! when it has come to rest.

use super::super::established::QueueState;
use super::VhostPort;
use crate::faults::PortFaults;
use std::io;
use std::os::fd::AsFd;

impl<F: PortFaults> VhostPort<F> {
    /// Every queue, with descriptors of its own.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors.
    pub(in super::super) fn describe(&self) -> io::Result<Vec<QueueState>> {
        let owned = |fd: Option<std::os::fd::BorrowedFd<'_>>| fd.map(|fd| fd.try_clone_to_owned()).transpose();
        let tell = |(q, index): (&super::Queue, u16)| {
            Ok(QueueState {
                index,
                size: q.size,
                base: q.reached(),
                addresses: q.addresses,
                started: q.started,
                enabled: q.enabled,
                kick: owned(q.kick.as_ref().map(AsFd::as_fd))?,
                call: owned(q.call.as_ref().map(AsFd::as_fd))?,
                error: owned(q.error.as_ref().map(AsFd::as_fd))?,
            })
        };
        self.queues.iter().zip(0u16..).map(tell).collect()
    }
}
