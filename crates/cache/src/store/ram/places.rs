//! A hash table of frames by a hash that the caller keeps: several frames may have one hash.
//!
//! Owns one cell of 4 bytes for each two thirds of a frame: the frame's number and, in the bits that leaves free, a
//! part of its hash. Never holds a hash or a key itself. Invariant: every frame in it is found from its hash's home
//! without crossing an empty cell (linear probing; Knuth, volume 3, 6.4, algorithm R deletes without tombstones).

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Places {
    /// 0: empty; otherwise the frame's number + 1 in the low bits, a part of its hash above.
    cells: Vec<u32>,
    number_mask: u32,
    tag_mask: u32,
    /// Frames in it.
    len: usize,
}

impl Places {
    /// Bytes of cells for each frame.
    pub(crate) const BYTES_PER_FRAME: usize = size_of::<u32>() * 3 / 2;

    /// A table for `frames` frames whose numbers are below `end`.
    pub(crate) fn new(frames: usize, end: usize) -> Self {
        let bits = u32::BITS - (end as u32).leading_zeros();
        let number_mask = u32::MAX.checked_shr(u32::BITS - bits).unwrap_or(0);
        Self { cells: vec![0; frames * 3 / 2 + 2], number_mask, tag_mask: !number_mask, len: 0 }
    }

    /// Whether no frame is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }

    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.cells.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    /// The home comes from the high bits of a hash; what is kept beside the number should differ within one home.
    fn tag(&self, hash: u32) -> u32 {
        hash.wrapping_mul(0x9e37_79b1) & self.tag_mask
    }

    /// Adds frame `n`, which is not in the table.
    pub(crate) fn insert(&mut self, n: u32, hash: u32) {
        let mut at = self.home(hash);
        while self.cells[at] != 0 {
            at = self.next(at);
        }
        self.cells[at] = (n + 1) | self.tag(hash);
        self.len += 1;
    }

    /// The first frame that `is_it` accepts among those that may have this hash.
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let (mut at, tag) = (self.home(hash), self.tag(hash));
        while self.cells[at] != 0 {
            let cell = self.cells[at];
            if cell & self.tag_mask == tag {
                let n = (cell & self.number_mask) - 1;
                if is_it(n) {
                    return Some(n);
                }
            }
            at = self.next(at);
        }
        None
    }

    /// Takes frame `n` out; `hash_of` tells the hash of every frame in the table.
    ///
    /// # Panics
    /// If it is not in the table.
    pub(crate) fn remove(&mut self, n: u32, hash_of: impl Fn(u32) -> u32) {
        let mut hole = self.home(hash_of(n));
        while self.cells[hole] & self.number_mask != n + 1 {
            assert!(self.cells[hole] != 0, "a frame is taken out of a table that it is not in");
            hole = self.next(hole);
        }
        let mut at = hole;
        loop {
            at = self.next(at);
            if self.cells[at] == 0 {
                break;
            }
            let home = self.home(hash_of((self.cells[at] & self.number_mask) - 1));
            // It may move to the hole unless its home lies behind the hole, going round.
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
        }
        self.cells[hole] = 0;
        self.len -= 1;
    }

    /// Frames in the table; for tests.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.cells.iter().filter(|&&c| c != 0).map(|c| (c & self.number_mask) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Against a map, with hashes that crowd together, some the same for many, some at the end of the table.
    #[test]
    fn frames_come_and_go_and_are_found_by_their_hash() {
        const N: usize = 200;
        let mut t = Places::new(N, 1000 + N);
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        let mut x = 1u64;
        for round in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let n = 1000 + (x >> 33) as u32 % N as u32;
            let known = model.contains_key(&n);
            if known {
                t.remove(n, |m| model[&m]);
                model.remove(&n);
            }
            if !known {
                let hash = match (x >> 20) % 3 {
                    0 => u32::MAX - (x >> 60) as u32,
                    1 => 7 << 28,
                    _ => (x >> 8) as u32,
                };
                t.insert(n, hash);
                model.insert(n, hash);
            }
            if round % 50 == 0 {
                for (&n, &hash) in &model {
                    assert_eq!(t.find(hash, |m| m == n), Some(n));
                }
                assert_eq!(t.iter().count(), model.len());
                let absent = (1000..1000 + N as u32).find(|n| !model.contains_key(n)).unwrap();
                assert_eq!(t.find(7 << 28, |m| m == absent), None);
            }
        }
    }
}
