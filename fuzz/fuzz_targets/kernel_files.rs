//! Files of /proc, /sys and control groups, and the file of saved settings: any bytes give values or nothing.
#![no_main]
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    undercroft::ksm::check_bytes(data);
    undercroft::pressure::check_bytes(data);
});
