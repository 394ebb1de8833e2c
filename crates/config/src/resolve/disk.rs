//! One disk: from its section to its plan, with every check of its keys, its image and its socket.
//!
//! Owns the rules within a disk, and the booking of its name, image and socket. Never compares the images of several
//! disks nor divides memory: `resolve` does. Invariant: a key that is refused is a problem, and its default is planned.

use super::super::images;
use super::super::keys::{self, nearest};
use super::super::plan::{BaseSharing, DaemonPlan, DiskPlan};
use super::super::reader::place_of;
use super::super::spec::DiskSpec;
use super::{Resolver, clip};
use crate::{ImageFormat, ImageSpec};
use std::path::{Path, PathBuf};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_units::Size;

impl Resolver<'_> {
    pub(super) fn disk(&mut self, spec: &DiskSpec, daemon: &DaemonPlan, memory_bytes: u64, has_nbd: bool) -> DiskPlan {
        let place = &place_of(spec.vm.as_deref(), &spec.name);
        let at = |key: &str| spec.lines.get(key).copied();
        let name = self.name(spec, place);
        let read_only = spec.read_only.unwrap_or(false);
        let image = self.image(spec, place, read_only);
        let socket = self.disk_socket(spec, place, &name, daemon);
        let nbd = spec.nbd.unwrap_or(false);
        if nbd && !has_nbd {
            let remedy = "add [nbd] with unix = \"...\" or tcp = \"127.0.0.1:10809\", or take nbd away";
            self.error(at("nbd"), place, "nbd = true, but there is no NBD listener".into(), remedy);
        }
        if socket.is_none() && !nbd {
            let remedy = "set vhost_user = true or nbd = true";
            self.error(
                at("vhost_user").or(at("name")),
                place,
                "it has neither a vhost-user socket nor an NBD export".into(),
                remedy,
            );
        }
        if let Some(size) = spec.size {
            if size.0 < keys::SHARE_BYTES_MIN {
                let error = format!("size is {size}, too little to cache in");
                self.error(at("size"), place, error, format!("give at least {}", Size(keys::SHARE_BYTES_MIN)));
            } else if size.0 > memory_bytes {
                let error = format!("size is {size}, but the memory of the store is {}", Size(memory_bytes));
                self.error(at("size"), place, error, "make size smaller or store.memory larger");
            }
        }
        for key in ["weight", "floor", "ceiling"] {
            if spec.size.is_some() && spec.lines.contains_key(key) {
                let remedy = format!("a size is floor and ceiling in one: take size or {key} away");
                self.warning(at(key), place, format!("it has a size, so its {key} means nothing"), remedy);
            }
        }
        self.bounds(&spec.lines, place, spec.floor, spec.ceiling);
        let weight = self.bounded(at("weight"), place, "weight", spec.weight, 1, keys::WEIGHT_MAX.into());
        let queues = self.bounded(at("queues"), place, "queues", spec.queues, 1, keys::QUEUES_MAX.into());
        let readahead = spec.readahead.filter(|r| {
            let fits = r.0 <= keys::READAHEAD_BYTES_MAX.into();
            if !fits {
                let remedy = format!("give at most {}; 0 turns it off", Size(keys::READAHEAD_BYTES_MAX.into()));
                self.error(at("readahead"), place, format!("readahead is {r}, too far ahead"), remedy);
            }
            fits
        });
        DiskPlan {
            serial: self.serial(at("serial"), place, &name, spec.serial.as_deref()),
            trust: self.trust(at("trust"), place, &name, spec),
            share_base: match (spec.share_base, &spec.trust) {
                (Some(false), _) => BaseSharing::Nobody,
                // Who names a group means that others are to learn nothing.
                (None, Some(_)) => BaseSharing::Group,
                (Some(true), _) | (None, None) => BaseSharing::Everybody,
            },
            trust_memory: spec.trust_memory.unwrap_or(false),
            name,
            vm: spec.vm.clone(),
            image,
            socket,
            nbd,
            policy: keys::POLICY_DEFAULT,
            own_policy: spec.policy.as_deref().map(|text| self.policy(at("policy"), place, text)),
            share_bytes: spec.size.map_or(0, |s| s.0),
            share_fixed: spec.size.is_some(),
            weight: weight.map_or(keys::WEIGHT_DEFAULT, |w| w as u32),
            floor_bytes: spec.floor.map_or(0, |s| s.0),
            ceiling_bytes: spec.ceiling.map(|s| s.0),
            parts: Vec::new(),
            goal: self.goal(&spec.lines, place, spec.goal.as_deref()),
            hint: self.hint(&spec.lines, place, spec.hint.as_deref()),
            store: self.store(&spec.lines, place, spec.store.as_deref()),
            container: self.container(at("container"), place, spec),
            readahead_bytes: readahead.map_or(keys::READAHEAD_BYTES_DEFAULT, |r| r.0 as u32),
            write_allocate: spec.write_allocate.unwrap_or(true),
            exclusive: self.exclusive(at("exclusive"), place, spec.exclusive.as_deref()),
            queues: queues.map_or(keys::QUEUES_DEFAULT, |q| q as u16),
            queue_size: self.queue_size(at("queue_size"), place, spec.queue_size),
            poll: self.poll(at("poll"), place, spec.poll).unwrap_or(daemon.poll),
        }
    }

    fn name(&mut self, spec: &DiskSpec, place: &str) -> String {
        let line = spec.lines.get("name").copied();
        self.check_name(line, place, "disk", &spec.name);
        if let Some(vm) = &spec.vm {
            self.check_name(line, place, "VM", vm);
        }
        let full = spec.vm.as_ref().map_or(spec.name.clone(), |vm| format!("{vm}:{}", spec.name));
        if let Some(first) = self.names.get(&full) {
            let on_line = first.map_or(String::new(), |l| format!(" on line {l}"));
            self.error(line, place, format!("there is a disk of that name{on_line} already"), "give it another name");
        } else {
            self.names.insert(full.clone(), line);
        }
        full
    }

    fn image(&mut self, spec: &DiskSpec, place: &str, read_only: bool) -> ImageSpec {
        let line = spec.lines.get("image").copied();
        self.taken.insert(self.taken.len(), line);
        let format = spec.format.as_deref().and_then(|text| {
            let known = [("raw", ImageFormat::Raw), ("qcow2", ImageFormat::Qcow2), ("nbd", ImageFormat::Nbd)];
            let found = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, f)| *f);
            if found.is_none() {
                let remedy = match nearest(text, known.iter().map(|(n, _)| *n)) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => "known are raw, qcow2, nbd; other formats work through qemu-nbd: image = \"nbd+unix:///?socket=PATH\"".to_string(),
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
        self.image_file(line, place, &path, read_only);
        let location = path.to_str().map_or_else(|| spec.image.clone(), str::to_string);
        ImageSpec { location, format, read_only }
    }

    fn uri(&mut self, line: Option<usize>, place: &str, uri: &str, scheme: &str, format: Option<ImageFormat>) {
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

    fn image_file(&mut self, line: Option<usize>, place: &str, path: &Path, read_only: bool) {
        let shown = path.display();
        match images::identity(path) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let remedy = format!("correct the path, or make one: `qemu-img create -f qcow2 {shown} 20G`");
                self.disk_fault(line, place, format!("the image {shown} does not exist"), remedy);
                return;
            }
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
                let remedy = "give a file, a block device, or an NBD URI";
                self.disk_fault(line, place, format!("the image {shown} is neither a file nor a block device"), remedy);
                return;
            }
            Err(e) => {
                let remedy = "check the path, and that this user may search its directories";
                self.disk_fault(line, place, format!("the image {shown} cannot be reached: {e}"), remedy);
                return;
            }
        }
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        let (need, word) = if read_only {
            (Access::READ_OK, "read")
        } else {
            (Access::READ_OK | Access::WRITE_OK, "read and written")
        };
        if accessat(CWD, path, need, AtFlags::EACCESS).is_err() {
            let mut remedy = "change its owner or mode, or run as a user who may".to_string();
            if !read_only && accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS).is_ok() {
                remedy += "; or set read_only = true";
            }
            self.disk_fault(line, place, format!("the image {shown} cannot be {word} by this user"), remedy);
        }
    }

    fn disk_socket(&mut self, spec: &DiskSpec, place: &str, name: &str, daemon: &DaemonPlan) -> Option<PathBuf> {
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

    pub(crate) fn policy(&mut self, line: Option<usize>, place: &str, text: &str) -> PolicyKind {
        text.parse().unwrap_or_else(|_| {
            let known: Vec<&str> = PolicyKind::ALL.iter().map(|k| k.name()).collect();
            let remedy = match nearest(text, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"? known are {}", known.join(", ")),
                None => format!("known are {}", known.join(", ")),
            };
            self.error(line, place, format!("unknown policy \"{}\"", clip(text)), remedy);
            keys::POLICY_DEFAULT
        })
    }

    fn exclusive(&mut self, line: Option<usize>, place: &str, text: Option<&str>) -> ExclusiveMode {
        let Some(text) = text else { return ExclusiveMode::default() };
        text.parse().unwrap_or_else(|_| {
            let known: Vec<&str> = ExclusiveMode::ALL.iter().map(|m| m.name()).collect();
            let remedy = match nearest(text, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"? known are {}", known.join(", ")),
                None => format!("known are {}", known.join(", ")),
            };
            self.error(line, place, format!("exclusive: unknown mode \"{}\"", clip(text)), remedy);
            ExclusiveMode::default()
        })
    }

    /// The trust group; names of VMs and disks, which stand for groups of their own, have a colon before them.
    fn trust(&mut self, line: Option<usize>, place: &str, name: &str, spec: &DiskSpec) -> String {
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

    fn queue_size(&mut self, line: Option<usize>, place: &str, size: Option<u64>) -> u16 {
        let Some(size) = size else { return keys::QUEUE_SIZE_DEFAULT };
        let (min, max) = (u64::from(keys::QUEUE_SIZE_MIN), u64::from(keys::QUEUE_SIZE_MAX));
        if !(min..=max).contains(&size) || !size.is_power_of_two() {
            let remedy = format!("give a power of two from {min} to {max}");
            self.error(line, place, format!("queue_size must not be {size}"), remedy);
            return keys::QUEUE_SIZE_DEFAULT;
        }
        size as u16
    }

    fn serial(&mut self, line: Option<usize>, place: &str, name: &str, text: Option<&str>) -> String {
        let Some(text) = text else { return serial_of(name) };
        let printable = text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if text.is_empty() || text.len() > keys::SERIAL_BYTES_MAX || !printable {
            let remedy = format!("use 1 to {} printable ASCII characters", keys::SERIAL_BYTES_MAX);
            self.error(line, place, format!("\"{}\" cannot be a serial number", clip(text)), remedy);
        }
        text.to_string()
    }
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
