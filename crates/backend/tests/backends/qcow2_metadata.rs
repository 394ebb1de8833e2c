//! Where a qcow2 image keeps its metadata, for tests that change it.
//!
//! Owns a second reading of the format, apart from the one under test. Never decides what is damage. Invariant: every
//! byte named here is one that the header leads to.

use std::ops::Range;

/// One piece of metadata.
#[derive(Clone, Debug)]
pub struct Piece {
    /// What it is.
    pub kind: &'static str,
    /// Its bytes in the file.
    pub bytes: Range<usize>,
    /// Bytes of an entry, for a change of one as a whole.
    pub entry: usize,
}

const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

fn n(data: &[u8], at: usize, bytes: usize) -> u64 {
    data[at..at + bytes].iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Every piece of metadata of a sound image.
pub fn pieces(data: &[u8]) -> Vec<Piece> {
    let cluster = 1usize << n(data, 20, 4);
    let version = n(data, 4, 4);
    let mut found: Vec<Piece> = Vec::new();
    let mut add = |kind, at: usize, bytes: usize, entry: usize| {
        let bytes = at..(at + bytes).min(data.len());
        if !found.iter().any(|p| p.bytes == bytes) && !bytes.is_empty() {
            found.push(Piece { kind, bytes, entry });
        }
    };
    let header = if version == 3 { n(data, 100, 4) as usize } else { 72 };
    add("header", 0, header, 8);
    let mut at = header;
    while n(data, at, 4) != 0 {
        at += 8 + (n(data, at + 4, 4) as usize).next_multiple_of(8);
    }
    add("header extensions", header, at + 8 - header, 8);
    let (table, clusters) = (n(data, 48, 8) as usize, n(data, 56, 4) as usize);
    let blocks: Vec<usize> =
        (0..clusters * cluster / 8).map(|i| n(data, table + i * 8, 8) as usize).filter(|b| *b != 0).collect();
    // What lies behind the entries in use is tried too, a little of it.
    add("refcount table", table, (blocks.len() + 4) * 8, 8);
    let used = data.len().div_ceil(cluster);
    let bits = if version == 3 { 1usize << n(data, 96, 4) } else { 16 };
    for block in blocks {
        add("refcount block", block, cluster.min((used * bits).div_ceil(8) + 16), 8);
    }
    let mut tables = vec![("L1 table", n(data, 40, 8) as usize, n(data, 36, 4) as usize)];
    let mut at = n(data, 64, 8) as usize;
    let start = at;
    for _ in 0..n(data, 60, 4) {
        tables.push(("L1 table of a snapshot", n(data, at, 8) as usize, n(data, at + 8, 4) as usize));
        let names = n(data, at + 12, 2) + n(data, at + 14, 2) + n(data, at + 36, 4);
        at = (at + 40 + names as usize).next_multiple_of(8);
    }
    add("snapshot table", start, at - start, 8);
    for (kind, offset, entries) in tables {
        add(kind, offset, entries * 8, 8);
        for i in 0..entries {
            let l2 = (n(data, offset + i * 8, 8) & OFFSET) as usize;
            if l2 != 0 {
                let last = (0..cluster / 8).rev().find(|e| n(data, l2 + e * 8, 8) != 0).unwrap_or(0);
                add("L2 table", l2, ((last + 3) * 8).min(cluster), 8);
            }
        }
    }
    found
}
