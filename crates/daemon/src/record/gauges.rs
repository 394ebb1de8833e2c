//! What the keeper and the converter of a recording tell each other: numbers, and chunks that come back.
//!
//! Owns nothing else. Never lets the keeper wait for the converter, which has only idle processor time and may stand
//! still at any place. Invariant: each number is written by one of the two alone.

use super::lock;
use crate::worker::{Chunk, End, Head};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use undercroft_host::AlignedBuffer;
use undercroft_trace::recording::RecordedDisk;

/// What goes to the converter, in order.
pub enum Message {
    /// A disk, before its first row.
    Disk(RecordedDisk),
    /// Notes, in memory.
    Here(Box<Chunk>),
    /// Notes in a slot of the spool.
    There(Head, u64),
}

impl Message {
    /// Rows in it, requests that were dropped after them, and when they began.
    pub fn counts(&self) -> (u64, u64, u64) {
        match self {
            Message::Disk(_) => (0, 0, u64::MAX),
            Message::Here(chunk) => (chunk.head.rows, chunk.head.dropped, chunk.head.base_ns),
            Message::There(head, _) => (head.rows, head.dropped, head.base_ns),
        }
    }
}

/// An answer that goes to a row by its number.
pub type LateAnswer = (u64, End);

/// See the head of the file. The keeper writes the last four, the converter the others.
#[derive(Default)]
pub struct Gauges {
    /// Rows that are in the file or never will be.
    pub rows_done: AtomicU64,
    /// Slots of the spool that are not needed any more.
    pub slots_done: AtomicU64,
    /// Bytes that the file has.
    pub file_bytes: AtomicU64,
    /// The size that the file may reach, its end included, before this number is set again.
    pub claimed_bytes: AtomicU64,
    /// Blocks that reads found in RAM, and asked for.
    pub hit_blocks: AtomicU64,
    /// See `hit_blocks`.
    pub read_blocks: AtomicU64,
    /// 0, or the `Reason` for which nothing more goes into the file.
    pub full: AtomicU8,
    /// The number of the converter's thread.
    pub tid: AtomicI32,
    /// Chunks that it has emptied.
    pub emptied: Mutex<Vec<Chunk>>,
    /// Bytes that the spool takes on the disk.
    pub spool_bytes: AtomicU64,
    /// The converter's thread is to end, and the keeper's goes on for it.
    pub handed_over: AtomicBool,
}

impl Gauges {
    /// Takes the chunks that are empty, unless the converter stands in the way.
    pub fn take_emptied(&self, to: &mut Vec<Chunk>) {
        if let Ok(mut emptied) = self.emptied.try_lock() {
            to.append(&mut emptied);
        }
    }

    /// Gives back a chunk.
    pub fn give_back(&self, buffer: AlignedBuffer) {
        lock(&self.emptied).push(Chunk { head: Head::default(), buffer });
    }

    /// Sets a number.
    pub fn set(gauge: &AtomicU64, to: u64) {
        gauge.store(to, Ordering::SeqCst);
    }
}
