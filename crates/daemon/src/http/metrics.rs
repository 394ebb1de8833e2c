//! Metrics for Prometheus, made from the status.
//!
//! Owns names, units and help texts. A metric never changes its meaning: a new one gets a new name. Base units: seconds
//! and bytes; counters end in `_total`. Invariant: buckets are cumulative counts at exact powers of two of nanoseconds.

use prometheus::core::Collector;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};
use undercroft_api::shares::SharesStatus;
use undercroft_api::status::{DiskState, DiskStatus, LatencySnapshot, PressureDirection, Status};

/// What `/metrics` says it is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Buckets of latency reach from 2^10 ns (1 us) to 2^34 ns (17 s).
const LATENCY_POWERS: std::ops::RangeInclusive<u32> = 10..=34;

type Labels<'a> = [(&'a str, &'a str)];

/// All metrics as text.
pub fn encode(status: &Status, shares: &SharesStatus) -> String {
    let mut families = Families::default();
    daemon(&mut families, status);
    memory(&mut families, status);
    division(&mut families, shares);
    for disk in &status.disks {
        disk_metrics(&mut families, disk);
    }
    let mut all = families.list;
    all.extend(prometheus::process_collector::ProcessCollector::for_self().collect());
    all.retain(|f| !f.get_metric().is_empty());
    let mut text = Vec::new();
    // Writing to memory cannot fail; a family that cannot be encoded would show as missing in the tests.
    let _ = TextEncoder::new().encode(&all, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Families in the order in which they came up, each with all its metrics together.
#[derive(Default)]
struct Families {
    list: Vec<MetricFamily>,
}

impl Families {
    fn add(&mut self, name: &str, help: &str, kind: MetricType, mut metric: Metric, labels: &Labels<'_>) {
        let labels = labels.iter().map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_string());
            pair.set_value((*value).to_string());
            pair
        });
        metric.set_label(labels.collect());
        if let Some(family) = self.list.iter_mut().find(|f| f.name() == name) {
            family.mut_metric().push(metric);
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_string());
        family.set_help(help.to_string());
        family.set_field_type(kind);
        family.set_metric(vec![metric]);
        self.list.push(family);
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &Labels<'_>, value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        self.add(name, help, MetricType::GAUGE, Metric::from_gauge(gauge), labels);
    }

    fn counter(&mut self, name: &str, help: &str, labels: &Labels<'_>, value: u64) {
        self.seconds(name, help, labels, value as f64);
    }

    /// A counter of seconds, the base unit of time: a counter that need not be whole.
    fn seconds(&mut self, name: &str, help: &str, labels: &Labels<'_>, value: f64) {
        let mut counter = Counter::default();
        counter.set_value(value);
        let mut metric = Metric::default();
        metric.set_counter(counter);
        self.add(name, help, MetricType::COUNTER, metric, labels);
    }

    fn latency(&mut self, name: &str, help: &str, labels: &Labels<'_>, latency: &LatencySnapshot) {
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
        self.add(name, help, MetricType::HISTOGRAM, metric, labels);
    }
}

