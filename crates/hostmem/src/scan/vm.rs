//! The guests of this host: QEMU processes, their memory, and the images they have open.
//!
//! Owns the search. Never attaches to a process, never changes one. Invariants: a piece of memory belongs to one guest,
//! the first that maps it; an image is listed once, however many guests have it open and by whatever name.

use super::arguments::Arguments;
use super::source::Source;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use undercroft_host::foreign::{
    CachedFile, FileOfProcess, KPageFlags, Mapping, PAGE_BYTES, PageFlags, PageRun, Process, SharedFile, processes,
};

/// A mapping that QEMU keeps from its children is guest memory from this size on; smaller ones are ROMs and tables.
const MARKED_BYTES_MIN: u64 = (2 << 20) + 1;
/// Memory that carries no such mark is taken for a guest's from this size on.
const UNMARKED_BYTES_MIN: u64 = 16 << 20;

/// One guest.
pub struct Vm {
    /// Process number.
    pub pid: u32,
    /// As given by `-name`, or `pid N`.
    pub name: String,
    /// Its memory.
    pub ram: Vec<Source>,
    /// Bytes of `ram` that are shared memory.
    pub shared_bytes: u64,
    /// Images it has open, as numbers in [`Found::images`].
    pub images: Vec<usize>,
    /// The process.
    pub process: Arc<Process>,
}

/// One image, or another file, whose page cache is looked at.
pub struct Image {
    /// Its path, as the first guest has it open.
    pub path: PathBuf,
    /// Bytes.
    pub bytes: u64,
    /// The file.
    pub file: Arc<CachedFile>,
    /// Whether some guest opened it past the page cache (`O_DIRECT`).
    pub direct: bool,
}

/// All that was found.
#[derive(Default)]
pub struct Found {
    /// Guests, by process number.
    pub vms: Vec<Vm>,
    /// Images.
    pub images: Vec<Image>,
    /// What could not be looked at, in words.
    pub problems: Vec<String>,
    /// Whether a guest could not be looked at for want of a privilege.
    pub denied: bool,
    /// By identity.
    known_images: BTreeMap<(u64, u64), usize>,
    /// Memory files whose pages belong to a guest already: identity and pages.
    known_ram: BTreeMap<(u64, u64), Vec<PageRun>>,
}

/// Looks for guests: the processes of `pids`, or every QEMU process if it is empty.
///
/// # Errors
/// `/proc` cannot be read.
pub fn find(pids: &[u32]) -> io::Result<Found> {
    let mut found = Found::default();
    let frames = KPageFlags::open().ok().map(Arc::new);
    let asked = !pids.is_empty();
    for pid in if asked { pids.to_vec() } else { processes()? } {
        let process = match Process::open(pid) {
            Ok(p) => Arc::new(p),
            Err(e) if asked => {
                found.problems.push(match e.kind() {
                    io::ErrorKind::NotFound => format!("there is no process {pid}"),
                    _ => format!("process {pid} cannot be looked at: {e}"),
                });
                continue;
            }
            // It has ended since it was listed.
            Err(_) => continue,
        };
        if !asked && !is_qemu(&process) {
            continue;
        }
        let cmdline = process.text("cmdline").unwrap_or_default();
        let said = Arguments::parse(&cmdline);
        let name = said.name.clone().unwrap_or_else(|| format!("pid {pid}"));
        match found.guest(&process, &name, &said, frames.as_ref()) {
            Ok(vm) if vm.ram.is_empty() && asked => {
                found.problems.push(format!("process {pid} has no memory that looks like a guest's"));
                found.vms.push(vm);
            }
            Ok(vm) => found.vms.push(vm),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                found.denied = true;
                found.problems.push(format!("the memory of {name} (process {pid}) cannot be read: {}", need_ptrace()));
            }
            Err(e) if has_ended(&e) => found.problems.push(format!("{name} has ended")),
            Err(e) => found.problems.push(format!("{name} (process {pid}) cannot be looked at: {e}")),
        }
    }
    Ok(found)
}

