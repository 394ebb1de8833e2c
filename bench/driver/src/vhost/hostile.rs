//! What a broken or malicious guest may post: chains that loop, reach outside memory or lie about their lengths.
//!
//! Owns the list of cases. Never judges: it says what the server did (answered, hung up, nothing), and whether it then
//! still serves a well-behaved guest on the same socket. Invariant: each case uses a connection of its own.

use super::ring::{Descriptor, Ring, flag};
use super::{Options, VhostTarget};
use crate::target::{Done, Fault, Kind, Operation, Target};
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

/// How long the server has to react to one case.
const REACTION: Duration = Duration::from_millis(700);
/// A guest address where no memory is.
const NOWHERE: u64 = 0x7fff_0000_0000;

/// One case: a name, and what is posted. The ring's slot 0 holds the header, the status byte and a buffer.
pub struct Case {
    /// For the command line.
    pub name: &'static str,
    post: fn(&mut Ring<'static>, size_bytes: u64),
}

/// What the server did.
#[derive(Debug, serde::Serialize)]
pub struct Reaction {
    /// The case's name.
    pub case: &'static str,
    /// Whether a chain came back.
    pub answered: bool,
    /// The status byte of slot 0 afterwards; 255 if it was never written.
    pub status: u8,
    /// Whether the server closed the connection.
    pub hung_up: bool,
    /// Whether the server then served a good read on a fresh connection.
    pub serves_on: bool,
}

fn header(r: &Ring<'_>, kind: u32, sector: u64) {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    r.bytes(r.layout().request_at(0), 16).copy_from(&bytes);
    r.bytes(r.layout().status_at(0), 1).copy_from(&[0xffu8]);
}

fn d(address: u64, length: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address, length, flags, next }
}

/// Writes descriptors 0.. of the queue's table.
fn chain(r: &Ring<'_>, descriptors: &[Descriptor]) {
    let (table, _, _) = r.layout().parts();
    descriptors.iter().enumerate().for_each(|(i, d)| r.describe(table, i, *d));
}

fn addresses(r: &Ring<'_>) -> (u64, u64, u64) {
    let l = *r.layout();
    (r.address(l.request_at(0)), r.address(l.data_at(0)), r.address(l.status_at(0)))
}

/// A read with the data descriptor given.
fn read_with(r: &mut Ring<'static>, sector: u64, data: Descriptor) {
    let (head, _, status) = addresses(r);
    header(r, VIRTIO_BLK_T_IN, sector);
    chain(r, &[d(head, 16, flag::NEXT, 1), data, d(status, 1, flag::WRITE, 0)]);
    r.offer(0);
}

/// A request of `kind` whose data segment is `bytes`, readable.
fn with_payload(r: &mut Ring<'static>, kind: u32, bytes: &[u8]) {
    let (head, data, status) = addresses(r);
    header(r, kind, 0);
    r.bytes(r.layout().data_at(0), bytes.len()).copy_from(bytes);
    chain(r, &[d(head, 16, flag::NEXT, 1), d(data, bytes.len() as u32, flag::NEXT, 2), d(status, 1, flag::WRITE, 0)]);
    r.offer(0);
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut b = sector.to_le_bytes().to_vec();
    b.extend(sectors.to_le_bytes());
    b.extend(flags.to_le_bytes());
    b
}

