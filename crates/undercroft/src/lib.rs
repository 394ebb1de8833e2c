//! The command line: what operators and people who study caches type.
//!
//! Owns words, tables and exit codes. Never decides what is cached or serves a disk: the daemon's crate does.
//! Invariant: a command that fails says what to do next.
#![forbid(unsafe_code)]

pub mod cli;
