//! Metrics, on the control socket and over TCP.
//!
//! Owns nothing. Invariant: what is compared is the text that a scraper gets.

use crate::rig::{Api, daemon_plan, exchange};
use std::sync::atomic::Ordering;
use undercroft_config::DaemonPlan;
use undercroft_http::ControlListeners;

#[test]
fn a_metrics_address_in_use_is_named() {
    let api = Api::start();
    let other = tempfile::tempdir().unwrap();
    let (_, plan) = daemon_plan(other.path());
    let e = ControlListeners::bind(&DaemonPlan { metrics: Some(api.metrics), ..plan }).unwrap_err().to_string();
    assert!(e.contains(&api.metrics.to_string()) && e.contains("daemon.metrics"), "{e}");
}

#[test]
fn metrics_over_tcp_are_metrics_alone() {
    let api = Api::start();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(api.metrics).unwrap();
        exchange(&mut stream, &format!("GET {path}"), "")
    };
    let (code, text) = get("/metrics");
    assert_eq!(code, 200);
    assert!(text.contains("undercroft_disk_read_requests_total{disk=\"root\",vm=\"web\"} 7\n"), "{text}");
    assert_eq!(get("/v1/status").0, 404);
    let mut stream = std::net::TcpStream::connect(api.metrics).unwrap();
    assert_eq!(exchange(&mut stream, "POST /v1/stop", "").0, 404);
    assert!(!api.daemon.stopped.load(Ordering::SeqCst));
}

#[test]
fn metrics_have_base_units_and_exact_buckets() {
    let api = Api::start();
    let (_, text) = api.raw("GET /metrics", "");
    for line in [
        "undercroft_disk_read_bytes_total{disk=\"root\",vm=\"web\"} 28672",
        "undercroft_cache_hits_total{disk=\"root\",vm=\"web\"} 3",
        "undercroft_locked_bytes{disk=\"root\",vm=\"web\"} 12288",
        "undercroft_pinned_bytes{disk=\"root\",vm=\"web\"} 20480",
        "undercroft_lock_budget_bytes{disk=\"root\",vm=\"web\"} 28672",
        "undercroft_victim_buffer_hits_total{disk=\"root\",vm=\"web\"} 0",
        "undercroft_store_limit_bytes 268435456",
        "undercroft_store_floor_bytes 67108864",
        "undercroft_store_allowed_bytes 67108864",
        "undercroft_pressure_given_total 3",
        "undercroft_pressure_direction{direction=\"giving\"} 1",
        "undercroft_pressure_direction{direction=\"full\"} 0",
        "undercroft_ksm_managed 0",
        "undercroft_shares_moving 0",
        "undercroft_node_share_bytes{node=\"web\",level=\"vm\"} 0",
        "undercroft_ksm_pages_sharing 7",
        "undercroft_disk_state{disk=\"root\",vm=\"web\",state=\"serving\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis missing in\n{text}");
    }
    assert!(!text.contains("undercroft_ssd"), "there is no SSD store");
    *api.daemon.ssd.lock().unwrap() = Some(false);
    let (_, with_ssd) = api.raw("GET /metrics", "");
    for line in [
        "undercroft_ssd_in_service 0",
        "undercroft_ssd_cached_bytes 4096",
        "undercroft_ssd_hits_total 5",
        "undercroft_ssd_written_bytes_total{cause=\"admitted\"} 8192",
        "undercroft_ssd_written_bytes_total{cause=\"summaries\"} 4096",
        "undercroft_ssd_refused_total{reason=\"budget\"} 2",
        "undercroft_ssd_class_admitted_total{class=\"first-sequential\"} 1",
        "undercroft_ssd_class_refused_total{class=\"first-sequential\"} 7",
    ] {
        assert!(with_ssd.lines().any(|l| l == line), "{line}\nis missing in\n{with_ssd}");
    }
    assert!(!with_ssd.contains("undercroft_ssd_budget_left"), "there is no limit");
    // 900 ns; 900 and 1500 ns; all but the endless one.
    for (of, n) in [
        ("bucket", ",le=\"0.000001024\"", 1),
        ("bucket", ",le=\"0.000002048\"", 2),
        ("bucket", ",le=\"0.004194304\"", 3),
        ("bucket", ",le=\"+Inf\"", 4),
        ("count", "", 4),
    ]
    .map(|(of, bound, n)| (format!("{of}{{disk=\"root\",vm=\"web\",kind=\"read_hit\"{bound}}}"), n))
    {
        let line = format!("undercroft_disk_request_duration_seconds_{of} {n}");
        assert!(text.lines().any(|l| l == line), "{line}\nis missing in\n{text}");
    }
    assert!(text.contains("backend=\"in memory, \\\"quoted\\\"\""), "labels are escaped");
    assert!(text.contains("process_resident_memory_bytes"));
}
