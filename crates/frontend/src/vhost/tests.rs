//! The device against guests good and bad, without a socket: rings in memory, a disk in a vector.
//!
//! Owns nothing. Every test asserts what the guest sees: used entries, statuses, data, notifications.

use super::config::{EVENT_IDX, FLUSH};
use super::inflight::InflightArea;
use super::limits::{RANGES_MAX, SPANS_MAX};
use super::memory::Region;
use super::rig::{DATA, DATA_SPLIT, Guest, INDIRECT, NEXT, Rig, WRITE, eventfd, geometry, signals};
use crate::Port;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use undercroft_cache::Geometry;
use undercroft_cache::{IoError, Op};
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

impl Rig {
    /// Posts a chain of the given buffers, serves, and returns the status and the used length.
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

    /// Posts a chain that must break queue 0, and checks that it did and that another queue goes on.
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

#[test]
fn a_read_fills_the_buffer_and_says_how_much() {
    let mut rig = rig();
    assert_eq!(rig.request(IN, 3, &[(BUFFER, 4096, WRITE)]), (OK, 4097));
    let want: Vec<u8> = (1536..1536 + 4096).map(disk_byte).collect();
    assert_eq!(rig.guest.read(BUFFER, 4096), want);
    assert_eq!(rig.taken[0].op, Op::Read);
}

#[test]
fn a_write_reaches_the_disk_and_nothing_else() {
    let mut rig = rig();
    let before = rig.disk.clone();
    let data: Vec<u8> = (0..5120u32).map(|i| (i * 31) as u8).collect();
    rig.guest.write(BUFFER, &data);
    assert_eq!(rig.request(OUT, 9, &[(BUFFER, 5120, 0)]), (OK, 1));
    assert_eq!(rig.disk[9 * 512..9 * 512 + 5120], data);
    assert_eq!(rig.disk[..9 * 512], before[..9 * 512]);
    assert_eq!(rig.disk[9 * 512 + 5120..], before[9 * 512 + 5120..]);
    assert_eq!(rig.taken[0].op, Op::Write { fua: false });
}

#[test]
fn a_driver_that_cannot_flush_gets_durable_writes() {
    let mut rig = Rig::new(geometry(MIB), 1, 64, FLUSH);
    assert_eq!(rig.request(OUT, 0, &[(BUFFER, 512, 0)]).0, OK);
    assert_eq!(rig.taken[0].op, Op::Write { fua: true });
    let range = zero_range(0, 8, 0);
    rig.guest.write(BUFFER, &range);
    assert_eq!(rig.request(WRITE_ZEROES, 0, &[(BUFFER, 16, 0)]).0, OK);
    assert_eq!(rig.taken[1].op, Op::WriteZeroes { unmap: false, fua: true });
}

#[test]
fn data_may_be_scattered_and_straddle_regions() {
    let mut rig = rig();
    let pieces = [
        (BUFFER, 100, WRITE),
        (DATA_SPLIT - 200, 1000, WRITE),
        (BUFFER + 0x800, 1, WRITE),
        (BUFFER + 0x900, 0, WRITE),
        (BUFFER + 0xa00, 4019, WRITE),
    ];
    assert_eq!(rig.request(IN, 2, &pieces), (OK, 5121));
    let mut got = Vec::new();
    for &(at, len, _) in &pieces {
        let split = (DATA_SPLIT.saturating_sub(at) as usize).min(len as usize);
        got.extend(rig.guest.read(at, split));
        got.extend(rig.guest.read(at + split as u64, len as usize - split));
    }
    assert_eq!(got, (1024..1024 + 5120).map(disk_byte).collect::<Vec<u8>>());
}

#[test]
fn nothing_is_assumed_about_how_a_request_is_cut_into_buffers() {
    // Header in three pieces, the last of which holds the first data bytes; status behind the data in one buffer.
    let mut rig = rig();
    rig.guest.header(HEADER, OUT, 4);
    let data: Vec<u8> = (0..1024u32).map(|i| (i * 3) as u8).collect();
    rig.guest.write(HEADER + 16, &data[..24]);
    rig.guest.write(BUFFER, &data[24..]);
    let buffers = [(HEADER, 3, 0), (HEADER + 3, 9, 0), (HEADER + 12, 28, 0), (BUFFER, 1000, 0), (STATUS, 1, WRITE)];
    assert_eq!(rig.run(&buffers), (OK, 1));
    assert_eq!(rig.disk[2048..3072], data);

    rig.guest.header(HEADER, IN, 4);
    assert_eq!(rig.run(&[(HEADER, 16, 0), (STATUS - 1024, 1025, WRITE)]), (OK, 1025));
    assert_eq!(rig.guest.read(STATUS - 1024, 1024), data);
}

#[test]
fn an_indirect_table_may_be_in_any_order_and_at_any_address() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 1);
    let table = TABLE + 5;
    rig.guest.descriptor(table, 0, HEADER, 16, NEXT, 3);
    rig.guest.descriptor(table, 3, BUFFER, 512, NEXT | WRITE, 1);
    rig.guest.descriptor(table, 1, STATUS, 1, WRITE, 0);
    assert_eq!(rig.run(&[(table, 64, INDIRECT)]), (OK, 513));
    assert_eq!(rig.guest.read(BUFFER, 512), (512..1024).map(disk_byte).collect::<Vec<u8>>());
    // The header may come before the table.
    rig.guest.descriptor(table, 0, BUFFER, 512, NEXT | WRITE, 1);
    assert_eq!(rig.run(&[(HEADER, 16, 0), (table, 32, INDIRECT)]), (OK, 513));
}

