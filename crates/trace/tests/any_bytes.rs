//! Arbitrary bytes, and sound traces with bytes changed, are a trace or an error; never a panic or a run without end.

use proptest::prelude::*;
use undercroft_trace::{Format, TraceReader};

fn read(bytes: &[u8], format: Format) {
    let Ok(reader) = TraceReader::new(bytes, "any", format) else { return };
    let mut failed = false;
    for access in reader.take(10_000) {
        assert!(!failed, "an error is the last thing that a reader says");
        failed = access.is_err();
    }
}

fn sound() -> Vec<u8> {
    b"110765 64 0 0\n110888 1 0 1\n7 3 0 2\n".repeat(20)
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        Format::ALL.into_iter().for_each(|format| read(&bytes, format));
    }

    #[test]
    fn changed_bytes(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5), packed: bool) {
        let mut bytes = if packed { zstd::encode_all(&sound()[..], 1).expect("zstd") } else { sound() };
        for (index, byte) in at {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        Format::ALL.into_iter().for_each(|format| read(&bytes, format));
    }
}
