//! When to scan next: Singleton's scrubbing frequency control (chapter 4.4, Algorithm 2), mended.
//!
//! Owns the period. A pure state machine: never reads a clock, never scans. Invariants: the period is within its bounds
//! after every input; two scrubs are never closer than the shortest period, nor, without pressure, further apart than
//! the longest; a scrub that gained nothing never makes the next one come sooner.
//!
//! What was wrong with the algorithm as printed, and what is done instead, stands in `docs/decisions/0097-*`.

/// Bounds and thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Shortest time between two scrubs, nanoseconds; at least 1.
    pub period_ns_min: u64,
    /// Longest, nanoseconds; at least `period_ns_min`.
    pub period_ns_max: u64,
    /// Pressure if more than this part of the memory is cached and not known to be held twice (`th_frac_cached`).
    pub cached_max: f64,
    /// Pressure if less than this part is free (`th_frac_free`).
    pub free_min: f64,
}

impl Default for Limits {
    /// 10 s to 10 min; thresholds of the paper's experiments (4.6).
    fn default() -> Self {
        Limits { period_ns_min: 10_000_000_000, period_ns_max: 600_000_000_000, cached_max: 0.5, free_min: 0.1 }
    }
}

/// The state of memory, in any unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// Cached, and not known to be held by a guest, too.
    pub cached: u64,
    /// Free, or to be had without losing anything.
    pub free: u64,
}

/// A scrub that gained at least this part of what was cached was worth its cost.
const WORTH: f64 = 0.02;
/// A scrub that was not lengthens the period by this.
const RELAX: f64 = 1.5;
/// The period shrinks at most to this part at once.
const SHRINK_MIN: f64 = 0.25;
/// Without pressure a scrub that was worth it shortens less: by the square root of what pressure takes.
const CALM: f64 = 0.5;

/// The control loop.
#[derive(Clone, Debug)]
pub(crate) struct ScanControl {
    limits: Limits,
    period_ns: u64,
    last_ns: u64,
    /// Scrubs under pressure in a row that gained nothing.
    useless: u32,
}

/// Why a scrub is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The period is over.
    Timer,
    /// Memory is short.
    Pressure,
}

impl ScanControl {
    /// Starts at `now_ns`, with the first scrub after the shortest period. Limits that contradict themselves are
    /// mended: the longest period is at least the shortest.
    pub fn new(mut limits: Limits, now_ns: u64) -> Self {
        limits.period_ns_min = limits.period_ns_min.max(1);
        limits.period_ns_max = limits.period_ns_max.max(limits.period_ns_min);
        ScanControl { limits, period_ns: limits.period_ns_min, last_ns: now_ns, useless: 0 }
    }

    /// The period now, nanoseconds.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Whether memory is short.
    pub(crate) fn pressed(&self, memory: Memory) -> bool {
        let total = memory.total as f64;
        memory.total > 0
            && (memory.cached as f64 > total * self.limits.cached_max
                || (memory.free as f64) < total * self.limits.free_min)
    }

    /// When the next scrub is due if memory stays as it is, nanoseconds. Under pressure sooner than the period says,
    /// but not while scrubs under pressure gain nothing.
    pub(crate) fn next_ns(&self, memory: Memory) -> u64 {
        let wait = if self.pressed(memory) {
            let backoff = self.limits.period_ns_min.saturating_mul(1u64.checked_shl(self.useless).unwrap_or(u64::MAX));
            backoff.min(self.period_ns)
        } else {
            self.period_ns
        };
        self.last_ns.saturating_add(wait)
    }

    /// Whether a scrub is due at `now_ns`, and why.
    pub fn due(&self, memory: Memory, now_ns: u64) -> Option<Due> {
        if now_ns < self.next_ns(memory) {
            return None;
        }
        let timer = now_ns >= self.last_ns.saturating_add(self.period_ns);
        Some(if timer && !self.pressed(memory) { Due::Timer } else { Due::Pressure })
    }

