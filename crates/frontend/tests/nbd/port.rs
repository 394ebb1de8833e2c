//! Tests of the port alone, on a stream in memory: what the worker would call, in every order that matters.
//!
//! Owns the pretended peer. Never opens a socket.

mod unheard;

use std::collections::HashMap;
use undercroft_cache::{DiskId, Extent, IoError, Op, Request};
use undercroft_frontend::Port;
use undercroft_frontend::faults::PortBug;
use undercroft_frontend::nbd::port::{CALM_SLEEPS, EXTENT_BYTES, NbdPort, NewPort, OnClose, PortLimits};
use undercroft_frontend::nbd::rules::ExportRules;
use undercroft_frontend::nbd::wire::{REQUEST_HEADER, command, command_flag, errno};
use undercroft_frontend::turns::{LONE_SEND_BYTES, SEND_BYTES};
use undercroft_porttest::faults::{Switched, plant};
use undercroft_porttest::nbd::exercise::{
    ByteDisk, ByteStream, Reads, Reply, Wire, fuzz_commands, geometry, replies, request,
};

struct Fixture {
    port: NbdPort<ByteStream, Switched>,
    disk: ByteDisk,
    wire: ByteStream,
    reads: Reads,
    requests: Vec<Request>,
}

const SIZE: usize = 64 << 20;

impl Fixture {
    fn new(structured: bool) -> Self {
        Self::with_limits(structured, PortLimits::default())
    }

    fn with_limits(structured: bool, limits: PortLimits) -> Self {
        Self::closed_by(None, structured, limits)
    }

