//! Mappings of files that another process can cut short, or whose file system is full: an access that nothing stands
//! behind any more reads zeroes and is noted, instead of ending the process by SIGBUS.
//!
//! Owns the process's SIGBUS handler and the table of mappings that it looks after. Never touches a mapping that is not
//! in the table: for those the handler that was there before decides, and by default the process ends. Invariants: a
//! mapping stands in the table exactly as long as its [`Guarded`] lives; what the handler does is safe in a signal
//! handler (atomics and two system calls); once a mapping is broken, nothing that is read from it comes from the file.

use crate::aside::release;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, OnceLock, PoisonError};
use vm_memory::{MmapRegion, VolatileMemory};

/// Places in the table. A process has at most 65,530 mappings unless `vm.max_map_count` was raised.
const SLOTS: usize = 1 << 16;

/// One mapping that the handler looks after; free while `start` is 0.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
}

#[allow(clippy::declare_interior_mutable_const)]
const FREE: Slot = Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), broken: AtomicBool::new(false) };
static TABLE: [Slot; SLOTS] = [FREE; SLOTS];
/// Places `0..USED` may be taken; only grows.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Harm done by other processes since this one began.
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Held while a mapping comes or goes; never by the handler.
static CHANGE: Mutex<()> = Mutex::new(());
/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// How often another process has broken a mapping of ours, or held a thread up at a [`crate::Doorbell`]. Whoever shares
/// something with other processes looks at its own when this has changed. One load of memory that hardly ever changes.
#[inline]
#[must_use]
pub fn faults() -> u64 {
    // The handler runs on the thread that made the access, so the order in the program is all that has to be kept.
    compiler_fence(Ordering::SeqCst);
    FAULTS.load(Ordering::Relaxed)
}

/// Another process has done harm.
pub(crate) fn note() {
    FAULTS.fetch_add(1, Ordering::SeqCst);
}

/// A mapping that is looked after; what it maps is reached through it.
pub struct Guarded {
    slot: &'static Slot,
    /// Unmapped by [`release`].
    region: ManuallyDrop<MmapRegion<()>>,
    /// Device and number of the file, if its memory can go and come.
    file: Option<(u64, u64)>,
    /// All of the file had memory when it was last looked at.
    full: AtomicBool,
    /// It is of huge pages.
    huge: bool,
    /// Dropped once nothing is mapped any more.
    place: Option<Box<dyn Send + Sync>>,
}

