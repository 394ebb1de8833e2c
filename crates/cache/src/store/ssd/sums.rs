//! Checksums: of a block with all that says whose it is, and of what the store writes about itself.
//!
//! Owns the keys, made from the store's name: NH sums of the bytes (`host/src/sums.rs`), and HighwayHash of these.
//! Never stores a sum. Invariant: bytes of another block, owner, generation, segment or store have the same 32-bit sum
//! once in 2^32 times, whatever they are; so have bytes that were damaged in any way.

use super::permutation::mix;
use super::types::{Identity, StoreId};
use highway::{HighwayHash, HighwayHasher, Key};
use undercroft_host::SumKey;

/// See the head of the file.
pub(super) struct Sums {
    key: [u64; 4],
    /// 4 KiB; held once for each region.
    blocks: Box<SumKey>,
}

/// What stands for bytes, whosever they are: of other bytes it is the same once in 2^64 times or so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content([u64; 2]);

impl Content {
    /// A number that stands for it, all of whose bits are as good.
    pub fn number(self) -> u64 {
        mix(self.0[0] ^ mix(self.0[1]))
    }
}

/// Whose a block is, and where it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Of {
    /// The tag of its owner's identity.
    pub tag: u64,
    /// The generation of its owner when its segment was begun.
    pub generation: u64,
    /// The sequence of its segment.
    pub sequence: u64,
    pub block: u64,
}

impl Sums {
    /// The sums of one store.
    pub fn new(store: StoreId) -> Self {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| store.0[at + n]));
        let key = [half(0), half(8), 0x7ae1_6a3b_2f90_404f, 0x9ae1_6a3b_2f90_404f];
        let mut words = 0u64;
        let blocks = SumKey::new(|| {
            words += 1;
            HighwayHasher::new(Key(key)).hash64(&words.to_le_bytes()) as u32
        });
        Self { key, blocks: Box::new(blocks) }
    }

    /// The sum of bytes that the store wrote about itself.
    pub fn text(&self, bytes: &[u8]) -> u64 {
        HighwayHasher::new(Key(self.key)).hash64(bytes)
    }

    /// What stands for an identity in sums of blocks.
    pub fn tag(&self, identity: &Identity) -> u64 {
        self.text(&identity.0)
    }

    /// The sum of a block.
    #[inline]
    pub fn block(&self, of: Of, bytes: &[u8; 4096]) -> u32 {
        self.of(of, self.content(bytes))
    }

    /// What stands for bytes.
    #[inline]
    pub fn content(&self, bytes: &[u8; 4096]) -> Content {
        Content(self.blocks.sums(bytes))
    }

    /// The sum of a block with these bytes.
    #[inline]
    pub fn of(&self, of: Of, content: Content) -> u32 {
        let Content([first, second]) = content;
        let mut all = [0; 48];
        let words = [first, second, of.tag, of.generation, of.sequence, of.block];
        all.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        self.text(&all) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_says_whose_a_block_is_changes_its_sum() {
        let sums = Sums::new(StoreId([1; 16]));
        let (mut page, of) = ([7u8; 4096], Of { tag: 1, generation: 2, sequence: 3, block: 4 });
        let right = sums.block(of, &page);
        let others = [Of { tag: 9, ..of }, Of { generation: 9, ..of }, Of { sequence: 9, ..of }, Of { block: 9, ..of }];
        assert!(others.into_iter().all(|o| sums.block(o, &page) != right));
        assert_ne!(Sums::new(StoreId([2; 16])).block(of, &page), right);
        page[512] ^= 1;
        assert_ne!(sums.block(of, &page), right);
    }
}
