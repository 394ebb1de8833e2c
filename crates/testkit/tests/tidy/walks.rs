//! The walks of `ARCHITECTURE.md`: what happens at a read, a write, a share decision and in a recording, file by file.
//!
//! Owns the rule that a walk goes by. Never says what happens: the document does. Invariant: every file and function
//! that a walk names is there; within a trip no crate and no file is entered again that was left, but by returning.

use super::crates::HOUSE;
use super::{none, root};
use std::collections::BTreeMap;

/// A step of a walk: where it stands in the document, its file, and everything that its paragraph names.
struct Step {
    line: usize,
    file: String,
    /// Functions by the files that they are in, those that the sentence names included.
    names: Vec<(String, String)>,
}

/// A trip of a walk: what it is called, and its steps in order.
struct Trip {
    title: String,
    steps: Vec<Step>,
}

/// What stands in backticks in a paragraph: each file with the functions that follow it.
fn names(text: &str) -> Vec<(String, String)> {
    let mut names = Vec::new();
    let mut file: Option<String> = None;
    for (n, piece) in text.split('`').enumerate() {
        let is_code = n % 2 == 1;
        if is_code && piece.ends_with(".rs") {
            file = Some(piece.to_string());
        } else if let Some(file) = file.as_ref().filter(|_| is_code) {
            names.push((file.clone(), piece.to_string()));
        } else if !is_code && !piece.trim().is_empty() && piece.trim() != "," {
            // Words end the list of a file's functions.
            file = None;
        }
    }
    names
}

/// The trips of a document's chapter of walks, and what is wrong with how they are written.
fn trips(text: &str) -> (Vec<Trip>, Vec<String>) {
    let (mut trips, mut wrong) = (Vec::<Trip>::new(), Vec::new());
    let (mut inside, mut walk, mut steps) = (false, "", 0);
    let mut paragraph: Option<(usize, String)> = None;
    // One line more, so that the last paragraph ends as well.
    for (n, line) in text.lines().chain([""]).enumerate() {
        let number = line.split_once(". `").and_then(|(number, _)| number.parse::<usize>().ok());
        let goes_on = line.starts_with(' ');
        if let (Some((at, words)), false) = (&paragraph, goes_on) {
            let names = names(words);
            match (names.first(), trips.last_mut()) {
                (Some((file, _)), Some(trip)) => trip.steps.push(Step { line: *at, file: file.clone(), names }),
                _ => wrong.push(format!("line {at}: a step names a file and a function, and belongs to a trip")),
            }
            paragraph = None;
        }
        if let Some(title) = line.strip_prefix("## ") {
            inside = title.starts_with("Walks");
        }
        if !inside {
            continue;
        }
        if let Some(title) = line.strip_prefix("### ") {
            (walk, steps) = (title, 0);
        } else if line.starts_with("**") {
            let title = line.split("**").nth(1).unwrap_or_default();
            trips.push(Trip { title: format!("{walk}: {title}"), steps: Vec::new() });
        } else if let Some(number) = number {
            steps += 1;
            if number != steps {
                wrong.push(format!("line {}: step {number} stands where step {steps} should", n + 1));
            }
            paragraph = Some((n + 1, line.to_string()));
        } else if let (Some((_, words)), true) = (&mut paragraph, goes_on) {
            words.push(' ');
            words.push_str(line.trim());
        }
    }
    (trips, wrong)
}

/// Whether one of two crates may use the other.
fn are_joined(a: &str, b: &str) -> bool {
    let uses = |from: &str, to: &str| HOUSE.iter().any(|(name, uses)| *name == from && uses.contains(&to));
    uses(a, b) || uses(b, a)
}

/// Goes on to `to`, which must be where the way is, or where it came through, or new. False if it was left before.
fn goes_to(way: &mut Vec<String>, left: &mut Vec<String>, to: &str) -> bool {
    match way.iter().position(|w| w == to) {
        Some(at) => left.extend(way.drain(at + 1..)),
        None => way.push(to.to_string()),
    }
    !left.iter().any(|l| l == to)
}

