//! The memory of one I/O operation, as bytes.
//!
//! Owns its frames while the operation is under way. Never takes or returns one. Invariant: the pieces are the bytes of
//! the operation, in order.

use crate::frame::{FRAME_BYTES, Frame};

/// The memory of one I/O operation: bytes `head .. head + len` of its frames laid end to end.
///
/// The operation owns it from submission until it comes back as a completion. `Default` has no frames (a flush).
#[derive(Debug, Default)]
pub struct IoBuf {
    /// Frames in order; each but the first and the last is used whole.
    pub frames: Vec<Frame>,
    /// Offset of the first byte within the first frame; below [`FRAME_BYTES`].
    pub head: u32,
    /// Bytes in all; `head + len <= frames.len() * FRAME_BYTES`.
    pub len: u32,
}

impl IoBuf {
    /// The pieces of the buffer, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (head, end) = (self.head as usize, self.head as usize + self.len as usize);
        self.frames.iter().enumerate().filter_map(move |(i, f)| {
            let (lo, hi) = span(i, head, end)?;
            Some(&f.bytes()[lo..hi])
        })
    }

    /// The pieces of the buffer, in order, to write to.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (head, end) = (self.head as usize, self.head as usize + self.len as usize);
        self.frames.iter_mut().enumerate().filter_map(move |(i, f)| {
            let (lo, hi) = span(i, head, end)?;
            Some(&mut f.bytes_mut()[lo..hi])
        })
    }

    /// Copies the buffer out to `to`, which must be `len` bytes long.
    pub fn copy_to(&self, to: &mut [u8]) {
        let mut at = 0;
        for p in self.pieces() {
            to[at..at + p.len()].copy_from_slice(p);
            at += p.len();
        }
        assert_eq!(at, to.len(), "copy of another length than the buffer");
    }

    /// Fills the buffer from `from`, which must be `len` bytes long.
    pub fn copy_from(&mut self, from: &[u8]) {
        let mut at = 0;
        for p in self.pieces_mut() {
            let n = p.len();
            p.copy_from_slice(&from[at..at + n]);
            at += n;
        }
        assert_eq!(at, from.len(), "copy of another length than the buffer");
    }
}

/// The part of frame `i` that lies in bytes `head..end` of all frames.
fn span(i: usize, head: usize, end: usize) -> Option<(usize, usize)> {
    let start = i * FRAME_BYTES;
    let lo = head.max(start);
    let hi = end.min(start + FRAME_BYTES);
    (lo < hi).then(|| (lo - start, hi - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Arena;

    #[test]
    fn pieces_cover_head_to_end() {
        let mut a = Arena::new(3).unwrap();
        let mut b = IoBuf { frames: (0..3).map(|_| a.take().unwrap()).collect(), head: 4000, len: 5000 };
        let data: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        b.copy_from(&data);
        assert_eq!(b.pieces().map(<[u8]>::len).collect::<Vec<_>>(), [96, 4096, 808]);
        let mut back = vec![0; 5000];
        b.copy_to(&mut back);
        assert_eq!(back, data);
        b.frames.drain(..).for_each(|f| a.put(f));
    }
}
