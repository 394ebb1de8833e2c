//! Requests of the transmission phase: read from bytes and judged, before anything is done about them.
//!
//! Owns which request is answered with which error, after doc/proto.md. Never owns a buffer or a socket.
//! Invariant: a request that is let through lies within the disk and within `REQUEST_BYTES_MAX` where it moves data.

use super::wire::{REQUEST_HEADER, REQUEST_MAGIC, Reader, command, command_flag, errno, export_flag};
use crate::backend::Geometry;
use undercroft_cache::limits::REQUEST_BYTES_MAX;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// See [`command_flag`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Header {
    /// Reads a header; `None` if it is not one.
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Option<Self> {
        let mut r = Reader(bytes);
        if r.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self { flags: r.u16()?, command: r.u16()?, cookie: r.u64()?, offset: r.u64()?, len: r.u32()? })
    }

    /// Bytes of data that follow the header, whatever becomes of the request.
    pub fn payload(&self) -> u32 {
        if self.command == command::WRITE { self.len } else { 0 }
    }
}

/// What is done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Read and reply with the data.
    Read,
    /// Write the data that follow.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Flush.
    Flush,
    /// Discard.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Zero.
    Zeroes {
        /// Whether the space may be freed.
        unmap: bool,
        /// Durable before the reply.
        fua: bool,
    },
    /// Read into the cache.
    Cache,
    /// Report extents.
    Status {
        /// One at most.
        one: bool,
    },
    /// Nothing to do: success.
    Done,
    /// The client says goodbye.
    Disconnect,
    /// Answer with an error.
    Refuse(u32),
}

/// What one connection may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Bytes of the disk that can be reached.
    pub size_bytes: u64,
    /// Whether replies to reads are structured.
    pub structured: bool,
    /// Whether block status was agreed on.
    pub block_status: bool,
    read_only: bool,
    can_trim: bool,
    fast_zero: bool,
}

impl Rules {
    /// The rules for a disk and what was agreed on.
    pub fn new(geometry: &Geometry, structured: bool, block_status: bool) -> Self {
        let align = u64::from(geometry.align.max(1));
        Self {
            // What is past the last whole sector cannot be reached.
            size_bytes: geometry.size_bytes - geometry.size_bytes % align,
            structured,
            block_status,
            read_only: geometry.read_only,
            can_trim: geometry.can_discard,
            fast_zero: geometry.can_write_zeroes,
        }
    }

    /// The transmission flags that tell a client about these rules.
    pub fn export_flags(&self) -> u16 {
        use export_flag as f;
        // One core serves all connections of a disk, and a flush covers every write it has acknowledged, so that
        // several connections are safe.
        let mut flags = f::HAS_FLAGS | f::SEND_FLUSH | f::SEND_FUA | f::CAN_MULTI_CONN | f::SEND_CACHE;
        if self.read_only {
            flags |= f::READ_ONLY;
        } else {
            flags |= f::SEND_WRITE_ZEROES | f::SEND_FAST_ZERO;
            if self.can_trim {
                flags |= f::SEND_TRIM;
            }
        }
        if self.structured {
            flags |= f::SEND_DF;
        }
        flags
    }

    /// Judges a request.
    pub fn judge(&self, h: &Header) -> Verdict {
        use command_flag as f;
        // The protocol has servers accept FUA with every command.
        let allowed = f::FUA
            | match h.command {
                command::READ if self.structured => f::DF,
                command::WRITE_ZEROES => f::NO_HOLE | f::FAST_ZERO,
                command::BLOCK_STATUS => f::REQ_ONE,
                _ => 0,
            };
        if h.command == command::DISC {
            return Verdict::Disconnect;
        }
        if h.flags & !allowed != 0 {
            return Verdict::Refuse(errno::EINVAL);
        }
        let modifies = matches!(h.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if modifies && self.read_only {
            return Verdict::Refuse(errno::EPERM);
        }
        let inside = h.offset.checked_add(u64::from(h.len)).is_some_and(|end| end <= self.size_bytes);
        let fua = h.flags & f::FUA != 0;
        let too_long = h.len > REQUEST_BYTES_MAX;
        match h.command {
            command::READ if !inside => Verdict::Refuse(errno::EINVAL),
            // A client that knows structured replies knows this error, too, and asks for less.
            command::READ if too_long && self.structured => Verdict::Refuse(errno::EOVERFLOW),
            command::READ if too_long => Verdict::Refuse(errno::EINVAL),
            command::READ if h.len > 0 => Verdict::Read,
            command::WRITE if too_long => Verdict::Refuse(errno::EINVAL),
            command::WRITE if !inside => Verdict::Refuse(errno::ENOSPC),
            command::WRITE if h.len > 0 => Verdict::Write { fua },
            command::FLUSH if h.offset != 0 || h.len != 0 => Verdict::Refuse(errno::EINVAL),
            command::FLUSH => Verdict::Flush,
            command::TRIM if !self.can_trim || !inside => Verdict::Refuse(errno::EINVAL),
            command::TRIM if h.len > 0 => Verdict::Trim { fua },
            command::WRITE_ZEROES if h.flags & f::FAST_ZERO != 0 && !self.fast_zero => Verdict::Refuse(errno::ENOTSUP),
            command::WRITE_ZEROES if !inside => Verdict::Refuse(errno::ENOSPC),
            command::WRITE_ZEROES if h.len > 0 => Verdict::Zeroes { unmap: h.flags & f::NO_HOLE == 0, fua },
            command::CACHE if !inside => Verdict::Refuse(errno::EINVAL),
            command::CACHE if h.len > 0 => Verdict::Cache,
            command::BLOCK_STATUS if !self.block_status || !inside || h.len == 0 => Verdict::Refuse(errno::EINVAL),
            command::BLOCK_STATUS => Verdict::Status { one: h.flags & f::REQ_ONE != 0 },
            command::READ | command::WRITE | command::TRIM | command::WRITE_ZEROES | command::CACHE => Verdict::Done,
            _ => Verdict::Refuse(errno::EINVAL),
        }
    }
}
