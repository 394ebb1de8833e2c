//! Memory that a program holds and does not use, given back to the kernel.
//!
//! Owns nothing. Never gives back a page that is not spare as a whole. Invariant: what is lost is what nobody could
//! read anyway.

use std::mem::MaybeUninit;
use std::ptr::from_mut;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// Gives the whole pages in `spare` back to the kernel; they hold zeroes when they are touched next. Where that is not
/// possible (memory that is locked) they stay.
pub fn give_back<T>(spare: &mut [MaybeUninit<T>]) {
    let start = from_mut(spare).cast::<u8>();
    let skip = start.align_offset(PAGE_BYTES);
    let bytes = size_of_val(spare).saturating_sub(skip) / PAGE_BYTES * PAGE_BYTES;
    if bytes > 0 {
        // SAFETY: the range is whole pages within a slice that is borrowed mutably, so nobody else looks at it; its
        // elements may hold anything, zeroes too, and MADV_DONTNEED leaves the pages mapped.
        let done = unsafe { libc::madvise(start.wrapping_add(skip).cast(), bytes, libc::MADV_DONTNEED) };
        debug_assert!(done == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_of_spare_memory_are_emptied_and_no_others() {
        let mut numbers: Vec<u64> = (1..=1 << 20).collect();
        numbers.truncate(1000);
        give_back(&mut numbers.spare_capacity_mut()[..1 << 19]);
        assert!(numbers.iter().zip(1..).all(|(&n, at)| n == at), "elements in use are lost");
        let at = numbers.as_ptr();
        assert!(numbers.capacity() >= 1 << 20);
        numbers.resize(1 << 20, 7);
        assert_eq!((numbers.as_ptr(), numbers[1000], numbers[(1 << 20) - 1]), (at, 7, 7), "the memory is still there");
        give_back::<u64>(&mut []);
        give_back(&mut [MaybeUninit::<u8>::uninit(); 10]);
    }
}