fn daemon(f: &mut Families, s: &Status) {
    f.gauge("undercroft_build_info", "Version of the running program; always 1.", &[("version", &s.version)], 1.0);
    for (why, lines) in [("limit", s.log.limited_lines), ("unread", s.log.unread_lines)] {
        let help = "Lines that were not logged: too many of one kind, or nobody read the log.";
        f.counter("undercroft_log_lines_left_out_total", help, &[("why", why)], lines);
    }
    f.gauge("undercroft_uptime_seconds", "Seconds since the daemon started.", &[], s.uptime_seconds);
    f.gauge("undercroft_workers", "Threads that serve disks.", &[], f64::from(s.workers));
    let nbd = &s.nbd_data;
    let used = "Bytes of data of NBD requests under way, but for the reserve of each connection.";
    f.gauge("undercroft_nbd_data_bytes", used, &[], nbd.used_bytes as f64);
    f.gauge("undercroft_nbd_data_max_bytes", "What those may come to.", &[], nbd.max_bytes as f64);
    let slow = "NBD connections closed because they were slow while others waited for memory.";
    f.counter("undercroft_nbd_slow_closed_total", slow, &[], nbd.slow_closed);
    let copying = "Processor time spent on copying and hashing contents.";
    f.seconds("undercroft_copying_seconds_total", copying, &[], s.copying_seconds);
    if let Some(s) = &s.scan {
        for (name, help, value) in [
            ("undercroft_scan_passes_total", "Passes over the memory of all guests.", s.passes),
            ("undercroft_scan_read_pages_total", "Pages of guests read.", s.read_pages),
            ("undercroft_scan_hole_pages_total", "Pages of guests without memory, left so.", s.hole_pages),
            ("undercroft_scan_unreadable_pages_total", "Pages of guests that could not be read.", s.unreadable_pages),
            (
                "undercroft_scan_unchanged_pages_total",
                "Pages of guests unchanged since the pass before.",
                s.unchanged_pages,
            ),
            (
                "undercroft_scan_equal_pages_total",
                "Pages of guests equal to one met before in the pass.",
                s.equal_pages,
            ),
            ("undercroft_scan_lookahead_hits_total", "Equal pages found by looking ahead.", s.lookahead_hits),
            ("undercroft_scan_found_blocks_total", "Cached blocks found in guests.", s.found_blocks),
            (
                "undercroft_scan_cooled_blocks_total",
                "Cached blocks found in guests that became the first to go.",
                s.cooled_blocks,
            ),
        ] {
            f.counter(name, help, &[], value);
        }
        f.seconds("undercroft_scan_cpu_seconds_total", "Processor time of the scanner.", &[], s.cpu_seconds);
        f.gauge("undercroft_scan_guests", "Guests in the last pass.", &[], s.guests as f64);
        f.gauge("undercroft_scan_period_seconds", "Time between passes as of now.", &[], s.period_seconds);
        f.gauge("undercroft_scan_index_bytes", "Memory of the scanner's index.", &[], s.index_bytes as f64);
    }
    f.gauge("undercroft_disks", "Disks attached.", &[], s.disks.len() as f64);
    let saved = "Cached data that takes no memory of its own: zeroes, and contents held once for several blocks.";
    f.gauge("undercroft_store_saved_bytes", saved, &[], s.store.saved_bytes as f64);
    let memory = s.store.memory_bytes as f64;
    f.gauge("undercroft_store_limit_bytes", "Hard ceiling for data and metadata of the RAM store.", &[], memory);
    for (kind, bytes) in [("data", s.store.data_bytes), ("metadata", s.store.metadata_bytes), ("io", s.store.io_bytes)]
    {
        f.gauge("undercroft_store_bytes", "Memory of the RAM store in use, by kind.", &[("kind", kind)], bytes as f64);
    }
}

/// Who has what of the store: a metric for each node of the tree, `node` as `undercroft shares` calls it.
fn division(f: &mut Families, shares: &SharesStatus) {
    f.gauge(
        "undercroft_shares_moving",
        "1 while shares are on their way to their targets.",
        &[],
        f64::from(shares.moving),
    );
    f.counter("undercroft_shares_intervals_total", "Intervals after which was decided.", &[], shares.intervals);
    for node in &shares.nodes {
        let labels = [("node", node.name.as_str()), ("level", node.level.as_str())];
        for (name, help, bytes) in [
            ("undercroft_node_share_bytes", "What the node has of the store.", node.share_bytes),
            ("undercroft_node_target_bytes", "What it is to have.", node.target_bytes),
            (
                "undercroft_node_entitled_bytes",
                "What it has when everybody wants all they can get.",
                node.entitled_bytes,
            ),
            (
                "undercroft_node_working_set_bytes",
                "What would have to be kept for hardly a miss to be left that any size saves.",
                node.working_set_bytes,
            ),
        ] {
            f.gauge(name, help, &labels, bytes as f64);
        }
    }
}

