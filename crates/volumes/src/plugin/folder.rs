//! The folder of volumes: one folder each, with the image, the description, and the places of its mounts.
//!
//! Owns what is written there. Never deletes more than what it makes, by name, and nothing below a mount. Invariants: a
//! volume comes and goes by one rename, so that it is whole or not there; a description is replaced as a whole; one
//! process at a time has the folder.

use super::volume::Description;
use super::wire::is_name;
use crate::VolumeError;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file whose lock is the right to the folder.
const LOCK: &str = ".lock";
/// Names within the folder of a volume.
const IMAGE: &str = "disk.raw";
const DESCRIPTION: &str = "volume.json";
const NEW_DESCRIPTION: &str = "volume.json.new";
const FILE: &str = "disk";
const MOUNT: &str = "fs";
/// The folder in the file system that users get: ext4 has `lost+found` beside it, and programs want an empty one.
const DATA: &str = "_data";
/// What a folder's name ends with while it is made, and while it goes; it begins with a point then.
const COMING: &str = ".new";
const GOING: &str = ".gone";
/// Bytes of a description at most.
const DESCRIPTION_MAX: u64 = 4 << 20;

/// The folder of all volumes.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    _lock: File,
}

/// The places of one volume.
#[derive(Clone, Debug)]
pub(super) struct Places {
    dir: PathBuf,
}

impl Places {
    /// Its image.
    pub(super) fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// The file that its disk is.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Where its file system is mounted.
    pub(super) fn mount(&self) -> PathBuf {
        self.dir.join(MOUNT)
    }

    /// What its users get.
    pub(super) fn data(&self) -> PathBuf {
        self.mount().join(DATA)
    }
}

impl Folder {
    /// Takes the folder, makes it if it is missing, and clears away what was begun there and not finished.
    ///
    /// # Errors
    /// It cannot be had, or another process has it.
    pub(super) fn open(root: &Path) -> Result<Self, VolumeError> {
        let shown = root.display();
        let make = DirBuilder::new().recursive(true).mode(0o700).create(root);
        make.map_err(VolumeError::os(format!("make the folder of volumes {shown}")))?;
        let root = fs::canonicalize(root).map_err(VolumeError::os(format!("reach {shown}")))?;
        if root.to_str().is_none() {
            return Err(VolumeError::new(format!("the path {shown} is no UTF-8"), "choose another folder"));
        }
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(root.join(LOCK));
        let lock = lock.map_err(VolumeError::os(format!("open {}", root.join(LOCK).display())))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(VolumeError::new(
                    format!("another volume plugin has the folder {shown}"),
                    "stop that one, or give this one a folder of its own",
                ));
            }
            Err(e) => return Err(VolumeError::os(format!("lock {shown}"))(e.into())),
        }
        let folder = Self { root, _lock: lock };
        folder.clear()?;
        Ok(folder)
    }

    /// Where all volumes are.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The places of a volume, which may not be there.
    pub(super) fn places(&self, name: &str) -> Places {
        Places { dir: self.root.join(name) }
    }

    fn hidden(&self, name: &str, end: &str) -> PathBuf {
        self.root.join(format!(".{name}{end}"))
    }

    /// The names of all volumes, in order.
    pub(super) fn names(&self) -> Result<Vec<String>, VolumeError> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.root)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if is_name(&name) && self.root.join(&name).join(DESCRIPTION).is_file() {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        read().map_err(VolumeError::os(format!("read {}", self.root.display())))
    }

    /// A volume; `None` if there is none of that name.
    pub(super) fn load(&self, name: &str) -> Result<Option<Description>, VolumeError> {
        let path = self.root.join(name).join(DESCRIPTION);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|f| f.take(DESCRIPTION_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Description::parse(name, &bytes).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(VolumeError::os(format!("read {}", path.display()))(e)),
        }
    }

    /// Makes a volume: `fill` makes the file system in the image, which is there and empty.
    pub(super) fn make(
        &self,
        made: &Description,
        fill: impl FnOnce(&Path) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let (coming, place) = (self.hidden(&made.name, COMING), self.root.join(&made.name));
        let what = || format!("make volume \"{}\"", made.name);
        clear(&coming).map_err(VolumeError::os(what()))?;
        let result = self.make_at(&coming, made, fill).and_then(|()| {
            renameat_with(CWD, &coming, CWD, &place, RenameFlags::NOREPLACE).map_err(|e| match e {
                Errno::EXIST => VolumeError::new(
                    format!("{} is there already, and is no volume of this plugin", place.display()),
                    "move it away, or give the volume another name",
                ),
                e => VolumeError::os(what())(e.into()),
            })
        });
        if result.is_err() {
            let _ = clear(&coming);
            return result;
        }
        sync(&self.root).map_err(VolumeError::os(what()))
    }

    fn make_at(
        &self,
        coming: &Path,
        made: &Description,
        fill: impl FnOnce(&Path) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let os = |e| VolumeError::os(format!("make volume \"{}\" in {}", made.name, self.root.display()))(e);
        DirBuilder::new().mode(0o700).create(coming).map_err(os)?;
        let places = Places { dir: coming.to_owned() };
        let image = OpenOptions::new().write(true).create_new(true).mode(0o600).open(places.image()).map_err(os)?;
        image.set_len(made.size_bytes).map_err(os)?;
        fill(&places.image())?;
        image.sync_all().map_err(os)?;
        DirBuilder::new().mode(0o700).create(places.mount()).map_err(os)?;
        write(coming, made).map_err(os)
    }

    /// Replaces the description of a volume.
    pub(super) fn save(&self, now: &Description) -> Result<(), VolumeError> {
        let result = write(&self.root.join(&now.name), now);
        result.map_err(VolumeError::os(format!("write down volume \"{}\"", now.name)))
    }

    /// Takes a volume away, with its image. Nothing is mounted there any more.
    pub(super) fn remove(&self, name: &str) -> Result<(), VolumeError> {
        let (place, going) = (self.root.join(name), self.hidden(name, GOING));
        let result = clear(&going)
            .and_then(|()| fs::rename(&place, &going))
            .and_then(|()| sync(&self.root))
            .and_then(|()| clear(&going));
        result.map_err(VolumeError::os(format!("remove volume \"{name}\"")))
    }

    /// Clears away what was begun and not finished, and what was going.
    fn clear(&self) -> Result<(), VolumeError> {
        let os = |e| VolumeError::os(format!("clear away what is unfinished in {}", self.root.display()))(e);
        for entry in fs::read_dir(&self.root).map_err(os)? {
            let entry = entry.map_err(os)?.file_name().to_string_lossy().into_owned();
            let of = |end| entry.strip_prefix('.').and_then(|e| e.strip_suffix(end)).is_some_and(is_name);
            if of(COMING) || of(GOING) {
                tracing::info!("{entry} in {} is cleared away: it was not finished", self.root.display());
                clear(&self.root.join(&entry)).map_err(os)?;
            }
        }
        Ok(())
    }
}

