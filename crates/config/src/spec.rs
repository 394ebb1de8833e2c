//! A configuration as it was written: every value is optional, and lines are remembered.
//!
//! Owns this form, which is made of TOML, of the command line and of calls of the API alike. Never checks anything
//! across keys; `resolve` does.

use super::overrides::Overrides;
pub use super::written::Lines;
use super::written::written;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use undercroft_units::{Percent, Size, Time};

/// What `serve` was asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServeSpec {
    /// The configuration file, if there is one.
    pub config_file: Option<PathBuf>,
    /// What the command line says instead.
    pub overrides: Overrides,
    /// `[store]`.
    pub store: StoreSpec,
    /// `[ssd]`.
    pub ssd: SsdSpec,
    /// `[pressure]`.
    pub pressure: PressureSpec,
    /// `[ksm]`.
    pub ksm: KsmSpec,
    /// `[daemon]`.
    pub daemon: DaemonSpec,
    /// `[nbd]`.
    pub nbd: NbdSpec,
    /// `[scan]`.
    pub scan: ScanSpec,
    /// VMs.
    pub vms: Vec<VmSpec>,
    /// `[shares]`.
    pub shares: SharesSpec,
    /// VMs and containers for which something is set.
    pub nodes: Vec<NodeSpec>,
    /// Every disk, `vm` filled in.
    pub disks: Vec<DiskSpec>,
}

written! {
    /// `[store]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct StoreSpec {
        keys:
        /// `memory`.
        pub memory: Option<Size>,
        /// `deduplicate`.
        pub deduplicate: Option<bool>,
        /// `keep`.
        pub keep: Option<bool>,
        /// `floor`.
        pub floor: Option<Size>,
        lines:
        /// Lines of its keys.
        pub lines: Lines,
    }
}

written! {
    /// `[ssd]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct SsdSpec {
        keys:
        /// `paths`.
        pub paths: Option<Vec<String>>,
        /// `size`.
        pub size: Option<Size>,
        /// `segment`.
        pub segment: Option<Size>,
        /// `writes_per_day`.
        pub writes_per_day: Option<Size>,
        /// `admit`.
        pub admit: Option<String>,
        /// `format`.
        pub format: Option<bool>,
        lines:
        /// Lines of its keys.
        pub lines: Lines,
    }
}

written! {
    /// `[nbd]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct NbdSpec {
        /// `[[nbd.listen]]`.
        pub listen: Vec<ListenSpec>,
        keys:
        /// `unix`.
        pub unix: Option<PathBuf>,
        /// `tcp`.
        pub tcp: Option<String>,
        /// `memory`.
        pub memory: Option<Size>,
        /// `slow_after`.
        pub slow_after: Option<Time>,
        /// `connections`.
        pub connections: Option<u64>,
        /// `connections_per_export`.
        pub connections_per_export: Option<u64>,
        /// `handshakes`.
        pub handshakes: Option<u64>,
        /// `handshake_timeout`.
        pub handshake_timeout: Option<Time>,
        lines:
        /// Lines of its keys.
        pub lines: Lines,
    }
}

written! {
    /// `[[nbd.listen]]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ListenSpec {
        /// Line of its header.
        pub line: Option<usize>,
        keys:
        /// `unix`.
        pub unix: Option<PathBuf>,
        /// `tcp`.
        pub tcp: Option<String>,
        /// `exports`.
        pub exports: Option<Vec<String>>,
        /// `tls`.
        pub tls: Option<String>,
        /// `tls_cert`.
        pub tls_cert: Option<PathBuf>,
        /// `tls_key`.
        pub tls_key: Option<PathBuf>,
        /// `tls_client_ca`.
        pub tls_client_ca: Option<PathBuf>,
        /// `tls_client_crl`.
        pub tls_client_crl: Option<PathBuf>,
        /// `connections`.
        pub connections: Option<u64>,
        /// `connections_per_export`.
        pub connections_per_export: Option<u64>,
        lines:
        /// Lines of its keys.
        pub lines: Lines,
    }
}

