//! What experiments run on: block numbers in memory, from a trace or a generator.
//!
//! Owns the mapping from a trace's records to blocks. Never opens a file: the caller does. Invariant: the same name is
//! the same sequence everywhere.

use std::collections::HashSet;
use undercroft_trace::synth::Zipf;
use undercroft_trace::{TraceError, TraceReader};

/// Bytes of a sector, the unit of vscsi block numbers.
const SECTOR_BYTES: u64 = 512;
/// Bytes of a block of the daemon.
const BLOCK_BYTES: u64 = 4096;

/// A named sequence of block numbers.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What tables call it.
    pub name: String,
    /// Every access, in order.
    pub blocks: Vec<u64>,
    /// How many distinct blocks there are.
    pub footprint: u32,
}

impl Workload {
    /// From a sequence.
    pub fn new(name: impl Into<String>, blocks: Vec<u64>) -> Self {
        let footprint = blocks.iter().collect::<HashSet<_>>().len() as u32;
        Self { name: name.into(), blocks, footprint }
    }

    /// From a trace: one access for each block that a record names.
    ///
    /// # Errors
    /// The trace cannot be read to its end.
    pub fn of_trace(name: &str, trace: TraceReader<'_>) -> Result<Self, TraceError> {
        let blocks: Result<_, _> = trace.map(|a| a.map(|a| a.block)).collect();
        Ok(Self::new(name, blocks?))
    }

    /// From a trace whose block numbers are sectors and whose records have a length: the 4 KiB blocks that each
    /// record covers, as the daemon would see it.
    ///
    /// # Errors
    /// As [`Workload::of_trace`].
    pub fn in_4k_blocks(name: &str, trace: TraceReader<'_>) -> Result<Self, TraceError> {
        let mut blocks = vec![];
        for access in trace {
            let access = access?;
            let first_byte = access.block.saturating_mul(SECTOR_BYTES);
            let last_byte = first_byte.saturating_add(u64::from(access.bytes).max(1) - 1);
            blocks.extend(first_byte / BLOCK_BYTES..=last_byte / BLOCK_BYTES);
        }
        Ok(Self::new(name, blocks))
    }

    /// Zipf popularity (see [`Zipf`]).
    pub fn zipf(name: &str, keys: u32, requests: usize, alpha: f64, seed: u64) -> Self {
        Self::new(name, Zipf::new(keys, alpha, seed).take(requests).collect())
    }

    /// Zipf popularity, interrupted after every `between` requests by a scan of `scan` blocks that are never asked for
    /// again: a backup, a virus scanner.
    pub fn zipf_with_scans(name: &str, keys: u32, requests: usize, between: usize, scan: u64) -> Self {
        let mut cold = u64::from(keys) + 1;
        let mut blocks = vec![];
        for (i, key) in Zipf::new(keys, 1.0, 42).take(requests).enumerate() {
            if i > 0 && i % between == 0 {
                blocks.extend(cold..cold + scan);
                cold += scan;
            }
            blocks.push(key);
        }
        Self::new(name, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_come_between_and_are_never_repeated() {
        let with = Workload::zipf_with_scans("w", 100, 1000, 300, 50);
        let plain = Workload::zipf("p", 100, 1000, 1.0, 42);
        assert_eq!(with.blocks.len(), 1000 + 3 * 50);
        assert_eq!(with.blocks[..300], plain.blocks[..300]);
        assert_eq!(with.blocks[350..650], plain.blocks[300..600]);
        assert_eq!(with.footprint, plain.footprint + 150);
    }

    #[test]
    fn records_cover_every_block_they_touch() {
        // version 1 of vscsi: 8 sectors from sector 7 on touch blocks 0 and 1; no length touches one
        let record = |block: u64, bytes: u32| {
            let mut r = [0; 32];
            r[4..8].copy_from_slice(&bytes.to_le_bytes());
            r[12..14].copy_from_slice(&0x28u16.to_le_bytes());
            r[14..16].copy_from_slice(&0x0100u16.to_le_bytes());
            r[16..24].copy_from_slice(&block.to_le_bytes());
            r
        };
        let file = [record(7, 4096), record(16, 0), record(8, 4096)].concat();
        let trace = TraceReader::new(&file[..], "t", undercroft_trace::Format::Vscsi).expect("opens");
        let workload = Workload::in_4k_blocks("t", trace);
        assert_eq!(workload.expect("sound").blocks, [0, 1, 2, 1]);
    }
}
