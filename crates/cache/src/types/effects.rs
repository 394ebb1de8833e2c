//! The way into the core, and the way out of it: events that happen, effects that are wanted.
//!
//! Owns the contract between the core and whoever drives it. Invariant: effects are carried out inside the call, and
//! call nothing back.

use super::io::{Extent, Io, IoDone, Lost};
use super::request::{DiskId, Found, IoError, Paused, ReqId, Request};
use undercroft_host::FRAME_BYTES;

/// Something that happened, for the core to deal with.
#[derive(Debug)]
pub enum Event {
    /// A front end passes a request on.
    Request(Request),
    /// A paused request goes on. Nothing happens to one that is not paused (any more).
    Resume(Paused),
    /// A back end has finished an operation.
    IoDone(IoDone),
    /// A back end may have lost changes. Comes before the completions of what happened after the loss; those of what
    /// happened before may follow.
    Lost {
        /// The disk.
        disk: DiskId,
        /// What.
        lost: Lost,
    },
    /// What the disk's image was given is to be made durable, though nobody has asked: a flush that is no port's
    /// request. See [`Core::durability`](crate::Core::durability).
    MakeDurable {
        /// The disk.
        disk: DiskId,
    },
    /// Time has passed; sent a few times a second at most while anything is open.
    Tick,
    /// The replies given so far are out, so there is time for work that no reply waits for. As much of it is done as
    /// one event should copy; [`Core::wants_spare`](crate::Core::wants_spare) says whether more is left. With `copies`
    /// false the processor time for copying guest memory is used up: none is copied until an event that allows it.
    Spare {
        /// Whether pages of guests may be copied.
        copies: bool,
    },
}

/// What the core wants done; carried out at once, inside the call.
///
/// An implementor may be a live worker or a simulation. It must not call the core back.
pub trait Effects {
    /// `bytes` are bytes `at..` of the read request's data: copy them to the requester now.
    ///
    /// Of a read that is answered `Ok`, each byte is copied out exactly once before the reply; of one that fails, at
    /// most once. Pieces are not empty, come in any order, and none reaches past the request's length. So a front end
    /// may count bytes: it has all of them when the sum is the length, and only then. After an error it must send none.
    fn copy_out(&mut self, req: ReqId, at: usize, bytes: &[u8]);
    /// Fills `bytes` with bytes `at..` of the write request's data. Called exactly once per byte of an accepted write.
    fn copy_in(&mut self, req: ReqId, at: usize, bytes: &mut [u8]);
    /// The page of guest memory that bytes `at .. at + 4096` of the request's data are, if they are one whole page of
    /// the memory that the guest has now; numbered from 0 without gaps. `None` for clients without such memory.
    fn guest_page(&mut self, _req: ReqId, _at: usize) -> Option<u32> {
        None
    }
    /// The same for the pages of guest memory from byte `at` on, one after another: fills `pages`, and says how many of
    /// the first ones there are.
    fn guest_pages(&mut self, req: ReqId, at: usize, pages: &mut [u32]) -> usize {
        let mut known = 0;
        for page in pages {
            let Some(number) = self.guest_page(req, at + known * FRAME_BYTES) else { break };
            *page = number;
            known += 1;
        }
        known
    }
    /// Copies a page of the memory of the disk's guest. False if there is no such page (any more): then `to` holds
    /// anything.
    fn copy_guest_page(&mut self, _disk: DiskId, _page: u32, _to: &mut [u8; FRAME_BYTES]) -> bool {
        false
    }
    /// `bytes`, copied from guest memory and verified by their hash, are about to be cached as what the disk holds from
    /// byte `at` on, of which nothing is under way. An implementor that can compare them with the disk does, and
    /// returns false if they are wrong: then they are dropped.
    fn captured(&mut self, _disk: DiskId, _at: u64, _bytes: &[u8; FRAME_BYTES]) -> bool {
        true
    }
    /// Starts an I/O operation. It comes back later, exactly once, as [`Event::IoDone`].
    fn submit(&mut self, io: Io);
    /// How the blocks of a read were found; comes before its reply. Not for a read that found all of its blocks cached
    /// and was answered in one event: then there is nothing to say, and nothing to pay for.
    fn found(&mut self, _req: ReqId, _found: Found) {}
    /// The request has been served in part, because its event has copied as much as one event should
    /// ([`CoreOptions::step_bytes`](crate::CoreOptions::step_bytes)). For each call of this, the implementor must send
    /// [`Event::Resume`] exactly once, with which the request goes on.
    fn paused(&mut self, req: ReqId, _paused: Paused) {
        panic!("{req:?} was paused by a core whose driver resumes nothing: its `step_bytes` must be u64::MAX");
    }
    /// The event has dealt with a part of a finished operation, because that is as much as one event should do. `done`
    /// is the rest of it: the implementor must send it as [`Event::IoDone`] exactly once. What comes between sees
    /// blocks as they are while a write is under way.
    fn unfinished(&mut self, done: IoDone) {
        panic!(
            "{:?} was left in part by a core whose driver goes on with nothing: `step_bytes` must be u64::MAX",
            done.op
        );
    }
    /// The answer to a [`Op::Status`] request; comes before its reply.
    fn extents(&mut self, req: ReqId, extents: &[Extent]);
    /// The request is finished; exactly once for each request.
    fn reply(&mut self, req: ReqId, result: Result<(), IoError>);
    /// Whether the answer just given to `req`, [`IoError::Lost`], reached nobody, and its peer will ask again: what it
    /// was to tell of has still to be told.
    fn unheard(&mut self, _req: ReqId) -> bool {
        false
    }
}
