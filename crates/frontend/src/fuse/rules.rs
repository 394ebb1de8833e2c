//! What the kernel asks of a disk that is a file: read from bytes and judged, before anything is done about it.
//!
//! Owns which request is answered with which error. Never owns a buffer or a descriptor. Invariant: a request that is
//! let through lies within the disk, and within what was agreed on where it moves data.

use super::wire::{
    Agreement, Fields, HEAD_BYTES, HEADER_BYTES, Header, MAJOR, MINOR_MIN, O_ACCMODE, O_DSYNC, ROOT, SEEK_DATA,
    SEEK_HOLE, Stamp, W_OK, ability, allocate, opcode, set,
};
use undercroft_cache::Geometry;
use undercroft_cache::limits::REQUEST_BYTES_MAX;

/// Bytes of one read, or of any message's data, at most: what the kernel allows without its administrator's help (256
/// pages).
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Bytes of one write at most, as is agreed on: a message is received whole, and nobody else is served meanwhile
/// (decision 0199). Those of a file that another process has left may be longer, by what that one agreed on.
pub const WRITE_BYTES_MAX: usize = 128 << 10;
/// Bytes of what is asked for, the data of a write left out, that are looked at.
pub const BODY_BYTES_MAX: usize = 512;
/// The extended attribute by which a range is read into the cache: `OFFSET LENGTH` in bytes.
pub const WILLNEED: &[u8] = b"user.undercroft.willneed";
/// The extended attribute that is the disk's hint: its name.
pub const HINT: &[u8] = b"user.undercroft.hint";

const _: () = assert!(TRANSFER_BYTES_MAX <= REQUEST_BYTES_MAX as usize);

/// Numbers of errno that are answered.
pub mod errno {
    /// Not permitted.
    pub const EPERM: i32 = 1;
    /// No such file.
    pub const ENOENT: i32 = 2;
    /// The disk failed.
    pub const EIO: i32 = 5;
    /// Nothing of that kind behind there.
    pub const ENXIO: i32 = 6;
    /// The disk is gone.
    pub const ENODEV: i32 = 19;
    /// Makes no sense.
    pub const EINVAL: i32 = 22;
    /// Past the end, or the disk is full.
    pub const ENOSPC: i32 = 28;
    /// Read-only.
    pub const EROFS: i32 = 30;
    /// Not implemented: the kernel asks no more.
    pub const ENOSYS: i32 = 38;
    /// More than there is room for.
    pub const ERANGE: i32 = 34;
    /// No such extended attribute.
    pub const ENODATA: i32 = 61;
    /// Another version of the protocol.
    pub const EPROTO: i32 = 71;
    /// Not supported.
    pub const EOPNOTSUPP: i32 = 95;
}

/// Which attributes are set, and to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// See [`set`].
    pub which: u32,
    /// Bytes.
    pub size_bytes: u64,
    /// When it was read.
    pub read: Stamp,
    /// When it was written.
    pub written: Stamp,
    /// When its attributes changed.
    pub changed: Stamp,
    /// The mode, with the kind of file.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// A word of a few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    bytes: [u8; WORD_BYTES],
    len: u8,
}

/// Bytes of a [`Word`] at most.
const WORD_BYTES: usize = 16;

impl Word {
    /// `None` for longer ones. The line end that a shell's `echo` writes is no part of it.
    fn new(word: &[u8]) -> Option<Word> {
        let word = word.trim_ascii_end();
        let mut bytes = [0; WORD_BYTES];
        bytes.get_mut(..word.len())?.copy_from_slice(word);
        Some(Word { bytes, len: word.len() as u8 })
    }

    /// What it is.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What is done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileVerdict {
    /// Read, and reply with the data.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at least one.
        len: u32,
    },
    /// Write the data that came.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes, at least one; those that came behind them are past the end of the disk.
        len: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make durable.
    Flush,
    /// Zero.
    Zeroes {
        /// First byte.
        offset: u64,
        /// Bytes, at least one.
        len: u64,
        /// Whether the space may be freed.
        unmap: bool,
    },
    /// Find data, or a hole.
    Seek {
        /// From which byte on.
        offset: u64,
        /// Bytes from there to the end of the disk, at least one.
        len: u64,
        /// A hole.
        hole: bool,
    },
    /// Read into the cache.
    Warm {
        /// First byte.
        offset: u64,
        /// Bytes, at least one.
        len: u64,
    },
    /// Have the disk get the hint of this name.
    AskHint(Word),
    /// Tell the disk's hint, for which there is room for so many bytes; 0 asks how many it has.
    TellHint(u32),
    /// Agreed.
    Init(Agreement),
    /// Say which version we speak.
    Version,
    /// Tell the attributes.
    Attributes,
    /// Set attributes, and tell them.
    Set(NewAttributes),
    /// Opened.
    Open,
    /// Tell of the file system.
    FileSystem,
    /// The list of extended attributes that have a value, for which there is room for so many bytes; 0 asks how long
    /// it is.
    List(u32),
    /// So many bytes were written, without anything to write.
    Written(u32),
    /// Nothing to do: success.
    Done,
    /// No answer is wanted.
    Silence,
    /// Answer with an error.
    Refuse(i32),
}

