//! The SSD store as the disks of a core see it: by their own numbers, with the changes that wait for it.
//!
//! Owns which disk is which owner of the store, which disks stand on a base that is an owner of its own, and the
//! operations that the store holds up. Never decides what the store keeps. Invariants: an operation that changes an
//! image is submitted only when the store has let the change go, and those of a disk are submitted in their order; a
//! base has one owner within a sharing domain, as long as a disk of it stands on that; a disk whose blocks are not
//! counted from the image's first byte has nothing in the store.

use super::ram::SharingDomain;
use super::ssd::{
    Change, Hint, Kept, Known, Offered, OwnerId, Pinned, Ssd, SsdDone, SsdFound, SsdIo, SsdUse, Token, TooManyOwners,
    Verified, WaitId,
};
use crate::types::{DiskId, Io, IoDone};
use std::collections::VecDeque;
use undercroft_host::{FRAME_BYTES, IoBuf};

/// How a disk uses the store.
#[derive(Debug)]
struct Use {
    owner: OwnerId,
    /// Whole blocks of the disk: a last one that is partial is not kept.
    whole: u64,
    /// Changes of it that wait.
    waits: Vec<WaitId>,
    /// Changes of it that have begun and not ended.
    changes: u32,
    /// Counts those that have begun: whoever looks at the image twice sees whether one came between.
    begun: u64,
    /// How many had begun, and ended, when the last flush began that succeeded.
    vouched: Option<u64>,
    /// The base that it stands on, if that is an owner.
    base: Option<OwnerId>,
    /// Blocks that it may have, those of the base among them.
    share: u64,
    /// Of these, how many in a thousand are the base's.
    base_part: u64,
    /// Blocks looked for lately: of its own, and of the base.
    asked: [u64; 2],
    /// Its blocks are not counted from the image's first byte: the store, which knows them by their numbers, has none.
    is_displaced: bool,
    /// What is pinned of it.
    pins: Pinned,
}

/// A read-only image that disks of one sharing domain stand on.
#[derive(Debug)]
struct BaseUse {
    domain: SharingDomain,
    owner: OwnerId,
    users: Vec<DiskId>,
}

/// The base's part of a disk's share is set anew after so many blocks were looked for...
const ASKED_ENOUGH: u64 = 256;
/// ... and is at first, at least and at most so many in a thousand.
const BASE_PART: [u64; 3] = [500, 60, 940];

/// Blocks beside each other on a device, as a read goes through them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub owner: OwnerId,
    pub device: u16,
    pub offset: u64,
    pub token: Token,
}

/// Where the store has a block.
pub(crate) enum At<'a> {
    Nowhere,
    Memory(OwnerId, &'a [u8; FRAME_BYTES]),
    Device(Stored),
}

/// See the head of the file.
pub(crate) struct Tier {
    ssd: Ssd,
    uses: Vec<Option<Use>>,
    bases: Vec<BaseUse>,
    /// Operations of disks whose changes wait.
    held_up: VecDeque<Io>,
    /// Operations that are over without having been submitted: their bytes were in memory.
    over: VecDeque<IoDone>,
    /// Changes that may go on, for a moment.
    released: Vec<WaitId>,
    pub now_ns: u64,
}

impl Tier {
    pub(crate) fn new(ssd: Ssd) -> Self {
        let (uses, bases, released) = (Vec::new(), Vec::new(), Vec::new());
        Self { ssd, uses, bases, held_up: VecDeque::new(), over: VecDeque::new(), released, now_ns: 0 }
    }

    /// The store itself, for those who set it up and ask for its numbers.
    pub(crate) fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// The same, to change it.
    pub(crate) fn ssd_mut(&mut self) -> &mut Ssd {
        &mut self.ssd
    }

    /// From now on the disk uses the store; what is its own is held in common with disks of the same group.
    ///
    /// # Errors
    /// If the store has as many owners as it may have.
    pub(crate) fn attach(
        &mut self,
        disk: DiskId,
        known: &Known,
        whole: u64,
        group: SharingDomain,
    ) -> Result<Kept, TooManyOwners> {
        let (owner, kept) = self.ssd.attach(known)?;
        self.ssd.set_domain(owner, group);
        self.begin_use(disk, owner, whole, 0);
        Ok(kept)
    }

