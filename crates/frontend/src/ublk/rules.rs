//! What the kernel asks of a disk that is a block device: judged before anything is done about it.
//!
//! Owns which request is answered with which error, and what the kernel is told of the disk. Never owns a buffer or a
//! descriptor. Invariant: a request that is let through lies within the disk, and moves at most what was agreed on.

use undercroft_cache::limits::REQUEST_BYTES_MAX;
use undercroft_cache::{Geometry, IoError};
use undercroft_host::ublk::{Params, Request, operation};

/// Bytes of a sector, the unit of the kernel whatever the disk's block size.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of one read or write at most.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Sectors of one discard, or of one write of zeroes, at most (2 GiB).
pub const RANGE_SECTORS_MAX: u32 = 4 << 20;
/// The same where the cache has to write the zeroes itself (32 MiB).
pub const WRITTEN_ZEROES_SECTORS_MAX: u32 = 64 << 10;

const _: () = assert!(TRANSFER_BYTES_MAX <= REQUEST_BYTES_MAX);

/// Numbers of errno that are answered, below 0 as the kernel takes them.
pub mod result {
    /// The disk failed.
    pub const IO: i32 = -5;
    /// Makes no sense.
    pub const INVALID: i32 = -22;
    /// The disk is full.
    pub const NO_SPACE: i32 = -28;
    /// Not supported.
    pub const UNSUPPORTED: i32 = -95;
}

/// What is done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceVerdict {
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at least a sector.
        len: u32,
    },
    /// Write.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes, at least a sector.
        len: u32,
        /// Durable before the answer.
        fua: bool,
    },
    /// Make durable.
    Flush,
    /// No longer needed.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes, at least a sector.
        len: u64,
    },
    /// Zero.
    Zeroes {
        /// First byte.
        offset: u64,
        /// Bytes, at least a sector.
        len: u64,
        /// Whether the space may be freed.
        unmap: bool,
        /// Durable before the answer.
        fua: bool,
    },
    /// Nothing to do but to answer this.
    Answer(i32),
}

/// What one disk's device allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRules {
    params: Params,
}

impl DeviceRules {
    /// The rules for a disk.
    pub fn new(geometry: &Geometry) -> DeviceRules {
        let Geometry { size_bytes, align, read_only, can_discard, can_write_zeroes } = *geometry;
        let block_bytes = align.clamp(SECTOR_BYTES as u32, 4096).next_power_of_two();
        let zeroes_sectors_max = if can_write_zeroes { RANGE_SECTORS_MAX } else { WRITTEN_ZEROES_SECTORS_MAX };
        DeviceRules {
            params: Params {
                // What is past the last whole block cannot be reached.
                sectors: size_bytes / u64::from(block_bytes) * (u64::from(block_bytes) / SECTOR_BYTES),
                read_only,
                block_bytes,
                transfer_sectors_max: TRANSFER_BYTES_MAX / SECTOR_BYTES as u32,
                discard_sectors_max: if can_discard && !read_only { RANGE_SECTORS_MAX } else { 0 },
                zeroes_sectors_max: if read_only { 0 } else { zeroes_sectors_max },
            },
        }
    }

    /// What the kernel is told.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Judges a request.
    pub fn judge(&self, request: &Request) -> DeviceVerdict {
        use DeviceVerdict as V;
        let fua = request.flags & operation::FUA != 0;
        let p = &self.params;
        let (kind, most) = match request.operation {
            operation::FLUSH => return V::Flush,
            operation::READ => (operation::READ, p.transfer_sectors_max),
            operation::WRITE => (operation::WRITE, p.transfer_sectors_max),
            operation::DISCARD => (operation::DISCARD, p.discard_sectors_max),
            operation::WRITE_ZEROES => (operation::WRITE_ZEROES, p.zeroes_sectors_max),
            _ => return V::Answer(result::UNSUPPORTED),
        };
        if kind != operation::READ && p.read_only {
            return V::Answer(result::IO);
        }
        if most == 0 {
            return V::Answer(result::UNSUPPORTED);
        }
        let end = request.start_sector.checked_add(request.sectors.into());
        if request.sectors == 0 || request.sectors > most || end.is_none_or(|end| end > p.sectors) {
            return V::Answer(result::INVALID);
        }
        let (offset, len) = (request.start_sector * SECTOR_BYTES, u64::from(request.sectors) * SECTOR_BYTES);
        match kind {
            operation::READ => V::Read { offset, len: len as u32 },
            operation::WRITE => V::Write { offset, len: len as u32, fua },
            operation::DISCARD => V::Discard { offset, len },
            _ => V::Zeroes { offset, len, unmap: request.flags & operation::NOUNMAP == 0, fua },
        }
    }
}

