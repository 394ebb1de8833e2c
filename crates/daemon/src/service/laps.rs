//! How long each step of something took that nobody may wait for long.
//!
//! Owns the times. Never decides by them. Invariant: all steps together take as long as the whole.

use std::fmt;
use std::time::{Duration, Instant};

/// Steps so far, and when the last one ended.
#[derive(Debug)]
pub(super) struct Laps {
    begun: Instant,
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Default for Laps {
    /// Begins now.
    fn default() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, steps: Vec::new() }
    }
}

impl Laps {
    /// A step is over; what another one of this name took is added to it.
    pub(super) fn end(&mut self, step: &'static str) {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        match self.steps.iter_mut().find(|(name, _)| *name == step) {
            Some((_, sum)) => *sum += took,
            None => self.steps.push((step, took)),
        }
    }

    /// Since the beginning.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl fmt::Display for Laps {
    /// `requests 3 ms, images 21 ms`; a step of less than half a millisecond is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let long = self.steps.iter().filter(|(_, took)| took.as_micros() >= 500);
        let mut between = "";
        for (step, took) in long {
            write!(f, "{between}{step} {:.0} ms", took.as_secs_f64() * 1e3)?;
            between = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_name_are_one_and_short_ones_are_not_shown() {
        let mut laps = Laps::default();
        laps.end("a");
        std::thread::sleep(Duration::from_millis(2));
        laps.end("b");
        std::thread::sleep(Duration::from_millis(2));
        laps.end("b");
        assert_eq!(laps.steps.len(), 2);
        assert!(laps.steps[1].1 >= Duration::from_millis(4) && laps.elapsed() >= laps.steps[1].1);
        laps.steps =
            vec![("a", Duration::from_micros(400)), ("b", Duration::from_millis(3)), ("c", Duration::from_millis(21))];
        assert_eq!(laps.to_string(), "b 3 ms, c 21 ms");
    }
}
