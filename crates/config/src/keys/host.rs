//! Keys of the host's side: the store, pressure, KSM, the process, the scan.
//!
//! Owns words. Never reads a file. Invariant: as of `keys`.

use super::Live::{Reload, Restart};
use super::{Key, Kind, Section, key};

/// `[store]`.
pub const STORE: Section = Section {
    header: "[store]",
    doc: "The RAM that caches, for all disks together.",
    keys: &[
        key!(
            "deduplicate",
            Boolean,
            "`true`",
            "",
            Restart,
            "Whether equal blocks are held once: those of one trust group in one piece of memory and in one place of \
             the SSD store, blocks of zeroes in none, and blocks of an image below several disks once for all of these \
             disks. Disks of one group, or on one image, are then served by one worker. `false` turns all of this off."
        ),
        key!(
            "keep",
            Boolean,
            "`false`",
            "",
            Restart,
            "Whether what is cached stays over an upgrade (`undercroft upgrade`), and over an orderly restart by \
             systemd (`FileDescriptorStoreMax=`). The cache is then in shared memory: it is counted as such in the \
             control group and by programs that show memory, and transparent huge pages of anonymous memory are not \
             used for it."
        ),
        key!(
            "memory",
            Size,
            "a quarter of the machine's memory, or of the limit of its control group; at most `1GiB`",
            "`8MiB` to the machine's memory",
            Restart,
            "Hard limit for cached data and its metadata together. It is never exceeded. `undercroft set --memory` \
             sets a smaller limit while the daemon runs."
        ),
        key!(
            "floor",
            Size,
            "a quarter of `memory`",
            "`0` to `memory`",
            Reload,
            "How much of the store, metadata included, is never given back when the machine is short of memory."
        ),
    ],
};

/// `[ssd]`.
pub const SSD: Section = Section {
    header: "[ssd]",
    doc: "The SSD store: files or block devices that hold blocks which RAM has no room for. Without `paths` there is \
        none. It holds nothing that the images do not hold, so that losing it loses nothing. Each worker has a part of \
        each file, and reads and writes it with direct I/O. Its tables are a part of `store.memory`: 12 bytes for each \
        block of 4KiB (3GiB for 1TiB), and 2.1MiB for each path and worker, are set aside for them. Disks have shares \
        of it, by the weights and controllers of `[shares]`. `undercroft ssd` shows it.",
    keys: &[
        key!(
            "paths",
            Paths,
            "none",
            "1 to 16 files or block devices",
            Restart,
            "What it consists of. A file that is missing is made, with its space reserved, mode 0600. The file system \
             must have direct I/O (tmpfs has not). No other daemon may use them, and none may belong to an image. A \
             device is used if it begins and ends with zeroes or holds an SSD store of Undercroft; one that holds \
             anything else is refused: `blkdiscard` empties it."
        ),
        key!(
            "size",
            Size,
            "the whole of each block device; files need one",
            "at least `64MiB`",
            Restart,
            "Bytes of each file, and of each block device that are used."
        ),
        key!(
            "segment",
            Size,
            "`2MiB`",
            "`256KiB` to `16MiB`, a power of two",
            Restart,
            "Bytes that are written one behind the other, and given up together. Best is a multiple of what the flash \
             erases at once."
        ),
        key!(
            "writes_per_day",
            Size,
            "no limit",
            "at least `1GiB`",
            Restart,
            "Bytes that are written to all of them together in a day at most, to spare the flash: what its maker \
             allows for (capacity times DWPD) or less. What was not written in one hour can be made up for in another."
        ),
        key!(
            "admit",
            Text,
            "`measured`",
            "`measured`, `second`, `all`, `none`",
            Restart,
            "Which blocks that RAM evicts are written to it. `measured`: of each disk, those of kinds (evicted for the \
             first time or again, as part of a sequential stream or not, or used again while they were in RAM) that \
             are asked for again while they would be there, as a sample shows; and all while there is room that \
             nobody has. `second`: those that were used again while they were in \
             RAM, or that are evicted for the second time within a while, so that a scan writes nothing. `all`: every \
             one. `none`: nothing is written; what is there is read."
        ),
        key!(
            "format",
            Boolean,
            "`false`",
            "",
            Restart,
            "Whether an SSD store of Undercroft that does not fit is made anew, with what it holds lost: one of \
             another version, size, segment or number of workers. Otherwise such a store stays as it is, out of \
             service. Never makes anything out of a file or device that holds something else."
        ),
    ],
};

