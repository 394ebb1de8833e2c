//! Contents that are alike: few patterns for the blocks of a group, zeroes among them, and images that disks stand on.
//!
//! Owns what such contents are. Never looks at the cache. Invariant: two groups have but one pattern in common, and
//! neither has any with an image; so nearly every byte of another group is one that was never written there. The one
//! in common is there to see that it is not held in common.

use crate::mixing::{mix, plain_pattern};
use undercroft_cache::{Base, LayerId};
use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;

/// Numbers of writes from here on bring one of a few patterns, the same for every block.
pub const ALIKE: u64 = 1 << 48;
/// Numbers from here on are the contents of images.
const IMAGE: u64 = 1 << 56;
/// Patterns of a group, the last of which every group has.
const PATTERNS: u64 = 4;

/// The number of a write, which brings data of its own or of a pattern of its group, by chance.
pub fn number_of(write: u64, group: u64) -> u64 {
    match mix(write ^ 0xa11ce) % 8 {
        0..4 => write,
        n if n % PATTERNS == PATTERNS - 1 => ALIKE + n % PATTERNS,
        n => ALIKE + (group << 8) + n % PATTERNS,
    }
}

/// Fills `to` as write number `n` does at byte `pos`: see `rng::fill_pattern`.
pub fn fill(n: u64, pos: u64, to: &mut [u8]) {
    let (mut at, mut pos) = (0, pos);
    while at < to.len() {
        let len = ((B - pos % B) as usize).min(to.len() - at);
        let part = &mut to[at..at + len];
        if n >= IMAGE {
            // Of the blocks of an image some are zeroes, some like others, some like no other.
            let block = pos / B;
            match mix(n ^ block) % 4 {
                0 => part.fill(0),
                1 => plain_pattern(n, pos % B, part),
                _ => plain_pattern(n, pos, part),
            }
        } else if n & 0xff == 0 {
            part.fill(0);
        } else {
            plain_pattern(n, pos % B, part);
        }
        at += len;
        pos += len as u64;
    }
}

/// What a disk stands on.
#[derive(Clone, Debug)]
pub struct SimBase {
    layer: u64,
    bytes: u64,
    cluster: u64,
    own: Vec<bool>,
}

impl SimBase {
    /// A disk of `size` bytes on `bytes` bytes of image `layer`; `is_own` says of each cluster whether the disk has it
    /// of its own from the start. Returns what the disk holds as well.
    pub fn new(layer: u64, bytes: u64, cluster: u64, size: u64, mut is_own: impl FnMut() -> bool) -> (Self, Vec<u8>) {
        let mut medium = vec![0; size as usize];
        let common = bytes.min(size) as usize;
        fill(IMAGE + layer, 0, &mut medium[..common]);
        let own: Vec<bool> = (0..size.div_ceil(cluster)).map(|_| is_own()).collect();
        for (i, _) in own.iter().enumerate().filter(|(_, o)| **o) {
            let from = i as u64 * cluster;
            let to = (from + cluster).min(size);
            // Its own from the start, and unlike anything else.
            plain_pattern(mix(layer ^ size) | ALIKE, from, &mut medium[from as usize..to as usize]);
        }
        (Self { layer, bytes, cluster, own }, medium)
    }

    /// Bytes `offset..offset + len` are changed.
    pub fn change(&mut self, offset: u64, len: u64) {
        let own = &mut self.own[(offset / self.cluster) as usize..(offset + len).div_ceil(self.cluster) as usize];
        own.fill(true);
    }

    /// Which image it is.
    pub fn layer(&self) -> u64 {
        self.layer
    }

    /// What the core is told.
    pub fn told(&self) -> Base {
        let mut own = vec![0u64; self.own.len().div_ceil(64)];
        for (i, _) in self.own.iter().enumerate().filter(|(_, o)| **o) {
            own[i / 64] |= 1 << (i % 64);
        }
        Base { layer: LayerId(self.layer), size_bytes: self.bytes, cluster_bytes: self.cluster as u32, own }
    }
}
