//! What an NBD server sends, to the client that the back end is.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| undercroft::backend::nbd::exercise_client(data));
