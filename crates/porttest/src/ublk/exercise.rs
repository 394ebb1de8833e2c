//! A block device under arbitrary requests, without a kernel: what the fuzz target and the tests run.
//!
//! Owns a disk of bytes and a device in memory. Never opens a descriptor. Invariant checked here: each request is
//! answered once, with the data that the disk had when it was served; memory stays within its bound.

use super::kernel::{Asked, TestDevice, UblkKernel};
use crate::faults::Switched;
use crate::nbd::exercise::{ByteDisk, geometry};
use std::collections::HashMap;
use undercroft_cache::{DiskId, Geometry, IoError, Op, Request};
use undercroft_frontend::Port;
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::ublk::port::{NewBlockPort, UblkPort};
use undercroft_frontend::ublk::rules::{DeviceRules, DeviceVerdict, TRANSFER_BYTES_MAX};
use undercroft_host::ublk::{Request as KernelRequest, operation};

/// Bytes of the disk under arbitrary requests.
const SIZE: u64 = 3 << 20;

/// A port, its disk, and the kernel's end.
pub struct DeviceRun {
    /// The port.
    pub port: UblkPort<TestDevice, Switched>,
    /// Its disk.
    pub disk: ByteDisk,
    /// The kernel's end.
    pub device: TestDevice,
    /// What the disk allows.
    pub rules: DeviceRules,
    depth: u16,
    bytes_max: usize,
    waiting: Vec<(Request, Result<(), IoError>)>,
    /// By the name of a request: what a read must bring, or how it ended.
    expected: HashMap<u64, Result<Vec<u8>, IoError>>,
    random: u64,
}

impl DeviceRun {
    /// A port; `order` decides about the order of replies.
    pub fn new(geometry: &Geometry, depth: u16, bytes_max: usize, order: u64) -> DeviceRun {
        let (device, rules) = (TestDevice::new(depth), DeviceRules::new(geometry));
        DeviceRun {
            port: port_of(&device, rules, bytes_max),
            disk: ByteDisk::new(SIZE as usize),
            device,
            rules,
            depth,
            bytes_max,
            waiting: Vec::new(),
            expected: HashMap::new(),
            random: order | 1,
        }
    }

    fn dice(&mut self, sides: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % sides
    }

    /// The process dies, and the next one takes the device over.
    pub fn die(&mut self) {
        self.check();
        self.waiting.clear();
        self.expected.clear();
        self.device.with(|k| k.closed = true);
        self.device.with(UblkKernel::recover);
        self.port = port_of(&self.device, self.rules, self.bytes_max);
    }

    /// Takes requests, and does them; no reply is given.
    pub fn take(&mut self) -> bool {
        let budget = 1 + self.dice(8);
        let mut requests = Vec::new();
        let more = self.port.take(budget, &mut requests);
        assert!(requests.len() <= budget);
        for r in requests {
            assert_eq!((r.id.port, r.disk), (7, DiskId(3)));
            assert!(r.offset.checked_add(r.len).is_some_and(|end| end <= self.rules.params().sectors * 512));
            let result = self.disk.execute(&r, &mut self.port);
            let range = r.offset as usize..(r.offset + r.len) as usize;
            let data = if r.op == Op::Read { self.disk.bytes[range].to_vec() } else { Vec::new() };
            let name = self.device.with(|k| k.name_of(r.id.tag as u16)).expect("a request that the kernel has asked");
            self.expected.insert(name, result.map(|()| data));
            self.waiting.push((r, result));
        }
        assert!(self.waiting.len() <= self.depth.into() && self.port.inflight() == self.waiting.len());
        let held = self.port.held_bytes();
        assert!(held <= self.bytes_max.max(64 + 2 * TRANSFER_BYTES_MAX as usize), "{held} bytes are held");
        more
    }

    /// Gives `n` replies, in any order.
    pub fn reply(&mut self, n: usize) {
        for _ in 0..n {
            let k = self.dice(self.waiting.len());
            let (r, result) = self.waiting.swap_remove(k);
            self.port.reply(r.id.tag, result);
        }
        self.port.flush(SEND_BYTES);
    }

