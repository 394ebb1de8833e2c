//! Fuzz target `pin_list`: see `undercroft_fuzz::pin_list`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::pin_list(data));
