//! Dependencies: each that a `Cargo.toml` names is used, where it says, and each feature asked for has a reason.
//!
//! Owns the reasons of those that no source names. Never asks whether a use is needed: who reads the source does.
//! Invariant: a reason that is not needed any more has to go.

use super::tests_only::is_test_file;
use super::tokens::identifiers;
use super::{none, root, rust};
use std::collections::{BTreeMap, BTreeSet};

/// Dependencies that no source of theirs names, and why they stand there.
const UNNAMED: &[(&str, &str, &str)] = &[];

/// What shows that a feature is needed: a name in the sources of those that use the library; or, in quotes, the reason
/// where no name shows it.
const FEATURES: &[(&str, &str, &str)] = &[
    ("axum", "http1", "'what the socket speaks'"),
    ("axum", "json", "Json"),
    ("axum", "query", "Query"),
    ("axum", "tokio", "serve"),
    ("chrono", "std", "SystemTime"),
    ("clap", "derive", "Parser"),
    ("clap", "env", "env"),
    ("clap", "wrap_help", "'help as wide as the terminal'"),
    ("highway", "std", "'the fastest instructions are found while it runs'"),
    ("hyper", "client", "client"),
    ("hyper", "http1", "http1"),
    ("hyper", "server", "server"),
    ("hyper-util", "service", "service"),
    ("hyper-util", "tokio", "TokioIo"),
    ("imago", "sync", "'images without an async runtime'"),
    ("parquet", "zstd", "'recordings are compressed with it'"),
    ("plotters", "ab_glyph", "'text without the system's fonts'"),
    ("plotters", "bitmap_backend", "BitMapBackend"),
    ("plotters", "line_series", "LineSeries"),
    ("plotters", "svg_backend", "SVGBackend"),
    ("prometheus", "process", "process_collector"),
    ("proc-macro2", "span-locations", "span"),
    ("proptest", "std", "'collections of the standard library'"),
    ("pyo3", "abi3-py39", "'one wheel for all Pythons'"),
    ("pyo3", "extension-module", "'Python brings itself'"),
    ("rustix", "event", "event"),
    ("rustix", "fs", "fs"),
    ("rustix", "mm", "mm"),
    ("rustix", "mount", "mount"),
    ("rustix", "net", "net"),
    ("rustix", "pipe", "pipe"),
    ("rustix", "process", "process"),
    ("rustix", "thread", "thread"),
    ("rustix", "time", "time"),
    ("rustls", "ring", "ring"),
    ("rustls", "std", "ServerConnection"),
    ("rustls", "tls12", "'clients that are older than TLS 1.3'"),
    ("serde", "derive", "Deserialize"),
    ("syn", "full", "Item"),
    ("syn", "parsing", "parse_file"),
    ("syn", "printing", "Spanned"),
    ("syn", "visit", "Visit"),
    ("tokio", "macros", "select"),
    ("tokio", "net", "UnixListener"),
    ("tokio", "rt", "runtime"),
    ("tokio", "signal", "signal"),
    ("tokio", "sync", "sync"),
    ("tokio", "time", "time"),
    ("tracing-subscriber", "env-filter", "EnvFilter"),
    ("tracing-subscriber", "json", "json"),
    ("vhost", "vhost-user-backend", "backend"),
    ("vhost", "vhost-user-frontend", "vhost_user"),
    ("vm-memory", "backend-mmap", "GuestMemoryMmap"),
    ("nix", "process", "process"),
    ("nix", "signal", "signal"),
    ("nix", "time", "time"),
];

/// A `Cargo.toml`.
fn manifest(path: &str) -> toml::Table {
    std::fs::read_to_string(root().join(path)).unwrap().parse().unwrap()
}

/// Folders of the workspace's members.
fn members() -> Vec<String> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let crates = crates.map(|e| format!("crates/{}", e.unwrap().file_name().into_string().unwrap()));
    let mut members: Vec<_> = crates.chain(["bench/driver".to_string(), "fuzz".to_string()]).collect();
    members.sort();
    members
}

/// Names in one table of dependencies, those for some targets among them.
fn table(manifest: &toml::Table, kind: &str) -> BTreeSet<String> {
    let names =
        |t: &toml::Table| t.get(kind).and_then(toml::Value::as_table).map(|t| t.keys().cloned().collect::<Vec<_>>());
    let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten();
    let of_targets = targets.filter_map(|(_, t)| t.as_table()).filter_map(names);
    names(manifest).into_iter().chain(of_targets).flatten().collect()
}

