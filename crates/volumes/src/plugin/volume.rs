//! A volume: what was asked for, what is written down of it, and the disk that it is.
//!
//! Owns the words of options and the form of the file. Never touches a file. Invariant: what is written down is read
//! back as it was, and is checked again when it is read.

use super::wire::is_name;
use crate::{FsKind, VolumeError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use undercroft_config::keys::{self, Key};
use undercroft_config::{DiskSpec, Written};
use undercroft_units::{GIB, MIB, Size, TIB};

/// The smallest volume: what a file system needs to be of use.
pub const SIZE_BYTES_MIN: u64 = 16 * MIB;
/// The largest: more than that a file of ext4 cannot be.
pub const SIZE_BYTES_MAX: u64 = 16 * TIB - GIB;
/// Sizes are multiples of this.
const BLOCK: u64 = 4096;
/// The form of what is written down.
const FORM: u32 = 1;
/// Users of a volume at most.
const USERS_MAX: usize = 10_000;

/// The option for a fixed share of the store: `size` is the volume's.
const SHARE: &str = "share";
/// The key for that.
const SHARE_KEY: &str = "size";
/// The key that is ours to set.
const FILE_KEY: &str = "fuse";

/// Options that are keys of disks: those that are set by hand, each with its key.
fn of_disks() -> impl Iterator<Item = (&'static str, &'static Key)> {
    let option = |key: &'static Key| (if key.name == SHARE_KEY { SHARE } else { key.name }, key);
    keys::DISK.set_by_hand().filter(|key| key.name != FILE_KEY).map(option)
}

/// What a volume is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Bytes of its disk.
    pub size_bytes: u64,
    /// Its file system.
    pub fs: FsKind,
    /// What is said of its disk, each as it was written.
    pub disk: BTreeMap<String, String>,
}

impl VolumeOptions {
    /// Of `-o` options.
    ///
    /// # Errors
    /// One is unknown, or has a value that it cannot have; or there is no size.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, VolumeError> {
        let size = options.get("size").ok_or_else(|| {
            VolumeError::new("no size is given for the volume", "say how large it is to be: -o size=8GiB")
        })?;
        let fs = options.get("fs").map_or(Ok(FsKind::Ext4), |text| text.parse())?;
        let disk: BTreeMap<String, String> =
            options.iter().filter(|(key, _)| !["size", "fs"].contains(&key.as_str())).map(own).collect();
        let options = Self { size_bytes: size_of(size)?, fs, disk };
        options.fill(&mut DiskSpec::default())?;
        Ok(options)
    }

    /// Puts what is said of the disk into a request for one.
    fn fill(&self, spec: &mut DiskSpec) -> Result<(), VolumeError> {
        for (option, text) in &self.disk {
            let key = key_of(option)?;
            let value = Written::parse(key, text)
                .map_err(|e| VolumeError::new(format!("-o {option}: {}", e.error), e.remedy))?;
            // A word that takes away what is set does nothing, since nothing is.
            if value != Written::Nothing {
                spec.put(key.name, value);
            }
        }
        Ok(())
    }
}

fn own((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

fn key_of(option: &str) -> Result<&'static Key, VolumeError> {
    of_disks().find(|(name, _)| *name == option).map(|(_, key)| key).ok_or_else(|| {
        let known = || ["size", "fs"].into_iter().chain(of_disks().map(|(name, _)| name)).collect::<Vec<_>>();
        let near = keys::instead_of(option, known().into_iter());
        let remedy = near.unwrap_or_else(|| format!("known are {}", known().join(", ")));
        VolumeError::new(format!("unknown option {:?}", option.chars().take(60).collect::<String>()), remedy)
    })
}

/// A size, in whole blocks.
fn size_of(text: &str) -> Result<u64, VolumeError> {
    let size: Size = text.parse().map_err(|e: undercroft_units::UnitError| {
        VolumeError::new(format!("-o size: {}", e.problem), e.remedy.to_string())
    })?;
    let (least, most) = (Size(SIZE_BYTES_MIN), Size(SIZE_BYTES_MAX));
    match size.0 {
        bytes if bytes < SIZE_BYTES_MIN => {
            Err(VolumeError::new(format!("-o size: {size} is too small"), format!("give at least {least}")))
        }
        bytes if bytes > SIZE_BYTES_MAX => {
            Err(VolumeError::new(format!("-o size: {size} is too large"), format!("give at most {most}")))
        }
        bytes => Ok(bytes.next_multiple_of(BLOCK)),
    }
}

/// What is written down of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The form of this file.
    form: u32,
    /// Its name, and its disk's.
    pub name: String,
    /// Bytes of its disk.
    pub size_bytes: u64,
    /// Its file system.
    fs: String,
    /// What is said of its disk.
    disk: BTreeMap<String, String>,
    /// When it was made.
    pub created: String,
    /// Who uses it, by the IDs that the engine gives.
    #[serde(default)]
    pub users: BTreeSet<String>,
}

