//! The running daemon: workers, disks, shares, recordings, and the control API over them.
//!
//! Owns threads, sockets of control and what a plan becomes. Never decides what is cached. Invariant: an async runtime
//! runs in `http` (and inside back ends whose library needs one) only; the data path has none.
#![forbid(unsafe_code)]

mod handover;
pub mod http;
pub mod latency;
pub mod logging;
pub mod record;
pub mod serve;
pub mod service;
pub mod systemd;
#[cfg(test)]
mod watched_backend;
pub mod worker;
