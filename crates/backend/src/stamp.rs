//! What the files of an image say of themselves, so that one who comes back later can tell whether somebody has changed
//! them meanwhile.
//!
//! Owns the open files and what is asked of them. Never reads a guest's data. Invariants: two stamps that are equal, of
//! which the first had settled, mean that no byte of the image was written in between by a call of this kernel, unless
//! its clock was set back to the very nanosecond; where that does not hold, there is no stamp. What goes past the
//! kernel's clock of the file is not seen: a file system that lost the time of a change in a power failure, or was put
//! back bit by bit with all its times.
//!
//! A stamp has two parts. Which image: device, inode and its generation, of each file of the chain, and in which
//! formats they are read. In which state: size, times of the last change of the content and of the inode, and a sum
//! over the header of a qcow2 file. `touch -d` sets the first time back, but not the second, which the kernel sets by
//! itself.

use super::detect;
use rustix::fs::{StatFs, fstat, fstatfs};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fs;
use std::io;
use std::sync::Arc;
use undercroft_host::{DiskFile, inode_generation};

/// How long ago the last change must have been. Times of files move on with the tick of the kernel's clock, 10 ms at
/// most: what is written in the tick of a stamp would leave the times as they are.
const SETTLED_NS: i128 = 20_000_000;
/// The same where the file system counts in seconds.
const SETTLED_SECONDS_NS: i128 = 2_000_000_000;
/// Bytes of a qcow2 file that its sum is over: its header with the extensions.
const HEADER_BYTES: usize = 4096;
/// Kinds of file systems that keep times of changes, and on this machine alone: ext2 to ext4, XFS, btrfs, F2FS, tmpfs.
/// Others may be changed by other machines, or from below.
const KINDS: [u32; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

/// The open files of an image; locks on them are held for as long as this is there.
#[derive(Clone, Debug)]
pub struct ImageFiles {
    /// The image's own first, and whether each is read as qcow2.
    files: Arc<[(DiskFile, bool)]>,
    /// Goes into the identity: of two that differ in this, neither is the other.
    label: Arc<str>,
    found: Option<ImageStamp>,
}

/// What they said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageStamp {
    /// Which image it is.
    pub identity: [u8; 16],
    /// In which state.
    pub state: [u8; 16],
    /// The last change is so long ago that a later one shows in the state. One that has not settled is good for
    /// comparing with an earlier one, and not for keeping.
    pub settled: bool,
}

impl ImageFiles {
    /// Those files, the image's own first, and whether each is read as qcow2; `None` if one of them is a device. To be
    /// called once they are locked, and before any of them is changed: even to try whether holes can be punched, behind
    /// the end of a file, is a change by its times.
    pub(super) fn of(files: impl IntoIterator<Item = (DiskFile, bool)>) -> Option<Self> {
        let files: Arc<[_]> = files.into_iter().collect();
        if files.is_empty() || files.iter().any(|(file, _)| file.is_device) {
            return None;
        }
        let mut files = Self { files, label: Arc::from(""), found: None };
        files.found = files.stamp().ok().flatten();
        Some(files)
    }

    /// Those of the image that a disk stands on, as they are now; nobody writes to them while they are locked. They are
    /// all below the top one, or that one if it is alone, since a disk that nobody writes is all base. With another
    /// `label` it is another image.
    pub fn base(&self, label: &str) -> Self {
        let below = self.files.get(1..).filter(|below| !below.is_empty());
        let mut files =
            Self { files: below.map_or_else(|| self.files.clone(), Arc::from), label: label.into(), found: None };
        files.found = files.stamp().ok().flatten();
        files
    }

    /// What they said when the image was opened, before this process changed anything: to be compared with what was
    /// kept of the run before. `None` if that would tell nothing.
    pub fn found(&self) -> Option<ImageStamp> {
        self.found
    }

    /// What they say now; `None` if that would tell nothing, because of where they lie.
    ///
    /// # Errors
    /// What the file system says.
    pub fn stamp(&self) -> io::Result<Option<ImageStamp>> {
        // Before the files are asked: a change that comes after that is later than this.
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let (mut identity, mut state, mut settled) = (Sum::new(), Sum::new(), true);
        identity.add(self.label.as_bytes());
        for (file, is_qcow2) in self.files.iter() {
            let stat = fstat(&**file.file)?;
            let kind = fstatfs(&**file.file)?;
            if !tells_changes(&kind, stat.st_dev) {
                return Ok(None);
            }
            let generation = inode_generation(&file.file).map_or(u64::MAX, u64::from);
            let which = [stat.st_dev, stat.st_ino, generation, u64::from(*is_qcow2)];
            which.iter().for_each(|word| identity.add(&word.to_le_bytes()));
            state.add(&stat.st_size.to_le_bytes());
            let times = [(stat.st_mtime, stat.st_mtime_nsec as i64), (stat.st_ctime, stat.st_ctime_nsec as i64)];
            for (seconds, ns) in times {
                state.add(&seconds.to_le_bytes());
                state.add(&ns.to_le_bytes());
            }
            if *is_qcow2 {
                state.add(&detect::read(file, 0, HEADER_BYTES)?);
            }
            settled &= has_settled(&now, times[1].0, times[1].1);
        }
        Ok(Some(ImageStamp { identity: identity.bytes(), state: state.bytes(), settled }))
    }
}

/// Whether a change from `now` on gives another time than that of the last change. If the clock was set back behind it,
/// that is not so.
fn has_settled(now: &Timespec, seconds: i64, ns: i64) -> bool {
    let of = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let wait = if ns == 0 { SETTLED_SECONDS_NS } else { SETTLED_NS };
    of(now.tv_sec, now.tv_nsec) - of(seconds, ns) >= wait
}

/// Whether a file system keeps the time of every change.
fn tells_changes(kind: &StatFs, device: u64) -> bool {
    let known = KINDS.contains(&(kind.f_type as u32));
    known && fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| !is_lazy(&mounts, device))
}

/// Whether times of changes are kept in memory alone for long (`lazytime`), where `device` is mounted; of a device that
/// is not in the list, anywhere.
fn is_lazy(mounts: &str, device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let lines = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let is_of = |words: &Vec<&str>| words.get(2) == Some(&number.as_str());
    let known = lines().any(|words| is_of(&words));
    let says = |words: &Vec<&str>| words.iter().any(|word| word.split(',').any(|option| option == "lazytime"));
    lines().filter(|words| !known || is_of(words)).any(|words| says(&words))
}

/// What tells this run of the machine from every other; `None` if the kernel does not say.
pub fn boot_id() -> Option<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (digits.len() == 32).then_some(())?;
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// FNV-1a of 128 bits: none of what goes in is chosen by a guest.
struct Sum(u128);

impl Sum {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn bytes(&self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
