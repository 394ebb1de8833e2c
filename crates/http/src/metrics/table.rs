//! Every metric: its name, what it says, its type and unit, and where in the status it is read.
//!
//! Owns the names, but for those of the SSD store ([`super::ssd`]) and of the counters of disks, which stand beside
//! what they count ([`undercroft_cache::disk_counters`]); [`super`] makes text of all of them, and docs/metrics.md has
//! them. Never reads anything but the status. Invariants: a metric never changes its meaning, so a new one gets a new
//! name; base units (seconds and bytes), which end names; counters end in `_total`.

use super::family::Unit::{Blocks, Bytes, Number, Pages, Seconds};
use super::family::{AsNumber, Family, Place, Read, counter, gauge, histogram};
use undercroft_api::status::{DiskState, PressureDirection};

macro_rules! place {
    ($before:literal, $first:ident $(. $more:ident)*) => {
        Place {
            path: concat!($before, stringify!($first), $(".", stringify!($more)),*),
            read: |of| of.$first $(.$more)*.number(),
        }
    };
}

macro_rules! status {
    ($($path:ident).+) => { Read::Daemon(place!("", $($path).+)) };
}

macro_rules! scan {
    ($field:ident) => {
        Read::Daemon(Place { path: concat!("scan.", stringify!($field)), read: |s| s.scan.as_ref()?.$field.number() })
    };
}

macro_rules! direction {
    ($way:ident) => {
        Place { path: "pressure.direction", read: |s| (s.pressure.direction == PressureDirection::$way).number() }
    };
}

macro_rules! shares {
    ($field:ident) => {
        Read::Shares(place!("", $field))
    };
}

macro_rules! node {
    ($field:ident) => {
        Read::Node(place!("nodes[].", $field))
    };
}

macro_rules! disk {
    ($($path:ident).+) => { Read::Disk(place!("disks[].", $($path).+)) };
}

macro_rules! state {
    ($state:ident) => {
        Place { path: "disks[].state", read: |d| (d.state == DiskState::$state).number() }
    };
}

macro_rules! exclusive {
    ($state:literal) => {
        ($state, Place { path: "disks[].exclusive.state", read: |d| (d.exclusive.state == $state).number() })
    };
}

macro_rules! online {
    ($field:ident) => {
        Read::Disk(Place {
            path: concat!("disks[].locks.online.", stringify!($field)),
            read: |d| d.locks.online?.$field.number(),
        })
    };
}

macro_rules! times {
    ($field:ident) => {
        |d| &d.latency.$field
    };
}

