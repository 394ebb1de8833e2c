//! What callers of the SSD store say and hear: owners, places, answers, I/O, numbers.
//!
//! Owns these types. Never decides anything. Invariant: none of them has a place on a device but by a token that tells
//! whether it is still good.

use std::fmt;
use std::sync::Arc;
use undercroft_host::IoBuf;

/// Block numbers are below this (4 PiB of 4 KiB blocks); higher ones are not admitted.
pub const BLOCKS_MAX: u64 = 1 << 40;

/// Owners of one store at most.
pub const OWNERS_MAX: usize = 255;

/// What is known of an image and tells it from others, whatever is written to it: a device and inode, for instance. The
/// store only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(pub [u8; 64]);

/// What is known of an image and is another one after any change: size and times, for instance. The store only compares
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(pub [u8; 64]);

/// What a store is told of a disk that is to use it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Which image it is.
    pub identity: Identity,
    /// How it is now; `None` if nothing can be known of it: then nothing of it is recovered.
    pub stamp: Option<Stamp>,
    /// Blocks of the disk, the last one whole.
    pub blocks: u64,
}

/// The store's name for an owner: a disk, or an image that several disks stand on. Reused when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u16);

/// How a disk uses the store, as another process is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdUse {
    /// The disk, in the store's words.
    pub owner: OwnerId,
    /// The base that it stands on, if that is an owner.
    pub base: Option<OwnerId>,
    /// Blocks that it may have, those of the base among them.
    pub share: u64,
}

/// What a store had of an owner that is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It knows none of this identity.
    New,
    /// So many blocks, all of them as the image has them.
    Blocks(u64),
    /// It had some, and dropped them.
    Dropped(WhyDropped),
}

/// Why an owner's blocks are dropped when it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyDropped {
    /// The image is not as it was when the store knew of it last.
    Stamp,
    /// Nothing can be known of the image.
    NoStamp,
    /// The image has another size.
    Size,
}

/// The store has owners enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyOwners;

impl fmt::Display for TooManyOwners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the SSD store has {OWNERS_MAX} disks, and takes no more")
    }
}

impl std::error::Error for TooManyOwners {}

/// Tells at a read's completion whether the place is still that of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub(super) sequence: u64,
    pub(super) slot: u32,
}

impl Token {
    /// That of the place `n` blocks behind, of the same segment.
    pub(crate) fn after(self, n: u32) -> Self {
        Self { slot: self.slot + n, ..self }
    }
}

/// Where a block was found.
#[derive(Clone, Copy, Debug)]
pub enum SsdFound<'a> {
    /// In memory: it waits to be written.
    Staged(&'a [u8; 4096]),
    /// On a device: read 4,096 bytes there, and show them to `verify`.
    Stored {
        /// Which of the store's devices.
        device: u16,
        /// First byte, from the start of the store's region.
        offset: u64,
        /// For `verify`.
        token: Token,
    },
}

/// What bytes are that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The block's, as of now.
    Good,
    /// No longer the block's: it was changed, or its place was used again. Read the disk.
    Gone,
    /// Not what was written. Read the disk; the entry is dropped and counted.
    Corrupt,
}

/// What is known of a block that is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// It was used again while it was in RAM.
    pub reused: bool,
    /// The guest holds it itself.
    pub guest_holds: bool,
    /// It is pinned, and RAM has no room for it among what is locked: the rule of admission is not asked.
    pub pinned: bool,
}

/// Blocks of an owner that are pinned: first and the one after the last, sorted, none in two of them.
pub type Pinned = Arc<[(u64, u64)]>;

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is in the store now, or in memory until it is known whether the store has its bytes already.
    Admitted,
    /// It was there, and is not held any more.
    Present,
    /// It is not.
    Refused(Refusal),
}

/// Why a block is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The guest holds it.
    GuestHolds,
    /// The rule of admission: nothing is admitted, or it was not used twice.
    Rule,
    /// The device may not be written to that often.
    Budget,
    /// No segment is free yet.
    NoRoom,
    /// As many blocks wait to be written as may.
    Staging,
    /// A change of the block is under way, or it lies beyond the disk.
    Range,
    /// The device is out of service, or does not answer.
    OutOfService,
    /// The disk has no share of the store.
    NoShare,
}

