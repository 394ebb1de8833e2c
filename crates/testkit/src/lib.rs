//! Simulated disk, clock and clients, and naive models, for deterministic tests of the data path.
//!
//! Owns nothing that ships. Invariant: a seed fixes every step of a run.
#![forbid(unsafe_code)]
