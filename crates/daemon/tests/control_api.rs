//! The API over a real socket, with a daemon that lives in memory: routes, status codes, bodies, bounds, metrics.
//!
//! Owns the HTTP layer only; what the real daemon does is tested with it.

use hyper::Method;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use undercroft_api::client::{self, ClientError};
use undercroft_api::ranges::{DiskRanges, RangeList};
use undercroft_api::record::Order;
use undercroft_api::{
    DiskLatency, DiskState, DiskStatus, ExclusiveStatus, KsmStatus, LatencySnapshot, LogStatus, NodeChanged,
    NodeStatus, PressureDirection, PressureStatus, RangesStatus, RangesTaken, RecordingStatus, ReloadReport,
    ShareEvent, SharesStatus, Status, StoreStatus,
};
use undercroft_cache::DiskStats;
use undercroft_config::{
    self as config, DaemonPlan, DiskSpec, Machine, NodeSet, Overrides, ServePlan, ServeSpec, SocketAccess, VmControl,
    spec::{NodeSpec, StoreSpec},
};
use undercroft_config::{ControlError, ControlErrorKind, NodeChange, NodeSettings};
use undercroft_daemon::http::{Caller, ControlListeners, ControlServer, Daemon};
use undercroft_daemon::latency::Histogram;
use undercroft_daemon::service::shown;
use undercroft_hostmem::ksm::Numbers;

/// A daemon that keeps a plan and invents counters.
struct Memory {
    plan: Mutex<ServePlan>,
    stopped: AtomicBool,
    memory: AtomicU64,
    ksm: AtomicBool,
    version: AtomicU64,
    ranges: Mutex<DiskRanges>,
}

fn latency() -> LatencySnapshot {
    let mut h = Histogram::new();
    [900, 1500, 3_000_000, u64::MAX].iter().for_each(|ns| h.record(*ns));
    shown::latency(&h)
}

impl Memory {
    fn disk_status(plan: &config::DiskPlan) -> DiskStatus {
        let stats = DiskStats { reads: 7, read_bytes: 28672, hit_blocks: 3, miss_blocks: 1, ..DiskStats::default() };
        DiskStatus {
            name: plan.name.clone(),
            vm: plan.vm.clone(),
            state: DiskState::Serving,
            reason: None,
            image: plan.image.location.clone(),
            format: "raw".into(),
            backend: "in memory, \"quoted\"".into(),
            read_only: plan.image.read_only,
            size_bytes: 1 << 30,
            socket: plan.socket.as_ref().map(|s| s.display().to_string()),
            nbd: plan.nbd,
            frontends: vec![],
            cache: shown::cache_status(plan.policy, plan.share_bytes, &stats),
            sharing: shown::sharing_status(Some(plan.trust.clone()), false, &stats),
            exclusive: ExclusiveStatus { mode: "auto".into(), state: "no guest".into(), ..ExclusiveStatus::default() },
            counters: shown::counters(&stats),
            latency: DiskLatency { read_hit: latency(), ..DiskLatency::default() },
            stalled_ops: 0,
            inflight_requests: 0,
            inflight_ops: 0,
            poll_us: plan.poll.as_secs_f64() * 1e6,
            worker: 0,
            queues: plan.queues,
            queue_size: plan.queue_size,
        }
    }
}

impl Daemon for Memory {
    fn status(&self) -> Status {
        let plan = self.plan.lock().unwrap();
        Status {
            version: "0".into(),
            pid: std::process::id(),
            uptime_seconds: 1.5,
            config_file: None,
            workers: 2,
            copying_seconds: 0.25,
            scan: None,
            nbd: vec![],
            nbd_listeners: Vec::new(),
            nbd_data: undercroft_api::NbdDataStatus::default(),
            log: LogStatus::default(),
            sharing: Vec::new(),
            store: StoreStatus {
                memory_bytes: plan.store.memory_bytes,
                limit_bytes: self.memory.load(Ordering::SeqCst),
                allowed_bytes: plan.store.floor_bytes,
                floor_bytes: plan.store.floor_bytes,
                ..StoreStatus::default()
            },
            pressure: PressureStatus {
                given_count: 3,
                direction: PressureDirection::Giving,
                ..PressureStatus::default()
            },
            ksm: KsmStatus {
                managed: self.ksm.load(Ordering::SeqCst),
                numbers: Numbers { pages_sharing: Some(7), ..Numbers::default() },
                ..KsmStatus::default()
            },
            disks: plan.disks.iter().map(Self::disk_status).collect(),
        }
    }

