//! What clients of the simulation ask for, whichever protocol they speak, and what came of it.
//!
//! Owns no state. Never looks at a wire or a ring. Invariant: a piece of work is judged once, when its client can see
//! that it is over.

pub use undercroft_testkit::violation::Violation;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Data from the disk.
    Read,
    /// Data to the disk.
    Write,
    /// Durability of what was acknowledged.
    Flush,
    /// Zeroes, or nothing.
    Discard,
    /// Zeroes.
    Zeroes,
    /// The disk's serial number, over virtio.
    Serial,
    /// A prefetch, over NBD.
    Cache,
    /// Which parts are holes, over NBD.
    Extents,
    /// What the protocol has answered with an error.
    Wrong,
}

/// One range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The change in the model, if it makes one; 0 if not. Also the number of the data that it writes.
    pub change: u64,
}

/// One piece of work.
#[derive(Clone, Debug)]
pub struct Work {
    /// What is asked for.
    pub verb: Verb,
    /// The ranges: one, but for discards and zeroes over virtio, and none for a flush.
    pub parts: Vec<Part>,
    /// Durable before the answer.
    pub fua: bool,
    /// Zeroes: the space may be freed.
    pub unmap: bool,
    /// When it was asked for.
    pub start: u64,
    /// Failures of the disk until then.
    pub failures: u64,
    /// Answers of the disk until then.
    pub answers: u64,
    /// What is special about it, for the matrix: see `coverage`.
    pub marks: Vec<&'static str>,
}

impl Work {
    /// Bytes of data that it moves.
    pub(crate) fn data_len(&self) -> usize {
        match self.verb {
            Verb::Read | Verb::Write => self.parts[0].len as usize,
            _ => 0,
        }
    }

    /// Notes something about it.
    pub fn mark(&mut self, what: &'static str) {
        if !self.marks.contains(&what) {
            self.marks.push(what);
        }
    }
}

/// Work that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    /// What it was.
    pub work: Work,
    /// Whether it went well, as its client was told.
    pub ok: bool,
    /// The data read.
    pub data: Vec<u8>,
}
