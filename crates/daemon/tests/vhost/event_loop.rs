//! Front ends that keep the event loop waiting, or try to: others on the same event loop must not notice.
//!
//! Owns nothing. Every wait has an end, so that a lost answer is a failure and not a hang.

use crate::rig::{Daemon, IN, PATIENCE, Vm};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use undercroft_porttest::vhost::rig::{DATA, Guest};
use vhost::VhostBackend;
use vhost::vhost_user::message::FrontendReq;

fn message(request: FrontendReq, body: &[u8]) -> Vec<u8> {
    let head = [u32::from(request), 1, body.len() as u32];
    [head.map(u32::to_ne_bytes).concat(), body.to_vec()].concat()
}

/// A connection whose reads fail instead of hanging.
fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.path()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A whole life of another disk of the same event loop: connected, set up, served, disconnected.
fn another_is_served(daemon: &Daemon) {
    let mut vm = Vm::new(daemon);
    vm.start(0, 0);
    assert_eq!(vm.request(0, IN, 0, (DATA + 0x1_0000, 4096)), 0);
    assert_eq!(vm.front.get_vring_base(0).unwrap(), 1);
    drop(vm);
    daemon.wait_connected(false);
}

#[test]
fn half_a_message_holds_up_nobody() {
    let (daemon, owner) = (Daemon::new(), Daemon::new());
    let (head, body) = (daemon.beside(), daemon.beside());
    let bytes = message(FrontendReq::SET_FEATURES, &0u64.to_ne_bytes());
    let asks = message(FrontendReq::GET_FEATURES, &[]);
    let (mut in_head, mut in_body) = (connect(&head), connect(&body));
    in_head.write_all(&asks[..7]).unwrap();
    in_body.write_all(&bytes[..17]).unwrap();
    head.wait_connected(true);
    body.wait_connected(true);
    another_is_served(&daemon);
    another_is_served(&owner);
    // What was half is whole now, and counts as it would have at once.
    in_head.write_all(&asks[7..]).unwrap();
    in_body.write_all(&[&bytes[17..], &asks].concat()).unwrap();
    for stream in [&mut in_head, &mut in_body] {
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], u32::from(FrontendReq::GET_FEATURES).to_ne_bytes());
    }
    // One goes within a message, and the next front end is served.
    in_head.write_all(&asks[..3]).unwrap();
    drop(in_head);
    another_is_served(&head);
}

#[test]
fn a_peer_that_never_reads_its_replies_holds_up_nobody() {
    let daemon = Daemon::new();
    let mut deaf = daemon.beside();
    let mut stream = connect(&deaf);
    stream.set_nonblocking(true).unwrap();
    let asks = message(FrontendReq::GET_FEATURES, &[]);
    let (start, mut full_since, mut sent) = (Instant::now(), None, 0);
    // Until nothing has been taken for a while: replies fill one direction, then messages the other.
    while full_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(300)) {
        match stream.write(&asks) {
            Ok(n) => {
                assert_eq!(n, asks.len());
                (full_since, sent) = (None, sent + 1);
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                full_since.get_or_insert_with(Instant::now);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(start.elapsed() < PATIENCE, "its messages are taken without end, and its replies kept");
    }
    another_is_served(&daemon);
    // It reads after all, and every message that it sent was answered in order.
    let mut reply = [0; 20];
    stream.set_nonblocking(false).unwrap();
    for _ in 0..sent {
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], u32::from(FrontendReq::GET_FEATURES).to_ne_bytes());
    }
    // With replies on their way again, the disk can go.
    stream.set_nonblocking(true).unwrap();
    while stream.write(&asks).is_ok() {}
    drop(deaf.server.take());
    assert!(!deaf.path().exists());
}

#[test]
fn a_queue_that_cannot_stop_holds_up_nobody() {
    let gate = Arc::new(AtomicBool::new(false));
    let stalled = Daemon::with(&gate);
    let beside = stalled.beside();
    let mut vm = Vm::new(&stalled);
    vm.start(0, 0);
    vm.post(0, IN, 0, (DATA + 0x1_0000, 4096));
    let start = Instant::now();
    let disk = stalled.info.disk;
    while stalled.worker.call(move |w| w.core().stats(disk).inflight_requests).unwrap() != 1 {
        assert!(start.elapsed() < PATIENCE, "the request was not taken");
        std::thread::sleep(Duration::from_millis(1));
    }
    let Vm { front, guest, kicks, calls, size } = vm;
    let (to, base) = channel();
    let asking = std::thread::spawn(move || {
        to.send(front.get_vring_base(0)).unwrap();
        front
    });
    for _ in 0..3 {
        another_is_served(&beside);
    }
    assert!(base.try_recv().is_err(), "the queue was said to be at rest with a request under way");
    gate.store(true, Ordering::Release);
    assert_eq!(base.recv_timeout(PATIENCE).unwrap().unwrap(), 1);
    let front = asking.join().unwrap();
    let mut vm = Vm { front, guest, kicks, calls, size };
    assert_eq!(vm.wait(0, 1).len(), 1, "it was answered before the queue was at rest");
}

#[test]
fn a_queue_that_cannot_stop_does_not_keep_its_disk() {
    let gate = Arc::new(AtomicBool::new(false));
    let mut stalled = Daemon::with(&gate);
    let mut vm = Vm::connect(&stalled, Guest::new(4, 64));
    vm.share_memory();
    vm.start(0, 0);
    vm.post(0, IN, 0, (DATA + 0x1_0000, 4096));
    let asking = std::thread::spawn(move || vm.front.get_vring_base(0).is_ok());
    std::thread::sleep(Duration::from_millis(50));
    let server = stalled.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    std::thread::sleep(Duration::from_millis(50));
    gate.store(true, Ordering::Release);
    stopping.join().unwrap();
    // Answered or cut off, as the two come together; but not left waiting.
    let _ = asking.join().unwrap();
}

#[test]
fn many_connections_in_a_row_are_each_served_or_turned_away() {
    let daemon = Daemon::new();
    for _ in 0..50 {
        let first = connect(&daemon);
        daemon.wait_connected(true);
        let others: Vec<UnixStream> = (0..70).map(|_| connect(&daemon)).collect();
        for mut other in others {
            assert_eq!(other.read(&mut [0; 1]).unwrap(), 0, "turned away");
        }
        let mut first = first;
        first.write_all(&message(FrontendReq::GET_FEATURES, &[])).unwrap();
        first.read_exact(&mut [0; 20]).unwrap();
        drop(first);
        daemon.wait_connected(false);
    }
}
