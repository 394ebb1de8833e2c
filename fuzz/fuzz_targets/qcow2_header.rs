//! Fuzz target `qcow2_header`: see `undercroft_fuzz::qcow2_header`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::qcow2_header(data));