/// Deletes the folder of a volume: what this file makes there, by name; anything else stays, and the folder with it.
fn clear(dir: &Path) -> io::Result<()> {
    let places = Places { dir: dir.to_owned() };
    let none = |r: io::Result<()>| match r {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        r => r,
    };
    // A directory that is a mount point is not removed, nor a file that is one.
    none(fs::remove_dir(places.mount()))?;
    none(fs::remove_file(places.file()))?;
    for name in [NEW_DESCRIPTION, DESCRIPTION, IMAGE] {
        none(fs::remove_file(dir.join(name)))?;
    }
    none(fs::remove_dir(dir))
}

/// Writes a description: beside the present one, and then in its place.
fn write(dir: &Path, description: &Description) -> io::Result<()> {
    let new = dir.join(NEW_DESCRIPTION);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mut text = serde_json::to_vec_pretty(description)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&new, dir.join(DESCRIPTION))?;
    sync(dir)
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::volume::VolumeOptions;
    use super::*;

    fn described(name: &str) -> Description {
        let options = VolumeOptions::parse(&[("size".to_owned(), "16MiB".to_owned())].into()).unwrap();
        Description::new(name, &options, String::new())
    }

    #[test]
    fn volumes_come_and_go_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        folder.make(&described("db"), |image| fs::write(image, "x").map_err(VolumeError::os("fill".into()))).unwrap();
        assert_eq!(folder.names().unwrap(), ["db"]);
        let failed = folder.make(&described("other"), |_| Err(VolumeError::new("no", "no")));
        assert!(failed.is_err() && folder.names().unwrap() == ["db"]);
        assert!(folder.make(&described("db"), |_| Ok(())).unwrap_err().to_string().contains("is there already"));
        let mut users = folder.load("db").unwrap().unwrap();
        users.users.insert("one".into());
        folder.save(&users).unwrap();
        assert_eq!(folder.load("db").unwrap().unwrap(), users);
        folder.remove("db").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the lock alone");
        assert!(folder.load("db").unwrap().is_none());
    }

    #[test]
    fn what_was_cut_off_is_cleared_away_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        drop(Folder::open(dir.path()).unwrap());
        for name in [".a.new", ".b.gone", ".mine", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(IMAGE), "x").unwrap();
        }
        let folder = Folder::open(dir.path()).unwrap();
        assert!(folder.names().unwrap().is_empty(), "a folder without a description is no volume");
        let there = |name: &str| dir.path().join(name).join(IMAGE).exists();
        assert_eq!([".a.new", ".b.gone", ".mine", "c"].map(there), [false, false, true, true]);
        assert!(Folder::open(dir.path()).unwrap_err().to_string().contains("another volume plugin"));
        assert!(folder.make(&described("c"), |_| Ok(())).is_err(), "what somebody else has there");
        assert!(there("c"));
        let own = dir.path().join("c").join("notes");
        fs::write(&own, "mine").unwrap();
        assert!(clear(&dir.path().join("c")).is_err() && own.exists(), "what is not ours stays");
    }
}
