//! Every key of the configuration: name, kind, default, meaning. One source for reading, messages, manual and docs.
//!
//! Owns words and limits. Never reads a file. Invariant: a key that is not here is refused, and one that is here is
//! read (a test of `reader` holds both).

use crate::units::{KIB, MIB, Percent, Size};
use std::time::Duration;

/// Least memory of a store, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 8 * MIB;
/// Memory of a store if none is given: a quarter of the machine's, but not more than this.
pub const MEMORY_BYTES_DEFAULT_MAX: u64 = 1024 * MIB;
/// Least share of a disk, in bytes: at least half of it is cache then, besides the disk's I/O under way.
pub const SHARE_BYTES_MIN: u64 = 4 * MIB;
/// Weight of a disk without one.
pub const WEIGHT_DEFAULT: u32 = 100;
/// Largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// Read-ahead of a disk without one, in bytes.
pub const READAHEAD_BYTES_DEFAULT: u32 = 512 * KIB as u32;
/// Largest read-ahead, in bytes.
pub const READAHEAD_BYTES_MAX: u32 = 4 * MIB as u32;
/// Queues of a vhost-user device.
pub const QUEUES_DEFAULT: u16 = 4;
/// Most queues of a vhost-user device.
pub const QUEUES_MAX: u16 = 64;
/// Entries of a queue.
pub const QUEUE_SIZE_DEFAULT: u16 = 256;
/// Fewest entries of a queue.
pub const QUEUE_SIZE_MIN: u16 = 2;
/// Most entries of a queue: what QEMU allows.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Bound of polling.
pub const POLL_DEFAULT: Duration = Duration::from_micros(50);
/// Largest bound of polling: past it a worker would only burn a processor.
pub const POLL_MAX: Duration = Duration::from_millis(10);
/// Most worker threads.
pub const WORKERS_MAX: usize = 256;
/// Workers at most if no number is given.
pub const WORKERS_DEFAULT_MAX: usize = 16;
/// How often the store is divided anew.
pub const SHARES_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// Bounds of that.
pub const SHARES_INTERVAL_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];
/// Those who can divide it.
pub const CONTROLLERS: [&str; 5] = ["static", "donor", "utility", "target", "paper"];
/// Percent of a processor for copying and hashing guest memory.
pub const COPY_CPU_PERCENT_DEFAULT: u32 = 20;
/// Longest serial number that virtio-blk can carry, in bytes.
pub const SERIAL_BYTES_MAX: usize = 20;
/// The stall in a second that counts as pressure.
pub const STALL_DEFAULT: Duration = Duration::from_millis(150);
/// Bounds of that stall.
pub const STALL_RANGE: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];
/// Time in which half of what is above the floor is given back.
pub const GIVE_WITHIN_DEFAULT: Duration = Duration::from_secs(2);
/// Bounds of that time.
pub const GIVE_WITHIN_RANGE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];
/// Time without pressure before the store grows.
pub const CALM_DEFAULT: Duration = Duration::from_secs(30);
/// Time in which the store grows from nothing to its ceiling.
pub const REGROW_DEFAULT: Duration = Duration::from_secs(64);
/// Bounds of both.
pub const CALM_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// Bounds of the pause between two scans of KSM.
pub const KSM_SLEEP_RANGE: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(60)];
/// Bounds of the time that a scan of KSM should take.
pub const KSM_SCAN_TIME_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// Most pages that KSM looks at before a pause.
pub const KSM_PAGES_MAX: u64 = 1_000_000;
/// Longest path of a unix socket, in bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = crate::frontend::socket::PATH_BYTES_MAX;
/// Longest name of a disk or VM, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 * MIB;

/// A table of the configuration.
#[derive(Debug)]
pub struct Section {
    /// As it is written: `[store]`, `[[vm.disk]]`.
    pub header: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What its value is like.
    pub kind: &'static str,
    /// What holds without it; in words where it is not a constant.
    pub default: &'static str,
    /// What is allowed.
    pub range: &'static str,
    /// What it does.
    pub doc: &'static str,
}