    fn disk(&self, name: &str) -> Result<DiskStatus, ControlError> {
        let plan = self.plan.lock().unwrap();
        let found = plan.disks.iter().find(|d| d.name == name).map(Self::disk_status);
        found.ok_or_else(|| ControlError::no_disk(name, plan.disks.iter().map(|d| d.name.as_str())))
    }

    fn change_disk(&self, name: &str, change: NodeChange, _: &Caller) -> Result<DiskStatus, ControlError> {
        let changed = self.plan.lock().unwrap().with_change(name, &change)?;
        *self.plan.lock().unwrap() = changed;
        self.disk(name)
    }

    fn shares(&self) -> SharesStatus {
        let plan = self.plan.lock().unwrap();
        let version = self.version.load(Ordering::SeqCst);
        let node = |(name, set): (String, NodeSet)| NodeStatus {
            policy: set.keys.get("policy").filter(|p| *p != "inherit").cloned(),
            level: if name.contains(':') {
                "disk"
            } else if name == "host" {
                "host"
            } else {
                "vm"
            }
            .into(),
            parent: Some("host".into()),
            name,
            weight: set.weight,
            version,
            ..NodeStatus::default()
        };
        SharesStatus { nodes: plan.settings().into_iter().map(node).collect(), ..SharesStatus::default() }
    }

    fn node(&self, name: &str) -> Result<NodeStatus, ControlError> {
        let name = self.plan.lock().unwrap().node_name(name)?;
        Ok(self.shares().nodes.into_iter().find(|n| n.name == name).unwrap_or_default())
    }

    fn share_events(&self, name: &str, within: Option<&str>) -> Result<Vec<ShareEvent>, ControlError> {
        let plan = self.plan.lock().unwrap();
        plan.node_name(name)?;
        let event = |node: &str| ShareEvent { node: node.into(), ..ShareEvent::default() };
        Ok(["host", "web"].into_iter().filter(|n| within.is_none_or(|vm| vm == *n)).map(event).collect())
    }

    fn change_node(
        &self,
        name: &str,
        change: NodeChange,
        expected: Option<Vec<u64>>,
        _: &Caller,
    ) -> Result<NodeChanged, ControlError> {
        let mut plan = self.plan.lock().unwrap();
        let name = plan.node_name(name)?;
        let previous = NodeSettings::new(&plan.settings()[&name], self.version.load(Ordering::SeqCst));
        if let Some(expected) = expected.filter(|e| !e.contains(&previous.version)) {
            return Err(ControlError::stale(&name, &expected, previous));
        }
        *plan = plan.with_node(&name, &change)?;
        drop(plan);
        self.version.fetch_add(1, Ordering::SeqCst);
        Ok(NodeChanged { node: self.node(&name)?, previous })
    }

    fn ranges(&self, disk: &str) -> Result<RangesStatus, ControlError> {
        self.disk(disk)?;
        Ok(RangesStatus::new(disk, &self.ranges.lock().unwrap()))
    }

    fn set_ranges(&self, list: RangeList, _: &Caller) -> Result<RangesTaken, ControlError> {
        self.disk(list.disk())?;
        let mut ranges = self.ranges.lock().unwrap();
        let taken = RangesTaken::new(&list, &ranges);
        ranges.put(&list)?;
        Ok(taken)
    }

    fn record(&self, order: Order) -> Result<RecordingStatus, ControlError> {
        let path = order.path.display().to_string();
        Ok(RecordingStatus { id: 1, path, running: true, ..RecordingStatus::default() })
    }

    fn recordings(&self) -> Vec<RecordingStatus> {
        Vec::new()
    }

