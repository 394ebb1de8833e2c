//! Read-ahead: which streams are sequential, how far to read ahead of them, and the blocks that wait to be used.
//!
//! Owns streams and unused blocks. Never asks a policy: a block read ahead becomes known to it when a guest reads the
//! block, so read-ahead cannot pollute the cache. Invariant: at most `ahead` frames are in the ring or being read.

use crate::limits::{READAHEAD_BLOCKS_MIN, STREAM_PROOF, STREAMS_PER_DISK};
use std::collections::VecDeque;
use undercroft_host::{FRAME_BYTES, Frame};

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Reads in a row.
    run: u32,
    /// Blocks to keep ahead.
    window: u32,
    /// The block after the last one asked for ahead.
    ahead: u64,
    /// When it was last continued, in reads.
    used: u64,
}

/// No byte of any disk.
const NOWHERE: u64 = u64::MAX;

/// The sequential streams of one disk.
#[derive(Debug)]
#[repr(C)]
pub(in crate::disk) struct Streams {
    /// Blocks ahead at most, from the configuration; 0 turns everything off.
    max: u32,
    /// What waste has left of `max`; grows back with use.
    limit: u32,
    /// Per stream a few bits of `next`: all that most hits read.
    tags: [u16; STREAMS_PER_DISK],
    /// Per stream the byte after the last one read: a read that starts there continues it.
    next: [u64; STREAMS_PER_DISK],
    reads: u64,
    streams: [Stream; STREAMS_PER_DISK],
}

