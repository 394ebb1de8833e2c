//! What a session tells the device: features, memory, where rings lie, when queues start and stop, and its end.
//!
//! Owns no state of its own: it changes the port's between two turns of the worker. Never takes a chain and never
//! decides how one is answered. Invariants: a message that is refused leaves the queues running as they were; which
//! queues are served is found out anew after every change that bears on it.

use super::super::config::{EVENT_IDX, FLUSH, LOG_ALL, PROTOCOL_FEATURES};
use super::super::inflight::InflightArea;
use super::super::limits::QUEUE_SIZE_MAX;
use super::super::memory::GuestMap;
use super::super::ring::{RingAddresses, SplitRing};
use super::VhostPort;
use super::holes::Holes;
use super::logging::Logging;
use super::queue::{Queue, RestNotice, notify, report};
use crate::Port;
use crate::faults::{PortBug, PortFaults};
use crate::turns::SEND_BYTES;
use std::fs::File;
use std::sync::Arc;
use undercroft_host::Doorbell;

/// Why a message about a queue is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal {
    /// The device has fewer queues.
    #[error("the device has no queue of that number")]
    NoSuchQueue,
    /// Not a power of two, or above the largest.
    #[error("a queue's size must be a power of two up to {QUEUE_SIZE_MAX}")]
    QueueSize,
    /// It can change only while the queue is stopped.
    #[error("the queue is running")]
    Running,
    /// A part of the ring cannot be reached.
    #[error("the parts of the ring are not wholly inside shared memory, or not aligned")]
    RingPlace,
    /// Marks would go to memory that is not shared.
    #[error("the used ring is to be logged at an address where there is no guest memory")]
    LogPlace,
    /// The in-flight area was made for fewer queues, or smaller ones.
    #[error("the record of requests under way has no place for the queue")]
    NoInflightLog,
    /// Notifications of this front end blocked the worker, and there is no careful way here.
    #[error(
        "a front end of this disk made its notification descriptor block, and this kernel has no other way to notify \
         one (CONFIG_AIO, fs.aio-max-nr); restart the daemon once the disk's user is trusted again"
    )]
    HeldUpBefore,
}

