//! What a file answers, message by message.
//!
//! Owns no state. Invariant: what is asserted here the kernel relies on.

use super::super::messages::{allocate, attribute, init, message, reply, seek, transfer, wanted};
use super::{FileRun, fuzz_messages};
use crate::nbd::exercise::geometry;
use undercroft_cache::{Extent, IoError, Op};
use undercroft_frontend::Port;
use undercroft_frontend::fuse::port::FileLimits;
use undercroft_frontend::fuse::rules::{HINT, TRANSFER_BYTES_MAX, WILLNEED, errno};
use undercroft_frontend::fuse::wire::{
    ASKED_AGAIN, Fields, O_DSYNC, ROOT, SEEK_DATA, SEEK_HOLE, ability, opcode, opened, set,
};
use undercroft_frontend::turns::SEND_BYTES;

const SIZE: u64 = 3 << 20;

fn run() -> FileRun {
    FileRun::new(&geometry(SIZE), FileLimits::default(), 1)
}

fn write(offset: u64, data: &[u8], flags: u32) -> Vec<u8> {
    [transfer(offset, data.len() as u32, flags), data.to_vec()].concat()
}

#[test]
fn arbitrary_messages_are_answered_once_each() {
    let mut x = 1u64;
    for _ in undercroft_skips::inputs(0..300) {
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        };
        let bytes: Vec<u8> = (0..usize::from(next())).map(|_| next()).collect();
        fuzz_messages(&bytes);
    }
}

#[test]
fn what_is_agreed_on_is_what_both_can() {
    let mut run = run();
    let all = run.ask(opcode::INIT, &init(7, 45, u32::MAX)).body;
    let mut f = Fields(&all);
    assert_eq!((f.u32(), f.u32(), f.u32()), (Some(7), Some(38), Some(131_072)));
    let abilities = u64::from(f.u32().unwrap());
    let wanted = ability::ASYNC_READ | ability::BIG_WRITES | ability::ASYNC_DIO | ability::MAX_PAGES;
    assert_eq!(abilities, wanted | ability::PARALLEL_DIROPS);
    assert_eq!((f.u16(), f.u16(), f.u32()), (Some(128), Some(96), Some(128 << 10)));
    assert_eq!((f.u32(), f.u16()), (Some(1), Some(256)));
    let few = run.ask(opcode::INIT, &init(7, 31, ability::ASYNC_READ as u32)).body;
    assert_eq!(few[12..16], [1, 0, 0, 0]);
    assert_eq!(run.ask(opcode::INIT, &init(7, 8, u32::MAX)).error, errno::EPROTO);
    // A kernel of a later major version asks again.
    assert_eq!(run.ask(opcode::INIT, &init(8, 0, u32::MAX)).body[..4], [7, 0, 0, 0]);
}

#[test]
fn reads_and_writes_of_any_length_at_any_place() {
    let mut run = run();
    for (offset, len) in [(0, 1), (1, 4096), (4095, 2), (7, TRANSFER_BYTES_MAX), (512, TRANSFER_BYTES_MAX / 2 + 1)] {
        let data: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        assert_eq!(run.ask(opcode::WRITE, &write(offset, &data, 0)).body[..4], (len as u32).to_ne_bytes());
        assert_eq!(run.ask(opcode::READ, &transfer(offset, len as u32, 0)).body, data);
        assert_eq!(run.disk.bytes[offset as usize..offset as usize + len], data);
    }
    assert_eq!(run.ask(opcode::READ, &transfer(SIZE - 5, 100, 0)).body, run.disk.bytes[SIZE as usize - 5..]);
    assert!(run.ask(opcode::READ, &transfer(SIZE, 1, 0)).body.is_empty());
    assert!(run.ask(opcode::READ, &transfer(u64::MAX, 1, 0)).body.is_empty());
    assert_eq!(run.ask(opcode::WRITE, &write(SIZE - 5, &[1; 9], 0)).body[..4], [5, 0, 0, 0]);
    assert_eq!(run.ask(opcode::WRITE, &write(SIZE, &[1], 0)).error, errno::ENOSPC);
    assert_eq!(run.ask(opcode::WRITE, &transfer(0, 1, 0)).error, errno::EINVAL, "its data is missing");
}

