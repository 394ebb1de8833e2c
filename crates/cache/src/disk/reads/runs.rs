//! Cached blocks beside each other that a read gives to a guest whose memory is seen: looked up, noted and copied as
//! one run.
//!
//! Owns the way of a run through the disk. Never serves a block otherwise than block by block would: the index and what
//! is known of the guest see the same calls in the same order (`engine/src/guest/exclusive/run.rs`). Invariants:
//! nothing gets a slot or loses one between the look at a run and its last copy; what a page held is copied aside
//! before any page of the run is written to; no run is served past a rule that is to hear of its blocks.

use crate::content::ContentHash;
use crate::disk::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::{Effects, Request};
use undercroft_engine::residency::Class;
use undercroft_engine::{Departure, RUN_MAX, Run};

/// Blocks that a request must have left for a run: of fewer, each by itself is as fast.
pub(super) const RUN_MIN: usize = 4;

impl<P: FaultInjection> Disk<P> {
    /// Whether reads of several blocks are served by runs. Not where a rule that locks blocks is to hear of each: it
    /// does where the cache keeps what the guest holds as well, which has a table all the same.
    #[inline]
    pub(super) fn has_runs(&self, arena: &Store) -> bool {
        !self.settings.first_to_go() && self.side.has_table(arena) && !self.residents.is_heard()
    }

    /// Serves at most `most` whole blocks of a read from byte `at` of the disk on, as far as they are in slots and
    /// their pages are known; returns how many.
    #[inline]
    pub(super) fn read_run<E: Effects>(&mut self, req: &Request, at: u64, most: u64, cx: &mut Cx<'_, E>) -> u64 {
        let residents = &self.residents;
        let most = most.min(RUN_MAX as u64) as usize;
        let mut run = Run::of(residents.index(), at / B, most, |slot| residents.page(slot).is_some());
        let skip = (at - req.offset) as usize;
        run.cut_to_pages(|pages| {
            let known = cx.fx.guest_pages(req.id, skip, pages);
            if self.faults.has(Bug::RunPagesAssumed) && known > 0 {
                (1..known).for_each(|n| pages[n] = pages[0] + n as u32);
            }
            known
        });
        self.note_run(&mut run, cx);
        let mut ahead = run.blocks().skip(1);
        for (n, (block, slot)) in run.blocks().enumerate() {
            if let Some((_, next)) = ahead.next()
                && let Some(frame) = self.residents.page(next)
            {
                frame.prefetch();
            }
            debug_assert!(self.residents.index().holds(slot, block), "a slot was given away before it was served");
            self.residents.is_read(slot);
            let Some(frame) = self.residents.page(slot) else { unreachable!("just looked at") };
            cx.fx.copy_out(req.id, skip + n * B as usize, frame.bytes());
        }
        run.len() as u64
    }

    /// What the pages of a run held has left the guest, and its blocks are there from now on.
    #[inline]
    fn note_run<E: Effects>(&mut self, run: &mut Run, cx: &mut Cx<'_, E>) {
        let mut looked = false;
        loop {
            let Self { side, residents, measuring, .. } = self;
            let (index, hashes) = residents.index_and_hashes();
            let Some((exclusive, table)) = side.both(cx.arena) else { return };
            if !looked {
                exclusive.look_behind(table, index, run);
                looked = true;
            }
            let tag =
                |slot: u32| ContentHash::new(hashes.get(slot as usize).copied().unwrap_or(0)).map(ContentHash::get);
            let departed = exclusive.arrive(table, index, run, tag, |index, block, slot, left| {
                if let Some(left) = left {
                    measuring.left(left);
                }
                measuring.hit(block, true, || index.part_of_slot(slot));
            });
            match departed {
                Some((page, Departure::Capture(what))) => self.copy_at_reuse(page, what, cx),
                Some((page, Departure::Other(what))) => self.other_left(page, what, Class::Read, cx),
                _ => return,
            }
        }
    }
}