impl<F: PortFaults> VhostPort<F> {
    /// The way to signal the front end at `eventfd`.
    pub(super) fn doorbell(&self, eventfd: Option<File>) -> Result<Option<Doorbell>, QueueRefusal> {
        match eventfd {
            Some(fd) if self.careful => Doorbell::careful(fd).map(Some).map_err(|_| QueueRefusal::HeldUpBefore),
            fd => Ok(fd.map(Doorbell::new)),
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue, QueueRefusal> {
        self.queues.get_mut(index as usize).ok_or(QueueRefusal::NoSuchQueue)
    }

    /// Takes the driver's features over.
    pub fn set_features(&mut self, features: u64) {
        self.event_idx = features & EVENT_IDX != 0;
        self.fua = features & FLUSH == 0;
        for queue in &mut self.queues {
            if let Some(ring) = &mut queue.ring {
                ring.set_event_idx(self.event_idx);
            }
            // Without the protocol's own way to enable rings they are enabled from the start.
            queue.enabled |= features & PROTOCOL_FEATURES == 0;
        }
        self.switch_log(features & LOG_ALL != 0);
        self.refresh();
    }

    /// Replaces the memory table. Requests under way go on with the memory they were taken with.
    pub fn set_memory(&mut self, map: Arc<GuestMap>) {
        self.flush(SEND_BYTES);
        self.maps.set(map);
        self.memory_changed = true;
        self.whole_at = u64::MAX;
        self.hint = 0;
        self.holes = Holes::default();
        let map = self.maps.current();
        let marks = self.logging.marks();
        self.queues.iter_mut().for_each(|queue| queue.remap::<F>(map, self.event_idx, marks));
        self.forget_seen();
        self.refresh();
    }

    /// Sets how many entries a queue has.
    pub fn set_size(&mut self, index: u32, size: u32) -> Result<(), QueueRefusal> {
        let queue = self.queue(index)?;
        if queue.started {
            return Err(QueueRefusal::Running);
        }
        queue.size = u16::try_from(size)
            .ok()
            .filter(|n| n.is_power_of_two() && *n <= QUEUE_SIZE_MAX)
            .ok_or(QueueRefusal::QueueSize)?;
        Ok(())
    }

    /// Sets where a ring lies.
    pub fn set_addresses(&mut self, index: u32, at: RingAddresses) -> Result<(), QueueRefusal> {
        self.flush(SEND_BYTES);
        let queue = self.queues.get_mut(index as usize).ok_or(QueueRefusal::NoSuchQueue)?;
        let bytes = SplitRing::used_bytes(queue.size) as u32;
        if at.log.is_some_and(|guest| !self.maps.current().locate_all(guest, bytes, &mut 0, |_| true)) {
            return Err(QueueRefusal::LogPlace);
        }
        queue.addresses = Some(at);
        queue.remap::<F>(self.maps.current(), self.event_idx, self.logging.marks());
        self.forget_seen();
        self.refresh();
        Ok(())
    }

    /// Sets the position from which available entries are taken.
    pub fn set_base(&mut self, index: u32, base: u32) -> Result<(), QueueRefusal> {
        let queue = self.queue(index)?;
        if queue.started {
            return Err(QueueRefusal::Running);
        }
        queue.base = base as u16;
        Ok(())
    }

    /// Hands over the record of requests under way; used from the next start of each queue on.
    pub fn set_inflight(&mut self, area: &InflightArea) {
        for (i, queue) in self.queues.iter_mut().enumerate() {
            if !queue.started {
                queue.log = area.queue(i as u16);
            }
        }
    }

    /// Starts a queue, or replaces the kick descriptor of one that runs. `logged` says whether requests under way are
    /// recorded in this session.
    pub fn start(&mut self, index: u32, kick: File, logged: bool) -> Result<(), QueueRefusal> {
        let queue = self.queues.get_mut(index as usize).ok_or(QueueRefusal::NoSuchQueue)?;
        if !queue.started {
            let at = queue.addresses.ok_or(QueueRefusal::RingPlace)?;
            let mut ring = SplitRing::new(self.maps.current(), &at, queue.size, queue.base, self.event_idx)
                .ok_or(QueueRefusal::RingPlace)?;
            ring.set_marks(self.logging.marks().cloned());
            queue.broken = None;
            queue.again.clear();
            // What waited for the memory of the ring was not seen: the record has it served again.
            queue.deferred.clear();
            self.failures.end(|of| u32::from(of) == index);
            if logged {
                let log = queue.log.as_mut().ok_or(QueueRefusal::NoInflightLog)?;
                match log.recover::<F>(queue.size, ring.published()) {
                    Ok(Some(left)) => {
                        // What was taken was either used or is still under way, in whatever order.
                        ring.set_next_available(ring.published().wrapping_add(left.len() as u16));
                        queue.again = left;
                        queue.again.reverse();
                    }
                    Ok(None) => {}
                    Err(broken) => queue.broken = Some(broken),
                }
            } else {
                queue.log = None;
            }
            if let Some(broken) = queue.broken {
                report(&self.disk, index as u16, queue, broken);
            }
            let moved = queue.reached() != 0;
            queue.began = ring.next_available();
            queue.ring = Some(ring);
            queue.started = true;
            if moved {
                self.look_for_beginning();
            }
        }
        self.queues[index as usize].kick = Some(kick);
        self.fds_changed = true;
        self.refresh();
        Ok(())
    }

    /// A queue that had been used was started: notes whether the driver begins afresh.
    ///
    /// After a pause a queue goes on where it was, which is 0 for one that was never used. So only one that starts at 0
    /// although it had got further says that the driver is another, and only while no other queue goes on.
    fn look_for_beginning(&mut self) {
        if self.queues.iter().all(|queue| !queue.started || queue.began == 0) {
            self.began_afresh = true;
            // Those that are started after it belong to the same beginning.
            self.queues.iter_mut().for_each(|queue| queue.rested = 0);
        }
    }

    /// Sets where the driver is notified; `None` if it polls.
    pub fn set_call(&mut self, index: u32, call: Option<File>) -> Result<(), QueueRefusal> {
        let call = self.doorbell(call)?;
        let queue = self.queue(index)?;
        // Entries may have been used before the driver could be told.
        if !F::has(PortBug::MaskedCallLost) {
            queue.held_up |= notify(call.as_ref());
        }
        queue.call = call;
        Ok(())
    }

    /// Sets where the front end is told that a queue is broken.
    pub fn set_error(&mut self, index: u32, error: Option<File>) -> Result<(), QueueRefusal> {
        let error = self.doorbell(error)?;
        self.queue(index)?.error = error;
        Ok(())
    }

    /// Enables or disables a queue; a disabled one is not served.
    pub fn enable(&mut self, index: u32, on: bool) -> Result<(), QueueRefusal> {
        self.queue(index)?.enabled = on;
        self.refresh();
        Ok(())
    }

    /// Stops a queue. When its last chain has been given back and published, those of a former process that were taken
    /// and not done among them, `done` is sent the position of the next
    /// available entry.
    pub fn stop(&mut self, index: u32, done: impl Into<RestNotice>) -> Result<(), QueueRefusal> {
        self.flush(SEND_BYTES);
        let queue = self.queue(index)?;
        queue.started = false;
        queue.kick = None;
        if F::has(PortBug::StopLeavesTaken) {
            queue.again.clear();
        }
        queue.stopping = Some(done.into());
        queue.settle();
        self.fds_changed = true;
        self.refresh();
        Ok(())
    }

    /// Whether no queue is started.
    pub(crate) fn has_stopped(&self) -> bool {
        self.queues.iter().all(|queue| !queue.started)
    }

    /// Forgets what the driver has set up, but not the memory table. All queues must have stopped.
    pub fn reset(&mut self) {
        debug_assert!(self.queues.iter().all(|queue| queue.under_way == 0), "reset of a device that is not at rest");
        self.dirty.clear();
        self.failures.end(|_| true);
        self.queues.iter_mut().for_each(|queue| *queue = Queue::new());
        self.logging = Logging::default();
        self.event_idx = false;
        self.fua = true;
        self.fds_changed = true;
        self.began_afresh = true;
        self.refresh();
    }

    /// Ends the session: forgets all that the front end said. Requests under way are finished, but not answered; what
    /// was answered and not published, the next session finds in its record and has served again.
    pub fn sever(&mut self) {
        self.waits = false;
        self.connection = None;
        self.whole_at = u64::MAX;
        self.session = self.session.wrapping_add(1);
        self.orphans = self.slots.used();
        self.dirty.clear();
        self.failures.end(|_| true);
        if F::has(PortBug::UnseenForgotten) {
            while self.failures.take_unheard().is_some() {}
        }
        // The guest may have been reset by the time the next front end comes, or go on.
        self.queues.iter_mut().for_each(|queue| *queue = Queue { rested: queue.reached(), ..Queue::new() });
        self.maps.set(Arc::default());
        self.memory_changed = true;
        self.hint = 0;
        self.logging = Logging::default();
        self.event_idx = false;
        self.fua = true;
        self.fds_changed = true;
        self.refresh();
    }
}
