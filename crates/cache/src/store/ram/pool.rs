//! The pool of frames for I/O: what the disks of a core lend each other beyond what each is guaranteed.
//!
//! Owns how many frames there are and how many are lent. Never holds a frame: those are the arena's. Invariant: no more
//! is lent than there is, but for what was lent before a disk took its part back; that part stays promised until the
//! frames have come back.
//!
//! Who may borrow how much is decided by a dynamic threshold, as in shared buffers of switches (Choudhury and Hahne,
//! 1998): a disk's loan stays below a multiple of what is still free. One disk alone gets nearly everything; among
//! several that want all they can get each has as much as the others, and something stays free for the next one.

/// See the head of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoPool {
    frames: usize,
    lent: usize,
    /// Of those lent, frames that the pool has not any more.
    owed: usize,
}

impl IoPool {
    /// Frames that the disks have brought.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Frames lent to operations.
    pub(crate) fn lent(&self) -> usize {
        self.lent
    }

    /// Of those lent, frames that a disk has taken back.
    pub(crate) fn owed(&self) -> usize {
        self.owed
    }

    /// Frames lent beyond those there are.
    pub(crate) fn over(&self) -> usize {
        self.lent.saturating_sub(self.frames)
    }

    /// How many frames more a disk may borrow that has `loan`, of which `noted` are counted so far: its loan stays
    /// within `times` what is free then.
    pub(crate) fn room(&self, noted: usize, loan: usize, times: usize) -> usize {
        let free = (self.frames + noted).saturating_sub(self.lent + loan);
        (times * free).saturating_sub(loan) / (times + 1)
    }

    /// A disk that had `before` frames has `now`.
    pub(crate) fn note(&mut self, before: usize, now: usize) {
        self.lent = self.lent - before + now;
        self.owed = self.owed.min(self.over());
    }

    /// A disk that brought `before` frames brings `now`.
    pub(crate) fn bring(&mut self, before: usize, now: usize) {
        self.frames = self.frames - before + now;
        self.owed = (self.owed + before.saturating_sub(now)).min(self.over());
    }

    /// Checks the invariant; for tests.
    ///
    /// # Panics
    /// If more is lent than there is.
    pub(crate) fn check(&self) {
        assert!(self.lent <= self.frames + self.owed, "frames are lent that the pool has not: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of `n` disks has in the end if all take what they can get, a frame at a time.
    fn floods(n: usize, frames: usize, times: usize) -> Vec<usize> {
        let mut pool = IoPool::default();
        pool.bring(0, frames);
        let mut loans = vec![0; n];
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for loan in &mut loans {
                if pool.room(*loan, *loan, times) > 0 {
                    pool.note(*loan, *loan + 1);
                    *loan += 1;
                    moved = true;
                }
            }
            pool.check();
        }
        loans
    }

    #[test]
    fn one_gets_nearly_all_and_several_get_equal_parts() {
        assert_eq!(floods(1, 900, 8), [800]);
        let two = floods(2, 1700, 8);
        assert!(two.iter().all(|n| (790..=800).contains(n)), "{two:?}");
        let ten = floods(10, 810, 8);
        assert!(ten.iter().all(|n| (70..=80).contains(n)), "{ten:?}");
    }

    #[test]
    fn whoever_comes_late_gets_something_and_more_as_loans_come_back() {
        let mut pool = IoPool::default();
        pool.bring(0, 900);
        let all = pool.room(0, 0, 8);
        pool.note(0, all);
        let first = pool.room(0, 0, 8);
        assert!(first > 0);
        assert_eq!(pool.room(all, all, 1), 0, "what can wait is lent less");
        pool.note(all, all / 2);
        assert!(pool.room(0, 0, 8) > 3 * first);
    }

    #[test]
    fn a_part_taken_back_is_owed_until_the_frames_are_back() {
        let mut pool = IoPool::default();
        pool.bring(0, 100);
        pool.bring(0, 100);
        pool.note(0, 150);
        pool.bring(100, 0);
        assert_eq!((pool.over(), pool.room(0, 0, 8)), (50, 0));
        pool.check();
        pool.note(150, 90);
        assert_eq!(pool.over(), 0);
        pool.check();
    }

    #[test]
    #[should_panic(expected = "frames are lent")]
    fn more_than_there_is_is_noticed() {
        let mut pool = IoPool::default();
        pool.bring(0, 10);
        pool.note(0, 11);
        pool.bring(10, 10);
        pool.check();
    }
}