macro_rules! counters {
    ($($(#[doc = $help:literal])* $name:ident: $unit:ident, $metric:literal;)*) => {
        /// The counters of disks; what they are is said in their own table.
        const DISK_COUNTERS: &[Family] = &[
            $(counter($metric, concat!($($help),*).trim_ascii_start(), $unit, Read::Disk(Place {
                path: concat!("disks[].counters.", stringify!($name)),
                read: |d| d.counters.$name.number().map(|n| $unit.of_counter(n)),
            })),)*
        ];
    };
}
undercroft_cache::disk_counters!(counters);

/// All metrics, in the order in which they are told.
pub(super) fn all() -> impl Iterator<Item = &'static Family> {
    TABLE.iter().chain(super::ssd::TABLE).chain(DISK_COUNTERS)
}

/// All but those of the SSD store and the counters of disks.
const TABLE: &[Family] = &[
    gauge(
        "undercroft_build_info",
        "Version of the running program; always 1.",
        Number,
        Read::Info(&[("version", |s| &s.version)]),
    ),
    counter(
        "undercroft_log_lines_left_out_total",
        "Lines that were not logged: too many of one kind, or nobody read the log.",
        Number,
        Read::DaemonBy("why", &[("limit", place!("", log.limited_lines)), ("unread", place!("", log.unread_lines))]),
    ),
    gauge("undercroft_uptime_seconds", "Seconds since the daemon started.", Seconds, status!(uptime_seconds)),
    gauge("undercroft_workers", "Threads that serve disks.", Number, status!(workers)),
    gauge(
        "undercroft_nbd_data_bytes",
        "Bytes of data of NBD requests under way, but for the reserve of each connection.",
        Bytes,
        status!(nbd_data.used_bytes),
    ),
    gauge("undercroft_nbd_data_max_bytes", "What those may come to.", Bytes, status!(nbd_data.max_bytes)),
    counter(
        "undercroft_nbd_slow_closed_total",
        "NBD connections closed because they were slow while others waited for memory.",
        Number,
        status!(nbd_data.slow_closed),
    ),
    counter(
        "undercroft_copying_seconds_total",
        "Processor time spent on copying and hashing contents.",
        Seconds,
        status!(copying_seconds),
    ),
    counter("undercroft_scan_passes_total", "Passes over the memory of all guests.", Number, scan!(passes)),
    counter("undercroft_scan_read_pages_total", "Pages of guests read.", Pages, scan!(read_pages)),
    counter("undercroft_scan_hole_pages_total", "Pages of guests without memory, left so.", Pages, scan!(hole_pages)),
    counter(
        "undercroft_scan_unreadable_pages_total",
        "Pages of guests that could not be read.",
        Pages,
        scan!(unreadable_pages),
    ),
    counter(
        "undercroft_scan_unchanged_pages_total",
        "Pages of guests unchanged since the pass before.",
        Pages,
        scan!(unchanged_pages),
    ),
    counter(
        "undercroft_scan_equal_pages_total",
        "Pages of guests equal to one met before in the pass.",
        Pages,
        scan!(equal_pages),
    ),
    counter(
        "undercroft_scan_lookahead_hits_total",
        "Equal pages found by looking ahead.",
        Pages,
        scan!(lookahead_hits),
    ),
    counter("undercroft_scan_found_blocks_total", "Cached blocks found in guests.", Blocks, scan!(found_blocks)),
    counter(
        "undercroft_scan_cooled_blocks_total",
        "Cached blocks found in guests that became the first to go.",
        Blocks,
        scan!(cooled_blocks),
    ),
    counter("undercroft_scan_cpu_seconds_total", "Processor time of the scanner.", Seconds, scan!(cpu_seconds)),
    gauge("undercroft_scan_guests", "Guests in the last pass.", Number, scan!(guests)),
    gauge("undercroft_scan_period_seconds", "Time between passes as of now.", Seconds, scan!(period_seconds)),
    gauge("undercroft_scan_index_bytes", "Memory of the scanner's index.", Bytes, scan!(index_bytes)),
    gauge(
        "undercroft_disks",
        "Disks attached.",
        Number,
        Read::Daemon(Place { path: "disks", read: |s| s.disks.len().number() }),
    ),
    gauge(
        "undercroft_store_saved_bytes",
        "Cached data that takes no memory of its own: zeroes, and contents held once for several blocks.",
        Bytes,
        status!(store.saved_bytes),
    ),
    gauge(
        "undercroft_store_limit_bytes",
        "Hard ceiling for data and metadata of the RAM store.",
        Bytes,
        status!(store.memory_bytes),
    ),
    gauge(
        "undercroft_store_bytes",
        "Memory of the RAM store in use, by kind.",
        Bytes,
        Read::DaemonBy(
            "kind",
            &[
                ("data", place!("", store.data_bytes)),
                ("metadata", place!("", store.metadata_bytes)),
                ("io", place!("", store.io_bytes)),
            ],
        ),
    ),
    gauge(
        "undercroft_store_floor_bytes",
        "What is never given back when memory is short.",
        Bytes,
        status!(store.floor_bytes),
    ),
    gauge(
        "undercroft_store_set_bytes",
        "What the store may hold at most: its ceiling, or less by hand.",
        Bytes,
        status!(store.limit_bytes),
    ),
    gauge("undercroft_store_allowed_bytes", "What the store may hold now.", Bytes, status!(store.allowed_bytes)),
    gauge("undercroft_pressure_watching", "1 if the machine's memory is watched.", Number, status!(pressure.watching)),
    gauge(
        "undercroft_guests_charged_bytes",
        "Shared memory charged to the daemon's control group: guests' pages that it touched first.",
        Bytes,
        status!(pressure.guests_bytes),
    ),
    gauge(
        "undercroft_pressure_direction",
        "1 for the way the store goes.",
        Number,
        Read::DaemonBy(
            "direction",
            &[
                ("full", direction!(Full)),
                ("giving", direction!(Giving)),
                ("waiting", direction!(Waiting)),
                ("growing", direction!(Growing)),
            ],
        ),
    ),
    counter(
        "undercroft_pressure_given_total",
        "How often memory was given back.",
        Number,
        status!(pressure.given_count),
    ),
    counter(
        "undercroft_pressure_given_bytes_total",
        "Bytes given back to the kernel.",
        Bytes,
        status!(pressure.given_bytes),
    ),
    counter(
        "undercroft_pressure_ignored_stalls_total",
        "Stalls of others, at their own limits, and reclaim of page cache in our control group.",
        Number,
        status!(pressure.ignored_stalls),
    ),
    gauge("undercroft_ksm_managed", "1 if this daemon has set KSM up.", Number, status!(ksm.managed)),
    gauge("undercroft_ksm_run", "The switch of KSM: 0 off, 1 on, 2 unmerged.", Number, status!(ksm.settings.run)),
    gauge(
        "undercroft_ksm_pages_to_scan",
        "Pages that KSM looks at before each pause.",
        Pages,
        status!(ksm.settings.pages_to_scan),
    ),
    gauge("undercroft_ksm_pages_shared", "Merged pages of the machine.", Pages, status!(ksm.numbers.pages_shared)),
    gauge("undercroft_ksm_pages_sharing", "Pages saved by merging.", Pages, status!(ksm.numbers.pages_sharing)),
    gauge(
        "undercroft_ksm_pages_unshared",
        "Candidates whose content nobody else has.",
        Pages,
        status!(ksm.numbers.pages_unshared),
    ),
    gauge(
        "undercroft_ksm_pages_volatile",
        "Candidates that change too fast.",
        Pages,
        status!(ksm.numbers.pages_volatile),
    ),
    gauge(
        "undercroft_ksm_zero_pages",
        "Empty pages that became the zero page.",
        Pages,
        status!(ksm.numbers.ksm_zero_pages),
    ),
    gauge(
        "undercroft_ksm_profit_bytes",
        "Bytes saved by KSM less its own.",
        Bytes,
        status!(ksm.numbers.general_profit),
    ),
    counter(
        "undercroft_ksm_full_scans_total",
        "Scans of all candidates since boot.",
        Number,
        Read::Daemon(Place {
            path: "ksm.numbers.full_scans",
            // What a kernel says below zero is no count.
            read: |s| s.ksm.numbers.full_scans.filter(|n| *n >= 0).number(),
        }),
    ),
    gauge("undercroft_shares_moving", "1 while shares are on their way to their targets.", Number, shares!(moving)),
    counter("undercroft_shares_intervals_total", "Intervals after which was decided.", Number, shares!(intervals)),
    gauge("undercroft_node_share_bytes", "What the node has of the store.", Bytes, node!(share_bytes)),
    gauge("undercroft_node_target_bytes", "What it is to have.", Bytes, node!(target_bytes)),
    gauge(
        "undercroft_node_entitled_bytes",
        "What it has when everybody wants all they can get.",
        Bytes,
        node!(entitled_bytes),
    ),
    gauge(
        "undercroft_node_working_set_bytes",
        "What would have to be kept for hardly a miss to be left that any size saves.",
        Bytes,
        node!(working_set_bytes),
    ),
    gauge(
        "undercroft_disk_info",
        "What a disk is; always 1.",
        Number,
        Read::DiskInfo(&[("policy", |d| &d.cache.policy), ("format", |d| &d.format), ("backend", |d| &d.backend)]),
    ),
    gauge(
        "undercroft_disk_state",
        "1 for the state that a disk is in.",
        Number,
        Read::DiskBy(
            "state",
            &[
                ("serving", state!(Serving)),
                ("stalled", state!(Stalled)),
                ("waiting", state!(Waiting)),
                ("failed", state!(Failed)),
                ("dormant", state!(Dormant)),
                ("detaching", state!(Detaching)),
            ],
        ),
    ),
    gauge("undercroft_disk_size_bytes", "Size of a disk as guests see it.", Bytes, disk!(size_bytes)),
    gauge(
        "undercroft_disk_clients",
        "Front ends connected to a disk.",
        Number,
        Read::Disk(Place { path: "disks[].frontends", read: |d| d.frontends.len().number() }),
    ),
    gauge("undercroft_disk_inflight_requests", "Requests of guests under way.", Number, disk!(inflight_requests)),
    gauge("undercroft_backend_inflight_operations", "Operations of an image under way.", Number, disk!(inflight_ops)),
    gauge(
        "undercroft_backend_stalled_operations",
        "Operations that an image has not answered for more than five seconds.",
        Number,
        disk!(stalled_ops),
    ),
    gauge("undercroft_cache_bytes", "Data of a disk that is cached.", Bytes, disk!(cache.cached_bytes)),
    gauge(
        "undercroft_cache_zero_bytes",
        "Cached zeroes of a disk, which take no memory.",
        Bytes,
        disk!(sharing.zero_bytes),
    ),
    gauge(
        "undercroft_cache_shared_bytes",
        "Cached data of a disk that shares its memory.",
        Bytes,
        disk!(sharing.shared_bytes),
    ),
    gauge("undercroft_cache_charged_bytes", "Memory that a disk is charged for.", Bytes, disk!(sharing.charged_bytes)),
    gauge(
        "undercroft_cache_capacity_bytes",
        "Data of a disk that may be cached; of disks that share their VM's cache, what they may keep together.",
        Bytes,
        disk!(cache.capacity_bytes),
    ),
    gauge("undercroft_cache_share_bytes", "Share of the store, metadata included.", Bytes, disk!(cache.share_bytes)),
    gauge(
        "undercroft_locked_bytes",
        "Cached data of a disk that is locked: never evicted.",
        Bytes,
        disk!(locks.locked_bytes),
    ),
    gauge("undercroft_pinned_bytes", "Data of a disk that is pinned, cached or not.", Bytes, disk!(locks.pinned_bytes)),
    gauge(
        "undercroft_lock_budget_bytes",
        "Data of a disk that may be locked; of disks that share their VM's cache, of all of them together.",
        Bytes,
        disk!(locks.budget_bytes),
    ),
    counter(
        "undercroft_locks_total",
        "Blocks that `lock = \"online\"` has chosen to be locked.",
        Blocks,
        online!(locks),
    ),
    counter("undercroft_unlocks_total", "Of those, blocks that it has given up.", Blocks, online!(unlocks)),
    counter(
        "undercroft_victim_buffer_hits_total",
        "Blocks found in the victim buffer, after they had been evicted.",
        Blocks,
        disk!(locks.victim_buffer.hits),
    ),
    gauge(
        "undercroft_exclusive_state",
        "1 for how a disk's cache stands to its guest's.",
        Number,
        Read::DiskBy(
            "state",
            &[
                exclusive!("off"),
                exclusive!("no guest"),
                exclusive!("no memory"),
                exclusive!("learning"),
                exclusive!("capture"),
                exclusive!("delayed"),
                exclusive!("capture and delayed"),
                exclusive!("opaque"),
                exclusive!("inclusive"),
            ],
        ),
    ),
    gauge(
        "undercroft_exclusive_blocks",
        "Blocks cached: not in the guest, about to leave it, in both.",
        Blocks,
        Read::DiskBy(
            "tier",
            &[
                ("hot", place!("disks[].", exclusive.hot_blocks)),
                ("probation", place!("disks[].", exclusive.probation_blocks)),
                ("cold", place!("disks[].", exclusive.cold_blocks)),
            ],
        ),
    ),
    counter(
        "undercroft_guest_evictions_total",
        "Evictions of the guest, inferred.",
        Blocks,
        disk!(exclusive.evictions),
    ),
    counter(
        "undercroft_guest_evictions_cached_total",
        "Evicted blocks that were cached already.",
        Blocks,
        disk!(exclusive.evictions_cached),
    ),
    counter(
        "undercroft_guest_captures_tried_total",
        "Guest pages copied at reuse.",
        Pages,
        disk!(exclusive.captures_tried),
    ),
    counter(
        "undercroft_guest_captures_total",
        "Guest pages copied at reuse that held their block.",
        Pages,
        disk!(exclusive.captures),
    ),
    counter(
        "undercroft_guest_captures_compared_total",
        "Guest pages compared with the image first.",
        Pages,
        disk!(exclusive.captures_compared),
    ),
    counter(
        "undercroft_guest_captures_wrong_total",
        "Of those, pages that differed and were not kept.",
        Pages,
        disk!(exclusive.captures_wrong),
    ),
    counter(
        "undercroft_guest_early_copies_tried_total",
        "Guest pages copied before eviction.",
        Pages,
        disk!(exclusive.early_tried),
    ),
    counter(
        "undercroft_guest_early_copies_total",
        "Guest pages copied before eviction that held their block.",
        Pages,
        disk!(exclusive.early),
    ),
    histogram(
        "undercroft_disk_request_duration_seconds",
        "Time from when the daemon saw a request to its reply: reads from RAM alone, other reads, writes.",
        Seconds,
        Read::DiskTimes(
            "kind",
            &[("read_hit", times!(read_hit)), ("read_miss", times!(read_miss)), ("write", times!(write))],
        ),
    ),
];
