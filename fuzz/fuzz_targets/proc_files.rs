//! Fuzz target `proc_files`: see `undercroft_fuzz::proc_files`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::proc_files(data));
