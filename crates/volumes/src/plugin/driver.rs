//! What the plugin does when an engine asks: volumes made, mounted, unmounted and removed, each on top of the daemon.
//!
//! Owns the locks of volumes, one for each name. Never keeps in memory what has to outlive it. Invariants: a volume
//! that was made is attached, or is gone again; a user is written down before its mount is told; a volume with users
//! that is mounted is not removed.

use super::folder::{Folder, Places};
use super::volume::{Description, VolumeOptions};
use super::wire::PluginCall;
use crate::mount::{self, MountRequest};
use crate::mounts;
use crate::{DaemonLink, VolumeError};
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

/// How a volume's file system is mounted: what its users delete is free in the image at once.
const MOUNT_OPTIONS: &str = "discard,nodev";

/// How the file system of a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    NotMounted,
    Works,
    /// The daemon that served its disk is gone.
    Dead,
}

/// The plugin, without its socket.
#[derive(Debug)]
pub struct VolumeDriver {
    folder: Folder,
    daemon: DaemonLink,
    locks: Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// What was said last of volumes that could not be attached.
    said: Mutex<BTreeMap<String, String>>,
}

impl VolumeDriver {
    /// A plugin with the volumes of a folder.
    ///
    /// # Errors
    /// The folder cannot be had, or another plugin has it.
    pub fn open(images: &Path, daemon: DaemonLink) -> Result<Self, VolumeError> {
        let folder = Folder::open(images)?;
        Ok(Self { folder, daemon, locks: Mutex::default(), said: Mutex::default() })
    }

    /// Where the volumes are.
    pub fn folder(&self) -> &Path {
        self.folder.root()
    }

    /// Does what an engine asks for. The answer is the body of the protocol's.
    ///
    /// # Errors
    /// See [`VolumeError`]; nothing is lost.
    pub fn call(&self, call: PluginCall) -> Result<Value, VolumeError> {
        match call {
            PluginCall::Activate => Ok(json!({ "Implements": ["VolumeDriver"] })),
            PluginCall::Capabilities => Ok(json!({ "Capabilities": { "Scope": "local" } })),
            PluginCall::List => self.list(),
            PluginCall::Get(name) => self.get(&name),
            PluginCall::Path(name) => {
                self.existing(&name)?;
                Ok(json!({ "Mountpoint": self.mountpoint(&name), "Err": "" }))
            }
            PluginCall::Create(name, options) => {
                self.alone(&name, || self.create(&name, &options)).map(|()| json!({ "Err": "" }))
            }
            PluginCall::Remove(name) => self.alone(&name, || self.remove(&name)).map(|()| json!({ "Err": "" })),
            PluginCall::Mount { name, id } => {
                self.alone(&name, || self.mount(&name, &id))?;
                Ok(json!({ "Mountpoint": self.folder.places(&name).data(), "Err": "" }))
            }
            PluginCall::Unmount { name, id } => {
                self.alone(&name, || self.unmount(&name, &id)).map(|()| json!({ "Err": "" }))
            }
        }
    }

    /// Attaches volumes that the daemon does not have: it was started anew. What cannot be done is said once.
    pub(super) fn look_after(&self) {
        let (Ok(names), Ok(disks)) = (self.folder.names(), self.daemon.disks()) else { return };
        for name in names.iter().filter(|n| !disks.iter().any(|d| d.name == **n)) {
            let lock = self.lock_of(name);
            // Somebody does something with it just now; there is another time.
            let Ok(_alone) = lock.try_lock() else { continue };
            let attached = match self.folder.load(name) {
                // It was removed meanwhile.
                Ok(None) => continue,
                volume => volume.and_then(|volume| volume.iter().try_for_each(|volume| self.attach(volume))),
            };
            let mut said = held(&self.said);
            match attached {
                Ok(()) => {
                    tracing::info!("volume \"{name}\" is attached");
                    said.remove(name);
                }
                Err(e) if said.get(name) != Some(&e.to_string()) => {
                    tracing::error!("volume \"{name}\" cannot be attached: {e}; it is tried again");
                    said.insert(name.clone(), e.to_string());
                }
                Err(_) => {}
            }
        }
    }

    fn lock_of(&self, name: &str) -> Arc<Mutex<()>> {
        let mut locks = held(&self.locks);
        // Those that nobody holds are as good as new ones.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(name.to_owned()).or_default())
    }

