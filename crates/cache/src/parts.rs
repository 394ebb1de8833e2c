//! The parts of a disk, as leaves of their own: what each has, did and would be worth, and how they are set.
//!
//! Owns the counts and meters of parts. Never decides which part a slot belongs to: the index does.
//! Invariant: what parts have and did adds up to what their disk has and did.

use crate::core::{AddDiskError, Core};
use crate::disk::{B, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::SHRINK_BLOCKS_PER_EVENT;
use crate::share::Store;
use crate::types::{DiskId, PartStats, SetPartsError};
use undercroft_engine::ranges::REST;
use undercroft_engine::{
    HashKey, Index, Meter, MeterOptions, PartId, PartRange, PartSetting, PolicyKind, Served, Telemetry,
};

/// What one part did.
#[derive(Default)]
struct Count {
    /// Blocks of it in RAM.
    resident: u32,
    hits: u64,
    misses: u64,
    evicted: u64,
    meter: Option<Box<Meter>>,
}

/// See the head of the file.
#[derive(Default)]
pub(crate) struct DiskParts {
    /// By number, those without a part among them.
    counts: Vec<Count>,
}

impl DiskParts {
    /// A block that is read has been found, or not.
    #[inline]
    pub(crate) fn served(&mut self, part: PartId, block: u64, served: Served) {
        let count = &mut self.counts[usize::from(part.0)];
        let missed = served == Served::Miss;
        count.misses += u64::from(missed);
        count.hits += u64::from(!missed);
        if let Some(meter) = &mut count.meter {
            meter.observe(block, served);
        }
    }

    /// A block of `part` is in RAM from now on.
    pub(crate) fn came(&mut self, part: PartId) {
        self.counts[usize::from(part.0)].resident += 1;
    }

    /// A block of `part` is in RAM no more.
    pub(crate) fn went(&mut self, part: PartId) {
        self.counts[usize::from(part.0)].resident -= 1;
    }

    /// A block of `part` was evicted.
    pub(crate) fn evicted(&mut self, part: PartId) {
        self.counts[usize::from(part.0)].evicted += 1;
    }

    /// Bytes of metadata held now, the meters' among them.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.counts.capacity() * size_of::<Count>() + self.meter_bytes()
    }

    /// Bytes that the meters hold.
    pub(crate) fn meter_bytes(&self) -> usize {
        self.counts.iter().flat_map(|c| &c.meter).map(|m| m.memory_bytes()).sum()
    }
}

impl<P: FaultInjection> Disk<P> {
    /// Blocks that parts take from the disk's capacity, meters not counted, if it has `slots` slots.
    pub(crate) fn parts_blocks(&self, slots: u32) -> u32 {
        if self.parts.is_none() {
            return 0;
        }
        let (ranges, last) = self.index.parts_size();
        parts_bytes(slots, ranges, last).div_ceil(B) as u32
    }

    /// Gives the disk parts. The lists are sound, and there is room for them.
    fn set_parts(&mut self, ranges: &[PartRange], settings: &[PartSetting]) -> Result<(), SetPartsError> {
        let blocks = self.size.div_ceil(B);
        self.index.set_parts(ranges, blocks, settings, self.blocks).map_err(SetPartsError::Parts)?;
        let mut parts = self.parts.take().unwrap_or_default();
        if parts.counts.is_empty() {
            // Whatever was before was the rest's.
            let (hits, evicted) = (self.stats.hit_blocks, self.stats.evicted_blocks);
            let misses = self.stats.miss_blocks + self.stats.joined_blocks;
            parts.counts.push(Count { hits, misses, evicted, ..Count::default() });
        }
        let numbers = 1 + usize::from(self.index.parts_size().1.0);
        for n in 1..parts.counts.len() {
            if !self.index.has_part(PartId(n as u8)) {
                // What one that goes did stays counted, with the rest.
                let gone = std::mem::take(&mut parts.counts[n]);
                let rest = &mut parts.counts[0];
                rest.hits += gone.hits;
                rest.misses += gone.misses;
                rest.evicted += gone.evicted;
            }
        }
        parts.counts.truncate(numbers);
        parts.counts.reserve_exact(numbers - parts.counts.len());
        parts.counts.resize_with(numbers, Count::default);
        parts.counts.iter_mut().for_each(|c| c.resident = 0);
        if !self.plant.has(Bug::PartsNotCountedAnew) {
            for (_, slot) in self.index.iter().filter(|&(_, slot)| self.frames[slot as usize].is_some()) {
                parts.came(self.index.part_of_slot(slot));
            }
        }
        self.parts = Some(parts);
        Ok(())
    }

