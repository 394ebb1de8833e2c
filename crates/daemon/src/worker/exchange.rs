//! Another back end takes the place of a disk's: its image is opened, or closed, while guests stay connected.
//!
//! Owns no state of its own. Never opens or closes an image: it is given one, and returns the other. Invariant: an
//! operation that was submitted comes back once, from the back end that it was begun by or handed to.

use super::{Worker, turn};
use undercroft_backend::Backend;
use undercroft_cache::{DiskId, Event, KeptBlocks, Lost};
use undercroft_frontend::{AnyPort, Protocol};
use undercroft_host::{Interest, Trigger};

/// Why a back end did not take a disk over; with it, if that is of any more use.
pub(crate) enum NotExchanged {
    /// The disk is gone.
    Gone(Box<dyn Backend>),
    /// Operations are under way.
    Busy(Box<dyn Backend>),
    /// The kernel refuses to watch its descriptor.
    Unwatched(std::io::Error),
}

/// A disk, and the back end that is to take the place of its own.
pub(crate) type Next = (DiskId, Box<dyn Backend>);

/// A disk whose image is to be closed, and what was cached of it.
pub(crate) struct LaidDown {
    /// `None` if it could not be replaced.
    pub(crate) backend: Option<Box<dyn Backend>>,
    pub(crate) kept: KeptBlocks,
}

impl Worker {
    /// Puts `next` in the place of a disk's back end, which is returned; what that held is begun by the next one.
    /// Nothing stays cached, nor known of what is: the image may have been changed by others.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn exchange(&mut self, id: DiskId, next: Box<dyn Backend>) -> Result<Box<dyn Backend>, NotExchanged> {
        let last = self.replace(id, next)?;
        let closed = self.is_dormant(id);
        self.core.invalidate(id);
        if closed {
            self.core.want_nothing(id);
        }
        Ok(last)
    }

    /// Takes the back ends of disks of which nothing is under way, puts those of `next` in their place, and lists what
    /// is cached of them, in the same order. From then on the frames are another process's, until
    /// [`Worker::take_frames_back`].
    ///
    /// # Errors
    /// What was given, in its order, if something is under way.
    pub(crate) fn lay_down(&mut self, next: Vec<Next>) -> Result<Vec<LaidDown>, Vec<Next>> {
        if !next.iter().all(|&(id, _)| self.is_at_rest(id)) {
            return Err(next);
        }
        self.core.freeze_frames(true);
        let mut all = Vec::with_capacity(next.len());
        for (disk, dormant) in next {
            let kept = self.core.kept(disk);
            match self.replace(disk, dormant) {
                Ok(backend) => all.push(LaidDown { backend: Some(backend), kept }),
                // It stays where it is: nothing is under way, and nobody asks it for anything.
                Err(_) => all.push(LaidDown { backend: None, kept }),
            }
        }
        Ok(all)
    }

    /// The last flush of the disk's image failed when that was closed, so it may have lost what it acknowledged since
    /// the one before: every port is told once, and nothing of it outlives the disk in the SSD store.
    pub(crate) fn lose(&mut self, disk: DiskId, lost: Lost) {
        self.core.note_failed_flush(disk);
        self.apply(Event::Lost { disk, lost });
    }

    /// Nobody has taken the frames over: they are free to use again, and what they hold is not known.
    pub(crate) fn take_frames_back(&mut self, disks: &[DiskId]) {
        disks.iter().for_each(|&id| self.core.invalidate(id));
        self.core.freeze_frames(false);
    }

    /// Puts `next` in the place of a disk's back end, which is returned.
    fn replace(&mut self, id: DiskId, mut next: Box<dyn Backend>) -> Result<Box<dyn Backend>, NotExchanged> {
        let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return Err(NotExchanged::Gone(next));
        };
        let held = disk.backend.take_held();
        if disk.backend.inflight() > 0 || !disk.done.is_empty() {
            held.into_iter().for_each(|io| disk.backend.submit(io));
            return Err(NotExchanged::Busy(next));
        }
        let token = turn::token(turn::BACKEND, id.0, 0);
        if let Err(e) = self.epoll.add(next.wake_fd(), token, Interest::Read, Trigger::Level) {
            held.into_iter().for_each(|io| disk.backend.submit(io));
            return Err(NotExchanged::Unwatched(e));
        }
        // A descriptor that is closed is watched no longer in any case.
        let _ = self.epoll.remove(disk.backend.wake_fd());
        let begun = !held.is_empty();
        held.into_iter().for_each(|io| next.submit(io));
        let last = std::mem::replace(&mut disk.backend, next);
        if begun && !disk.dirty {
            disk.dirty = true;
            self.dirty.disks.push_back(id.0);
        }
        Ok(last)
    }

    /// Whether the disk's image is not open.
    pub(crate) fn is_dormant(&self, id: DiskId) -> bool {
        self.disks.get(id.0 as usize).and_then(Option::as_ref).is_some_and(|d| !d.backend.is_open())
    }

    /// Whether nothing of the disk is under way, neither of guests nor of its own.
    pub(crate) fn is_at_rest(&self, id: DiskId) -> bool {
        let disk = self.disks.get(id.0 as usize).and_then(Option::as_ref);
        self.core.is_idle(id) && disk.is_some_and(|d| d.backend.inflight() == 0 && d.done.is_empty())
    }

    /// Closes connections of NBD clients of the disk.
    pub(crate) fn shut_clients(&mut self, id: DiskId) {
        for (n, slot) in self.ports.iter_mut().enumerate() {
            if let Some(slot) = slot.as_mut().filter(|s| s.disk == id && is_client(&s.port)) {
                slot.port.shut();
                slot.wake(n as u32, &mut self.flows, self.now_ns);
            }
        }
    }

    /// How many ports of each of these disks, which are all that there are here, the process that follows is to tell of
    /// a loss: what clients have not taken of their answers until now they will not get. See
    /// [`undercroft_cache::Core::untold`].
    pub(crate) fn untold(&mut self, disks: &[DiskId]) -> Vec<u32> {
        for n in 0..self.ports.len() {
            if self.ports[n].as_ref().is_some_and(|slot| is_client(&slot.port)) {
                self.with_port(n as u32, Box::new(|port| port.process_ends()));
            }
        }
        // Should nothing come of it.
        self.leaving = true;
        disks.iter().map(|&id| self.core.untold(id)).collect()
    }
}

/// Whether a port is a connection of an NBD client.
fn is_client(port: &AnyPort) -> bool {
    let is_local = |protocol| matches!(protocol, Protocol::Fuse | Protocol::Ublk);
    port.memory().is_none() && port.peer().is_none_or(|peer| !is_local(peer.protocol))
}