/// `[pressure]`.
pub const PRESSURE: Section = Section {
    header: "[pressure]",
    doc: "When the machine is short of memory, the store gives half of what it holds above its floor back within \
        `give_within`, and half of the rest again while the shortage lasts; afterwards it grows again slowly. Shortage \
        is seen in the kernel's pressure files (PSI), in the limit and the events of the control group that the daemon \
        runs in, and in the memory that is available.",
    keys: &[
        key!("watch", Boolean, "`true`", "", Reload, "Whether memory is given back at all."),
        key!(
            "stall",
            Time,
            "`150ms`",
            "`1ms` to `1s`",
            Reload,
            "The machine (or the control group) counts as short of memory when some process has waited for memory for \
             this long within a second. Needs PSI. Waits are not counted while the machine as a whole reclaims no \
             memory (the limit of another control group is then the reason) or has a quarter of its memory (without \
             reserved huge pages) available."
        ),
        key!(
            "available_min",
            Size,
            "a fiftieth of the machine's memory without its reserved huge pages; of a control group's limit, a 64th",
            "`0` (off) to half of the machine's memory",
            Reload,
            "How much memory is to stay available (`MemAvailable`; in a control group, what is left of its limit). If \
             less is available, the store gives back the difference. In a control group, at most half of its limit."
        ),
        key!(
            "give_within",
            Time,
            "`2s`",
            "`500ms` to `60s`",
            Reload,
            "How long it takes at most, from when shortage is seen, until the store has given half of what it holds \
             above its floor back to the kernel."
        ),
        key!(
            "calm",
            Time,
            "`30s`",
            "`1s` to `3600s`",
            Reload,
            "How long there must be no shortage before the store grows again. Shortage that comes back while it grows \
             doubles this each time, up to 16 times."
        ),
        key!(
            "regrow",
            Time,
            "`64s`",
            "`1s` to `3600s`",
            Reload,
            "How long it would take at least to grow from nothing to `memory`: with `64s`, the store grows by a 64th \
             of `memory` in a second."
        ),
    ],
};

/// `[ksm]`.
pub const KSM: Section = Section {
    header: "[ksm]",
    doc: "Kernel same-page merging for guests with private RAM: what this daemon sets in /sys/kernel/mm/ksm, for the \
        whole machine, while it runs. The former values are put back when it ends, and after a crash when it is \
        started again. Where a key is left out, the kernel's value stays. **Side channel:** merging lets a guest find \
        out, by how long its own writes take, whether another guest holds the same page; use it only among guests that \
        may know each other's memory. RAM that is shared (vhost-user, `share=on`) is never merged: `undercroft ksm` \
        shows what could be. Needs root, or the right to write those files.",
    keys: &[
        key!(
            "manage",
            Boolean,
            "`false`",
            "",
            Reload,
            "Whether the daemon changes the kernel's settings when it starts. `undercroft ksm on` and `off` switch \
             this while it runs; they use the other keys too."
        ),
        key!(
            "run",
            Boolean,
            "`true`",
            "",
            Reload,
            "Whether the kernel looks for equal pages while this daemon manages KSM. With `false`, pages that are \
             merged already stay merged; `undercroft ksm off --unmerge` separates them."
        ),
        key!(
            "pages_to_scan",
            Number,
            "as found",
            "1 to 1000000",
            Reload,
            "Pages looked at before each pause. Not together with `advisor = \"scan-time\"`, which sets it."
        ),
        key!("sleep", Time, "as found", "`1ms` to `60s`", Reload, "The pause. Whole milliseconds."),
        key!(
            "advisor",
            Text,
            "as found",
            "`none`, `scan-time`",
            Reload,
            "`scan-time`: the kernel sets `pages_to_scan` so that one scan of all candidates takes \
             `advisor_target_scan_time`. Linux 6.7."
        ),
        key!(
            "advisor_target_scan_time",
            Time,
            "as found",
            "`1s` to `3600s`",
            Reload,
            "How long one scan of all candidates should take. Whole seconds. Linux 6.7."
        ),
        key!(
            "advisor_max_cpu",
            Number,
            "as found",
            "1 to 100",
            Reload,
            "Percent of one processor that the advisor spends at most. Linux 6.7."
        ),
        key!(
            "advisor_min_pages_to_scan",
            Number,
            "as found",
            "1 to 1000000",
            Reload,
            "The least `pages_to_scan` that the advisor chooses. Linux 6.7."
        ),
        key!(
            "advisor_max_pages_to_scan",
            Number,
            "as found",
            "1 to 1000000",
            Reload,
            "The most `pages_to_scan` that the advisor chooses. Linux 6.7."
        ),
        key!(
            "smart_scan",
            Boolean,
            "as found",
            "",
            Reload,
            "Skips pages for a while that have not merged in several scans. Linux 6.7."
        ),
        key!("use_zero_pages", Boolean, "as found", "", Reload, "Makes empty pages the kernel's one zero page."),
    ],
};