    fn begin_use(&mut self, disk: DiskId, owner: OwnerId, whole: u64, share: u64) {
        let at = disk.0 as usize;
        if self.uses.len() <= at {
            self.uses.resize_with(at + 1, || None);
        }
        self.uses[at] = Some(Use {
            owner,
            whole,
            waits: Vec::new(),
            changes: 0,
            begun: 0,
            vouched: None,
            base: None,
            share,
            base_part: BASE_PART[0],
            asked: [0; 2],
            is_displaced: false,
            pins: Pinned::default(),
        });
    }

    /// From now on the disk's blocks are counted from the image's first byte, or from elsewhere; then all goes that the
    /// store has of it.
    pub(crate) fn set_displaced(&mut self, disk: DiskId, is_displaced: bool) {
        let Some(user) = self.of_mut(disk) else { return };
        user.is_displaced = is_displaced;
        if is_displaced {
            self.drop_all(disk);
        }
    }

    /// Whether what leaves RAM of the disk must not come here: its numbers of blocks are not the image's.
    pub(crate) fn is_displaced(&self, disk: DiskId) -> bool {
        self.of(disk).is_some_and(|user| user.is_displaced)
    }

    // ---- another process ----

    /// How the disk uses the store.
    pub(crate) fn use_of(&self, disk: DiskId) -> Option<SsdUse> {
        self.of(disk).map(|&Use { owner, base, share, .. }| SsdUse { owner, base, share })
    }

    /// The disk uses the store as another process did, of which the store was taken over. False if it has no owner of
    /// that name, or another disk has it.
    pub(crate) fn adopt(&mut self, disk: DiskId, as_before: &SsdUse, whole: u64, group: SharingDomain) -> bool {
        let SsdUse { owner, share, .. } = *as_before;
        let is_taken = self.uses.iter().flatten().any(|u| u.owner == owner);
        if is_taken || !self.ssd.has_owner(owner) {
            return false;
        }
        self.ssd.set_domain(owner, group);
        self.begin_use(disk, owner, whole, share);
        self.divide();
        true
    }

    /// The disk stands on this base, as it did then, of which the same is known now. False if that is another one.
    pub(crate) fn adopt_base(&mut self, disk: DiskId, domain: SharingDomain, owner: OwnerId, known: &Known) -> bool {
        let is_same = |was: &Known| was.stamp.is_some() && (was.identity, was.stamp) == (known.identity, known.stamp);
        if self.of(disk).is_none() || !self.ssd.known(owner).is_some_and(is_same) {
            return false;
        }
        // One domain has one owner, and that owner no other domain.
        let is_other = |b: &BaseUse| (b.domain == domain) != (b.owner == owner);
        if self.bases.iter().any(is_other) {
            return false;
        }
        match self.bases.iter_mut().find(|b| b.domain == domain) {
            Some(base) => base.users.push(disk),
            None => self.bases.push(BaseUse { domain, owner, users: vec![disk] }),
        }
        if let Some(user) = self.of_mut(disk) {
            user.base = Some(owner);
        }
        self.divide();
        self.tell_pins(disk);
        true
    }

    /// What the other process had of disks that are not here goes, but for what is written down.
    pub(crate) fn settle(&mut self) {
        let is_used = |owner: &OwnerId| {
            self.uses.iter().flatten().any(|u| u.owner == *owner) || self.bases.iter().any(|b| b.owner == *owner)
        };
        let unused: Vec<_> = self.ssd.attached().into_iter().filter(|owner| !is_used(owner)).collect();
        unused.into_iter().for_each(|owner| self.ssd.detach(owner));
    }

    /// The disk goes; what the store has of it stays until its room is wanted.
    pub(crate) fn detach(&mut self, disk: DiskId) {
        self.forget_base(disk);
        if let Some(gone) = self.uses.get_mut(disk.0 as usize).and_then(Option::take) {
            self.ssd.detach(gone.owner);
        }
    }

    /// The disk goes, but not yet what the store has of it: under this name; and under this one that of its base, if no
    /// other disk stands on that.
    pub(crate) fn part(&mut self, disk: DiskId) -> Option<(OwnerId, Option<OwnerId>)> {
        let base = self.leave_base(disk);
        let gone = self.uses.get_mut(disk.0 as usize).and_then(Option::take)?;
        Some((gone.owner, base))
    }

