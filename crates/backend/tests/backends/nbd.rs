//! The NBD client against real servers: nbdkit and qemu-nbd, well, failing, stalling, and killed.

use crate::harness::{self, Harness, Rng, assert_same, pattern, run, storm, storm_apart};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use undercroft_backend::nbd::NbdOptions;
use undercroft_backend::{self as backend, OpenError, OpenOptions};
use undercroft_cache::{Extent, IoError, IoKind};
use undercroft_config::ImageSpec;

const SIZE: u64 = 8 << 20;

/// A server program on a unix socket, killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(program: &str, dir: &Path, args: &[&str]) -> Self {
        let socket = dir.join("nbd.sock");
        let _ = std::fs::remove_file(&socket);
        let mut c = Command::new(program);
        match program {
            "nbdkit" => c.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket),
            _ => c.args(["--persistent", "--shared=8", "--socket"]).arg(&socket),
        };
        let child = c.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|e| panic!("{program} does not run ({e}): apt-get install nbdkit qemu-utils"));
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "{program} {args:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, socket }
    }

    fn nbdkit(dir: &Path, args: &[&str]) -> Self {
        Self::start("nbdkit", dir, args)
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spec(location: &str, read_only: bool) -> ImageSpec {
    ImageSpec { location: location.to_owned(), format: None, read_only }
}

fn open(location: &str) -> Harness {
    open_with(location, NbdOptions::default())
}

fn open_with(location: &str, nbd: NbdOptions) -> Harness {
    let options = OpenOptions { nbd, ..OpenOptions::default() };
    Harness::new(backend::open(&spec(location, false), &options).unwrap())
}

fn open_error(location: &str, read_only: bool) -> OpenError {
    harness::open_error(&spec(location, read_only))
}

fn image(dir: &Path) -> PathBuf {
    let path = dir.join("disk.img");
    let f = std::fs::File::create(&path).unwrap();
    f.set_len(SIZE).unwrap();
    path
}

#[test]
fn any_mix_of_operations_on_any_server_reads_like_a_byte_array() {
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path());
    let qcow2 = dir.path().join("disk.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", qcow2.to_str().unwrap(), &SIZE.to_string()]);
    let file_arg = format!("file={}", file.display());
    for (program, args) in [
        ("nbdkit", vec!["memory", "8M"]),
        ("nbdkit", vec!["file", &file_arg]),
        ("nbdkit", vec!["--no-sr", "memory", "8M"]),
        ("nbdkit", vec!["--filter=nozero", "--filter=noextents", "memory", "8M"]),
        (
            "nbdkit",
            vec![
                "--filter=blocksize-policy",
                "memory",
                "8M",
                "blocksize-minimum=4096",
                "blocksize-preferred=4096",
                "blocksize-maximum=65536",
                "blocksize-error-policy=error",
            ],
        ),
        ("qemu-nbd", vec!["--format=qcow2", "--discard=unmap", qcow2.to_str().unwrap()]),
        ("qemu-nbd", vec!["--format=raw", "--discard=unmap", file.to_str().unwrap()]),
    ] {
        eprintln!("{program} {args:?}");
        image(dir.path()); // all zeroes again
        let server = Server::start(program, dir.path(), &args);
        let mut h = open(&server.uri(""));
        let mut model = vec![0; SIZE as usize];
        for round in 0..2 {
            // QEMU 7.2 itself loses writes that run beside others, or beside zeroes, in one cluster of a qcow2 image.
            let apart = if args.contains(&"--format=qcow2") { 65536 } else { 1 };
            storm_apart(&mut h, &mut model, 60 + round, 1000, apart);
            assert_same(&h.read_all(), &model, &format!("{program} {args:?}"));
        }
        h.flush();
        drop(h);
        // Another connection sees the same.
        let mut h = open(&server.uri(""));
        assert_same(&h.read_all(), &model, &format!("{program} {args:?} afterwards"));
    }
}

