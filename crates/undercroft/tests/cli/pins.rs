//! `pin`, `misses` and `why --block`: what they refuse, and what they show of a disk that nobody reads.
//!
//! Owns no image. Never reads a disk.

use super::place::{Place, Running, Said};
use std::fs;
use std::io::Write;
use std::process::Stdio;

/// The command with this on its standard input.
fn fed(p: &Place, args: &[&str], text: &str) -> Said {
    let mut c = p.command(args);
    let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that has refused something else has not read it.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    Said::from(child.wait_with_output().unwrap(), args)
}

#[test]
fn what_is_no_pin_is_a_usage_error() {
    let p = Place::new();
    p.run(&["pin"]).is(2, &[], &["DISK"]);
    p.run(&["pin", "a", "64MiB"]).is(2, &[], &["START..END or START+LENGTH"]);
    p.run(&["pin", "a", "2MiB..1MiB"]).is(2, &[], &["there is no byte in it"]);
    p.run(&["pin", "a", "0..64M"]).is(2, &[], &["ambiguous; write 64MiB"]);
    p.run(&["pin", "a", "--replace"]).is(2, &[], &["required"]);
    p.run(&["pin", "a", "--fit"]).is(2, &[], &["required"]);
    p.run(&["pin", "a", "--clear", "--boot"]).is(2, &[], &["cannot be used with"]);
    p.run(&["pin", "a", "--first", "60s"]).is(2, &[], &["--recording"]);
    p.run(&["pin", "a", "--most-missed", "9"]).is(2, &[], &["--recording"]);
    p.run(&["pin", "a", "--recording", "r", "--most-read", "0"]).is(2, &[], &["is not in"]);
    p.run(&["pin", "a", "--recording", "r", "--most-read", "1", "--most-missed", "1"]).is(
        2,
        &[],
        &["cannot be used with"],
    );
    p.run(&["misses", "a", "--list", "--json"]).is(2, &[], &["cannot be used with"]);
    p.run(&["pin", "a", "--boot", "--quiet", "10"]).is(2, &[], &["has no unit"]);
    p.run(&["why", "a", "--block", "0", "--last", "3"]).is(2, &[], &["cannot be used with"]);
    p.run(&["why", "a", "--block", "1G"]).is(2, &[], &["ambiguous"]);
    p.run(&["set", "a", "--lock-budget", "much"]).is(2, &[], &["is not a percentage"]);
    p.run(&["set", "a", "--lock-held", "yes"]).is(2, &[], &["true or false"]);
}

#[test]
fn without_a_daemon_nothing_is_pinned() {
    let p = Place::new();
    for args in [
        &["pin", "a"][..],
        &["pin", "web:a", "0..4KiB"],
        &["pin", "a", "--boot"],
        &["misses", "a"],
        &["why", "a", "--block", "0"],
    ] {
        p.run(args).is(1, &[], &["undercroft: no daemon answers at", "start one with `undercroft serve`"]);
    }
}

