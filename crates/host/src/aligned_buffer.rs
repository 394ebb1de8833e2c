//! An aligned buffer: 64 KiB of memory that begins on a page; it is filled as words, and written to a file as bytes.
//!
//! Owns its memory. Never does I/O. Invariant: all of it has been written once, so that nobody waits for the kernel to
//! find its pages, and its start is aligned for direct I/O.

/// Bytes of an aligned buffer.
pub const ALIGNED_BYTES: usize = 64 << 10;
/// Words of an aligned buffer.
pub const ALIGNED_WORDS: usize = ALIGNED_BYTES / size_of::<u64>();

#[repr(C, align(4096))]
struct Aligned([u64; ALIGNED_WORDS]);

/// See the head of the file.
pub struct AlignedBuffer(Box<Aligned>);

impl Default for AlignedBuffer {
    fn default() -> Self {
        // All ones, or the allocator might hand out pages of zeroes that the kernel has yet to find.
        Self(Box::new(Aligned([u64::MAX; ALIGNED_WORDS])))
    }
}

impl AlignedBuffer {
    /// Its words.
    #[inline]
    pub fn words(&self) -> &[u64; ALIGNED_WORDS] {
        &self.0.0
    }

    /// Its words, to be written.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64; ALIGNED_WORDS] {
        &mut self.0.0
    }

    /// Its words as bytes, in the order of this machine.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is that of ALIGNED_WORDS initialised words without padding, borrowed as `self` is; any
        // byte is a valid `u8`, which needs no alignment.
        unsafe { std::slice::from_raw_parts(self.0.0.as_ptr().cast(), ALIGNED_BYTES) }
    }

    /// As [`AlignedBuffer::bytes`], to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed mutably as `self` is; whatever bytes are written, they make valid words.
        unsafe { std::slice::from_raw_parts_mut(self.0.0.as_mut_ptr().cast(), ALIGNED_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_are_the_same_memory_from_a_page_on() {
        let mut buffer = AlignedBuffer::default();
        assert_eq!(buffer.bytes().as_ptr() as usize % 4096, 0);
        buffer.words_mut()[1] = u64::from_ne_bytes(*b"abcdefgh");
        assert_eq!(&buffer.bytes()[8..16], b"abcdefgh");
        buffer.bytes_mut()[ALIGNED_BYTES - 8..].copy_from_slice(b"ijklmnop");
        assert_eq!(buffer.words()[ALIGNED_WORDS - 1], u64::from_ne_bytes(*b"ijklmnop"));
    }
}
