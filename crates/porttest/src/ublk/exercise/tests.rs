//! What a device answers, request by request.
//!
//! Owns no state. Invariant: what is asserted here the kernel relies on.

use super::super::kernel::{Asked, POISON, UblkKernel};
use super::{DeviceRun, SIZE, fuzz_requests};
use crate::faults::plant;
use crate::nbd::exercise::geometry;
use rustix::io::Errno;
use undercroft_cache::{IoError, Op};
use undercroft_frontend::Port;
use undercroft_frontend::faults::PortBug;
use undercroft_frontend::turns::SEND_BYTES;
use undercroft_host::ublk::{Request, operation};

fn run() -> DeviceRun {
    DeviceRun::new(&geometry(SIZE), 8, 4 << 20, 1)
}

fn asks(operation: u8, start_sector: u64, sectors: u32) -> Asked {
    Asked::new(start_sector, Request { operation, flags: 0, sectors, start_sector }, 7)
}

/// The results of what is finished, by the first sector, in the order in which it was.
fn results(run: &DeviceRun) -> Vec<(u64, i32)> {
    run.device.with(|k| k.finished.drain(..).map(|(asked, _, result)| (asked.name, result)).collect())
}

#[test]
fn arbitrary_requests_are_answered_once_each() {
    let mut x = 1u64;
    for _ in undercroft_skips::inputs(0..400) {
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        };
        let bytes: Vec<u8> = (0..usize::from(next())).map(|_| next()).collect();
        fuzz_requests(&bytes);
    }
}

#[test]
fn what_is_written_is_read_and_what_is_zeroed_is_zero() {
    let mut run = run();
    for (kind, start, sectors) in
        [(operation::WRITE, 1, 2048), (operation::READ, 0, 2048), (operation::WRITE_ZEROES, 9, 90)]
    {
        run.device.with(|k| k.ask(asks(kind, start, sectors)));
        run.serve();
    }
    assert!(run.disk.bytes[512..9 * 512].iter().all(|&b| b == 7));
    assert!(run.disk.bytes[9 * 512..99 * 512].iter().all(|&b| b == 0));
}

/// A device is asked for more than there are tags for, and for more data than there is memory for.
#[test]
fn what_finds_no_room_waits_and_is_served() {
    let mut run = DeviceRun::new(&geometry(SIZE), 4, 64 << 10, 5);
    for n in 0..64 {
        run.device.with(|k| k.ask(asks(operation::WRITE, n * 16, 128)));
    }
    run.take();
    assert!(run.port.inflight() < 4, "no memory for four");
    run.serve();
}

#[test]
fn failures_are_of_their_requests_alone() {
    let mut run = run();
    for n in 0..7 {
        run.device.with(|k| k.ask(asks(operation::READ, n, 1)));
    }
    let mut requests = Vec::new();
    run.port.take(8, &mut requests);
    assert_eq!(requests.len(), 7);
    use IoError::{Invalid, Io, Lost, NoSpace, Shutdown, Unsupported};
    let errors = [Io, NoSpace, Invalid, Unsupported, Shutdown, Lost];
    for (r, n) in requests.into_iter().zip(0..) {
        match errors.get(n) {
            Some(&e) => run.port.reply(r.id.tag, Err(e)),
            None => {
                let result = run.disk.execute(&r, &mut run.port);
                run.port.reply(r.id.tag, result);
            }
        }
    }
    run.port.flush(SEND_BYTES);
    assert_eq!(results(&run), [(0, -5), (1, -28), (2, -22), (3, -95), (4, -5), (5, -5), (6, 512)]);
}

/// A read that the core calls good, and that brought only a part: the reader would see what was in its memory.
#[test]
fn a_read_without_all_of_its_data_is_an_error() {
    for bug in [true, false] {
        plant(bug.then_some(PortBug::ShortReadSent));
        let mut run = run();
        run.device.with(|k| k.ask(asks(operation::READ, 0, 16)));
        let mut requests = Vec::new();
        run.port.take(1, &mut requests);
        run.port.copy_out(requests[0].id.tag, 0, &[1; 4096]);
        run.port.reply(requests[0].id.tag, Ok(()));
        run.port.flush(SEND_BYTES);
        plant(None);
        let (asked, _, result) = run.device.with(|k| k.finished.pop()).unwrap();
        assert_eq!((asked.data[4095], asked.data[4096]), (1, POISON));
        assert_eq!(result, if bug { 8192 } else { -5 });
    }
}

#[test]
fn data_that_cannot_be_copied_make_an_error_and_a_write_does_not_begin() {
    let mut run = run();
    run.device.with(|k| {
        k.ask(asks(operation::READ, 0, 8));
        k.ask(asks(operation::WRITE, 8, 8));
        k.data_fails = true;
    });
    let mut requests = Vec::new();
    run.port.take(8, &mut requests);
    assert!(matches!(requests[..], [r] if r.op == Op::Read), "a write without its data is none: {requests:?}");
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    let mut all = results(&run);
    all.sort_unstable();
    assert_eq!(all, [(0, -5), (8, -5)]);
}

