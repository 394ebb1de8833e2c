//! Numbers of the NBD protocol, and reading them from bytes.
//!
//! Owns constants and byte order, after doc/proto.md of the NetworkBlockDevice project. Never keeps state.

/// First eight bytes of the server's greeting: `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Start of an option: `IHAVEOPT`; the second eight bytes of the greeting, too.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option's header.
pub const OPTION_HEADER: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_HEADER: usize = 28;
/// Bytes of a simple reply's header.
pub const SIMPLE_HEADER: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_HEADER: usize = 20;
/// Bytes of a string at most.
pub const STRING_MAX: usize = 4096;

/// Handshake and client flags (the same two bits in both).
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zero bytes after `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Options that a client may send.
pub mod option {
    /// Enter transmission with an export; no errors possible.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Tell about an export.
    pub const INFO: u32 = 6;
    /// Tell about an export, and enter transmission with it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List contexts of block status.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select contexts of block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod option_reply {
    /// Success, or the end of a list.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One context of block status.
    pub const META_CONTEXT: u32 = 4;
    /// Not supported.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// Forbidden here.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// Makes no sense.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// Only after TLS.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// Too long.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Sizes of blocks.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod export_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Knows `FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Knows the flag `FUA`.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Knows `TRIM`.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Knows `WRITE_ZEROES`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Knows the flag `DF`.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see one disk; a flush on one covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Knows `CACHE`.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// Knows the flag `FAST_ZERO`.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Requests.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the data follow the header.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Fill the cache.
    pub const CACHE: u16 = 5;
    /// Zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report allocation.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// Keep the space of zeroes allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One data chunk only.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail unless zeroing is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies.
pub mod chunk {
    /// The last chunk of its reply (a flag).
    pub const DONE: u16 = 1;
    /// Nothing; success.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error, with words.
    pub const ERROR: u16 = 0x8001;
}

/// Errors in replies: a portable subset of Linux's numbers.
pub mod errno {
    /// The disk is read-only.
    pub const EPERM: u32 = 1;
    /// The disk failed.
    pub const EIO: u32 = 5;
    /// Makes no sense.
    pub const EINVAL: u32 = 22;
    /// Past the end, or the disk is full.
    pub const ENOSPC: u32 = 28;
    /// Too long for one reply.
    pub const EOVERFLOW: u32 = 75;
    /// Not fast, or not possible.
    pub const ENOTSUP: u32 = 95;
    /// The server stops.
    pub const ESHUTDOWN: u32 = 108;
}

/// The one context of block status that is served, and the id it gets.
pub const CONTEXT: &str = "base:allocation";
/// See [`CONTEXT`].
pub const CONTEXT_ID: u32 = 1;
/// State in [`CONTEXT`]: nothing is allocated.
pub const STATE_HOLE: u32 = 1;
/// State in [`CONTEXT`]: reads as zeroes.
pub const STATE_ZERO: u32 = 2;

/// Reads big-endian numbers off the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub struct WireReader<'a>(pub &'a [u8]);

impl<'a> WireReader<'a> {
    /// The next `n` bytes; `None` if there are fewer.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and as many bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()?;
        self.bytes(usize::try_from(n).ok()?)
    }
}
