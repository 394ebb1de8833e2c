//! Whether what is written to the guest's memory is marked in a log, and in which.
//!
//! Owns the log that the front end has handed over and the switch. Never touches a ring. Invariant: while logging is on
//! and there is a log, everything that the port writes is marked; what may have been written without a mark since
//! logging began, by this process or by one that died, is marked as soon as there is a log: all of the memory.

use super::super::dirty_log::{DirtyLog, Step, written};
use super::super::memory::{GuestMap, GuestSpan};
use super::VhostPort;
use super::queue::notify;
use crate::faults::{PortBug, PortFaults};
use std::fs::File;
use undercroft_host::Doorbell;

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Logging {
    /// The log, whether or not it is used.
    area: Option<DirtyLog>,
    /// The same while logging is on: the one thing that is looked at for a request.
    marks: Option<DirtyLog>,
    /// Logging is on.
    on: bool,
    /// Nothing was written without a mark since it was switched on. False while nobody can know: a process that died
    /// may have written and not marked, and after a new start of all queues the log may be one that nobody reads.
    known: bool,
    /// Where the front end is told that there are marks, if it wants that.
    call: Option<Doorbell>,
    /// The front end made us wait there.
    held_up: bool,
}

impl Logging {
    /// Where what is written is marked.
    #[inline]
    pub(super) fn marks(&self) -> Option<&DirtyLog> {
        self.marks.as_ref()
    }

    /// Whether the front end has taken the log's memory away.
    pub(super) fn is_broken(&self) -> bool {
        self.area.as_ref().is_some_and(DirtyLog::is_broken)
    }

    /// Whether the front end made us wait where it is told of marks.
    pub(super) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Tells the front end that there are marks.
    pub(super) fn tell(&mut self) {
        if self.marks.is_some() {
            self.held_up |= notify(self.call.as_ref());
        }
    }

    fn switch(&mut self, on: bool) {
        self.on = on;
        self.marks = self.area.clone().filter(|_| on);
    }
}

impl<F: PortFaults> VhostPort<F> {
    /// Switches logging on or off, as the features say.
    pub(super) fn switch_log(&mut self, on: bool) {
        if !self.queues.iter().any(|q| q.started) {
            self.logging.known = false;
        }
        self.logging.switch(on);
        self.set_marks();
    }

    /// Takes over the log in which memory is marked while logging is on.
    pub fn set_log(&mut self, log: DirtyLog) {
        let unknown = self.logging.on && !self.logging.known && !F::has(PortBug::LogBeginsClean);
        if unknown {
            log.mark_all::<F>(self.maps.current());
        }
        self.logging.known = true;
        self.logging.area = Some(log);
        self.logging.switch(self.logging.on);
        self.set_marks();
    }

    /// Sets where the front end is told of marks.
    pub(crate) fn set_log_call(&mut self, call: Option<File>) {
        self.logging.call = call.and_then(|fd| self.doorbell(Some(fd)).ok().flatten());
    }

    /// Tells the rings where to mark.
    fn set_marks(&mut self) {
        for ring in self.queues.iter_mut().filter_map(|q| q.ring.as_mut()) {
            ring.set_marks(self.logging.marks().cloned());
        }
    }

    /// Copies data of a read to the guest, and marks it.
    #[cold]
    #[inline(never)]
    pub(super) fn copy_out_marked(&mut self, tag: u32, at: usize, bytes: &[u8]) {
        let Self { slots, maps, logging, .. } = self;
        let (slot, Some(log)) = (slots.get(tag), logging.marks()) else { return };
        let map = maps.get(slot.map);
        written::<F>(PortBug::DataUnmarked, |step| match step {
            Step::Write => {
                slot.pieces(map, at, bytes.len(), |done, to| to.copy_from(&bytes[done..done + to.len()]));
            }
            Step::Mark => slot.addresses(map, at, bytes.len(), |guest, len| log.mark::<F>(guest, len as u64)),
        });
        slot.filled.copied(at, bytes.len());
    }

    /// Writes a request's status byte, and marks it.
    #[cold]
    #[inline(never)]
    pub(super) fn put_status_marked(&self, map: &GuestMap, at: GuestSpan, code: u8) {
        let Some(log) = self.logging.marks() else { return };
        written::<F>(PortBug::StatusUnmarked, |step| match step {
            Step::Write => map.put_byte(at, code),
            Step::Mark => log.mark::<F>(map.guest_address(at, 0), 1),
        });
    }

    /// Writes `bytes` to the beginning of a span of the newest map.
    pub(super) fn put_bytes(&self, at: GuestSpan, bytes: &[u8]) {
        let map = self.maps.current();
        let write = || map.slice(at, 0, bytes.len()).copy_from(bytes);
        let Some(log) = self.logging.marks() else { return write() };
        written::<F>(PortBug::DataUnmarked, |step| match step {
            Step::Write => write(),
            Step::Mark => log.mark::<F>(map.guest_address(at, 0), bytes.len() as u64),
        });
    }
}
