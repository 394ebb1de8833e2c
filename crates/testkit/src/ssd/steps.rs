//! What happens in a step of the simulation of the store, and what must be true then.
//!
//! Owns the choice of events. Never looks into the store. Invariant: what is checked is what a guest would see.

use super::images::ImageChange;
use super::*;
use undercroft_cache::ssd::{Change, Hint, Offered, OutOfService, OwnerStats, Quiet, SsdDone};

impl<F: FaultInjection> Run<F> {
    pub(super) fn one_step(&mut self) {
        self.now += self.rng.below(20_000_000);
        self.stalled = self.stalled.saturating_sub(1);
        if self.rng.one_in(self.restarts_in) {
            self.restart();
            return;
        }
        if self.rng.one_in(2 * self.restarts_in) {
            self.hand_over();
            return;
        }
        if self.has_pins && self.rng.one_in(10) {
            self.step_with_pins();
            self.take_released();
            return self.check_held();
        }
        match self.rng.below(100) {
            0..=21 => self.offer_some(),
            22..=35 => self.look_up_some(),
            36..=45 => self.deliver_reads(),
            46..=51 => self.begin_change(),
            52..=59 => self.go_on_with_changes(),
            60..=64 => self.hold_some(),
            65..=90 => self.pump(),
            91..=94 => self.be_quiet(),
            95 => self.others_change(),
            96 => self.detach_or_attach(),
            97 => self.device_fault(),
            _ => self.rarely(),
        }
        self.take_released();
        self.check_held();
    }

    /// An image that is attached, and its owner.
    pub(super) fn some_image(&mut self) -> Option<(usize, OwnerId)> {
        let image = self.rng.below(self.images.len() as u64) as usize;
        Some((image, self.owners[image]?))
    }

    pub(super) fn some_range(&mut self, image: usize, most: u64) -> std::ops::Range<u64> {
        let blocks = self.images[image].blocks.len() as u64;
        let first = self.rng.below(blocks);
        first..(first + self.rng.between(1, most)).min(blocks)
    }

    pub(super) fn offer_some(&mut self) {
        let Some((image, owner)) = self.some_image() else { return };
        for block in self.some_range(image, 60) {
            // The core has a block of which a change is under way as it was before, until that is submitted.
            if self.images[image].change_of(block).is_some_and(|c| c.is_executed) {
                continue;
            }
            let bytes = self.images[image].page(block);
            let pinned = self.is_pinned(image, block);
            let hint = Hint { reused: self.rng.one_in(2), guest_holds: self.rng.one_in(20), pinned };
            let now = self.now;
            match self.ssd().offer(owner, block, &bytes, hint, now) {
                Offered::Present => {
                    self.held.remove(&(image, block));
                }
                Offered::Admitted => {
                    self.held.remove(&(image, block));
                    if hint.guest_holds {
                        self.fail(format!("block {block} was admitted, though the guest holds it"));
                    }
                }
                Offered::Refused(_) => self.outcome.refused += 1,
            }
        }
    }

    fn look_up_some(&mut self) {
        let Some((image, owner)) = self.some_image() else { return };
        for block in self.some_range(image, 20) {
            self.look_up(image, owner, block);
        }
    }

    pub(super) fn look_up(&mut self, image: usize, owner: OwnerId, block: u64) {
        let is_changing = self.images[image].change_of(block).is_some();
        let Some(ssd) = &mut self.ssd else { return };
        match ssd.lookup(owner, block) {
            None => {}
            Some(_) if is_changing => self.fail(format!("block {block} is found while it is changed")),
            Some(SsdFound::Staged(bytes)) => {
                let same = *bytes == self.images[image].page(block);
                self.outcome.staged += 1;
                if !same {
                    self.fail(format!("block {block} of image {image} in memory is not what the image holds"));
                }
            }
            Some(SsdFound::Stored { device, offset, token }) => {
                let device = usize::from(device);
                self.reads.push(UserRead { image, owner, block, device, offset, token, bytes: None });
            }
        }
    }

    /// Some reads are done, or delivered.
    fn deliver_reads(&mut self) {
        for _ in 0..self.rng.between(1, 30) {
            if self.reads.is_empty() {
                return;
            }
            let n = self.rng.below(self.reads.len() as u64) as usize;
            self.deliver_read(n);
        }
    }

