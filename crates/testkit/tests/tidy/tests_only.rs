//! Test code stands in tests: no test outside of what `cfg(test)` guards, and no library of tests in the product.
//!
//! Owns which files are of tests, and the list of modules that serve tests and lie among a product's sources today.
//! Never judges crates that are for tests as a whole. Invariant: the list can only become shorter.

use super::parsed::{Parsed, of_all, syntax};
use super::source::for_tests;
use super::{exceptions, none};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use syn::visit::{self, Visit};

/// Crates that are for tests as a whole, and do not ship.
const FOR_TESTS_AS_A_WHOLE: &[&str] = &["porttest", "testkit"];

/// Names of modules that exist for tests, simulation or fuzzing.
const FOR_TESTS: &[&str] = &["exercise", "fault_injection", "faults", "fuzz", "mock", "ports_sim", "testing"];

/// Such modules among the sources of a product: crate, and how many files.
const AMONG_PRODUCTS: &[(&str, usize)] = &[("cache", 1), ("frontend", 1)];

/// Names of functions that put any bytes through parsers, which belong to `fuzz`.
const FOR_FUZZING: &[&str] = &["check_bytes", "exercise", "exercise_client"];

/// Whether a file of a crate's sources is of tests: by its name, or because a module above it is declared so.
pub fn is_test_file(file: &str) -> bool {
    static OF_TESTS: OnceLock<BTreeSet<String>> = OnceLock::new();
    let of_tests = || of_all(|files| files.iter().filter(|f| f.is_test).map(|f| f.file.clone()).collect());
    OF_TESTS.get_or_init(of_tests).contains(file)
}

/// The same, given the modules that files declare for tests alone.
pub fn is_among(file: &str, guarded: &BTreeSet<String>) -> bool {
    let by_name = file.ends_with("tests.rs") || file.split_once("/src/").is_some_and(|(_, b)| b.contains("tests/"));
    let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
    by_name || stem.match_indices('/').any(|(at, _)| guarded.contains(&stem[..at])) || guarded.contains(stem)
}

/// Modules that a file declares for tests alone, as paths without an ending.
pub fn guarded(file: &str, syntax: &syn::File) -> Vec<String> {
    let stem = file.trim_end_matches(".rs");
    let folder = match stem.rsplit_once('/') {
        Some((folder, "mod" | "lib" | "main")) => folder,
        _ => stem,
    };
    declared(syntax).into_iter().filter(|(_, guarded)| *guarded).map(|(m, _)| format!("{folder}/{m}")).collect()
}

/// Functions marked `#[test]` that no `cfg(test)` guards.
#[derive(Default)]
struct Unguarded {
    guards: usize,
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for Unguarded {
    fn visit_item_mod(&mut self, m: &'ast syn::ItemMod) {
        let guard = usize::from(for_tests(&m.attrs));
        self.guards += guard;
        visit::visit_item_mod(self, m);
        self.guards -= guard;
    }

    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        if self.guards == 0 && f.attrs.iter().any(|a| a.path().is_ident("test")) {
            self.found.push(f.sig.ident.to_string());
        }
        visit::visit_item_fn(self, f);
    }
}

/// Modules that a file declares for tests alone, or for all.
fn declared(syntax: &syn::File) -> Vec<(String, bool)> {
    let modules = syntax.items.iter().filter_map(|i| if let syn::Item::Mod(m) = i { Some(m) } else { None });
    modules.filter(|m| m.content.is_none()).map(|m| (m.ident.to_string(), for_tests(&m.attrs))).collect()
}

/// Whether a file has a function for fuzzing.
fn is_for_fuzzing(file: &syn::File) -> bool {
    file.items.iter().any(|i| matches!(i, syn::Item::Fn(f) if FOR_FUZZING.contains(&&*f.sig.ident.to_string())))
}

#[test]
fn functions_for_fuzzing_are_seen() {
    let is = |text: &str| is_for_fuzzing(&syntax(text));
    assert!(is("fn a() {} /// For the fuzzer.\npub fn check_bytes(data: &[u8]) { parse(data) }"));
    assert!(!is("pub fn parse(bytes: &[u8]) { check_bytes(bytes) }"));
}

/// What is wrong, and how many files for tests each crate has among its product's.
fn judge(files: &[Parsed]) -> (Vec<String>, BTreeMap<String, usize>) {
    let mut wrong = Vec::new();
    let mut among = BTreeMap::<String, usize>::new();
    for Parsed { file, syntax, is_test, .. } in files {
        let Some((own, below)) = file.strip_prefix("crates/").and_then(|f| f.split_once("/src/")) else { continue };
        for (module, guarded) in declared(syntax) {
            if (module == "tests" || module.ends_with("_tests")) && !guarded && !is_test {
                wrong.push(format!("{file}: module {module} is compiled into the product"));
            }
        }
        if *is_test {
            continue;
        }
        let mut seen = Unguarded::default();
        seen.visit_file(syntax);
        if !FOR_TESTS_AS_A_WHOLE.contains(&own) && is_for_fuzzing(syntax) {
            wrong
                .push(format!("{file}: a function for fuzzing stands among the product's code: fuzz/src is for these"));
        }
        wrong.extend(seen.found.iter().map(|f| format!("{file}: test {f} stands among the product's code")));
        let parts = below.trim_end_matches(".rs").split('/');
        if !FOR_TESTS_AS_A_WHOLE.contains(&own) && parts.into_iter().any(|p| FOR_TESTS.contains(&p)) {
            *among.entry(own.to_string()).or_default() += 1;
        }
    }
    (wrong, among)
}

#[test]
fn test_code_is_in_tests() {
    let (wrong, among) = of_all(judge);
    none(&wrong, "test code outside of tests");
    let among: Vec<_> = among.into_iter().collect();
    exceptions(&among, AMONG_PRODUCTS, "files for tests, simulation or fuzzing among a product's sources");
}
