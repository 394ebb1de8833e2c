//! Measurements of a disk: its miss-ratio curve (what its reads would hit with other sizes), and counts for its parts.
//!
//! Owns the disk's miss-ratio meter and the counts of its parts. Never decides anything by them. Invariant: every block
//! that is read is told to the meter of the disk, or to that of its part, as often as it is counted.

use super::parts::DiskParts;
use super::{B, Disk};
use crate::fault_injection::FaultInjection;
use crate::store::ram::Store;
use undercroft_engine::{Meter, MeterOptions, PartId, Served, Telemetry};

/// See the head of the file.
#[derive(Default)]
#[repr(C)]
pub(super) struct Measuring {
    /// The miss-ratio meter. `None` unless a controller of shares has asked for it.
    meter: Option<Box<Meter>>,
    /// What its parts have and did, if it has any.
    parts: Option<Box<DiskParts>>,
    /// What the meter counts the blocks of the present disk from: in a pool, each disk has its own origin.
    origin: u64,
}

impl Measuring {
    /// The disk whose blocks are counted from `origin` is the present one.
    pub(super) fn set_origin(&mut self, origin: u64) {
        self.origin = origin;
    }

    // ---- reads ----

    /// A block was found in its slot; `taken` if it goes to a page of a guest that is seen.
    #[inline]
    pub(super) fn hit(&mut self, block: u64, taken: bool, part: impl FnOnce() -> PartId) {
        if let Some(meter) = &mut self.meter {
            let key = block | self.origin;
            if taken { meter.observe_taken(key, Served::Hit) } else { meter.observe(key, Served::Hit) }
        }
        if let Some(parts) = &mut self.parts {
            parts.served(part(), block, Served::Hit);
        }
    }

    /// A block was found, or not. Without `metered`, a planted bug, the meter does not hear of it.
    pub(super) fn served(&mut self, block: u64, served: Served, metered: bool, part: impl FnOnce() -> PartId) {
        if let Some(meter) = self.meter.as_mut().filter(|_| metered) {
            meter.observe(block | self.origin, served);
        }
        if let Some(parts) = &mut self.parts {
            parts.served(part(), block, served);
        }
    }

    /// A block came into a page of the guest, which was counted when it was asked for.
    #[inline]
    pub(super) fn arrived(&mut self, block: u64) {
        if let Some(meter) = &mut self.meter {
            meter.arrived(block | self.origin);
        }
    }

    /// A block left the guest.
    #[inline]
    pub(super) fn left(&mut self, block: u64) {
        if let Some(meter) = &mut self.meter {
            meter.left(block | self.origin);
        }
    }

    // ---- slots ----

    /// A block of a part is in RAM from now on.
    #[inline]
    pub(super) fn came(&mut self, part: PartId) {
        if let Some(parts) = &mut self.parts {
            parts.came(part);
        }
    }

    /// A block of a part is in RAM no more.
    #[inline]
    pub(super) fn went(&mut self, part: PartId) {
        if let Some(parts) = &mut self.parts {
            parts.went(part);
        }
    }

    /// A block was evicted.
    #[inline]
    pub(super) fn evicted(&mut self, part: impl FnOnce() -> PartId) {
        if let Some(parts) = &mut self.parts {
            parts.evicted(part());
        }
    }

    // ---- the parts and meters themselves ----

    /// Whether the disk has parts.
    #[inline]
    pub(super) fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// The parts, if there are any.
    pub(super) fn parts(&self) -> Option<&DiskParts> {
        self.parts.as_deref()
    }

    /// Takes the parts away.
    pub(super) fn take_parts(&mut self) -> Option<Box<DiskParts>> {
        self.parts.take()
    }

    /// Gives the disk parts.
    pub(super) fn set_parts(&mut self, parts: Box<DiskParts>) {
        self.parts = Some(parts);
    }

    /// The place for the meter of a part, which is the disk's own if it has no parts.
    pub(super) fn meter_of(&mut self, part: PartId) -> Option<&mut Option<Box<Meter>>> {
        match &mut self.parts {
            Some(parts) => parts.meter_of(part),
            None => Some(&mut self.meter),
        }
    }

    /// Bytes of metadata held now.
    pub(super) fn memory_bytes(&self) -> usize {
        self.meter_bytes() + self.parts.as_ref().map_or(0, |p| p.memory_bytes())
    }

    fn meter_bytes(&self) -> usize {
        self.meter.as_ref().map_or(0, |m| m.memory_bytes())
    }

    /// Blocks of the disk's capacity that meters take instead: what the disk's own may come to take, so that what the
    /// disk keeps does not depend on how much it has measured; what those of parts take now.
    pub(super) fn overhead_blocks(&self) -> u32 {
        let own = self.meter.as_ref().map_or(0, |m| m.memory_bytes_max());
        let of_parts = self.parts.as_ref().map_or(0, |p| p.meter_bytes());
        (own as u64).div_ceil(B) as u32 + (of_parts as u64).div_ceil(B) as u32
    }
}

impl<P: FaultInjection> Disk<P> {
    /// Measures the miss-ratio curve from now on, for sizes of up to `blocks_max`; `None` ends it.
    pub(crate) fn measure(&mut self, blocks_max: Option<u64>, arena: &mut Store) {
        self.measuring.meter = blocks_max.map(|max| {
            let kind = self.residents.index().kind();
            let blocks = self.capacity.blocks().into();
            let mut meter = Meter::new(kind, blocks, max, MeterOptions::default(), self.settings.hash_key());
            meter.set_exclusive(self.is_exclusive());
            Box::new(meter)
        });
        self.account_overhead(arena);
    }

    /// Measures what sizes of RAM and of a store below it together would miss, too, if anything is measured; `None`
    /// ends it.
    pub(crate) fn measure_reach(&mut self, blocks_max: Option<u64>, arena: &mut Store) {
        if let Some(meter) = &mut self.measuring.meter {
            meter.set_reach(blocks_max);
            self.account_overhead(arena);
        }
    }

    /// What requests showed since this was asked last, if they are measured.
    pub(crate) fn telemetry(&mut self, arena: &mut Store) -> Option<Telemetry> {
        let exclusive = self.is_exclusive();
        let meter = self.measuring.meter.as_mut()?;
        let telemetry = meter.interval();
        meter.set_exclusive(exclusive);
        meter.set_share(self.capacity.blocks().into());
        meter.set_policy(self.residents.index().kind());
        self.account_overhead(arena);
        Some(telemetry)
    }
}
