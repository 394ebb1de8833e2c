//! Memory that outlives the process that uses it: a sealed file of the kernel's (memfd), mapped by one process at a
//! time, and passed on as a descriptor.
//!
//! Owns the file. Never reads what is in it. Invariant: it has the same size for ever, so that no mapping of it can be
//! cut short.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    file: Arc<File>,
    len: usize,
}

/// What keeps the size as it is.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

impl SharedMemory {
    /// New memory of so many bytes, none of it committed.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("undercroft", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, seals())?;
        Ok(Self { file: Arc::new(file.into()), len })
    }

    /// Memory that another process has passed on.
    ///
    /// # Errors
    /// It is no memory whose size is sealed.
    pub fn from_passed(file: OwnedFd) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        if !rustix::fs::fcntl_get_seals(&file)?.contains(seals()) {
            return Err(invalid("the memory that was passed on could be cut short"));
        }
        let size = rustix::fs::fstat(&file)?.st_size;
        let len = usize::try_from(size).ok().filter(|&len| len > 0).ok_or_else(|| invalid("it has no bytes"))?;
        Ok(Self { file: Arc::new(file.into()), len })
    }

    /// New memory with these bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn with(bytes: &[u8]) -> io::Result<Self> {
        let memory = Self::new(bytes.len())?;
        memory.file.write_all_at(bytes, 0)?;
        Ok(memory)
    }

    /// Reads all of it once: it is all zeroes then, for whoever has it, too.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take(&self) -> io::Result<Vec<u8>> {
        let bytes = self.read()?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, 0, self.len as u64)?;
        Ok(bytes)
    }

    /// Writes `bytes` from its beginning on, as one call, and zeroes behind them.
    ///
    /// # Errors
    /// There is no room for them, or what the kernel says.
    pub fn put(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.len {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no room for it"));
        }
        let mut all = bytes.to_vec();
        all.resize(self.len, 0);
        self.file.write_all_at(&all, 0)
    }

    /// Reads all of it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// Maps all of it, for the life of the process.
    #[cfg(not(miri))]
    pub(crate) fn map(&self) -> io::Result<NonNull<u8>> {
        use std::os::fd::AsRawFd;
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory; the file is as long as
        // the mapping and stays so, since its size is sealed.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                self.len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                self.file.as_raw_fd(),
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped; the advice changes neither content nor protection. Its failure is
        // harmless.
        unsafe { libc::madvise(p, self.len, libc::MADV_DONTDUMP) };
        NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))
    }

    #[cfg(miri)]
    pub(crate) fn map(&self) -> io::Result<NonNull<u8>> {
        Err(io::Error::other("there are no mappings of files here"))
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::{Arena, FRAME_BYTES, Frame};

    fn passed(arena: &Arena) -> SharedMemory {
        SharedMemory::from_passed(arena.memory().unwrap().as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn what_is_claimed_is_what_was_left_and_the_rest_is_free() {
        let mut old = Arena::new_shared(8).unwrap();
        let mut all: Vec<Frame> = (0..6).map(|_| old.take().unwrap()).collect();
        all.iter_mut().enumerate().for_each(|(i, f)| f.bytes_mut().fill(i as u8 + 1));
        old.freeze(true);
        let mut new = Arena::adopt(passed(&old), 8).unwrap();
        assert!(new.take().is_none(), "nobody knows yet what is free");
        let kept: Vec<Frame> = [4, 1].map(|n| new.claim(n).unwrap()).into();
        assert!(new.claim(4).is_none() && new.claim(8).is_none(), "once, and only what there is");
        new.settle();
        assert!(new.claim(2).is_none());
        assert_eq!((kept[0].bytes()[0], kept[1].bytes()[4095]), (5, 2));
        assert_eq!((new.available(), new.committed_bytes()), (6, 2 * FRAME_BYTES));
        let rest: Vec<Frame> = (0..6).map(|_| new.take().unwrap()).collect();
        assert!(new.take().is_none());
        assert!(rest.iter().all(|f| f.bytes().iter().all(|&b| b == 0)), "what was not claimed has gone");
        kept.into_iter().chain(rest).for_each(|f| new.put(f));
        all.into_iter().for_each(|f| old.put(f));
    }

    #[test]
    fn an_arena_whose_memory_another_may_have_gives_nothing_out_and_nothing_back() {
        let mut old = Arena::new_shared(4).unwrap();
        let mut a = old.take().unwrap();
        a.bytes_mut().fill(7);
        old.freeze(true);
        old.put(a);
        assert!(old.take().is_none());
        assert_eq!(old.trim(0), 0);
        let mut new = Arena::adopt(passed(&old), 4).unwrap();
        let a = new.claim(0).unwrap();
        assert_eq!(a.bytes()[100], 7, "it was given back by the one that had it before");
        new.put(a);
        old.freeze(false);
        let a = old.take().unwrap();
        assert_eq!((a.bytes()[0], old.available()), (7, 3));
        old.put(a);
        assert_eq!(old.trim(0), FRAME_BYTES);
    }

    #[test]
    fn what_is_taken_is_gone_for_everybody() {
        let memory = SharedMemory::with(b"a list").unwrap();
        let other = SharedMemory::from_passed(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(other.take().unwrap(), b"a list");
        assert_eq!(memory.take().unwrap(), [0; 6]);
    }

    #[test]
    fn trim_gives_shared_memory_back() {
        let mut a = Arena::new_shared(3).unwrap();
        let mut f = a.take().unwrap();
        f.bytes_mut().fill(1);
        a.put(f);
        assert_eq!(a.trim(0), FRAME_BYTES);
        let f = a.take().unwrap();
        assert!(f.bytes().iter().all(|&b| b == 0), "a page was not given back");
        a.put(f);
    }

    #[test]
    fn memory_of_another_size_or_that_can_be_cut_is_refused() {
        let old = Arena::new_shared(4).unwrap();
        assert!(Arena::adopt(passed(&old), 5).is_err());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(SharedMemory::from_passed(loose).is_err());
    }
}
