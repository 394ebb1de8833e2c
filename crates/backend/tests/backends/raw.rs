//! Raw images: files and block devices.

use crate::harness::{self, Harness, open, open_error, pattern, run, spec, storm, try_run};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use undercroft_backend::{self as backend, EngineChoice, OpenError, OpenOptions};
use undercroft_cache::{Extent, IoError, IoKind};
use undercroft_config::{ImageFormat, ImageSpec};

const SIZE: u64 = 8 << 20;

fn image(dir: &Path, bytes: u64) -> PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn open_with(path: &Path, engine: EngineChoice) -> Harness {
    let spec = spec(path, ImageFormat::Raw, false);
    Harness::new(backend::open(&spec, &OpenOptions { engine, ..OpenOptions::default() }).unwrap())
}

#[test]
fn any_mix_of_operations_reads_like_a_byte_array() {
    for (engine, seed) in [(EngineChoice::Auto, 1), (EngineChoice::Threads, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), SIZE);
        let mut model = vec![0; SIZE as usize];
        for round in 0..3 {
            let mut h = open_with(&path, engine);
            storm(&mut h, &mut model, seed * 100 + round, 1500);
            assert!(h.read_all() == model, "{}", h.backend.describe());
        }
        assert!(std::fs::read(&path).unwrap() == model);
    }
}

#[test]
fn a_size_of_whole_sectors_is_served_to_its_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE + 512);
    let mut h = open(&path, ImageFormat::Raw);
    if h.backend.geometry().align > 512 {
        return undercroft_skips::skip("this file system needs larger units than 512 bytes");
    }
    let mut model = vec![0; SIZE as usize + 512];
    h.write(SIZE, &pattern(9, 512));
    model[SIZE as usize..].copy_from_slice(&pattern(9, 512));
    storm(&mut h, &mut model, 3, 500);
    assert_eq!(h.run(IoKind::Read, SIZE, 1024).result, Err(IoError::Invalid));
    assert_eq!(h.try_write(SIZE + 512, &[0; 512]), Err(IoError::Invalid));
    drop(h);
    assert!(std::fs::read(&path).unwrap() == model);
}

#[test]
fn an_odd_size_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE + 100);
    let e = open_error(&spec(&path, ImageFormat::Raw, false));
    assert!(matches!(e, OpenError::OddSize { .. }));
    let remedy = format!("truncate -s {} {}", SIZE + 512, path.display());
    assert!(e.to_string().contains(&remedy), "{e}");
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let e = open_error(&spec(&path, ImageFormat::Raw, false)).to_string();
    assert!(e.contains("empty") && e.contains("truncate -s"), "{e}");
}

/// An image that is given as raw by mistake is not to be made larger: its header says what it is.
#[test]
fn an_image_of_another_format_is_not_to_be_rounded_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE + 100);
    let begin = |bytes: &[u8]| File::options().write(true).open(&path).unwrap().write_all_at(bytes, 0).unwrap();
    begin(b"QFI\xfb\0\0\0\x03");
    let e = open_error(&spec(&path, ImageFormat::Raw, false));
    assert!(matches!(e, OpenError::NotRaw { .. }), "{e:?}");
    let e = e.to_string();
    assert!(
        e.contains("begins like a qcow2 image") && e.contains("`--format qcow2`") && !e.contains("truncate"),
        "{e}"
    );
    begin(b"KDMV\x01\0\0\0");
    let e = open_error(&spec(&path, ImageFormat::Raw, false)).to_string();
    assert!(e.contains("begins like a VMDK image") && e.contains("leave `format` out"), "{e}");
    // A disk that a guest has encrypted is a raw one.
    begin(b"LUKS\xba\xbe\0\x01");
    assert!(matches!(open_error(&spec(&path, ImageFormat::Raw, false)), OpenError::OddSize { .. }));
    // What was asked for can be meant: a disk whose content is an image, of a size that disks have.
    begin(b"QFI\xfb\0\0\0\x03");
    File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
    drop(open(&path, ImageFormat::Raw));
}

/// What is named by mistake is not to be made larger.
#[test]
fn a_text_is_refused_as_no_disk() {
    let e = open_error(&spec(std::path::Path::new("/etc/passwd"), ImageFormat::Raw, true));
    assert!(matches!(e, OpenError::NotADisk { .. }), "{e:?}");
    let e = e.to_string();
    assert!(e.contains("/etc/passwd") && e.contains("a text") && !e.contains("truncate"), "{e}");
}

#[test]
fn the_page_cache_never_holds_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let mut h = open(&path, ImageFormat::Raw);
    if !h.backend.describe().contains("O_DIRECT") {
        return undercroft_skips::skip("the file system of the temporary directory has no direct I/O");
    }
    for i in 0..SIZE >> 18 {
        h.write(i << 18, &pattern(i, 1 << 18));
    }
    h.read_all();
    let resident = run("fincore", &["--bytes", "--noheadings", "--output", "RES", path.to_str().unwrap()]);
    assert_eq!(resident.trim(), "0");
}

