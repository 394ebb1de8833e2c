//! The command line, through the built program: exit codes, messages, help, pages, and a daemon from start to stop.
//!
//! Owns a run of the real binary on real images.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.raw", "b.raw"] {
            fs::File::create(dir.path().join(name)).unwrap().set_len(1 << 20).unwrap();
        }
        Place { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, in the directory, away from any daemon of this machine.
    fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_undercroft"));
        c.args(args).current_dir(self.dir.path()).env("XDG_RUNTIME_DIR", self.dir.path());
        c.env("UNDERCROFT_CONTROL", self.at("control.sock")).env_remove("UNDERCROFT_LOG").env_remove("JOURNAL_STREAM");
        c.env_remove("NOTIFY_SOCKET");
        c
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::from(self.command(args).stdin(Stdio::null()).output().unwrap(), args)
    }
}

struct Said {
    code: i32,
    out: String,
    err: String,
    args: String,
}

impl Said {
    fn from(o: Output, args: &[&str]) -> Self {
        Said {
            code: o.status.code().unwrap_or(-1),
            out: String::from_utf8(o.stdout).unwrap(),
            err: String::from_utf8(o.stderr).unwrap(),
            args: args.join(" "),
        }
    }

    #[track_caller]
    fn is(self, code: i32, out: &[&str], err: &[&str]) -> Self {
        assert_eq!(self.code, code, "undercroft {}\n{}{}", self.args, self.out, self.err);
        for needle in out {
            assert!(self.out.contains(needle), "undercroft {}: \"{needle}\" is missing in\n{}", self.args, self.out);
        }
        for needle in err {
            assert!(self.err.contains(needle), "undercroft {}: \"{needle}\" is missing in\n{}", self.args, self.err);
        }
        self
    }
}

/// A daemon, killed at the end if it still runs.
struct Running(Child);

impl Running {
    /// Starts it and waits for its announcement or, from a file, for its socket.
    fn start(place: &Place, args: &[&str]) -> (Self, String) {
        let mut child = place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if !args.contains(&"--image") {
            let begun = Instant::now();
            while place.run(&["status"]).code != 0 {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not answer");
                assert!(child.try_wait().unwrap().is_none(), "it has ended");
                std::thread::sleep(Duration::from_millis(20));
            }
            return (Running(child), String::new());
        }
        let mut text = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !text.contains("Ctrl-C stops") {
            if lines.read_line(&mut text).unwrap() == 0 {
                let mut err = String::new();
                child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
                panic!("it did not start:\n{text}{err}");
            }
        }
        (Running(child), text)
    }

