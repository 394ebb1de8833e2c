//! What goes into the core and what comes out of it: requests, I/O operations, their results.
//!
//! Owns the vocabulary shared by core, front ends and back ends. Never owns behaviour.
//! Units: offsets and lengths in bytes, times in nanoseconds of a monotonic clock.

mod counters;
mod effects;
mod io;
mod kept;
mod locking;
mod options;
mod report;
mod request;

pub use effects::{Effects, Event};
pub use io::{Durability, Extent, Io, IoDone, IoKind, IoTarget, Lost, OpId};
pub use kept::{KeptBlock, KeptBlocks, KeptDisk, KeptList, UnusableList};
pub use locking::{BlockReport, ByteRange, LockReport, PinError};
pub use options::{
    AddDiskError, Base, CoreOptions, DiskOptions, FramesIn, Geometry, GroupId, IoNeeds, LayerId, SetPartsError,
};
pub use report::{DiskStats, ExclusiveReport, ExclusiveState, PartStats, PoolStats, Shared, SharingDomainReport};
pub use request::{DiskId, Found, IoError, MemoryId, Op, Paused, ReqId, Request};
