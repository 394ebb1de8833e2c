//! qcow2 images: against QEMU's tools, which made them and must read them afterwards.

use crate::harness::{Harness, Rng, open, open_error, pattern, run, spec, storm, try_run};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use undercroft_backend::{self as backend, OpenError, OpenOptions};
use undercroft_cache::{Extent, IoError, IoKind};
use undercroft_config::ImageFormat;

/// Bytes of the disks.
pub const SIZE: u64 = 16 << 20;

/// A path as an argument.
pub fn s(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An empty image.
pub fn create(dir: &Path, name: &str, options: &str) -> PathBuf {
    let path = dir.join(name);
    let mut args = vec!["create", "-q", "-f", "qcow2"];
    if !options.is_empty() {
        args.extend(["-o", options]);
    }
    run("qemu-img", &[&args[..], &[s(&path), &SIZE.to_string()]].concat());
    path
}

/// What QEMU reads from an image.
fn as_qemu_reads(image: &Path, format: &str) -> Vec<u8> {
    let raw = image.with_extension("as-raw");
    run("qemu-img", &["convert", "-f", format, "-O", "raw", s(image), s(&raw)]);
    std::fs::read(&raw).unwrap()
}

fn check(image: &Path) {
    run("qemu-img", &["check", "-q", "-f", "qcow2", s(image)]);
}

#[test]
fn any_mix_of_operations_reads_like_a_byte_array_here_and_in_qemu() {
    let dir = tempfile::tempdir().unwrap();
    for (i, options) in
        ["", "cluster_size=4096", "cluster_size=512,refcount_bits=1", "preallocation=metadata", "compat=0.10"]
            .iter()
            .enumerate()
    {
        let path = create(dir.path(), &format!("{i}.qcow2"), options);
        let mut model = vec![0; SIZE as usize];
        for round in 0..2 {
            let mut h = open(&path, ImageFormat::Qcow2);
            assert_eq!(h.backend.geometry().can_discard, *options != "compat=0.10");
            storm(&mut h, &mut model, 40 + 10 * i as u64 + round, 800);
            assert!(h.read_all() == model, "{options}");
            drop(h);
            check(&path);
            assert!(as_qemu_reads(&path, "qcow2") == model, "QEMU reads something else: {options}");
        }
    }
}

#[test]
fn writes_to_parts_of_the_same_clusters_at_the_same_time_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.img");
    std::fs::write(&base, pattern(5, SIZE as usize)).unwrap();
    let path = dir.path().join("top.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "raw", s(&path)]);
    let mut model = pattern(5, SIZE as usize);
    let mut h = open(&path, ImageFormat::Qcow2);
    let unit = u64::from(h.backend.geometry().align).max(4096);
    let mut rng = Rng::new(77);
    for _ in 0..20 {
        // All units of some clusters in random order, all under way together.
        let cluster = rng.below(SIZE >> 18) << 18;
        let mut units: Vec<u64> = (0..(1 << 18) / unit).collect();
        (0..units.len()).for_each(|i| units.swap(i, rng.below(64) as usize));
        let ops: Vec<u64> = units
            .iter()
            .map(|u| {
                let offset = cluster + u * unit;
                let zero = rng.below(4) == 0;
                let data = if zero { vec![0; unit as usize] } else { pattern(rng.next(), unit as usize) };
                model[offset as usize..][..unit as usize].copy_from_slice(&data);
                if zero {
                    h.start(IoKind::WriteZeroes { unmap: rng.below(2) == 0, fua: false }, offset, unit, None, 0)
                } else {
                    h.start(IoKind::Write { fua: false }, offset, unit, Some(&data), 0)
                }
            })
            .collect();
        for op in ops {
            assert_eq!(h.wait(op).result, Ok(()));
        }
    }
    assert!(h.read_all() == model);
    drop(h);
    check(&path);
    assert!(as_qemu_reads(&path, "qcow2") == model);
}

#[test]
fn zeroes_beside_a_write_in_a_fresh_cluster_do_not_swallow_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path(), "disk.qcow2", "");
    let mut h = open(&path, ImageFormat::Qcow2);
    let mut model = vec![0; SIZE as usize];
    for round in 0..8u64 {
        // Every cluster reads as zeroes; in each, one block is written while all others are zeroed.
        let ops: Vec<u64> = (0..SIZE >> 16)
            .flat_map(|cluster| {
                let (start, block) = (cluster << 16, (cluster + round) % 14 + 1);
                let data = pattern(round << 32 | cluster, 4096);
                model[(start + block * 4096) as usize..][..4096].copy_from_slice(&data);
                let zeroes = IoKind::WriteZeroes { unmap: round % 2 == 0, fua: false };
                let below = h.start(zeroes, start, block * 4096, None, 0);
                let write = h.start(IoKind::Write { fua: false }, start + block * 4096, 4096, Some(&data), 0);
                let above = h.start(zeroes, start + (block + 1) * 4096, 65536 - (block + 1) * 4096, None, 0);
                [below, write, above]
            })
            .collect();
        for op in ops {
            assert_eq!(h.wait(op).result, Ok(()));
        }
        assert!(h.read_all() == model, "round {round}");
        assert_eq!(h.run(IoKind::Discard, 0, SIZE).result, Ok(()));
        model.fill(0);
    }
}