/// `[daemon]`.
pub const DAEMON: Section = Section {
    header: "[daemon]",
    doc: "The process around the cache.",
    keys: &[
        key!(
            "control",
            Path,
            "`control.sock` in `runtime_dir`",
            "at most 107 bytes",
            Restart,
            "The control socket, which `undercroft status` and the other commands talk to."
        ),
        key!(
            "control_group",
            Group,
            "none: mode 0600",
            "name or number",
            Restart,
            "Group that may use the control socket (mode 0660). Whoever may use it can stop the daemon and attach \
             disks. The daemon has to be in it (`SupplementaryGroups=` of its unit)."
        ),
        key!(
            "runtime_dir",
            Path,
            "systemd's `RuntimeDirectory`, else `/run/undercroft` for root, else `$XDG_RUNTIME_DIR/undercroft`, else \
             `/tmp/undercroft-UID`",
            "",
            Restart,
            "Where sockets go that have no path of their own. Made with mode 0755 if it is missing."
        ),
        key!(
            "disk_group",
            Group,
            "none: mode 0600",
            "name or number",
            Restart,
            "Group that may use the sockets of the disks (mode 0660): the one QEMU runs in, often `kvm` or \
             `libvirt-qemu`. The daemon has to be in it: `SupplementaryGroups=` of the systemd unit."
        ),
        key!(
            "workers",
            Number,
            "one per processor, at most 16",
            "1 to 256",
            Restart,
            "Threads that serve disks. Each disk belongs to one of them."
        ),
        key!(
            "poll",
            Time,
            "`50us`",
            "`0` (off) to `10ms`",
            Reload,
            "How long a worker without requests looks for the next one, at most, before it sleeps. It does so only \
             while that pays. Can be set for each disk."
        ),
        key!(
            "copy_cpu",
            Number,
            "`20`",
            "0 to 100",
            Restart,
            "Percent of one processor that each worker may spend on copying and hashing guest memory, to keep what \
             guests do not hold. With 0 nothing is copied."
        ),
        key!(
            "check_captures",
            Boolean,
            "`false`",
            "",
            Restart,
            "For tests, or if the cache is suspected of an error: whenever a page of a guest is about to be kept as a \
             cached block, the block is read from the image and the two are compared; the worker waits for that. \
             `status` counts how many were compared and how many differed. A page that differs is not kept, and is an \
             error in the log. Raw images only."
        ),
        key!(
            "metrics",
            Address,
            "off",
            "IP address and port: `127.0.0.1:9464`",
            Restart,
            "Serves `/metrics` for Prometheus over TCP too. Without it, `/metrics` is on the control socket only. No \
             encryption, no authentication."
        ),
        key!(
            "log_level",
            Text,
            "`info`",
            "`error`, `warn`, `info`, `debug`, `trace`",
            Reload,
            "The least important lines to log."
        ),
        key!(
            "log_format",
            Text,
            "`text`",
            "`text`, `json`",
            Restart,
            "How log lines look: for people, or one JSON object a line."
        ),
    ],
};

/// `[scan]`.
pub const SCAN: Section = Section {
    header: "[scan]",
    doc: "The scan of guests' memory: it finds blocks that a guest holds in its own memory, and these are evicted \
        first. It is for experiments: over NBD it saved 2.4 points more under a Zipf load and nothing under a uniform \
        one, over vhost-user 1 to 2 points less (docs/decisions/0156). The memory of guests that connect over \
        vhost-user is known; for others see `pid_file` of `[[vm]]`.",
    keys: &[
        key!("enabled", Boolean, "`false`", "", Restart, "Whether guests' memory is scanned."),
        key!(
            "cpu",
            Percentage,
            "`5%`",
            "`0.01%` to `100%`",
            Restart,
            "The most processor time that the scanner takes, as a part of one core. It also runs at the lowest \
             priority."
        ),
        key!(
            "period_min",
            Time,
            "`10s`",
            "`1s` to `1440min`",
            Restart,
            "Shortest time between two scans. It is used under memory pressure, and while scans find much."
        ),
        key!(
            "period_max",
            Time,
            "`600s`",
            "`period_min` to `1440min`",
            Restart,
            "Longest time between two scans. It is used while scans find nothing."
        ),
        key!(
            "track_writes",
            Boolean,
            "`false`",
            "",
            Restart,
            "Whether the kernel notes which pages a guest with private memory writes to (`pid_file`), so that a scan \
             need not read the others. This costs the guest a page fault for each page that it writes to after a scan, \
             and disturbs other programs that use the same notes (CRIU). Needs CONFIG_MEM_SOFT_DIRTY."
        ),
        key!(
            "memory",
            Size,
            "`64MiB`",
            "at least `1MiB`",
            Restart,
            "The most memory that the scanner's index takes, besides `store.memory`; it needs about 30 bytes for each \
             page of guests that is not zero. Pages for which the index has no room are still looked up."
        ),
    ],
};
