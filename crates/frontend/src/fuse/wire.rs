//! The messages of FUSE between the kernel and a server: numbers, lengths, and how they are read and written.
//!
//! Owns constants and layouts, after `linux/fuse.h` (7.31 and later, native byte order). Never keeps state. Invariant:
//! reading never looks past the bytes that came, whatever lengths they name.

use serde::{Deserialize, Serialize};

/// The major version that we speak.
pub const MAJOR: u32 = 7;
/// The minor version that we say we speak. The kernel uses nothing of a later one without a flag that we do not set.
pub const MINOR: u32 = 38;
/// The oldest minor version of a kernel that we serve: 4.20, which has `max_pages`.
pub const MINOR_MIN: u32 = 28;
/// The number of the only file: that at which the file system is mounted.
pub const ROOT: u64 = 1;

/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 40;
/// Bytes before the data of a write: the header, and what is asked for.
pub const HEAD_BYTES: usize = 80;
/// Bytes of a reply's header.
pub const REPLY_HEADER_BYTES: usize = 16;
/// Bytes of the longest reply without data of the disk, its header left out: the attributes.
pub const SMALL_BYTES: usize = 104;

/// Of a request's name: it is asked again, since whoever received it before has not answered (Linux 6.9). The reply
/// bears it, too.
pub const ASKED_AGAIN: u64 = 1 << 63;
/// Not a reply but a wish: every request that was received and not answered is to be asked again (Linux 6.9).
const NOTIFY_RESEND: u32 = 7;

/// What is asked for.
pub mod opcode {
    /// Find a name in a directory.
    pub const LOOKUP: u32 = 1;
    /// Forget a file; not answered.
    pub const FORGET: u32 = 2;
    /// Tell the attributes.
    pub const GETATTR: u32 = 3;
    /// Change attributes.
    pub const SETATTR: u32 = 4;
    /// Open.
    pub const OPEN: u32 = 14;
    /// Read.
    pub const READ: u32 = 15;
    /// Write.
    pub const WRITE: u32 = 16;
    /// Tell of the file system.
    pub const STATFS: u32 = 17;
    /// The last user of an opened file is gone.
    pub const RELEASE: u32 = 18;
    /// Make durable.
    pub const FSYNC: u32 = 20;
    /// Set an extended attribute.
    pub const SETXATTR: u32 = 21;
    /// Tell an extended attribute.
    pub const GETXATTR: u32 = 22;
    /// List extended attributes.
    pub const LISTXATTR: u32 = 23;
    /// Agree on versions and abilities.
    pub const INIT: u32 = 26;
    /// Whether somebody may do something.
    pub const ACCESS: u32 = 34;
    /// The end.
    pub const DESTROY: u32 = 38;
    /// Forget several files; not answered.
    pub const BATCH_FORGET: u32 = 42;
    /// Allocate, free or zero a range.
    pub const FALLOCATE: u32 = 43;
    /// Find data or a hole.
    pub const LSEEK: u32 = 46;
}

/// Abilities, of the kernel and of a server.
pub mod ability {
    /// Several reads at a time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// Writes of more than one page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O that does not wait for each request.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Look-ups beside each other.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// A server says how many pages a request may have.
    pub const MAX_PAGES: u64 = 1 << 22;
}

