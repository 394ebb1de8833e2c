//! Lists of what is cached, from another process or the service manager, that may say anything.
//!
//! Owns the target, never a parser. Invariant: as for all targets, a panic is a defect of the parser.

use highway::{HighwayHash, HighwayHasher, Key};
use undercroft_cache::{KeptBlock, KeptBlocks, KeptDisk, KeptList};
use undercroft_engine::Tier;

/// Bytes of the sum at the end of a list.
const SUM_BYTES: usize = 8;

/// A list as it is written, to begin with: what is changed is behind its sum, so no fuzzer comes there by itself.
fn written() -> Vec<u8> {
    let blocks = |n: u64| (0..n).map(|b| KeptBlock { block: b * b, frame: b as u32, tier: Tier::Hot }).collect();
    let disk = |name: &str, n| KeptDisk {
        name: name.into(),
        size_bytes: 1 << 40,
        worker: n,
        image: (n == 1).then_some([7; KeptDisk::IMAGE_BYTES]),
        kept: KeptBlocks { lead_bytes: 512 * n as u32, blocks: blocks(3 * n) },
    };
    KeptList { memory_bytes: 4 << 30, workers: 2, disks: vec![disk("web:root", 1), disk("db", 2)] }.encode()
}

/// The list with the sum that its bytes have.
fn summed(mut body: Vec<u8>) -> Vec<u8> {
    let sum = HighwayHasher::new(Key([0; 4])).hash64(&body);
    body.extend(sum.to_le_bytes());
    body
}

/// Bytes as they come; and the same behind the beginning of a list, from a place that the first byte says on, with the
/// sum that they then have.
///
/// # Panics
/// If a list is taken that is not what its contents are written as, or that has more blocks than bytes.
pub fn kept_list(data: &[u8]) {
    read(data);
    let Some((&from, rest)) = data.split_first() else { return };
    let mut body = written();
    body.truncate(body.len() - SUM_BYTES);
    assert_eq!(KeptList::decode(&summed(body.clone())), KeptList::decode(&written()), "the sums here are the list's");
    body.truncate(usize::from(from));
    body.extend(rest);
    read(&summed(body));
}

fn read(bytes: &[u8]) {
    let Ok(list) = KeptList::decode(bytes) else { return };
    assert!(list.disks.iter().map(|d| d.kept.blocks.len()).sum::<usize>() <= bytes.len(), "more blocks than bytes");
    assert_eq!(list.encode(), bytes, "a list is taken that is not what it is written as");
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_stands_behind_a_good_sum_is_read() {
        let good = super::written();
        let from = 24;
        let data = [&[from as u8], &good[from..good.len() - super::SUM_BYTES]].concat();
        super::kept_list(&data);
        super::kept_list(&good);
    }
}
