//! Where shortage of memory is seen: pressure files (PSI), events of control groups, available memory.
//!
//! Owns what is asked, and whose business a stall is. Never decides what to do about a shortage. Invariants: every
//! limit that holds for this process counts, its control group's and those of all groups above, also one that is set
//! while it runs; a reading costs reading a few small files.

use super::control::Reading;
use super::stalls::{COUNT_NS, Stalls};
use super::{AVAILABLE_PART_DEFAULT, GROUP_GUESTS_KEPT, GROUP_PART_DEFAULT, GROUP_PART_GUESTS, GROUP_PART_KEPT, parse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use undercroft_config::PressurePlan;
use undercroft_host::ControlGroup;
use undercroft_host::control_group::field;
use undercroft_units::{Size, human_size};

/// With fewer pages than this looked at by the machine's own reclaim in a second or two, who waits for memory does so
/// for the limit of a control group, which the kernel's counters of reclaim leave out, and memory of ours would not
/// help him.
const SCANNED_PAGES_MIN: u64 = 1024;
/// With more than this part of its memory available, a machine is not short of it, whoever waits. Reserved huge pages
/// do not count.
const AVAILABLE_PART_CALM: u64 = 4;

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

/// Whose stalls they are: the machine's, or those of a control group that we are in.
#[derive(Debug)]
struct Source {
    /// `None`: the machine.
    group: Option<ControlGroup>,
    /// The limit of the group in bytes, while it has one that is less than what the machine has.
    limit_bytes: Option<u64>,
    stalls: Stalls,
    /// Whether the kernel woke us since the last reading.
    woken: bool,
}

impl Source {
    /// What it is called in messages.
    fn name(&self) -> String {
        self.group.as_ref().map_or("the machine".into(), |g| format!("the control group {}", g.dir.display()))
    }
}

/// What has changed of the limits since somebody asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LimitsChanged {
    /// Nothing.
    #[default]
    No,
    /// Their sizes.
    Sizes,
    /// Which groups have one.
    Groups,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Sources {
    roots: Roots,
    stall: Duration,
    available_min: Option<u64>,
    machine: Source,
    /// The control groups that we are in, innermost first.
    groups: Vec<Source>,
    changed: LimitsChanged,
    /// Pages that the machine's own reclaim had looked at: when and how many, three times a second or more apart,
    /// newest first. Together they reach as far back as the window of a trigger.
    scanned: [Option<(u64, u64)>; 3],
    /// Stalls of the machine that were no business of ours.
    others: u64,
}

/// What a reading came from, in words for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause(pub String);

/// What is seen of memory somewhere, in bytes.
#[derive(Clone, Copy)]
struct Seen {
    available: u64,
    /// How much is to stay available.
    min: u64,
    /// Into how much the store does not grow.
    kept: u64,
}

impl Seen {
    /// Adds this to a reading, in which the tightest of all counts.
    fn add_to(self, reading: &mut Reading, cause: &mut String, source: &Source) {
        let Seen { available, min, kept } = self;
        reading.short_bytes = reading.short_bytes.max(min.saturating_sub(available));
        reading.spare_bytes = reading.spare_bytes.min(available.saturating_sub(min));
        reading.room_bytes = reading.room_bytes.min(available.saturating_sub(min.max(kept)) / 2);
        if available < min {
            let (available, min) = (human_size(available), human_size(min));
            _ = write!(cause, "{} has {available} available, less than {min}; ", source.name());
        }
    }
}

impl Sources {
    /// Looks for what there is.
    pub fn probe(roots: Roots, plan: &PressurePlan) -> Sources {
        let machine = Source {
            group: None,
            limit_bytes: None,
            stalls: Stalls::of_file(&roots.proc.join("pressure/memory"), plan.stall),
            woken: false,
        };
        let groups = ControlGroup::of_this_process(&roots.proc).into_iter();
        let groups =
            groups.map(|g| Source { group: Some(g), limit_bytes: None, stalls: Stalls::Unknown, woken: false });
        let mut found = Sources {
            stall: plan.stall,
            available_min: plan.available_min_bytes,
            machine,
            groups: groups.collect(),
            changed: LimitsChanged::No,
            scanned: [None; 3],
            others: 0,
            roots,
        };
        let machine_bytes = meminfo(&found.roots.proc).map_or(u64::MAX, |m| m.total_bytes);
        for n in 0..found.groups.len() {
            let limit_bytes = found.groups[n].group.as_ref().and_then(ControlGroup::limit_bytes);
            found.limit(n, limit_bytes.filter(|l| *l < machine_bytes));
        }
        found.changed = LimitsChanged::No;
        found
    }

    /// Group `n` has this limit now.
    fn limit(&mut self, n: usize, limit_bytes: Option<u64>) {
        let source = &mut self.groups[n];
        if source.limit_bytes == limit_bytes {
            return;
        }
        let (had, has) = (source.limit_bytes.is_some(), limit_bytes.is_some());
        source.limit_bytes = limit_bytes;
        if had != has {
            let group = source.group.as_ref().filter(|_| has);
            source.stalls = group.map_or(Stalls::Unknown, |g| Stalls::of_group(g, self.stall));
            source.woken = false;
        }
        self.changed = self.changed.max(if had != has { LimitsChanged::Groups } else { LimitsChanged::Sizes });
    }

    /// What has changed of the limits since the last call: then [`Sources::describe`] says something else.
    pub(super) fn limits_changed(&mut self) -> LimitsChanged {
        std::mem::take(&mut self.changed)
    }

    /// What is in use, in words.
    pub fn describe(&self) -> String {
        let mut text = format!("{}; MemAvailable", self.machine.stalls.words(self.stall));
        match self.available_min {
            Some(0) => text += " not looked at",
            Some(min) => _ = write!(text, " of at least {}", Size(min)),
            None => {
                let total = meminfo(&self.roots.proc).map_or(0, |m| m.total_bytes);
                _ = write!(text, " of at least {}", human_size(total / AVAILABLE_PART_DEFAULT));
            }
        }
        for source in &self.groups {
            if let (Some(group), Some(limit)) = (&source.group, source.limit_bytes) {
                let (dir, words) = (group.dir.display(), source.stalls.words(self.stall));
                _ = write!(text, "; control group {dir} of {}: {words}", human_size(limit));
            }
        }
        text
    }

    /// Stalls of the machine as a whole that were no business of ours, since the beginning.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Waits for news, at most `timeout`, or until `wake_fd` is signalled.
    pub fn wait(&mut self, timeout: Duration, wake_fd: BorrowedFd<'_>) {
        let mut fds = vec![PollFd::new(&wake_fd, PollFlags::IN)];
        let mut whose = Vec::new();
        for (n, source) in std::iter::once(&self.machine).chain(&self.groups).enumerate() {
            if let Some((fd, flags)) = source.stalls.wakes() {
                fds.push(PollFd::from_borrowed_fd(fd, flags));
                whose.push(n);
            }
        }
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&timeout));
        let seen: Vec<_> = whose.into_iter().zip(fds[1..].iter().map(PollFd::revents)).collect();
        for (n, events) in seen {
            let source = if n == 0 { &mut self.machine } else { &mut self.groups[n - 1] };
            if events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                tracing::warn!(
                    "the kernel tells no more about pressure on the memory of {}; available memory is still looked at",
                    source.name()
                );
                source.stalls = Stalls::Unknown;
            } else if events.intersects(PollFlags::PRI | PollFlags::IN) {
                source.woken = true;
                source.stalls.woken();
            }
        }
    }

    /// Waits until `wake_fd` is signalled.
    pub fn idle(wake_fd: BorrowedFd<'_>) {
        let _ = poll(&mut [PollFd::new(&wake_fd, PollFlags::IN)], None);
    }

    /// Whether the machine as a whole reclaims memory, or did a moment ago. Control groups that reclaim for their own
    /// limits do not count.
    fn reclaims(&mut self, now_ns: u64) -> bool {
        let text = small(&self.roots.proc.join("vmstat")).unwrap_or_default();
        let pages = |name| field(&text, name);
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
        let info = meminfo(&self.roots.proc);
        if let Some(m) = &info {
            let min = self.available_min.unwrap_or(m.total_bytes / AVAILABLE_PART_DEFAULT);
            Seen { available: m.available_bytes, min, kept: 0 }.add_to(&mut reading, &mut cause, &self.machine);
        }
        let machine_bytes = info.map_or(u64::MAX, |m| m.total_bytes);
        for n in 0..self.groups.len() {
            self.read_group(n, machine_bytes, &mut reading, &mut cause);
        }
        let woken = std::mem::take(&mut self.machine.woken);
        let has_plenty = info.is_some_and(|m| m.available_bytes > m.total_bytes / AVAILABLE_PART_CALM);
        let reclaims = self.reclaims(now_ns) && !has_plenty;
        if self.machine.stalls.happened(woken, self.stall, now_ns) {
            if !reclaims {
                self.others += 1;
            } else {
                reading.stalled = true;
                cause += "processes wait for memory (PSI of the machine); ";
            }
        }
        cause.truncate(cause.trim_end_matches("; ").len());
        (reading, Cause(cause))
    }

    /// Adds what is seen in group `n`, if it has a limit.
    fn read_group(&mut self, n: usize, machine_bytes: u64, reading: &mut Reading, cause: &mut String) {
        let found = self.groups[n].group.as_ref().and_then(ControlGroup::memory);
        let found = found.filter(|m| m.limit_bytes < machine_bytes);
        self.limit(n, found.map(|m| m.limit_bytes));
        let Some(m) = found else { return };
        let source = &mut self.groups[n];
        // A limit smaller than what the machine should keep: half of it is the most that makes sense.
        let min = self.available_min.map(|min| min.min(m.limit_bytes / 2));
        let min = min.unwrap_or(m.limit_bytes / GROUP_PART_DEFAULT);
        let kept = m.limit_bytes / GROUP_PART_KEPT;
        Seen { available: m.available_bytes, min, kept }.add_to(reading, cause, source);
        // With a large limit the store gives way to guests: what it leaves to others is theirs to take, and then it
        // gives back.
        let (most, part) = GROUP_GUESTS_KEPT;
        let left = (m.limit_bytes / GROUP_PART_GUESTS).max(most.min(m.limit_bytes / part));
        let guests = m.available_bytes.saturating_sub(left) / 2;
        reading.guests_bytes = Some(reading.guests_bytes.map_or(guests, |g| g.min(guests)));
        // Of the innermost group: what is charged to those above it can be others'.
        reading.shared_bytes = reading.shared_bytes.or(Some(m.shared_bytes));
        let woken = std::mem::take(&mut source.woken);
        if source.stalls.happened(woken, self.stall, reading.now_ns) {
            // With page cache left that can go, it is that which was recycled: a group that reads files does so always.
            if m.available_bytes < min.max(kept) {
                reading.group_stalled = true;
                *cause += &format!("{} is short of memory; ", source.name());
            } else {
                self.others += 1;
            }
        }
    }
}

