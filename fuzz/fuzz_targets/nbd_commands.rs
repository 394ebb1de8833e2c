//! NBD requests: arbitrary bytes, and mostly sensible requests, in any pieces, replied to in any order. Each request is
//! answered exactly once, with the verdict of the rules and the bytes of the disk.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::frontend::nbd::exercise::fuzz_commands(data));