    fn wait(mut self) -> (i32, String) {
        let mut err = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.0.wait().unwrap().code().unwrap_or(-1), err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const COMMANDS: [&str; 24] = [
    "attach",
    "detach",
    "serve",
    "check",
    "status",
    "attach-args",
    "set",
    "shares",
    "why",
    "ranges",
    "record",
    "curve",
    "partition",
    "sim",
    "compare",
    "trace",
    "ksm",
    "duplicates",
    "drop-cache",
    "reload",
    "stop",
    "completions",
    "man",
    "version",
];

#[test]
fn the_heap_is_in_large_pages_wherever_the_program_was_built() {
    let place = Place::new();
    let said = place.command(&["--version"]).env("_RJEM_MALLOC_CONF", "stats_print:true").output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(r#"opt.thp: "always""#), "build with the repository's .cargo/config.toml: {said}");
}

#[test]
fn usage_errors_are_2_and_help_is_0() {
    let p = Place::new();
    p.run(&[]).is(2, &[], &["Usage: undercroft <COMMAND>"]);
    p.run(&["serv"]).is(2, &[], &["similar subcommands exist: 'set', 'serve'"]);
    p.run(&["serve"]).is(2, &[], &["--image"]);
    p.run(&["serve", "x.toml", "--image", "a.raw"]).is(2, &[], &["cannot be used with"]);
    p.run(&["serve", "x.toml", "--memory", "1GiB"]).is(2, &[], &["cannot be used with", "--memory"]);
    p.run(&["serve", "-i", "a.raw", "--memory", "512M"]).is(
        2,
        &[],
        &["'512M' for '--memory", "ambiguous; write 512MiB"],
    );
    p.run(&["serve", "-i", "a.raw", "--policy", "lur"]).is(2, &[], &["possible values: fifo, lru"]);
    p.run(&["set", "a"]).is(2, &[], &["--size"]);
    p.run(&["set", "--size", "1GiB"]).is(2, &[], &["NAME"]);
    p.run(&["set", "a", "--memory", "1GiB"]).is(2, &[], &["cannot be used with"]);
    p.run(&["--version"]).is(0, &["undercroft 0."], &[]);
    p.run(&["version", "--json"]).is(0, &["\"api\": \"1\""], &[]);
}

#[test]
fn every_command_teaches_by_examples() {
    let p = Place::new();
    p.run(&["--help"]).is(0, &["Examples:", "Exit codes:", "UNDERCROFT_CONTROL"], &[]);
    for command in COMMANDS {
        let said = p.run(&[command, "--help"]).is(0, &["Usage: undercroft"], &[]);
        if command != "version" {
            assert!(
                said.out.contains("Examples:\n") && said.out.contains(&format!("undercroft {command}")),
                "{command}"
            );
        }
    }
}

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
    p.run(&["check", "none.toml"]).is(1, &["none.toml: error: the configuration cannot be read", "1 error and"], &[]);
}

#[test]
fn without_a_daemon_the_remedy_is_named() {
    let p = Place::new();
    for args in [
        &["status"][..],
        &["reload"],
        &["stop"],
        &["set", "a", "--poll", "0"],
        &["set", "--memory", "1GiB"],
        &["ksm", "off"],
        &["drop-cache", "a"],
        &["attach-args", "a"],
    ] {
        p.run(args).is(
            1,
            &[],
            &["undercroft: no daemon answers at", "control.sock", "start one with `undercroft serve`"],
        );
    }
    drop(std::os::unix::net::UnixListener::bind(p.at("control.sock")).unwrap());
    p.run(&["status"]).is(1, &[], &["left over from a daemon that is gone"]);
}

#[test]
fn ksm_is_told_without_a_daemon_and_switched_with_one_only() {
    let p = Place::new();
    let here = Path::new("/sys/kernel/mm/ksm").exists();
    let said = p.run(&["ksm", "status"]).is(0, &[if here { "full scans" } else { "This kernel has no KSM" }], &[]);
    assert!(said.out.contains("No QEMU process is running") || said.out.contains("MERGEABLE"), "{}", said.out);
    let json: serde_json::Value =
        serde_json::from_str(&p.run(&["ksm", "status", "--json"]).is(0, &[], &[]).out).unwrap();
    assert_eq!((json["available"].as_bool(), json["settings"]["run"].is_i64()), (Some(here), here));
    p.run(&["ksm", "on"]).is(1, &[], &["warning: merging lets a guest find out", "no daemon answers at"]);
    p.run(&["ksm", "--help"]).is(0, &["WARNING, side channels", "whatever is set here"], &[]);
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
fn attach_args_come_from_a_file_without_a_daemon() {
    let p = Place::new();
    let text = "[nbd]\ntcp = \"127.0.0.1:10809\"\n[[vm]]\nname = \"web\"\n[[vm.disk]]\nname = \"root\"\nimage = \"a.raw\"\n\
                nbd = true\nqueues = 2\n[[vm.disk]]\nname = \"data\"\nimage = \"gone.raw\"\n";
    fs::write(p.at("c.toml"), text).unwrap();
    let all = [
        "memory-backend-memfd",
        "share=on",
        "vhost-user-blk-pci",
        "num-queues=2",
        "<disk type='vhostuser'",
        "nbd://127.0.0.1:10809/web:root",
    ];
    p.run(&["attach-args", "web:root", "--config", "c.toml"]).is(0, &all, &["gone.raw does not exist"]);
    let one = p.run(&["attach-args", "root", "--config", "c.toml", "--as", "qemu", "--memory", "2GiB"]);
    assert_eq!(
        one.is(
            0,
            &["size=2048M,share=on,prealloc=on -machine memory-backend=uc-mem -chardev socket,id=uc-web-root,path="],
            &[]
        )
        .out
        .lines()
        .count(),
        1
    );
    p.run(&["attach-args", "data", "--config", "c.toml", "--as", "qemu-nbd"]).is(
        1,
        &[],
        &["\"web:data\" is not served over NBD", "nbd = true"],
    );
    p.run(&["attach-args", "rot", "--config", "c.toml"]).is(1, &[], &["there is no disk or VM \"rot\""]);
    let json = p.run(&["attach-args", "root", "--config", "c.toml", "--as", "json"]).is(0, &[], &[]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["nbd_uris"][0], "nbd://127.0.0.1:10809/web:root");
    assert!(json["qemu"].as_array().unwrap().len() == 8);
    // All disks of a VM: one memory, and each disk by its own name in the guest.
    let vm = p.run(&["attach-args", "web", "--config", "c.toml"]).is(0, &[], &[]).out;
    assert_eq!(vm.matches("memory-backend-memfd").count(), 1, "{vm}");
    assert_eq!(["vda", "vdb"].map(|t| vm.matches(&format!("<target dev='{t}'")).count() > 0), [true, true], "{vm}");
    assert!(vm.contains("# web:data is not served over NBD"), "{vm}");
    p.run(&["attach-args", "wbe", "--config", "c.toml"]).is(1, &[], &["did you mean \"web\"?"]);
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
}

#[test]
fn qemu_takes_the_arguments() {
    let p = Place::new();
    // QEMU connects to the socket before anything else, so this one has nobody behind it: the message tells that the
    // arguments before it were understood.
    fs::write(p.at("c.toml"), "[[disk]]\nname = \"d\"\nimage = \"a.raw\"\nsocket = \"it's, here.sock\"\n").unwrap();
    let line =
        p.run(&["attach-args", "d", "--config", "c.toml", "--as", "qemu", "--memory", "64MiB"]).is(0, &[], &[]).out;
    let script = format!(
        "exec timeout 20 qemu-system-x86_64 -M q35 -m 64M -display none -nodefaults -S {}",
        line.trim().replace(",reconnect=1", "")
    );
    let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not found") || output.status.code() == Some(127) {
        return undercroft_skips::skip("not installed: qemu-system-x86_64 (make setup installs it)");
    }
    assert!(said.contains("it's, here.sock") && said.contains("No such file"), "{said}");
}

#[test]
fn an_image_is_served_from_start_to_stop() {
    let p = Place::new();
    let (daemon, said) =
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
    p.run(&["set", "--memory", "32MiB"]).is(0, &["the store may hold 32MiB of its ceiling of 64MiB"], &[]);
    p.run(&["status"]).is(0, &["memory set by hand: 32MiB of 64MiB"], &[]);
    p.run(&["set", "--memory", "65MiB"]).is(1, &[], &["more than the ceiling of 64MiB", "store.memory"]);
    p.run(&["set", "--memory", "1MiB"]).is(1, &[], &["less than the floor of 16MiB", "store.floor"]);
    p.run(&["set", "--memory", "64MiB"]).is(0, &["the store may hold 64MiB of"], &[]);
    p.run(&["drop-cache", "a"]).is(0, &["disk \"a\": 0B dropped"], &[]);
    p.run(&["reload"]).is(1, &[], &["no configuration file"]);
    // A second daemon finds the first.
    p.run(&["serve", "-i", "b.raw", "--socket", "other.sock"]).is(1, &[], &["control.sock", "in use"]);
    p.run(&["stop"]).is(0, &["the daemon has stopped"], &[]);
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
    p.run(&["reload"]).is(0, &["attached: b", "changed: a"], &[]);
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

#[test]
fn a_full_disk_is_a_failure() {
    let p = Place::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let said = Said::from(p.command(&["openapi"]).stdout(full).output().unwrap(), &["openapi"]);
    said.is(1, &[], &["the output cannot be written"]);
}

#[test]
fn completions_are_good_scripts() {
    let p = Place::new();
    for (shell, check) in [("bash", "bash -n"), ("zsh", "zsh -n"), ("fish", "fish -n")] {
        let said = p.run(&["completions", shell]).is(0, &["attach-args", "drop-cache"], &[]);
        fs::write(p.at(shell), &said.out).unwrap();
        let (program, option) = check.split_once(' ').unwrap();
        match Command::new(program).arg(option).arg(p.at(shell)).output() {
            Ok(o) => {
                assert!(o.status.success() && o.stderr.is_empty(), "{shell}: {}", String::from_utf8_lossy(&o.stderr))
            }
            Err(_) => undercroft_skips::skip(format_args!("not installed: {program} (make setup installs it)")),
        }
    }
    p.run(&["completions", "cmd.exe"]).is(2, &[], &["possible values"]);
}

#[test]
fn man_pages_have_no_warnings() {
    let p = Place::new();
    p.run(&["man"]).is(0, &[".TH undercroft 1", "Examples:"], &[]);
    p.run(&["man", "--dir", "man"]).is(0, &[], &[]);
    let mut pages: Vec<String> = COMMANDS.iter().map(|c| format!("man/man1/undercroft-{c}.1")).collect();
    for (of, below) in [
        ("trace", &["info", "convert", "head", "split", "merge", "sample", "synth"][..]),
        ("ksm", &["status", "on", "off"]),
    ] {
        pages.extend(below.iter().map(|c| format!("man/man1/undercroft-{of}-{c}.1")));
    }
    pages.push("man/man1/undercroft.1".into());
    pages.push("man/man5/undercroft.toml.5".into());
    for page in &pages {
        assert!(p.at(page).exists(), "{page}");
        assert!(!fs::read_to_string(p.at(page)).unwrap().contains(".SH EXTRA"), "{page} has an empty section");
        let groff = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(p.at(page)).output();
        match groff {
            Ok(o) => {
                assert!(o.status.success() && o.stderr.is_empty(), "{page}: {}", String::from_utf8_lossy(&o.stderr))
            }
            Err(_) => undercroft_skips::skip("not installed: groff (make setup installs it)"),
        }
    }
    let count = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!(count(&p.at("man/man1")) + count(&p.at("man/man5")), pages.len(), "hidden commands have no page");
    fs::write(p.at("file"), "").unwrap();
    p.run(&["man", "--dir", "file/x"]).is(1, &[], &["cannot be written", "--dir"]);
}

/// A trace of `u32` block numbers.
fn trace(path: &Path, blocks: impl Iterator<Item = u32>) {
    fs::write(path, blocks.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
}

/// A loop over 100 blocks and one over 400, a thousand requests each.
fn two_loops(p: &Place) {
    trace(&p.at("web.u32le"), (0..1000).map(|i| i % 100));
    trace(&p.at("db.u32le"), (0..1000).map(|i| i % 400));
}

#[test]
fn curves_are_those_of_the_traces() {
    let p = Place::new();
    two_loops(&p);
    let said = p.run(&["curve", "web.u32le", "db.u32le", "--sizes", "50,400KiB,100%"]);
    // a loop misses everything until all of it fits
    let said = said.is(0, &["web.u32le: 1000 requests, 0 of them writes; 100 blocks (400KiB)", "LRU EXACT"], &[]);
    assert!(said.out.contains("50  200KiB      50.0%     1.0000") && said.out.contains("0.1000"), "{}", said.out);
    assert!(said.out.contains("400  1.6MiB     100.0%     0.4000"), "{}", said.out);

    let args = [
        "curve",
        "web.u32le",
        "--policy",
        "lru,fifo,arc",
        "--sizes",
        "10%,100%",
        "--json",
        "--zipf",
        "--window",
        "250",
    ];
    let json: serde_json::Value = serde_json::from_str(&p.run(&args).is(0, &[], &[]).out).unwrap();
    let trace = &json["traces"][0];
    assert_eq!((json["complete"].as_bool(), trace["footprint_blocks"].as_u64()), (Some(true), Some(100)));
    for (i, policy) in ["lru", "fifo", "arc"].into_iter().enumerate() {
        let curve = &trace["curves"][i];
        assert_eq!((curve["policy"].as_str(), curve["points"][1]["misses"].as_f64()), (Some(policy), Some(100.0)));
        assert_eq!(
            (curve["points"][0]["blocks"].as_u64(), curve["points"][0]["bytes"].as_u64()),
            (Some(10), Some(40960))
        );
    }
    assert_eq!(trace["windows"].as_array().unwrap().len(), 4);
    assert_eq!(
        (trace["windows"][0]["blocks"].as_u64(), trace["windows"][1]["new_blocks"].as_u64()),
        (Some(100), Some(0))
    );
    let csv = p.run(&["curve", "web.u32le", "--sizes", "100", "--csv"]).is(0, &[], &[]).out;
    assert_eq!(
        csv,
        "trace,tenant,policy,method,blocks,bytes,requests,misses,miss_ratio,miss_ratio_error\n\
         web.u32le,,lru,exact,100,409600,1000,100,0.1,0\n"
    );
}

#[test]
fn sampled_curves_are_near_and_drawn() {
    let p = Place::new();
    trace(&p.at("loop.u32le"), (0..60_000).map(|i| i % 6000));
    for method in ["shards", "paired", "aet", "mini"] {
        let plot = format!("{method}.svg");
        let args = [
            "curve",
            "loop.u32le",
            "--method",
            method,
            "--rate",
            "20%",
            "--sizes",
            "1000,12000",
            "--json",
            "--plot",
            &plot,
        ];
        let json: serde_json::Value = serde_json::from_str(&p.run(&args).is(0, &[], &[]).out).unwrap();
        let ratio = |i: usize| json["traces"][0]["curves"][0]["points"][i]["miss_ratio"].as_f64().unwrap();
        assert!(ratio(0) > 0.95 && (ratio(1) - 0.1).abs() < 0.05, "{method}: {} and {}", ratio(0), ratio(1));
        assert!(fs::read_to_string(p.at(&plot)).unwrap().contains("<svg"), "{method}");
    }
    p.run(&["curve", "loop.u32le", "--plot", "loop.png"]).is(0, &[], &[]);
    assert!(fs::read(p.at("loop.png")).unwrap().starts_with(b"\x89PNG"));
    p.run(&["curve", "loop.u32le", "--method", "shards", "--samples", "500"]).is(0, &["LRU SHARDS"], &[]);
}

#[test]
fn memory_goes_where_it_saves_most() {
    let p = Place::new();
    two_loops(&p);
    // 450 blocks hold one of the loops; the small one saves 900 misses with a quarter of the space
    let args = ["partition", "web.u32le", "db=db.u32le", "--memory", "1800KiB", "--json"];
    let json: serde_json::Value = serde_json::from_str(&p.run(&args).is(0, &[], &[]).out).unwrap();
    assert_eq!((json["tenants"][0]["name"].as_str(), json["tenants"][1]["name"].as_str()), (Some("web"), Some("db")));
    assert_eq!(
        (json["tenants"][0]["share_blocks"].as_u64(), json["tenants"][1]["share_blocks"].as_u64()),
        (Some(100), Some(0))
    );
    assert_eq!((json["misses"]["divided"].as_f64(), json["misses"]["equal"].as_f64()), (Some(1100.0), Some(1100.0)));
    for method in ["dp", "greedy", "lookahead"] {
        let said = p.run(&["partition", "web.u32le", "db.u32le", "--memory", "2000KiB", "--method", method]);
        // both fit; equal parts hold the small one only
        said.is(
            0,
            &["web", "400KiB", "db", "1.6MiB", &format!("by {method}: 500 misses; in equal parts 1100 (+120.0%)")],
            &[],
        );
    }
    let floored = ["partition", "web.u32le", "db.u32le", "--memory", "1800KiB", "--floor", "db=1600KiB", "--csv"];
    p.run(&floored).is(0, &["web,web.u32le,1000,100,0,0,1000,", "db,db.u32le,1000,400,400,1638400,400,"], &[]);
    p.run(&["partition", "web.u32le", "db.u32le", "--memory", "1MiB", "--plot", "p.svg"]).is(0, &["left"], &[]);
    assert!(p.at("p.svg").exists());
}

#[test]
fn tenants_of_one_trace_have_curves_and_parts_of_their_own() {
    let p = Place::new();
    // loops of 10 and 40 blocks, ten rounds each, of two volumes of one file; their blocks have the same numbers
    let line = |i: u64| {
        let (volume, block) = if i.is_multiple_of(5) { ("a", i / 5 % 10) } else { ("b", (i / 5 * 4 + i % 5 - 1) % 40) };
        format!("{volume},R,{},4096,{i}\n", block * 4096)
    };
    fs::write(p.at("volumes.csv"), (0..500).map(line).collect::<String>()).unwrap();
    let columns = ["--columns", "tenant=1,op=2,offset=3,size=4,time=5", "--per-tenant"];
    let run = |args: &[&str]| p.run(&[args, &columns[..]].concat());
    for policy in ["lru", "fifo"] {
        let out =
            run(&["curve", "volumes.csv", "--sizes", "50%,100%", "--policy", policy, "--csv"]).is(0, &[], &[]).out;
        let rows: Vec<&str> = out.lines().skip(1).collect();
        let expected = [("a", 5, 100, 100), ("a", 10, 100, 10), ("b", 20, 400, 400), ("b", 40, 400, 40)];
        for (row, (tenant, blocks, requests, misses)) in rows.iter().zip(expected) {
            let begins = format!("volumes.csv,{tenant},{policy},exact,{blocks},{},{requests},{misses},", blocks * 4096);
            assert!(row.starts_with(&begins), "{row}: {begins}");
        }
        assert_eq!(rows.len(), 4);
    }
    run(&["curve", "volumes.csv", "--plot", "tenants.svg"]).is(0, &["volumes.csv b: 400 requests"], &[]);
    assert!(fs::read_to_string(p.at("tenants.svg")).unwrap().contains("volumes.csv a lru exact"));
    // 40 blocks: b's loop saves 360 misses, a's 90, and both do not fit
    let parted = ["partition", "volumes.csv", "--memory", "160KiB", "--csv"];
    run(&parted).is(0, &["a,volumes.csv,100,10,0,0,100,", "b,volumes.csv,400,40,40,163840,40,"], &[]);
    run(&[&parted[..], &["--floor", "a=40KiB"]].concat()).is(0, &["a,volumes.csv,100,10,10,40960,10,"], &[]);
    run(&[&parted[..], &["--floor", "c=40KiB"]].concat()).is(1, &[], &["no tenant is called c; there are a, b"]);
    for (command, more) in [("curve", &[][..]), ("partition", &["--memory", "160KiB"])] {
        let file = format!("{command}.parquet");
        run(&[&[command, "volumes.csv", "--parquet", &file], more].concat()).is(0, &[], &[]);
        let written = fs::read(p.at(&file)).unwrap();
        assert!(written.starts_with(b"PAR1") && written.ends_with(b"PAR1"), "{command}");
        run(&[&[command, "volumes.csv", "--parquet", "none/x.parquet"], more].concat()).is(1, &[], &["--parquet"]);
    }
    // MRU keeps most of a loop, however little it has
    let mru = run(&["partition", "volumes.csv", "--memory", "160KiB", "--policy", "mru", "--json"]).is(0, &[], &[]).out;
    let json: serde_json::Value = serde_json::from_str(&mru).unwrap();
    let missed = json["misses"]["divided"].as_f64().unwrap();
    assert!(
        (100.0..160.0).contains(&missed),
        "{missed}: 50 at least, and 9 for each of the ten blocks that do not fit"
    );
}

#[test]
fn what_curves_cannot_be_made_of_is_named() {
    let p = Place::new();
    two_loops(&p);
    fs::write(p.at("cut.u32le"), [1, 2, 3]).unwrap();
    fs::write(p.at("empty.u32le"), b"").unwrap();
    // the others are shown
    p.run(&["curve", "cut.u32le", "web.u32le", "none.lis"]).is(
        1,
        &["web.u32le: 1000 requests"],
        &["cut.u32le", "byte 0", "none.lis"],
    );
    p.run(&["curve", "empty.u32le"]).is(1, &[], &["empty.u32le has no requests"]);
    p.run(&["curve", "web.u32le", "--method", "aet", "--policy", "arc"]).is(1, &[], &["LRU only", "--method mini"]);
    p.run(&["curve", "web.u32le", "--plot", "x.pdf"]).is(2, &[], &[".svg"]);
    p.run(&["curve", "web.u32le", "--sizes", "512M"]).is(2, &[], &["512MiB"]);
    p.run(&["curve", "web.u32le", "--format", "csv?"]).is(2, &[], &["u32le"]);
    p.run(&["curve", "web.u32le", "--samples", "100"]).is(1, &[], &["--method shards"]);
    let part = |more: &[&str]| p.run(&[&["partition", "web.u32le", "db.u32le", "--memory", "1MiB"], more].concat());
    part(&["--floor", "www=1MiB"]).is(1, &[], &["no tenant is called www; there are web, db"]);
    part(&["--floor", "web=2MiB"]).is(1, &[], &["the floors sum to 512 blocks, and there are 256"]);
    part(&["--by", "aet", "--policy", "arc"]).is(1, &[], &["LRU only", "--by mini"]);
    part(&["--block-size", "0"]).is(1, &[], &["--block-size 0"]);
    part(&["cut.u32le"]).is(1, &[], &["cut.u32le"]);
    part(&["web.u32le"]).is(1, &[], &["two tenants are called web"]);
}

#[test]
fn ctrl_c_shows_the_curve_of_what_was_read() {
    let p = Place::new();
    let fifo = p.at("pipe.u32le");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child = p
        .command(&["curve", "pipe.u32le", "--format", "u32le", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // two batches, then the writer waits: the trace does not end by itself
    let mut pipe = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let blocks: Vec<u8> = (0..1u32 << 17).flat_map(|i| (i % 1000).to_le_bytes()).collect();
    std::io::Write::write_all(&mut pipe, &blocks).unwrap();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    // it notices between batches
    let _ = std::io::Write::write_all(&mut pipe, &blocks);
    drop(pipe);
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{out}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((json["complete"].as_bool(), json["traces"][0]["footprint_blocks"].as_u64()), (Some(false), Some(1000)));
}
