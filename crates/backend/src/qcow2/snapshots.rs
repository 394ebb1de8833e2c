//! The snapshot table of a qcow2 image, as far as verification needs it: where the L1 tables are.
//!
//! Owns the limits, which are QEMU's. Reads only. Invariant: no more is read or kept than the limits allow.

/// Snapshots at most.
const COUNT_MAX: u32 = 65536;
/// Bytes of the table at most.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of an entry before its names.
const FIXED_BYTES: usize = 40;
/// Bytes of an entry that later versions added, at most.
const EXTRA_BYTES_MAX: u32 = 1024;
/// Entries of a snapshot's L1 table at most.
const L1_ENTRIES_MAX: u32 = (32 << 20) / 8;

/// One snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Where its L1 table is.
    pub l1_offset: u64,
    /// How many entries that has.
    pub l1_entries: u64,
}

/// What is wrong with a table of snapshots: a part of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SnapshotsError {
    /// Too many.
    #[error("a snapshot table of {0} snapshots")]
    Many(u32),
    /// It is cut short.
    #[error("its snapshot table reaches past the end of the file")]
    CutShort,
    /// An entry that no program writes.
    #[error("entry {0} of its snapshot table makes no sense")]
    Nonsense(u32),
    /// More bytes than it may have.
    #[error("its snapshot table is too large")]
    Large,
}

/// What was read, and how many bytes the table has; or what is wrong with it.
pub(super) type Parsed = Result<(Vec<Snapshot>, u64), SnapshotsError>;

/// Reads a table of `count` snapshots. `read(at, bytes)` gives bytes of it, less where the file ends.
pub(super) fn parse<E>(count: u32, mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>) -> Result<Parsed, E> {
    if count > COUNT_MAX {
        return Ok(Err(SnapshotsError::Many(count)));
    }
    let (mut list, mut at) = (Vec::new(), 0u64);
    for i in 0..count {
        let entry = read(at, FIXED_BYTES)?;
        if entry.len() < FIXED_BYTES {
            return Ok(Err(SnapshotsError::CutShort));
        }
        let n16 = |at: usize| u64::from(u16::from_be_bytes([entry[at], entry[at + 1]]));
        let n32 = |at: usize| u32::from_be_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let (l1_offset, l1_entries) = (u64::from(n32(0)) << 32 | u64::from(n32(4)), n32(8));
        let (names, extra) = (n16(12) + n16(14), n32(36));
        if l1_entries > L1_ENTRIES_MAX || extra > EXTRA_BYTES_MAX {
            return Ok(Err(SnapshotsError::Nonsense(i)));
        }
        list.push(Snapshot { l1_offset, l1_entries: u64::from(l1_entries) });
        at = (at + FIXED_BYTES as u64 + u64::from(extra) + names).next_multiple_of(8);
        if at > BYTES_MAX {
            return Ok(Err(SnapshotsError::Large));
        }
    }
    Ok(Ok((list, at)))
}
