//! What a disk has to do with the SSD store: blocks that leave RAM are offered, reads of what is there go there, and
//! changes are announced before they are submitted.
//!
//! Owns these meeting points. Never decides what the store keeps (it does), never waits for it but with the first
//! change after a quiet time. Invariants: what is offered is what the disk holds and no change covers; what was read of
//! the store is served only if its checksum is the block's, otherwise the image is read; a disk whose blocks are not
//! counted from the image's first byte has nothing in the store; the base's part of it gets what was read of the base,
//! and nothing that came from a guest.

use super::operations::Budget;
use super::reads::near::Near;
use super::records::{ReadOp, What};
use super::{B, Cx, Disk};
use crate::fault_injection::{Bug, FaultInjection};
use crate::limits::SSD_LATE_NS;
use crate::store::ram::Store;
use crate::store::ssd::{Hint, OwnerId};
use crate::store::tier::{At, Stored};
use crate::types::{DiskId, Durability, Effects, Io, IoDone, IoKind, IoTarget};
use undercroft_engine::origin_of;
use undercroft_host::{Frame, IoBuf};

impl<P: FaultInjection> Disk<P> {
    /// The block with this key is about to leave its slot, since another came or the share is smaller.
    #[inline]
    pub(super) fn offer_evicted(&mut self, slot: u32, key: u64, arena: &mut Store) {
        if arena.has_tier() {
            self.offer(slot, key, arena);
        }
    }

    #[cold]
    fn offer(&mut self, slot: u32, key: u64, arena: &mut Store) {
        let (owner, block) = (self.owner(key), key ^ origin_of(key));
        let own = owner == self.settings.id();
        // In a pool it may be another disk's: that one's numbers count.
        let counts_as_own = self.faults.has(Bug::BelowNumbersTakenForOwn);
        let displaced = if counts_as_own { own && self.settings.lead() != 0 } else { self.displaced(owner, arena) };
        if displaced {
            return;
        }
        let guest_holds = own && self.side.is_at_guest(block, arena);
        let reused = self.residents.was_read(slot);
        let pinned = self.residents.index().is_pinned_key(key);
        let Some(page) = self.residents.page(slot) else { return };
        // What came from a guest is never known as a block of the base, whatever it is equal to.
        let domain = arena.tier().and_then(|tier| tier.base_domain(owner));
        let slots = domain.and_then(|domain| arena.is_base_block(page, domain, block));
        if slots.is_some_and(|slots| slots > 1) {
            // Another disk has it in RAM, and the last one offers it.
            return;
        }
        if let Some(tier) = arena.tier_mut() {
            tier.leaves_ram(owner, block, page.bytes(), Hint { guest_holds, reused, pinned }, slots.is_some());
        }
    }

    fn displaced(&self, owner: DiskId, arena: &Store) -> bool {
        arena.tier().is_some_and(|tier| tier.is_displaced(owner))
    }

    /// How many of the `most` blocks from `block` on, none of which is cached or near, are to be read as one operation
    /// of `count` blocks, and where. `most` is at least 1.
    #[inline]
    pub(super) fn below(&mut self, block: u64, arena: &mut Store) -> Below {
        if !arena.has_tier() || self.settings.lead() != 0 {
            return Below::Image;
        }
        self.look_below(block, arena)
    }

    #[cold]
    fn look_below(&mut self, block: u64, arena: &mut Store) -> Below {
        let at_base = self.is_of_base(block);
        let Some(tier) = arena.tier_mut() else { return Below::Image };
        match tier.find(self.settings.id(), block, at_base) {
            At::Nowhere => Below::Image,
            At::Memory(..) => Below::Memory,
            At::Device(stored) => Below::Device(stored),
        }
    }

    /// Whether the store has the block. A look that nothing follows of.
    pub(super) fn is_below(&self, block: u64, arena: &mut Store) -> bool {
        let at_base = self.is_of_base(block);
        let tier = arena.tier_mut().filter(|_| self.settings.lead() == 0);
        tier.is_some_and(|tier| tier.has(self.settings.id(), block, at_base))
    }

    /// Whether the disk has the block of its base.
    fn is_of_base(&self, block: u64) -> bool {
        self.base_block(block).is_some() || self.faults.has(Bug::BelowBaseOutlivesChange)
    }

    /// Whether what the store has under this owner is not known as the disk's base: it may come from a guest.
    fn is_apart(&self, owner: OwnerId, arena: &Store) -> bool {
        let base = arena.tier().and_then(|tier| tier.base_owner(self.settings.id()));
        base != Some(owner) && !self.faults.has(Bug::BelowTakenForBase)
    }

