//! What is checked of single values: bounds, words, paths, sockets, groups; and the problems that come of it.
//!
//! Owns the problems found so far, and what is booked: names, images, sockets. Never knows what a section means.
//! Invariant: whoever gets a value back may use it; what was wrong is a problem by then.

use super::keys::{self, nearest};
use super::machine::Machine;
use super::problem::{Problem, Severity};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use undercroft_units::Time;

/// A time of a section: its line, its key, its value, its bounds.
pub(crate) type Timed<'a> = (Option<usize>, &'a str, Option<Time>, [Duration; 2]);

/// A list of blocks that was named, and is still to be read: where, and its path.
pub(crate) struct ListAsked {
    pub(crate) line: Option<usize>,
    pub(crate) place: String,
    pub(crate) key: &'static str,
    pub(crate) path: PathBuf,
}

pub(crate) struct Checker<'m> {
    pub(crate) machine: &'m Machine,
    /// Where relative paths start; without one they are refused.
    pub(crate) base: Option<PathBuf>,
    pub(crate) problems: Vec<Problem>,
    /// Full names of disks, with their lines.
    pub(crate) names: HashMap<String, Option<usize>>,
    /// Names of VMs, with their lines.
    pub(crate) vms: HashMap<String, Option<usize>>,
    /// Lines of images, by position of the disk; a disk that is there cannot be missing any more.
    pub(crate) taken: BTreeMap<usize, Option<usize>>,
    /// Which of these are new, and what their problems are said to be about: whether they can be opened is said, too.
    pub(crate) new_images: BTreeMap<usize, String>,
    /// Paths of sockets, and of files that disks become: whose, and on which line.
    pub(crate) sockets: HashMap<PathBuf, (String, Option<usize>)>,
    /// Lists of blocks that are still to be read.
    pub(crate) lists: Vec<ListAsked>,
    /// Whether there is an SSD store.
    pub(crate) has_ssd: bool,
}

impl<'m> Checker<'m> {
    pub(crate) fn new(machine: &'m Machine, base: Option<PathBuf>) -> Self {
        Self {
            machine,
            base,
            problems: Vec::new(),
            names: HashMap::new(),
            vms: HashMap::new(),
            taken: BTreeMap::new(),
            new_images: BTreeMap::new(),
            sockets: HashMap::new(),
            lists: Vec::new(),
            has_ssd: false,
        }
    }

