//! Requests of the transmission phase: read from bytes and judged, before anything is done about them.
//!
//! Owns which request is answered with which error, after doc/proto.md. Never owns a buffer or a socket.
//! Invariant: a request that is let through lies within the disk and within `REQUEST_BYTES_MAX` where it moves data.

use super::wire::{REQUEST_HEADER, REQUEST_MAGIC, WireReader, command, command_flag, errno, export_flag};
use undercroft_cache::Geometry;
use undercroft_cache::limits::REQUEST_BYTES_MAX;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
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

impl RequestHeader {
    /// Reads a header; `None` if it is not one.
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Option<Self> {
        let mut r = WireReader(bytes);
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
pub struct ExportRules {
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

impl ExportRules {
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
    pub fn judge(&self, h: &RequestHeader) -> Verdict {
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

#[cfg(test)]
mod tests {
    use super::super::wire::{command as c, command_flag as f, errno as e};
    use super::*;

    const SIZE: u64 = 100 << 20;

    fn geometry() -> Geometry {
        Geometry { size_bytes: SIZE, align: 512, read_only: false, can_discard: true, can_write_zeroes: true }
    }

    fn header(flags: u16, command: u16, offset: u64, len: u32) -> RequestHeader {
        RequestHeader { flags, command, cookie: 1, offset, len }
    }

    #[test]
    fn headers_are_read_in_network_order() {
        let bytes: [u8; REQUEST_HEADER] =
            [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 1];
        let want = RequestHeader { flags: 1, command: 6, cookie: 0x0102_0304_0506_0708, offset: 4096, len: 513 };
        assert_eq!(RequestHeader::parse(&bytes), Some(want));
        let mut wrong = bytes;
        wrong[3] ^= 1;
        assert_eq!(RequestHeader::parse(&wrong), None);
    }

    #[test]
    fn the_table_of_verdicts() {
        let max = REQUEST_BYTES_MAX;
        let refuse = Verdict::Refuse;
        let all = ExportRules::new(&geometry(), true, true);
        let table = [
            (header(0, c::READ, 0, 1), Verdict::Read),
            (header(0, c::READ, SIZE - 1, 1), Verdict::Read),
            (header(f::FUA | f::DF, c::READ, 0, max), Verdict::Read),
            (header(0, c::READ, SIZE, 0), Verdict::Done),
            (header(0, c::READ, SIZE, 1), refuse(e::EINVAL)),
            (header(0, c::READ, SIZE + 1, 0), refuse(e::EINVAL)),
            (header(0, c::READ, u64::MAX, 1), refuse(e::EINVAL)),
            (header(0, c::READ, u64::MAX, u32::MAX), refuse(e::EINVAL)),
            (header(0, c::READ, 0, max + 1), refuse(e::EOVERFLOW)),
            (header(f::NO_HOLE, c::READ, 0, 1), refuse(e::EINVAL)),
            (header(0x8000, c::READ, 0, 1), refuse(e::EINVAL)),
            (header(0, c::WRITE, 7, 9), Verdict::Write { fua: false }),
            (header(f::FUA, c::WRITE, 0, max), Verdict::Write { fua: true }),
            (header(0, c::WRITE, 0, 0), Verdict::Done),
            (header(0, c::WRITE, 0, max + 1), refuse(e::EINVAL)),
            (header(0, c::WRITE, 0, u32::MAX), refuse(e::EINVAL)),
            (header(0, c::WRITE, SIZE - 1, 2), refuse(e::ENOSPC)),
            (header(0, c::WRITE, u64::MAX, 2), refuse(e::ENOSPC)),
            (header(f::DF, c::WRITE, 0, 1), refuse(e::EINVAL)),
            (header(0, c::DISC, 0, 0), Verdict::Disconnect),
            (header(0xffff, c::DISC, 9, 9), Verdict::Disconnect),
            (header(f::FUA, c::FLUSH, 0, 0), Verdict::Flush),
            (header(0, c::FLUSH, 1, 0), refuse(e::EINVAL)),
            (header(0, c::FLUSH, 0, 1), refuse(e::EINVAL)),
            (header(0, c::TRIM, 1, 50 << 20), Verdict::Trim { fua: false }),
            (header(f::FUA, c::TRIM, 0, 1), Verdict::Trim { fua: true }),
            (header(0, c::TRIM, 0, 0), Verdict::Done),
            (header(0, c::TRIM, SIZE, 1), refuse(e::EINVAL)),
            (header(0, c::CACHE, 0, 50 << 20), Verdict::Cache),
            (header(f::DF, c::CACHE, 0, 1), refuse(e::EINVAL)),
            (header(0, c::CACHE, SIZE, 1), refuse(e::EINVAL)),
            (header(0, c::CACHE, 0, 0), Verdict::Done),
            (header(0, c::WRITE_ZEROES, 0, 50 << 20), Verdict::Zeroes { unmap: true, fua: false }),
            (header(f::FUA | f::NO_HOLE, c::WRITE_ZEROES, 0, 1), Verdict::Zeroes { unmap: false, fua: true }),
            (header(f::FAST_ZERO, c::WRITE_ZEROES, 0, 1), Verdict::Zeroes { unmap: true, fua: false }),
            (header(0, c::WRITE_ZEROES, SIZE, 1), refuse(e::ENOSPC)),
            (header(0, c::WRITE_ZEROES, 0, 0), Verdict::Done),
            (header(f::DF, c::WRITE_ZEROES, 0, 1), refuse(e::EINVAL)),
            (header(0, c::BLOCK_STATUS, 0, 50 << 20), Verdict::Status { one: false }),
            (header(f::REQ_ONE, c::BLOCK_STATUS, 0, 1), Verdict::Status { one: true }),
            (header(0, c::BLOCK_STATUS, 0, 0), refuse(e::EINVAL)),
            (header(0, c::BLOCK_STATUS, SIZE, 1), refuse(e::EINVAL)),
            (header(0, 8, 0, 0), refuse(e::EINVAL)),
            (header(0, u16::MAX, 0, 0), refuse(e::EINVAL)),
        ];
        for (h, want) in table {
            assert_eq!(all.judge(&h), want, "{h:?}");
        }
        let plain = ExportRules::new(&geometry(), false, false);
        assert_eq!(plain.judge(&header(0, c::READ, 0, max + 1)), refuse(e::EINVAL));
        assert_eq!(plain.judge(&header(f::DF, c::READ, 0, 1)), refuse(e::EINVAL));
        assert_eq!(plain.judge(&header(0, c::BLOCK_STATUS, 0, 1)), refuse(e::EINVAL));
    }

    #[test]
    fn a_disk_that_can_less_offers_less_and_refuses_the_rest() {
        use export_flag as x;
        let all = ExportRules::new(&geometry(), true, true).export_flags();
        let can = x::SEND_TRIM | x::SEND_WRITE_ZEROES | x::SEND_FAST_ZERO | x::SEND_FLUSH | x::SEND_FUA;
        assert_eq!(all & (can | x::READ_ONLY), can);
        assert_eq!(
            all & (x::HAS_FLAGS | x::SEND_DF | x::CAN_MULTI_CONN),
            x::HAS_FLAGS | x::SEND_DF | x::CAN_MULTI_CONN
        );
        assert_eq!(ExportRules::new(&geometry(), false, false).export_flags() & x::SEND_DF, 0);

        let ro = ExportRules::new(&Geometry { read_only: true, ..geometry() }, true, true);
        assert_eq!(ro.export_flags() & (can | x::READ_ONLY), x::READ_ONLY | x::SEND_FLUSH | x::SEND_FUA);
        for command in [c::WRITE, c::TRIM, c::WRITE_ZEROES] {
            assert_eq!(ro.judge(&header(0, command, SIZE, 1)), Verdict::Refuse(e::EPERM));
        }
        assert_eq!(ro.judge(&header(0, c::READ, 0, 1)), Verdict::Read);
        assert_eq!(ro.judge(&header(0, c::FLUSH, 0, 0)), Verdict::Flush);

        let poor =
            ExportRules::new(&Geometry { can_discard: false, can_write_zeroes: false, ..geometry() }, true, true);
        assert_eq!(poor.export_flags() & x::SEND_TRIM, 0);
        assert_eq!(poor.judge(&header(0, c::TRIM, 0, 1)), Verdict::Refuse(e::EINVAL));
        // Zeroes are offered, since the core writes them if the disk cannot, but not as fast ones.
        assert_eq!(poor.judge(&header(0, c::WRITE_ZEROES, 0, 1)), Verdict::Zeroes { unmap: true, fua: false });
        assert_eq!(poor.judge(&header(f::FAST_ZERO, c::WRITE_ZEROES, 0, 1)), Verdict::Refuse(e::ENOTSUP));
    }

    #[test]
    fn what_is_past_the_last_sector_is_not_offered() {
        let rules = ExportRules::new(&Geometry { size_bytes: 10_000, align: 4096, ..geometry() }, false, false);
        assert_eq!(rules.size_bytes, 8192);
        assert_eq!(rules.judge(&header(0, c::READ, 8192, 1)), Verdict::Refuse(e::EINVAL));
    }
}
