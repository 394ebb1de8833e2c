//! `serve --image`: disks without a configuration file, each with a name and sockets made from its image.
//!
//! Owns those choices. Never checks the image: `resolve` does, as for a file. Invariant: the same command line gives
//! the same names and sockets.

use super::images::scheme;
use super::keys::{HOST, NAME_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use super::machine::Machine;
use super::spec::{DiskSpec, ServeSpec};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the command line says that holds for every image.
#[derive(Clone, Debug, Default)]
pub struct ForEach {
    /// The vhost-user socket; only for a single image.
    pub socket: Option<PathBuf>,
    /// Everything else that a disk can be told; name, image and socket are overwritten.
    pub disk: DiskSpec,
}

/// Adds a disk for every image. With an NBD listener asked for but not placed (`nbd_beside`), it goes beside the first
/// image.
pub fn add_images(spec: &mut ServeSpec, images: &[String], each: &ForEach, nbd_beside: bool, machine: &Machine) {
    for image in images {
        let mut name = name_of(image);
        let taken = |n: &str| n == HOST || spec.disks.iter().any(|d| d.name == n);
        if taken(&name) {
            let free = (2..).map(|i| format!("{name}-{i}")).find(|n| !taken(n));
            name = free.unwrap_or(name);
        }
        let socket = match &each.socket {
            Some(path) => Some(path.clone()),
            None => beside(image, "sock", machine),
        };
        if nbd_beside && spec.nbd.unix.is_none() {
            spec.nbd.unix =
                Some(beside(image, "nbd.sock", machine).unwrap_or_else(|| machine.runtime_dir.join("nbd.sock")));
        }
        spec.disks.push(DiskSpec { name, image: image.clone(), socket, ..each.disk.clone() });
    }
}

/// The name of a disk: that of its image, without the ending, reduced to what a name may contain.
fn name_of(image: &str) -> String {
    let path = match scheme(image) {
        Some(_) => image.split(['?', '#']).next().unwrap_or(image),
        None => image,
    };
    let stem = Path::new(path).file_stem().and_then(|s| s.to_str()).unwrap_or("disk");
    let plain: String = stem
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(NAME_BYTES_MAX - 8)
        .collect();
    if plain.is_empty() { "disk".to_string() } else { plain }
}

/// `IMAGE.ENDING` if a socket can be made there; else the daemon's default in the runtime directory.
fn beside(image: &str, ending: &str, machine: &Machine) -> Option<PathBuf> {
    if scheme(image).is_some() {
        return None;
    }
    let image = machine.current_dir.join(image);
    let dir = image.parent()?;
    // Beside a block device would be in /dev, which is no place for sockets.
    if dir.starts_with("/dev") || dir.starts_with("/proc") || dir.starts_with("/sys") {
        return None;
    }
    accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).ok()?;
    let mut name = image.file_name()?.to_os_string();
    name.push(".");
    name.push(ending);
    let path = dir.join(name);
    (path.as_os_str().as_bytes().len() <= SOCKET_PATH_BYTES_MAX).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::resolve;

    fn spec(images: &[&str], machine: &Machine) -> ServeSpec {
        let mut spec = ServeSpec::default();
        let images: Vec<String> = images.iter().map(ToString::to_string).collect();
        add_images(&mut spec, &images, &ForEach::default(), true, machine);
        spec
    }

    #[test]
    fn names_come_from_images() {
        for (image, name) in [
            ("disk.qcow2", "disk"),
            ("/var/lib/My disk (1).raw", "My-disk--1-"),
            ("/dev/vg/lv", "lv"),
            ("nbd://host/export", "export"),
            ("nbd+unix:///root?socket=/tmp/x.sock", "root"),
            ("...", "disk"),
            ("żółw.img", "w"),
            ("", "disk"),
        ] {
            assert_eq!(name_of(image), name, "{image}");
        }
    }

    #[test]
    fn sockets_stand_beside_images_where_they_can() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine { current_dir: dir.path().to_path_buf(), ..Machine::here() };
        let s = spec(&["a.qcow2", "sub/../a.raw", "nbd://h/a", "/dev/null", "host.raw"], &machine);
        let names: Vec<_> = s.disks.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["a", "a-2", "a-3", "null", "host-2"], "the host itself is called \"host\"");
        assert_eq!(s.disks[0].socket, Some(dir.path().join("a.qcow2.sock")));
        assert_eq!(s.nbd.unix, Some(dir.path().join("a.qcow2.nbd.sock")));
        assert_eq!((&s.disks[2].socket, &s.disks[3].socket), (&None, &None));
        let long = format!("{}.raw", "x".repeat(150));
        assert_eq!(spec(&[&long], &machine).disks[0].socket, None);
    }

    #[test]
    fn a_directory_that_cannot_be_written_leaves_the_runtime_directory() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine { current_dir: dir.path().join("gone"), ..Machine::here() };
        let plan = resolve(&spec(&["a.raw"], &machine), &machine, Vec::new()).plan;
        assert_eq!(plan.disks[0].socket, Some(machine.runtime_dir.join("a.sock")));
        assert_eq!(plan.disks[0].share_bytes, plan.store.memory_bytes);
    }
}
