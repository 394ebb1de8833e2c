//! A file comes to rest, so that another process can go on with it.
//!
//! Owns no state of its own. Never closes anything. Invariant: at rest nothing that was received is unanswered, in
//! whatever way it went on before: what is not received waits in the kernel, for this process or the next.

use super::super::device::Device;
use super::super::wire::Stamp;
use super::{FusePort, State};
use crate::faults::{PortBug, PortFaults};
use serde::{Deserialize, Serialize};

/// What a file says of its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTimes {
    /// When it was read, as far as somebody has said so.
    pub read: Stamp,
    /// When it was written.
    pub written: Stamp,
    /// When it was written, or its times were set.
    pub changed: Stamp,
}

impl<D: Device, F: PortFaults> FusePort<D, F> {
    /// Whether messages are received.
    pub(super) fn receives(&self) -> bool {
        self.state == State::Open
    }

    /// Comes to rest (see `is_at_rest`), or goes on.
    pub fn rest(&mut self, rests: bool) {
        match (self.state, rests) {
            (State::Open, true) => {
                self.state = State::Resting;
                if F::has(PortBug::RestForgetsArrived) {
                    self.arrived = None;
                }
            }
            // What has come meanwhile was no event for anybody who looked at it.
            (State::Resting, false) => (self.state, self.drained) = (State::Open, false),
            _ => {}
        }
    }

    /// Whether all that was received is answered, and nothing more is received.
    pub fn is_at_rest(&self) -> bool {
        match self.state {
            State::Open => false,
            State::Resting | State::Shutting => self.arrived.is_none() && self.used() == 0 && self.outbox.is_empty(),
            State::Closed => true,
        }
    }

    /// What it says of its times now.
    pub fn times(&mut self) -> FileTimes {
        self.attributes();
        let a = &self.attributes;
        FileTimes { read: a.read, written: a.written, changed: a.changed }
    }

    /// The way to the kernel.
    pub(in crate::fuse) fn device(&mut self) -> &mut D {
        &mut self.device
    }
}