/// A few bits that tell most bytes of a disk from each other.
#[inline]
fn tag(byte: u64) -> u16 {
    (byte.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

impl Streams {
    pub(in crate::disk) fn new(readahead_bytes: u32, frames: usize) -> Self {
        let max = (readahead_bytes / FRAME_BYTES as u32).min(frames as u32 / 2);
        let streams = [Stream::default(); STREAMS_PER_DISK];
        let tags = [tag(NOWHERE); STREAMS_PER_DISK];
        Self { max, limit: max, tags, next: [NOWHERE; STREAMS_PER_DISK], reads: 0, streams }
    }

    /// Other blocks ahead at most, never more than `frames`; streams that are known stay.
    pub(in crate::disk) fn set_max(&mut self, readahead_bytes: u32, frames: usize) {
        self.max = (readahead_bytes / FRAME_BYTES as u32).min(frames as u32);
        self.limit = self.max;
    }

    #[inline]
    pub(in crate::disk) fn is_on(&self) -> bool {
        self.max != 0
    }

    /// A read of bytes `from..to`, which `missed` if it needed the disk. Returns the blocks to read ahead.
    ///
    /// Only a miss starts to be watched: a stream that hits needs no read-ahead.
    #[inline]
    pub(in crate::disk) fn note(&mut self, from: u64, to: u64, missed: bool) -> Option<(u64, u64)> {
        let sought = tag(from);
        // No branch within: most reads continue nothing.
        let alike = self.tags.iter().fold(false, |alike, &tag| alike | (tag == sought));
        let continued = if alike { self.next.iter().position(|&next| next == from) } else { None };
        let Some(i) = continued else {
            if missed {
                self.watch(to);
            }
            return None;
        };
        self.reads += 1;
        (self.next[i], self.tags[i]) = (to, tag(to));
        let s = &mut self.streams[i];
        s.run = s.run.saturating_add(1);
        s.used = self.reads;
        if s.run < STREAM_PROOF {
            return None;
        }
        let at = to.div_ceil(FRAME_BYTES as u64);
        s.ahead = s.ahead.max(at);
        let window = s.window.min(self.limit);
        if s.ahead - at > u64::from(window / 2) {
            return None;
        }
        let (first, end) = (s.ahead, at + u64::from(window));
        s.window = s.window.saturating_mul(2).min(self.max);
        if first >= end {
            return None;
        }
        s.ahead = end;
        Some((first, end))
    }

    fn watch(&mut self, to: u64) {
        self.reads += 1;
        // The one unused for longest goes; a proven one counts as younger, so that random reads do not push it out.
        let age = |s: &Stream| s.used + if s.run >= STREAM_PROOF { 1024 } else { 0 };
        let oldest = (0..STREAMS_PER_DISK).min_by_key(|&i| age(&self.streams[i])).unwrap_or(0);
        (self.next[oldest], self.tags[oldest]) = (to, tag(to));
        self.streams[oldest] =
            Stream { run: 1, window: READAHEAD_BLOCKS_MIN.min(self.max), ahead: 0, used: self.reads };
    }

    /// Blocks from `from` on could not be read ahead: the next call asks for them again.
    pub(in crate::disk) fn cut(&mut self, end: u64, from: u64) {
        for s in self.streams.iter_mut().filter(|s| s.ahead == end) {
            s.ahead = from;
        }
    }

    /// Whether a stream is about to read `block`.
    pub(in crate::disk) fn wants(&self, block: u64) -> bool {
        let proven = self.streams.iter().zip(&self.next).filter(|(s, _)| s.run >= STREAM_PROOF);
        proven.into_iter().any(|(s, &next)| next / FRAME_BYTES as u64 <= block && block < s.ahead)
    }

    /// A block read ahead was used.
    pub(in crate::disk) fn used(&mut self) {
        self.limit = (self.limit + 1).min(self.max);
    }

    /// Blocks read ahead were dropped unused.
    pub(in crate::disk) fn wasted(&mut self) {
        self.limit = (self.limit / 2).max(READAHEAD_BLOCKS_MIN).min(self.max);
    }

    /// Forgets all streams.
    pub(in crate::disk) fn clear(&mut self) {
        self.next = [NOWHERE; STREAMS_PER_DISK];
        self.tags = [tag(NOWHERE); STREAMS_PER_DISK];
        self.streams = [Stream::default(); STREAMS_PER_DISK];
    }
}

#[derive(Debug)]
struct Entry {
    block: u64,
    frame: Option<Frame>,
    since_ns: u64,
}

/// Blocks read ahead and not used yet, oldest first.
#[derive(Debug)]
pub(in crate::disk) struct AheadRing {
    entries: VecDeque<Entry>,
    /// The number of the front entry; numbers count up and never come back.
    base: u64,
    held: usize,
    max: usize,
}

impl AheadRing {
    pub(in crate::disk) fn new(max: usize) -> Self {
        Self { entries: VecDeque::with_capacity(2 * max), base: 0, held: 0, max }
    }

    /// Lets the ring hold `max` blocks, if that is more.
    pub(in crate::disk) fn allow(&mut self, max: usize) {
        if max > self.max {
            self.entries.reserve_exact(2 * max - self.entries.len());
            self.max = max;
        }
    }

    pub(in crate::disk) const fn bytes_max(max: usize) -> usize {
        // Rounded up generously by the allocator's doubling.
        4 * max * size_of::<Entry>()
    }

    pub(in crate::disk) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Blocks in the ring.
    pub(in crate::disk) fn held(&self) -> usize {
        self.held
    }

    /// Whether entries (some may be used up) are as many as the ring may have: the oldest must go first.
    pub(in crate::disk) fn is_full(&self) -> bool {
        self.entries.len() >= 2 * self.max
    }

    /// Adds a block; returns the number to take it by.
    pub(in crate::disk) fn push(&mut self, block: u64, frame: Frame, now_ns: u64) -> u64 {
        assert!(!self.is_full(), "the read-ahead ring overflowed");
        self.entries.push_back(Entry { block, frame: Some(frame), since_ns: now_ns });
        self.held += 1;
        self.base + self.entries.len() as u64 - 1
    }

    /// The frame of entry `n`.
    pub(in crate::disk) fn take(&mut self, n: u64) -> Frame {
        let e = &mut self.entries[(n - self.base) as usize];
        let frame = e.frame.take().expect("a block read ahead was taken twice");
        self.held -= 1;
        self.tidy();
        frame
    }

    /// The oldest block in the ring, and since when it has been there.
    pub(in crate::disk) fn oldest(&self) -> Option<(u64, u64)> {
        self.entries.front().map(|e| (e.block, e.since_ns))
    }

    /// Takes the oldest block out.
    pub(in crate::disk) fn pop(&mut self) -> Option<(u64, Frame)> {
        let block = self.entries.front()?.block;
        let n = self.base;
        Some((block, self.take(n)))
    }

    /// Every block in the ring.
    pub(in crate::disk) fn iter(&self) -> impl Iterator<Item = (u64, &Frame)> {
        self.entries.iter().filter_map(|e| Some((e.block, e.frame.as_ref()?)))
    }

    /// Drops used-up entries from the front, so that the front is always a block.
    fn tidy(&mut self) {
        while self.entries.front().is_some_and(|e| e.frame.is_none()) {
            self.entries.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_host::Arena;

    const B: u64 = FRAME_BYTES as u64;

    fn read(s: &mut Streams, block: u64, blocks: u64) -> Option<(u64, u64)> {
        s.note(block * B, (block + blocks) * B, true)
    }

    #[test]
    fn a_stream_is_read_ahead_after_three_reads_and_its_window_grows() {
        let mut s = Streams::new(1 << 20, 512);
        assert_eq!(read(&mut s, 10, 1), None);
        assert_eq!(read(&mut s, 11, 1), None);
        assert_eq!(read(&mut s, 12, 1), Some((13, 29)));
        let next: Vec<_> = (13..40).filter_map(|b| read(&mut s, b, 1)).collect();
        assert_eq!(next[0].0, 29, "continues where it stopped");
        assert!(next[0].1 - 20 >= 24, "and further ahead: {next:?}");
    }

    #[test]
    fn random_reads_are_not_read_ahead_and_do_not_hide_a_stream() {
        let mut s = Streams::new(1 << 20, 512);
        let mut asked = 0;
        for i in 0..1000u64 {
            asked += u32::from(read(&mut s, 1_000_000 + i * 7919 % 100_003, 1).is_some());
            asked += 1000 * u32::from(read(&mut s, i, 1).is_some());
        }
        assert!(asked >= 10_000, "the stream was followed");
        assert_eq!(asked % 1000, 0, "a random read was read ahead");
    }

    #[test]
    fn waste_shrinks_the_window_and_use_lets_it_grow() {
        let mut s = Streams::new(1 << 20, 512);
        let full = s.limit;
        s.wasted();
        assert_eq!(s.limit, full / 2);
        for _ in 0..20 {
            s.wasted();
        }
        assert_eq!(s.limit, READAHEAD_BLOCKS_MIN);
        for _ in 0..1000 {
            s.used();
        }
        assert_eq!(s.limit, full);
    }

    #[test]
    fn the_ring_gives_blocks_up_in_any_order_and_stays_bounded() {
        let mut a = Arena::new(8).unwrap();
        let mut r = AheadRing::new(4);
        let n: Vec<u64> = (0..4).map(|b| r.push(b, a.take().unwrap(), b)).collect();
        a.put(r.take(n[2]));
        a.put(r.take(n[0]));
        assert_eq!(r.oldest(), Some((1, 1)));
        assert_eq!(r.iter().map(|(b, _)| b).collect::<Vec<_>>(), [1, 3]);
        for b in 4..9 {
            while r.is_full() {
                a.put(r.pop().unwrap().1);
            }
            r.push(b, a.take().unwrap(), 0);
        }
        while let Some((_, f)) = r.pop() {
            a.put(f);
        }
        assert_eq!((r.held(), a.available()), (0, 8));
    }
}
