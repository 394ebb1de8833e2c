//! Clients that send garbage, vanish, flood or dawdle: each is dealt with, and the others never notice.

use crate::client::{Client, option_bytes};
use crate::rig::{PATIENCE, Rig, pattern, until};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use undercroft_frontend::nbd::wire::{command as c, errno, option, option_reply};
use undercroft_frontend::nbd::{NbdServerOptions, PortLimits};
use undercroft_porttest::nbd::exercise::{Reply, request};

const MIB: usize = 1 << 20;

#[test]
fn garbage_in_the_handshake_is_cut_off() {
    let rig = Rig::raw(&pattern(1, MIB));
    for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 4096], &[0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8]] {
        let mut client = Client::greet(&rig.socket);
        client.send(garbage);
        assert!(client.is_cut());
    }
    let mut long = option_bytes(option::LIST, &[]);
    long[12..].fill(0xff);
    let mut client = Client::greet(&rig.socket);
    client.send(&[0, 0, 0, 3]);
    client.send(&long);
    assert!(client.is_cut());
    Client::new(&rig.socket, true).expect(0, &pattern(1, 4096));
}

#[test]
fn silence_and_slowness_in_the_handshake_end_at_the_time_limit() {
    let options = NbdServerOptions { handshake_timeout: Duration::from_millis(300), ..NbdServerOptions::default() };
    let (rig, _gate) = Rig::memory(&pattern(1, MIB), options);
    let mut silent = Client::greet(&rig.socket);
    // One byte now and then does not help: the limit is for the whole handshake.
    let mut slow = Client::greet(&rig.socket);
    let mut trickle = slow.stream.try_clone().unwrap();
    let trickling = std::thread::spawn(move || {
        for b in [0, 0, 0, 3].into_iter().chain(option_bytes(99, &[0; 10_000])) {
            std::thread::sleep(Duration::from_millis(10));
            if trickle.write_all(&[b]).is_err() {
                return true;
            }
        }
        false
    });
    assert!(silent.is_cut());
    assert!(slow.is_cut());
    assert!(trickling.join().unwrap());
    Client::new(&rig.socket, true).expect(0, &pattern(1, 4096));
}

#[test]
fn many_idle_handshakes_do_not_keep_others_out() {
    let options = NbdServerOptions { handshakes_max: 8, handshake_timeout: PATIENCE, ..NbdServerOptions::default() };
    let (rig, _gate) = Rig::memory(&pattern(1, MIB), options);
    let idle: Vec<_> = (0..40).map(|_| UnixStream::connect(&rig.socket).unwrap()).collect();
    Client::new(&rig.socket, true).expect(0, &pattern(1, 4096));
    drop(idle);
}

/// Clients of a disk that ask for nothing, as many as are served.
fn idle_clients(socket: &Path, disk: &str) -> Vec<Client> {
    let mut idle = Vec::new();
    loop {
        let mut client = Client::greet(socket);
        client.send(&[0, 0, 0, 3]);
        match client.go(disk) {
            option_reply::ACK => idle.push(client),
            refused => {
                assert_eq!(refused, option_reply::ERR_POLICY);
                return idle;
            }
        }
    }
}

#[test]
fn a_disk_without_a_client_is_served_whatever_the_others_have() {
    let options = NbdServerOptions {
        connections_max: 8,
        connections_per_export_max: 4,
        handshakes_max: 4,
        ..NbdServerOptions::default()
    };
    let (rig, _gate) = Rig::memory(&pattern(1, MIB), options);
    rig.add_raw("second", &pattern(2, MIB), false);
    rig.add_raw("third", &pattern(3, MIB), false);
    let idle = ["disk", "second"].map(|disk| idle_clients(&rig.socket, disk));
    // More handshakes than there may be, too, none of which goes on.
    let silent: Vec<_> = (0..6).map(|_| UnixStream::connect(&rig.socket).unwrap()).collect();
    let mut third = Client::named(&rig.socket, "third", true);
    third.expect(0, &pattern(3, 4096));
    assert_eq!(idle.each_ref().map(Vec::len), [4, 3], "all places but the third disk's");
    assert_eq!(rig.connections(), 8);
    drop(silent);
    // Its place is its own again once it has gone.
    drop(third);
    until("its place is free", || rig.connections() == 7);
    assert_eq!(idle_clients(&rig.socket, "second").len(), 0);
    assert_eq!(idle_clients(&rig.socket, "third").len(), 1);
}

