//! /sys/kernel/mm/ksm: its settings and its numbers, under a directory that tests replace.
//!
//! Owns names, ranges and reading. Writes only what `may_write` lets through, and only when asked. Invariant: a file
//! that this kernel does not have is absent in the result, never an error.

use super::parse;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use undercroft_api::ksm::{Numbers, Settings};

/// Longest value of a setting, in bytes.
const VALUE_BYTES_MAX: usize = 64;

/// Settings that may be written, and put back: the advisor before the rate that it would set, the switch last.
pub(super) const SETTINGS: [&str; 10] = [
    "use_zero_pages",
    "smart_scan",
    "advisor_mode",
    "advisor_target_scan_time",
    "advisor_max_cpu",
    "advisor_min_pages_to_scan",
    "advisor_max_pages_to_scan",
    "sleep_millisecs",
    "pages_to_scan",
    "run",
];

/// Whether `value` may be written to the setting `name`: also for values out of a file that lay about since a crash.
pub(super) fn may_write(name: &str, value: &str) -> bool {
    let short = !value.is_empty() && value.len() <= VALUE_BYTES_MAX;
    let number = || value.bytes().all(|b| b.is_ascii_digit());
    short
        && SETTINGS.contains(&name)
        && match name {
            "run" => matches!(value, "0" | "1" | "2"),
            "advisor_mode" => matches!(value, "none" | "scan-time"),
            _ => number(),
        }
}

/// The directory.
#[derive(Clone, Debug)]
pub struct Ksm {
    dir: PathBuf,
}

impl Ksm {
    /// The kernel's own.
    pub fn here() -> Self {
        Self::at(super::SYSFS)
    }

    /// Another directory with such files, for tests.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Ksm { dir: dir.into() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether this kernel has KSM.
    pub fn exists(&self) -> bool {
        self.dir.join("run").exists()
    }

    /// The value of a setting as it has to be written to get it back; `None` if this kernel does not have it.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn value(&self, name: &str) -> io::Result<Option<String>> {
        let mut text = String::new();
        match File::open(self.dir.join(name)) {
            Ok(f) => f.take(4096).read_to_string(&mut text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        Ok(Some(match parse::choice(&text) {
            Some((chosen, _)) => chosen,
            None => text.trim().to_string(),
        }))
    }

    /// Writes a setting.
    ///
    /// # Errors
    /// Those of writing; `InvalidInput` for what must not be written.
    pub(super) fn set(&self, name: &str, value: &str) -> io::Result<()> {
        if !may_write(name, value) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no value of this setting"));
        }
        // Never made: these are files of the kernel (to which truncation means nothing).
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.dir.join(name))?;
        file.write_all(value.as_bytes())
    }

    /// Whether this process may change settings; changes none.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) fn writable(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.dir.join("run")).map(drop)
    }

    /// Takes the machine-wide right to manage; it is held until the descriptor is closed, by a crash too.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it.
    pub(super) fn lock(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.dir, flags, Mode::empty())?;
        flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        Ok(fd)
    }

    /// What the kernel is set to.
    pub fn settings(&self) -> Settings {
        let flag = |name| self.number(name).map(|n| n != 0);
        Settings {
            run: self.number("run"),
            pages_to_scan: self.number("pages_to_scan"),
            sleep_millisecs: self.number("sleep_millisecs"),
            advisor_mode: self.value("advisor_mode").ok().flatten(),
            advisor_target_scan_time: self.number("advisor_target_scan_time"),
            advisor_max_cpu: self.number("advisor_max_cpu"),
            advisor_min_pages_to_scan: self.number("advisor_min_pages_to_scan"),
            advisor_max_pages_to_scan: self.number("advisor_max_pages_to_scan"),
            smart_scan: flag("smart_scan"),
            use_zero_pages: flag("use_zero_pages"),
        }
    }

    /// What merging has come to.
    pub fn numbers(&self) -> Numbers {
        Numbers {
            pages_shared: self.number("pages_shared"),
            pages_sharing: self.number("pages_sharing"),
            pages_unshared: self.number("pages_unshared"),
            pages_volatile: self.number("pages_volatile"),
            pages_skipped: self.number("pages_skipped"),
            pages_scanned: self.number("pages_scanned"),
            ksm_zero_pages: self.number("ksm_zero_pages"),
            full_scans: self.number("full_scans"),
            general_profit: self.number("general_profit"),
        }
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.value(name).ok().flatten().as_deref().and_then(parse::number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_it_has_no_values() {
        let empty = tempfile::tempdir().unwrap();
        for ksm in [Ksm::at(empty.path()), Ksm::at(empty.path().join("gone"))] {
            assert!(!ksm.exists());
            assert_eq!((ksm.settings(), ksm.numbers()), (Settings::default(), Numbers::default()));
            assert_eq!(ksm.writable().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn only_settings_and_only_their_values_are_written() {
        for (name, value, may) in [
            ("run", "1", true),
            ("run", "3", false),
            ("advisor_mode", "scan-time", true),
            ("advisor_mode", "0", false),
            ("pages_to_scan", "4000", true),
            ("pages_to_scan", "-1", false),
            ("pages_to_scan", "", false),
            ("merge_across_nodes", "1", false),
            ("../../../../etc/passwd", "1", false),
        ] {
            assert_eq!(may_write(name, value), may, "{name}={value}");
        }
    }

    /// On the machine that runs the tests: with KSM every value that Linux 4.10 had is there, without it none is.
    #[test]
    fn this_machines_own_is_read() {
        let ksm = Ksm::here();
        let (settings, numbers) = (ksm.settings(), ksm.numbers());
        let all =
            [settings.run, settings.pages_to_scan, settings.sleep_millisecs, numbers.pages_shared, numbers.full_scans];
        assert!(all.iter().all(|v| v.is_some() == ksm.exists()), "{settings:?} {numbers:?}");
    }
}