    /// A scrub has ended at `now_ns`: `dropped` is what it found to be held twice, `memory` the state before it.
    pub(crate) fn scrubbed(&mut self, memory: Memory, dropped: u64, now_ns: u64) {
        let pressed = self.pressed(memory);
        // The part of what was cached that the scrub won. Nothing cached, nothing won.
        let gain = if memory.cached == 0 { 0.0 } else { (dropped as f64 / memory.cached as f64).min(1.0) };
        let factor = if gain < WORTH {
            self.useless = if pressed { self.useless.saturating_add(1) } else { 0 };
            RELAX
        } else {
            self.useless = 0;
            let left = (1.0 - gain).max(SHRINK_MIN);
            if pressed { left } else { left.powf(CALM) }
        };
        let period = (self.period_ns as f64 * factor) as u64;
        self.period_ns = period.clamp(self.limits.period_ns_min, self.limits.period_ns_max);
        self.last_ns = now_ns.max(self.last_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    fn control() -> ScanControl {
        ScanControl::new(Limits::default(), 0)
    }

    fn memory(cached: u64, free: u64) -> Memory {
        Memory { total: 1000, cached, free }
    }

    /// The algorithm as printed, letter by letter, for the errors it has: (scrubbed, period) of each call.
    fn printed(calls: &[(i64, i64, i64)], mut t: i64) -> Vec<(bool, Option<i64>)> {
        let (memory, mut cycles) = (1000, t);
        let mut out = Vec::new();
        for (cached, free, dropped) in calls {
            // The decrement of `cycle_count--` is lost: the last line overwrites it at every call.
            let timer = cycles <= 0;
            let mut scrubbed = true;
            let next = if timer {
                (t * (cached + dropped)).checked_div(*cached)
            } else if *cached > memory / 2 || *free < memory / 10 {
                (t * (cached - dropped)).checked_div(*cached)
            } else {
                scrubbed = false;
                Some(t)
            };
            out.push((scrubbed, next));
            let Some(next) = next else { break };
            t = next;
            cycles = t;
        }
        out
    }

    #[test]
    fn the_errors_of_the_printed_algorithm_are_real() {
        // The count-down starts again at every call, so the timer never expires.
        assert!(printed(&[(100, 800, 0); 1000], 5).iter().all(|(scrubbed, _)| !scrubbed));
        // All dropped under pressure: the period is 0 and stays so; every call scrubs from then on.
        let all = printed(&[(600, 300, 600), (100, 800, 0), (100, 800, 0)], 5);
        assert_eq!(all, [(true, Some(0)), (true, Some(0)), (true, Some(0))]);
        // More dropped than is cached afterwards: the period is negative.
        assert_eq!(printed(&[(600, 300, 900)], 5)[0].1, Some(-2));
        // Nothing cached: a division by zero.
        assert_eq!(printed(&[(0, 50, 0)], 5)[0].1, None);
        // Pressure that scrubbing does not relieve: a scrub at every call, whatever the period.
        assert!(printed(&[(600, 50, 0); 100], 50).iter().all(|(scrubbed, _)| *scrubbed));
        // The timer's case: a scrub that gained much is followed by a longer period than one that gained nothing.
        assert!(printed(&[(100, 800, 90)], 0)[0].0);
        let after = |dropped| printed(&[(600, 300, 570), (100, 800, dropped)], 20)[1].1;
        assert!(after(0) <= after(90));
    }

    #[test]
    fn a_scrub_that_gains_much_comes_again_sooner_and_one_that_gains_nothing_later() {
        let mut c = control();
        for n in 1..20 {
            c.scrubbed(memory(100, 800), 0, n * S);
        }
        assert_eq!(c.period_ns(), 600 * S);
        c.scrubbed(memory(100, 800), 75, 100 * S);
        assert_eq!(c.period_ns(), 300 * S, "three quarters won: half the period");
        let mut pressed = c.clone();
        c.scrubbed(memory(100, 800), 50, 100 * S);
        pressed.scrubbed(memory(600, 300), 300, 100 * S);
        assert!(pressed.period_ns() < c.period_ns());
    }

    #[test]
    fn pressure_does_not_wait_for_the_period_but_backs_off_when_it_is_no_use() {
        let mut c = control();
        for n in 1..20 {
            c.scrubbed(memory(100, 800), 0, n * S);
        }
        let (calm, pressed) = (memory(100, 800), memory(600, 300));
        assert_eq!(c.next_ns(calm), 619 * S);
        assert_eq!(c.next_ns(pressed), 29 * S);
        assert_eq!((c.due(pressed, 28 * S), c.due(pressed, 29 * S)), (None, Some(Due::Pressure)));
        let mut waits = Vec::new();
        let mut now = 19 * S;
        for _ in 0..8 {
            let next = c.next_ns(pressed);
            waits.push((next - now) / S);
            now = next;
            c.scrubbed(pressed, 0, now);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
        c.scrubbed(pressed, 300, now);
        assert_eq!(c.next_ns(pressed), now + 10 * S, "of use again");
    }

    #[test]
    fn nothing_cached_and_no_memory_are_no_errors() {
        let mut c = control();
        c.scrubbed(memory(0, 0), 0, S);
        c.scrubbed(Memory::default(), 5, S);
        assert!(!c.pressed(Memory::default()));
        assert!(c.period_ns() >= 10 * S);
    }

    fn any_memory() -> impl Strategy<Value = Memory> {
        (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(total, cached, free)| Memory { total, cached, free })
    }

    proptest! {
        #[test]
        fn the_period_stays_within_its_bounds(
            min: u64,
            max: u64,
            cached_max: f64,
            free_min: f64,
            scrubs in proptest::collection::vec((any_memory(), any::<u64>(), any::<u64>()), 0..50),
        ) {
            let mut c = ScanControl::new(Limits { period_ns_min: min, period_ns_max: max, cached_max, free_min }, 0);
            let (low, high) = (min.max(1), max.max(min).max(1));
            for (m, dropped, now) in scrubs {
                c.scrubbed(m, dropped, now);
                prop_assert!((low..=high).contains(&c.period_ns()));
                let wait = c.next_ns(m).saturating_sub(c.last_ns);
                prop_assert!(wait >= low.min(u64::MAX - c.last_ns) && wait <= c.period_ns());
            }
        }

        #[test]
        fn more_gained_is_never_later(
            m in any_memory(),
            a: u64,
            b: u64,
            before in proptest::collection::vec(0u64..1000, 0..10),
        ) {
            let mut c = control();
            for (n, dropped) in before.iter().enumerate() {
                c.scrubbed(memory(500, 300), *dropped, n as u64 * S);
            }
            let (mut less, mut more) = (c.clone(), c.clone());
            less.scrubbed(m, a.min(b), 100 * S);
            more.scrubbed(m, a.max(b), 100 * S);
            prop_assert!(more.next_ns(m) <= less.next_ns(m));
            let mut none = c.clone();
            none.scrubbed(m, 0, 100 * S);
            prop_assert!(none.period_ns() >= c.period_ns(), "nothing gained never shortens");
        }

        /// A whole run: scrubs happen when due, and never closer than the shortest period nor further than the longest.
        #[test]
        fn scrubs_keep_their_distance(
            steps in proptest::collection::vec((0u64..30 * S, 0u64..1000, 0u64..1000, 0u64..1000), 1..300),
        ) {
            let mut c = control();
            let (mut now, mut last) = (0u64, 0u64);
            for (pass, cached, free, dropped) in steps {
                now += pass;
                let m = memory(cached, free);
                if c.due(m, now).is_some() {
                    prop_assert!(now - last >= 10 * S);
                    c.scrubbed(m, dropped, now);
                    last = now;
                } else {
                    prop_assert!(now - last < 600 * S);
                }
            }
        }
    }
}
