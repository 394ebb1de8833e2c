//! A daemon from start to stop: what it refuses, what it says, and how it is asked, changed and ended.
//!
//! Owns `serve`, `check`, and the commands that need a running daemon.

use super::place::{Place, Running, Said};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn check_names_every_problem_with_its_line() {
    let p = Place::new();
    fs::write(p.at("bad.toml"), "[store]\nmemroy = \"1GiB\"\n[[disk]]\nname = \"d\"\nimage = \"no.raw\"\n").unwrap();
    let said = p.run(&["check", "bad.toml"]);
    let said = said.is(1, &["bad.toml:2: error: store: unknown key \"memroy\"", "did you mean \"memory\"?"], &[]);
    assert!(said.out.contains("bad.toml:5: error: disk \"d\"") && said.out.contains("2 errors and 0 warnings"));
    let json: serde_json::Value =
        serde_json::from_str(&p.run(&["check", "--json", "bad.toml"]).is(1, &[], &[]).out).unwrap();
    assert_eq!((json["ok"].as_bool(), json["problems"][1]["line"].as_u64()), (Some(false), Some(5)));
    fs::write(p.at("good.toml"), "[[disk]]\nname = \"d\"\nimage = \"a.raw\"\nsize = \"64MiB\"\n").unwrap();
    p.run(&["check", "good.toml"]).is(0, &["good.toml: good: 1 disk in "], &[]);
    let json: serde_json::Value =
        serde_json::from_str(&p.run(&["check", "--json", "good.toml"]).is(0, &[], &[]).out).unwrap();
    assert_eq!(json["disks"][0]["share_bytes"].as_u64(), Some(64 << 20));
    fs::write(p.at("gone.toml"), "[[disk]]\nname = \"d\"\nimage = \"no.raw\"\n").unwrap();
    p.run(&["check", "gone.toml"]).is(1, &["does not exist", "1 error and 0 warnings"], &[]);
    let waits = ["does not exist", "`qemu-img create -f qcow2 ", "gone.toml: good: ", ", 1 fault for which disks wait"];
    p.run(&["check", "--let-wait", "gone.toml"]).is(0, &waits, &[]);
    p.run(&["check", "--let-wait", "bad.toml"]).is(1, &[], &[]);
    p.run(&["check", "none.toml"]).is(1, &["none.toml: error: the configuration cannot be read", "1 error and"], &[]);
}

#[test]
fn what_cannot_be_served_is_said_before_anything_is_opened() {
    let p = Place::new();
    p.run(&["serve", "-i", "none.raw"]).is(1, &[], &["none.raw does not exist", "qemu-img create"]);
    p.run(&["serve", "-i", "a.raw", "-i", "a.raw"]).is(1, &[], &["both write it"]);
    p.run(&["serve", "-i", "a.raw", "-i", "b.raw", "--socket", "s"]).is(1, &[], &["--socket names one socket"]);
    p.run(&["serve", "-i", "a.raw", "--memory", "900TiB"]).is(1, &[], &["but this machine has"]);
    let long = format!("{}.sock", "x".repeat(120));
    p.run(&["serve", "-i", "a.raw", "--socket", &long]).is(1, &[], &["bytes long", "allows 107"]);
    fs::write(p.at("plain"), "x").unwrap();
    p.run(&["serve", "-i", "a.raw", "--socket", "plain"]).is(1, &[], &["is there already and is no socket"]);
    p.run(&["serve", "none.toml"]).is(
        1,
        &[],
        &["none.toml error: the configuration cannot be read".replace(" error", ": error").as_str()],
    );
    let mut c = p.command(&["serve", "-i", "a.raw"]);
    let said = Said::from(c.env("UNDERCROFT_LOG", "no=such=thing").output().unwrap(), &["serve"]);
    said.is(1, &[], &["UNDERCROFT_LOG=\"no=such=thing\" is no filter"]);
}

#[test]
fn a_configuration_that_comes_through_a_pipe_is_read_whole() {
    let p = Place::new();
    let through = |text: &str| {
        let args = ["check", "/dev/stdin"];
        let mut child = p.command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Said::from(child.wait_with_output().unwrap(), &args)
    };
    through("[store]\nmemory = \"1KiB\"\n").is(1, &["memory", "1 error"], &[]);
    let image = p.at("a.raw");
    through(&format!("[[disk]]\nname = \"d\"\nimage = {image:?}\n")).is(0, &["good: 1 disk in "], &[]);
}