#[test]
fn an_export_is_chosen_by_name_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    for (name, byte) in [("one", 1u8), ("two", 2)] {
        std::fs::write(dir.path().join(name), vec![byte; 1 << 20]).unwrap();
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut child = Command::new("nbdkit")
        .args(["--foreground", "--exit-with-parent", "-i", "127.0.0.1", "-p", &port.to_string(), "file"])
        .arg(format!("dir={}", dir.path().display()))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "nbdkit does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut h = open(&format!("nbd://127.0.0.1:{port}/two"));
    assert_eq!(h.read(4096, 512), [2; 512]);
    let e = open_error(&format!("nbd://127.0.0.1:{port}/three"), false).to_string();
    assert!(e.contains("three"), "{e}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_cannot_be_opened_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let missing = format!("nbd+unix:///?socket={}", dir.path().join("none").display());
    let e = open_error(&missing, false).to_string();
    assert!(e.contains("no such socket") && e.contains(&missing), "{e}");
    assert!(matches!(open_error("nbd://", false), OpenError::Location { .. }));
    assert!(open_error("nbds://localhost/x", false).to_string().contains("TLS"));
    let server = Server::nbdkit(dir.path(), &["--readonly", "memory", "8M"]);
    let e = open_error(&server.uri(""), false).to_string();
    assert!(e.contains("read-only"), "{e}");
    let b = backend::open(&spec(&server.uri(""), true), &OpenOptions::default()).unwrap();
    assert!(b.geometry().read_only && !b.geometry().can_discard);
    drop((b, server));
    let big = ["--filter=blocksize-policy", "memory", "8M", "blocksize-minimum=64k", "blocksize-preferred=64k"];
    let server = Server::nbdkit(dir.path(), &big);
    let e = open_error(&server.uri(""), false).to_string();
    assert!(e.contains("65536") && e.contains("--filter=blocksize"), "{e}");
    drop(server);
    let server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let _first = open(&server.uri(""));
    let e = open_error(&server.uri(""), false);
    assert!(matches!(e, OpenError::InUseHere { .. }), "{e:?}");
}

#[test]
fn without_fua_a_durable_write_is_followed_by_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (image(dir.path()), dir.path().join("flushes"));
    let pread = format!("pread=dd if={} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none", file.display());
    let pwrite = format!("pwrite=dd of={} seek=$4 conv=notrunc oflag=seek_bytes status=none", file.display());
    let flush = format!("flush=cmp -s -n 4096 {} /dev/zero || echo flush >> {}", file.display(), log.display());
    let size = format!("get_size=echo {SIZE}");
    let can = ["can_write=exit 0", "can_flush=exit 0", "can_fua=echo none"];
    let server = Server::nbdkit(dir.path(), &[&["eval", &size, &pread, &pwrite, &flush][..], &can].concat());
    let mut h = open(&server.uri(""));
    let data = pattern(3, 4096);
    let plain = h.start(IoKind::Write { fua: false }, 8192, 4096, Some(&data), 0);
    assert_eq!(h.wait(plain).result, Ok(()));
    assert!(!log.exists());
    let durable = h.start(IoKind::Write { fua: true }, 0, 4096, Some(&data), 0);
    assert_eq!(h.wait(durable).result, Ok(()));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "flush\n", "flushed once, with the data in place");
    assert!(h.read(0, 4096) == data);
}

#[test]
fn block_status_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let mut h = open(&server.uri(""));
    h.write(1 << 20, &pattern(1, 1 << 20));
    let data = Extent { len: 1 << 20, hole: false, zero: false };
    let hole = |len| Extent { len, hole: true, zero: true };
    assert_eq!(h.run(IoKind::Status, 0, SIZE).extents, [hole(1 << 20), data, hole(6 << 20)]);
}