written! {
    /// `[pressure]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct PressureSpec {
        keys:
        /// `watch`.
        pub watch: Option<bool>,
        /// `stall`.
        pub stall: Option<Time>,
        /// `available_min`.
        pub available_min: Option<Size>,
        /// `give_within`.
        pub give_within: Option<Time>,
        /// `calm`.
        pub calm: Option<Time>,
        /// `regrow`.
        pub regrow: Option<Time>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// `[ksm]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct KsmSpec {
        keys:
        /// `manage`.
        pub manage: Option<bool>,
        /// `run`.
        pub run: Option<bool>,
        /// `pages_to_scan`.
        pub pages_to_scan: Option<u64>,
        /// `sleep`.
        pub sleep: Option<Time>,
        /// `advisor`.
        pub advisor: Option<String>,
        /// `advisor_target_scan_time`.
        pub advisor_target_scan_time: Option<Time>,
        /// `advisor_max_cpu`.
        pub advisor_max_cpu: Option<u64>,
        /// `advisor_min_pages_to_scan`.
        pub advisor_min_pages_to_scan: Option<u64>,
        /// `advisor_max_pages_to_scan`.
        pub advisor_max_pages_to_scan: Option<u64>,
        /// `smart_scan`.
        pub smart_scan: Option<bool>,
        /// `use_zero_pages`.
        pub use_zero_pages: Option<bool>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// `[scan]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ScanSpec {
        keys:
        /// `enabled`.
        pub enabled: Option<bool>,
        /// `cpu`.
        pub cpu: Option<Percent>,
        /// `period_min`.
        pub period_min: Option<Time>,
        /// `period_max`.
        pub period_max: Option<Time>,
        /// `track_writes`.
        pub track_writes: Option<bool>,
        /// `memory`.
        pub memory: Option<Size>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// `[daemon]`.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct DaemonSpec {
        keys:
        /// `control`.
        pub control: Option<PathBuf>,
        /// `control_group`: a name or a number.
        pub control_group: Option<String>,
        /// `runtime_dir`.
        pub runtime_dir: Option<PathBuf>,
        /// `disk_group`: a name or a number.
        pub disk_group: Option<String>,
        /// `workers`.
        pub workers: Option<u64>,
        /// `poll`.
        pub poll: Option<Time>,
        /// `copy_cpu`.
        pub copy_cpu: Option<u64>,
        /// `check_captures`.
        pub check_captures: Option<bool>,
        /// `metrics`.
        pub metrics: Option<String>,
        /// `log_level`.
        pub log_level: Option<String>,
        /// `log_format`.
        pub log_format: Option<String>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// `[shares]` as it was asked for.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct SharesSpec {
        keys:
        /// `controller`.
        pub controller: Option<String>,
        /// `interval`.
        pub interval: Option<Time>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// What was asked for a VM itself, not as a node of the tree of shares.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct VmSpec {
        /// Its name.
        pub name: String,
        keys:
        /// `trust`.
        pub trust: Option<String>,
        /// `control_socket`.
        pub control_socket: Option<PathBuf>,
        /// `control_group`: a name or a number.
        pub control_group: Option<String>,
        /// `pid_file`.
        pub pid_file: Option<PathBuf>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// What was asked for a VM or a container.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct NodeSpec {
        /// `VM` or `VM/CONTAINER`.
        pub name: String,
        keys:
        /// `weight`.
        pub weight: Option<u64>,
        /// `floor`.
        pub floor: Option<Size>,
        /// `ceiling`.
        pub ceiling: Option<Size>,
        /// `controller`.
        pub controller: Option<String>,
        /// `goal`.
        pub goal: Option<String>,
        /// `policy`.
        pub policy: Option<String>,
        /// `store`.
        pub store: Option<String>,
        lines:
        /// Lines of the keys.
        pub lines: Lines,
    }
}

