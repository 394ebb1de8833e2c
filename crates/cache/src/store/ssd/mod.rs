//! The store on SSDs: clean blocks that left RAM, on one region of each device, owned by one core.
//!
//! Owns the index, the segments, the table of owners and the rule of admission. A state machine: no lock, no thread, no
//! clock, no file; I/O is asked for as values and answered by completions. Only format and recovery, at the start, are
//! synchronous. Never has the only copy of a byte: the disk has every one, and losing the store loses nothing.
//! Invariant: a block that is found is what the disk holds, as far as the rule of `owners` goes; in doubt it is
//! dropped.
//!
//! How it is used, by one core:
//!
//! - *At the start*: [`Region::format`] or [`Region::recover`] on each device, then [`Ssd::new`] with the regions; for
//!   each disk [`Ssd::attach`], then [`Ssd::set_share`], and [`Ssd::set_domain`] where equal blocks are to be kept
//!   once.
//! - *A read that misses RAM*: [`Ssd::lookup`]. Bytes in memory are good as they are. For bytes on a device, the caller
//!   reads them itself, at `offset` of the region, and shows them to [`Ssd::verify`] at completion: only `Good`
//!   bytes are
//!   the block's. After a failed read: [`Ssd::read_failed`]. In both other cases the disk is read.
//! - *The block goes into RAM, or to a guest that will hold it*: [`Ssd::hold`]. When RAM evicts it unchanged:
//!   [`Ssd::let_go`]; if that is true, nothing needs to be written. Otherwise, or for a block that was never there:
//!   [`Ssd::offer`], with the bytes, which must be what the disk holds.
//! - *A change of blocks* (write, discard, zeroes), before it is submitted: [`Ssd::change_begins`]; on `Wait`, it is
//!   submitted when [`Ssd::take_released`] gives its number. When it has ended, well or not: [`Ssd::change_ended`] with
//!   the same blocks. Each call of the one has its call of the other, also for a change that is given up while
//!   it waits.
//! - *Content changed by others, or lost*: [`Ssd::invalidate`].
//! - *A disk without changes for a while*: [`Ssd::quiet`] with a stamp taken after its last change had ended, and old
//!   enough that a later change shows in it. Again when there were changes since.
//! - *After every call, or once a turn*: [`Ssd::next_io`] until it gives none; each comes back by [`Ssd::io_done`]; and
//!   [`Ssd::take_released`], [`Ssd::given_up`]. [`Ssd::tick`] about once a second.
//! - *When a device fails*, it is out of service: nothing is found there and nothing admitted. If
//!   [`Ssd::given_up`] tells
//!   of it, the caller records elsewhere that the store's name is void and then says [`Ssd::given_up_is_recorded`];
//!   until then changes of the disks in question wait. [`Ssd::replace`] puts a formatted region in its place.
//! - *Another process goes on with the store*: when no change is under way, [`Ssd::rest`]; then I/O until
//!   [`Ssd::is_at_rest`], and [`Ssd::hand_over`]. [`Ssd::take_over`] in the other process gives the store at rest, with
//!   the same owners; in whichever of the two is to go on: [`Ssd::go_on`]. At rest a store asks for no I/O.
//! - *An orderly stop*: when no change is under way, no more will come, and the disks are flushed, [`Ssd::stop`]
//!   with stamps; then I/O until
//!   [`Ssd::is_stopped`].

mod admission;
mod bytes;
mod format;
mod handover;
mod index;
mod measured;
mod memory;
mod permutation;
mod region;
mod samples;
mod segments;
mod shadow;
mod store;
mod streams;
mod sums;
mod types;
mod worth;

pub use handover::{HANDOVER_FORM, NotTakenOver};
pub use memory::memory_bytes_for;
pub use region::{Format, Media, NoRegion, Recovered, Region};
pub use store::Ssd;
pub use types::*;
