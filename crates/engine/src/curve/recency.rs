//! The order in which sampled blocks were last asked for, such that "how many since" is quick.
//!
//! Owns positions: one bit each, and a Fenwick tree over the words of 64 bits. A block takes the next position whenever
//! it is asked for and leaves its old one. Never knows which block is where.
//! Invariant: the tree counts exactly the bits; no bit is set at or after `next`.

#[derive(Clone, Debug)]
pub(super) struct Recency {
    words: Vec<u64>,
    /// Fenwick tree (Fenwick, 1994) over the words' bit counts; entry `i` here is entry `i + 1` of the textbook.
    tree: Vec<u32>,
    next: u32,
    live: u32,
}

impl Recency {
    /// No position taken; room for at least `positions`.
    pub fn new(positions: u32) -> Self {
        let words = positions.div_ceil(u64::BITS) as usize;
        Self { words: vec![0; words], tree: vec![0; words], next: 0, live: 0 }
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
        self.next as usize == self.words.len() * u64::BITS as usize
    }

    /// Takes the newest position.
    pub fn push(&mut self) -> u32 {
        let at = self.next;
        self.next += 1;
        self.live += 1;
        self.words[(at / u64::BITS) as usize] |= 1 << (at % u64::BITS);
        self.count(at, 1);
        at
    }

    /// Gives up a position that is taken.
    pub fn remove(&mut self, at: u32) {
        self.live -= 1;
        self.words[(at / u64::BITS) as usize] &= !(1 << (at % u64::BITS));
        self.count(at, u32::MAX);
    }

    fn count(&mut self, at: u32, by: u32) {
        let mut entry = (at / u64::BITS) as usize;
        while let Some(count) = self.tree.get_mut(entry) {
            *count = count.wrapping_add(by);
            entry |= entry + 1;
        }
    }

    /// Positions taken that are older than `at`.
    pub fn older_than(&self, at: u32) -> u32 {
        let word = (at / u64::BITS) as usize;
        let mut older = self.words.get(word).map_or(0, |w| (w & ((1 << (at % u64::BITS)) - 1)).count_ones());
        let mut end = word;
        while end > 0 {
            older += self.tree[end - 1];
            end &= end - 1;
        }
        older
    }

    /// Makes the taken positions `0..live`, in their order, with room for at least `positions`: what was at `at` is
    /// at what `older_than(at)` was.
    pub fn make_dense(&mut self, live: u32, positions: u32) {
        let words = positions.div_ceil(u64::BITS) as usize;
        self.words.clear();
        self.words.resize(words, 0);
        self.tree.clear();
        self.tree.resize(words, 0);
        (self.next, self.live) = (live, live);
        for (word, bits) in self.words.iter_mut().enumerate() {
            let set = live.saturating_sub(word as u32 * u64::BITS).min(u64::BITS);
            *bits = u64::MAX.checked_shr(u64::BITS - set).unwrap_or(0);
            self.tree[word] = set;
        }
        for entry in 0..words {
            let parent = entry | (entry + 1);
            if parent < words {
                self.tree[parent] += self.tree[entry];
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>() + self.tree.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sorted list of positions.
        #[test]
        fn counts_as_a_list_does(steps in prop::collection::vec(any::<prop::sample::Index>(), 1..600)) {
            let mut recency = Recency::new(200);
            let mut model: Vec<u32> = vec![];
            for step in steps {
                if recency.is_used_up() {
                    model = model.iter().map(|&at| recency.older_than(at)).collect();
                    prop_assert_eq!(&model, &(0..recency.live()).collect::<Vec<_>>());
                    recency.make_dense(recency.live(), 200);
                }
                if model.len() > 100 || step.index(3) == 0 && !model.is_empty() {
                    recency.remove(model.remove(step.index(model.len())));
                } else {
                    model.push(recency.push());
                }
                prop_assert_eq!(recency.live() as usize, model.len());
                let at = step.index(recency.next() as usize + 1) as u32;
                prop_assert_eq!(recency.older_than(at) as usize, model.iter().filter(|&&m| m < at).count());
            }
        }
    }
}
