//! Disks whose blocks pages of the guest never hold (encrypted or compressed file systems), and that gain nothing by
//! the table of its pages: they give up their part in it, and look at a few pages again now and then (decision 0186).
//!
//! Owns when that is. Never finds out what pages hold: the engine does. Invariant: a disk that has given up is served
//! as an inclusive one, takes no memory for a table, and no page is copied for it; but pages that it uses count as
//! reused for the other disks of the guest.

use crate::disk::{Cx, Disk};
use crate::fault_injection::FaultInjection;
use crate::limits::{ASK_AGAIN_LIVES, ASK_AGAIN_MISSES};
use crate::store::ram::Store;
use crate::types::{Effects, ExclusiveState, Request};
use undercroft_engine::ExclusiveStats;
use undercroft_engine::residency::Class;

/// That a disk has given up.
#[derive(Debug)]
pub(super) struct GaveUp {
    /// What was done until then.
    stats: ExclusiveStats,
    /// Misses of the disk at that time, and those until it is asked again.
    at: u64,
    wait: u64,
}

impl GaveUp {
    /// What was done until then.
    pub(super) fn stats(&self) -> &ExclusiveStats {
        &self.stats
    }
}

impl<P: FaultInjection> Disk<P> {
    /// Whether the disk is to be a member of its guest's table: where pages never hold what it has, only now and then.
    pub(crate) fn wants_table(&self) -> bool {
        let asked = |gave_up: &GaveUp| self.stats.miss_blocks.saturating_sub(gave_up.at) >= gave_up.wait;
        match (&self.side.exclusive, &self.side.opaque) {
            (Some(e), _) => !e.needs_no_table(),
            (None, Some(gave_up)) => asked(gave_up),
            (None, None) => true,
        }
    }

    /// The disk gives up its part in the table, of a guest of `pages` pages, because that brings it nothing.
    pub(crate) fn give_up_table(&mut self, pages: u32, arena: &mut Store) {
        let Some((e, table)) = self.side.both(arena) else { return };
        let stats = ExclusiveStats { pages_held: 0, pages_held_by_all: 0, ..e.stats(table) };
        let first = ASK_AGAIN_MISSES.max(ASK_AGAIN_LIVES * u64::from(pages));
        let wait = self.side.opaque.as_ref().map_or(first, |before| before.wait.saturating_mul(2));
        self.leave_table(None, arena);
        self.side.opaque = Some(Box::new(GaveUp { stats, at: self.stats.miss_blocks, wait }));
        self.account_overhead(arena);
    }

    /// The guest begins anew, and another system may run in it: whether its pages hold what the disk has is to be found
    /// out again.
    pub(crate) fn begin_session(&mut self, arena: &mut Store) {
        self.side.opaque = None;
        let Self { side, residents, .. } = self;
        if let Some((e, table)) = side.both(arena) {
            e.begin_anew(table, residents.index_mut());
        }
    }

    /// Whether the disk has given up its part in the table of its guest's pages, which may still serve other disks.
    #[inline]
    pub(in crate::disk) fn gave_up(&self) -> bool {
        self.side.opaque.is_some()
    }

    /// `block` of a disk that has given up its part in the table is about to be copied into a page of the guest, or has
    /// been copied out of one: whatever the page held before has left the guest.
    #[cold]
    pub(in crate::disk) fn passes<E: Effects>(&mut self, req: &Request, block: u64, class: Class, cx: &mut Cx<'_, E>) {
        let guest = self.side.guest;
        if self.side.exclusive.is_some() || cx.arena.guests.table(guest).is_none() {
            return;
        }
        let Some(page) = self.page_in(req, block, cx) else { return };
        let left = cx.arena.guests.table_mut(guest).and_then(|table| table.reused(page));
        if let Some(left) = left {
            self.other_left(page, left, class, cx);
        }
    }
}

/// The state of a disk whose blocks pages of the guest never hold. `ordered`: what the guest has is the first to go.
pub(super) fn opaque(stats: &ExclusiveStats, ordered: bool) -> ExclusiveState {
    let tried = stats.captures_tried + stats.early_tried;
    ExclusiveState::Opaque { tried, held: stats.captures + stats.early, ordered }
}
