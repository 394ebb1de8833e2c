//! Which crates may use which, and which libraries only some may.
//!
//! Owns the table of the house (`ARCHITECTURE.md` describes it). Never looks at development dependencies: tests may use
//! what they like. Invariant: the table is exact, so a dependency that goes has to go from here.

use super::tests_only::is_test_file;
use super::tokens::identifiers;
use super::{none, root, rust};
use std::collections::{BTreeMap, BTreeSet};

/// What each crate may use of ours. Order: those below first.
pub const HOUSE: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("host", &[]),
    ("heap", &[]),
    ("trace", &["units"]),
    ("skips", &[]),
    ("engine", &[]),
    ("ranges", &["host"]),
    ("cache", &["engine", "host", "units"]),
    ("testkit", &["cache", "engine", "host"]),
    ("study", &["cache", "engine", "trace", "units"]),
    ("python", &["engine", "study", "trace", "units"]),
    ("config", &["cache", "engine", "host", "units"]),
    ("backend", &["cache", "config", "host", "units"]),
    ("api", &["cache", "config", "host", "ranges", "units"]),
    ("hostmem", &["api", "cache", "config", "host", "units"]),
    ("frontend", &["cache", "config", "host", "hostmem"]),
    ("porttest", &["cache", "engine", "frontend", "host", "testkit"]),
    ("http", &["api", "cache", "config", "frontend", "host", "hostmem"]),
    (
        "daemon",
        &["api", "backend", "cache", "config", "engine", "frontend", "host", "hostmem", "http", "trace", "units"],
    ),
    ("volumes", &["api", "config", "frontend", "host", "units"]),
    (
        "undercroft",
        &[
            "api", "backend", "config", "daemon", "engine", "heap", "host", "hostmem", "http", "ranges", "study",
            "trace", "units", "volumes",
        ],
    ),
];

/// Libraries that only these may use.
const KEPT_TO: &[(&str, &[&str])] = &[
    ("tokio", &["api", "http", "volumes"]),
    ("axum", &["http", "volumes"]),
    ("io-uring", &["host"]),
    ("libc", &["host"]),
    ("clap", &["config", "undercroft"]),
    ("anyhow", &["api", "undercroft"]),
    ("imago", &["backend", "host"]),
];

/// Where the async runtime may be named, and `async` written: the control API, its client, and the socket of the volume
/// plugin. Nothing else waits in that way.
const ASYNC: &[&str] = &["crates/http/src/", "crates/api/src/client.rs", "crates/volumes/src/plugin/server.rs"];

/// The names in a crate's `[dependencies]`, those for some targets or features among them.
fn dependencies(name: &str) -> BTreeSet<String> {
    let path = root().join("crates").join(name).join("Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    let of = |table: Option<&toml::Value>| {
        let names = table.and_then(toml::Value::as_table).map(|t| t.keys().cloned().collect::<Vec<_>>());
        names.unwrap_or_default()
    };
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flatten().flat_map(|(_, t)| of(t.get("dependencies")));
    of(manifest.get("dependencies")).into_iter().chain(targets).collect()
}

/// Of what a crate uses, what it does not reach through another that it uses: the arrows of a picture.
pub fn uses_directly(name: &str) -> Vec<&'static str> {
    let of = |name: &str| HOUSE.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, uses)| *uses);
    fn reaches(from: &str, to: &str, of: &dyn Fn(&str) -> &'static [&'static str]) -> bool {
        of(from).iter().any(|u| *u == to || reaches(u, to, of))
    }
    let uses = of(name);
    uses.iter().filter(|to| !uses.iter().any(|via| via != *to && reaches(via, to, &of))).copied().collect()
}

#[test]
fn crates_use_what_the_table_says_and_nothing_else() {
    let table: BTreeMap<_, _> = HOUSE.iter().copied().collect();
    let mut wrong = Vec::new();
    let here = std::fs::read_dir(root().join("crates")).unwrap();
    let here: BTreeSet<_> = here.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    wrong.extend(here.iter().filter(|c| !table.contains_key(c.as_str())).map(|c| format!("{c} is not in the table")));
    let mut below = BTreeSet::new();
    for (name, may) in HOUSE {
        assert!(here.contains(*name), "{name} is in the table, and there is no such crate");
        let uses = dependencies(name);
        let ours: BTreeSet<_> = uses.iter().filter_map(|d| d.strip_prefix("undercroft-")).collect();
        let may: BTreeSet<_> = may.iter().copied().collect();
        wrong.extend(ours.difference(&may).map(|d| format!("{name} uses {d}, which the table does not allow")));
        wrong
            .extend(may.difference(&ours).map(|d| format!("{name} may use {d}, and does not: take it from the table")));
        wrong.extend(may.difference(&below).map(|d| format!("{name} uses {d}, which stands above it in the table")));
        below.insert(*name);
    }
    none(&wrong, "imports between crates");
}

#[test]
fn libraries_stay_where_they_belong() {
    let mut wrong = Vec::new();
    for (library, may) in KEPT_TO {
        for (name, _) in HOUSE {
            if dependencies(name).contains(*library) != may.contains(name) {
                wrong.push(format!("{library} and {name}: the table of libraries says otherwise"));
            }
        }
    }
    none(&wrong, "libraries that only some crates may use");
}

#[test]
fn only_the_control_api_is_async() {
    let mut wrong = Vec::new();
    for (file, _) in rust(&root()) {
        let product = file.starts_with("crates/") && file.contains("/src/") && !is_test_file(&file);
        if !product || ASYNC.iter().any(|a| file.starts_with(a)) {
            continue;
        }
        let named = ["tokio", "async", "await"].iter().filter(|word| identifiers(&file)[0].contains_key(**word));
        wrong.extend(named.map(|word| format!("{file}: {word}")));
    }
    none(&wrong, "async code outside of the control API");
}
