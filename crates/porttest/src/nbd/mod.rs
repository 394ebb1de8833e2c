//! Clients of an NBD connection: arbitrary ones on a stream of bytes, and one of the simulation.
//!
//! Owns no connection: `frontend` does.

mod byte_stream;
pub mod exercise;
pub(crate) mod sim_client;
