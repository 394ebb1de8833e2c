//! What a VM, a container or a disk is to reach, as configuration and API write it.
//!
//! Owns the words. Never reaches anything: the controller `target` tries to. Invariant: what is shown is read back as
//! the same.

use super::written::WrittenError;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use undercroft_engine::control::Goal;
use undercroft_units::Time;

/// A goal, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalPlan {
    /// So many of a thousand blocks read are served from the store, 1 to 1000.
    HitPermille(u32),
    /// 99 of 100 reads take no longer.
    P99(Duration),
    /// So many reads a second.
    Iops(u64),
}

/// What a goal may be, in words.
pub const GOALS: &str = "give `hit 90%`, `p99 2ms` or `iops 5000`";

impl GoalPlan {
    /// As the controllers take it.
    pub fn goal(self) -> Goal {
        match self {
            Self::HitPermille(n) => Goal::HitRatio(f64::from(n) / 1000.0),
            Self::P99(time) => Goal::P99LatencyUs(time.as_secs_f64() * 1e6),
            Self::Iops(n) => Goal::Iops(n as f64),
        }
    }
}

impl fmt::Display for GoalPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HitPermille(n) if n.is_multiple_of(10) => write!(f, "hit {}%", n / 10),
            Self::HitPermille(n) => write!(f, "hit {}.{}%", n / 10, n % 10),
            Self::P99(time) => write!(f, "p99 {}", Time::from(*time)),
            Self::Iops(n) => write!(f, "iops {n}"),
        }
    }
}

impl FromStr for GoalPlan {
    type Err = WrittenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |error: String| WrittenError { error, remedy: GOALS.to_string() };
        let shown: String = text.chars().take(60).collect();
        let mut words = text.split_whitespace();
        let (Some(what), Some(how_much), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad(format!("\"{shown}\" is no goal")));
        };
        match what {
            "hit" => {
                let number = how_much.strip_suffix('%').and_then(|n| n.parse::<f64>().ok());
                let permille = number.filter(|n| (0.1..=100.0).contains(n)).map(|n| (n * 10.0).round() as u32);
                permille.map(Self::HitPermille).ok_or_else(|| bad(format!("\"{shown}\" is not 0.1% to 100%")))
            }
            "p99" => {
                let time: Time = how_much.parse().map_err(|e| bad(format!("\"{shown}\": {e}")))?;
                let time = time.duration();
                let fits = (Duration::from_micros(1)..=Duration::from_secs(60)).contains(&time);
                fits.then_some(Self::P99(time)).ok_or_else(|| bad(format!("\"{shown}\" is not 1us to 60s")))
            }
            "iops" => {
                let number = how_much.parse::<u64>().ok().filter(|n| (1..=1_000_000_000).contains(n));
                number.map(Self::Iops).ok_or_else(|| bad(format!("\"{shown}\" is not 1 to 1000000000 reads a second")))
            }
            _ => Err(bad(format!("\"{shown}\" is no goal"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_back_and_what_is_wrong_is_named() {
        for text in ["hit 90%", "hit 99.5%", "hit 0.1%", "hit 100%", "p99 2ms", "p99 250us", "iops 5000"] {
            assert_eq!(text.parse::<GoalPlan>().expect(text).to_string(), text);
        }
        assert_eq!("hit  90.0%".parse::<GoalPlan>().expect("spaces").to_string(), "hit 90%");
        for (text, says) in [
            ("", "is no goal"),
            ("fast", "is no goal"),
            ("hit 90", "0.1% to 100%"),
            ("hit 101%", "0.1% to 100%"),
            ("hit nan%", "0.1% to 100%"),
            ("p99 2", "p99 2ms"),
            ("p99 61s", "1us to 60s"),
            ("p99 0s", "1us to 60s"),
            ("iops 0", "reads a second"),
            ("iops -1", "reads a second"),
            ("iops 5 6", "is no goal"),
            ("latency 2ms", "is no goal"),
        ] {
            let error = text.parse::<GoalPlan>().expect_err(text).to_string();
            assert!(error.contains(says) && error.contains("hit 90%"), "{text}: {error}");
        }
    }
}