macro_rules! key {
    ($name:literal, $kind:literal, $default:literal, $range:literal, $doc:literal) => {
        Key { name: $name, kind: $kind, default: $default, range: $range, doc: $doc }
    };
}

/// The whole file.
pub const ROOT: Section = Section {
    header: "",
    doc: "The file consists of these tables. Relative paths are taken from the directory of the file.",
    keys: &[
        key!("store", "table", "all defaults", "", "The RAM that caches."),
        key!("pressure", "table", "all defaults", "", "When memory is given back to the machine."),
        key!("ksm", "table", "not managed", "", "Merging of equal pages of guests' RAM by the kernel."),
        key!("daemon", "table", "all defaults", "", "The process: sockets, threads, logs."),
        key!("nbd", "table", "no listener", "", "Where NBD clients connect."),
        key!("scan", "table", "off", "", "The scan of guests' memory."),
        key!("shares", "table", "all defaults", "", "How the store is divided."),
        key!("vm", "tables", "none", "", "Virtual machines, each with its disks."),
        key!("disk", "tables", "none", "", "Disks that belong to no VM."),
    ],
};

/// `[store]`.
pub const STORE: Section = Section {
    header: "[store]",
    doc: "The RAM that caches, for all disks together.",
    keys: &[
        key!(
            "share",
            "boolean",
            "`true`",
            "",
            "Holds equal blocks of one trust group in one piece of memory, blocks of zeroes in none, and blocks of an image below several disks once for all of them. Disks that share are served by one worker. `false` turns all of it off."
        ),
        key!(
            "memory",
            "size",
            "a quarter of the machine's memory, at most `1GiB`",
            "`8MiB` to the machine's memory",
            "Hard ceiling for cached data and its metadata together. It is never exceeded. `undercroft set --memory` goes below it live."
        ),
        key!(
            "floor",
            "size",
            "a quarter of `memory`",
            "`0` to `memory`",
            "What is never given back when the machine is short of memory, metadata included. Can change live."
        ),
    ],
};

/// `[pressure]`.
pub const PRESSURE: Section = Section {
    header: "[pressure]",
    doc: "When the machine is short of memory, the store gives back what it holds above its floor, half of it within `give_within`, \
          and again while the shortage lasts; afterwards it grows again slowly. Shortage is seen by the kernel's pressure files (PSI), by \
          the limit and the events of the control group that the daemon runs in, and by available memory. All of it can change live.",
    keys: &[
        key!("watch", "boolean", "`true`", "", "Whether memory is given back at all."),
        key!(
            "stall",
            "time",
            "`150ms`",
            "`1ms` to `1s`",
            "How long in a second some process has to wait for memory until the machine (or the control group) counts as short of it. Needs PSI. Waits are not counted while the machine as a whole reclaims nothing (they are for the limit of another control group) or has a quarter of its memory available."
        ),
        key!(
            "available_min",
            "size",
            "a fiftieth of the machine's memory; of a control group's limit, a 64th",
            "`0` (off) to half of the machine's memory",
            "How much memory is to stay available (`MemAvailable`; in a control group, what is left of its limit): the store gives back what is missing. Of a control group's limit, at most half."
        ),
        key!(
            "give_within",
            "time",
            "`2s`",
            "`500ms` to `60s`",
            "Within this from when shortage is seen, half of what the store holds above its floor is back with the kernel."
        ),
        key!(
            "calm",
            "time",
            "`30s`",
            "`1s` to `3600s`",
            "How long there must be no shortage before the store grows again. Shortage that comes back while it grows doubles this each time, up to 16 times."
        ),
        key!(
            "regrow",
            "time",
            "`64s`",
            "`1s` to `3600s`",
            "How long growing from nothing to the ceiling takes at least: with `64s`, a 64th of `memory` in a second."
        ),
    ],
};

