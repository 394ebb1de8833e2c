//! The program dies, or is stopped in order, and starts again; what is there then.
//!
//! Owns how it ends and what happens while it is away. Invariant: at the start, a region whose name is recorded as void
//! is formatted anew, as a daemon would do it.

use super::*;
use undercroft_cache::ssd::{Kept, Media, NoRegion};

impl<F: FaultInjection> Run<F> {
    /// The program ends somehow, and starts again.
    pub(super) fn restart(&mut self) {
        self.count_written();
        let is_orderly = self.rng.one_in(2) && self.stop();
        if self.failure.is_some() {
            return;
        }
        let kind = self.rng.below(5);
        self.end_changes();
        for io in &mut self.asked {
            let device = usize::from(io.device);
            self.devices[device].cut_short(io);
        }
        self.leave_frames();
        self.to_record.clear();
        self.held.clear();
        self.stalled = 0;
        self.ssd = None;
        if kind == 0 {
            self.devices.iter_mut().for_each(SimSsd::lose_power);
            self.images.iter_mut().for_each(|image| image.lose_power(&mut self.rng));
            self.boot += 1;
            self.outcome.starts[1] += 1;
        } else if kind == 1 {
            self.boot += 1;
        }
        self.devices.iter_mut().for_each(|d| d.is_gone = false);
        self.others_change_while_away();
        self.start(is_orderly);
    }

    /// Changes under way at the end: each was done or was not. None is done that has to wait.
    fn end_changes(&mut self) {
        for image in &mut self.images {
            for n in 0..image.changes.len() {
                if !image.changes[n].is_executed && image.changes[n].wait.is_none() && self.rng.one_in(2) {
                    image.execute(n, &mut self.numbers, &mut self.rng);
                }
            }
            image.changes.clear();
        }
        self.owners.fill(None);
        self.pins.fill(Pinned::default());
    }

    fn others_change_while_away(&mut self) {
        for n in 0..self.images.len() {
            match self.rng.below(8) {
                0 => self.images[n].change_by_others(&mut self.numbers, &mut self.rng),
                1 if self.rng.one_in(3) => {
                    let identity = self.numbers.next() << 8;
                    self.images[n].become_clone(identity);
                }
                _ => {}
            }
        }
    }

    /// All changes end.
    pub(super) fn finish_changes(&mut self) {
        for image in 0..self.images.len() {
            let Some(owner) = self.owners[image] else { continue };
            while let Some(change) = self.images[image].changes.pop() {
                if change.wait.is_none() && !change.is_executed {
                    self.images[image].changes.push(change.clone());
                    let n = self.images[image].changes.len() - 1;
                    self.images[image].execute(n, &mut self.numbers, &mut self.rng);
                    self.images[image].changes.pop();
                }
                self.ssd().change_ended(owner, change.blocks);
            }
        }
    }

    /// Stops in order, unless the program dies in the middle. Whether it came to the end.
    fn stop(&mut self) -> bool {
        self.finish_changes();
        let stamps: Vec<_> =
            (0..self.images.len()).filter_map(|n| Some((self.owners[n]?, self.images[n].stamp()))).collect();
        // What a store is told of at the end is durable.
        self.images.iter_mut().for_each(Image::flush);
        self.ssd().stop(&stamps);
        let dies = if self.rng.one_in(2) { u64::MAX } else { self.rng.below(120) };
        self.stalled = 0;
        let mut turns = 0;
        while !self.ssd().is_stopped() {
            if turns >= dies {
                return false;
            }
            turns += 1;
            self.pump();
            if turns > 20_000 {
                self.fail("an orderly stop does not end".into());
                return false;
            }
        }
        true
    }

