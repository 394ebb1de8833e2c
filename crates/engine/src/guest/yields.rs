//! How many early copies of guest pages were made, and how many of them proved useful.
//!
//! Owns these counts, in which the latest weigh most. Never copies. Invariant: of each class, at most as many copies
//! proved useful as were made.

use super::residency::Class;

/// Early copies of a class that are remembered.
const YIELD_MEMORY: u32 = 2048;
/// Early copies of a class from which what they bring is known.
const YIELD_SURE: u32 = 512;
/// A class is copied seldom if it yields so many times less than the best one.
const YIELD_BEHIND: f64 = 2.0;
/// Second copies shorten the time that first ones last: they must pay at least so often.
const SECOND_PAYS: f64 = 0.5;
/// Of a class that is copied seldom, one page in so many is.
const YIELD_SAMPLE: u32 = 16;

/// Where a disk has less than this part of its guest's transfers, it is taken for this part.
const PART_MIN: f64 = 0.01;

/// How many copies of a disk's pages come to a transfer of the guest of late, and how many of those are the disk's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Copies put on probation ever, modulo 2^32.
    pub copies: u32,
    /// Transfers of the disk ever, modulo 2^32.
    pub transfers: u32,
    /// Copies, the disk's transfers and the guest's when this was last asked.
    before: (u32, u32, u32),
    /// Copies for each transfer of the guest, the latest ones weighing most.
    rate: f64,
    /// The part of the guest's transfers that are the disk's, likewise.
    part: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { copies: 0, transfers: 0, before: (0, 0, 0), rate: 0.0, part: 1.0 }
    }
}

impl Pace {
    /// Copies for each transfer of the guest, at its transfer number `now`: as many as the disk has transfers, or more.
    /// `pooled`: with those of the disks that it shares its room with, which are thought to make as many for each
    /// transfer of theirs.
    pub fn take(&mut self, now: u32, pooled: bool) -> f64 {
        let (copies, own, all) = self.before;
        let (copies, own) = (self.copies.wrapping_sub(copies), self.transfers.wrapping_sub(own));
        let all = f64::from(now.wrapping_sub(all).max(1));
        self.before = (self.copies, self.transfers, now);
        self.rate = (self.rate + f64::from(copies) / all) / 2.0;
        self.part = (self.part + (f64::from(own) / all).min(1.0)) / 2.0;
        let own = self.rate.max(self.part);
        if pooled { own / self.part.max(PART_MIN) } else { own }
    }
}

/// What early copies of each class bring: how many of the latest ones were still there when their eviction was proved.
///
/// Pages whose ages at eviction vary widely bring little for the room they take; where room is short they give way to
/// those that can be copied just in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Yields {
    made: [u32; 3],
    paid: [u32; 3],
    /// Copies that seemed not worth it; some of them are made, to see whether that has changed.
    doubtful: u32,
}

impl Yields {
    pub fn made(&mut self, class: Class) {
        let i = class as usize;
        self.made[i] += 1;
        if self.made[i] >= YIELD_MEMORY {
            self.made[i] /= 2;
            self.paid[i] /= 2;
        }
    }

    pub fn paid(&mut self, class: Class) {
        let i = class as usize;
        self.paid[i] = (self.paid[i] + 1).min(self.made[i]);
    }

    /// Whether a page of this class is worth a copy now: whether it brings as much, nearly, as the better class of
    /// first copies. Second ones are no measure for first ones, without which there would be none: these nearly always
    /// pay, where half of the first ones lapse.
    pub fn worth(&mut self, class: Class) -> bool {
        let part = |i: usize| f64::from(self.paid[i]) / f64::from(self.made[i].max(1));
        let i = class as usize;
        let first = [Class::Read as usize, Class::Write as usize];
        let best = first.into_iter().filter(|&k| self.made[k] >= YIELD_SURE).map(part).fold(0.0, f64::max);
        let least = if class == Class::Kept { best.max(SECOND_PAYS) } else { best / YIELD_BEHIND };
        if self.made[i] < YIELD_SURE || part(i) >= least {
            return true;
        }
        self.doubtful = self.doubtful.wrapping_add(1);
        self.doubtful.is_multiple_of(YIELD_SAMPLE)
    }
}
