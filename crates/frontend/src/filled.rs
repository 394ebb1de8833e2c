//! Which parts of a read's data have been copied: a front end looks at this before it answers the read with success.
//!
//! Owns one bit per 4 KiB block of one request. Never owns the data. Invariant: a read is whole only when every byte of
//! it has been copied since `begin`, however often, and in whatever order the pieces came.
//!
//! A count of bytes would not be enough: a read that joins another's operation, and starts anew when that one fails, is
//! given some of its bytes twice. Then the sum of bytes says nothing about which of them have come.

/// Bytes of the cache's blocks. The core copies, of each block, all that the request wants with one call. Where blocks
/// begin the core decides for each disk (docs/decisions/0192): the first piece shows it.
pub(super) const BLOCK: usize = 4096;
/// Blocks for which no memory is needed: 256 KiB, what copying tools ask for at most.
const FEW: usize = 64;

/// What has come of one read's data.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    /// Bytes of data.
    len: usize,
    /// Where the data begins in its first block; not known before the first piece.
    skew: Option<usize>,
    /// Blocks that have not come.
    left: usize,
    /// A bit for each of the first blocks that has.
    few: u64,
    /// And for those after them; kept from request to request.
    many: Vec<u64>,
}

impl Filled {
    /// Of a request without data.
    pub(super) const fn new() -> Filled {
        Filled { len: 0, skew: None, left: 0, few: 0, many: Vec::new() }
    }

    /// A request begins that brings no data.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.left = 0;
    }

    /// A read of `len` bytes begins: nothing has come.
    #[inline]
    pub(super) fn begin(&mut self, len: usize) {
        (self.len, self.skew, self.left) = (len, None, usize::from(len > 0));
    }

    /// The first piece has come: `n` bytes from byte `at` on. All but those at the ends begin and end where blocks do.
    #[inline]
    fn follow(&mut self, at: usize, n: usize) -> usize {
        let boundary = if at > 0 { at } else { n };
        let skew = (BLOCK - boundary % BLOCK) % BLOCK;
        self.begins_at(skew);
        skew
    }

    /// The data begins `skew` bytes after the beginning of a block. The first piece says so; only a planted bug
    /// believes that it knows earlier.
    #[inline]
    pub(super) fn begins_at(&mut self, skew: usize) {
        self.skew = Some(skew);
        self.left = (skew + self.len).div_ceil(BLOCK);
        self.few = 0;
        if self.left > FEW {
            self.many.clear();
            self.many.resize(self.left.div_ceil(64) - 1, 0);
        }
    }

    /// `n` bytes from byte `at` of the data on have been copied. A piece that is not all that the request wants of a
    /// block does not count.
    #[inline]
    pub(super) fn copied(&mut self, at: usize, n: usize) {
        if n == self.len || self.left == 0 {
            // All at once, as a read of one block comes; or again, after all of it.
            self.left = 0;
            return;
        }
        let skew = self.skew.unwrap_or_else(|| self.follow(at, n));
        let (from, to) = (skew + at, skew + at + n);
        let first = if at == 0 { 0 } else { from.div_ceil(BLOCK) };
        let end = if at + n == self.len { to.div_ceil(BLOCK) } else { to / BLOCK };
        for block in first..end {
            let word = if block < FEW { &mut self.few } else { &mut self.many[block / 64 - 1] };
            let bit = 1 << (block % 64);
            self.left -= usize::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// Whether all of the data has come.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that the core cuts a read into.
    fn pieces(offset: u64, len: usize) -> Vec<(usize, usize)> {
        let (mut at, mut all) = (0, Vec::new());
        while at < len {
            let n = (BLOCK - (offset as usize + at) % BLOCK).min(len - at);
            all.push((at, n));
            at += n;
        }
        all
    }

    #[test]
    fn a_read_is_whole_when_every_piece_has_come_in_any_order_and_however_often() {
        let mut filled = Filled::new();
        let mut x = 7u64;
        for (offset, len) in [(0, 1), (0, 4096), (4095, 2), (511, 4096), (1, 262_143), (3, 262_144), (9, 32 << 20)] {
            let mut order = pieces(offset, len);
            for i in (1..order.len()).rev() {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                order.swap(i, (x >> 33) as usize % (i + 1));
            }
            filled.begin(len);
            for &(at, n) in &order {
                assert!(!filled.is_whole(), "{len} at {offset}: not before the last piece");
                filled.copied(at, n);
                filled.copied(at, n);
            }
            assert!(filled.is_whole(), "{len} at {offset}");
        }
    }

    #[test]
    fn as_many_bytes_as_were_asked_for_are_no_proof() {
        let mut filled = Filled::new();
        filled.begin(3 * BLOCK);
        for _ in 0..3 {
            filled.copied(BLOCK - 100, BLOCK);
        }
        assert!(!filled.is_whole(), "one block three times is not three blocks");
    }

    #[test]
    fn pieces_that_are_cut_elsewhere_than_the_first_do_not_count() {
        let mut filled = Filled::new();
        filled.begin(4 * BLOCK);
        for at in [0, 1024, 2048, 3072].map(|at| at + BLOCK) {
            filled.copied(at, 1024);
            filled.copied(at + BLOCK, 1024);
        }
        assert!(!filled.is_whole());
        for at in 0..4 {
            assert!(!filled.is_whole());
            filled.copied(at * BLOCK, BLOCK);
        }
        assert!(filled.is_whole());
    }

    #[test]
    fn half_of_a_block_is_none() {
        let mut filled = Filled::new();
        filled.begin(2 * BLOCK);
        filled.copied(0, BLOCK);
        filled.copied(BLOCK, BLOCK / 2);
        filled.copied(BLOCK + BLOCK / 2, BLOCK / 2 - 1);
        assert!(!filled.is_whole());
        filled.copied(BLOCK, BLOCK);
        assert!(filled.is_whole());
        filled.begin(2 * BLOCK);
        filled.copied(0, 2 * BLOCK);
        assert!(filled.is_whole(), "several blocks at once are as good");
    }
}
