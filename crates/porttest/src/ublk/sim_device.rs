//! A kernel of the simulation: requests of programs on a disk that is a block device, and a careful judge of answers.
//!
//! Owns one device's port and the kernel's end of it. Never looks at the disk. Invariant: each request is answered at
//! most once, with as many bytes as it has; and exactly once unless the device is stopped, in whatever process its port
//! is: what one had and has not answered when it died, or came to rest, is asked again.

use super::kernel::{Asked, TestDevice, UblkKernel};
use crate::faults::Switched;
use crate::work::{Finished, Verb, Violation, Work};
use std::collections::{BTreeMap, VecDeque};
use undercroft_frontend::ublk::port::{NewBlockPort, UblkPort};
use undercroft_frontend::ublk::rules::{DeviceRules, RANGE_SECTORS_MAX, SECTOR_BYTES, TRANSFER_BYTES_MAX};
use undercroft_frontend::{DiskInfo, Port};
use undercroft_host::ublk::{Request, operation};
use undercroft_testkit::rng::{Rng, fill_pattern};

/// See the head of the file.
pub(crate) struct SimBlockDevice {
    /// The device's port.
    pub port: UblkPort<TestDevice, Switched>,
    device: TestDevice,
    /// Sent by programs, not at the driver yet.
    sent: VecDeque<Asked>,
    /// By the name of their request.
    works: BTreeMap<u64, Work>,
    names: u64,
    /// It was stopped from outside.
    pub stopped: bool,
    depth: usize,
}

impl SimBlockDevice {
    /// A device on port `id`.
    pub(crate) fn new(id: u32, info: &DiskInfo, rng: &mut Rng) -> SimBlockDevice {
        // The depth is agreed on when a device is made, and stays.
        let depth = *rng.pick(&[1, 2, 8, 128]);
        let device = TestDevice::new(depth);
        let port = port_on(id, info, device.clone(), rng);
        let (sent, works) = (VecDeque::new(), BTreeMap::new());
        SimBlockDevice { port, device, sent, works, names: 0, stopped: false, depth: depth.into() }
    }

    /// The process of the port has ended, whether it died or had come to rest. A fresh one takes the device over.
    pub(crate) fn take_over(&mut self, id: u32, info: &DiskInfo, rng: &mut Rng) {
        self.port = port_on(id, info, self.device.clone(), rng);
        self.device.with(|k| {
            k.closed = true;
            k.recover();
        });
    }

    /// What is under way.
    pub(crate) fn works(&mut self) -> impl Iterator<Item = &mut Work> {
        self.works.values_mut()
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> usize {
        self.works.len()
    }

    /// Requests that have been sent and are not at the driver.
    pub(crate) fn on_the_way(&self) -> usize {
        self.sent.len()
    }

    /// Sends a request. `size` is that of the disk.
    pub(crate) fn send(&mut self, work: Work, size: u64, rng: &mut Rng) {
        self.names += 1;
        let (offset, len) = work.parts.first().map_or((0, 0), |p| (p.offset, p.len));
        let (start_sector, sectors) = (offset / SECTOR_BYTES, (len / SECTOR_BYTES) as u32);
        let durable = if work.fua { operation::FUA } else { 0 };
        let of = |operation, flags| Request { operation, flags, sectors, start_sector };
        let request = match work.verb {
            Verb::Read => of(operation::READ, 0),
            Verb::Write => of(operation::WRITE, durable),
            Verb::Flush => of(operation::FLUSH, 0),
            Verb::Discard => of(operation::DISCARD, 0),
            Verb::Zeroes => of(operation::WRITE_ZEROES, durable | if work.unmap { 0 } else { operation::NOUNMAP }),
            _ => no_request(size / SECTOR_BYTES, rng),
        };
        let mut asked = Asked::new(self.names, request, 0);
        if work.verb == Verb::Write {
            fill_pattern(work.parts[0].change, offset, &mut asked.data);
        }
        self.sent.push_back(asked);
        self.works.insert(self.names, work);
    }

    /// Some of what was sent comes to the driver.
    pub(crate) fn arrive(&mut self, rng: &mut Rng) {
        let most = *rng.pick(&[1, 2, 100]);
        let n = rng.between(1, most).min(self.sent.len() as u64);
        let some = self.sent.drain(..n as usize);
        self.device.with(|k| some.for_each(|asked| k.ask(asked)));
    }

    /// Programs see the ends of at most `most` requests. Returns what is over.
    ///
    /// # Errors
    /// What the port has done wrong.
    pub(crate) fn read(&mut self, most: usize) -> Result<Vec<Finished>, Violation> {
        let refused = self.device.with(|k| std::mem::take(&mut k.refused));
        if refused > 0 {
            return Err("the driver refused an answer".to_string().into());
        }
        let some: Vec<_> = self.device.with(|k| {
            let n = most.min(k.finished.len());
            k.finished.drain(..n).collect()
        });
        some.into_iter().map(|(asked, _, result)| self.take_back(asked, result)).collect()
    }

    fn take_back(&mut self, asked: Asked, result: i32) -> Result<Finished, Violation> {
        let Some(work) = self.works.remove(&asked.name) else {
            return Err(format!("{asked:?} was answered twice").into());
        };
        let ok = result >= 0;
        if ok && result as usize != work.data_len() {
            return Err(format!("{work:?} was answered with {result}").into());
        }
        let data = if work.verb == Verb::Read && ok { asked.data } else { Vec::new() };
        Ok(Finished { work, ok, data })
    }

    /// Somebody stops the device: what is at the driver is finished first.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.device.with(UblkKernel::stop);
    }

    /// Whether something has happened that wakes the worker.
    pub(crate) fn wakes(&mut self) -> bool {
        self.device.with(|k| std::mem::take(&mut k.woken))
    }

    /// Requests whose end programs could see.
    pub(crate) fn readable(&self) -> usize {
        self.device.with(|k| k.finished.len())
    }

    /// Whether the port has a request with every tag.
    pub(crate) fn is_full(&self) -> bool {
        self.port.inflight() >= self.depth
    }

    /// The device is gone: what was not answered.
    pub(crate) fn end(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.works).into_values().collect()
    }

    /// The port, for the worker.
    pub(crate) fn as_port(&mut self) -> &mut dyn Port {
        &mut self.port
    }
}

/// What the block layer never sends, and a port refuses all the same. `sectors` are the disk's.
fn no_request(sectors: u64, rng: &mut Rng) -> Request {
    let of = |operation, start_sector, sectors| Request { operation, flags: 0, sectors, start_sector };
    match rng.below(6) {
        0 => of(operation::READ, sectors, 1),
        1 => of(operation::WRITE, sectors - 1, 2),
        2 => of(operation::READ, 0, 0),
        3 => of(operation::READ, 0, TRANSFER_BYTES_MAX / SECTOR_BYTES as u32 + 1),
        4 => of(operation::WRITE_ZEROES, 0, RANGE_SECTORS_MAX + 1),
        _ => of(99, 0, 1),
    }
}

/// A port of the device behind `device`, with a bound of its own.
fn port_on(id: u32, info: &DiskInfo, device: TestDevice, rng: &mut Rng) -> UblkPort<TestDevice, Switched> {
    UblkPort::with_faults(NewBlockPort {
        port: id,
        disk: info.disk,
        rules: DeviceRules::new(&info.geometry),
        bytes_max: *rng.pick(&[8 << 10, 64 << 10, 4 << 20]),
        path: String::new(),
        device,
        account: None,
    })
}
