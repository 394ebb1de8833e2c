//! What touches the kernel and raw memory, behind safe interfaces: the frame arena, io_uring, files, epoll, control
//! groups.
//!
//! Owns every `unsafe` block of the workspace. Never knows what a cache, a policy or a guest is.
//! Invariant: no safe call of this crate can make two live references to the same memory, one of them mutable.
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod aligned_buffer;
pub mod aside;
pub mod client_socket;
pub mod control_group;
pub mod doorbell;
pub mod engine;
#[cfg(feature = "imago")]
pub mod fenced;
pub mod fiemap;
pub mod file;
pub mod foreign;
pub mod frame;
pub mod fuse;
pub mod guard;
pub mod idle;
pub mod inherited;
pub mod inode;
pub mod io_buf;
pub mod io_frames;
pub mod loop_device;
pub mod nameless;
pub mod operation;
pub mod pool;
pub mod probes;
pub mod ring;
pub mod shared_memory;
pub mod spare;
pub mod sums;
pub mod thread_pool;
pub mod ublk;
pub mod wait;

pub use aligned_buffer::{ALIGNED_BYTES, ALIGNED_WORDS, AlignedBuffer};
pub use aside::{Closing, release};
pub use client_socket::{ClientSocket, Passed, refuse_descriptors, send_with_descriptors};
pub use control_group::ControlGroup;
pub use doorbell::{Doorbell, HeldUp, Watching};
pub use engine::{Engine, EngineChoice};
#[cfg(feature = "imago")]
pub use fenced::{Fence, FencedFile, Layout, with_bounded_stack};
pub use fiemap::{FileExtent, Place, file_extents};
pub use file::{Claim, Direct, DiskFile, FileId, OpenFile, claim};
pub use frame::{Arena, FRAME_BYTES, Frame, Held, empty_slots, prefetch_lines};
pub use guard::{Backing, Guarded, backing, faults};
pub use inherited::inherited;
pub use inode::inode_generation;
pub use io_buf::IoBuf;
pub use nameless::nameless;
pub use operation::{Action, FileDone, FileOp, Region};
pub use shared_memory::SharedMemory;
pub use spare::give_back;
pub use sums::SumKey;
pub use thread_pool::{ThreadPool, Work};
pub use wait::{Epoll, EventFd, Interest, Ready, Trigger, now_ns, set_thread_name};
