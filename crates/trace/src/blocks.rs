//! How requests become accesses to blocks.
//!
//! Owns the arithmetic of splitting, and where the tenant stands in a block's number. Never reads a file. Invariant: a
//! request that [`Blocks::fits`] gives blocks that no request of another tenant gives, if tenants have disks of their
//! own; and no sum here overflows.

use crate::access::{Access, TraceRequest};

/// Where the tenant's number stands in a block's number.
pub const TENANT_SHIFT: u32 = 51;
/// Tenants at most, where each has a disk of its own.
pub const DISK_TENANTS_MAX: usize = 1 << (64 - TENANT_SHIFT);
/// Bytes of one request at most: 512 GiB. More is damage.
pub const REQUEST_BYTES_MAX: u64 = 1 << 39;
/// Keys of one request at most: 512 GiB in pages. More is damage.
pub const REQUEST_KEYS_MAX: u64 = 1 << 27;
/// Bytes of a block where nothing else is said.
pub const BLOCK_BYTES: u32 = 4096;
/// Bytes of a sector.
pub const SECTOR_BYTES: u32 = 512;

/// A request is wider, or further from the beginning, than any can be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Of keys.
    #[error("{count} blocks from {first} on are too many")]
    Keys {
        /// The first key.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Of bytes.
    #[error("{bytes} bytes from byte {first} on are more than any disk takes in one request")]
    Bytes {
        /// The first byte.
        first: u64,
        /// How many.
        bytes: u64,
    },
}

/// What addresses of requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Ranges of bytes.
    Bytes,
    /// Keys of objects, or numbers of blocks of a size that the trace does not name.
    Keys,
}

/// How the requests of one trace become accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// What addresses are.
    pub unit: Unit,
    /// Bytes of a block, at least 1; not used for keys.
    pub block_bytes: u32,
    /// Whether a request counts as one access to its first block, however wide it is; not used for keys.
    pub whole: bool,
    /// Whether each tenant has a disk of its own, so that its number is part of the block's.
    pub own_disks: bool,
}

impl Blocks {
    /// Keys, whoever uses them.
    pub const KEYS: Blocks = Blocks { unit: Unit::Keys, block_bytes: BLOCK_BYTES, whole: false, own_disks: false };

    /// Ranges of bytes, split into blocks of `block_bytes`.
    pub fn of_bytes(block_bytes: u32) -> Blocks {
        Blocks { unit: Unit::Bytes, block_bytes, whole: false, own_disks: true }
    }

    /// The number of the block that a byte is in, on its disk.
    #[inline]
    fn number(&self, byte: u64) -> u64 {
        // a division costs more than everything else here together
        if self.block_bytes.is_power_of_two() {
            byte >> self.block_bytes.trailing_zeros()
        } else {
            byte / u64::from(self.block_bytes)
        }
    }

    /// The first block of a request and how many there are.
    #[inline]
    pub fn of(&self, r: &TraceRequest) -> (u64, u64) {
        let (first, count) = match self.unit {
            Unit::Keys => (r.address, u64::from(r.keys)),
            Unit::Bytes => {
                let first = self.number(r.address);
                match (self.whole, r.bytes) {
                    (true, _) => (first, 1),
                    (false, 0) => (first, 0),
                    (false, n) => (first, self.number(r.address + (n - 1)) - first + 1),
                }
            }
        };
        let above = if self.own_disks { u64::from(r.tenant) << TENANT_SHIFT } else { 0 };
        (first | above, count)
    }

    /// Whether a request can be: its end is within the numbers there are, and it is not absurdly wide.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn fits(&self, r: &TraceRequest) -> Result<(), RangeError> {
        match self.unit {
            Unit::Keys => {
                let last = r.address.checked_add(u64::from(r.keys).max(1) - 1);
                let fits = u64::from(r.keys) <= REQUEST_KEYS_MAX;
                if fits && last.is_some_and(|last| !self.own_disks || last < 1 << TENANT_SHIFT) {
                    return Ok(());
                }
                Err(RangeError::Keys { first: r.address, count: u64::from(r.keys) })
            }
            Unit::Bytes => {
                let end = r.address.checked_add(r.bytes);
                let below = |end: u64| !self.own_disks || end / u64::from(self.block_bytes) < 1 << TENANT_SHIFT;
                if r.bytes <= REQUEST_BYTES_MAX && end.is_some_and(below) {
                    return Ok(());
                }
                Err(RangeError::Bytes { first: r.address, bytes: r.bytes })
            }
        }
    }

    /// The `n`-th block of a request as a request of its own.
    pub fn part(&self, r: &TraceRequest, n: u64) -> TraceRequest {
        match self.unit {
            Unit::Keys => TraceRequest { address: r.address + n, keys: 1, ..*r },
            Unit::Bytes => {
                let size = u64::from(self.block_bytes);
                TraceRequest { address: (self.number(r.address) + n) * size, bytes: size, ..*r }
            }
        }
    }

    /// One access of a request.
    #[inline]
    pub(crate) fn access(r: &TraceRequest, block: u64) -> Access {
        let bytes = r.bytes.min(u64::from(u32::MAX)) as u32;
        Access { time_ns: r.time_ns, block, bytes, tenant: r.tenant, kind: r.kind }
    }
}