/// `[ksm]`.
pub const KSM: Section = Section {
    header: "[ksm]",
    doc: "Kernel same-page merging for guests with private RAM: what this daemon sets in /sys/kernel/mm/ksm, for the whole machine, while \
          it runs. What it found is put back when it ends, and after a crash by its next start. Keys that are left out leave the kernel's \
          value alone. **Side channel:** merging lets a guest find out, by how long its own writes take, whether another guest holds the \
          same page; use it only among guests that may know each other's memory. RAM that is shared (vhost-user, `share=on`) is never \
          merged: `undercroft ksm` shows what could be. Needs root, or the right to write those files. All of it can change live.",
    keys: &[
        key!(
            "manage",
            "boolean",
            "`false`",
            "",
            "Whether anything is changed when the daemon starts. `undercroft ksm on` and `off` switch it live; they use the other keys too."
        ),
        key!(
            "run",
            "boolean",
            "`true`",
            "",
            "Whether the kernel looks for equal pages while this daemon manages it. What is merged already stays merged with `false`; `undercroft ksm off --unmerge` undoes it."
        ),
        key!(
            "pages_to_scan",
            "number",
            "as found",
            "1 to 1000000",
            "Pages looked at before each pause. Not together with `advisor = \"scan-time\"`, which sets it."
        ),
        key!("sleep", "time", "as found", "`1ms` to `60s`", "The pause. Whole milliseconds."),
        key!(
            "advisor",
            "text",
            "as found",
            "`none`, `scan-time`",
            "`scan-time`: the kernel sets `pages_to_scan` so that one scan of all candidates takes `advisor_target_scan_time`. Linux 6.7."
        ),
        key!(
            "advisor_target_scan_time",
            "time",
            "as found",
            "`1s` to `3600s`",
            "How long one scan of all candidates should take. Whole seconds. Linux 6.7."
        ),
        key!(
            "advisor_max_cpu",
            "number",
            "as found",
            "1 to 100",
            "Percent of one processor that the advisor spends at most. Linux 6.7."
        ),
        key!(
            "advisor_min_pages_to_scan",
            "number",
            "as found",
            "1 to 1000000",
            "The least `pages_to_scan` that the advisor chooses. Linux 6.7."
        ),
        key!(
            "advisor_max_pages_to_scan",
            "number",
            "as found",
            "1 to 1000000",
            "The most `pages_to_scan` that the advisor chooses. Linux 6.7."
        ),
        key!(
            "smart_scan",
            "boolean",
            "as found",
            "",
            "Skips pages for a while that have not merged in several scans. Linux 6.7."
        ),
        key!("use_zero_pages", "boolean", "as found", "", "Makes empty pages the kernel's one zero page."),
    ],
};

/// `[daemon]`.
pub const DAEMON: Section = Section {
    header: "[daemon]",
    doc: "The process around the cache.",
    keys: &[
        key!(
            "control",
            "path",
            "`control.sock` in `runtime_dir`",
            "at most 107 bytes",
            "The control socket, which `undercroft status` and the other commands talk to."
        ),
        key!(
            "control_group",
            "group",
            "none: mode 0600",
            "name or number",
            "Group that may use the control socket (mode 0660). Whoever may use it can stop the daemon and attach disks."
        ),
        key!(
            "runtime_dir",
            "path",
            "systemd's `RuntimeDirectory`, else `/run/undercroft` for root, else `$XDG_RUNTIME_DIR/undercroft`, else `/tmp/undercroft-UID`",
            "",
            "Where sockets go that have no path of their own. Made with mode 0755 if it is missing."
        ),
        key!(
            "disk_group",
            "group",
            "none: mode 0600",
            "name or number",
            "Group that may use the sockets of the disks (mode 0660): the one QEMU runs in, often `kvm` or `libvirt-qemu`."
        ),
        key!(
            "workers",
            "number",
            "one per processor, at most 16",
            "1 to 256",
            "Threads that serve disks. Each disk belongs to one of them."
        ),
        key!(
            "poll",
            "time",
            "`50us`",
            "`0` (off) to `10ms`",
            "How long a worker looks for the next request at most before it sleeps. It polls only while that pays. Disks can differ."
        ),
        key!(
            "copy_cpu",
            "number",
            "`20`",
            "0 to 100",
            "Percent of one processor that each worker may spend on copying and hashing guest memory, to keep what guests do not hold. With 0 nothing is copied."
        ),
        key!(
            "check_captures",
            "boolean",
            "`false`",
            "",
            "For tests and for doubt: reads the block from the image whenever a page of a guest is about to be kept for it, and compares the two; the worker waits for that. `status` counts what was compared and what differed, and a difference is an error in the log and is not kept. Raw images only."
        ),
        key!(
            "metrics",
            "address",
            "off",
            "IP address and port: `127.0.0.1:9464`",
            "Serves `/metrics` for Prometheus over TCP too. Without it, `/metrics` is on the control socket only. No encryption, no authentication."
        ),
        key!(
            "log_level",
            "text",
            "`info`",
            "`error`, `warn`, `info`, `debug`, `trace`",
            "The least important lines to log. Reload changes it live."
        ),
        key!(
            "log_format",
            "text",
            "`text`",
            "`text`, `json`",
            "How log lines look: for people, or one JSON object a line."
        ),
    ],
};

