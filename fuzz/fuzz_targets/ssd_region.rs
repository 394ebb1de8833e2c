//! Fuzz target `ssd_region`: see `undercroft_fuzz::ssd_region`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::ssd_region(data));