#[test]
fn a_write_through_a_synchronous_descriptor_is_durable() {
    let mut run = run();
    for (flags, fua) in [(0, false), (O_DSYNC, true), (0o4_010_000, true)] {
        run.device.with(|k| k.queue.push_back(message(opcode::WRITE, 2, ROOT, &write(0, &[1], flags))));
        let mut requests = Vec::new();
        run.port.take(8, &mut requests);
        assert_eq!(requests[0].op, Op::Write { fua });
        run.disk.serve(&mut requests, &mut run.port);
        run.port.flush(SEND_BYTES);
    }
}

#[test]
fn a_read_only_file_refuses_what_changes_it() {
    let mut ro = geometry(SIZE);
    ro.read_only = true;
    let mut run = FileRun::new(&ro, FileLimits::default(), 1);
    for (code, body) in [
        (opcode::WRITE, write(0, &[1], 0)),
        (opcode::FALLOCATE, allocate(0, 1, 3)),
        (opcode::OPEN, 1u32.to_ne_bytes().repeat(2)),
        (opcode::OPEN, 2u32.to_ne_bytes().repeat(2)),
        (opcode::ACCESS, 2u32.to_ne_bytes().repeat(2)),
    ] {
        assert_eq!(run.ask(code, &body).error, errno::EROFS, "{code}");
    }
    assert_eq!(run.ask(opcode::OPEN, &[0; 8]).error, 0);
    assert_eq!(run.ask(opcode::READ, &transfer(0, 9, 0)).body, run.disk.bytes[..9]);
}

#[test]
fn opened_files_are_cached_by_nobody_but_us() {
    let body = run().ask(opcode::OPEN, &2u32.to_ne_bytes().repeat(2)).body;
    let flags = u32::from_ne_bytes(body[8..12].try_into().unwrap());
    assert_eq!(flags & opened::DIRECT_IO, opened::DIRECT_IO);
    assert_eq!(flags & opened::PARALLEL_DIRECT_WRITES, opened::PARALLEL_DIRECT_WRITES);
}

#[test]
fn size_mode_and_owner_stay_and_times_are_set() {
    let mut run = run();
    let new = |which: u32, size: u64, mtime: u64, mode: u32| {
        let mut b = [which.to_ne_bytes(), [0; 4]].concat();
        b.extend([0u64, size, 0, 0, mtime, 0].iter().flat_map(|n| n.to_ne_bytes()));
        b.extend([0u32, 7, 0, mode, 0, 0, 0, 0].iter().flat_map(|n| n.to_ne_bytes()));
        b
    };
    assert_eq!(run.ask(opcode::SETATTR, &new(set::SIZE, 0, 0, 0)).error, errno::EPERM);
    assert_eq!(run.ask(opcode::SETATTR, &new(set::SIZE, SIZE, 0, 0)).error, 0);
    assert_eq!(run.ask(opcode::SETATTR, &new(set::MODE, 0, 0, 0o100_666)).error, errno::EPERM);
    assert_eq!(run.ask(opcode::SETATTR, &new(set::MODE, 0, 0, 0o100_640)).error, 0);
    assert_eq!(run.ask(opcode::SETATTR, &new(set::UID, 0, 0, 0)).error, errno::EPERM);
    let told = run.ask(opcode::SETATTR, &new(set::MTIME, 0, 99, 0)).body;
    let mut f = Fields(&told[16 + 32..]);
    assert_eq!(f.u64(), Some(99));
    run.ask(opcode::WRITE, &write(0, &[1], 0));
    let told = run.ask(opcode::GETATTR, &[0; 16]).body;
    assert!(Fields(&told[16 + 32..]).u64().is_some_and(|t| t > 99), "it was written since");
}