#[test]
fn an_image_in_place_of_a_configuration_is_seen() {
    let p = Place::new();
    let image = p.at("a disk.qcow2");
    std::fs::write(&image, b"QFI\xfb\0\0\0\x03").unwrap();
    p.run(&["serve", "a disk.qcow2"]).is(
        1,
        &[],
        &["a disk.qcow2 is a disk image, not a configuration", "`undercroft serve --image 'a disk.qcow2'`"],
    );
    p.run(&["serve", "none.img"]).is(
        1,
        &[],
        &["none.img does not exist, and would be a disk image", "qemu-img create", "serve --image none.img"],
    );
    p.run(&["serve", "nbd://localhost/a"]).is(1, &[], &["is an image, not a configuration", "serve --image nbd://"]);
    p.run(&["check", "a disk.qcow2"]).is(1, &["is a disk image, not a configuration", "1 error and 0 warnings"], &[]);
    // One without a byte is no configuration either, where its name says what it is to be; one of another name is.
    for (name, remedy) in
        [("empty.qcow2", "qemu-img create -f qcow2 empty.qcow2 10G"), ("e.img", "truncate -s 10G e.img")]
    {
        fs::write(p.at(name), "").unwrap();
        let served = format!("serve --image {name}");
        let told = [name, "the image is empty", remedy, &served];
        p.run(&["check", name]).is(1, &told, &[]);
        p.run(&["serve", name]).is(1, &[], &told);
        p.run(&["serve", "--image", name]).is(1, &[], &["the image is empty", remedy.split(' ').next().unwrap()]);
    }
    fs::write(p.at("empty.toml"), "").unwrap();
    p.run(&["check", "empty.toml"]).is(0, &["no disk is configured", "undercroft attach"], &[]);
    // One that is given as raw by mistake is not to be made larger.
    p.run(&["serve", "-i", "a disk.qcow2", "--format", "raw"]).is(
        1,
        &[],
        &["a disk.qcow2 begins like a qcow2 image", "give `format = \"qcow2\"` (`--format qcow2`), or no format"],
    );
    // What looks like a configuration is one.
    p.run(&["serve", "none.toml"]).is(1, &[], &["none.toml: error: the configuration cannot be read"]);
}

#[test]
fn watching_shows_frame_after_frame_and_ctrl_c_ends_it_in_order() {
    let p = Place::new();
    let (daemon, _) = Running::start(&p, &["serve", "--image", "a.raw", "-f", "raw", "--memory", "64MiB"]);
    for (args, head) in [
        (&["shares", "--watch=100ms"][..], "NODE"),
        (&["status", "--watch=100ms"], "DISK"),
        (&["shares", "--watch=100ms", "--json"], "{"),
    ] {
        let mut child = p.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (mut heads, mut text) = (0, String::new());
        while heads < 3 {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "{args:?}: it has ended after {text}");
            heads += usize::from(line.starts_with(head));
            text += &line;
        }
        assert!(!text.contains('\x1b'), "there is no terminal: {text:?}");
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        lines.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
        assert!(text.ends_with('\n'), "{text:?}");
    }
    drop(daemon);
    // Who has just started a daemon waits for it, and not for ever.
    p.run(&["status", "--wait=100ms"]).is(1, &[], &["no daemon answers at"]);
}