#[test]
fn a_chain_of_three_is_read_through_and_only_the_top_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let sub = dir.path().join("bases");
    std::fs::create_dir(&sub).unwrap();
    // The lowest is raw, shorter than the others, and of an odd size.
    let base = sub.join("base.img");
    std::fs::write(&base, pattern(1, (SIZE / 2) as usize + 700)).unwrap();
    let mut model = pattern(1, (SIZE / 2) as usize + 700);
    model.resize(SIZE as usize, 0);
    let middle = sub.join("middle.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "raw", s(&middle), &SIZE.to_string()]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 0x5a 1M 300k", "-c", "write -z 3M 1M", s(&middle)]);
    model[1 << 20..][..300 << 10].fill(0x5a);
    model[3 << 20..][..1 << 20].fill(0);
    let top = dir.path().join("top.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "bases/middle.qcow2", "-F", "qcow2", s(&top)]);
    let before = (std::fs::read(&base).unwrap(), std::fs::read(&middle).unwrap());
    let mut h = open(&top, ImageFormat::Qcow2);
    assert!(h.backend.describe().contains("chain of 3 images"), "{}", h.backend.describe());
    assert!(h.read_all() == model);
    storm(&mut h, &mut model, 9, 800);
    assert!(h.read_all() == model);
    // The images behind are protected from writers as long as the chain is open.
    let e = open_error(&spec(&base, ImageFormat::Raw, false)).to_string();
    assert!(e.contains("base.img") && e.contains("top.qcow2"), "{e}");
    // But a second clone of the same image is fine.
    let other = dir.path().join("other.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "bases/middle.qcow2", "-F", "qcow2", s(&other)]);
    let mut second = open(&other, ImageFormat::Qcow2);
    assert_eq!(second.read(1 << 20, 4096), [0x5a; 4096]);
    drop((h, second));
    check(&top);
    assert!(as_qemu_reads(&top, "qcow2") == model);
    assert!((std::fs::read(&base).unwrap(), std::fs::read(&middle).unwrap()) == before, "a base was changed");
}

#[test]
fn no_other_program_writes_to_an_image_of_an_open_chain() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.img");
    std::fs::write(&base, pattern(1, SIZE as usize)).unwrap();
    let (middle, top) = (dir.path().join("middle.qcow2"), dir.path().join("top.qcow2"));
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "raw", s(&middle)]);
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "middle.qcow2", "-F", "qcow2", s(&top)]);
    let write = |format, image: &Path| {
        let out = try_run("qemu-io", &["-f", format, "-c", "write 0 512", s(image)]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for read_only in [false, true] {
        let spec = spec(&top, ImageFormat::Qcow2, read_only);
        let h = Harness::new(backend::open(&spec, &OpenOptions::default()).unwrap());
        for (format, image) in [("raw", &base), ("qcow2", &middle), ("qcow2", &top)] {
            let (wrote, says) = write(format, image);
            assert!(!wrote && says.contains("lock"), "{image:?}, read-only {read_only}: {says}");
        }
        drop(h);
        // From the top, as QEMU keeps the images behind one that it writes to as they are.
        for (format, image) in [("qcow2", &top), ("qcow2", &middle), ("raw", &base)] {
            let (wrote, says) = write(format, image);
            assert!(wrote, "{image:?} is locked by a chain that is closed: {says}");
        }
    }
}

#[test]
fn compressed_clusters_are_read_and_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw.img");
    let mut model: Vec<u8> = (0..SIZE as usize).map(|i| (i / 1000) as u8).collect();
    std::fs::write(&raw, &model).unwrap();
    let path = dir.path().join("small.qcow2");
    run("qemu-img", &["convert", "-c", "-f", "raw", "-O", "qcow2", s(&raw), s(&path)]);
    assert!(std::fs::metadata(&path).unwrap().len() < SIZE / 4);
    let mut h = open(&path, ImageFormat::Qcow2);
    assert!(h.read_all() == model);
    storm(&mut h, &mut model, 3, 500);
    assert!(h.read_all() == model);
    drop(h);
    check(&path);
    assert!(as_qemu_reads(&path, "qcow2") == model);
}

