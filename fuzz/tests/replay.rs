//! Replays what fuzzing found, in ordinary tests: each target's seeds (`seeds/TARGET`), the inputs that coverage-guided
//! sessions kept (`kept/TARGET.tar.xz`, written by scripts/fuzz.py --keep), and some thousand changes of them
//! that are the same in each run; more of them at length.
//!
//! Owns no target. Invariant: an input that a target fails on is left in `artifacts/TARGET`, to be run alone.

use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use undercroft_fuzz::TARGETS;
use undercroft_testkit::rng::Rng;

/// Changed inputs per target, and at length.
const CHANGED: [u64; 2] = [1_000, 10_000];
/// As scripts/fuzz.py limits them.
const BYTES_MAX: usize = 65536;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The seeds of a target, then what was kept of it.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    if let Ok(listed) = fs::read_dir(folder().join("seeds").join(target)) {
        let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("a readable folder").path()).collect();
        paths.sort();
        found.extend(paths.iter().map(|path| fs::read(path).expect("a readable seed")));
    }
    let kept = folder().join("kept").join(format!("{target}.tar.xz"));
    if let Ok(packed) = fs::read(&kept) {
        let mut bytes = Vec::new();
        liblzma::read::XzDecoder::new(Cursor::new(packed)).read_to_end(&mut bytes).expect("a whole archive");
        let mut archive = tar::Archive::new(Cursor::new(bytes));
        for entry in archive.entries().expect("an archive") {
            let mut input = Vec::new();
            entry.expect("an entry").read_to_end(&mut input).expect("a whole entry");
            found.push(input);
        }
    }
    found
}

/// Changes an input as a fuzzer does: bits, bytes, numbers at the edges, pieces moved, cut, doubled or taken from
/// another.
fn change(input: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=rng.below(4) {
        let len = bytes.len() as u64;
        let at = rng.below(len.max(1)) as usize;
        match rng.below(7) {
            0 if len > 0 => bytes[at] ^= 1 << rng.below(8),
            1 if len > 0 => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'-', b'"', b'\n']),
            2 => {
                let edge = *rng.pick(&[0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, u64::MAX]);
                let edge = if rng.one_in(2) { edge.to_le_bytes() } else { edge.to_be_bytes() };
                for (byte, new) in bytes.iter_mut().skip(at).zip(edge) {
                    *byte = new;
                }
            }
            3 => bytes.truncate(at),
            4 => {
                let piece = bytes[at..].iter().copied().take(rng.below(64) as usize).collect::<Vec<_>>();
                bytes.splice(at..at, piece);
            }
            5 => {
                let end = bytes.len().min(at + rng.below(64) as usize);
                bytes.drain(at..end);
            }
            _ => {
                let from = rng.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

/// Leaves the input in `artifacts` if the target panics on it.
struct Artifact<'a> {
    target: &'a str,
    input: &'a [u8],
}

impl Drop for Artifact<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let place = folder().join("artifacts").join(self.target);
            let path = place.join("replayed");
            let written = fs::create_dir_all(&place).and_then(|()| fs::write(&path, self.input));
            eprintln!("{}: the input that failed is {} ({written:?})", self.target, path.display());
        }
    }
}

fn run(target: &str, function: fn(&[u8]), input: &[u8]) {
    let _artifact = Artifact { target, input };
    function(input);
}

fn replay(target: &str) {
    let (_, function) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of this name");
    let inputs = inputs(target);
    for input in &inputs {
        run(target, *function, input);
    }
    let mut rng = Rng::new(1);
    let none = Vec::new();
    for _ in 0..CHANGED[usize::from(undercroft_skips::at_length())] {
        let (a, b) = if inputs.is_empty() { (&none, &none) } else { (rng.pick(&inputs), rng.pick(&inputs)) };
        run(target, *function, &change(a, b, &mut rng));
    }
}

macro_rules! replayed {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        const REPLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

replayed! {
    api config fuse_messages hot_set kept_list kernel_files nbd_client nbd_commands nbd_handshake pin_list proc_files
    qcow2_header qcow2_own qcow2_tables ranges ssd_handover ssd_region trace ublk_requests vhost_messages virtio_chain
    volume_plugin
}

/// A target that is added is replayed, is built for libFuzzer, and has inputs to begin with.
#[test]
fn every_target_is_here_and_has_inputs() {
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).expect("the manifest");
    let programs: Vec<&str> = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")).collect();
    assert_eq!(programs.len(), TARGETS.len(), "one program for each target");
    for (name, _) in TARGETS {
        assert!(REPLAYED.contains(&name), "{name} is not replayed");
        assert!(programs.iter().any(|p| p.starts_with(&format!("{name}.rs"))), "{name} is no program");
        assert!(Path::new(&folder().join(format!("fuzz_targets/{name}.rs"))).exists(), "{name} has no file");
        assert!(!inputs(name).is_empty(), "{name} has neither seeds nor kept inputs");
    }
}