#[test]
fn flush_and_get_id() {
    let mut rig = rig();
    assert_eq!(rig.request(FLUSH_T, 0, &[]), (OK, 1));
    assert_eq!((rig.flushes, rig.taken[0].op), (1, Op::Flush));
    assert_eq!(rig.request(GET_ID, 0, &[(BUFFER, 20, WRITE)]), (OK, 21));
    assert_eq!(rig.guest.read(BUFFER, 20), b"rig-serial\0\0\0\0\0\0\0\0\0\0");
    rig.guest.write(BUFFER, &[7; 32]);
    assert_eq!(rig.request(GET_ID, 0, &[(BUFFER, 3, WRITE), (BUFFER + 8, 2, WRITE)]), (OK, 6));
    assert_eq!(rig.guest.read(BUFFER, 11), b"rig\x07\x07\x07\x07\x07-s\x07", "no byte past the buffers");
}

fn zero_range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

#[test]
fn ranges_become_requests_of_their_own_and_one_answer() {
    let mut rig = rig();
    let mut ranges = zero_range(8, 8, 1);
    ranges.extend(zero_range(100, 0, 0));
    ranges.extend(zero_range(64, 1, 0));
    rig.guest.write(BUFFER, &ranges);
    assert_eq!(rig.request(WRITE_ZEROES, 0, &[(BUFFER, 40, 0), (BUFFER + 40, 8, 0)]), (OK, 1));
    let ops: Vec<_> = rig.taken.iter().map(|r| (r.op, r.offset, r.len)).collect();
    let zeroes = |unmap| Op::WriteZeroes { unmap, fua: false };
    assert_eq!(ops, [(zeroes(true), 4096, 4096), (zeroes(false), 32768, 512)]);
    assert!(rig.disk[4096..8192].iter().all(|&b| b == 0) && rig.disk[4095] != 0);

    rig.guest.write(BUFFER, &zero_range(2040, 8, 0));
    assert_eq!(rig.request(DISCARD, 0, &[(BUFFER, 16, 0)]), (OK, 1));
    assert_eq!(rig.taken.last().map(|r| (r.op, r.offset, r.len)), Some((Op::Discard, 2040 * 512, 4096)));
}

