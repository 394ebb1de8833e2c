//! The SSD store as the disks of a core see it: by their own numbers, with the changes that wait for it.
//!
//! Owns which disk is which owner of the store, and the operations that the store holds up. Never decides what the
//! store keeps. Invariant: an operation that changes an image is submitted only when the store has let the change go,
//! and those of a disk are submitted in their order.

use super::ssd::{
    Change, Hint, Kept, Known, Offered, OwnerId, Ssd, SsdDone, SsdFound, SsdIo, Token, TooManyOwners, Verified, WaitId,
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
}

/// Blocks beside each other on a device, as a read goes through them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub device: u16,
    pub offset: u64,
    pub token: Token,
    /// When it was asked for.
    pub since_ns: u64,
}

/// Where the store has a block.
pub(crate) enum At<'a> {
    Nowhere,
    Memory(&'a [u8; FRAME_BYTES]),
    Device(Stored),
}

/// See the head of the file.
pub(crate) struct Tier {
    ssd: Ssd,
    uses: Vec<Option<Use>>,
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
        Self { ssd, uses: Vec::new(), held_up: VecDeque::new(), over: VecDeque::new(), released: Vec::new(), now_ns: 0 }
    }

    /// The store itself, for those who set it up and ask for its numbers.
    pub(crate) fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// The same, to change it.
    pub(crate) fn ssd_mut(&mut self) -> &mut Ssd {
        &mut self.ssd
    }

    /// From now on the disk uses the store.
    ///
    /// # Errors
    /// If the store has as many owners as it may have.
    pub(crate) fn attach(&mut self, disk: DiskId, known: &Known, whole: u64) -> Result<Kept, TooManyOwners> {
        let (owner, kept) = self.ssd.attach(known)?;
        let at = disk.0 as usize;
        if self.uses.len() <= at {
            self.uses.resize_with(at + 1, || None);
        }
        self.uses[at] = Some(Use { owner, whole, waits: Vec::new(), changes: 0, begun: 0 });
        Ok(kept)
    }

    /// The disk goes; what the store has of it stays until its room is wanted.
    pub(crate) fn detach(&mut self, disk: DiskId) {
        if let Some(gone) = self.uses.get_mut(disk.0 as usize).and_then(Option::take) {
            self.ssd.detach(gone.owner);
        }
    }

    /// The disk goes, but not yet what the store has of it: under this name.
    pub(crate) fn part(&mut self, disk: DiskId) -> Option<OwnerId> {
        self.uses.get_mut(disk.0 as usize).and_then(Option::take).map(|gone| gone.owner)
    }

    /// The store's name for the disk, if it uses the store.
    pub(crate) fn owner(&self, disk: DiskId) -> Option<OwnerId> {
        self.uses.get(disk.0 as usize)?.as_ref().map(|u| u.owner)
    }

    fn whole(&self, disk: DiskId, block: u64) -> Option<OwnerId> {
        self.uses.get(disk.0 as usize)?.as_ref().filter(|u| block < u.whole).map(|u| u.owner)
    }

    // ---- blocks ----

    /// Where a block is that is to be read.
    pub(crate) fn find(&mut self, disk: DiskId, block: u64) -> At<'_> {
        let Some(owner) = self.whole(disk, block) else { return At::Nowhere };
        match self.ssd.lookup(owner, block) {
            None => At::Nowhere,
            Some(SsdFound::Staged(bytes)) => At::Memory(bytes),
            Some(SsdFound::Stored { device, offset, token }) => {
                At::Device(Stored { device, offset, token, since_ns: 0 })
            }
        }
    }

    /// Whether bytes that were read are the block's.
    pub(crate) fn is_good(&mut self, disk: DiskId, block: u64, token: Token, bytes: &[u8; FRAME_BYTES]) -> bool {
        let Some(owner) = self.whole(disk, block) else { return false };
        self.ssd.verify(owner, block, token, bytes) == Verified::Good
    }

    /// A block of the store could not be read.
    pub(crate) fn read_failed(&mut self, disk: DiskId, block: u64, stored: Stored) {
        if let Some(owner) = self.whole(disk, block) {
            self.ssd.read_failed(owner, block, stored.token);
        }
    }

    /// The block is in RAM from now on, or the guest holds it.
    pub(crate) fn hold(&mut self, disk: DiskId, block: u64) {
        if let Some(owner) = self.whole(disk, block) {
            self.ssd.hold(owner, block);
        }
    }

    /// The block leaves RAM as it came there.
    pub(crate) fn leaves_ram(&mut self, disk: DiskId, block: u64, bytes: &[u8; FRAME_BYTES], hint: Hint) {
        let Some(owner) = self.whole(disk, block) else { return };
        if hint.guest_holds || self.ssd.let_go(owner, block, hint.reused) {
            return;
        }
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
    pub(crate) fn next_io(&mut self) -> Option<SsdIo> {
        self.ssd.next_io()
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
