//! Where shortage of memory is seen: pressure files (PSI), events of control groups, available memory.
//!
//! Owns the descriptors, and the choice among what this kernel and these privileges allow, which is made once and
//! logged. Never decides what to do about a shortage. Invariants: a source that is missing is replaced by the next best
//! one, and the log names it; a reading costs reading a few small files.

use super::control::Reading;
use super::group::{Group, Version};
use super::{AVAILABLE_PART_DEFAULT, GROUP_PART_DEFAULT, GROUP_PART_GUESTS, GROUP_PART_KEPT, parse};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft_config::PressurePlan;
use undercroft_units::{Size, Time, human_size};

/// With fewer pages than this looked at by the machine's own reclaim in a second or two, who waits for memory does so
/// for the limit of a control group, which the kernel's counters of reclaim leave out, and memory of ours would not
/// help him.
const SCANNED_PAGES_MIN: u64 = 1024;
/// With more than this part of its memory available, a machine is not short of it, whoever waits.
const AVAILABLE_PART_CALM: u64 = 4;
/// The window of a pressure trigger, in microseconds, and that which the kernel allows without privileges.
const WINDOWS_US: [u64; 2] = [1_000_000, 2_000_000];
/// File systems of control groups of version 2, by the number in their superblocks.
const CGROUP2_SUPER_MAGIC: rustix::fs::FsWord = 0x6367_7270;
/// Over how long stalls are counted where no trigger is to be had, in nanoseconds.
const COUNT_NS: u64 = 1_000_000_000;

/// Where the kernel's files are: `/proc`, or a directory that stands for it in tests.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Roots { proc: "/proc".into() }
    }
}

/// How stalls are learnt of.
#[derive(Debug)]
enum Stalls {
    /// The kernel wakes us: a descriptor that becomes ready with priority.
    Trigger { file: File, window_us: u64 },
    /// We read the counter again and again.
    Counter { path: PathBuf, since: Option<(u64, u64)> },
    /// The kernel wakes us through an event descriptor (control groups of version 1).
    Level { event: OwnedFd, _level: File },
    /// We read how often the group ran into its limit (version 2 without PSI).
    Hits { last: Option<u64> },
    /// Not at all.
    Unknown,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Sources {
    roots: Roots,
    stall: Duration,
    available_min: Option<u64>,
    machine: Stalls,
    group: Option<(Group, Stalls)>,
    /// What became ready since the last reading: machine, group.
    ready: [bool; 2],
    /// Pages that the machine's own reclaim had looked at: when and how many, three times a second or more apart,
    /// newest first. Together they reach as far back as the window of a trigger.
    scanned: [Option<(u64, u64)>; 3],
    /// Stalls of the machine that were no business of ours.
    others: u64,
}

/// What a reading came from, in words for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause(pub String);

impl Sources {
    /// Looks for what there is.
    pub fn probe(roots: Roots, plan: &PressurePlan) -> Sources {
        let machine_bytes = meminfo(&roots.proc).map_or(u64::MAX, |m| m.total_bytes);
        let machine = stalls_of(&roots.proc.join("pressure/memory"), plan.stall);
        let group = Group::find(&roots.proc, machine_bytes).map(|g| {
            let stalls = match g.version {
                Version::V1 => level_of(&g.dir).unwrap_or(Stalls::Unknown),
                Version::V2 => match stalls_of(&g.dir.join("memory.pressure"), plan.stall) {
                    Stalls::Unknown => Stalls::Hits { last: g.hits() },
                    found => found,
                },
            };
            (g, stalls)
        });
        Sources {
            roots,
            stall: plan.stall,
            available_min: plan.available_min_bytes,
            machine,
            group,
            ready: [false; 2],
            scanned: [None; 3],
            others: 0,
        }
    }