/// What an opened file is like.
pub mod opened {
    /// No page cache for it.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// No message when a descriptor of it is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Writes beside each other.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which attributes are to be set.
pub mod set {
    /// The mode.
    pub const MODE: u32 = 1 << 0;
    /// The owner.
    pub const UID: u32 = 1 << 1;
    /// The group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
    /// When it was read.
    pub const ATIME: u32 = 1 << 4;
    /// When it was written.
    pub const MTIME: u32 = 1 << 5;
    /// The same: now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The same: now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// When its attributes changed.
    pub const CTIME: u32 = 1 << 10;
}

/// Modes of FALLOCATE.
pub mod allocate {
    /// The size stays.
    pub const KEEP_SIZE: u32 = 1;
    /// The range is freed, and reads as zeroes.
    pub const PUNCH_HOLE: u32 = 2;
    /// The range reads as zeroes.
    pub const ZERO_RANGE: u32 = 16;
}

/// What LSEEK looks for: data.
pub const SEEK_DATA: u32 = 3;
/// What LSEEK looks for: a hole.
pub const SEEK_HOLE: u32 = 4;
/// Flags of an opened file: whether it is written.
pub const O_ACCMODE: u32 = 3;
/// Flags of an opened file: each write is durable before its reply. `O_SYNC` has this bit, too.
pub const O_DSYNC: u32 = 0o10000;
/// What ACCESS asks: may it be written.
pub const W_OK: u32 = 2;
/// The mode of a regular file.
pub const S_IFREG: u32 = 0o100_000;

/// Reads numbers from the front of some bytes; `None` where there are too few.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_ne_bytes(*first))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*first))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }
}

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole message.
    pub len: u32,
    /// See [`opcode`].
    pub opcode: u32,
    /// The kernel's name for the request.
    pub unique: u64,
    /// Which file.
    pub node: u64,
}

impl Header {
    /// Reads the head of a message; `None` if it is shorter than that.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let mut f = Fields(bytes.get(..HEADER_BYTES)?);
        Some(Header { len: f.u32()?, opcode: f.u32()?, unique: f.u64()?, node: f.u64()? })
    }

    /// Whether the kernel waits for an answer.
    pub fn is_answered(&self) -> bool {
        !matches!(self.opcode, opcode::FORGET | opcode::BATCH_FORGET)
    }
}

/// The body of a reply without data of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    bytes: [u8; SMALL_BYTES],
    len: usize,
}

impl Small {
    /// Nothing: the reply is its header.
    pub const EMPTY: Small = Small { bytes: [0; SMALL_BYTES], len: 0 };

    /// With four bytes more.
    #[must_use]
    pub fn u32(self, value: u32) -> Small {
        self.put(&value.to_ne_bytes())
    }

    /// With two bytes more.
    #[must_use]
    pub fn u16(self, value: u16) -> Small {
        self.put(&value.to_ne_bytes())
    }

    /// With eight bytes more.
    #[must_use]
    pub fn u64(self, value: u64) -> Small {
        self.put(&value.to_ne_bytes())
    }

