//! Fuzz target `config`: see `undercroft_fuzz::config`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::config(data));
