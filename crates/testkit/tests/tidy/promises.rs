//! What documents say holds a promise: tests, files and targets of `make` that are there.
//!
//! Owns the search in the last columns of `SPECIFICATION.md` and `docs/threat-model.md`. Never says whether a test
//! tests what it should. Invariant: of what an attacker cannot do, each row names a test or a file of tests; of what
//! one can do, that or a target of `make` that measures it.

use super::{files, none, root};
use std::collections::BTreeSet;

/// Functions of a source, and names that the macros of tests make functions of (`a_bug_is_found: Bug,`).
fn functions(file: &str, text: &str) -> Vec<String> {
    let (word, is_rust) = if file.ends_with(".rs") { ("fn ", true) } else { ("def ", false) };
    let name = |from: &str| from.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    let declared = text.match_indices(word).map(|(at, _)| name(&text[at + word.len()..]));
    let made = text.lines().filter_map(|l| l.trim().strip_suffix(',')?.split_once(": "));
    let made = made.filter(|(_, bug)| is_rust && bug.starts_with(char::is_uppercase)).map(|(made, _)| made.to_string());
    declared.chain(made).collect()
}

/// Everything that a name can be the name of.
struct There {
    files: Vec<String>,
    names: BTreeSet<String>,
    targets: BTreeSet<String>,
}

impl There {
    fn look() -> There {
        let root = root();
        let files = files(&root);
        let mut names = BTreeSet::new();
        for file in files.iter().filter(|f| f.ends_with(".rs") || f.ends_with(".py")) {
            let stem = file.rsplit('/').next().and_then(|f| f.rsplit_once('.'));
            names.extend(stem.map(|(stem, _)| stem.to_string()));
            names.extend(functions(file, &std::fs::read_to_string(root.join(file)).unwrap()));
        }
        let makefile = std::fs::read_to_string(root.join("Makefile")).unwrap();
        let targets = makefile.lines().filter_map(|l| l.split_once(':')).map(|(target, _)| target.to_string());
        There { files, names, targets: targets.collect() }
    }

    /// Whether there is a file, or a folder with files, along these parts of a path, others between them.
    fn has_path(&self, path: &str) -> bool {
        let leads = |file: &String| {
            let mut parts = file.split('/');
            path.split('/').all(|wanted| parts.any(|part| part == wanted || part.strip_suffix(".rs") == Some(wanted)))
        };
        self.files.iter().any(leads)
    }

    /// Whether there is a function or a file of this name, of which dots stand for what is left out at an end.
    fn has_name(&self, name: &str) -> bool {
        match (name.strip_suffix("..."), name.strip_prefix("...")) {
            (Some(start), _) => self.names.iter().any(|n| n.starts_with(start)),
            (_, Some(end)) => self.names.iter().any(|n| n.ends_with(end)),
            _ => self.names.contains(name),
        }
    }
}

/// What stands in backticks in the last column of a row.
fn quoted(row: &str) -> Vec<&str> {
    let column = row.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
    column.split('`').skip(1).step_by(2).collect()
}

fn is_path(quoted: &str) -> bool {
    !quoted.contains([' ', '*']) && (quoted.contains('/') || quoted.ends_with(".rs") || quoted.ends_with(".py"))
}

/// Names of functions have several words; a name of one word may be anything.
fn is_name(word: &str) -> bool {
    let letters = word.trim_matches('.');
    letters.contains('_') && letters.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// What a row names that is not there, and whether it names a test, or a file of them.
fn missing<'a>(row: &'a str, there: &There) -> (Vec<&'a str>, bool) {
    let (mut missing, mut tests) = (Vec::new(), false);
    for quoted in quoted(row) {
        if let Some(target) = quoted.strip_prefix("make ") {
            let target = target.split(' ').next().unwrap_or_default();
            missing.extend((!there.targets.contains(target)).then_some(quoted));
            continue;
        }
        let mut words = quoted.split("::");
        let first = words.next().unwrap_or_default();
        let good = if is_path(first) {
            there.has_path(first)
        } else {
            !is_name(first) || words.clone().count() > 0 || there.has_name(first)
        };
        let good = good && words.filter(|w| is_name(w)).all(|w| there.has_name(w));
        missing.extend((!good).then_some(quoted));
        tests |= good && (is_path(first) || is_name(first) || first == "worker");
    }
    (missing, tests)
}

#[test]
fn what_holds_a_promise_is_there() {
    let there = There::look();
    let (mut wrong, mut rows) = (Vec::new(), 0);
    for document in ["SPECIFICATION.md", "docs/threat-model.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for (n, row) in text.lines().enumerate().filter(|(_, l)| l.starts_with("| ")) {
            let (missing, tests) = missing(row, &there);
            rows += usize::from(tests);
            wrong.extend(missing.iter().map(|m| format!("{document}:{}: `{m}`", n + 1)));
            let is_held = tests || row.starts_with("| can |") && row.contains("`make ");
            if (row.starts_with("| cannot |") || row.starts_with("| can |")) && !is_held {
                wrong.push(format!("{document}:{}: no test is named", n + 1));
            }
        }
    }
    assert!(rows > 100, "{rows} rows that name tests are too few to be all of them");
    none(&wrong, "tests and files that documents name");
}

#[test]
fn what_is_not_there_is_found() {
    let there = There {
        files: ["crates/daemon/tests/vhost/harm.rs", "tests/test_a.py"].map(str::to_string).into(),
        names: functions("a.rs", "fn one_thing() {}\n    a_bug_is_found: Bug,\n").into_iter().collect(),
        targets: ["sim".to_string()].into(),
    };
    let wrong = |held_by: &str| missing(&format!("| cannot | do | {held_by} |"), &there).0.len();
    for good in
        ["`one_thing`", "`one_...`, `a_bug_is_found`", "`daemon/vhost/harm.rs`", "`harm.rs::one_thing`", "`make sim`"]
    {
        assert_eq!(wrong(good), 0, "{good}");
    }
    for bad in ["`two_things`", "`frontend/vhost/harm.rs`", "`harm.rs::two_things`", "`make nothing`", "`..._things`"] {
        assert_eq!(wrong(bad), 1, "{bad}");
    }
    assert!(!missing("| cannot | do | `PAUSE_MAX` |", &there).1 && !missing("| cannot | do | - |", &there).1);
}