/// All cases.
pub const CASES: &[Case] = &[
    Case {
        name: "loop-of-two",
        post: |r, _| {
            let (head, data, _) = addresses(r);
            header(r, VIRTIO_BLK_T_IN, 0);
            chain(r, &[d(head, 16, flag::NEXT, 1), d(data, 512, flag::NEXT | flag::WRITE, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "loop-to-itself",
        post: |r, _| {
            let (head, data, _) = addresses(r);
            header(r, VIRTIO_BLK_T_IN, 0);
            chain(r, &[d(head, 16, flag::NEXT, 1), d(data, 512, flag::NEXT | flag::WRITE, 1)]);
            r.offer(0);
        },
    },
    Case {
        name: "next-out-of-table",
        post: |r, _| {
            let (head, ..) = addresses(r);
            header(r, VIRTIO_BLK_T_IN, 0);
            chain(r, &[d(head, 16, flag::NEXT, 60000)]);
            r.offer(0);
        },
    },
    Case { name: "head-out-of-table", post: |r, _| r.offer(60000) },
    Case { name: "available-index-far-ahead", post: |r, _| r.set_avail_idx(r.avail_idx().wrapping_add(40000)) },
    Case {
        name: "length-4-gib",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, 0, d(data, u32::MAX, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "many-huge-segments",
        post: |r, _| {
            let (head, data, status) = addresses(r);
            header(r, VIRTIO_BLK_T_IN, 0);
            let mut all = vec![d(head, 16, flag::NEXT, 1)];
            (1..100).for_each(|i| all.push(d(data, 0xffff_fe00, flag::NEXT | flag::WRITE, i + 1)));
            all.push(d(status, 1, flag::WRITE, 0));
            chain(r, &all);
            r.offer(0);
        },
    },
    Case { name: "data-outside-memory", post: |r, _| read_with(r, 0, d(NOWHERE, 4096, flag::NEXT | flag::WRITE, 2)) },
    Case {
        name: "data-wraps-the-address-space",
        post: |r, _| read_with(r, 0, d(u64::MAX - 100, 4096, flag::NEXT | flag::WRITE, 2)),
    },
    Case {
        name: "data-ends-past-memory",
        post: |r, _| {
            let end = r.address(r.layout().end());
            read_with(r, 0, d(end - 512, 4096, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "data-of-no-length",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, 0, d(data, 0, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "data-not-in-sectors",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, 0, d(data, 700, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "read-into-readable-buffer",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, 0, d(data, 512, flag::NEXT, 2));
        },
    },
    Case {
        name: "readable-after-writable",
        post: |r, _| {
            let (head, data, status) = addresses(r);
            header(r, VIRTIO_BLK_T_OUT, 0);
            chain(r, &[d(status, 1, flag::WRITE | flag::NEXT, 1), d(head, 16, flag::NEXT, 2), d(data, 512, 0, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "header-alone",
        post: |r, _| {
            let (head, ..) = addresses(r);
            header(r, VIRTIO_BLK_T_FLUSH, 0);
            chain(r, &[d(head, 16, 0, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "header-too-short",
        post: |r, _| {
            let (head, _, status) = addresses(r);
            header(r, VIRTIO_BLK_T_FLUSH, 0);
            chain(r, &[d(head, 7, flag::NEXT, 1), d(status, 1, flag::WRITE, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "header-outside-memory",
        post: |r, _| {
            let (_, _, status) = addresses(r);
            chain(r, &[d(NOWHERE, 16, flag::NEXT, 1), d(status, 1, flag::WRITE, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "status-of-no-length",
        post: |r, _| {
            let (head, _, status) = addresses(r);
            header(r, VIRTIO_BLK_T_FLUSH, 0);
            chain(r, &[d(head, 16, flag::NEXT, 1), d(status, 0, flag::WRITE, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "status-outside-memory",
        post: |r, _| {
            let (head, ..) = addresses(r);
            header(r, VIRTIO_BLK_T_FLUSH, 0);
            chain(r, &[d(head, 16, flag::NEXT, 1), d(NOWHERE, 1, flag::WRITE, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "sector-past-the-end",
        post: |r, size| {
            let (_, data, _) = addresses(r);
            read_with(r, size / 512, d(data, 512, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "read-across-the-end",
        post: |r, size| {
            let (_, data, _) = addresses(r);
            read_with(r, size / 512 - 1, d(data, 4096, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "sector-times-512-overflows",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, u64::MAX / 512 + 2, d(data, 512, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "sector-all-ones",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, u64::MAX, d(data, 4096, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case { name: "unknown-type", post: |r, _| with_payload(r, 0xdead_beef, &[1; 512]) },
    Case {
        name: "get-id-into-one-byte",
        post: |r, _| {
            let (head, data, status) = addresses(r);
            header(r, VIRTIO_BLK_T_GET_ID, 0);
            chain(
                r,
                &[d(head, 16, flag::NEXT, 1), d(data, 1, flag::NEXT | flag::WRITE, 2), d(status, 1, flag::WRITE, 0)],
            );
            r.offer(0);
        },
    },
    Case {
        name: "discard-past-the-end",
        post: |r, size| with_payload(r, VIRTIO_BLK_T_DISCARD, &range(size / 512 - 1, 100, 0)),
    },
    Case {
        name: "discard-overflows",
        post: |r, _| with_payload(r, VIRTIO_BLK_T_DISCARD, &range(u64::MAX - 3, u32::MAX, 0)),
    },
    Case {
        name: "discard-with-unknown-flags",
        post: |r, _| with_payload(r, VIRTIO_BLK_T_DISCARD, &range(0, 8, 0xffff_fffe)),
    },
    Case {
        name: "discard-of-many-segments",
        post: |r, size| {
            let all: Vec<u8> = (0..256).flat_map(|_| range(size / 512, 1, 0)).collect();
            with_payload(r, VIRTIO_BLK_T_DISCARD, &all);
        },
    },
    Case { name: "discard-cut-short", post: |r, _| with_payload(r, VIRTIO_BLK_T_DISCARD, &[0; 13]) },
    Case {
        name: "write-zeroes-past-the-end",
        post: |r, _| with_payload(r, VIRTIO_BLK_T_WRITE_ZEROES, &range(1 << 50, u32::MAX, 0)),
    },
    Case {
        name: "indirect-table-outside-memory",
        post: |r, _| {
            chain(r, &[d(NOWHERE, 48, flag::INDIRECT, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "indirect-table-of-odd-length",
        post: |r, _| {
            let table = r.address(r.layout().data_at(0));
            chain(r, &[d(table, 41, flag::INDIRECT, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "indirect-table-of-4-gib",
        post: |r, _| {
            let table = r.address(r.layout().data_at(0));
            chain(r, &[d(table, 0xffff_fff0, flag::INDIRECT, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "indirect-with-next",
        post: |r, _| {
            let (head, data, status) = addresses(r);
            header(r, VIRTIO_BLK_T_FLUSH, 0);
            let inner = r.layout().data_at(0);
            r.describe(inner, 0, d(head, 16, flag::NEXT, 1));
            r.describe(inner, 1, d(status, 1, flag::WRITE, 0));
            chain(r, &[d(data, 32, flag::INDIRECT | flag::NEXT, 1), d(status, 1, flag::WRITE, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "indirect-inside-indirect",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            let inner = r.layout().data_at(0);
            r.describe(inner, 0, d(data, 64, flag::INDIRECT, 0));
            chain(r, &[d(data, 64, flag::INDIRECT, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "indirect-loop",
        post: |r, _| {
            let (head, data, _) = addresses(r);
            let inner = r.layout().data_at(0);
            header(r, VIRTIO_BLK_T_OUT, 0);
            r.describe(inner, 0, d(head, 16, flag::NEXT, 1));
            r.describe(inner, 1, d(data, 512, flag::NEXT, 0));
            chain(r, &[d(data, 32, flag::INDIRECT, 0)]);
            r.offer(0);
        },
    },
    Case {
        name: "header-is-its-own-data",
        post: |r, _| {
            let (head, ..) = addresses(r);
            read_with(r, 0, d(head, 512, flag::NEXT | flag::WRITE, 2));
        },
    },
    Case {
        name: "same-chain-offered-1000-times",
        post: |r, _| {
            let (_, data, _) = addresses(r);
            read_with(r, 0, d(data, 512, flag::NEXT | flag::WRITE, 2));
            (0..999).for_each(|_| r.offer(0));
        },
    },
];

/// The case of that name.
pub fn case(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|c| c.name == name)
}

fn options() -> Options {
    // One slot of a chain that may be as long as half of a queue of 256.
    let (queues, depth) = (1, 1);
    Options { queues, depth, buffer_bytes: 64 << 10, segments: 126, indirect: false, poll: false, event_idx: true }
}

/// Posts the case to the server at `path`, and says what it did.
pub fn run(path: &Path, case: &'static Case) -> Result<Reaction> {
    let mut bad = VhostTarget::connect(path, &options()).context("before the case")?;
    let size = bad.geometry().size_bytes;
    let (mut answered, mut hung_up) = (false, false);
    let ring = &mut bad.rings[0];
    ring.arm();
    (case.post)(ring, size);
    bad.fds[0].0.write(1)?;
    let end = Instant::now() + REACTION;
    while Instant::now() < end && !answered && !hung_up {
        answered = bad.rings[0].returned().is_some();
        if !answered {
            match bad.sleep(Duration::from_millis(20)) {
                Ok(_) => {}
                Err(Fault::Gone(_)) => hung_up = true,
                Err(e) => return Err(e.into()),
            }
        }
    }
    let mut status = [0];
    let ring = &bad.rings[0];
    ring.bytes(ring.layout().status_at(0), 1).copy_to(&mut status);
    drop(bad);
    Ok(Reaction { case: case.name, answered, status: status[0], hung_up, serves_on: serves(path).is_ok() })
}

/// A well-behaved read on a fresh connection, which the server may take a moment to accept.
fn serves(path: &Path) -> Result<()> {
    let mut good = VhostTarget::connect(path, &options())?;
    good.submit(&Operation { kind: Kind::Read, offset: 0, length: 4096, tag: 0 })?;
    good.send()?;
    let mut done: Vec<Done> = Vec::new();
    good.reap(&mut done)?;
    anyhow::ensure!(done.len() == 1 && done[0].result.is_ok(), "a good read failed: {done:?}");
    Box::new(good).close()?;
    Ok(())
}