    fn recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        Err(ControlError::no_recording(id))
    }

    fn end_recording(&self, id: u64) -> Result<RecordingStatus, ControlError> {
        Err(ControlError::no_recording(id))
    }

    fn set_memory(&self, bytes: u64, _: &Caller) -> Result<StoreStatus, ControlError> {
        self.memory.store(bytes, Ordering::SeqCst);
        Ok(self.status().store)
    }

    fn manage_ksm(&self, manage: bool, unmerge: bool, _: &Caller) -> Result<KsmStatus, ControlError> {
        if unmerge && !self.ksm.load(Ordering::SeqCst) {
            return Err(ControlError::new(ControlErrorKind::Conflict, "KSM is not managed", "switch it on"));
        }
        self.ksm.store(manage, Ordering::SeqCst);
        Ok(self.status().ksm)
    }

    fn add_disk(&self, spec: DiskSpec, _: &Caller) -> Result<DiskStatus, ControlError> {
        if spec.name == "crash" {
            panic!("a bug of the daemon");
        }
        let mut plan = self.plan.lock().unwrap();
        let disk = plan.plan_disk(spec)?;
        plan.disks.push(disk.clone());
        Ok(Self::disk_status(&disk))
    }

    fn remove_disk(&self, name: &str, _: &Caller) -> Result<(), ControlError> {
        let without = self.plan.lock().unwrap().without_disk(name)?;
        *self.plan.lock().unwrap() = without;
        Ok(())
    }

    fn drop_cache(&self, name: &str) -> Result<u64, ControlError> {
        self.disk(name).map(|_| 4096)
    }

    fn reload(&self, _detach_most: bool, _: &Caller) -> Result<ReloadReport, ControlError> {
        Err(ControlError::new(ControlErrorKind::Unavailable, "it is stopping", "wait"))
    }

    fn stop(&self, _: &Caller) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

struct Api {
    dir: tempfile::TempDir,
    socket: PathBuf,
    daemon: Arc<Memory>,
    metrics: std::net::SocketAddr,
    server: Option<ControlServer>,
}

fn daemon_plan(dir: &Path) -> (ServePlan, DaemonPlan) {
    let machine = Machine { runtime_dir: dir.join("run"), current_dir: dir.into(), ..Machine::here() };
    std::fs::write(dir.join("a.raw"), [0; 512]).unwrap();
    std::fs::write(dir.join("b.raw"), [0; 512]).unwrap();
    let spec = ServeSpec {
        store: StoreSpec { memory: Some("256MiB".parse().unwrap()), ..StoreSpec::default() },
        disks: vec![DiskSpec {
            name: "root".into(),
            vm: Some("web".into()),
            image: "a.raw".into(),
            ..DiskSpec::default()
        }],
        nodes: vec![NodeSpec { name: "secret".into(), ..NodeSpec::default() }],
        overrides: Overrides::default(),
        ..ServeSpec::default()
    };
    let (plan, _) = config::resolve(&spec, &machine, vec![]).accept().unwrap();
    let vm = VmControl { vm: "web".into(), socket: dir.join("web.sock"), access: SocketAccess { gid: None } };
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let daemon = DaemonPlan { metrics, vm_controls: vec![vm], ..plan.daemon.clone() };
    (plan, daemon)
}

