//! Fuzz target `trace`: see `undercroft_fuzz::trace`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::trace(data));
