//! Pools: disks of a core that keep their blocks together, with one capacity, one order of eviction and one part in the
//! frames for I/O.
//!
//! Owns which disks are of which pool, and with which of them the pool's index is. Never decides which disks belong
//! together: the caller does. Invariants: a disk is of one pool at most; what a pool is promised is what its disks were
//! promised apart; before anything is done to a disk that reads or changes blocks, the index is with it.

use super::Core;
use crate::disk::{B, Disk, Leaving, block_bytes, usable_bytes};
use crate::fault_injection::FaultInjection;
use crate::store::ram::Store;
use crate::types::{AddDiskError, DiskId, PoolStats};

/// The disks of a pool.
#[derive(Debug)]
pub(super) struct Pool {
    members: Vec<DiskId>,
    /// The one that has the index.
    present: DiskId,
}

impl<P: FaultInjection> Core<P> {
    /// Disk `id` keeps its blocks together with disk `with`, and with those that this one keeps them together with
    /// already, from now on: under one policy, that of `with`, in one order of eviction, and in what the capacities of
    /// all come to. What is cached stays. From then on [`Core::set_share`], [`Core::set_capacity`],
    /// [`Core::set_limit`], [`Core::set_policy`], [`Core::measure`] and [`Core::telemetry`] of any of them are about
    /// all of them.
    ///
    /// Takes time in proportion to the blocks of all.
    ///
    /// # Errors
    /// If there is no such disk, it has parts, or is in another pool, or the ceiling does not allow it. Nothing has
    /// changed then, but that the disk may have a block less.
    pub fn join_pool(&mut self, id: DiskId, with: DiskId) -> Result<(), AddDiskError> {
        for disk in [id, with] {
            let d = self.disk(disk).ok_or(AddDiskError::Unknown(disk))?;
            if d.index().has_parts() {
                return Err(AddDiskError::Options("a disk with parts keeps its blocks apart"));
            }
        }
        if id == with || self.pool_of(id).is_some_and(|p| self.pools[p].as_ref().is_some_and(|p| p.has(with))) {
            return Ok(());
        }
        if self.pool_of(id).is_some() {
            return Err(AddDiskError::Options("the disk keeps its blocks together with others already"));
        }
        self.bring_index(with);
        self.make_even(id, with)?;
        let pool = match self.pool_of(with) {
            Some(pool) => pool,
            None => self.begin_pool(with),
        };
        let options = self.options.clone();
        self.with_two(id, with, |joins, has, arena| has.take_in(joins, &options, arena));
        if let Some(pool) = &mut self.pools[pool] {
            pool.members.push(id);
        }
        self.make_room(0);
        self.follow_pool(&[with, id]);
        self.arena.fit();
        Ok(())
    }

    /// Capacities together may bring a frame more into the pool for I/O than apart: a block of the disk makes room for
    /// it where there is none.
    fn make_even(&mut self, id: DiskId, with: DiskId) -> Result<(), AddDiskError> {
        let more = |core: &Self| match (core.disk(id), core.disk(with)) {
            (Some(joins), Some(has)) => has.brings_more(joins),
            _ => 0,
        };
        if self.promise(more(self), 0).is_ok() {
            return Ok(());
        }
        let blocks = self.disk(id).map_or(0, Disk::capacity_blocks);
        self.set_share(id, blocks.saturating_sub(1))?;
        self.promise(more(self), 0)
    }

    fn begin_pool(&mut self, id: DiskId) -> usize {
        let free = self.pools.iter().position(Option::is_none);
        let pool = free.unwrap_or(self.pools.len());
        if pool == self.pools.len() {
            self.pools.push(None);
        }
        self.pools[pool] = Some(Pool { members: vec![id], present: id });
        self.with_disk(id, |d, _| d.begin_pool(pool));
        pool
    }

    /// The disk keeps its blocks apart from now on, in `blocks` blocks of the capacity that it had with others, or what
    /// of that can be had at once. What is cached of it stays, as far as it fits.
    ///
    /// Takes time in proportion to the blocks of all.
    ///
    /// # Errors
    /// If there is no such disk.
    pub fn leave_pool(&mut self, id: DiskId, blocks: u32) -> Result<(), AddDiskError> {
        let had = self.index_holder(id).ok_or(AddDiskError::Unknown(id))?.capacity_blocks();
        let blocks = blocks.min(had);
        let Some((leaving, remaining)) = self.part(id, blocks) else { return Ok(()) };
        let left_bytes = usable_bytes(&self.options).saturating_sub(self.promised_bytes());
        let within = self.disk(id).map_or(0, |d| d.blocks_within(left_bytes, block_bytes(&self.options)));
        let blocks = blocks.min(u32::try_from(within).unwrap_or(u32::MAX));
        self.make_room(u64::from(blocks) * (block_bytes(&self.options) - B));
        let options = self.options.clone();
        self.with_disk(id, |d, arena| d.stand_alone(leaving, blocks, &options, arena));
        self.make_room(0);
        self.follow_pool(&[remaining, id]);
        self.keep_to_promises();
        self.arena.fit();
        Ok(())
    }

    /// The disk goes for good.
    pub(super) fn leave_for_good(&mut self, id: DiskId) {
        if let Some((leaving, _)) = self.part(id, 0) {
            self.with_disk(id, |d, arena| d.discard(leaving, arena));
        }
    }

