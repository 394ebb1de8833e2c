//! Descriptors that the service manager has kept for the process and passes at its start (sd_listen_fds(3)).
//!
//! Owns how they are found. Never looks at what they are. Invariant: each is taken once, and not by a child.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first one.
const FIRST: RawFd = 3;
/// More are not looked at.
const MOST: RawFd = 4096;

/// All of them with their names, the first time; what is not open is left out. To be called before the process opens
/// anything that it keeps.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) || TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|n| RawFd::try_from(n).ok()).unwrap_or(0).min(MOST);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let own = |at: RawFd| {
        // SAFETY: only asks for a flag and sets it; what is not open is an error.
        let open = unsafe { libc::fcntl(at, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        // SAFETY: it is open, the manager has passed it to this process, whose number it has named, and it is taken
        // once: nobody else here owns it.
        open.then(|| unsafe { OwnedFd::from_raw_fd(at) })
    };
    (FIRST..FIRST + count).filter_map(|at| Some((names.next().unwrap_or("").to_owned(), own(at)?))).collect()
}
