//! Where the bytes of a simulated disk are kept: all of them, or islands far apart in a disk too large for memory.
//!
//! Owns the way from a disk's offsets to those of its medium. Never holds content: what lies between islands reads as
//! zeroes, and only zeroes are written there. Invariant: islands are in order and apart, whole blocks but for the end
//! of the disk's last one.

use undercroft_host::FRAME_BYTES;

const B: u64 = FRAME_BYTES as u64;

#[derive(Clone, Copy, Debug)]
struct Island {
    at: u64,
    len: u64,
    medium: u64,
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Space {
    islands: Vec<Island>,
}

/// Consecutive bytes that are all on the medium, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset on the disk.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Offset on the medium.
    pub medium: Option<u64>,
}

impl Space {
    /// A disk of `size` bytes, all of which are kept.
    pub(crate) fn dense(size: u64) -> Self {
        Self { islands: vec![Island { at: 0, len: size, medium: 0 }] }
    }

    /// A disk of which only islands are kept: at its beginning, round 4 GiB, round block 2^32, and at its end.
    pub(crate) fn sparse(blocks_each: u64, last_bytes: u64) -> (Self, u64) {
        let n = blocks_each.max(2) * B;
        let size = (1 << 45) + last_bytes;
        let mut islands = Vec::new();
        let mut medium = 0;
        for (at, len) in [(0, n), ((1 << 32) - n / 2 / B * B, n), ((1 << 44) - n / 2 / B * B, n)] {
            islands.push(Island { at, len, medium });
            medium += len;
        }
        let at = (1 << 45) - n;
        islands.push(Island { at, len: size - at, medium });
        (Self { islands }, size)
    }

    /// Bytes of the medium.
    pub(crate) fn medium_bytes(&self) -> u64 {
        self.islands.iter().map(|i| i.len).sum()
    }

    /// Whether all of the disk is kept.
    pub(crate) fn is_dense(&self) -> bool {
        self.islands.len() == 1
    }

    /// The bytes of a range, in order, cut where they stop or begin to be kept.
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = offset + len;
        let (mut at, mut i) = (offset, 0);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            while self.islands.get(i).is_some_and(|n| n.at + n.len <= at) {
                i += 1;
            }
            let piece = match self.islands.get(i) {
                Some(n) if n.at <= at => {
                    Piece { at, len: end.min(n.at + n.len) - at, medium: Some(n.medium + (at - n.at)) }
                }
                Some(n) => Piece { at, len: end.min(n.at) - at, medium: None },
                None => Piece { at, len: end - at, medium: None },
            };
            at += piece.len;
            Some(piece)
        })
    }

    /// The bytes of a range that are kept: from where on the disk, from where on the medium, and how many.
    pub fn kept(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.pieces(offset, len).filter_map(|p| Some((p.at, p.medium?, p.len)))
    }

    /// Where on the disk byte `at` of the medium is, and how many bytes follow it without a gap.
    pub fn place(&self, at: u64) -> (u64, u64) {
        let n = self.islands.iter().rev().find(|n| n.medium <= at).unwrap_or(&self.islands[0]);
        (n.at + (at - n.medium), n.len - (at - n.medium))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_islands_begin_and_end() {
        let (s, size) = Space::sparse(4, 100);
        assert!(!s.is_dense() && size > 1 << 45 && s.medium_bytes() == 16 * B + 100);
        let all: Vec<Piece> = s.pieces(0, size).collect();
        assert_eq!(all.iter().map(|p| p.len).sum::<u64>(), size);
        assert_eq!(all.iter().filter(|p| p.medium.is_some()).count(), 4);
        for p in all.iter().filter(|p| p.medium.is_some()) {
            assert_eq!(s.place(p.medium.unwrap()), (p.at, p.len));
            assert_eq!(s.place(p.medium.unwrap() + 1), (p.at + 1, p.len - 1));
        }
        let around: Vec<Piece> = s.pieces(3 * B + 5, 2 * B).collect();
        assert_eq!(around[0], Piece { at: 3 * B + 5, len: B - 5, medium: Some(3 * B + 5) });
        assert_eq!(around[1], Piece { at: 4 * B, len: B + 5, medium: None });
        let dense = Space::dense(10);
        assert_eq!(dense.pieces(2, 3).collect::<Vec<_>>(), [Piece { at: 2, len: 3, medium: Some(2) }]);
    }
}
