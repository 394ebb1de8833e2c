//! Fuzz target `nbd_commands`: see `undercroft_fuzz::nbd_commands`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::nbd_commands(data));