#[test]
fn an_image_is_served_from_start_to_stop() {
    let p = Place::new();
    let (mut daemon, said) =
        Running::start(&p, &["serve", "--image", "a.raw", "-i", "b.raw", "-f", "raw", "--memory", "64MiB", "--nbd"]);
    for needle in ["a.raw.sock", "vhost-user-blk-pci", "share=on", "nbd+unix:///a?socket=", "status --control"] {
        assert!(said.contains(needle), "{needle}: {said}");
    }
    for socket in ["a.raw.sock", "b.raw.sock", "a.raw.nbd.sock", "control.sock"] {
        assert_eq!(fs::metadata(p.at(socket)).unwrap().permissions().mode() & 0o777, 0o600, "{socket}");
    }
    p.run(&["status"]).is(0, &["DISK", "of 64MiB used", "a ", "b "], &[]);
    p.run(&["status", "a"]).is(0, &["NBD export         a"], &[]);
    p.run(&["status", "c"]).is(1, &[], &["there is no disk \"c\""]);
    let json: serde_json::Value = serde_json::from_str(&p.run(&["status", "--json"]).is(0, &[], &[]).out).unwrap();
    assert_eq!(
        (json["disks"][0]["size_bytes"].as_u64(), json["store"]["memory_bytes"].as_u64()),
        (Some(1 << 20), Some(64 << 20))
    );
    p.run(&["attach-args", "a"]).is(0, &["a.raw.sock", "num-queues=4", "queue_size='256'"], &[]);
    p.run(&["set", "a", "--size", "40MiB", "--policy", "lru", "--poll", "0"]).is(
        0,
        &["size 40MiB, policy lru, poll off"],
        &[],
    );
    p.run(&["set", "a", "--size", "1GiB"]).is(1, &[], &["1GiB", "64MiB"]);
    let divided = ["the store is divided by static; version ", "before: by utility"];
    p.run(&["set", "host", "--controller", "static"]).is(0, &divided, &[]);
    p.run(&["set", "--memory", "32MiB"]).is(0, &["the store may hold 32MiB of its ceiling of 64MiB"], &[]);
    p.run(&["status"]).is(0, &["memory set by hand: 32MiB of 64MiB"], &[]);
    p.run(&["set", "--memory", "65MiB"]).is(1, &[], &["more than the ceiling of 64MiB", "store.memory"]);
    p.run(&["set", "--memory", "1MiB"]).is(1, &[], &["less than the floor of 16MiB", "store.floor"]);
    p.run(&["set", "--memory", "64MiB"]).is(0, &["the store may hold 64MiB of"], &[]);
    p.run(&["drop-cache", "a"]).is(0, &["disk \"a\": 0B dropped"], &[]);
    p.run(&["hot-set", "a"]).is(0, &["{\"size_bytes\":", "\"ranges\":[]}"], &[]);
    p.run(&["warm", "a"]).is(1, &[], &["standard input", "`undercroft hot-set DISK` writes one"]);
    p.run(&["reload"]).is(1, &[], &["no configuration file"]);
    // A second daemon finds the first.
    p.run(&["serve", "-i", "b.raw", "--socket", "other.sock"]).is(1, &[], &["control.sock", "in use"]);
    p.run(&["stop"]).is(0, &["the daemon has stopped"], &[]);
    // Its images are closed when it says so, and not only its control socket.
    assert!(daemon.0.try_wait().unwrap().is_some(), "it is still there");
    assert_eq!(daemon.wait().0, 0);
    for socket in ["a.raw.sock", "b.raw.sock", "a.raw.nbd.sock", "control.sock"] {
        assert!(!p.at(socket).exists(), "{socket} is left");
    }
}

#[test]
fn a_file_is_served_reloaded_and_stopped_by_signals() {
    let p = Place::new();
    let head =
        format!("[store]\nmemory = \"64MiB\"\n[daemon]\nruntime_dir = {:?}\nlog_format = \"json\"\n", p.dir.path());
    let a = "[[disk]]\nname = \"a\"\nimage = \"a.raw\"\nformat = \"raw\"\n";
    let b = "[[disk]]\nname = \"b\"\nimage = \"b.raw\"\nformat = \"raw\"\n";
    fs::write(p.at("c.toml"), format!("{head}{a}")).unwrap();
    let notify = std::os::unix::net::UnixDatagram::bind(p.at("notify")).unwrap();
    let mut c = p.command(&["serve", "c.toml"]);
    c.env("NOTIFY_SOCKET", p.at("notify")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let daemon = Running(c.spawn().unwrap());
    notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut datagram = [0; 200];
    let n = notify.recv(&mut datagram).expect("systemd is told");
    assert!(String::from_utf8_lossy(&datagram[..n]).starts_with("READY=1\nSTATUS=serving 1 disk"));

    fs::write(p.at("c.toml"), format!("{head}{a}policy = \"lru\"\n{b}")).unwrap();
    p.run(&["reload"]).is(0, &["attached: b", "changed: disk \"a\": policy: inherit -> lru"], &[]);
    p.run(&["reload"]).is(0, &["nothing has changed"], &[]);
    fs::write(p.at("c.toml"), format!("{head}{b}oops = 1\n")).unwrap();
    p.run(&["reload"]).is(1, &[], &["unknown key \"oops\"", "nothing has been changed"]);
    p.run(&["status"]).is(0, &["a ", "b ", "lru"], &[]);
    // The same by signal.
    fs::write(p.at("c.toml"), format!("{head}{b}")).unwrap();
    let kill = |signal: &str| {
        assert!(Command::new("kill").args([signal, &daemon.0.id().to_string()]).status().unwrap().success());
    };
    kill("-HUP");
    let begun = Instant::now();
    while p.run(&["status", "a"]).code == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "SIGHUP did not detach the disk");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill("-TERM");
    let (code, log) = daemon.wait();
    assert_eq!(code, 0, "{log}");
    for line in log.lines() {
        let json: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(json["level"].is_string() && json["timestamp"].is_string() && json["message"].is_string(), "{line}");
    }
    assert!(log.contains("configuration reloaded"));
}

