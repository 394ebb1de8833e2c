//! Whether pages of a guest ever hold what a disk has. Those of encrypted or compressed file systems do not: what the
//! guest keeps there is made from what it read, so no copy of such a page can stand for the block.
//!
//! Owns what the latest copies of pages showed for one disk. Never copies. Invariants: a disk whose pages never hold
//! its blocks is opaque after at most [`JUDGED_AFTER`] copies of other content and [`SILENT_MAX`] that say nothing;
//! from then on it is asked again ever more rarely, each time with at most [`TRIAL`] copies and [`TRIAL_HASHES`]
//! hashes. Of pages that are no evidence at most [`WRITTEN_MAX`] are copied in a row in vain.
//!
//! Only pages that were filled by reads say anything. One that was written may hold what the disk has although the disk
//! is encrypted: it was made for this write alone, and is free since. And a guest that writes more than it has memory
//! for uses such pages for the next writes before anybody can see it, so that a plain disk's hold something else. See
//! docs/decisions/0186.

use super::mode::Copied;
use super::residency::Class;

/// Copies of something else than zeroes from which on a disk is judged.
const JUDGED_AFTER: u32 = 256;
/// Copies that must hold their block for a disk not to be opaque: one in so many.
const HELD_PART: u32 = 64;
/// Copies that are remembered. Then all counts are halved.
const MEMORY: u32 = 1024;
/// Copies that say nothing are enough to give up if there are so many of them before one holds its block: pages that
/// were zeroed for another use, and those whose block changed meanwhile.
const SILENT_MAX: u32 = 512;
/// Copies in a row of pages that were not filled by reads that may fail, before none is made any more until a copy of
/// one that was read holds its block.
const WRITTEN_MAX: u32 = 512;
/// Copies that one trial may take.
const TRIAL: u32 = 32;
/// Contents that are hashed for one trial, so that there are pages to copy.
const TRIAL_HASHES: u32 = 64;
/// Transfers that a trial may take, at least and for each page of the guest.
const TRIAL_MIN: u32 = 1 << 16;
const TRIAL_LIVES: u32 = 4;
/// An opaque disk is tried again after one in so many of them, which is half the guest's pages: what was found may have
/// been due to what the guest did just then. Twice as many after each trial that finds it so.
const SOON: u32 = 8;
const WAIT_MAX: u32 = 1 << 28;

/// See the head of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// Copies that said something, and how many of them held their block.
    tried: u32,
    held: u32,
    /// Copies that said nothing since one held its block.
    silent: u32,
    /// Copies of pages that no read had filled, since any copy held its block.
    written: u32,
    opaque: bool,
    /// Copies, and contents to hash, that are left to the trial under way; 0 if there is none.
    copies: u32,
    hashes: u32,
    /// The transfer at which it was last found opaque, or the trial began; transfers until it is tried again, and
    /// those that a trial may take.
    since: u32,
    wait: u32,
    trial: u32,
}

impl Evidence {
    /// Of a disk of a guest of `pages` pages, of which nothing is known.
    pub fn new(pages: u32) -> Self {
        let trial = pages.saturating_mul(TRIAL_LIVES).clamp(TRIAL_MIN, WAIT_MAX);
        let [tried, held, silent, written, copies, hashes, since] = [0; 7];
        let wait = trial / SOON;
        Self { tried, held, silent, written, opaque: false, copies, hashes, since, wait, trial }
    }

    /// Of a disk that was found opaque before, and is to be tried again.
    pub fn of_opaque(pages: u32) -> Self {
        Self { opaque: true, copies: TRIAL, hashes: TRIAL_HASHES, ..Self::new(pages) }
    }

    /// Nothing is known any more, but for how long to wait.
    fn forget(&mut self) {
        (self.tried, self.held, self.silent, self.written) = (0, 0, 0, 0);
        (self.copies, self.hashes) = (0, 0);
    }

    /// Whether pages do not hold the disk's blocks, as far as is known.
    pub fn is_opaque(&self) -> bool {
        self.opaque
    }

    /// Whether pages may be copied.
    pub fn wants_copies(&self) -> bool {
        !self.opaque || self.copies > 0
    }