#[test]
fn data_and_holes_are_found() {
    let mut run = run();
    // The disk of bytes says: 4096 data that reads as zeroes or not by the length, and so on; here by hand.
    let find = |run: &mut FileRun, offset: u64, whence: u32, extents: &[(u64, bool)], result: Result<(), IoError>| {
        run.device.with(|k| k.queue.push_back(message(opcode::LSEEK, 2, ROOT, &seek(offset, whence))));
        let mut requests = Vec::new();
        for _ in 0..3 {
            run.port.take(1, &mut requests);
            for r in std::mem::take(&mut requests) {
                assert_eq!(r.op, Op::Status);
                let all: Vec<Extent> = extents.iter().map(|&(len, zero)| Extent { len, hole: false, zero }).collect();
                run.port.extents(r.id.tag, &all);
                run.port.reply(r.id.tag, result);
            }
        }
        run.port.flush(SEND_BYTES);
        assert_eq!(run.port.inflight(), 0, "it ends");
        let replies = run.device.with(|k| std::mem::take(&mut k.replies));
        let reply = reply(&replies[0]);
        if reply.error != 0 { Err(reply.error) } else { Ok(Fields(&reply.body).u64().unwrap()) }
    };
    let all = u64::MAX;
    assert_eq!(find(&mut run, 5, SEEK_DATA, &[(100, true), (all, false)], Ok(())), Ok(105));
    assert_eq!(find(&mut run, 5, SEEK_HOLE, &[(100, true), (all, false)], Ok(())), Ok(5));
    assert_eq!(find(&mut run, 5, SEEK_HOLE, &[(100, false), (all, true)], Ok(())), Ok(105));
    assert_eq!(find(&mut run, 5, SEEK_HOLE, &[(all, false)], Ok(())), Ok(SIZE));
    assert_eq!(find(&mut run, 5, SEEK_DATA, &[(all, true)], Ok(())), Err(errno::ENXIO));
    // One that says nothing, or cannot tell, is all data.
    assert_eq!(find(&mut run, 5, SEEK_DATA, &[], Ok(())), Ok(5));
    assert_eq!(find(&mut run, 5, SEEK_HOLE, &[], Err(IoError::Unsupported)), Ok(SIZE));
    assert_eq!(find(&mut run, 5, SEEK_DATA, &[], Err(IoError::Unsupported)), Ok(5));
    assert_eq!(find(&mut run, 5, SEEK_DATA, &[], Err(IoError::Io)), Err(errno::EIO));
    assert_eq!(run.ask(opcode::LSEEK, &seek(SIZE, SEEK_HOLE)).error, errno::ENXIO);
    assert_eq!(run.ask(opcode::LSEEK, &seek(0, 2)).error, errno::EINVAL);
}

#[test]
fn holes_and_zeroes_read_as_zeroes() {
    let mut run = run();
    assert_eq!(run.ask(opcode::FALLOCATE, &allocate(100, 5000, 3)).error, 0);
    assert_eq!(run.disk.bytes[99..101], [99, 0]);
    assert!(run.disk.bytes[100..5100].iter().all(|&b| b == 0) && run.disk.bytes[5100] != 0);
    for (body, error) in [
        (allocate(0, 4096, 0), errno::EOPNOTSUPP),
        (allocate(0, 4096, 2), errno::EOPNOTSUPP),
        (allocate(0, 4096, 8), errno::EOPNOTSUPP),
        (allocate(0, 0, 3), errno::EINVAL),
        (allocate(u64::MAX, 2, 3), errno::EINVAL),
        (allocate(SIZE - 1, 2, 16), errno::ENOSPC),
        (allocate(SIZE - 1, 2, 17), 0),
        (allocate(SIZE, 2, 17), 0),
    ] {
        assert_eq!(run.ask(opcode::FALLOCATE, &body).error, error);
    }
}

