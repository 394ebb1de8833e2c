//! Files of the kernel, and the one in which settings of KSM are kept, that may contain anything.
//!
//! Owns the targets, never a parser. Invariant: as for all targets, a panic is a defect of the parser: any bytes give
//! values within their bounds, or nothing.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use undercroft_host::{control_group, foreign};
use undercroft_hostmem::ksm::{self, Keeper, Ksm};
use undercroft_hostmem::pressure::parse;
use undercroft_hostmem::scan::{arguments::Arguments, vm};

/// The files of KSM that the target has, and what stands in them before each input.
const FILES: [(&str, &str); 4] =
    [("run", "1\n"), ("pages_to_scan", "4000\n"), ("smart_scan", "1\n"), ("advisor_mode", "none [scan-time]\n")];
/// Stands in an input for the machine's boot, of which a file has to be to be used.
const THIS_BOOT: &str = "THIS-BOOT";

/// Files of /proc, /sys and control groups, and the file of saved settings: any bytes give values or nothing.
pub fn kernel_files(data: &[u8]) {
    merging(data);
    pressure(data);
    if data.starts_with(b"{") {
        saved_settings(data);
    }
}

/// # Panics
/// If a result breaks its bounds.
fn merging(data: &[u8]) {
    use ksm::parse;
    let text = String::from_utf8_lossy(data);
    let _ = parse::number(&text);
    if let Some((chosen, all)) = parse::choice(&text) {
        assert!(all.contains(&chosen), "the chosen value is none of the possible ones");
    }
    assert!(parse::ksm_stat(&text).len() <= parse::STAT_LINES_MAX);
    let ram = parse::smaps(data).unwrap_or_default();
    assert!(ram.merged_bytes <= ram.private_bytes(), "more is merged than there is");
    assert!(ram.backing.len() <= parse::BACKING_MAX);
}

/// # Panics
/// If a result breaks its bounds.
fn pressure(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(m) = parse::meminfo(&text) {
        assert!(m.free_bytes <= m.total_bytes, "more memory is free than there is");
    }
    let _ = parse::stalled_us(&text);
    let _ = (control_group::field(&text, "max"), control_group::limit(&text));
    let paths = control_group::own_groups(&text);
    for path in paths.v2.iter().chain(paths.memory_v1.iter()) {
        assert!(path.starts_with('/') && !path.split('/').any(|p| p == ".."), "a path leads out of the tree");
    }
    let mounts = control_group::mounts(&text);
    assert!(mounts.v2.is_none_or(|m| m.at.is_absolute()) && mounts.memory_v1.is_none_or(|m| m.at.is_absolute()));
}

/// What a directory with files of KSM has: names and contents.
fn contents(kernel: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(kernel).expect("a directory").map(|e| e.expect("an entry"));
    let read = |e: fs::DirEntry| {
        (e.file_name().to_string_lossy().into_owned(), fs::read_to_string(e.path()).expect("text was written"))
    };
    let mut all: Vec<_> = entries.map(read).collect();
    all.sort();
    all
}

/// A daemon that was killed has left these bytes as what it found: the next one puts back only what is a setting, to a
/// value that the setting can have.
///
/// # Panics
/// If anything else is written.
fn saved_settings(data: &[u8]) {
    // One directory for each thread: a fuzzer calls millions of times.
    thread_local!(static PLACE: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) });
    let place = PLACE.take().unwrap_or_else(|| tempfile::tempdir().expect("a directory"));
    let (kernel, run) = (place.path().join("kernel"), place.path().join("run"));
    for dir in [&kernel, &run] {
        fs::create_dir_all(dir).expect("a directory");
    }
    for (name, value) in FILES {
        fs::write(kernel.join(name), value).expect("a file");
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let text = String::from_utf8_lossy(data).replace(THIS_BOOT, boot.trim());
    fs::write(run.join("ksm.saved"), text).expect("a file");
    let mut keeper = Keeper::new(Ksm::at(&kernel), &run);
    let done = keeper.recover().unwrap_or_default();
    drop(keeper);
    let after = contents(&kernel);
    assert_eq!(after.len(), FILES.len(), "files came or went: {after:?}");
    let mut changed = 0;
    for (name, value) in &after {
        let before = FILES.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        if before == Some(value.as_str()) {
            continue;
        }
        changed += 1;
        let fits = match name.as_str() {
            "run" => matches!(value.trim(), "0" | "1" | "2"),
            "advisor_mode" => matches!(value.trim(), "none" | "scan-time"),
            _ => !value.trim().is_empty() && value.trim().bytes().all(|b| b.is_ascii_digit()),
        };
        assert!(fits, "{name} was set to {value:?}");
    }
    assert!(changed <= done.len(), "{changed} settings were changed, and the report says {done:?}");
    let around = fs::read_dir(place.path()).expect("a directory").count();
    assert_eq!(around, 2, "something was written outside of the directories");
    PLACE.set(Some(place));
}