    /// What is in use, in words.
    pub fn describe(&self) -> String {
        let mut text = format!("{}; MemAvailable", self.words(&self.machine));
        match self.available_min {
            Some(0) => text += " not looked at",
            Some(min) => _ = write!(text, " of at least {}", Size(min)),
            None => {
                let total = meminfo(&self.roots.proc).map_or(0, |m| m.total_bytes);
                _ = write!(text, " of at least {}", human_size(total / AVAILABLE_PART_DEFAULT));
            }
        }
        if let Some((group, stalls)) = &self.group {
            let limit = group.memory().map_or("an unknown limit".to_string(), |m| human_size(m.limit_bytes));
            _ = write!(text, "; control group {} of {limit}: {}", group.dir.display(), self.words(stalls));
        }
        text
    }

    fn words(&self, stalls: &Stalls) -> String {
        let window = |us: u64| Time::from(Duration::from_micros(us));
        let stall = |us: u64| Time::from(stall_in(self.stall, us));
        match stalls {
            Stalls::Trigger { window_us, .. } => {
                format!("PSI trigger (some {} in {})", stall(*window_us), window(*window_us))
            }
            Stalls::Counter { .. } => {
                format!("PSI counter (some {} in 1s; no trigger without CAP_SYS_RESOURCE)", stall(WINDOWS_US[0]))
            }
            Stalls::Level { .. } => "memory.pressure_level (medium)".into(),
            Stalls::Hits { .. } => "memory.events (high, max)".into(),
            Stalls::Unknown => "no PSI (needs Linux 4.20 with CONFIG_PSI, and psi=1 where it is off by default)".into(),
        }
    }

