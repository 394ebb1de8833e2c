//! NBD handshake: arbitrary bytes, and arbitrary options in good frames. Bounded output, well-formed replies, no panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::frontend::nbd::exercise::fuzz_handshake(data));
