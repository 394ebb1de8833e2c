//! The policies that a disk may have: their memory and the time of each call are bounded, and each is held against a
//! reference model.
//!
//! Owns the table of them; each has a file of its own. Never uses a policy that is only studied. Invariant: every row
//! has a reference model.

mod adaptive;
mod arc;
mod car;
mod clock;
mod fifo;
mod lru;
mod s3fifo;
mod sieve;
mod wtinylfu;
/// The reference models.
#[cfg(test)]
pub(crate) mod models {
    pub(crate) mod adaptive;
    pub(crate) mod segmented;
    pub(crate) mod simple;
}

use super::kinds::dispatched;
use super::set::PolicySet;
use super::{Outcome, Policy, Seen};
use crate::structures::array::Release;
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot, Slots};
use crate::structures::table::HashKey;

dispatched! {
    /// The policies that a disk may have.
    PolicyKind, ServedPolicy:

    /// First in, first out.
    Fifo(fifo::Fifo) = "fifo", model |_| models::simple::Queue::new(false);
    /// Least recently used.
    Lru(lru::Lru) = "lru", model |_| models::simple::Queue::new(true);
    /// Second chance with one reference bit (Corbató, 1968).
    Clock(clock::Clock) = "clock", model |_| models::simple::Clock::default();
    /// Adaptive replacement cache (Megiddo and Modha, FAST 2003).
    Arc(arc::Arc) = "arc", model |n| models::adaptive::Adaptive::new(n, false);
    /// Clock with adaptive replacement (Bansal and Modha, FAST 2004).
    Car(car::Car) = "car", model |n| models::adaptive::Adaptive::new(n, true);
    /// Three static FIFO queues (Yang et al., SOSP 2023).
    S3Fifo(s3fifo::S3Fifo) = "s3-fifo", model models::segmented::S3Fifo::new;
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve(sieve::Sieve) = "sieve", model |_| models::simple::Sieve::default();
    /// Window TinyLFU (Einziger, Friedman and Manes, ACM ToS 2017).
    WTinyLfu(wtinylfu::WTinyLfu) = "w-tinylfu", model models::segmented::WTinyLfu::new;
}

impl PolicyKind {
    /// The default of a disk; docs/decisions/0010 has the table behind the choice.
    pub const DEFAULT: PolicyKind = PolicyKind::S3Fifo;
}

impl PolicySet for PolicyKind {}
