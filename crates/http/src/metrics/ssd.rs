//! The metrics of the SSD store; there are none of them without one.
//!
//! Owns their names. Never reads anything but the status. Invariants: as of [`super::table`].

use super::family::Unit::{Blocks, Bytes, Number};
use super::family::{AsNumber, Family, Place, Read, counter, gauge};

macro_rules! place {
    ($($path:ident).+) => {
        Place { path: concat!("ssd", $(".", stringify!($path)),+), read: |s| s.ssd.as_ref()?.$($path).+.number() }
    };
}

macro_rules! node {
    ($($path:ident).+) => {
        Read::Node(Place {
            path: concat!("nodes[].ssd", $(".", stringify!($path)),+),
            read: |n| n.ssd.as_ref()?.$($path).+.number(),
        })
    };
}

macro_rules! next {
    ($store:ident, $field:ident) => {
        Read::Node(Place {
            path: concat!("nodes[].", stringify!($store), ".", stringify!($field)),
            read: |n| n.$store.as_ref()?.$field.number(),
        })
    };
}

macro_rules! saved {
    ($store:ident) => {
        Read::Node(Place {
            path: concat!("nodes[].", stringify!($store), ".saved_ms_per_second"),
            read: |n| n.$store.as_ref()?.saved_ms_per_second.map(|ms| ms / 1e3),
        })
    };
}

macro_rules! ssd {
    ($($path:ident).+) => { Read::Daemon(place!($($path).+)) };
}

/// All of them, in the order in which they are told.
pub(super) const TABLE: &[Family] = &[
    gauge("undercroft_ssd_in_service", "1 if the SSD store is in service.", Number, ssd!(in_service)),
    gauge("undercroft_ssd_capacity_bytes", "What the SSD store has room for.", Bytes, ssd!(capacity_bytes)),
    gauge("undercroft_ssd_cached_bytes", "Blocks in the SSD store.", Bytes, ssd!(cached_bytes)),
    gauge(
        "undercroft_ssd_held_bytes",
        "Of these, blocks that are in RAM or with a guest as well: the first to go.",
        Bytes,
        ssd!(held_bytes),
    ),
    gauge(
        "undercroft_ssd_deduplicated_bytes",
        "Of these, blocks that take no room there, since equal ones were there before.",
        Bytes,
        ssd!(deduplicated_bytes),
    ),
    gauge(
        "undercroft_ssd_memory_bytes",
        "Memory of the SSD store's tables, and of blocks that wait to be written to it.",
        Bytes,
        ssd!(memory_bytes),
    ),
    gauge(
        "undercroft_ssd_memory_reserved_bytes",
        "What of `store.memory` is set aside for that, in service or not.",
        Bytes,
        ssd!(memory_reserved_bytes),
    ),
    gauge(
        "undercroft_ssd_budget_left_bytes",
        "What may be written to the SSD store at once, of what is allowed in a day.",
        Bytes,
        ssd!(budget_left_bytes),
    ),
    counter(
        "undercroft_ssd_written_bytes_total",
        "Bytes written to the SSD store, by what for.",
        Bytes,
        Read::DaemonBy(
            "cause",
            &[
                ("admitted", place!(written.admitted_bytes)),
                ("cleaning", place!(written.cleaning_bytes)),
                ("summaries", place!(written.summaries_bytes)),
                ("tables", place!(written.tables_bytes)),
            ],
        ),
    ),
    counter("undercroft_ssd_hits_total", "Blocks found in the SSD store.", Blocks, ssd!(counters.hits)),
    counter("undercroft_ssd_misses_total", "Blocks not found in the SSD store.", Blocks, ssd!(counters.misses)),
    counter("undercroft_ssd_admitted_total", "Blocks that the SSD store took.", Blocks, ssd!(counters.admitted)),
    counter(
        "undercroft_ssd_deduplicated_total",
        "Of these, blocks that were not written, since equal ones were there.",
        Blocks,
        ssd!(counters.deduplicated),
    ),
    counter(
        "undercroft_ssd_refused_total",
        "Blocks that the SSD store did not take, by reason.",
        Blocks,
        Read::DaemonBy(
            "reason",
            &[
                ("guest-holds", place!(counters.refused_guest_holds)),
                ("rule", place!(counters.refused_rule)),
                ("budget", place!(counters.refused_budget)),
                ("no-room", place!(counters.refused_no_room)),
                ("staging", place!(counters.refused_staging)),
                ("range", place!(counters.refused_range)),
                ("out-of-service", place!(counters.refused_out_of_service)),
                ("no-share", place!(counters.refused_no_share)),
            ],
        ),
    ),
    counter(
        "undercroft_ssd_class_admitted_total",
        "Blocks that `admit = \"measured\"` admitted, by how they left RAM.",
        Blocks,
        Read::DaemonBy(
            "class",
            &[
                ("first", place!(counters.classes.first.admitted)),
                ("first-sequential", place!(counters.classes.first_sequential.admitted)),
                ("again", place!(counters.classes.again.admitted)),
                ("again-sequential", place!(counters.classes.again_sequential.admitted)),
                ("reused", place!(counters.classes.reused.admitted)),
            ],
        ),
    ),
    counter(
        "undercroft_ssd_class_refused_total",
        "Blocks that `admit = \"measured\"` did not admit, by how they left RAM.",
        Blocks,
        Read::DaemonBy(
            "class",
            &[
                ("first", place!(counters.classes.first.refused)),
                ("first-sequential", place!(counters.classes.first_sequential.refused)),
                ("again", place!(counters.classes.again.refused)),
                ("again-sequential", place!(counters.classes.again_sequential.refused)),
                ("reused", place!(counters.classes.reused.refused)),
            ],
        ),
    ),
    counter(
        "undercroft_ssd_mismatches_total",
        "Blocks of the SSD store that were not what was written, and came from the image.",
        Blocks,
        ssd!(counters.mismatches),
    ),
    gauge("undercroft_node_ssd_share_bytes", "What the node has of the SSD store.", Bytes, node!(share_bytes)),
    gauge("undercroft_node_ssd_target_bytes", "What it is to have of it.", Bytes, node!(target_bytes)),
    gauge("undercroft_node_ssd_cached_bytes", "Its blocks in the SSD store.", Bytes, node!(cached_bytes)),
    gauge(
        "undercroft_node_next_ram_image_reads_per_second",
        "Blocks a second that a tenth more RAM would keep from being read from the image, by the curves.",
        Number,
        next!(next_ram, image_reads_saved_per_second),
    ),
    gauge(
        "undercroft_node_next_ram_hits_per_second",
        "Blocks a second that would come from RAM with a tenth more of it, by the curves.",
        Number,
        next!(next_ram, ram_hits_per_second),
    ),
    gauge(
        "undercroft_node_next_ram_saved_ratio",
        "Seconds of waiting that a tenth more RAM would save in a second, by curves and mean times.",
        Number,
        saved!(next_ram),
    ),
    gauge(
        "undercroft_node_next_ssd_image_reads_per_second",
        "Blocks a second that a tenth more of the SSD store would keep from being read from the image, by the curves.",
        Number,
        next!(next_ssd, image_reads_saved_per_second),
    ),
    gauge(
        "undercroft_node_next_ssd_saved_ratio",
        "Seconds of waiting that a tenth more of the SSD store would save in a second, by curves and mean times.",
        Number,
        saved!(next_ssd),
    ),
];