    pub(super) fn deliver_read(&mut self, n: usize) {
        let read = &mut self.reads[n];
        if read.bytes.is_none() {
            let mut bytes = Box::new([0; 4096]);
            self.devices[read.device].read(read.offset, &mut *bytes);
            read.bytes = Some(bytes);
            return;
        }
        let UserRead { image, owner, block, device, token, bytes, .. } = self.reads.swap_remove(n);
        let (Some(bytes), true) = (bytes, self.owners[image] == Some(owner)) else { return };
        if self.devices[device].is_gone {
            return self.ssd().read_failed(owner, block, token);
        }
        match self.ssd().verify(owner, block, token, &bytes) {
            Verified::Gone => self.outcome.gone += 1,
            Verified::Corrupt => {
                self.outcome.corrupt += 1;
                if !self.may_corrupt {
                    self.fail(format!("block {block} of image {image} is corrupt on a device without faults"));
                }
            }
            Verified::Good => {
                self.outcome.good += 1;
                if self.images[image].change_of(block).is_some() {
                    self.fail(format!("block {block} of image {image} is good while it is changed"));
                } else if *bytes != self.images[image].page(block) {
                    self.fail(format!("block {block} of image {image} on a device is not what the image holds"));
                }
            }
        }
    }

    fn begin_change(&mut self) {
        if let Some((image, owner)) = self.some_image() {
            self.change_some(image, owner);
        }
    }

    pub(super) fn change_some(&mut self, image: usize, owner: OwnerId) {
        let most = if self.rng.one_in(10) { 500 } else { 12 };
        let blocks = self.some_range(image, most);
        let overlaps = |c: &ImageChange| c.blocks.start < blocks.end && blocks.start < c.blocks.end;
        if self.images[image].changes.iter().any(overlaps) {
            return;
        }
        let wait = match self.ssd().change_begins(owner, blocks.clone()) {
            Change::Ready => None,
            Change::Wait(wait) => Some(wait),
        };
        self.outcome.waited += u64::from(wait.is_some());
        blocks.clone().for_each(|block| _ = self.held.remove(&(image, block)));
        self.images[image].changes.push(ImageChange { blocks, wait, is_executed: false });
    }

    pub(super) fn take_released(&mut self) {
        let mut released = Vec::<WaitId>::new();
        let Some(ssd) = &mut self.ssd else { return };
        ssd.take_released(&mut released);
        for change in self.images.iter_mut().flat_map(|i| &mut i.changes) {
            if change.wait.is_some_and(|wait| released.contains(&wait)) {
                change.wait = None;
            }
        }
    }

    fn go_on_with_changes(&mut self) {
        if let Some((image, owner)) = self.some_image() {
            self.execute_changes(image, owner);
        }
    }

    pub(super) fn execute_changes(&mut self, image: usize, owner: OwnerId) {
        if self.rng.one_in(10) {
            self.images[image].flush();
        }
        for _ in 0..3 {
            let changes = &self.images[image].changes;
            if changes.is_empty() {
                return;
            }
            let n = self.rng.below(changes.len() as u64) as usize;
            let change = changes[n].clone();
            if change.is_executed || change.wait.is_some() && self.rng.one_in(10) {
                // Done, or given up while it waited.
                self.images[image].changes.swap_remove(n);
                self.ssd().change_ended(owner, change.blocks);
            } else if change.wait.is_none() {
                self.images[image].execute(n, &mut self.numbers, &mut self.rng);
            }
        }
    }

    fn hold_some(&mut self) {
        let Some((image, owner)) = self.some_image() else { return };
        for block in self.some_range(image, 30) {
            if self.rng.one_in(2) {
                self.ssd().hold(owner, block);
                self.held.insert((image, block));
            } else {
                self.ssd().let_go(owner, block, false);
                self.held.remove(&(image, block));
            }
        }
    }

    /// No block is held that nobody holds.
    fn check_held(&mut self) {
        if self.step.is_multiple_of(8)
            && let Some(wrong) = self.ssd.as_ref().and_then(Ssd::wrong)
        {
            self.fail(wrong);
        }
        let held: u64 = self.ssd.iter().flat_map(Ssd::stats).map(|s| s.held).sum();
        if held > self.held.len() as u64 {
            self.fail(format!("{held} blocks are held, and {} by anybody", self.held.len()));
        }
    }

    /// Operations are asked for, done and delivered, in any order.
    pub(super) fn pump(&mut self) {
        for _ in 0..self.rng.between(1, 12) {
            match self.rng.below(3) {
                0 => {
                    let now = self.now;
                    let io = self.ssd().next_io(now);
                    self.asked.extend(io);
                }
                1 if self.stalled == 0 => self.execute_one(),
                _ => self.deliver_one(),
            }
        }
    }

    fn execute_one(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let n = self.rng.below(self.asked.len() as u64) as usize;
        let mut io = self.asked.swap_remove(n);
        let is_done = self.devices[usize::from(io.device)].execute(&mut io);
        self.done.push((io, is_done));
    }

    fn deliver_one(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let n = self.rng.below(self.done.len() as u64) as usize;
        let (SsdIo { id, device, buf, .. }, is_done) = self.done.swap_remove(n);
        self.ssd().io_done(SsdDone { id, device, buf, is_done });
        if let Some(given_up) = self.ssd().given_up() {
            self.outcome.given_up[0] += 1;
            self.to_record.push((given_up.device, given_up.store));
        }
    }

