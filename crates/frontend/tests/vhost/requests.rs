//! Requests of every kind: what reaches the disk, and what the guest is told.
//!
//! Owns nothing. Never breaks a ring: whatever a request asks for, its chain is well made. Invariant: every test
//! asserts the status and the length that the guest sees.

use super::*;

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
    rig.port.flush(SEND_BYTES);
    assert_eq!(rig.guest.used(0), [], "not before the other part has ended");
    rig.failure = None;
    rig.serve(parts[0]);
    rig.port.flush(SEND_BYTES);
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
    rig.port.flush(SEND_BYTES);
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
