//! Where the tests of configuration files put them: a directory with images, and a machine of known size; and changes
//! by hand.
//!
//! Owns these; the machine's size is not that of the machine that runs the tests.

use std::fs;
use std::path::PathBuf;
use undercroft_config::{self as config, DiskSpec, Machine, NodeChange, Overrides, ServePlan, Written};
use undercroft_units::Size;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A directory with images, and a machine of known size.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub machine: Machine,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.raw", "b.raw", "c.raw"] {
            fs::write(dir.path().join(name), [0; 4096]).unwrap();
        }
        let machine = Machine {
            memory_bytes: 8 * GIB,
            limit_bytes: None,
            cpus: 6,
            runtime_dir: dir.path().join("run"),
            current_dir: PathBuf::from("/"),
            groups: vec![("kvm".into(), 104), ("adm".into(), 4)],
        };
        Place { dir, machine }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn resolve(&self, text: &str) -> config::Resolution {
        let file = self.at("undercroft.toml");
        fs::write(&file, text).unwrap();
        config::load(&file, &self.machine, &Overrides::default()).expect("the file is readable")
    }

    pub fn good(&self, text: &str) -> ServePlan {
        let (plan, warnings) = self.resolve(text).accept().unwrap_or_else(|e| panic!("{e}\nin:\n{text}"));
        assert!(warnings.is_empty(), "{warnings:?}\nin:\n{text}");
        plan
    }

    /// The problems of a bad file, one a line.
    pub fn bad(&self, text: &str) -> String {
        let e = self.resolve(text).accept().expect_err(text);
        for p in &e.problems {
            assert!(!p.error.is_empty() && !p.remedy.is_empty(), "{p:?}");
        }
        e.to_string()
    }
}

pub fn two_disks() -> &'static str {
    "[store]\nmemory=\"1GiB\"\n[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n[[disk]]\nname=\"e\"\nimage=\"b.raw\"\n"
}

pub fn spec(place: &Place, name: &str, image: &str) -> DiskSpec {
    DiskSpec { name: name.into(), image: place.at(image).to_str().unwrap().into(), ..DiskSpec::default() }
}

/// A change of one key, as it would be typed.
pub fn set(key: &'static str, text: &str) -> NodeChange {
    let known = config::keys::settable(key).unwrap();
    NodeChange::default().with(known.name, Written::parse(known, text).unwrap())
}

pub fn set_bytes(key: &'static str, bytes: u64) -> NodeChange {
    NodeChange::default().with(key, Written::Size(Size(bytes)))
}
