//! One file or block device of the SSD store, opened: direct I/O, nobody else's, large enough, and ours or empty.
//!
//! Owns the open file, its locks, and what is written before the store begins: the header. Never writes to what holds
//! something else, and reads no region. Invariant: a file that was made here and cannot be used is gone again.

use super::error::SsdError;
use super::header::{HEADER_BYTES, Header, Start, decode};
use super::layout::Layout;
use crate::detect;
use crate::registry::InUse;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use undercroft_host::{AlignedBuffer, Claim, Direct, DiskFile, FileId, claim};

/// Bytes at each end that must be zeroes on what is to become a store: file systems, partition tables, RAID and LVM all
/// have their marks there.
const ENDS_BYTES: u64 = 1 << 20;

/// An open file or device.
#[derive(Debug)]
pub(super) struct Device {
    pub path: PathBuf,
    pub file: DiskFile,
    pub start: Start,
    /// Bytes that are to be used; a file may have fewer so far.
    pub used_bytes: u64,
    /// Whether there was nothing at its path.
    made: bool,
    /// Keeps the kernel from mounting a device meanwhile, and us from one that is mounted.
    exclusive: Option<OwnedFd>,
    _claim: InUse,
}

impl Device {
    /// Opens what is at `path`, and makes a file if there is nothing. `size_bytes` are those of a file, and at most
    /// those of a device.
    pub(super) fn open(path: &Path, size_bytes: Option<u64>) -> Result<Self, SsdError> {
        let made = make(path)?;
        let mut opened = Self::open_there(path, size_bytes);
        match &mut opened {
            Ok(device) => device.made = made,
            Err(_) if made => _ = fs::remove_file(path),
            Err(_) => {}
        }
        opened
    }

    /// One that another process has opened, and passes on with its locks: its file, and what keeps others from a
    /// device.
    pub(super) fn passed(path: &Path, size_bytes: Option<u64>, mut files: Vec<OwnedFd>) -> Result<Self, SsdError> {
        let shown = || path.display().to_string();
        let io = |e| SsdError::io(path, "taking it over", e);
        let missing = || io(io::ErrorKind::NotFound.into());
        let exclusive = if files.len() > 1 { files.pop() } else { None };
        let file = DiskFile::passed(files.pop().ok_or_else(missing)?).map_err(io)?;
        let there = fs::metadata(path).map_err(io)?;
        let is_it = match file.id {
            FileId::File { device, inode } => (device, inode) == (there.dev(), there.ino()),
            FileId::Device { number } => number == there.rdev(),
        };
        if !is_it {
            return Err(SsdError::Misfit { path: shown(), why: "another file is there now".to_owned() });
        }
        let claimed = take(path, &file)?;
        Self::of(path, size_bytes, file, exclusive, claimed)
    }

    /// What another process needs to go on with it.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.file.file.as_fd()).chain(self.exclusive.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Locks it, or finds it locked by this process already.
    pub(super) fn claim(&self) -> Result<(), SsdError> {
        lock(&self.path, &self.file)
    }

    /// Gives it up, because no store came of it.
    pub(super) fn give_up(self) {
        if self.made {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn open_there(path: &Path, size_bytes: Option<u64>) -> Result<Self, SsdError> {
        let shown = || path.display().to_string();
        let (file, not_direct) = DiskFile::open(path, false, Direct::Prefer).map_err(|e| match e.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
                SsdError::Kind { path: shown(), what: e.to_string() }
            }
            _ => SsdError::io(path, "opening it for reading and writing", e),
        })?;
        if not_direct.is_some() {
            return Err(SsdError::NotDirect { path: shown() });
        }
        let claimed = take(path, &file)?;
        lock(path, &file)?;
        let exclusive = if file.is_device { Some(hold(path)?) } else { None };
        Self::of(path, size_bytes, file, exclusive, claimed)
    }

    fn of(
        path: &Path,
        size_bytes: Option<u64>,
        file: DiskFile,
        exclusive: Option<OwnedFd>,
        claimed: InUse,
    ) -> Result<Self, SsdError> {
        let used_bytes = match size_bytes {
            Some(bytes) if file.is_device => bytes.min(file.size_bytes),
            Some(bytes) => bytes,
            None => file.size_bytes,
        };
        let mut device = Self {
            path: path.to_path_buf(),
            file,
            start: Start::Foreign,
            used_bytes,
            made: false,
            exclusive,
            _claim: claimed,
        };
        device.start = device.look()?;
        Ok(device)
    }

