//! A daemon that lives in memory: it keeps a plan and invents counters.
//!
//! Owns what it was told. Never serves a disk. Invariant: what it answers follows from its plan alone.

use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use undercroft_api::hot_set::{HotSet, Warming};
use undercroft_api::ranges::{DiskRanges, RangeList};
use undercroft_api::record::Order;
use undercroft_api::{
    BlockStatus, DiskLatency, DiskState, DiskStatus, ExclusiveStatus, KsmStatus, LatencySnapshot, LogStatus,
    MissedBlock, MissesStatus, NodeChanged, NodeStatus, PinsStatus, PressureDirection, PressureStatus, ProfileTaken,
    RangesStatus, RangesTaken, RecordingStatus, ReloadReport, ShareEvent, SharesStatus, SsdClass, SsdClasses,
    SsdCounters, SsdStatus, SsdWritten, Status, StoreStatus,
};
use undercroft_cache::{DiskStats, LockReport};
use undercroft_config::{
    self as config, ControlError, ControlErrorKind, DiskSpec, NodeChange, NodeSet, NodeSettings, ServePlan,
};
use undercroft_daemon::latency::Histogram;
use undercroft_daemon::service::shown;
use undercroft_host::Passed;
use undercroft_hostmem::ksm::Numbers;
use undercroft_http::{Caller, Daemon};

/// A daemon that keeps a plan and invents counters.
pub struct Memory {
    pub plan: Mutex<ServePlan>,
    pub stopped: AtomicBool,
    pub memory: AtomicU64,
    pub ksm: AtomicBool,
    /// Whether it has an SSD store, which then is in service or not.
    pub ssd: Mutex<Option<bool>>,
    pub version: AtomicU64,
    pub ranges: Mutex<DiskRanges>,
    /// What is pinned of any disk.
    pub pins: Mutex<Vec<(u64, u64)>>,
    /// A reload has begun; it waits for `may_end`.
    pub reloads: AtomicBool,
    pub may_end: Mutex<()>,
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
            file: plan.file.as_ref().map(|f| f.display().to_string()),
            device: plan.device.as_ref().map(|d| d.display().to_string()),
            frontends: vec![],
            cache: shown::cache_status(plan.policy, plan.share_bytes, &stats),
            sharing: shown::sharing_status(Some(plan.trust.clone()), false, &stats),
            exclusive: ExclusiveStatus { mode: "auto".into(), state: "no guest".into(), ..ExclusiveStatus::default() },
            locks: shown::lock_status(
                &LockReport { locked_blocks: 3, pinned_blocks: 5, budget_blocks: 7, ..LockReport::default() },
                None,
            ),
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
            runtime_dir: "/run/undercroft".into(),
            workers: 2,
            copying_seconds: 0.25,
            scan: None,
            ssd: self.ssd().ok(),
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

    fn record(&self, order: Order, passed: &Passed) -> Result<RecordingStatus, ControlError> {
        let path = order.path.display().to_string();
        let files = if order.descriptor { passed.take() } else { Vec::new() };
        for (n, file) in files.into_iter().enumerate() {
            File::from(file).write_all(format!("file {n}").as_bytes()).unwrap();
        }
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

    fn ssd(&self) -> Result<SsdStatus, ControlError> {
        let none = || ControlError::new(ControlErrorKind::NotFound, "this daemon has no SSD store", "configure one");
        let in_service = self.ssd.lock().unwrap().ok_or_else(none)?;
        let written = SsdWritten { admitted_bytes: 8192, summaries_bytes: 4096, ..SsdWritten::default() };
        let classes = SsdClasses { first_sequential: SsdClass { admitted: 1, refused: 7 }, ..SsdClasses::default() };
        let counters = SsdCounters { hits: 5, refused_budget: 2, classes, ..SsdCounters::default() };
        Ok(SsdStatus { in_service, written, counters, cached_bytes: 4096, ..SsdStatus::default() })
    }

    fn set_ssd(&self, in_service: bool, _: &Caller) -> Result<SsdStatus, ControlError> {
        self.ssd()?;
        *self.ssd.lock().unwrap() = Some(in_service);
        self.ssd()
    }

    fn drop_ssd(&self, disk: Option<&str>, _: &Caller) -> Result<u64, ControlError> {
        let status = self.ssd()?;
        disk.map_or(Ok(()), |name| self.disk(name).map(drop))?;
        Ok(status.cached_bytes)
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

    fn hot_set(&self, _: &str) -> Result<HotSet, ControlError> {
        Ok(HotSet { size_bytes: 4096, ranges: vec![(0, 1)] })
    }

    fn warm(&self, _: &str, set: HotSet, budget_bytes: Option<u64>, _: &Caller) -> Result<Warming, ControlError> {
        Ok(Warming { wanted_bytes: set.bytes(), left_bytes: budget_bytes.unwrap_or(0), waits: false })
    }

    fn pins(&self, name: &str) -> Result<PinsStatus, ControlError> {
        let disk = self.disk(name)?.name;
        let ranges = self.pins.lock().unwrap().clone();
        let origin = (!ranges.is_empty()).then(|| "file".to_string());
        let file = Some("/etc/hot".to_string());
        Ok(PinsStatus { disk, size_bytes: 1 << 30, ranges, origin, file, version: 7, ..PinsStatus::default() })
    }

    fn set_pins(
        &self,
        name: &str,
        list: HotSet,
        expected: Option<Vec<u64>>,
        _: &Caller,
    ) -> Result<PinsStatus, ControlError> {
        self.disk(name)?;
        if list.ranges == [(0, 9)] {
            return Err(ControlError::new(ControlErrorKind::Conflict, "too much", "give it more with --size"));
        }
        if expected.is_some_and(|versions| !versions.contains(&7)) {
            return Err(ControlError::new(ControlErrorKind::Stale, "something else is pinned", "look at it"));
        }
        *self.pins.lock().unwrap() = list.ranges;
        self.pins(name)
    }

    fn set_lock_profile(&self, name: &str, list: HotSet, _: &Caller) -> Result<ProfileTaken, ControlError> {
        self.disk(name)?;
        Ok(ProfileTaken { ranges: list.ranges.len() as u64, named_bytes: list.bytes(), budget_bytes: 28672 })
    }

    fn block(&self, name: &str, byte: u64) -> Result<BlockStatus, ControlError> {
        let disk = self.disk(name)?.name;
        Ok(BlockStatus { disk, offset_bytes: byte / 4096 * 4096, cached: true, ..BlockStatus::default() })
    }

    fn misses(&self, node: &str) -> Result<MissesStatus, ControlError> {
        self.plan.lock().unwrap().node_name(node)?;
        let block = MissedBlock { disk: "web:root".into(), offset_bytes: 8192, misses: 9, error: 1 };
        Ok(MissesStatus { counted_misses: 20, miss_table: 20, blocks: vec![block] })
    }

    fn drop_cache(&self, name: &str) -> Result<u64, ControlError> {
        self.disk(name).map(|_| 4096)
    }

    fn reload(&self, _detach_most: bool, _: &Caller) -> Result<ReloadReport, ControlError> {
        self.reloads.store(true, Ordering::SeqCst);
        drop(self.may_end.lock());
        Err(ControlError::new(ControlErrorKind::Unavailable, "it is stopping", "wait"))
    }

    fn upgrade(&self, _: &Caller) -> ControlError {
        ControlError::new(ControlErrorKind::Failed, "nothing here can be upgraded", "do without")
    }

    fn stop(&self, _: &Caller) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}
