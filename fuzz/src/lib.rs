//! The fuzz targets, one per parser of bytes that others choose, as functions: libFuzzer calls them with coverage
//! (`fuzz_targets/`, built by scripts/fuzz.py), and the ordinary tests replay with them what it found
//! (`tests/replay.rs`).
//!
//! Owns no parser. Invariant: a function panics, or takes long, only where its parser has a defect.

mod bodies;
mod handed_over;
mod images;
mod kept;
mod kernel;
mod plans;
mod regions;
mod server;
mod traces;

pub use bodies::{api, hot_set, ranges, volume_plugin};
pub use handed_over::ssd_handover;
pub use images::{qcow2_header, qcow2_own, qcow2_tables};
pub use kept::kept_list;
pub use kernel::{kernel_files, proc_files};
pub use plans::{config, pin_list};
pub use regions::ssd_region;
pub use server::nbd_client;
pub use traces::trace;

use undercroft_porttest::{fuse, nbd, ublk, vhost};

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. Each has a `[[bin]]` of its name in `Cargo.toml`.
pub const TARGETS: [Target; 22] = [
    ("api", api),
    ("config", config),
    ("fuse_messages", fuse_messages),
    ("hot_set", hot_set),
    ("kept_list", kept_list),
    ("kernel_files", kernel_files),
    ("nbd_client", nbd_client),
    ("nbd_commands", nbd_commands),
    ("nbd_handshake", nbd_handshake),
    ("pin_list", pin_list),
    ("proc_files", proc_files),
    ("qcow2_header", qcow2_header),
    ("qcow2_own", qcow2_own),
    ("qcow2_tables", qcow2_tables),
    ("ranges", ranges),
    ("ssd_handover", ssd_handover),
    ("ssd_region", ssd_region),
    ("trace", trace),
    ("ublk_requests", ublk_requests),
    ("vhost_messages", vhost_messages),
    ("virtio_chain", virtio_chain),
    ("volume_plugin", volume_plugin),
];

/// Messages of FUSE: arbitrary bytes, and mostly sensible requests, replied to in any order, some to nobody. Each
/// message that wants an answer has one, in a form that the kernel takes.
pub fn fuse_messages(data: &[u8]) {
    fuse::exercise::fuzz_messages(data);
}

/// NBD requests: arbitrary bytes, and mostly sensible requests, in any pieces, replied to in any order. Each request is
/// answered exactly once, with the verdict of the rules and the bytes of the disk.
pub fn nbd_commands(data: &[u8]) {
    nbd::exercise::fuzz_commands(data);
}

/// NBD handshake: arbitrary bytes, and arbitrary options in good frames. Bounded output, well-formed replies, no panic.
pub fn nbd_handshake(data: &[u8]) {
    nbd::exercise::fuzz_handshake(data);
}

/// Requests for a block device of the host: mostly sensible ones, replied to in any order; the process dies now and
/// then, and the next one goes on. Each request is answered once, with the bytes of the disk.
pub fn ublk_requests(data: &[u8]) {
    ublk::exercise::fuzz_requests(data);
}

/// The messages of a vhost-user front end, over a pair of sockets.
pub fn vhost_messages(data: &[u8]) {
    vhost::messages::fuzz_messages(data);
}

/// A vhost-user-blk device against guests made of arbitrary choices: mostly valid descriptor chains, some malformed,
/// rings scribbled on, sessions that end and begin. See `undercroft_porttest::vhost::exercise`.
pub fn virtio_chain(data: &[u8]) {
    vhost::exercise::exercise(data);
}