    /// Has all that the kernel asks served, and checks what was answered.
    pub fn serve(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let more = self.take();
            let all = quiet > 0 || self.waiting.len() == usize::from(self.depth);
            let n = if all { self.waiting.len() } else { self.dice(self.waiting.len() + 1) };
            self.reply(n);
            while self.port.take_unheard().is_some() {}
            self.check();
            let idle = !more && n == 0 && !self.port.has_more_to_send() && !self.port.arm();
            quiet = if idle { quiet + 1 } else { 0 };
        }
        assert!(self.port.is_closed() || self.device.with(|k| k.unfinished()) == 0, "it sleeps with requests at hand");
        assert_eq!((self.port.inflight(), self.port.held_bytes()), (0, 0));
    }

    /// Checks the answers that came since the last time.
    pub fn check(&mut self) {
        let finished = self.device.with(|k| std::mem::take(&mut k.finished));
        for (asked, _, result) in finished {
            let len = asked.request.sectors as i32 * 512;
            let fails = self.device.with(|k| k.data_fails);
            match (self.rules.judge(&asked.request), self.expected.remove(&asked.name)) {
                (DeviceVerdict::Answer(refusal), None) => assert_eq!(result, refusal),
                (_, Some(Err(e))) => assert!(result < 0, "{e:?}"),
                (DeviceVerdict::Read { .. } | DeviceVerdict::Write { .. }, _) if fails => assert_eq!(result, -5),
                (DeviceVerdict::Read { .. }, Some(Ok(data))) => {
                    assert_eq!(result, len);
                    assert!(asked.data == data, "what {asked:?} was given is not what the disk had");
                }
                (DeviceVerdict::Write { .. }, Some(Ok(_))) => assert_eq!(result, len),
                (_, Some(Ok(_))) => assert_eq!(result, 0),
                (verdict, None) => panic!("{verdict:?} was answered without the disk"),
            }
        }
        assert_eq!(self.device.with(|k| k.refused), 0, "the kernel refused an answer");
    }
}

fn port_of(device: &TestDevice, rules: DeviceRules, bytes_max: usize) -> UblkPort<TestDevice, Switched> {
    let (port, disk, path) = (7, DiskId(3), String::new());
    UblkPort::with_faults(NewBlockPort { port, disk, rules, bytes_max, path, device: device.clone(), account: None })
}

/// A request of four bytes: mostly one that makes sense.
fn described([kind, a, b, c]: [u8; 4]) -> KernelRequest {
    let kinds = [operation::READ, operation::WRITE, operation::FLUSH, operation::DISCARD, operation::WRITE_ZEROES];
    let operation = if kind & 0x80 != 0 { kind & 15 } else { kinds[usize::from(kind) % kinds.len()] };
    let sectors = match c >> 6 {
        0 => u32::from(c),
        1 | 2 => u32::from(c & 63) * 8,
        _ => u32::from(b) * 16,
    };
    let start_sector = if kind & 0xf0 == 0xf0 { u64::MAX - u64::from(a) } else { u64::from(a) * 24 + u64::from(b & 7) };
    KernelRequest { operation, flags: u32::from(kind & 0x60) << 8 | u32::from(b) << 24, sectors, start_sector }
}

/// Feeds requests to a port in all manner of ways, and checks all answers; the process dies now and then.
pub fn fuzz_requests(data: &[u8]) {
    let Some((&[mode, order, depth, bytes], mut rest)) = data.split_first_chunk() else { return };
    let mut geometry = geometry(SIZE);
    geometry.read_only = mode & 2 != 0;
    let mut run = DeviceRun::new(&geometry, 1 + u16::from(depth & 15), usize::from(bytes) << 12, order.into());
    run.disk.fails = (mode & 4 != 0).then_some(IoError::NoSpace);
    run.device.with(|k| k.data_fails = mode & 24 == 24);
    let mut name = 0;
    while let Some((&four, tail)) = rest.split_first_chunk() {
        (rest, name) = (tail, name + 1);
        run.device.with(|k| k.ask(Asked::new(name, described(four), four[3])));
        match four[3] & 7 {
            0 => run.serve(),
            1 => {
                run.take();
                run.die();
            }
            2 => _ = run.take(),
            _ => {}
        }
    }
    run.serve();
    run.device.with(UblkKernel::stop);
    run.serve();
    assert!(run.port.is_closed() && run.device.with(|k| k.closed), "it was stopped");
}

#[cfg(test)]
mod tests;
