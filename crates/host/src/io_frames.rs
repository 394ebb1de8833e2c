//! Frames for one operation, in the order in which the kernel has least to do with them.
//!
//! Owns that order. Never keeps a frame. Invariant: what is taken is the same as by [`Arena::take`], one by one.

use crate::frame::{Arena, Frame};

impl Arena {
    /// Takes `n` frames for one operation and appends them to `list`, in the order of their addresses. Neighbours are
    /// one piece of memory for the kernel, which takes twice as long to pin and map 64 pieces as one of the same
    /// length. False if so many are not there; then `list` has those that were.
    pub fn take_for_io(&mut self, n: usize, list: &mut Vec<Frame>) -> bool {
        let from = list.len();
        list.extend(std::iter::from_fn(|| self.take()).take(n));
        list[from..].sort_unstable_by_key(|frame| frame.as_ptr());
        list.len() - from == n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FRAME_BYTES;

    #[test]
    fn frames_that_come_back_in_any_order_are_neighbours_again() {
        let mut arena = Arena::new(64).unwrap();
        let mut list = Vec::new();
        assert!(arena.take_for_io(64, &mut list));
        // Those of even numbers first, and backwards.
        let (even, odd): (Vec<_>, Vec<_>) = list.drain(..).enumerate().partition(|(n, _)| n % 2 == 0);
        even.into_iter().rev().chain(odd).for_each(|(_, frame)| arena.put(frame));
        assert!(arena.take_for_io(64, &mut list));
        let at = |n: usize| list[n].as_ptr() as usize;
        assert!((1..64).all(|n| at(n) == at(n - 1) + FRAME_BYTES));
        assert!(!arena.take_for_io(1, &mut Vec::new()), "there are 64");
        list.drain(..).for_each(|frame| arena.put(frame));
    }
}
