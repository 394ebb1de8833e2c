//! What documents refer to: files, headings, decision records, and places in the code.
//!
//! Owns the search for references in Markdown and in comments. Never asks the network: links to other sites are passed
//! over. Invariant: a reference to a file is relative to the document that has it, or to the root of the repository.

use super::crates::HOUSE;
use super::{files, none, root};
use std::collections::BTreeSet;
use std::path::{Component, Path};

/// A document without what is code: references in examples are not ours.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let kept = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// Where the links of a document lead: what stands in `](...)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|after| after.split_once(')')).map(|(to, _)| to)
}

/// The anchors of a document, as GitHub makes them of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|l| l.starts_with('#')).map(|l| l.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(anchor).collect()
}

/// A path of the repository without `.` and `..`; `None` if it leads out of it.
fn plain(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(parts.join("/"))
}

/// What is wrong with a link of `document`.
fn broken(document: &str, text: &str, link: &str, known: &BTreeSet<String>) -> Option<String> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let to = match path {
        "" => document.to_string(),
        _ => match plain(&Path::new(document).parent()?.join(path)) {
            Some(to) if known.contains(&to) => to,
            _ => return Some(format!("{document}: {link} leads nowhere")),
        },
    };
    let anchor = anchor?;
    let there = if to == document { text.to_string() } else { std::fs::read_to_string(root().join(&to)).ok()? };
    (!anchors(&there).contains(anchor)).then(|| format!("{document}: {link}: {to} has no such heading"))
}

/// Numbers of decision records that a text names: `decision 0112`, `decisions 0158, 0176`, `decision 0173)`.
fn decisions(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, word) in text.match_indices("decision") {
        let mut rest = &text[at + word.len()..];
        rest = rest.strip_prefix('s').unwrap_or(rest);
        loop {
            let next = rest.trim_start_matches([' ', ',', '\n', '/', '!', '*']);
            let number: String = next.chars().take_while(char::is_ascii_digit).collect();
            if number.len() != 4 || next.len() == rest.len() {
                break;
            }
            rest = &next[number.len()..];
            found.push(number);
        }
    }
    found
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let root = root();
    let files = files(&root);
    // Folders are led to as well.
    let folders = files.iter().flat_map(|f| Path::new(f).ancestors().skip(1));
    let folders = folders.filter_map(Path::to_str).map(str::to_string);
    let known: BTreeSet<_> = folders.chain(files.iter().cloned()).collect();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for file in files.iter().filter(|f| f.ends_with(".md")) {
        let text = without_code(&std::fs::read_to_string(root.join(file)).unwrap());
        for link in links(&text).filter(|l| !l.contains("://") && !l.starts_with("mailto:")) {
            count += 1;
            wrong.extend(broken(file, &text, link.trim_end_matches('/'), &known));
        }
    }
    assert!(count > 30, "{count} links are too few to be all of them");
    none(&wrong, "links of documents");
}

/// The places of a row of the glossary: its last column, with `{a,b}` written out.
fn places(row: &str) -> Vec<String> {
    let column = row.split('|').nth(3).unwrap_or_default();
    let quoted = column.split('`').skip(1).step_by(2);
    let written_out = |place: &str| match place.split_once('{').and_then(|(a, b)| Some((a, b.split_once('}')?))) {
        Some((before, (all, after))) => all.split(',').map(|one| format!("{before}{one}{after}")).collect(),
        None => vec![place.to_string()],
    };
    quoted.flat_map(written_out).collect()
}

#[test]
fn every_place_that_the_glossary_names_is_there() {
    let text = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let rows: Vec<_> = text.lines().filter(|l| l.starts_with("| ")).collect();
    assert!(rows.len() > 40, "the glossary's table has another form");
    let mut wrong = Vec::new();
    for place in rows.into_iter().flat_map(places) {
        let (name, below) = place.split_once('/').unwrap_or((&place, ""));
        let sources = root().join("crates").join(name).join("src");
        if !sources.join(below).is_dir() && !sources.join(format!("{below}.rs")).is_file() {
            wrong.push(format!("docs/glossary.md: {place}"));
        }
    }
    none(&wrong, "places in the code that the glossary names");
}

/// Files and folders of a crate that a text names in backticks, but for those that are yet to be made.
fn files_of_crates(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2).filter(|path| !path.contains([' ', '*', '{']));
    let of_a_crate = |path: &&str| path.split_once('/').is_some_and(|(name, _)| HOUSE.iter().any(|c| c.0 == name));
    quoted.filter(of_a_crate).map(|path| path.split("NAME").next().unwrap_or_default()).collect()
}

#[test]
fn every_file_that_is_to_be_touched_is_there() {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let paths = files_of_crates(&text);
    assert!(paths.len() > 20, "CONTRIBUTING.md names {} files: its lists have another form", paths.len());
    let missing = paths.into_iter().filter(|path| !root().join("crates").join(path).exists());
    none(&missing.map(str::to_string).collect::<Vec<_>>(), "files that CONTRIBUTING.md names");
}

#[test]
fn every_decision_that_is_named_is_recorded() {
    let root = root();
    let files = files(&root);
    let name = |f: &String| f.strip_prefix("docs/decisions/").and_then(|f| f.get(..4)).map(str::to_string);
    let recorded: BTreeSet<_> = files.iter().filter_map(name).collect();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|f| f.ends_with(".md") || f.ends_with(".rs") || f.ends_with(".py")) {
        // The numbers here are examples.
        if file.ends_with("tidy/links.rs") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let unknown = decisions(&text).into_iter().filter(|d| !recorded.contains(d));
        wrong.extend(unknown.map(|d| format!("{file}: there is no decision {d}")));
    }
    none(&wrong, "decisions that documents and comments name");
}

#[test]
fn what_leads_nowhere_is_found() {
    let known = ["README.md", "docs/a.md", "docs"].map(str::to_string).into();
    let text = "# A heading, here\n";
    let wrong = |link: &str| broken("docs/a.md", text, link, &known);
    for good in ["../README.md", "a.md#a-heading-here", "#a-heading-here", "."] {
        assert_eq!(wrong(good), None, "{good}");
    }
    for bad in ["README.md", "../docs/b.md", "#another", "../../README.md"] {
        assert!(wrong(bad).is_some(), "{bad}");
    }
    assert_eq!(links("[a](b.md), [c](d.md#e)").collect::<Vec<_>>(), ["b.md", "d.md#e"]);
    assert_eq!(places("| a | b | `c/d`, `e/{f,g}`; h |"), ["c/d", "e/f", "e/g"]);
    assert_eq!(files_of_crates("`cache/src/x.rs`, `engine/src/NAME.rs`, `other/a`"), ["cache/src/x.rs", "engine/src/"]);
    assert_eq!(decisions("decision 0001, decisions 0002,\n0003 and 4"), ["0001", "0002", "0003"]);
}
