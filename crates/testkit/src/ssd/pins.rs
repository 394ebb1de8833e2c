//! What is pinned of images, in one run of four; and that the store comes to rest whatever is.
//!
//! Owns these events. Never looks into the store. Invariant: when nothing is offered, what the store does comes to an
//! end, and blocks that it writes again meanwhile are no more than its devices have room for a few times.

use super::*;

/// Turns after which a store that goes on and on is not waited for any more.
const TURNS_MAX: u64 = 20_000;
/// Without admissions a store writes again at most so many times what its devices have room for.
const CLEANED_MAX: u64 = 8;
/// Blocks that owners may have: none, one segment's, some, more than there are.
const SHARES: [u64; 6] = [0, 63, 126, 300, 1000, 1 << 20];

impl<F: FaultInjection> Run<F> {
    /// An event that has to do with pins.
    pub(super) fn step_with_pins(&mut self) {
        match self.rng.below(6) {
            0 | 1 => self.pin_some(),
            2 => {
                let share = *self.rng.pick(&SHARES);
                if let Some((_, owner)) = self.some_image() {
                    self.ssd().set_share(owner, share);
                }
            }
            3 => self.go_with_pins(),
            _ => self.settle(),
        }
    }

    /// Whether a block of an image is pinned.
    pub(super) fn is_pinned(&self, image: usize, block: u64) -> bool {
        self.pins[image].iter().any(|&(first, end)| (first..end).contains(&block))
    }

    /// Tells the store, which may be another process's, what is pinned of an image.
    pub(super) fn tell_pins(&mut self, image: usize) {
        if let Some(owner) = self.owners[image].filter(|_| self.has_pins) {
            let pins = Pinned::clone(&self.pins[image]);
            self.ssd().set_pins(owner, &pins);
        }
    }

    fn pin_some(&mut self) {
        let Some((image, _)) = self.some_image() else { return };
        let blocks = self.images[image].blocks.len() as u64;
        self.pins[image] = match self.rng.below(4) {
            0 => Pinned::default(),
            1 => Pinned::from([(0, blocks)]),
            2 => (0..blocks).step_by(20).map(|first| (first, (first + 10).min(blocks))).collect(),
            _ => {
                let range = self.some_range(image, 300);
                Pinned::from([(range.start, range.end)])
            }
        };
        self.tell_pins(image);
    }

    /// A disk goes, most often with all of it pinned and written down; others want its room.
    fn go_with_pins(&mut self) {
        let Some((image, owner)) = self.some_image() else { return };
        if !self.images[image].changes.is_empty() {
            return;
        }
        if !self.rng.one_in(3) {
            self.pins[image] = Pinned::from([(0, self.images[image].blocks.len() as u64)]);
            self.tell_pins(image);
        }
        let stamp = self.images[image].stamp();
        self.ssd().quiet(owner, stamp);
        (0..60).for_each(|_| self.pump());
        self.ssd().detach(owner);
        (self.owners[image], self.pins[image]) = (None, Pinned::default());
        for _ in 0..self.rng.between(1, 20) {
            self.offer_some();
            (0..4).for_each(|_| self.pump());
        }
        self.settle();
    }

    /// Nothing is offered until the store wants nothing done.
    fn settle(&mut self) {
        let before = self.cleaned();
        for _ in 0..TURNS_MAX {
            self.stalled = self.stalled.saturating_sub(1);
            self.pump();
            self.take_released();
            self.record_given_up();
            if !self.asked.is_empty() || !self.done.is_empty() {
                continue;
            }
            let now = self.now;
            match self.ssd().next_io(now) {
                Some(io) => self.asked.push(io),
                None => return self.check_cleaned(before),
            }
        }
        self.fail("the store does not come to rest, though nothing is offered".into());
    }

    /// Bytes of blocks that were written again since the start.
    fn cleaned(&mut self) -> u64 {
        self.ssd().stats().iter().map(|s| s.written.cleaning).sum()
    }

    fn check_cleaned(&mut self, before: u64) {
        let cleaned = self.cleaned().saturating_sub(before);
        let room: u64 = self.ssd().stats().iter().map(|s| s.room * 4096).sum();
        if cleaned > CLEANED_MAX * room {
            self.fail(format!("{cleaned} bytes were written again on devices with room for {room}"));
        }
    }
}