#[test]
fn one_failed_range_fails_the_request_after_all_have_ended() {
    let mut rig = rig();
    let mut ranges = zero_range(0, 8, 0);
    ranges.extend(zero_range(8, 8, 0));
    rig.guest.write(BUFFER, &ranges);
    rig.guest.header(HEADER, DISCARD, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 32, 0), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let parts = rig.take();
    rig.failure = Some(IoError::Io);
    rig.serve(parts[1]);
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [], "not before the other part has ended");
    rig.failure = None;
    rig.serve(parts[0]);
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [(0, 1)]);
    assert_eq!(rig.guest.read(STATUS, 1), [IOERR]);
}

#[test]
fn bad_ranges_are_refused_before_anything_is_done() {
    let mut rig = rig();
    let mut bad = |kind, bytes: &[u8]| {
        rig.guest.write(BUFFER, bytes);
        let status = rig.request(kind, 0, &[(BUFFER, bytes.len() as u32, 0)]).0;
        assert_eq!(rig.taken, [], "no part may reach the core");
        status
    };
    let good = zero_range(0, 8, 0);
    let with = |second: Vec<u8>| [good.clone(), second].concat();
    assert_eq!(bad(DISCARD, &with(zero_range(0, 8, 1))), UNSUPP, "discard has no unmap flag");
    assert_eq!(bad(WRITE_ZEROES, &with(zero_range(0, 8, 2))), UNSUPP);
    assert_eq!(bad(DISCARD, &with(zero_range(2041, 8, 0))), IOERR, "past the end");
    assert_eq!(bad(DISCARD, &with(zero_range(u64::MAX, 8, 0))), IOERR, "far past the end");
    assert_eq!(bad(DISCARD, &with(zero_range(u64::MAX / 512, u32::MAX, 0))), IOERR);
    assert_eq!(bad(DISCARD, &good[..15]), IOERR, "half a range");
    assert_eq!(bad(DISCARD, &[]), IOERR, "no range");
    assert_eq!(bad(DISCARD, &zero_range(0, 8, 0).repeat(RANGES_MAX + 1)), IOERR);
}

#[test]
fn ranges_that_do_not_fit_a_turn_wait_for_the_next() {
    let mut rig = rig();
    rig.guest.header(HEADER, DISCARD, 0);
    rig.guest.write(BUFFER, &zero_range(0, 8, 0).repeat(RANGES_MAX));
    let ring = Guest::ring(0)[0];
    for head in [0, 3] {
        let bytes = 16 * RANGES_MAX as u32;
        rig.guest.chain(ring, head, &[(HEADER, 16, 0), (BUFFER, bytes, 0), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, head);
    }
    // Also where other requests of the disk never leave room for all of them at a time.
    let mut out = Vec::new();
    while rig.port.take(3, &mut out) {
        assert!(out.len() < 2 * RANGES_MAX && rig.port.arm(), "there is more to take: do not sleep");
    }
    assert_eq!(out.len(), 2 * RANGES_MAX);
    assert_eq!(rig.port.inflight(), out.len());
    out.into_iter().for_each(|r| rig.port.reply(r.id.tag, Ok(())));
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [(0, 1), (3, 1)]);
}

#[test]
fn requests_outside_the_disk_or_not_of_whole_sectors_fail() {
    let mut rig = rig();
    for (sector, len) in
        [(2047, 1024), (2048, 512), (u64::MAX, 512), (u64::MAX / 512 + 1, 512), (1 << 55, 512), (0, 511)]
    {
        assert_eq!(rig.request(IN, sector, &[(BUFFER, len, WRITE)]), (IOERR, 1), "read of {len} at {sector}");
        assert_eq!(rig.request(OUT, sector, &[(BUFFER, len, 0)]), (IOERR, 1), "write of {len} at {sector}");
    }
    assert_eq!(rig.taken, []);
    assert_eq!(rig.request(IN, 2047, &[(BUFFER, 512, WRITE)]), (OK, 513), "the last sector is there");
    assert_eq!(rig.request(IN, 0, &[]), (OK, 1), "nothing is read at once");
}