    /// Checks the counts; for tests.
    pub(crate) fn check_parts(&self) {
        let Some(parts) = &self.parts else {
            assert!(!self.index.has_parts(), "the index has parts that the disk does not know of");
            return;
        };
        assert!(self.index.has_parts(), "the disk has parts that its index does not know of");
        let mut resident = vec![0; parts.counts.len()];
        for (_, slot) in self.index.iter().filter(|&(_, slot)| self.frames[slot as usize].is_some()) {
            resident[usize::from(self.index.part_of_slot(slot).0)] += 1;
        }
        let counted: Vec<u32> = parts.counts.iter().map(|c| c.resident).collect();
        assert!(counted == resident, "blocks of the parts are miscounted: {counted:?}, not {resident:?}");
        let sum = |f: fn(&Count) -> u64| parts.counts.iter().map(f).sum::<u64>();
        let s = &self.stats;
        assert!(sum(|c| c.hits) == s.hit_blocks, "the parts' hits are not the disk's");
        assert!(sum(|c| c.misses) == s.miss_blocks + s.joined_blocks, "the parts' misses are not the disk's");
        assert!(sum(|c| c.evicted) == s.evicted_blocks, "the parts' evictions are not the disk's");
        let shares: u64 = self.index.part_shares(self.blocks).iter().map(|s| u64::from(s.1)).sum();
        assert!(shares == u64::from(self.blocks), "the parts' shares are not the disk's");
    }

    fn part_meter(&mut self, part: PartId) -> Option<&mut Option<Box<Meter>>> {
        if !self.index.has_part(part) {
            return None;
        }
        match &mut self.parts {
            Some(parts) => Some(&mut parts.counts.get_mut(usize::from(part.0))?.meter),
            None => Some(&mut self.meter),
        }
    }

    fn part_share(&self, part: PartId) -> u32 {
        let shares = self.index.part_shares(self.blocks);
        shares.into_iter().find(|s| s.0 == part).map_or(0, |s| s.1)
    }

    fn part_stats(&self, charged: u64) -> Vec<PartStats> {
        let Some(parts) = &self.parts else { return Vec::new() };
        let mut so_far = 0;
        let mut charged_so_far = 0;
        let stats = self.index.part_shares(self.blocks).into_iter().map(|(part, share)| {
            let count = &parts.counts[usize::from(part.0)];
            so_far += u64::from(count.resident);
            let upto = charged * so_far / u64::from(self.resident.max(1));
            let charged_blocks = upto - std::mem::replace(&mut charged_so_far, upto);
            PartStats {
                part,
                policy: self.index.part_kind(part).unwrap_or(PolicyKind::DEFAULT),
                hit_blocks: count.hits,
                miss_blocks: count.misses,
                evicted_blocks: count.evicted,
                cached_blocks: u64::from(count.resident),
                charged_blocks,
                share_blocks: u64::from(share),
                limit_blocks: u64::from(self.index.part_len_and_limit(part).1),
            }
        });
        stats.collect()
    }

    fn clear_parts(&mut self, arena: &mut Store) {
        self.index.clear_parts();
        self.parts = None;
        self.account_meter(arena);
    }
}

/// Bytes that parts of a disk with `slots` slots take, meters not counted.
fn parts_bytes(slots: u32, ranges: usize, last: PartId) -> u64 {
    let counts = (usize::from(last.0) + 1) * size_of::<Count>() + size_of::<DiskParts>();
    Index::parts_bytes_max(slots, ranges, last) + counts as u64
}

