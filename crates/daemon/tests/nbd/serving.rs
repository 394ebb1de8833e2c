//! What a well-behaved client gets, and how service begins and ends.

use crate::client::Client;
use crate::rig::{Rig, logged, pattern, until};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use undercroft_frontend::nbd::wire::{command as c, command_flag, errno, option, option_reply};
use undercroft_frontend::nbd::{Listen, NbdError, NbdServer, NbdServerOptions};
use undercroft_frontend::socket::SocketPermissions;
use undercroft_porttest::nbd::exercise::{OneExport, Reply, geometry};

const MIB: usize = 1 << 20;

#[test]
fn reads_and_writes_reach_the_image() {
    let bytes = pattern(1, 4 * MIB + 512);
    let rig = Rig::raw(&bytes);
    for structured in [false, true] {
        let mut client = Client::new(&rig.socket, structured);
        client.expect(0, &bytes[..4096]);
        client.expect(3, &bytes[3..100_000]);
        client.expect(4 * MIB as u64 + 500, &bytes[4 * MIB + 500..]);
    }
    let mut client = Client::new(&rig.socket, true);
    let data = pattern(2, 300_000);
    client.ask(command_flag::FUA, c::WRITE, 12_345, data.len() as u32, 5);
    client.send(&data);
    assert_eq!(client.answers(1)[&5], Reply::Done);
    client.expect(12_345, &data);
    client.ask(0, c::WRITE_ZEROES, 20_000, 10_000, 6);
    assert_eq!(client.answers(1)[&6], Reply::Done);
    client.ask(0, c::FLUSH, 0, 0, 7);
    assert_eq!(client.answers(1)[&7], Reply::Done);
    let mut want = bytes.clone();
    want[12_345..12_345 + data.len()].copy_from_slice(&data);
    want[20_000..30_000].fill(0);
    client.expect(0, &want);
    assert!(std::fs::read(rig.image("disk")).unwrap() == want, "write-through");
}

#[test]
fn what_one_connection_wrote_another_reads() {
    let rig = Rig::raw(&pattern(1, MIB));
    let mut clients: Vec<_> = (0..4).map(|n| Client::new(&rig.socket, n % 2 == 0)).collect();
    let mut want = pattern(1, MIB);
    for round in 0..40 {
        let writer = round % 4;
        let at = (round * 7919) % (MIB - 5000);
        let data = pattern(round as u64 + 9, 5000);
        clients[writer].ask(0, c::WRITE, at as u64, 5000, 3);
        clients[writer].send(&data);
        assert_eq!(clients[writer].answers(1)[&3], Reply::Done);
        want[at..at + 5000].copy_from_slice(&data);
        clients[(writer + 1) % 4].expect(at as u64, &data);
    }
    clients[0].expect(0, &want);
    assert_eq!(rig.connections(), 4);
    clients.drain(..).for_each(|mut c| c.ask(0, c::DISC, 0, 0, 0));
    until("connections end", || rig.connections() == 0);
}

#[test]
fn a_deep_pipeline_of_mixed_requests_is_answered_once_each() {
    let rig = Rig::raw(&vec![0; 8 * MIB]);
    let mut client = Client::new(&rig.socket, true);
    for round in 0..20u64 {
        let mut sender = client.sender();
        std::thread::scope(|s| {
            s.spawn(move || {
                for n in 0..200u64 {
                    sender.ask(0, c::WRITE, n * 8192, 8192, n);
                    sender.send(&pattern(round * 1000 + n, 8192));
                }
            });
            let got = client.answers(200);
            assert!(got.values().all(|r| *r == Reply::Done));
        });
        let at = round % 200;
        client.expect(at * 8192, &pattern(round * 1000 + at, 8192));
    }
}