#[test]
fn a_request_larger_than_the_cache_takes_fails() {
    let mut rig = Rig::new(geometry(64 * MIB), 1, 256, 0);
    rig.guest.header(HEADER, IN, 0);
    let mut buffers = vec![(HEADER, 16, 0)];
    buffers.extend(std::iter::repeat_n((BUFFER, 0x4_0000, WRITE), 129));
    buffers.push((STATUS, 1, WRITE));
    assert_eq!(rig.run(&buffers), (IOERR, 1));
    buffers.remove(1);
    assert_eq!(rig.run(&buffers), (OK, 32 * 1024 * 1024 + 1));
}

#[test]
fn unknown_requests_are_said_to_be_unsupported() {
    let mut rig = rig();
    for kind in [2, 3, 5, 14, 16, 0x8000_0000, u32::MAX] {
        assert_eq!(rig.request(kind, 0, &[(BUFFER, 512, WRITE)]), (UNSUPP, 1));
    }
    let mut rig = Rig::new(Geometry { can_discard: false, ..geometry(MIB) }, 1, 64, 0);
    rig.guest.write(BUFFER, &zero_range(0, 8, 0));
    assert_eq!(rig.request(DISCARD, 0, &[(BUFFER, 16, 0)]), (UNSUPP, 1));
}

#[test]
fn a_read_only_disk_is_not_written() {
    let mut rig = Rig::new(Geometry { read_only: true, ..geometry(MIB) }, 1, 64, 0);
    rig.guest.write(BUFFER, &zero_range(0, 8, 0));
    assert_eq!(rig.request(OUT, 0, &[(BUFFER, 512, 0)]).0, IOERR);
    assert_eq!(rig.request(WRITE_ZEROES, 0, &[(BUFFER, 16, 0)]).0, UNSUPP);
    assert_eq!(rig.taken, []);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]).0, OK);
}

#[test]
fn a_failing_disk_gives_a_status_and_no_data_length() {
    let mut rig = rig();
    for (failure, status) in [(IoError::Io, IOERR), (IoError::NoSpace, IOERR), (IoError::Unsupported, UNSUPP)] {
        rig.failure = Some(failure);
        assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]), (status, 1));
    }
}

#[test]
fn chains_with_faults_are_answered_with_an_error() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    let header = (HEADER, 16, 0);
    let status = (STATUS, 1, WRITE);
    let hole = 0x8_0000;
    assert_eq!(rig.run(&[header, (hole, 512, WRITE), status]), (IOERR, 1), "unmapped data");
    assert_eq!(rig.run(&[header, (u64::MAX - 3, 512, WRITE), status]), (IOERR, 1), "address wraps");
    assert_eq!(rig.run(&[header, (BUFFER, u32::MAX, WRITE), status]), (IOERR, 1), "longer than memory");
    assert_eq!(rig.run(&[(hole, 16, 0), (BUFFER, 512, WRITE), status]), (IOERR, 1), "unmapped header");
    assert_eq!(rig.run(&[(HEADER, 15, 0), (BUFFER, 512, WRITE), status]), (IOERR, 1), "short header");
    assert_eq!(rig.run(&[(BUFFER, 512, WRITE), header, status]), (IOERR, 1), "header behind the data");
    assert_eq!(rig.run(&[(BUFFER, 512, WRITE), status]), (IOERR, 1), "no header");
    assert_eq!(rig.taken, []);
    let long: Vec<_> = std::iter::repeat_n((BUFFER, 2, WRITE), SPANS_MAX).collect();
    let mut rig = Rig::new(geometry(MIB), 1, 512, 0);
    rig.guest.header(HEADER, IN, 0);
    let chain: Vec<_> = [header].into_iter().chain(long).chain([status]).collect();
    assert_eq!(rig.run(&chain), (IOERR, 1), "more pieces than a request may have");
}

#[test]
fn a_loop_breaks_only_its_queue() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.descriptor(0, 0, HEADER, 16, NEXT, 1);
    rig.guest.descriptor(0, 1, BUFFER, 16, NEXT | WRITE, 0);
    rig.breaks();
}

#[test]
fn a_loop_in_an_indirect_table_breaks_only_its_queue() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.descriptor(0, 0, TABLE, 32, INDIRECT, 0);
    rig.guest.descriptor(TABLE, 0, HEADER, 16, NEXT, 1);
    rig.guest.descriptor(TABLE, 1, STATUS, 1, NEXT | WRITE, 1);
    rig.breaks();
}

