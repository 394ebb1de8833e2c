//! What tests can do to a port: plant a bug in it, or let the process die at one of its stores to memory that outlives
//! it.
//!
//! Owns the names of the bugs, and a switch and a countdown for each thread of a test. Never in force in a daemon:
//! outside of tests every question is answered `false` at compile time, and no store is counted. Invariant: each bug is
//! a mistake that somebody could really make here, at the place where it is asked for.

/// Bugs that can be planted in ports; `ports_sim` finds each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
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
    /// A port that has waited for room to send is not told of it.
    RoomNotWatched,
}

#[cfg(test)]
impl Bug {
    /// All of them.
    pub(super) const ALL: [Bug; 13] = [
        Bug::MarkGoesEarly,
        Bug::IndexBeforeEntry,
        Bug::TakenUnmarked,
        Bug::MaskedCallLost,
        Bug::LastRangeCounts,
        Bug::LastRangeIgnored,
        Bug::FirstQueueFirst,
        Bug::ZeroesLoseFua,
        Bug::WrongCookie,
        Bug::TagReused,
        Bug::ChunkOffsetOfBlock,
        Bug::ShortReadSent,
        Bug::RoomNotWatched,
    ];
}

/// Where a store to memory that outlives the process is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
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
}

#[cfg(test)]
impl Site {
    /// All of them.
    pub(super) const ALL: [Site; 10] = [
        Site::Counter,
        Site::Mark,
        Site::Unmark,
        Site::Link,
        Site::BatchHead,
        Site::LogIndex,
        Site::LogHead,
        Site::UsedEntry,
        Site::UsedIndex,
        Site::Wish,
    ];
}

/// Whether a planted bug is in force.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn has(_bug: Bug) -> bool {
    false
}

/// A store is about to be made: where it counts down to the process's death, it is not made, nor any after it.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn store(_site: Site) {}

#[cfg(test)]
pub(super) use in_tests::{has, store};

/// The switch and the countdown.
#[cfg(test)]
pub(super) mod in_tests {
    use super::{Bug, Site};
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// What unwinds from the store at which the process dies.
    struct Died(Site);

    /// Plants a bug in all ports of this thread, or takes it out.
    pub(crate) fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Has the process die instead of the `n`th store from now (0 is the next), or live.
    pub(crate) fn die_at(n: Option<u64>) {
        STORES_LEFT.set(n);
    }

    /// Whether a planted bug is in force.
    pub(crate) fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// See outside.
    pub(crate) fn store(site: Site) {
        match STORES_LEFT.get() {
            Some(0) => {
                STORES_LEFT.set(None);
                // Without the panic hook: nothing went wrong.
                resume_unwind(Box::new(Died(site)));
            }
            Some(n) => STORES_LEFT.set(Some(n - 1)),
            None => {}
        }
    }

    /// Runs what may store; tells where the process died, if it did. What `f` works on is of no more use then, but to
    /// be dropped.
    pub(crate) fn living<R>(f: impl FnOnce() -> R) -> Result<R, Site> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Ok(result),
            Err(payload) => match payload.downcast::<Died>() {
                Ok(died) => Err(died.0),
                Err(other) => resume_unwind(other),
            },
        }
    }
}
