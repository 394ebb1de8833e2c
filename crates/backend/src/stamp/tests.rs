//! Stamps of real files that are written, put back, renamed and copied.
//!
//! Owns the files. Never waits for a clock longer than it takes to settle.

use super::*;
use crate::{OpenOptions, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use undercroft_config::ImageSpec;
use undercroft_host::Direct;

/// What is said of a file that is opened anew.
fn stamp(path: &Path) -> ImageStamp {
    let (file, _) = DiskFile::open(path, true, Direct::No).unwrap();
    ImageFiles::of([(file, false)]).unwrap().stamp().unwrap().expect("a file system that tells")
}

/// The same once it has settled.
fn settled(path: &Path) -> ImageStamp {
    loop {
        let now = stamp(path);
        if now.settled {
            return now;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn image(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("a.raw");
    fs::write(&path, [1; 8192]).unwrap();
    path
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

fn set_modified(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_file_that_nobody_touches_stays_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let before = settled(&path);
    fs::read(&path).unwrap();
    assert_eq!(stamp(&path), before);
    let (file, _) = DiskFile::open(&path, true, Direct::No).unwrap();
    let other = ImageFiles::of([(file, true)]).unwrap().stamp().unwrap().unwrap();
    assert_ne!(other.identity, before.identity, "the same file read in another format");
}

#[test]
fn every_write_shows_however_soon_after_a_settled_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let file = File::options().write(true).open(&path).unwrap();
    for byte in 0..20 {
        let before = settled(&path);
        file.write_all_at(&[byte], 5).unwrap();
        let after = stamp(&path);
        assert_ne!(after.state, before.state, "write {byte}");
        assert_eq!(after.identity, before.identity);
        assert!(!after.settled, "another write now would have the same time");
    }
}

/// Whoever writes and then sets the time back as `touch -d` or a restore does leaves the inode's own time.
#[test]
fn a_time_that_is_put_back_shows() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let (before, time) = (settled(&path), modified(&path));
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[9; 100], 0).unwrap();
    set_modified(&path, time);
    assert_eq!(modified(&path), time);
    assert_ne!(settled(&path).state, before.state);
    // Long ago, too, and by the program that people use.
    let touched = Command::new("touch").args(["-d", "2001-01-01"]).arg(&path).status().unwrap();
    assert!(touched.success());
    assert_ne!(settled(&path).state, before.state);
}

#[test]
fn another_file_under_the_name_is_another_image_and_a_new_name_is_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let before = settled(&path);
    let copy = dir.path().join("copy");
    assert!(Command::new("cp").arg("-a").arg(&path).arg(&copy).status().unwrap().success());
    assert_eq!(modified(&copy), modified(&path));
    assert_ne!(settled(&copy).identity, before.identity, "a copy with all its attributes");
    fs::rename(&copy, &path).unwrap();
    assert_ne!(settled(&path).identity, before.identity, "put in its place");
    let first = image(dir.path());
    let before = settled(&first);
    let moved = dir.path().join("moved");
    fs::rename(&first, &moved).unwrap();
    let after = settled(&moved);
    assert_eq!(after.identity, before.identity, "it is the same file");
}

/// An inode that is used again for another file has another generation.
#[test]
fn a_file_that_is_made_anew_is_another() {
    let dir = tempfile::tempdir().unwrap();
    let before = settled(&image(dir.path()));
    fs::remove_file(dir.path().join("a.raw")).unwrap();
    let after = settled(&image(dir.path()));
    assert_ne!((after.identity, after.state), (before.identity, before.state));
}

#[test]
fn size_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let before = settled(&path);
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_ne!(stamp(&path).state, before.state);
}

#[test]
fn a_change_that_is_younger_than_a_tick_or_in_the_future_has_not_settled() {
    let now = Timespec { tv_sec: 100, tv_nsec: 500_000_000 };
    assert!(has_settled(&now, 100, 480_000_000) && has_settled(&now, 50, 7));
    assert!(!has_settled(&now, 100, 480_000_001), "within two ticks");
    assert!(!has_settled(&now, 100, 500_000_000) && !has_settled(&now, 100, 900_000_000));
    assert!(!has_settled(&now, 101, 0), "the clock was set back");
    assert!(!has_settled(&now, 99, 0), "a file system that counts in seconds");
    assert!(has_settled(&now, 98, 0));
}

#[test]
fn mounts_that_keep_times_in_memory_are_found() {
    let line = |number: &str, options: &str| format!("36 35 {number} / /srv rw,relatime - ext4 /dev/x rw,{options}\n");
    let device = rustix::fs::makedev(8, 3);
    assert!(!is_lazy(&line("8:3", "discard"), device));
    assert!(is_lazy(&line("8:3", "lazytime"), device));
    let both = line("8:1", "lazytime") + &line("8:3", "discard");
    assert!(!is_lazy(&both, device), "another's");
    assert!(is_lazy(&both, rustix::fs::makedev(0, 40)), "it is not said where that is mounted");
}

#[test]
fn a_boot_has_one_number() {
    assert!(boot_id().is_some() && boot_id() == boot_id());
}

fn qemu_img(args: &[&str], dir: &Path) -> bool {
    match Command::new("qemu-img").current_dir(dir).args(args).output() {
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            true
        }
        Err(_) => false,
    }
}

/// A raw image and a qcow2 image say the same of themselves opened by us, closed and opened again; the image behind a
/// qcow2 image counts, and so does the format that an image is read in.
#[test]
fn images_are_what_they_were_after_they_were_open() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, format: undercroft_config::ImageFormat| {
        let location = dir.path().join(name).display().to_string();
        let spec = ImageSpec { location, format: Some(format), read_only: false };
        let opened = open(&spec, &OpenOptions::default()).unwrap();
        let files = opened.files().expect("a file");
        let found = files.found().expect("a file system that tells");
        drop(opened);
        // As a daemon does that stops: what it leaves is what the next one finds.
        (found, files.stamp().unwrap().expect("a file system that tells"))
    };
    use undercroft_config::ImageFormat::{Qcow2, Raw};
    let same = |a: ImageStamp, b: ImageStamp| (a.identity, a.state) == (b.identity, b.state);
    image(dir.path());
    let left = of("a.raw", Raw).1;
    assert!(same(of("a.raw", Raw).0, left));
    if !qemu_img(&["create", "-q", "-f", "raw", "base.raw", "1M"], dir.path()) {
        return undercroft_skips::skip("there is no qemu-img");
    }
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "top.qcow2"], dir.path());
    let left = of("top.qcow2", Qcow2).1;
    assert!(same(of("top.qcow2", Qcow2).0, left));
    File::options().write(true).open(dir.path().join("base.raw")).unwrap().write_all_at(&[1], 0).unwrap();
    let found = of("top.qcow2", Qcow2).0;
    assert_eq!(found.identity, left.identity);
    assert_ne!(found.state, left.state, "the image behind it has changed");
}

#[test]
fn nothing_is_known_of_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = DiskFile::open(&image(dir.path()), true, Direct::No).unwrap();
    assert!(ImageFiles::of([(file.clone(), false), (DiskFile { is_device: true, ..file }, false)]).is_none());
    assert!(ImageFiles::of([]).is_none());
}
