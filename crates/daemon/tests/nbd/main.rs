//! The NBD server as a whole: real sockets, a real worker and core, real clients, and clients that misbehave.
//!
//! Owns nothing of the product. Every wait has a bound; none is asserted to be short.

mod abuse;
mod client;
mod programs;
mod rig;
mod serving;
