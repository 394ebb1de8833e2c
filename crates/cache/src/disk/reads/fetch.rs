//! Fetching blocks before they are asked for: all of a disk with the hint `willneed`, as POSIX_FADV_WILLNEED has it, or
//! those that were hot where its guest came from.
//!
//! Owns the position that it has got to. Never evicts a block, and never takes what requests need: it uses frames of
//! read-ahead, and a few operations at a time. Invariant: a fetched block is read and published like one that is read
//! ahead, so a write to it makes it stale in the same way.

use crate::disk::{Cx, Disk};
use crate::fault_injection::FaultInjection;
use crate::limits::{IO_BLOCKS_MAX, WANTED_RANGES_MAX};
use crate::types::Effects;
use std::collections::VecDeque;
use undercroft_engine::shares::Hint;
use undercroft_engine::{Access, Outcome};

/// Frames that are being fetched at most: two operations of the largest size.
const UNDER_WAY_MAX: usize = 2 * IO_BLOCKS_MAX;

/// Ranges of fewer blocks than this are small, and are fetched while no more than so many blocks are under way.
const SMALL_BLOCKS: u64 = 16;
const SMALL_UNDER_WAY_MAX: usize = 8;

/// Blocks looked at in a step at most, most of which may be there already.
const LOOK_MAX: u64 = 4096;

/// What is still to be fetched; nothing, as a rule.
#[derive(Clone, Debug, Default)]
pub(in crate::disk) struct Fetch(Option<Box<Wanted>>);

#[derive(Clone, Debug, Default)]
struct Wanted {
    /// All blocks from this one on, unless it is behind the last one.
    next: Option<u64>,
    /// Before all these: the first block of each range, and the first one behind it.
    ranges: VecDeque<(u64, u64)>,
}

impl Fetch {
    /// All that is wanted under `hint`, from the first block on.
    pub(in crate::disk) fn under(hint: Hint) -> Self {
        let all = || Box::new(Wanted { next: Some(0), ranges: VecDeque::new() });
        Self((hint == Hint::WillNeed).then(all))
    }

    fn ranges(&self) -> usize {
        self.0.as_ref().map_or(0, |wanted| wanted.ranges.len())
    }

    /// What comes next of a disk of `blocks` blocks.
    fn span(&mut self, blocks: u64) -> Option<(u64, u64)> {
        let wanted = self.0.as_mut()?;
        while let Some(&(first, end)) = wanted.ranges.front() {
            if first < end.min(blocks) {
                return Some((first, end.min(blocks)));
            }
            wanted.ranges.pop_front();
        }
        let next = wanted.next.filter(|next| *next < blocks);
        if next.is_none() {
            self.0 = None;
        }
        next.map(|next| (next, blocks))
    }

    /// So many blocks of that have been looked at.
    fn advance(&mut self, count: u64) {
        let Some(wanted) = &mut self.0 else { return };
        match (wanted.ranges.front_mut(), &mut wanted.next) {
            (Some((first, _)), _) => *first += count,
            (None, Some(next)) => *next += count,
            (None, None) => {}
        }
    }
}

impl<P: FaultInjection> Disk<P> {
    /// Fetches these ranges of blocks (first, count) as well, in their order, as far as there is room for them: in a
    /// list of [`WANTED_RANGES_MAX`], and, once it is their turn, in free slots of the cache. Returns how many have a
    /// place on the list.
    pub(crate) fn want(&mut self, ranges: &[(u64, u64)]) -> usize {
        let taken = ranges.len().min(WANTED_RANGES_MAX.saturating_sub(self.fetch.ranges()));
        let ends = ranges[..taken].iter().map(|&(first, count)| (first, first.saturating_add(count)));
        if taken > 0 {
            self.fetch.0.get_or_insert_default().ranges.extend(ends);
        }
        taken
    }

    /// Fetches nothing any more, until it is told to.
    pub(crate) fn want_nothing(&mut self) {
        self.fetch = Fetch::default();
    }

    /// Ranges on that list.
    pub(crate) fn wanted(&self) -> usize {
        self.fetch.ranges()
    }

    /// Fetches on, as far as slots are free and not much is under way. Costs nothing where nothing is wanted. A disk
    /// whose blocks are to begin elsewhere comes to rest first, and fetches all of it again then. While it is not known
    /// yet which frames another process has left are free, none can be had.
    #[inline]
    pub(crate) fn fetch_on<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        if self.fetch.0.is_some() && !self.settings.is_closing() && !self.is_resizing() && !self.settings.shifts() {
            self.fetch_step(cx);
        }
    }

    #[cold]
    fn fetch_step<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        if cx.arena.arena().is_claimed_from() {
            return;
        }
        let mut looked = 0;
        while looked < LOOK_MAX {
            let Some((first, end)) = self.fetch.span(self.settings.blocks()) else { return };
            let under_way = self.operations.ahead();
            let left = self.ahead_room(cx.arena);
            let room = left.min(UNDER_WAY_MAX.saturating_sub(under_way)).min(IO_BLOCKS_MAX);
            if self.residents.index().len() >= self.residents.index().limit() {
                // Nothing is evicted for it. What was hot elsewhere may not wait until there is room.
                if let Some(wanted) = &mut self.fetch.0 {
                    wanted.ranges.clear();
                }
                return;
            }
            // Whole operations, unless there never is so much.
            if room == 0 || room < IO_BLOCKS_MAX.min(self.ahead_guaranteed()) {
                return;
            }
            // What is asked for one by one is a few operations, too.
            if end - first < SMALL_BLOCKS && under_way >= SMALL_UNDER_WAY_MAX {
                return;
            }
            let most = (room as u64).min(end - first).min(LOOK_MAX - looked);
            let mut count = 0;
            while count < most && self.take_free_slot(first + count, cx) {
                count += 1;
            }
            self.fetch.advance(count.max(1));
            looked += count.max(1);
            if count > 0 {
                self.read_each(first, count, cx);
                self.note_loan(cx.arena);
            }
        }
    }

    /// Gives a block that is worth fetching a slot that is free.
    fn take_free_slot<E: Effects>(&mut self, block: u64, cx: &mut Cx<'_, E>) -> bool {
        self.may_read_ahead(block, cx)
            && self.residents.index().len() < self.residents.index().limit()
            && matches!(self.residents.index_mut().access(block, Access::Read, |_| false), Outcome::Fill { .. })
    }
}
