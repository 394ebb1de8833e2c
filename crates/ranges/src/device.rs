//! From the number of a block device to the whole disk that it is a part of, by what /sys says.
//!
//! Owns those rules. Never opens a device. Invariant: a [`WholeDisk`] is a whole disk of the guest, and `start_bytes`
//! is where the device begins on it; whatever is stacked on other devices in a way that /sys does not tell is refused.

use std::fs;
use std::path::PathBuf;

/// Sectors in /sys are of this size, whatever those of the device are.
const SECTOR_BYTES: u64 = 512;

/// The disk below a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeDisk {
    /// Its name in the guest: `vda`.
    pub name: String,
    /// Its serial number, if it has one: Undercroft makes it from the disk's name.
    pub serial: Option<String>,
    /// Where the file system's device begins on it.
    pub start_bytes: u64,
    /// Its size.
    pub size_bytes: u64,
}

/// `/sys`, or what stands for it in a test.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self { root: "/sys".into() }
    }
}

impl Sysfs {
    /// Another place than /sys.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The disk of block device `major:minor`.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn disk(&self, major: u32, minor: u32) -> Result<WholeDisk, (String, String)> {
        let link = self.root.join(format!("dev/block/{major}:{minor}"));
        let device = fs::canonicalize(&link).map_err(|e| {
            (
                format!("its file system is on no block device that /sys knows ({major}:{minor}: {e})"),
                "name files of a file system on a virtual disk; /sys has to be mounted".to_string(),
            )
        })?;
        let read =
            |path: PathBuf| fs::read_to_string(path).ok().map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
        let number = |path: PathBuf| {
            let shown = path.display().to_string();
            let text = read(path).and_then(|t| t.parse::<u64>().ok()).and_then(|n| n.checked_mul(SECTOR_BYTES));
            text.ok_or_else(|| (format!("{shown} holds no number of sectors"), "is this /sys of Linux?".to_string()))
        };
        let (whole, start_bytes) = if device.join("partition").exists() {
            let whole = device.parent().map_or(device.clone(), PathBuf::from);
            (whole, number(device.join("start"))?)
        } else {
            (device.clone(), 0)
        };
        let name = whole.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let files = "put the container's files on a partition of the virtual disk, or on the disk itself";
        let stacked = if whole.join("dm").exists() {
            let called = read(whole.join("dm/name")).map_or(String::new(), |n| format!(" \"{n}\""));
            Some(format!(
                "is a device-mapper volume{called} (LVM, encryption), and /sys does not say where its parts are"
            ))
        } else if whole.join("md").exists() {
            Some("is a RAID of several disks (md)".to_string())
        } else if whole.join("loop").exists() {
            let file = read(whole.join("loop/backing_file")).map_or(String::new(), |n| format!(", {n}"));
            Some(format!("is a loop device: its blocks are those of a file{file}"))
        } else if whole.join("bcache").exists() {
            Some("is a bcache volume".to_string())
        } else {
            None
        };
        if let Some(what) = stacked {
            let remedy =
                if whole.join("loop").exists() { "name the file below the loop device instead" } else { files };
            return Err((format!("its file system is on {name}, which {what}"), remedy.to_string()));
        }
        let serial = read(whole.join("serial")).or_else(|| read(whole.join("device/serial")));
        Ok(WholeDisk { serial, start_bytes, size_bytes: number(whole.join("size"))?, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn partitions_are_counted_from_the_start_of_their_disk() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let vda = "devices/pci0000:00/virtio0/block/vda";
        file(root, &format!("{vda}/size"), "524288\n");
        file(root, &format!("{vda}/serial"), "web-root\n");
        file(root, &format!("{vda}/vda2/partition"), "2\n");
        file(root, &format!("{vda}/vda2/start"), "2048\n");
        file(root, "devices/virtual/block/dm-0/dm/name", "vg-root\n");
        file(root, "devices/virtual/block/dm-0/size", "2048\n");
        file(root, "devices/virtual/block/md0/md/level", "raid1\n");
        file(root, "devices/virtual/block/loop3/loop/backing_file", "/srv/a.img\n");
        file(root, &format!("{vda}/vda3/partition"), "3\n");
        fs::create_dir_all(root.join("dev/block")).unwrap();
        for (number, path) in [
            ("254:0", vda.to_string()),
            ("254:2", format!("{vda}/vda2")),
            ("254:3", format!("{vda}/vda3")),
            ("253:0", "devices/virtual/block/dm-0".into()),
            ("9:0", "devices/virtual/block/md0".into()),
            ("7:3", "devices/virtual/block/loop3".into()),
        ] {
            symlink(root.join(path), root.join("dev/block").join(number)).unwrap();
        }
        let sysfs = Sysfs::at(root);
        let whole = WholeDisk {
            name: "vda".into(),
            serial: Some("web-root".into()),
            start_bytes: 0,
            size_bytes: 524_288 * 512,
        };
        assert_eq!(sysfs.disk(254, 0), Ok(whole.clone()));
        assert_eq!(sysfs.disk(254, 2), Ok(WholeDisk { start_bytes: 1 << 20, ..whole }));
        for ((major, minor), said) in [
            ((254, 3), "holds no number of sectors"),
            ((253, 0), "vg-root"),
            ((9, 0), "RAID"),
            ((7, 3), "/srv/a.img"),
            ((0, 42), "no block device"),
        ] {
            let (reason, remedy) = sysfs.disk(major, minor).unwrap_err();
            assert!(reason.contains(said) && !remedy.is_empty(), "{reason}; {remedy}");
        }
    }
}
