//! Lists of ranges: any bytes give a list whose invariants hold, beside another container too, or an error with a remedy.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::ranges::check_bytes(data));
