//! Which clusters a qcow2 image has of its own: the walk over the tables of an image that may contain anything.
#![no_main]
use libfuzzer_sys::fuzz_target;
use undercroft::backend::qcow2::{own_clusters, parse};

/// The bytes at `offset`, as many as there are.
fn at(data: &[u8], offset: u64, bytes: usize) -> Vec<u8> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
    data[from..data.len().min(from.saturating_add(bytes))].to_vec()
}

/// Entry `i` of the table at `offset`, if the file has it.
fn entry(data: &[u8], offset: u64, i: u64) -> Option<u64> {
    Some(u64::from_be_bytes(at(data, offset.checked_add(i * 8)?, 8).try_into().ok()?))
}

fuzz_target!(|data: &[u8]| {
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
});
