//! The parts of a disk: shares, counts and miss-ratio meters of each, and how parts are set and changed.
//!
//! Owns the counts and meters of parts. Never decides which part a slot belongs to: the index does.
//! Invariant: the blocks and counts of all parts add up to those of their disk.

use crate::disk::{B, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::store::ram::Store;
use crate::types::{PartStats, SetPartsError};
use undercroft_engine::{Index, Meter, MeterOptions, PartId, PartRange, PartSetting, PolicyKind, Served, Telemetry};

/// Counts of one part.
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
pub(super) struct DiskParts {
    /// By number, those without a part among them.
    counts: Vec<Count>,
}

impl DiskParts {
    /// A block that is read has been found, or not.
    #[inline]
    pub(super) fn served(&mut self, part: PartId, block: u64, served: Served) {
        let count = &mut self.counts[usize::from(part.0)];
        let missed = served == Served::Miss;
        count.misses += u64::from(missed);
        count.hits += u64::from(!missed);
        if let Some(meter) = &mut count.meter {
            meter.observe(block, served);
        }
    }

    /// A block of `part` is in RAM from now on.
    pub(super) fn came(&mut self, part: PartId) {
        self.counts[usize::from(part.0)].resident += 1;
    }

    /// A block of `part` is in RAM no more.
    pub(super) fn went(&mut self, part: PartId) {
        self.counts[usize::from(part.0)].resident -= 1;
    }

    /// A block of `part` was evicted.
    pub(super) fn evicted(&mut self, part: PartId) {
        self.counts[usize::from(part.0)].evicted += 1;
    }

    /// The place for the meter of a part, if there is such a part.
    pub(super) fn meter_of(&mut self, part: PartId) -> Option<&mut Option<Box<Meter>>> {
        Some(&mut self.counts.get_mut(usize::from(part.0))?.meter)
    }

    /// Bytes of metadata held now, the meters' among them.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.counts.capacity() * size_of::<Count>() + self.meter_bytes()
    }

    /// Bytes that the meters hold.
    pub(super) fn meter_bytes(&self) -> usize {
        self.counts.iter().flat_map(|c| &c.meter).map(|m| m.memory_bytes()).sum()
    }
}

impl<P: FaultInjection> Disk<P> {
    /// Blocks that parts take from the disk's capacity, meters not counted, if it has `slots` slots.
    pub(crate) fn parts_blocks(&self, slots: u32) -> u32 {
        if !self.measuring.has_parts() {
            return 0;
        }
        let (ranges, last) = self.residents.index().parts_size();
        parts_bytes(slots, ranges, last).div_ceil(B) as u32
    }