#[test]
fn a_server_that_is_killed_and_restarted_costs_what_was_not_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file={}", image(dir.path()).display());
    let mut server = Server::nbdkit(dir.path(), &["file", &file]);
    let mut h = open(&server.uri(""));
    let mut model = vec![0; SIZE as usize];
    for round in 0..5 {
        storm(&mut h, &mut model, 30 + round, 200);
        h.flush();
        // Nothing is unflushed: the loss of the connection costs nothing.
        server.kill();
        let read = h.start(IoKind::Read, 0, 4096, None, 0);
        let write = h.start(IoKind::Write { fua: false }, 4096, 4096, Some(&pattern(round, 4096)), 0);
        h.turn(false);
        server = Server::nbdkit(dir.path(), &["file", &file]);
        assert_eq!(h.wait(write).result, Ok(()));
        model[4096..8192].copy_from_slice(&pattern(round, 4096));
        assert!(h.wait(read).data == model[..4096]);
        assert_eq!(h.backend.take_lost(), None);
        // Now a write is acknowledged and not flushed.
        server.kill();
        let flush = h.start(IoKind::Flush, 0, 0, None, 0);
        h.turn(false);
        server = Server::nbdkit(dir.path(), &["file", &file]);
        assert_eq!(h.wait(flush).result, Err(IoError::Io), "a flush vouched for a write that may be lost");
        let lost = h.backend.take_lost().expect("a write that was not flushed");
        assert!(lost.unflushed && lost.ranges == std::slice::from_ref(&(4096..8192)), "{lost:?}");
        assert_eq!(h.backend.take_lost(), None, "once");
        h.flush();
        assert!(h.read_all() == model);
    }
}

#[test]
fn a_storm_over_a_server_that_dies_again_and_again_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file={}", image(dir.path()).display());
    let location = format!("nbd+unix:///?socket={}", dir.path().join("nbd.sock").display());
    let first = Server::nbdkit(dir.path(), &["file", &file]);
    let mut h = open(&location);
    let path = dir.path().to_owned();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (report, reported) = std::sync::mpsc::channel();
    let killer = std::thread::spawn(move || {
        let (mut server, mut rng) = (first, Rng::new(9));
        let mut kills = 0;
        while stopped.recv_timeout(Duration::from_millis(20 + rng.below(60))).is_err() {
            server.kill();
            server = Server::nbdkit(&path, &["file", &file]);
            kills += 1;
        }
        report.send(kills).unwrap();
        // The server ends with the thread that started it: wait until it is not needed any more.
        let _ = stopped.recv();
        drop(server);
    });
    let mut model = vec![0; SIZE as usize];
    let mut rng = Rng::new(5);
    let start = Instant::now();
    // Writes and reads only: a flush may rightly fail here.
    while start.elapsed() < Duration::from_secs(4) {
        let ops: Vec<(u64, IoKind, u64)> = (0..16)
            .map(|i| {
                let offset = i * (SIZE / 16) + (rng.below(64) << 12);
                if rng.below(2) == 0 {
                    return (h.start(IoKind::Read, offset, 65536, None, 0), IoKind::Read, offset);
                }
                let data = pattern(rng.next(), 65536);
                model[offset as usize..][..65536].copy_from_slice(&data);
                let kind = IoKind::Write { fua: rng.below(4) == 0 };
                (h.start(kind, offset, 65536, Some(&data), 0), kind, offset)
            })
            .collect();
        for (op, kind, offset) in ops {
            let o = h.wait(op);
            assert_eq!(o.result, Ok(()), "{kind:?} at {offset}");
            assert!(kind != IoKind::Read || o.data == model[offset as usize..][..65536], "read at {offset}");
        }
    }
    stop.send(()).unwrap();
    let kills: u32 = reported.recv().unwrap();
    assert!(kills > 3, "{kills} kills");
    assert!(h.read_all() == model, "after {kills} kills");
    drop(stop);
    killer.join().unwrap();
}

