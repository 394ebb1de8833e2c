//! From paths to lines: one list, or a new one whenever it changes.
//!
//! Owns the printed form and the interval of looking. Invariants: a line of JSON is one whole list, in the form that
//! the API takes; while watching, no list is printed twice in a row.

use crate::device::Sysfs;
use crate::found::{ByteSpan, FoundRanges};
use crate::{RANGES_MAX, RangesError, walk};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Longest name of a VM, a disk or a container, in bytes: what the API takes.
const NAME_BYTES_MAX: usize = 64;

/// What to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// One line for the API.
    #[default]
    Json,
    /// A line for each extent, for people.
    Table,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangesOptions {
    /// Directories and files of the container.
    pub paths: Vec<PathBuf>,
    /// Undercroft's name for it.
    pub container: Option<String>,
    /// Undercroft's name for the disk: `VM:DISK`.
    pub disk: Option<String>,
    /// How to print.
    pub form: Form,
    /// Look again after this time, and print what has changed.
    pub watch: Option<Duration>,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkOutcome {
    /// Everything that was named is in the list.
    Whole,
    /// Some files could not be looked at; what is missing was said.
    Partial,
}

/// Checks what can be checked before looking at anything.
///
/// # Errors
/// `Usage`.
pub fn check_names(options: &RangesOptions) -> Result<(), RangesError> {
    let usage = |text: String| Err(RangesError::Usage(text));
    let can_be_one = |name: &str| {
        name.len() <= NAME_BYTES_MAX
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    if options.paths.is_empty() {
        return usage("no PATH is given; name the directories of the container".into());
    }
    match options.container.as_deref() {
        Some(name) if !can_be_one(name) => {
            let rule = "letters, digits, '-', '_' and '.', without its VM";
            return usage(format!("--container: \"{name}\" cannot be the name of a container; use {rule}"));
        }
        None if options.form == Form::Json => {
            return usage("--container NAME is missing: who is to have the ranges (or use --table)".into());
        }
        _ => {}
    }
    if let Some(name) = options.disk.as_deref()
        && !name.split_once(':').is_some_and(|(vm, disk)| can_be_one(vm) && can_be_one(disk))
    {
        return usage(format!("--disk: \"{name}\" is not the full name of a disk; write it as VM:DISK"));
    }
    Ok(())
}

/// Finds and prints. `complain` is told what was left out and why; `pause` waits between two looks, and ends the watch
/// when it returns false.
///
/// # Errors
/// See [`RangesError`]; while watching only those of the first look and of the output, for paths can come back.
pub fn run(
    options: &RangesOptions,
    sysfs: &Sysfs,
    out: &mut dyn Write,
    complain: &mut dyn FnMut(&str),
    pause: &mut dyn FnMut(Duration) -> bool,
) -> Result<WalkOutcome, RangesError> {
    check_names(options)?;
    let (mut printed, mut told, mut outcome) = (String::new(), Vec::new(), WalkOutcome::Whole);
    loop {
        let remarks = match walk::find(&options.paths, sysfs) {
            Ok(found) => {
                outcome = if found.unread > 0 { WalkOutcome::Partial } else { WalkOutcome::Whole };
                let mut remarks = found.remarks();
                let text = match options.form {
                    Form::Json => list(options, &found, &mut remarks)?,
                    Form::Table => table(&found),
                };
                if text != printed {
                    out.write_all(text.as_bytes())?;
                    out.flush()?;
                    printed = text;
                }
                remarks
            }
            Err(e) if options.watch.is_some() && !printed.is_empty() => {
                vec![format!("{e} (the list stays as it was)")]
            }
            Err(e) => return Err(e),
        };
        if remarks != told {
            remarks.iter().for_each(|r| complain(r));
            told = remarks;
        }
        match options.watch {
            Some(interval) if pause(interval) => {}
            _ => return Ok(outcome),
        }
    }
}

/// The list, as the API takes it. Names are such that nothing in them has to be escaped.
fn list(options: &RangesOptions, found: &FoundRanges, remarks: &mut Vec<String>) -> Result<String, RangesError> {
    let container = options.container.as_deref().unwrap_or_default();
    let Some(disk) = options.disk.as_deref() else {
        let seen = found.disk.as_ref().map_or_else(String::new, |d| {
            let serial = d.serial.as_ref().map_or_else(String::new, |s| format!(", whose serial number is {s}"));
            format!(": the files are on {}{serial}", d.name)
        });
        let remedy = "give Undercroft's name for it, VM:DISK, as `undercroft status` shows it on the host";
        return Err(RangesError::Usage(format!("--disk NAME is missing{seen}; {remedy}")));
    };
    let spans = found.spans();
    if spans.len() > RANGES_MAX {
        let count = spans.len();
        remarks.push(format!(
            "{count} ranges, and the API takes at most {RANGES_MAX} of a disk: defragment the files (e4defrag, \
             xfs_fsr), or name fewer"
        ));
    }
    let mut text = format!("{{\"disk\":\"{disk}\",\"container\":\"{container}\",\"ranges\":[");
    for (n, ByteSpan { start, end }) in spans.into_iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{{\"offset_bytes\":{start},\"length_bytes\":{}}}", end - start);
    }
    text.push_str("]}\n");
    Ok(text)
}

fn table(found: &FoundRanges) -> String {
    let mut text = format!("{:>16} {:>14}  FILE\n", "OFFSET", "BYTES");
    for piece in &found.pieces {
        let ByteSpan { start, end } = piece.span;
        let file = found.files[piece.file].display();
        let _ = writeln!(text, "{start:>16} {:>14}  {file}", end - start);
    }
    let spans = found.spans();
    let bytes: u64 = spans.iter().map(|s| s.end - s.start).sum();
    let on = found.disk.as_ref().map_or_else(String::new, |d| {
        let serial = d.serial.as_ref().map_or_else(String::new, |s| format!(" (serial number {s})"));
        format!(" on {}{serial}", d.name)
    });
    let _ = writeln!(
        text,
        "{} files, {} extents in {} ranges, {bytes} bytes{on}",
        found.files.len(),
        found.pieces.len(),
        spans.len()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WholeDisk;
    use crate::found::FilePiece;
    use std::os::unix::fs::MetadataExt;

    fn options(words: &[&str]) -> RangesOptions {
        let [container, disk, paths @ ..] = words else { panic!("too few") };
        let some = |t: &str| (!t.is_empty()).then(|| t.to_string());
        RangesOptions {
            paths: paths.iter().map(PathBuf::from).collect(),
            container: some(container),
            disk: some(disk),
            ..RangesOptions::default()
        }
    }

    #[test]
    fn a_list_is_json_of_the_apis_form() {
        let piece = |start, end| FilePiece { span: ByteSpan { start, end }, file: 0 };
        let found = FoundRanges {
            disk: Some(WholeDisk {
                name: "vda".into(),
                serial: Some("web-root".into()),
                start_bytes: 0,
                size_bytes: 1 << 30,
            }),
            files: vec!["/a".into()],
            pieces: vec![piece(0, 4096), piece(4096, 8192), piece(1 << 20, 1 << 21)],
            ..FoundRanges::default()
        };
        let text = list(&options(&["shop", "web:root", "/"]), &found, &mut Vec::new()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let range = |o: u64, l: u64| serde_json::json!({"offset_bytes": o, "length_bytes": l});
        let ranges = [range(0, 8192), range(1 << 20, 1 << 20)];
        assert_eq!(json, serde_json::json!({"disk": "web:root", "container": "shop", "ranges": ranges}));
        assert_eq!(text.matches('\n').count(), 1);
        let e = list(&options(&["shop", "", "/"]), &found, &mut Vec::new()).unwrap_err().to_string();
        assert!(e.contains("--disk NAME is missing") && e.contains("vda, whose serial number is web-root"), "{e}");
        let shown = table(&found);
        assert!(shown.contains("         1048576        1048576  /a\n"), "{shown}");
        assert!(
            shown.ends_with("1 files, 3 extents in 2 ranges, 1056768 bytes on vda (serial number web-root)\n"),
            "{shown}"
        );
        let many = (0..=RANGES_MAX as u64).map(|n| piece(n * 8192, n * 8192 + 1)).collect();
        let mut remarks = Vec::new();
        list(&options(&["shop", "web:root", "/"]), &FoundRanges { pieces: many, ..found }, &mut remarks).unwrap();
        assert!(remarks[0].contains("defragment"));
    }

    #[test]
    fn bad_names_are_refused_before_anything_is_read() {
        for (words, said) in [
            (["", "web:root", "/"], "--container NAME is missing"),
            (["web/shop", "web:root", "/"], "cannot be the name of a container"),
            (["shop\"", "web:root", "/"], "cannot be the name of a container"),
            (["shop", "root", "/"], "VM:DISK"),
        ] {
            let e = check_names(&options(&words)).unwrap_err().to_string();
            assert!(e.contains(said), "{e}");
        }
        assert!(check_names(&options(&["shop", "web:root"])).unwrap_err().to_string().contains("no PATH"));
        check_names(&RangesOptions { form: Form::Table, ..options(&["", "", "/"]) }).unwrap();
    }

    /// Grown and deleted files give a new line each, nothing changed gives none, and a path that goes keeps the list.
    #[test]
    fn a_watch_prints_what_changes() {
        let dir = tempfile::tempdir_in(std::env::var_os("UNDERCROFT_TEST_DIR").unwrap_or("/var/tmp".into())).unwrap();
        let sys = tempfile::tempdir().unwrap();
        let device = std::fs::metadata(dir.path()).unwrap().dev();
        let number = format!("dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        std::fs::create_dir_all(sys.path().join(&number)).unwrap();
        std::fs::write(sys.path().join(&number).join("size"), (1u64 << 50).to_string()).unwrap();
        let files = dir.path().join("files");
        std::fs::create_dir(&files).unwrap();
        let file = |name: &str| files.join(name);
        std::fs::write(file("a"), [1; 8192]).unwrap();
        let sysfs = Sysfs::at(sys.path());
        if let Err(e) = walk::find(std::slice::from_ref(&files), &sysfs) {
            return undercroft_skips::skip(format_args!(
                "the tests' directory is on no disk whose files have places: {e}"
            ));
        }
        let options = RangesOptions {
            watch: Some(Duration::from_secs(9)),
            ..options(&["shop", "web:root", files.to_str().unwrap()])
        };
        let (mut out, mut said, mut step) = (Vec::new(), Vec::new(), 0);
        let mut pause = |interval: Duration| {
            assert_eq!(interval, Duration::from_secs(9));
            step += 1;
            match step {
                1 => {}
                2 => std::fs::write(file("b"), [2; 65536]).unwrap(),
                3 => std::fs::remove_file(file("a")).unwrap(),
                4 => std::fs::rename(&files, dir.path().join("gone")).unwrap(),
                5 => std::fs::rename(dir.path().join("gone"), &files).unwrap(),
                _ => return false,
            }
            true
        };
        let outcome = run(&options, &sysfs, &mut out, &mut |r| said.push(r.to_string()), &mut pause).unwrap();
        assert_eq!(outcome, WalkOutcome::Whole);
        let bytes = |line: &str| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let of = |r: &serde_json::Value| r["length_bytes"].as_u64().unwrap();
            json["ranges"].as_array().unwrap().iter().map(of).sum::<u64>()
        };
        let lines: Vec<_> = std::str::from_utf8(&out).unwrap().lines().map(bytes).collect();
        assert_eq!(lines, [8192, 8192 + 65536, 65536]);
        assert!(said.len() == 1 && said[0].contains("the list stays as it was"), "{said:?}");
    }
}
