//! How long files and lines may be, of Rust and of Python.
//!
//! Owns the two bounds. Never looks at documents, nor at data that tests read. Invariant: a line is too long whatever
//! stands in it: strings are broken (in Rust by a backslash), so nothing needs an exception by its kind.

use super::{files, none, root};

/// Lines of a file, and characters of a line, at most.
const FILE_LINES_MAX: usize = 600;
const LINE_CHARS_MAX: usize = 120;

/// How many lines a source has, and which of them are too long, counted from 1.
fn measured(text: &str) -> (usize, Vec<usize>) {
    let long = text.lines().enumerate().filter(|(_, line)| line.chars().count() > LINE_CHARS_MAX);
    (text.lines().count(), long.map(|(n, _)| n + 1).collect())
}

/// Whether a file is source that the bounds are for.
fn is_source(file: &str) -> bool {
    file.ends_with(".rs") || file.ends_with(".py")
}

#[test]
fn files_and_lines_are_short() {
    let root = root();
    let (mut long_files, mut long_lines) = (Vec::new(), Vec::new());
    for file in files(&root).into_iter().filter(|f| is_source(f)) {
        let (lines, long) = measured(&std::fs::read_to_string(root.join(&file)).unwrap());
        if lines > FILE_LINES_MAX {
            long_files.push(format!("{file}: {lines}"));
        }
        long_lines.extend(long.iter().map(|n| format!("{file}:{n}")));
    }
    none(&long_files, "files have 600 lines at most");
    none(&long_lines, "lines have 120 characters at most");
}

#[test]
fn what_is_long_is_seen() {
    let line = |chars: usize| "é".repeat(chars);
    assert_eq!(measured(&format!("{}\n{}\n", line(120), line(121))), (2, vec![2]), "characters count, not bytes");
    let comment = format!("fn f() {{}} // {}", line(120));
    let text = format!("    \"{}\",", line(120));
    assert_eq!(measured(&format!("{comment}\nuse a;\n{text}")), (3, vec![1, 3]), "whatever stands in it");
    assert_eq!(measured(&"x\n".repeat(601)).0, FILE_LINES_MAX + 1);
    assert!(is_source("tests/test_a.py") && is_source("crates/a/src/b.rs"));
    assert!(!is_source("docs/a.md") && !is_source("scripts/setup.sh"));
}
