//! Cache studies: what a cache would have done with a trace, on the daemon's own engine.
//!
//! Owns the simulator (`sim`), miss-ratio curves of whole traces and what follows from them (`curves`), and the
//! experiments behind the project's tables (`lab`). Never decides what a cache keeps: that is `undercroft_engine`.
//! Opens no file and reads no clock: callers bring requests, and write down what comes out. Invariant: the result
//! depends on requests and options only, on every machine and with any number of threads.
#![forbid(unsafe_code)]

pub mod curves;
pub mod lab;
pub mod processor;
pub mod sim;
