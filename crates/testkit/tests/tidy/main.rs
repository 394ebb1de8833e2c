//! The tidy test: what the house promises about its own source, and fails the build where it does not hold.
//!
//! Owns the tables of what crates may import, what they may touch of the standard library, and how long things may be.
//! Never formats or compiles anything: rustfmt and clippy do. Invariant: an exception is named with what it is today,
//! and is an error as soon as it is not needed any more, so the lists can only become shorter.

mod crates;
mod dependencies;
mod errors;
mod house;
mod keys;
mod lengths;
mod links;
mod modules;
mod names;
mod parsed;
mod promises;
mod reached;
mod source;
mod tests_only;
mod tokens;
mod walks;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files that git knows, or would take, below `root`; sorted, relative.
///
/// Without git (a source archive) there is nothing to ask, and the test says so by failing.
fn files(root: &Path) -> Vec<String> {
    let out = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"])
        .current_dir(root)
        .output()
        .expect("the tidy test asks git which files there are");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut files: Vec<_> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_string).collect();
    files.retain(|f| root.join(f).is_file());
    files.sort();
    assert!(files.len() > 500, "{} files are too few to be all of them", files.len());
    files
}

/// Those of them that are Rust, with their text.
fn rust(root: &Path) -> Vec<(String, String)> {
    let files = files(root).into_iter().filter(|f| f.ends_with(".rs"));
    files.map(|f| (std::fs::read_to_string(root.join(&f)).unwrap(), f)).map(|(text, f)| (f, text)).collect()
}

/// Fails with all that is wrong, one line each.
#[track_caller]
fn none(wrong: &[String], remedy: &str) {
    assert!(wrong.is_empty(), "{remedy}:\n  {}", wrong.join("\n  "));
}

/// Compares what is found over a bound with the list of exceptions: new ones, worse ones and needless ones are wrong.
#[track_caller]
fn exceptions(found: &[(String, usize)], allowed: &[(&str, usize)], remedy: &str) {
    let mut wrong = Vec::new();
    for (what, n) in found {
        match allowed.iter().find(|(a, _)| a == what) {
            None => wrong.push(format!("{what}: {n}")),
            Some((_, most)) if n > most => wrong.push(format!("{what}: {n}, was {most}")),
            Some((_, most)) if n < most => wrong.push(format!("{what}: {n}; lower the exception of {most}")),
            Some(_) => {}
        }
    }
    let gone = allowed.iter().filter(|(a, _)| !found.iter().any(|(what, _)| what == a));
    wrong.extend(gone.map(|(a, _)| format!("{a}: needs no exception any more")));
    none(&wrong, remedy);
}
