//! What the laboratory's commands say of their own answers, through the built program: errors of samples, sizes in
//! bytes, columns of CSV files, pipes that are read twice, blocks that are locked.
//!
//! Owns runs of the real binary on small traces whose figures are known.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_undercroft"));
    c.args(args).current_dir(dir).stdin(Stdio::null());
    c
}

#[track_caller]
fn said(o: Output, code: i32) -> (String, String) {
    let (out, err) = (String::from_utf8(o.stdout).unwrap(), String::from_utf8(o.stderr).unwrap());
    assert_eq!(o.status.code(), Some(code), "{out}{err}");
    (out, err)
}

#[track_caller]
fn run(dir: &Path, args: &[&str], code: i32) -> (String, String) {
    said(command(dir, args).output().unwrap(), code)
}

#[track_caller]
fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&run(dir, &[args, &["--json"]].concat(), 0).0).unwrap()
}

/// Requests for 512-byte sectors as VMware's vscsi records them, version 1: `(sector, bytes)` each.
fn vscsi(requests: impl Iterator<Item = (u64, u32)>) -> Vec<u8> {
    let mut file = vec![];
    for (n, (sector, bytes)) in requests.enumerate() {
        // serial number, bytes, elements, command (READ 10), version in the high byte, sector, microseconds
        file.extend((n as u32).to_le_bytes());
        file.extend(bytes.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend(0x28u16.to_le_bytes());
        file.extend(0x100u16.to_le_bytes());
        file.extend(sector.to_le_bytes());
        file.extend((n as u64 * 1000).to_le_bytes());
    }
    file
}

#[test]
fn sampled_curves_have_errors_in_every_form_and_say_what_they_are_too_small_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, &["trace", "synth", "zipf", "zipf.u64le", "-n", "700000", "--keys", "500000", "--alpha", "0.5"], 0);
    let sizes = ["--sizes", "500,100000", "--rate", "2%"];
    for method in ["shards", "paired", "aet", "mini"] {
        // miniature caches of LRU are none: its curve is exact
        let policy = if method == "mini" { "fifo" } else { "lru" };
        let args = [&["curve", "zipf.u64le", "--method", method, "--policy", policy][..], &sizes].concat();
        let points = json(dir, &args)["traces"][0]["curves"][0]["points"].clone();
        let error = |i: usize| points[i]["miss_ratio_error"].as_f64().unwrap();
        assert!(error(1) > 0.0 && error(1) < 0.1, "{method}: {points}");
        // a cache of 500 blocks is simulated whole
        assert_eq!(error(0) == 0.0, method == "mini", "{method}: {points}");
        let (table, _) = run(dir, &[&args[..], &["--plot", "curve.svg", "--parquet", "curve.parquet"]].concat(), 0);
        assert!(table.contains(&format!(" ±{:.4}", error(1))), "{method}: {table}");
        let plot = fs::read_to_string(dir.join("curve.svg")).unwrap();
        assert!(plot.contains("<polygon"), "{method} has no band");
        let few = format!("{method} sampled ");
        let told =
            table.lines().any(|l| l.starts_with(&few) && l.contains("blocks: too few for sizes below 1600 blocks"));
        assert_eq!(told, ["shards", "paired"].contains(&method), "{table}");
        let (csv, _) = run(dir, &[&args[..], &["--csv"]].concat(), 0);
        assert!(csv.lines().next().unwrap().ends_with(",miss_ratio,miss_ratio_error"), "{csv}");
    }
    let exact = json(dir, &["curve", "zipf.u64le", "--sizes", "500"]);
    assert_eq!(exact["traces"][0]["curves"][0]["points"][0]["miss_ratio_error"].as_f64(), Some(0.0));
    assert!(!run(dir, &["curve", "zipf.u64le"], 0).0.contains('±'));
    assert!(!run(dir, &["curve", "zipf.u64le", "--method", "mini"], 0).0.contains('±'));
    // a dozen blocks are too few for anything
    fs::write(dir.join("few.lis"), "0 600 0 0\n".repeat(3)).unwrap();
    let (table, _) = run(dir, &["curve", "few.lis", "--method", "shards", "--rate", "1%"], 0);
    assert!(table.contains("too few for any size; a higher --rate samples more"), "{table}");
    let parts = json(dir, &["partition", "zipf.u64le", "--memory", "40MiB", "--by", "shards", "--rate", "2%"]);
    assert!(parts["tenants"][0]["miss_ratio_error"].as_f64().unwrap() > 0.0, "{parts}");
}