fn memory(f: &mut Families, s: &Status) {
    let (store, p) = (&s.store, &s.pressure);
    for (name, help, value) in [
        ("undercroft_store_floor_bytes", "What is never given back when memory is short.", store.floor_bytes),
        (
            "undercroft_store_set_bytes",
            "What the store may hold at most: its ceiling, or less by hand.",
            store.limit_bytes,
        ),
        ("undercroft_store_allowed_bytes", "What the store may hold now.", store.allowed_bytes),
        ("undercroft_pressure_watching", "1 if the machine's memory is watched.", u64::from(p.watching)),
    ] {
        f.gauge(name, help, &[], value as f64);
    }
    if let Some(bytes) = p.guests_bytes {
        let help = "Shared memory charged to the daemon's control group: guests' pages that it touched first.";
        f.gauge("undercroft_guests_charged_bytes", help, &[], bytes as f64);
    }
    for (direction, name) in [
        (PressureDirection::Full, "full"),
        (PressureDirection::Giving, "giving"),
        (PressureDirection::Waiting, "waiting"),
        (PressureDirection::Growing, "growing"),
    ] {
        let is = f64::from(u8::from(p.direction == direction));
        f.gauge("undercroft_pressure_direction", "1 for the way the store goes.", &[("direction", name)], is);
    }
    for (name, help, value) in [
        ("undercroft_pressure_given_total", "How often memory was given back.", p.given_count),
        ("undercroft_pressure_given_bytes_total", "Bytes given back to the kernel.", p.given_bytes),
        ("undercroft_pressure_ignored_stalls_total", "Stalls of others, at their own limits.", p.ignored_stalls),
    ] {
        f.counter(name, help, &[], value);
    }
    let (k, n) = (&s.ksm, &s.ksm.numbers);
    f.gauge("undercroft_ksm_managed", "1 if this daemon has set KSM up.", &[], f64::from(u8::from(k.managed)));
    for (name, help, value) in [
        ("undercroft_ksm_run", "The switch of KSM: 0 off, 1 on, 2 unmerged.", k.settings.run),
        ("undercroft_ksm_pages_to_scan", "Pages that KSM looks at before each pause.", k.settings.pages_to_scan),
        ("undercroft_ksm_pages_shared", "Merged pages of the machine.", n.pages_shared),
        ("undercroft_ksm_pages_sharing", "Pages saved by merging.", n.pages_sharing),
        ("undercroft_ksm_pages_unshared", "Candidates whose content nobody else has.", n.pages_unshared),
        ("undercroft_ksm_pages_volatile", "Candidates that change too fast.", n.pages_volatile),
        ("undercroft_ksm_zero_pages", "Empty pages that became the zero page.", n.ksm_zero_pages),
        ("undercroft_ksm_profit_bytes", "Bytes saved by KSM less its own.", n.general_profit),
    ] {
        if let Some(value) = value {
            f.gauge(name, help, &[], value as f64);
        }
    }
    if let Some(scans) = n.full_scans.and_then(|n| u64::try_from(n).ok()) {
        f.counter("undercroft_ksm_full_scans_total", "Scans of all candidates since boot.", &[], scans);
    }
}