#[test]
fn a_read_only_disk_is_read_only() {
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &pattern(1, MIB), true);
    let mut client = Client::new(&rig.socket, true);
    client.ask(0, c::WRITE, 0, 10, 1);
    client.send(&[1; 10]);
    client.ask(0, c::WRITE_ZEROES, 0, 10, 2);
    client.ask(0, c::FLUSH, 0, 0, 3);
    let got = client.answers(3);
    assert_eq!(got[&1], Reply::Error(errno::EPERM));
    assert_eq!(got[&2], Reply::Error(errno::EPERM));
    assert_eq!(got[&3], Reply::Done);
    client.expect(0, &pattern(1, MIB)[..4096]);
}

#[test]
fn errors_of_the_disk_reach_the_client_and_pass() {
    let bytes = pattern(1, MIB);
    let (rig, gate) = Rig::memory(&bytes, NbdServerOptions::default());
    let mut client = Client::new(&rig.socket, true);
    gate.set_broken(true);
    client.ask(0, c::READ, 0, 4096, 1);
    assert_eq!(client.answers(1)[&1], Reply::Error(errno::EIO));
    client.ask(0, c::WRITE, 0, 4096, 2);
    client.send(&[1; 4096]);
    assert_eq!(client.answers(1)[&2], Reply::Error(errno::EIO));
    gate.set_broken(false);
    client.expect(0, &bytes[..4096]);
}

#[test]
fn stop_answers_what_is_under_way_and_removes_the_socket() {
    let bytes = pattern(1, MIB);
    let (mut rig, gate) = Rig::memory(&bytes, NbdServerOptions::default());
    let mut client = Client::new(&rig.socket, true);
    gate.close();
    for n in 0..10 {
        client.ask(0, c::READ, n * 65_536, 65_536, n);
    }
    until("requests at the disk", || gate.held() > 0);
    // Those that the worker has not seen by then would have no answer; all have been sent.
    std::thread::sleep(Duration::from_millis(500));
    let server = rig.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    until("the socket's end", || !rig.socket.exists());
    assert!(!stopping.is_finished(), "requests are under way");
    gate.open();
    let got = client.answers(10);
    for (n, reply) in got {
        assert_eq!(reply, Reply::Data(bytes[n as usize * 65_536..][..65_536].to_vec()));
    }
    assert!(client.is_cut());
    stopping.join().unwrap();
}

#[test]
fn replies_that_did_not_fit_the_socket_are_delivered_after_the_port_is_gone() {
    let bytes = pattern(1, 8 * MIB);
    let (mut rig, _gate) = Rig::memory(&bytes, NbdServerOptions::default());
    let mut client = Client::new(&rig.socket, false);
    client.ask(0, c::READ, 0, 8 * MIB as u32, 1);
    // The reply is on its way once its first byte is here.
    let mut first = [0];
    use std::io::Read;
    assert_eq!(rustix::net::recv(&client.stream, &mut first[..], rustix::net::RecvFlags::PEEK).unwrap().0, 1);
    let server = rig.server.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    assert!(client.answers(1)[&1] == Reply::Data(bytes));
    assert_eq!(client.stream.read(&mut first).unwrap(), 0);
    stopping.join().unwrap();
}

#[test]
fn a_disk_that_leaves_ends_its_connections_only() {
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &pattern(1, MIB), false);
    rig.add_raw("other", &pattern(2, MIB), false);
    let mut leaving = Client::new(&rig.socket, true);
    let mut staying = Client::named(&rig.socket, "other", true);
    leaving.expect(0, &pattern(1, 4096));
    let id = undercroft_cache::DiskId(0);
    let (tx, rx) = std::sync::mpsc::channel();
    rig.worker.send(move |w| w.remove_disk(id, tx)).unwrap();
    assert!(leaving.is_cut());
    drop(rx.recv().unwrap());
    staying.expect(0, &pattern(2, 4096));
    until("one connection left", || rig.connections() == 1);
}

