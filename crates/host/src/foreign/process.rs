//! Another process: what it has mapped and opened, and copies of its memory.
//!
//! Owns a descriptor of `/proc/PID` and one of the process itself, so that a process that ends and whose number is
//! reused is never taken for its successor. Never writes to the process. Invariant: what `copy` returns came from the
//! process that was opened, or is an error.

use super::batch::{Batch, Copied, PageRun, Piece, last_errno, parts, take};
use super::maps::{Mapping, parse_maps};
use super::pagemap::Pagemap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

/// Bytes of a text file below `/proc/PID` that are read at most; the maps of the largest processes stay below it.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// Descriptors of a process that are looked at, at most.
const FILES_MAX: usize = 65_536;

/// A process.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    dir: OwnedFd,
    handle: OwnedFd,
}

/// A file that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOfProcess {
    /// Its descriptor there.
    pub fd: u32,
    /// What it is, as the kernel names it: a path, or `/memfd:NAME (deleted)`, `socket:[N]`, `anon_inode:[N]`.
    pub target: OsString,
    /// Flags of `open`, as in `fcntl.h`; 0 if unknown.
    pub flags: u32,
}

/// Numbers of all processes, in order.
///
/// # Errors
/// `/proc` cannot be read.
pub fn processes() -> io::Result<Vec<u32>> {
    let mut all: Vec<u32> =
        std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

impl Process {
    /// The process of number `pid`.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn open(pid: u32) -> io::Result<Process> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        // The directory first: if the process that the handle then finds still lives, both are of the same one.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty())?;
        let handle = pidfd_open(number, PidfdFlags::empty()).map_err(|e| match e {
            Errno::SRCH => io::Error::from(io::ErrorKind::NotFound),
            e => e.into(),
        })?;
        let process = Process { pid: number.as_raw_nonzero().get(), dir, handle };
        // A directory of a process that has gone has no files any more.
        process.text("comm")?;
        Ok(process)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Whether it has not ended.
    pub fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|n| n == 0)
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let fd = openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::empty());
        fd.map(File::from).map_err(|e| match e {
            // A process that has ended.
            Errno::SRCH => io::Error::from(io::ErrorKind::NotFound),
            e => e.into(),
        })
    }

    /// The contents of a file below `/proc/PID`: `cmdline`, `comm`, `ksm_stat`; at most 64 MiB.
    ///
    /// # Errors
    /// What the kernel says; `NotFound` once the process has ended.
    pub fn text(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.file(name, OFlags::RDONLY)?.take(TEXT_BYTES_MAX).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(io::ErrorKind::NotFound.into()),
            Err(e) => Err(e),
        }
    }

    /// What it has mapped; with two-letter flags if `smaps` can be read.
    ///
    /// # Errors
    /// What the kernel says: `PermissionDenied` for the process of another user without `CAP_SYS_PTRACE`.
    pub fn mappings(&self) -> io::Result<Vec<Mapping>> {
        let text = match self.text("smaps") {
            Ok(text) => text,
            // Kernels can be built without it.
            Err(_) => self.text("maps")?,
        };
        Ok(parse_maps(&text))
    }

    /// What it has open. Descriptors that cannot be looked at are left out.
    ///
    /// # Errors
    /// What the kernel says: `PermissionDenied` as for `mappings`.
    pub fn files(&self) -> io::Result<Vec<FileOfProcess>> {
        let mut all = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(&self.dir, "fd", flags, Mode::empty())?;
        for entry in rustix::fs::Dir::read_from(&dir)?.take(FILES_MAX) {
            let entry = entry?;
            let Some(fd) = entry.file_name().to_str().ok().and_then(|n| n.parse().ok()) else { continue };
            let Ok(target) = readlinkat(&dir, entry.file_name(), Vec::new()) else { continue };
            let info = self.text(&format!("fdinfo/{fd}")).unwrap_or_default();
            all.push(FileOfProcess { fd, target: OsString::from_vec(target.into_bytes()), flags: flags_of(&info) });
        }
        all.sort_by_key(|f| f.fd);
        Ok(all)
    }

    /// Opens what its descriptor `fd` is open on, for reading, with a position of our own.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_file(&self, fd: u32) -> io::Result<File> {
        self.file(&format!("fd/{fd}"), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    /// Its pagemap.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pagemap(&self) -> io::Result<Pagemap> {
        Ok(Pagemap::new(self.file("pagemap", OFlags::RDONLY)?))
    }

    /// From now on, pages written to are `SOFT_DIRTY`. Costs the process one fault for each page that it writes to
    /// next.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn forget_changes(&self) -> io::Result<()> {
        rustix::io::write(self.file("clear_refs", OFlags::WRONLY)?, b"4")?;
        Ok(())
    }

    /// Copies pages from the front of `runs` (page numbers of its address space) into `batch`, as many as fit, and
    /// takes them off. Pages that cannot be read are counted, and not in the batch. Ask [`Process::pagemap`] first: a
    /// page that is not in memory would be brought in.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_PTRACE`, `NotFound` if the process has ended; nothing in the batch is to be
    /// used then.
    pub fn copy(&self, runs: &mut Vec<PageRun>, piece: Piece, batch: &mut Batch) -> io::Result<Copied> {
        batch.begin(piece);
        let mut copied = Copied::default();
        while batch.room() > 0 && !runs.is_empty() {
            let iov = |(at, len): (u64, usize)| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len };
            let remote: Vec<libc::iovec> = parts(runs, piece, batch.room()).into_iter().map(iov).collect();
            let local = batch.free_part();
            // SAFETY: the kernel writes to `local` only, which is ours and which nothing refers to; `remote` are
            // addresses of the other process.
            let n = unsafe {
                libc::process_vm_readv(self.pid, &raw const local, 1, remote.as_ptr(), remote.len() as u64, 0)
            };
            match usize::try_from(n) {
                Ok(n) if n >= piece.bytes() => take(runs, (n / piece.bytes()) as u64, |run| batch.note(run)),
                Ok(_) => take(runs, 1, |_| copied.unreadable += 1),
                Err(_) => match last_errno() {
                    Errno::FAULT | Errno::NOMEM | Errno::IO | Errno::HWPOISON => {
                        take(runs, 1, |_| copied.unreadable += 1);
                    }
                    Errno::SRCH => return Err(io::ErrorKind::NotFound.into()),
                    Errno::INTR => {}
                    e => return Err(e.into()),
                },
            }
            // Only now is it certain whom the number meant during the call.
            if !self.lives() {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        Ok(copied)
    }
}

