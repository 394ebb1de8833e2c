//! Keys of what is served: VMs, containers, disks, and how the store is divided among them.
//!
//! Owns words. Never reads a file. Invariant: as of `keys`.

use super::Live::{Attach, Name, Reload, Restart, Set};
use super::{Key, Kind, Section, key};

// What VMs, containers and disks have alike as nodes of the tree of shares.
const NODE_WEIGHT: Key =
    key!("weight", Number, "`100`", "1 to 10000", Set(""), "Its part of what its siblings and it contend for.");
const NODE_FLOOR: Key =
    key!("floor", Size, "`0`", "what its parent is entitled to", Set(""), "What it has whenever it wants it.");
const NODE_CEILING: Key = key!("ceiling", Size, "none", "at least `floor`", Set("none"), "What it never has more of.");
const NODE_CONTROLLER: Key = key!(
    "controller",
    Text,
    "as above it",
    "`static`, `donor`, `utility`, `target`, `paper`",
    Set("inherit"),
    "Who divides its share among what is in it, and below, where nothing else is set."
);

const NODE_POLICY: Key = key!(
    "policy",
    Text,
    "as above it, or `s3-fifo`",
    "`fifo`, `lru`, `clock`, `arc`, `car`, `s3-fifo`, `sieve`, `w-tinylfu`",
    Set("inherit"),
    "Replacement policy of disks in it that name none; of a container also of its ranges of disks."
);
const NODE_STORE: Key = key!(
    "store",
    Text,
    "as above it, or all there are",
    "`ram`",
    Set("inherit"),
    "Which stores its blocks may be in. `ssd` and `both` are for daemons with an SSD store, which this version has not: they are refused."
);
const NODE_GOAL: Key = key!(
    "goal",
    Text,
    "none",
    "`hit 90%`, `p99 2ms`, `iops 5000`",
    Set("none"),
    "What it is to reach, where `target` divides the share of what it belongs to: a part of the blocks read, a time that 99 of 100 reads take at most, or reads a second. `undercroft why` says what it takes, and whether there is enough."
);

/// `[[vm]]`.
pub const VM: Section = Section {
    header: "[[vm]]",
    doc: "A virtual machine.",
    keys: &[
        key!("name", Text, "required", "letters, digits, `-`, `_`, `.`; at most 64", Name, "Its name, unique."),
        key!("disk", Tables, "none", "", Name, "Its disks, as `[[vm.disk]]` after it."),
        key!(
            "trust",
            Text,
            "a group of its own",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Attach,
            "The trust group of its disks, where they name none."
        ),
        NODE_WEIGHT,
        NODE_FLOOR,
        NODE_CEILING,
        NODE_CONTROLLER,
        NODE_GOAL,
        NODE_POLICY,
        NODE_STORE,
        key!(
            "container",
            Tables,
            "none",
            "",
            Name,
            "Its containers for which something is set, as `[[vm.container]]` after it."
        ),
        key!(
            "control_socket",
            Path,
            "none",
            "at most 107 bytes",
            Restart,
            "A control socket for whoever runs this VM: on it, what is below the VM (its containers and disks) can be seen and given weights, floors, ceilings, controllers and ranges, and nothing else. `undercroft shares`, `why` and `set` use it with `--control PATH`."
        ),
        key!(
            "control_group",
            Group,
            "none: mode 0600",
            "name or number",
            Restart,
            "Group that may use `control_socket` (mode 0660)."
        ),
        key!(
            "pid_file",
            Path,
            "none",
            "",
            Restart,
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
            Text,
            "required",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Name,
            "Its name, unique within its VM."
        ),
        NODE_WEIGHT,
        NODE_FLOOR,
        NODE_CEILING,
        NODE_CONTROLLER,
        NODE_GOAL,
        NODE_POLICY,
        NODE_STORE,
    ],
};