    /// The store's name for the disk, if it uses the store.
    pub(crate) fn owner(&self, disk: DiskId) -> Option<OwnerId> {
        self.uses.get(disk.0 as usize)?.as_ref().map(|u| u.owner)
    }

    fn of(&self, disk: DiskId) -> Option<&Use> {
        self.uses.get(disk.0 as usize)?.as_ref()
    }

    fn of_mut(&mut self, disk: DiskId) -> Option<&mut Use> {
        self.uses.get_mut(disk.0 as usize)?.as_mut()
    }

    // ---- bases ----

    /// The disk, which uses the store, stands on a base that is known as this, and that disks of the sharing domain
    /// have in common.
    ///
    /// # Errors
    /// If the store has as many owners as it may have.
    pub(crate) fn stand_on(
        &mut self,
        disk: DiskId,
        domain: SharingDomain,
        known: &Known,
    ) -> Result<Option<Kept>, TooManyOwners> {
        self.forget_base(disk);
        if self.of(disk).is_none() {
            return Ok(None);
        }
        let (owner, kept) = match self.bases.iter_mut().find(|b| b.domain == domain) {
            Some(base) => {
                base.users.push(disk);
                (base.owner, Kept::Blocks(self.ssd.owner_stats(base.owner).blocks))
            }
            None => {
                let (owner, kept) = self.ssd.attach(known)?;
                self.bases.push(BaseUse { domain, owner, users: vec![disk] });
                (owner, kept)
            }
        };
        if let Some(user) = self.of_mut(disk) {
            (user.base, user.base_part, user.asked) = (Some(owner), BASE_PART[0], [0; 2]);
        }
        self.divide();
        self.tell_pins(disk);
        Ok(Some(kept))
    }

    /// The disk stands on no base any more. What the store has of one that no other disk stands on stays only if it is
    /// written down.
    pub(crate) fn forget_base(&mut self, disk: DiskId) {
        if let Some(owner) = self.leave_base(disk) {
            self.ssd.detach(owner);
        }
    }

    /// The same; returns the store's name for the base if no disk stands on it now.
    fn leave_base(&mut self, disk: DiskId) -> Option<OwnerId> {
        let owner = self.of_mut(disk)?.base.take()?;
        let n = self.bases.iter().position(|b| b.owner == owner)?;
        self.bases[n].users.retain(|user| *user != disk);
        let is_last = self.bases[n].users.is_empty();
        if is_last {
            self.bases.swap_remove(n);
        }
        self.divide();
        if !is_last {
            self.tell_pins_of_base(owner);
        }
        is_last.then_some(owner)
    }

    /// The store's name for the base that the disk stands on.
    pub(crate) fn base_owner(&self, disk: DiskId) -> Option<OwnerId> {
        self.of(disk)?.base
    }

    fn base_of(&self, disk: DiskId) -> Option<&BaseUse> {
        let owner = self.base_owner(disk)?;
        self.bases.iter().find(|b| b.owner == owner)
    }

    /// The sharing domain in which the disk has a base in the store.
    pub(crate) fn base_domain(&self, disk: DiskId) -> Option<SharingDomain> {
        self.base_of(disk).map(|b| b.domain)
    }

    /// The disk may have so many blocks; without any, nothing of it is admitted.
    pub(crate) fn set_share(&mut self, disk: DiskId, blocks: u64) {
        if let Some(user) = self.of_mut(disk) {
            user.share = blocks;
            self.divide();
            self.tell_pins(disk);
        }
    }

    /// Blocks that the disk may have, those of its base among them.
    pub(crate) fn share(&self, disk: DiskId) -> u64 {
        self.of(disk).map_or(0, |u| u.share)
    }

    /// Tells the store what its owners may have: a disk gives the base a part of its share.
    fn divide(&mut self) {
        for base in &self.bases {
            let users = || base.users.iter().filter_map(|d| self.uses[d.0 as usize].as_ref());
            self.ssd.set_share(base.owner, users().map(|u| u.share * u.base_part / 1000).sum());
        }
        for user in self.uses.iter().flatten() {
            let base = if user.base.is_some() { user.share * user.base_part / 1000 } else { 0 };
            self.ssd.set_share(user.owner, user.share - base);
        }
    }