#[test]
fn malformed_indirect_tables_break_only_their_queue() {
    let hole = 0x8_0000;
    for (addr, len, flags) in [
        (TABLE, 0, INDIRECT),
        (TABLE, 40, INDIRECT),
        (TABLE, 16 * 1025, INDIRECT),
        (TABLE, 16, INDIRECT | NEXT),
        (hole, 16, INDIRECT),
        (DATA_SPLIT - 16, 32, INDIRECT),
        (u64::MAX, 16, INDIRECT),
        (TABLE + 0x100, 16, INDIRECT),
    ] {
        let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
        rig.guest.descriptor(TABLE, 0, STATUS, 1, WRITE, 0);
        rig.guest.descriptor(TABLE + 0x100, 0, TABLE, 16, INDIRECT, 0);
        rig.guest.descriptor(0, 0, addr, len, flags, 1);
        rig.breaks();
    }
}

#[test]
fn indices_outside_their_table_break_only_their_queue() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.descriptor(0, 0, HEADER, 16, NEXT, 64);
    rig.breaks();
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.descriptor(0, 0, TABLE, 32, INDIRECT, 0);
    rig.guest.descriptor(TABLE, 0, HEADER, 16, NEXT, 2);
    rig.breaks();
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.offer(0, 64);
    rig.breaks();
}

#[test]
fn a_chain_without_a_place_for_its_status_breaks_only_its_queue() {
    for last in [(BUFFER, 512, 0), (BUFFER, 0, WRITE), (0x8_0000, 1, WRITE), (u64::MAX, 1, WRITE)] {
        let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
        rig.guest.header(HEADER, OUT, 0);
        rig.guest.chain(0, 0, &[(HEADER, 16, 0), last]);
        rig.breaks();
        assert_eq!(rig.taken.len(), 1);
    }
}

#[test]
fn an_available_index_that_runs_ahead_breaks_only_its_queue() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.set_available(0, 65);
    rig.turn();
    assert_eq!(signals(&rig.errors[0]), 1);
    // Reset and set up again, it works.
    let (done, base) = sync_channel(1);
    rig.port.stop(0, done).unwrap();
    assert_eq!(base.recv(), Ok(0));
    rig.guest.set_available(0, 0);
    rig.start(0, 0, false);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]), (OK, 513));
}

#[test]
fn one_notification_for_all_answers_of_a_turn_if_the_driver_wants_one() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    let post = |rig: &mut Rig, n: u16| {
        for head in (0..n).map(|i| 3 * i) {
            rig.guest.chain(0, head, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
            rig.guest.offer(0, head);
        }
        rig.turn();
        rig.guest.used(0).len()
    };
    rig.guest.set_used_event(0, 0);
    assert_eq!(post(&mut rig, 4), 4);
    assert_eq!(signals(&rig.calls[0]), 1, "entry 0 was to be notified, four came at once");
    assert_eq!(post(&mut rig, 4), 4);
    assert_eq!(signals(&rig.calls[0]), 0, "the driver has not asked again");
    rig.guest.set_used_event(0, 9);
    assert_eq!(post(&mut rig, 1), 1);
    assert_eq!(signals(&rig.calls[0]), 0, "entry 8 was not asked for");
    assert_eq!(post(&mut rig, 1), 1);
    assert_eq!(signals(&rig.calls[0]), 1, "entry 9 was");
}

#[test]
fn without_event_indices_the_flags_count() {
    let mut rig = Rig::new(geometry(MIB), 1, 64, EVENT_IDX);
    rig.guest.set_used_event(0, 500);
    rig.request(IN, 0, &[(BUFFER, 512, WRITE)]);
    assert_eq!(signals(&rig.calls[0]), 1);
    rig.guest.write(Guest::ring(0)[1], &1u16.to_le_bytes());
    rig.request(IN, 0, &[(BUFFER, 512, WRITE)]);
    assert_eq!(signals(&rig.calls[0]), 0, "the driver polls");
    rig.port.disarm();
    assert_eq!(rig.guest.used_flags(0), 1, "no kicks, please");
    assert!(!rig.port.arm());
    assert_eq!(rig.guest.used_flags(0), 0);
}

