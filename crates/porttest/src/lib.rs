//! What drives ports in tests: guests and clients in memory, arbitrary ones for the fuzzer, and the simulation of
//! ports.
//!
//! Owns nothing that ships: `frontend` has the ports, this crate their peers. Never opens a listening socket.
//! Invariant: bytes or a seed fix what a guest or a client does.

#![forbid(unsafe_code)]

pub mod client;
pub mod faults;
pub mod fuse;
pub mod nbd;
mod shadow;
pub mod sim;
pub mod ublk;
pub mod vhost;
pub mod work;
