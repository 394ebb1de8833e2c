//! The order in which blocks were last asked for, such that "how many since" is quick.
//!
//! Owns positions: one bit each, counted by words of 64 and by groups of 8 words. A block takes the next position
//! whenever it is asked for and leaves its old one. Never knows which block is where. Invariant: the counts are those
//! of the bits; no bit is set at or after `next`.
//!
//! A sample of some thousand blocks needs no tree: a request changes three numbers, and adds up one number for each 512
//! positions in a loop whose end is always the same. Above [`TOP_MAX`] groups there are levels above them, each of one
//! count for 16 below: a cache line is added up at each, without a branch that depends on the trace. With four million
//! positions (512 KiB of bits, 45 KiB of counts) that takes less than half of a Fenwick tree over positions, whose
//! steps are as many as the position has bits and whose 16 MiB leave the processor's caches.

/// Positions of a word.
const WORD: u32 = u64::BITS;
/// Positions of a group: 8 words, whose counts are one byte each of a number.
const GROUP: u32 = 8 * WORD;

/// Counts that one of the level above stands for.
const FAN: usize = 16;
/// Counts of the highest level at most, with a level above them where there are more.
const TOP_MAX: usize = 64;

/// Positions in time; see the head of the file.
#[derive(Clone, Debug)]
pub struct Recency {
    words: Vec<u64>,
    /// Byte `i` is the count of the group's word `i`.
    by_word: Vec<u64>,
    by_group: Vec<u32>,
    /// Sums of [`FAN`] groups, of as many of those sums, and so on; empty where the groups are few.
    above: Vec<Vec<u32>>,
    /// What came before each group when `sum_up` was called.
    before_group: Vec<u32>,
    next: u32,
    live: u32,
}

