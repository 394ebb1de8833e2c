//! Fuzz target `qcow2_tables`: see `undercroft_fuzz::qcow2_tables`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::qcow2_tables(data));