    /// Gives the disk parts. The lists are sound, and there is room for them.
    pub(crate) fn set_parts(
        &mut self,
        ranges: &[PartRange],
        settings: &[PartSetting],
        arena: &mut Store,
    ) -> Result<(), SetPartsError> {
        let blocks = self.settings.blocks();
        let share = self.capacity.blocks();
        let set = self.residents.index_mut().set_parts(ranges, blocks, settings, share);
        if let Err(why) = set {
            self.account_overhead(arena);
            return Err(SetPartsError::Parts(why));
        }
        let mut parts = self.measuring.take_parts().unwrap_or_default();
        if parts.counts.is_empty() {
            // Whatever was before was the rest's.
            let (hits, evicted) = (self.stats.hit_blocks, self.stats.evicted_blocks);
            let misses = self.stats.miss_blocks + self.stats.joined_blocks;
            parts.counts.push(Count { hits, misses, evicted, ..Count::default() });
        }
        let numbers = 1 + usize::from(self.residents.index().parts_size().1.0);
        for n in 1..parts.counts.len() {
            if !self.residents.index().has_part(PartId(n as u8)) {
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
        if !self.faults.has(Bug::PartsNotCountedAnew) {
            for (_, slot) in self.residents.blocks() {
                parts.came(self.residents.part_of_slot(slot));
            }
        }
        self.measuring.set_parts(parts);
        self.account_overhead(arena);
        Ok(())
    }

    /// Checks the counts; for tests.
    pub(super) fn check_parts(&self) {
        let Some(parts) = self.measuring.parts() else {
            assert!(!self.residents.index().has_parts(), "the index has parts that the disk does not know of");
            return;
        };
        assert!(self.residents.index().has_parts(), "the disk has parts that its index does not know of");
        let mut resident = vec![0; parts.counts.len()];
        for (_, slot) in self.residents.blocks() {
            resident[usize::from(self.residents.part_of_slot(slot).0)] += 1;
        }
        let counted: Vec<u32> = parts.counts.iter().map(|c| c.resident).collect();
        assert!(counted == resident, "blocks of the parts are miscounted: {counted:?}, not {resident:?}");
        let sum = |f: fn(&Count) -> u64| parts.counts.iter().map(f).sum::<u64>();
        let s = &self.stats;
        assert!(sum(|c| c.hits) == s.hit_blocks, "the parts' hits are not the disk's");
        assert!(sum(|c| c.misses) == s.miss_blocks + s.joined_blocks, "the parts' misses are not the disk's");
        assert!(sum(|c| c.evicted) == s.evicted_blocks, "the parts' evictions are not the disk's");
        let shares: u64 =
            self.residents.index().part_shares(self.capacity.blocks()).iter().map(|s| u64::from(s.1)).sum();
        assert!(shares == u64::from(self.capacity.blocks()), "the parts' shares are not the disk's");
    }

    fn part_meter(&mut self, part: PartId) -> Option<&mut Option<Box<Meter>>> {
        if !self.residents.index().has_part(part) {
            return None;
        }
        self.measuring.meter_of(part)
    }

    fn part_share_and_kind(&self, part: PartId) -> (u32, PolicyKind) {
        let shares = self.residents.index().part_shares(self.capacity.blocks());
        let share = shares.into_iter().find(|s| s.0 == part).map_or(0, |s| s.1);
        (share, self.residents.index().part_kind(part).unwrap_or(PolicyKind::DEFAULT))
    }

    pub(crate) fn part_stats(&self, charged: u64) -> Vec<PartStats> {
        let Some(parts) = self.measuring.parts() else { return Vec::new() };
        let mut so_far = 0;
        let mut charged_so_far = 0;
        let stats = self.residents.index().part_shares(self.capacity.blocks()).into_iter().map(|(part, share)| {
            let count = &parts.counts[usize::from(part.0)];
            so_far += u64::from(count.resident);
            let upto = charged * so_far / u64::from(self.residents.count().max(1));
            let charged_blocks = upto - std::mem::replace(&mut charged_so_far, upto);
            PartStats {
                part,
                policy: self.residents.index().part_kind(part).unwrap_or(PolicyKind::DEFAULT),
                hit_blocks: count.hits,
                miss_blocks: count.misses,
                evicted_blocks: count.evicted,
                cached_blocks: u64::from(count.resident),
                charged_blocks,
                share_blocks: u64::from(share),
                limit_blocks: u64::from(self.residents.index().part_len_and_limit(part).1),
            }
        });
        stats.collect()
    }

    /// Other shares for the parts, which come to `sum`.
    pub(crate) fn set_part_shares(&mut self, shares: &[(PartId, u32)], sum: u32) {
        self.set_share(sum);
        self.residents.index_mut().set_part_shares(shares);
    }

    /// Another policy for a part. False if there is no such part.
    pub(crate) fn set_part_policy(&mut self, part: PartId, kind: PolicyKind) -> bool {
        let found = self.residents.index().has_part(part);
        self.residents.index_mut().switch_part(part, kind);
        found
    }

    /// Measures a part from now on, or no more. False if there is no such part.
    pub(crate) fn measure_part(&mut self, part: PartId, blocks_max: Option<u64>, arena: &mut Store) -> bool {
        let (share, kind) = self.part_share_and_kind(part);
        let key = self.settings.hash_key();
        let Some(meter) = self.part_meter(part) else { return false };
        *meter = blocks_max.map(|max| Box::new(Meter::new(kind, share.into(), max, MeterOptions::default(), key)));
        self.account_overhead(arena);
        true
    }

    /// What a part's requests showed since this was asked last, if they are measured.
    pub(crate) fn part_telemetry(&mut self, part: PartId, arena: &mut Store) -> Option<Telemetry> {
        let (share, kind) = self.part_share_and_kind(part);
        let meter = self.part_meter(part)?.as_mut()?;
        let telemetry = meter.interval();
        meter.set_share(share.into());
        meter.set_policy(kind);
        self.account_overhead(arena);
        Some(telemetry)
    }

    /// Removes the parts: the disk is one again.
    pub(crate) fn clear_parts(&mut self, arena: &mut Store) {
        if !self.measuring.has_parts() {
            return;
        }
        self.residents.index_mut().clear_parts();
        self.measuring.take_parts();
        // A victim buffer is for a disk without parts.
        if !self.faults.has(Bug::PartsEndBuffer) {
            self.apply_locking();
        }
        self.account_overhead(arena);
    }
}

/// Bytes that parts of a disk with `slots` slots take, meters not counted.
pub(crate) fn parts_bytes(slots: u32, ranges: usize, last: PartId) -> u64 {
    let counts = (usize::from(last.0) + 1) * size_of::<Count>() + size_of::<DiskParts>();
    Index::parts_bytes_max(slots, ranges, last) + counts as u64
}
