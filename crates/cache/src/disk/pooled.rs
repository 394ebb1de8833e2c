//! A disk that keeps its blocks together with others: a pool has one capacity, one index and one order of eviction.
//!
//! Owns how the index, the pages and the capacity of a pool pass from one of its disks to another, and how a disk joins
//! and leaves. Never sees a disk outside of its pool. Invariants: of the disks of a pool, one holds the pool's index,
//! pages, capacity and meter, all others hold none of their own; every event of a disk finds them with it; each page is
//! seated under the disk whose block it is.

use super::capacity::Capacity;
use super::measuring::Measuring;
use super::members::{Members, origin};
use super::residents::{Moving, Residents};
use super::{Disk, slots_max};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::{CoreOptions, DiskId};
use std::mem::swap;
use undercroft_engine::{PolicyKind, origin_of};

/// Where a disk stands in its pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The pool's number in its core, + 1; 0 without a pool.
    pool: u16,
    /// The disk's number in its pool.
    ordinal: u16,
    /// The pool's index is with another disk at present.
    away: bool,
}

impl<P: FaultInjection> Disk<P> {
    /// The number of its pool in the core.
    pub(crate) fn pool(&self) -> Option<usize> {
        usize::from(self.place.pool).checked_sub(1)
    }

    /// Whether it is of a pool.
    #[inline]
    pub(super) fn is_pooled(&self) -> bool {
        self.place.pool != 0
    }

    /// Its number in its pool.
    pub(super) fn ordinal(&self) -> Option<u16> {
        self.is_pooled().then_some(self.place.ordinal)
    }