/// What is wrong with the order of a trip's steps.
fn steps_back(trip: &Trip) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut crates, mut crates_left) = (Vec::<String>::new(), Vec::new());
    let (mut files, mut files_left) = (Vec::new(), Vec::new());
    for step in &trip.steps {
        let at = |what: &str| format!("line {} ({}): {what}", step.line, trip.title);
        let name = step.file.split('/').next().unwrap_or_default();
        if let Some(from) = crates.last().filter(|from| from.as_str() != name)
            && !are_joined(from, name)
        {
            wrong.push(at(&format!("{from} and {name} do not know each other")));
        }
        if !goes_to(&mut crates, &mut crates_left, name) {
            wrong.push(at(&format!("comes back to crate {name}, which it had left")));
        }
        if !goes_to(&mut files, &mut files_left, &step.file) {
            wrong.push(at(&format!("comes back to {}, which it had left", step.file)));
        }
    }
    wrong
}

/// Whether a source has a function of this name.
fn has_function(source: &str, name: &str) -> bool {
    let ends = |after: &str| after.starts_with(['(', '<']);
    source.match_indices("fn ").any(|(at, f)| source[at + f.len()..].strip_prefix(name).is_some_and(ends))
}

#[test]
fn walks_name_what_there_is_and_never_step_back() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (trips, mut wrong) = trips(&text);
    assert!(trips.len() > 20, "ARCHITECTURE.md has {} trips: the chapter of walks has another form", trips.len());
    let mut sources = BTreeMap::new();
    for trip in &trips {
        wrong.extend(steps_back(trip));
        for step in &trip.steps {
            for (file, function) in &step.names {
                let source = sources
                    .entry(file)
                    .or_insert_with(|| std::fs::read_to_string(root().join("crates").join(file)).unwrap_or_default());
                if !has_function(source, function) {
                    wrong.push(format!("line {}: crates/{file} has no function {function}", step.line));
                }
            }
        }
    }
    none(&wrong, "walks of ARCHITECTURE.md");
}

#[test]
fn a_step_back_is_found() {
    let found = |steps: &str| {
        let (trips, wrong) = trips(&format!("## Walks\n\n### A walk\n\n**A trip**\n\n{steps}"));
        let back: Vec<_> = trips.iter().flat_map(steps_back).collect();
        (wrong.len(), back)
    };
    let down_and_up = "1. `daemon/src/a.rs` `f`: x\n2. `cache/src/b.rs` `g`: x\n3. `engine/src/c.rs` `h`: x\n\
                       4. `cache/src/b.rs` `i`: x\n5. `daemon/src/d.rs` `j`: x\n";
    assert_eq!(found(down_and_up), (0, vec![]));
    let (_, back) = found(&format!("{down_and_up}6. `cache/src/e.rs` `k`: x\n"));
    assert_eq!(back.len(), 1, "{back:?}");
    assert!(back[0].contains("comes back to crate cache"), "{back:?}");
    let (_, back) = found(
        "1. `cache/src/a.rs` `f`: x\n2. `cache/src/b.rs` `g`: x\n3. `cache/src/a.rs` `f`: x\n\
                           4. `cache/src/b.rs` `g`: x\n",
    );
    assert!(back.len() == 1 && back[0].contains("comes back to cache/src/b.rs"), "{back:?}");
    let (_, back) = found("1. `backend/src/a.rs` `f`: x\n2. `frontend/src/b.rs` `g`: x\n");
    assert!(back.len() == 1 && back[0].contains("do not know each other"), "{back:?}");
    assert_eq!(found("1. `cache/src/a.rs` `f`: x\n3. `cache/src/b.rs` `g`: x\n").0, 1, "a number is missing");
}
