//! How the program explains itself: usage errors, help, completions, pages, exit codes of output.
//!
//! Owns what is said without a daemon.

use super::place::{COMMANDS, Place, Said};
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn the_heap_is_in_large_pages_wherever_the_program_was_built() {
    let place = Place::new();
    let said = place.command(&["--version"]).env("_RJEM_MALLOC_CONF", "stats_print:true").output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(r#"opt.thp: "always""#), "build with the repository's .cargo/config.toml: {said}");
}

#[test]
fn usage_errors_are_2_and_help_is_0() {
    let p = Place::new();
    p.run(&[]).is(2, &[], &["Usage: undercroft [OPTIONS] <COMMAND>"]);
    p.run(&["serv"]).is(2, &[], &["similar subcommands exist: 'set', 'serve'"]);
    p.run(&["serve"]).is(2, &[], &["--image"]);
    p.run(&["serve", "x.toml", "--image", "a.raw"]).is(2, &[], &["cannot be used with"]);
    p.run(&["serve", "x.toml", "--memory", "1GiB"]).is(2, &[], &["cannot be used with", "--memory"]);
    p.run(&["serve", "-i", "a.raw", "--memory", "512M"]).is(
        2,
        &[],
        &["'512M' for '--memory", "ambiguous; write 512MiB"],
    );
    p.run(&["serve", "-i", "a.raw", "--policy", "lur"]).is(2, &[], &["possible values: fifo, lru"]);
    p.run(&["set", "a"]).is(2, &[], &["--size"]);
    p.run(&["set", "--size", "1GiB"]).is(2, &[], &["NAME"]);
    p.run(&["set", "a", "--memory", "1GiB"]).is(2, &[], &["cannot be used with"]);
    p.run(&["--version"]).is(0, &["undercroft 0."], &[]);
    p.run(&["version", "--json"]).is(0, &["\"api\": \"1\""], &[]);
}

#[test]
fn every_command_teaches_by_examples() {
    let p = Place::new();
    p.run(&["--help"]).is(0, &["Examples:", "Exit codes:", "UNDERCROFT_CONTROL"], &[]);
    for command in COMMANDS {
        let said = p.run(&[command, "--help"]).is(0, &["Usage: undercroft"], &[]);
        if command != "version" {
            assert!(
                said.out.contains("Examples:\n") && said.out.contains(&format!("undercroft {command}")),
                "{command}"
            );
        }
    }
}

/// What is said of each option in a page of help.
fn options(page: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in page.lines() {
        let begins = line.trim_start();
        if line.len() - begins.len() < 10 && begins.starts_with('-') {
            found.push(String::new());
        }
        found.last_mut().unwrap().push_str(&format!("{line}\n"));
    }
    found
}

#[test]
fn a_default_is_told_once() {
    let p = Place::new();
    let of_traces = ["info", "convert", "head", "split", "merge", "sample", "synth"];
    let pages = COMMANDS.iter().map(|c| vec![*c]).chain(of_traces.iter().map(|c| vec!["trace", *c]));
    for mut page in pages {
        page.push("--help");
        for option in options(&p.run(&page).is(0, &[], &[]).out) {
            assert!(option.matches("[default: ").count() < 2, "{}:\n{option}", page.join(" "));
        }
    }
}

#[test]
fn without_a_daemon_the_remedy_is_named() {
    let p = Place::new();
    for args in [
        &["status"][..],
        &["reload"],
        &["stop"],
        &["set", "a", "--poll", "0"],
        &["set", "--memory", "1GiB"],
        &["ksm", "off"],
        &["drop-cache", "a"],
        &["hot-set", "a"],
        &["attach-args", "a"],
    ] {
        p.run(args).is(
            1,
            &[],
            &["undercroft: no daemon answers at", "control.sock", "start one with `undercroft serve`"],
        );
    }
    drop(std::os::unix::net::UnixListener::bind(p.at("control.sock")).unwrap());
    p.run(&["status"]).is(1, &[], &["left over from a daemon that is gone"]);
}

#[test]
fn ksm_is_told_without_a_daemon_and_switched_with_one_only() {
    let p = Place::new();
    let here = Path::new("/sys/kernel/mm/ksm").exists();
    let said = p.run(&["ksm", "status"]).is(0, &[if here { "full scans" } else { "This kernel has no KSM" }], &[]);
    assert!(said.out.contains("No QEMU process is running") || said.out.contains("MERGEABLE"), "{}", said.out);
    let json: serde_json::Value =
        serde_json::from_str(&p.run(&["ksm", "status", "--json"]).is(0, &[], &[]).out).unwrap();
    assert_eq!((json["available"].as_bool(), json["settings"]["run"].is_i64()), (Some(here), here));
    p.run(&["ksm", "on"]).is(1, &[], &["warning: merging lets a guest find out", "no daemon answers at"]);
    p.run(&["ksm", "--help"]).is(0, &["WARNING, side channels", "whatever is set here"], &[]);
}

#[test]
fn a_full_disk_is_a_failure() {
    let p = Place::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let said = Said::from(p.command(&["openapi"]).stdout(full).output().unwrap(), &["openapi"]);
    said.is(1, &[], &["the output cannot be written"]);
}

#[test]
fn completions_are_good_scripts() {
    let p = Place::new();
    for (shell, check) in [("bash", "bash -n"), ("zsh", "zsh -n"), ("fish", "fish -n")] {
        let said = p.run(&["completions", shell]).is(0, &["attach-args", "drop-cache"], &[]);
        fs::write(p.at(shell), &said.out).unwrap();
        let (program, option) = check.split_once(' ').unwrap();
        match Command::new(program).arg(option).arg(p.at(shell)).output() {
            Ok(o) => {
                assert!(o.status.success() && o.stderr.is_empty(), "{shell}: {}", String::from_utf8_lossy(&o.stderr))
            }
            Err(_) => undercroft_skips::skip(format_args!("not installed: {program} (make setup installs it)")),
        }
    }
    p.run(&["completions", "cmd.exe"]).is(2, &[], &["possible values"]);
}

#[test]
fn man_pages_have_no_warnings() {
    let p = Place::new();
    p.run(&["man"]).is(0, &[".TH undercroft 1", "Examples:"], &[]);
    p.run(&["man", "--dir", "man"]).is(0, &[], &[]);
    let mut pages: Vec<String> = COMMANDS.iter().map(|c| format!("man/man1/undercroft-{c}.1")).collect();
    for (of, below) in [
        ("trace", &["info", "convert", "head", "split", "merge", "sample", "synth"][..]),
        ("lab", &["trace", "caches", "cores", "blocks", "response"]),
        ("ksm", &["status", "on", "off"]),
        ("ssd", &["start", "stop", "drop"]),
    ] {
        pages.extend(below.iter().map(|c| format!("man/man1/undercroft-{of}-{c}.1")));
    }
    pages.push("man/man1/undercroft.1".into());
    pages.push("man/man5/undercroft.toml.5".into());
    for page in &pages {
        assert!(p.at(page).exists(), "{page}");
        assert!(!fs::read_to_string(p.at(page)).unwrap().contains(".SH EXTRA"), "{page} has an empty section");
        let groff = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(p.at(page)).output();
        match groff {
            Ok(o) => {
                assert!(o.status.success() && o.stderr.is_empty(), "{page}: {}", String::from_utf8_lossy(&o.stderr))
            }
            Err(_) => undercroft_skips::skip("not installed: groff (make setup installs it)"),
        }
    }
    let count = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!(count(&p.at("man/man1")) + count(&p.at("man/man5")), pages.len(), "hidden commands have no page");
    fs::write(p.at("file"), "").unwrap();
    p.run(&["man", "--dir", "file/x"]).is(1, &[], &["cannot be written", "--dir"]);
}

#[test]
fn colours_are_where_they_are_asked_for_alone() {
    let p = Place::new();
    let plain = p.run(&["--help"]).is(0, &["Examples:", "--color"], &[]);
    assert!(!plain.out.contains('\x1b'), "nobody sees colours in a pipe: {}", plain.out);
    let coloured = p.run(&["--color", "always", "--help"]).is(0, &[], &[]);
    assert!(coloured.out.contains('\x1b'), "{}", coloured.out);
    // The same words, and whatever the environment says where they were asked for.
    let mut c = p.command(&["status", "--color=always"]);
    let said = Said::from(c.env("NO_COLOR", "1").output().unwrap(), &["status"]);
    assert!(said.err.contains("\x1b[") && said.err.contains("no daemon answers at"), "{}", said.err);
    let said = p.run(&["status", "--color", "never"]).is(1, &[], &["undercroft: no daemon answers at"]);
    assert!(!said.err.contains('\x1b'), "{}", said.err);
    p.run(&["--color", "sometimes", "status"]).is(2, &[], &["possible values: auto, always, never"]);
}
