//! Failures of imago that end at their disk: a write that the fence refuses, and a panic.
//!
//! Owns images whose tables change behind imago's back, after they were verified. Never looks into the back end: what a
//! worker sees of it is judged, and the file. Invariant: another disk of the process is served all the time.

use crate::harness::{Harness, assert_same, open, open_error, pattern, run, spec};
use crate::planted;
use crate::qcow2_metadata::pieces;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use undercroft_cache::{IoError, IoKind};
use undercroft_config::ImageFormat;

const CLUSTER: u64 = 4096;
/// What one L2 table is for.
const SPAN: u64 = CLUSTER / 8 * CLUSTER;
/// Bytes of a write that takes several clusters.
const LEN: usize = 65536;
/// An entry's mark that nothing else names what it names.
const COPIED: u64 = 1 << 63;
/// Where no refcounts of so small an image are for.
const FAR: u64 = 1 << 40;

/// An image with data in what its first two L2 tables are for.
fn image(path: &Path) {
    let name = path.to_str().unwrap();
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=4096", name, "8M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 64k", "-c", "write -P 2 2M 64k", name]);
}

/// A disk that was verified and written to, in place and where clusters are allocated. All of it is in the file, and
/// imago has not read the second L2 table.
fn written(path: &Path) -> Harness {
    let mut h = open(path, ImageFormat::Qcow2);
    h.write(0, &pattern(1, LEN));
    h.write(SPAN / 2, &pattern(2, LEN));
    h.flush();
    assert_eq!(h.backend.refusal(), None);
    h
}

/// Gives the second L2 table another first entry, which `entry` makes of the place of the L1 table.
fn change(path: &Path, entry: impl FnOnce(u64) -> u64) {
    let data = std::fs::read(path).unwrap();
    let found = pieces(&data);
    let l1 = found.iter().find(|p| p.kind == "L1 table").unwrap();
    let l2 = found.iter().filter(|p| p.kind == "L2 table").nth(1).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&entry(l1.bytes.start as u64).to_be_bytes(), l2.bytes.start as u64).unwrap();
    file.sync_all().unwrap();
}

/// Every request of the disk fails from now on, and the reason is said.
fn is_out_of_service(bad: &mut Harness) {
    let said = bad.backend.refusal().unwrap();
    assert!(said.contains("all requests fail") && said.contains("qemu-img check"), "{said}");
    for kind in [
        // Also what imago would not have to look anything up for.
        IoKind::Read,
        IoKind::Write { fua: false },
        IoKind::Write { fua: true },
        IoKind::WriteZeroes { unmap: false, fua: false },
        IoKind::Discard,
        IoKind::Status,
        IoKind::Flush,
    ] {
        let len = if kind == IoKind::Flush { 0 } else { CLUSTER };
        assert_eq!(bad.run(kind, 0, len).result, Err(IoError::Io), "{kind:?}");
    }
}

/// Of two disks, one has its second L2 table changed, and imago comes by the entry with `kind`. That request fails and
/// the disk is out of service, marked so and otherwise unchanged; the other one is served.
fn ends_at_its_disk(kind: IoKind, entry: impl FnOnce(u64) -> u64) {
    let dir = tempfile::tempdir().unwrap();
    let paths: [PathBuf; 2] = ["bad.qcow2", "good.qcow2"].map(|name| dir.path().join(name));
    paths.iter().for_each(|path| image(path));
    let [mut bad, mut good] = [written(&paths[0]), written(&paths[1])];
    change(&paths[0], entry);
    let mut expected = std::fs::read(&paths[0]).unwrap();

    // Others are under way, here and there; all of them are answered.
    let beside: Vec<u64> = (0..6).map(|i| bad.start(IoKind::Read, i * CLUSTER, CLUSTER, None, 0)).collect();
    let op = bad.start(kind, SPAN, CLUSTER, None, 0);
    let there = good.start(IoKind::Write { fua: false }, 2 * SPAN, LEN as u64, Some(&pattern(3, LEN)), 0);
    let result = bad.wait(op).result;
    assert_eq!(result, Err(IoError::Io), "{kind:?}; a panic is planted and has not come: {}", planted::is_planted());
    for op in beside {
        bad.wait(op);
    }
    is_out_of_service(&mut bad);

    assert_eq!(good.wait(there).result, Ok(()));
    good.write(3 * SPAN, &pattern(4, LEN));
    good.flush();
    for (offset, seed) in [(0, 1), (SPAN / 2, 2), (2 * SPAN, 3), (3 * SPAN, 4)] {
        assert_same(&good.read(offset, LEN as u64), &pattern(seed, LEN), "the other disk");
    }
    assert_eq!(good.backend.refusal(), None);

    drop((bad, good));
    expected[79] |= 2;
    assert!(std::fs::read(&paths[0]).unwrap() == expected, "nothing but the mark is changed");
    let e = open_error(&spec(&paths[0], ImageFormat::Qcow2, false)).to_string();
    assert!(e.contains("marked corrupt"), "{e}");
}

/// The guest's block is said to be where the L1 table is, so its data would be the table's entries.
#[test]
fn a_write_that_the_fence_refuses_takes_its_disk_out_of_service_and_no_other() {
    ends_at_its_disk(IoKind::Write { fua: false }, |l1| COPIED | l1);
}

/// The block that goes is said to be where no refcounts are for, which imago finds out when it gives the cluster back.
#[test]
fn a_panic_of_the_library_takes_its_disk_out_of_service_and_no_other() {
    ends_at_its_disk(IoKind::Discard, |_| {
        planted::plant();
        COPIED | FAR
    });
}
