//! How stalls are learnt of: pressure files (PSI), with a trigger or by their counters, and events of control groups.
//!
//! Owns the descriptors, and the choice among what this kernel and these privileges allow. Never decides whose business
//! a stall is. Invariant: a source that is missing is replaced by the next best one, and its words say which it is.

use super::parse;
use super::source::small;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft_host::control_group::{ControlGroup, Version};
use undercroft_units::Time;

/// The window of a pressure trigger, in microseconds, and that which the kernel allows without privileges.
const WINDOWS_US: [u64; 2] = [1_000_000, 2_000_000];
/// File systems of control groups of version 2, by the number in their superblocks.
const CGROUP2_SUPER_MAGIC: rustix::fs::FsWord = 0x6367_7270;
/// Over how long stalls are counted where no trigger is to be had, in nanoseconds.
pub(super) const COUNT_NS: u64 = 1_000_000_000;

/// How stalls are learnt of.
#[derive(Debug)]
pub(super) enum Stalls {
    /// The kernel wakes us: a descriptor that becomes ready with priority.
    Trigger { file: File, window_us: u64 },
    /// We read the counter again and again.
    Counter { path: PathBuf, since: Option<(u64, u64)> },
    /// The kernel wakes us through an event descriptor (control groups of version 1).
    Level { event: OwnedFd, _level: File },
    /// We read how often the group ran into its limit (version 2 without PSI).
    Hits { group: ControlGroup, last: Option<u64> },
    /// Not at all.
    Unknown,
}

impl Stalls {
    /// The stalls that a pressure file tells of: by a trigger, else by its counter.
    pub(super) fn of_file(path: &Path, stall: Duration) -> Stalls {
        if small(path).as_deref().and_then(parse::stalled_us).is_none() {
            return Stalls::Unknown;
        }
        for window_us in WINDOWS_US {
            if let Ok(file) = trigger(path, stall_in(stall, window_us), window_us) {
                return Stalls::Trigger { file, window_us };
            }
        }
        Stalls::Counter { path: path.to_path_buf(), since: None }
    }

    /// The stalls of a control group.
    pub(super) fn of_group(group: &ControlGroup, stall: Duration) -> Stalls {
        match group.version {
            Version::V1 => level_of(&group.dir).unwrap_or(Stalls::Unknown),
            Version::V2 => match Stalls::of_file(&group.dir.join("memory.pressure"), stall) {
                Stalls::Unknown => Stalls::Hits { last: group.hits(), group: group.clone() },
                found => found,
            },
        }
    }

    /// What it is, in words for status and log.
    pub(super) fn words(&self, stall: Duration) -> String {
        let window = |us: u64| Time::from(Duration::from_micros(us));
        let stall = |us: u64| Time::from(stall_in(stall, us));
        match self {
            Stalls::Trigger { window_us, .. } => {
                format!("PSI trigger (some {} in {})", stall(*window_us), window(*window_us))
            }
            Stalls::Counter { .. } => format!(
                "PSI counter (some {} in 1s; a trigger needs CAP_SYS_RESOURCE and a file that can be written)",
                stall(WINDOWS_US[0])
            ),
            Stalls::Level { .. } => "memory.pressure_level (medium)".into(),
            Stalls::Hits { .. } => "memory.events (high, max)".into(),
            Stalls::Unknown => "no PSI (needs Linux 4.20 with CONFIG_PSI, and psi=1 where it is off by default)".into(),
        }
    }

    /// What the kernel wakes us by, if it does, and how that is waited for.
    pub(super) fn wakes(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Stalls::Trigger { file, .. } => Some((file.as_fd(), PollFlags::PRI)),
            Stalls::Level { event, .. } => Some((event.as_fd(), PollFlags::IN)),
            _ => None,
        }
    }

    /// The kernel has woken us: what has to be taken back so that it can do so again is.
    pub(super) fn woken(&self) {
        if let Stalls::Level { event, .. } = self {
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
    }

    /// Whether there were stalls for longer than `stall` in a second, by what was learnt since the last call; `woken`
    /// is whether the kernel woke us since then.
    pub(super) fn happened(&mut self, woken: bool, stall: Duration, now_ns: u64) -> bool {
        match self {
            Stalls::Trigger { .. } | Stalls::Level { .. } => woken,
            Stalls::Counter { path, since } => {
                let Some(total_us) = small(path).as_deref().and_then(parse::stalled_us) else { return false };
                let Some((then_ns, then_us)) = *since else {
                    *since = Some((now_ns, total_us));
                    return false;
                };
                let elapsed_ns = now_ns.saturating_sub(then_ns);
                if elapsed_ns < COUNT_NS {
                    return false;
                }
                *since = Some((now_ns, total_us));
                let waited_ns = u128::from(total_us.saturating_sub(then_us)) * 1000;
                waited_ns * u128::from(COUNT_NS) >= stall.as_nanos() * u128::from(elapsed_ns)
            }
            Stalls::Hits { group, last } => {
                let hits = group.hits();
                let more = matches!((*last, hits), (Some(then), Some(now)) if now > then);
                *last = hits.or(*last);
                more
            }
            Stalls::Unknown => false,
        }
    }
}

/// The stall that is allowed in a window, for one that is given for a second.
fn stall_in(stall: Duration, window_us: u64) -> Duration {
    stall * (window_us / 1_000_000).max(1) as u32
}

fn trigger(path: &Path, stall: Duration, window_us: u64) -> io::Result<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(path)?;
    // A file elsewhere would take the text and never wake anybody.
    let kind = fstatfs(file.as_fd())?.f_type;
    if kind != PROC_SUPER_MAGIC && kind != CGROUP2_SUPER_MAGIC {
        return Err(io::ErrorKind::Unsupported.into());
    }
    file.write_all(format!("some {} {window_us}\0", stall.as_micros()).as_bytes())?;
    Ok(file)
}

/// Has the kernel signal an event descriptor when a group of version 1 reclaims with some trouble.
fn level_of(dir: &Path) -> io::Result<Stalls> {
    let level = File::open(dir.join("memory.pressure_level"))?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let words = format!("{} {} medium", event.as_raw_fd(), level.as_raw_fd());
    OpenOptions::new().write(true).open(dir.join("cgroup.event_control"))?.write_all(words.as_bytes())?;
    Ok(Stalls::Level { event, _level: level })
}