    fn closed_by(on_close: Option<OnClose<ByteStream>>, structured: bool, limits: PortLimits) -> Self {
        let geometry = geometry(SIZE as u64);
        let wire = ByteStream::default();
        wire.with(|w| w.room = usize::MAX);
        let port = NbdPort::with_faults(NewPort {
            port: 0,
            disk: DiskId(0),
            rules: ExportRules::new(&geometry, structured, structured),
            limits,
            peer: String::new(),
            stream: wire.clone(),
            first: Vec::new(),
            on_close,
            account: None,
        });
        let disk = ByteDisk::new(SIZE);
        Self { port, disk, wire, reads: Reads::new(), requests: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.wire.with(|w| w.input.extend_from_slice(bytes));
    }

    fn ask(&mut self, flags: u16, command: u16, offset: u64, len: u32, cookie: u64) {
        if command == command::READ {
            self.reads.insert(cookie, (offset, len as usize));
        }
        self.send(&request(flags, command, offset, len, cookie));
    }

    /// Takes what can be taken.
    fn take(&mut self) {
        let mut requests = std::mem::take(&mut self.requests);
        self.wire.with(Wire::arrive);
        while self.port.take(8, &mut requests) {}
        self.requests = requests;
    }

    /// Serves everything until nothing moves.
    fn run(&mut self) -> Vec<(u64, Reply)> {
        loop {
            let news = self.wire.with(Wire::arrive);
            self.take();
            let idle = self.requests.is_empty();
            self.disk.serve(&mut self.requests, &mut self.port);
            self.flush();
            if idle && !self.port.arm() && !news {
                break;
            }
        }
        self.replies()
    }

    /// Sends all that the wire takes, as a worker does in some turns.
    fn flush(&mut self) {
        self.port.flush(SEND_BYTES);
        while self.port.has_more_to_send() {
            self.port.flush(SEND_BYTES);
        }
    }

    fn replies(&mut self) -> Vec<(u64, Reply)> {
        let output = self.wire.with(|w| std::mem::take(&mut w.output));
        let (all, rest) = replies(&output, &self.reads);
        assert!(rest.is_empty());
        all
    }

    fn one(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> Reply {
        self.ask(flags, command, offset, len, 77);
        let mut all = self.run();
        assert_eq!(all.len(), 1);
        let (cookie, reply) = all.remove(0);
        assert_eq!(cookie, 77);
        reply
    }
}

#[test]
fn reads_bring_the_bytes_of_the_disk_at_any_alignment() {
    for structured in [false, true] {
        let mut f = Fixture::new(structured);
        for (offset, len) in [(0, 4096), (1, 1), (4095, 2), (SIZE as u64 - 7, 7), (513, 70_000), (3, 32 << 20)] {
            let want = f.disk.bytes[offset as usize..][..len as usize].to_vec();
            assert_eq!(f.one(0, command::READ, offset, len), Reply::Data(want), "{offset} {len}");
        }
        assert_eq!(f.one(0, command::READ, 10, 0), if structured { Reply::Done } else { Reply::Data(vec![]) });
    }
}

#[test]
fn writes_of_every_size_arrive_whole_in_any_pieces() {
    for piece in [1, 27, 29, 1000, 65_536, 0] {
        let mut f = Fixture::new(true);
        f.wire.with(|w| w.piece = piece);
        let lens: &[usize] = if piece < 100 { &[1, 27, 5000] } else { &[1, 4096, 65_536, 65_537, 300_000, 32 << 20] };
        let mut at = 5;
        for (n, &len) in lens.iter().enumerate() {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
            f.ask(command_flag::FUA, command::WRITE, at as u64, len as u32, n as u64);
            f.send(&data);
            assert_eq!(f.run(), [(n as u64, Reply::Done)]);
            assert!(f.disk.bytes[at..at + len] == data[..], "{piece} {len}");
            at += len;
        }
    }
}

#[test]
fn many_requests_cost_one_receive_and_one_send() {
    let mut f = Fixture::new(true);
    for n in 0..12 {
        f.ask(0, command::READ, n * 4096, 4096, n);
    }
    f.wire.with(Wire::arrive);
    f.port.take(64, &mut f.requests);
    assert_eq!(f.requests.len(), 12);
    assert_eq!(f.wire.with(|w| w.receives), 1);
    f.disk.serve(&mut f.requests, &mut f.port);
    assert!(f.wire.with(|w| w.output.is_empty()));
    f.port.flush(LONE_SEND_BYTES);
    assert_eq!(f.wire.with(|w| w.sends), 1);
    assert_eq!(f.replies().len(), 12);
    assert!(!f.port.take(64, &mut f.requests));
    assert!(!f.port.arm());
}

#[test]
fn replies_may_overtake_each_other() {
    let mut f = Fixture::new(true);
    for n in 0..10 {
        f.ask(0, command::READ, n * 100, 50, n);
    }
    f.take();
    f.requests.reverse();
    let all = f.run();
    assert_eq!(all.iter().map(|r| r.0).collect::<Vec<_>>(), (0..10).rev().collect::<Vec<_>>());
    for (n, r) in all {
        assert_eq!(r, Reply::Data(f.disk.bytes[n as usize * 100..][..50].to_vec()));
    }
}

#[test]
fn a_read_that_the_core_did_not_fill_is_an_error() {
    let mut f = Fixture::new(true);
    f.ask(0, command::READ, 0, 8192, 1);
    f.take();
    let tag = f.requests.remove(0).id.tag;
    f.port.copy_out(tag, 0, &[1; 4096]);
    f.port.reply(tag, Ok(()));
    f.port.flush(SEND_BYTES);
    assert_eq!(f.replies(), [(1, Reply::Error(errno::EIO))]);
}

#[test]
fn errors_of_the_disk_have_their_numbers() {
    let table = [
        (IoError::Io, errno::EIO),
        (IoError::NoSpace, errno::ENOSPC),
        (IoError::Invalid, errno::EINVAL),
        (IoError::ReadOnly, errno::EPERM),
        (IoError::Unsupported, errno::EINVAL),
        (IoError::Shutdown, errno::ESHUTDOWN),
    ];
    for structured in [false, true] {
        for (error, number) in table {
            let mut f = Fixture::new(structured);
            f.disk.fails = Some(error);
            for c in [command::READ, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
                assert_eq!(f.one(0, c, 0, 100), Reply::Error(number));
            }
            assert_eq!(f.one(0, command::FLUSH, 0, 0), Reply::Error(number));
            f.disk.fails = None;
            f.reads.clear();
            assert_eq!(f.one(0, command::TRIM, 0, 100), Reply::Done);
        }
    }
}

#[test]
fn refused_writes_are_read_past_without_keeping_their_data() {
    let mut f = Fixture::new(true);
    f.ask(0, command::WRITE, SIZE as u64 - 10, 4096, 1);
    f.send(&[9; 4096]);
    f.ask(0, command::WRITE, 0, (32 << 20) + 1, 2);
    f.send(&vec![9; (32 << 20) + 1]);
    f.ask(0, command::READ, 0, 10, 3);
    let first = f.disk.bytes[..10].to_vec();
    let errors = [(1, Reply::Error(errno::ENOSPC)), (2, Reply::Error(errno::EINVAL)), (3, Reply::Data(first))];
    assert_eq!(f.run(), errors);
    assert_eq!(f.port.held_bytes(), 0);
    assert!(f.disk.bytes == ByteDisk::new(SIZE).bytes);
}

#[test]
fn a_trim_with_fua_is_followed_by_a_flush() {
    let mut f = Fixture::new(true);
    f.ask(command_flag::FUA, command::TRIM, 4096, 4096, 5);
    f.take();
    let first = f.requests.remove(0);
    assert_eq!(first.op, Op::Discard);
    f.port.reply(first.id.tag, Ok(()));
    f.port.flush(SEND_BYTES);
    assert!(f.replies().is_empty(), "not durable yet");
    assert_eq!(f.port.inflight(), 1);
    assert!(f.port.arm(), "there is a flush to take");
    f.take();
    let second = f.requests.remove(0);
    assert_eq!((second.op, second.offset, second.len), (Op::Flush, 0, 0));
    f.port.reply(second.id.tag, Ok(()));
    f.port.flush(SEND_BYTES);
    assert_eq!(f.replies(), [(5, Reply::Done)]);
    assert_eq!(f.port.inflight(), 0);
}

#[test]
fn cache_reads_all_of_its_range_in_parts_and_sends_nothing_but_success() {
    let mut f = Fixture::new(true);
    f.ask(0, command::CACHE, 100, 40 << 20, 5);
    let mut at = 100;
    while at < 100 + (40 << 20) {
        f.take();
        let r = f.requests.remove(0);
        assert_eq!((r.op, r.offset), (Op::Read, at));
        assert!(r.len <= u64::from(undercroft_cache::limits::REQUEST_BYTES_MAX));
        at += r.len;
        let result = f.disk.execute(&r, &mut f.port);
        f.port.reply(r.id.tag, result);
    }
    assert_eq!(at, 100 + (40 << 20));
    f.port.flush(SEND_BYTES);
    assert_eq!(f.replies(), [(5, Reply::Done)]);
}

#[test]
fn durability_that_was_asked_for_reaches_the_core() {
    for (flags, fua) in [(0, false), (command_flag::FUA, true)] {
        for no_hole in [0, command_flag::NO_HOLE] {
            let mut f = Fixture::new(true);
            f.ask(flags, command::WRITE, 3, 5, 1);
            f.send(&[1; 5]);
            f.ask(flags | no_hole, command::WRITE_ZEROES, 0, 4096, 2);
            f.take();
            let ops: Vec<_> = f.requests.iter().map(|r| r.op).collect();
            assert_eq!(ops, [Op::Write { fua }, Op::WriteZeroes { unmap: no_hole == 0, fua }]);
            assert_eq!(f.run(), [(1, Reply::Done), (2, Reply::Done)]);
        }
    }
}

#[test]
fn a_failure_of_any_step_is_the_answer_and_ends_the_request() {
    // A trim with FUA is two steps, a prefetch of 40 MiB is 40.
    for (flags, command, len, steps) in [
        (command_flag::FUA, command::TRIM, 4096, 2),
        (0, command::CACHE, 40 << 20, 40),
        (0, command::BLOCK_STATUS, 4096, 1),
        (command_flag::FUA, command::WRITE_ZEROES, 4096, 1),
    ] {
        for bad in (0..steps).filter(|n| [0, 1, steps - 1].contains(n)) {
            for structured in [true, false] {
                if command == command::BLOCK_STATUS && !structured {
                    continue;
                }
                let mut f = Fixture::new(structured);
                f.ask(flags, command, 0, len, 9);
                for step in 0..=bad {
                    f.take();
                    assert_eq!(f.requests.len(), 1, "one step at a time");
                    let r = f.requests.remove(0);
                    f.port.reply(r.id.tag, if step == bad { Err(IoError::NoSpace) } else { Ok(()) });
                    f.port.flush(SEND_BYTES);
                }
                assert_eq!(f.replies(), [(9, Reply::Error(errno::ENOSPC))], "command {command}, step {bad}");
                f.take();
                assert_eq!((f.requests.len(), f.port.inflight()), (0, 0), "no step after the one that failed");
            }
        }
    }
}

/// A read that joined another's failed operation is served again, and some of its bytes come twice:
/// docs/decisions/0134.
#[test]
fn data_that_come_twice_are_sent_once_and_data_that_do_not_are_an_error() {
    for structured in [true, false] {
        let mut f = Fixture::new(structured);
        let (offset, len) = (4096 - 100, 3 * 4096);
        let want = f.disk.bytes[offset..][..len].to_vec();
        // What the buffer of the second read holds before it.
        assert_eq!(f.one(0, command::READ, 8 << 20, len as u32), Reply::Data(f.disk.bytes[8 << 20..][..len].to_vec()));
        f.ask(0, command::READ, offset as u64, len as u32, 1);
        f.take();
        let tag = f.requests.remove(0).id.tag;
        f.port.copy_out(tag, 100, &[0xee; 4096]);
        for (at, n) in [(100, 4096), (0, 100), (4196, 4096), (8292, 3996)] {
            f.port.copy_out(tag, at, &want[at..at + n]);
        }
        f.port.reply(tag, Ok(()));
        f.port.flush(SEND_BYTES);
        assert_eq!(f.replies(), [(1, Reply::Data(want.clone()))], "too many bytes are no failure");
        // As many bytes as were asked for, but not all of them.
        f.ask(0, command::READ, offset as u64, len as u32, 2);
        f.take();
        let tag = f.requests.remove(0).id.tag;
        for (at, n) in [(100, 4096), (0, 100), (100, 4096), (8292, 3996)] {
            f.port.copy_out(tag, at, &want[at..at + n]);
        }
        f.port.reply(tag, Ok(()));
        f.port.flush(SEND_BYTES);
        assert_eq!(f.replies(), [(2, Reply::Error(errno::EIO))], "one block is what the buffer held before");
    }
}

#[test]
fn mistakes_that_lose_durability_places_or_data_are_seen() {
    let tests: [(PortBug, fn()); 3] = [
        (PortBug::ZeroesLoseFua, durability_that_was_asked_for_reaches_the_core),
        (PortBug::ChunkOffsetOfBlock, reads_bring_the_bytes_of_the_disk_at_any_alignment),
        (PortBug::ShortReadSent, data_that_come_twice_are_sent_once_and_data_that_do_not_are_an_error),
    ];
    for (bug, test) in tests {
        plant(Some(bug));
        let seen = std::panic::catch_unwind(test).is_err();
        plant(None);
        assert!(seen, "{bug:?} fails no test");
    }
}

#[test]
fn extents_are_joined_cut_and_bounded() {
    let mut f = Fixture::new(true);
    let ask = |f: &mut Fixture, flags, len, extents: &[Extent]| {
        f.ask(flags, command::BLOCK_STATUS, 0, len, 1);
        f.take();
        let tag = f.requests.remove(0).id.tag;
        f.port.extents(tag, extents);
        f.port.reply(tag, Ok(()));
        f.flush();
        f.replies().remove(0).1
    };
    let e = |len, hole, zero| Extent { len, hole, zero };
    let some = [e(10, true, true), e(20, true, true), e(0, false, false), e(5, false, true), e(1 << 40, false, false)];
    assert_eq!(ask(&mut f, 0, 100, &some), Reply::Extents(vec![(30, 3), (5, 2), (65, 0)]));
    assert_eq!(ask(&mut f, command_flag::REQ_ONE, 100, &some), Reply::Extents(vec![(30, 3)]));
    assert_eq!(ask(&mut f, 0, 25, &some), Reply::Extents(vec![(25, 3)]));
    // A disk that cannot tell.
    assert_eq!(ask(&mut f, 0, 100, &[]), Reply::Extents(vec![(100, 0)]));
    // More extents than the reply has room for.
    let many: Vec<_> = (0..10_000).map(|n| e(512, n % 2 == 0, false)).collect();
    let Reply::Extents(got) = ask(&mut f, 0, 32 << 20, &many) else { panic!() };
    assert_eq!(got.len(), (EXTENT_BYTES - 4) / 8);
    assert!(got.iter().enumerate().all(|(n, g)| *g == (512, u32::from(n % 2 == 0))));
}

#[test]
fn a_client_that_takes_no_replies_is_not_read_from_and_costs_bounded_memory() {
    let limits = PortLimits { requests_max: 128, bytes_max: 1 << 20 };
    let mut f = Fixture::with_limits(true, limits);
    f.wire.with(|w| w.room = 100_000);
    for n in 0..5000 {
        f.ask(0, command::READ, n * 4096, 8192, n);
    }
    for _ in 0..50 {
        f.take();
        f.disk.serve(&mut f.requests, &mut f.port);
        f.port.flush(SEND_BYTES);
        assert!(f.port.held_bytes() <= limits.bytes_max);
    }
    assert!(!f.port.arm(), "the worker may sleep");
    assert!(f.wire.with(|w| w.unread()) > 5000 * REQUEST_HEADER - (64 << 10) - 128 * REQUEST_HEADER);
    assert!(f.wire.with(|w| w.watches_room));
    // Small replies are bounded, too.
    let mut g = Fixture::with_limits(true, limits);
    g.wire.with(|w| w.room = 0);
    for n in 0..5000 {
        g.ask(0, command::TRIM, u64::MAX, 1, n);
    }
    for _ in 0..50 {
        g.take();
        g.port.flush(SEND_BYTES);
    }
    assert_eq!(g.port.replies_waiting(), 128);
    // And once there is room again, all are served.
    for (f, n) in [(&mut f, 5000), (&mut g, 5000)] {
        f.wire.with(|w| w.room = usize::MAX);
        f.port.flush(SEND_BYTES);
        let cookies: Vec<_> = f.run().into_iter().map(|r| r.0).collect();
        assert_eq!(cookies, (0..n).collect::<Vec<_>>());
    }
}

#[test]
fn room_made_by_a_reply_wakes_a_worker_that_sleeps() {
    let mut f = Fixture::with_limits(true, PortLimits { requests_max: 1, bytes_max: 1 << 20 });
    f.ask(0, command::READ, 0, 10, 0);
    f.ask(0, command::READ, 0, 10, 1);
    f.take();
    assert_eq!(f.requests.len(), 1);
    assert!(!f.port.arm(), "the second request has to wait for the first");
    assert!(!f.wire.with(|w| w.watches_room));
    f.disk.serve(&mut f.requests, &mut f.port);
    f.port.flush(SEND_BYTES);
    assert!(f.wire.with(|w| w.watches_room), "the worker was told to look again");
    assert_eq!(f.run().len(), 2);
    for _ in 0..CALM_SLEEPS {
        assert!(!f.port.arm());
    }
    assert!(!f.wire.with(|w| w.watches_room));
}

#[test]
fn a_payload_that_ends_with_the_batch_is_not_forgotten() {
    let mut f = Fixture::new(true);
    f.ask(command_flag::FUA, command::TRIM, 0, 10, 0);
    f.ask(0, command::WRITE, 0, 100_000, 1);
    f.send(&[1; 50_000]);
    f.take();
    assert_eq!(f.requests.len(), 1);
    f.disk.serve(&mut f.requests, &mut f.port);
    f.send(&[1; 50_000]);
    f.wire.with(Wire::arrive);
    // The flush that follows the trim fills the batch.
    assert!(f.port.take(1, &mut f.requests));
    assert_eq!(f.requests.len(), 1);
    assert!(f.port.arm());
    assert_eq!(f.run().len(), 2);
}

#[test]
fn shut_lets_requests_under_way_finish_and_begins_no_other() {
    let mut f = Fixture::new(true);
    f.ask(0, command::READ, 0, 10, 0);
    f.ask(0, command::WRITE, 0, 10, 1);
    f.send(&[1; 5]);
    f.take();
    assert_eq!((f.requests.len(), f.port.inflight()), (1, 1));
    f.port.shut();
    assert!(!f.port.is_closed());
    f.send(&[1; 5]);
    f.ask(0, command::READ, 0, 10, 2);
    f.ask(0, command::WRITE, 0, 10, 3);
    f.send(&[1; 10]);
    f.take();
    // The write whose data were on their way is still done.
    assert_eq!(f.requests.len(), 2);
    let got: HashMap<_, _> = f.run().into_iter().collect();
    assert_eq!(got[&0], Reply::Data(vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    assert_eq!(got[&1], Reply::Done);
    // No answer, least of all an error: a client that connects anew sends them again.
    assert_eq!(got.len(), 2);
    assert!(f.port.is_closed());
    assert!(f.wire.with(|w| w.closed));
}

#[test]
fn goodbye_comes_after_the_last_reply() {
    let mut f = Fixture::new(true);
    f.ask(0, command::READ, 0, 10, 0);
    f.ask(0, command::DISC, 0, 0, 1);
    f.ask(0, command::READ, 0, 10, 2);
    f.take();
    assert_eq!(f.requests.len(), 1, "nothing after a goodbye is served");
    f.port.flush(SEND_BYTES);
    assert!(!f.port.is_closed());
    assert_eq!(f.run().len(), 1);
    assert!(f.port.is_closed());
}

#[test]
fn garbage_and_broken_streams_close_and_free_everything() {
    let mut garbage = Fixture::new(true);
    garbage.ask(0, command::READ, 0, 10, 0);
    garbage.send(&[0x55; 28]);
    garbage.take();
    assert!(garbage.port.is_closed());
    assert_eq!(garbage.port.inflight(), 1, "what was taken is still finished");
    assert!(garbage.run().is_empty(), "but nobody is told");
    assert_eq!(garbage.port.inflight(), 0);
    assert_eq!(garbage.port.held_bytes(), 0);

    for cut in [3, REQUEST_HEADER, REQUEST_HEADER + 50] {
        let mut f = Fixture::new(true);
        let mut bytes = request(0, command::WRITE, 0, 100, 1);
        bytes.extend([1; 100]);
        f.send(&bytes[..cut]);
        f.wire.with(|w| w.ended = true);
        assert!(f.run().is_empty());
        assert!(f.port.is_closed());
        assert_eq!((f.port.inflight(), f.port.held_bytes()), (0, 0));
        assert_eq!(f.disk.bytes[0..4], [0, 1, 2, 3], "half a write is no write");
    }
}

#[test]
fn what_was_not_sent_is_handed_over_at_the_end() {
    let (tx, rx) = std::sync::mpsc::channel();
    let on_close: OnClose<ByteStream> = Box::new(move |_, bytes| drop(tx.send(bytes)));
    let mut f = Fixture::closed_by(Some(on_close), false, PortLimits::default());
    f.ask(0, command::READ, 0, 10, 0);
    f.wire.with(|w| w.room = 7);
    f.take();
    f.disk.serve(&mut f.requests, &mut f.port);
    f.port.flush(SEND_BYTES);
    assert_eq!(f.wire.with(|w| w.output.len()), 7);
    drop(f.port);
    let rest = rx.recv().unwrap();
    assert_eq!(rest.len(), 16 + 10 - 7);
    assert_eq!(rest[rest.len() - 3..], [7, 8, 9]);
}

#[test]
fn arbitrary_input_is_answered_by_the_rules() {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for n in undercroft_skips::inputs(0..3000) {
        let len = 4 + n % 300;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .take(len)
        .collect();
        fuzz_commands(&data);
    }
}

/// Found by fuzzing: more requests with a second step (a trim with FUA flushes next) than one turn hands out.
#[test]
fn second_steps_wait_for_their_turn() {
    fuzz_commands(&[
        65, 65, 65, 65, 244, 1, 1, 140, 189, 11, 7, 212, 124, 65, 131, 255, 131, 11, 65, 244, 1, 61, 91, 139, 255, 40,
        11, 0, 139, 244, 1, 1, 140, 189, 11, 1, 134, 244, 1,
    ]);
}
