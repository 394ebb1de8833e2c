//! Fetching a disk with the hint `willneed` before its blocks are asked for, as POSIX_FADV_WILLNEED has it.
//!
//! Owns the position that it has got to. Never evicts a block, and never takes what requests need: it uses frames of
//! read-ahead, and a few operations at a time. Invariant: a fetched block is read and published like one that is read
//! ahead, so a write to it makes it stale in the same way.

use crate::disk::{Cx, Disk};
use crate::fault_injection::FaultInjection;
use crate::limits::IO_BLOCKS_MAX;
use crate::types::Effects;
use undercroft_engine::shares::Hint;
use undercroft_engine::{Access, Outcome};

/// Frames that are being fetched at most: two operations of the largest size.
const UNDER_WAY_MAX: usize = 2 * IO_BLOCKS_MAX;

/// Blocks looked at in a step at most, most of which may be there already.
const LOOK_MAX: u64 = 4096;

/// The first block that has not been looked at; behind the last one: nothing is left to fetch.
#[derive(Clone, Copy, Debug)]
pub(in crate::disk) struct Fetch(u64);

impl Fetch {
    /// Nothing is to be fetched.
    pub(in crate::disk) const NONE: Self = Self(u64::MAX);

    /// All that is wanted under `hint`, from the first block on.
    pub(in crate::disk) fn under(hint: Hint) -> Self {
        if hint == Hint::WillNeed { Self(0) } else { Self::NONE }
    }
}

impl<P: FaultInjection> Disk<P> {
    /// Fetches on, as far as slots are free and not much is under way. Costs nothing where nothing is wanted. A disk
    /// whose blocks are to begin elsewhere comes to rest first, and fetches all of it again then.
    #[inline]
    pub(crate) fn fetch_on<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        if self.fetch.0 != Fetch::NONE.0
            && !self.settings.is_closing()
            && !self.is_resizing()
            && !self.settings.shifts()
        {
            self.fetch_step(cx);
        }
    }

    #[cold]
    fn fetch_step<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        let end = self.settings.blocks();
        let stop = end.min(self.fetch.0.saturating_add(LOOK_MAX));
        while self.fetch.0 < stop {
            let under_way = self.operations.ahead();
            let left = self.ahead_room(cx.arena);
            let room = left.min(UNDER_WAY_MAX.saturating_sub(under_way)).min(IO_BLOCKS_MAX);
            // Whole operations, unless there never is so much.
            if room == 0
                || room < IO_BLOCKS_MAX.min(self.ahead_guaranteed())
                || self.residents.index().len() >= self.residents.index().limit()
            {
                return;
            }
            let first = self.fetch.0;
            let mut count = 0;
            while count < room as u64 && first + count < stop && self.take_free_slot(first + count, cx) {
                count += 1;
            }
            self.fetch.0 = first + count.max(1);
            if count > 0 {
                self.start_read(first, count, None, cx);
                self.note_loan(cx.arena);
            }
        }
        if self.fetch.0 >= end {
            self.fetch = Fetch::NONE;
        }
    }

    /// Gives a block that is worth fetching a slot that is free.
    fn take_free_slot<E: Effects>(&mut self, block: u64, cx: &mut Cx<'_, E>) -> bool {
        self.may_read_ahead(block, cx)
            && self.residents.index().len() < self.residents.index().limit()
            && matches!(self.residents.index_mut().access(block, Access::Read, |_| false), Outcome::Fill { .. })
    }
}