#[test]
fn everything_that_it_listens_on_is_said_at_the_start() {
    let p = Place::new();
    let text = format!(
        "[store]\nmemory = \"64MiB\"\n[daemon]\nruntime_dir = {:?}\nmetrics = \"127.0.0.1:0\"\n\
         [nbd]\nunix = \"nbd.sock\"\n[[vm]]\nname = \"web\"\ncontrol_socket = \"web.sock\"\n\
         [[vm.disk]]\nname = \"root\"\nimage = \"a.raw\"\nformat = \"raw\"\nnbd = true\n",
        p.dir.path()
    );
    fs::write(p.at("c.toml"), text).unwrap();
    let (daemon, _) = Running::start(&p, &["serve", "c.toml"]);
    p.run(&["stop"]).is(0, &["the daemon has stopped"], &[]);
    let (code, log) = daemon.wait();
    assert_eq!(code, 0, "{log}");
    let at = |name: &str| p.at(name).display().to_string();
    for needle in [
        format!("guests connect at {}", at("web-root.sock")),
        format!("NBD clients connect at unix:{}", at("nbd.sock")),
        format!("its control socket is {}", at("web.sock")),
        format!("control socket {}", at("control.sock")),
    ] {
        assert!(log.contains(&needle), "\"{needle}\" is missing in\n{log}");
    }
    // The port that the kernel chose.
    let port = log.split("metrics are at http://127.0.0.1:").nth(1).and_then(|rest| rest.split_once("/metrics"));
    assert!(port.is_some_and(|(port, _)| port.parse::<u16>().is_ok_and(|n| n > 0)), "{log}");
}

#[test]
fn a_broken_pipe_is_no_failure() {
    let p = Place::new();
    let (daemon, _) = Running::start(&p, &["serve", "--image", "a.raw", "-f", "raw", "--memory", "64MiB"]);
    for args in [&["status", "--watch=100ms"][..], &["completions", "bash"], &["openapi"], &["man"]] {
        let mut child = p.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let said = Said::from(child.wait_with_output().unwrap(), args);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
    }
    drop(daemon);
}

/// An image that `serve` would let wait for good is an error of `check`: it was called good.
#[test]
fn check_names_images_that_would_not_be_opened() {
    let p = Place::new();
    fs::write(p.at("odd.raw"), [0; 1000]).unwrap();
    fs::write(p.at("empty.raw"), "").unwrap();
    fs::write(p.at("named.qcow2"), [0; 8192]).unwrap();
    fs::write(p.at("good.raw"), [0; 8192]).unwrap();
    for (image, more, told) in [
        ("odd.raw", "", "is not a multiple of"),
        ("empty.raw", "", "the image is empty"),
        ("named.qcow2", "", "the name says qcow2"),
        ("good.raw", "format = \"qcow2\"\n", "is no qcow2 image"),
    ] {
        let file = format!("[store]\nmemory = \"64MiB\"\n[[disk]]\nname = \"a\"\nimage = \"{image}\"\n{more}");
        fs::write(p.at("one.toml"), file).unwrap();
        p.run(&["check", "one.toml"]).is(1, &["error: disk \"a\"", told, "1 error and 0 warnings"], &[]);
        p.run(&["check", "--let-wait", "one.toml"]).is(0, &[told], &[]);
    }
    fs::write(p.at("one.toml"), "[store]\nmemory=\"64MiB\"\n[[disk]]\nname=\"a\"\nimage=\"good.raw\"\n").unwrap();
    p.run(&["check", "one.toml"]).is(0, &["one.toml: good: 1 disk"], &[]);
}
