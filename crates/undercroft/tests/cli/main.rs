//! The command line, through the built program: exit codes, messages, help, pages, and a daemon from start to stop.
//!
//! Owns runs of the real binary on real images, by theme.

mod attach;
mod curves;
mod figures;
mod pins;
mod place;
mod serve;
mod usage;
