//! Which clusters a qcow2 image has of its own, and which come from the image behind it.
//!
//! Owns the walk over its tables, before anything is served from it. Reads only. Invariant: a cluster counts as the
//! backing image's only if its entry is empty; one that is compressed, zeroed, damaged or not understood counts as the
//! image's own.

use super::header::Header;
use std::io;

/// Bits of an L1 entry that are the offset of an L2 table.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Bit per cluster: the image, a file of `file_bytes`, has it of its own. `None` if the map would have more than
/// `bytes_max` bytes, or the clusters are smaller than a block. `read(offset, bytes)` gives what is there, less where
/// the file ends.
///
/// # Errors
/// A table cannot be read.
pub fn own_clusters(
    header: &Header,
    file_bytes: u64,
    bytes_max: u64,
    mut read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
) -> io::Result<Option<Vec<u64>>> {
    let clusters = header.size_bytes.div_ceil(header.cluster_bytes);
    if clusters.div_ceil(64) * 8 > bytes_max || header.cluster_bytes < 4096 {
        return Ok(None);
    }
    let mut map = vec![0u64; clusters.div_ceil(64) as usize];
    let per_table = header.cluster_bytes / 8;
    let mut mark = |from: u64, to: u64| {
        for c in from..to.min(clusters) {
            map[(c / 64) as usize] |= 1 << (c % 64);
        }
    };
    let l1 = read(header.l1_offset, header.l1_entries as usize * 8)?;
    let tables = clusters.div_ceil(per_table);
    for table in 0..tables {
        let first = table * per_table;
        let Some(entry) = word(&l1, table) else {
            mark(first, first + per_table);
            continue;
        };
        if entry == 0 {
            continue;
        }
        let offset = entry & OFFSET;
        let l2 = if offset == 0 || !offset.is_multiple_of(header.cluster_bytes) || offset >= file_bytes {
            Vec::new()
        } else {
            read(offset, header.cluster_bytes as usize)?
        };
        for i in 0..per_table {
            if word(&l2, i) != Some(0) {
                mark(first + i, first + i + 1);
            }
        }
    }
    Ok(Some(map))
}

fn word(table: &[u8], i: u64) -> Option<u64> {
    let at = usize::try_from(i).ok()?.checked_mul(8)?;
    let bytes: [u8; 8] = table.get(at..at.checked_add(8)?)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}
