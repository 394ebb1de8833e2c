//! Connections to the API: who may open them, how long they may take, and that none disturbs another.
//!
//! Owns nothing. Never waits without an end.

use crate::rig::{Api, daemon_plan, exchange};
use hyper::Method;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use undercroft_api::RecordingStatus;
use undercroft_api::client::{self, ClientError};
use undercroft_http::ControlListeners;

#[test]
fn the_socket_is_ours_alone_and_goes_with_the_server() {
    let mut api = Api::start();
    let meta = std::fs::metadata(&api.socket).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let (_, plan) = daemon_plan(api.dir.path());
    let e = ControlListeners::bind(&plan).unwrap_err().to_string();
    assert!(e.contains("in use") && e.contains("control.sock"), "a second daemon: {e}");
    api.server.take().unwrap().stop();
    assert!(!api.socket.exists() && !api.dir.path().join("web.sock").exists());
    let e = client::request(&api.socket, Method::GET, "/v1/status", None).unwrap_err().to_string();
    assert!(e.contains("no daemon answers") && e.contains("undercroft serve"), "{e}");
}

#[test]
fn files_go_along_with_a_request_on_the_hosts_socket_alone() {
    let api = Api::start();
    let file = |name: &str| File::create(api.dir.path().join(name)).unwrap();
    let text = |name: &str| std::fs::read_to_string(api.dir.path().join(name)).unwrap();
    let order = |socket: &Path, files: Vec<File>| {
        let body = r#"{"path": "/a.parquet", "descriptor": true}"#.to_string();
        client::request_with_files::<RecordingStatus>(socket, Method::POST, "/v1/recordings", body, files)
    };
    for files in [1, 2] {
        let names = ["one", "two"];
        assert_eq!(order(&api.socket, names[..files].iter().map(|n| file(n)).collect()).unwrap().path, "/a.parquet");
        assert_eq!(names[..files].iter().map(|n| text(n)).collect::<Vec<_>>(), ["file 0", "file 1"][..files]);
    }
    // Not asked for, too many, and where it is not allowed: nobody else has anything of that.
    let body = r#"{"path": "/a.parquet"}"#.to_string();
    let request = client::request_with_files::<RecordingStatus>;
    assert!(request(&api.socket, Method::POST, "/v1/recordings", body, vec![file("one")]).is_ok());
    assert!(order(&api.socket, vec![file("one"), file("two"), file("three")]).is_err());
    let vm = api.dir.path().join("web.sock");
    let refused = order(&vm, vec![file("one")]).unwrap_err();
    assert!(matches!(refused, ClientError::Bad { .. }), "{refused}");
    assert_eq!((text("one"), text("two")), (String::new(), String::new()));
    assert_eq!((api.vm("GET /v1/shares", "").0, api.raw("GET /v1/version", "").0), (200, 200));
}

