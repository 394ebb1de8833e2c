//! What a disk stands on and where it is reached: name, image, socket, file, serial number, checked.
//!
//! Owns the booking of its name, image and socket. Never compares the images of several disks nor divides memory:
//! `resolve` does. Invariant: a key that is refused is a problem, and its default is planned.

use super::checks::{Checker, clip};
use super::daemon::DaemonPlan;
use super::images::{self, Fault, LOOK_WAIT};
use super::keys::{self, nearest};
use super::spec::DiskSpec;
use crate::image::{ImageFormat, ImageSpec};
use std::path::{Path, PathBuf};

impl Checker<'_> {
    pub(crate) fn name(&mut self, spec: &DiskSpec, place: &str) -> String {
        let line = spec.lines.get("name").copied();
        self.check_name(line, place, "disk", &spec.name);
        if let Some(vm) = &spec.vm {
            self.check_name(line, place, "VM", vm);
        }
        self.no_vm_of_that_name(line, place, spec);
        let full = spec.vm.as_ref().map_or(spec.name.clone(), |vm| format!("{vm}:{}", spec.name));
        if let Some(first) = self.names.get(&full) {
            let on_line = first.map_or(String::new(), |l| format!(" on line {l}"));
            self.error(line, place, format!("there is a disk of that name{on_line} already"), "give it another name");
        } else {
            self.names.insert(full.clone(), line);
        }
        full
    }

    /// A disk that is of no VM has a name that no VM has. Both are looked for by that name alone, so that whoever names
    /// it would mean one of them and change the other.
    fn no_vm_of_that_name(&mut self, line: Option<usize>, place: &str, spec: &DiskSpec) {
        match &spec.vm {
            None => {
                let Some(vm) = self.vms.get(&spec.name) else { return };
                let on_line = vm.map_or(String::new(), |l| format!(" on line {l}"));
                let error = format!("VM \"{}\"{on_line} has that name", clip(&spec.name));
                let remedy = "give the disk another name, or write it as [[vm.disk]] below that VM if it is the VM's";
                self.error(line, place, error, remedy);
            }
            Some(vm) if self.names.contains_key(vm) => {
                let error = format!("disk \"{}\", which is of no VM, has the name of its VM", clip(vm));
                self.error(line, place, error, "give the VM another name, or the disk that is of none");
            }
            Some(_) => {}
        }
    }

    /// Whether it is exported; it must be reached somehow, if not otherwise (`is_reached`).
    pub(crate) fn export(&mut self, spec: &DiskSpec, place: &str, is_reached: bool, has_listener: bool) -> bool {
        let at = |key: &str| spec.lines.get(key).copied();
        let nbd = spec.nbd.unwrap_or(false);
        if nbd && !has_listener {
            let remedy = "add [nbd] with unix = \"...\" or tcp = \"127.0.0.1:10809\", or take nbd away";
            self.error(at("nbd"), place, "nbd = true, but there is no NBD listener".into(), remedy);
        }
        if !is_reached && !nbd {
            let remedy = "set vhost_user = true, nbd = true, fuse = \"PATH\" or ublk = \"PATH\"";
            let error = "it has no vhost-user socket, no NBD export, no file and no block device".into();
            self.error(at("vhost_user").or(at("name")), place, error, remedy);
        }
        nbd
    }

    /// Whether its guest runs elsewhere at first; only a guest at a vhost-user socket can come from there.
    pub(crate) fn incoming(&mut self, spec: &DiskSpec, place: &str, has_socket: bool) -> bool {
        let incoming = spec.incoming.unwrap_or(false);
        if incoming && !has_socket {
            let error = "incoming = true, but it has no vhost-user socket, so that no guest can come".into();
            let remedy = "set vhost_user = true, or take incoming away";
            self.error(spec.lines.get("incoming").copied(), place, error, remedy);
        }
        incoming
    }

    pub(crate) fn image(&mut self, spec: &DiskSpec, place: &str, read_only: bool) -> ImageSpec {
        let line = spec.lines.get("image").copied();
        let number = self.taken.len();
        self.taken.insert(number, line);
        let format = spec.format.as_deref().and_then(|text| {
            let known = [("raw", ImageFormat::Raw), ("qcow2", ImageFormat::Qcow2), ("nbd", ImageFormat::Nbd)];
            let found = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, f)| *f);
            if found.is_none() {
                let remedy = match nearest(text, known.iter().map(|(n, _)| *n)) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => "known are raw, qcow2, nbd; other formats work through qemu-nbd: image = \
                        \"nbd+unix:///?socket=PATH\""
                        .to_string(),
                };
                let line = spec.lines.get("format").copied();
                self.error(line, place, format!("unknown format \"{}\"", clip(text)), remedy);
            }
            found
        });
        if let Some(scheme) = images::scheme(&spec.image) {
            self.uri(line, place, &spec.image, scheme, format);
            return ImageSpec { location: spec.image.clone(), format: Some(ImageFormat::Nbd), read_only };
        }
        if format == Some(ImageFormat::Nbd) {
            let error = format!("format is nbd, but the image \"{}\" is no URI", clip(&spec.image));
            self.error(line, place, error, "write it like image = \"nbd+unix:///?socket=PATH\"");
        }
        let path = self.path(line, place, "image", Path::new(&spec.image));
        self.new_images.insert(number, place.to_string());
        let location = path.to_str().map_or_else(|| spec.image.clone(), str::to_string);
        ImageSpec { location, format, read_only }
    }

    pub(crate) fn uri(
        &mut self,
        line: Option<usize>,
        place: &str,
        uri: &str,
        scheme: &str,
        format: Option<ImageFormat>,
    ) {
        let shown = clip(uri);
        let example = "write it like nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH";
        if !matches!(scheme, "nbd" | "nbd+unix") {
            self.error(line, place, format!("image \"{shown}\": the scheme \"{scheme}\" is not known"), example);
        } else if scheme == "nbd+unix" && !uri.contains("?socket=") && !uri.contains("&socket=") {
            self.error(line, place, format!("image \"{shown}\" names no socket"), example);
        }
        if format.is_some_and(|f| f != ImageFormat::Nbd) {
            let remedy = "leave format out: the server at the other end knows what its image is";
            self.error(line, place, format!("image \"{shown}\" is an NBD server, but format says otherwise"), remedy);
        }
    }

    /// What keeps an image from being opened, as a problem.
    pub(crate) fn image_fault(&mut self, line: Option<usize>, place: &str, image: &ImageSpec, fault: Fault) {
        let shown = &image.location;
        let (error, remedy) = match fault {
            Fault::Missing => (format!("the image {shown} does not exist"), missing_remedy(image)),
            Fault::NoImage => (
                format!("the image {shown} is neither a file nor a block device"),
                "give a file, a block device, or an NBD URI".to_string(),
            ),
            Fault::Unreachable(e) => (
                format!("the image {shown} cannot be reached: {e}"),
                "check the path, and that this user may search its directories".to_string(),
            ),
            Fault::Forbidden { readable } => {
                let word = if image.read_only { "read" } else { "read and written" };
                let or = if readable { "; or set read_only = true" } else { "" };
                (
                    format!("the image {shown} cannot be {word} by this user"),
                    format!("change its owner or mode, or run as a user who may{or}"),
                )
            }
            Fault::Silent => (
                format!("the image {shown} does not answer: nothing came back within {LOOK_WAIT:?}"),
                "look at the storage below it".to_string(),
            ),
        };
        self.disk_fault(line, place, error, remedy);
    }

    pub(crate) fn disk_socket(
        &mut self,
        spec: &DiskSpec,
        place: &str,
        name: &str,
        daemon: &DaemonPlan,
    ) -> Option<PathBuf> {
        let line = spec.lines.get("socket").copied();
        if spec.vhost_user == Some(false) {
            if spec.socket.is_some() {
                let remedy = "take one of them away";
                self.error(line, place, "it has a socket, but vhost_user = false".into(), remedy);
            }
            return None;
        }
        let path = match &spec.socket {
            Some(path) => self.path(line, place, "socket", path),
            None => daemon.runtime_dir.join(format!("{}.sock", name.replace(':', "-"))),
        };
        let name_line = spec.lines.get("name").copied();
        // A disk that has another's name has its default socket too, which need not be said again.
        if spec.socket.is_some() || self.names.get(name) == Some(&name_line) {
            self.socket(place, line.or(name_line), place, &path, spec.socket.is_some());
        }
        Some(path)
    }

    /// The file that it becomes. Whether something is mounted there is seen when it is: a look would wait for whoever
    /// serves that.
    pub(crate) fn disk_file(&mut self, spec: &DiskSpec, place: &str, daemon: &DaemonPlan) -> Option<PathBuf> {
        self.own_path(spec, place, daemon, ("fuse", "file"), spec.fuse.as_ref()?)
    }

    /// The link to the block device that it becomes.
    pub(crate) fn disk_device(&mut self, spec: &DiskSpec, place: &str, daemon: &DaemonPlan) -> Option<PathBuf> {
        self.own_path(spec, place, daemon, ("ublk", "link"), spec.ublk.as_ref()?)
    }

    /// A path that nothing else has: key, what it is, and its value.
    fn own_path(
        &mut self,
        spec: &DiskSpec,
        place: &str,
        daemon: &DaemonPlan,
        (key, what): (&str, &str),
        value: &Path,
    ) -> Option<PathBuf> {
        let line = spec.lines.get(key).copied();
        let path = self.path(line, place, key, value);
        if let Some((other, other_line)) = self.sockets.get(&path) {
            let on_line = other_line.map_or(String::new(), |l| format!(" (line {l})"));
            let error = format!("the {what} {} is that of {other}{on_line} too", path.display());
            self.error(line, place, error, format!("set {key} to a path of its own"));
            return None;
        }
        self.sockets.insert(path.clone(), (place.to_string(), line));
        let parent = path.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() && !path.starts_with(&daemon.runtime_dir) {
            let error = format!("the directory of the {what} {} does not exist", path.display());
            self.error(line, place, error, format!("make it with `mkdir -p {}`", parent.display()));
        }
        Some(path)
    }

    /// The trust group; names of VMs and disks, which stand for groups of their own, have a colon before them.
    pub(crate) fn trust(&mut self, line: Option<usize>, place: &str, name: &str, spec: &DiskSpec) -> String {
        match (&spec.trust, &spec.vm) {
            (Some(trust), _) => {
                let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
                if trust.is_empty() || trust.len() > keys::NAME_BYTES_MAX || !trust.chars().all(known) {
                    let error = format!("\"{}\" cannot be the name of a trust group", clip(trust));
                    let remedy = format!("use letters, digits, '-', '_' and '.', at most {}", keys::NAME_BYTES_MAX);
                    self.error(line, place, error, remedy);
                }
                trust.clone()
            }
            (None, Some(vm)) => format!("vm:{vm}"),
            (None, None) => format!("disk:{name}"),
        }
    }

    pub(crate) fn queue_size(&mut self, line: Option<usize>, place: &str, size: Option<u64>) -> u16 {
        let Some(size) = size else { return keys::QUEUE_SIZE_DEFAULT };
        let (min, max) = (u64::from(keys::QUEUE_SIZE_MIN), u64::from(keys::QUEUE_SIZE_MAX));
        if !(min..=max).contains(&size) || !size.is_power_of_two() {
            let remedy = format!("give a power of two from {min} to {max}");
            self.error(line, place, format!("queue_size must not be {size}"), remedy);
            return keys::QUEUE_SIZE_DEFAULT;
        }
        size as u16
    }

    pub(crate) fn serial(&mut self, line: Option<usize>, place: &str, name: &str, text: Option<&str>) -> String {
        let Some(text) = text else { return serial_of(name) };
        let printable = text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if text.is_empty() || text.len() > keys::SERIAL_BYTES_MAX || !printable {
            let remedy = format!("use 1 to {} printable ASCII characters", keys::SERIAL_BYTES_MAX);
            self.error(line, place, format!("\"{}\" cannot be a serial number", clip(text)), remedy);
        }
        text.to_string()
    }
}

/// How to make an image that does not exist, in the format that it is to have; of a device nobody can.
fn missing_remedy(image: &ImageSpec) -> String {
    let shown = &image.location;
    if shown.starts_with("/dev/") {
        return "correct the path, or see why the device is not there".to_owned();
    }
    let format = if image.format == Some(ImageFormat::Raw) { "raw" } else { "qcow2" };
    format!("correct the path, or make one: `qemu-img create -f {format} {shown} 20G`")
}

/// A serial number from a name: the name if it fits, else its beginning and a checksum (FNV-1a) of all of it.
fn serial_of(name: &str) -> String {
    let plain = name.replace(':', "-");
    if plain.len() <= keys::SERIAL_BYTES_MAX && plain.is_ascii() {
        return plain;
    }
    let hash = plain.bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let head: String = plain.chars().filter(char::is_ascii_graphic).take(11).collect();
    format!("{head}-{hash:08x}")
}

/// How messages call a disk.
pub fn place_of(vm: Option<&str>, name: &str) -> String {
    let name: String = name.chars().take(80).collect();
    match vm {
        Some(vm) => format!("disk \"{}:{name}\"", vm.chars().take(80).collect::<String>()),
        None => format!("disk \"{name}\""),
    }
}
