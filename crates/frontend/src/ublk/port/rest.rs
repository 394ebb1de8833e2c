//! A device comes to rest, so that another process can go on with it.
//!
//! Owns no state of its own. Never closes anything. Invariant: at rest the core has nothing of it, and all that it has
//! answered is with the kernel; what came and was not begun is asked again of the next process, or begun by this one.

use super::super::device::BlockQueue;
use super::{State, UblkPort};
use crate::faults::{PortBug, PortFaults};

impl<D: BlockQueue, F: PortFaults> UblkPort<D, F> {
    /// Comes to rest (see `is_at_rest`), or goes on.
    pub fn rest(&mut self, rests: bool) {
        match (self.state, rests) {
            (State::Open, true) => {
                self.state = State::Resting;
                if F::has(PortBug::RestForgetsCame) {
                    self.came.clear();
                }
            }
            (State::Resting, false) => self.state = State::Open,
            _ => {}
        }
    }

    /// Whether nothing of it is under way.
    pub fn is_at_rest(&self) -> bool {
        match self.state {
            State::Open => false,
            State::Resting | State::Shutting => self.used == 0 && self.device.unsubmitted() == 0,
            State::Closed => true,
        }
    }
}
