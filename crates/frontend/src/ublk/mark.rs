//! Whose a device is: a number that the kernel keeps with it, and gives to whoever asks.
//!
//! Owns how the number is made. Never asks the kernel. Invariant: the same disk of the same daemon has the same number
//! in every version of this program, for the next version goes on with what this one has left.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A disk of a daemon: 24 bits for the daemon, 40 for the disk. No two of a thousand disks of a daemon have the same
/// one but in one case of two millions, and then their sizes must be equal, too, for one to be taken for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// Bits for the disk.
const DISK_BITS: u32 = 40;

/// FNV-1a of 64 bits, with its bits mixed (the last steps of MurmurHash3), so that any of them serve.
fn hash(bytes: &[u8]) -> u64 {
    let h = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

impl Mark {
    /// That of the disk `name` of the daemon whose runtime directory this is.
    pub fn new(runtime_dir: &Path, name: &str) -> Mark {
        let (daemon, disk) = (hash(runtime_dir.as_os_str().as_bytes()), hash(name.as_bytes()));
        // No other server of ublk devices is likely to have a number like these; most have 0.
        Mark((daemon >> DISK_BITS << DISK_BITS | disk >> (64 - DISK_BITS)).max(1))
    }

    /// As the kernel keeps it.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// Whether `number` is that of a disk of the same daemon.
    pub(super) fn is_of_same_daemon(self, number: u64) -> bool {
        self.0 >> DISK_BITS == number >> DISK_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_the_same_in_every_version() {
        let mark = Mark::new(Path::new("/run/undercroft"), "db");
        assert_eq!(mark.number(), Mark::new(Path::new("/run/undercroft"), "db").number());
        assert_eq!(format!("{:016x}", mark.number()), "1c1272b57e79a42d");
    }

    #[test]
    fn disks_and_daemons_are_told_apart() {
        let here = Path::new("/run/undercroft");
        let [a, b, c] =
            [Mark::new(here, "a"), Mark::new(here, "b"), Mark::new(Path::new("/run/other"), "a")].map(Mark::number);
        assert!(a != b && a != c && b != c);
        assert!(Mark::new(here, "x").is_of_same_daemon(a) && !Mark::new(here, "x").is_of_same_daemon(c));
        assert!(!Mark::new(here, "x").is_of_same_daemon(0));
        let mut all: Vec<u64> = (0..5000).map(|n| Mark::new(here, &format!("vm{}:disk{n}", n % 7)).number()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5000);
    }
}
