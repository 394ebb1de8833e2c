//! The store of one core: its regions, one of each device.
//!
//! Owns which region a block belongs to, and the changes that wait. Never looks into a region. Invariant: a change is
//! ready when every region says so.

use super::region::Region;
use super::types::*;
use crate::fault_injection::{FaultInjection, NoFaults};
use std::ops::Range;
use undercroft_host::IoBuf;

/// Neighbouring blocks that lie in one region, as a power of two: what one operation spans at most (256 KiB).
const STRIPE_SHIFT: u32 = 6;

/// An owner.
pub(super) struct Attached {
    pub known: Known,
    /// Blocks that it may have.
    pub share: u64,
    /// What it has in common with others of the same number.
    pub domain: u16,
    /// What is pinned of it.
    pub pins: Pinned,
    /// Its number in each region.
    pub numbers: Vec<Option<u16>>,
}

/// See the head of the file; how it is used stands at the head of its module.
pub struct Ssd<F: FaultInjection = NoFaults> {
    pub(super) regions: Vec<Region<F>>,
    pub(super) owners: Vec<Option<Attached>>,
    waits: Vec<(WaitId, OwnerId)>,
    last_wait: u64,
    /// Whose turn it is to be asked for I/O.
    turn: usize,
    admission: Admission,
    budget: Option<u64>,
    discards: bool,
}

/// Blocks of these ranges that lie in region `n` of so many.
fn blocks_on(ranges: &[(u64, u64)], n: u64, regions: u64) -> u64 {
    let (stripe, turn) = (1 << STRIPE_SHIFT, regions << STRIPE_SHIFT);
    let before = |block: u64| block / turn * stripe + (block % turn).saturating_sub(n * stripe).min(stripe);
    ranges.iter().map(|&(first, end)| before(end) - before(first)).sum()
}

impl<F: FaultInjection> Ssd<F> {
    /// A store of regions, one of each device, in the order of the devices' numbers.
    ///
    /// # Panics
    /// If there are none, or more than 2^16.
    pub fn new(regions: Vec<Region<F>>) -> Self {
        assert!((1..=1 << 16).contains(&regions.len()), "a store has devices");
        let mut regions = regions;
        regions.iter_mut().enumerate().for_each(|(n, region)| region.set_device(n as u16));
        Self {
            regions,
            owners: Vec::new(),
            waits: Vec::new(),
            last_wait: 0,
            turn: 0,
            admission: Admission::default(),
            budget: None,
            discards: true,
        }
    }

