//! Fuzz target `virtio_chain`: see `undercroft_fuzz::virtio_chain`. Nothing stands here but the loop of libFuzzer.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| undercroft_fuzz::virtio_chain(data));