#[test]
fn discard_frees_space_and_reads_zeroes_and_status_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let mut h = open(&path, ImageFormat::Raw);
    if !h.backend.geometry().can_discard {
        return undercroft_skips::skip("the file system of the temporary directory cannot punch holes");
    }
    h.write(0, &pattern(1, 4 << 20));
    h.flush();
    let before = std::fs::metadata(&path).unwrap().blocks();
    assert_eq!(h.run(IoKind::Discard, 1 << 20, 2 << 20).result, Ok(()));
    assert_eq!(h.run(IoKind::Flush, 0, 0).result, Ok(()));
    assert!(std::fs::metadata(&path).unwrap().blocks() <= before - (2 << 20) / 512);
    assert!(h.read(1 << 20, 2 << 20).iter().all(|&b| b == 0));
    let data = |len| Extent { len, hole: false, zero: false };
    let hole = |len| Extent { len, hole: true, zero: true };
    assert_eq!(h.run(IoKind::Status, 0, SIZE).extents, [data(1 << 20), hole(2 << 20), data(1 << 20), hole(4 << 20)]);
    assert_eq!(h.run(IoKind::WriteZeroes { unmap: false, fua: true }, 0, 64 << 10).result, Ok(()));
    assert!(h.read(0, 64 << 10).iter().all(|&b| b == 0));
}

#[test]
fn a_read_only_disk_takes_no_write_and_the_file_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    std::fs::write(&path, pattern(4, SIZE as usize)).unwrap();
    let spec = spec(&path, ImageFormat::Raw, true);
    let mut h = Harness::new(backend::open(&spec, &OpenOptions::default()).unwrap());
    assert!(h.backend.geometry().read_only);
    assert_eq!(h.try_write(0, &[1; 4096]), Err(IoError::ReadOnly));
    assert_eq!(h.run(IoKind::Discard, 0, 4096).result, Err(IoError::ReadOnly));
    assert_eq!(h.run(IoKind::WriteZeroes { unmap: true, fua: false }, 0, 4096).result, Err(IoError::ReadOnly));
    assert!(h.read_all() == pattern(4, SIZE as usize));
    // Any number of readers go together.
    let _second = Harness::new(backend::open(&spec, &OpenOptions::default()).unwrap());
}

#[test]
fn missing_unreadable_and_foreign_things_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("nowhere.img");
    let e = open_error(&spec(&missing, ImageFormat::Raw, false));
    assert!(matches!(e, OpenError::NotFound { .. }));
    assert!(e.to_string().contains("nowhere.img"));
    let e = open_error(&spec(dir.path(), ImageFormat::Raw, true));
    assert!(matches!(e, OpenError::NotADisk { .. }), "{e:?}");
    let pipe = dir.path().join("pipe");
    run("mkfifo", &[pipe.to_str().unwrap()]);
    let e = open_error(&spec(&pipe, ImageFormat::Raw, true)).to_string();
    assert!(e.contains("a named pipe"), "{e}");
    let vmdk = dir.path().join("disk.vmdk");
    run("qemu-img", &["create", "-q", "-f", "vmdk", vmdk.to_str().unwrap(), "1M"]);
    let unknown = ImageSpec { location: vmdk.to_str().unwrap().to_owned(), format: None, read_only: false };
    let e = open_error(&unknown).to_string();
    assert!(e.contains("VMDK") && e.contains("qemu-nbd"), "{e}");
}

#[test]
fn two_disks_never_write_one_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let first = open(&path, ImageFormat::Raw);
    // Another name of the same file.
    let alias = dir.path().join("alias.img");
    std::fs::hard_link(&path, &alias).unwrap();
    for read_only in [false, true] {
        let e = open_error(&spec(&alias, ImageFormat::Raw, read_only)).to_string();
        assert!(e.contains("alias.img") && e.contains("disk.img"), "both are named: {e}");
    }
    drop(first);
    drop(open(&alias, ImageFormat::Raw));
    // A program outside: it holds the image open for writing, with QEMU's locks.
    let mut io = std::process::Command::new("qemu-io")
        .args(["-f", "raw", path.to_str().unwrap()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut prompt = [0; 8];
    std::io::Read::read_exact(io.stdout.as_mut().unwrap(), &mut prompt).unwrap();
    let e = open_error(&spec(&path, ImageFormat::Raw, false)).to_string();
    assert!(e.contains("locked by another program: qemu-io"), "{e}");
    assert!(matches!(open_error(&spec(&path, ImageFormat::Raw, true)), OpenError::InUse { .. }));
    drop(io.stdin.take());
    io.wait().unwrap();
    // And the other way round.
    let _ours = open(&path, ImageFormat::Raw);
    let out = try_run("qemu-io", &["-f", "raw", "-c", "write 0 512", path.to_str().unwrap()]);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("lock"), "{out:?}");
}

