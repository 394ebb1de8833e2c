//! The running daemon: workers, disks, shares and recordings.
//!
//! Owns threads and what a plan becomes. Never decides what is cached, and never speaks HTTP: the crate `http` does,
//! and asks `Service`. Invariant: no async runtime runs here, but inside back ends whose library needs one.
#![forbid(unsafe_code)]

mod handover;
pub mod latency;
pub mod logging;
pub mod record;
pub mod serve;
pub mod service;
pub mod systemd;
#[cfg(test)]
mod watched_backend;
pub mod worker;