#[test]
fn a_disk_is_pinned_shown_and_refused() {
    let p = Place::new();
    let (daemon, _) = Running::start(&p, &["serve", "--image", "a.raw", "-f", "raw", "--memory", "64MiB"]);
    p.run(&["pin", "a"]).is(0, &["disk \"a\": nothing is pinned", "may be locked"], &[]);
    p.run(&["pin", "a", "0..64KiB", "128KiB+1"]).is(0, &["68KiB in 2 ranges pinned by hand", "before: 0B"], &[]);
    p.run(&["pin", "a"]).is(0, &["FROM", "128KiB", "132KiB"], &[]);
    p.run(&["status", "a"]).is(0, &["68KiB pinned; lock off"], &[]);
    let why = ["the block at 128KiB of disk \"a\"", "pinned by hand, as a part of 128KiB..132KiB", "read next"];
    p.run(&["why", "a", "--block", "129KiB"]).is(0, &why, &[]);
    p.run(&["why", "a", "--block", "1MiB"]).is(1, &[], &["has no byte 1048576: it ends after 1048576 bytes"]);
    p.run(&["why", "b", "--block", "0"]).is(1, &[], &["there is no disk \"b\""]);
    p.run(&["misses", "a"]).is(0, &["a: nothing has missed yet"], &[]);
    p.run(&["misses", "a", "--list"]).is(1, &[], &["a: nothing has missed yet"]);
    let none = r#"{"size_bytes": 1048576, "ranges": []}"#;
    fed(&p, &["pin", "a", "--replace", "--blocks", "-"], none).is(1, &[], &["names no block", "--clear unpins"]);
    p.run(&["misses", "b"]).is(1, &[], &["there is no VM, container or disk \"b\""]);
    p.run(&["pin", "b", "0..4KiB"]).is(1, &[], &["there is no disk \"b\""]);
    p.run(&["pin", "a", "1MiB+4KiB"]).is(1, &[], &["1MiB..1028KiB is not all on the disk, which has 1MiB"]);
    p.run(&["pin", "a", "--blocks", "gone"]).is(1, &[], &["gone cannot be read"]);
    p.run(&["pin", "a", "--recording", "a.raw"]).is(1, &[], &["`undercroft record`"]);
    fed(&p, &["pin", "a", "--blocks", "-"], "{}").is(1, &[], &["standard input", "missing field"]);
    let other = r#"{"size_bytes": 4096, "ranges": [[0, 1]]}"#;
    fed(&p, &["pin", "a", "--blocks", "-"], other).is(
        1,
        &[],
        &["is of a disk of 4096 bytes, and this one has 1048576"],
    );
    fed(&p, &["pin", "a", "--ranges", "-"], "").is(1, &[], &["holds no list of ranges: it is empty"]);
    let ranges = r#"{"disk": "web:a", "container": "c", "ranges": []}"#;
    fed(&p, &["pin", "a", "--ranges", "-"], ranges).is(1, &[], &["is of disk \"web:a\", not of \"a\""]);
    p.run(&["pin", "a", "0..4KiB", "--write", "none/list"]).is(1, &[], &["none/list cannot be written"]);
    // None of all that has pinned anything.
    let json: serde_json::Value = serde_json::from_str(&p.run(&["pin", "a", "--json"]).is(0, &[], &[]).out).unwrap();
    assert_eq!(json["ranges"], serde_json::json!([[0, 16], [32, 1]]));
    p.run(&["pin", "a", "--write", "list"]).is(0, &["list: 68KiB in 2 ranges", "pins = \""], &[]);
    let list: serde_json::Value = serde_json::from_slice(&fs::read(p.at("list")).unwrap()).unwrap();
    assert_eq!(list, serde_json::json!({"size_bytes": 1 << 20, "ranges": [[0, 16], [32, 1]]}));
    p.run(&["pin", "a", "--clear"]).is(0, &["nothing is pinned", "before: 68KiB in 2 ranges"], &[]);
    p.run(&["set", "a", "--lock", "onlin"]).is(1, &[], &["did you mean \"online\"?"]);
    p.run(&["set", "a", "--pins", "list"]).is(0, &["pins is "], &[]);
    p.run(&["pin", "a"]).is(0, &["68KiB in 2 ranges pinned by /"], &[]);
    p.run(&["set", "a", "--pins", "a.raw"]).is(1, &[], &["a.raw: the text holds no list of blocks"]);
    p.run(&["pin", "a"]).is(0, &["68KiB in 2 ranges pinned by /"], &[]);
    // The same file again is in force again.
    p.run(&["pin", "a", "0..4KiB", "--replace"]).is(0, &["4KiB in 1 range pinned by hand"], &[]);
    p.run(&["set", "a", "--pins", "list"]).is(0, &["pins is "], &[]);
    p.run(&["pin", "a"]).is(0, &["68KiB in 2 ranges pinned by /"], &[]);
    p.run(&["set", "a", "--lock-profile", "list"]).is(1, &[], &["for lock = \"static\" alone"]);
    p.run(&["set", "a", "--lock", "static", "--lock-profile", "list", "--miss-table", "0"]).is(
        0,
        &["lock is static (before: off)", "lock_profile is /", "miss_table is 0 (before: 20)"],
        &[],
    );
    p.run(&["misses", "a"]).is(0, &["a has no table of misses"], &[]);
    drop(daemon);
}

#[test]
fn a_list_of_another_disk_is_found_before_it_is_served() {
    let p = Place::new();
    let disk = "[[disk]]\nname = \"d\"\nimage = \"a.raw\"\nformat = \"raw\"\npins = \"list\"\n";
    fs::write(p.at("c.toml"), disk).unwrap();
    p.run(&["check", "c.toml"]).is(1, &["c.toml:5: error: disk \"d\": pins:", "list cannot be read"], &[]);
    fs::write(p.at("list"), r#"{"size_bytes": 4096, "ranges": [[0, 1]]}"#).unwrap();
    let said = ["list is of a disk of 4096 bytes, and this one has 1048576", "`undercroft pin DISK --write FILE`"];
    p.run(&["check", "c.toml"]).is(1, &said, &[]);
    p.run(&["check", "--let-wait", "c.toml"]).is(0, &said, &[]);
    fs::write(p.at("list"), r#"{"size_bytes": 1048576, "ranges": [[0, 1]]}"#).unwrap();
    p.run(&["check", "c.toml"]).is(0, &["c.toml: good: 1 disk"], &[]);
}
