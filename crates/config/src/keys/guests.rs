//! Keys of what is served: VMs, containers, disks, and how the store is divided among them.
//!
//! Owns words. Never reads a file. Invariant: as of `keys`.

use super::Live::{Attach, Hand, Name, Reload, Restart, Set};
use super::{Key, Kind, Section, key, names};
use undercroft_engine::PolicyKind;
use undercroft_engine::control::ControllerKind;
use undercroft_engine::locking::LockMode;
use undercroft_engine::shares::Hint;

// What VMs, containers and disks have alike as nodes of the tree of shares.
const NODE_WEIGHT: Key = key!(
    "weight",
    Number,
    "`100`",
    "1 to 10000",
    Set(""),
    "How large its part is where it and its siblings want more than there is: one with weight 200 gets twice what one \
     with 100 gets."
);
const NODE_FLOOR: Key = key!(
    "floor",
    Size,
    "`0`",
    "at most what its parent is entitled to",
    Set(""),
    "The part of the store that it gets whenever it can make use of it, however much others want."
);
const NODE_CEILING: Key =
    key!("ceiling", Size, "none", "at least `floor`", Set("none"), "The most of the store that it may ever have.");
const NODE_CONTROLLER: Key = key!(
    "controller",
    Text,
    "as above it",
    names!(ControllerKind),
    Set("inherit"),
    "The controller that divides its share among what is in it. It also holds for everything below that has no \
     controller of its own."
);

const NODE_POLICY: Key = key!(
    "policy",
    Text,
    "as above it, or `s3-fifo`",
    names!(PolicyKind),
    Set("inherit"),
    "Replacement policy of disks in it that have none of their own. That of a container is also for its ranges of \
     disks."
);
const NODE_STORE: Key = key!(
    "store",
    Text,
    "as above it, or all there are",
    "`ram`; with `[ssd]` also `ssd`, `both`",
    Set("inherit"),
    "Which stores its blocks may be in. `ssd`: of RAM, its disks have no more than serving them takes (`4MiB` each), \
     their floor or their size. `ssd` and `both` are refused where there is no `[ssd]`."
);
const NODE_GOAL: Key = key!(
    "goal",
    Text,
    "none",
    "`hit 90%`, `p99 2ms`, `iops 5000`",
    Set("none"),
    "What it is meant to reach, if the controller above it is `target`: a part of the blocks read that are hits, a \
     time that 99 of 100 reads take at most, or a number of reads a second. `undercroft why` says how much of the \
     store that takes, and whether there is enough."
);

/// `[[vm]]`.
pub const VM: Section = Section {
    header: "[[vm]]",
    doc: "A virtual machine. Its disks share one cache, with one order of eviction; a disk for which a weight, floor, \
        ceiling, size, policy, goal, hint, store or container is set has one of its own.",
    keys: &[
        key!("name", Text, "required", "letters, digits, `-`, `_`, `.`; at most 64", Name, "Its name, unique."),
        key!("disk", Tables, "none", "", Name, "Its disks, as `[[vm.disk]]` after it."),
        key!(
            "trust",
            Text,
            "a group of its own",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Attach,
            "The trust group of those of its disks that name none."
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
            "A control socket for the owner of this VM. On it, only what is below the VM (its containers and disks) \
             can be seen, and given weights, floors, ceilings, controllers and ranges. `undercroft shares`, `why` and \
             `set` use it with `--control PATH`."
        ),
        key!(
            "control_group",
            Group,
            "none: mode 0600",
            "name or number",
            Restart,
            "Group that may use `control_socket` (mode 0660); the daemon has to be in it."
        ),
        key!(
            "pid_file",
            Path,
            "none",
            "",
            Restart,
            "The file that QEMU's `-pidfile` names (libvirt: `/run/libvirt/qemu/NAME.pid`), for `[scan]` to find the \
             memory of a guest that is attached over NBD. Needs CAP_SYS_PTRACE."
        ),
    ],
};