    /// Does something while nobody else does anything with that volume.
    fn alone<T>(&self, name: &str, what: impl FnOnce() -> Result<T, VolumeError>) -> Result<T, VolumeError> {
        let lock = self.lock_of(name);
        let _alone = held(&lock);
        what()
    }

    fn existing(&self, name: &str) -> Result<Description, VolumeError> {
        self.folder.load(name)?.ok_or_else(|| {
            VolumeError::new(
                format!("there is no volume \"{name}\""),
                "`podman volume ls` or `docker volume ls` lists volumes; --driver undercroft -o size=8GiB makes one",
            )
        })
    }

    fn list(&self) -> Result<Value, VolumeError> {
        let names = self.folder.names()?;
        let volumes: Vec<Value> =
            names.iter().map(|name| json!({ "Name": name, "Mountpoint": self.mountpoint(name) })).collect();
        Ok(json!({ "Volumes": volumes, "Err": "" }))
    }

    fn get(&self, name: &str) -> Result<Value, VolumeError> {
        let volume = self.existing(name)?;
        let shown = json!({
            "Name": name,
            "Mountpoint": self.mountpoint(name),
            "CreatedAt": volume.created,
            "Status": volume.status(),
        });
        Ok(json!({ "Volume": shown, "Err": "" }))
    }

    /// Where a volume is mounted; empty if it is not.
    fn mountpoint(&self, name: &str) -> String {
        let places = self.folder.places(name);
        let mounted = mounts::top(&places.mount()).ok().flatten().is_some();
        if mounted { places.data().display().to_string() } else { String::new() }
    }

    fn create(&self, name: &str, options: &VolumeOptions) -> Result<(), VolumeError> {
        if let Some(volume) = self.folder.load(name)? {
            // An engine that was not told of the answer asks again.
            return match volume.options()? == *options {
                true => self.attach(&volume),
                false => Err(VolumeError::new(
                    format!("volume \"{name}\" is there already, and was made with other options"),
                    "remove it first, or give the new one another name",
                )),
            };
        }
        // Before anything is made: without the daemon nothing would come of it.
        if self.daemon.disks()?.iter().any(|d| d.name == name) {
            return Err(VolumeError::new(
                format!("the daemon has a disk \"{name}\" that is no volume"),
                "give the volume another name",
            ));
        }
        let made = Description::new(name, options, now());
        self.folder.make(&made, |image| options.fs.make(image))?;
        let attached = self.attach(&made);
        if attached.is_err() {
            let _ = self.daemon.detach(name);
            self.folder.remove(name)?;
        } else {
            tracing::info!("volume \"{name}\" is made");
        }
        attached
    }

    /// Has the daemon serve a volume, if it does not.
    fn attach(&self, volume: &Description) -> Result<(), VolumeError> {
        let places = self.folder.places(&volume.name);
        let image = places.image();
        if let Some(disk) = self.daemon.disks()?.into_iter().find(|d| d.name == volume.name) {
            return match Path::new(&disk.image) == image {
                true => Ok(()),
                false => Err(VolumeError::new(
                    format!(
                        "disk \"{}\" of the daemon has the image {}, not that of the volume",
                        disk.name, disk.image
                    ),
                    "detach that disk, or give it another name",
                )),
            };
        }
        self.daemon.attach(&volume.spec(&image, &places.file())?).map(drop)
    }

    fn standing(places: &Places) -> Result<Standing, VolumeError> {
        Ok(match mounts::top(&places.mount())? {
            None => Standing::NotMounted,
            Some(entry) if mount::is_dead(&entry.source) => Standing::Dead,
            Some(_) => Standing::Works,
        })
    }

