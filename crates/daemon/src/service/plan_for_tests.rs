//! A plan of a few small disks, for unit tests.
//!
//! Owns nothing that lasts. Never serves: the image is gone when the plan is returned. Invariant: what the
//! configuration accepts.

use undercroft_config::{DiskSpec, Machine, ServePlan, ServeSpec, resolve};

/// The plan of a store with these disks, all read-only on one image.
pub(super) fn plan(names: &[&str]) -> ServePlan {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("a.raw");
    std::fs::write(&image, [0; 4096]).unwrap();
    let machine = Machine { runtime_dir: dir.path().into(), ..Machine::here() };
    let disk = |name: &&str| DiskSpec {
        name: name.to_string(),
        image: image.display().to_string(),
        read_only: Some(true),
        ..DiskSpec::default()
    };
    let disks = names.iter().map(disk).collect();
    resolve(&ServeSpec { disks, ..ServeSpec::default() }, &machine, vec![]).accept().unwrap().0
}