#[test]
fn a_full_listener_takes_no_place_of_another() {
    let options = NbdServerOptions { connections_max: 2, ..NbdServerOptions::default() };
    let (rig, _gate) = Rig::memory(&pattern(1, MIB), options.clone());
    let (other, _server) = rig.listen_too(options);
    let idle = idle_clients(&rig.socket, "disk");
    assert_eq!(idle.len(), 2);
    Client::new(&other, true).expect(0, &pattern(1, 4096));
}

#[test]
fn a_thousand_connections_come_and_go() {
    let rig = Rig::raw(&pattern(1, MIB));
    let mut steady = Client::new(&rig.socket, true);
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for n in 0..1000 {
        let mut s = UnixStream::connect(&rig.socket).unwrap();
        match n % 4 {
            0 => drop(s),
            1 => drop(s.write_all(b"\0\0\0\x03IHAVE")),
            2 => drop(Client::new(&rig.socket, n % 8 == 2)),
            _ => Client::new(&rig.socket, true).expect(n, &pattern(1, MIB)[n as usize..n as usize + 100]),
        }
        if n % 100 == 0 {
            steady.expect(0, &pattern(1, 4096));
        }
    }
    until("all but one are gone", || rig.connections() == 1);
    // Other tests run in this process, too: only a leak of this test's size would show.
    until("descriptors are given back", || fds() < 500);
    steady.expect(0, &pattern(1, 4096));
}

#[test]
fn garbage_in_transmission_is_cut_off() {
    let rig = Rig::raw(&pattern(1, MIB));
    let mut other = Client::new(&rig.socket, true);
    for garbage in [vec![0; 28], vec![0xff; 100_000], request(0, c::READ, 0, 10, 0)[1..].repeat(2)] {
        let mut client = Client::new(&rig.socket, true);
        let _ = client.stream.write_all(&garbage);
        assert!(client.is_cut());
    }
    other.expect(0, &pattern(1, 4096));
    until("only one is left", || rig.connections() == 1);
}

#[test]
fn absurd_requests_are_refused_and_the_connection_goes_on() {
    let bytes = pattern(1, MIB);
    let rig = Rig::raw(&bytes);
    for structured in [false, true] {
        let mut client = Client::new(&rig.socket, structured);
        let table = [
            (c::READ, 0, u32::MAX, errno::EINVAL),
            (c::READ, u64::MAX, u32::MAX, errno::EINVAL),
            (c::READ, u64::MAX - 9, 10, errno::EINVAL),
            (c::READ, MIB as u64, 1, errno::EINVAL),
            (c::TRIM, u64::MAX, u32::MAX, errno::EINVAL),
            (c::WRITE_ZEROES, 1, u32::MAX, errno::ENOSPC),
            (c::CACHE, u64::MAX / 2, 1, errno::EINVAL),
            (c::BLOCK_STATUS, 0, 1, errno::EINVAL),
            (c::FLUSH, 1, 1, errno::EINVAL),
            (999, 0, 0, errno::EINVAL),
        ];
        for (command, offset, len, error) in table {
            client.ask(0, command, offset, len, 9);
            assert_eq!(client.answers(1)[&9], Reply::Error(error), "{command} {offset} {len}");
        }
        client.expect(0, &bytes[..4096]);
    }
    // A disk large enough for a read that is too long.
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &vec![0; 33 * MIB], false);
    for (structured, error) in [(false, errno::EINVAL), (true, errno::EOVERFLOW)] {
        let mut client = Client::new(&rig.socket, structured);
        client.ask(0, c::READ, 0, 33 << 20, 9);
        assert_eq!(client.answers(1)[&9], Reply::Error(error));
        client.ask(0, c::READ, 0, 32 << 20, 10);
        assert!(client.answers(1)[&10] == Reply::Data(vec![0; 32 << 20]));
    }
}

