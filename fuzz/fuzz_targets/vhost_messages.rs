//! Fuzz target `vhost_messages`: see `undercroft_fuzz::vhost_messages`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::vhost_messages(data));