#[test]
fn an_internal_snapshot_keeps_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path(), "snap.qcow2", "");
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 0x11 0 8M", s(&path)]);
    run("qemu-img", &["snapshot", "-c", "before", s(&path)]);
    let before = as_qemu_reads(&path, "qcow2");
    let mut model = before.clone();
    let mut h = open(&path, ImageFormat::Qcow2);
    storm(&mut h, &mut model, 12, 400);
    drop(h);
    check(&path);
    assert!(as_qemu_reads(&path, "qcow2") == model);
    run("qemu-img", &["snapshot", "-a", "before", s(&path)]);
    assert!(as_qemu_reads(&path, "qcow2") == before);
}

#[test]
fn what_was_flushed_is_in_the_file_without_an_orderly_close() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path(), "disk.qcow2", "");
    let mut h = open(&path, ImageFormat::Qcow2);
    h.write(1 << 20, &pattern(1, 1 << 20));
    h.flush();
    let op = h.start(IoKind::Write { fua: true }, 5 << 20, 4096, Some(&pattern(2, 4096)), 0);
    assert_eq!(h.wait(op).result, Ok(()));
    // The file as a crash would leave it now.
    let copy = dir.path().join("crashed.qcow2");
    std::fs::copy(&path, &copy).unwrap();
    let there = as_qemu_reads(&copy, "qcow2");
    assert!(there[1 << 20..2 << 20] == pattern(1, 1 << 20)[..]);
    assert!(there[5 << 20..][..4096] == pattern(2, 4096)[..]);
}

#[test]
fn status_tells_data_from_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path(), "disk.qcow2", "");
    let mut h = open(&path, ImageFormat::Qcow2);
    h.write(1 << 20, &pattern(1, 1 << 20));
    let data = |len| Extent { len, hole: false, zero: false };
    let hole = |len| Extent { len, hole: true, zero: true };
    assert_eq!(h.run(IoKind::Status, 0, SIZE).extents, [hole(1 << 20), data(1 << 20), hole(14 << 20)]);
    assert_eq!(h.run(IoKind::Discard, 1 << 20, (1 << 20) - 512).result, Ok(()));
    let extents = h.run(IoKind::Status, 0, 2 << 20).extents;
    assert_eq!(extents, [hole((2 << 20) - 65536), data(65536)]);
    assert!(h.read((2 << 20) - 65536, 65536) == pattern(1, 1 << 20)[(1 << 20) - 65536..], "part of a cluster stays");
}

#[test]
fn the_page_cache_never_holds_an_image_of_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.img");
    std::fs::write(&base, pattern(1, SIZE as usize)).unwrap();
    rustix::fs::fsync(File::open(&base).unwrap()).unwrap();
    rustix::fs::fadvise(File::open(&base).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let path = dir.path().join("top.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "raw", s(&path)]);
    rustix::fs::fsync(File::open(&path).unwrap()).unwrap();
    rustix::fs::fadvise(File::open(&path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut h = open(&path, ImageFormat::Qcow2);
    if !h.backend.describe().contains("O_DIRECT") {
        return undercroft_skips::skip("the file system of the temporary directory has no direct I/O");
    }
    let mut model = pattern(1, SIZE as usize);
    storm(&mut h, &mut model, 8, 200);
    h.flush();
    for file in [&base, &path] {
        let resident = run("fincore", &["--bytes", "--noheadings", "--output", "RES", s(file)]);
        assert_eq!(resident.trim(), "0", "{}", file.display());
    }
}

#[test]
fn broken_chains_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("gone.img");
    File::create(&base).unwrap().set_len(SIZE).unwrap();
    let path = dir.path().join("top.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "gone.img", "-F", "raw", s(&path)]);
    std::fs::remove_file(&base).unwrap();
    let e = open_error(&spec(&path, ImageFormat::Qcow2, false)).to_string();
    assert!(e.contains("top.qcow2") && e.contains("gone.img") && e.contains("no such image"), "{e}");
    // A chain that leads back to itself.
    run("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", "top.qcow2", "-F", "qcow2", s(&path)]);
    let e = open_error(&spec(&path, ImageFormat::Qcow2, true)).to_string();
    assert!(e.contains("leads back to itself"), "{e}");
    run("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", "nbd://localhost/x", "-F", "raw", s(&path)]);
    let e = open_error(&spec(&path, ImageFormat::Qcow2, true)).to_string();
    assert!(e.contains("not a file") && e.contains("qemu-nbd"), "{e}");
    run("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", "gone.img", "-F", "vmdk", s(&path)]);
    std::fs::write(&base, pattern(1, 4096)).unwrap();
    let e = open_error(&spec(&path, ImageFormat::Qcow2, true)).to_string();
    assert!(e.contains("vmdk"), "{e}");
}

