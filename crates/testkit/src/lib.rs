//! Simulated disk, clock and clients, and naive models, for deterministic tests of the data path.
//!
//! Owns nothing that ships. Invariant: a seed fixes every step of a run.
#![forbid(unsafe_code)]

pub mod alike;
pub mod campaign;
pub mod coverage;
pub mod front;
mod mixing;
pub mod model;
pub mod outcome;
pub mod planted;
pub mod rng;
pub mod sim;
pub mod sim_disk;
mod sim_guest;
pub mod space;
pub mod ssd;
pub mod violation;
pub mod world;

pub use sim::{Outcome, Plan, finds, run};
