//! The way of notes from the workers to the converter: through memory while it keeps up, else through the spool.
//!
//! Owns the spare chunks, the spool and what is on the way. Never waits for the converter. Invariant: messages reach
//! the converter in the order in which they came, each once, wherever they waited.

use super::Reason;
use super::gauges::{Gauges, Message};
use super::spool::Spool;
use crate::worker::{Chunk, Head};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use undercroft_trace::recording::RecordedDisk;

/// Chunks that may wait in memory, all workers together: 4 MiB, a quarter of a million hits.
pub const SPARES: usize = 64;

/// See the head of the file.
pub struct Relay {
    to: Sender<Message>,
    gauges: Arc<Gauges>,
    /// Empty chunks: one goes to a worker for each that goes to the converter.
    spares: Vec<Chunk>,
    spool: Option<Spool>,
    /// Rows passed on, and requests that the workers dropped.
    rows: u64,
    dropped: u64,
}

/// Why a chunk cannot be passed on, and the chunk.
pub struct Stuck(pub Reason, pub Chunk);

impl Relay {
    /// A relay to the converter that listens to the other end of `to`, with `spares` chunks of memory.
    pub fn new(to: Sender<Message>, gauges: Arc<Gauges>, spool: Option<Spool>, spares: usize) -> Self {
        let spares = (0..spares).map(|_| Chunk::default()).collect();
        Self { to, gauges, spares, spool, rows: 0, dropped: 0 }
    }

    /// Rows passed on, and requests that workers dropped.
    pub fn counts(&self) -> (u64, u64) {
        (self.rows, self.dropped)
    }

    /// The spool, if there is one.
    pub fn spool(&mut self) -> Option<&mut Spool> {
        self.spool.as_mut()
    }

    /// A disk goes before its first row.
    pub fn disk(&self, disk: RecordedDisk) {
        let _ = self.to.send(Message::Disk(disk));
    }

    /// Takes back what the converter is done with. Returns whether a chunk can be passed on, or put to the spool.
    pub fn look(&mut self) -> bool {
        self.gauges.take_emptied(&mut self.spares);
        if let Some(spool) = &mut self.spool {
            spool.settle(false);
        }
        self.spool.is_some() || !self.spares.is_empty()
    }

    /// Passes on what a worker has noted; returns an empty chunk for it.
    ///
    /// # Errors
    /// Neither memory nor the disk has room for it: the recording has to end.
    pub fn pass(&mut self, chunk: Chunk) -> Result<Chunk, Box<Stuck>> {
        if self.spares.is_empty() {
            self.gauges.take_emptied(&mut self.spares);
        }
        if let Some(spare) = self.spares.pop() {
            self.last(chunk);
            return Ok(spare);
        }
        let Some(spool) = &mut self.spool else { return Err(Box::new(Stuck(Reason::MaxSize, chunk))) };
        match spool.put(&chunk.buffer, chunk.head.words) {
            Ok(slot) => {
                self.count(&chunk);
                let Chunk { head, buffer } = chunk;
                let _ = self.to.send(Message::There(head, slot));
                Ok(Chunk { buffer, head: Head::default() })
            }
            Err(reason) => Err(Box::new(Stuck(reason, chunk))),
        }
    }

    /// Passes on a chunk for which nothing has to come back.
    pub fn last(&mut self, chunk: Chunk) {
        self.count(&chunk);
        let _ = self.to.send(Message::Here(Box::new(chunk)));
    }

    fn count(&mut self, chunk: &Chunk) {
        self.rows += chunk.head.rows;
        self.dropped += chunk.head.dropped;
    }

    /// Rows that the converter has not dealt with.
    pub fn waiting(&self) -> u64 {
        self.rows.saturating_sub(self.gauges.rows_done.load(Ordering::Relaxed))
    }
}
