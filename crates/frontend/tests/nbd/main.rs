//! The NBD front end without a socket: handshakes, and connections in transmission, on streams in memory.
//!
//! Owns nothing. Every test asserts what a client sees.

mod handshake;
mod port;