impl Refusal {
    /// All of them, in the order of [`OwnerStats::refused`].
    pub const ALL: [Refusal; 8] = [
        Refusal::GuestHolds,
        Refusal::Rule,
        Refusal::Budget,
        Refusal::NoRoom,
        Refusal::Staging,
        Refusal::Range,
        Refusal::OutOfService,
        Refusal::NoShare,
    ];
}

/// Which evicted blocks are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Those of classes whose blocks are asked for again while they would be there, as is measured, and all while there
    /// is room that nobody has.
    #[default]
    Measured,
    /// All of them.
    All,
    /// Those that were used again while they were in RAM, and those evicted for the second time.
    Second,
    /// None.
    None,
}

/// Classes of evictions.
pub(super) const CLASSES: usize = 5;

/// How a block leaves RAM, as [`Admission::Measured`] tells evictions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// For the first time in a while.
    First,
    /// The same, as one of a sequential stream.
    FirstSequential,
    /// It left RAM before, not long ago, or is in the store.
    Again,
    /// The same, as one of a sequential stream.
    AgainSequential,
    /// It was used again while it was in RAM.
    Reused,
}

impl Class {
    /// All of them, in the order of [`OwnerStats::classes`].
    pub const ALL: [Class; CLASSES] =
        [Class::First, Class::FirstSequential, Class::Again, Class::AgainSequential, Class::Reused];

    /// That of a block.
    pub(super) fn of(is_sequential: bool, is_known: bool, is_reused: bool) -> Self {
        match (is_sequential, is_known) {
            _ if is_reused => Class::Reused,
            (false, false) => Class::First,
            (true, false) => Class::FirstSequential,
            (false, true) => Class::Again,
            (true, true) => Class::AgainSequential,
        }
    }

    /// Whether nothing was known of the block before.
    pub(super) fn is_first(self) -> bool {
        matches!(self, Class::First | Class::FirstSequential)
    }
}

/// Blocks of a class that were offered and not there; pinned ones, of which the rule is not asked, are in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// The rule admitted them.
    pub admitted: u64,
    /// It did not.
    pub refused: u64,
}

/// The store's name for a change that has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitId(pub u64);

/// Whether a change of a disk may be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// At once.
    Ready,
    /// When `take_released` gives this.
    Wait(WaitId),
}

/// Whether what an owner has can be told to be good for the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// It is being written down, or is already.
    Begun,
    /// Changes are under way or wait.
    Changing,
    /// It would write more than it is worth now: ask again later.
    TooMuch,
    /// There is no device to write to.
    OutOfService,
}

/// What the store wants done on a device. It owns its frames until it comes back in an [`SsdDone`].
#[derive(Debug)]
pub struct SsdIo {
    /// The store's number for it.
    pub id: u64,
    /// Which of the store's devices.
    pub device: u16,
    /// What to do.
    pub kind: SsdIoKind,
    /// First byte, from the start of the store's region; a multiple of 4,096.
    pub offset: u64,
    /// Bytes; a multiple of 4,096, and for reads and writes equal to `buf.len`.
    pub len: u64,
    /// What to write, or to read into; empty for the other kinds.
    pub buf: IoBuf,
}

/// What an [`SsdIo`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SsdIoKind {
    /// Fill `buf` from the device.
    Read,
    /// Write `buf`.
    Write,
    /// Make every write completed before durable.
    Flush,
    /// The range is not needed; it may read as anything.
    Discard,
}

/// The completion of an [`SsdIo`].
#[derive(Debug)]
pub struct SsdDone {
    /// Which one.
    pub id: u64,
    /// Which of the store's devices.
    pub device: u16,
    /// The buffer, back again.
    pub buf: IoBuf,
    /// Whether all of it was done; after a failure nothing is known about the range.
    pub is_done: bool,
}

