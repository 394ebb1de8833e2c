//! How far a command is with its traces: a bar with the rate and the time left, of whatever takes longer than two
//! seconds.
//!
//! Owns the clock and the words. Never reads a trace. Invariant: nothing is shown where standard error is no terminal,
//! and nothing is left on it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};
use undercroft_trace::Progress;

/// Progress is shown of what takes longer.
const SHOW_AFTER: Duration = Duration::from_secs(2);
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// Small batches between two looks at the clock.
const LOOK_EVERY: u32 = 16;

/// See the head of the file.
pub struct Meter {
    what: String,
    unit: &'static str,
    begun: Instant,
    looked: Instant,
    bar: Option<ProgressBar>,
    progress: Vec<Progress>,
    /// Bytes of all files, if not only of those in `progress`.
    bytes: Option<u64>,
    /// What there is in all, if requests are counted and not bytes of files.
    wanted: Option<u64>,
    requests: u64,
    calls: u32,
}

impl Meter {
    /// Of files that are read: done is what has been read of their bytes.
    pub fn new(progress: Vec<Progress>) -> Self {
        Self::begin(progress, None, None)
    }

    /// Of a number of requests.
    pub fn of_requests(wanted: u64) -> Self {
        Self::begin(vec![], None, Some(wanted))
    }

    /// Of files of so many bytes, which are opened later ([`Meter::follow`]); `None` if one is a pipe.
    pub fn of_bytes(bytes: Option<u64>) -> Self {
        Self::begin(vec![], bytes, None)
    }

    fn begin(progress: Vec<Progress>, bytes: Option<u64>, wanted: Option<u64>) -> Self {
        let now = Instant::now();
        let (what, unit) = (String::new(), "requests");
        Self { what, unit, begun: now, looked: now, bar: None, progress, bytes, wanted, requests: 0, calls: 0 }
    }

    /// Says what is done, and in which unit it is counted.
    pub fn named(mut self, what: String, unit: &'static str) -> Self {
        (self.what, self.unit) = (what, unit);
        self
    }

    /// One more file was opened.
    pub fn follow(&mut self, progress: Progress) {
        self.progress.push(progress);
    }

    /// So many requests more are done.
    pub fn add(&mut self, requests: usize) {
        self.requests += requests as u64;
        self.calls += 1;
        // a clock is not read for each batch
        if self.calls.is_multiple_of(LOOK_EVERY) {
            self.show();
        }
    }

    /// So many requests are done in all.
    pub fn at(&mut self, requests: u64) {
        self.requests = requests;
        self.show();
    }

    /// So many requests more are done, of a large batch.
    pub fn read(&mut self, requests: u64) {
        self.at(self.requests + requests);
    }

    /// Takes the bar away.
    pub fn hide(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Keeps the bar from standing between lines that `say` prints.
    pub fn suspend(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    fn show(&mut self) {
        let now = Instant::now();
        if now - self.begun < SHOW_AFTER || now - self.looked < SHOW_EVERY {
            return;
        }
        self.looked = now;
        let (done, total) = self.how_far();
        let seconds = (now - self.begun).as_secs_f64();
        let message = self.message(seconds, done, total);
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
            let template = if total.is_some() { "{wide_bar} {percent}% {msg}" } else { "{spinner} {msg}" };
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        bar.set_position(done);
        bar.set_message(message);
        bar.tick();
    }

    /// What is done of what there is, in bytes or requests.
    fn how_far(&self) -> (u64, Option<u64>) {
        if let Some(wanted) = self.wanted {
            return (self.requests, Some(wanted));
        }
        let done = self.progress.iter().map(Progress::done).sum();
        let total = self.bytes.or_else(|| self.progress.iter().map(Progress::total).sum());
        // of a small file whose requests are wide, all bytes are read long before the end
        (done, total.filter(|&t| done < t))
    }

    fn message(&self, seconds: f64, done: u64, total: Option<u64>) -> String {
        let rate = self.requests as f64 / seconds;
        let left = total.filter(|_| done > 0).map(|t| seconds * t.saturating_sub(done) as f64 / done as f64);
        let left = left.map_or(format!(", {seconds:.0} s so far"), |s| format!(", {s:.0} s left"));
        let count = |n: f64| if n >= 1e5 { format!("{:.1} M", n / 1e6) } else { format!("{n:.0}") };
        let what = if self.what.is_empty() { String::new() } else { format!(", {}", self.what) };
        format!("{} {}, {}/s{left}{what}", count(self.requests as f64), self.unit, count(rate))
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.hide();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_is_done_of_what_there_is() {
        let mut meter = Meter::of_requests(4_000_000).named("3 caches".into(), "accesses");
        meter.requests = 1_000_000;
        let (done, total) = meter.how_far();
        assert_eq!((done, total), (1_000_000, Some(4_000_000)));
        assert_eq!(meter.message(10.0, done, total), "1.0 M accesses, 0.1 M/s, 30 s left, 3 caches");
        let mut pipe = Meter::new(vec![]);
        pipe.requests = 500;
        assert_eq!(pipe.how_far(), (0, None), "nothing is known of a pipe");
        assert_eq!(pipe.message(10.0, 0, None), "500 requests, 50/s, 10 s so far");
        assert_eq!(Meter::of_bytes(Some(7)).how_far(), (0, Some(7)));
    }
}
