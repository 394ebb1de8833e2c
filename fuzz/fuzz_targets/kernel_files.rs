//! Fuzz target `kernel_files`: see `undercroft_fuzz::kernel_files`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::kernel_files(data));