/// The line `flags:` of an fdinfo file, in octal.
fn flags_of(info: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(info);
    let flags = text.lines().find_map(|l| l.strip_prefix("flags:"));
    flags.and_then(|f| u32::from_str_radix(f.trim(), 8).ok()).unwrap_or(0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::PAGE_BYTES;
    use super::*;

    fn me() -> Process {
        Process::open(std::process::id()).unwrap()
    }

    /// Pages with a number in each, page-aligned, as the page number of the first.
    fn numbered(count: usize) -> (Vec<u8>, u64) {
        let mut bytes = vec![0u8; (count + 1) * PAGE_BYTES];
        let first = (bytes.as_ptr() as usize).div_ceil(PAGE_BYTES);
        let offset = first * PAGE_BYTES - bytes.as_ptr() as usize;
        for (n, page) in bytes[offset..].chunks_exact_mut(PAGE_BYTES).enumerate() {
            page.fill(n as u8 + 1);
        }
        (bytes, first as u64)
    }

    #[test]
    fn pages_are_copied_batch_by_batch_in_order() {
        let (memory, first) = numbered(100);
        let mut batch = Batch::new().unwrap();
        let mut runs = vec![PageRun { first: first + 90, count: 10 }, PageRun { first, count: 90 }];
        let (mut seen, mut rounds) = (Vec::new(), 0);
        while !runs.is_empty() {
            assert_eq!(me().copy(&mut runs, Piece::Whole, &mut batch).unwrap(), Copied::default());
            for (i, number) in batch.numbers().iter().enumerate() {
                let n = number - first;
                assert!(batch.copy(i).iter().all(|b| u64::from(*b) == n + 1), "page {n}");
                seen.push(n);
            }
            rounds += 1;
        }
        assert_eq!(seen, (90..100).chain(0..90).collect::<Vec<_>>());
        assert_eq!(rounds, 2);
        drop(memory);
    }

    #[test]
    fn a_probe_is_the_middle_of_each_page() {
        let (mut memory, first) = numbered(3);
        let at = (first as usize + 1) * PAGE_BYTES - memory.as_ptr() as usize;
        memory[at + 2048..at + 2112].fill(0xee);
        let (mut batch, mut runs) = (Batch::new().unwrap(), vec![PageRun { first, count: 3 }]);
        me().copy(&mut runs, Piece::Probe, &mut batch).unwrap();
        assert_eq!(batch.len(), 3);
        assert_eq!([0, 1, 2].map(|i| batch.copy(i).to_vec()), [vec![1u8; 64], vec![0xee; 64], vec![3u8; 64]]);
    }

    #[test]
    fn what_cannot_be_read_is_skipped_and_counted() {
        let (memory, first) = numbered(2);
        let mut batch = Batch::new().unwrap();
        // Page 1 is below the lowest address a process may map.
        let bad = PageRun { first: 1, count: 3 };
        let mut runs = vec![PageRun { first, count: 1 }, bad, PageRun { first: first + 1, count: 1 }];
        let copied = me().copy(&mut runs, Piece::Whole, &mut batch).unwrap();
        assert_eq!((copied.unreadable, batch.numbers()), (3, &[first, first + 1][..]));
        assert_eq!((batch.copy(0)[0], batch.copy(1)[0]), (1, 2));
        drop(memory);
    }

    #[test]
    fn a_process_that_ended_is_not_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(process.lives() && !process.mappings().unwrap().is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.lives());
        let gone = |e: io::Error| assert_eq!(e.kind(), io::ErrorKind::NotFound, "{e}");
        gone(process.text("cmdline").unwrap_err());
        let mut runs = vec![PageRun { first: 0x40_0000, count: 1 }];
        gone(process.copy(&mut runs, Piece::Whole, &mut Batch::new().unwrap()).unwrap_err());
        gone(Process::open(child.id()).unwrap_err());
        gone(Process::open(u32::MAX).unwrap_err());
    }

    #[test]
    fn open_files_are_listed_and_opened_anew() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, b"contents").unwrap();
        let all = me().files().unwrap();
        let mine = all.iter().find(|f| f.target == file.path().as_os_str()).unwrap();
        assert_eq!(mine.flags & libc::O_ACCMODE as u32, libc::O_RDWR as u32);
        let mut text = String::new();
        me().open_file(mine.fd).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "contents", "from the beginning: the position is our own");
        assert_eq!(flags_of(b"pos:\t0\nflags:\t0100002\nmnt_id:\t15\n"), 0o100002);
        assert_eq!(flags_of(b"flags:\t9"), 0);
    }
}
