//! Which evictions are those of a sequential stream: a few streams, known by the block that would come next.
//!
//! Owns what is expected of each. Never keeps blocks, never allocates after the start. Invariant: a block is sequential
//! only if `RUN` blocks before it left RAM in their order, with few of others between them.

/// So many blocks (128 KiB) in their order make a stream.
const RUN: u32 = 32;
/// Streams that are long, and that may become so.
const LONG: usize = 8;
const SHORT: usize = 24;
/// A stream may leave out so many blocks, or come so many late.
const SLACK: u64 = 16;
/// Blocks of a stripe, which lie in one region...
const STRIPE: u64 = 64;
/// ... and how many stripes of other regions may lie between two.
const STRIPES: u64 = 16;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// The block after its last one.
    next: u64,
    run: u32,
    owner: u16,
}

impl Stream {
    /// Whether a block goes on with it.
    fn has(&self, owner: u16, block: u64) -> bool {
        let ahead = block.wrapping_sub(self.next);
        let is_near = ahead.wrapping_add(SLACK) < 2 * SLACK;
        let is_of_next_stripe = block.is_multiple_of(STRIPE) && ahead < STRIPE * STRIPES;
        self.run > 0 && self.owner == owner && (is_near || is_of_next_stripe)
    }
}

/// See the head of the file. Both lists have the latest stream first.
#[derive(Default)]
pub(super) struct Streams {
    long: [Stream; LONG],
    short: [Stream; SHORT],
}

impl Streams {
    /// Whether a block that leaves RAM now is one of a stream.
    pub fn is_sequential(&mut self, owner: u16, block: u64) -> bool {
        if let Some(at) = self.long.iter().position(|s| s.has(owner, block)) {
            self.long[..=at].rotate_right(1);
            self.long[0].next = self.long[0].next.max(block + 1);
            return true;
        }
        let at = self.short.iter().position(|s| s.has(owner, block));
        self.short[..=at.unwrap_or(SHORT - 1)].rotate_right(1);
        let first = &mut self.short[0];
        if at.is_none() {
            *first = Stream { next: block + 1, run: 1, owner };
            return false;
        }
        (first.next, first.run) = (first.next.max(block + 1), first.run + 1);
        if first.run >= RUN {
            self.long.rotate_right(1);
            self.long[0] = std::mem::take(first);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::permutation::mix;
    use super::*;

    #[test]
    fn a_scan_beside_others_is_found_and_they_are_not() {
        let mut streams = Streams::default();
        let (mut of_scan, mut of_others) = (0, 0);
        for n in 0..10_000 {
            // Two streams, one of which leaves out what is elsewhere, and eight random blocks in turn.
            of_scan += u32::from(streams.is_sequential(1, 50_000_000 + n));
            of_scan += u32::from(streams.is_sequential(2, n + n / 50 * 7));
            for m in 0..8 {
                of_others += u32::from(streams.is_sequential(1, mix(n * 8 + m) % 1_000_000));
            }
        }
        assert!(of_scan > 19_900, "{of_scan} of 20,000");
        assert!(of_others < 300, "{of_others} of 80,000");
    }

    #[test]
    fn stripes_of_one_region_of_several_are_a_stream() {
        let mut streams = Streams::default();
        let found = (0..64 * 64).filter(|b| b / 64 % 4 == 0).filter(|b| streams.is_sequential(1, *b)).count();
        assert_eq!(found, 16 * 64 - RUN as usize);
    }
}
