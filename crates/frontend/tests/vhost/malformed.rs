//! Chains and rings that make no sense.
//!
//! Owns nothing. Never uses more than one queue for what is wrong. Invariant: every test asserts that the request
//! fails, or that its queue alone is taken out of service.

use super::*;

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
