//! What tests can do to a port: plant a bug in it, let the process die at one of its stores to memory that outlives it,
//! or change a guest's memory between two of its looks at it.
//!
//! Owns the names of the bugs and of the stores. Never in force in a daemon: `VhostPort`, `NbdPort`, `FusePort`,
//! `UblkPort` and `Flows` stand for those with [`NoPortFaults`], for which every question is answered `false` at
//! compile time and no store is counted; the switches are those of the crate `porttest`. Invariant: each bug is a
//! mistake that somebody could really make here, at the place where it is asked for.

use std::fmt::Debug;

/// Whether a planted bug is in force, and what becomes of a store. The daemon's ports answer no, at no cost.
pub trait PortFaults: Debug + Default + Send + 'static {
    /// Whether `bug` is in force.
    #[inline(always)]
    fn has(_bug: PortBug) -> bool {
        false
    }

    /// A store is about to be made at `site`. What dies there unwinds, and the store is not made.
    #[inline(always)]
    fn store(_site: StoreSite) {}

    /// Guest memory has just been written, or is about to be: whoever migrates the guest may copy pages here.
    #[inline(always)]
    fn meanwhile() {}

    /// A part of what a guest asks for is about to be read from its memory, or all of it has been read: the guest may
    /// change it here.
    #[inline(always)]
    fn fetch() {}
}

/// No bug planted, no death.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPortFaults;

impl PortFaults for NoPortFaults {}

/// Bugs that can be planted in ports and in the order in which they are served; the simulation of ports finds each, but
/// for those of [`PortBug::READ_TWICE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortBug {
    /// A chain's mark in the record of requests under way goes before the driver can see the used entry.
    MarkGoesEarly,
    /// The used index is written before the entry that it announces.
    IndexBeforeEntry,
    /// A chain is taken without a mark.
    TakenUnmarked,
    /// What was used while no call descriptor was set is not announced when one is.
    MaskedCallLost,
    /// Of a request of several ranges the result of the last one counts.
    LastRangeCounts,
    /// Of a request of several ranges the result of the last one is not looked at.
    LastRangeIgnored,
    /// Queues are always served from the first one on.
    FirstQueueFirst,
    /// A write of zeroes over NBD loses its demand for durability.
    ZeroesLoseFua,
    /// An NBD reply bears the cookie of the request in another slot.
    WrongCookie,
    /// The tag of a trim with FUA is free while its flush is still to come.
    TagReused,
    /// A structured reply names the block that a read begins in, not the byte.
    ChunkOffsetOfBlock,
    /// A read is sent whether or not all of its data came.
    ShortReadSent,
    /// A read's data is looked at in blocks that begin at multiples of 4096 bytes of the disk, wherever the core has
    /// them begin.
    BlocksAtMultiples,
    /// A write through a file opened with O_DSYNC need not be durable when it is answered.
    SyncForgotten,
    /// A file whose message waited for room is not looked at again when there is some.
    FileNotWoken,
    /// A port that has waited for room to send is not told of it.
    RoomNotWatched,
    /// Of a disk's ports those that use their quanta up are served as long as there are any.
    HeavyAlwaysFirst,
    /// A port that has had more than its quantum is not queued again.
    OverQuantumForgotten,
    /// A port that sleeps when a request of it is paused is not woken to go on with it.
    PausedNotWoken,
    /// A flush that failed is answered as if it had not.
    LossUnsaid,
    /// A failure that tells of a loss counts as told although its session has ended.
    UnheardForgotten,
    /// A failure that tells of a loss counts as told although it was not visible, or not sent, when its session ended.
    UnseenForgotten,
    /// The flush after one that failed is answered with the same error.
    LossSaidTwice,
    /// What a disk has lost is reported of the disk before it.
    LossOfAnotherDisk,
    /// A page that the guest gave back is copied, which takes memory for it again.
    HolesCopied,
    /// Data that were read are not marked in the log of dirty memory.
    DataUnmarked,
    /// Nor is the status byte of a request.
    StatusUnmarked,
    /// Nor is the index of the used ring, or the device's wish for kicks.
    IndexUnmarked,
    /// Nor is an entry of the used ring.
    EntryUnmarked,
    /// Memory is marked before it is written.
    MarkedBeforeWritten,
    /// A log that comes to a session which has written without one does not say so.
    LogBeginsClean,
    /// A queue that stops leaves what a former process took in the record, whoever has asked.
    StopLeavesTaken,
    /// A file that comes to rest forgets the message that it has received and not begun.
    RestForgetsArrived,
    /// A reply to a request that was asked again bears the name that it had the first time.
    AskedAgainUnmarked,
    /// A block device whose write waited for room is not looked at again when there is some.
    DeviceNotWoken,
    /// A block device that comes to rest, and goes on after all, forgets what it has and had not begun.
    RestForgetsCame,
    /// The sector of a guest's request is read once for the check, and once more for its use.
    HeaderReadTwice,
    /// A descriptor is read once for how long its buffer is, and once more for where that lies.
    DescriptorReadTwice,
    /// A range of a request of several ranges is read once for the check, and its sector once more for its use.
    RangesReadTwice,
}