fn disk_metrics(f: &mut Families, d: &DiskStatus) {
    let short = match &d.vm {
        Some(vm) => d.name.strip_prefix(vm.as_str()).and_then(|n| n.strip_prefix(':')).unwrap_or(&d.name),
        None => &d.name,
    };
    let own = [("disk", short), ("vm", d.vm.as_deref().unwrap_or(""))];
    let with = |name: &'static str, value: &'static str| [own[0], own[1], (name, value)];
    let info = [own[0], own[1], ("policy", &d.cache.policy), ("format", &d.format), ("backend", &d.backend)];
    f.gauge("undercroft_disk_info", "What a disk is; always 1.", &info, 1.0);
    for (state, name) in [
        (DiskState::Serving, "serving"),
        (DiskState::Stalled, "stalled"),
        (DiskState::Waiting, "waiting"),
        (DiskState::Failed, "failed"),
        (DiskState::Detaching, "detaching"),
    ] {
        let is = f64::from(u8::from(d.state == state));
        f.gauge("undercroft_disk_state", "1 for the state that a disk is in.", &with("state", name), is);
    }
    f.gauge("undercroft_disk_size_bytes", "Size of a disk as guests see it.", &own, d.size_bytes as f64);
    f.gauge("undercroft_disk_clients", "Front ends connected to a disk.", &own, d.frontends.len() as f64);
    let inflight = d.inflight_requests as f64;
    f.gauge("undercroft_disk_inflight_requests", "Requests of guests under way.", &own, inflight);
    f.gauge("undercroft_backend_inflight_operations", "Operations of an image under way.", &own, d.inflight_ops as f64);
    let stalled = "Operations that an image has not answered for more than five seconds.";
    f.gauge("undercroft_backend_stalled_operations", stalled, &own, d.stalled_ops as f64);
    let c = &d.counters;
    for (name, help, value) in [
        ("undercroft_disk_read_requests_total", "Read requests finished.", c.reads),
        ("undercroft_disk_write_requests_total", "Write requests finished.", c.writes),
        ("undercroft_disk_flush_requests_total", "Flush requests finished.", c.flushes),
        ("undercroft_disk_discard_requests_total", "Discard requests finished.", c.discards),
        ("undercroft_disk_write_zeroes_requests_total", "Write-zeroes requests finished.", c.write_zeroes),
        ("undercroft_disk_request_errors_total", "Requests answered with an error.", c.errors),
        ("undercroft_disk_read_bytes_total", "Bytes that read requests asked for.", c.read_bytes),
        ("undercroft_disk_written_bytes_total", "Bytes that write requests brought.", c.write_bytes),
        ("undercroft_cache_hits_total", "Blocks of 4096 bytes of read requests found in RAM.", c.hit_blocks),
        ("undercroft_cache_misses_total", "Blocks of read requests read from the image.", c.miss_blocks),
        ("undercroft_cache_joins_total", "Blocks of read requests that joined a read under way.", c.joined_blocks),
        ("undercroft_cache_readahead_hits_total", "Blocks read ahead and then read.", c.readahead_hit_blocks),
        ("undercroft_cache_readahead_wasted_total", "Blocks read ahead and dropped.", c.readahead_wasted_blocks),
        ("undercroft_cache_evictions_total", "Blocks evicted.", c.evicted_blocks),
        ("undercroft_cache_bypasses_total", "Blocks that were not let in.", c.bypassed_blocks),
        ("undercroft_cache_stale_fills_total", "Blocks not let in because they were written meanwhile.", c.stale_fills),
        (
            "undercroft_cache_shared_hit_blocks_total",
            "Blocks had from another disk on the same base.",
            c.shared_hit_blocks,
        ),
        ("undercroft_cache_hashed_blocks_total", "Blocks whose content was hashed, to be shared.", c.hashed_blocks),
        ("undercroft_backend_reads_total", "Reads sent to the image.", c.backend_reads),
        ("undercroft_backend_writes_total", "Writes sent to the image.", c.backend_writes),
        ("undercroft_backend_read_bytes_total", "Bytes read from the image.", c.backend_read_bytes),
        ("undercroft_backend_written_bytes_total", "Bytes written to the image.", c.backend_write_bytes),
        ("undercroft_backend_errors_total", "Operations that the image failed.", c.backend_errors),
    ] {
        f.counter(name, help, &own, value);
    }
    f.gauge("undercroft_cache_bytes", "Data of a disk that is cached.", &own, d.cache.cached_bytes as f64);
    let s = &d.sharing;
    for (name, help, bytes) in [
        ("undercroft_cache_zero_bytes", "Cached zeroes of a disk, which take no memory.", s.zero_bytes),
        ("undercroft_cache_shared_bytes", "Cached data of a disk that shares its memory.", s.shared_bytes),
        ("undercroft_cache_charged_bytes", "Memory that a disk is charged for.", s.charged_bytes),
    ] {
        f.gauge(name, help, &own, bytes as f64);
    }
    f.gauge(
        "undercroft_cache_capacity_bytes",
        "Data of a disk that may be cached.",
        &own,
        d.cache.capacity_bytes as f64,
    );
    f.gauge("undercroft_cache_share_bytes", "Share of the store, metadata included.", &own, d.cache.share_bytes as f64);
    let e = &d.exclusive;
    for (tier, blocks) in [("hot", e.hot_blocks), ("probation", e.probation_blocks), ("cold", e.cold_blocks)] {
        let help = "Blocks cached: not in the guest, about to leave it, in both.";
        f.gauge("undercroft_exclusive_blocks", help, &with("tier", tier), blocks as f64);
    }
    for (name, help, value) in [
        ("undercroft_guest_evictions_total", "Evictions of the guest, inferred.", e.evictions),
        ("undercroft_guest_evictions_cached_total", "Evicted blocks that were cached already.", e.evictions_cached),
        ("undercroft_guest_captures_tried_total", "Guest pages copied at reuse.", e.captures_tried),
        ("undercroft_guest_captures_total", "Guest pages copied at reuse that held their block.", e.captures),
        ("undercroft_guest_captures_compared_total", "Guest pages compared with the image first.", e.captures_compared),
        ("undercroft_guest_captures_wrong_total", "Of those, pages that differed and were not kept.", e.captures_wrong),
        ("undercroft_guest_early_copies_tried_total", "Guest pages copied before eviction.", e.early_tried),
        ("undercroft_guest_early_copies_total", "Guest pages copied before eviction that held their block.", e.early),
    ] {
        f.counter(name, help, &own, value);
    }
    let l = &d.latency;
    for (kind, latency) in [("read_hit", &l.read_hit), ("read_miss", &l.read_miss), ("write", &l.write)] {
        let help = "Time from when the daemon saw a request to its reply: reads from RAM alone, other reads, writes.";
        f.latency("undercroft_disk_request_duration_seconds", help, &with("kind", kind), latency);
    }
}
