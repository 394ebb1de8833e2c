//! Configuration files: any bytes give a plan or problems, and an accepted plan keeps its invariants.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::config::check_bytes(data));