/// What one disk's file allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRules {
    /// Bytes of the disk that can be reached.
    pub size_bytes: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Requests under way at most, as the kernel is told.
    pub requests_max: u16,
}

impl FileRules {
    /// The rules for a disk.
    pub fn new(geometry: &Geometry, requests_max: usize) -> FileRules {
        let align = u64::from(geometry.align.max(1));
        FileRules {
            // What is past the last whole sector cannot be reached, and the kernel counts in signed numbers.
            size_bytes: (geometry.size_bytes - geometry.size_bytes % align).min(i64::MAX as u64),
            read_only: geometry.read_only,
            requests_max: requests_max.clamp(4, usize::from(u16::MAX)) as u16,
        }
    }

    /// Judges a message of `len` bytes, of which `body` are those behind the header, at most [`BODY_BYTES_MAX`].
    pub fn judge(&self, header: &Header, body: &[u8], len: usize) -> FileVerdict {
        if header.len as usize != len {
            return if header.is_answered() { FileVerdict::Refuse(errno::EINVAL) } else { FileVerdict::Silence };
        }
        let verdict = match header.opcode {
            opcode::INIT => self.init(body),
            opcode::FORGET | opcode::BATCH_FORGET => Some(FileVerdict::Silence),
            opcode::DESTROY => Some(FileVerdict::Done),
            _ if header.node != ROOT => Some(FileVerdict::Refuse(errno::ENOENT)),
            opcode::LOOKUP => Some(FileVerdict::Refuse(errno::ENOENT)),
            opcode::READ => self.read(body),
            opcode::WRITE => self.write(body, len),
            opcode::FSYNC => Some(FileVerdict::Flush),
            opcode::GETATTR => Some(FileVerdict::Attributes),
            opcode::SETATTR => new_attributes(body).map(FileVerdict::Set),
            opcode::OPEN => self.open(body),
            opcode::RELEASE => Some(FileVerdict::Done),
            opcode::STATFS => Some(FileVerdict::FileSystem),
            opcode::ACCESS => self.access(body),
            opcode::FALLOCATE => self.allocate(body),
            opcode::LSEEK => self.seek(body),
            opcode::SETXATTR => self.set_extended(body),
            opcode::GETXATTR => get_extended(body),
            opcode::LISTXATTR => Fields(body).u32().map(FileVerdict::List),
            // Among them INTERRUPT: what was asked of a disk is answered soon, and cannot be taken back.
            _ => Some(FileVerdict::Refuse(errno::ENOSYS)),
        };
        verdict.unwrap_or(FileVerdict::Refuse(errno::EINVAL))
    }