#[test]
fn sizes_in_bytes_are_not_mixed_with_requests_and_objects() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // 64 requests of 64 KiB each, twice: 4 MiB, which 64 "blocks" of 4 KiB would not hold
    fs::write(dir.join("wide.vscsi"), vscsi((0..128).map(|i| (i % 64 * 128, 65_536)))).unwrap();
    let ratio = |args: &[&str]| json(dir, args)["traces"][0]["curves"][0]["points"][0]["miss_ratio"].as_f64().unwrap();
    assert_eq!(ratio(&["curve", "wide.vscsi", "--sizes", "64"]), 0.5, "in blocks as ever: a request is one");
    assert_eq!(ratio(&["curve", "wide.vscsi", "--sizes", "256KiB"]), 1.0);
    assert_eq!(ratio(&["curve", "wide.vscsi", "--sizes", "4MiB"]), 0.5);
    let (_, note) = run(dir, &["curve", "wide.vscsi", "--sizes", "4MiB"], 0);
    assert!(
        note.contains("wide.vscsi (vscsi): sizes are in bytes, so requests are split into blocks of 4 KiB"),
        "{note}"
    );
    let simulated = |size: &str| json(dir, &["sim", "wide.vscsi", "--policy", "lru", "--size", size]);
    assert_eq!(simulated("256KiB")["results"][0]["miss_ratio"].as_f64(), Some(1.0));
    assert_eq!(simulated("4MiB")["results"][0]["misses"].as_u64(), Some(1024));
    assert_eq!(simulated("64blocks")["results"][0]["misses"].as_u64(), Some(64));

    // objects have sizes of their own
    fs::write(dir.join("web.csv"), "time,object,size\n1,7,100\n2,8,200000\n3,7,100\n").unwrap();
    for args in [
        &["curve", "web.csv", "--sizes", "1MiB"][..],
        &["partition", "web.csv", "--memory", "1MiB"],
        &["sim", "web.csv", "--size", "1MiB"],
    ] {
        let (_, err) = run(dir, args, 1);
        assert!(err.contains("give sizes in blocks or in percent") && err.contains("--block-size"), "{err}");
        run(dir, &[args, &["--block-size", "4KiB"]].concat(), 0);
    }
    run(dir, &["curve", "web.csv", "--sizes", "2,50%"], 0);
    // keys without sizes stand for blocks, which is said
    fs::write(dir.join("keys.lis"), "0 10 0 0\n").unwrap();
    let (_, note) = run(dir, &["sim", "keys.lis", "--size", "8KiB"], 0);
    assert!(note.contains("each key is taken for 4 KiB (--block-size)"), "{note}");
    assert_eq!(run(dir, &["sim", "keys.lis", "--size", "8KiB", "--block-size", "8KiB"], 0).1, "");
}

