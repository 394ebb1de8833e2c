//! `[ssd]`: files and devices beside the RAM store that hold clean blocks too, checked and filled in.
//!
//! Owns its rules. Never opens one of them: the daemon does when it starts. Invariant: no path of it is named twice or
//! is the image of a disk, and its segments are of a size that the store can have.

use super::checks::{Checker, clip};
use super::fields::{Field, field, size_or};
use super::images::{self, Identity};
use super::keys;
use super::nodes::DiskPlan;
use super::spec::SsdSpec;
use super::written::WrittenError;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use undercroft_cache::ssd::memory_bytes_for;
use undercroft_units::{Size, human_size};

/// The SSD store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdPlan {
    /// Files and block devices that it consists of, absolute; there is no SSD store if there are none.
    pub paths: Vec<PathBuf>,
    /// Bytes of each file, and of each device at most; `None`: the whole of each device.
    pub size_bytes: Option<u64>,
    /// Bytes of a segment: a power of two.
    pub segment_bytes: u64,
    /// Bytes that are written to all of them together in a day at most.
    pub writes_per_day_bytes: Option<u64>,
    /// Which blocks are written to it.
    pub admit: SsdAdmission,
    /// Whether a store that does not fit the configuration may be made anew.
    pub format: bool,
    /// Bytes of `store.memory` that are set aside for its tables, and for blocks that wait to be written.
    pub memory_bytes: u64,
}

impl SsdPlan {
    /// Whether there is an SSD store.
    pub fn is_wanted(&self) -> bool {
        !self.paths.is_empty()
    }
}

/// Which blocks that RAM evicts are written to the SSD store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SsdAdmission {
    /// Those of kinds that are asked for again while they are there, as is measured.
    #[default]
    Measured,
    /// Those that were used again while they were in RAM, or that come a second time.
    Second,
    /// All.
    All,
    /// None: what it holds is read, and nothing is added.
    None,
}

impl SsdAdmission {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Measured, Self::Second, Self::All, Self::None];

    /// As the configuration writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Second => "second",
            Self::All => "all",
            Self::None => "none",
        }
    }
}

