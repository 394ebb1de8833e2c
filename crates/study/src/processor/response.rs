//! What a reference takes on average, by how many miss and where misses go: equations 3 and 4 of the thesis.
//!
//! Owns the two equations, and what links and disks take by their makers' figures. Never measures anything. Invariant:
//! all times are of one block.
//!
//! Equation 3 is T = M C_M + (1 - M) C_H. Equation 4 is printed as that of C_H, but has the terms of a miss, and none
//! for the hits of the controller: C_M = 2 T_FC + T_CC + (1 - h) (T_SEEK + T_ROT), h being the share that the
//! controller's own cache has.

/// How blocks travel between a host and its disks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Its name.
    pub name: &'static str,
    /// One way, without data, in microseconds: adapters, and what is between.
    pub latency_us: f64,
    /// Megabytes a second.
    pub megabytes: f64,
}

/// Usual links: rates are what encodings leave of a lane, latencies usual ones of an adapter and a switch.
pub const LINKS: [Link; 4] = [
    Link { name: "fc", latency_us: 10.0, megabytes: 1600.0 },
    Link { name: "iscsi", latency_us: 50.0, megabytes: 1250.0 },
    Link { name: "sas", latency_us: 5.0, megabytes: 1200.0 },
    Link { name: "nvme-of", latency_us: 8.0, megabytes: 3125.0 },
];

impl Link {
    /// T_FC in microseconds: one of the two ways of a request and its block, whose data go one of them.
    fn one_way_us(&self, bytes: u64) -> f64 {
        self.latency_us + bytes as f64 / self.megabytes / 2.0
    }
}

/// What holds the blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Medium {
    /// Its name.
    pub name: &'static str,
    /// Mean seek, in microseconds; of flash what a read takes.
    pub seek_us: f64,
    /// Half a turn, in microseconds.
    pub rotation_us: f64,
}

/// Usual disks, by their makers' figures.
pub const MEDIA: [Medium; 4] = [
    Medium { name: "15k", seek_us: 3400.0, rotation_us: 2000.0 },
    Medium { name: "10k", seek_us: 4600.0, rotation_us: 3000.0 },
    Medium { name: "7200", seek_us: 8500.0, rotation_us: 4166.7 },
    Medium { name: "flash", seek_us: 90.0, rotation_us: 0.0 },
];

/// Where a miss goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array {
    /// The link to it.
    pub link: Link,
    /// Its disks.
    pub medium: Medium,
    /// T_CC, to search the controller's cache, in microseconds.
    pub controller_us: f64,
    /// What that has of what is asked for, 0 to 1.
    pub controller_hits: f64,
}

impl Array {
    /// C_M, in microseconds, for a block of so many bytes.
    pub fn miss_us(&self, bytes: u64) -> f64 {
        let disk = self.medium.seek_us + self.medium.rotation_us;
        2.0 * self.link.one_way_us(bytes) + self.controller_us + (1.0 - self.controller_hits) * disk
    }

    /// The mean of a reference, in microseconds, if a part `misses` (0 to 1) of all miss and a hit takes `hit_us`.
    pub fn mean_us(&self, bytes: u64, misses: f64, hit_us: f64) -> f64 {
        misses * self.miss_us(bytes) + (1.0 - misses) * hit_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_goes_over_the_link_twice_and_to_the_disk_unless_the_controller_has_it() {
        let link = Link { name: "", latency_us: 10.0, megabytes: 100.0 };
        let medium = Medium { name: "", seek_us: 3000.0, rotation_us: 2000.0 };
        let array = Array { link, medium, controller_us: 20.0, controller_hits: 0.25 };
        // 4,000 bytes at 100 MB/s take 40 us, half of which each way is counted with.
        assert_eq!(array.miss_us(4000), 2.0 * 30.0 + 20.0 + 0.75 * 5000.0);
        assert_eq!(array.mean_us(4000, 0.1, 2.0), 0.1 * 3830.0 + 0.9 * 2.0);
        assert_eq!(Array { controller_hits: 1.0, ..array }.miss_us(0), 40.0);
    }
}