    /// These blocks of the disk are pinned, sorted, none in two of them; those that it has of its base are the base's.
    pub(crate) fn set_pins(&mut self, disk: DiskId, pins: Vec<(u64, u64)>) {
        let Some(user) = self.of_mut(disk) else { return };
        if !(user.pins.is_empty() && pins.is_empty()) {
            user.pins = pins.into();
            self.tell_pins(disk);
        }
    }

    /// Tells the store what is pinned of a disk, and of its base by any disk that stands on it.
    fn tell_pins(&mut self, disk: DiskId) {
        let Some(user) = self.uses.get(disk.0 as usize).and_then(Option::as_ref) else { return };
        self.ssd.set_pins(user.owner, &user.pins);
        if let Some(base) = user.base {
            self.tell_pins_of_base(base);
        }
    }

    fn tell_pins_of_base(&mut self, owner: OwnerId) {
        let users = self.uses.iter().flatten().filter(|u| u.base == Some(owner));
        let mut all: Vec<(u64, u64)> = users.flat_map(|u| u.pins.iter().copied()).collect();
        all.sort_unstable();
        all.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
        self.ssd.set_pins(owner, &all.into());
    }

    /// Time has passed. What a disk has looked for lately says how much of its share is the base's.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let mut is_other = false;
        for user in self.uses.iter_mut().flatten().filter(|u| u.base.is_some()) {
            let [own, base] = user.asked;
            if own + base >= ASKED_ENOUGH {
                let part = (3 * user.base_part + 1000 * base / (own + base)) / 4;
                (user.base_part, user.asked) = (part.clamp(BASE_PART[1], BASE_PART[2]), [0; 2]);
                is_other = true;
            }
        }
        if is_other {
            self.divide();
        }
        self.ssd.tick(now_ns);
    }

    // ---- blocks ----

    /// Where a block is that is to be read; `at_base`: the disk has it of its base.
    pub(crate) fn find(&mut self, disk: DiskId, block: u64, at_base: bool) -> At<'_> {
        let Some(user) = self.of_mut(disk).filter(|u| block < u.whole && !u.is_displaced) else { return At::Nowhere };
        user.asked[usize::from(at_base)] += 1;
        let (own, base) = (user.owner, user.base.filter(|_| at_base));
        let owner = base.filter(|base| self.ssd.has(*base, block)).unwrap_or(own);
        match self.ssd.lookup(owner, block) {
            None => At::Nowhere,
            Some(SsdFound::Staged(bytes)) => At::Memory(owner, bytes),
            Some(SsdFound::Stored { device, offset, token }) => At::Device(Stored { owner, device, offset, token }),
        }
    }

    /// Whether a block is there that would be read; not counted as looked for, and nothing follows of it.
    pub(crate) fn has(&mut self, disk: DiskId, block: u64, at_base: bool) -> bool {
        let Some(user) = self.of(disk).filter(|u| block < u.whole && !u.is_displaced) else { return false };
        let (own, base) = (user.owner, user.base.filter(|_| at_base));
        base.is_some_and(|base| self.ssd.has(base, block)) || self.ssd.has(own, block)
    }

    /// Whether bytes that were read are the block's.
    pub(crate) fn is_good(&mut self, block: u64, stored: &Stored, bytes: &[u8; FRAME_BYTES]) -> bool {
        self.ssd.verify(stored.owner, block, stored.token, bytes) == Verified::Good
    }

    /// A block of the store could not be read.
    pub(crate) fn read_failed(&mut self, block: u64, stored: &Stored) {
        self.ssd.read_failed(stored.owner, block, stored.token);
    }

    /// The block, which was found with this owner, is in RAM from now on, or the guest holds it.
    pub(crate) fn hold(&mut self, owner: OwnerId, block: u64) {
        self.ssd.hold(owner, block);
    }

    /// The block leaves RAM as it came there. `at_base`: the bytes are those of the base's block with this number, and
    /// no other disk has them in RAM.
    pub(crate) fn leaves_ram(
        &mut self,
        disk: DiskId,
        block: u64,
        bytes: &[u8; FRAME_BYTES],
        hint: Hint,
        at_base: bool,
    ) {
        let Some(user) = self.of(disk).filter(|u| block < u.whole) else { return };
        let base = self.base_of(disk).filter(|_| at_base);
        // What one guest has of a base, the others may have not.
        let guest_holds = hint.guest_holds && base.is_none_or(|b| b.users.len() == 1);
        let owner = base.map_or(user.owner, |b| b.owner);
        if guest_holds || self.ssd.let_go(owner, block, hint.reused) {
            return;
        }
        let hint = Hint { guest_holds, ..hint };
        let _: Offered = self.ssd.offer(owner, block, bytes, hint, self.now_ns);
    }

    /// Blocks `first..end` may not be what the image holds.
    pub(crate) fn invalidate(&mut self, disk: DiskId, first: u64, end: u64) {
        if let Some(owner) = self.owner(disk) {
            self.ssd.invalidate(owner, first..end);
        }
    }

    /// The whole disk may be another.
    pub(crate) fn drop_all(&mut self, disk: DiskId) {
        if let Some(owner) = self.owner(disk) {
            self.ssd.invalidate_all(owner);
        }
    }

    // ---- changes ----

    /// A change of blocks `first..end` begins.
    pub(crate) fn change_begins(&mut self, disk: DiskId, first: u64, end: u64) {
        let Some(user) = self.uses.get_mut(disk.0 as usize).and_then(Option::as_mut) else { return };
        user.changes += 1;
        user.begun += 1;
        if let Change::Wait(id) = self.ssd.change_begins(user.owner, first..end) {
            user.waits.push(id);
        }
    }

    /// It has ended.
    pub(crate) fn change_ended(&mut self, disk: DiskId, first: u64, end: u64) {
        let Some(user) = self.uses.get_mut(disk.0 as usize).and_then(Option::as_mut) else { return };
        user.changes -= 1;
        self.ssd.change_ended(user.owner, first..end);
    }

    /// Takes an operation that changes an image, if a change of the disk waits; gives it back if none does.
    pub(crate) fn hold_up(&mut self, io: Io) -> Option<Io> {
        let user = self.uses.get(io.disk.0 as usize).and_then(Option::as_ref);
        if user.is_none_or(|u| u.waits.is_empty()) {
            return Some(io);
        }
        self.held_up.push_back(io);
        None
    }

    /// Changes of the disk that have begun so far, if none is under way.
    pub(crate) fn quiet_since(&self, disk: DiskId) -> Option<u64> {
        let user = self.uses.get(disk.0 as usize)?.as_ref()?;
        (user.changes == 0).then_some(user.begun)
    }

    /// A flush of the disk has succeeded that began after `quiet` changes, with none under way; with one, it vouches
    /// for nothing.
    pub(crate) fn vouch(&mut self, disk: DiskId, quiet: Option<u64>) {
        if let Some(user) = self.of_mut(disk) {
            user.vouched = user.vouched.max(quiet);
        }
    }

    /// Whether a flush vouches for all changes of the disk, those among them that failed: they may have been made in
    /// part.
    pub(crate) fn is_vouched(&self, disk: DiskId) -> bool {
        self.of(disk).is_some_and(|user| user.vouched == Some(user.begun))
    }

    /// An operation of a disk is over without having been submitted.
    pub(crate) fn is_over(&mut self, done: IoDone) {
        self.over.push_back(done);
    }

    // ---- what is to be done ----

    /// The next operation that is over.
    pub(crate) fn next_over(&mut self) -> Option<IoDone> {
        self.over.pop_front()
    }

    /// The next operation that waited, of a disk whose changes may go on.
    pub(crate) fn next_released(&mut self) -> Option<Io> {
        self.ssd.take_released(&mut self.released);
        for id in self.released.drain(..) {
            self.uses.iter_mut().flatten().for_each(|u| u.waits.retain(|w| *w != id));
        }
        let waits = |io: &Io| !self.uses[io.disk.0 as usize].as_ref().is_none_or(|u| u.waits.is_empty());
        let at = self.held_up.iter().position(|io| !waits(io))?;
        self.held_up.remove(at)
    }

    /// The next operation on a device.
    pub(crate) fn next_io(&mut self, now_ns: u64) -> Option<SsdIo> {
        self.ssd.next_io(now_ns)
    }

    /// An operation on a device has ended.
    pub(crate) fn io_done(&mut self, done: SsdDone) {
        self.ssd.io_done(done);
    }

    /// The buffer of an operation that has not been submitted, of a core that is dropped.
    pub(crate) fn take_unsent(&mut self) -> Option<IoBuf> {
        self.held_up.pop_front().map(|io| io.buf).or_else(|| self.over.pop_front().map(|done| done.buf))
    }
}