    /// Reads blocks ahead, each from where it is. The caller has asked how many may be read.
    pub(super) fn read_each<E: Effects>(&mut self, first: u64, count: u64, cx: &mut Cx<'_, E>) {
        if !cx.arena.has_tier() {
            return self.start_read(first, count, None, cx);
        }
        let (mut block, end) = (first, first + count);
        while block < end {
            let place = self.below(block, cx.arena);
            let mut n = 1;
            while !place.is_memory() && block + n < end && place.goes_on(n, &self.below(block + n, cx.arena)) {
                n += 1;
            }
            match place {
                Below::Image => self.start_read(block, n, None, cx),
                _ => self.read_below(block, n, None, place, cx),
            }
            block += n;
        }
    }

    /// Reads blocks from the store for a request, or ahead of one: `count` of them, beside each other where `at` says;
    /// of memory, one.
    pub(super) fn read_below<E: Effects>(
        &mut self,
        first: u64,
        count: u64,
        rec: Option<u32>,
        at: Below,
        cx: &mut Cx<'_, E>,
    ) {
        let stored = match at {
            Below::Device(stored) => Some(stored),
            _ => None,
        };
        let budget = if rec.is_none() { Budget::Ahead } else { Budget::Demand };
        let frames = self.operations.take_frames(budget, count, cx.arena);
        let mut buf = IoBuf { frames, head: 0, len: (count * B) as u32 };
        let apart = stored.is_some_and(|stored| self.is_apart(stored.owner, cx.arena));
        let read = ReadOp { stored, apart, since_ns: cx.now_ns, ..self.read_for(first, count, rec) };
        let (op, id) = self.operations.begin(What::Read(read));
        self.near.reading(op, first, count as u32);
        let disk = self.settings.id();
        if let Some(Stored { device, offset, .. }) = stored {
            let (target, kind) = (IoTarget::Ssd(device), IoKind::Read);
            return cx.fx.submit(Io { op: id, disk, target, kind, offset, len: count * B, buf });
        }
        let at_base = self.is_of_base(first);
        let Some(tier) = cx.arena.tier_mut() else { unreachable!("just found there") };
        let At::Memory(owner, bytes) = tier.find(disk, first, at_base) else { unreachable!("just found in memory") };
        // A simulation holds no data: a frame that nobody wrote to takes no memory, and is equal already.
        if buf.frames[0].bytes() != bytes {
            buf.frames[0].bytes_mut().copy_from_slice(bytes);
        }
        tier.is_over(IoDone { op: id, disk, buf, result: Ok(()), extents: Vec::new() });
        let apart = self.is_apart(owner, cx.arena);
        self.operations.read_mut(op).apart = apart;
        self.come_from_below(first, 1, owner, cx.arena);
    }

    /// A read of the store has ended: what is not good is read from the image, in the same frames.
    #[cold]
    pub(super) fn read_below_done<E: Effects>(
        &mut self,
        op: u32,
        read: ReadOp,
        stored: Stored,
        done: IoDone,
        cx: &mut Cx<'_, E>,
    ) {
        let Some(tier) = cx.arena.tier_mut() else { unreachable!("it was read from") };
        let mut good = done.result.is_ok();
        for (i, frame) in done.buf.frames.iter().enumerate() {
            let (block, at) = (read.first + i as u64, Stored { token: stored.token.after(i as u32), ..stored });
            if done.result.is_err() {
                tier.read_failed(block, &at);
            } else {
                good &= tier.is_good(block, &at, frame.bytes()) || self.faults.has(Bug::BelowServesAnything);
            }
        }
        if good {
            let took_ns = cx.now_ns.saturating_sub(read.since_ns);
            self.stats.ssd_read_ns = self.stats.ssd_read_ns.saturating_add(took_ns);
            self.come_from_below(read.first, read.count, stored.owner, cx.arena);
            return self.read_done(ReadOp { stored: None, ..read }, done, cx);
        }
        self.read_image_instead(op, read, done.buf.frames, cx);
    }

    /// Operation `op` was to read blocks from the store: the image is read for those who wait.
    fn read_image_instead<E: Effects>(&mut self, op: u32, read: ReadOp, frames: Vec<Frame>, cx: &mut Cx<'_, E>) {
        let (read, from) = (ReadOp { stored: None, apart: false, since_ns: cx.now_ns, ..read }, read.first * B);
        let buf = IoBuf { frames, head: 0, len: (u64::from(read.count) * B) as u32 };
        let again = self.submit(What::Read(read), IoKind::Read, from, u64::from(buf.len), buf, cx);
        for at in (0..read.count).filter(|at| read.fresh & 1 << at != 0) {
            let block = read.first + u64::from(at);
            debug_assert!(matches!(self.near.get(block), Some(Near::Reading { op: was, .. }) if was == op));
            self.near.read_over(block);
            self.near.reading_one(again, at, block);
        }
    }

