//! Bodies of API requests, those of nodes and `If-Match` included: any bytes give a value or an error with a remedy.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::control::body::check_bytes(data));
