//! Rules for each Rust file: its header, the length of its functions, what of the system it may touch.
//!
//! Owns the bounds and the exceptions to them. Never judges tests' use of the system. Invariant: what it says about a
//! file comes from its syntax tree (syn), not from its text, but for the header.

use super::parsed::{Parsed, of_all};
use super::tokens::asks_for_test;
use super::{none, root, rust};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of a function, at most, of Rust and of Python.
pub const FUNCTION_LINES_MAX: usize = 80;

/// Where `unsafe` may stand beside `crates/host`, and why.
const UNSAFE: &[&str] = &[
    // an allocator is unsafe by its trait, and must not be linked into what is loaded by others, as `host` is
    "crates/heap/src/lib.rs",
    // counts allocations by an allocator of its own, as a test can only do so
    "crates/cache/tests/allocations.rs",
];

/// What of `std` a crate may not touch outside of its tests: decisions and the cache's core are free of input, output
/// and time.
const NO_STD: &[(&str, &[&str])] = &[
    ("crates/engine/src/", &["fs", "net", "time", "thread", "process"]),
    ("crates/cache/src/", &["fs", "net", "time", "process"]),
];

/// What one file has of what the rules are about.
#[derive(Default)]
struct Seen {
    /// Functions: name and lines.
    functions: Vec<(String, usize)>,
    unsafe_lines: Vec<usize>,
    /// Modules of `std` outside of tests, with the line.
    std: Vec<(String, usize)>,
    in_test: usize,
}

/// Whether attributes say that an item is for tests alone.
pub fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("test")
            || (a.path().is_ident("cfg") && a.meta.require_list().is_ok_and(|l| asks_for_test(l.tokens.clone())))
    })
}

impl Seen {
    fn function(&mut self, name: &syn::Ident, whole: proc_macro2::Span) {
        self.functions.push((name.to_string(), whole.end().line - whole.start().line + 1));
    }

    fn names(&mut self, path: &[String], line: usize) {
        if let [first, second, ..] = path
            && first == "std"
            && self.in_test == 0
        {
            self.std.push((second.clone(), line));
        }
    }
}

/// All paths that a `use` names.
pub fn uses(tree: &syn::UseTree, before: &mut Vec<String>, each: &mut dyn FnMut(&[String])) {
    match tree {
        syn::UseTree::Path(p) => {
            before.push(p.ident.to_string());
            uses(&p.tree, before, each);
            before.pop();
        }
        syn::UseTree::Group(g) => g.items.iter().for_each(|t| uses(t, before, each)),
        syn::UseTree::Name(n) => with(before, n.ident.to_string(), each),
        syn::UseTree::Rename(r) => with(before, r.ident.to_string(), each),
        _ => each(before),
    }
}

fn with(before: &mut Vec<String>, last: String, each: &mut dyn FnMut(&[String])) {
    before.push(last);
    each(before);
    before.pop();
}

impl<'ast> Visit<'ast> for Seen {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(f) => &f.attrs[..],
            syn::Item::Mod(m) => &m.attrs[..],
            syn::Item::Use(u) => &u.attrs[..],
            syn::Item::Impl(i) => &i.attrs[..],
            _ => &[],
        };
        let test = usize::from(for_tests(attributes));
        self.in_test += test;
        visit::visit_item(self, item);
        self.in_test -= test;
    }

    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        self.function(&f.sig.ident, f.sig.span().join(f.block.span()).unwrap_or(f.block.span()));
        visit::visit_item_fn(self, f);
    }

    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        self.function(&f.sig.ident, f.sig.span().join(f.block.span()).unwrap_or(f.block.span()));
        visit::visit_impl_item_fn(self, f);
    }

    fn visit_expr_unsafe(&mut self, e: &'ast syn::ExprUnsafe) {
        self.unsafe_lines.push(e.span().start().line);
        visit::visit_expr_unsafe(self, e);
    }

    fn visit_item_impl(&mut self, i: &'ast syn::ItemImpl) {
        self.unsafe_lines.extend(i.unsafety.as_ref().map(|u| u.span.start().line));
        visit::visit_item_impl(self, i);
    }

    fn visit_signature(&mut self, s: &'ast syn::Signature) {
        if let syn::Safety::Unsafe(u) = &s.safety {
            self.unsafe_lines.push(u.span.start().line);
        }
        visit::visit_signature(self, s);
    }

    fn visit_item_use(&mut self, u: &'ast syn::ItemUse) {
        let line = u.span().start().line;
        uses(&u.tree, &mut Vec::new(), &mut |path| self.names(path, line));
    }

    fn visit_path(&mut self, p: &'ast syn::Path) {
        let path: Vec<_> = p.segments.iter().map(|s| s.ident.to_string()).collect();
        self.names(&path, p.span().start().line);
        visit::visit_path(self, p);
    }
}

/// What each file has, read once.
fn seen() -> &'static BTreeMap<String, Seen> {
    static READ: OnceLock<BTreeMap<String, Seen>> = OnceLock::new();
    let one = |f: &Parsed| {
        let mut seen = Seen::default();
        seen.visit_file(&f.syntax);
        (f.file.clone(), seen)
    };
    READ.get_or_init(|| of_all(move |files| files.iter().map(one).collect()))
}

#[test]
fn every_file_says_what_it_owns() {
    let headless = |(_, text): &(String, String)| !text.starts_with("//! ") && !text.starts_with("#!");
    let headless: Vec<_> = rust(&root()).into_iter().filter(headless).map(|(file, _)| file).collect();
    none(&headless, "files begin with //!: what they own, what they never do, their invariant");
}

#[test]
fn functions_are_short() {
    let mut long = Vec::new();
    for (file, seen) in seen() {
        let functions = seen.functions.iter().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        long.extend(functions.map(|(name, lines)| format!("{file}: {name}: {lines}")));
    }
    none(&long, "functions have 80 lines at most");
}

#[test]
fn unsafe_stands_in_host_alone() {
    let mut wrong = Vec::new();
    let mut used = Vec::new();
    for (file, seen) in seen() {
        let lines = &seen.unsafe_lines;
        if file.starts_with("crates/host/") || lines.is_empty() {
            continue;
        }
        match UNSAFE.iter().find(|u| *u == file) {
            Some(listed) => used.push(*listed),
            None => wrong.push(format!("{file}:{lines:?}")),
        }
    }
    let needless = UNSAFE.iter().filter(|u| !used.contains(u));
    wrong.extend(needless.map(|u| format!("{u}: needs no exception any more")));
    none(&wrong, "unsafe outside of crates/host");
}

#[test]
fn decisions_touch_no_files_no_network_and_no_clock() {
    let mut wrong = Vec::new();
    for (file, seen) in seen() {
        let Some((_, not)) = NO_STD.iter().find(|(below, _)| file.starts_with(below)) else { continue };
        // Modules of tests that are files of their own are named so.
        if file.ends_with("/tests.rs") || file.contains("/tests/") {
            continue;
        }
        let named = seen.std.iter().filter(|(module, _)| not.contains(&module.as_str()));
        wrong.extend(named.map(|(module, line)| format!("{file}:{line}: std::{module}")));
    }
    none(&wrong, "what a crate may not touch of the standard library");
}
