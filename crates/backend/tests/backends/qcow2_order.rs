//! Killed at any moment: what a qcow2 image is then, with QEMU's check and the next first write as the judges.
//!
//! Owns copies of images that are in use, and images on file systems that are full. Never closes an image before it is
//! copied. Invariant: in a copy, every sector has what was there at the last flush, or what was written to it since.

use crate::harness::{Harness, Rng, open, pattern, run, try_run};
use crate::qcow2::{SIZE, create, s};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use undercroft_cache::{IoError, IoKind};
use undercroft_config::ImageFormat;
use undercroft_skips::by_length;

const SECTOR: usize = 512;

/// A directory in memory where there is one: images are copied often.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A disk in use, and what may be on it after a kill.
struct Disk {
    h: Harness,
    path: PathBuf,
    /// What was there at the last flush.
    durable: Vec<u8>,
    /// What was written since.
    since: Vec<(u64, Vec<u8>)>,
}

impl Disk {
    fn open(path: &Path) -> Self {
        let mut h = open(path, ImageFormat::Qcow2);
        Self { durable: h.read_all(), h, path: path.to_owned(), since: Vec::new() }
    }

    fn write(&mut self, offset: u64, data: Vec<u8>) {
        self.h.write(offset, &data);
        self.since.push((offset, data));
    }

    /// Discards, or zeroes.
    fn clear(&mut self, kind: IoKind, offset: u64, len: u64) {
        assert_eq!(self.h.run(kind, offset, len).result, Ok(()));
        self.since.push((offset, vec![0; len as usize]));
    }

    fn flush(&mut self) {
        self.h.flush();
        for (offset, data) in self.since.drain(..) {
            self.durable[offset as usize..][..data.len()].copy_from_slice(&data);
        }
        // A discard may have left what it was told to discard.
        self.durable = self.h.read_all();
    }

    /// Judges the image as a kill at this moment would leave it.
    fn kill(&self, what: &str) {
        let copy = self.path.with_extension("killed");
        std::fs::copy(&self.path, &copy).unwrap();
        let out = try_run("qemu-img", &["check", "-f", "qcow2", s(&copy)]);
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(matches!(out.status.code(), Some(0 | 3)), "{what}: {said}{}", String::from_utf8_lossy(&out.stderr));
        let mut h = open(&copy, ImageFormat::Qcow2);
        let now = h.read_all();
        for (i, sector) in now.chunks_exact(SECTOR).enumerate() {
            let at = i * SECTOR;
            let written = |(offset, data): &(u64, Vec<u8>)| {
                let from = (at as u64).checked_sub(*offset).map(|from| from as usize);
                from.and_then(|from| data.get(from..from + SECTOR)).is_some_and(|data| data == sector)
            };
            assert!(
                self.durable[at..at + SECTOR] == *sector || self.since.iter().any(written),
                "{what}: {at:#x} has neither what was durable there nor what was written since"
            );
        }
        assert_eq!(h.try_write(0, &pattern(1, 4096)), Ok(()), "{what}: the first write after the kill");
        assert_eq!(h.backend.refusal(), None, "{what}");
    }
}

