//! Cycles among the top modules of each crate: a module that is used by what it uses cannot be read alone.
//!
//! Owns the resolution of `crate::`, `super::` and the crate's own re-exports to top modules. Never follows macros,
//! method calls or types that come by inference: they need a name somewhere, which is seen. Invariant: tests do not
//! count.

use super::exceptions;
use super::parsed::{of_all, syntax};
use super::source::{for_tests, uses};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Crates whose top modules form cycles today, with how many of them are in one.
const CYCLES: &[(&str, usize)] = &[];

/// Names in one file.
struct Names<'a> {
    /// The module of the file, from the root of the crate.
    at: Vec<String>,
    found: &'a mut dyn FnMut(&[String]),
}

impl Names<'_> {
    /// A path from the root of the crate, if it is one of this crate's that says so.
    fn name(&mut self, path: &[String]) {
        let mut base = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super" | "self") => self.at.clone(),
            _ => return,
        };
        let mut rest = path;
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => _ = base.pop(),
                _ => break,
            }
            rest = more;
        }
        base.extend(rest.iter().cloned());
        (self.found)(&base);
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Mod(m) if for_tests(&m.attrs) => {}
            syn::Item::Fn(f) if for_tests(&f.attrs) => {}
            syn::Item::Use(u) if for_tests(&u.attrs) => {}
            syn::Item::Impl(i) if for_tests(&i.attrs) => {}
            syn::Item::Mod(m) if m.content.is_some() => {
                self.at.push(m.ident.to_string());
                visit::visit_item(self, item);
                self.at.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_use(&mut self, u: &'ast syn::ItemUse) {
        uses(&u.tree, &mut Vec::new(), &mut |path| self.name(path));
    }

    fn visit_path(&mut self, p: &'ast syn::Path) {
        let path: Vec<_> = p.segments.iter().map(|s| s.ident.to_string()).collect();
        self.name(&path);
        visit::visit_path(self, p);
    }
}

/// The module of a file below `src`.
pub fn module(below: &str) -> Vec<String> {
    let mut parts: Vec<_> = below.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if parts.last().is_some_and(|p| matches!(p.as_str(), "mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// Which top modules use which, in one crate: `(file below src, its syntax)`.
fn edges(files: &[(String, &syn::File)]) -> BTreeMap<String, BTreeSet<String>> {
    let tops: BTreeSet<_> = files.iter().filter_map(|(f, _)| module(f).first().cloned()).collect();
    // What the root of the crate calls by another path.
    let mut exported = BTreeMap::new();
    for (_, syntax) in files.iter().filter(|(f, _)| f == "lib.rs") {
        for item in &syntax.items {
            let syn::Item::Use(u) = item else { continue };
            uses(&u.tree, &mut Vec::new(), &mut |path| {
                let path: Vec<_> = path.iter().filter(|p| !matches!(p.as_str(), "crate" | "self")).collect();
                if let [first, .., last] = path[..] {
                    exported.insert(last.clone(), first.clone());
                }
            });
        }
    }
    let mut edges = BTreeMap::<_, BTreeSet<_>>::new();
    for (file, syntax) in files {
        let at = module(file);
        let Some(from) = at.first().cloned() else { continue };
        let to = edges.entry(from.clone()).or_default();
        let mut found = |path: &[String]| {
            let Some(first) = path.first() else { return };
            let top = if tops.contains(first) { Some(first) } else { exported.get(first) };
            to.extend(top.filter(|t| **t != from && tops.contains(*t)).cloned());
        };
        Names { at, found: &mut found }.visit_file(syntax);
    }
    edges
}

/// The modules that reach themselves.
fn in_cycles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<&String> {
    let reaches = |from: &String| {
        let (mut todo, mut seen) = (vec![from], BTreeSet::new());
        while let Some(m) = todo.pop() {
            todo.extend(edges.get(m).into_iter().flatten().filter(|t| seen.insert(*t)));
        }
        seen.contains(from)
    };
    edges.keys().filter(|m| reaches(m)).collect()
}

/// Which top modules of each crate use which, tests apart.
pub fn crates() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    of_all(|files| {
        let mut crates = BTreeMap::<String, Vec<_>>::new();
        for f in files.iter().filter(|f| !f.is_test) {
            if let Some((name, below)) = f.file.strip_prefix("crates/").and_then(|f| f.split_once("/src/")) {
                crates.entry(name.to_string()).or_default().push((below.to_string(), &f.syntax));
            }
        }
        crates.into_iter().map(|(name, files)| (name, edges(&files))).collect()
    })
}

#[test]
fn modules_form_no_cycles_but_those_known() {
    let mut found = Vec::new();
    for (name, edges) in &crates() {
        let cyclic = in_cycles(edges);
        if !cyclic.is_empty() {
            println!("{name}: {cyclic:?}");
            found.push((name.clone(), cyclic.len()));
        }
    }
    exceptions(&found, CYCLES, "modules that use each other in a circle (how many)");
}

#[test]
fn a_cycle_is_seen() {
    let of = |files: &[(&str, &str)]| {
        let parsed: Vec<_> = files.iter().map(|(f, t)| (f.to_string(), syntax(t))).collect();
        let files: Vec<_> = parsed.iter().map(|(f, s)| (f.clone(), s)).collect();
        in_cycles(&edges(&files)).into_iter().cloned().collect::<Vec<_>>()
    };
    let lib = ("lib.rs", "pub use b::Thing; mod a; mod b;");
    assert!(of(&[lib, ("a.rs", "use crate::b::Thing;"), ("b.rs", "pub struct Thing;")]).is_empty());
    assert_eq!(of(&[lib, ("a.rs", "fn f() -> crate::Thing {}"), ("b/c.rs", "use super::super::a::f;")]), ["a", "b"]);
    assert!(of(&[lib, ("a.rs", "use crate::b;"), ("b.rs", "#[cfg(test)] mod tests { use crate::a; }")]).is_empty());
}