#[test]
fn a_range_is_read_into_the_cache_in_steps() {
    let mut run = run();
    run.device.with(|k| k.queue.push_back(message(opcode::SETXATTR, 2, ROOT, &attribute(WILLNEED, b"512 99999999"))));
    let (mut requests, mut seen) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        run.port.take(8, &mut requests);
        seen.extend(requests.iter().map(|r| (r.op, r.offset, r.len)));
        run.disk.serve(&mut requests, &mut run.port);
    }
    let mib = 1 << 20;
    let want = [(512, mib), (512 + mib, mib), (512 + 2 * mib, mib - 512)];
    assert_eq!(seen, want.map(|(offset, len)| (Op::Read, offset, len)));
    run.port.flush(SEND_BYTES);
    assert!(reply(&run.device.with(|k| k.replies.remove(0))).body.is_empty());
    for value in [&b"1"[..], b"a b", b"1 2 3", b"-1 2", b"\xff 1"] {
        assert_eq!(run.ask(opcode::SETXATTR, &attribute(WILLNEED, value)).error, errno::EINVAL);
    }
    assert_eq!(run.ask(opcode::SETXATTR, &attribute(b"user.x", b"1")).error, errno::EOPNOTSUPP);
    assert_eq!(run.ask(opcode::SETXATTR, b"1234").error, errno::EINVAL);
}

#[test]
fn the_hint_of_its_disk_is_told_and_another_asked_for() {
    let mut run = run();
    let room = |room: u32| room.to_ne_bytes().to_vec();
    let length = |n: u32| [n.to_ne_bytes(), [0; 4]].concat();
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(HINT, 100)).body, b"random");
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(HINT, 6)).body, b"random");
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(HINT, 0)).body, length(6));
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(HINT, 5)).error, errno::ERANGE);
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(WILLNEED, 100)).error, errno::ENODATA);
    assert_eq!(run.ask(opcode::GETXATTR, &room(100)).error, errno::EINVAL);
    assert_eq!(run.ask(opcode::LISTXATTR, &length(0)).body, length(21));
    assert_eq!(run.ask(opcode::LISTXATTR, &length(20)).error, errno::ERANGE);
    assert_eq!(run.ask(opcode::LISTXATTR, &length(21)).body, b"user.undercroft.hint\0");
    for value in [&b""[..], b"Random", b"sequential 1", b"\xff", b"willneed\0"] {
        assert_eq!(run.ask(opcode::SETXATTR, &attribute(HINT, value)).error, errno::EINVAL, "{value:?}");
    }
    assert_eq!(run.hint.take_asked(), None);
    assert_eq!(run.ask(opcode::SETXATTR, &attribute(HINT, b"willneed\n")).error, 0);
    assert_eq!(run.hint.take_asked(), Some("willneed"));
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(HINT, 100)).body, b"random", "until it is set");
    run.hint.set("willneed");
    assert_eq!(run.ask(opcode::GETXATTR, &wanted(HINT, 100)).body, b"willneed");
}

/// One at a time: its answer leaves before the kernel is asked whether there is more.
#[test]
fn a_lone_request_is_answered_before_more_is_looked_for() {
    let mut run = run();
    run.ask(opcode::READ, &transfer(0, 1, 0));
    run.device.with(|k| {
        k.receives = 0;
        k.queue.push_back(message(opcode::READ, 2, ROOT, &transfer(0, 1, 0)));
    });
    let mut requests = Vec::new();
    assert!(run.port.take(8, &mut requests), "there may be more");
    assert_eq!((requests.len(), run.device.with(|k| k.receives)), (1, 1));
    run.disk.serve(&mut requests, &mut run.port);
    assert!(!run.port.take(8, &mut requests));
    assert_eq!(run.device.with(|k| (k.replies.len(), k.receives)), (1, 2));
}

