//! Fuzz target `fuse_messages`: see `undercroft_fuzz::fuse_messages`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::fuse_messages(data));
