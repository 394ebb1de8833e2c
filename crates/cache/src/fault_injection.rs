//! Bugs planted on purpose, to test that the simulation finds them.
//!
//! Owns their names. Never in force in a daemon: [`Core`](crate::Core) stands for `Core<NoFaults>`, for which every
//! question is `false` at compile time. Invariant: each bug is a mistake that is easily made here.

/// Whether a planted bug is in force. The daemon's core answers no, at no cost.
pub trait FaultInjection: Copy {
    /// Whether `bug` is in force.
    fn has(&self, bug: Bug) -> bool;
}

/// No bug planted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FaultInjection for NoFaults {
    #[inline(always)]
    fn has(&self, _bug: Bug) -> bool {
        false
    }
}

/// One bug planted.
#[derive(Clone, Copy, Debug)]
pub struct Planted(pub Bug);

impl FaultInjection for Planted {
    #[inline]
    fn has(&self, bug: Bug) -> bool {
        self.0 == bug
    }
}

/// The bugs that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A write leaves reads of its blocks that are under way free to be published.
    StaleFill,
    /// A read that misses does not wait for a write of its block that is under way.
    ReadDuringWrite,
    /// A discard leaves cached blocks as they were.
    DiscardKeepsCache,
    /// A write of zeroes leaves cached blocks as they were.
    ZeroesKeepCache,
    /// A flush is acknowledged without reaching the disk.
    FlushNotSent,
    /// A write's demand for durability is not passed on.
    FuaNotSent,
    /// A partial write over a cached block loses the byte after it.
    PartialOffByOne,
    /// A write is acknowledged when it is sent, not when it is done.
    ReplyEarly,
    /// A failed write's data goes into the cache.
    PublishFailedWrite,
    /// A failed write leaves the old data in the cache.
    FailedWriteKeepsOld,
    /// A read that joins another is not woken.
    LostJoin,
    /// A read of the last block is not cut at the end of the disk.
    ReadPastEnd,
    /// A write leaves blocks read ahead as they were.
    AheadNotInvalidated,
    /// Overlapping writes run at the same time.
    NotSerialized,
    /// A change of capacity loses track of which frame belongs to a moved block.
    MoveLosesFrame,
    /// Copies of guest pages are kept without a look at their content.
    CaptureUnverified,
    /// A write leaves the table of guest pages as it was.
    WriteKeepsResidency,
    /// A write leaves contents that wait to be hashed as they were.
    WriteKeepsLater,
    /// Equal hashes are taken for equal contents.
    DeduplicatesUncompared,
    /// Contents are looked for in every group.
    DeduplicatesAcrossGroups,
    /// When all but one of those who share a frame have left it, nobody pays for it.
    ChargeLost,
    /// A write leaves the disk's block counted as that of its base.
    BaseNotLeft,
    /// What was copied from a guest is taken for the base's block.
    CaptureTakenForBase,
    /// A frame that leaves a slot is counted off the part of the block that comes into it.
    NewcomersPartPays,
    /// Blocks of parts are not counted anew when the ranges change.
    PartsNotCountedAnew,
    /// A part with more than its share keeps it as long as the disk has no more than its own.
    PartKeepsExcess,
    /// What is forgotten when the disk's content is another takes the parts with it.
    PartsForgotten,
    /// Those who held frames together with a disk that is gone keep them, though nobody pays.
    HeirsKeepAll,
    /// A block whose frame another disk holds, too, is not counted to its part.
    CommonOfNoPart,
    /// A disk on a base of which nothing is to be kept keeps what it has.
    UnneededCloneKeeps,
    /// A disk that shrinks stops paying before others do for what they held together.
    PaysLessEarly,
    /// Whoever waits for a read that fails is told so, though another's sector was bad.
    JoinedFailToo,
    /// A partial write fails if a sector of its block is bad that it has nothing to do with.
    MergeNeedsAll,
    /// A partial write is made from a block that was read before the disk was exchanged.
    MergeOfOldContent,
    /// What is read again after a failure is copied out twice.
    CopiedAgain,
    /// Reads under way and blocks read ahead outlive the exchange of a disk.
    InvalidateKeepsReads,
    /// What was written over cached content becomes cached though the disk was exchanged meanwhile.
    WriteOutlivesInvalidate,
    /// Whoever comes last is the first to get frames.
    LastComeFirstServed,
    /// A disk that cannot tell its allocation has nothing allocated.
    StatusGuesses,
    /// Reads of blocks from 2^32 on do not wait for changes: a number is cut.
    HighBlocksNotWaitedFor,
    /// Memory that is over is counted, and not given back.
    GiveBackEvictsNothing,
    /// A slot keeps its hash when it gets another content.
    HashOutlivesContent,
    /// Blocks are the first to go whatever content the guest was found to hold.
    CoolsAnything,
    /// That a disk's guest is scanned is forgotten at once.
    ScanForgotten,
    /// Blocks of reads that joined others are not measured.
    MeterMissesJoined,
    /// A disk that asks for another capacity is not credited with its own.
    RefusesWhatFits,
    /// What is cached outlives that the disk lost it.
    LossKeepsCache,
    /// What was written over lost content becomes cached with the rest of it.
    LossKeepsWrites,
    /// Flushes succeed though writes before them were lost.
    LossNotTold,
    /// Another process tells nobody of what the one before it lost.
    LossEndsWithProcess,
    /// Frames of read-ahead that are in use go back to requests when a disk is to read less far ahead.
    AheadCutUnderWay,
    /// A long read that goes on after a pause leaves a block out.
    PauseSkipsBlock,
    /// A write that goes on after a pause leaves a block out.
    PieceForgotten,
    /// A write that goes on after a pause takes data again that it has, when the front end may have changed it.
    PieceTakenAgain,
    /// What a failed write had begun to copy counts for ever.
    AbandonedCounts,
    /// What was read of the SSD store is served whatever it is.
    BelowServesAnything,
    /// Changes do not wait until the SSD store has noted them.
    BelowNotAwaited,
    /// A change leaves the blocks in the SSD store as they were.
    BelowKeepsChanged,
    /// The SSD store keeps blocks that the disk lost.
    BelowKeepsLost,
    /// What the SSD store has of a base is served of blocks that the disk has changed.
    BelowBaseOutlivesChange,
    /// What the SSD store has of a disk is known as its base's, though it may come from a guest.
    BelowTakenForBase,
    /// What a pool gives up of another disk is offered to an SSD by numbers that are not the image's.
    BelowNumbersTakenForOwn,
    /// A write that is installed in steps ends with the first of them.
    RestOfWriteForgotten,
    /// Those who wait until there is room among the waiters of a read are not woken.
    CrowdForgotten,
    /// What a disk has borrowed for operations is not given back when they end.
    LoanKept,
    /// Operations get frames that the pool has not.
    LentBeyondPool,
    /// A page that leaves the slots of a pool counts as one of the disk that has the index.
    PoolCreditsPresent,
    /// An index that passes to another disk of its pool still takes block numbers for those of the disk before.
    PoolNotTold,
    /// A disk of a pool whose content may be another keeps its cached blocks.
    PoolKeepsInvalid,
    /// A pool keeps the capacity that a disk which leaves takes with it.
    LeaverKeepsShare,
    /// A discard that goes through slots in steps does not look through all of them again when blocks have come into
    /// others: tables of another size, or of a pool.
    DropsPassSlotsOver,
    /// What a page held before is taken for a block of the disk whose request reuses it.
    PageOfWrongDisk,
    /// What is known of a guest's pages outlives that one of its disks has other memory.
    TableOutlivesMap,
    /// What is known of a disk's blocks in guest pages outlives the disk.
    TableOutlivesDisk,
    /// The memory of a guest's former table of pages is charged to no disk until it is given back.
    OldTableUnpaid,
    /// Nobody is told of copies of guest pages that do not hold their block.
    FailedCopiesForgotten,
    /// The pages of a long read are taken to be beside each other.
    RunPagesAssumed,
    /// Blocks are counted from another byte of the disk, and what is cached stays.
    OffsetKeepsCache,
    /// The same changes while requests are under way.
    OffsetWhileBusy,
    /// Another process goes on with what is cached, and counts blocks from the first byte.
    OffsetNotKept,
    /// A write that pauses when it is its turn to take frames goes behind those who wait for frames.
    PausedLosesPlace,
    /// A request waits for as many frames as it can use, which its disk may never have.
    WaitsForTooMuch,
    /// Frames of a read that has come count no more before each has its place.
    PlacedBeforeTime,
    /// A disk that gives up blocks begins with locked ones.
    ShrinkTakesLocked,
    /// What is pinned of a disk stays pinned in the index of its pool when it has gone.
    PinOutlivesDisk,
    /// A disk whose share becomes smaller keeps what it has locked, beyond its budget.
    LockOutlivesFloor,
    /// While nothing is to be locked of a disk, it is told that nothing may be.
    BudgetUntold,
    /// Each disk of a pool may pin as much as may be locked of all.
    PinsOfOthersUncounted,
    /// A disk that has had parts goes on without its victim buffer.
    PartsEndBuffer,
    /// Blocks of an SSD are taken for those of an image that is another one since.
    SsdStampNotCompared,
    /// They are taken after the host was started again, though the stop was not orderly.
    SsdBootIgnored,
    /// They are taken from segments that an owner had given up.
    SsdOldestIgnored,
    /// They are taken by one copy of the table of owners, though the other is broken.
    SsdOneTableIsEnough,
    /// A summary that cannot be read at the start is passed over.
    SsdUnreadablePassedOver,
    /// Summaries are believed after an orderly stop though they are not those that were written then.
    SsdDigestIgnored,
    /// Summaries of segments still name blocks that were changed.
    SsdSummaryKept,
    /// Summaries that were written again are not read back.
    SsdNotReadBack,
    /// A change does not end what is being written down of a disk without changes.
    SsdQuietIgnoresChange,
    /// A disk is changed before the table says so.
    SsdDirtyAfterWrite,
    /// A disk is changed while a device that cannot be written to any more calls it clean.
    SsdGivenUpNotWaitedFor,
    /// A summary is written before its segment's blocks are.
    SsdSummaryBeforeData,
    /// A segment is used again without an end of its former summary.
    SsdMarkLeftOut,
    /// A change leaves blocks that wait to be written to an SSD as they were.
    SsdChangeKeepsStaged,
    /// A block is admitted to an SSD while it is being changed.
    SsdChangingAdmitted,
    /// What was read from an SSD is the block's though it was changed meanwhile.
    SsdReadOutlivesChange,
    /// A place that was used again while it was read is taken for a broken one.
    SsdRecycledNotSeen,
    /// What was read from an SSD is not verified.
    SsdUnverified,
    /// A block that RAM lets go stays held on its SSD.
    SsdHeldNotCleared,
    /// Entries of a segment that was emptied stay.
    SsdCleaningLeavesEntries,
    /// Another segment is discarded than the one that is free.
    SsdDiscardsOther,
    /// The process that goes on with an SSD store is not told which disks the device calls clean.
    SsdCleanNotTold,
    /// It is not told which summaries name blocks that are gone.
    SsdLostNotTold,
    /// A block that is the same as another on an SSD stays so when it is changed.
    SsdLinkOutlivesChange,
    /// It stays so when all of its disk is dropped.
    SsdLinkOutlivesDisk,
    /// It stays so when the segment that has its bytes is used again.
    SsdLinkOutlivesSegment,
    /// A block is taken for the same as another on an SSD without looking at what is written there.
    SsdLinkUnproven,
    /// It is taken for the same as one of a disk with which nothing is to be held in common.
    SsdLinkAcross,
    /// A summary names a block that was changed since its place was written, and is the same again.
    SsdLinkTakenForBlock,
    /// A block that waits to be found equal to others is kept when it is changed.
    SsdParkedOutlivesChange,
    /// It is kept when its disk goes.
    SsdParkedOutlivesDisk,
    /// What was pinned of a disk that has gone is written again for ever.
    SsdPinsOutliveDetach,
    /// The SSD store is told an image's stamp though what was written to the image is not flushed.
    StampUnflushed,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 122] = [
        Bug::StaleFill,
        Bug::ReadDuringWrite,
        Bug::DiscardKeepsCache,
        Bug::ZeroesKeepCache,
        Bug::FlushNotSent,
        Bug::FuaNotSent,
        Bug::PartialOffByOne,
        Bug::ReplyEarly,
        Bug::PublishFailedWrite,
        Bug::FailedWriteKeepsOld,
        Bug::LostJoin,
        Bug::ReadPastEnd,
        Bug::AheadNotInvalidated,
        Bug::NotSerialized,
        Bug::MoveLosesFrame,
        Bug::CaptureUnverified,
        Bug::WriteKeepsResidency,
        Bug::WriteKeepsLater,
        Bug::DeduplicatesUncompared,
        Bug::DeduplicatesAcrossGroups,
        Bug::ChargeLost,
        Bug::BaseNotLeft,
        Bug::CaptureTakenForBase,
        Bug::NewcomersPartPays,
        Bug::PartsNotCountedAnew,
        Bug::PartKeepsExcess,
        Bug::PartsForgotten,
        Bug::HeirsKeepAll,
        Bug::CommonOfNoPart,
        Bug::UnneededCloneKeeps,
        Bug::PaysLessEarly,
        Bug::JoinedFailToo,
        Bug::MergeNeedsAll,
        Bug::MergeOfOldContent,
        Bug::CopiedAgain,
        Bug::InvalidateKeepsReads,
        Bug::WriteOutlivesInvalidate,
        Bug::LastComeFirstServed,
        Bug::StatusGuesses,
        Bug::HighBlocksNotWaitedFor,
        Bug::GiveBackEvictsNothing,
        Bug::HashOutlivesContent,
        Bug::CoolsAnything,
        Bug::ScanForgotten,
        Bug::MeterMissesJoined,
        Bug::RefusesWhatFits,
        Bug::LossKeepsCache,
        Bug::LossKeepsWrites,
        Bug::LossNotTold,
        Bug::LossEndsWithProcess,
        Bug::AheadCutUnderWay,
        Bug::PauseSkipsBlock,
        Bug::PieceForgotten,
        Bug::PieceTakenAgain,
        Bug::AbandonedCounts,
        Bug::BelowServesAnything,
        Bug::BelowNotAwaited,
        Bug::BelowKeepsChanged,
        Bug::BelowKeepsLost,
        Bug::BelowBaseOutlivesChange,
        Bug::BelowTakenForBase,
        Bug::BelowNumbersTakenForOwn,
        Bug::RestOfWriteForgotten,
        Bug::CrowdForgotten,
        Bug::LoanKept,
        Bug::LentBeyondPool,
        Bug::PoolCreditsPresent,
        Bug::PoolNotTold,
        Bug::PoolKeepsInvalid,
        Bug::LeaverKeepsShare,
        Bug::DropsPassSlotsOver,
        Bug::PageOfWrongDisk,
        Bug::TableOutlivesMap,
        Bug::TableOutlivesDisk,
        Bug::OldTableUnpaid,
        Bug::FailedCopiesForgotten,
        Bug::RunPagesAssumed,
        Bug::OffsetKeepsCache,
        Bug::OffsetWhileBusy,
        Bug::OffsetNotKept,
        Bug::PausedLosesPlace,
        Bug::WaitsForTooMuch,
        Bug::PlacedBeforeTime,
        Bug::ShrinkTakesLocked,
        Bug::PinOutlivesDisk,
        Bug::LockOutlivesFloor,
        Bug::BudgetUntold,
        Bug::PinsOfOthersUncounted,
        Bug::PartsEndBuffer,
        Bug::SsdStampNotCompared,
        Bug::SsdBootIgnored,
        Bug::SsdOldestIgnored,
        Bug::SsdOneTableIsEnough,
        Bug::SsdUnreadablePassedOver,
        Bug::SsdDigestIgnored,
        Bug::SsdSummaryKept,
        Bug::SsdNotReadBack,
        Bug::SsdQuietIgnoresChange,
        Bug::SsdDirtyAfterWrite,
        Bug::SsdGivenUpNotWaitedFor,
        Bug::SsdSummaryBeforeData,
        Bug::SsdMarkLeftOut,
        Bug::SsdChangeKeepsStaged,
        Bug::SsdChangingAdmitted,
        Bug::SsdReadOutlivesChange,
        Bug::SsdRecycledNotSeen,
        Bug::SsdUnverified,
        Bug::SsdHeldNotCleared,
        Bug::SsdCleaningLeavesEntries,
        Bug::SsdDiscardsOther,
        Bug::SsdCleanNotTold,
        Bug::SsdLostNotTold,
        Bug::SsdLinkOutlivesChange,
        Bug::SsdLinkOutlivesDisk,
        Bug::SsdLinkOutlivesSegment,
        Bug::SsdLinkUnproven,
        Bug::SsdLinkAcross,
        Bug::SsdLinkTakenForBlock,
        Bug::SsdParkedOutlivesChange,
        Bug::SsdParkedOutlivesDisk,
        Bug::SsdPinsOutliveDetach,
        Bug::StampUnflushed,
    ];
}
