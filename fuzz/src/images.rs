//! qcow2 images that may contain anything.
//!
//! Owns the targets of images, never a parser. Invariant: as for all targets, a panic is a defect of the parser.

use undercroft_backend::qcow2::{bytes_needed, check_l1, own_clusters, parse, verify};

/// The bytes at `offset`, as many as there are.
fn at(data: &[u8], offset: u64, bytes: usize) -> Vec<u8> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
    data[from..data.len().min(from.saturating_add(bytes))].to_vec()
}

/// Entry `i` of the table at `offset`, if the file has it.
fn entry(data: &[u8], offset: u64, i: u64) -> Option<u64> {
    Some(u64::from_be_bytes(at(data, offset.checked_add(i * 8)?, 8).try_into().ok()?))
}

/// The header and L1 table of a qcow2 image.
pub fn qcow2_header(data: &[u8]) {
    let _ = bytes_needed(data);
    if let Ok(header) = parse(data, 1 << 30) {
        let _ = check_l1(data, &header, 1 << 30);
    }
}

/// Which clusters a qcow2 image has of its own: the walk over the tables of an image that may contain anything.
///
/// # Panics
/// If a cluster counts as the backing image's that has an entry.
pub fn qcow2_own(data: &[u8]) {
    let file_bytes = data.len() as u64;
    let Ok(header) = parse(data, file_bytes) else { return };
    let map = own_clusters(&header, file_bytes, 1 << 20, |offset, bytes| Ok(at(data, offset, bytes)));
    let Some(map) = map.expect("nothing that was read has failed") else { return };
    // What counts as the backing image's has an empty entry, in a table or instead of one.
    let per_table = header.cluster_bytes / 8;
    for cluster in 0..header.size_bytes.div_ceil(header.cluster_bytes) {
        if map[(cluster / 64) as usize] & 1 << (cluster % 64) == 0 {
            let table = entry(data, header.l1_offset, cluster / per_table)
                .expect("a table that is missing has no empty entries");
            let empty = table == 0 || entry(data, table & 0x00ff_ffff_ffff_fe00, cluster % per_table) == Some(0);
            assert!(empty, "cluster {cluster} counts as the backing image's");
        }
    }
}

/// The tables of a qcow2 image that may contain anything: refcounts, L1 and L2 tables, snapshots.
///
/// # Panics
/// If more is read than the file is long, twice, or an image without a refcount for its header counts as sound.
pub fn qcow2_tables(data: &[u8]) {
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
}