/// What the scanner reads about other processes: maps, pagemap entries, command lines, KSM statistics.
///
/// # Panics
/// If a result breaks its bounds.
pub fn proc_files(data: &[u8]) {
    let maps = foreign::parse_maps(data);
    for pair in maps.windows(2) {
        assert!(pair[0].pages.end() <= pair[1].pages.first, "mappings in order");
    }
    assert!(maps.iter().all(|m| m.pages.count > 0));
    for word in data.as_chunks::<8>().0 {
        let entry = u64::from_ne_bytes(*word);
        let flags = foreign::entry_flags(entry);
        assert_eq!(foreign::entry_frame(entry).is_some(), flags.has(foreign::PageFlags::PRESENT) && entry << 9 != 0);
    }
    let said = Arguments::parse(data);
    assert!(said.images.iter().all(|i| !i.as_os_str().is_empty()));
    vm::ksm_pages(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What the fuzz targets do at length.
        #[test]
        fn no_bytes_panic(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            kernel_files(&data);
            proc_files(&data);
        }

        #[test]
        fn nor_do_odd_lines(a in "\\PC{0,12}", b in "[0-9]{0,25}", c in "[/.a-z]{0,12}") {
            for text in [
                format!("MemTotal:{b} kB\nMemFree:{b}0 kB\nMemAvailable: {b}1 kB"),
                format!("some {a} total={b}"),
                format!("0::{c}\n4:memory:{c}"),
                format!("1 2 0:1 / /{c} {a} - cgroup2 x {a}"),
                format!("max {b}"),
            ] {
                pressure(text.as_bytes());
            }
        }

        #[test]
        fn nor_do_odd_mappings(size in "[0-9]{0,30}", flags in "[a-z ]{0,20}", name in "\\PC{0,20}") {
            let sizes = format!("Size: {size} kB\nRss: {size} kB\nKSM: {size} kB\nVmFlags: dc {flags}\n");
            merging(format!("7f00-7f10 rw-s 0 00:00 0 {name}\n{sizes}").repeat(3).as_bytes());
        }

        #[test]
        fn nor_do_odd_words(words in "(-drive|-name|-blockdev|file=|[,{}\":a0= \\-\\n\\x00rw:]){0,60}") {
            proc_files(words.as_bytes());
        }

        #[test]
        fn only_settings_come_back(
            name in "(run|pages_to_scan|smart_scan|advisor_mode|\\.\\./x|\\PC{0,6})",
            found in "(0|1|3|none|scan-time|[0-9]{0,4}|\\PC{0,4})",
            wrote in "(1|4000|scan-time)",
        ) {
            let entry = serde_json::json!({ "name": name, "found": found, "wrote": wrote });
            saved_settings(serde_json::json!({ "boot": THIS_BOOT, "entries": [entry] }).to_string().as_bytes());
        }
    }

    /// That the file is read at all, and used: else the target above says nothing.
    #[test]
    fn a_good_file_is_used() {
        let place = tempfile::tempdir().expect("a directory");
        for (name, value) in FILES {
            fs::write(place.path().join(name), value).expect("a file");
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("this is Linux");
        let seed = include_str!("../seeds/kernel_files/saved-settings").replace(THIS_BOOT, boot.trim());
        fs::create_dir(place.path().join("of-the-daemon")).expect("a directory");
        fs::write(place.path().join("of-the-daemon/ksm.saved"), seed).expect("a file");
        let mut keeper = Keeper::new(Ksm::at(place.path()), &place.path().join("of-the-daemon"));
        assert_eq!(keeper.recover().expect("a good file"), ["run 1 -> 0", "pages_to_scan 4000 -> 100"]);
    }
}