    /// Takes a disk out of its pool, if there are others in it; and which of those has the index now.
    fn part(&mut self, id: DiskId, blocks: u32) -> Option<(Leaving, DiskId)> {
        let pool = self.pool_of(id)?;
        let remaining = self.pools[pool].as_ref()?.members.iter().copied().find(|&m| m != id)?;
        self.bring_index(id);
        let mut leaving = None;
        self.with_two(id, remaining, |goes, remaining, arena| {
            leaving = Some(goes.leave_pool(remaining, blocks, arena))
        });
        if let Some(pool) = &mut self.pools[pool] {
            pool.members.retain(|&m| m != id);
            pool.present = remaining;
        }
        if self.pools[pool].as_ref().is_some_and(|p| p.members.len() < 2) {
            self.pools[pool] = None;
            let options = self.options.clone();
            self.with_disk(remaining, |d, arena| d.end_pool(&options, arena));
        }
        Some((leaving?, remaining))
    }

    /// Capacities have changed: what tables of guests may take of them, and what inclusive caches are held against,
    /// follow.
    fn follow_pool(&mut self, disks: &[DiskId]) {
        self.fit_guests();
        for &id in disks {
            self.with_disk(id, |d, _| d.follow_pool());
        }
    }

    fn pool_of(&self, id: DiskId) -> Option<usize> {
        self.disk(id)?.pool()
    }

    /// The disk that has what disk `id` keeps its blocks in: itself, or one of its pool.
    #[inline]
    pub(super) fn index_holder(&self, id: DiskId) -> Option<&Disk<P>> {
        let disk = self.disk(id)?;
        if !disk.is_away() {
            return Some(disk);
        }
        self.disk(self.pools[disk.pool()?].as_ref()?.present)
    }

    /// Sees that the index is with the disk.
    #[inline]
    pub(crate) fn bring_index(&mut self, id: DiskId) {
        if self.disk(id).is_some_and(Disk::is_away) {
            self.hand_over(id);
        }
    }

    #[cold]
    pub(super) fn hand_over(&mut self, id: DiskId) {
        let Some(pool) = self.pool_of(id) else { return };
        let Some(before) = self.pools[pool].as_mut().map(|p| std::mem::replace(&mut p.present, id)) else { return };
        self.with_two(id, before, |to, from, _| to.take_over(from));
    }

    fn with_two(&mut self, a: DiskId, b: DiskId, act: impl FnOnce(&mut Disk<P>, &mut Disk<P>, &mut Store)) {
        let both = self.disks.get_disjoint_mut([a.0 as usize, b.0 as usize]);
        let Ok([Some(a), Some(b)]) = both else { unreachable!("two disks of a core") };
        act(a, b, &mut self.arena);
    }

    /// The disks that keep their blocks together with this one, it among them; empty if it keeps them apart.
    pub fn pool(&self, id: DiskId) -> &[DiskId] {
        let pool = self.pool_of(id).and_then(|p| self.pools[p].as_ref());
        pool.map_or(&[], |p| &p.members)
    }

    /// Sizes of what a disk keeps its blocks in, of all that do it together.
    pub fn pool_stats(&self, id: DiskId) -> PoolStats {
        let Some(d) = self.index_holder(id) else { return PoolStats::default() };
        PoolStats {
            disks: self.pool(id).len().max(1) as u64,
            cached_blocks: d.stats().cached_blocks,
            charged_blocks: d.charged(&self.arena),
            capacity_blocks: u64::from(d.capacity_blocks()),
        }
    }

    /// What operations of the disk take of a share whatever it keeps, with those of its pool, if they keep `blocks`.
    pub(super) fn fixed_bytes(&self, id: DiskId, blocks: u32) -> u64 {
        let Some(disk) = self.disk(id) else { return 0 };
        let fixed = |d: &Disk<P>, blocks| d.io_bytes(blocks) + d.ahead_more_bytes();
        let others = self.pool(id).iter().filter(|&&m| m != id).filter_map(|&m| self.disk(m));
        fixed(disk, blocks) + others.map(|d| fixed(d, 0)).sum::<u64>()
    }

    /// Checks the pools; for tests.
    pub(super) fn check_pools(&self) {
        for (n, pool) in self.pools.iter().enumerate() {
            let Some(pool) = pool else { continue };
            let disks: Vec<_> = pool.members.iter().filter_map(|&m| self.disk(m)).collect();
            assert!(disks.len() == pool.members.len(), "a disk that is gone is of a pool");
            assert!(disks.iter().all(|d| d.pool() == Some(n)), "a disk is of a pool and does not know");
            let holders: Vec<_> = disks.iter().filter(|d| !d.is_away()).map(|d| d.id()).collect();
            assert!(holders == [pool.present], "the index of a pool is with {holders:?}, not {:?}", pool.present);
            if let Some(holder) = self.disk(pool.present) {
                holder.check_pool(&disks);
            }
        }
        for d in self.disks.iter().flatten().filter(|d| d.pool().is_none()) {
            d.check_alone();
        }
        let known = |d: &Disk<P>| d.pool().is_none_or(|p| self.pools[p].as_ref().is_some_and(|p| p.has(d.id())));
        assert!(self.disks.iter().flatten().all(|d| known(d)), "a disk takes itself for one of a pool");
    }
}

impl Pool {
    fn has(&self, id: DiskId) -> bool {
        self.members.contains(&id)
    }
}
