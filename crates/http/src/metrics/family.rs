//! What a metric is made of: name, help text, type, unit, and where its values are read.
//!
//! Owns the shapes; the table holds the metrics themselves. Never reads a status. Invariant: a value is a number or is
//! not there; nothing is made up for one that is missing.

use prometheus::proto::MetricType;
use undercroft_api::shares::{NodeStatus, SharesStatus};
use undercroft_api::status::{DiskStatus, LatencySnapshot, Status};

/// What a value counts or measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Things of their own kind, or a state of 0 or 1.
    Number,
    /// Blocks of 4096 bytes.
    Blocks,
    /// Pages of 4096 bytes.
    Pages,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// What a counter of a disk stands for, which counts nanoseconds where the unit is seconds.
    pub(super) fn of_counter(self, count: f64) -> f64 {
        if self == Self::Seconds { count / 1e9 } else { count }
    }
}

/// A number, and where it stands in what `read` is given.
pub(super) struct Place<T: 'static> {
    /// The way to it in the API's JSON.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test makes docs/metrics.md of it"))]
    pub path: &'static str,
    /// `None` if there is none today.
    pub read: fn(&T) -> Option<f64>,
}

/// A value of a label, and what is told for it.
type By<T> = (&'static str, Place<T>);

/// A label, and its value.
type Label<T> = (&'static str, fn(&T) -> &str);

/// A value of a label, and the times told for it.
type Times = (&'static str, fn(&DiskStatus) -> &LatencySnapshot);

/// Where a family's values come from, and what their labels are.
pub(super) enum Read {
    /// One value for the daemon.
    Daemon(Place<Status>),
    /// One for each value of a label.
    DaemonBy(&'static str, &'static [By<Status>]),
    /// Always 1, with labels that say what the daemon is.
    Info(&'static [Label<Status>]),
    /// One value for the division of the store.
    Shares(Place<SharesStatus>),
    /// One for each node of the tree of shares: labels `node` and `level`.
    Node(Place<NodeStatus>),
    /// One for each disk: labels `disk` and `vm`.
    Disk(Place<DiskStatus>),
    /// One for each disk and value of a label.
    DiskBy(&'static str, &'static [By<DiskStatus>]),
    /// Always 1 for each disk, with labels that say what it is.
    DiskInfo(&'static [Label<DiskStatus>]),
    /// A histogram for each disk and value of a label.
    DiskTimes(&'static str, &'static [Times]),
}

/// A metric.
pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    #[cfg_attr(not(test), expect(dead_code, reason = "a test makes docs/metrics.md of it"))]
    pub unit: Unit,
    pub read: Read,
}

/// What can be the value of a metric.
pub(super) trait AsNumber {
    fn number(self) -> Option<f64>;
}

macro_rules! number {
    ($($kind:ty)*) => { $(impl AsNumber for $kind {
        fn number(self) -> Option<f64> {
            Some(self as f64)
        }
    })* };
}

number!(u32 u64 usize i64 f64);

impl AsNumber for bool {
    fn number(self) -> Option<f64> {
        Some(f64::from(u8::from(self)))
    }
}

impl<N: AsNumber> AsNumber for Option<N> {
    fn number(self) -> Option<f64> {
        self.and_then(AsNumber::number)
    }
}

/// A value that goes up and down.
pub(super) const fn gauge(name: &'static str, help: &'static str, unit: Unit, read: Read) -> Family {
    Family { name, help, kind: MetricType::GAUGE, unit, read }
}

/// A value that only grows.
pub(super) const fn counter(name: &'static str, help: &'static str, unit: Unit, read: Read) -> Family {
    Family { name, help, kind: MetricType::COUNTER, unit, read }
}

/// Counts of what took how long.
pub(super) const fn histogram(name: &'static str, help: &'static str, unit: Unit, read: Read) -> Family {
    Family { name, help, kind: MetricType::HISTOGRAM, unit, read }
}
