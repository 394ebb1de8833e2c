//! Another process goes on with the store, which has come to rest; or does not, and the same one goes on.
//!
//! Owns that order. Never restarts the device: what it says is as it was. Invariant: what was there before is there
//! after, of every image, and nothing else.

use super::*;
use undercroft_cache::ssd::{Media, SsdStats};

/// Turns after which a store that does not come to rest is not waited for any more.
const TURNS_MAX: u64 = 20_000;

impl<F: FaultInjection> Run<F> {
    /// The store comes to rest, and goes on in another process or in the same.
    pub(super) fn hand_over(&mut self) {
        self.finish_changes();
        self.take_released();
        let is_quiet = self.rng.one_in(2);
        for image in 0..if is_quiet { self.images.len() } else { 0 } {
            let Some(owner) = self.owners[image] else { continue };
            let stamp = self.images[image].stamp();
            self.ssd().quiet(owner, stamp);
            (0..40).for_each(|_| self.pump());
        }
        // Nobody reads any more, as nobody is served.
        self.reads.clear();
        self.ssd().rest();
        let most = if self.rng.one_in(4) { self.rng.below(60) } else { TURNS_MAX };
        let mut turns = 0;
        while !self.ssd().is_at_rest() && turns < most {
            turns += 1;
            self.stalled = self.stalled.saturating_sub(1);
            self.pump();
            self.take_released();
            self.record_given_up();
        }
        let is_given_up = !self.ssd().is_at_rest() || self.rng.one_in(4);
        if turns == TURNS_MAX {
            return self.fail("a store does not come to rest".into());
        }
        self.outcome.handed_over[usize::from(is_given_up)] += 1;
        if is_given_up {
            return self.ssd().go_on();
        }
        let now = self.now;
        if self.ssd().next_io(now).is_some() {
            return self.fail("a store at rest wants something done".into());
        }
        // Whoever waited too long for an answer has got it.
        self.ssd().tick(now);
        let (before, there) = (self.ssd().stats(), self.all_there());
        let Some(told) = self.ssd().hand_over() else { return self.fail("a store at rest tells nothing".into()) };
        self.count_written();
        self.ssd = None;
        let sizes: Vec<_> = self.devices.iter().map(|d| (Media::bytes(d), self.segment_bytes)).collect();
        match Ssd::take_over(&told, &sizes, self.bug) {
            Ok(ssd) => self.ssd = Some(ssd),
            Err(e) => return self.fail(format!("what is told of a store is not taken over: {e}")),
        }
        if self.ssd().next_io(now).is_some() {
            self.fail("a store that was taken over does not rest".into());
        }
        let wrong = self.ssd().wrong();
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
        let after = self.ssd().stats();
        let of = |s: &SsdStats| (s.blocks, s.held, s.linked, s.free_segments, s.written, s.out_of_service);
        if before.iter().map(of).ne(after.iter().map(of)) || there != self.all_there() {
            self.fail(format!("another process has {after:?}, where {before:?} was told"));
        }
        self.ssd().set_admission(Admission::All);
        let discards = self.discards;
        self.ssd().set_discards(discards);
        for image in 0..self.images.len() {
            self.set_domain(image);
            self.tell_pins(image);
        }
        self.ssd().go_on();
        if is_quiet {
            self.change_at_once();
        }
    }

    /// Changes come at once, and the program dies before anything else is done.
    fn change_at_once(&mut self) {
        for image in 0..self.images.len() {
            let Some(owner) = self.owners[image] else { continue };
            (0..3).for_each(|_| self.change_some(image, owner));
            self.execute_changes(image, owner);
        }
        if self.rng.one_in(2) {
            self.restart();
        }
    }

    /// Every block that is there.
    fn all_there(&mut self) -> Vec<(usize, u64)> {
        let mut there = Vec::new();
        for image in 0..self.images.len() {
            let Some(owner) = self.owners[image] else { continue };
            let blocks = 0..self.images[image].blocks.len() as u64;
            there.extend(blocks.filter(|b| self.ssd.as_mut().is_some_and(|s| s.has(owner, *b))).map(|b| (image, b)));
        }
        there
    }
}