    /// Whether the index that its blocks stand in is with another disk of its pool.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.place.away
    }

    /// The key of a block in the index.
    #[inline]
    pub(super) fn key(&self, block: u64) -> u64 {
        block | origin(self.place.ordinal)
    }

    /// The block with this key of the index, if it is this disk's.
    pub(super) fn block(&self, key: u64) -> Option<u64> {
        (!self.is_pooled() || origin_of(key) == origin(self.place.ordinal)).then(|| key ^ origin(self.place.ordinal))
    }

    /// Whose block a key of the index is.
    #[inline]
    pub(super) fn owner(&self, key: u64) -> DiskId {
        match self.residents.members() {
            Some(members) if !self.faults.has(Bug::PoolCreditsPresent) => members.owner(key),
            _ => self.settings.id(),
        }
    }

    /// Its own pages.
    pub(super) fn own_count(&self) -> u32 {
        self.residents.members().map_or(self.residents.count(), |m| m.counts(self.place.ordinal).0)
    }

    /// Blocks of the capacity that are its own to use for tables: in a pool, an equal part.
    pub(super) fn own_blocks(&self) -> u64 {
        u64::from(self.capacity.blocks()) / self.residents.members().map_or(1, |m| m.len().max(1) as u64)
    }

    /// Whether it, or a disk of its pool, may hold frames in common with other disks.
    #[inline]
    pub(super) fn holds_in_common(&self) -> bool {
        self.sharing.is_on() || self.residents.members().is_some_and(Members::deduplicate)
    }

    /// The part of `blocks` that is its own by the pages it has in its pool.
    pub(super) fn own_part(&self, blocks: u32) -> u32 {
        if !self.is_pooled() {
            return blocks;
        }
        let all = u64::from(self.residents.count().max(1));
        (u64::from(blocks) * u64::from(self.own_count()) / all) as u32
    }

    /// What the disk is charged with the others of its pool.
    pub(super) fn charge(&self, arena: &Store) -> u64 {
        match self.residents.members() {
            Some(members) => members.ids().map(|id| arena.charge(id)).sum(),
            None => arena.charge(self.settings.id()),
        }
    }

    /// Frames that the disk pays for, with the others of its pool if it has the index; 0 without that.
    pub(crate) fn charged(&self, arena: &Store) -> u64 {
        match self.holds_in_common() {
            // Its own part is in what the one that has the index is charged.
            _ if self.is_away() => 0,
            true => self.charge(arena),
            false => u64::from(self.residents.count()),
        }
    }

    /// Pages and evictions of disk `of` in the pool whose index is with this disk.
    pub(crate) fn counts_of(&self, of: &Self) -> (u32, u64) {
        self.residents.members().map_or((0, 0), |m| m.counts(of.place.ordinal))
    }

    /// The page of `block` of disk `of`, if it is cached.
    #[inline]
    pub(crate) fn cached_of(&self, of: &Self, block: u64) -> Option<&undercroft_host::Held> {
        self.residents.cached_key(of.key(block))
    }

    /// Takes the pool's index and all that belongs to it over from another disk of the pool.
    pub(crate) fn take_over(&mut self, from: &mut Self) {
        debug_assert!(self.place.away && !from.place.away && self.place.pool == from.place.pool);
        swap(&mut self.residents, &mut from.residents);
        swap(&mut self.capacity, &mut from.capacity);
        swap(&mut self.measuring, &mut from.measuring);
        (self.place.away, from.place.away) = (false, true);
        if !self.faults.has(Bug::PoolNotTold) {
            self.be_present();
        }
    }

    fn be_present(&mut self) {
        self.residents.set_present(self.place.ordinal);
        self.residents.note_for(self.locking.is_online());
        self.measuring.set_origin(origin(self.place.ordinal));
    }

    /// The disk becomes a pool of one, which others can join.
    pub(crate) fn begin_pool(&mut self, pool: usize) {
        let mut members = Members::default();
        let ordinal = members.enter(self.settings.id(), self.residents.count(), self.sharing.is_on());
        members.note_locks(ordinal, self.locking.is_on(), self.locking.pinned_blocks());
        self.place = Place { pool: pool as u16 + 1, ordinal, away: false };
        self.residents.begin_members(members);
    }

    /// The slots of its index are to be as many as are wanted, at once.
    fn finish_tables(&mut self, arena: &mut Store) {
        let mut steps = 0;
        while self.is_resizing() && steps < FINISH_STEPS_MAX {
            let before = (self.len(), self.slots(), self.table_units());
            self.resize_step(u32::MAX, arena);
            if (self.len(), self.slots(), self.table_units()) == before {
                break;
            }
            steps += 1;
        }
    }

    /// Another disk joins the pool with its capacity and its blocks; the index stays with this one. Takes time in
    /// proportion to the blocks of both.
    pub(crate) fn take_in(&mut self, other: &mut Self, core: &CoreOptions, arena: &mut Store) {
        let tiers = other.residents.index().has_tiers();
        let moving = other.residents.take_out();
        self.residents.moved_from(other.residents.moves());
        let key = other.settings.hash_key();
        let none = Capacity::none(other.settings.id(), self.capacity.block_bytes());
        let capacity = std::mem::replace(&mut other.capacity, none);
        other.residents = Residents::new(self.residents.index().kind(), 0, 0, key, core.contents);
        other.measuring = Measuring::default();
        arena.set_frames(other.settings.id(), 0, 0);
        arena.set_pool_part(other.settings.id(), 0);
        self.capacity.add(&capacity);
        self.apply_limit(arena);
        self.finish_tables(arena);

        let deduplicates = other.sharing.is_on();
        let Some(members) = self.residents.members_mut() else { unreachable!("begun before a disk joins") };
        let ordinal = members.enter(other.settings.id(), 0, deduplicates);
        other.place = Place { pool: self.place.pool, ordinal, away: true };
        self.residents.set_present(ordinal);
        self.residents.index_mut().set_tiers(tiers);
        if !(self.faults.has(Bug::PinOutlivesDisk) && other.locking.is_off()) {
            other.lock_in(&mut self.residents);
        }
        self.put_all_in(moving, other.settings.id(), arena);
        self.be_present();
    }

    /// Puts blocks of disk `of` in, as many as there are slots for, and evicts what is then too much. The limit follows
    /// what the blocks are charged, so that what is held in common needs no frame of its own.
    fn put_all_in(&mut self, moving: Vec<Moving>, of: DiskId, arena: &mut Store) {
        let (slots, lost) = (self.residents.index().capacity(), self.faults.has(Bug::ChargeLost));
        self.residents.index_mut().set_limit(slots);
        self.residents.put_in(moving, |page| arena.unseat(page, of, lost));
        self.apply_limit(arena);
        self.evict_excess(arena);
    }

    /// Gives up all of its blocks, and its place in the pool: they come with it if it stays with its core. Its
    /// capacity, but for `blocks` of it, stays with the pool, whose index is with `remaining` afterwards.
    pub(crate) fn leave_pool(&mut self, remaining: &mut Self, blocks: u32, arena: &mut Store) -> Leaving {
        let (id, ordinal) = (self.settings.id(), self.place.ordinal);
        let leaving = Leaving {
            moving: self.residents.take_out(),
            tiers: self.residents.index().has_tiers(),
            kind: self.residents.index().kind(),
            moves: self.residents.moves(),
        };
        self.residents.leave();
        if self.faults.has(Bug::PinOutlivesDisk) {
            self.apply_locking();
        }
        if let Some(members) = self.residents.members_mut() {
            self.stats.evicted_blocks += members.take_evicted(ordinal);
            members.leave(ordinal);
        }
        if !self.faults.has(Bug::PinOutlivesDisk) {
            self.residents.end_unused_locks();
        }
        self.capacity.give_up_overhead(std::mem::take(&mut self.own_overhead));
        remaining.take_over(self);
        self.place = Place::default();
        if remaining.capacity.account() == id {
            arena.set_frames(id, 0, 0);
            arena.set_pool_part(id, 0);
            remaining.capacity.set_account(remaining.settings.id());
        }
        if !self.faults.has(Bug::LeaverKeepsShare) {
            remaining.set_share(remaining.capacity.blocks().saturating_sub(blocks));
        }
        remaining.apply_limit(arena);
        remaining.finish_tables(arena);
        leaving
    }

    /// The disk has an index of its own again, with `blocks` blocks of capacity, and what fits of its blocks.
    pub(crate) fn stand_alone(&mut self, leaving: Leaving, blocks: u32, core: &CoreOptions, arena: &mut Store) {
        let Leaving { moving, tiers, kind, moves } = leaving;
        let (key, most) = (self.settings.hash_key(), slots_max(core, self.settings.options()));
        self.residents = Residents::new(kind, blocks, most, key, core.contents);
        self.residents.moved_from(moves);
        self.capacity = Capacity::new(self.settings.id(), blocks, self.capacity.block_bytes());
        self.measuring = Measuring::default();
        self.residents.index_mut().set_tiers(tiers);
        self.apply_locking();
        self.note_overhead();
        self.put_all_in(moving, self.settings.id(), arena);
    }

    /// The other disks of its pool have gone: its blocks are numbered as those of a disk alone.
    pub(crate) fn end_pool(&mut self, core: &CoreOptions, arena: &mut Store) {
        let tiers = self.residents.index().has_tiers();
        let kind = self.residents.index().kind();
        let moving = self.residents.take_out();
        if let Some(members) = self.residents.members_mut() {
            self.stats.evicted_blocks += members.take_evicted(self.place.ordinal);
        }
        self.place = Place::default();
        self.measuring.set_origin(0);
        let (key, most) = (self.settings.hash_key(), slots_max(core, self.settings.options()));
        let (slots, moves) = (self.residents.index().capacity(), self.residents.moves());
        // the old index's memory goes before the new one's comes
        self.residents = Residents::new(kind, 0, 0, key, core.contents);
        self.residents = Residents::new(kind, slots, most, key, core.contents);
        self.residents.moved_from(moves);
        self.residents.index_mut().set_tiers(tiers);
        self.apply_locking();
        self.put_all_in(moving, self.settings.id(), arena);
    }

    /// Frees what a disk takes with it that goes for good.
    pub(crate) fn discard(&mut self, leaving: Leaving, arena: &mut Store) {
        let (id, lost) = (self.settings.id(), self.faults.has(Bug::ChargeLost));
        for moving in leaving.moving {
            moving.into_page().into_iter().for_each(|page| arena.unseat(page, id, lost));
        }
    }

    /// Time has passed: the inclusive cache that the disk's is held against is as large as its part of its pool, and
    /// under the pool's policy.
    pub(crate) fn follow_pool(&mut self) {
        self.follow_policy();
        self.side.set_pooled(self.is_pooled());
        if self.is_pooled() {
            let part = self.own_part(self.residents.index().limit());
            self.side.set_limit(part);
        }
    }

    /// Checks that a disk alone pays under its own number; for tests.
    pub(crate) fn check_alone(&self) {
        assert!(self.capacity.account() == self.id(), "a disk alone is paid for by {:?}", self.capacity.account());
        self.check_locks_alone();
        assert!(!self.place.away, "a disk alone has its blocks elsewhere");
    }

    /// Checks what belongs to the pool, whose index is with this disk, against its disks; for tests.
    pub(crate) fn check_pool(&self, disks: &[&Self]) {
        let own: u32 = disks.iter().map(|d| d.own_overhead).sum();
        assert!(own == self.capacity.overhead(), "tables of the disks of a pool are miscounted");
        let ids: Vec<DiskId> = self.residents.members().map_or(Vec::new(), |m| m.ids().collect());
        assert!(disks.iter().all(|d| ids.contains(&d.id())) && ids.len() == disks.len(), "not the members of a pool");
        let counted: u32 = disks.iter().map(|d| self.counts_of(d).0).sum();
        assert!(counted == self.residents.count(), "blocks of a pool belong to nobody");
        self.check_locks_of(disks);
        let away = disks.iter().filter(|d| d.is_away());
        assert!(
            away.clone().all(|d| d.residents.count() == 0 && d.slots() == 0),
            "a disk keeps blocks beside its pool"
        );
        assert!(disks.iter().any(|d| d.id() == self.capacity.account()), "a pool is paid for by a disk that is gone");
    }
}

/// Steps in which tables follow at most when a disk joins or leaves.
const FINISH_STEPS_MAX: u32 = 1 << 20;

/// What a disk takes out of its pool.
pub(crate) struct Leaving {
    moving: Vec<Moving>,
    tiers: bool,
    kind: PolicyKind,
    /// Moves that the pool's tables had counted.
    moves: u32,
}
