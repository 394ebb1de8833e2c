//! One refcount in a refcount block of a qcow2 image.
//!
//! Owns how refcounts of 1 to 64 bits lie in bytes. Reads and writes nothing but buffers. Invariant: `set_one` changes
//! no bit of a neighbour.

/// Where in the file a refcount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Its first byte.
    pub(super) byte: u64,
    /// Where in that byte it begins, if it is smaller than one: the lowest bits are the first.
    shift: u32,
    bits: u32,
}

impl Place {
    /// Refcount `index` of the block at `block`, of refcounts of `bits` bits.
    pub(super) fn of(block: u64, index: u64, bits: u64) -> Self {
        let bit = index * bits;
        Self { byte: block + bit / 8, shift: (bit % 8) as u32, bits: bits as u32 }
    }

    /// What comes before every place at `byte`, and after all places before it.
    pub(super) fn first_at(byte: u64) -> Self {
        Self { byte, shift: 0, bits: 0 }
    }

    /// Its value in `bytes`, which are in the file at `offset`.
    pub(super) fn get(&self, bytes: &[u8], offset: u64) -> u64 {
        let at = (self.byte - offset) as usize;
        if self.bits < 8 {
            return u64::from(bytes[at] >> self.shift) & ((1 << self.bits) - 1);
        }
        bytes[at..at + self.bits as usize / 8].iter().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    /// Makes a refcount of 0 one of 1.
    pub(super) fn set_one(&self, bytes: &mut [u8], offset: u64) {
        let at = (self.byte - offset) as usize;
        // The lowest bit: of the last byte, as the number is big-endian.
        let last = (self.bits as usize / 8).saturating_sub(1);
        bytes[at + last] |= 1 << self.shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refcounts_of_every_width_are_set_alone() {
        for order in 0..=6 {
            let bits = 1u64 << order;
            for index in 0..64 {
                let mut block = vec![0; 1024];
                let place = Place::of(4096, index, bits);
                assert_eq!(place.get(&block, 4096), 0);
                place.set_one(&mut block, 4096);
                let set: Vec<u64> = (0..64).filter(|i| Place::of(4096, *i, bits).get(&block, 4096) == 1).collect();
                assert_eq!(set, [index], "{bits} bits");
                assert_eq!(block.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
            }
        }
        // As QEMU's specification has them: the lowest bits first below a byte, big-endian above.
        let mut block = [0u8; 8];
        Place::of(0, 1, 4).set_one(&mut block, 0);
        Place::of(0, 1, 16).set_one(&mut block, 0);
        assert_eq!(block, [0x10, 0, 0, 1, 0, 0, 0, 0]);
    }
}