#[test]
fn a_trace_beside_itself_gets_half_of_the_memory() {
    let halves = |dir: &Path, trace: &str, memory: &str| {
        let (one, other) = (format!("one={trace}"), format!("other={trace}"));
        let parts = json(dir, &["partition", &one, &other, "--memory", memory]);
        let part = |i: usize| parts["tenants"][i]["share_blocks"].as_i64().unwrap();
        assert!(part(0).abs_diff(part(1)) <= 1 && part(0) > 0, "{trace} with {memory}: {parts}");
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    run(dir, &["trace", "synth", "zipf", "zipf.u64le", "-n", "200000", "--keys", "30000", "--seed", "3"], 0);
    for memory in ["8MiB", "33MiB", "100MiB", "1GiB"] {
        halves(dir, "zipf.u64le", memory);
    }
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/block/cloudPhysicsIO.vscsi");
    if !real.exists() {
        return undercroft_skips::skip(format_args!("no trace at {}", real.display()));
    }
    for memory in ["16MiB", "64MiB", "128MiB", "4GiB"] {
        halves(dir, real.to_str().unwrap(), memory);
    }
    // where its curve has a cliff, halves would miss a twentieth more, which is said
    let (one, other) = (format!("one={}", real.display()), format!("other={}", real.display()));
    let misses = json(dir, &["partition", &one, &other, "--memory", "256MiB"])["misses"].clone();
    assert!(misses["equal"].as_f64().unwrap() > misses["divided"].as_f64().unwrap() * 1.04, "{misses}");
}

/// Runs with `bytes` on standard input.
fn fed(dir: &Path, args: &[&str], bytes: &[u8]) -> Output {
    let mut c = command(dir, args);
    let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn pipes_are_read_twice_where_sizes_are_in_percent() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let lis = "0 10 0 0\n".repeat(100);
    for args in [
        &["curve", "-", "--format", "arc-lis", "--policy", "fifo", "--sizes", "50%,100%", "--csv"][..],
        &["sim", "-", "--format", "arc-lis", "--policy", "fifo", "--size", "50%,100%", "--csv"],
    ] {
        let (out, err) = said(fed(dir, args, lis.as_bytes()), 0);
        assert!(out.lines().count() == 3 && out.contains(",1000,1000,1") && out.contains(",1000,10,0.01"), "{out}");
        assert!(err.contains("standard input is read twice, so its 900B are kept in "), "{err}");
        // read once, nothing is kept
        let once: Vec<&str> = args.iter().map(|a| if a.contains('%') { "5,10" } else { a }).collect();
        assert_eq!(said(fed(dir, &once, lis.as_bytes()), 0).1, "");
    }
    // a named pipe, whose name tells the format; and nothing is left behind
    let made = Command::new("mkfifo").arg(dir.join("pipe.lis")).status().unwrap();
    assert!(made.success());
    let kept = dir.join("kept");
    fs::create_dir(&kept).unwrap();
    let mut c = command(dir, &["sim", "pipe.lis", "--policy", "lru", "--size", "100%", "--csv"]);
    let child = c.env("TMPDIR", &kept).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    fs::write(dir.join("pipe.lis"), &lis).unwrap();
    let (out, _) = said(child.wait_with_output().unwrap(), 0);
    assert!(out.contains("pipe.lis,lru,100%,10,4096,1000,10,"), "{out}");
    assert_eq!(kept.read_dir().unwrap().count(), 0);
}

#[test]
fn what_a_csv_file_does_not_say_is_asked_for_and_what_was_taken_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rows = "1,7,100\n2,8,200\n3,7,100\n";
    fs::write(dir.join("bare.csv"), rows).unwrap();
    for args in [&["curve", "bare.csv"][..], &["sim", "bare.csv"], &["trace", "info", "bare.csv"]] {
        let (_, err) = run(dir, args, 1);
        assert!(
            err.contains("bare.csv") && err.contains("3 columns and no names") && err.contains("--columns"),
            "{err}"
        );
        let (_, err) = run(dir, &[args, &["--columns", "time=1,key=2,size=3"]].concat(), 0);
        assert_eq!(err, "", "it was said");
    }
    fs::write(dir.join("peer.csv"), format!("\u{feff}# time, object, size\n{rows}")).unwrap();
    let (out, err) = run(dir, &["curve", "peer.csv", "--sizes", "2", "--csv"], 0);
    assert!(out.contains("peer.csv,,lru,exact,2,8192,3,2,"), "{out}");
    assert!(err.contains("peer.csv (csv): column 1 (\"time\") is the time, column 2 (\"object\") is the key"), "{err}");
    fs::write(dir.join("names.txt"), "/a\n/b\n/a\n").unwrap();
    let (out, err) = run(dir, &["sim", "names.txt", "--policy", "lru", "--size", "2", "--csv"], 0);
    assert!(out.contains(",3,2,"), "{out}");
    assert!(err.contains("each line is a key; keys are text, and their hashes stand for them"), "{err}");
    // too large is not "not a number"
    let huge = "99999999999999999999999";
    let (_, err) = run(dir, &["sim", "names.txt", "--size", huge], 2);
    assert!(err.contains("too large for a number of blocks"), "{err}");
    fs::write(dir.join("huge.csv"), format!("key\n{huge}\n")).unwrap();
    let (_, err) = run(dir, &["curve", "huge.csv"], 1);
    assert!(err.contains("too large") && !err.contains("not a number"), "{err}");
}