#[test]
fn unsupported_features_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (options, word) in [
        ("compression_type=zstd", "zstd"),
        ("extended_l2=on", "extended L2"),
        ("data_file=data.raw", "external data file"),
        ("encrypt.format=luks,encrypt.key-secret=k,encrypt.iter-time=10", "encryption"),
    ] {
        let path = dir.path().join(format!("{}.qcow2", word.replace(' ', "-")));
        let options = options.replace("data.raw", s(&dir.path().join("data.raw")));
        let args = ["create", "-q", "-f", "qcow2", "--object", "secret,id=k,data=x", "-o", &options, s(&path), "16M"];
        let out = try_run("qemu-img", &args);
        if !out.status.success() && word == "encryption" {
            continue; // left out of this QEMU
        }
        assert!(out.status.success(), "{out:?}");
        let e = open_error(&spec(&path, ImageFormat::Qcow2, false));
        assert!(matches!(e, OpenError::Unsupported { .. }), "{e:?}");
        assert!(e.to_string().contains(word), "{e}");
    }
    // An image that was not closed properly.
    let path = create(dir.path(), "dirty.qcow2", "lazy_refcounts=on");
    let f = File::options().write(true).open(&path).unwrap();
    f.write_all_at(&[1], 79).unwrap();
    let e = open_error(&spec(&path, ImageFormat::Qcow2, false)).to_string();
    assert!(e.contains("dirty") && e.contains("qemu-img check -r all"), "{e}");
}

#[test]
fn a_truncated_image_gives_errors_not_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path(), "disk.qcow2", "");
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 0x11 0 8M", s(&path)]);
    let whole = std::fs::metadata(&path).unwrap().len();
    let f = File::options().write(true).open(&path).unwrap();
    f.set_len(whole - (4 << 20)).unwrap();
    let mut h = open(&path, ImageFormat::Qcow2);
    assert_eq!(h.read(0, 65536), [0x11; 65536]);
    assert_eq!(h.run(IoKind::Read, 7 << 20, 65536).result, Err(IoError::Io));
    drop(h);
    f.set_len(3 << 16).unwrap();
    let e = open_error(&spec(&path, ImageFormat::Qcow2, true)).to_string();
    assert!(e.contains("past the end of the file"), "{e}");
}

#[test]
fn random_damage_is_an_error_or_other_data_never_a_panic_or_a_hang() {
    let dir = tempfile::tempdir().unwrap();
    let good = create(dir.path(), "good.qcow2", "cluster_size=4096");
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 4M", "-c", "write -z 5M 1M", "-c", "write 8M 1M", s(&good)]);
    let bytes = std::fs::read(&good).unwrap();
    let mut rng = Rng::new(4242);
    let (mut refused, mut served) = (0, 0);
    for round in 0..60 {
        let mut bad = bytes.clone();
        // Metadata is at the start of the file for the most part.
        for _ in 0..1 + rng.below(6) {
            let at = if rng.below(3) == 0 { rng.below(200) } else { rng.below(65536) };
            bad[at as usize] = rng.next() as u8;
        }
        let path = dir.path().join("bad.qcow2");
        std::fs::write(&path, &bad).unwrap();
        match backend::open(&spec(&path, ImageFormat::Qcow2, false), &OpenOptions::default()) {
            Err(_) => refused += 1,
            Ok(b) if b.geometry().size_bytes > 1 << 30 => served += 1,
            Ok(b) => {
                let mut h = Harness::new(b);
                for i in 0..40u64 {
                    let offset = rng.below(h.size() >> 12) << 12;
                    let kind = match rng.below(6) {
                        0 => IoKind::Write { fua: true },
                        1 => IoKind::Discard,
                        2 => IoKind::Status,
                        3 => IoKind::WriteZeroes { unmap: false, fua: false },
                        _ => IoKind::Read,
                    };
                    let data = matches!(kind, IoKind::Write { .. }).then(|| pattern(i, 4096));
                    let op = h.start(kind, offset, 4096, data.as_deref(), 0);
                    let _ = h.wait(op);
                }
                served += 1;
            }
        }
        assert!(round < 1_000);
    }
    assert!(refused > 5 && served > 5, "{refused} refused, {served} served");
}