    /// Whether pages of a class may be copied: a trial has few copies, for those that say something.
    #[inline]
    pub fn wants(&self, class: Class) -> bool {
        class == Class::Read || !self.opaque && self.written < WRITTEN_MAX
    }

    /// Whether contents of blocks that the guest holds in pages of a class are to be hashed.
    #[inline]
    pub fn wants_hash(&self, class: Class) -> bool {
        self.wants(class) && (!self.opaque || self.hashes > 0)
    }

    /// A content was hashed.
    pub fn hashed(&mut self) {
        self.hashes = self.hashes.saturating_sub(1);
    }

    /// What came of a copy of a page of this class, at transfer number `now` of the disk. Whether anything changes by
    /// it: what is copied, or whether the disk is opaque.
    pub fn tell(&mut self, copied: Copied, class: Class, now: u32) -> bool {
        if copied == Copied::Held {
            self.written = 0;
        }
        if class != Class::Read {
            self.written += u32::from(copied != Copied::Held);
            return false;
        }
        match copied {
            Copied::Held if self.opaque => {
                self.forget();
                (self.tried, self.held, self.opaque) = (1, 1, false);
                true
            }
            // of a copy that was made before it was found so
            _ if self.opaque && self.copies == 0 => false,
            _ if self.opaque => {
                self.copies -= 1;
                self.copies == 0 && self.found_opaque(now)
            }
            Copied::Zeroes | Copied::Nothing => {
                self.silent += 1;
                self.held == 0 && self.silent >= SILENT_MAX && self.found_opaque(now)
            }
            Copied::Held | Copied::Other => {
                self.tried += 1;
                if copied == Copied::Held {
                    (self.held, self.silent) = (self.held + 1, 0);
                }
                if self.tried >= JUDGED_AFTER && self.held * HELD_PART < self.tried {
                    return self.found_opaque(now);
                }
                if self.tried >= MEMORY {
                    (self.tried, self.held, self.wait) = (self.tried / 2, self.held / 2, self.trial / SOON);
                }
                false
            }
        }
    }

    /// The disk is opaque, or a trial has found that it still is.
    fn found_opaque(&mut self, now: u32) -> bool {
        if self.opaque {
            self.wait = self.wait.saturating_mul(2).min(WAIT_MAX);
        }
        self.forget();
        (self.opaque, self.since) = (true, now);
        true
    }

    /// Whether pages are copied to find out whether the disk still is opaque.
    pub fn in_trial(&self) -> bool {
        self.opaque && self.copies > 0
    }

    /// Whether a trial begins or ends at transfer number `now` of the disk, because time has passed.
    #[inline]
    pub fn changes(&mut self, now: u32) -> bool {
        self.opaque && self.changes_opaque(now)
    }

