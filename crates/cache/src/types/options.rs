//! The options of a core and of its disks, and the errors when they are refused.
//!
//! Owns options and the errors of setting up. Never owns behaviour. Invariant: a refusal says what is needed and what
//! there is.

use super::request::DiskId;
use crate::content::ContentKey;
use crate::limits::{IO_FRAMES_GUARANTEED, IO_FRAMES_PER_DISK, REQUESTS_PER_DISK_MAX};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use undercroft_engine::{ExclusiveMode, PartsError, PolicyKind};
use undercroft_host::SharedMemory;
use undercroft_units::human_size;

/// What a disk is like; fixed while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Alignment of offsets and lengths that operations need, in bytes: a power of two, 1 to 4096.
    pub align: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether `Discard` does something.
    pub can_discard: bool,
    /// Whether `WriteZeroes` is served.
    pub can_write_zeroes: bool,
}

impl Geometry {
    /// A disk of `size_bytes` in sectors of 512 bytes that can be written, discards, and writes zeroes itself.
    pub fn new(size_bytes: u64) -> Self {
        Self { size_bytes, align: 512, read_only: false, can_discard: true, can_write_zeroes: true }
    }
}

/// How a core is set up.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// Hard ceiling in bytes for everything the core holds: cached data, metadata, and what operations under way need.
    pub memory_bytes: u64,
    /// Frames that one disk's operations may hold besides its cached blocks, at most. At least 1.
    pub io_frames_per_disk: u32,
    /// Of these, how many each disk is guaranteed for requests, and again for read-ahead; more is lent from the pool
    /// that the disks of a core share. At least 1.
    pub io_frames_guaranteed: u32,
    /// Requests of one disk under way at most. At least 1.
    pub requests_per_disk: u32,
    /// Seed of the secret hash keys: random in a daemon, fixed in a simulation.
    pub hash_seed: u64,
    /// Whether contents are hashed. Without, no disk is exclusive of its guest and no frame is held in common, and a
    /// block takes 48 bytes less.
    pub contents: bool,
    /// The key of hashes of contents: one for all cores whose contents are compared.
    pub content_key: ContentKey,
    /// Bytes, in whole blocks, that one event copies between requesters and RAM; the rest of a longer request waits for
    /// another event ([`Effects::paused`]). The data of one operation is copied whole. `u64::MAX`: no request waits. At
    /// least 1.
    pub step_bytes: u64,
    /// Where frames are.
    pub frames: FramesIn,
}

/// Where a core's frames are.
#[derive(Clone, Debug, Default)]
pub enum FramesIn {
    /// In memory that goes with the process.
    #[default]
    Own,
    /// In memory that another process can go on with ([`Core::kept`](crate::Core::kept)).
    Shared,
    /// In memory that another process has left: nothing can be cached until what it left was restored
    /// ([`Core::restore`](crate::Core::restore)) and the rest is free
    /// ([`Core::settle_frames`](crate::Core::settle_frames)).
    Left(SharedMemory),
}

impl CoreOptions {
    /// The usual limits under a ceiling of `memory_bytes`, and a random seed.
    pub fn new(memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            io_frames_per_disk: IO_FRAMES_PER_DISK as u32,
            io_frames_guaranteed: IO_FRAMES_GUARANTEED as u32,
            requests_per_disk: REQUESTS_PER_DISK_MAX as u32,
            hash_seed: RandomState::new().hash_one(0u64),
            contents: true,
            content_key: ContentKey::from_seed(RandomState::new().hash_one(1u64)),
            step_bytes: u64::MAX,
            frames: FramesIn::Own,
        }
    }
}

/// How a disk is set up in a core.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Size in bytes; any value, the last block may be partial.
    pub size_bytes: u64,
    /// Alignment of offset and length that the back end needs, in bytes: a power of two from 1 to 4096. If the size is
    /// not a multiple of it, the rest cannot be reached and front ends must not offer it.
    pub align: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the back end can discard; if not, a discard succeeds and does nothing (it is a hint).
    pub can_discard: bool,
    /// Whether the back end can write zeroes itself; if not, the core writes them.
    pub can_write_zeroes: bool,
    /// The replacement policy.
    pub policy: PolicyKind,
    /// Blocks of 4 KiB that the disk may keep.
    pub capacity_blocks: u32,
    /// Read-ahead for proven sequential streams: bytes ahead at most; 0 turns it off.
    pub readahead_bytes: u32,
    /// Disks that have between them what operations of one disk may have, this one among them: those that keep their
    /// blocks together ([`Core::join_pool`](crate::Core::join_pool)). At least 1. Stays as it is while the disk is
    /// there.
    pub io_disks: u32,
    /// Whether a written block that was not cached becomes cached.
    pub write_allocate: bool,
    /// Whether the cache is kept exclusive of the guest's, once [`Core::set_guest`](crate::Core::set_guest) has said
    /// that there is one.
    pub exclusive: ExclusiveMode,
    /// The disks among which equal content is held once, of those of the same core; `None` for not even within this
    /// disk. Nothing without [`CoreOptions::contents`](crate::CoreOptions::contents).
    pub group: Option<GroupId>,
}