/// The memory of one guest, by the number of its process.
///
/// # Errors
/// `NotFound` if there is no such process, `PermissionDenied` without `CAP_SYS_PTRACE`.
pub fn memory_of(pid: u32) -> io::Result<Vec<Source>> {
    let process = Arc::new(Process::open(pid)?);
    let frames = KPageFlags::open().ok().map(Arc::new);
    Ok(Found::default().guest(&process, "", &Arguments::default(), frames.as_ref())?.ram)
}

/// The pages of `ranges` that a process has written to since this was last asked, for each range; from now on the
/// kernel notes them afresh. A page written to between the look and the note is missed: read everything now and then.
///
/// # Errors
/// The process has ended, or may not be looked at.
pub fn changes(process: &Process, ranges: &[PageRun]) -> io::Result<Vec<Vec<PageRun>>> {
    let mut pagemap = process.pagemap()?;
    let mut all = Vec::new();
    for range in ranges {
        let (mut extents, mut at) = (Vec::new(), range.first);
        while at < range.end() {
            at = pagemap.extents(PageRun { first: at, count: range.end() - at }, &mut extents)?.max(at + 1);
        }
        let changed = extents.iter().filter(|e| e.flags.has(PageFlags::SOFT_DIRTY));
        all.push(changed.map(|e| e.run).collect());
    }
    process.forget_changes()?;
    Ok(all)
}

/// Whether something of a process could not be read because the process is no more. Files below `/proc` are not there
/// then; what was opened before answers ESRCH.
pub fn has_ended(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// What to do where another process's memory is closed to us.
pub fn need_ptrace() -> &'static str {
    "it needs CAP_SYS_PTRACE, or to run as the user of that process where kernel.yama.ptrace_scope is 0; run it as root"
}

impl Found {
    /// Adds a file whose page cache is to be looked at; returns its number, `None` if it has no page cache of its own.
    ///
    /// # Errors
    /// It cannot be opened, or the kernel does not say which of its pages are cached.
    pub fn add_image(&mut self, path: &Path, file: File, direct: bool) -> io::Result<Option<usize>> {
        // The pages of a memory file are not a copy of anything.
        if SharedFile::new(file.try_clone()?)?.is_some() {
            return Ok(None);
        }
        let Some(cached) = CachedFile::new(file)? else { return Ok(None) };
        let bytes = cached.pages() * PAGE_BYTES as u64;
        if bytes == 0 {
            return Ok(None);
        }
        let next = self.images.len();
        let number = *self.known_images.entry(cached.identity()).or_insert(next);
        if number == next {
            self.images.push(Image { path: path.to_path_buf(), bytes, file: Arc::new(cached), direct });
        } else {
            self.images[number].direct |= direct;
        }
        Ok(Some(number))
    }

    fn guest(
        &mut self,
        process: &Arc<Process>,
        name: &str,
        said: &Arguments,
        frames: Option<&Arc<KPageFlags>>,
    ) -> io::Result<Vm> {
        let mappings = process.mappings()?;
        let files = process.files()?;
        let mut vm = Vm {
            pid: process.pid(),
            name: name.to_string(),
            ram: Vec::new(),
            shared_bytes: 0,
            images: Vec::new(),
            process: process.clone(),
        };
        for mapping in ram(&mappings) {
            if mapping.shared
                && let Some((file, run)) = memory_file(process, &files, mapping)
            {
                if self.claim(file.identity(), run) {
                    vm.shared_bytes += mapping.bytes();
                    vm.ram.push(Source::of_shared(Arc::new(file), run));
                }
                continue;
            }
            vm.ram.push(Source::of_process(process.clone(), mapping.pages, frames.cloned())?);
        }
        for open in files.iter().filter(|f| may_be_image(f)) {
            let direct = open.flags & libc_o_direct() != 0;
            match process.open_file(open.fd).and_then(|file| self.add_image(Path::new(&open.target), file, direct)) {
                Ok(Some(n)) if !vm.images.contains(&n) => vm.images.push(n),
                Ok(_) => {}
                Err(e) => self.unknown_image(Path::new(&open.target), &e),
            }
        }
        // Images that the arguments name and that are not open (a removed medium, a descriptor that we may not see).
        for path in &said.images {
            let Ok(file) = rustix_open(path) else { continue };
            if let Ok(Some(n)) = self.add_image(path, file, false)
                && !vm.images.contains(&n)
            {
                vm.images.push(n);
            }
        }
        Ok(vm)
    }

