//! A vhost-user-blk device against guests made of arbitrary choices: mostly valid descriptor chains, some malformed,
//! rings scribbled on, sessions that end and begin. See `undercroft::frontend::vhost::exercise`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft::frontend::vhost::exercise::exercise(data));
