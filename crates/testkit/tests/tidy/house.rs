//! The picture of the house, the table of imports and the table of sizes: drawn from the source, and checked.
//!
//! Owns what stands between marks in `ARCHITECTURE.md`, and `imports.txt` beside this file. Never decides what may use
//! what: `crates` and `imports.txt` do. Invariant: with `TIDY_WRITE=1` in the environment both are written, without it
//! a difference fails; sizes may have changed by a tenth before they count as wrong.

use super::crates::{HOUSE, uses_directly};
use super::modules::crates;
use super::reached::public_items;
use super::tests_only::is_test_file;
use super::{root, rust};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

/// How far from the truth a size in the table may be, in percent.
const SIZE_TOLERANCE_PERCENT: usize = 10;

/// Whether generated parts are to be written.
fn writes() -> bool {
    std::env::var_os("TIDY_WRITE").is_some()
}

fn architecture() -> PathBuf {
    root().join("ARCHITECTURE.md")
}

/// What stands between the marks `name` of `ARCHITECTURE.md`.
fn between(text: &str, name: &str) -> (usize, usize) {
    let (start, end) = (format!("<!-- tidy:{name} -->\n"), format!("<!-- /tidy:{name} -->"));
    let from = text.find(&start).unwrap_or_else(|| panic!("ARCHITECTURE.md has no {start}")) + start.len();
    let to = from + text[from..].find(&end).unwrap_or_else(|| panic!("ARCHITECTURE.md has no {end}"));
    (from, to)
}

/// Writes a generated part, or says whether it is what it should be by `same`.
#[track_caller]
fn generated(name: &str, part: &str, same: impl FnOnce(&str) -> bool) {
    static WRITING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = WRITING.lock().unwrap();
    let text = std::fs::read_to_string(architecture()).unwrap();
    let (from, to) = between(&text, name);
    if same(&text[from..to]) {
        return;
    }
    assert!(
        writes(),
        "ARCHITECTURE.md, {name}: TIDY_WRITE=1 cargo test -p undercroft-testkit --test tidy writes\n{part}"
    );
    std::fs::write(architecture(), format!("{}{part}{}", &text[..from], &text[to..])).unwrap();
}

/// How far above the leaves each crate of the table is.
fn levels() -> BTreeMap<&'static str, usize> {
    let mut levels = BTreeMap::new();
    for (name, uses) in HOUSE {
        let below = uses.iter().map(|u| levels[u] + 1).max().unwrap_or(0);
        levels.insert(*name, below);
    }
    levels
}

/// The picture: a line for each crate, those above first, indented by how far it is from the top; and what it uses
/// directly.
fn picture() -> String {
    let levels = levels();
    let top = levels.values().max().copied().unwrap_or(0);
    let mut lines: Vec<_> = HOUSE.iter().map(|(name, _)| (top - levels[name], *name)).collect();
    lines.sort_by_key(|(depth, name)| (*depth, HOUSE.iter().position(|(n, _)| n == name).map(std::cmp::Reverse)));
    let mut out = "```\n".to_string();
    for (depth, name) in lines {
        let uses = uses_directly(name);
        let arrow = if uses.is_empty() { String::new() } else { format!("-> {}", uses.join(", ")) };
        let _ = writeln!(out, "{}", format!("{:34}{arrow}", format!("{}{name}", "  ".repeat(depth))).trim_end());
    }
    out + "```\n"
}

#[test]
fn the_picture_of_the_house_is_that_of_the_table() {
    let picture = picture();
    generated("house", &picture, |now| now == picture);
}

/// Lines of Rust and public items of each crate; of tests apart.
fn sizes() -> Vec<(String, [usize; 3])> {
    let items = public_items();
    let mut sizes = BTreeMap::<String, [usize; 3]>::new();
    for (file, text) in rust(&root()) {
        let Some((own, below)) = file.strip_prefix("crates/").and_then(|f| f.split_once('/')) else { continue };
        let product = below.starts_with("src/") && !is_test_file(&file);
        sizes.entry(own.to_string()).or_default()[usize::from(!product)] += text.lines().count();
    }
    for (name, size) in &mut sizes {
        size[2] = items.get(name).copied().unwrap_or(0);
    }
    let mut sizes: Vec<_> = sizes.into_iter().collect();
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(size[0]));
    sizes
}

/// Rows of a table of sizes as it stands: a crate's name and its numbers.
fn rows(text: &str) -> BTreeMap<String, Vec<usize>> {
    let rows =
        text.lines().map(|l| l.split('|').map(|c| c.trim().trim_matches('`').replace(',', "")).collect::<Vec<_>>());
    rows.filter(|r| r.len() == 6 && r[2].parse::<usize>().is_ok())
        .map(|r| (r[1].clone(), r[2..5].iter().filter_map(|n| n.parse().ok()).collect()))
        .collect()
}

fn thousands(n: usize) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", n / 1000, n % 1000) }
}

#[test]
fn the_table_of_sizes_is_about_right() {
    let sizes = sizes();
    let mut part = "| crate | lines of `src` (unit tests in the same file included) | lines of tests, examples | \
        public items |\n|---|---:|---:|---:|\n"
        .to_string();
    for (name, [lines, tests, items]) in &sizes {
        let _ = writeln!(part, "| `{name}` | {} | {} | {items} |", thousands(*lines), thousands(*tests));
    }
    generated("sizes", &part, |now| {
        let stands = rows(now);
        let near = |is: usize, was: usize| is.abs_diff(was) * 100 <= is.max(100) * SIZE_TOLERANCE_PERCENT;
        stands.len() == sizes.len()
            && sizes.iter().all(|(name, size)| {
                stands
                    .get(name)
                    .is_some_and(|row| row.len() == 3 && size.iter().zip(row).all(|(&is, &was)| near(is, was)))
            })
    });
}

/// The lines of `imports.txt`: what each top module uses of the others of its crate.
fn imports() -> String {
    let mut out = String::new();
    for (name, edges) in crates() {
        for (module, uses) in edges.iter().filter(|(_, uses)| !uses.is_empty()) {
            let uses: Vec<_> = uses.iter().map(String::as_str).collect();
            let _ = writeln!(out, "{name}/{module}: {}", uses.join(" "));
        }
    }
    out
}

#[test]
fn modules_use_what_the_table_of_imports_says() {
    let path = root().join("crates/testkit/tests/tidy/imports.txt");
    let is = imports();
    let table = std::fs::read_to_string(&path).unwrap_or_default();
    let (head, stands): (Vec<_>, Vec<_>) = table.lines().partition(|l| l.starts_with('#'));
    if stands == is.lines().collect::<Vec<_>>() {
        return;
    }
    if writes() {
        std::fs::write(path, format!("{}\n{is}", head.join("\n"))).unwrap();
        return;
    }
    let (is, was): (BTreeSet<_>, BTreeSet<_>) = (is.lines().collect(), stands.into_iter().collect());
    let added: Vec<_> = is.difference(&was).map(|l| format!("+ {l}")).collect();
    let gone: Vec<_> = was.difference(&is).map(|l| format!("- {l}")).collect();
    panic!("imports between top modules are not those of imports.txt:\n{}\n{}", gone.join("\n"), added.join("\n"));
}