/// What two clones of one image have of their own, against what QEMU says of them; and that they stand on one state of
/// one image, until it changes.
#[test]
fn a_clone_knows_its_own_clusters_and_what_it_stands_on() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.raw");
    std::fs::write(&base, pattern(1, 8 << 20)).unwrap();
    let clone = |name: &str, options: &str, backing: &Path, format: &str| {
        let path = dir.path().join(name);
        let options = format!("backing_fmt={format}{options}");
        run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", s(backing), "-o", &options, s(&path), "16M"]);
        path
    };
    let base_of = |path: &Path| {
        let mut backend = backend::open(&spec(path, ImageFormat::Qcow2, false), &OpenOptions::default()).unwrap();
        let base = backend.take_base();
        assert!(backend.take_base().is_none(), "it holds only once, before the first operation");
        base
    };
    for (cluster, options) in
        [(64u64 << 10, ""), (4096, ",cluster_size=4096"), (1 << 20, ",cluster_size=1M,compat=0.10")]
    {
        let a = clone("a.qcow2", options, &base, "raw");
        let b = clone("b.qcow2", options, &base, "raw");
        let zeroes = if options.contains("0.10") { "write -P 5 6M 5000" } else { "write -z 6M 64k" };
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 512", "-c", zeroes, "-c", "write -P 8 15M 4k", s(&a)]);
        let of_a = base_of(&a).unwrap();
        assert_eq!((of_a.size_bytes, u64::from(of_a.cluster_bytes)), (8 << 20, cluster));
        let map = run("qemu-img", &["map", "--output=json", "-f", "qcow2", s(&a)]);
        let map: serde_json::Value = serde_json::from_str(&map).unwrap();
        for extent in map.as_array().unwrap() {
            let number = |key: &str| extent[key].as_u64().unwrap();
            let (from, to) = (number("start"), number("start") + number("length"));
            // What is zero may be so in many ways; what has data is in the one image or the other.
            let (own, theirs) = (number("depth") == 0 && extent["data"] == true, number("depth") == 1);
            for c in from / cluster..to.div_ceil(cluster) {
                let said = of_a.own[(c / 64) as usize] >> (c % 64) & 1 != 0;
                assert!(said || !own, "cluster {c} of {cluster} bytes is its own, says QEMU");
                let whole = c * cluster >= from && (c + 1) * cluster <= to;
                assert!(!(said && theirs && whole), "cluster {c} of {cluster} bytes is the base's, says QEMU");
            }
        }
        let of_b = base_of(&b).unwrap();
        assert_eq!(of_a.layer, of_b.layer);
        assert!(of_b.own.iter().all(|&w| w == 0) && of_a.own.iter().any(|&w| w != 0));
        let between = clone("mid.qcow2", "", &base, "raw");
        let on_top = base_of(&clone("top.qcow2", "", &between, "qcow2")).unwrap();
        assert_ne!(on_top.layer, of_a.layer, "another chain");
        std::fs::write(&base, pattern(2, 8 << 20)).unwrap();
        assert_ne!(base_of(&a).unwrap().layer, of_a.layer, "the base was written meanwhile");
    }
    assert!(base_of(&create(dir.path(), "alone.qcow2", "")).is_none());
}

#[test]
fn files_behind_an_image_are_kept_by_its_disk_or_from_it() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let [base, middle, top, other] = ["base.img", "middle.qcow2", "top.qcow2", "other.img"].map(|n| dir.path().join(n));
    std::fs::write(&base, vec![1; 1 << 20]).unwrap();
    std::fs::write(&other, vec![1; 1 << 20]).unwrap();
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "raw", s(&middle)]);
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "middle.qcow2", "-F", "qcow2", s(&top)]);
    let keep =
        |path: &Path| std::fs::metadata(path).map(|m| backend::keep_from_disks(m.dev(), m.ino(), "a file")).unwrap();
    let h = open(&top, ImageFormat::Qcow2);
    for file in [&base, &middle, &top] {
        assert_eq!(keep(file).unwrap_err().by, s(&top), "{file:?}");
    }
    assert!(keep(&other).is_ok());
    drop(h);
    let kept = keep(&base).unwrap();
    let refused =
        backend::open(&spec(&top, ImageFormat::Qcow2, false), &OpenOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("base.img") && refused.contains("a file"), "{refused}");
    drop(kept);
    drop(open(&top, ImageFormat::Qcow2));
}