impl fmt::Display for SsdAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SsdAdmission {
    type Err = WrittenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|a| a.name() == text).ok_or_else(|| WrittenError {
            error: format!("unknown admission \"{}\"", clip(text)),
            remedy: format!("known are {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// Bytes of a block device; `None` if it is none, or cannot be read.
fn device_bytes(path: &Path) -> Option<u64> {
    let is_device = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    is_device.then(|| fs::File::open(path).ok()?.seek(SeekFrom::End(0)).ok()).flatten()
}

fn shown(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    if paths.is_empty() { "none".to_string() } else { paths.join(", ") }
}

/// Its keys.
pub(crate) const FIELDS: &[Field<SsdPlan>] = &[
    field!(SsdPlan, paths, paths, |p| shown(p)),
    field!(SsdPlan, size, size_bytes, |b| size_or(*b, "all of each device")),
    field!(SsdPlan, segment, segment_bytes, |b| Size(*b).to_string()),
    field!(SsdPlan, writes_per_day, writes_per_day_bytes, |b| size_or(*b, "no limit")),
    field!(SsdPlan, admit, admit, |a| a.to_string()),
    field!(SsdPlan, format, format, |b| b.to_string()),
];

impl Checker<'_> {
    pub(crate) fn ssd(&mut self, spec: &SsdSpec) -> SsdPlan {
        let at = |key: &str| spec.lines.get(key).copied();
        let paths = self.ssd_paths(spec);
        if paths.is_empty() && !spec.lines.is_empty() {
            let remedy = "add paths = [\"/var/lib/undercroft/ssd0\"], or take the section out";
            self.error(spec.lines.values().min().copied(), "ssd", "it has no paths".into(), remedy);
        }
        self.has_ssd = !paths.is_empty();
        let segment = self.segment(at("segment"), spec.segment);
        let writes_per_day = spec.writes_per_day.filter(|w| {
            let fits = w.0 >= keys::SSD_WRITES_PER_DAY_MIN;
            if !fits {
                let error = format!("writes_per_day is {w}, too little to fill a store with");
                let least = Size(keys::SSD_WRITES_PER_DAY_MIN);
                let remedy = format!("give at least {least}; admit = \"none\" writes nothing");
                self.error(at("writes_per_day"), "ssd", error, remedy);
            }
            fits
        });
        let known = SsdAdmission::ALL.map(SsdAdmission::name);
        let admit =
            spec.admit.as_deref().and_then(|a| self.named(at("admit"), "ssd", "admit: unknown word", a, &known));
        SsdPlan {
            size_bytes: self.ssd_size(spec, &paths),
            paths,
            segment_bytes: segment.unwrap_or(keys::SSD_SEGMENT_DEFAULT),
            writes_per_day_bytes: writes_per_day.map(|w| w.0),
            admit: admit.unwrap_or_default(),
            format: spec.format.unwrap_or(false),
            memory_bytes: 0,
        }
    }

    /// Sets aside what the store takes of the memory: of devices whose size cannot be read, nothing, and the daemon
    /// finds that out when it opens them.
    pub(crate) fn ssd_memory(&mut self, line: Option<usize>, ssd: &mut SsdPlan, workers: usize, memory_bytes: u64) {
        let workers = workers.max(1) as u64;
        let sizes = ssd.paths.iter().map(|path| match (device_bytes(path), ssd.size_bytes) {
            (Some(device), Some(size)) => device.min(size),
            (device, size) => device.or(size).unwrap_or(0),
        });
        let of = |bytes: u64| memory_bytes_for(bytes / workers, ssd.segment_bytes) * workers;
        ssd.memory_bytes = sizes.map(of).sum::<u64>().next_multiple_of(keys::UNIT_BYTES);
        let least = ssd.memory_bytes + keys::MEMORY_BYTES_MIN;
        if ssd.memory_bytes > 0 && memory_bytes < least {
            let [takes, has, least] = [ssd.memory_bytes, memory_bytes, least].map(human_size);
            let error = format!("the tables of the SSD store take {takes} of store.memory, which is {has}");
            let remedy = format!(
                "make store.memory at least {least}, or the files smaller: 12 bytes for each block of 4KiB, and \
                 2.1MiB for each path and worker"
            );
            self.error(line, "ssd", error, remedy);
        }
    }

    fn ssd_paths(&mut self, spec: &SsdSpec) -> Vec<PathBuf> {
        let line = spec.lines.get("paths").copied();
        let mut paths: Vec<PathBuf> = Vec::new();
        for text in spec.paths.iter().flatten() {
            let path = self.path(line, "ssd", "paths", Path::new(text));
            if paths.contains(&path) {
                let error = format!("paths names {} twice", clip(text));
                self.error(line, "ssd", error, "name each file and device once");
                continue;
            }
            self.ssd_path(line, &path);
            paths.push(path);
        }
        if paths.len() > keys::SSD_PATHS_MAX {
            let error = format!("paths names {} files, more than {}", paths.len(), keys::SSD_PATHS_MAX);
            self.error(line, "ssd", error, "make them fewer and larger");
        }
        paths
    }

    /// What can be said early of a file that may not be there yet.
    fn ssd_path(&mut self, line: Option<usize>, path: &Path) {
        let shown = path.display();
        match fs::metadata(path) {
            Ok(meta) if !meta.is_file() && !meta.file_type().is_block_device() => {
                let error = format!("{shown} is neither a file nor a block device");
                self.error(
                    line,
                    "ssd",
                    error,
                    "give the path of a file, which is made if it is missing, or of a device",
                );
            }
            Ok(_) => {}
            Err(_) => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                if parent.is_absolute() && !parent.is_dir() {
                    let error = format!("the directory of {shown} does not exist");
                    self.error(line, "ssd", error, format!("make it with `mkdir -p {}`", parent.display()));
                }
            }
        }
    }

    fn segment(&mut self, line: Option<usize>, segment: Option<Size>) -> Option<u64> {
        let Size(bytes) = segment?;
        let [least, most] = keys::SSD_SEGMENT_RANGE;
        if bytes.is_power_of_two() && (least..=most).contains(&bytes) {
            return Some(bytes);
        }
        let remedy = format!("give a power of two from {} to {}", Size(least), Size(most));
        self.error(line, "ssd", format!("segment must not be {}", Size(bytes)), remedy);
        None
    }

    fn ssd_size(&mut self, spec: &SsdSpec, paths: &[PathBuf]) -> Option<u64> {
        let is_device = |path: &&PathBuf| fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        let Some(Size(bytes)) = spec.size else {
            if let Some(file) = paths.iter().find(|path| !is_device(path)) {
                let error = format!("it has no size, and {} is no block device", file.display());
                self.error(
                    spec.lines.get("paths").copied(),
                    "ssd",
                    error,
                    "add size = \"100GiB\": the bytes of each file",
                );
            }
            return None;
        };
        if bytes < keys::SSD_BYTES_MIN {
            let error = format!("size is {}, too little for a store", Size(bytes));
            let remedy = format!("give at least {} for each file", Size(keys::SSD_BYTES_MIN));
            self.error(spec.lines.get("size").copied(), "ssd", error, remedy);
        }
        Some(bytes)
    }

    /// No path of the SSD store is the image of a disk or below one: the store would write over it.
    pub(crate) fn ssd_apart(
        &mut self,
        line: Option<usize>,
        plan: &SsdPlan,
        disks: &[DiskPlan],
        chains: &[Vec<Identity>],
    ) {
        let mut own: HashMap<Identity, &Path> = HashMap::new();
        for path in &plan.paths {
            let Ok(identity) = images::identity(path) else { continue };
            if let Some(other) = own.insert(identity.clone(), path) {
                let error = format!("{} and {} are one file", other.display(), path.display());
                self.error(line, "ssd", error, "name each file and device once");
            }
            if let Some(at) = chains.iter().position(|chain| chain.contains(&identity)) {
                let error = format!("{} belongs to the image of disk \"{}\"", path.display(), disks[at].name);
                self.error(line, "ssd", error, "give the SSD store files or devices of its own");
            }
        }
    }
}