/// `[nbd]`.
pub const NBD: Section = Section {
    header: "[nbd]",
    doc: "Where NBD clients connect. Each disk with `nbd = true` is exported under its full name (`VM:DISK`).",
    keys: &[
        key!("unix", "path", "off", "at most 107 bytes", "A unix socket. Its group is `daemon.disk_group`."),
        key!(
            "tcp",
            "address",
            "off",
            "IP address and port: `127.0.0.1:10809`",
            "A TCP address. No encryption, no authentication: whoever reaches it can read and write the disks."
        ),
    ],
};

/// Processor time of the scanner, in hundredths of a percent of one core.
pub const SCAN_CPU_DEFAULT: Percent = Percent(500);
/// Shortest time between two scans.
pub const SCAN_PERIOD_MIN_DEFAULT: Duration = Duration::from_secs(10);
/// Longest time between two scans.
pub const SCAN_PERIOD_MAX_DEFAULT: Duration = Duration::from_secs(600);
/// Least and most that a time between two scans may be.
pub const SCAN_PERIODS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(86_400)];
/// Memory of the scanner's index.
pub const SCAN_MEMORY_DEFAULT: u64 = 64 * MIB;
/// Least memory of the scanner's index.
pub const SCAN_MEMORY_MIN: u64 = MIB;

/// `[scan]`.
pub const SCAN: Section = Section {
    header: "[scan]",
    doc: "The scan of guests' memory: blocks that a guest holds in its own memory are the first to leave the cache. Guests that \
          connect over vhost-user are found by themselves; for others see `pid_file` of `[[vm]]`.",
    keys: &[
        key!("enabled", "boolean", "`false`", "", "Whether guests' memory is scanned."),
        key!(
            "cpu",
            "percentage",
            "`5%`",
            "`0.01%` to `100%`",
            "Processor time of the scanner at most, of one core. It runs at the lowest priority besides."
        ),
        key!(
            "period_min",
            "time",
            "`10s`",
            "`1s` to `1440min`",
            "Shortest time between two scans: under memory pressure, and while scans find much."
        ),
        key!(
            "period_max",
            "time",
            "`600s`",
            "`period_min` to `1440min`",
            "Longest time between two scans: while they find nothing."
        ),
        key!(
            "track_writes",
            "boolean",
            "`false`",
            "",
            "Whether the kernel notes which pages a guest with private memory writes to (`pid_file`), so that a scan need not read the others. Costs the guest a fault for each page that it writes to after a scan, and takes the notes from other programs that use them (CRIU). Needs CONFIG_MEM_SOFT_DIRTY."
        ),
        key!(
            "memory",
            "size",
            "`64MiB`",
            "at least `1MiB`",
            "Most that the scanner's index takes, besides `store.memory`; about 30 bytes for each page of guests that is not zero. What has no room is looked up all the same."
        ),
    ],
};

// What VMs, containers and disks have alike as nodes of the tree of shares.
const NODE_WEIGHT: Key = key!(
    "weight",
    "number",
    "`100`",
    "1 to 10000",
    "Its part of what its siblings and it contend for. Can change live."
);
const NODE_FLOOR: Key = key!(
    "floor",
    "size",
    "`0`",
    "what its parent is entitled to",
    "What it has whenever it wants it. Can change live."
);
const NODE_CEILING: Key =
    key!("ceiling", "size", "none", "at least `floor`", "What it never has more of. Can change live.");