    fn unknown_image(&mut self, path: &Path, e: &io::Error) {
        let why = match e.kind() {
            io::ErrorKind::PermissionDenied => {
                "the kernel shows it to the file's owner and to who may write to it; run it as root".to_string()
            }
            _ => e.to_string(),
        };
        let text = format!("the page cache of {} is unknown: {why}", path.display());
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    /// Takes pages of a memory file for one guest; false if another has any of them.
    fn claim(&mut self, identity: (u64, u64), run: PageRun) -> bool {
        let taken = self.known_ram.entry(identity).or_default();
        let free = taken.iter().all(|t| t.end() <= run.first || run.end() <= t.first);
        if free {
            taken.push(run);
        }
        free
    }
}

/// Opens for reading, without waiting for anybody should it be a pipe.
fn rustix_open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

fn libc_o_direct() -> u32 {
    rustix::fs::OFlags::DIRECT.bits()
}

/// Whether a process runs QEMU, by its program; by the name it gives itself where that is hidden from us.
fn is_qemu(process: &Process) -> bool {
    let exe = std::fs::read_link(format!("/proc/{}/exe", process.pid()));
    let name = match &exe {
        Ok(path) => path.file_name().map(|n| n.as_bytes().to_vec()).unwrap_or_default(),
        Err(_) => process.text("comm").unwrap_or_default(),
    };
    name.starts_with(b"qemu-system-") || name.starts_with(b"qemu-kvm") || name.trim_ascii_end() == b"kvm"
}

/// The mappings that are guest memory. QEMU keeps all of it from its children (`MADV_DONTFORK`, `dc` in `smaps`) and
/// nothing else; where the kernel does not tell, or the program is another, size decides.
fn ram(mappings: &[Mapping]) -> Vec<&Mapping> {
    let candidate = |m: &&Mapping| {
        let name = m.path.as_bytes();
        let plain = m.is_anonymous() && (name.is_empty() || name.starts_with(b"[anon:"));
        let of_file = !m.is_anonymous() && !name.starts_with(b"/dev/") || name.starts_with(b"/dev/shm/");
        m.write
            && !m.execute
            && (plain || of_file || name.starts_with(b"/dev/zero") || name.starts_with(b"/dev/hugepages"))
    };
    let all: Vec<&Mapping> = mappings.iter().filter(candidate).collect();
    let marked: Vec<&Mapping> =
        all.iter().copied().filter(|m| m.flag(b"dc") == Some(true) && m.bytes() >= MARKED_BYTES_MIN).collect();
    if !marked.is_empty() {
        return marked;
    }
    all.into_iter().filter(|m| m.bytes() >= UNMARKED_BYTES_MIN).collect()
}

/// The memory file behind a shared mapping, if the process has it open and the kernel can say what of it is allocated.
fn memory_file(process: &Process, files: &[FileOfProcess], mapping: &Mapping) -> Option<(SharedFile, PageRun)> {
    let page = PAGE_BYTES as u64;
    for open in files.iter().filter(|f| f.target == mapping.path) {
        let Ok(Some(file)) = process.open_file(open.fd).and_then(SharedFile::new) else { continue };
        if file.identity().1 != mapping.inode || file.is_huge() || !mapping.offset.is_multiple_of(page) {
            continue;
        }
        let run = PageRun { first: mapping.offset / page, count: mapping.pages.count };
        if run.end() <= file.pages() {
            return Some((file, run));
        }
    }
    None
}

/// Whether an open file may be a disk image: something with a path that can be read.
fn may_be_image(file: &FileOfProcess) -> bool {
    let target = file.target.as_bytes();
    let can_read = file.flags & 3 != 1;
    let append = file.flags & rustix::fs::OFlags::APPEND.bits() != 0;
    target.starts_with(b"/") && !target.starts_with(b"/memfd:") && !target.starts_with(b"/proc/") && can_read && !append
}

/// Pages that the kernel has merged, of a `ksm_stat` file: (merged, merged with the page of zeroes).
pub fn ksm_pages(ksm_stat: &[u8]) -> (u64, u64) {
    let text = String::from_utf8_lossy(ksm_stat);
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|v| v.trim().trim_start_matches(':').trim().parse().ok()).unwrap_or(0)
    };
    (field("ksm_merging_pages"), field("ksm_zero_pages"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_host::foreign::parse_maps;

    #[test]
    fn a_process_that_has_ended_is_told_from_one_that_may_not_be_read() {
        for errno in [rustix::io::Errno::SRCH, rustix::io::Errno::NOENT] {
            assert!(has_ended(&io::Error::from(errno)), "{errno}");
        }
        for errno in [rustix::io::Errno::PERM, rustix::io::Errno::IO] {
            assert!(!has_ended(&io::Error::from(errno)), "{errno}");
        }
    }

    fn sizes(text: &str) -> Vec<u64> {
        ram(&parse_maps(text.as_bytes())).iter().map(|m| m.bytes() >> 20).collect()
    }

    const RAM: &str = "7f1000000000-7f1008000000 rw-p 00000000 00:00 0\nVmFlags: rd wr mr mw me dc ac sd mg\n";
    const CODE: &str = "7f2000000000-7f2040000000 rwxp 00000000 00:00 0\nVmFlags: rd wr ex dc\n";
    const HEAP: &str = "7f3000000000-7f3004000000 rw-p 00000000 00:00 0 [heap]\nVmFlags: rd wr\n";
    const BUFFER: &str = "7f4000000000-7f4008000000 rw-p 00000000 00:00 0\nVmFlags: rd wr\n";
    const ROM: &str = "7f5000000000-7f5000200000 rw-p 00000000 00:00 0\nVmFlags: rd wr dc\n";
    const MEMFD: &str = "7f6000000000-7f6010000000 rw-s 00000000 00:01 7 /memfd:ram (deleted)\nVmFlags: rd wr dc\n";

    #[test]
    fn guest_memory_is_told_from_the_rest_by_its_mark() {
        assert_eq!(sizes(&[RAM, CODE, HEAP, BUFFER, ROM, MEMFD].concat()), [128, 256]);
    }

    #[test]
    fn without_marks_by_its_size() {
        assert_eq!(sizes(&[CODE, HEAP, BUFFER].concat()), [128]);
        assert_eq!(
            sizes("7f1000000000-7f1008000000 rw-p 00000000 00:00 0\n7f2000000000-7f2000100000 rw-p 0 00:00 0\n"),
            [128]
        );
        assert!(sizes("").is_empty());
    }

    #[test]
    fn ksm_statistics_are_read_whatever_else_is_there() {
        let text = b"ksm_rmap_items 5\nksm_zero_pages 7\nksm_merging_pages 9\nksm_process_profit -3\n";
        assert_eq!(ksm_pages(text), (9, 7));
        assert_eq!(ksm_pages(b""), (0, 0));
        assert_eq!(ksm_pages(b"ksm_zero_pages -1\nksm_merging_pages x"), (0, 0));
    }

    #[test]
    fn memory_that_two_processes_map_belongs_to_the_first() {
        let mut found = Found::default();
        assert!(found.claim((1, 2), PageRun { first: 0, count: 10 }));
        assert!(!found.claim((1, 2), PageRun { first: 9, count: 10 }));
        assert!(found.claim((1, 2), PageRun { first: 10, count: 10 }));
        assert!(found.claim((1, 3), PageRun { first: 0, count: 10 }));
    }
}
