//! The policies that only simulators use.
//!
//! Owns one file for each, and what several of them keep: heaps, histories, values by slot. Never serves a guest: the
//! time of a call and the memory of some are not bounded tightly enough. Invariant: see `Policy`.

pub(super) mod cacheus;
pub(super) mod clock_2q;
pub(super) mod clock_pro;
mod frequencies;
mod heap;
mod history;
pub(super) mod hyperbolic;
pub(super) mod lecar;
pub(super) mod lfu;
pub(super) mod lfu_da;
pub(super) mod lhd;
pub(super) mod lirs;
pub(super) mod lirs2;
pub(super) mod lru_2;
pub(super) mod mq;
pub(super) mod mru;
mod per_slot;
pub(super) mod random;
pub(super) mod s4choice;
pub(super) mod s4fifo;
pub(super) mod s4queues;
#[cfg(test)]
mod s4tests;
pub(super) mod slru;
pub(super) mod two_q;
