//! The FUSE front end: disks as regular files of the host, for programs and containers.
//!
//! Owns the mounts. Never knows about caching or images; what is served and what is refused, and why, stands in
//! docs/decisions/0199-disks-as-files.md. Invariants: each disk has a connection to the kernel of its own, whose root
//! is the file, so that its requests reach the worker that owns the disk and no other; what requests may hold is
//! bounded; nothing that the kernel sends causes a panic.

pub mod device;
mod hint;
mod outbox;
pub mod passing;
pub mod port;
pub mod rules;
mod server;
pub mod wire;

pub use hint::FileHint;
pub use passing::{FileKeeper, FileState, KeptFile};
pub use port::{FileLimits, FusePort, Owner};
pub use server::{FuseError, FuseOptions, FuseServer, look, probe};