/// Why a device is out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfService {
    /// A write failed: the device is full, gone, or broken.
    Write,
    /// A flush failed.
    Flush,
    /// Blocks did not hold what was written, more often than is put down to chance; or what had been written could not
    /// be read back.
    Mismatches,
    /// It did not answer for too long.
    Stalled,
    /// An operator said so.
    Operator,
}

/// A device cannot be written to any more, but says of some disks that their blocks are as they were. Before one of
/// them changes, record elsewhere, durably, that the store of this name is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Which of the store's devices.
    pub device: u16,
    /// The name that is void.
    pub store: StoreId,
}

/// The name that a region was given when it was formatted: random, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

/// The name of the time since the host was started (`/proc/sys/kernel/random/boot_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

/// Bytes written to devices, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Blocks admitted.
    pub admitted: u64,
    /// Blocks kept though their segment was the oldest.
    pub cleaning: u64,
    /// Of these, pinned ones.
    pub pins: u64,
    /// Summaries of segments.
    pub summaries: u64,
    /// Tables of owners.
    pub tables: u64,
}

impl Written {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.admitted + self.cleaning + self.summaries + self.tables
    }

    /// Bytes written for each 1,000 that were admitted; 1,000 before any was.
    pub fn amplification_per_mille(&self) -> u64 {
        if self.admitted == 0 { 1000 } else { (u128::from(self.total()) * 1000 / u128::from(self.admitted)) as u64 }
    }
}

/// Numbers of one owner, since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerStats {
    /// Blocks it has now.
    pub blocks: u64,
    /// Segments it has now.
    pub segments: u64,
    /// Blocks it may have.
    pub share_blocks: u64,
    /// Blocks found, in memory or on a device.
    pub hits: u64,
    /// Blocks asked for that were not there.
    pub misses: u64,
    /// Blocks admitted.
    pub admitted: u64,
    /// Of these, those that were not written, as equal bytes were there.
    pub linked: u64,
    /// Blocks not admitted, in the order of [`Refusal::ALL`].
    pub refused: [u64; 8],
    /// What [`Admission::Measured`] made of each class, in the order of [`Class::ALL`].
    pub classes: [ClassStats; CLASSES],
    /// Blocks that did not hold what was written.
    pub mismatches: u64,
    /// Whether its blocks would be recovered now after a crash of the daemon.
    pub is_clean: bool,
}

impl OwnerStats {
    /// Those of another device on top.
    pub(super) fn add(&mut self, other: &OwnerStats) {
        self.blocks += other.blocks;
        self.segments += other.segments;
        self.share_blocks += other.share_blocks;
        self.hits += other.hits;
        self.misses += other.misses;
        self.admitted += other.admitted;
        self.linked += other.linked;
        self.refused.iter_mut().zip(other.refused).for_each(|(a, b)| *a += b);
        for (a, b) in self.classes.iter_mut().zip(other.classes) {
            a.admitted += b.admitted;
            a.refused += b.refused;
        }
        self.mismatches += other.mismatches;
        self.is_clean &= other.is_clean;
    }
}

/// Numbers of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SsdStats {
    /// Blocks in the store.
    pub blocks: u64,
    /// Of these, those that are in RAM or with the guest as well.
    pub held: u64,
    /// Of these, those that take no room: equal bytes were there. Some may be about to go.
    pub linked: u64,
    /// Blocks that it has room for.
    pub room: u64,
    /// Blocks that wait in memory to be written.
    pub staged: u64,
    /// Segments of the device.
    pub segments: u64,
    /// Of these, those that are free.
    pub free_segments: u64,
    /// Bytes written since the start.
    pub written: Written,
    /// Bytes that may be written at once; `None` without a limit.
    pub budget_left: Option<u64>,
    /// Blocks that did not hold what was written.
    pub mismatches: u64,
    /// Bytes of memory of tables and staged blocks.
    pub memory: u64,
    /// Why it is out of service, if it is.
    pub out_of_service: Option<OutOfService>,
}
