//! Where the bytes of a file are on the device below its file system (FIEMAP).
//!
//! Owns the one call. Never reads a byte of the file. Invariants: every extent is told once, in order of the file; what
//! the kernel writes stays within the buffer that it was given.
//!
//! The layout is that of `struct fiemap` in <linux/fiemap.h>, described in Documentation/filesystems/fiemap.rst.

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::io;
use std::os::fd::AsFd;

/// Extents asked for at a time.
const PAGE_EXTENTS: usize = 512;
/// `FIEMAP_FLAG_SYNC`: write back first, so that delayed allocation has happened.
const FLAG_SYNC: u32 = 1;

/// `FIEMAP_EXTENT_LAST`: the last one of the file.
const LAST: u32 = 0x1;
/// The kernel does not know where it is.
const UNKNOWN: u32 = 0x2;
/// No place has been chosen yet.
const DELALLOC: u32 = 0x4;
/// Compressed or encrypted.
const ENCODED: u32 = 0x8;
/// Bytes that begin or end within a block.
const NOT_ALIGNED: u32 = 0x100;
/// In the inode, with other metadata.
const INLINE: u32 = 0x200;
/// In a block with tails of other files.
const TAIL: u32 = 0x400;
/// Allocated, but never written: reads as zeroes.
const UNWRITTEN: u32 = 0x800;
/// Other files have it too (reflinks).
const SHARED: u32 = 0x2000;

/// `struct fiemap` without its extents.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for its extents right behind it, as the kernel wants it.
#[repr(C)]
struct Request {
    header: Header,
    extents: [RawExtent; PAGE_EXTENTS],
}

/// `FS_IOC_FIEMAP`, `_IOWR('f', 11, struct fiemap)`: the size in it is that of the header alone.
const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);

/// A piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Its first byte in the file.
    pub logical: u64,
    /// Its first byte on the device of the file system, where `place` says that this means something.
    pub physical: u64,
    /// How many bytes.
    pub length: u64,
    /// What kind of place it has.
    pub place: Place,
    /// Whether other files have the same bytes (reflinks).
    pub shared: bool,
}

/// What kind of place an extent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Whole blocks of its own: `physical` holds.
    Blocks,
    /// Allocated, but never written.
    Unwritten,
    /// None yet, or none that the file system tells.
    Unknown,
    /// Within metadata, or within a block with other files' bytes.
    Inline,
    /// Compressed or encrypted.
    Encoded,
}

fn place_of(flags: u32) -> Place {
    match flags {
        f if f & (DELALLOC | UNKNOWN) != 0 => Place::Unknown,
        f if f & ENCODED != 0 => Place::Encoded,
        f if f & (INLINE | TAIL | NOT_ALIGNED) != 0 => Place::Inline,
        f if f & UNWRITTEN != 0 => Place::Unwritten,
        _ => Place::Blocks,
    }
}

/// Tells `each` every extent of an open file, in order. What is dirty is written back first. A file that changes
/// meanwhile can be told partly as it was.
///
/// # Errors
/// What the kernel says: `EOPNOTSUPP` or `ENOTTY` where the file system cannot tell.
pub fn file_extents(file: impl AsFd, mut each: impl FnMut(FileExtent)) -> io::Result<()> {
    let mut request = Box::new(Request { header: Header::default(), extents: [RawExtent::default(); PAGE_EXTENTS] });
    let mut start = 0u64;
    loop {
        request.header = Header {
            start,
            length: u64::MAX - start,
            flags: FLAG_SYNC,
            mapped_extents: 0,
            extent_count: PAGE_EXTENTS as u32,
            reserved: 0,
        };
        // SAFETY: `Request` is `repr(C)` and plain numbers: a `struct fiemap` followed by the `extent_count` extents
        // that it announces, which is all that FS_IOC_FIEMAP writes to. The opcode is that of this structure. The
        // borrow lasts for the call, and any bytes that the kernel leaves there are valid numbers.
        unsafe { ioctl(&file, Updater::<FS_IOC_FIEMAP, Request>::new(&mut request)) }?;
        let told = (request.header.mapped_extents as usize).min(PAGE_EXTENTS);
        let mut last = told == 0;
        let before = start;
        for e in &request.extents[..told] {
            last |= e.flags & LAST != 0;
            start = start.max(e.logical.saturating_add(e.length));
            each(FileExtent {
                logical: e.logical,
                physical: e.physical,
                length: e.length,
                place: place_of(e.flags),
                shared: e.flags & SHARED != 0,
            });
        }
        // A file system that does not get on would be asked for ever.
        if last || start == before {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!((size_of::<Header>(), size_of::<RawExtent>()), (32, 56));
        assert_eq!(size_of::<Request>(), 32 + 56 * PAGE_EXTENTS);
        assert_eq!(FS_IOC_FIEMAP, 0xC020_660B);
    }

    #[test]
    fn flags_say_what_kind_of_place_it_is() {
        for (flags, place) in [
            (0, Place::Blocks),
            (LAST | SHARED, Place::Blocks),
            (UNWRITTEN | LAST, Place::Unwritten),
            (DELALLOC | UNKNOWN, Place::Unknown),
            (INLINE | NOT_ALIGNED, Place::Inline),
            (TAIL | NOT_ALIGNED, Place::Inline),
            (ENCODED, Place::Encoded),
        ] {
            assert_eq!(place_of(flags), place);
        }
    }

    /// A file of more extents than are asked for at a time, every second block a hole: each block is told once, and
    /// where the device can be read, its bytes are there.
    #[test]
    fn every_extent_is_told_and_holds_the_files_bytes() {
        const BLOCK: u64 = 65536;
        const BLOCKS: u64 = PAGE_EXTENTS as u64 + 10;
        let mut file =
            tempfile::tempfile_in(std::env::var_os("UNDERCROFT_TEST_DIR").unwrap_or("/var/tmp".into())).unwrap();
        let bytes = |n: u64| (n + 1).to_le_bytes().repeat(512);
        for n in 0..BLOCKS {
            file.write_all_at(&bytes(n), n * BLOCK).unwrap();
        }
        file.flush().unwrap();
        file.sync_all().unwrap();
        let mut extents = Vec::new();
        if let Err(e) = file_extents(&file, |e| extents.push(e)) {
            assert!(matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY)), "{e}");
            return undercroft_skips::skip(format_args!(
                "the file system of the test directory cannot tell extents: {e}"
            ));
        }
        assert!(extents.windows(2).all(|w| w[0].logical + w[0].length <= w[1].logical), "out of order");
        let device = file.metadata().unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        // Against the device itself, where it may be read; tests/guest/test_ranges.py does so on any machine, in a
        // guest.
        let uevent = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
        let raw =
            uevent.lines().find_map(|l| l.strip_prefix("DEVNAME=")).and_then(|n| File::open(format!("/dev/{n}")).ok());
        for n in 0..BLOCKS {
            let of_block = extents.iter().filter(|e| (e.logical..e.logical + e.length).contains(&(n * BLOCK)));
            let [extent] = of_block.collect::<Vec<_>>()[..] else { panic!("block {n} is not told once") };
            assert_eq!(extent.place, Place::Blocks);
            if let Some(raw) = &raw {
                let mut there = vec![0; 4096];
                raw.read_exact_at(&mut there, extent.physical + n * BLOCK - extent.logical).unwrap();
                assert!(there == bytes(n), "the device holds something else of block {n}");
            }
        }
    }
}
