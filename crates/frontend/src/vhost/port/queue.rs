//! One virtqueue of the device: what the front end has said about it, and its chains that are under way.
//!
//! Owns a ring's place, its positions, its descriptors and its record of chains taken. Never decides which queue is
//! served, and never looks into a request. Invariant: each chain given back is counted off and is either put on the
//! ring or kept until the memory of the ring is there again.

use super::super::config::Profile;
use super::super::dirty_log::DirtyLog;
use super::super::inflight::InflightLog;
use super::super::limits::QUEUE_SIZE_MAX;
use super::super::memory::GuestMap;
use super::super::ring::{Broken, RingAddresses, SplitRing};
use crate::faults::{PortBug, PortFaults};
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use undercroft_host::{Doorbell, EventFd};

/// Who waits for a queue to come to rest: is sent the position of the next available entry, or finds the channel closed
/// if that will never be.
#[derive(Debug)]
pub struct RestNotice {
    /// `Some` until it is dropped.
    to: Option<SyncSender<u16>>,
    wake: Option<Arc<EventFd>>,
}

impl RestNotice {
    /// The same for somebody who sleeps on `wake`, which is signalled once the channel has an answer or is closed.
    pub(in super::super) fn waking(to: SyncSender<u16>, wake: Arc<EventFd>) -> RestNotice {
        RestNotice { to: Some(to), wake: Some(wake) }
    }

    fn tell(&self, base: u16) {
        // The session may have gone meanwhile.
        let _ = self.to.as_ref().map(|to| to.try_send(base));
    }
}

impl From<SyncSender<u16>> for RestNotice {
    fn from(to: SyncSender<u16>) -> RestNotice {
        RestNotice { to: Some(to), wake: None }
    }
}

impl Drop for RestNotice {
    fn drop(&mut self) {
        // In this order: whoever wakes up is to find the answer, or that there will be none.
        drop(self.to.take());
        if let Some(wake) = &self.wake {
            wake.signal();
        }
    }
}

