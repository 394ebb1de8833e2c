//! A region at rest, and how another process goes on with it.
//!
//! Owns what is told of a region: all that decides what is found, and what the device says of it. Never touches the
//! device: what it says is as true after the change of process as before. What admission has measured is not
//! told; it is learned again. Invariants: at rest nothing is under way, nothing is asked for and nothing is admitted;
//! what is taken over is what was told, or nothing.

use super::super::bytes::{Reader, Writer};
use super::super::handover::{read_stamp, write_stamp};
use super::*;
use crate::fault_injection::Bug;
use crate::limits::SSD_MISMATCHES_MAX;

/// What stands for the reasons why a device is out of service, from 1 on.
const REASONS: [OutOfService; 5] =
    [OutOfService::Write, OutOfService::Flush, OutOfService::Mismatches, OutOfService::Stalled, OutOfService::Operator];

/// No device writes so many bytes.
const BYTES_END: u64 = 1 << 60;

impl<F: FaultInjection> Region<F> {
    /// What is under way is to end, and nothing else to begin. What is being written down of disks without changes is
    /// given up: it is asked for again.
    pub(in super::super) fn rest(&mut self) {
        self.quiet.clear();
        if let Some(number) = self.writing.as_ref().map(Writing::number) {
            self.abort_quiet(number);
        }
        self.decide_all_parked();
        self.stop = Some(Stop::Resting);
    }

    /// Completes all segments, once no block is written again.
    pub(super) fn seal_for_rest(&mut self) {
        if self.cleaning.is_none() {
            self.seal_all();
        }
    }

    /// Whether it has come to that.
    pub(in super::super) fn is_at_rest(&self) -> bool {
        let is_written = self.open.is_empty() && self.runs.is_empty() && self.cleaning.is_none();
        let is_free = self.has_no_links_to_nothing();
        let is_told = self.tables.is_idle() && !self.tables.is_wanted || self.service.is_some();
        let is_resting = self.stop == Some(Stop::Resting) && self.jobs.is_empty();
        let is_changing = |o: &Owner| !o.changing.is_empty() || !o.dropping.is_empty();
        is_resting && is_written && is_free && is_told && !self.owners.iter().flatten().any(is_changing)
    }

    /// The end of the rest.
    pub(in super::super) fn go_on(&mut self) {
        self.stop = self.stop.take().filter(|stop| *stop != Stop::Resting);
    }

    /// All of it, at rest.
    pub(in super::super) fn hand_over(&self, to: &mut Writer) {
        let Layout { segment_blocks, summary_blocks, segments } = self.layout;
        to.u32(segment_blocks).u32(summary_blocks).u32(segments).bytes(&self.store.0).bytes(&self.boot.0);
        let reason = |why| REASONS.iter().position(|r| *r == why).map_or(0, |n| n as u8 + 1);
        to.u8(self.service.map_or(0, reason)).u8(self.given_up_is_recorded.into()).u8(self.given_up_is_told.into());
        let Written { admitted, cleaning, pins, summaries, tables } = self.written;
        [admitted, cleaning, pins, summaries, tables].iter().for_each(|n| _ = to.u64(*n));
        to.u64(self.mismatches).u64(self.now).u64(self.quiet_budget.left() as u64);
        let left = self.admitting.budget_left();
        to.u8(left.is_some().into()).u64(left.unwrap_or(0) as u64);
        to.u64(self.next_generation);
        self.tables.hand_over(to);
        self.segments.write(to);
        for owner in &self.owners {
            to.u8(owner.is_some().into());
            let Some(owner) = owner else { continue };
            let stamp = match owner.state {
                State::Clean(stamp) => Some(stamp),
                State::Dirty => None,
            };
            to.bytes(&owner.identity.0).u64(owner.blocks).u64(owner.generation).u8(owner.is_attached.into());
            to.u64(owner.stats.share_blocks);
            write_stamp(to, stamp);
        }
        self.index.write(to);
    }

    /// Whether what follows is of a region of this layout.
    pub(in super::super) fn is_of(from: &Reader<'_>, layout: Layout) -> bool {
        let mut from = Reader(from.0);
        let Layout { segment_blocks, summary_blocks, segments } = layout;
        [segment_blocks, summary_blocks, segments].iter().all(|n| from.u32() == Some(*n))
    }

