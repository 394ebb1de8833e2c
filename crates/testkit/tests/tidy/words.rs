//! The field's words: names that were given up stay given up, and tracked files stay small.
//!
//! Reads the words that `docs/glossary.md` replaced. Never reads what is history (CHANGELOG, decisions).
//! Invariant: a word is looked for whole, whatever its capitals.

use super::{files, none, root};

/// Words that were given up, and what is said instead, by the glossary's second table.
fn given_up() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let (_, table) = text.split_once("## Words that were given up").expect("the glossary lists them");
    let words = pairs(table);
    assert!(words.len() > 8, "the glossary's table of words has another form: {words:?}");
    words
}

/// The rows of a table of two columns.
///
/// # Panics
/// If a row has another form: a word that is not read is not refused.
fn pairs(table: &str) -> Vec<(String, String)> {
    let rows = table.lines().filter(|l| l.starts_with('|')).skip(2);
    let pair = |row: &str| match row.split('|').map(str::trim).collect::<Vec<_>>()[..] {
        ["", word, say, ""] if !word.is_empty() && !say.is_empty() => (word.to_string(), say.to_string()),
        _ => panic!("a row that is not a word and what to say: {row}"),
    };
    rows.map(pair).collect()
}

#[test]
#[should_panic(expected = "a row that is not a word and what to say: | new | newer | and more |")]
fn a_row_of_another_form_is_seen() {
    pairs("\n| word | say |\n|---|---|\n| old | new |\n| new | newer | and more |\n");
}

/// Names that say nothing about what a module holds.
const NO_NAMES: &[&str] = &["utils", "util", "common", "misc", "helpers"];

/// Bytes of a tracked file at most, without exception.
const BLOB_BYTES_MAX: usize = 256 << 10;

#[test]
fn words_that_were_given_up_do_not_come_back() {
    let root = root();
    let given_up = given_up();
    let mut wrong = Vec::new();
    for file in files(&root) {
        let read = [".rs", ".py", ".md", ".toml", ".sh"].iter().any(|e| file.ends_with(e));
        // The list itself; and what was said once is history.
        let history = file == "CHANGELOG.md" || file.starts_with("docs/decisions/") || file == "docs/glossary.md";
        if !read || history {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file)).unwrap();
        for (n, line) in text.lines().enumerate() {
            for word in line.split(|c: char| !c.is_ascii_alphabetic()) {
                let word = word.to_ascii_lowercase();
                if let Some((_, instead)) =
                    given_up.iter().find(|(w, _)| *w == word || word.strip_suffix('s') == Some(w))
                {
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