/// `[shares]`.
pub const SHARES: Section = Section {
    header: "[shares]",
    doc: "How the store is divided among VMs, their containers and their disks while it runs.",
    keys: &[
        key!(
            "controller",
            Text,
            "`utility`",
            "`static`, `donor`, `utility`, `target`, `paper`",
            Set(""),
            "Who divides, where no VM or container says otherwise. `static`: by weight, and what one does not use is lent, unless that has cost more than it brought; `utility`: where blocks save most misses, as measured, with floors; `donor`: quanta from those with few requests to those with many misses; `target`: what goals take (`goal`); `paper`: growth by accesses and misses, without what read-ahead foresaw."
        ),
        key!(
            "interval",
            Time,
            "`5s`",
            "`1s` to `600s`",
            Reload,
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
            Text,
            "required",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Name,
            "Its name, unique within its VM."
        ),
        key!(
            "image",
            PathOrUri,
            "required",
            "",
            Attach,
            "A file or block device, or an NBD server: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`."
        ),
        key!(
            "format",
            Text,
            "found out from the image",
            "`raw`, `qcow2`, `nbd`",
            Attach,
            "Format of the image. Give it for raw images of guests you don't trust: a guest can write what looks like a qcow2 header."
        ),
        key!(
            "read_only",
            Boolean,
            "`false`",
            "",
            Attach,
            "Refuses writes, and opens the image without the right to write."
        ),
        key!(
            "socket",
            Path,
            "`VM-DISK.sock` or `DISK.sock` in `runtime_dir`",
            "at most 107 bytes",
            Attach,
            "The vhost-user socket that QEMU connects to."
        ),
        key!(
            "vhost_user",
            Boolean,
            "`true`",
            "",
            Attach,
            "Whether there is a vhost-user socket; false for disks served over NBD only."
        ),
        key!("nbd", Boolean, "`false`", "", Attach, "Exports the disk on the listeners of `[nbd]`."),
        key!(
            "policy",
            Text,
            "its container's, or its VM's, or `s3-fifo`",
            "`fifo`, `lru`, `clock`, `arc`, `car`, `s3-fifo`, `sieve`, `w-tinylfu`",
            Set("inherit"),
            "Replacement policy: which blocks stay when room is short."
        ),
        key!(
            "size",
            Size,
            "what the controller gives it",
            "`4MiB` to `store.memory`",
            Set(""),
            "A fixed share of the store for this disk, metadata included: floor and ceiling in one."
        ),
        key!(
            "weight",
            Number,
            "`100`",
            "1 to 10000",
            Set(""),
            "Its part of what it and the others in its container (in its VM, if it has none; on the host) contend for."
        ),
        NODE_FLOOR,
        NODE_CEILING,
        NODE_GOAL,
        NODE_STORE,
        key!(
            "hint",
            Text,
            "`normal`",
            "`normal`, `sequential`, `random`, `noreuse`, `dontneed`, `willneed`",
            Set(""),
            "How it will be used, as in posix_fadvise, for all accesses to come. `sequential`: read-ahead twice as far, and its blocks are the first to go; `random`: no read-ahead; `noreuse`: its blocks are the first to go; `dontneed`: nothing is kept; `willneed`: it has its share before its misses show the need, and its blocks are fetched from the first one on, as far as space is free."
        ),
        key!(
            "container",
            Text,
            "none",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Reload,
            "The container of its VM that it belongs to: disks of one container share a weight, a floor and a ceiling, which `[[vm.container]]` sets."
        ),
        key!(
            "readahead",
            Size,
            "`512KiB`",
            "`0` (off) to `4MiB`",
            Set(""),
            "How far to read ahead of a proven sequential stream at most."
        ),
        key!(
            "exclusive",
            Text,
            "`auto`",
            "`auto`, `off`, `capture` or `delayed`",
            Set(""),
            "Keep what the guest does not hold, as learned from its requests and its memory (vhost-user only). `auto` finds out which way pays, and keeps whatever passes where none does; `capture` copies pages when the guest reuses them; `delayed` copies them shortly before it evicts them, for guests that zero pages."
        ),
        key!(
            "trust",
            Text,
            "that of its VM; a disk without a VM trusts itself only",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Attach,
            "Disks that name the same group hold equal content once. Name one only for VMs that may learn of each other, by the time that reads take, which contents the others use."
        ),
        key!(
            "share_base",
            Boolean,
            "within the group if `trust` is named, for the disk or its VM; otherwise `true`",
            "",
            Attach,
            "Whether blocks of an image that nobody writes (the backing file of a qcow2 image, or the image of a read-only disk) are held once for the disks on it: `true` for all of those, whatever their groups; `false` for none. Disks that hold them in common can learn, by the time that reads take, which of them others read. So groups that are named share no base with anybody else unless it says `true`; disks without a named group share theirs among each other."
        ),
        key!(
            "trust_memory",
            Boolean,
            "`false`",
            "",
            Attach,
            "Whether guest memory may lie in any file. By default it must be memfd, tmpfs or hugetlbfs, since access to anything else (a file on a disk, on a network, on FUSE) can wait, and hold up every disk of the worker for as long."
        ),
        key!(
            "write_allocate",
            Boolean,
            "`true`",
            "",
            Attach,
            "Whether a block becomes cached when it is written. Writes go to the image before they are acknowledged either way."
        ),
        key!(
            "serial",
            Text,
            "made from the name",
            "at most 20 printable ASCII characters",
            Attach,
            "Serial number that the guest sees (`/dev/disk/by-id/virtio-SERIAL`)."
        ),
        key!(
            "queues",
            Number,
            "`4`",
            "1 to 64",
            Attach,
            "Queues of the vhost-user device; QEMU may use fewer, not more."
        ),
        key!("queue_size", Number, "`256`", "power of two, 2 to 1024", Attach, "Entries of each queue."),
        key!("poll", Time, "`daemon.poll`", "`0` (off) to `10ms`", Set(""), "Bound of polling for this disk."),
    ],
};
