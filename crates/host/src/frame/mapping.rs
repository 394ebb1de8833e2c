//! The address range of an arena's pages: reserved, given back page by page, and unmapped.
//!
//! Owns the calls to the kernel. Never knows which pages are in use. Invariant: only what the arena says is free is
//! given back, and a range is unmapped only when all of it is.

use super::FRAME_BYTES;
use std::io;
use std::ptr::NonNull;

#[cfg(not(miri))]
pub(super) fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range was just mapped; the advice changes neither content nor protection. Its failure is harmless.
    unsafe { libc::madvise(p, bytes, libc::MADV_DONTDUMP) };
    NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))
}

#[cfg(miri)]
pub(super) fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(bytes, FRAME_BYTES).map_err(io::Error::other)?;
    // SAFETY: the layout is not empty, since an arena has at least one frame.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(|| io::Error::other("out of memory"))
}

/// Unmaps all pages of an arena, none of which is behind a `Frame` or a `Held` any more.
#[cfg(not(miri))]
pub(super) fn unmap(base: NonNull<u8>, frames: usize) {
    // SAFETY: the arena mapped exactly this range, has all of its pages back, and is dropped.
    unsafe { libc::munmap(base.as_ptr().cast(), frames * FRAME_BYTES) };
}

#[cfg(miri)]
pub(super) fn unmap(_: NonNull<u8>, _: usize) {}

/// Bytes of so many frames, if there can be so many.
pub(super) fn bytes_of(frames: usize) -> io::Result<usize> {
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let bytes = frames.checked_mul(FRAME_BYTES).ok_or_else(|| invalid("arena larger than the address space"))?;
    u32::try_from(frames).map(|_| bytes).map_err(|_| invalid("an arena holds less than 16TiB"))
}

/// Gives the memory of `pages` neighbours back, `first` and those after it.
pub(super) fn release(first: NonNull<[u8; FRAME_BYTES]>, pages: usize, shared: bool) {
    #[cfg(not(miri))]
    // SAFETY: the pages are behind no `Frame` and no `Held` (the caller took them from the free list), so nobody reads
    // them; the kernel replaces them by zeroes.
    unsafe {
        // Of shared memory the mapping alone would go, and the pages stay.
        let how = if shared { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        libc::madvise(first.as_ptr().cast(), pages * FRAME_BYTES, how);
    }
    #[cfg(miri)]
    let _ = (first, pages, shared);
}
