//! How long an idle worker looks for work before it sleeps: while requests come soon after each other, looking for them
//! is faster than sleeping and waking up. The configuration limits the time.
//!
//! Owns one number. Never reads a clock. Invariant: `window_ns <= bound_ns`.
//! The rule is that of QEMU's event loop (`aio_poll` with `poll-max-ns`): grow when a wake-up came soon after going to
//! sleep, so that a slightly longer window would have caught it; shrink when it came so late that no window would have.

/// First window when growing from nothing, in nanoseconds.
const START_NS: u64 = 4_000;

/// The adaptive window.
#[derive(Debug, Default)]
pub(super) struct Polling {
    bound_ns: u64,
    window_ns: u64,
}

impl Polling {
    /// Sets the longest window, in nanoseconds; 0 turns polling off.
    pub(super) fn set_bound(&mut self, bound_ns: u64) {
        self.bound_ns = bound_ns;
        self.window_ns = self.window_ns.min(bound_ns);
    }

    /// Nanoseconds to look for work now, before sleeping.
    #[inline]
    pub(super) fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Learns that work came `idle_ns` after the last of it was done.
    pub(super) fn learn(&mut self, idle_ns: u64) {
        if idle_ns <= self.window_ns {
            return;
        }
        if idle_ns > self.bound_ns {
            self.window_ns = if self.window_ns / 2 < START_NS { 0 } else { self.window_ns / 2 };
        } else {
            self.window_ns = (self.window_ns * 2).max(START_NS).max(idle_ns).min(self.bound_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Polling;

    #[test]
    fn grows_to_what_would_have_caught_the_work() {
        let mut p = Polling::default();
        p.set_bound(50_000);
        assert_eq!(p.window_ns(), 0, "starts by sleeping at once");
        p.learn(20_000);
        assert!(p.window_ns() >= 20_000 && p.window_ns() <= 50_000);
    }

    #[test]
    fn shrinks_to_nothing_when_work_is_rare() {
        let mut p = Polling::default();
        p.set_bound(50_000);
        p.learn(40_000);
        for _ in 0..8 {
            p.learn(10_000_000);
        }
        assert_eq!(p.window_ns(), 0);
    }

    #[test]
    fn never_passes_the_bound() {
        let mut p = Polling::default();
        p.set_bound(5_000);
        for idle in [1, 4_999, 5_000, 5_001, 3_000] {
            p.learn(idle);
            assert!(p.window_ns() <= 5_000);
        }
        p.set_bound(0);
        p.learn(1);
        assert_eq!(p.window_ns(), 0, "off stays off");
    }
}
