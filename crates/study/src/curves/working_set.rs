//! The working set over time: how many different blocks each window of the trace asked for (Denning, CACM 1968).
//!
//! Owns the windows and the last window of each block. Never overlaps windows. Invariant: the blocks of a window are at
//! most its requests, and the new ones of all windows sum to the footprint.

use crate::curves::table::{Table, Value};
use std::str::FromStr;
use undercroft_engine::HashKey;
use undercroft_units::{Time, UnitError};

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// So many requests, at least 1.
    Requests(u64),
    /// So many nanoseconds of the trace's time, at least 1. Windows without requests are left out.
    Time(u64),
}

/// Why a text is no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// A number of requests that is 0.
    #[error("give 1 request or more")]
    NoRequest,
    /// A time that is 0.
    #[error("give a time above 0")]
    NoTime,
    /// Neither a number nor a time.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl FromStr for Window {
    type Err = WindowError;

    /// A number of requests (`100000`), or a time (`60s`).
    ///
    /// # Errors
    /// A sentence that says what to write instead.
    fn from_str(text: &str) -> Result<Self, WindowError> {
        if let Ok(requests) = text.parse::<u64>() {
            return if requests > 0 { Ok(Window::Requests(requests)) } else { Err(WindowError::NoRequest) };
        }
        let time: Time = text.parse()?;
        if time.0 > 0 { Ok(Window::Time(time.0)) } else { Err(WindowError::NoTime) }
    }
}

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// The number of its first request in the trace, from 0.
    pub first_request: u64,
    /// Where it begins in the trace's time, in nanoseconds; 0 where the trace has none.
    pub start_ns: u64,
    /// Requests.
    pub requests: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Different blocks.
    pub blocks: u64,
    /// Of these, the ones that no earlier window asked for.
    pub new_blocks: u64,
}

/// Counts the distinct blocks of each window of a trace.
pub struct WorkingSet {
    window: Window,
    /// The number of the window in which a block was asked for last.
    last: Table<u32>,
    done: Vec<WindowCounts>,
    now: WindowCounts,
    /// The end of the window in the trace's time, once it has begun.
    end_ns: u64,
    requests: u64,
}

impl WorkingSet {
    /// Nothing asked for yet.
    pub fn new(window: Window) -> Self {
        let last = Table::new(HashKey::from_seed(3));
        Self { window, last, done: vec![], now: WindowCounts::default(), end_ns: 0, requests: 0 }
    }

    /// The next request. A time that goes backwards counts for the window that is open.
    pub fn observe(&mut self, block: u64, time_ns: u64, write: bool) {
        let ends = match self.window {
            Window::Requests(most) => self.now.requests >= most.max(1),
            Window::Time(_) => time_ns >= self.end_ns,
        };
        if self.requests == 0 || ends {
            self.begin(time_ns);
        }
        self.requests += 1;
        self.now.requests += 1;
        self.now.writes += u64::from(write);
        self.last.reserve(1);
        let number = self.done.len() as u32;
        let home = self.last.home(block);
        let last = self.last.entry(block, home);
        if *last != number {
            self.now.blocks += 1;
            self.now.new_blocks += u64::from(last.is_vacant());
            *last = number;
        }
    }

    fn begin(&mut self, time_ns: u64) {
        if self.now.requests > 0 {
            self.done.push(self.now);
        }
        let mut start_ns = time_ns;
        if let Window::Time(length) = self.window {
            let length = length.max(1);
            // windows stand on a grid that begins with the first request
            if self.requests > 0 {
                start_ns = self.end_ns + (time_ns - self.end_ns) / length * length;
            }
            self.end_ns = start_ns.saturating_add(length);
        }
        self.now = WindowCounts { first_request: self.requests, start_ns, ..WindowCounts::default() };
    }

    /// The windows so far, the last one as far as it has come.
    pub fn windows(&self) -> Vec<WindowCounts> {
        let open = (self.now.requests > 0).then_some(self.now);
        self.done.iter().copied().chain(open).collect()
    }

    /// Different blocks so far.
    pub fn footprint(&self) -> u64 {
        self.last.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_requests_or_times() {
        let window = |text: &str| text.parse::<Window>();
        assert_eq!(window("1000"), Ok(Window::Requests(1000)));
        assert_eq!(window("2s"), Ok(Window::Time(2_000_000_000)));
        assert!(window("0").is_err() && window("0s").is_err() && window("5 days").is_err());
    }
}