impl<P: FaultInjection> Core<P> {
    /// Divides the disk into parts, each a leaf of its own with a policy and a share: the blocks in `ranges` belong to
    /// the parts in `settings`, everything else to part 0, which has of the disk's capacity what the others' shares
    /// leave. Replaces the parts that there were; those whose numbers stay keep what their policies and meters know.
    /// What is cached keeps its frame and is the part's that has its range now; where that is more than its share, it
    /// goes as with [`Core::set_share`]. A map of the ranges and 13 bytes for each slot come out of the disk's share.
    ///
    /// Takes time in proportion to the disk's slots.
    ///
    /// # Errors
    /// If there is no such disk, or something is wrong with the lists. Nothing has changed then.
    pub fn set_parts(
        &mut self,
        id: DiskId,
        ranges: &[PartRange],
        settings: &[PartSetting],
    ) -> Result<(), SetPartsError> {
        let disk = self.disk(id).ok_or(SetPartsError::Disk(AddDiskError::Unknown(id)))?;
        let blocks = disk.size.div_ceil(B);
        let last = disk.index.check_parts(ranges, blocks, settings, disk.blocks).map_err(SetPartsError::Parts)?;
        let needed = parts_bytes(disk.slots_max(), ranges.len(), last).div_ceil(B) as u32;
        if needed > disk.blocks {
            let (needed_blocks, disk_blocks) = (needed.into(), disk.blocks.into());
            return Err(SetPartsError::NoRoom { needed_blocks, disk_blocks });
        }
        // Room first, the tables then.
        self.with_disk(id, |d, arena| {
            d.overhead += needed.saturating_sub(d.parts_blocks(d.slots_max()));
            d.apply_limit(arena);
            d.resize_step(u32::MAX, arena);
        });
        self.make_room(0);
        let mut set = Ok(());
        self.with_disk(id, |d, arena| {
            set = d.set_parts(ranges, settings);
            d.account_meter(arena);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
        set
    }

    /// Makes the disk one again, with the policy of part 0 and all of what its parts had. What is cached stays.
    pub fn clear_parts(&mut self, id: DiskId) {
        self.with_disk(id, |d, arena| {
            if d.parts.is_some() {
                d.clear_parts(arena);
            }
        });
    }

    /// Sets the shares of some of the disk's parts (of part 0 too, if it is named); the others keep theirs, and the
    /// disk's capacity follows as their sum. Moves gradually, as [`Core::set_share`] does, which scales all parts
    /// alike.
    ///
    /// # Errors
    /// If the ceiling does not allow it, or there is no such disk or part. Nothing has changed then.
    pub fn set_part_shares(&mut self, id: DiskId, shares: &[(PartId, u32)]) -> Result<(), SetPartsError> {
        let disk = self.disk(id).ok_or(SetPartsError::Disk(AddDiskError::Unknown(id)))?;
        let (shares, sum) = disk.index.changed_shares(disk.blocks, shares).map_err(SetPartsError::Parts)?;
        self.may_share(id, sum).map_err(SetPartsError::Disk)?;
        self.with_disk(id, |d, arena| {
            d.set_share(sum);
            d.index.set_part_shares(&shares);
            d.resize_step(SHRINK_BLOCKS_PER_EVENT, arena);
        });
        Ok(())
    }

    /// Gives a part another policy; cached blocks stay. False if there is no such part.
    pub fn set_part_policy(&mut self, id: DiskId, part: PartId, kind: PolicyKind) -> bool {
        let mut found = false;
        self.with_disk(id, |d, _| {
            found = d.index.has_part(part);
            d.index.switch_part(part, kind);
        });
        found
    }

    /// What each part of the disk has and did, part 0 first; empty if the disk has no parts, or there is none.
    pub fn part_stats(&self, id: DiskId) -> Vec<PartStats> {
        let charged = self.stats(id).charged_blocks;
        self.disk(id).map_or_else(Vec::new, |d| d.part_stats(charged))
    }

    /// Measures from now on what the requests of one part would be worth with other shares, as [`Core::measure`] does
    /// for a disk; `None` ends it. False if there is no such part. Part 0 of a disk without parts is the disk.
    pub fn measure_part(&mut self, id: DiskId, part: PartId, blocks_max: Option<u64>) -> bool {
        let mut found = false;
        self.with_disk(id, |d, arena| {
            let (share, kind) = (d.part_share(part), d.index.part_kind(part).unwrap_or(PolicyKind::DEFAULT));
            let key = HashKey::from_seed(d.hash_seed);
            let Some(meter) = d.part_meter(part) else { return };
            let new = |max| Box::new(Meter::new(kind, share.into(), max, MeterOptions::default(), key));
            *meter = blocks_max.map(new);
            found = true;
            d.account_meter(arena);
        });
        found
    }

    /// What the requests of one part showed since this was asked last, as [`Core::telemetry`] does for a disk; `None`
    /// if nothing is measured, or there is no such part.
    pub fn part_telemetry(&mut self, id: DiskId, part: PartId) -> Option<Telemetry> {
        let mut telemetry = None;
        self.with_disk(id, |d, arena| {
            let (share, kind) = (d.part_share(part), d.index.part_kind(part).unwrap_or(PolicyKind::DEFAULT));
            let Some(Some(meter)) = d.part_meter(part) else { return };
            telemetry = Some(meter.interval());
            meter.set_share(share.into());
            meter.set_policy(kind);
            d.account_meter(arena);
        });
        telemetry
    }

    /// The part that a block of the disk belongs to; part 0 if there is no such disk.
    pub fn part_of(&self, id: DiskId, block: u64) -> PartId {
        self.disk(id).map_or(REST, |d| d.index.part_of_block(block))
    }
}