#[test]
fn a_long_body_is_refused_and_the_server_lives_on() {
    let api = Api::start();
    let (code, answer) = api.raw("POST /v1/disks", &" ".repeat(70_000));
    assert!(code == 400 && answer.contains("longer than 65536 bytes"), "{code} {answer}");
    // A length past all bounds, and a head that never ends.
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    stream.write_all(b"POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    let _ = stream.write_all(b"GET /v1/status HTTP/1.1\r\n");
    let _ = stream.write_all("x: y\r\n".repeat(10_000).as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(api.raw("GET /v1/version", "").0, 200);
}

/// On a VM's socket, too, each kind of list has its own bound, and everything else a small one.
#[test]
fn a_long_list_is_refused_on_a_vms_socket() {
    let api = Api::start();
    for (head, longest, why) in [
        ("PATCH /v1/nodes/root", 64 << 10, "longer than 65536 bytes"),
        ("PUT /v1/ranges", 8 << 20, "longer than 8388608 bytes"),
        ("PUT /v1/disks/root/pins", 16 << 20, "longer than 16777216 bytes"),
        ("PUT /v1/disks/root/lock-profile", 16 << 20, "longer than 16777216 bytes"),
    ] {
        // What may be so long is read, and found to be no list.
        let (code, answer) = api.vm(head, &" ".repeat(longest));
        assert!(code == 400 && !answer.contains("longer than"), "{head}: {code} {answer}");
        let (code, answer) = api.vm(head, &" ".repeat(longest + 1));
        assert!(code == 400 && answer.contains(why), "{head}: {code} {answer}");
    }
    assert_eq!((api.vm("GET /v1/shares", "").0, api.raw("GET /v1/version", "").0), (200, 200));
}

#[test]
fn half_a_body_is_given_up_within_half_a_minute() {
    let api = Api::start();
    let begun = std::time::Instant::now();
    // As many as there are places: what one client does at most.
    let halves: Vec<_> = (0..64)
        .map(|_| {
            let mut stream = UnixStream::connect(&api.socket).unwrap();
            stream.write_all(b"POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"na").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream
        })
        .collect();
    for mut half in halves {
        let mut answer = String::new();
        half.read_to_string(&mut answer).expect("an answer and the end of the connection");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("took more than 25 s"), "{answer}");
    }
    // The promise is 30 s; the rest is for a machine that is slow.
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    assert_eq!(api.raw("GET /v1/version", "").0, 200);
}

#[test]
fn garbage_and_idle_connections_do_not_disturb_others() {
    let api = Api::start();
    // As many idle connections as there are places but one, and one that says nonsense.
    let idle: Vec<_> = (0..62).map(|_| UnixStream::connect(&api.socket).unwrap()).collect();
    let mut nonsense = UnixStream::connect(&api.socket).unwrap();
    nonsense.write_all(&[0xff; 300]).unwrap();
    assert_eq!(api.raw("GET /v1/version", "").0, 200);
    drop(idle);
    // Once past the last place, connections wait until one is free.
    let full: Vec<_> = (0..80).map(|_| UnixStream::connect(&api.socket).unwrap()).collect();
    let mut waiting = UnixStream::connect(&api.socket).unwrap();
    waiting.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    waiting.write_all(b"GET /v1/version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    assert!(waiting.read(&mut [0; 1]).is_err(), "it was served although every place is taken");
    drop(full);
    waiting.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The owner of a VM has eight connections, and they are none of the host's.
#[test]
fn a_ninth_connection_to_a_vms_socket_waits_and_the_hosts_socket_answers() {
    let api = Api::start();
    let half = || {
        let mut stream = UnixStream::connect(api.dir.path().join("web.sock")).unwrap();
        stream.write_all(b"GET /v1/shares HTTP/1.1\r\n").unwrap();
        stream
    };
    let mut held: Vec<_> = (0..7).map(|_| half()).collect();
    assert_eq!(api.vm("GET /v1/version", "").0, 200, "the eighth");
    held.push(half());
    let mut ninth = UnixStream::connect(api.dir.path().join("web.sock")).unwrap();
    ninth.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    ninth.write_all(b"GET /v1/version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    assert!(ninth.read(&mut [0; 1]).is_err(), "it was served although every place is taken");
    assert_eq!((api.raw("GET /v1/version", "").0, api.raw("GET /v1/shares", "").0), (200, 200));
    held.pop();
    ninth.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    ninth.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(held.len(), 7, "the others are still there");
}

#[test]
fn stopping_ends_idle_connections_too() {
    let mut api = Api::start();
    let mut idle = UnixStream::connect(&api.socket).unwrap();
    assert_eq!(api.raw("POST /v1/stop", "").0, 202);
    assert!(api.daemon.stopped.load(Ordering::SeqCst));
    api.server.take().unwrap().stop();
    idle.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "closed, not left hanging");
}

#[test]
fn the_sockets_files_go_before_the_answers_under_way() {
    let mut api = Api::start();
    let held = api.daemon.may_end.lock().unwrap();
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    let asks = std::thread::spawn(move || exchange(&mut stream, "POST /v1/reload", ""));
    while !api.daemon.reloads.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let server = api.server.take().unwrap();
    let stops = std::thread::spawn(move || server.stop());
    while api.socket.exists() || api.dir.path().join("web.sock").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    let (code, answer) = asks.join().unwrap();
    assert!(code == 503 && answer.contains("it is stopping"), "the files stayed until no answer was left: {code}");
    stops.join().unwrap();
}