    fn be_quiet(&mut self) {
        let Some((image, owner)) = self.some_image() else { return };
        let OwnerStats { blocks, .. } = self.ssd().owner_stats(owner);
        if blocks > self.images[image].blocks.len() as u64 {
            self.fail(format!("an image has {blocks} blocks in the store, more than it has"));
        }
        let (is_changing, stamp) = (!self.images[image].changes.is_empty(), self.images[image].stamp());
        let said = self.ssd().quiet(owner, stamp);
        if is_changing && said == Quiet::Begun {
            self.fail("an owner is called quiet while it is changed".into());
        }
        match self.rng.below(4) {
            // A change that comes while it is written down, and perhaps the end soon after.
            0 if said == Quiet::Begun => {
                let turns = self.rng.between(1, 8);
                (0..turns).for_each(|_| self.pump());
                self.change_and_end(image, owner);
            }
            // All of it is written down before the end.
            1 if said == Quiet::Begun && self.restarts_in < 50 => {
                (0..30).for_each(|_| self.pump());
                self.restart();
            }
            _ => {}
        }
    }

    /// A change, and in half of the cases the end of the program before much else.
    fn change_and_end(&mut self, image: usize, owner: OwnerId) {
        self.change_some(image, owner);
        self.execute_changes(image, owner);
        if self.rng.one_in(2) && self.restarts_in < 100 {
            (0..10).for_each(|_| self.pump());
            self.take_released();
            self.restart();
        }
    }

    /// Somebody else changes an image; the daemon is told.
    fn others_change(&mut self) {
        let Some((image, owner)) = self.some_image() else { return };
        if !self.rng.one_in(4) || !self.images[image].changes.is_empty() {
            return;
        }
        self.images[image].change_by_others(&mut self.numbers, &mut self.rng);
        let end = self.images[image].blocks.len() as u64;
        if self.rng.one_in(2) {
            self.ssd().invalidate(owner, 0..end)
        } else {
            self.ssd().invalidate_all(owner)
        }
        self.held.retain(|(i, _)| *i != image);
    }

    fn detach_or_attach(&mut self) {
        let image = self.rng.below(self.images.len() as u64) as usize;
        match self.owners[image] {
            Some(owner) if self.images[image].changes.is_empty() && self.rng.one_in(2) => {
                if self.rng.one_in(4) {
                    self.ssd().drop_owner(owner)
                } else {
                    self.ssd().detach(owner)
                }
                (self.owners[image], self.pins[image]) = (None, Pinned::default());
                // Blocks stay held until they are let go or evicted.
            }
            None => {
                if self.rng.one_in(3) {
                    self.images[image].change_by_others(&mut self.numbers, &mut self.rng);
                }
                self.attach(image);
            }
            Some(_) => {}
        }
    }

    fn device_fault(&mut self) {
        let n = self.rng.below(self.devices.len() as u64) as usize;
        let faults = self.devices[n].faults;
        if faults.rot > 0 {
            (0..self.rng.between(1, 3)).for_each(|_| self.devices[n].rot());
            if self.rng.one_in(2) {
                return self.restart();
            }
        }
        if faults.vanishes > 0 && self.rng.one_in(4) {
            self.devices[n].is_gone = true;
            self.devices[n].failed += 1;
            (0..5).for_each(|_| self.pump());
            if let Some((image, owner)) = self.some_image() {
                self.change_and_end(image, owner);
            }
        }
        if faults.stalls > 0 && self.rng.one_in(3) {
            self.stalled = self.rng.between(10, 200);
            self.devices[n].failed += 1;
        }
    }

    fn rarely(&mut self) {
        self.now += self.rng.below(2_000_000_000);
        let now = self.now;
        self.ssd().tick(now);
        if let Some((_, owner)) = self.some_image() {
            let share = self.rng.below(1000);
            self.ssd().set_share(owner, share);
        }
        let admission = *self.rng.pick(&[Admission::All, Admission::All, Admission::Second, Admission::Measured]);
        self.ssd().set_admission(admission);
        let budget = self.rng.one_in(6).then_some(1 << 34);
        self.ssd().set_budget(budget);
        if self.has_faults && self.rng.one_in(100) {
            self.ssd().take_out_of_service(0, OutOfService::Operator);
        }
        self.record_given_up();
        self.replace_failed();
    }
    /// What is given up is recorded.
    pub(super) fn record_given_up(&mut self) {
        while let Some((device, store)) = self.to_record.pop() {
            self.void.insert(store.0);
            self.ssd().given_up_is_recorded(device);
            self.outcome.given_up[1] += 1;
        }
    }
}
