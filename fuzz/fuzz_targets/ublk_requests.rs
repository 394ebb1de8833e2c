//! Fuzz target `ublk_requests`: see `undercroft_fuzz::ublk_requests`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::ublk_requests(data));
