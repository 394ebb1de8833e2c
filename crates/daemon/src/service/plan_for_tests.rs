//! A plan of a few small disks, for unit tests.
//!
//! Owns nothing that lasts. Never serves: that is for the caller. Invariant: what the configuration accepts.

use std::path::Path;
use undercroft_config::{DiskSpec, Machine, ServePlan, ServeSpec, resolve};

/// The plan of a store with these disks, all read-only on one image, which is gone when the plan is returned.
pub(super) fn plan(names: &[&str]) -> ServePlan {
    plan_in(tempfile::tempdir().unwrap().path(), names)
}

/// The same with image and sockets in a directory that stays.
pub(super) fn plan_in(dir: &Path, names: &[&str]) -> ServePlan {
    let image = dir.join("a.raw");
    std::fs::write(&image, [0; 4096]).unwrap();
    let machine = Machine { runtime_dir: dir.into(), ..Machine::here() };
    let disk = |name: &&str| DiskSpec {
        name: name.to_string(),
        image: image.display().to_string(),
        read_only: Some(true),
        ..DiskSpec::default()
    };
    let disks = names.iter().map(disk).collect();
    resolve(&ServeSpec { disks, ..ServeSpec::default() }, &machine, vec![]).accept().unwrap().0
}