written! {
    /// A disk as it was asked for: `[[disk]]`, `[[vm.disk]]`, `--image`, or the body of `POST /v1/disks`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct DiskSpec {
        /// Name, unique within its VM: letters, digits, `-`, `_`, `.`.
        pub name: String,
        /// The VM it belongs to; its full name is then `VM:NAME`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub vm: Option<String>,
        /// Path of the image, or the URI of an NBD server.
        pub image: String,
        /// Over the API: it stays when the daemon reads a file again that does not name it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub keep: bool,
        keys:
        /// `raw`, `qcow2` or `nbd`; found out from the image if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub format: Option<String>,
        /// Refuse writes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub read_only: Option<bool>,
        /// Path of the vhost-user socket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        pub socket: Option<PathBuf>,
        /// Whether there is a vhost-user socket at all; true if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub vhost_user: Option<bool>,
        /// Export it on the NBD listeners.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub nbd: Option<bool>,
        /// Path of the file of this host that it becomes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        pub fuse: Option<PathBuf>,
        /// Path of the link to the block device of this host that it becomes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        pub ublk: Option<PathBuf>,
        /// Replacement policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub policy: Option<String>,
        /// Share of the store: a number of bytes or a text like `512MiB`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "512MiB")]
        pub size: Option<Size>,
        /// Its weight against the others in its container, in its VM or on the host, if they want more than there is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub weight: Option<u64>,
        /// What it gets whenever it can make use of it: a number of bytes or a text like `512MiB`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "64MiB")]
        pub floor: Option<Size>,
        /// The most that it may ever have: a number of bytes or a text like `512MiB`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "2GiB")]
        pub ceiling: Option<Size>,
        /// What it is meant to reach, if the controller is `target`: `hit 90%`, `p99 2ms` or `iops 5000`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(example = "p99 2ms")]
        pub goal: Option<String>,
        /// How it will be used: `normal`, `sequential`, `random`, `noreuse`, `dontneed` or `willneed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(example = "normal")]
        pub hint: Option<String>,
        /// Which stores its blocks may be in: `ram`, `ssd` or `both`; whatever there are if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(example = "ram")]
        pub store: Option<String>,
        /// The container of its VM that it belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub container: Option<String>,
        /// Read-ahead at most: a number of bytes or a text like `1MiB`; 0 is off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "1MiB")]
        pub readahead: Option<Size>,
        /// Whether a written block that was not cached becomes cached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub write_allocate: Option<bool>,
        /// Whether the cache is kept exclusive of the guest's: `auto`, `off`, `capture` or `delayed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exclusive: Option<String>,
        /// How blocks come to be locked: `off`, `static` or `online`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lock: Option<String>,
        /// How much of what it may keep may be locked: a text like `25%`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "25%")]
        pub lock_budget: Option<Percent>,
        /// Whether a block stays locked though the guest holds it as well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lock_held: Option<bool>,
        /// Blocks that the table of those that miss most has; 0: there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub miss_table: Option<u64>,
        /// Blocks that are kept a moment longer after they were evicted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub victim_buffer: Option<u64>,
        /// Path of a file of blocks that are pinned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        pub pins: Option<PathBuf>,
        /// Path of a file of blocks that are locked where `lock` is `static`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        pub lock_profile: Option<PathBuf>,
        /// The trust group: disks that name the same one hold equal content once. That of the VM if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub trust: Option<String>,
        /// Whether blocks of an image that nobody writes are held once for all disks on it; if absent, within the trust
        /// group if one was named, and for all otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub deduplicate_base: Option<bool>,
        /// Whether guest memory may lie in any file, not only in memfd, tmpfs or hugetlbfs; false if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub trust_memory: Option<bool>,
        /// Whether its guest runs elsewhere at first and migrates here; false if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub incoming: Option<bool>,
        /// Serial number that the guest sees, at most 20 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub serial: Option<String>,
        /// Queues of the vhost-user device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub queues: Option<u64>,
        /// Entries of each queue, a power of two.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub queue_size: Option<u64>,
        /// Polling at most before a worker sleeps: a text like `50us`; 0 is off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "50us")]
        pub poll: Option<Time>,
        lines:
        /// Line of the table and of its keys.
        #[serde(skip)]
        pub lines: Lines,
    }
}