    /// Starts, again and again if it dies.
    pub(super) fn start(&mut self, was_orderly: bool) {
        self.outcome.starts[0] += 1;
        while self.rng.one_in(4) {
            self.outcome.starts[2] += 1;
            let deaths = self.rng.between(1, 40);
            self.devices.iter_mut().for_each(|d| d.until_death = Some(deaths));
            drop(self.regions());
            self.devices.iter_mut().for_each(|d| d.until_death = None);
            if self.rng.one_in(3) {
                self.devices.iter_mut().for_each(SimSsd::lose_power);
                self.images.iter_mut().for_each(|image| image.lose_power(&mut self.rng));
                self.boot += 1;
            }
        }
        let regions = self.regions().or_else(|_| {
            // A header that could not be read: the next start can.
            let faults: Vec<_> = self.devices.iter().map(|d| d.faults).collect();
            self.devices.iter_mut().for_each(|d| d.faults.start_read_errors = 0);
            let regions = self.regions();
            self.devices.iter_mut().zip(faults).for_each(|(d, faults)| d.faults = faults);
            regions
        });
        match regions {
            Ok(regions) => self.ssd = Some(Ssd::new(regions)),
            Err(e) => return self.fail(format!("no start: {e}")),
        }
        self.ssd().set_admission(Admission::All);
        let discards = self.discards;
        self.ssd().set_discards(discards);
        for image in 0..self.images.len() {
            // Some come later, or never.
            if !self.rng.one_in(6) {
                let kept = self.attach(image);
                self.outcome.kept[usize::from(was_orderly)] += kept;
            }
        }
        self.look_at_everything();
    }

    fn regions(&mut self) -> Result<Vec<Region<F>>, NoRegion> {
        (0..self.devices.len()).map(|n| self.region(n)).collect()
    }

    fn region(&mut self, n: usize) -> Result<Region<F>, NoRegion> {
        let boot = BootId([self.boot; 16]);
        let format = Format { store: self.store_id(), segment_bytes: self.segment_bytes };
        let media: &mut dyn Media = &mut self.devices[n];
        match Region::recover(media, self.segment_bytes, boot, self.bug) {
            Ok((region, _)) if !self.void.contains(&region.store().0) => Ok(region),
            Err(NoRegion::Io(e)) => Err(NoRegion::Io(e)),
            _ => Region::format(media, format, boot, self.bug),
        }
    }

    fn store_id(&mut self) -> StoreId {
        let id = [self.rng.bits(), self.rng.bits()].map(u64::to_le_bytes);
        StoreId(std::array::from_fn(|n| id[n / 8][n % 8]))
    }

    /// Attaches an image. How many blocks of it were taken over.
    pub(super) fn attach(&mut self, image: usize) -> u64 {
        let known = self.images[image].known();
        let Ok((owner, kept)) = self.ssd().attach(&known) else {
            self.fail("too many owners".into());
            return 0;
        };
        self.owners[image] = Some(owner);
        let share = self.rng.between(100, 2000);
        self.ssd().set_share(owner, share);
        self.set_domain(image);
        match kept {
            Kept::Blocks(n) => n,
            Kept::Dropped(_) => {
                self.outcome.other_image += 1;
                0
            }
            Kept::New => 0,
        }
    }

    /// Every block that is there is read.
    fn look_at_everything(&mut self) {
        for image in 0..self.images.len() {
            let Some(owner) = self.owners[image] else { continue };
            for block in 0..self.images[image].blocks.len() as u64 {
                self.look_up(image, owner, block);
                while !self.reads.is_empty() {
                    self.deliver_read(0);
                }
            }
        }
    }

    /// Devices that are out of service get new regions, some time.
    pub(super) fn replace_failed(&mut self) {
        let failed: Vec<_> = self.ssd().stats().iter().map(|s| s.out_of_service.is_some()).collect();
        for n in failed.into_iter().enumerate().filter(|(_, f)| *f).map(|(n, _)| n) {
            // The name is recorded as void before, or it would be taken for what it was.
            let pending = self.to_record.iter().any(|(device, _)| usize::from(*device) == n);
            if pending || self.devices[n].is_gone && !self.rng.one_in(3) {
                continue;
            }
            self.devices[n].is_gone = false;
            let format = Format { store: self.store_id(), segment_bytes: self.segment_bytes };
            let boot = BootId([self.boot; 16]);
            match Region::format(&mut self.devices[n], format, boot, self.bug) {
                // One with operations under way stays.
                Ok(region) => drop(self.ssd().replace(n as u16, region)),
                Err(e) => self.fail(format!("a device cannot be formatted: {e}")),
            }
        }
    }
}
