//! Fuzz target `ranges`: see `undercroft_fuzz::ranges`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::ranges(data));
