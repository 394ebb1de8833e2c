//! The `undercroft` command. Owns the process: arguments in, exit code out.
#![forbid(unsafe_code)]

fn main() {}