/// `[[vm.container]]`.
pub const CONTAINER: Section = Section {
    header: "[[vm.container]]",
    doc: "A container of the VM above it: the group of those disks of the VM that name it. Only needed where something \
        is set for it.",
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
            names!(ControllerKind),
            Set(""),
            "The controller that divides the store, where a VM or container has none of its own. `static` divides by \
             weight, and lends what one does not use to others, unless that has cost more misses than it saved. \
             `utility` gives blocks to those that save most misses with them, as measured, within floors. `donor` \
             moves small pieces from those with few requests to those with many misses. `target` gives each what its \
             `goal` takes. `paper` grows shares by accesses and misses, without those that read-ahead foresaw."
        ),
        key!(
            "interval",
            Time,
            "`5s`",
            "`1s` to `600s`",
            Reload,
            "How often disks are measured and the store is divided anew. Shares then move to their new sizes in small \
             steps."
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
            "Its name, unique within its VM. A disk of no VM can't have the name of a VM."
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
            "Format of the image. Give it for raw images of guests you don't trust: a guest can write what looks like \
             a qcow2 header."
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
            "Whether there is a vhost-user socket; false for disks served over NBD or as files only."
        ),
        key!("nbd", Boolean, "`false`", "", Attach, "Exports the disk on the listeners of `[nbd]`."),
        key!(
            "fuse",
            Path,
            "none",
            "a file that is empty or not there",
            Hand("none"),
            "Makes the disk a file of this host, which programs and containers use directly or through a loop device. \
             It has the owner of the daemon, and group and mode as `daemon.disk_group` says. Its size does not change."
        ),
        key!(
            "ublk",
            Path,
            "none",
            "a path that is not there",
            Attach,
            "Makes the disk a block device of this host, `/dev/ublkbN`, to which a symbolic link at this path leads. \
             It needs Linux 6.5 with the driver `ublk_drv`, and the daemon as root."
        ),
        key!(
            "policy",
            Text,
            "its container's, or its VM's, or `s3-fifo`",
            names!(PolicyKind),
            Set("inherit"),
            "Replacement policy: the rule by which blocks are evicted."
        ),
        key!(
            "size",
            Size,
            "what the controller gives it",
            "`4MiB` to `store.memory`",
            Set(""),
            "A fixed share of the store for this disk, metadata included. It is floor and ceiling at the same time."
        ),
        key!(
            "weight",
            Number,
            "`100`",
            "1 to 10000",
            Set(""),
            "How large its part is where it and the others in its container (or in its VM, or on the host, if it \
             belongs to none) want more than there is: one with weight 200 gets twice what one with 100 gets."
        ),
        NODE_FLOOR,
        NODE_CEILING,
        NODE_GOAL,
        NODE_STORE,
        key!(
            "hint",
            Text,
            "`normal`",
            names!(Hint),
            Set(""),
            "How the disk will be used from now on, in the words of posix_fadvise. `sequential`: reads ahead twice as \
             far, and its blocks are evicted first. `random`: no read-ahead. `noreuse`: its blocks are evicted first. \
             `dontneed`: nothing is kept. `willneed`: it gets its share before its misses show that it needs it, and \
             its blocks are fetched from the first one on, as far as space is free."
        ),
        key!(
            "container",
            Text,
            "none",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Reload,
            "The container of its VM that it belongs to: disks of one container share a weight, a floor and a ceiling, \
             which `[[vm.container]]` sets."
        ),
        key!(
            "readahead",
            Size,
            "`512KiB`",
            "`0` (off) to `4MiB`",
            Set(""),
            "How far ahead of a sequential stream is read, at most."
        ),
        key!(
            "exclusive",
            Text,
            "`auto`",
            "`auto`, `off`, `capture` or `delayed`",
            Set(""),
            "Whether the cache keeps only what the guest does not hold itself, as learned from its requests and its \
             memory (vhost-user only). `auto` finds out which of the two ways saves more, and keeps whatever passes \
             where neither does. `capture` copies a page when the guest reuses it; `delayed` copies it shortly before \
             the guest evicts it, for guests that zero pages. `off` keeps whatever passes."
        ),
        key!(
            "lock",
            Text,
            "`off`",
            names!(LockMode),
            Set(""),
            "How blocks of the disk come to be locked, which means that they are never evicted. `off`: only those are \
             that are pinned (`pins`, `undercroft pin`). `static`: also those that `lock_profile` names. `online`: \
             also those that miss often, while that saves more misses than their room would; on a sample of the \
             blocks this is compared with the same cache without locks, and where locks cost misses, all of these are \
             given up for a while."
        ),
        key!(
            "lock_budget",
            Percentage,
            "`25%`",
            "`0.1%` to `90%`",
            Set(""),
            "How much of what the disk may keep may be locked, pinned blocks included. In a VM whose disks share one \
             cache it is of that cache, and the last disk for which it is set counts."
        ),
        key!(
            "lock_held",
            Boolean,
            "`false`",
            "`true` or `false`",
            Set(""),
            "Whether a block stays locked though the guest holds it as well (see `exclusive`). Otherwise such a block \
             is the first to go, and is locked again when the guest has evicted it. In a VM whose disks share one \
             cache the last disk for which it is set counts."
        ),
        key!(
            "miss_table",
            Number,
            "`20`",
            "0 (off) to 4096",
            Set(""),
            "How many blocks the table of those that miss most has, which `undercroft misses` shows. About 500 bytes \
             for each come out of the disk's share."
        ),
        key!(
            "victim_buffer",
            Number,
            "`0`",
            "0 (off) to 4096",
            Set(""),
            "How many blocks are kept a moment longer after they were evicted, in case that they are asked for again \
             soon. They are a part of the share. In a VM whose disks share one cache the last disk for which it is \
             set counts."
        ),
        key!(
            "pins",
            Path,
            "none",
            "a file that `undercroft pin --write` or `undercroft hot-set` wrote",
            Set("none"),
            "A file of blocks that are pinned: locked from when they are read first, whatever `lock` is. It is read \
             when the disk is attached, by a reload and when it is set, and takes the place of what was pinned \
             before. One that is of a disk of another size, or has more than `lock_budget`, is not used: the disk is \
             served without these pins, and its status says why."
        ),
        key!(
            "lock_profile",
            Path,
            "none",
            "a file like those for `pins`",
            Set("none"),
            "A file of blocks that are locked from when they are read first, where `lock` is `static`; those that are \
             past `lock_budget` are not. It is read as that of `pins` is."
        ),
        key!(
            "trust",
            Text,
            "that of its VM; a disk without a VM trusts itself only",
            "letters, digits, `-`, `_`, `.`; at most 64",
            Attach,
            "The trust group of the disk. Equal contents of disks of one group are held once. By the time that reads \
             take, a VM can then learn which contents the others of its group use, so name a group only for VMs that \
             may know that."
        ),
        key!(
            "deduplicate_base",
            Boolean,
            "within the group if `trust` is named, for the disk or its VM; otherwise `true`",
            "",
            Attach,
            "Whether blocks of an image that nobody writes (the backing file of a qcow2 image, or the image of a \
             read-only disk) are held once for all disks on it: with `true` whatever their trust groups are, with \
             `false` not at all. By the time that reads take, disks that hold them in common can learn which of these \
             blocks others read. So a disk of a named group holds them in common only with its own group, unless this \
             is `true`; disks without a named group hold them in common with each other."
        ),
        key!(
            "trust_memory",
            Boolean,
            "`false`",
            "",
            Attach,
            "Whether guest memory may be in any kind of file. By default it must be memfd, tmpfs or hugetlbfs, because \
             access to any other file (on a disk, on a network, on FUSE) can take long, and all disks of the worker \
             would wait for it."
        ),
        key!(
            "incoming",
            Boolean,
            "`false`",
            "",
            Attach,
            "Whether the guest runs elsewhere at first and migrates here. Then the image is not opened before the \
             guest starts: nothing of it is read but its size, nothing is cached, it is neither exported nor a file, \
             and another daemon may have it. When the guest starts, the image is opened; if another daemon still has \
             it then, that is waited for, 15 s at most. Needs a vhost-user socket."
        ),
        key!(
            "write_allocate",
            Boolean,
            "`true`",
            "",
            Attach,
            "Whether a block becomes cached when it is written. Writes go to the image before they are acknowledged \
             either way."
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
        key!("poll", Time, "`daemon.poll`", "`0` (off) to `10ms`", Set(""), "As `daemon.poll`, for this disk."),
    ],
};