impl Guarded {
    /// Looks after `region` from now on.
    ///
    /// # Errors
    /// If the handler cannot be installed, if there is no room in the table, or if the region ends inside a huge page,
    /// which could not be replaced.
    pub fn new(region: MmapRegion<()>) -> io::Result<Guarded> {
        install()?;
        let (mut file, mut full, mut huge) = (None, true, false);
        if let Some(place) = region.file_offset() {
            let kind = backing(place.file())?;
            if let Backing::Huge { page_bytes } = kind
                && !(region.len() as u64).is_multiple_of(page_bytes)
            {
                return Err(invalid("a mapping of hugetlbfs must be whole huge pages"));
            }
            let about = place.file().metadata()?;
            file = (kind == Backing::Memory).then(|| (about.dev(), about.ino()));
            huge = matches!(kind, Backing::Huge { .. });
            full = huge || is_full(&about);
        }
        let start = region.as_ptr() as usize;
        let end = start.checked_add(region.len()).ok_or_else(|| invalid("a mapping past the address space"))?;
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        let used = USED.load(Ordering::Relaxed);
        let at = TABLE[..used].iter().position(|s| s.start.load(Ordering::Relaxed) == 0).unwrap_or(used);
        let slot = TABLE.get(at).ok_or_else(|| io::Error::other("too many mappings are looked after"))?;
        slot.broken.store(false, Ordering::Relaxed);
        slot.end.store(end, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        USED.store(used.max(at + 1), Ordering::Release);
        Ok(Guarded { slot, region: ManuallyDrop::new(region), file, full: AtomicBool::new(full), huge, place: None })
    }

    /// Keeps `place` until nothing is mapped any more: what counts the mappings of somebody, say.
    #[must_use]
    pub fn holding(mut self, place: impl Send + Sync + 'static) -> Guarded {
        self.place = Some(Box::new(place));
        self
    }

    /// Device and number of the file, if its memory can go and come: not of huge pages, which are not charged to a
    /// control group, nor of files that others serve, which could keep us waiting.
    #[inline]
    #[must_use]
    pub fn file(&self) -> Option<(u64, u64)> {
        self.file
    }

    /// Whether all of the file had memory when it was last looked at ([`Guarded::look`]), so that no access took any.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Looks whether all of the file has memory: parts of it may never have been touched, and whoever shares it may
    /// have given parts back, as QEMU does for a balloon. One system call, which waits for nobody.
    pub fn look(&self) -> bool {
        if let (Some(place), true) = (self.region.file_offset(), self.file.is_some())
            && let Ok(about) = place.file().metadata()
        {
            self.see(is_full(&about));
        }
        self.is_full()
    }

    /// Takes over what the look at another mapping of the same file has shown.
    pub fn see(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Bytes of the pages under bytes `offset .. offset + len` that are not in memory: touching them would take new
    /// memory, or bring them back from swap. 0 where the kernel does not tell.
    #[must_use]
    pub fn absent_bytes(&self, offset: usize, len: usize) -> u64 {
        const PAGE: usize = 4096;
        const PAGES: usize = 64;
        let end = offset.saturating_add(len).min(self.region.len());
        let (mut at, mut absent) = (offset / PAGE * PAGE, 0);
        let mut present = [0u8; PAGES];
        while at < end {
            let pages = (end - at).div_ceil(PAGE).min(PAGES);
            // SAFETY: the range lies inside the mapping, but for the rest of its last page, which is mapped with it;
            // there is room for a byte per page. Nothing of the mapping is read or changed.
            let told =
                unsafe { libc::mincore(self.region.as_ptr().add(at).cast(), pages * PAGE, present.as_mut_ptr()) };
            if told == 0 {
                absent += present[..pages].iter().filter(|p| **p & 1 == 0).count() as u64 * PAGE as u64;
            }
            at += pages * PAGE;
        }
        absent
    }

    /// Copies the bytes from `offset` on to `to`, for a use of our own. False if the mapping ends before, or is broken.
    ///
    /// Of huge pages none is taken for it: one that is missing, never touched or given back since, reads as zeroes. To
    /// touch it would take it from the pool that the host has set aside, and break the mapping where that is empty. The
    /// kernel tells of huge pages only how many a file has, and one may go right after it was asked for; so the file is
    /// read, which finds a page and copies it in one step.
    #[must_use]
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> bool {
        let Ok(from) = self.region.get_slice(offset, to.len()) else { return false };
        let whole = match self.region.file_offset().filter(|_| self.huge) {
            Some(place) => place.file().read_exact_at(&mut *to, place.start() + offset as u64).is_ok(),
            None => from.copy_to(&mut *to) == to.len(),
        };
        whole && !self.is_broken()
    }

    /// Whether an access found nothing behind the mapping. It stays so: the whole mapping is private memory since then.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.slot.broken.load(Ordering::Acquire)
    }
}

impl Deref for Guarded {
    type Target = MmapRegion<()>;

    #[inline]
    fn deref(&self) -> &MmapRegion<()> {
        &self.region
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("region", &self.region).field("broken", &self.is_broken()).finish()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Before the region is unmapped, so that whatever is mapped there next is not taken for it.
        let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.start.store(0, Ordering::Release);
        // SAFETY: it is taken once, here, and this is dropped.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        // If nobody else has the file, its memory is freed: seconds for a big guest, whatever thread this is.
        release((region, self.place.take()));
    }
}

/// What stands behind a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory of the kernel: a memfd, a file on tmpfs, anonymous shared memory. Access never waits for another process.
    Memory,
    /// The same in huge pages, of so many bytes.
    Huge {
        /// Bytes of one.
        page_bytes: u64,
    },
    /// Anything else: access to a mapping of it may wait for a disk, a server or a process.
    Other,
}

/// What stands behind `file`. Asks nobody but the kernel, so it never waits for whoever serves the file.
///
/// # Errors
/// What the kernel says.
pub fn backing(file: impl AsFd) -> io::Result<Backing> {
    // Only files of shared memory have seals, even if none is set; asking the file system itself could wait for FUSE.
    if rustix::fs::fcntl_get_seals(&file).is_err() {
        return Ok(Backing::Other);
    }
    let fs = rustix::fs::fstatfs(&file)?;
    // The field has another type on every architecture.
    #[allow(clippy::unnecessary_cast)]
    if fs.f_type as u64 == libc::HUGETLBFS_MAGIC as u64 {
        return Ok(Backing::Huge { page_bytes: (fs.f_bsize as u64).max(1) });
    }
    Ok(Backing::Memory)
}