    pub(crate) fn error(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Error, line, place, error, remedy });
    }

    /// What `text` names of those `known`; `None`, and an error that begins with `unknown`, if it is none of them.
    pub(crate) fn named<T: FromStr>(
        &mut self,
        line: Option<usize>,
        place: &str,
        unknown: &str,
        text: &str,
        known: &[&'static str],
    ) -> Option<T> {
        let named = text.parse().ok();
        if named.is_none() {
            let near =
                nearest(text, known.iter().copied()).map_or(String::new(), |n| format!("did you mean \"{n}\"? "));
            let remedy = format!("{near}known are {}", known.join(", "));
            self.error(line, place, format!("{unknown} \"{}\"", clip(text)), remedy);
        }
        named
    }

    pub(crate) fn warning(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Warning, line, place, error, remedy });
    }

    /// A disk cannot be served as things stand.
    pub(crate) fn disk_fault(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Disk, line, place, error, remedy });
    }

    pub(crate) fn group(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &'static str,
        group: &Option<String>,
    ) -> Option<u32> {
        group.as_ref().and_then(|name| {
            let gid = self.machine.gid(name);
            if gid.is_none() {
                let near = nearest(name, self.machine.groups.iter().map(|(n, _)| n.as_str())).map(str::to_string);
                let remedy = match near {
                    Some(near) => format!("did you mean \"{near}\"? `getent group` lists them"),
                    None => "make it with `groupadd --system`, or name one that `getent group` lists".to_string(),
                };
                let error = format!("{key}: there is no group \"{}\"", clip(name));
                self.error(line, place, error, remedy);
            }
            gid
        })
    }

    pub(crate) fn choice<T: clap::ValueEnum>(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &str,
        text: &Option<String>,
    ) -> Option<T> {
        let text = text.as_ref()?;
        let chosen = T::from_str(text, true).ok();
        if chosen.is_none() {
            let known: Vec<_> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
            let known: Vec<&str> = known.iter().map(|v| v.get_name()).collect();
            let remedy = match nearest(text, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("known are {}", known.join(", ")),
            };
            self.error(line, place, format!("{key}: unknown value \"{}\"", clip(text)), remedy);
        }
        chosen
    }

    pub(crate) fn bounded(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &str,
        value: Option<u64>,
        min: u64,
        max: u64,
    ) -> Option<u64> {
        let value = value?;
        if !(min..=max).contains(&value) {
            self.error(line, place, format!("{key} must not be {value}"), format!("allowed is {min} to {max}"));
            return None;
        }
        Some(value)
    }

    pub(crate) fn poll(&mut self, line: Option<usize>, place: &str, poll: Option<Time>) -> Option<std::time::Duration> {
        let time = poll?;
        if time.duration() > keys::POLL_MAX {
            let remedy = format!("give at most {}; 50us suits most hosts, 0 turns it off", Time::from(keys::POLL_MAX));
            self.error(line, place, format!("poll is {time}, too long to burn a processor for"), remedy);
            return None;
        }
        Some(time.duration())
    }

    /// An IP address with a port. `open` is what to do about one that other machines reach; empty if that is well.
    pub(crate) fn address(
        &mut self,
        line: Option<usize>,
        place: &str,
        key: &str,
        text: &str,
        example: &str,
        open: &str,
    ) -> Option<SocketAddr> {
        match text.parse::<SocketAddr>() {
            Ok(addr) => {
                if !addr.ip().is_loopback() && !open.is_empty() {
                    let error = format!("{key} = \"{addr}\" can be reached from other machines");
                    self.warning(line, place, error, open);
                }
                Some(addr)
            }
            Err(_) => {
                let error = format!("{key}: \"{}\" is not an IP address with a port", clip(text));
                self.error(line, place, error, format!("write it like {key} = \"{example}\""));
                None
            }
        }
    }

    /// Makes a path absolute.
    pub(crate) fn path(&mut self, line: Option<usize>, place: &str, key: &str, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.error(line, place, format!("{key} is empty"), "give a path, or leave the key out");
        } else if path.as_os_str().as_bytes().contains(&0) {
            self.error(line, place, format!("{key} contains a NUL character"), "take it out");
        }
        match &self.base {
            Some(base) => base.join(path),
            None if path.is_absolute() => path.to_path_buf(),
            None => {
                let error = format!("{key} = \"{}\" is a relative path", clip(&path.display().to_string()));
                self.error(line, place, error, "give it from the root: the daemon has no directory of its own");
                path.to_path_buf()
            }
        }
    }

    /// Checks the path of a socket and books it. `explicit` tells whether somebody wrote that path.
    pub(crate) fn socket(&mut self, place: &str, line: Option<usize>, whose: &str, path: &Path, explicit: bool) {
        let shown = path.display();
        let len = path.as_os_str().as_bytes().len();
        if len > keys::SOCKET_PATH_BYTES_MAX {
            let error = format!("the path of the socket is {len} bytes long: {shown}");
            let key = if place.starts_with("nbd") {
                "unix"
            } else if place == "daemon" {
                "control"
            } else if place.starts_with("vm ") {
                "control_socket"
            } else {
                "socket"
            };
            let remedy = format!("the system allows {}: set {key} to a shorter path", keys::SOCKET_PATH_BYTES_MAX);
            self.error(line, place, error, remedy);
            return;
        }
        if let Some((other, other_line)) = self.sockets.get(path) {
            let on_line = other_line.map_or(String::new(), |l| format!(" (line {l})"));
            let error = format!("the socket {shown} is that of {other}{on_line} too");
            self.error(line, place, error, "set socket to a path of its own");
            return;
        }
        self.sockets.insert(path.to_path_buf(), (whose.to_string(), line));
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                let error = format!("{shown} is there already and is no socket");
                self.error(line, place, error, "choose another path, or move that file away");
            }
            Err(_) if explicit => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                if !parent.is_dir() {
                    let error = format!("the directory of the socket {shown} does not exist");
                    self.error(line, place, error, format!("make it with `mkdir -p {}`", parent.display()));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn time(&mut self, place: &str, (line, key, value, [least, most]): Timed<'_>) -> Option<Duration> {
        let time = value?;
        if time.duration() < least || time.duration() > most {
            let remedy = format!("allowed is {} to {}", Time::from(least), Time::from(most));
            self.error(line, place, format!("{key} must not be {time}"), remedy);
            return None;
        }
        Some(time.duration())
    }

    /// The same in whole units of `unit`, which is all that the kernel takes.
    pub(crate) fn whole(&mut self, place: &str, timed: Timed<'_>, unit: Duration) -> Option<Duration> {
        let (line, key, ..) = timed;
        let time = self.time(place, timed)?;
        if !time.as_nanos().is_multiple_of(unit.as_nanos()) {
            let error = format!("{key} is {}, which is no multiple of {}", Time::from(time), Time::from(unit));
            self.error(line, place, error, "round it: the kernel takes no fractions");
            return None;
        }
        Some(time)
    }

    /// Whether a name can be one: it stands in paths of sockets, in `VM:DISK` and in `VM/CONTAINER`.
    pub(crate) fn check_name(&mut self, line: Option<usize>, place: &str, what: &str, name: &str) {
        let mut chars = name.chars();
        let start = chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
        let rest = chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if !start || !rest || name.len() > keys::NAME_BYTES_MAX {
            let error = format!("\"{}\" cannot be the name of a {what}", clip(name));
            let mut remedy = format!(
                "use letters, digits, '-', '_' and '.', beginning with a letter or digit, at most {}",
                keys::NAME_BYTES_MAX
            );
            if what == "disk" && name.contains(':') {
                remedy = format!("{}; {remedy}", keys::DISKS_OF_VMS);
            }
            self.error(line, place, error, remedy);
        }
        // Whoever names it would mean one and change the other.
        if name == keys::HOST && matches!(what, "VM" | "disk") {
            let error = format!("\"{name}\" cannot be the name of a {what}: the host itself is called that");
            self.error(line, place, error, "give it another name");
        }
    }
}

/// What of a text fits into a message.
pub(crate) fn clip(text: &str) -> String {
    if text.chars().count() <= 120 {
        return text.escape_debug().to_string();
    }
    let head: String = text.chars().take(100).collect();
    format!("{}...", head.escape_debug())
}
