//! The header and L1 table of a qcow2 image.
#![no_main]
use libfuzzer_sys::fuzz_target;
use undercroft::backend::qcow2::{bytes_needed, check_l1, parse};

fuzz_target!(|data: &[u8]| {
    let _ = bytes_needed(data);
    if let Ok(header) = parse(data, 1 << 30) {
        let _ = check_l1(data, &header, 1 << 30);
    }
});
