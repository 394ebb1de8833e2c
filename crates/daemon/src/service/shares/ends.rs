//! When intervals ended, so that what was decided in one of them can be dated.
//!
//! Owns the times of the last ones, in bounded memory. Never decides. Invariant: the number of an interval is that of
//! the governor whose intervals these are: the first is 0.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Ends that are kept: as many as there are events at most.
const ENDS_MAX: usize = 4096;

/// See the head of the file.
#[derive(Debug, Default)]
pub(in crate::service) struct Ends {
    intervals: u64,
    /// The youngest at the end.
    ended: VecDeque<Instant>,
}

impl Ends {
    /// Intervals that have ended.
    pub(in crate::service) fn count(&self) -> u64 {
        self.intervals
    }

    /// One has ended now.
    pub(super) fn note(&mut self) {
        self.intervals += 1;
        if self.ended.len() == ENDS_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Instant::now());
    }

    /// How long ago the interval of this number ended, if that is still known.
    pub(in crate::service) fn ago(&self, interval: u64) -> Option<Duration> {
        let back = self.intervals.checked_sub(interval + 1)?;
        let at = self.ended.len().checked_sub(usize::try_from(back).ok()? + 1)?;
        self.ended.get(at).map(Instant::elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_no_others() {
        let mut ends = Ends::default();
        assert_eq!(ends.ago(0), None);
        (0..ENDS_MAX + 2).for_each(|_| ends.note());
        let last = ends.count() - 1;
        assert_eq!(last, ENDS_MAX as u64 + 1);
        assert_eq!([ends.ago(0), ends.ago(1), ends.ago(last + 1)], [None; 3]);
        assert!(ends.ago(2).unwrap() >= ends.ago(last).unwrap());
    }
}
