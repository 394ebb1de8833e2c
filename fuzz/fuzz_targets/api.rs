//! Fuzz target `api`: see `undercroft_fuzz::api`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::api(data));
