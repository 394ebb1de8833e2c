//! Fuzz target `hot_set`: see `undercroft_fuzz::hot_set`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::hot_set(data));
