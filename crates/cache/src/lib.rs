//! The data path as a state machine: requests and completions in, copies, I/O operations and replies out.
//!
//! Owns RAM frames and what is in them. Never sees a socket, a file or a clock; starts no thread.
//! Invariants: a block is served from RAM only if the disk holds the same bytes, or held them when the request came
//! and no write of them has been acknowledged since; every request is answered exactly once.
#![forbid(unsafe_code)]

mod content;
mod core;
mod disk;
pub mod fault_injection;
pub mod limits;
mod store;
mod types;

pub use crate::core::{Core, DiskSettings, IoPoolUse, MemoryUse, SSD};
pub use content::{ContentHash, ContentKey};
pub use disk::{blocks_per_disk_max, disk_bytes};
pub use fault_injection::NoFaults;
pub use store::ssd;
pub use types::{
    AddDiskError, Base, BlockReport, ByteRange, CoreOptions, DiskId, DiskOptions, DiskStats, Durability, Effects,
    Event, ExclusiveReport, ExclusiveState, Extent, Found, FramesIn, Geometry, GroupId, Io, IoDone, IoError, IoKind,
    IoNeeds, IoTarget, KeptBlock, KeptBlocks, KeptDisk, KeptList, LayerId, LockReport, Lost, MemoryId, Op, OpId,
    PartStats, Paused, PinError, PoolStats, ReqId, Request, SetPartsError, Shared, SharingDomainReport, UnusableList,
};
