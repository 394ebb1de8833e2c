//! The SSD store of a core: setting it up, its operations, and what is asked of it.
//!
//! Owns the way from the store to the effects and back. Never decides what the store keeps. Invariant: after every
//! event all that the store wants done has been asked of the effects, and every change that it let go has been
//! submitted.

use super::Core;
use crate::disk::Cx;
use crate::fault_injection::FaultInjection;
use crate::store::ssd::{
    Kept, Known, OwnerId, OwnerStats, Ssd, SsdDone, SsdIo, SsdIoKind, SsdUse, Stamp, TooManyOwners,
};
use crate::store::tier::Tier;
use crate::types::{DiskId, Durability, Effects, Io, IoDone, IoKind, IoTarget, OpId};
use undercroft_host::IoBuf;

/// The number under which the store's own operations go; no disk has it.
pub const SSD: DiskId = DiskId(u32::MAX);

impl<P: FaultInjection> Core<P> {
    /// Puts an SSD store below the RAM store. Once, before the first disk uses it.
    pub fn set_ssd(&mut self, ssd: Ssd) {
        self.arena.set_tier(Tier::new(ssd));
    }

    /// The store, if there is one.
    pub fn ssd(&self) -> Option<&Ssd> {
        self.arena.tier().map(Tier::ssd)
    }

    /// The same, to change what it may do. What it wants done then is asked for with the next event.
    pub fn ssd_mut(&mut self) -> Option<&mut Ssd> {
        self.arena.tier_mut().map(Tier::ssd_mut)
    }

    /// From now on the disk's blocks that leave RAM may go to the store. `None` without a store, or without the disk.
    ///
    /// # Errors
    /// If the store has as many owners as it may have.
    pub fn use_ssd(&mut self, id: DiskId, known: &Known) -> Result<Option<Kept>, TooManyOwners> {
        let Some(disk) = self.disk(id) else { return Ok(None) };
        let (whole, changing, group) = (disk.whole_blocks(), disk.changing(), disk.group());
        let is_displaced = disk.is_displaced();
        let Some(tier) = self.arena.tier_mut() else { return Ok(None) };
        let kept = tier.attach(id, known, whole, group)?;
        tier.set_displaced(id, is_displaced);
        // What is being changed must not be admitted before that has ended.
        changing.into_iter().for_each(|(first, end)| tier.change_begins(id, first, end));
        self.with_disk(id, |d, arena| d.pin_below(arena));
        Ok(Some(kept))
    }

    /// The image that the disk stands on, which nobody changes, is an owner of its own from now on: what was read of it
    /// is there once for all disks that hold its blocks in common. `None` if the disk has no base or does not use the
    /// store.
    ///
    /// # Errors
    /// If the store has as many owners as it may have.
    pub fn use_ssd_for_base(&mut self, id: DiskId, known: &Known) -> Result<Option<Kept>, TooManyOwners> {
        let Some(domain) = self.disk(id).and_then(|disk| disk.base_domain()) else { return Ok(None) };
        self.arena.tier_mut().map_or(Ok(None), |tier| tier.stand_on(id, domain, known))
    }

    /// The store's name for the base that the disk stands on, if that is an owner.
    pub fn ssd_base_of(&self, id: DiskId) -> Option<OwnerId> {
        self.arena.tier()?.base_owner(id)
    }

    /// How the disk uses the store, for another process that goes on with it; `None` if it does not, or if its image
    /// may have less than it was given: what is not written down of it then goes.
    pub fn ssd_use_of(&self, id: DiskId) -> Option<SsdUse> {
        self.arena.tier()?.use_of(id).filter(|_| self.durability(id) != Durability::Never)
    }

    /// The disk uses the store, which another process has told, as it did there: nothing has changed its image in
    /// between. False if that cannot be; then it is as if it had not used it.
    pub fn adopt_ssd(&mut self, id: DiskId, as_before: &SsdUse) -> bool {
        let Some(disk) = self.disk(id) else { return false };
        let (whole, group, is_displaced) = (disk.whole_blocks(), disk.group(), disk.is_displaced());
        let Some(tier) = self.arena.tier_mut() else { return false };
        let is_adopted = tier.adopt(id, as_before, whole, group);
        if is_adopted {
            tier.set_displaced(id, is_displaced);
            self.with_disk(id, |d, arena| d.pin_below(arena));
        }
        is_adopted
    }

    /// The same for the base that the disk stands on, of which this is known now.
    pub fn adopt_ssd_base(&mut self, id: DiskId, owner: OwnerId, known: &Known) -> bool {
        let Some(domain) = self.disk(id).and_then(|disk| disk.base_domain()) else { return false };
        self.arena.tier_mut().is_some_and(|tier| tier.adopt_base(id, domain, owner, known))
    }

    /// All disks are here that another process has told of: what its store has of others goes, but for what is written
    /// down for the next start.
    pub fn settle_ssd(&mut self) {
        if let Some(tier) = self.arena.tier_mut() {
            tier.settle();
        }
    }

    /// The changes of the disk that have begun so far, if none is under way: a stamp that is taken of its image now,
    /// and given to [`Core::rest_ssd`] with this number, is that of what the store has.
    pub fn quiet_since(&self, id: DiskId) -> Option<u64> {
        self.arena.tier()?.quiet_since(id)
    }

    /// Whether all that the disk's image was given is durable. What is not may be gone later without a change of the
    /// image's stamp, while the store would still have it: so no stamp is taken before a flush
    /// ([`Event::MakeDurable`](crate::Event::MakeDurable)) vouches for it, nor ever after one has failed.
    pub fn durability(&self, id: DiskId) -> Durability {
        self.disk(id).map_or(Durability::NotNow, |disk| disk.durability(&self.arena))
    }