    /// With some bytes more, as far as there is room.
    #[must_use]
    pub fn put(mut self, bytes: &[u8]) -> Small {
        let n = bytes.len().min(SMALL_BYTES - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
        self
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The head of a reply with `len` bytes behind it; `error` is a number of errno, 0 for success.
pub(crate) fn reply_header(unique: u64, error: i32, len: usize) -> [u8; REPLY_HEADER_BYTES] {
    let mut header = [0; REPLY_HEADER_BYTES];
    header[..4].copy_from_slice(&((REPLY_HEADER_BYTES + len) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.wrapping_neg().to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// The wish to be asked again whatever was received and not answered.
pub fn ask_again() -> [u8; REPLY_HEADER_BYTES] {
    let mut message = [0; REPLY_HEADER_BYTES];
    message[..4].copy_from_slice(&(REPLY_HEADER_BYTES as u32).to_ne_bytes());
    message[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    message
}

/// When something happened: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Seconds.
    pub seconds: u64,
    /// Nanoseconds of the next one.
    pub nanoseconds: u32,
}

/// What GETATTR tells of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Bytes.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// When it was read, as far as somebody has said so.
    pub read: Stamp,
    /// When it was written.
    pub written: Stamp,
    /// When it was written, or its attributes were set.
    pub changed: Stamp,
}

/// Seconds for which the kernel need not ask for attributes again.
const ATTRIBUTES_VALID_S: u64 = 1;

impl Attributes {
    /// As a reply to GETATTR or SETATTR.
    pub fn encode(&self) -> Small {
        let times = [self.read, self.written, self.changed];
        let small = Small::EMPTY.u64(ATTRIBUTES_VALID_S).u32(0).u32(0);
        let small = small.u64(ROOT).u64(self.size_bytes).u64(self.size_bytes.div_ceil(512));
        let small = times.iter().fold(small, |s, t| s.u64(t.seconds));
        let small = times.iter().fold(small, |s, t| s.u32(t.nanoseconds));
        small.u32(S_IFREG | self.mode).u32(1).u32(self.uid).u32(self.gid).u32(0).u32(4096).u32(0)
    }
}

/// What a reply to STATFS tells: a file system that is full of one file.
pub(crate) fn file_system(size_bytes: u64) -> Small {
    let small = Small::EMPTY.u64(size_bytes.div_ceil(4096)).u64(0).u64(0).u64(1).u64(0);
    small.u32(4096).u32(255).u32(4096).put(&[0; 28])
}

/// What is agreed on with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// See [`ability`].
    pub abilities: u64,
    /// Bytes that the kernel reads ahead at most.
    pub readahead_bytes: u32,
    /// Requests that nobody waits for in a system call, under way at a time.
    pub background: u16,
    /// Bytes of a write at most.
    pub write_bytes: u32,
    /// Pages of a request at most.
    pub pages: u16,
}

impl Agreement {
    /// As a reply to INIT.
    pub fn encode(&self) -> Small {
        let small = Small::EMPTY.u32(MAJOR).u32(MINOR).u32(self.readahead_bytes).u32(self.abilities as u32);
        let small = small.u16(self.background).u16(self.background / 4 * 3).u32(self.write_bytes).u32(1);
        small.u16(self.pages).u16(0).u32((self.abilities >> 32) as u32).put(&[0; 28])
    }
}

/// The reply to INIT of a kernel that speaks a later major version: ours, upon which it asks again.
pub fn version() -> Small {
    Small::EMPTY.u32(MAJOR).u32(MINOR).put(&[0; 56])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_whole_or_not_at_all() {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[..4].copy_from_slice(&80u32.to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode::READ.to_ne_bytes());
        bytes[8..16].copy_from_slice(&7u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&1u64.to_ne_bytes());
        let want = Header { len: 80, opcode: opcode::READ, unique: 7, node: 1 };
        assert_eq!(Header::parse(&bytes), Some(want));
        for n in 0..HEADER_BYTES {
            assert_eq!(Header::parse(&bytes[..n]), None);
        }
    }

    /// The lengths that the kernel compares with those of its structures.
    #[test]
    fn replies_have_the_lengths_of_linux_fuse_h() {
        let file = Attributes {
            size_bytes: 9,
            mode: 0,
            uid: 0,
            gid: 0,
            read: Stamp::default(),
            written: Stamp::default(),
            changed: Stamp::default(),
        };
        assert_eq!(file.encode().bytes().len(), 16 + 88);
        assert_eq!(file_system(1).bytes().len(), 80);
        let all = Agreement { abilities: u64::MAX, readahead_bytes: 1, background: 2, write_bytes: 3, pages: 4 };
        assert_eq!(all.encode().bytes().len(), 64);
        assert_eq!(version().bytes().len(), 64);
        assert_eq!(ask_again(), [16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reply_header(1, 5, 100)[..8], [116, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn attributes_stand_where_the_kernel_looks_for_them() {
        let stamp = |seconds, nanoseconds| Stamp { seconds, nanoseconds };
        let file = Attributes {
            size_bytes: 1 << 40,
            mode: 0o640,
            uid: 3,
            gid: 4,
            read: stamp(5, 6),
            written: stamp(7, 8),
            changed: stamp(9, 10),
        };
        let small = file.encode();
        let mut f = Fields(&small.bytes()[16..]);
        assert_eq!([f.u64(), f.u64(), f.u64()], [Some(1), Some(1 << 40), Some(1 << 31)]);
        assert_eq!([f.u64(), f.u64(), f.u64()], [Some(5), Some(7), Some(9)]);
        assert_eq!([f.u32(), f.u32(), f.u32()], [Some(6), Some(8), Some(10)]);
        assert_eq!([f.u32(), f.u32(), f.u32(), f.u32()], [Some(0o100_640), Some(1), Some(3), Some(4)]);
    }
}
