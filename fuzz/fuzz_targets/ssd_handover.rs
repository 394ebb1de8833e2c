//! Fuzz target `ssd_handover`: see `undercroft_fuzz::ssd_handover`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::ssd_handover(data));