/// What the sources of a member name: its product, and all of it.
fn named(files: &[(String, String)], member: &str) -> [BTreeSet<String>; 2] {
    let mut both = [BTreeSet::new(), BTreeSet::new()];
    for (file, _) in files {
        let Some(below) = file.strip_prefix(member).and_then(|f| f.strip_prefix('/')) else { continue };
        let product = below.starts_with("src/") || below.starts_with("fuzz_targets/") || below == "build.rs";
        let [without_tests, all] = identifiers(file);
        if product && !is_test_file(file) {
            both[0].extend(without_tests.keys().cloned());
        }
        both[1].extend(all.keys().cloned());
    }
    both
}

#[test]
fn every_dependency_is_used_where_it_stands() {
    let files = rust(&root());
    let mut wrong = Vec::new();
    let mut asked = BTreeSet::new();
    let mut needed = BTreeSet::new();
    for member in members() {
        let manifest = manifest(&format!("{member}/Cargo.toml"));
        let [product, all] = named(&files, &member);
        for (kind, seen) in [("dependencies", &product), ("build-dependencies", &product), ("dev-dependencies", &all)] {
            for name in table(&manifest, kind) {
                asked.insert(name.clone());
                let is_used = seen.contains(&name.replace('-', "_"));
                let excused = UNNAMED.iter().any(|(m, n, _)| *m == member && *n == name);
                if excused {
                    needed.insert((member.clone(), name.clone()));
                }
                if !is_used && !excused {
                    wrong.push(format!("{member}/Cargo.toml: {name} stands in [{kind}], and nothing of that names it"));
                }
                if is_used && excused {
                    wrong.push(format!("{member}: {name} is named now and needs no exception"));
                }
            }
        }
    }
    let gone = UNNAMED.iter().filter(|(m, n, _)| !needed.contains(&(m.to_string(), n.to_string())));
    wrong.extend(gone.map(|(m, n, _)| format!("{m}: {n} needs no exception any more")));
    let workspace = manifest("Cargo.toml");
    let shared = workspace["workspace"].as_table().unwrap();
    let unasked = table(shared, "dependencies").difference(&asked).cloned().collect::<Vec<_>>();
    wrong.extend(unasked.iter().map(|n| format!("Cargo.toml: nobody takes {n}")));
    none(&wrong, "dependencies that nothing uses");
}

#[test]
fn every_feature_is_asked_for_with_a_reason() {
    let files = rust(&root());
    let workspace = manifest("Cargo.toml");
    let shared = workspace["workspace"]["dependencies"].as_table().unwrap();
    let mut users = BTreeMap::<String, BTreeSet<String>>::new();
    for member in members() {
        let manifest = manifest(&format!("{member}/Cargo.toml"));
        let [_, all] = named(&files, &member);
        for name in ["dependencies", "dev-dependencies"].iter().flat_map(|k| table(&manifest, k)) {
            users.entry(name).or_default().extend(all.iter().cloned());
        }
    }
    let mut wrong = Vec::new();
    let mut asked = BTreeSet::new();
    for (name, value) in shared {
        let features = value.get("features").and_then(toml::Value::as_array).into_iter().flatten();
        for feature in features.filter_map(toml::Value::as_str) {
            asked.insert((name.as_str(), feature));
            match FEATURES.iter().find(|(n, f, _)| n == name && *f == feature) {
                None => wrong.push(format!("{name}, {feature}: what needs it is not in the table")),
                Some((.., reason)) if reason.starts_with('\'') => {}
                Some((.., witness)) if users.get(name).is_some_and(|u| u.contains(*witness)) => {}
                Some((.., witness)) => {
                    wrong.push(format!("{name}, {feature}: {witness} is named nowhere where {name} is used"))
                }
            }
        }
    }
    let gone = FEATURES.iter().filter(|(n, f, _)| !asked.contains(&(*n, *f)));
    wrong.extend(gone.map(|(n, f, _)| format!("{n}, {f}: nobody asks for it; take it from the table")));
    none(&wrong, "features that nothing needs");
}
