//! Time, failures, and the orderly stop.
//!
//! Owns when a device is out of service, and what follows. Never lets a change go on that would make a table on the
//! device untrue which cannot be written any more: that waits until the store's name is recorded as void elsewhere.
//! Invariant: out of service, nothing is found and nothing is written.

use super::*;
use crate::limits::{SSD_GIVE_UP_NS, SSD_MISMATCHES_MAX, SSD_STALL_NS};

impl<F: FaultInjection> Region<F> {
    /// Time goes on.
    pub(in super::super) fn tick(&mut self, now: u64) {
        self.advance(now);
        let waited = self.jobs.oldest().map_or(0, |since| self.now - since);
        self.is_stalled = waited >= SSD_STALL_NS;
        if waited >= SSD_GIVE_UP_NS {
            self.fail(OutOfService::Stalled);
        }
    }

    /// It is so late now, in nanoseconds.
    pub(super) fn advance(&mut self, now: u64) {
        if now <= self.now {
            return;
        }
        self.quiet_budget.advance(now - self.now);
        self.now = now;
        self.admitting.advance(now);
    }

    /// Bytes of an owner's were not what was written.
    pub(super) fn mismatch(&mut self, number: u16) {
        self.mismatches += 1;
        if let Some(owner) = &mut self.owners[usize::from(number)] {
            owner.stats.mismatches += 1;
        }
        if self.mismatches >= SSD_MISMATCHES_MAX {
            self.fail(OutOfService::Mismatches);
        }
    }

    /// Takes the device out of service, for good: only another region can take its place.
    pub(in super::super) fn fail(&mut self, why: OutOfService) {
        if self.service.is_some() {
            return;
        }
        self.service = Some(why);
        self.abandon_all();
        self.index.clear();
        self.links.forget();
        (self.cleaning, self.writing) = (None, None);
        self.quiet.clear();
        for owner in self.owners.iter_mut().flatten() {
            (owner.entries, owner.open) = (0, None);
            owner.dropping.clear();
        }
    }

    /// Whether the caller has to record elsewhere that this store is void; told once.
    pub(in super::super) fn given_up(&mut self) -> Option<GivenUp> {
        let is_new = self.service.is_some() && !self.given_up_is_told && self.tables.any_clean();
        self.given_up_is_told |= is_new;
        is_new.then_some(GivenUp { device: self.device, store: self.store })
    }

    /// It is recorded.
    pub(in super::super) fn given_up_is_recorded(&mut self) {
        self.given_up_is_recorded = self.service.is_some();
    }

    /// Whether operations of the store's are under way.
    pub(in super::super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Begins an orderly stop: the images of owners have these stamps.
    pub(in super::super) fn stop(&mut self, stamps: Vec<(u16, Stamp)>) {
        if self.service.is_none() {
            self.decide_all_parked();
            self.stop = Some(Stop::Sealing(stamps));
        }
    }

    /// Whether it has ended.
    pub(in super::super) fn is_stopped(&self) -> bool {
        self.service.is_some() || self.stop == Some(Stop::Done)
    }

    /// The next stage of a stop, when its time has come.
    pub(super) fn go_on_stopping(&mut self) {
        match self.stop.take() {
            Some(Stop::Resting) => {
                self.seal_for_rest();
                self.stop = Some(Stop::Resting);
            }
            Some(Stop::Sealing(stamps)) => {
                // As long as blocks are written again, a segment is filled by more than one.
                if self.cleaning.is_some() || self.seal_all() || !self.is_quiet_done() {
                    self.stop = Some(Stop::Sealing(stamps));
                    return;
                }
                for (number, stamp) in stamps {
                    let still = |o: &Owner| o.changing.is_empty() && o.dropping.is_empty();
                    if self.owners[usize::from(number)].as_ref().is_some_and(still) {
                        self.begin_quiet(number, stamp);
                    }
                }
                self.stop = Some(Stop::Quiet);
            }
            Some(Stop::Quiet) if self.is_quiet_done() && self.tables.is_idle() => {
                self.tables.is_wanted = true;
                self.stop = Some(Stop::Table);
            }
            other => self.stop = other,
        }
    }
}