#[test]
fn arming_sees_what_came_before_it() {
    let mut rig = rig();
    rig.request(IN, 0, &[(BUFFER, 512, WRITE)]);
    assert!(!rig.port.arm());
    assert_eq!(rig.guest.available_event(0), 1, "a kick for the next one");
    rig.guest.offer(0, 0);
    assert!(rig.port.arm(), "do not sleep: this one may have come without a kick");
    rig.turn();
    assert!(!rig.port.arm());
    assert_eq!(rig.guest.available_event(0), 2);
}

#[test]
fn queues_take_turns() {
    let mut rig = Rig::new(geometry(MIB), 3, 64, 0);
    rig.guest.header(HEADER, IN, 0);
    for queue in 0..3 {
        rig.guest.chain(Guest::ring(queue)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        (0..20).for_each(|_| rig.guest.offer(queue, 0));
    }
    let mut served = [0; 3];
    for _ in 0..3 {
        let mut out = Vec::new();
        assert!(rig.port.take(16, &mut out));
        assert_eq!(out.len(), 16);
        out.into_iter().for_each(|r| rig.port.reply(r.id.tag, Ok(())));
        rig.port.flush();
        (0..3).for_each(|q| served[usize::from(q)] += rig.guest.used(q).len());
    }
    assert_eq!(served, [16; 3], "a queue that always has more does not starve the others");
}

#[test]
fn a_guest_that_never_stops_posting_is_held_at_the_size_of_its_queue() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    (0..64).for_each(|_| rig.guest.offer(0, 0));
    let first = rig.take();
    assert_eq!(first.len(), 64);
    (0..64).for_each(|_| rig.guest.offer(0, 0));
    assert_eq!(rig.take(), [], "no more than the queue's size at a time");
    assert!(!rig.port.arm(), "and the worker may sleep: answers make room");
    assert_eq!(signals(&rig.wake_fd), 0);
    rig.serve(first[0]);
    assert_eq!(signals(&rig.wake_fd), 1, "no kick will come for what was posted before the ring was armed");
    rig.serve(first[1]);
    assert_eq!(signals(&rig.wake_fd), 0, "once is enough");
    rig.port.flush();
    assert!(rig.port.arm());
    assert_eq!(rig.take().len(), 2);
}