/// The sum of the lowest `bytes` bytes (0..8), each at most 64.
fn sum_of_bytes(packed: u64, bytes: u32) -> u32 {
    const EVERY_SECOND: u64 = 0x00FF_00FF_00FF_00FF;
    let lowest = packed & ((1 << (bytes * 8)) - 1);
    let pairs = (lowest & EVERY_SECOND) + (lowest >> 8 & EVERY_SECOND);
    (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as u32
}

/// The sum of the counts of one node's children that come before `child`.
#[inline]
fn sum_before(level: &[u32], child: usize) -> u32 {
    let from = child - child % FAN;
    // the level ends with a whole node, but for a position past the end
    let Some(children) = level.get(from..from + FAN) else { return 0 };
    children.iter().enumerate().map(|(i, &n)| if i < child % FAN { n } else { 0 }).sum()
}

impl Recency {
    /// No position taken; room for at least `positions`.
    pub fn new(positions: u32) -> Self {
        let (by_word, by_group, above, before_group) = (vec![], vec![], vec![], vec![]);
        let mut recency = Self { words: vec![], by_word, by_group, above, before_group, next: 0, live: 0 };
        recency.make_dense(0, positions);
        recency
    }

    /// Positions taken.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// The position that the next call of `push` gives.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Whether positions must be made dense before the next one is given.
    pub fn is_used_up(&self) -> bool {
        self.next as usize == self.words.len() * WORD as usize
    }

    /// Takes the newest position.
    #[inline]
    pub fn push(&mut self) -> u32 {
        let at = self.next;
        self.next += 1;
        self.live += 1;
        self.words[(at / WORD) as usize] |= 1 << (at % WORD);
        self.by_word[(at / GROUP) as usize] += 1 << (at % GROUP / WORD * 8);
        let mut node = (at / GROUP) as usize;
        self.by_group[node] += 1;
        for level in &mut self.above {
            node /= FAN;
            level[node] += 1;
        }
        at
    }

    /// Gives up a position that is taken.
    #[inline]
    pub fn remove(&mut self, at: u32) {
        self.live -= 1;
        self.words[(at / WORD) as usize] &= !(1 << (at % WORD));
        self.by_word[(at / GROUP) as usize] -= 1 << (at % GROUP / WORD * 8);
        let mut node = (at / GROUP) as usize;
        self.by_group[node] -= 1;
        for level in &mut self.above {
            node /= FAN;
            level[node] -= 1;
        }
    }

    /// Positions taken that are older than `at`.
    #[inline]
    pub fn older_than(&self, at: u32) -> u32 {
        let mut node = (at / GROUP) as usize;
        let mut older = self.older_in_group(at);
        let mut level = &self.by_group;
        for above in &self.above {
            older += sum_before(level, node);
            (level, node) = (above, node / FAN);
        }
        // the whole level, so that the end of the loop is always the same
        older + level.iter().enumerate().map(|(i, &n)| if i < node { n } else { 0 }).sum::<u32>()
    }

    fn older_in_group(&self, at: u32) -> u32 {
        let Some(word) = self.words.get((at / WORD) as usize) else { return 0 };
        let words = sum_of_bytes(self.by_word[(at / GROUP) as usize], at % GROUP / WORD);
        words + (word & ((1 << (at % WORD)) - 1)).count_ones()
    }

    /// Prepares for `rank`.
    pub fn sum_up(&mut self) {
        self.before_group.clear();
        let mut sum = 0;
        for count in &self.by_group {
            self.before_group.push(sum);
            sum += count;
        }
    }

    /// What `older_than` says, at once, if nothing was changed since `sum_up`.
    #[inline]
    pub fn rank(&self, at: u32) -> u32 {
        let before = self.before_group.get((at / GROUP) as usize).copied().unwrap_or(self.live);
        before + self.older_in_group(at)
    }

    /// Makes the taken positions `0..live`, in their order, with room for at least `positions`: what was at `at` is
    /// at what `older_than(at)` was.
    pub fn make_dense(&mut self, live: u32, positions: u32) {
        let mut groups = positions.div_ceil(GROUP);
        if groups as usize > TOP_MAX {
            groups = groups.next_multiple_of(FAN as u32);
        }
        self.words.clear();
        let full = |from: u32| live.saturating_sub(from).min(WORD);
        self.words.extend((0..groups * 8).map(|w| u64::MAX.checked_shr(WORD - full(w * WORD)).unwrap_or(0)));
        self.by_word.clear();
        let packed = |group: u32| (0..8).map(|w| u64::from(full(group * GROUP + w * WORD)) << (w * 8)).sum::<u64>();
        self.by_word.extend((0..groups).map(packed));
        self.by_group.clear();
        self.by_group.extend((0..groups).map(|group| live.saturating_sub(group * GROUP).min(GROUP)));
        let mut below = &self.by_group;
        let mut levels = vec![];
        while below.len() > TOP_MAX {
            let mut level: Vec<u32> = below.chunks(FAN).map(|children| children.iter().sum()).collect();
            if level.len() > TOP_MAX {
                level.resize(level.len().next_multiple_of(FAN), 0);
            }
            levels.push(level);
            below = levels.last().expect("just pushed");
        }
        self.above = levels;
        (self.next, self.live) = (live, live);
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        (self.words.capacity() + self.by_word.capacity()) * size_of::<u64>()
            + (self.by_group.capacity() + self.before_group.capacity()) * size_of::<u32>()
            + self.above.iter().map(|level| level.capacity() * size_of::<u32>()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sorted list of positions.
        #[test]
        fn counts_as_a_list_does(
            steps in prop::collection::vec(any::<prop::sample::Index>(), 1..4000),
            // no level above the groups, one, and two
            positions in prop::sample::select(vec![1200u32, 40_000, 700_000]),
        ) {
            let mut recency = Recency::new(positions);
            // past most of the positions, so that many nodes count
            for _ in 0..positions.saturating_sub(1200) {
                let at = recency.push();
                recency.remove(at);
            }
            let mut model: Vec<u32> = vec![];
            for step in steps {
                if recency.is_used_up() {
                    recency.sum_up();
                    model = model.iter().map(|&at| recency.rank(at)).collect();
                    prop_assert_eq!(&model, &(0..recency.live()).collect::<Vec<_>>());
                    recency.make_dense(recency.live(), positions);
                    for _ in 0..positions.saturating_sub(1200) {
                        let at = recency.push();
                        recency.remove(at);
                    }
                }
                if model.len() > 700 || step.index(5) == 0 && !model.is_empty() {
                    recency.remove(model.remove(step.index(model.len())));
                } else {
                    model.push(recency.push());
                }
                prop_assert_eq!(recency.live() as usize, model.len());
                let at = step.index(recency.next() as usize + 1) as u32;
                recency.sum_up();
                prop_assert_eq!(recency.rank(at), recency.older_than(at));
                prop_assert_eq!(recency.older_than(at) as usize, model.iter().filter(|&&m| m < at).count());
            }
        }
    }
}