    /// Whether who is known as this has this number, and is attached.
    pub(in super::super) fn has_owner(&self, number: u16, known: &Known) -> bool {
        let is_it = |o: &Owner| o.is_attached && (o.identity, o.blocks) == (known.identity, known.blocks);
        self.owners.get(usize::from(number)).is_some_and(|o| o.as_ref().is_some_and(is_it))
    }

    /// What another process had, at rest; `None` if it is not that of a region of this layout. The device's number is
    /// set by who has all of them.
    pub(in super::super) fn take_over(from: &mut Reader<'_>, layout: Layout, faults: F) -> Option<Self> {
        let _layout: [u8; 12] = from.array()?;
        let (store, boot) = (StoreId(from.array()?), BootId(from.array()?));
        let mut region = Self::empty(faults, store, boot, layout).ok()?;
        region.stop = Some(Stop::Resting);
        region.service = match usize::from(from.u8()?) {
            0 => None,
            n => Some(*REASONS.get(n - 1)?),
        };
        (region.given_up_is_recorded, region.given_up_is_told) = (from.flag()?, from.flag()?);
        let (admitted, cleaning, pins) = (from.u64()?, from.u64()?, from.u64()?);
        let (summaries, tables) = (from.u64()?, from.u64()?);
        [admitted, cleaning, summaries, tables].iter().all(|n| *n < BYTES_END).then_some(())?;
        (pins <= cleaning).then_some(())?;
        region.written = Written { admitted, cleaning, pins, summaries, tables };
        (region.mismatches, region.now) = (from.u64()?, from.u64()?);
        // As many as that take a device out of service.
        let most = if region.service.is_some() { BYTES_END } else { SSD_MISMATCHES_MAX };
        (region.mismatches < most).then_some(())?;
        region.quiet_budget.set_left(from.u64()? as i64);
        let (has_budget, left) = (from.flag()?, from.u64()? as i64);
        region.admitting.go_on_from(region.now, has_budget.then_some(left));
        region.next_generation = from.number()?;
        region.tables = Tables::take_over(from)?;
        if region.faults.has(Bug::SsdCleanNotTold) {
            region.tables.are(region.tables.sequence, Vec::new());
        }
        region.segments.read(from, !region.faults.has(Bug::SsdLostNotTold))?;
        for number in 0..OWNERS_MAX as u16 {
            if from.flag()? {
                region.take_owner(from, number)?;
            }
            let has_segments = region.segments.of(number) > 0;
            (!has_segments || region.owners[usize::from(number)].is_some()).then_some(())?;
        }
        region.take_index(from)?;
        Some(region)
    }

    fn take_owner(&mut self, from: &mut Reader<'_>, number: u16) -> Option<()> {
        let identity = Identity(from.array()?);
        let (blocks, generation, is_attached) = (from.u64()?, from.number()?, from.flag()?);
        let share = from.u64()?;
        let stamp = read_stamp(from)?;
        let state = stamp.map_or(State::Dirty, State::Clean);
        let owner = Owner::new(&self.sums, identity, blocks, generation, state);
        self.owners[usize::from(number)] = Some(Owner { is_attached, ..owner });
        if is_attached {
            self.admitting.attach(number);
            self.set_share(number, share);
        }
        Some(())
    }

    fn take_index(&mut self, from: &mut Reader<'_>) -> Option<()> {
        let Self { index, segments, owners, layout, .. } = self;
        let all = layout.segments * layout.segment_blocks;
        let is_owner = |n: u16| owners.get(usize::from(n)).is_some_and(Option::is_some);
        let is_right = |item: Item| {
            let Item { slot, link_of } = item;
            let is_block = slot < all && slot % layout.segment_blocks >= layout.summary_blocks;
            is_block && is_owner(segments.owner_of(slot)) && link_of.is_none_or(is_owner)
        };
        index.read(from, is_right)?;
        for item in index.items() {
            let number = item.owner(segments);
            owners[usize::from(number)].iter_mut().for_each(|owner| owner.entries += 1);
            if item.link_of.is_some() {
                segments.get_mut(segments.number_of(item.slot)).is_linked = true;
            }
        }
        Some(())
    }
}