/// Whether a file has as much memory, or space on a disk, as it has bytes.
fn is_full(about: &std::fs::Metadata) -> bool {
    about.blocks().saturating_mul(512) >= about.len()
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static DONE: OnceLock<i32> = OnceLock::new();
    let failed = *DONE.get_or_init(|| {
        // SAFETY: all-zero is a valid `sigaction`: the default action, no flags, an empty mask.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks; `before` is valid for writing.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
            return last_errno();
        }
        // Known before the handler can need it.
        let _ = BEFORE.set(before);
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = on_sigbus as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_sigbus` has the type that SA_SIGINFO asks for, and does nothing that a handler must not.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } != 0 {
            return last_errno();
        }
        0
    });
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// The mapping that `address` lies in.
fn find(address: usize) -> Option<(&'static Slot, usize, usize)> {
    TABLE[..USED.load(Ordering::Acquire).min(SLOTS)].iter().find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let end = slot.end.load(Ordering::Acquire);
        // The mapping that was accessed cannot go meanwhile; others can, and their place may be taken again.
        let same = slot.start.load(Ordering::Acquire) == start;
        (start != 0 && same && (start..end).contains(&address)).then_some((slot, start, end))
    })
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel hands a valid `siginfo_t`, of which SIGBUS fills in the address.
    let (address, by_kernel) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    // SAFETY: the location is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    if by_kernel && let Some((slot, start, end)) = find(address) {
        // SAFETY: the range is one mapping that its `Guarded` owns, and that cannot go while one of its bytes is being
        // accessed. It is reached by volatile accesses only, so other bytes may come from it from now on.
        let p = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                end - start,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if p != libc::MAP_FAILED {
            // Two threads may be here at once: each has met the fault, the mapping is broken once.
            if !slot.broken.swap(true, Ordering::SeqCst) {
                note();
            }
            // SAFETY: as above. The interrupted code must not see what `mmap` left there.
            unsafe { *libc::__errno_location() = errno };
            return;
        }
    }
    pass_on(signal, info, context, by_kernel);
}

/// Leaves a signal to whoever handled it before: by default, the process ends.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, by_kernel: bool) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |b| b.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the default action needs no handler. The access is made again when we return, and ends the process;
        // a signal that a process sent is sent again.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if !by_kernel {
                libc::raise(signal);
            }
        }
    } else if before.is_some_and(|b| b.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: whoever installed the handler with SA_SIGINFO says that it has this type.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: whoever installed the handler without SA_SIGINFO says that it has this type.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use std::fs::File;
    use std::sync::atomic::AtomicU32;
    use vm_memory::{Bytes, FileOffset};

    const PAGE: usize = 4096;

    fn memfd(bytes: usize) -> File {
        let fd = rustix::fs::memfd_create("guard", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
        File::from(fd)
    }

    fn guarded(file: &File, bytes: usize) -> Guarded {
        let place = FileOffset::new(file.try_clone().unwrap(), 0);
        Guarded::new(MmapRegion::from_file(place, bytes).unwrap()).unwrap()
    }

    fn byte(map: &Guarded, at: usize) -> u8 {
        map.as_volatile_slice().load(at, Ordering::Relaxed).unwrap()
    }

    #[test]
    fn a_file_cut_short_reads_as_zeroes_and_is_noted_while_others_go_on() {
        let pages = 64;
        let (cut, whole) = (memfd(pages * PAGE), memfd(pages * PAGE));
        let (a, b) = (guarded(&cut, pages * PAGE), guarded(&whole, pages * PAGE));
        for map in [&a, &b] {
            map.as_volatile_slice().write_slice(&[7; PAGE], 5 * PAGE).unwrap();
            map.as_volatile_slice().write_slice(&[7; PAGE], 60 * PAGE).unwrap();
        }
        assert!(!a.is_broken() && byte(&a, 60 * PAGE) == 7);
        rustix::fs::ftruncate(&cut, (PAGE * 8) as u64).unwrap();
        let before = faults();
        assert!(!a.is_broken(), "nobody has touched what is gone");
        let sum = AtomicU32::new(0);
        std::thread::scope(|s| {
            for n in 0..4 {
                let (a, b, sum) = (&a, &b, &sum);
                s.spawn(move || {
                    for page in (8 + n..pages).step_by(4) {
                        // Reads and writes, by all threads, across what is gone; the other mapping beside it.
                        assert_eq!(byte(a, page * PAGE), 0);
                        a.as_volatile_slice().store(1u8, page * PAGE + 1, Ordering::Relaxed).unwrap();
                        b.as_volatile_slice().store(1u8, page * PAGE + 1, Ordering::Relaxed).unwrap();
                        sum.fetch_add(u32::from(byte(b, page * PAGE + 1)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 56, "the other mapping is untouched");
        assert!(a.is_broken() && !b.is_broken() && byte(&b, 60 * PAGE) == 7);
        assert!(faults() > before);
        assert_eq!(byte(&a, 5 * PAGE), 0, "nothing of the file shows in a broken mapping");
        // The file as others see it has nothing of what was written after the break.
        assert_eq!(std::os::unix::fs::FileExt::read_at(&cut, &mut [0; 8], 8 * PAGE as u64).unwrap(), 0);
        // The place of a mapping that is gone serves another.
        drop(a);
        let c = guarded(&whole, pages * PAGE);
        assert!(!c.is_broken() && byte(&c, 60 * PAGE) == 7);
    }

    /// What is not looked after ends the process as before. In a process of its own, since it dies.
    #[test]
    fn a_fault_elsewhere_still_ends_the_process() {
        if std::env::var_os("GUARD_TEST_DIES").is_some() {
            let file = memfd(PAGE);
            let _looked_after = guarded(&file, PAGE);
            let other = MmapRegion::<()>::from_file(FileOffset::new(file.try_clone().unwrap(), 0), PAGE).unwrap();
            rustix::fs::ftruncate(&file, 0).unwrap();
            let _ = other.as_volatile_slice().load::<u8>(0, Ordering::Relaxed);
            return;
        }
        let this = "guard::tests::a_fault_elsewhere_still_ends_the_process";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let status = again.args([this, "--exact"]).env("GUARD_TEST_DIES", "1").output().unwrap().status;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGBUS), "{status:?}");
    }

    #[test]
    fn pages_that_nobody_has_touched_are_told_from_those_in_memory() {
        let file = memfd(200 * PAGE);
        let map = guarded(&file, 200 * PAGE);
        assert_eq!(map.absent_bytes(0, 200 * PAGE), 200 * PAGE as u64);
        map.as_volatile_slice().store(1u8, 70 * PAGE + 5, Ordering::Relaxed).unwrap();
        assert_eq!(map.absent_bytes(0, 200 * PAGE), 199 * PAGE as u64);
        assert_eq!((map.absent_bytes(70 * PAGE + 9, 1), map.absent_bytes(69 * PAGE + 9, PAGE)), (0, PAGE as u64));
        assert_eq!(map.absent_bytes(199 * PAGE, 9 * PAGE), PAGE as u64, "not past the end");
        assert_eq!(map.absent_bytes(0, 0), 0);
    }

    /// Huge pages that the machine sets aside for a test. What it had of them it has afterwards.
    struct Pool(u64);

    impl Pool {
        const COUNT: &str = "/proc/sys/vm/nr_hugepages";

        /// Sets `more` aside; or why there are none to be had.
        fn with(more: u64) -> Result<Pool, String> {
            let count = || {
                let count = std::fs::read_to_string(Self::COUNT).map_err(|e| e.to_string())?;
                count.trim().parse::<u64>().map_err(|e| e.to_string())
            };
            let pool = Pool(count()?);
            let set = std::fs::write(Self::COUNT, (pool.0 + more).to_string());
            let pages = count()?;
            if pages >= pool.0 + more { Ok(pool) } else { Err(format!("{pages} pages, {set:?}")) }
        }
    }

    impl Drop for Pool {
        fn drop(&mut self) {
            let _ = std::fs::write(Self::COUNT, self.0.to_string());
        }
    }

    /// What a balloon or virtio-mem took from a guest stays with the host.
    #[test]
    fn a_copy_takes_no_huge_page() {
        let _pool = match Pool::with(2) {
            Ok(pool) => pool,
            Err(e) => {
                return undercroft_skips::skip(format_args!("no huge pages of hugetlbfs can be had here: {e}"));
            }
        };
        let file = File::from(rustix::fs::memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB).unwrap());
        let Backing::Huge { page_bytes } = backing(&file).unwrap() else { panic!("not of huge pages") };
        let huge = page_bytes as usize;
        // One page more than is mapped.
        file.set_len(3 * page_bytes).unwrap();
        let map = guarded(&file, 2 * huge);
        let held = || file.metadata().unwrap().blocks() * 512 / page_bytes;
        let mut to = [1; PAGE];
        assert!(map.copy(huge - PAGE / 2, &mut to) && to == [0; PAGE] && held() == 0, "{}", held());
        map.as_volatile_slice().write_slice(&[7; PAGE], huge).unwrap();
        assert!(map.copy(huge, &mut to) && to == [7; PAGE]);
        assert!(
            map.copy(huge - PAGE / 2, &mut to) && to[..PAGE / 2] == [0; PAGE / 2] && to[PAGE / 2..] == [7; PAGE / 2]
        );
        assert_eq!(held(), 1);
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, page_bytes, page_bytes).unwrap();
        assert!(map.copy(huge, &mut to) && to == [0; PAGE] && held() == 0, "{}", held());
        assert!(!map.copy(2 * huge - PAGE / 2, &mut to) && !map.copy(usize::MAX, &mut to), "what is not mapped");
        // What the guest itself asks for takes a page, as ever.
        map.as_volatile_slice().write_slice(&[8; PAGE], huge).unwrap();
        assert!(map.copy(huge, &mut to) && to == [8; PAGE] && held() == 1);
        // A file cut short is found out by whoever has to touch it.
        file.set_len(0).unwrap();
        assert!(!map.copy(huge, &mut to) && !map.is_broken());
        file.set_len(2 * page_bytes).unwrap();
        map.slot.broken.store(true, Ordering::Release);
        assert!(!map.copy(huge, &mut to), "nothing of the file shows any more");
    }

    #[test]
    fn a_file_is_full_until_a_part_of_it_is_given_back() {
        let file = memfd(8 * PAGE);
        let map = guarded(&file, 8 * PAGE);
        assert!(!map.is_full(), "nobody has touched it");
        for page in 0..8 {
            map.as_volatile_slice().store(1u8, page * PAGE, Ordering::Relaxed).unwrap();
        }
        assert!(!map.is_full() && map.look() && map.is_full());
        let other = guarded(&file, PAGE);
        assert!(other.is_full() && other.file() == map.file() && map.file().is_some());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 3 * PAGE as u64, PAGE as u64).unwrap();
        assert!(map.is_full() && !map.look() && !map.is_full());
        assert_eq!(map.absent_bytes(0, 8 * PAGE), PAGE as u64);
        other.see(false);
        assert!(!other.is_full());
        let anonymous = Guarded::new(MmapRegion::new(PAGE).unwrap()).unwrap();
        assert!(anonymous.look() && anonymous.file().is_none());
    }

    #[test]
    fn kernel_memory_is_told_from_files_that_may_wait() {
        assert_eq!(backing(memfd(PAGE)).unwrap(), Backing::Memory);
        assert_eq!(backing(File::open("/proc/self/maps").unwrap()).unwrap(), Backing::Other);
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(backing(a).unwrap(), Backing::Other);
        if let Ok(fd) = rustix::fs::memfd_create("huge", rustix::fs::MemfdFlags::HUGETLB) {
            assert!(matches!(backing(fd).unwrap(), Backing::Huge { page_bytes } if page_bytes > PAGE as u64));
        }
    }

    /// Tells on which thread it is dropped, and whether the file is mapped then.
    struct Place(std::sync::mpsc::Sender<(Option<String>, bool)>, usize);

    impl Drop for Place {
        fn drop(&mut self) {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let start = format!("{:x}-", self.1);
            let mapped = maps.lines().any(|l| l.starts_with(&start) && l.contains("memfd:guard"));
            let _ = self.0.send((std::thread::current().name().map(str::to_owned), mapped));
        }
    }

    #[test]
    fn memory_is_unmapped_where_nobody_waits_for_it() {
        let (to, told) = std::sync::mpsc::channel();
        let guarded = guarded(&memfd(4 * PAGE), 4 * PAGE);
        let start = guarded.as_ptr() as usize;
        drop(guarded.holding(Place(to, start)));
        assert_eq!(told.recv().unwrap(), (Some("release".into()), false));
    }
}
