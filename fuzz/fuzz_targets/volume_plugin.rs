//! Fuzz target `volume_plugin`: see `undercroft_fuzz::volume_plugin`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::volume_plugin(data));
