//! Numbers of the NBD protocol (doc/proto.md of the NetworkBlockDevice project).
//!
//! Owns constants only.

/// "NBDMAGIC".
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before every command.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// NBD_INFO_BLOCK_SIZE.
pub const INFO_BLOCK_SIZE: u16 = 3;
/// NBD_REPLY_FLAG_DONE.
pub const CHUNK_DONE: u16 = 1;
/// NBD_CMD_FLAG_FUA.
pub const COMMAND_FUA: u16 = 1;

/// Options.
pub mod option {
    /// Chooses an export.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Kinds of replies to options.
pub mod reply {
    /// Agreed.
    pub const ACK: u32 = 1;
    /// A piece of information; more follow.
    pub const INFO: u32 = 3;
}

/// Commands.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes.
    pub const WRITE: u16 = 1;
    /// Says good-bye.
    pub const DISCONNECT: u16 = 2;
    /// Makes durable.
    pub const FLUSH: u16 = 3;
    /// Discards.
    pub const TRIM: u16 = 4;
    /// Zeroes.
    pub const WRITE_ZEROES: u16 = 6;
}

/// Kinds of chunks.
pub mod chunk {
    /// Nothing; ends a reply.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Error.
    pub const ERROR: u16 = 0x8001;
    /// Error at an offset.
    pub const ERROR_OFFSET: u16 = 0x8002;
}

/// Transmission flags.
pub mod flag {
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Flush is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Trim is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// Write-zeroes is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Connections see each other's writes, and a flush covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}