    /// A flush of the disk's image has failed that was not the core's: [`Durability::Never`] from now on.
    pub fn note_failed_flush(&mut self, id: DiskId) {
        if let Some(disk) = self.disk_mut(id) {
            disk.note_failed_flush();
        }
    }

    /// The disk has been quiet since `since`, and its image, all of which is durable, had this stamp meanwhile: what
    /// the store has of it is good for the next start. False if a change came between, if something is not known to be
    /// durable ([`Core::durability`]), or if the store does not take it now.
    pub fn rest_ssd(&mut self, id: DiskId, since: u64, stamp: Stamp) -> bool {
        let may_be_stamped = self.disk(id).is_some_and(|disk| disk.may_be_stamped(&self.arena));
        let Some(tier) = self.arena.tier_mut() else { return false };
        if !may_be_stamped || tier.quiet_since(id) != Some(since) {
            return false;
        }
        let Some(owner) = tier.owner(id) else { return false };
        tier.ssd_mut().quiet(owner, stamp) == crate::store::ssd::Quiet::Begun
    }

    /// Begins an orderly stop of the store: no change is under way, and none will come. These disks' images, durable as
    /// they are, have these stamps: what the store has of them is good for the next start, whichever boot that is in;
    /// but not of a disk of which a flush has failed before. It has ended when [`Ssd::is_stopped`] says so; ticks and
    /// completions go on until then.
    pub fn stop_ssd(&mut self, stamps: &[(DiskId, Stamp)]) {
        let is_known = |&&(id, _): &&(DiskId, Stamp)| self.durability(id) != Durability::Never;
        let stamps: Vec<_> = stamps.iter().filter(is_known).copied().collect();
        let Some(tier) = self.arena.tier_mut() else { return };
        let stamps: Vec<_> = stamps.iter().filter_map(|&(id, stamp)| Some((tier.owner(id)?, stamp))).collect();
        tier.ssd_mut().stop(&stamps);
    }

    /// Takes back the memory of an operation of the store's own that will never complete: only for a core that is about
    /// to be dropped.
    pub fn reclaim_in_ssd(&mut self, device: u16, buf: IoBuf) {
        if let Some(tier) = self.arena.tier_mut() {
            tier.ssd_mut().reclaim(device, buf);
        }
    }

    /// Numbers of the disk's part of the store, without what it has of its base; but its share is for both.
    pub fn ssd_stats_of(&self, id: DiskId) -> Option<OwnerStats> {
        let tier = self.arena.tier()?;
        let stats = tier.ssd().owner_stats(tier.owner(id)?);
        Some(OwnerStats { share_blocks: tier.share(id), ..stats })
    }

    /// Blocks that the disk may have of the store, those of its base among them; with none, nothing of it is admitted.
    pub fn set_ssd_share(&mut self, id: DiskId, blocks: u64) {
        if let Some(tier) = self.arena.tier_mut() {
            tier.set_share(id, blocks);
        }
    }

    /// Nothing of the disk is in the store any more.
    pub fn drop_ssd(&mut self, id: DiskId) {
        if let Some(tier) = self.arena.tier_mut() {
            tier.drop_all(id);
        }
    }

    /// The disk, which is idle, is about to be removed: what the store has of it stays with the owner that is returned,
    /// until whoever closes the image has told the store its stamp, and detached the owner. So does what it has of the
    /// disk's base, with the second one, if no other disk stands on that. Of a disk of which a flush has failed nothing
    /// stays: its image may have less than it was given.
    pub fn part_ssd(&mut self, id: DiskId) -> Option<(OwnerId, Option<OwnerId>)> {
        let may_have_less = self.durability(id) == Durability::Never;
        let tier = self.arena.tier_mut()?;
        if may_have_less {
            tier.drop_all(id);
        }
        tier.part(id)
    }

    /// An operation has ended that was the store's own.
    pub(super) fn ssd_done(&mut self, done: IoDone) {
        let IoDone { op, buf, result, .. } = done;
        let (device, id) = ((op.0 >> 48) as u16, op.0 & ((1 << 48) - 1));
        if let Some(tier) = self.arena.tier_mut() {
            tier.io_done(SsdDone { id, device, buf, is_done: result.is_ok() });
        }
    }

    /// Asks for all that the store wants done.
    #[cold]
    pub(super) fn serve_ssd<E: Effects>(&mut self, now_ns: u64, fx: &mut E) {
        while let Some(done) = self.arena.tier_mut().and_then(Tier::next_over) {
            let id = done.disk;
            self.bring_index(id);
            let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                self.reclaim(done.buf);
                continue;
            };
            let cx = &mut Cx { fx: &mut *fx, arena: &mut self.arena, now_ns, left: self.options.step_bytes };
            disk.done(done, cx);
            disk.go_on(cx);
            if disk.wants_spare() && disk.enlist() {
                self.spare.push_back(id);
            }
        }
        while let Some(io) = self.arena.tier_mut().and_then(Tier::next_released) {
            fx.submit(io);
        }
        while let Some(io) = self.arena.tier_mut().and_then(|tier| tier.next_io(now_ns)) {
            fx.submit(io_of(io));
        }
    }
}

/// An operation of the store, as back ends know operations.
fn io_of(io: SsdIo) -> Io {
    let SsdIo { id, device, kind, offset, len, buf } = io;
    let kind = match kind {
        SsdIoKind::Read => IoKind::Read,
        SsdIoKind::Write => IoKind::Write { fua: false },
        SsdIoKind::Flush => IoKind::Flush,
        SsdIoKind::Discard => IoKind::Discard,
    };
    assert!(id < 1 << 48, "numbers of operations have run out");
    Io { op: OpId(u64::from(device) << 48 | id), disk: SSD, target: IoTarget::Ssd(device), kind, offset, len, buf }
}
