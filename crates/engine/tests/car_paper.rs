//! CAR against a literal transcription of figure 2 of its paper (Bansal and Modha, FAST 2004).
//!
//! The reference counts have no rows for CAR, so the paper itself is the reference. Line numbers are the paper's.

use std::collections::{BTreeMap, VecDeque};
use undercroft_engine::{Access, Index, Outcome, PolicyKind};

/// Clocks as queues with the head at the front; ghost lists with the LRU page at the front.
struct Paper {
    c: usize,
    p: f64,
    t1: VecDeque<u64>,
    t2: VecDeque<u64>,
    b1: VecDeque<u64>,
    b2: VecDeque<u64>,
    reference_bit: BTreeMap<u64, bool>,
}

impl Paper {
    fn new(c: usize) -> Self {
        let (t1, t2, b1, b2, reference_bit) = Default::default();
        Self { c, p: 0.0, t1, t2, b1, b2, reference_bit }
    }

    /// CAR(x); whether it was a hit.
    fn car(&mut self, x: u64) -> bool {
        // 1, 2
        if let Some(bit) = self.reference_bit.get_mut(&x) {
            *bit = true;
            return true;
        }
        let (in_b1, in_b2) = (self.b1.contains(&x), self.b2.contains(&x));
        // 4: cache full, replace a page from cache
        if self.t1.len() + self.t2.len() == self.c {
            // 5
            self.replace();
            // 6, 7: cache directory replacement
            if !in_b1 && !in_b2 && self.t1.len() + self.b1.len() == self.c {
                self.b1.pop_front();
            // 8, 9
            } else if !in_b1 && !in_b2 && self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() == 2 * self.c {
                self.b2.pop_front();
            }
        }
        // 12, 13
        if !in_b1 && !in_b2 {
            self.t1.push_back(x);
        // 14 to 16
        } else if in_b1 {
            self.p = f64::min(self.p + f64::max(1.0, self.b2.len() as f64 / self.b1.len() as f64), self.c as f64);
            self.b1.retain(|&b| b != x);
            self.t2.push_back(x);
        // 17 to 19
        } else {
            self.p = f64::max(self.p - f64::max(1.0, self.b1.len() as f64 / self.b2.len() as f64), 0.0);
            self.b2.retain(|&b| b != x);
            self.t2.push_back(x);
        }
        self.reference_bit.insert(x, false);
        false
    }

    /// replace()
    fn replace(&mut self) {
        // 22 to 38
        loop {
            // 24
            if self.t1.len() as f64 >= f64::max(1.0, self.p) {
                let head = self.t1.pop_front().expect("T1 is not empty");
                // 25, 26, 27
                if !self.reference_bit[&head] {
                    self.reference_bit.remove(&head);
                    self.b1.push_back(head);
                    return;
                }
                // 29
                self.reference_bit.insert(head, false);
                self.t2.push_back(head);
            } else {
                let head = self.t2.pop_front().expect("T2 is not empty");
                // 32, 33, 34
                if !self.reference_bit[&head] {
                    self.reference_bit.remove(&head);
                    self.b2.push_back(head);
                    return;
                }
                // 36
                self.reference_bit.insert(head, false);
                self.t2.push_back(head);
            }
        }
    }
}

/// Hot blocks, a scan now and then, and a loop a little larger than the cache: all four lists fill and `p` wanders.
fn block(i: u64, random: u64, capacity: u64) -> u64 {
    match i / 500 % 4 {
        0 => random % (capacity / 2 + 1),
        1 => (random % (capacity * 3)).min(random / 7 % (capacity * 3)),
        2 => 1000 + i % (capacity + 3),
        _ => 10_000 + i,
    }
}

#[test]
fn car_hits_and_misses_as_its_paper_says() {
    for capacity in [1, 2, 3, 5, 8, 20, 64] {
        let mut paper = Paper::new(capacity as usize);
        let mut index = Index::new(PolicyKind::Car, capacity);
        let mut random = 42u64;
        for i in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let block = block(i, random, u64::from(capacity));
            let expected = paper.car(block);
            let outcome = index.access(block, Access::Read, |_| true);
            assert_eq!(matches!(outcome, Outcome::Hit(_)), expected, "access {i} with {capacity} slots");
        }
        let ours: std::collections::BTreeSet<u64> = index.iter().map(|(b, _)| b).collect();
        assert!(ours.iter().eq(paper.reference_bit.keys()), "the contents at the end differ");
    }
}
