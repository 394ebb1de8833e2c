//! Sectors that say what they are.
//!
//! Owns the contents of stamped sectors. Never does I/O. Invariant: a sector's 512 bytes follow from (seed, sector
//! number, sequence) alone, so a sector that is torn, shifted, stale or foreign cannot pass for a right one.

use crate::pattern::mix;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;
/// "UCSTAMP1".
const MAGIC: u64 = u64::from_le_bytes(*b"UCSTAMP1");

/// What a sector says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The run it was written in.
    pub seed: u64,
    /// The sector it was written to.
    pub sector: u64,
    /// The write that wrote it.
    pub sequence: u64,
}

/// What stands in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Only zeroes.
    Zeroes,
    /// A stamp, complete and intact.
    Stamp(Stamp),
    /// A stamp's head with another's or damaged contents behind it.
    Torn(Stamp),
    /// Anything else.
    Foreign,
}

impl Stamp {
    /// The sector's contents.
    pub fn write(&self, sector: &mut [u8]) {
        assert_eq!(sector.len(), SECTOR_BYTES);
        let key = mix(self.seed ^ mix(self.sector ^ mix(self.sequence)));
        for (i, word) in sector.chunks_exact_mut(8).enumerate() {
            let value = match i {
                0 => MAGIC,
                1 => self.seed,
                2 => self.sector,
                3 => self.sequence,
                _ => mix(key.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Says what stands in a sector.
pub fn look(sector: &[u8]) -> Seen {
    assert_eq!(sector.len(), SECTOR_BYTES);
    let word = |i: usize| u64::from_le_bytes(sector[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return if sector.iter().all(|b| *b == 0) { Seen::Zeroes } else { Seen::Foreign };
    }
    let stamp = Stamp { seed: word(1), sector: word(2), sequence: word(3) };
    let mut want = [0; SECTOR_BYTES];
    stamp.write(&mut want);
    if want == sector { Seen::Stamp(stamp) } else { Seen::Torn(stamp) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_single_changed_byte_is_seen() {
        let stamp = Stamp { seed: 5, sector: 77, sequence: 3 };
        let mut good = [0; SECTOR_BYTES];
        stamp.write(&mut good);
        assert_eq!(look(&good), Seen::Stamp(stamp));
        for i in 0..SECTOR_BYTES {
            let mut bad = good;
            bad[i] ^= 1;
            assert_ne!(look(&bad), Seen::Stamp(stamp), "byte {i}");
            assert!(matches!(look(&bad), Seen::Torn(_) | Seen::Foreign), "byte {i}");
        }
        assert_eq!(look(&[0; SECTOR_BYTES]), Seen::Zeroes);
        assert_eq!(look(&[1; SECTOR_BYTES]), Seen::Foreign);
    }

    #[test]
    fn two_halves_of_two_writes_are_torn() {
        let mut old = [0; SECTOR_BYTES];
        let mut new = [0; SECTOR_BYTES];
        Stamp { seed: 1, sector: 2, sequence: 3 }.write(&mut old);
        Stamp { seed: 1, sector: 2, sequence: 4 }.write(&mut new);
        new[256..].copy_from_slice(&old[256..]);
        assert!(matches!(look(&new), Seen::Torn(_)));
    }
}
