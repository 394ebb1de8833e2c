//! Metrics for Prometheus, made from the status.
//!
//! Owns the way from the table of metrics to text. Never decides what there is to know: the table does. Invariant:
//! buckets are cumulative counts at exact powers of two of nanoseconds.

mod family;
mod ssd;
mod table;

use self::family::{Family, Place, Read};
use self::table::all;
use prometheus::core::Collector;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};
use undercroft_api::shares::SharesStatus;
use undercroft_api::status::{DiskStatus, LatencySnapshot, Status};

/// What `/metrics` says it is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Buckets of latency reach from 2^10 ns (1 us) to 2^34 ns (17 s).
const LATENCY_POWERS: std::ops::RangeInclusive<u32> = 10..=34;

type Labels<'a> = [(&'a str, &'a str)];

/// All metrics as text.
pub fn encode(status: &Status, shares: &SharesStatus) -> String {
    let mut families: Vec<_> = all().map(|family| read(family, status, shares)).collect();
    families.extend(prometheus::process_collector::ProcessCollector::for_self().collect());
    families.retain(|f| !f.get_metric().is_empty());
    let mut text = Vec::new();
    // Writing to memory cannot fail; a family that cannot be encoded would show as missing in the tests.
    let _ = TextEncoder::new().encode(&families, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// All values of a family.
fn read(family: &Family, status: &Status, shares: &SharesStatus) -> MetricFamily {
    let mut out = Values { kind: family.kind, metrics: Vec::new() };
    match &family.read {
        Read::Daemon(place) => out.place(place, status, &[]),
        Read::DaemonBy(label, places) => places.iter().for_each(|(of, p)| out.place(p, status, &[(label, of)])),
        Read::Info(labels) => {
            let labels: Vec<_> = labels.iter().map(|(label, text)| (*label, text(status))).collect();
            out.number(Some(1.0), &labels);
        }
        Read::Shares(place) => out.place(place, shares, &[]),
        Read::Node(place) => {
            for node in &shares.nodes {
                out.place(place, node, &[("node", &node.name), ("level", &node.level)]);
            }
        }
        Read::Disk(_) | Read::DiskBy(..) | Read::DiskInfo(_) | Read::DiskTimes(..) => {
            status.disks.iter().for_each(|disk| read_disk(family, disk, &mut out));
        }
    }
    let mut all = MetricFamily::default();
    all.set_name(family.name.to_string());
    all.set_help(family.help.to_string());
    all.set_field_type(family.kind);
    all.set_metric(out.metrics);
    all
}

/// The values of a family for one disk.
fn read_disk(family: &Family, d: &DiskStatus, out: &mut Values) {
    let short = match &d.vm {
        Some(vm) => d.name.strip_prefix(vm.as_str()).and_then(|n| n.strip_prefix(':')).unwrap_or(&d.name),
        None => &d.name,
    };
    let own = [("disk", short), ("vm", d.vm.as_deref().unwrap_or(""))];
    match &family.read {
        Read::Disk(place) => out.place(place, d, &own),
        Read::DiskBy(label, places) => {
            places.iter().for_each(|(of, p)| out.place(p, d, &[own[0], own[1], (label, of)]));
        }
        Read::DiskInfo(labels) => {
            let what = labels.iter().map(|(label, text)| (*label, text(d)));
            out.number(Some(1.0), &own.into_iter().chain(what).collect::<Vec<_>>());
        }
        Read::DiskTimes(label, times) => {
            times.iter().for_each(|(of, time)| out.latency(time(d), &[own[0], own[1], (label, of)]));
        }
        Read::Daemon(_) | Read::DaemonBy(..) | Read::Info(_) | Read::Shares(_) | Read::Node(_) => {}
    }
}

/// The metrics of one family, being collected.
struct Values {
    kind: MetricType,
    metrics: Vec<Metric>,
}

impl Values {
    fn add(&mut self, mut metric: Metric, labels: &Labels<'_>) {
        let labels = labels.iter().map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_string());
            pair.set_value((*value).to_string());
            pair
        });
        metric.set_label(labels.collect());
        self.metrics.push(metric);
    }

    fn place<T>(&mut self, place: &Place<T>, of: &T, labels: &Labels<'_>) {
        self.number((place.read)(of), labels);
    }

    fn number(&mut self, value: Option<f64>, labels: &Labels<'_>) {
        let Some(value) = value else { return };
        let mut metric = Metric::default();
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.add(metric, labels);
    }

    fn latency(&mut self, latency: &LatencySnapshot, labels: &Labels<'_>) {
        let mut histogram = Histogram::default();
        histogram.set_sample_count(latency.count);
        histogram.set_sample_sum(latency.sum_us / 1e6);
        let buckets = LATENCY_POWERS.map(|power| {
            let end_ns = 1u64 << power;
            let below = latency.buckets.iter().filter(|b| b.le_ns.is_some_and(|le| le < end_ns));
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(end_ns as f64 / 1e9);
            bucket.set_cumulative_count(below.map(|b| b.count).sum());
            bucket
        });
        histogram.set_bucket(buckets.collect());
        let mut metric = Metric::default();
        metric.set_histogram(histogram);
        self.add(metric, labels);
    }
}

