//! How much processor time copying and hashing guest memory may take.
//!
//! Owns the account: time is credited at the rate of the limit, and time for copies is debited. Never reads a clock.
//! Invariant: over any span, copies start only while the time spent is at most the limit's part of the span plus a
//! short burst, or while it was beyond that before: what is hashed for misses and writes is debited and cannot be
//! stopped, so the debt is bounded, too.

/// Time saved up at most, in nanoseconds: a burst of copies this long may follow a quiet time.
const BURST_NS: i64 = 20_000_000;
/// The deepest debt, in nanoseconds: so much longer than what caused it lasts, at the limit's rate, copies wait.
const DEBT_NS: i64 = BURST_NS;

/// The account of one worker.
#[derive(Debug)]
pub(super) struct Copying {
    percent: i64,
    saved_ns: i64,
    since_ns: u64,
    spent_ns: u64,
}

impl Copying {
    pub(super) fn new(percent: u32, now_ns: u64) -> Self {
        Self { percent: i64::from(percent.min(100)), saved_ns: BURST_NS, since_ns: now_ns, spent_ns: 0 }
    }

    /// Whether guest memory may be copied now.
    pub(super) fn allows(&mut self, now_ns: u64) -> bool {
        let elapsed = i64::try_from(now_ns.saturating_sub(self.since_ns)).unwrap_or(i64::MAX / 200).min(i64::MAX / 200);
        self.since_ns = now_ns;
        self.saved_ns = (self.saved_ns + elapsed * self.percent / 100).min(BURST_NS);
        self.percent > 0 && self.saved_ns > 0
    }

    /// Notes what was spent.
    pub(super) fn spend(&mut self, took_ns: u64) {
        self.spent_ns += took_ns;
        let took_ns = i64::try_from(took_ns).unwrap_or(i64::MAX);
        self.saved_ns = self.saved_ns.saturating_sub(took_ns).max(-DEBT_NS);
    }

    /// What was spent since the worker began.
    pub(super) fn spent_ns(&self) -> u64 {
        self.spent_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spending_follows_the_ceiling() {
        let mut account = Copying::new(10, 0);
        let (mut now, mut spent) = (0u64, 0u64);
        for _ in 0..100_000 {
            now += 100_000;
            if account.allows(now) {
                account.spend(60_000);
                spent += 60_000;
            }
        }
        let part = spent as f64 / now as f64;
        assert!((0.099..0.103).contains(&part), "{part} of the time");
        assert_eq!(account.spent_ns(), spent);
    }

    #[test]
    fn work_that_no_limit_stops_leaves_a_short_debt() {
        let mut account = Copying::new(20, 0);
        for ms in 0..10_000 {
            account.allows(ms * 1_000_000);
            account.spend(400_000);
        }
        assert!(!account.allows(10_000_000_000), "twice the limit, and nothing saved");
        assert!(account.allows(10_200_000_000), "10 s of it do not end copies for 10 s more");
    }

    #[test]
    fn a_ceiling_of_nothing_allows_nothing_and_a_long_sleep_saves_one_burst() {
        assert!(!Copying::new(0, 0).allows(u64::MAX));
        let mut account = Copying::new(50, 0);
        assert!(account.allows(u64::MAX));
        account.spend(BURST_NS as u64 + 1);
        assert!(!account.allows(u64::MAX));
    }
}
