//! Tests that cannot run on this machine: said, and counted. And how much of a test there is time for.
//!
//! Rust's test harness has no way to skip a test while it runs: one that returns early counts as passed. A test that
//! finds that something is missing calls [`skip`] with the reason and returns. The reason goes to standard error, and
//! to the file that the environment variable `UNDERCROFT_SKIPS` names, from which `scripts/test.sh` takes the count;
//! `.ci/run` fails on every skip that `.ci/permitted-skips` does not name.
//!
//! `make test` has half an hour for all there is, and `make test-long` has as long as it takes. What the first has no
//! time for, a test leaves to the second by [`by_length`] and what follows from it: that is no skip.
//!
//! Owns the form of the file of skips: one line a skip, `program TAB test TAB reason`. Never decides whether a skip is
//! permitted. Invariant: a line is written whole or not at all, whatever other tests write meanwhile.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The environment variable that names the file which skips are added to.
pub const FILE: &str = "UNDERCROFT_SKIPS";

/// Says that the calling test, or a part of it, does not run here, and why. The test returns after this.
///
/// # Panics
///
/// If `UNDERCROFT_SKIPS` names a file that cannot be written: a skip that nobody counts would look like a test that
/// passed.
pub fn skip(reason: impl Display) {
    eprintln!("SKIPPED: {reason}");
    if let Some(file) = std::env::var_os(FILE) {
        let program = std::env::current_exe().ok().and_then(|p| Some(p.file_stem()?.to_string_lossy().into_owned()));
        let thread = std::thread::current();
        let line = line(program.as_deref().unwrap_or("?"), thread.name().unwrap_or("?"), &reason.to_string());
        add(Path::new(&file), &line);
    }
}

/// A file or directory of the reference data, which lies in `shared` beside the repository; without it, a skip.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    skip(format_args!("the reference data are not beside the repository: no ../shared/{name}"));
    None
}

/// Whether tests run at length: `make test-long` says so by `UNDERCROFT_LONG`.
pub fn at_length() -> bool {
    std::env::var_os("UNDERCROFT_LONG").is_some_and(|said| !said.is_empty())
}

/// What a test does in `make test`, or what it does at length.
pub fn by_length<T>(usual: T, long: T) -> T {
    if at_length() { long } else { usual }
}

/// Cases of a property: half as many in `make test`, four times as many at length.
pub fn cases(usual: u32) -> u32 {
    by_length(usual / 2, 4 * usual)
}

/// Numbers of arbitrary inputs: all of them at length, in `make test` every eleventh. That has no divisor in common
/// with the lengths after which inputs are short again, so these are as various.
pub fn inputs(all: Range<usize>) -> impl Iterator<Item = usize> {
    all.step_by(by_length(11, 1))
}

/// One line of the file. Reasons may be anything: what would end a field or the line becomes a blank.
fn line(program: &str, test: &str, reason: &str) -> String {
    // Cargo adds a hash to a test program's name.
    let program = match program.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => program,
    };
    [program, test, reason].map(|field| field.replace(['\t', '\n', '\r'], " ")).join("\t") + "\n"
}

fn add(file: &Path, line: &str) {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    // One write: lines of tests that run at the same time do not mix.
    opened
        .and_then(|mut f| f.write_all(line.as_bytes()))
        .unwrap_or_else(|e| panic!("{FILE}: {} cannot be written: {e}", file.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_with_three_fields() {
        assert_eq!(line("cli-0123456789abcdef", "a::b", "no x"), "cli\ta::b\tno x\n");
        assert_eq!(line("no-hash", "t", "two\nlines\tand a tab"), "no-hash\tt\ttwo lines and a tab\n");
    }

    /// The process that runs this test again has the variable set; its file then holds what `scripts/test.sh` counts.
    #[test]
    fn a_skip_is_in_the_file_and_the_test_by_its_name() {
        if std::env::var_os("UNDERCROFT_SKIPS_INNER").is_some() {
            return skip("a reason");
        }
        let file = std::env::temp_dir().join(format!("undercroft-skips-{}", std::process::id()));
        let again = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "tests::a_skip_is_in_the_file_and_the_test_by_its_name", "--test-threads", "2"])
            .env("UNDERCROFT_SKIPS_INNER", "1")
            .env(FILE, &file)
            .output()
            .expect("it runs");
        let written = std::fs::read_to_string(&file).expect("the file is there");
        std::fs::remove_file(&file).expect("it is ours");
        assert!(again.status.success());
        assert_eq!(written, "undercroft_skips\ttests::a_skip_is_in_the_file_and_the_test_by_its_name\ta reason\n");
    }

    #[test]
    #[should_panic(expected = "cannot be written")]
    fn a_skip_that_cannot_be_counted_fails() {
        add(Path::new("/nowhere/at/all"), "x\n");
    }
}
