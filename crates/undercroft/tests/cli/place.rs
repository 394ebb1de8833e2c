//! A directory with two images, the built program in it, and a daemon that ends with its test.
//!
//! Owns how the program is run. Invariant: no daemon of this machine is reached.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.raw", "b.raw"] {
            fs::File::create(dir.path().join(name)).unwrap().set_len(1 << 20).unwrap();
        }
        Place { dir }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, in the directory, away from any daemon of this machine.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_undercroft"));
        c.args(args).current_dir(self.dir.path()).env("XDG_RUNTIME_DIR", self.dir.path());
        c.env("UNDERCROFT_CONTROL", self.at("control.sock")).env_remove("UNDERCROFT_LOG").env_remove("JOURNAL_STREAM");
        c.env_remove("NOTIFY_SOCKET");
        c
    }

    pub fn run(&self, args: &[&str]) -> Said {
        Said::from(self.command(args).stdin(Stdio::null()).output().unwrap(), args)
    }
}

pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub args: String,
}

impl Said {
    pub fn from(o: Output, args: &[&str]) -> Self {
        Said {
            code: o.status.code().unwrap_or(-1),
            out: String::from_utf8(o.stdout).unwrap(),
            err: String::from_utf8(o.stderr).unwrap(),
            args: args.join(" "),
        }
    }

    #[track_caller]
    pub fn is(self, code: i32, out: &[&str], err: &[&str]) -> Self {
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
pub struct Running(pub Child);

impl Running {
    /// Starts it and waits for its announcement or, from a file, for its socket.
    pub fn start(place: &Place, args: &[&str]) -> (Self, String) {
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

    pub fn wait(mut self) -> (i32, String) {
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

pub const COMMANDS: [&str; 34] = [
    "lab",
    "ssd",
    "upgrade",
    "mount",
    "umount",
    "volume-plugin",
    "attach",
    "detach",
    "serve",
    "check",
    "status",
    "attach-args",
    "set",
    "shares",
    "why",
    "pin",
    "misses",
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
    "hot-set",
    "warm",
    "reload",
    "stop",
    "completions",
    "man",
    "version",
];
