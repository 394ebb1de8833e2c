//! The field's words: names that were given up stay given up, and tracked files stay small.
//!
//! Owns the list of words that `docs/glossary.md` replaced. Never reads what is history (CHANGELOG, decisions).
//! Invariant: a word is looked for whole, whatever its capitals.

use super::{files, none, root};

/// A word that was given up, and what is said instead.
const GIVEN_UP: &[(&str, &str)] = &[
    ("bell", "wake_fd"),
    ("crew", "thread pool"),
    ("farewell", "on_close"),
    ("patrol", "scanner"),
    ("rival", "shadow cache"),
    ("scribe", "encoder"),
    ("sheet", "aligned buffer"),
    ("steward", "share manager"),
];

/// Names that say nothing about what a module holds.
const NO_NAMES: &[&str] = &["utils", "util", "common", "misc", "helpers"];

/// Bytes of a tracked file at most, without exception.
const BLOB_BYTES_MAX: usize = 256 << 10;

#[test]
fn words_that_were_given_up_do_not_come_back() {
    let root = root();
    let mut wrong = Vec::new();
    for file in files(&root) {
        let read = [".rs", ".py", ".md", ".toml", ".sh"].iter().any(|e| file.ends_with(e));
        // This list itself; and what was said once is history.
        let history = file == "CHANGELOG.md" || file.starts_with("docs/decisions/") || file.ends_with("tidy/words.rs");
        if !read || history {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file)).unwrap();
        for (n, line) in text.lines().enumerate() {
            for word in line.split(|c: char| !c.is_ascii_alphabetic()) {
                let word = word.to_ascii_lowercase();
                if let Some((_, instead)) = GIVEN_UP.iter().find(|(w, _)| *w == word) {
                    wrong.push(format!("{file}:{}: {word} (say: {instead})", n + 1));
                }
            }
        }
    }
    none(&wrong, "words that docs/glossary.md replaced");
}

#[test]
fn modules_are_named_by_what_they_hold() {
    let named = |f: &&String| {
        let stems = f.split('/').map(|part| part.split('.').next().unwrap_or_default());
        (f.ends_with(".rs") || f.ends_with(".py")) && stems.into_iter().any(|s| NO_NAMES.contains(&s))
    };
    none(&files(&root()).iter().filter(named).cloned().collect::<Vec<_>>(), "names that say nothing");
}

#[test]
fn tracked_files_are_small() {
    let root = root();
    let sizes = files(&root).into_iter().map(|f| (std::fs::metadata(root.join(&f)).unwrap().len() as usize, f));
    let large = sizes.filter(|(bytes, _)| *bytes > BLOB_BYTES_MAX).map(|(bytes, f)| format!("{f}: {bytes}"));
    none(&large.collect::<Vec<_>>(), "tracked files above 256 KiB (raw data: compress it, or have a command make it)");
}