    fn changes_opaque(&mut self, now: u32) -> bool {
        let past = now.wrapping_sub(self.since);
        if self.copies > 0 {
            return past >= self.trial && self.found_opaque(now);
        }
        let begins = past >= self.wait;
        if begins {
            (self.copies, self.hashes, self.since) = (TRIAL, TRIAL_HASHES, now);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(n: u32, what: Copied) -> Evidence {
        let mut e = Evidence::new(1000);
        (0..n).for_each(|_| _ = e.tell(what, Class::Read, 0));
        e
    }

    #[test]
    fn copies_that_never_hold_their_block_are_enough_to_give_up() {
        assert!(!after(JUDGED_AFTER - 1, Copied::Other).is_opaque());
        assert!(after(JUDGED_AFTER, Copied::Other).is_opaque());
        // A page that was zeroed says nothing, nor does one that could not be compared; but not for ever.
        for silent in [Copied::Zeroes, Copied::Nothing] {
            assert!(!after(SILENT_MAX - 1, silent).is_opaque());
            assert!(after(SILENT_MAX, silent).is_opaque());
        }
        const { assert!(JUDGED_AFTER + SILENT_MAX + WRITTEN_MAX <= 2000) }
    }

    #[test]
    fn a_disk_some_of_whose_pages_hold_their_blocks_is_not_opaque() {
        let mut e = Evidence::new(1000);
        for n in 0..100_000u32 {
            e.tell(if n % 50 == 0 { Copied::Held } else { Copied::Other }, Class::Read, n);
            assert!(!e.is_opaque(), "copy {n}");
        }
        // zeroing guests: captures are zeroes, early copies hold
        let mut e = Evidence::new(1000);
        for n in 0..100_000u32 {
            e.tell(if n % 300 == 299 { Copied::Held } else { Copied::Zeroes }, Class::Read, n);
            assert!(!e.is_opaque(), "copy {n}");
        }
    }

    #[test]
    fn written_pages_say_nothing_and_are_left_alone_while_they_fail() {
        let mut e = Evidence::new(1000);
        let (mut copies, classes) = (0, [Class::Write, Class::Kept]);
        for n in 0..100_000u32 {
            let class = classes[n as usize % 2];
            if e.wants(class) {
                copies += 1;
                assert!(e.wants_hash(class) && !e.tell(Copied::Other, class, n));
            }
        }
        assert!(copies == WRITTEN_MAX && !e.is_opaque() && e.wants(Class::Read));
        e.tell(Copied::Other, Class::Read, 0);
        assert!(!e.wants(Class::Write) && !e.wants_hash(Class::Write));
        e.tell(Copied::Held, Class::Read, 0);
        assert!(e.wants(Class::Write) && e.wants_hash(Class::Write), "it is plain");
        // That some hold the disk's bytes does not save one whose pages, once read, never do.
        let mut e = Evidence::new(1000);
        for n in 0..JUDGED_AFTER {
            e.tell(Copied::Held, Class::Write, n);
            assert!(!e.is_opaque());
            e.tell(Copied::Other, Class::Read, n);
        }
        assert!(e.is_opaque());
        assert!(!e.tell(Copied::Held, Class::Write, 0) && e.is_opaque(), "nor do they end it");
    }

    #[test]
    fn a_trial_takes_pages_that_were_read() {
        let e = Evidence::of_opaque(1000);
        assert!(e.wants(Class::Read) && e.wants_hash(Class::Read));
        assert!(![Class::Write, Class::Kept].into_iter().any(|class| e.wants(class) || e.wants_hash(class)));
    }

    #[test]
    fn one_that_no_longer_holds_any_is_found_so() {
        let mut e = after(100_000, Copied::Held);
        let tries = (0..10_000)
            .take_while(|&n| !e.is_opaque() && (e.tell(Copied::Other, Class::Read, n) || n < 10_000))
            .count();
        assert!(e.is_opaque() && tries < 5000, "{tries}");
    }

    #[test]
    fn it_is_tried_again_ever_more_rarely_and_with_few_copies() {
        let mut e = after(JUDGED_AFTER, Copied::Other);
        let (mut began, mut copies) = (vec![], 0);
        for now in 0..TRIAL_MIN * 40 {
            if e.changes(now) {
                began.push(now);
            }
            if e.wants_copies() {
                copies += 1;
                e.tell(Copied::Other, Class::Read, now);
            }
        }
        let gaps: Vec<u32> = began.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(began[0], TRIAL_MIN / SOON);
        assert!(began.len() == 8 && gaps.windows(2).all(|w| w[1] > w[0] * 3 / 2), "{began:?}");
        assert_eq!(copies, TRIAL * began.len() as u32);
    }

    #[test]
    fn a_trial_that_learns_nothing_ends() {
        let mut e = Evidence::of_opaque(1 << 20);
        let trial = TRIAL_LIVES << 20;
        assert!(!e.changes(trial - 1) && e.in_trial());
        assert!(e.changes(trial) && e.is_opaque() && !e.in_trial() && !e.wants_hash(Class::Read));
        let next = trial + 2 * trial / SOON;
        assert!(!e.changes(next - 1) && e.changes(next) && e.in_trial(), "twice as long");
    }

    #[test]
    fn one_copy_that_holds_its_block_ends_it() {
        let mut e = Evidence::of_opaque(1000);
        assert!(e.is_opaque() && e.wants_copies() && e.wants_hash(Class::Read));
        for _ in 0..TRIAL_HASHES {
            assert!(e.wants_hash(Class::Read));
            e.hashed();
        }
        assert!(!e.wants_hash(Class::Read));
        assert!(e.tell(Copied::Held, Class::Read, 9) && !e.is_opaque() && e.wants_hash(Class::Read));
    }
}