const NODE_CONTROLLER: Key = key!(
    "controller",
    "text",
    "as above it",
    "`static`, `donor`, `utility`, `target`, `paper`",
    "Who divides its share among what is in it, and below, where nothing else is set. Can change live."
);

const NODE_POLICY: Key = key!(
    "policy",
    "text",
    "as above it, or `s3-fifo`",
    "`fifo`, `lru`, `clock`, `arc`, `car`, `s3-fifo`, `sieve`, `w-tinylfu`",
    "Replacement policy of disks in it that name none; of a container also of its ranges of disks. Can change live."
);
const NODE_GOAL: Key = key!(
    "goal",
    "text",
    "none",
    "`hit 90%`, `p99 2ms`, `iops 5000`",
    "What it is to reach, where `target` divides the share of what it belongs to: a part of the blocks read, a time that 99 of 100 reads take at most, or reads a second. `undercroft why` says what it takes, and whether there is enough. Can change live."
);

/// `[[vm]]`.
pub const VM: Section = Section {
    header: "[[vm]]",
    doc: "A virtual machine.",
    keys: &[
        key!("name", "text", "required", "letters, digits, `-`, `_`, `.`; at most 64", "Its name, unique."),
        key!("disk", "tables", "none", "", "Its disks, as `[[vm.disk]]` after it."),
        key!(
            "trust",
            "text",
            "a group of its own",
            "letters, digits, `-`, `_`, `.`; at most 64",
            "The trust group of its disks, where they name none."
        ),
        NODE_WEIGHT,
        NODE_FLOOR,
        NODE_CEILING,
        NODE_CONTROLLER,
        NODE_GOAL,
        NODE_POLICY,
        key!(
            "container",
            "tables",
            "none",
            "",
            "Its containers for which something is set, as `[[vm.container]]` after it."
        ),
        key!(
            "control_socket",
            "path",
            "none",
            "at most 107 bytes",
            "A control socket for whoever runs this VM: on it, what is below the VM (its containers and disks) can be seen and given weights, floors, ceilings, controllers and ranges, and nothing else. `undercroft shares`, `why` and `set` use it with `--control PATH`."
        ),
        key!(
            "control_group",
            "group",
            "none: mode 0600",
            "name or number",
            "Group that may use `control_socket` (mode 0660)."
        ),
        key!(
            "pid_file",
            "path",
            "none",
            "",
            "The file that QEMU's `-pidfile` names (libvirt: `/run/libvirt/qemu/NAME.pid`), for `[scan]` to find the memory of a guest that is attached over NBD. Needs CAP_SYS_PTRACE."
        ),
    ],
};

/// `[[vm.container]]`.
pub const CONTAINER: Section = Section {
    header: "[[vm.container]]",
    doc: "A container of the VM above it: a group of its disks, those that name it. Only needed where something is set for it.",
    keys: &[
        key!(
            "name",
            "text",
            "required",
            "letters, digits, `-`, `_`, `.`; at most 64",
            "Its name, unique within its VM."
        ),
        NODE_WEIGHT,
        NODE_FLOOR,
        NODE_CEILING,
        NODE_CONTROLLER,
        NODE_GOAL,
        NODE_POLICY,
    ],
};

/// `[shares]`.
pub const SHARES: Section = Section {
    header: "[shares]",
    doc: "How the store is divided among VMs, their containers and their disks while it runs. All of it can change live.",
    keys: &[
        key!(
            "controller",
            "text",
            "`utility`",
            "`static`, `donor`, `utility`, `target`, `paper`",
            "Who divides, where no VM or container says otherwise. `static`: by weight, and what one does not use is lent; `utility`: where blocks save most misses, as measured, with floors; `donor`: quanta from those with few requests to those with many misses; `target`: what goals take (`goal`); `paper`: growth by accesses and misses, without what read-ahead foresaw."
        ),
        key!(
            "interval",
            "time",
            "`5s`",
            "`1s` to `600s`",
            "How often is measured and decided. What is decided is moved a little at a time."
        ),
    ],
};

