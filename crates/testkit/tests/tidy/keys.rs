//! How many files a key of the configuration takes: four for what a disk is told while it serves, and what it is for.
//!
//! Owns the list of those who name such a setting between the file and the core, each with its reason. Never reads a
//! configuration. Invariant: the list is exact, so that one more who names a setting shows here, and one who does no
//! longer has to go.

use super::tests_only::is_test_file;
use super::{none, root, rust};
use std::collections::BTreeSet;

/// Where a setting is declared, where it is read, where it is checked, and where the core takes it over.
const FILES: [&str; 4] = [
    "crates/config/src/keys/guests.rs",
    "crates/config/src/spec.rs",
    "crates/config/src/nodes.rs",
    "crates/cache/src/core/live.rs",
];

/// The keys of a setting that has several; of others the key has the setting's name.
const SEVERAL: (&str, [&str; 5]) = ("locking", ["lock", "lock_budget", "lock_held", "miss_table", "victim_buffer"]);

/// Who else names a setting of a disk, outside of the core, and what for.
const USES: &[(&str, &str, &str)] = &[
    ("crates/config/src/pools.rs", "hint", "a disk with a hint keeps its blocks apart"),
    ("crates/config/src/shares.rs", "hint", "what a share may grow to depends on it"),
    ("crates/daemon/src/service/division.rs", "hint", "`shares` shows it"),
    ("crates/daemon/src/service/file_hints.rs", "hint", "a file has it as an extended attribute"),
    ("crates/daemon/src/service/mod.rs", "readahead_bytes", "what it takes comes out of the share"),
    ("crates/daemon/src/service/record.rs", "readahead_bytes", "a replay reads ahead as far"),
    ("crates/daemon/src/service/record.rs", "exclusive", "a recording says whose cache it saw"),
    ("crates/daemon/src/service/shown.rs", "locking", "a disk that waits is shown with it"),
    ("crates/daemon/src/service/record.rs", "locking", "a replay locks the same"),
];

/// Who names `goal` above the engine, in how many lines, and what for. It stands for the keys of VMs, containers and
/// disks: such a key is declared, read and checked in the first three of [`FILES`], and everything else follows from
/// its declaration.
const NODE_USES: &[(&str, usize, &str)] = &[
    ("crates/api/src/shares.rs", 1, "`shares` shows it"),
    ("crates/config/src/change.rs", 3, "refused where no controller looks at it"),
    ("crates/config/src/live.rs", 3, "the body of `/v1/nodes` has it"),
    ("crates/config/src/pools.rs", 1, "a disk with a goal keeps its blocks apart"),
    ("crates/http/src/scope.rs", 1, "what a VM's own socket may set is a list"),
    ("crates/daemon/src/service/division.rs", 1, "`shares` shows it"),
    ("crates/daemon/src/service/shares.rs", 4, "the governor is told of it"),
    ("crates/undercroft/src/cli/operate/shares.rs", 1, "`shares` shows it"),
];

fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The settings of a disk that change while it serves.
fn settings() -> Vec<String> {
    let file = syn::parse_file(&text(FILES[3])).unwrap();
    let settings = file.items.iter().find_map(|i| match i {
        syn::Item::Struct(s) if s.ident == "DiskSettings" => Some(&s.fields),
        _ => None,
    });
    let settings = settings.expect("DiskSettings stands in the last of the files");
    settings.iter().filter_map(|f| Some(f.ident.as_ref()?.to_string())).collect()
}

#[test]
fn a_setting_of_a_disk_is_in_four_files() {
    let [declared, read, checked, _] = FILES.map(text);
    for field in settings() {
        let own = [field.strip_suffix("_bytes").unwrap_or(&field)];
        let (keys, ends) = if field == SEVERAL.0 { (&SEVERAL.1[..], ".") } else { (&own[..], ",") };
        for key in keys {
            assert!(declared.contains(&format!("\"{key}\"")), "{key} is not declared in {}", FILES[0]);
            assert!(read.contains(&format!("pub {key}: Option<")), "{key} is not read in {}", FILES[1]);
            let there = checked.contains(&format!("(DiskPlan, {key}, settings.{field}{ends}"));
            assert!(there, "{key} is not in {}", FILES[2]);
        }
    }
}

#[test]
fn nobody_else_names_a_setting_without_using_it() {
    let fields = settings();
    let mut found = BTreeSet::new();
    for (file, text) in rust(&root()) {
        // The engine, below the core, has settings of its own.
        let below = ["crates/cache/", "crates/engine/"].iter().any(|c| file.starts_with(c));
        let outside = file.starts_with("crates/") && file.contains("/src/") && !below;
        if !outside || is_test_file(&file) || FILES.contains(&file.as_str()) {
            continue;
        }
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        found.extend(fields.iter().filter(|f| product.contains(&format!("settings.{f}"))).map(|f| (file.clone(), f)));
    }
    let listed: BTreeSet<_> = USES.iter().map(|(file, field, _)| (*file, *field)).collect();
    let found: BTreeSet<_> = found.iter().map(|(file, field)| (file.as_str(), field.as_str())).collect();
    let more = found.difference(&listed).map(|(file, field)| format!("{file} names {field}, which is not listed"));
    let fewer = listed.difference(&found).map(|(file, field)| format!("{file} names {field} no longer"));
    none(&more.chain(fewer).collect::<Vec<_>>(), "pass all settings of a disk on together (DiskSettings)");
}

#[test]
fn a_key_of_nodes_is_named_where_it_is_of_use() {
    let mut found = BTreeSet::new();
    for (file, text) in rust(&root()) {
        let below = ["crates/engine/", "crates/study/", "crates/python/", "crates/testkit/"];
        let above = file.starts_with("crates/") && file.contains("/src/") && !below.iter().any(|c| file.starts_with(c));
        if !above || is_test_file(&file) || FILES.contains(&file.as_str()) {
            continue;
        }
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let names = |line: &&str| [".goal", "goal: ", "\"goal\"", "goal_of"].iter().any(|n| line.contains(n));
        let lines = product.lines().filter(names).count();
        if lines > 0 {
            found.insert((file, lines));
        }
    }
    let listed: BTreeSet<_> = NODE_USES.iter().map(|(file, lines, _)| (file.to_string(), *lines)).collect();
    let more = found.difference(&listed).map(|(file, lines)| format!("{file} names goal in {lines} lines"));
    let fewer = listed.difference(&found).map(|(file, lines)| format!("{file} no longer names it in {lines}"));
    none(&more.chain(fewer).collect::<Vec<_>>(), "what is alike for all keys of nodes follows from their declaration");
}
