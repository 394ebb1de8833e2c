//! The program's heap: jemalloc, with large memory that is asked for as zeroes in an arena of its own.
//!
//! Owns nothing but the number of that arena. Never decides how jemalloc keeps memory: its options are built in
//! (decision 0123). Large zeroed memory is tables of disks, of which those of a disk that nobody uses are never
//! touched. In large pages beside memory that is touched they would be resident all the same. Invariant: memory of
//! either arena is freed and changed in size in the same way.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use tikv_jemalloc_sys as jemalloc;
use tikv_jemallocator::Jemalloc;

/// Bytes from which on zeroed memory is in the arena of its own: jemalloc's large sizes, of which each is whole pages.
const LARGE_BYTES: usize = 16 << 10;

/// No arena has been asked for yet.
const UNKNOWN: u32 = u32::MAX;
/// There is none: it is being made, or cannot be.
const NONE: u32 = u32::MAX - 1;

static UNTOUCHED: AtomicU32 = AtomicU32::new(UNKNOWN);

/// The allocator of the program: a crate of its own, since what is loaded by others (the Python package) must not bring
/// one.
#[derive(Debug)]
pub struct Heap;

/// The number of the arena for large zeroed memory.
#[inline]
fn untouched() -> u32 {
    match UNTOUCHED.load(Ordering::Relaxed) {
        UNKNOWN => make_arena(),
        n => n,
    }
}

#[cold]
fn make_arena() -> u32 {
    // Whoever comes meanwhile takes the usual arena.
    if UNTOUCHED.compare_exchange(UNKNOWN, NONE, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return NONE;
    }
    let (mut n, mut len) = (0u32, size_of::<u32>());
    // SAFETY: a name that ends with a zero, and room for the number that this name reads.
    let failed = unsafe {
        jemalloc::mallctl(c"arenas.create".as_ptr(), (&raw mut n).cast(), &raw mut len, std::ptr::null_mut(), 0)
    };
    let n = if failed == 0 { n } else { NONE };
    UNTOUCHED.store(n, Ordering::Relaxed);
    n
}

// SAFETY: every call is one of jemalloc's with the size and alignment of the layout, which frees and resizes memory of
// any arena.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { Jemalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE_BYTES {
            let arena = untouched();
            if arena != NONE {
                let align = jemalloc::MALLOCX_ALIGN(layout.align());
                let flags: c_int = align
                    | jemalloc::MALLOCX_ZERO
                    | jemalloc::MALLOCX_TCACHE_NONE
                    | jemalloc::MALLOCX_ARENA(arena as usize);
                // SAFETY: the size is not 0, the alignment is a power of two, and the arena exists.
                return unsafe { jemalloc::mallocx(layout.size(), flags) }.cast();
            }
        }
        // SAFETY: the caller's promise.
        unsafe { Jemalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { Jemalloc.dealloc(at, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { Jemalloc.realloc(at, layout, bytes) }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn large_zeroes_are_zeroes_again_after_use_and_can_grow() {
        for bytes in [LARGE_BYTES - 8, LARGE_BYTES, 100 << 10, 3 << 20] {
            let layout = Layout::from_size_align(bytes, 64).unwrap();
            for _ in 0..3 {
                // SAFETY: a layout of some bytes; what is written and read lies within them, and is freed once.
                unsafe {
                    let at = Heap.alloc_zeroed(layout);
                    assert!(!at.is_null() && at.addr().is_multiple_of(64));
                    assert!(std::slice::from_raw_parts(at, bytes).iter().all(|&b| b == 0));
                    at.write_bytes(7, bytes);
                    let more = Heap.realloc(at, layout, bytes * 2);
                    assert!(std::slice::from_raw_parts(more, bytes).iter().all(|&b| b == 7));
                    Heap.dealloc(more, Layout::from_size_align(bytes * 2, 64).unwrap());
                }
            }
        }
    }
}