#[test]
fn many_queues_share_a_bound_on_requests_under_way() {
    let mut rig = Rig::new(geometry(MIB), 3, 512, 0);
    rig.guest.header(HEADER, IN, 0);
    for queue in 0..3 {
        rig.guest.chain(Guest::ring(queue)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        (0..512).for_each(|_| rig.guest.offer(queue, 0));
    }
    let first = rig.take();
    assert_eq!(first.len(), 1024 - RANGES_MAX);
    assert!(!rig.port.arm());
    first.into_iter().for_each(|r| rig.serve(r));
    assert_eq!(signals(&rig.wake_fd), 1, "the worker is woken for those that had to wait");
    assert_eq!(rig.take().len(), 3 * 512 - (1024 - RANGES_MAX));
}

#[test]
fn a_queue_that_was_held_up_comes_first_when_there_is_room() {
    let mut rig = Rig::new(geometry(MIB), 3, 512, 0);
    rig.guest.header(HEADER, IN, 0);
    for queue in 0..3 {
        rig.guest.chain(Guest::ring(queue)[0], 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        (0..512).for_each(|_| rig.guest.offer(queue, 0));
    }
    rig.take().into_iter().for_each(|r| rig.serve(r));
    rig.port.flush();
    let served: Vec<usize> = (0..3).map(|q| rig.guest.used(q).len()).collect();
    assert_eq!(served.iter().sum::<usize>(), 1024 - RANGES_MAX);
    // The first queues post as much again; the one that got least must not fall back further.
    for queue in 0..2 {
        (0..served[usize::from(queue)]).for_each(|_| rig.guest.offer(queue, 0));
    }
    rig.take().into_iter().for_each(|r| rig.serve(r));
    rig.port.flush();
    assert!(rig.guest.used(2).len() >= 512 - served[2], "all that the third queue had posted");
}

#[test]
fn a_stopping_queue_waits_for_its_requests_and_tells_its_position() {
    let mut rig = Rig::new(geometry(MIB), 2, 64, 0);
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    rig.guest.offer(0, 0);
    let (done, base) = sync_channel(1);
    rig.port.stop(0, done).unwrap();
    assert!(base.try_recv().is_err(), "a request is under way");
    assert_eq!(rig.take(), [], "a stopped queue is not served");
    rig.serve(under_way[0]);
    assert!(base.try_recv().is_err(), "the guest cannot see the answer yet");
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [(0, 513)]);
    assert_eq!(base.try_recv(), Ok(1));
    rig.start(0, 1, false);
    assert_eq!(rig.turn(), 1, "the second chain comes after the restart");
    assert_eq!(rig.guest.used(0), [(0, 513)]);
}

#[test]
fn a_new_memory_table_keeps_rings_and_requests_under_way() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    // The rings' region goes and comes back, as when a hypervisor rearranges it; meanwhile the request ends.
    let whole = Arc::clone(&rig.guest.map);
    let user = Guest::addresses(0).descriptors;
    let less = Arc::new(whole.without(0, user, 0x4_0000).unwrap());
    rig.port.set_memory(less);
    rig.serve(under_way[0]);
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [], "there is no ring to write to");
    assert_eq!(rig.take(), []);
    let mapping = Arc::new(undercroft_host::Guarded::new(MmapRegion::new(0x1000).unwrap()).unwrap());
    let more = whole.with(Region { guest: 0x40_0000, user: 0x1000, len: 0x1000, mapping, allocated: true }).unwrap();
    rig.port.set_memory(Arc::new(more));
    assert_eq!(rig.guest.used(0), [(0, 513)], "the answer is not lost");
    assert_eq!(rig.guest.read(BUFFER, 512), (0..512).map(disk_byte).collect::<Vec<u8>>());
    rig.guest.offer(0, 0);
    assert_eq!(rig.turn(), 1);
    assert_eq!(rig.guest.used(0), [(0, 513)]);
}

#[test]
fn after_a_disconnect_answers_go_nowhere_and_hold_up_the_next_session() {
    let mut rig = rig();
    let (said, file) = InflightArea::create(1, 64).unwrap();
    let features = rig.port_features();
    let area = InflightArea::open(&said, file).unwrap();
    rig.port.sever();
    rig.connect(features);
    rig.port.set_inflight(&area);
    rig.start(0, 0, true);
    rig.guest.header(HEADER, IN, 0);
    for head in [0, 3, 6] {
        rig.guest.chain(0, head, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, head);
    }
    let under_way = rig.take();
    rig.serve(under_way[1]);
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [(3, 513)]);

    rig.port.sever();
    rig.guest.write(BUFFER, &[0x55; 512]);
    rig.guest.write(STATUS, &[0x55]);
    rig.connect(features);
    rig.port.set_inflight(&area);
    // QEMU starts over from what it sees in the used ring.
    rig.start(0, 1, true);
    assert_eq!(rig.take(), [], "not before the requests of the last session have ended");
    assert!(!rig.port.arm());
    rig.serve(under_way[0]);
    assert_eq!(signals(&rig.wake_fd), 0);
    rig.serve(under_way[2]);
    assert_eq!(signals(&rig.wake_fd), 1, "the worker is woken when the last has ended");
    rig.port.flush();
    assert_eq!(rig.guest.used(0), []);
    assert_eq!(rig.guest.read(BUFFER, 512), [0x55; 512], "no memory of the guest is touched");
    assert_eq!(rig.guest.read(STATUS, 1), [0x55]);
    assert!(rig.port.arm());
    assert_eq!(rig.turn(), 2, "what was under way is served again");
    assert_eq!(rig.guest.used(0), [(0, 513), (6, 513)]);
    rig.guest.offer(0, 3);
    assert_eq!(rig.turn(), 1, "and new requests come after");
    assert_eq!(rig.guest.used(0), [(3, 513)]);
}