#[test]
fn what_demands_durability_says_so_to_the_core() {
    let mut run = run();
    let ask = |operation, flags| Asked::new(0, Request { operation, flags, sectors: 8, start_sector: 0 }, 1);
    for asked in [
        ask(operation::WRITE, operation::FUA),
        ask(operation::WRITE, 0),
        ask(operation::WRITE_ZEROES, operation::FUA | operation::NOUNMAP),
        ask(operation::FLUSH, 0),
        ask(operation::DISCARD, 0),
    ] {
        run.device.with(|k| k.ask(asked));
    }
    let mut requests = Vec::new();
    run.port.take(8, &mut requests);
    let ops: Vec<Op> = requests.iter().map(|r| r.op).collect();
    let zeroes = Op::WriteZeroes { unmap: false, fua: true };
    assert_eq!(ops, [Op::Write { fua: true }, Op::Write { fua: false }, zeroes, Op::Flush, Op::Discard]);
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
}

/// At rest nothing is under way; what comes meanwhile waits, for this process or the next.
#[test]
fn a_device_at_rest_takes_nothing_and_goes_on() {
    let mut run = run();
    (0..3).for_each(|n| run.device.with(|k| k.ask(asks(operation::READ, n, 1))));
    let mut requests = Vec::new();
    run.port.take(2, &mut requests);
    run.port.rest(true);
    assert!(!run.port.is_at_rest());
    run.device.with(|k| k.ask(asks(operation::READ, 9, 1)));
    assert!(!run.port.take(8, &mut requests) && requests.len() == 2 && !run.port.arm());
    run.disk.serve(&mut requests, &mut run.port);
    assert!(!run.port.is_at_rest(), "answers are to be handed over");
    run.port.flush(SEND_BYTES);
    assert!(run.port.is_at_rest());
    run.port.rest(false);
    run.port.take(8, &mut requests);
    assert_eq!(requests.len(), 2);
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert_eq!(results(&run).len(), 4);
}

/// A port that is shut answers what is under way, closes, and leaves the rest to whoever comes next.
#[test]
fn what_was_not_begun_is_asked_again_of_the_next_server() {
    let mut run = run();
    (0..5).for_each(|n| run.device.with(|k| k.ask(asks(operation::WRITE, n, 1))));
    let mut requests = Vec::new();
    run.port.take(2, &mut requests);
    run.port.shut();
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert!(run.port.is_closed() && run.device.with(|k| k.closed));
    assert_eq!(results(&run).len(), 2);
    run.die();
    run.serve();
    assert_eq!(run.device.with(|k| k.unfinished()), 0);
}

/// A device that is stopped while nothing is asked ends the port; so does a kernel that makes no sense.
#[test]
fn the_end_of_a_device_ends_its_port() {
    for end in [
        UblkKernel::stop as fn(&mut UblkKernel),
        |k| k.lie(99, 0),
        |k| k.lie(0, 0),
        |k| k.submit_fails = Some(Errno::BADF),
    ] {
        let mut run = run();
        run.device.with(|k| k.ask(asks(operation::READ, 0, 1)));
        if run.take() {
            run.take();
        }
        run.device.with(end);
        run.take();
        run.reply(1);
        run.take();
        assert!(run.port.is_closed(), "its end is noticed");
    }
}

/// A failure that was not handed over reached nobody, and neither did one after the end.
#[test]
fn failures_that_reached_nobody_are_told() {
    let mut run = run();
    (0..2).for_each(|n| run.device.with(|k| k.ask(asks(operation::FLUSH, n, 0))));
    let mut requests = Vec::new();
    run.port.take(8, &mut requests);
    run.port.reply(requests[0].id.tag, Err(IoError::Lost));
    assert!(!run.port.unheard() && run.port.take_unheard().is_none());
    run.device.with(|k| k.submit_fails = Some(Errno::BADF));
    run.port.flush(SEND_BYTES);
    assert!(run.port.is_closed());
    assert_eq!(run.port.take_unheard(), Some(requests[0].id.tag));
    run.port.reply(requests[1].id.tag, Err(IoError::Lost));
    assert!(run.port.unheard());
}

/// A kernel that is short of memory takes answers later.
#[test]
fn answers_that_were_not_taken_are_handed_over_again() {
    let mut run = run();
    run.device.with(|k| {
        k.ask(asks(operation::READ, 0, 1));
        k.submit_fails = Some(Errno::AGAIN);
    });
    run.take();
    run.reply(1);
    assert!(run.port.has_more_to_send() && run.port.arm(), "it does not sleep");
    run.device.with(|k| k.submit_fails = None);
    run.serve();
}
