//! A ceiling of processor time: how long a worker in the background sleeps after what it has used.
//!
//! Owns a budget. Never reads a clock, never sleeps itself. Invariant: over any span of time that begins with a call,
//! what was used stays below `share x span`, plus one burst and one step.

/// Unused time is saved up to this much, in nanoseconds of processor time.
const BURST_NS: u64 = 20_000_000;
/// Longest sleep, so that a stop is noticed; nanoseconds.
pub const SLEEP_NS_MAX: u64 = 500_000_000;

/// A ceiling.
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    /// Nanoseconds of processor time a second: a share of one core in units of 1e-9.
    per_second_ns: u64,
    /// What may still be used, in units of 1e-9 ns so that nothing is lost by rounding; negative after a step that took
    /// more.
    balance: i128,
    last_ns: Option<u64>,
}

/// Units of the balance in a nanosecond.
const UNITS: i128 = 1_000_000_000;

impl Throttle {
    /// At most `percent` of one core, 0.1 to 100; 100 is no ceiling.
    pub fn new(percent: f64) -> Self {
        let per_second_ns = (percent.clamp(0.1, 100.0) * 10_000_000.0) as u64;
        Throttle { per_second_ns, balance: 0, last_ns: None }
    }

    /// After `used_ns` of processor time at time `now_ns`: how long to sleep, in nanoseconds, at most [`SLEEP_NS_MAX`];
    /// 0 if the balance lasts. Call it again after a sleep with nothing used: there may be more to sleep.
    pub fn after(&mut self, used_ns: u64, now_ns: u64) -> u64 {
        let passed = self.last_ns.map_or(0, |last| now_ns.saturating_sub(last));
        self.last_ns = Some(now_ns);
        if i128::from(self.per_second_ns) >= UNITS {
            return 0;
        }
        let earned = i128::from(passed) * i128::from(self.per_second_ns);
        let most = i128::from(BURST_NS) * UNITS;
        self.balance = (self.balance + earned).min(most) - i128::from(used_ns) * UNITS;
        if self.balance >= 0 {
            return 0;
        }
        let owed = self.balance.unsigned_abs().div_ceil(u128::from(self.per_second_ns));
        u64::try_from(owed).unwrap_or(u64::MAX).min(SLEEP_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_whole_core_is_no_ceiling() {
        let mut t = Throttle::new(100.0);
        for n in 0..100 {
            assert_eq!(t.after(10_000_000, n * 10_000_000), 0);
        }
    }

    #[test]
    fn five_percent_sleeps_nineteen_times_as_long_as_it_works() {
        let mut t = Throttle::new(5.0);
        assert_eq!(t.after(0, 0), 0);
        // 1 ms of work in 1 ms: 50 us were earned, so 950 us are owed, which take 19 ms.
        assert_eq!(t.after(1_000_000, 1_000_000), 19_000_000);
        assert_eq!(t.after(0, 20_000_000), 0, "slept");
    }

    proptest! {
        #[test]
        fn never_more_than_the_share(
            percent in 0.5f64..99.0,
            steps in proptest::collection::vec(1u64..5_000_000, 1..400),
        ) {
            let mut t = Throttle::new(percent);
            let (mut now, mut used) = (1u64, 0u64);
            t.after(0, now);
            let begin = now;
            let longest = *steps.iter().max().unwrap();
            for step in steps {
                now += step; // one core: a step takes at least as long as it uses
                used += step;
                let mut sleep = t.after(step, now);
                while sleep > 0 {
                    now += sleep;
                    sleep = t.after(0, now);
                }
                let allowed = (now - begin) as f64 * percent / 100.0;
                prop_assert!(used as f64 <= allowed + (BURST_NS + longest) as f64 + 1e3, "{} of {}", used, allowed);
                // Nor is it starved: the sleep ended when it had to.
                prop_assert!(used as f64 * 1.0001 + 1e3 >= allowed, "{} of {}", used, allowed);
            }
        }

        #[test]
        fn no_input_panics(percent: f64, a: u64, b: u64, c: u64, d: u64) {
            let mut t = Throttle::new(if percent.is_nan() { 1.0 } else { percent });
            prop_assert!(t.after(a, b) <= SLEEP_NS_MAX);
            prop_assert!(t.after(c, d) <= SLEEP_NS_MAX);
        }
    }
}