    /// What is on it.
    fn look(&self) -> Result<Start, SsdError> {
        let read = |offset, bytes| {
            detect::read(&self.file, offset, bytes).map_err(|e| SsdError::io(&self.path, "reading what is on it", e))
        };
        let start = decode(&read(0, HEADER_BYTES)?);
        let size = self.file.size_bytes;
        let is_zero = |offset: u64| {
            let bytes = ENDS_BYTES.min(size - offset) as usize;
            read(offset, bytes).map(|bytes| bytes.iter().all(|b| *b == 0))
        };
        match start {
            Start::Foreign => Err(self.foreign("at its start")),
            Start::Empty if !is_zero(0)? => Err(self.foreign("within its first MiB")),
            Start::Empty if !is_zero(size.saturating_sub(ENDS_BYTES))? => Err(self.foreign("within its last MiB")),
            start => Ok(start),
        }
    }

    fn foreign(&self, what: &'static str) -> SsdError {
        let path = self.path.display().to_string();
        let remedy = match self.file.is_device {
            true => format!("empty it: `blkdiscard {path}`, or zeroes over its first and last MiB"),
            false => format!("remove it: `rm {path}`"),
        };
        SsdError::Foreign { path, what, remedy }
    }

    /// Reserves its space and writes a header, which makes a store of it whose regions hold nothing yet.
    pub(super) fn format(&self, header: &Header) -> Result<(), SsdError> {
        let io = |doing| move |e| SsdError::io(&self.path, doing, e);
        if !self.file.is_device {
            self.reserve(header.layout.used_bytes)?;
        }
        let mut buffer = AlignedBuffer::default();
        buffer.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
        let written = self.file.file.write_all_at(&buffer.bytes()[..HEADER_BYTES], 0);
        written.map_err(io("writing its first sector"))?;
        self.file.file.sync_all().map_err(io("making its first sector durable"))
    }

    fn reserve(&self, bytes: u64) -> Result<(), SsdError> {
        match rustix::fs::fallocate(&**self.file.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                // What it had got of the space is for others; nothing of ours is in it.
                let _ = self.file.file.set_len(self.file.size_bytes);
                Err(SsdError::NoSpace { path: self.path.display().to_string(), bytes })
            }
            Err(e) => Err(SsdError::io(&self.path, "reserving its space", e)),
        }
    }

    /// Whether it holds as many bytes as a header says.
    pub(super) fn has(&self, layout: &Layout) -> bool {
        self.file.size_bytes >= layout.used_bytes
    }
}

/// Takes it for the store, in this process.
fn take(path: &Path, file: &DiskFile) -> Result<InUse, SsdError> {
    let in_use = |by| SsdError::InUse { path: path.display().to_string(), by };
    InUse::take(file.id, "the SSD store").map_err(|used| in_use(format!(" by {}", used.by)))
}

/// Keeps other processes from it.
fn lock(path: &Path, file: &DiskFile) -> Result<(), SsdError> {
    let io = |e| SsdError::io(path, "locking it", e);
    match claim(file, false, true).map_err(io)? {
        Claim::Held => Ok(()),
        // Without locks nothing tells of another daemon, which would write over what this one has.
        Claim::NoLocks => Err(io(Errno::NOLCK.into())),
        Claim::Taken(who) => {
            let by = if who.is_empty() { String::new() } else { format!(" by {}", who.join(", ")) };
            Err(SsdError::InUse { path: path.display().to_string(), by })
        }
    }
}

/// Makes an empty file, if there is nothing at `path`; whether it did.
fn make(path: &Path) -> Result<bool, SsdError> {
    match File::options().read(true).write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(SsdError::io(path, "making it", e)),
    }
}

/// Opens a device as its only user but for those who do not ask: a device that is mounted, swapped to or part of
/// another is refused, and none becomes so as long as this is open.
fn hold(path: &Path) -> Result<OwnedFd, SsdError> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).map_err(|e| match e {
        Errno::BUSY => SsdError::InUse {
            path: path.display().to_string(),
            by: " by the kernel: mounted, swap, or part of another device (`lsblk` shows it)".to_owned(),
        },
        e => SsdError::io(path, "opening it as its only user", e),
    })
}
