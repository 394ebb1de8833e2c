//! What the linker is told about the program.
//!
//! Owns arguments of the linker. Never decides what is in the program. Invariant: a program that cannot be loaded where
//! it was built is not made.

use std::process::Command;

/// The first glibc that loads packed relocations.
const PACKED_SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A megabyte of addresses of constants and tables, 24 bytes each, takes 12 KB as a bitmap (DT_RELR; decision 0174).
    if glibc().is_some_and(|version| version >= PACKED_SINCE) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
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