/// `[[disk]]` and `[[vm.disk]]`.
pub const DISK: Section = Section {
    header: "[[vm.disk]] and [[disk]]",
    doc: "A disk: of the VM above it (`[[vm.disk]]`), or of none (`[[disk]]`).",
    keys: &[
        key!(
            "name",
            "text",
            "required",
            "letters, digits, `-`, `_`, `.`; at most 64",
            "Its name, unique within its VM."
        ),
        key!(
            "image",
            "path or URI",
            "required",
            "",
            "A file or block device, or an NBD server: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`."
        ),
        key!(
            "format",
            "text",
            "found out from the image",
            "`raw`, `qcow2`, `nbd`",
            "Format of the image. Give it for raw images of guests you don't trust: a guest can write what looks like a qcow2 header."
        ),
        key!("read_only", "boolean", "`false`", "", "Refuses writes, and opens the image without the right to write."),
        key!(
            "socket",
            "path",
            "`VM-DISK.sock` or `DISK.sock` in `runtime_dir`",
            "at most 107 bytes",
            "The vhost-user socket that QEMU connects to."
        ),
        key!(
            "vhost_user",
            "boolean",
            "`true`",
            "",
            "Whether there is a vhost-user socket; false for disks served over NBD only."
        ),
        key!("nbd", "boolean", "`false`", "", "Exports the disk on the listeners of `[nbd]`."),
        key!(
            "policy",
            "text",
            "its container's, or its VM's, or `s3-fifo`",
            "`fifo`, `lru`, `clock`, `arc`, `car`, `s3-fifo`, `sieve`, `w-tinylfu`",
            "Replacement policy: which blocks stay when room is short. Can change live."
        ),
        key!(
            "size",
            "size",
            "what the controller gives it",
            "`4MiB` to `store.memory`",
            "A fixed share of the store for this disk, metadata included: floor and ceiling in one. Can change live."
        ),
        key!(
            "weight",
            "number",
            "`100`",
            "1 to 10000",
            "Its part of what it and the others in its container (in its VM, if it has none; on the host) contend for. Can change live."
        ),
        NODE_FLOOR,
        NODE_CEILING,
        NODE_GOAL,
        key!(
            "hint",
            "text",
            "`normal`",
            "`normal`, `sequential`, `random`, `noreuse`, `dontneed`, `willneed`",
            "How it will be used, as in posix_fadvise, for all accesses to come. `sequential`: read-ahead twice as far, and its blocks are the first to go; `random`: no read-ahead; `noreuse`: its blocks are the first to go; `dontneed`: nothing is kept; `willneed`: it has its share before its misses show the need. Can change live."
        ),
        key!(
            "container",
            "text",
            "none",
            "letters, digits, `-`, `_`, `.`; at most 64",
            "The container of its VM that it belongs to: disks of one container share a weight, a floor and a ceiling, which `[[vm.container]]` sets. Can change live."
        ),
        key!(
            "readahead",
            "size",
            "`512KiB`",
            "`0` (off) to `4MiB`",
            "How far to read ahead of a proven sequential stream at most."
        ),
        key!(
            "exclusive",
            "text",
            "`auto`",
            "`auto`, `off`, `capture` or `delayed`",
            "Keep what the guest does not hold, as learned from its requests and its memory (vhost-user only). `auto` finds out which way pays, and keeps whatever passes where none does; `capture` copies pages when the guest reuses them; `delayed` copies them shortly before it evicts them, for guests that zero pages."
        ),
        key!(
            "trust",
            "text",
            "that of its VM; a disk without a VM trusts itself only",
            "letters, digits, `-`, `_`, `.`; at most 64",
            "Disks that name the same group hold equal content once. Name one only for VMs that may learn of each other, by the time that reads take, which contents the others use."
        ),
        key!(
            "share_base",
            "boolean",
            "`true`",
            "",
            "Whether blocks of an image that nobody writes (the backing file of a qcow2 image, or the image of a read-only disk) are held once for all disks on it, whatever their groups. They can then learn, by the time that reads take, which of its blocks others read."
        ),
        key!(
            "write_allocate",
            "boolean",
            "`true`",
            "",
            "Whether a block becomes cached when it is written. Writes go to the image before they are acknowledged either way."
        ),
        key!(
            "serial",
            "text",
            "made from the name",
            "at most 20 printable ASCII characters",
            "Serial number that the guest sees (`/dev/disk/by-id/virtio-SERIAL`)."
        ),
        key!("queues", "number", "`4`", "1 to 64", "Queues of the vhost-user device; QEMU may use fewer, not more."),
        key!("queue_size", "number", "`256`", "power of two, 2 to 1024", "Entries of each queue."),
        key!(
            "poll",
            "time",
            "`daemon.poll`",
            "`0` (off) to `10ms`",
            "Bound of polling for this disk. Can change live."
        ),
    ],
};

