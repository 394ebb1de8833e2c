//! The tables of a qcow2 image that may contain anything: refcounts, L1 and L2 tables, snapshots.
#![no_main]
use libfuzzer_sys::fuzz_target;
use undercroft::backend::qcow2::{parse, verify};

/// The bytes at `offset`, as many as there are.
fn at(data: &[u8], offset: u64, bytes: usize) -> Vec<u8> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
    data[from..data.len().min(from.saturating_add(bytes))].to_vec()
}

fuzz_target!(|data: &[u8]| {
    let file_bytes = data.len() as u64;
    let Ok(header) = parse(data, file_bytes) else { return };
    // Each table is read once: so the walk costs no more than the file is long, whatever the tables say.
    let (mut read, mut steps) = (0u64, 0u64);
    let found = verify(
        &header,
        file_bytes,
        |offset, bytes| {
            read += (bytes as u64).min(file_bytes.saturating_sub(offset));
            Ok(at(data, offset, bytes))
        },
        |done, of| {
            steps += 1;
            assert!(done <= of);
            true
        },
    );
    // Refcount blocks are read a second time, and an entry of the snapshot table may be cut short by the end.
    assert!(read <= 2 * file_bytes + 65536 * 40, "{read} bytes read of {file_bytes}");
    if let Ok(found) = found {
        let clusters = file_bytes.div_ceil(header.cluster_bytes);
        assert!(found.clusters <= clusters + 1 && found.l2_tables <= clusters);
        // A sound image's header has a refcount.
        let block = u64::from_be_bytes(at(data, header.reftable_offset, 8).try_into().expect("eight bytes"));
        assert!(block != 0, "no refcount block for the header");
    }
});