/// Random operations, of which few are flushes, and a kill after each.
fn kill_often(path: &Path, seed: u64, steps: u64, what: &str) {
    let mut disk = Disk::open(path);
    let mut rng = Rng::new(seed);
    for step in 0..steps {
        let len = (1 + rng.below(16)) * 4096;
        let offset = rng.below((SIZE - len) / 4096) * 4096;
        let can_clear = disk.h.backend.geometry().can_discard;
        match rng.below(10) {
            0 => disk.flush(),
            1 if can_clear => disk.clear(IoKind::Discard, offset, len),
            2 if can_clear => disk.clear(IoKind::WriteZeroes { unmap: rng.below(2) == 0, fua: false }, offset, len),
            _ => disk.write(offset, pattern(rng.next(), len as usize)),
        }
        disk.kill(&format!("{what}, step {step}"));
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_sound_image() {
    let dir = scratch();
    for (i, options) in [
        "cluster_size=4096",
        "cluster_size=512",
        "cluster_size=512,refcount_bits=64",
        "cluster_size=4096,refcount_bits=1",
        "cluster_size=4096,refcount_bits=2",
        "cluster_size=2048,refcount_bits=4",
        "cluster_size=1024,refcount_bits=8",
        "cluster_size=4096,refcount_bits=32",
        "cluster_size=4096,compat=0.10",
        "",
        "cluster_size=2M",
    ]
    .iter()
    .enumerate()
    {
        let path = create(dir.path(), &format!("{i}.qcow2"), options);
        kill_often(&path, 70 + i as u64, by_length(12, 24), options);
    }
}

#[test]
fn a_kill_leaves_an_image_with_a_snapshot_and_the_snapshot_sound() {
    let dir = scratch();
    for (i, options) in ["cluster_size=4096", "cluster_size=512,refcount_bits=8", ""].iter().enumerate() {
        let path = create(dir.path(), &format!("{i}.qcow2"), options);
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 0x11 0 6M", "-c", "write -P 0x22 9M 1M", s(&path)]);
        run("qemu-img", &["snapshot", "-c", "before", s(&path)]);
        kill_often(&path, 90 + i as u64, by_length(12, 24), options);
        let copy = path.with_extension("killed");
        run("qemu-img", &["snapshot", "-a", "before", s(&copy)]);
        let mut expected = vec![0; SIZE as usize];
        expected[..6 << 20].fill(0x11);
        expected[9 << 20..10 << 20].fill(0x22);
        assert!(open(&copy, ImageFormat::Qcow2).read_all() == expected, "{options}: the snapshot");
    }
}

/// An image whose first 2 MiB, a whole L2 table, are compressed clusters, and the next ones are there or not.
fn compressed(dir: &Path) -> PathBuf {
    let (raw, path) = (dir.join("raw.img"), dir.join("compressed.qcow2"));
    let mut data: Vec<u8> = (0..2 << 20).map(|i| (i / 777 % 251) as u8 | 1).collect();
    data.resize(SIZE as usize, 0);
    std::fs::write(&raw, data).unwrap();
    let args = ["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=4096", s(&raw), s(&path)];
    run("qemu-img", &args);
    path
}

#[test]
fn a_new_table_does_not_go_where_durable_data_was() {
    let dir = scratch();
    let path = compressed(dir.path());
    let mut disk = Disk::open(&path);
    // All clusters that share a place are replaced, so that it is free, in memory; then a table is needed.
    for i in 0..6u64 {
        disk.write(i * 131_072, pattern(i, 131_072));
        disk.write((2 + 2 * i) << 20, pattern(100 + i, 4096));
        disk.kill(&format!("compressed, table {i}"));
    }
    drop(disk);
    // The same within one operation that reaches from the one table into the other.
    let path = compressed(dir.path());
    let mut disk = Disk::open(&path);
    disk.write((2 << 20) - 262_144, pattern(7, 524_288));
    disk.kill("compressed, one write");
    drop(disk);
    // Discarded and zeroed clusters.
    for (i, kind) in [IoKind::Discard, IoKind::WriteZeroes { unmap: true, fua: false }].into_iter().enumerate() {
        let path = create(dir.path(), &format!("cleared{i}.qcow2"), "cluster_size=4096");
        let mut disk = Disk::open(&path);
        disk.write(0, pattern(3, 1 << 20));
        disk.flush();
        disk.clear(kind, 4096, 262_144);
        disk.write(5 << 20, pattern(4, 4096));
        disk.kill(&format!("{kind:?}"));
        disk.write((2 << 20) - 65536, pattern(5, 65536));
        disk.flush();
        disk.clear(kind, (2 << 20) - 65536, 131_072);
        disk.kill(&format!("{kind:?} over two tables"));
    }
}

/// Eight bytes of the file.
fn word(path: &Path, at: u64) -> u64 {
    let mut bytes = [0; 8];
    File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    u64::from_be_bytes(bytes)
}

/// Unmounts when it goes.
struct Mounted<'a>(&'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        drop(try_run("umount", &["-l", self.0]));
    }
}

/// A file system that is full but for one page takes the new L2 table and not its entry in the L1 table, whose page is
/// a hole: what is acknowledged as durable later is.
#[test]
fn nothing_is_durable_while_an_entry_of_the_l1_table_could_not_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    if !try_run("mount", &["-t", "tmpfs", "-o", "size=4m", "none", s(&mount)]).status.success() {
        return undercroft_skips::skip("mounting a small file system needs root");
    }
    let mounted = Mounted(s(&mount));
    let path = create(&mount, "disk.qcow2", "cluster_size=4096");
    run("fallocate", &["--punch-hole", "--offset", &word(&path, 40).to_string(), "--length", "4096", s(&path)]);
    let mut h = open(&path, ImageFormat::Qcow2);
    // Everything but one page is taken.
    let filler = mount.join("filler");
    let f = File::create(&filler).unwrap();
    let mut taken = 0u64;
    while f.write_all_at(&[1; 4096], taken).is_ok() {
        taken += 4096;
    }
    f.set_len(taken - 4096).unwrap();
    assert_eq!(h.try_write(0, &pattern(2, 4096)), Err(IoError::NoSpace));
    assert_eq!(word(&path, word(&path, 40)), 0, "this test is about an entry that is not in the file");
    assert_eq!(h.read(0, 4096), [0; 4096], "reads go on");
    assert_ne!(h.run(IoKind::Flush, 0, 0).result, Ok(()), "a flush would say that all is in the file");
    assert_ne!(h.try_write(1 << 20, &pattern(3, 4096)), Ok(()));
    assert!(h.backend.refusal().unwrap().contains("could not be written"));
    // Not by its end: a process that another test is just starting may have it open, too.
    f.set_len(0).unwrap();
    h.write(0, &pattern(2, 4096));
    h.write(5 << 20, &pattern(4, 4096));
    h.flush();
    assert_eq!(h.backend.refusal(), None);
    let copy = dir.path().join("killed.qcow2");
    std::fs::copy(&path, &copy).unwrap();
    run("qemu-img", &["check", "-q", "-f", "qcow2", s(&copy)]);
    let mut after = open(&copy, ImageFormat::Qcow2);
    assert!(after.read(0, 4096) == pattern(2, 4096), "what was flushed is gone");
    assert!(after.read(5 << 20, 4096) == pattern(4, 4096));
    drop((h, mounted));
}
