//! The bytes of a trace as its format reads them: whole records or whole lines out of one large buffer, with the
//! position for the errors.
//!
//! Owns the buffer and the position. Never interprets a record.
//! Invariant: `offset` and `record` belong to the next record; nothing is handed out twice.

use crate::damage::Damage;
use crate::error::TraceError;
use std::io::{self, Read};

/// Bytes of one line at most; a longer one is damage, not a record.
const LINE_BYTES_MAX: usize = 4096;
/// Bytes read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of the beginning that are kept, to tell what a file is that is not what it was said to be.
pub(crate) const HEAD_BYTES: usize = 4096;

/// The bytes of a trace, read in large pieces, with the position of the next record.
pub(crate) struct Input<'a> {
    inner: Box<dyn Read + Send + 'a>,
    name: String,
    buffer: Vec<u8>,
    /// What of the buffer has not been consumed.
    at: usize,
    end: usize,
    /// Bytes consumed before `at`, over the whole trace.
    offset: u64,
    /// Records consumed.
    record: u64,
    ended: bool,
    /// What went wrong where nobody could be told.
    failed: Option<TraceError>,
    /// The rest of a line that was too long is still to be passed over.
    within_line: bool,
    head: Vec<u8>,
}

impl<'a> Input<'a> {
    pub fn new(inner: Box<dyn Read + Send + 'a>, name: &str) -> Self {
        Self {
            inner,
            name: name.to_owned(),
            buffer: vec![0; BUFFER_BYTES],
            at: 0,
            end: 0,
            offset: 0,
            record: 0,
            ended: false,
            failed: None,
            within_line: false,
            head: Vec::new(),
        }
    }

    /// The first bytes of the trace, some thousands if it has as many. An error on the way comes up again when they are
    /// read as records.
    pub fn head(&mut self) -> &[u8] {
        if self.head.is_empty() {
            if let Err(error) = self.need(HEAD_BYTES) {
                self.failed = Some(error);
                self.ended = false;
            }
            self.head = self.buffer[self.at..self.end.min(self.at + HEAD_BYTES)].to_vec();
        }
        &self.head
    }

    /// The error that [`Input::head`] met.
    pub fn take_failed(&mut self) -> Option<TraceError> {
        self.failed.take()
    }

    /// What [`Input::head`] found; empty if nobody has asked for it.
    pub fn head_seen(&self) -> &[u8] {
        &self.head
    }

    /// Whether nothing has been consumed.
    pub fn is_at_start(&self) -> bool {
        self.offset == 0
    }

    /// What is in the buffer and not consumed.
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Has at least `n` bytes in the buffer, if the trace has as many; returns how many there are.
    pub fn need(&mut self, n: usize) -> Result<usize, TraceError> {
        debug_assert!(n <= BUFFER_BYTES, "no record is larger than the buffer");
        while self.end - self.at < n && !self.ended {
            self.fill()?;
        }
        Ok(self.end - self.at)
    }

    fn fill(&mut self) -> Result<(), TraceError> {
        if let Some(error) = self.failed.take() {
            self.ended = true;
            return Err(error);
        }
        self.buffer.copy_within(self.at..self.end, 0);
        self.end -= self.at;
        self.at = 0;
        match self.inner.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.ended = true,
            Ok(n) => self.end += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                self.ended = true;
                let offset = self.offset + self.end as u64;
                return Err(TraceError::Read { name: self.name.clone(), offset, source });
            }
        }
        Ok(())
    }

    /// `records` records of `bytes` in all have been dealt with.
    pub fn consume(&mut self, bytes: usize, records: u64) {
        debug_assert!(bytes <= self.end - self.at, "only what is there can be consumed");
        self.at += bytes;
        self.offset += bytes as u64;
        self.record += records;
    }

    /// The next line: its length without and with its end; it is at the beginning of [`Input::rest`]. `None` at the end
    /// of the trace.
    pub fn line(&mut self) -> Result<Option<(usize, usize)>, TraceError> {
        loop {
            let mut looked = 0;
            let found = loop {
                let rest = &self.buffer[self.at..self.end];
                if let Some(n) = memchr::memchr(b'\n', &rest[looked..]) {
                    break Some(looked + n);
                }
                looked = rest.len();
                if looked > LINE_BYTES_MAX || self.ended {
                    break None;
                }
                self.fill()?;
            };
            let there = self.end - self.at;
            match found {
                Some(n) if self.within_line => {
                    self.within_line = false;
                    self.consume(n + 1, 0);
                }
                Some(n) if n <= LINE_BYTES_MAX => return Ok(Some((n, n + 1))),
                None if there == 0 => return Ok(None),
                None if self.within_line => self.consume(there, 0),
                None if there <= LINE_BYTES_MAX => return Ok(Some((there, there))),
                _ => {
                    let error = self.damaged(Damage::LongLine(LINE_BYTES_MAX));
                    self.within_line = true;
                    self.consume(0, 1);
                    return Err(error);
                }
            }
        }
    }

    /// An error about the next record.
    pub fn damaged(&self, what: Damage) -> TraceError {
        TraceError::Record { name: self.name.clone(), record: self.record + 1, offset: self.offset, what }
    }
}

/// The bytes themselves, for a format that is not read as a stream.
impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(self.end - self.at);
        if n == 0 {
            return if self.ended { Ok(0) } else { self.inner.read(buf) };
        }
        buf[..n].copy_from_slice(&self.buffer[self.at..self.at + n]);
        self.consume(n, 0);
        Ok(n)
    }
}
