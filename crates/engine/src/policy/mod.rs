//! The replacement policies, and what an index asks of one.
//!
//! Owns the contract, the order in which one access asks a policy, and the tables of policies: `served` are those that
//! a disk may have, `studied` those of simulators alone. Each policy owns its queues and ghosts; what it keeps per slot
//! stands in flat arrays that all policies of one index share (`places`). Never knows where a block is (the index does)
//! nor what is in it. Invariant: the slots in the queues of an index's policies are exactly its occupied slots, each in
//! one.

mod access;
mod any;
mod batch;
mod kinds;
#[cfg(test)]
pub(crate) mod model;
mod search;
pub(crate) mod served;
mod set;
mod small_main;
pub(crate) mod studied;

use crate::structures::array::Release;
use crate::structures::places::Places;
use crate::structures::slots::{ChainedSlots, Slot, Slots};

pub use access::Outcome;
pub(crate) use access::miss;
pub(crate) use any::AnyPolicy;
pub use any::AnyPolicyKind;
pub(crate) use search::{Search, oldest};
pub use served::PolicyKind;
pub(crate) use set::Makes;
pub use set::PolicySet;
pub use studied::StudiedPolicyKind;

/// What a policy still knows of a block that is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing.
    Never,
    /// It was evicted from among those accessed once of late.
    Once,
    /// It was evicted from among those accessed more than once.
    Often,
}

/// What an index asks of its policy. A slot is named by its number; the index passes the block where the policy may
/// need it. A miss is, in this order: `miss`, then `victim` if no slot is free, then `insert`; after a `victim` that
/// finds none the miss ends there.
pub(crate) trait Policy {
    /// One access to `block` among slots whose number is not changing, as `access` says. What holds one of several
    /// policies overrides it: it then asks once which one that is, and the whole access is compiled for each.
    #[inline]
    fn access(
        &mut self,
        slots: &mut Slots,
        places: &mut Places,
        block: u64,
        hash: u64,
        limit: u32,
        may_evict: impl Fn(Slot) -> bool,
    ) -> Outcome
    where
        Self: Sized,
    {
        access::access(slots, places, self, block, hash, limit, may_evict)
    }

    /// A hit on an occupied slot.
    fn touch(&mut self, places: &mut Places, slot: Slot, block: u64);

    /// A miss: consults (and adapts to) the ghosts, if the policy has any.
    #[inline]
    fn miss(&mut self, _block: u64) -> Seen {
        Seen::Never
    }

    /// Chooses an occupied slot to free and takes it out of the queues; `None` if the search came to its limit.
    /// `keys` are the blocks by slot; `seen` is what `miss` said, `Never` if the eviction is not for a miss.
    ///
    /// Slots that `may_evict` refuses keep their place. While it refuses none, the choice is the textbook's.
    fn victim(
        &mut self,
        places: &mut Places,
        keys: &[u64],
        may_evict: impl Fn(Slot) -> bool,
        seen: Seen,
    ) -> Option<Slot>;

    /// A slot (in no queue before) now holds `block`, which was absent.
    fn insert(&mut self, places: &mut Places, slot: Slot, block: u64, seen: Seen);

    /// An occupied slot is freed, not by this policy's choice; its block is not remembered.
    fn remove(&mut self, places: &mut Places, slot: Slot);

    /// Forgets the ghost of an absent block, if the policy has any.
    #[inline]
    fn forget(&mut self, _block: u64) {}

    /// The block in `from` is in `to` (free before) now.
    fn moved(&mut self, places: &mut Places, from: Slot, to: Slot);

    /// The policy is to have up to `capacity` slots now; `keys` are the blocks by slot. One that a disk may have leaves
    /// what takes long to [`Policy::step`], and can do without it until then.
    fn resize(&mut self, _places: &mut Places, _capacity: u32, _keys: &[u64]) {}

    /// Goes on with what `resize` and `limit` have left to do, for at most `left` units, which it counts down: a unit
    /// is a ghost or about as much work. Whether it is done.
    fn step(&mut self, _places: &mut Places, _left: &mut u32) -> bool {
        true
    }

    /// There may be `most` slots in time: tables can be made so that they need not be copied to grow.
    fn reserve(&mut self, _most: u32) {}

    /// Gives back memory that is not needed any more, at most so many bytes; those are counted off.
    fn release(&mut self, _by: &mut impl Release, _bytes: &mut usize) {}

    /// At most `limit` slots are to be occupied from now on, fewer than there are: sizes of queues follow, tables and
    /// ghosts stay. More may be occupied for a while.
    fn limit(&mut self, _places: &mut Places, _limit: u32) {}

    /// Reads of `blocks` one after another, as `batch` says; returns the misses.
    #[inline]
    fn replay(&mut self, slots: &mut ChainedSlots, places: &mut Places, blocks: &[u64]) -> u64
    where
        Self: Sized,
    {
        batch::replay(slots, places, self, blocks)
    }

    /// Blocks of these hashes come next, and these slots (or `NIL`) are likely to be touched: reads what that needs, to
    /// no other effect.
    #[inline]
    fn ahead(&self, _places: &Places, _slots: &[Slot], _hashes: &[u64]) {}

    /// Calls `visit` with every slot in the queues, in the order in which they would be evicted if nothing were
    /// accessed any more, as far as the policy can tell.
    fn coldest_first(&self, places: &Places, visit: &mut dyn FnMut(Slot));

    /// Bytes of memory held besides the places.
    fn memory_bytes(&self) -> usize;

    /// Panics if an invariant is broken; `occupied` is the number of slots that should be in the queues.
    fn check(&self, places: &Places, occupied: u32);
}
