//! A server of the API over that daemon, on sockets of its own, and how a test talks to it.
//!
//! Owns a temporary directory for each server. Never looks into an answer.

use crate::memory::Memory;
use hyper::Method;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use undercroft_api::client;
use undercroft_api::client::ClientError;
use undercroft_api::ranges::DiskRanges;
use undercroft_config::spec::{NodeSpec, StoreSpec};
use undercroft_config::{
    self as config, DaemonPlan, DiskSpec, Machine, Overrides, ServePlan, ServeSpec, SocketAccess, VmControl,
};
use undercroft_http::{ControlListeners, ControlServer};

pub struct Api {
    pub dir: tempfile::TempDir,
    pub socket: PathBuf,
    pub daemon: Arc<Memory>,
    pub metrics: std::net::SocketAddr,
    pub server: Option<ControlServer>,
}

pub fn daemon_plan(dir: &Path) -> (ServePlan, DaemonPlan) {
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
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (plan, daemon_plan) = daemon_plan(dir.path());
        let daemon = Arc::new(Memory {
            memory: AtomicU64::new(plan.store.memory_bytes),
            plan: Mutex::new(plan),
            stopped: AtomicBool::new(false),
            ksm: AtomicBool::new(false),
            ssd: Mutex::new(None),
            version: AtomicU64::new(7),
            ranges: Mutex::new(DiskRanges::new("web:root", 1 << 30)),
            pins: Mutex::default(),
            reloads: AtomicBool::new(false),
            may_end: Mutex::default(),
        });
        let listeners = ControlListeners::bind(&daemon_plan).unwrap();
        let metrics = listeners.metrics_addr().unwrap();
        let socket = daemon_plan.control_socket;
        let server = Some(ControlServer::start(listeners, daemon.clone()).unwrap());
        Api { dir, socket, daemon, metrics, server }
    }

    /// Status code and body.
    pub fn raw(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        exchange(&mut stream, head, body)
    }

    /// The same on the socket of VM `web`.
    pub fn vm(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.dir.path().join("web.sock")).unwrap();
        exchange(&mut stream, head, body)
    }

    pub fn refused(&self, method: Method, path: &str, body: &str) -> String {
        match client::request(&self.socket, method, path, Some(body.to_string())) {
            Err(ClientError::Refused(e)) => {
                assert!(!e.error.is_empty() && !e.remedy.is_empty());
                format!("{}; {}", e.error, e.remedy)
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn exchange(stream: &mut (impl Read + Write), head: &str, body: &str) -> (u16, String) {
    let text =
        format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let code = answer.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or(0);
    (code, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, b)| b.to_string()))
}