    /// Stalls of the machine as a whole that were no business of ours, since the beginning.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Waits for news, at most `timeout`, or until `wake_fd` is signalled.
    pub fn wait(&mut self, timeout: Duration, wake_fd: BorrowedFd<'_>) {
        let mut fds = vec![PollFd::new(&wake_fd, PollFlags::IN)];
        let mut whose = Vec::new();
        for (n, stalls) in [Some(&self.machine), self.group.as_ref().map(|g| &g.1)].into_iter().enumerate() {
            match stalls {
                Some(Stalls::Trigger { file, .. }) => fds.push(PollFd::new(file, PollFlags::PRI)),
                Some(Stalls::Level { event, .. }) => fds.push(PollFd::new(event, PollFlags::IN)),
                _ => continue,
            }
            whose.push(n);
        }
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&timeout));
        let seen: Vec<_> = whose.into_iter().zip(fds[1..].iter().map(PollFd::revents)).collect();
        for (n, events) in seen {
            if events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                self.lose(n);
            } else if events.intersects(PollFlags::PRI | PollFlags::IN) {
                self.ready[n] = true;
                if let Some((_, Stalls::Level { event, .. })) = &self.group
                    && n == 1
                {
                    let _ = rustix::io::read(event, &mut [0u8; 8]);
                }
            }
        }
    }

    /// Waits until `wake_fd` is signalled.
    pub fn idle(wake_fd: BorrowedFd<'_>) {
        let _ = poll(&mut [PollFd::new(&wake_fd, PollFlags::IN)], None);
    }

    /// A source has gone, with its group.
    fn lose(&mut self, n: usize) {
        tracing::warn!(
            "the kernel tells no more about pressure on the memory of {}; available memory is still looked at",
            if n == 0 { "the machine" } else { "the control group" }
        );
        match n {
            0 => self.machine = Stalls::Unknown,
            _ => self.group = None,
        }
    }

    /// Whether the machine as a whole reclaims memory, or did a moment ago. Control groups that reclaim for their own
    /// limits do not count.
    fn reclaims(&mut self, now_ns: u64) -> bool {
        let text = small(&self.roots.proc.join("vmstat")).unwrap_or_default();
        let pages = |name| parse::field(&text, name);
        let (Some(kswapd), Some(direct)) = (pages("pgscan_kswapd"), pages("pgscan_direct")) else { return true };
        let now = kswapd.saturating_add(direct);
        if self.scanned[0].is_none_or(|(then_ns, _)| now_ns.saturating_sub(then_ns) >= COUNT_NS) {
            self.scanned = [Some((now_ns, now)), self.scanned[0], self.scanned[1]];
        }
        let before = self.scanned[2].or(self.scanned[1]).or(self.scanned[0]);
        before.is_none_or(|(_, pages)| now.saturating_sub(pages) >= SCANNED_PAGES_MIN)
    }

    /// Takes a reading.
    pub fn read(&mut self, now_ns: u64) -> (Reading, Cause) {
        let mut cause = String::new();
        let mut reading = Reading { now_ns, spare_bytes: u64::MAX, room_bytes: u64::MAX, ..Reading::default() };
        let mut look = |what: &str, available: u64, min: u64, kept: u64| {
            reading.short_bytes = reading.short_bytes.max(min.saturating_sub(available));
            reading.spare_bytes = reading.spare_bytes.min(available.saturating_sub(min));
            reading.room_bytes = reading.room_bytes.min(available.saturating_sub(min.max(kept)) / 2);
            if available < min {
                let (available, min) = (human_size(available), human_size(min));
                _ = write!(cause, "{what} has {available} available, less than {min}; ");
            }
        };
        let info = meminfo(&self.roots.proc);
        let (mut group, mut group_is_full) = (None, true);
        if let Some(m) = &info {
            look(
                "the machine",
                m.available_bytes,
                self.available_min.unwrap_or(m.total_bytes / AVAILABLE_PART_DEFAULT),
                0,
            );
        }
        if let Some(m) = self.group.as_ref().and_then(|(g, _)| g.memory()) {
            // A limit smaller than what the machine should keep: half of it is the most that makes sense.
            let min = self.available_min.map(|min| min.min(m.limit_bytes / 2));
            let min = min.unwrap_or(m.limit_bytes / GROUP_PART_DEFAULT);
            let kept = m.limit_bytes / GROUP_PART_KEPT;
            look("the control group", m.available_bytes, min, kept);
            group_is_full = m.available_bytes < min.max(kept);
            // The store gives way to guests: what it leaves to others is theirs to take, and then it gives back.
            let guests = m.available_bytes.saturating_sub(m.limit_bytes / GROUP_PART_GUESTS) / 2;
            group = Some((guests, m.shared_bytes));
        }
        (reading.guests_bytes, reading.shared_bytes) = group.unzip();
        let ready = std::mem::take(&mut self.ready);
        let stall = self.stall;
        let has_plenty = info.is_some_and(|m| m.available_bytes > m.total_bytes / AVAILABLE_PART_CALM);
        let reclaims = self.reclaims(now_ns) && !has_plenty;
        if stalled(&mut self.machine, None, ready[0], stall, now_ns) {
            if !reclaims {
                self.others += 1;
            } else {
                reading.stalled = true;
                cause += "processes wait for memory (PSI of the machine); ";
            }
        }
        if let Some((group, stalls)) = &mut self.group
            && stalled(stalls, Some(group), ready[1], stall, now_ns)
        {
            // With page cache left that can go, it is that which was recycled: a group that reads files does so always.
            if group_is_full {
                reading.group_stalled = true;
                cause += "the control group is short of memory; ";
            } else {
                self.others += 1;
            }
        }
        cause.truncate(cause.trim_end_matches("; ").len());
        (reading, Cause(cause))
    }
}

/// Whether there were stalls for longer than allowed, by what was learnt since the last call.
fn stalled(stalls: &mut Stalls, group: Option<&Group>, ready: bool, stall: Duration, now_ns: u64) -> bool {
    match stalls {
        Stalls::Trigger { .. } | Stalls::Level { .. } => ready,
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
        Stalls::Hits { last } => {
            let hits = group.and_then(Group::hits);
            let more = matches!((*last, hits), (Some(then), Some(now)) if now > then);
            *last = hits.or(*last);
            more
        }
        Stalls::Unknown => false,
    }
}

/// The stall that is allowed in a window, for one that is given for a second.
fn stall_in(stall: Duration, window_us: u64) -> Duration {
    stall * (window_us / 1_000_000).max(1) as u32
}

