//! The bytes of a trace as its format reads them: whole records or whole lines, with a count for the errors.
//!
//! Owns the position. Never interprets a record.
//! Invariant: `offset` and `record` belong to the record handed out last.

use crate::error::Error;
use std::io::{self, BufRead, Read};

/// Bytes of one line at most; a longer one is damage, not a record.
const LINE_BYTES_MAX: u64 = 4096;

/// See the head of the file.
pub(crate) struct Input<'a> {
    inner: Box<dyn BufRead + 'a>,
    name: String,
    /// Where the record at hand begins.
    offset: u64,
    /// Its number, from 1; 0 before the first.
    record: u64,
    /// Where the next one begins.
    next_offset: u64,
}

impl<'a> Input<'a> {
    pub fn new(inner: Box<dyn BufRead + 'a>, name: &str) -> Self {
        Self { inner, name: name.to_owned(), offset: 0, record: 0, next_offset: 0 }
    }

    /// A record of the next `N` bytes; `None` at the end; an error if the end comes within them.
    pub fn bytes<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Error> {
        let mut buf = [0; N];
        let filled = self.fill(&mut buf)?;
        if filled == 0 {
            return Ok(None);
        }
        self.begin_record(filled);
        if filled < N {
            return Err(self.damaged(format!("the file ends after {filled} of the record's {N} bytes")));
        }
        Ok(Some(buf))
    }

    /// `N` more bytes of the record at hand.
    pub fn more<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut buf = [0; N];
        let filled = self.fill(&mut buf)?;
        if filled < N {
            return Err(self.damaged("the file ends within the record".into()));
        }
        self.next_offset += N as u64;
        Ok(buf)
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.inner.read(&mut buf[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.read_error(filled, source)),
            }
        }
        Ok(filled)
    }

    /// The next line, without its end; `None` at the end of the file.
    pub fn line(&mut self, line: &mut Vec<u8>) -> Result<Option<()>, Error> {
        line.clear();
        let result = self.inner.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', line);
        match result {
            Ok(0) => return Ok(None),
            Ok(n) => self.begin_record(n),
            Err(source) => return Err(self.read_error(line.len(), source)),
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 == LINE_BYTES_MAX {
            return Err(self.damaged(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
        }
        Ok(Some(()))
    }

    fn begin_record(&mut self, bytes: usize) {
        self.offset = self.next_offset;
        self.next_offset += bytes as u64;
        self.record += 1;
    }

    fn read_error(&self, more: usize, source: io::Error) -> Error {
        Error::Read { name: self.name.clone(), offset: self.next_offset + more as u64, source }
    }

    /// An error about the record at hand.
    pub fn damaged(&self, what: String) -> Error {
        Error::Record { name: self.name.clone(), record: self.record, offset: self.offset, what }
    }
}
