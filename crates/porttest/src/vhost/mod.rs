//! Guests of a vhost-user-blk device: one that does what a test tells it, arbitrary ones, and one of the simulation.
//!
//! Owns no device: `frontend` does.

pub mod exercise;
pub mod messages;
pub mod rig;
pub(crate) mod sim_guest;