#[test]
fn a_restarted_device_serves_again_what_the_killed_one_had_taken() {
    let mut rig = rig();
    let features = rig.port_features();
    let (said, file) = InflightArea::create(1, 64).unwrap();
    let area = InflightArea::open(&said, file.try_clone().unwrap()).unwrap();
    rig.port.sever();
    rig.connect(features);
    rig.port.set_inflight(&area);
    rig.start(0, 0, true);
    for (i, head) in [9, 3, 6, 0].into_iter().enumerate() {
        rig.guest.header(HEADER + 32 * i as u64, IN, i as u64);
        let header = (HEADER + 32 * i as u64, 16, 0);
        rig.guest.chain(0, head, &[header, (BUFFER + 512 * i as u64, 512, WRITE), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, head);
    }
    let under_way = rig.take();
    rig.serve(under_way[2]);
    rig.port.flush();
    assert_eq!(rig.guest.used(0), [(6, 513)]);

    // Another process: nothing survives but the shared memory and the guest's.
    let mut next = Rig::new(geometry(MIB), 1, 64, 0);
    next.port.sever();
    next.guest = rig.guest;
    next.connect(features);
    next.port.set_inflight(&InflightArea::open(&said, file).unwrap());
    next.guest.header(HEADER + 0x80, IN, 8);
    next.guest.chain(0, 12, &[(HEADER + 0x80, 16, 0), (BUFFER + 2048, 512, WRITE), (STATUS, 1, WRITE)]);
    next.guest.offer(0, 12);
    next.start(0, 1, true);
    assert_eq!(next.turn(), 4);
    let order: Vec<u64> = next.taken.iter().map(|r| r.offset / 512).collect();
    assert_eq!(order, [0, 1, 3, 8], "in the order in which they were taken, then what is new");
    assert_eq!(next.guest.used(0), [(9, 513), (3, 513), (0, 513), (12, 513)]);
}

impl Rig {
    fn port_features(&self) -> u64 {
        super::config::Profile::new(&super::rig::info(geometry(MIB))).features()
    }
}

#[test]
fn an_orphaned_write_still_has_its_data() {
    let mut rig = rig();
    rig.guest.header(HEADER, OUT, 0);
    rig.guest.write(BUFFER, &[0x77; 512]);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, 0), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    rig.port.sever();
    drop(std::mem::replace(&mut rig.guest, Guest::new(1, 64)));
    rig.serve(under_way[0]);
    assert_eq!(rig.disk[..512], [0x77; 512]);
    assert_eq!(rig.port.inflight(), 0);
}

#[test]
fn a_shut_device_takes_nothing_but_answers() {
    let mut rig = rig();
    rig.guest.header(HEADER, IN, 0);
    rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    rig.guest.offer(0, 0);
    rig.port.shut();
    assert_eq!(rig.take(), []);
    assert_eq!(rig.port.inflight(), 1);
    rig.serve(under_way[0]);
    rig.port.flush();
    assert_eq!((rig.guest.used(0), rig.port.inflight()), (vec![(0, 513)], 0));
}

#[test]
fn queue_set_up_is_checked() {
    let mut rig = rig();
    let port = &mut rig.port;
    assert!(port.set_size(0, 64).is_err(), "the queue is running");
    assert!(port.set_base(0, 3).is_err());
    assert!(port.set_size(1, 64).is_err(), "there is one queue only");
    let (done, base) = sync_channel(1);
    port.stop(0, done).unwrap();
    base.recv().unwrap();
    for size in [0, 3, 48, 2048, 65536 + 64] {
        assert!(port.set_size(0, size).is_err(), "size {size}");
    }
    let mut at = Guest::addresses(0);
    at.used = 0x1234_5678;
    port.set_addresses(0, at).unwrap();
    assert!(port.start(0, eventfd(), false).is_err(), "the used ring is nowhere");
    assert_eq!(port.fds().len(), 1, "the wake_fd alone");
}