/// One virtqueue and what the front end has said about it.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) size: u16,
    pub(super) addresses: Option<RingAddresses>,
    pub(super) base: u16,
    /// Where it came to rest, as the driver left it; what a front end says of the base afterwards does not count.
    pub(super) rested: u16,
    /// Where it was started.
    pub(super) began: u16,
    pub(super) kick: Option<File>,
    pub(super) call: Option<Doorbell>,
    pub(super) error: Option<Doorbell>,
    pub(super) enabled: bool,
    /// Between the kick descriptor's arrival and the request for the base.
    pub(super) started: bool,
    /// Found in guest memory; `None` while the memory it lies in is not there.
    pub(super) ring: Option<SplitRing>,
    pub(super) broken: Option<Broken>,
    pub(super) log: Option<InflightLog>,
    /// Chains that a former daemon took and did not answer, the next one last.
    pub(super) again: Vec<u16>,
    /// Chains taken and not given back.
    pub(super) under_way: u16,
    /// Chains to give back as soon as the memory of the ring is there again, with the bytes written.
    pub(super) deferred: Vec<(u16, u32)>,
    /// Is in the port's list of queues to publish.
    pub(super) dirty: bool,
    /// The front end made us wait to notify it.
    pub(super) held_up: bool,
    /// Waits for the last chain; is sent the base.
    pub(super) stopping: Option<RestNotice>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            size: QUEUE_SIZE_MAX,
            addresses: None,
            base: 0,
            rested: 0,
            began: 0,
            kick: None,
            call: None,
            error: None,
            enabled: false,
            started: false,
            ring: None,
            broken: None,
            log: None,
            again: Vec::new(),
            under_way: 0,
            deferred: Vec::new(),
            dirty: false,
            held_up: false,
            stopping: None,
        }
    }

    /// How far the driver has been served: 0 for a queue that was never used.
    pub(super) fn reached(&self) -> u16 {
        match &self.ring {
            Some(ring) => ring.next_available(),
            // Its memory is not there at the moment.
            None if self.started || self.stopping.is_some() => self.base,
            None => self.rested,
        }
    }

    /// Whether it is served: a queue that stops only until what a former process took is done.
    pub(super) fn runs(&self) -> bool {
        (self.started && self.enabled || self.leaves_taken()) && self.broken.is_none() && self.ring.is_some()
    }

    /// Whether it is to stop and a former process took chains that are not done. They are done before it stops, enabled
    /// or not: whoever goes on with the queue elsewhere has no record of them, and believes them taken.
    fn leaves_taken(&self) -> bool {
        self.stopping.is_some() && !self.again.is_empty() && self.broken.is_none() && self.ring.is_some()
    }

    /// Chains that could be taken now.
    #[inline]
    pub(super) fn waiting(&mut self) -> Result<u16, Broken> {
        let Some(ring) = &mut self.ring else { return Ok(0) };
        let room = ring.size().saturating_sub(self.under_way);
        if !self.again.is_empty() {
            return Ok(room.min(self.again.len() as u16));
        }
        if self.stopping.is_some() {
            return Ok(0);
        }
        Ok(room.min(ring.available()?))
    }

    /// Gives a chain back; the driver sees it at the next publication. Returns whether the queue has to be put on the
    /// list of those to publish.
    #[inline]
    pub(super) fn give_back<F: PortFaults>(&mut self, head: u16, written: u32) -> bool {
        self.under_way -= 1;
        match &mut self.ring {
            Some(ring) => {
                if let Some(log) = &mut self.log {
                    log.used::<F>(head);
                }
                ring.push_used::<F>(head, written);
            }
            None => self.deferred.push((head, written)),
        }
        !std::mem::replace(&mut self.dirty, true)
    }

    /// Finds the ring in guest memory again after one of both has moved. Its positions stay.
    pub(super) fn remap<F: PortFaults>(&mut self, map: &GuestMap, event_idx: bool, marks: Option<&DirtyLog>) {
        if !self.started && self.stopping.is_none() {
            return;
        }
        let Some(at) = &self.addresses else { return };
        self.ring = match &self.ring {
            Some(ring) => {
                self.base = ring.next_available();
                ring.moved(map, at)
            }
            None => SplitRing::new(map, at, self.size, self.base, event_idx),
        };
        if let Some(ring) = &mut self.ring {
            ring.set_marks(marks.cloned());
            for (head, written) in std::mem::take(&mut self.deferred) {
                self.under_way += 1;
                self.give_back::<F>(head, written);
            }
            // Published here, so that it need not be on the port's list.
            self.dirty = false;
            self.publish::<F>();
        }
    }

    /// Makes used entries visible, and notifies the driver if it wants that.
    #[inline]
    pub(super) fn publish<F: PortFaults>(&mut self) {
        if let Some(ring) = &mut self.ring
            && ring.unpublished() > 0
        {
            if let Some(log) = &mut self.log
                && F::has(PortBug::MarkGoesEarly)
            {
                log.published::<F>(ring.published().wrapping_add(ring.unpublished()));
            }
            let wanted = ring.publish::<F>();
            if let Some(log) = &mut self.log {
                log.published::<F>(ring.published());
            }
            if wanted {
                self.held_up |= notify(self.call.as_ref());
            }
        }
    }

    /// Answers the front end that waits for the ring to stop, if it has.
    pub(super) fn settle(&mut self) {
        if self.under_way == 0
            && !self.leaves_taken()
            && let Some(waiter) = self.stopping.take()
        {
            self.base = self.ring.as_ref().map_or(self.base, SplitRing::next_available);
            self.rested = self.base;
            self.again.clear();
            self.ring = None;
            self.call = None;
            waiter.tell(self.base);
        }
    }
}

/// Signals the peer. Returns whether that was made to wait.
#[inline]
pub(super) fn notify(doorbell: Option<&Doorbell>) -> bool {
    doorbell.is_some_and(|doorbell| doorbell.ring().is_err())
}

/// Says once, in the log and to the front end, that a queue is out of service.
pub(super) fn report(disk: &Profile, index: u16, queue: &mut Queue, broken: Broken) {
    tracing::error!(
        disk = disk.name,
        queue = index,
        "queue taken out of service: {broken}; it works again after the guest resets the device"
    );
    queue.held_up |= notify(queue.error.as_ref());
}
