//! Fuzz target `qcow2_own`: see `undercroft_fuzz::qcow2_own`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::qcow2_own(data));
