//! Buffers of one connection: payloads of writes and data of replies, recycled.
//!
//! Owns every byte that a connection holds for requests. Never knows what is in them.
//! Invariant: buffers handed out and idle ones together hold at most `bytes_max`, or one buffer if that alone is more.

/// Bytes kept free before a buffer's data, for the header of a reply.
pub const HEADROOM: usize = 32;

/// Bytes of data in the smallest buffer: one block of the cache.
const SMALLEST: usize = 4096;
/// Classes of buffers, each twice as large as the one before: 4 KiB to 32 MiB.
const CLASSES: usize = 14;

/// A buffer with room for a header before its data; empty if none is held.
pub type Buffer = Vec<u8>;

/// Buffers of one connection.
#[derive(Debug)]
pub struct Buffers {
    idle: [Vec<Buffer>; CLASSES],
    idle_bytes: usize,
    held_bytes: usize,
    bytes_max: usize,
}

fn class(len: usize) -> usize {
    let blocks = len.div_ceil(SMALLEST).max(1);
    let class = blocks.next_power_of_two().trailing_zeros() as usize;
    assert!(class < CLASSES, "a buffer of {len} bytes was asked for");
    class
}

fn size(class: usize) -> usize {
    HEADROOM + (SMALLEST << class)
}

impl Buffers {
    /// No buffers yet; at most `bytes_max` bytes of them later, and `requests` of them at a time.
    pub fn new(bytes_max: usize, requests: usize) -> Self {
        let mut idle: [Vec<Buffer>; CLASSES] = Default::default();
        // The lists never grow on the hot path.
        idle[0].reserve(requests);
        Self { idle, idle_bytes: 0, held_bytes: 0, bytes_max }
    }

    /// Whether a buffer for `len` bytes of data can be had now.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.held_bytes == 0 || self.held_bytes + size(class(len)) <= self.bytes_max
    }

    /// A buffer for `len` bytes of data, which start at [`HEADROOM`]. What is in it is of no meaning.
    #[inline]
    pub fn take(&mut self, len: usize) -> Buffer {
        debug_assert!(self.has_room(len));
        let class = class(len);
        self.held_bytes += size(class);
        match self.idle[class].pop() {
            Some(buffer) => {
                self.idle_bytes -= buffer.len();
                buffer
            }
            None => self.grow(class),
        }
    }

    #[cold]
    fn grow(&mut self, class: usize) -> Buffer {
        let mut largest = CLASSES;
        while largest > 0 && self.held_bytes + self.idle_bytes > self.bytes_max {
            match self.idle[largest - 1].pop() {
                Some(b) => self.idle_bytes -= b.len(),
                None => largest -= 1,
            }
        }
        vec![0; size(class)]
    }

    /// Takes a buffer back.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        if buffer.is_empty() {
            return;
        }
        self.held_bytes -= buffer.len();
        if self.held_bytes + self.idle_bytes + buffer.len() <= self.bytes_max {
            self.idle_bytes += buffer.len();
            self.idle[class(buffer.len() - HEADROOM)].push(buffer);
        }
    }

    /// Bytes handed out.
    #[cfg(test)]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_its_buffer_and_not_a_smaller_one() {
        for len in (1..40_000).chain([1 << 20, (1 << 20) + 1, (32 << 20) - 1, 32 << 20]) {
            let c = class(len);
            assert!(size(c) >= HEADROOM + len);
            assert!(c == 0 || size(c - 1) < HEADROOM + len, "{len}");
        }
        assert_eq!(class(32 << 20), CLASSES - 1);
    }

    #[test]
    fn the_bound_holds_whatever_is_asked_for_and_idle_buffers_give_way() {
        let max = 1 << 20;
        let mut b = Buffers::new(max, 16);
        let mut held = Vec::new();
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = (x >> 33) as usize % (300 << 10) + 1;
            if x >> 60 < 8 && b.has_room(len) {
                held.push(b.take(len));
            } else if !held.is_empty() {
                b.give(held.swap_remove((x >> 40) as usize % held.len()));
            }
            let real: usize = held.iter().map(Vec::len).sum();
            assert_eq!(real, b.held_bytes);
            let idle: usize = b.idle.iter().flatten().map(Vec::len).sum();
            assert_eq!(idle, b.idle_bytes);
            assert!(held.len() <= 1 || real + idle <= max);
        }
        held.drain(..).for_each(|h| b.give(h));
        assert_eq!(b.held_bytes(), 0);
        // One buffer larger than the bound may be had alone.
        assert!(b.has_room(32 << 20));
        let large = b.take(32 << 20);
        assert_eq!(b.idle_bytes, 0);
        assert!(!b.has_room(1));
        b.give(large);
        assert!(b.idle_bytes <= max);
    }

    #[test]
    fn buffers_are_used_again() {
        let mut b = Buffers::new(1 << 20, 16);
        let first = b.take(4096);
        let at = first.as_ptr();
        b.give(first);
        let again = b.take(100);
        assert_eq!(again.as_ptr(), at);
    }
}