#[test]
fn errors_of_the_server_reach_the_guest_and_nothing_else_suffers() {
    let dir = tempfile::tempdir().unwrap();
    let trigger = dir.path().join("fail");
    let file = format!("error-file={}", trigger.display());
    let args = ["--filter=error", "memory", "8M", "error=ENOSPC", "error-pwrite-rate=100%", &file];
    let server = Server::nbdkit(dir.path(), &args);
    let mut h = open(&server.uri(""));
    h.write(0, &pattern(1, 65536));
    std::fs::write(&trigger, "").unwrap();
    assert_eq!(h.try_write(0, &pattern(2, 65536)), Err(IoError::NoSpace));
    assert!(h.read(0, 65536) == pattern(1, 65536));
    std::fs::remove_file(&trigger).unwrap();
    h.write(0, &pattern(2, 65536));
    assert!(h.read(0, 65536) == pattern(2, 65536));
}

#[test]
fn a_stalled_server_is_counted_and_holds_up_no_other_disk() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Server::nbdkit(dir.path(), &["--filter=delay", "memory", "8M", "rdelay=1"]);
    let slow_uri = slow.uri("");
    let second_dir = tempfile::tempdir().unwrap();
    let fast = Server::nbdkit(second_dir.path(), &["memory", "8M"]);
    let options = NbdOptions { stall_after: Duration::from_millis(50), ..NbdOptions::default() };
    let mut h = open_with(&slow_uri, options);
    let mut other = open(&fast.uri(""));
    let op = h.start(IoKind::Read, 0, 4096, None, 0);
    let mut seen = 0;
    let start = Instant::now();
    while seen == 0 && start.elapsed() < Duration::from_secs(20) {
        h.turn(false);
        seen = h.backend.stalled_ops();
        other.write(0, &pattern(1, 4096));
        assert!(h.take(op).is_none() || seen > 0 || start.elapsed() > Duration::from_millis(900));
    }
    assert_eq!(seen, 1);
    assert_eq!(h.wait(op).result, Ok(()));
    assert_eq!(h.backend.stalled_ops(), 0);
}

#[test]
fn a_server_gone_for_too_long_means_errors_and_one_that_is_back_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let options = NbdOptions { give_up_after: Duration::from_millis(200), stall_after: Duration::from_millis(50) };
    let mut h = open_with(&server.uri(""), options);
    assert!(h.read(0, 4096) == [0; 4096]);
    server.kill();
    let ops: Vec<u64> = (0..20).map(|i| h.start(IoKind::Read, i << 12, 4096, None, 0)).collect();
    for op in ops {
        assert_eq!(h.wait(op).result, Err(IoError::Io));
    }
    assert!(h.backend.describe().contains("server gone"), "{}", h.backend.describe());
    assert_eq!(h.run(IoKind::Read, 0, 4096).result, Err(IoError::Io), "at once");
    server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let start = Instant::now();
    while h.run(IoKind::Read, 0, 4096).result.is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "never connected again");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);
}

/// Turns until the disk says `state` of itself, or does not.
fn turn_until(h: &mut Harness, state: &str, says: bool) {
    let start = Instant::now();
    while h.backend.describe().contains(state) != says {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", h.backend.describe());
        std::thread::sleep(Duration::from_millis(5));
        h.turn(false);
    }
}

/// The server is restarted while a read waits for its answer, which it gets.
fn a_read_waits_for_a_restart(h: &mut Harness, mut server: Server, dir: &Path) {
    server.kill();
    let read = h.start(IoKind::Read, 0, 4096, None, 0);
    h.turn(false);
    let _server = Server::nbdkit(dir, &["memory", "8M"]);
    assert_eq!(h.wait(read).result, Ok(()));
}