#[test]
fn no_disk_writes_an_image_that_another_one_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    std::fs::write(&path, pattern(5, SIZE as usize)).unwrap();
    // Another name of the same file.
    let alias = dir.path().join("alias.img");
    std::fs::hard_link(&path, &alias).unwrap();
    let read_only = spec(&path, ImageFormat::Raw, true);
    let mut reader = Harness::new(backend::open(&read_only, &OpenOptions::default()).unwrap());
    let e = open_error(&spec(&alias, ImageFormat::Raw, false));
    assert!(matches!(e, OpenError::InUseHere { .. }), "{e:?}");
    let e = e.to_string();
    assert!(e.contains("alias.img") && e.contains("disk.img") && e.contains("it is read there"), "{e}");
    // Nor does a program outside, which sees our lock.
    let out = try_run("qemu-io", &["-f", "raw", "-c", "write 0 512", path.to_str().unwrap()]);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("lock"), "{out:?}");
    assert!(reader.read_all() == pattern(5, SIZE as usize));
    drop(reader);
    drop(open(&alias, ImageFormat::Raw));
}

#[test]
fn a_guest_cannot_turn_a_guessed_raw_disk_into_another_format() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let guessed = ImageSpec { location: path.to_str().unwrap().to_owned(), format: None, read_only: false };
    let mut h = Harness::new(backend::open(&guessed, &OpenOptions::default()).unwrap());
    let mut evil = vec![0; 4096];
    evil[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    assert_eq!(h.try_write(0, &evil), Err(IoError::ReadOnly));
    h.write(4096, &evil);
    h.write(0, &pattern(1, 4096));
    drop(h);
    // Who says that it is raw gets what he asked for.
    let mut h = open(&path, ImageFormat::Raw);
    h.write(0, &evil);
}

#[test]
fn a_full_file_system_says_no_space_and_later_operations_work() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("small");
    std::fs::create_dir(&mount).unwrap();
    let m = mount.to_str().unwrap();
    if !try_run("mount", &["-t", "tmpfs", "-o", "size=1m", "none", m]).status.success() {
        return undercroft_skips::skip("mounting a small file system needs root");
    }
    let unmount = scopeguard(|| drop(try_run("umount", &["-l", m])));
    let path = image(&mount, SIZE);
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let mut h = open_with(&path, engine);
        let mut full = false;
        for i in 0..8 {
            match h.try_write(i << 18, &pattern(i, 1 << 18)) {
                Ok(()) => assert!(!full),
                Err(e) => {
                    assert_eq!(e, IoError::NoSpace);
                    full = true;
                }
            }
        }
        assert!(full, "8 MiB do not fit into 1 MiB");
        assert!(h.read(0, 1 << 18) == pattern(0, 1 << 18), "what was acknowledged is there");
        assert_eq!(h.run(IoKind::Discard, 0, SIZE).result, Ok(()));
        h.write(1 << 20, &pattern(99, 1 << 18));
        assert!(h.read(1 << 20, 1 << 18) == pattern(99, 1 << 18));
        assert_eq!(h.run(IoKind::Discard, 0, SIZE).result, Ok(()));
    }
    drop(unmount);
}

#[test]
fn a_block_device_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let out = try_run("losetup", &["--find", "--show", "--direct-io=on", path.to_str().unwrap()]);
    if !out.status.success() {
        return undercroft_skips::skip("no loop device to be had here");
    }
    let device = String::from_utf8(out.stdout).unwrap().trim().to_owned();
    let detach = scopeguard(|| drop(try_run("losetup", &["--detach", &device])));
    let mut model = vec![0; SIZE as usize];
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let mut h = open_with(Path::new(&device), engine);
        assert!(h.backend.describe().starts_with("raw device"), "{}", h.backend.describe());
        assert_eq!(h.size(), SIZE);
        storm(&mut h, &mut model, 5, 500);
        h.flush();
    }
    drop(detach);
    assert!(std::fs::read(&path).unwrap() == model);
}

#[test]
fn a_file_that_shrinks_gives_errors_not_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let mut h = open(&path, ImageFormat::Raw);
    let f = File::options().write(true).open(&path).unwrap();
    f.set_len(SIZE / 2).unwrap();
    assert_eq!(h.run(IoKind::Read, SIZE - 4096, 4096).result, Err(IoError::Io));
    f.write_all_at(&[7; 4096], SIZE - 4096).unwrap();
    assert_eq!(h.read(SIZE - 4096, 4096), [7; 4096]);
}

/// Runs `f` when dropped.
fn scopeguard<F: FnMut()>(f: F) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(f)
}

#[test]
fn dropping_a_disk_with_operations_under_way_is_orderly() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let mut h = open(&path, ImageFormat::Raw);
    let data = pattern(1, 1 << 20);
    for i in 0..8 {
        h.start(IoKind::Write { fua: false }, i << 20, 1 << 20, Some(&data), 0);
    }
    h.backend.kick();
    drop(h);
    // The image is free at once, and what was started is either there or not.
    let mut h: Harness = harness::open(&path, ImageFormat::Raw);
    for i in 0..8 {
        let there = h.read(i << 20, 1 << 20);
        assert!(there == data || there.chunks(4096).all(|b| b == &[0; 4096][..] || data.chunks(4096).any(|d| d == b)));
    }
}