    /// Time has passed: what the store has not given for long is read from the image as well, as far as there is room.
    pub(crate) fn race_late_reads<E: Effects>(&mut self, cx: &mut Cx<'_, E>) {
        let before_ns = cx.now_ns.saturating_sub(SSD_LATE_NS);
        while let Some(op) = self.operations.late_read(before_ns) {
            let read = *self.operations.read_mut(op);
            let (budget, room) = match read.ahead {
                true => (Budget::Ahead, self.ahead_room(cx.arena) as u64),
                false => (Budget::Demand, self.demand_room(cx.arena)),
            };
            if room < u64::from(read.count) {
                return;
            }
            let frames = self.operations.take_frames(budget, u64::from(read.count), cx.arena);
            self.operations.give_up(op, What::Late { count: read.count, ahead: read.ahead });
            self.stats.ssd_late_blocks += u64::from(read.count);
            self.read_image_instead(op, read, frames, cx);
        }
    }

    /// The store has given at last what nobody waits for any more.
    #[cold]
    pub(super) fn late_done<E>(&mut self, count: u32, ahead: bool, done: IoDone, cx: &mut Cx<'_, E>) {
        let budget = if ahead { Budget::Ahead } else { Budget::Demand };
        self.operations.release(budget, count as usize);
        self.operations.free(done.buf, cx.arena);
    }

    /// Blocks that were found in the store go into RAM, or to a guest that may hold them.
    fn come_from_below(&mut self, first: u64, count: u32, owner: OwnerId, arena: &mut Store) {
        self.stats.ssd_hit_blocks += u64::from(count);
        let is_own = self.is_apart(owner, arena);
        let Some(tier) = arena.tier_mut() else { return };
        for block in first..first + u64::from(count) {
            // What this guest has of the base, the others on it may have not.
            if self.residents.slot(block).is_some() || is_own && self.side.is_seen() {
                tier.hold(owner, block);
            }
        }
    }

    /// Whether all that the image was given is durable, so that its stamp may be taken for what the store has. What an
    /// earlier process wrote and never flushed may be in it, too, unless the store knows the image as it is.
    pub(crate) fn durability(&self, arena: &Store) -> Durability {
        let id = self.settings.id();
        if self.settings.options().read_only {
            return Durability::Whole;
        }
        if self.losses.has_failed() {
            return Durability::Never;
        }
        let Some(tier) = arena.tier().filter(|tier| tier.quiet_since(id).is_some()) else { return Durability::NotNow };
        if self.requests.is_flushing() {
            return Durability::NotNow;
        }
        let is_clean = tier.owner(id).is_some_and(|owner| tier.ssd().owner_stats(owner).is_clean);
        if is_clean || tier.is_vouched(id) { Durability::Whole } else { Durability::Unflushed }
    }

    /// Whether a stamp of the image may be taken now.
    pub(crate) fn may_be_stamped(&self, arena: &Store) -> bool {
        self.durability(arena) == Durability::Whole || self.faults.has(Bug::StampUnflushed)
    }

    /// Blocks `first..end` of each change that has begun and not ended.
    pub(crate) fn changing(&self) -> Vec<(u64, u64)> {
        self.changes.active().collect()
    }

    /// A change of blocks `first..end` begins: nothing of it is in the store from now on, until it has ended.
    pub(super) fn change_below(&mut self, first: u64, end: u64, arena: &mut Store) {
        if !self.faults.has(Bug::BelowKeepsChanged)
            && let Some(tier) = arena.tier_mut()
        {
            tier.change_begins(self.settings.id(), first, end);
        }
    }

    /// It has ended.
    pub(super) fn changed_below(&mut self, first: u64, end: u64, arena: &mut Store) {
        if !self.faults.has(Bug::BelowKeepsChanged)
            && let Some(tier) = arena.tier_mut()
        {
            tier.change_ended(self.settings.id(), first, end);
        }
    }

    /// Submits an operation, or has it wait with the change that it belongs to.
    #[inline]
    pub(super) fn send<E: Effects>(&self, io: Io, cx: &mut Cx<'_, E>) {
        if io.kind.changes()
            && let Some(tier) = cx.arena.tier_mut()
            && !self.faults.has(Bug::BelowNotAwaited)
        {
            if let Some(io) = tier.hold_up(io) {
                cx.fx.submit(io);
            }
            return;
        }
        cx.fx.submit(io);
    }
}

/// Where blocks below RAM are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Below {
    /// The image alone has them.
    Image,
    /// The store has the block in memory.
    Memory,
    /// The store has it on a device.
    Device(Stored),
}

impl Below {
    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Below::Memory)
    }

    /// Whether the block after `count` blocks from here on, which is at `next`, is beside them.
    pub(super) fn goes_on(&self, count: u64, next: &Below) -> bool {
        match (self, next) {
            (Below::Image, Below::Image) => true,
            (Below::Device(a), Below::Device(b)) => {
                a.device == b.device && a.offset + count * B == b.offset && a.token.after(count as u32) == b.token
            }
            _ => false,
        }
    }
}