#[cfg(test)]
mod tests {
    use super::family::Unit;
    use super::*;
    use std::fmt::Write;

    /// docs/metrics.md, as the table says.
    fn page() -> String {
        let mut page = String::from(
            "# Metrics\n\n`/metrics` of the control socket, or of the address that `metrics` in `[daemon]` names, in \
             the text format of\n\
             Prometheus. A name never changes its meaning. The last column says where `GET /v1/status` (for \
             `shares`:\n\
             `GET /v1/shares`) has the same number. Beside these there are the usual `process_*`. This page is \
             generated:\n\
             `METRICS_WRITE=1 cargo test -p undercroft-http --lib metrics`.\n\n\
             | metric | type | unit | labels | what | in the status |\n|---|---|---|---|---|---|\n",
        );
        for f in all() {
            let kind = format!("{:?}", f.kind).to_lowercase();
            let unit = if f.unit == Unit::Number { String::new() } else { format!("{:?}", f.unit).to_lowercase() };
            let (labels, path) = labels_and_path(&f.read);
            let labels: Vec<_> = labels.iter().map(|l| format!("`{l}`")).collect();
            let _ = writeln!(page, "| `{}` | {kind} | {unit} | {} | {} | {path} |", f.name, labels.join(", "), f.help);
        }
        page
    }

    fn labels_and_path(read: &Read) -> (Vec<&'static str>, String) {
        fn by<T>(places: &[(&'static str, Place<T>)]) -> String {
            let mut paths: Vec<_> = places.iter().map(|(_, p)| format!("`{}`", p.path)).collect();
            paths.dedup();
            paths.join(", ")
        }
        let one = |path: &str| format!("`{path}`");
        match read {
            Read::Daemon(p) => (vec![], one(p.path)),
            Read::DaemonBy(label, places) => (vec![*label], by(places)),
            Read::Info(labels) => (labels.iter().map(|(l, _)| *l).collect(), String::new()),
            Read::Shares(p) => (vec![], format!("shares: `{}`", p.path)),
            Read::Node(p) => (vec!["node", "level"], format!("shares: `{}`", p.path)),
            Read::Disk(p) => (vec!["disk", "vm"], one(p.path)),
            Read::DiskBy(label, places) => (vec!["disk", "vm", label], by(places)),
            Read::DiskInfo(labels) => {
                ([vec!["disk", "vm"], labels.iter().map(|(l, _)| *l).collect()].concat(), String::new())
            }
            Read::DiskTimes(label, _) => (vec!["disk", "vm", label], one("disks[].latency")),
        }
    }

    /// The page is also the record of names, types and units: one that changes shows there.
    #[test]
    fn the_committed_page_has_every_metric() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("METRICS_WRITE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/metrics.md is not what the table says; its first lines tell how it is written"
        );
    }

    #[test]
    fn names_end_in_their_unit_and_are_there_once() {
        let mut names: Vec<_> = all().map(|f| f.name).collect();
        for f in all() {
            let name = f.name.strip_prefix("undercroft_").expect(f.name);
            let counted = name.strip_suffix("_total");
            assert_eq!(counted.is_some(), f.kind == MetricType::COUNTER, "{name}");
            let bare = counted.unwrap_or(name);
            assert_eq!(f.unit == Unit::Bytes, bare.ends_with("_bytes"), "{name}");
            assert_eq!(f.unit == Unit::Seconds, bare.ends_with("_seconds"), "{name}");
            assert!(f.help.ends_with('.'), "{name}");
        }
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