/// Blocks from `first` on, twenty of them in a loop, fifty times.
fn looping(first: u64) -> String {
    format!("{first} 20 0 0\n").repeat(50)
}

/// One thing of all results of `lab blocks`.
fn each(said: &Value, what: &str) -> Vec<f64> {
    said["results"].as_array().unwrap().iter().map(|r| r[what].as_f64().unwrap()).collect()
}

#[test]
fn what_a_first_run_misses_is_locked_and_compared_with_the_cache_without_locks() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("loop.lis"), looping(0)).unwrap();
    fs::write(dir.join("two.lis"), looping(0) + &looping(100)).unwrap();
    let args = ["lab", "blocks", "loop.lis", "--policy", "lru", "--size", "10blocks,50%"];
    let locks = ["--lock", "static:50%,random:50%,hits:50%,buffer:5,online"];
    let said = json(dir, &[&args[..], &locks].concat());
    // LRU of ten blocks never hits in a loop of twenty; five that are locked miss once, also any five. None was hit,
    // so none is locked for that; and a buffer has what LRU would have kept. The rule's first epoch does not end.
    let misses = [1000.0, 20.0 + 15.0 * 49.0, 20.0 + 15.0 * 49.0, 1000.0, 1000.0, 1000.0];
    assert_eq!(each(&said, "read_misses"), [misses, misses].concat(), "{said}");
    assert_eq!(each(&said, "locked_read_hits")[..4], [0.0, 5.0 * 49.0, 5.0 * 49.0, 0.0]);
    assert_eq!(each(&said, "locked_blocks")[..4], [0.0, 5.0, 5.0, 0.0]);
    assert_eq!(each(&said, "change")[..2], [0.0, -24.5]);
    assert!(each(&said, "cpu_ns").iter().all(|ns| *ns > 0.0) && each(&said, "cpu_ratio")[0] == 1.0, "{said}");
    assert_eq!(said["results"][5]["lock"], "online:30%");
    assert_eq!((&said["results"][5]["online"]["locks"], &said["results"][4]["online"]), (&0.into(), &Value::Null));
    assert_eq!((&said["first_run"], &said["complete"]), (&"the whole trace".into(), &true.into()));
    let (table, _) = run(dir, &[&args[..], &locks, &["--parquet", "locks.parquet"]].concat(), 0);
    let line = table.lines().find(|l| l.contains("static:50%")).unwrap();
    assert!(line.contains("-24.50") && line.contains(" 755 "), "{table}");
    assert!(fs::read(dir.join("locks.parquet")).unwrap().starts_with(b"PAR1"));
    let (csv, _) = run(dir, &[&args[..], &locks, &["--csv"]].concat(), 0);
    assert!(csv.starts_with("trace,policy,size,capacity_blocks,lock,first_run,tried_on,reads,read_misses,"), "{csv}");
    // What locks take comes out of the cache: a list of five blocks or fewer takes one.
    assert_eq!(each(&said, "limit_blocks")[..5], [10.0, 9.0, 9.0, 10.0, 10.0], "{said}");
    assert!(each(&said, "limit_blocks")[5] < 9.0 && each(&said, "lock_bytes")[5] > 4096.0, "{said}");
    assert_eq!(said["tried_on"], "the whole trace");
    assert_eq!(csv.lines().count(), 13, "{csv}");
    // What the first half says of the second: nothing, where other blocks come. And another trace may say it.
    let args = ["lab", "blocks", "two.lis", "--policy", "lru", "--size", "10blocks", "--lock", "static:50%"];
    let halves = json(dir, &[&args[..], &["--first-run", "first-half"]].concat());
    assert_eq!(each(&halves, "read_misses"), [1000.0, 1000.0]);
    assert_eq!((each(&halves, "reads")[0], &halves["first_run"]), (1000.0, &"the first half".into()));
    assert_eq!(halves["tried_on"], "the second half");
    // That is so, and said, without a first run, too.
    let args = ["lab", "blocks", "two.lis", "--policy", "lru", "--size", "10blocks", "--first-run", "first-half"];
    let rule = json(dir, &[&args[..], &["--lock", "online"]].concat());
    assert_eq!((&rule["first_run"], &rule["tried_on"]), (&Value::Null, &"the second half".into()));
    assert_eq!(each(&rule, "reads"), [1000.0, 1000.0]);
    let (table, _) = run(dir, &[&args[..], &["--lock", "online"]].concat(), 0);
    assert!(table.contains(", the second half; 2 caches"), "{table}");
    let args = ["lab", "blocks", "two.lis", "--policy", "lru", "--size", "10blocks", "--lock", "static:50%"];
    let other = json(dir, &[&args[..], &["--other", "loop.lis"]].concat());
    assert_eq!(each(&other, "read_misses"), [2000.0, 20.0 + 15.0 * 49.0 + 1000.0]);
}