/// What files of `/proc` and of control groups have, mostly.
const SMALL_BYTES: usize = 8192;

fn meminfo(proc: &Path) -> Option<parse::MemInfo> {
    parse::meminfo(&small(&proc.join("meminfo"))?)
}

/// A small file as text.
pub(super) fn small(path: &Path) -> Option<String> {
    // Room for all of it: the kernel says 0 for the size of such files, and a string that grows is read in ten pieces.
    let mut text = String::with_capacity(SMALL_BYTES);
    fs::File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;

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
    fn huge_pages_reserved_for_guests_are_no_part_of_what_should_be_available() {
        let dir = tempfile::tempdir().unwrap();
        let write = |available_mib, stalled_us, scanned: u64| {
            write(dir.path(), 5, available_mib, Some(stalled_us));
            let mut text = fs::read_to_string(dir.path().join("meminfo")).unwrap();
            _ = writeln!(text, "Hugepagesize: 2048 kB\nHugetlb: {} kB", 900 << 10);
            fs::write(dir.path().join("meminfo"), text).unwrap();
            let text = format!("pgscan_kswapd {scanned}\npgscan_direct 5\n");
            fs::write(dir.path().join("vmstat"), text).unwrap();
        };
        write(60, 0, 0);
        let mut s = Sources::probe(Roots { proc: dir.path().into() }, &plan(None));
        assert!(s.describe().contains("at least 2MiB"), "{}", s.describe());
        s.read(S);
        write(60, 900_000, 1_000_000);
        assert_eq!((s.read(2 * S).0.stalled, s.others()), (false, 1), "more than a quarter of the rest is available");
        write(15, 900_000, 2_000_000);
        assert_eq!(s.read(3 * S).0.short_bytes, 0, "a fiftieth of the rest is 2 MiB");
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
        assert!(
            reading.group_stalled && !reading.stalled && cause.0.contains("tree/g is short of memory"),
            "{cause:?}"
        );
        let (reading, _) = s.read(4 * S);
        assert_eq!((reading.group_stalled, reading.short_bytes), (false, 16 << 20), "once for each event");
        // What nobody has asked to stay, but for a little: half of the rest may be taken before the next look.
        let mut s = Sources::probe(Roots { proc }, &plan(Some(0)));
        let reading = s.read(5 * S).0;
        assert_eq!(reading.room_bytes, (16 - 2) << 19);
        assert_eq!(reading.guests_bytes, Some((16 - 4) << 19), "a 16th is left");
        fs::write(tree.join("memory.current"), "66000000\n").unwrap();
        let reading = s.read(6 * S).0;
        assert_eq!((reading.short_bytes, reading.room_bytes), (0, 0));
        assert_eq!(reading.guests_bytes, Some(0));
    }

    /// Groups `outer` and `outer/inner`, of which this process is in the inner one, on a machine of 1000 MiB.
    fn nested(dir: &Path) -> (Roots, PathBuf, PathBuf) {
        let (proc, outer) = (dir.join("proc"), dir.join("tree/outer"));
        let inner = outer.join("inner");
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(&inner).unwrap();
        write(&proc, 500, 600, None);
        fs::write(proc.join("self/cgroup"), "0::/outer/inner\n").unwrap();
        fs::write(proc.join("self/mountinfo"), format!("1 1 0:1 / {} rw - cgroup2 c rw\n", dir.join("tree").display()))
            .unwrap();
        (Roots { proc }, outer, inner)
    }

    fn group(dir: &Path, limit: &str, used_mib: u64, shared: u64) {
        fs::write(dir.join("memory.max"), limit).unwrap();
        fs::write(dir.join("memory.current"), (used_mib << 20).to_string()).unwrap();
        fs::write(dir.join("memory.stat"), format!("inactive_file 0\nshmem {shared}\n")).unwrap();
    }

    #[test]
    fn of_several_limits_the_one_with_the_least_left_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (roots, outer, inner) = nested(dir.path());
        group(&inner, "536870912", 32, 5);
        group(&outer, "268435456", 32, 7);
        let mut s = Sources::probe(roots, &plan(Some(0)));
        let text = s.describe();
        assert!(text.contains("outer/inner of 512MiB: memory.events") && text.contains("outer of 256MiB: "), "{text}");
        let reading = s.read(S).0;
        // Half of what the outer one has beyond a 32nd, and beyond 8 MiB.
        assert_eq!(reading.room_bytes, (256 - 32 - 8) << 19);
        assert_eq!(reading.guests_bytes, Some((256 - 32 - 8) << 19));
        assert_eq!(reading.shared_bytes, Some(5), "our own group's");
        group(&inner, "536870912", 500, 5);
        group(&outer, "1073741824", 500, 7);
        assert_eq!(s.read(2 * S).0.guests_bytes, Some((512 - 500 - 8) << 19));
        group(&inner, "1073741824", 500, 5);
        let mut s = Sources::probe(Roots { proc: dir.path().join("proc") }, &plan(None));
        assert!(!s.describe().contains("control group"), "limits above what the machine has limit nothing");
        assert_eq!(s.read(S).0.guests_bytes, None);
    }

    #[test]
    fn limits_that_come_and_go_while_it_runs_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (roots, outer, inner) = nested(dir.path());
        group(&inner, "max", 100, 5);
        group(&outer, "max", 100, 7);
        let mut s = Sources::probe(roots, &plan(Some(0)));
        assert_eq!((s.read(S).0.guests_bytes, s.limits_changed()), (None, LimitsChanged::No));
        fs::write(inner.join("memory.events"), "high 0\nmax 5\n").unwrap();
        group(&inner, "134217728", 100, 5);
        assert_eq!(s.read(2 * S).0.guests_bytes, Some((128 - 100 - 8) << 19));
        assert_eq!(s.limits_changed(), LimitsChanged::Groups);
        assert!(s.describe().contains("outer/inner of 128MiB: memory.events"), "{}", s.describe());
        fs::write(inner.join("memory.events"), "high 0\nmax 6\n").unwrap();
        group(&inner, "117440512", 112, 5);
        let (reading, cause) = s.read(3 * S);
        assert!(reading.group_stalled && cause.0.contains("outer/inner is short of memory"), "{cause:?}");
        assert_eq!((s.limits_changed(), s.limits_changed()), (LimitsChanged::Sizes, LimitsChanged::No));
        group(&inner, "max", 112, 5);
        assert_eq!((s.read(4 * S).0.guests_bytes, s.limits_changed()), (None, LimitsChanged::Groups));
        assert!(!s.describe().contains("control group"));
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
