//! The kernel's files about memory and its shortage, read.
//!
//! Owns their notation. Never opens a file. Invariant: any bytes give a value or nothing, never a panic.

/// `/proc/meminfo`, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// RAM that the kernel manages, but for what is set aside as huge pages: nobody else can have that, whether it is
    /// in use or not, and it is not part of what is free or available.
    pub total_bytes: u64,
    /// RAM that holds nothing.
    pub free_bytes: u64,
    /// RAM that could be had without swapping, by the kernel's estimate.
    pub available_bytes: u64,
}

/// `/proc/meminfo`.
pub fn meminfo(text: &str) -> Option<MemInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    };
    // Kernels before 4.19 have no sum over all sizes of them.
    let pages = || {
        let line = text.lines().find_map(|l| l.strip_prefix("HugePages_Total:"))?;
        Some(line.trim().parse::<u64>().ok()?.saturating_mul(bytes("Hugepagesize")?))
    };
    let huge_bytes = bytes("Hugetlb").or_else(pages).unwrap_or(0);
    let total_bytes = bytes("MemTotal")?.saturating_sub(huge_bytes);
    let at_most = |b: u64| b.min(total_bytes);
    Some(MemInfo {
        total_bytes,
        free_bytes: at_most(bytes("MemFree")?),
        available_bytes: at_most(bytes("MemAvailable")?),
    })
}

/// A pressure file (PSI): microseconds for which some task waited, since boot or since the group was made.
pub fn stalled_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|w| w.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read() {
        let text =
            "MemTotal:       24681472 kB\nMemFree:         3505000 kB\nMemAvailable:   23441000 kB\nBuffers: 1 kB\n";
        let m = meminfo(text).unwrap();
        assert_eq!((m.total_bytes >> 10, m.free_bytes >> 10, m.available_bytes >> 10), (24681472, 3505000, 23441000));
        assert_eq!(meminfo("MemTotal: 1 kB\nMemFree: 1 kB\n"), None, "kernels before 3.14 have no MemAvailable");
        assert!(meminfo(&std::fs::read_to_string("/proc/meminfo").unwrap()).is_some());
    }

    #[test]
    fn huge_pages_are_taken_off() {
        let total_kib = |rest: &str| {
            let text = format!("MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 500000 kB\n{rest}");
            meminfo(&text).map(|m| (m.total_bytes >> 10, m.available_bytes >> 10))
        };
        let pages = "HugePages_Total:      100\nHugePages_Free: 3\nHugepagesize:       2048 kB\n";
        assert_eq!(total_kib(""), Some((1_000_000, 500_000)), "a kernel without them");
        assert_eq!(total_kib(pages), Some((795_200, 500_000)), "before 4.19: those of one size");
        assert_eq!(total_kib(&format!("{pages}Hugetlb: 600000 kB\n")), Some((400_000, 400_000)), "of all sizes");
        assert_eq!(total_kib("Hugetlb: 2000000 kB\n"), Some((0, 0)));
        assert_eq!(total_kib("HugePages_Total: 18446744073709551615\nHugepagesize: 1048576 kB\n"), Some((0, 0)));
    }

    #[test]
    fn stalls_are_read() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=3259233\nfull avg10=0.00 avg60=0.00 avg300=0.00 \
            total=1550226\n";
        assert_eq!((stalled_us(text), stalled_us("full total=3"), stalled_us("")), (Some(3259233), None, None));
    }
}
