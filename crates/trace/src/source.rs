//! The bytes of a trace as they come from a file, standard input or another reader, and how many have been read.
//!
//! Owns the count of bytes read and the thread that reads ahead. Never interprets a byte.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// How far a trace has been read: bytes of its file, compressed as they may be.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    done: Arc<AtomicU64>,
    total: Option<u64>,
}

impl Progress {
    pub(crate) fn of(total: Option<u64>) -> Self {
        Self { done: Arc::default(), total }
    }

    /// Bytes read.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Bytes that there are; `None` for a pipe.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    pub(crate) fn set(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
    }
}

/// Counts what is read.
pub(crate) struct Counted<R> {
    pub inner: R,
    pub progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.progress.done.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Bytes that the thread reads at once, and how many such pieces it may be ahead.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_AHEAD: usize = 4;

/// Reads on a thread of its own, which ends when this is dropped.
pub(crate) struct Ahead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Ahead {
    /// Starts the thread.
    pub fn of(mut inner: Box<dyn Read + Send>) -> io::Result<Self> {
        let (give, full) = sync_channel::<io::Result<Vec<u8>>>(PIECES_AHEAD);
        let (empty, take) = sync_channel::<Vec<u8>>(PIECES_AHEAD + 2);
        let work = move || {
            loop {
                let mut piece = take.try_recv().unwrap_or_default();
                piece.resize(PIECE_BYTES, 0);
                let result = loop {
                    match inner.read(&mut piece) {
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        other => break other,
                    }
                };
                let last = !matches!(result, Ok(1..));
                let given = give.send(result.map(|n| {
                    piece.truncate(n);
                    piece
                }));
                if last || given.is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("trace".into()).spawn(work)?;
        Ok(Self { full, empty, piece: Vec::new(), at: 0, ended: false })
    }
}

impl Read for Ahead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() && !self.ended {
            let old = std::mem::take(&mut self.piece);
            // when there is no room for it, or nobody takes it, it is let go
            let _ = self.empty.try_send(old);
            self.at = 0;
            match self.full.recv() {
                Ok(Ok(piece)) => {
                    self.ended = piece.is_empty();
                    self.piece = piece;
                }
                Ok(Err(e)) => {
                    self.ended = true;
                    return Err(e);
                }
                Err(_) => return Err(io::Error::other("the thread that reads ahead has failed")),
            }
        }
        let n = buf.len().min(self.piece.len() - self.at);
        buf[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