#[test]
fn breaks_while_nothing_was_asked_do_not_shorten_the_patience_with_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let patience = Duration::from_secs(2);
    let mut h = open_with(&server.uri(""), NbdOptions { give_up_after: patience, ..NbdOptions::default() });
    assert!(h.read(0, 4096) == [0; 4096]);
    for _ in 0..3 {
        server.kill();
        turn_until(&mut h, "connecting again", true);
        server = Server::nbdkit(dir.path(), &["memory", "8M"]);
        turn_until(&mut h, "connecting again", false);
        std::thread::sleep(patience * 2 / 5);
    }
    // More than the patience after the first break, and the first that something waits for.
    a_read_waits_for_a_restart(&mut h, server, dir.path());
}

#[test]
fn a_connection_that_was_idle_for_long_ends_what_went_wrong_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let patience = Duration::from_secs(2);
    let mut h = open_with(&server.uri(""), NbdOptions { give_up_after: patience, ..NbdOptions::default() });
    server.kill();
    assert_eq!(h.run(IoKind::Read, 0, 4096).result, Err(IoError::Io));
    server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    turn_until(&mut h, "server gone", false);
    std::thread::sleep(patience + patience / 4);
    a_read_waits_for_a_restart(&mut h, server, dir.path());
}

#[test]
fn an_export_of_another_size_is_not_taken_for_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let mut h = open(&server.uri(""));
    h.read(0, 4096);
    server.kill();
    let op = h.start(IoKind::Read, 0, 4096, None, 0);
    h.turn(false);
    server = Server::nbdkit(dir.path(), &["memory", "9M"]);
    assert_eq!(h.wait(op).result, Err(IoError::Io));
    assert!(h.backend.describe().contains("out of service"));
    let lost = h.backend.take_lost().expect("what is cached is another disk's");
    assert!(lost.ranges == std::slice::from_ref(&(0..8 << 20)), "{lost:?}");
    assert_eq!(h.try_write(0, &[1; 4096]), Err(IoError::Io));
    drop(server);
}

/// Plays a server: a good handshake for 8 MiB, then `says` to whatever is asked. As often as there are connections.
fn liar(dir: &Path, says: &'static [u8]) -> String {
    let socket = dir.join("liar.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut s) = stream else { return };
            let mut hello = Vec::new();
            hello.extend_from_slice(b"NBDMAGICIHAVEOPT\0\x03");
            let reply = |option: u32, kind: u32, data: &[u8]| {
                let mut b = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                b.extend_from_slice(&option.to_be_bytes());
                b.extend_from_slice(&kind.to_be_bytes());
                b.extend_from_slice(&(data.len() as u32).to_be_bytes());
                b.extend_from_slice(data);
                b
            };
            hello.extend(reply(8, 0x8000_0001, &[]));
            let info = [&[0, 0][..], &SIZE.to_be_bytes(), &[0, 0x0d]].concat();
            hello.extend(reply(7, 3, &info));
            hello.extend(reply(7, 1, &[]));
            let mut asked = [0; 4096];
            if s.write_all(&hello).is_err() {
                continue;
            }
            // Client flags and two options, then a request.
            let mut heard = 0;
            while heard < 4 + 16 + 16 + 4 + 2 + 2 + 28 {
                match s.read(&mut asked) {
                    Ok(n) if n > 0 => heard += n,
                    _ => break,
                }
            }
            let _ = s.write_all(says);
            let _ = s.read(&mut asked);
        }
    });
    format!("nbd+unix:///?socket={}", socket.display())
}

#[test]
fn a_server_that_breaks_the_protocol_is_given_up_without_harm() {
    for says in [&b"what is this?..............."[..], b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\xff\xff\xff\xff", b""] {
        let dir = tempfile::tempdir().unwrap();
        let options = NbdOptions { give_up_after: Duration::from_millis(300), ..NbdOptions::default() };
        let mut h = open_with(&liar(dir.path(), says), options);
        let op = h.start(IoKind::Read, 0, 4096, None, 0);
        if says.is_empty() {
            // It says nothing at all: the disk waits, and can be closed all the same.
            h.turn(false);
            continue;
        }
        assert_eq!(h.wait(op).result, Err(IoError::Io));
    }
}
