//! What a server process costs: CPU time and resident memory.
//!
//! Owns nothing; reads the kernel's books. Never disturbs the server.
//! Total CPU time is the process's CPU clock (nanoseconds, threads that have ended included); the split into user and
//! system time comes from `/proc/PID/stat`, whose ticks are 10 ms.

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::fs;

/// A reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// CPU time in seconds, all threads.
    pub cpu_s: f64,
    /// Of which in user mode, by the ticks.
    user_s: f64,
    /// Of which in the kernel, by the ticks.
    system_s: f64,
}

/// CPU time between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Seconds in all.
    pub cpu_s: f64,
    /// Seconds in user mode.
    pub user_s: f64,
    /// Seconds in the kernel.
    pub system_s: f64,
}

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Resident {
    /// Everything mapped and present: the driver's shared memory is in it.
    pub rss: u64,
    /// Anonymous memory: the server's own.
    pub anonymous: u64,
    /// Pages of files.
    pub file: u64,
    /// Shared memory: memfd, hence also the driver's buffers.
    pub shared: u64,
}

/// Reads the CPU time of all `pids`. Processes that are gone count as 0.
pub fn read(pids: &[i32]) -> Reading {
    let mut r = Reading::default();
    for pid in pids {
        if let Ok(time) = clock_getcpuclockid(Pid::from_raw(*pid)).and_then(|clock| clock.now()) {
            r.cpu_s += time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The second field is the name in brackets, and may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')').map(|(_, f)| f.split_whitespace().collect()).unwrap_or_default();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        r.user_s += ticks(11) / 100.0;
        r.system_s += ticks(12) / 100.0;
    }
    r
}

/// What was spent from `before` to `after`: the total is exact, its parts are in the proportion of the ticks.
pub fn spent(before: Reading, after: Reading) -> Spent {
    let total = after.cpu_s - before.cpu_s;
    let (user, system) = (after.user_s - before.user_s, after.system_s - before.system_s);
    let share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
    Spent { cpu_s: total, user_s: total * share, system_s: total * (1.0 - share) }
}

/// Resident memory of all `pids`.
pub fn resident(pids: &[i32]) -> Resident {
    let mut r = Resident::default();
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let bytes = |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("");
            line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        r.rss += bytes("VmRSS:");
        r.anonymous += bytes("RssAnon:");
        r.file += bytes("RssFile:");
        r.shared += bytes("RssShmem:");
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_this_process_is_seen() {
        let pid = [std::process::id() as i32];
        let before = read(&pid);
        let mut x = 1u64;
        while read(&pid).cpu_s - before.cpu_s < 0.02 {
            (0..10_000).for_each(|i| x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i)));
        }
        let s = spent(before, read(&pid));
        assert!(s.cpu_s >= 0.02 && s.cpu_s < 60.0, "{s:?}");
        assert!((s.user_s + s.system_s - s.cpu_s).abs() < 1e-9);
        assert!(resident(&pid).anonymous > 0);
    }

    #[test]
    fn a_process_that_is_gone_costs_nothing() {
        const NO_PID: i32 = 1 << 22; // the kernel gives out numbers below this
        assert_eq!(read(&[NO_PID]).cpu_s, 0.0);
        assert_eq!(resident(&[NO_PID]).rss, 0);
    }
}
