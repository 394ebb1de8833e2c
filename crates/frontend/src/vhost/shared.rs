//! Which kinds of files a front end may share as guest memory.
//!
//! Owns the check. Never maps anything, and never asks a file system that another process may serve, because that could
//! take long. Invariant: access to memory that passed the check waits for the kernel alone, unless the operator allows
//! other files (`trust_memory`).

use std::io;
use std::os::fd::AsFd;
use undercroft_host::{Backing, backing};

/// Which files a front end may share as memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Memory of the kernel: memfd, tmpfs, hugetlbfs, anonymous shared memory.
    #[default]
    Memory,
    /// Whatever can be mapped: access may then wait for a disk, a server or a process (FUSE), and with it the worker.
    Anything,
}

/// Whether `file` may be mapped.
///
/// # Errors
/// If it is of a kind that is not trusted.
pub fn check(file: impl AsFd, trust: Trust) -> io::Result<()> {
    let kind = backing(file)?;
    if trust == Trust::Anything || kind != Backing::Other {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the memory that it shares is neither memfd nor tmpfs nor hugetlbfs: access to it could wait for a disk or for \
         another process, and hold up all disks of the worker. Use memory-backend-memfd (or -file on /dev/shm or \
         hugetlbfs), or set trust_memory = true for this disk if whoever serves that file is trusted",
    ))
}
