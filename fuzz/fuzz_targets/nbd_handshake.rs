//! Fuzz target `nbd_handshake`: see `undercroft_fuzz::nbd_handshake`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::nbd_handshake(data));