    fn init(&self, body: &[u8]) -> Option<FileVerdict> {
        let mut f = Fields(body);
        let (major, minor, readahead_bytes, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        if major > MAJOR {
            return Some(FileVerdict::Version);
        }
        if major < MAJOR || minor < MINOR_MIN {
            return Some(FileVerdict::Refuse(errno::EPROTO));
        }
        let offered = u64::from(low);
        use ability as a;
        let wanted = a::ASYNC_READ | a::BIG_WRITES | a::ASYNC_DIO | a::PARALLEL_DIROPS | a::MAX_PAGES;
        let abilities = offered & wanted;
        // Without that, 32 pages of 4 KiB; the kernel cuts what it sends accordingly.
        Some(FileVerdict::Init(Agreement {
            abilities,
            readahead_bytes,
            background: self.requests_max,
            write_bytes: WRITE_BYTES_MAX as u32,
            pages: (TRANSFER_BYTES_MAX / 4096) as u16,
        }))
    }

    /// Of bytes from `offset` on, so many as there are of `len`.
    fn within(&self, offset: u64, len: u64) -> u64 {
        len.min(self.size_bytes.saturating_sub(offset))
    }

    fn read(&self, body: &[u8]) -> Option<FileVerdict> {
        let mut f = Fields(body);
        let (_file, offset, len) = (f.u64()?, f.u64()?, f.u32()?);
        if len as usize > TRANSFER_BYTES_MAX {
            return Some(FileVerdict::Refuse(errno::EINVAL));
        }
        // Fewer bytes than were asked for, or none, are the end of the file.
        Some(match self.within(offset, len.into()) as u32 {
            0 => FileVerdict::Done,
            len => FileVerdict::Read { offset, len },
        })
    }

    fn write(&self, body: &[u8], message: usize) -> Option<FileVerdict> {
        let mut f = Fields(body);
        let (_file, offset, len, _, _owner, flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?, f.u64()?, f.u32()?);
        if message.checked_sub(HEAD_BYTES)? != len as usize || len as usize > TRANSFER_BYTES_MAX {
            return None;
        }
        if self.read_only {
            return Some(FileVerdict::Refuse(errno::EROFS));
        }
        Some(match self.within(offset, len.into()) as u32 {
            0 if len == 0 => FileVerdict::Written(0),
            // As a block device says it: the size cannot change.
            0 => FileVerdict::Refuse(errno::ENOSPC),
            len => FileVerdict::Write { offset, len, fua: flags & O_DSYNC != 0 },
        })
    }

    fn open(&self, body: &[u8]) -> Option<FileVerdict> {
        let flags = Fields(body).u32()?;
        let writes = flags & O_ACCMODE != 0;
        Some(if writes && self.read_only { FileVerdict::Refuse(errno::EROFS) } else { FileVerdict::Open })
    }

    /// The kernel asks only where it was not told to look at the mode itself.
    fn access(&self, body: &[u8]) -> Option<FileVerdict> {
        let wanted = Fields(body).u32()?;
        Some(if wanted & W_OK != 0 && self.read_only { FileVerdict::Refuse(errno::EROFS) } else { FileVerdict::Done })
    }

    fn allocate(&self, body: &[u8]) -> Option<FileVerdict> {
        use allocate as a;
        let mut f = Fields(body);
        let (_file, offset, len, mode) = (f.u64()?, f.u64()?, f.u64()?, f.u32()?);
        let end = offset.checked_add(len).filter(|_| len > 0)?;
        if self.read_only {
            return Some(FileVerdict::Refuse(errno::EROFS));
        }
        // A hole has to read as zeroes, which a discarded range of a disk need not.
        let unmap = match mode & !a::KEEP_SIZE {
            a::PUNCH_HOLE if mode & a::KEEP_SIZE != 0 => true,
            a::ZERO_RANGE => false,
            // To set space aside is not ours to promise: the image may be sparse.
            _ => return Some(FileVerdict::Refuse(errno::EOPNOTSUPP)),
        };
        if end > self.size_bytes && mode & a::KEEP_SIZE == 0 {
            return Some(FileVerdict::Refuse(errno::ENOSPC));
        }
        Some(match self.within(offset, len) {
            0 => FileVerdict::Done,
            len => FileVerdict::Zeroes { offset, len, unmap },
        })
    }

    fn seek(&self, body: &[u8]) -> Option<FileVerdict> {
        let mut f = Fields(body);
        let (_file, offset, whence) = (f.u64()?, f.u64()?, f.u32()?);
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return None,
        };
        Some(match self.within(offset, u64::MAX) {
            0 => FileVerdict::Refuse(errno::ENXIO),
            len => FileVerdict::Seek { offset, len, hole },
        })
    }

    fn set_extended(&self, body: &[u8]) -> Option<FileVerdict> {
        let mut f = Fields(body);
        let (len, _flags) = (f.u32()? as usize, f.u32()?);
        let end = f.0.iter().position(|&b| b == 0)?;
        let (name, value) = (&f.0[..end], f.0.get(end + 1..)?.get(..len));
        if name == HINT {
            return Word::new(value?).map(FileVerdict::AskHint);
        }
        if name != WILLNEED {
            return Some(FileVerdict::Refuse(errno::EOPNOTSUPP));
        }
        let (offset, len) = range(value?)?;
        Some(match self.within(offset, len) {
            0 => FileVerdict::Done,
            len => FileVerdict::Warm { offset, len },
        })
    }
}

fn get_extended(body: &[u8]) -> Option<FileVerdict> {
    let mut f = Fields(body);
    let (room, _) = (f.u32()?, f.u32()?);
    let end = f.0.iter().position(|&b| b == 0)?;
    Some(if f.0[..end] == *HINT { FileVerdict::TellHint(room) } else { FileVerdict::Refuse(errno::ENODATA) })
}

/// `OFFSET LENGTH` in bytes.
fn range(value: &[u8]) -> Option<(u64, u64)> {
    let mut words = std::str::from_utf8(value).ok()?.split_ascii_whitespace();
    let range = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(range)
}

fn new_attributes(body: &[u8]) -> Option<NewAttributes> {
    let mut f = Fields(body);
    let (which, _, _file, size_bytes, _owner) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?);
    let seconds = [f.u64()?, f.u64()?, f.u64()?];
    let nanoseconds = [f.u32()?, f.u32()?, f.u32()?];
    let [read, written, changed] =
        [0, 1, 2].map(|n| Stamp { seconds: seconds[n], nanoseconds: nanoseconds[n].min(999_999_999) });
    let (mode, _, uid, gid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    Some(NewAttributes { which, size_bytes, read, written, changed, mode, uid, gid })
}

/// Whether SETATTR sets what it may: times. Mode and owner are the configuration's, and the size is the disk's.
pub(super) fn may_set(new: &NewAttributes, size_bytes: u64, mode: u32, [uid, gid]: [u32; 2]) -> bool {
    let differs = |bit, differs: bool| new.which & bit != 0 && differs;
    !differs(set::SIZE, new.size_bytes != size_bytes)
        && !differs(set::MODE, new.mode & 0o7777 != mode)
        && !differs(set::UID, new.uid != uid)
        && !differs(set::GID, new.gid != gid)
}

const _: () = assert!(HEADER_BYTES + BODY_BYTES_MAX > HEAD_BYTES);

#[cfg(test)]
mod tests;
