//! One access of a trace: what every format comes down to.
//!
//! Owns the record that readers give and experiments take. Never knows how a file wrote it.

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads the block.
    Read,
    /// Writes it.
    Write,
    /// The format does not say, or names another command.
    Unknown,
}

/// One access to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Nanoseconds since the first instant that the format counts from; 0 throughout where it has no time.
    pub time_ns: u64,
    /// The block's number; what a block is (a sector, a page, a key) depends on the trace.
    pub block: u64,
    /// Bytes that the record as a whole moves, as far as it says; 0 where it does not.
    pub bytes: u32,
    /// What is done.
    pub kind: Kind,
}