impl PortBug {
    /// Those that harm only where a guest changes what it asks for while that is read, which no guest of the simulation
    /// does: tests of the device have such a guest.
    pub const READ_TWICE: [PortBug; 3] =
        [PortBug::HeaderReadTwice, PortBug::DescriptorReadTwice, PortBug::RangesReadTwice];

    /// All others, which the simulation of ports has to find.
    pub const ALL: [PortBug; 36] = [
        PortBug::MarkGoesEarly,
        PortBug::IndexBeforeEntry,
        PortBug::TakenUnmarked,
        PortBug::MaskedCallLost,
        PortBug::LastRangeCounts,
        PortBug::LastRangeIgnored,
        PortBug::FirstQueueFirst,
        PortBug::ZeroesLoseFua,
        PortBug::WrongCookie,
        PortBug::TagReused,
        PortBug::ChunkOffsetOfBlock,
        PortBug::ShortReadSent,
        PortBug::BlocksAtMultiples,
        PortBug::SyncForgotten,
        PortBug::FileNotWoken,
        PortBug::RoomNotWatched,
        PortBug::HeavyAlwaysFirst,
        PortBug::OverQuantumForgotten,
        PortBug::PausedNotWoken,
        PortBug::LossUnsaid,
        PortBug::UnheardForgotten,
        PortBug::UnseenForgotten,
        PortBug::LossSaidTwice,
        PortBug::LossOfAnotherDisk,
        PortBug::HolesCopied,
        PortBug::DataUnmarked,
        PortBug::StatusUnmarked,
        PortBug::IndexUnmarked,
        PortBug::EntryUnmarked,
        PortBug::MarkedBeforeWritten,
        PortBug::LogBeginsClean,
        PortBug::StopLeavesTaken,
        PortBug::RestForgetsArrived,
        PortBug::AskedAgainUnmarked,
        PortBug::DeviceNotWoken,
        PortBug::RestForgetsCame,
    ];
}

/// Where a store to memory that outlives the process is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSite {
    /// The order in which a chain was taken.
    Counter,
    /// A chain is marked as under way.
    Mark,
    /// A chain is no longer.
    Unmark,
    /// The link to the chain used before, in the record.
    Link,
    /// The chain used last, in the record.
    BatchHead,
    /// The used index as the record knows it.
    LogIndex,
    /// What else the head of the record holds, when it is new.
    LogHead,
    /// An entry of the used ring.
    UsedEntry,
    /// The index of the used ring.
    UsedIndex,
    /// The device's wish for kicks.
    Wish,
    /// A mark in the log of dirty memory.
    DirtyMark,
}

impl StoreSite {
    /// All of them.
    pub const ALL: [StoreSite; 11] = [
        StoreSite::Counter,
        StoreSite::Mark,
        StoreSite::Unmark,
        StoreSite::Link,
        StoreSite::BatchHead,
        StoreSite::LogIndex,
        StoreSite::LogHead,
        StoreSite::UsedEntry,
        StoreSite::UsedIndex,
        StoreSite::Wish,
        StoreSite::DirtyMark,
    ];
}