/// The stalls that a pressure file tells of: by a trigger, else by its counter.
fn stalls_of(path: &Path, stall: Duration) -> Stalls {
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
    let words = format!("{} {} medium", raw(event.as_fd()), raw(level.as_fd()));
    OpenOptions::new().write(true).open(dir.join("cgroup.event_control"))?.write_all(words.as_bytes())?;
    Ok(Stalls::Level { event, _level: level })
}

fn raw(fd: BorrowedFd<'_>) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}

fn meminfo(proc: &Path) -> Option<parse::MemInfo> {
    parse::meminfo(&small(&proc.join("meminfo"))?)
}

/// A small file as text.
fn small(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn plan(available_min_bytes: Option<u64>) -> PressurePlan {
        PressurePlan {
            watch: true,
            stall: Duration::from_millis(150),
            available_min_bytes,
            give_within: Duration::from_secs(2),
            calm: Duration::from_secs(30),
            regrow: Duration::from_secs(64),
        }
    }

    fn write(proc: &Path, free_mib: u64, available_mib: u64, stalled_us: Option<u64>) {
        fs::create_dir_all(proc.join("pressure")).unwrap();
        let text = format!(
            "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\n",
            1000 << 10,
            free_mib << 10,
            available_mib << 10
        );
        fs::write(proc.join("meminfo"), text).unwrap();
        if let Some(us) = stalled_us {
            let line = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={us}\n");
            fs::write(proc.join("pressure/memory"), line).unwrap();
        }
    }

    #[test]
    fn without_psi_available_memory_counts() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 500, 600, None);
        let mut s = Sources::probe(Roots { proc: dir.path().into() }, &plan(None));
        assert!(
            s.describe().starts_with("no PSI (needs Linux 4.20") && s.describe().contains("at least 20MiB"),
            "{}",
            s.describe()
        );
        let (spare_bytes, room_bytes) = (580 << 20, 290 << 20);
        assert_eq!(s.read(S).0, Reading { now_ns: S, spare_bytes, room_bytes, ..Reading::default() });
        write(dir.path(), 5, 15, None);
        let (reading, cause) = s.read(2 * S);
        assert_eq!((reading.stalled, reading.short_bytes, reading.spare_bytes), (false, 5 << 20, 0));
        assert_eq!(cause.0, "the machine has 15MiB available, less than 20MiB");
    }

    #[test]
    fn where_no_trigger_is_to_be_had_stalls_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 5, 200, Some(1000));
        let mut s = Sources::probe(Roots { proc: dir.path().into() }, &plan(Some(0)));
        assert!(s.describe().starts_with("PSI counter (some 150ms in 1s"), "{}", s.describe());
        assert!(!s.read(S).0.stalled);
        write(dir.path(), 5, 200, Some(1000 + 140_000));
        assert!(!s.read(2 * S).0.stalled, "140ms in a second");
        write(dir.path(), 5, 200, Some(1000 + 140_000 + 75_000));
        assert!(!s.read(2 * S + S / 2).0.stalled, "not a second yet");
        write(dir.path(), 5, 200, Some(1000 + 140_000 + 310_000));
        let (reading, cause) = s.read(4 * S);
        assert!(reading.stalled && cause.0.contains("PSI of the machine"), "310ms in two seconds");
        assert!(!s.read(5 * S).0.stalled, "once for each stall");
    }

    #[test]
    fn stalls_while_the_machine_itself_reclaims_nothing_are_somebody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let vmstat = |kswapd: u64, direct: u64| {
            let text =
                format!("nr_free_pages 5\npgscan_kswapd {kswapd}\npgscan_direct {direct}\npgscan_direct_throttle 9\n");
            fs::write(dir.path().join("vmstat"), text).unwrap();
        };
        write(dir.path(), 100, 200, Some(0));
        vmstat(1_000_000, 5000);
        let mut s = Sources::probe(Roots { proc: dir.path().into() }, &plan(None));
        s.read(S);
        write(dir.path(), 100, 200, Some(900_000));
        vmstat(1_000_100, 5000);
        assert_eq!((s.read(2 * S).0.stalled, s.others()), (false, 1), "a group reclaims for itself");
        write(dir.path(), 50, 200, Some(1_800_000));
        vmstat(1_000_900, 5900);
        assert_eq!((s.read(3 * S).0.stalled, s.others()), (true, 1));
        write(dir.path(), 50, 200, Some(2_700_000));
        assert!(s.read(4 * S).0.stalled, "it did until a moment ago");
        write(dir.path(), 50, 200, Some(3_600_000));
        assert_eq!((s.read(5 * S).0.stalled, s.others()), (false, 2));
        vmstat(9_000_000, 5900);
        write(dir.path(), 50, 251, Some(4_500_000));
        assert_eq!((s.read(6 * S).0.stalled, s.others()), (false, 3), "a quarter of the memory is available");
    }

    #[test]
    fn a_group_without_psi_tells_by_its_events() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, tree) = (dir.path().join("proc"), dir.path().join("tree/g"));
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(&tree).unwrap();
        write(&proc, 500, 600, None);
        fs::write(proc.join("self/cgroup"), "0::/g\n").unwrap();
        let mount = format!("1 1 0:1 / {} rw - cgroup2 c rw\n", dir.path().join("tree").display());
        fs::write(proc.join("self/mountinfo"), mount).unwrap();
        fs::write(tree.join("memory.max"), "67108864\n").unwrap();
        fs::write(tree.join("memory.current"), "33554432\n").unwrap();
        fs::write(tree.join("memory.events"), "high 0\nmax 5\n").unwrap();
        let mut s = Sources::probe(Roots { proc: proc.clone() }, &plan(Some(40 << 20)));
        assert!(s.describe().contains("of 64MiB: memory.events"), "{}", s.describe());
        let (reading, cause) = s.read(S);
        assert_eq!((reading.stalled, reading.short_bytes), (false, 0), "half of the limit is to stay: {cause:?}");
        fs::write(tree.join("memory.events"), "high 0\nmax 6\n").unwrap();
        let (reading, _) = s.read(2 * S);
        assert_eq!((reading.is_pressed(), s.others()), (false, 1), "half of the limit can still be had");
        fs::write(tree.join("memory.current"), "50331648\n").unwrap();
        fs::write(tree.join("memory.events"), "high 0\nmax 7\n").unwrap();
        let (reading, cause) = s.read(3 * S);
        assert!(reading.group_stalled && !reading.stalled && cause.0.contains("control group is short"), "{cause:?}");
        let (reading, _) = s.read(4 * S);
        assert_eq!((reading.group_stalled, reading.short_bytes), (false, 16 << 20), "once for each event");
        // What nobody has asked to stay, but for a little: half of the rest may be taken before the next look.
        let mut s = Sources::probe(Roots { proc }, &plan(Some(0)));
        assert_eq!(s.read(5 * S).0.room_bytes, (16 - 2) << 19);
        fs::write(tree.join("memory.current"), "66000000\n").unwrap();
        let reading = s.read(6 * S).0;
        assert_eq!((reading.short_bytes, reading.room_bytes), (0, 0));
        // Guests may go further than the store, which then gives way, but not to the very end.
        assert_eq!(reading.guests_bytes, Some(((64 << 20) - 66_000_000 - (64 << 20) / 128) / 2));
        fs::write(tree.join("memory.current"), "66600000\n").unwrap();
        assert_eq!(s.read(7 * S).0.guests_bytes, Some(0));
    }

    /// On the machine that runs the tests: something is in use, and a wait ends when the wake descriptor is signalled.
    #[test]
    fn this_machine_is_watched() {
        let mut s = Sources::probe(Roots::default(), &plan(None));
        assert!(s.describe().contains("MemAvailable of at least"), "{}", s.describe());
        let has_psi = small(Path::new("/proc/pressure/memory")).is_some();
        assert_eq!(s.describe().starts_with("PSI"), has_psi, "{}", s.describe());
        let wake_fd = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        s.wait(Duration::from_secs(3600), wake_fd.as_fd());
        assert!(s.read(S).0.spare_bytes < 1 << 60);
    }
}
