//! The device against guests good and bad, without a socket: rings in memory, a disk in a vector.
//!
//! Owns nothing. Every test asserts what the guest sees: used entries, statuses, data, notifications.

mod changing;
mod malformed;
mod migration;
mod model;
mod outcomes;
mod reference;
mod requests;
mod sessions;
mod turns;
mod unheard;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use undercroft_cache::{Geometry, IoError, Op};
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_frontend::vhost::limits::{RANGES_MAX, SPANS_MAX};
use undercroft_frontend::vhost::parts::{
    EVENT_IDX, FLUSH, InflightArea, MemoryRegion, Profile, QueueRefusal, RingAddresses,
};
use undercroft_frontend::{GuestMemory, Port};
use undercroft_porttest::vhost::rig::{
    DATA, DATA_SPLIT, Guest, INDIRECT, NEXT, Rig, WRITE, eventfd, geometry, info, signals,
};
use vm_memory::MmapRegion;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH_T: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// Where the tests put headers, statuses, data and indirect tables.
const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0xc00;
const BUFFER: u64 = DATA + 0x1000;
const TABLE: u64 = DATA + 0x4_0000;

const MIB: u64 = 1 << 20;

fn rig() -> Rig {
    Rig::new(geometry(MIB), 1, 64, 0)
}

fn disk_byte(i: u64) -> u8 {
    (i / 512) as u8 ^ i as u8
}

/// What a guest does with one request.
trait Driver {
    /// Posts a chain of the given buffers, serves, and returns the status and the used length.
    fn run(&mut self, buffers: &[(u64, u32, u16)]) -> (u8, u32);

    /// The same with a header before the buffers and a status after them.
    fn request(&mut self, kind: u32, sector: u64, data: &[(u64, u32, u16)]) -> (u8, u32);

    /// Posts a chain that must break queue 0, and checks that it did and that another queue goes on.
    fn breaks(&mut self);
}

impl Driver for Rig {
    fn run(&mut self, buffers: &[(u64, u32, u16)]) -> (u8, u32) {
        self.guest.write(STATUS, &[0xee]);
        self.guest.chain(Guest::ring(0)[0], 0, buffers);
        self.guest.offer(0, 0);
        self.turn();
        let used = self.guest.used(0);
        assert_eq!(used.len(), 1, "one chain in, one out");
        assert_eq!(used[0].0, 0);
        (self.guest.read(STATUS, 1)[0], used[0].1)
    }

    fn request(&mut self, kind: u32, sector: u64, data: &[(u64, u32, u16)]) -> (u8, u32) {
        self.guest.header(HEADER, kind, sector);
        let mut buffers = vec![(HEADER, 16, 0)];
        buffers.extend(data);
        buffers.push((STATUS, 1, WRITE));
        self.run(&buffers)
    }

    fn breaks(&mut self) {
        self.guest.offer(0, 0);
        self.turn();
        assert_eq!(self.guest.used(0), [], "nothing can be answered");
        assert_eq!(signals(&self.errors[0]), 1, "the front end is told");
        assert_eq!(self.port.inflight(), 0);
        // The other queue still works; the broken one is not looked at again.
        self.guest.header(HEADER, IN, 0);
        self.guest.chain(Guest::ring(1)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        self.guest.offer(1, 0);
        self.guest.offer(0, 0);
        assert_eq!(self.turn(), 1);
        assert_eq!(self.guest.used(1), [(0, 513)]);
        assert_eq!(signals(&self.errors[0]), 0, "told once");
    }
}
