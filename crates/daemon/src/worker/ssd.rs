//! The devices of a worker's SSD store: operations go there and come back.
//!
//! Owns the back ends of the devices. Never knows what is on them: the core's store does. Invariant: an operation comes
//! back under the disk that it was submitted for, at the place that the core gave, whatever part of the device the
//! worker has.

use super::turn::{SSD, token};
use super::{AddDiskError, Worker};
use std::io;
use undercroft_backend::Backend;
use undercroft_cache::ssd::{OutOfService, OwnerId, Region, Ssd};
use undercroft_cache::{DiskId, Durability, Event, Io, IoDone, NoFaults, limits};
use undercroft_host::{Interest, Trigger};

/// A device of the store, as far as it is this worker's.
pub struct Device {
    /// What serves it.
    pub backend: Box<dyn Backend>,
    /// First byte of the worker's region.
    pub first: u64,
}

/// See the head of the file.
#[derive(Default)]
pub(super) struct Devices {
    list: Vec<Device>,
    /// Operations were submitted since the last kick.
    dirty: bool,
    /// Disks that are gone, and what the store still has of each, until it is taken over by who closes the image.
    parted: Vec<(u64, (OwnerId, Option<OwnerId>))>,
}

impl Devices {
    /// Passes an operation on.
    pub(super) fn submit(&mut self, device: u16, mut io: Io) {
        let Some(device) = self.list.get_mut(usize::from(device)) else {
            panic!("the core submitted an operation for device {device} of its store, which is not there");
        };
        io.offset += device.first;
        device.backend.submit(io);
        self.dirty = true;
    }

    /// Starts what was submitted since the last time.
    #[inline]
    pub(super) fn kick(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.list.iter_mut().for_each(|device| device.backend.kick());
        }
    }

    /// Whether there are any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.list.is_empty()
    }

    /// Appends what has finished.
    fn poll(&mut self, done: &mut Vec<IoDone>) {
        for device in self.list.iter_mut().filter(|device| device.backend.inflight() > 0) {
            device.backend.poll(done);
        }
    }

    /// Operations under way.
    pub(super) fn inflight(&self) -> usize {
        self.list.iter().map(|device| device.backend.inflight()).sum()
    }
}

impl Worker {
    /// Gives the worker's core a store on these devices, in the order of the store's regions. Before the first disk.
    ///
    /// # Errors
    /// If the kernel refuses to watch their descriptors.
    pub fn set_ssd(&mut self, ssd: Ssd, devices: Vec<Device>) -> Result<(), AddDiskError> {
        for (n, device) in devices.iter().enumerate() {
            let watched: io::Result<()> =
                self.epoll.add(device.backend.wake_fd(), token(SSD, n as u32, 0), Interest::Read, Trigger::Level);
            watched.map_err(AddDiskError::Watch)?;
        }
        self.devices = Devices { list: devices, ..Devices::default() };
        self.core.set_ssd(ssd);
        Ok(())
    }

    /// The disk, which is idle, is about to be removed: what the store has of it is kept for [`Worker::take_parted`].
    pub(super) fn part_from_ssd(&mut self, id: DiskId) {
        if let (Some(owners), Some(life)) = (self.core.part_ssd(id), self.life(id)) {
            self.devices.parted.push((life, owners));
        }
    }

    /// What the store has of a disk that has been removed; `life` tells which. Once.
    pub(crate) fn take_parted(&mut self, life: u64) -> Option<(OwnerId, Option<OwnerId>)> {
        let at = self.devices.parted.iter().position(|(of, _)| *of == life)?;
        Some(self.devices.parted.remove(at).1)
    }

    /// Has the core ask for what its store wants done, after that was told something outside of an event.
    pub(crate) fn serve_ssd(&mut self) {
        self.apply(Event::Spare { copies: false });
        self.devices.kick();
    }

    /// Has the image of a disk flushed if something of it may not be durable, and it is open. How it stood before.
    pub(crate) fn make_durable(&mut self, disk: DiskId) -> Durability {
        let durability = self.core.durability(disk);
        if durability == Durability::Unflushed && !self.is_dormant(disk) {
            self.apply(Event::MakeDurable { disk });
        }
        durability
    }

    /// Takes the store out of service, and its devices away as soon as nothing is under way there: then true.
    pub(crate) fn leave_ssd(&mut self) -> bool {
        let Some(ssd) = self.core.ssd_mut() else { return true };
        for device in 0..self.devices.list.len() {
            ssd.take_out_of_service(device as u16, OutOfService::Operator);
        }
        self.serve_ssd();
        if self.devices.inflight() > 0 {
            return false;
        }
        for device in self.devices.list.drain(..) {
            let _ = self.epoll.remove(device.backend.wake_fd());
        }
        true
    }

    /// Puts regions on these devices in the place of those that were taken away.
    ///
    /// # Errors
    /// If the kernel refuses to watch their descriptors, or the store has operations under way.
    pub(crate) fn return_ssd(&mut self, regions: Vec<Region<NoFaults>>, devices: Vec<Device>) -> io::Result<()> {
        let Some(ssd) = self.core.ssd_mut() else { return Ok(()) };
        for (region, n) in regions.into_iter().zip(0..) {
            ssd.given_up_is_recorded(n);
            ssd.replace(n, region).map_err(|_| io::Error::other("operations on the former one are under way"))?;
        }
        for (device, n) in devices.iter().zip(0..) {
            self.epoll.add(device.backend.wake_fd(), token(SSD, n, 0), Interest::Read, Trigger::Level)?;
        }
        self.devices.list = devices;
        Ok(())
    }

    /// Tells the core of finished operations of the store's devices, as many as a batch of each.
    #[cold]
    pub(super) fn reap_ssd(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        debug_assert!(done.is_empty(), "finished operations were left");
        self.devices.poll(&mut done);
        let busy = !done.is_empty();
        debug_assert!(done.len() <= self.devices.list.len() * limits::BATCH);
        for done in done.drain(..) {
            self.apply(Event::IoDone(done));
        }
        self.done = done;
        busy
    }
}
