//! The learning rate of CACHEUS: it moves as long as that makes hits more frequent.
//!
//! Owns the rate and what it is judged by. Never knows which expert was wrong. Invariant: the rate is above 0 and at
//! most that of one slot at first.

use super::Lots;

/// The least rate, but where it starts lower.
const RATE_MIN: f64 = 0.001;
/// Periods without success before the learning rate starts again.
const PATIENCE: u32 = 10;

/// The learning rate: once in a period of as many requests as there are slots it goes on in its direction if that made
/// hits more frequent and turns round if not.
#[derive(Debug)]
pub(super) struct Rate {
    pub now: f64,
    /// That of the period before.
    before: f64,
    period: u32,
    /// Requests until the period ends.
    left: u32,
    /// Those of this period that hit.
    pub hits: u32,
    /// Of a thousand requests of the last period, those that hit.
    hit_rate: i64,
    /// Periods without hits, or with fewer than before, since the rate last moved by rule.
    idle: u32,
    /// Periods with fewer hits than before, since then.
    worse: u32,
}

fn thousandths(x: f64) -> i64 {
    (x * 1000.0).round_ties_even() as i64
}

impl Rate {
    pub fn new(period: u32) -> Self {
        let period = period.max(1);
        let now = Self::at_first(period);
        Self { now, before: 0.0, period, left: period, hits: 0, hit_rate: 0, idle: 0, worse: 0 }
    }

    pub fn at_first(period: u32) -> f64 {
        (2.0 * std::f64::consts::LN_2 / f64::from(period)).sqrt()
    }

    pub fn set_period(&mut self, period: u32) {
        self.period = period.max(1);
        self.left = self.left.min(self.period);
    }

    #[inline]
    pub fn tick(&mut self, lots: &mut Lots) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.period;
            self.adapt(lots);
        }
    }

    fn adapt(&mut self, lots: &mut Lots) {
        let hit_rate = thousandths(f64::from(std::mem::take(&mut self.hits)) / f64::from(self.period));
        let gain = hit_rate - std::mem::replace(&mut self.hit_rate, hit_rate);
        let change = thousandths(self.now) - thousandths(self.before);
        let step = self.now * change.abs() as f64 / 1000.0;
        self.before = self.now;
        match (change * gain).signum() {
            0 if gain <= 0 => self.without_success(gain < 0, lots),
            0 => {}
            direction => {
                self.now = (self.now + direction as f64 * step).clamp(RATE_MIN, 1.0);
                (self.idle, self.worse) = (0, 0);
            }
        }
    }

    fn without_success(&mut self, worse: bool, lots: &mut Lots) {
        self.worse += u32::from(worse);
        self.idle += u32::from(worse || self.hit_rate == 0);
        if self.idle >= PATIENCE {
            self.idle = 0;
            self.now = Self::at_first(self.period).clamp(RATE_MIN, 1.0);
        } else if worse && self.worse >= PATIENCE {
            self.worse = 0;
            self.now = Self::at_first(self.period).clamp(RATE_MIN, 1.0);
        } else if worse {
            self.now = match self.now {
                now if now >= 1.0 => 0.9,
                now if now <= RATE_MIN => 0.005,
                now if lots.unit() < 0.5 => (now * 1.25).min(1.0),
                now => (now * 0.75).max(RATE_MIN),
            };
        }
    }

    pub fn check(&self) {
        assert!(self.now > 0.0 && self.now <= Self::at_first(1), "the learning rate is {}", self.now);
        assert!(self.left >= 1 && self.left <= self.period, "{} of {} requests left", self.left, self.period);
    }
}