/// What the kernel is answered for a failure.
pub(super) fn error_number(e: IoError) -> i32 {
    match e {
        IoError::Io | IoError::Lost | IoError::ReadOnly | IoError::Shutdown => result::IO,
        IoError::NoSpace => result::NO_SPACE,
        IoError::Invalid => result::INVALID,
        IoError::Unsupported => result::UNSUPPORTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTORS: u64 = 1 << 12;

    fn geometry() -> Geometry {
        Geometry::new(SECTORS * SECTOR_BYTES + 100)
    }

    fn asks(operation: u8, start_sector: u64, sectors: u32, flags: u32) -> Request {
        Request { operation, flags, sectors, start_sector }
    }

    #[test]
    fn the_kernel_is_told_what_the_disk_is_like() {
        let params = *DeviceRules::new(&geometry()).params();
        assert_eq!((params.sectors, params.block_bytes, params.transfer_sectors_max), (SECTORS, 512, 2048));
        let large = *DeviceRules::new(&Geometry { align: 4096, ..Geometry::new(10_000) }).params();
        assert_eq!((large.sectors, large.block_bytes), (16, 4096));
        let fixed = *DeviceRules::new(&Geometry { read_only: true, ..geometry() }).params();
        assert_eq!((fixed.read_only, fixed.discard_sectors_max, fixed.zeroes_sectors_max), (true, 0, 0));
        let bare = Geometry { can_discard: false, can_write_zeroes: false, align: 1, ..geometry() };
        let bare = *DeviceRules::new(&bare).params();
        assert_eq!((bare.discard_sectors_max, bare.zeroes_sectors_max), (0, WRITTEN_ZEROES_SECTORS_MAX));
    }

    #[test]
    fn what_is_asked_for_is_done_or_refused() {
        use DeviceVerdict as V;
        let rules = DeviceRules::new(&geometry());
        let (fua, nounmap) = (operation::FUA, operation::NOUNMAP);
        let zeroes = |unmap, fua| V::Zeroes { offset: 512, len: 512, unmap, fua };
        for (request, verdict) in [
            (asks(operation::READ, 1, 8, 0), V::Read { offset: 512, len: 4096 }),
            (asks(operation::READ, SECTORS - 1, 1, 0), V::Read { offset: (SECTORS - 1) * 512, len: 512 }),
            (asks(operation::WRITE, 0, 1, 0), V::Write { offset: 0, len: 512, fua: false }),
            (asks(operation::WRITE, 0, 2048, fua), V::Write { offset: 0, len: 1 << 20, fua: true }),
            (asks(operation::FLUSH, 9, 9, 0), V::Flush),
            (asks(operation::DISCARD, 0, 4096, 0), V::Discard { offset: 0, len: 2 << 20 }),
            (asks(operation::WRITE_ZEROES, 1, 1, 0), zeroes(true, false)),
            (asks(operation::WRITE_ZEROES, 1, 1, nounmap | fua), zeroes(false, true)),
            (asks(operation::READ, SECTORS, 1, 0), V::Answer(result::INVALID)),
            (asks(operation::WRITE, SECTORS - 1, 2, 0), V::Answer(result::INVALID)),
            (asks(operation::READ, u64::MAX, 1, 0), V::Answer(result::INVALID)),
            (asks(operation::READ, 0, 0, 0), V::Answer(result::INVALID)),
            (asks(operation::READ, 0, 2049, 0), V::Answer(result::INVALID)),
            (asks(4, 0, 1, 0), V::Answer(result::UNSUPPORTED)),
            (asks(u8::MAX, 0, 1, 0), V::Answer(result::UNSUPPORTED)),
        ] {
            assert_eq!(rules.judge(&request), verdict, "{request:?}");
        }
        let fixed = DeviceRules::new(&Geometry { read_only: true, ..geometry() });
        for kind in [operation::WRITE, operation::DISCARD, operation::WRITE_ZEROES] {
            assert_eq!(fixed.judge(&asks(kind, 0, 1, 0)), V::Answer(result::IO));
        }
        assert_eq!(fixed.judge(&asks(operation::FLUSH, 0, 0, 0)), V::Flush);
        let whole = DeviceRules::new(&Geometry { can_discard: false, ..geometry() });
        assert_eq!(whole.judge(&asks(operation::DISCARD, 0, 1, 0)), V::Answer(result::UNSUPPORTED));
    }

    proptest! {
        #[test]
        fn nothing_outside_of_the_disk_is_let_through(
            kind in 0u8..8, flags in any::<u32>(), read_only: bool,
            start in prop_oneof![any::<u64>(), 0..2 * SECTORS], sectors in prop_oneof![any::<u32>(), 0u32..5000],
        ) {
            use DeviceVerdict as V;
            let rules = DeviceRules::new(&Geometry { read_only, ..geometry() });
            let (offset, len, moves) = match rules.judge(&asks(kind, start, sectors, flags)) {
                V::Read { offset, len } | V::Write { offset, len, .. } => (offset, len.into(), true),
                V::Discard { offset, len } | V::Zeroes { offset, len, .. } => (offset, len, false),
                V::Flush => return Ok(()),
                V::Answer(result) => return { prop_assert!(result < 0); Ok(()) },
            };
            prop_assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= SECTORS * SECTOR_BYTES));
            prop_assert!(!moves || len <= TRANSFER_BYTES_MAX.into());
            prop_assert!(!read_only || kind == operation::READ);
        }
    }
}
