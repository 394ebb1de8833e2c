//! One access and one request of a trace: what every format comes down to.
//!
//! Owns the records that readers give and experiments take. Never knows how a file wrote them. Invariant: both stay
//! small (24 and 32 bytes), as hundreds of millions of them are streamed.

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Reads the block.
    Read,
    /// Writes it.
    Write,
    /// Executes it: the fetch of an instruction.
    Fetch,
    /// The format does not say, or names another command.
    Unknown,
}

impl AccessKind {
    /// Its name in tables and text formats: `read`, `write`, `fetch`, `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Fetch => "fetch",
            AccessKind::Unknown => "unknown",
        }
    }
}

/// One access to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Nanoseconds since the first instant that the format counts from; 0 throughout where it has no time.
    pub time_ns: u64,
    /// The block's number; what a block is (a sector, a page, a key) depends on the trace. Where tenants have disks of
    /// their own, the tenant's number stands above bit 51, so that no two of them share a block.
    pub block: u64,
    /// Bytes that the record as a whole moves, as far as it says (at most 4 GiB are shown); 0 where it does not.
    pub bytes: u32,
    /// Whose access it is, of the reader's tenants; 0 where the trace knows none.
    pub tenant: u16,
    /// What is done.
    pub kind: AccessKind,
}

/// One record of a trace, before it is split into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// As [`Access::time_ns`].
    pub time_ns: u64,
    /// The first byte on the tenant's disk, or the (first) key: which of the two, [`crate::Blocks::unit`] says.
    pub address: u64,
    /// Bytes moved, or the size of the object; 0 where the format does not say.
    pub bytes: u64,
    /// How many consecutive keys are named; 1 for a range of bytes.
    pub keys: u32,
    /// As [`Access::tenant`].
    pub tenant: u16,
    /// What is done.
    pub kind: AccessKind,
}

const _: () = assert!(size_of::<Access>() == 24 && size_of::<TraceRequest>() == 32);
