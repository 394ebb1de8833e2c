//! What the linker is told about the program.
//!
//! Owns arguments of the linker. Never decides what is in the program. Invariant: a program that cannot be loaded where
//! it was built is not made.

use std::path::PathBuf;
use std::process::Command;

/// The first glibc that loads packed relocations.
const PACKED_SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Functions that are compiled to the same bytes are there once, 0.9 MB of the shipped program (decision 0174).
    // Nothing compares addresses of functions.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") && linker_folds() {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
    // A megabyte of addresses of constants and tables, 24 bytes each, takes 12 KB as a bitmap (DT_RELR; decision 0174).
    if glibc().is_some_and(|version| version >= PACKED_SINCE) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether the linker can fold identical code: LLD can, which rustc brings along, and GNU's cannot.
fn linker_folds() -> bool {
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let (out, target) = (PathBuf::from(var("OUT_DIR")), var("TARGET"));
    let source = out.join("empty.rs");
    if target != var("HOST") || std::fs::write(&source, "fn main() {}").is_err() {
        return false;
    }
    let mut rustc = Command::new(var("RUSTC"));
    let flags = var("CARGO_ENCODED_RUSTFLAGS");
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty())).args([
        "--target",
        &target,
        "-C",
        "link-arg=-Wl,--icf=all",
    ]);
    rustc.arg("-o").arg(out.join("empty")).arg(&source).output().is_ok_and(|said| said.status.success())
}

/// The glibc of this machine, if the program is for one like it.
fn glibc() -> Option<(u32, u32)> {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    let same = std::env::var("TARGET").ok() == std::env::var("HOST").ok();
    if !same || !is("CARGO_CFG_TARGET_OS", "linux") || !is("CARGO_CFG_TARGET_ENV", "gnu") {
        return None;
    }
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let said = String::from_utf8(said).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