impl DiskOptions {
    /// A disk that is what `geometry` says and may keep `capacity_blocks`. Nothing is read ahead, what is written is
    /// kept, the cache is exclusive of a guest's where that pays, and equal contents are held as often as they come.
    pub fn new(geometry: &Geometry, policy: PolicyKind, capacity_blocks: u32) -> Self {
        let &Geometry { size_bytes, align, read_only, can_discard, can_write_zeroes } = geometry;
        Self {
            size_bytes,
            align,
            read_only,
            can_discard,
            can_write_zeroes,
            policy,
            capacity_blocks,
            readahead_bytes: 0,
            io_disks: 1,
            write_allocate: true,
            exclusive: ExclusiveMode::default(),
            group: None,
        }
    }
}

/// What decides how much memory a disk's operations are promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoNeeds {
    /// [`DiskOptions::readahead_bytes`].
    pub readahead_bytes: u32,
    /// [`DiskOptions::io_disks`].
    pub disks: u32,
}

impl From<u32> for IoNeeds {
    /// A disk that reads ahead so many bytes at most, and has what one disk may have for itself.
    fn from(readahead_bytes: u32) -> Self {
        Self { readahead_bytes, disks: 1 }
    }
}

impl From<&DiskOptions> for IoNeeds {
    fn from(options: &DiskOptions) -> Self {
        Self { readahead_bytes: options.readahead_bytes, disks: options.io_disks }
    }
}

/// The base of a disk: a read-only image below what the disk has of its own (a backing file).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The image.
    pub layer: LayerId,
    /// Bytes of the image. Where the disk has nothing of its own below this offset, it reads what the image has there.
    pub size_bytes: u64,
    /// Unit in which `own` counts: a multiple of 4096, a power of two.
    pub cluster_bytes: u32,
    /// One bit for each cluster of the disk, lowest first: set if the disk has the cluster of its own, or if that is
    /// not known. Clusters past the end count as own. The core itself keeps track of writes that go through it.
    pub own: Vec<u64>,
}

/// A trust group: disks that may hold equal content in one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

/// One state of a read-only image: equal for two disks only if the image holds the same bytes for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId(pub u64);

/// Why a disk, or more capacity for it, was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddDiskError {
    /// The ceiling does not allow it.
    NoMemory {
        /// Bytes that would be needed.
        needed_bytes: u64,
        /// Bytes of the ceiling that are not promised to disks.
        left_bytes: u64,
    },
    /// There is such a disk already.
    Exists(DiskId),
    /// There is no such disk.
    Unknown(DiskId),
    /// The options make no sense.
    Options(&'static str),
}

impl fmt::Display for AddDiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddDiskError::NoMemory { needed_bytes, left_bytes } => write!(
                f,
                "the disk needs {} of memory for blocks, their metadata and operations under way, but only {} of the \
                 ceiling is left; give it fewer blocks, or raise the memory limit",
                human_size(*needed_bytes),
                human_size(*left_bytes)
            ),
            AddDiskError::Exists(d) => write!(f, "disk number {} is in use", d.0),
            AddDiskError::Unknown(d) => write!(f, "there is no disk number {}", d.0),
            AddDiskError::Options(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for AddDiskError {}

/// Why parts of a disk, or shares for them, were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetPartsError {
    /// Something is wrong with the lists.
    Parts(PartsError),
    /// There is no such disk, or its capacity cannot be what the shares come to.
    Disk(AddDiskError),
    /// The map of the ranges and what each part takes are more than the disk's share.
    NoRoom {
        /// Blocks that they take.
        needed_blocks: u64,
        /// Blocks of the disk's capacity.
        disk_blocks: u64,
    },
}

impl fmt::Display for SetPartsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetPartsError::Parts(why) => why.fmt(f),
            SetPartsError::Disk(why) => why.fmt(f),
            SetPartsError::NoRoom { needed_blocks, disk_blocks } => write!(
                f,
                "the ranges and parts take the memory of {needed_blocks} blocks, but the disk's share is \
                 {disk_blocks}; give the disk more, or fewer parts"
            ),
        }
    }
}

impl std::error::Error for SetPartsError {}