impl Description {
    pub(super) fn new(name: &str, options: &VolumeOptions, created: String) -> Self {
        Self {
            form: FORM,
            name: name.to_owned(),
            size_bytes: options.size_bytes,
            fs: options.fs.name().to_owned(),
            disk: options.disk.clone(),
            created,
            users: BTreeSet::new(),
        }
    }

    /// Reads one back, of a volume that is to be called `name`.
    ///
    /// # Errors
    /// It is none, or of another volume, or of a later version of this program.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, VolumeError> {
        let wrong = |why: String| {
            let remedy = "the image beside it is whole: mount it by hand, or restore the description";
            VolumeError::new(format!("the description of volume \"{name}\" cannot be used: {why}"), remedy)
        };
        let read: Self = serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string()))?;
        if read.form != FORM {
            return Err(wrong(format!("it is of form {}, and this program knows form {FORM}", read.form)));
        }
        if read.name != name || !is_name(&read.name) {
            return Err(wrong("it is of a volume with another name".into()));
        }
        let sized =
            (SIZE_BYTES_MIN..=SIZE_BYTES_MAX).contains(&read.size_bytes) && read.size_bytes.is_multiple_of(BLOCK);
        if !sized || read.users.len() > USERS_MAX {
            return Err(wrong("no volume has that size or that many users".into()));
        }
        read.options()?;
        Ok(read)
    }

    /// What was asked for.
    ///
    /// # Errors
    /// What is written down cannot be asked for.
    pub fn options(&self) -> Result<VolumeOptions, VolumeError> {
        let options = VolumeOptions { size_bytes: self.size_bytes, fs: self.fs.parse()?, disk: self.disk.clone() };
        options.fill(&mut DiskSpec::default())?;
        Ok(options)
    }

    /// Its disk, of an image and with a file at these places.
    pub(super) fn spec(&self, image: &Path, file: &Path) -> Result<DiskSpec, VolumeError> {
        let mut spec = DiskSpec {
            name: self.name.clone(),
            image: image.display().to_string(),
            format: Some("raw".into()),
            vhost_user: Some(false),
            fuse: Some(file.to_owned()),
            keep: true,
            ..DiskSpec::default()
        };
        self.options()?.fill(&mut spec)?;
        Ok(spec)
    }

    /// What an engine shows of it.
    pub(super) fn status(&self) -> BTreeMap<String, String> {
        let mut status = self.disk.clone();
        status.insert("size".into(), Size(self.size_bytes).to_string());
        status.insert("fs".into(), self.fs.clone());
        status.insert("users".into(), self.users.len().to_string());
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> VolumeOptions {
        let all = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        VolumeOptions::parse(&all).unwrap()
    }

    #[test]
    fn a_volume_is_a_disk_with_what_was_said_of_it() {
        let all = [("size", "17000001"), ("weight", "200"), ("share", "64MiB"), ("policy", "arc"), ("fs", "xfs")];
        let options = options(&all);
        assert_eq!((options.size_bytes % BLOCK, options.fs), (0, FsKind::Xfs));
        let made = Description::new("db", &options, "2026-01-01T00:00:00Z".into());
        let spec = made.spec(Path::new("/v/db/disk.raw"), Path::new("/v/db/disk")).unwrap();
        assert_eq!((spec.weight, spec.size, spec.policy.as_deref()), (Some(200), Some(Size(64 * MIB)), Some("arc")));
        assert_eq!((spec.keep, spec.vhost_user, spec.fuse.is_some()), (true, Some(false), true));
        let back = Description::parse("db", &serde_json::to_vec(&made).unwrap()).unwrap();
        assert_eq!((back.options().unwrap(), back), (options, made));
    }

    #[test]
    fn a_description_that_is_none_is_refused() {
        let good = Description::new("db", &options(&[("size", "1GiB")]), String::new());
        let text = serde_json::to_string(&good).unwrap();
        for (bad, name) in [
            ("", "db"),
            ("{}", "db"),
            (&*text, "other"),
            (&*text.replace("\"form\":1", "\"form\":2"), "db"),
            (&*text.replace("1073741824", "1073741825"), "db"),
            (&*text.replace("ext4", "vfat"), "db"),
            (&*text.replace("\"disk\":{}", "\"disk\":{\"weight\":\"x\"}"), "db"),
            (&text[..text.len() - 1], "db"),
        ] {
            assert!(Description::parse(name, bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