/// A message for which there is no room waits, and the port is looked at again when there is some.
#[test]
fn a_port_that_slept_for_want_of_room_is_woken() {
    let mut run = FileRun::new(&geometry(SIZE), FileLimits { requests_max: 1, bytes_max: 4096 }, 1);
    run.device.with(|k| {
        for unique in [2, 4] {
            k.queue.push_back(message(opcode::READ, unique, ROOT, &transfer(0, 1, 0)));
        }
    });
    let mut requests = Vec::new();
    while run.port.take(8, &mut requests) {}
    assert!(requests.len() == 1 && !run.port.arm());
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert!(run.device.with(|k| k.woken));
    while run.port.take(8, &mut requests) {}
    assert_eq!(requests.len(), 1);
}

#[test]
fn what_is_under_way_when_it_is_shut_is_answered_and_nothing_else() {
    let mut run = run();
    let ask = |unique| message(opcode::READ, unique, ROOT, &transfer(0, 1, 0));
    run.device.with(|k| k.queue.push_back(ask(2)));
    let mut requests = Vec::new();
    run.port.take(8, &mut requests);
    run.device.with(|k| k.queue.push_back(ask(4)));
    run.port.shut();
    assert!(!run.port.take(8, &mut requests) && requests.len() == 1 && !run.port.is_closed());
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert!(run.port.is_closed());
    assert!(run.device.with(|k| k.closed && k.replies.len() == 1));
}

#[test]
fn failures_that_nobody_waits_for_are_told_again() {
    let mut run = run();
    run.disk.fails = Some(IoError::Lost);
    run.device.with(|k| {
        k.killed_one_in = 2;
        k.queue.push_back(message(opcode::FSYNC, 2, ROOT, &[0; 16]));
    });
    let mut requests = Vec::new();
    run.port.take(8, &mut requests);
    let tag = requests[0].id.tag;
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert_eq!((run.port.take_unheard(), run.port.take_unheard()), (Some(tag), None));
}

/// One is under way, one was received and found no room, one is at the device: the first two are answered, the third
/// waits until the file goes on.
#[test]
fn at_rest_what_was_received_is_answered_and_nothing_more_is_received() {
    let limits = FileLimits { requests_max: 1, ..FileLimits::default() };
    let mut run = FileRun::new(&geometry(SIZE), limits, 1);
    // The second was asked again after a death: its name stays as it is.
    let names = [2, 4 | ASKED_AGAIN, 6];
    let ask = |unique| message(opcode::READ, unique, ROOT, &transfer(0, 1, 0));
    run.device.with(|k| k.queue.extend(names.map(ask)));
    let (mut requests, answered) = (Vec::new(), |run: &FileRun| {
        run.device.with(|k| k.replies.iter().map(|r| reply(r).unique).collect::<Vec<_>>())
    });
    run.port.take(8, &mut requests);
    run.port.take(8, &mut requests);
    assert_eq!((requests.len(), run.device.with(|k| k.queue.len())), (1, 1));
    run.port.rest(true);
    assert!(!run.port.is_at_rest(), "two are not answered");
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert!(!run.port.is_at_rest(), "one was received and not begun");
    run.port.take(8, &mut requests);
    run.disk.serve(&mut requests, &mut run.port);
    run.port.flush(SEND_BYTES);
    assert!(run.port.is_at_rest() && !run.port.take(8, &mut requests) && !run.port.arm());
    assert_eq!((requests.len(), run.device.with(|k| k.queue.len())), (0, 1));
    assert_eq!(answered(&run), names[..2]);
    run.port.rest(false);
    assert!(run.port.arm(), "what has come meanwhile is looked for without an event");
    run.serve();
    assert_eq!(answered(&run), names);
}

/// What was set of its times is told by the port that goes on.
#[test]
fn times_go_along() {
    let mut run = run();
    let mut body = [set::ATIME | set::MTIME, 0].iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
    body.extend([0u64, 0, 0, 11, 22, 0].iter().flat_map(|n| n.to_ne_bytes()));
    body.resize(88, 0);
    assert_eq!(run.ask(opcode::SETATTR, &body).error, 0);
    let times = run.port.times();
    assert_eq!((times.read.seconds, times.written.seconds), (11, 22));
    assert!(times.changed.seconds > 22);
}