impl Api {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (plan, daemon_plan) = daemon_plan(dir.path());
        let daemon = Arc::new(Memory {
            memory: AtomicU64::new(plan.store.memory_bytes),
            plan: Mutex::new(plan),
            stopped: AtomicBool::new(false),
            ksm: AtomicBool::new(false),
            version: AtomicU64::new(7),
            ranges: Mutex::new(DiskRanges::new("web:root", 1 << 30)),
        });
        let listeners = ControlListeners::bind(&daemon_plan).unwrap();
        let metrics = listeners.metrics_addr().unwrap();
        let socket = daemon_plan.control_socket;
        let server = Some(ControlServer::start(listeners, daemon.clone()).unwrap());
        Api { dir, socket, daemon, metrics, server }
    }

    /// Status code and body.
    fn raw(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        exchange(&mut stream, head, body)
    }

    /// The same on the socket of VM `web`.
    fn vm(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.dir.path().join("web.sock")).unwrap();
        exchange(&mut stream, head, body)
    }

    fn refused(&self, method: Method, path: &str, body: &str) -> String {
        match client::request(&self.socket, method, path, Some(body.to_string())) {
            Err(ClientError::Refused(e)) => {
                assert!(!e.error.is_empty() && !e.remedy.is_empty());
                format!("{}; {}", e.error, e.remedy)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn exchange(stream: &mut (impl Read + Write), head: &str, body: &str) -> (u16, String) {
    let text =
        format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let code = answer.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or(0);
    (code, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, b)| b.to_string()))
}

#[test]
fn the_socket_is_ours_alone_and_goes_with_the_server() {
    let mut api = Api::start();
    let meta = std::fs::metadata(&api.socket).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let (_, plan) = daemon_plan(api.dir.path());
    let e = ControlListeners::bind(&plan).unwrap_err().to_string();
    assert!(e.contains("in use") && e.contains("control.sock"), "a second daemon: {e}");
    api.server.take().unwrap().stop();
    assert!(!api.socket.exists() && !api.dir.path().join("web.sock").exists());
    let e = client::request(&api.socket, Method::GET, "/v1/status", None).unwrap_err().to_string();
    assert!(e.contains("no daemon answers") && e.contains("undercroft serve"), "{e}");
}

#[test]
fn a_metrics_address_in_use_is_named() {
    let api = Api::start();
    let other = tempfile::tempdir().unwrap();
    let (_, plan) = daemon_plan(other.path());
    let e = ControlListeners::bind(&DaemonPlan { metrics: Some(api.metrics), ..plan }).unwrap_err().to_string();
    assert!(e.contains(&api.metrics.to_string()) && e.contains("daemon.metrics"), "{e}");
}

#[test]
fn status_comes_back_as_the_same_structure() {
    let api = Api::start();
    let status: Status = client::request_json(&api.socket, Method::GET, "/v1/status", None).unwrap();
    assert_eq!(status, api.daemon.status());
    assert_eq!(status.disks[0].cache.hit_ratio, Some(0.75));
    let disks: Vec<DiskStatus> = client::request_json(&api.socket, Method::GET, "/v1/disks", None).unwrap();
    assert_eq!(disks, status.disks);
    // Colons need no escaping, and escapes are understood.
    for path in ["/v1/disks/web:root", "/v1/disks/web%3Aroot"] {
        let disk: DiskStatus = client::request_json(&api.socket, Method::GET, path, None).unwrap();
        assert_eq!(disk, disks[0]);
    }
}

#[test]
fn a_disk_is_changed_attached_and_detached() {
    let api = Api::start();
    let change = r#"{"size": "64MiB", "policy": "lru", "poll": "100us"}"#.to_string();
    let disk: DiskStatus =
        client::request_json(&api.socket, Method::PATCH, "/v1/disks/web:root", Some(change)).unwrap();
    assert_eq!((disk.cache.share_bytes, disk.cache.policy.as_str(), disk.poll_us), (64 << 20, "lru", 100.0));

    let image = api.dir.path().join("b.raw").display().to_string();
    let (code, body) = api.raw("POST /v1/disks", &format!(r#"{{"name": "b", "image": "{image}"}}"#));
    assert_eq!(code, 201, "{body}");
    assert_eq!(serde_json::from_str::<DiskStatus>(&body).unwrap().cache.share_bytes, 192 << 20);
    let (code, _) = api.raw("DELETE /v1/disks/b", "");
    assert_eq!(code, 204);
    assert_eq!(api.daemon.status().disks.len(), 1);
    let (code, body) = api.raw("POST /v1/disks/web:root/drop-cache", "");
    assert_eq!((code, body.as_str()), (200, r#"{"dropped_bytes":4096}"#));
}

#[test]
fn errors_have_their_status_and_a_remedy() {
    let api = Api::start();
    for (head, body, code, needle) in [
        ("GET /v1/disks/web:rot", "", 404, "did you mean \\\"web:root\\\"?"),
        ("DELETE /v1/disks/zzz", "", 404, "there is no disk \\\"zzz\\\""),
        ("GET /v1/nothing", "", 404, "GET /openapi.json"),
        ("PUT /v1/status", "", 405, "does not take PUT"),
        ("PATCH /v1/disks/web:root", "{}", 400, "nothing is to be changed"),
        ("PATCH /v1/disks/web:root", r#"{"siez": 1}"#, 400, "did you mean \\\"size\\\"?"),
        ("PATCH /v1/disks/web:root", r#"{"size": "9GiB"}"#, 400, "memory is 256MiB"),
        ("PATCH /v1/disks/%ff", r#"{"size": 1}"#, 400, "is no text"),
        ("PATCH /v1/nodes/web", "{}", 400, "nothing is to be changed"),
        ("PATCH /v1/nodes/web", r#"{"weight": 0}"#, 400, "1 to 10000"),
        ("PATCH /v1/nodes/web", r#"{"wieght": 1}"#, 400, "did you mean \\\"weight\\\"?"),
        ("PATCH /v1/nodes/web", r#"{"controller": "utlity"}"#, 400, "did you mean \\\"utility\\\"?"),
        ("PATCH /v1/nodes/web", r#"{"ceiling": "lots"}"#, 400, "ceiling:"),
        ("PATCH /v1/nodes/web", r#"{"controller": "static", "weight": 1, "weight": 2}"#, 400, "duplicate"),
        ("PUT /v1/nodes/web", r#"{"weight": 0}"#, 400, "1 to 10000"),
        ("PUT /v1/nodes/web", "", 400, "no body"),
        ("GET /v1/nodes/wbe", "", 404, "did you mean \\\"web\\\"?"),
        ("PUT /v1/ranges", "{", 400, "the body is not what is expected"),
        (
            "PUT /v1/ranges",
            r#"{"disk": "web:rot", "container": "shop", "ranges": []}"#,
            404,
            "did you mean \\\"web:root\\\"?",
        ),
        (
            "PUT /v1/ranges",
            r#"{"disk": "web:root", "container": "shop", "ranges": [{"offset_bytes": 1073741824, "length_bytes": 1}]}"#,
            400,
            "not all on disk",
        ),
        ("GET /v1/disks/web:rot/ranges", "", 404, "did you mean"),
        ("PATCH /v1/nodes/web%2Fx", r#"{"weight": 1}"#, 404, "there is no VM, container or disk"),
        ("GET /v1/nodes/nobody/events", "", 404, "there is no VM, container or disk"),
        ("POST /v1/disks", r#"{"name": "x", "image": "/nowhere/x.raw", "policy": "best"}"#, 400, "unknown policy"),
        ("POST /v1/disks", r#"{"name": "x", "image": "/nowhere/x.raw", "policy": "best"}"#, 400, "does not exist"),
        ("POST /v1/disks", "not json", 400, "the body is not what is expected"),
        ("POST /v1/disks", r#"{"name": "crash", "image": "/x"}"#, 500, "failed inside the daemon"),
        ("POST /v1/reload", "", 503, "it is stopping"),
    ] {
        let (got, answer) = api.raw(head, body);
        assert_eq!(got, code, "{head} {body}: {answer}");
        assert!(answer.contains(needle) && answer.contains("\"remedy\""), "{head} {body}: {answer}");
    }
    assert!(api.refused(Method::GET, "/v1/disks/x", "").contains("there is no disk"));
}

#[test]
fn a_long_body_is_refused_and_the_server_lives_on() {
    let api = Api::start();
    let (code, answer) = api.raw("POST /v1/disks", &" ".repeat(70_000));
    assert!(code == 400 && answer.contains("longer than 65536 bytes"), "{code} {answer}");
    // A length past all bounds, and a head that never ends.
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    stream.write_all(b"POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\n");
    let _ = stream.write_all("x: y\r\n".repeat(10_000).as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(api.raw("GET /v1/version", "").0, 200);
}

#[test]
fn half_a_body_is_given_up_within_half_a_minute() {
    let api = Api::start();
    let begun = std::time::Instant::now();
    // As many as there are places: what one client does at most.
    let halves: Vec<_> = (0..64)
        .map(|_| {
            let mut stream = UnixStream::connect(&api.socket).unwrap();
            stream.write_all(b"POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"na").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream
        })
        .collect();
    for mut half in halves {
        let mut answer = String::new();
        half.read_to_string(&mut answer).expect("an answer and the end of the connection");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("took more than 25 s"), "{answer}");
    }
    // The promise is 30 s; the rest is for a machine that is slow.
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    assert_eq!(api.raw("GET /v1/version", "").0, 200);
}

#[test]
fn garbage_and_idle_connections_do_not_disturb_others() {
    let api = Api::start();
    // As many idle connections as there are places but one, and one that says nonsense.
    let idle: Vec<_> = (0..62).map(|_| UnixStream::connect(&api.socket).unwrap()).collect();
    let mut nonsense = UnixStream::connect(&api.socket).unwrap();
    nonsense.write_all(&[0xff; 300]).unwrap();
    assert_eq!(api.raw("GET /v1/version", "").0, 200);
    drop(idle);
    // Once past the last place, connections wait until one is free.
    let full: Vec<_> = (0..80).map(|_| UnixStream::connect(&api.socket).unwrap()).collect();
    let mut waiting = UnixStream::connect(&api.socket).unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    waiting.write_all(b"GET /v1/version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    assert!(waiting.read(&mut [0; 1]).is_err(), "it was served although every place is taken");
    drop(full);
    waiting.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn stopping_ends_idle_connections_too() {
    let mut api = Api::start();
    let mut idle = UnixStream::connect(&api.socket).unwrap();
    assert_eq!(api.raw("POST /v1/stop", "").0, 202);
    assert!(api.daemon.stopped.load(Ordering::SeqCst));
    api.server.take().unwrap().stop();
    idle.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "closed, not left hanging");
}

#[test]
fn the_description_is_served_as_committed() {
    let api = Api::start();
    let (code, text) = api.raw("GET /openapi.json", "");
    assert_eq!((code, text), (200, undercroft_daemon::http::api::openapi()));
}

#[test]
fn the_store_and_ksm_are_changed() {
    let api = Api::start();
    let body = r#"{"memory": "128MiB"}"#.to_string();
    let store: StoreStatus = client::request_json(&api.socket, Method::PATCH, "/v1/store", Some(body)).unwrap();
    assert_eq!(store.limit_bytes, 128 << 20);
    let e = api.refused(Method::PATCH, "/v1/store", r#"{"size": "1GiB"}"#);
    assert!(e.contains("unknown field \"size\"; known are memory"), "{e}");
    let ksm = |body: &str| client::request_json::<KsmStatus>(&api.socket, Method::PATCH, "/v1/ksm", Some(body.into()));
    assert!(ksm(r#"{"manage": true}"#).unwrap().managed);
    assert!(!ksm(r#"{"manage": false, "unmerge": true}"#).unwrap().managed);
    let e = api.refused(Method::PATCH, "/v1/ksm", r#"{"manage": false, "unmerge": true}"#);
    assert!(e.contains("KSM is not managed; switch it on"), "{e}");
    assert!(api.refused(Method::PATCH, "/v1/ksm", r#"{"manage": true, "unmerge": true}"#).contains("contradiction"));
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
        // 900 ns; 900 and 1500 ns; all but the endless one.
        "undercroft_disk_request_duration_seconds_bucket{disk=\"root\",vm=\"web\",kind=\"read_hit\",le=\"0.000001024\"} 1",
        "undercroft_disk_request_duration_seconds_bucket{disk=\"root\",vm=\"web\",kind=\"read_hit\",le=\"0.000002048\"} 2",
        "undercroft_disk_request_duration_seconds_bucket{disk=\"root\",vm=\"web\",kind=\"read_hit\",le=\"0.004194304\"} 3",
        "undercroft_disk_request_duration_seconds_bucket{disk=\"root\",vm=\"web\",kind=\"read_hit\",le=\"+Inf\"} 4",
        "undercroft_disk_request_duration_seconds_count{disk=\"root\",vm=\"web\",kind=\"read_hit\"} 4",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis missing in\n{text}");
    }
    assert!(text.contains("backend=\"in memory, \\\"quoted\\\"\""), "labels are escaped");
    assert!(text.contains("process_resident_memory_bytes"));
}

/// Two writers: the second one's change is refused if it says what it knows, and otherwise told what it replaced.
#[test]
fn a_node_changed_meanwhile_is_not_overwritten_unseen() {
    let api = Api::start();
    // `raw` ends the line with the version of HTTP: here that is the value of a header that nobody reads.
    let patch =
        |tag: &str, body: &str| api.raw(&format!("PATCH /v1/nodes/web HTTP/1.1\r\nif-match: {tag}\r\nx-rest:"), body);
    let node: NodeStatus = client::request_json(&api.socket, Method::GET, "/v1/nodes/web", None).unwrap();
    assert_eq!(node.version, 7);
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    let head =
        "PATCH /v1/nodes/web HTTP/1.1\r\nhost: x\r\nconnection: close\r\nif-match: \"7\"\r\ncontent-length: 15\r\n\r\n";
    stream.write_all(format!("{head}{{\"weight\": 200}}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("etag: \"8\"\r\n"), "{answer}");
    let changed: NodeChanged = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((changed.node.weight, changed.previous.weight, changed.previous.version), (200, 100, 7));

    for tag in ["\"7\"", "7", "\"6\", \"7\""] {
        let (code, body) = patch(tag, r#"{"weight": 300}"#);
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (code, &error["current"]["weight"], &error["current"]["version"]),
            (412, &200.into(), &8.into()),
            "{body}"
        );
        assert!(error["remedy"].as_str().unwrap().contains("version 8"), "{body}");
    }
    assert_eq!(patch("W/\"8\"", r#"{"weight": 300}"#).0, 400);
    assert_eq!(patch("\"7\", \"8\"", r#"{"weight": 300}"#).0, 200);
    assert_eq!(patch("*", r#"{"floor": "16MiB"}"#).0, 200);
    let refused = client::change_node(&api.socket, "/v1/nodes/web", "{\"weight\": 1}".into(), Some(9)).unwrap_err();
    assert!(refused.to_string().contains("weight 300, floor 16MiB, ceiling none (version 10)"), "{refused}");
    // PUT sets everything: what it does not name is as if it had never been set.
    let (code, body) = api.raw("PUT /v1/nodes/web", r#"{"ceiling": "64MiB"}"#);
    let put: NodeChanged = serde_json::from_str(&body).unwrap();
    assert_eq!((code, put.node.weight, put.previous.weight, put.previous.floor_bytes), (200, 100, 300, 16 << 20));
}

/// On a VM's own socket there is nothing but what is below it: no other VM is named, nothing of the host can be
/// changed.
#[test]
fn a_vms_socket_reaches_what_is_below_it_alone() {
    let api = Api::start();
    let meta = std::fs::metadata(api.dir.path().join("web.sock")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let (code, body) = api.vm("GET /v1/shares", "");
    let shares: SharesStatus = serde_json::from_str(&body).unwrap();
    let names: Vec<_> = shares.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!((code, names), (200, vec!["web", "web:root"]));
    let weight = r#"{"weight": 300}"#;
    for (head, body, code, needle) in [
        // In full and in short; the VM's own weight is not its own to set, but who divides below it is.
        ("PATCH /v1/nodes/web:root", weight, 200, "\"weight\":300"),
        ("PATCH /v1/nodes/root", r#"{"weight": 200}"#, 200, "\"weight\":300"),
        ("PATCH /v1/nodes/web", r#"{"controller": "static"}"#, 200, "\"name\":\"web\""),
        ("GET /v1/nodes/web", "", 200, "\"parent\":null"),
        ("PATCH /v1/nodes/web", weight, 403, "itself cannot be seen or changed"),
        ("PATCH /v1/nodes/web", r#"{"controller": "static", "ceiling": "none"}"#, 403, "control.sock, may do it"),
        ("PUT /v1/nodes/web", r#"{"controller": "static"}"#, 403, "itself"),
        ("PATCH /v1/nodes/web:rot", weight, 404, "did you mean \\\"web:root\\\"?"),
        ("PATCH /v1/nodes/host", r#"{"controller": "static"}"#, 404, "there is no VM, container or disk"),
        ("GET /v1/nodes/web/events", "", 200, "[{\"sequence\":0,\"interval\":0,\"node\":\"web\""),
        ("GET /v1/nodes/host/events", "", 404, "there is no VM, container or disk"),
        ("PUT /v1/ranges", r#"{"disk": "secret:root", "container": "a", "ranges": []}"#, 404, "secret:root"),
        ("PUT /v1/ranges", r#"{"disk": "web:root", "container": "a", "ranges": []}"#, 200, "\"ranges\":0"),
        ("GET /v1/disks/root/ranges", "", 200, "\"containers\":[]"),
        ("GET /v1/version", "", 200, "\"api\""),
        ("GET /v1/nothing", "", 404, "there is nothing at"),
        ("GET /v1/status", "", 403, "/v1/status cannot"),
        ("GET /v1/disks", "", 403, "/v1/disks cannot"),
        ("PATCH /v1/disks/web:root", r#"{"size": "64MiB"}"#, 403, "cannot"),
        ("POST /v1/disks/web:root/drop-cache", "", 403, "cannot"),
        ("PATCH /v1/store", r#"{"memory": "64MiB"}"#, 403, "cannot"),
        ("PATCH /v1/ksm", "{}", 403, "cannot"),
        ("POST /v1/reload", "", 403, "cannot"),
        ("POST /v1/stop", "", 403, "cannot"),
        ("POST /v1/recordings", "{}", 403, "cannot"),
        ("GET /v1/recordings/1", "", 403, "cannot"),
        ("GET /metrics", "", 403, "cannot"),
    ] {
        let (got, answer) = api.vm(head, body);
        assert_eq!(got, code, "{head}: {answer}");
        assert!(answer.contains(needle), "{head}: {answer}");
    }
    // Whether another VM is there or not, the answer is the same.
    let about = |name: &str| {
        let (code, answer) = api.vm(&format!("PATCH /v1/nodes/{name}"), weight);
        (code, answer.replace(name, "NAME"))
    };
    assert_eq!(about("secret"), about("secreu"));
    assert_eq!(about("secret:root"), about("secreu:root"));
    // What is said of a node that is nearly another VM's names no other VM.
    assert!(!api.vm("GET /v1/nodes/web:secret", "").1.contains("\\\"secret\\\""));
    assert!(!api.daemon.stopped.load(Ordering::SeqCst));
}

/// Lists of ranges are taken whole, replace what was said before, and may be longer than other bodies.
#[test]
fn ranges_are_taken_replaced_and_shown() {
    let api = Api::start();
    let put = |container: &str, ranges: &str| {
        let body = format!(r#"{{"disk": "web:root", "container": "{container}", "ranges": {ranges}}}"#);
        api.raw("PUT /v1/ranges", &body)
    };
    let range = |offset: u64, length: u64| format!(r#"{{"offset_bytes": {offset}, "length_bytes": {length}}}"#);
    let many: Vec<String> = (0..4000u64).map(|n| range(n * 8192, 4096)).collect();
    let (code, body) = put("shop", &format!("[{}]", many.join(",")));
    let taken: RangesTaken = serde_json::from_str(&body).unwrap();
    assert_eq!((code, taken.ranges, taken.bytes, taken.previous_ranges), (200, 4000, 4000 * 4096, 0));
    let (code, body) = put("db", &format!("[{}]", range(4096, 4097)));
    assert!(code == 409 && body.contains("container \\\"shop\\\"'s"), "{body}");
    assert_eq!(put("shop", &format!("[{}]", range(8192, 5000))).0, 200);
    assert_eq!(put("db", &format!("[{}]", range(4096, 4096))).0, 200);
    let status: RangesStatus =
        client::request_json(&api.socket, Method::GET, "/v1/disks/web:root/ranges", None).unwrap();
    let shown: Vec<_> = status.containers.iter().map(|c| (c.container.as_str(), c.bytes, c.blocks)).collect();
    assert_eq!(shown, [("db", 4096, 1), ("shop", 5000, 2)]);
    let (code, body) = api.raw("PUT /v1/ranges", &" ".repeat((8 << 20) + 1));
    assert!(code == 400 && body.contains("longer than 8388608 bytes"), "{body}");
}