    fn mount(&self, name: &str, id: &str) -> Result<(), VolumeError> {
        let mut volume = self.existing(name)?;
        self.attach(&volume)?;
        let places = self.folder.places(name);
        let standing = Self::standing(&places)?;
        if standing == Standing::NotMounted {
            // Those that are written down were there before this machine was started, or were cut off.
            volume.users.clear();
        }
        if standing == Standing::Dead {
            tracing::warn!("volume \"{name}\" answers no more, since the daemon was gone: it is mounted anew");
            mount::unmount(&self.daemon, &places.mount(), true)?;
        }
        volume.users.insert(id.to_owned());
        self.folder.save(&volume)?;
        if standing != Standing::Works {
            let mounted = self.mount_at(name, &places);
            if mounted.is_err() {
                volume.users.remove(id);
                self.folder.save(&volume)?;
                return mounted;
            }
        }
        let made = DirBuilder::new().mode(0o755).create(places.data());
        match made {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(VolumeError::os(format!("make {}", places.data().display()))(e))
            }
            _ => Ok(()),
        }
    }

    fn mount_at(&self, name: &str, places: &Places) -> Result<(), VolumeError> {
        // It is not there if somebody has tidied up.
        let _ = fs::create_dir(places.mount());
        let options = [MOUNT_OPTIONS.to_owned()];
        let dir = places.mount();
        let want = MountRequest { disk: name, dir: &dir, mkfs: None, read_only: false, options: &options };
        mount::mount(&self.daemon, &want, &AtomicBool::new(false)).map(drop)
    }

    fn unmount(&self, name: &str, id: &str) -> Result<(), VolumeError> {
        let mut volume = self.existing(name)?;
        let places = self.folder.places(name);
        let standing = Self::standing(&places)?;
        volume.users.remove(id);
        if standing == Standing::NotMounted {
            volume.users.clear();
        }
        if volume.users.is_empty() && standing != Standing::NotMounted {
            mount::unmount(&self.daemon, &places.mount(), standing == Standing::Dead)?;
        }
        self.folder.save(&volume)
    }

    fn remove(&self, name: &str) -> Result<(), VolumeError> {
        let volume = self.existing(name)?;
        let places = self.folder.places(name);
        let standing = Self::standing(&places)?;
        if standing == Standing::Works && !volume.users.is_empty() {
            return Err(VolumeError::new(
                format!("volume \"{name}\" is in use by {}", volume.users.len()),
                "stop the containers that use it first",
            ));
        }
        // Without the daemon nobody knows whether it serves the image.
        let disks = self.daemon.disks()?;
        if standing != Standing::NotMounted {
            mount::unmount(&self.daemon, &places.mount(), standing == Standing::Dead)?;
        }
        let image = places.image();
        if disks.iter().any(|d| d.name == name && Path::new(&d.image) == image) {
            self.daemon.detach(name)?;
        }
        self.folder.remove(name)?;
        tracing::info!("volume \"{name}\" is removed");
        Ok(())
    }
}

fn held<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

/// The time, as engines read it (RFC 3339).
fn now() -> String {
    date(SystemTime::now().into())
}

fn date(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(DateTime::from_timestamp(seconds, 0).unwrap()), text);
        }
    }

    /// Without a daemon: what is there is shown, and nothing is made or taken away.
    #[test]
    fn without_the_daemon_nothing_is_made_or_lost() {
        let dir = tempfile::tempdir().unwrap();
        let driver = VolumeDriver::open(dir.path(), DaemonLink::new(PathBuf::from("/nowhere/control.sock"))).unwrap();
        let options = VolumeOptions::parse(&[("size".to_owned(), "16MiB".to_owned())].into()).unwrap();
        let e = driver.call(PluginCall::Create("db".into(), options.clone())).unwrap_err();
        assert!(e.to_string().contains("no daemon answers"), "{e}");
        assert_eq!(driver.call(PluginCall::List).unwrap(), json!({ "Volumes": [], "Err": "" }));
        driver.folder.make(&Description::new("db", &options, now()), |_| Ok(())).unwrap();
        for call in [
            PluginCall::Remove("db".into()),
            PluginCall::Mount { name: "db".into(), id: "a".into() },
            PluginCall::Create("db".into(), options),
        ] {
            assert!(driver.call(call).is_err());
        }
        driver.look_after();
        let got = driver.call(PluginCall::Get("db".into())).unwrap();
        assert_eq!((&got["Volume"]["Name"], &got["Volume"]["Status"]["size"]), (&json!("db"), &json!("16MiB")));
        assert_eq!(driver.call(PluginCall::Path("db".into())).unwrap(), json!({ "Mountpoint": "", "Err": "" }));
        let e = driver.call(PluginCall::Get("no".into())).unwrap_err();
        assert!(e.to_string().contains("there is no volume \"no\""), "{e}");
    }
}