    /// A disk comes. What is told is the better of what its regions kept: the sum of their blocks.
    ///
    /// # Errors
    /// If the store has disks enough.
    pub fn attach(&mut self, known: &Known) -> Result<(OwnerId, Kept), TooManyOwners> {
        let (mut numbers, mut blocks, mut dropped) = (Vec::new(), None, None);
        for region in &mut self.regions {
            let attached = region.attach(known);
            match attached {
                Ok((number, kept)) => {
                    numbers.push(Some(number));
                    match kept {
                        Kept::Blocks(n) => blocks = Some(blocks.unwrap_or(0) + n),
                        Kept::Dropped(why) => dropped = Some(why),
                        Kept::New => {}
                    }
                }
                Err(e) => {
                    for (region, number) in self.regions.iter_mut().zip(&numbers) {
                        number.iter().for_each(|n| region.detach(*n));
                    }
                    return Err(e);
                }
            }
        }
        let free = self.owners.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.owners.push(None);
            self.owners.len() - 1
        });
        self.owners[place] = Some(Attached { known: *known, share: 0, domain: 0, pins: Pinned::default(), numbers });
        let kept = blocks.map(Kept::Blocks).or(dropped.map(Kept::Dropped)).unwrap_or(Kept::New);
        Ok((OwnerId(place as u16), kept))
    }

    fn entry(&self, owner: OwnerId) -> &Attached {
        self.owners[usize::from(owner.0)].as_ref().expect("an owner that was attached")
    }

    /// The region of a block, and the owner's number there.
    #[inline]
    fn of(&mut self, owner: OwnerId, block: u64) -> Option<(&mut Region<F>, u16)> {
        let n = (block >> STRIPE_SHIFT) as usize % self.regions.len();
        // A read may come back when its owner has gone.
        let number = self.owners.get(usize::from(owner.0))?.as_ref()?.numbers[n]?;
        Some((&mut self.regions[n], number))
    }

    /// All regions, with the owner's number there.
    fn all(&mut self, owner: OwnerId) -> impl Iterator<Item = (&mut Region<F>, u16)> {
        let numbers = self.entry(owner).numbers.clone();
        self.regions.iter_mut().zip(numbers).filter_map(|(region, number)| Some((region, number?)))
    }

    fn leave(&mut self, owner: OwnerId) {
        self.owners[usize::from(owner.0)] = None;
        self.waits.retain(|(_, o)| *o != owner);
    }

    /// A disk goes. What is clean of it may be taken over when it comes again; the rest is dropped. Its changes that
    /// wait are not released any more.
    pub fn detach(&mut self, owner: OwnerId) {
        self.all(owner).for_each(|(region, number)| region.detach(number));
        self.leave(owner);
    }

    /// A disk goes, with all that is its own.
    pub fn drop_owner(&mut self, owner: OwnerId) {
        self.all(owner).for_each(|(region, number)| region.drop_owner(number));
        self.leave(owner);
    }

    /// Where a block is.
    #[inline]
    pub fn lookup(&mut self, owner: OwnerId, block: u64) -> Option<SsdFound<'_>> {
        let (region, number) = self.of(owner, block)?;
        region.lookup(number, block)
    }

    /// Whether a block is there; not counted as looked for.
    #[inline]
    pub fn has(&mut self, owner: OwnerId, block: u64) -> bool {
        self.of(owner, block).is_some_and(|(region, number)| region.has(number, block))
    }

    /// Whether bytes that were read from a place are the block's, now.
    pub fn verify(&mut self, owner: OwnerId, block: u64, token: Token, bytes: &[u8; 4096]) -> Verified {
        self.of(owner, block).map_or(Verified::Gone, |(region, number)| region.verify(number, block, token, bytes))
    }

    /// The read from a place failed: the block is dropped.
    pub fn read_failed(&mut self, owner: OwnerId, block: u64, token: Token) {
        if let Some((region, number)) = self.of(owner, block) {
            region.read_failed(number, block, token);
        }
    }

    /// Offers a block that leaves RAM, with the bytes that the disk holds. `now` in nanoseconds.
    pub fn offer(&mut self, owner: OwnerId, block: u64, bytes: &[u8; 4096], hint: Hint, now: u64) -> Offered {
        self.of(owner, block).map_or(Offered::Refused(Refusal::OutOfService), |(region, number)| {
            region.offer(number, block, bytes, hint, now)
        })
    }

    /// The block is in RAM, or a guest holds it: it is the first to go here.
    pub fn hold(&mut self, owner: OwnerId, block: u64) {
        if let Some((region, number)) = self.of(owner, block) {
            region.hold(number, block);
        }
    }

    /// The block is not held any more, and was used again while it was or not. Whether it is still here: then it need
    /// not be offered.
    pub fn let_go(&mut self, owner: OwnerId, block: u64, reused: bool) -> bool {
        self.of(owner, block).is_some_and(|(region, number)| region.let_go(number, block, reused))
    }

    /// A change of blocks is to be submitted; see the head of the module.
    pub fn change_begins(&mut self, owner: OwnerId, blocks: Range<u64>) -> Change {
        self.all(owner).for_each(|(region, number)| region.change_begins(number, blocks.clone()));
        if self.may_change(owner) {
            return Change::Ready;
        }
        self.last_wait += 1;
        let wait = WaitId(self.last_wait);
        self.waits.push((wait, owner));
        Change::Wait(wait)
    }

    fn may_change(&self, owner: OwnerId) -> bool {
        let numbers = &self.entry(owner).numbers;
        self.regions.iter().zip(numbers).all(|(region, number)| number.is_none_or(|n| region.may_change(n)))
    }

    /// A change has ended, well or not, or was given up while it waited.
    pub fn change_ended(&mut self, owner: OwnerId, blocks: Range<u64>) {
        self.all(owner).for_each(|(region, number)| region.change_ended(number, blocks.clone()));
    }

    /// Appends changes that waited and may be submitted now, in the order in which they came.
    pub fn take_released(&mut self, released: &mut Vec<WaitId>) {
        if self.waits.is_empty() {
            return;
        }
        let waits = std::mem::take(&mut self.waits);
        for (wait, owner) in waits {
            if self.may_change(owner) { released.push(wait) } else { self.waits.push((wait, owner)) }
        }
    }

    /// What is here of blocks is no longer what the disk holds, for another reason than a change of the caller's.
    pub fn invalidate(&mut self, owner: OwnerId, blocks: Range<u64>) {
        self.all(owner).for_each(|(region, number)| region.invalidate(number, blocks.clone()));
    }

    /// Nothing that is here of an owner is what the disk holds.
    pub fn invalidate_all(&mut self, owner: OwnerId) {
        self.all(owner).for_each(|(region, number)| region.invalidate_all(number));
    }

    /// A disk was not changed for a while, and its image has this stamp: see the head of the module. The worst of what
    /// its regions say.
    pub fn quiet(&mut self, owner: OwnerId, stamp: Stamp) -> Quiet {
        let said: Vec<_> = self.all(owner).map(|(region, number)| region.quiet(number, stamp)).collect();
        let others = [Quiet::Changing, Quiet::TooMuch, Quiet::OutOfService];
        others.into_iter().find(|other| said.contains(other)).unwrap_or(Quiet::Begun)
    }

    /// The next operation that the store wants done. It is counted as begun at `now`, in nanoseconds.
    pub fn next_io(&mut self, now: u64) -> Option<SsdIo> {
        for _ in 0..self.regions.len() {
            self.turn = (self.turn + 1) % self.regions.len();
            if let Some(io) = self.regions[self.turn].next_io(now) {
                return Some(io);
            }
        }
        None
    }

    /// It is done, or has failed.
    pub fn io_done(&mut self, done: SsdDone) {
        self.regions[usize::from(done.device)].io_done(done);
    }

    /// Whether there is something to do for `next_io` beside operations: blocks of large changes are still to be
    /// dropped, and their changes wait for that.
    pub fn has_more_to_drop(&self) -> bool {
        self.regions.iter().any(Region::has_more_to_drop)
    }

    /// Time goes on; `now` in nanoseconds.
    pub fn tick(&mut self, now: u64) {
        self.regions.iter_mut().for_each(|region| region.tick(now));
    }

    /// A disk may have so many blocks here; without a share nothing of it is admitted, and its blocks go first.
    pub fn set_share(&mut self, owner: OwnerId, blocks: u64) {
        let devices = self.regions.len() as u64;
        self.all(owner).for_each(|(region, number)| region.set_share(number, blocks.div_ceil(devices)));
        if let Some(attached) = &mut self.owners[usize::from(owner.0)] {
            attached.share = blocks;
        }
    }

    /// These blocks of a disk are pinned: they stay when their segment is emptied, as long as they are no more than
    /// half of what the disk may have on that device, and the device may be written to.
    pub fn set_pins(&mut self, owner: OwnerId, pins: &Pinned) {
        let devices = self.regions.len() as u64;
        let Some(attached) = &mut self.owners[usize::from(owner.0)] else { return };
        attached.pins = Pinned::clone(pins);
        for (n, (region, number)) in self.regions.iter_mut().zip(&attached.numbers).enumerate() {
            if let Some(number) = *number {
                region.set_pins(number, pins, blocks_on(pins, n as u64, devices));
            }
        }
    }

    /// What a disk has in common with others, as equal bytes are kept once: those of the same number, within each
    /// device. 0: with none.
    pub fn set_domain(&mut self, owner: OwnerId, domain: u16) {
        self.all(owner).for_each(|(region, number)| region.set_domain(number, domain));
        if let Some(attached) = &mut self.owners[usize::from(owner.0)] {
            attached.domain = domain;
        }
    }

    /// Bytes that may be written each day, on all devices together; `None`: without a limit.
    pub fn set_budget(&mut self, per_day: Option<u64>) {
        let devices = self.regions.len() as u64;
        self.budget = per_day;
        self.regions.iter_mut().for_each(|r| r.admitting().set_budget(per_day.map(|bytes| bytes / devices)));
    }

    /// Which evicted blocks are admitted.
    pub fn set_admission(&mut self, admission: Admission) {
        self.admission = admission;
        self.regions.iter_mut().for_each(|r| r.admitting().set_rule(admission));
    }

    /// Whether devices are told of segments that are free and will not be used soon; they are unless this says no. A
    /// device that has refused is asked again after this.
    pub fn set_discards(&mut self, discards: bool) {
        self.discards = discards;
        self.regions.iter_mut().for_each(|region| region.set_discards(discards));
    }

    /// What is wrong with the tables of the store, by a look at all of them: for tests.
    pub fn wrong(&self) -> Option<String> {
        self.regions.iter().find_map(Region::wrong)
    }

    /// Numbers of each device.
    pub fn stats(&self) -> Vec<SsdStats> {
        self.regions.iter().map(Region::stats).collect()
    }

    /// Numbers of an owner, on all devices together.
    pub fn owner_stats(&self, owner: OwnerId) -> OwnerStats {
        let Attached { share, numbers, .. } = self.entry(owner);
        let mut all = OwnerStats { is_clean: true, ..OwnerStats::default() };
        for (region, number) in self.regions.iter().zip(numbers).filter_map(|(r, n)| Some((r, (*n)?))) {
            all.add(&region.owner_stats(number));
        }
        OwnerStats { share_blocks: *share, ..all }
    }

    /// Bytes of tables for each block that a device has room for, in thousandths.
    pub fn table_bytes_per_block_per_mille(&self) -> u64 {
        self.regions.iter().map(Region::table_bytes_per_block_per_mille).max().unwrap_or(0)
    }

    /// Takes a device out of service: an operator wants it, or knows that it is gone.
    pub fn take_out_of_service(&mut self, device: u16, why: OutOfService) {
        self.regions[usize::from(device)].fail(why);
    }

    /// A device of which the caller has to record that its store's name is void; each is told once.
    pub fn given_up(&mut self) -> Option<GivenUp> {
        self.regions.iter_mut().find_map(Region::given_up)
    }

    /// It is recorded, durably: changes that wait for it may go on.
    pub fn given_up_is_recorded(&mut self, device: u16) {
        self.regions[usize::from(device)].given_up_is_recorded();
    }

    /// Puts another region in the place of one that is out of service: newly formatted, or one that was away. The one
    /// that was there comes back if it is in service, or has operations under way.
    ///
    /// # Errors
    /// The region that was to come.
    #[allow(clippy::result_large_err)]
    pub fn replace(&mut self, device: u16, region: Region<F>) -> Result<(), Region<F>> {
        let n = usize::from(device);
        if self.regions[n].is_busy() || self.regions[n].stats().out_of_service.is_none() {
            return Err(region);
        }
        let devices = self.regions.len() as u64;
        let old = std::mem::replace(&mut self.regions[n], region);
        let region = &mut self.regions[n];
        region.set_device(device);
        region.set_discards(self.discards);
        region.admitting().set_rule(self.admission);
        region.admitting().set_budget(self.budget.map(|bytes| bytes / devices));
        for Attached { known, share, domain, pins, numbers } in self.owners.iter_mut().flatten() {
            // What is known of the image may be old by now: nothing is taken over.
            let attached = region.attach(&Known { stamp: None, ..*known });
            let before = std::mem::replace(&mut numbers[n], attached.ok().map(|(number, _)| number));
            // Changes under way end here, too.
            let changing = before.map(|number| old.changing(number).to_vec());
            for (blocks, number) in changing.into_iter().flatten().zip(numbers[n].iter().cycle()) {
                region.change_begins(*number, blocks);
            }
            for number in numbers[n].iter() {
                region.set_share(*number, share.div_ceil(devices));
                region.set_domain(*number, *domain);
                region.set_pins(*number, pins, blocks_on(pins, u64::from(device), devices));
            }
        }
        Ok(())
    }

    /// Takes back the memory of an operation that will never complete: only of a store that is about to be dropped.
    pub fn reclaim(&mut self, device: u16, buf: IoBuf) {
        self.regions[usize::from(device)].reclaim(buf);
    }

    /// Begins an orderly stop. Owners with a stamp, which is as for `quiet`, are told to be good for the next start,
    /// whichever boot that is in. No change is under way, and none comes any more.
    pub fn stop(&mut self, stamps: &[(OwnerId, Stamp)]) {
        for n in 0..self.regions.len() {
            let of = stamps.iter().filter_map(|(owner, stamp)| Some((self.entry(*owner).numbers[n]?, *stamp)));
            let of = of.collect();
            self.regions[n].stop(of);
        }
    }

    /// Whether it has ended: no operation is wanted any more.
    pub fn is_stopped(&self) -> bool {
        self.regions.iter().all(Region::is_stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_ranges_are_counted_where_they_lie() {
        let ranges = [(0u64, 1u64), (63, 66), (100, 1000), (1024, 1024 + 64), (5000, 5001)];
        for regions in 1..=3u64 {
            for n in 0..regions {
                let lies_here = |block: &u64| (block >> STRIPE_SHIFT) % regions == n;
                let counted = ranges.iter().flat_map(|&(first, end)| first..end).filter(lies_here).count();
                assert_eq!(blocks_on(&ranges, n, regions), counted as u64, "{n} of {regions}");
            }
        }
    }
}
