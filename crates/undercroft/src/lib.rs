//! The daemon and the command line around the cache: front ends, back ends, workers, control.
//!
//! Owns sockets, files and threads. Never decides what is cached. Invariant: an async runtime runs in `control` (and
//! inside back ends whose library needs one) only; the data path has none.
#![forbid(unsafe_code)]

pub mod backend;
pub mod cli;
pub mod config;
pub mod control;
pub mod frontend;
pub mod ksm;
pub mod latency;
pub mod logging;
pub mod pressure;
pub mod ranges;
pub mod record;
pub mod scan;
pub mod serve;
pub mod service;
pub mod systemd;
pub mod worker;

pub use undercroft_units as units;