/// A client may leave the answer to its GO unread while its disk goes and another takes its number: it is not given
/// that one, which its listener may not even name.
#[test]
fn a_client_that_was_promised_a_disk_is_not_given_the_next_of_its_number() {
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &pattern(1, MIB), false);
    let promised = rig.export("disk");
    let id = promised.info.disk;
    let (tx, rx) = std::sync::mpsc::channel();
    rig.worker.send(move |w| w.remove_disk(id, tx)).unwrap();
    drop(rx.recv().unwrap());
    rig.add_raw("secret", &pattern(2, MIB), false);
    assert_eq!(rig.export("secret").info.disk, id, "another disk has the number");
    assert_eq!(promised.host.attach(Box::new(|_| panic!("joined to another disk"))), u32::MAX);
    Client::named(&rig.socket, "secret", true).expect(0, &pattern(2, 4096));
}

#[test]
fn a_client_whose_disk_has_gone_is_said_to_be_turned_away_and_not_to_be_connected() {
    logged();
    let rig = Rig::raw(&pattern(1, MIB));
    rig.promise("promised", "disk");
    let mut client = Client::named(&rig.socket, "promised", true);
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "the connection is closed");
    let said = |what: &str| logged().lines().any(|l| l.contains("disk=promised") && l.contains(what));
    assert!(!said("NBD client connected"), "{}", logged());
    until("the log says why", || said("turned away: the disk that it was promised is gone"));
    let _served = Client::named(&rig.socket, "disk", true);
    until("who is served is said to be connected", || {
        logged().lines().any(|l| l.contains("disk=disk") && l.contains("NBD client connected"))
    });
}

#[test]
fn the_limit_of_connections_is_kept_and_told() {
    let options = NbdServerOptions { connections_max: 2, ..NbdServerOptions::default() };
    let (rig, _gate) = Rig::memory(&pattern(1, MIB), options);
    let mut first = Client::new(&rig.socket, true);
    let _second = Client::new(&rig.socket, true);
    let mut third = Client::greet(&rig.socket);
    third.send(&[0, 0, 0, 3]);
    let go = b"\0\0\0\x04disk\0\0";
    assert_eq!(third.option(option::GO, go), option_reply::ERR_POLICY);
    first.ask(0, c::DISC, 0, 0, 0);
    until("room", || rig.connections() == 1);
    assert_eq!(third.option(option::GO, go), option_reply::ACK);
    third.expect(0, &pattern(1, 4096));
}

#[test]
fn tcp_is_served_on_the_port_that_was_chosen() {
    use std::io::{Read, Write};
    let exports = Arc::new(OneExport(geometry(MIB as u64)));
    let listen = |port| Listen::Tcp(([127, 0, 0, 1], port).into());
    let server = NbdServer::start(listen(0), exports.clone(), NbdServerOptions::default()).unwrap();
    let Listen::Tcp(address) = *server.local_addr() else { panic!() };
    assert_ne!(address.port(), 0);
    assert_eq!(server.local_addr().to_string(), format!("tcp:{address}"));
    let mut client = std::net::TcpStream::connect(address).unwrap();
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).unwrap();
    client.write_all(&[0, 0, 0, 3]).unwrap();
    // A second server on the port is refused in words.
    let e = NbdServer::start(listen(address.port()), exports.clone(), NbdServerOptions::default()).err().unwrap();
    assert!(matches!(e, NbdError::Tcp { .. }) && e.to_string().contains("another port"), "{e}");
    server.stop();
    assert_eq!(client.read(&mut greeting).unwrap_or(0), 0);
    NbdServer::start(listen(address.port()), exports, NbdServerOptions::default()).unwrap().stop();
}

#[test]
fn the_socket_has_the_mode_asked_for_and_is_not_shared() {
    let dir = tempfile::tempdir().unwrap();
    let exports = Arc::new(OneExport(geometry(MIB as u64)));
    let path = dir.path().join("s");
    let listen = Listen::Unix(path.clone(), SocketPermissions { mode: 0o660, gid: None });
    let server = NbdServer::start(listen.clone(), exports.clone(), NbdServerOptions::default()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let e = NbdServer::start(listen, exports, NbdServerOptions::default()).err().unwrap();
    assert!(e.to_string().contains("in use by another process"), "{e}");
    drop(server);
    assert!(!path.exists());
}