#[test]
fn locks_that_make_no_sense_and_traces_without_requests_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("loop.lis"), looping(0)).unwrap();
    fs::write(dir.join("empty.lis"), "").unwrap();
    fs::write(dir.join("bad.lis"), "what is this\n").unwrap();
    fs::write(dir.join("late.lis"), looping(0) + "what is this\n").unwrap();
    for (args, code, says) in [
        (&["loop.lis", "--lock", "static:95%"][..], 2, "leaves too little unlocked"),
        (&["loop.lis", "--lock", "some"], 2, "known are none, static:10%"),
        (&["loop.lis", "--lock", "buffer:6", "--size", "10blocks"], 1, "more than half of the cache of 10 blocks"),
        (&["loop.lis", "--policy", "lirs"], 1, "no disk of the daemon may have it"),
        (
            &["loop.lis", "--other", "empty.lis", "--size", "10blocks", "--lock", "static"],
            1,
            "empty.lis has no requests",
        ),
        (&["loop.lis", "--other", "loop.lis", "--first-run", "first-half"], 2, "cannot be used with"),
        (&["loop.lis", "--other", "loop.lis", "--lock", "online"], 1, "nothing of --lock needs a first run"),
        (&["empty.lis"], 1, "the trace empty.lis has no requests"),
        (&["empty.lis", "--size", "10blocks", "--lock", "static"], 1, "the trace empty.lis has no requests"),
        (&["bad.lis"], 1, "record 1"),
    ] {
        let (out, err) = run(dir, &[&["lab", "blocks"][..], args].concat(), code);
        assert!(err.contains(says) && out.is_empty(), "{args:?}: {err}");
    }
    for first in ["whole", "first-half"] {
        let args = ["lab", "blocks", "late.lis", "--size", "10blocks", "--lock", "static", "--first-run", first];
        let (table, err) = run(dir, &args, 1);
        assert!(table.contains("Not whole") && err.contains("late.lis"), "{first}: {table}{err}");
    }
}