/// All sections, in the order in which docs list them.
pub const SECTIONS: [&Section; 11] =
    [&ROOT, &STORE, &SHARES, &PRESSURE, &DAEMON, &NBD, &KSM, &SCAN, &VM, &CONTAINER, &DISK];

/// The policy of a disk without one; the reason is in the decision records of the engine.
pub const POLICY_DEFAULT: undercroft_engine::PolicyKind = undercroft_engine::PolicyKind::S3Fifo;

/// The candidate that `text` was probably meant to be, if one is close: by letters changed, swapped, added or lost.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.len() > 4 * NAME_BYTES_MAX {
        return None;
    }
    let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_', ' '], "");
    let wanted = plain(text);
    let distance = |c: &str| {
        let c = plain(c);
        let letters = c.chars().count().max(wanted.chars().count());
        let edits = strsim::osa_distance(&c, &wanted);
        let close = edits <= 1 + letters / 4 && edits * 2 < letters;
        (close || strsim::jaro_winkler(&c, &wanted) > 0.9).then_some(edits)
    };
    candidates.into_iter().filter_map(|c| Some((distance(c)?, c))).min_by_key(|(edits, _)| *edits).map(|(_, c)| c)
}

/// Memory of a store if none is given, for a machine with `machine_bytes`.
pub fn memory_default(machine_bytes: u64) -> Size {
    let quarter = machine_bytes / 4 / MIB * MIB;
    Size(quarter.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Time;

    fn key(section: &Section, name: &str) -> &'static Key {
        let keys: &'static [Key] = section.keys;
        keys.iter().find(|k| k.name == name).expect(name)
    }

    #[test]
    fn the_words_agree_with_the_numbers() {
        let size = |b: u64| format!("`{}`", Size(b));
        assert_eq!(key(&DISK, "readahead").default, size(READAHEAD_BYTES_DEFAULT.into()));
        assert!(key(&DISK, "readahead").range.ends_with(&size(READAHEAD_BYTES_MAX.into())));
        assert!(key(&DISK, "size").range.starts_with(&size(SHARE_BYTES_MIN)));
        assert!(key(&STORE, "memory").range.starts_with(&size(MEMORY_BYTES_MIN)));
        assert!(key(&STORE, "memory").default.ends_with(&size(MEMORY_BYTES_DEFAULT_MAX)));
        let time = |d: Duration| format!("`{}`", Time::from(d));
        let times = |[a, b]: [Duration; 2]| format!("{} to {}", time(a), time(b));
        for (section, name, default, range) in [
            (&PRESSURE, "stall", STALL_DEFAULT, STALL_RANGE),
            (&PRESSURE, "give_within", GIVE_WITHIN_DEFAULT, GIVE_WITHIN_RANGE),
            (&PRESSURE, "calm", CALM_DEFAULT, CALM_RANGE),
            (&PRESSURE, "regrow", REGROW_DEFAULT, CALM_RANGE),
        ] {
            assert_eq!(
                (key(section, name).default, key(section, name).range),
                (time(default).as_str(), times(range).as_str())
            );
        }
        assert_eq!(key(&KSM, "sleep").range, times(KSM_SLEEP_RANGE));
        assert_eq!(key(&KSM, "advisor_target_scan_time").range, times(KSM_SCAN_TIME_RANGE));
        assert!(key(&KSM, "pages_to_scan").range.ends_with(&KSM_PAGES_MAX.to_string()));
        assert_eq!(key(&DAEMON, "poll").default, format!("`{}`", Time::from(POLL_DEFAULT)));
        assert!(key(&DISK, "poll").range.ends_with(&format!("`{}`", Time::from(POLL_MAX))));
        let time = |d: Duration| format!("`{}`", Time::from(d));
        assert_eq!(key(&SCAN, "cpu").default, format!("`{SCAN_CPU_DEFAULT}`"));
        assert_eq!(key(&SCAN, "period_min").default, time(SCAN_PERIOD_MIN_DEFAULT));
        assert_eq!(key(&SCAN, "period_max").default, time(SCAN_PERIOD_MAX_DEFAULT));
        assert!(key(&SCAN, "period_min").range.starts_with(&time(SCAN_PERIODS[0])));
        assert_eq!("1440min".parse::<Time>().unwrap().duration(), SCAN_PERIODS[1]);
        assert_eq!(key(&SCAN, "memory").default, size(SCAN_MEMORY_DEFAULT));
        assert!(key(&SCAN, "memory").range.ends_with(&size(SCAN_MEMORY_MIN)));
        assert_eq!(key(&DISK, "weight").default, format!("`{WEIGHT_DEFAULT}`"));
        assert!(key(&DISK, "weight").range.ends_with(&WEIGHT_MAX.to_string()));
        assert_eq!(key(&DISK, "queues").default, format!("`{QUEUES_DEFAULT}`"));
        assert!(key(&DISK, "queues").range.ends_with(&QUEUES_MAX.to_string()));
        assert_eq!(key(&DISK, "queue_size").default, format!("`{QUEUE_SIZE_DEFAULT}`"));
        assert!(key(&DISK, "queue_size").range.ends_with(&format!("{QUEUE_SIZE_MIN} to {QUEUE_SIZE_MAX}")));
        assert!(key(&DAEMON, "workers").range.ends_with(&WORKERS_MAX.to_string()));
        assert!(key(&DAEMON, "workers").default.ends_with(&WORKERS_DEFAULT_MAX.to_string()));
        assert!(key(&DISK, "policy").default.ends_with(&format!("`{POLICY_DEFAULT}`")));
        let policies: Vec<_> = undercroft_engine::PolicyKind::ALL.iter().map(|k| format!("`{k}`")).collect();
        assert_eq!(key(&DISK, "policy").range, policies.join(", "));
    }

    #[test]
    fn the_least_share_holds_a_cache_worth_the_name() {
        for readahead in [0, READAHEAD_BYTES_DEFAULT] {
            let options = undercroft_cache::CoreOptions::new(SHARE_BYTES_MIN);
            let blocks = undercroft_cache::blocks_per_disk_max(&options, 1, readahead);
            assert!(
                u64::from(blocks) * 4096 >= SHARE_BYTES_MIN / 2,
                "{blocks} blocks with {readahead} bytes read ahead"
            );
        }
        let options = undercroft_cache::CoreOptions::new(SHARE_BYTES_MIN);
        assert!(undercroft_cache::blocks_per_disk_max(&options, 1, READAHEAD_BYTES_MAX) > 0);
    }

    #[test]
    fn the_nearest_key_is_found_only_if_near() {
        let keys = || DISK.keys.iter().map(|k| k.name);
        assert_eq!(nearest("sise", keys()), Some("size"));
        assert_eq!(nearest("readonly", keys()), Some("read_only"));
        assert_eq!(nearest("queue-size", keys()), Some("queue_size"));
        assert_eq!(nearest("lur", ["fifo", "lru", "arc"]), Some("lru"));
        assert_eq!(nearest("xyz", ["fifo", "lru", "arc"]), None);
        assert_eq!(nearest("quantum", keys()), None);
        assert_eq!(nearest("", keys()), None);
    }

    #[test]
    fn default_memory_is_a_quarter_within_bounds() {
        assert_eq!(memory_default(64 << 30), Size(MEMORY_BYTES_DEFAULT_MAX));
        assert_eq!(memory_default(2 << 30), Size(512 * MIB));
        assert_eq!(memory_default(1 << 20), Size(MEMORY_BYTES_MIN));
    }
}