#[test]
fn a_client_that_vanishes_at_any_byte_leaves_nothing_behind() {
    let bytes = pattern(1, MIB);
    let (rig, gate) = Rig::memory(&bytes, NbdServerOptions::default());
    let mut other = Client::new(&rig.socket, true);
    let mut script = request(0, c::READ, 0, 100_000, 1);
    script.extend(request(0, c::WRITE, 0, 3000, 2));
    script.extend(&bytes[..3000]);
    script.extend(request(0, c::FLUSH, 0, 0, 3));
    for cut in [1, 27, 28, 29, 55, 56, 57, 1000, 3055, 3056, 3057, script.len()] {
        for closed in [false, true] {
            if closed {
                gate.close();
            }
            let mut client = Client::new(&rig.socket, true);
            client.send(&script[..cut]);
            drop(client);
            gate.open();
            other.expect(7, &bytes[7..5000]);
        }
    }
    until("only one is left", || rig.connections() == 1);
    assert!(gate.bytes() == bytes);
}

#[test]
fn a_client_that_vanishes_with_requests_at_the_disk_is_let_go_when_they_end() {
    let bytes = pattern(1, MIB);
    let (rig, gate) = Rig::memory(&bytes, NbdServerOptions::default());
    gate.close();
    let mut client = Client::new(&rig.socket, true);
    for n in 0..16 {
        client.ask(0, c::READ, n * 65_536, 65_536, n);
    }
    until("requests at the disk", || gate.held() > 0);
    drop(client);
    gate.open();
    until("it is gone", || rig.connections() == 0);
    Client::new(&rig.socket, true).expect(0, &bytes);
}

#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_no_one_else_time() {
    let limits = PortLimits { requests_max: 128, bytes_max: 2 * MIB };
    let options = NbdServerOptions { port: limits, ..NbdServerOptions::default() };
    let bytes = pattern(1, MIB);
    let (rig, _gate) = Rig::memory(&bytes, options);
    let mut other = Client::new(&rig.socket, true);
    let mut flood = Client::new(&rig.socket, true);
    flood.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut quiet = 0;
    // Until the server takes no more, for a while.
    while quiet < 50 {
        match flood.stream.write(&request(0, c::READ, 0, MIB as u32, sent as u64)) {
            Ok(28) => (sent, quiet) = (sent + 1, 0),
            Ok(n) => panic!("{n} of 28 bytes were taken"),
            Err(_) => {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(sent < 1_000_000, "the server never stops reading");
    }
    other.expect(0, &bytes);
    // All of it is still answered if the client comes to its senses.
    flood.stream.set_nonblocking(false).unwrap();
    let mut left = sent * (28 + MIB);
    let mut piece = vec![0; 1 << 20];
    while left > 0 {
        let n = flood.stream.read(&mut piece).unwrap();
        assert!(n > 0 && n <= left);
        left -= n;
    }
    flood.send(&request(0, c::DISC, 0, 0, 0));
    until("it is gone", || rig.connections() == 1);
}

#[test]
fn a_flood_of_errors_is_bounded_as_well() {
    let rig = Rig::raw(&pattern(1, MIB));
    let mut other = Client::new(&rig.socket, true);
    let mut flood = Client::new(&rig.socket, true);
    flood.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut quiet = 0;
    while quiet < 50 {
        match flood.stream.write(&request(0, 77, 0, 0, sent)) {
            Ok(_) => (sent, quiet) = (sent + 1, 0),
            Err(_) => {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(sent < 1_000_000, "the server never stops reading");
    }
    other.expect(0, &pattern(1, 4096));
    drop(flood);
    until("it is gone", || rig.connections() == 1);
}

#[test]
fn a_write_of_four_gigabytes_is_read_past_or_given_up() {
    let rig = Rig::raw(&pattern(1, MIB));
    let mut client = Client::new(&rig.socket, true);
    client.ask(0, c::WRITE, 0, u32::MAX, 1);
    client.send(&vec![7; 64 * MIB]);
    let mut other = Client::new(&rig.socket, true);
    other.expect(0, &pattern(1, MIB));
    drop(client);
    until("it is gone", || rig.connections() == 1);
    assert!(std::fs::read(rig.image("disk")).unwrap() == pattern(1, MIB));
}

#[test]
fn a_stalled_disk_does_not_hold_up_another() {
    let (rig, gate) = Rig::memory(&pattern(1, MIB), NbdServerOptions::default());
    rig.add_raw("other", &pattern(2, MIB), false);
    gate.close();
    let mut stalled = Client::new(&rig.socket, true);
    for n in 0..200 {
        stalled.ask(0, c::READ, n * 4096, 4096, n);
    }
    let mut other = Client::named(&rig.socket, "other", true);
    other.expect(0, &pattern(2, MIB));
    gate.open();
    assert_eq!(stalled.answers(200).len(), 200);
}
