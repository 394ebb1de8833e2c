//! `undercroft sim` and `undercroft compare` through the built program: counts, forms, plots, damage, interrupts.
//!
//! Owns runs of the real binary on small traces whose counts are known.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A loop of ten blocks, a hundred times: 1000 accesses.
const LOOP: &str = "0 10 0 0\n";
const ROUNDS: usize = 100;

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_undercroft"));
    c.args(args).current_dir(dir).stdin(Stdio::null());
    c
}

#[track_caller]
fn run(dir: &Path, args: &[&str], code: i32) -> (String, String) {
    said(command(dir, args).output().unwrap(), code)
}

#[track_caller]
fn said(o: Output, code: i32) -> (String, String) {
    let (out, err) = (String::from_utf8(o.stdout).unwrap(), String::from_utf8(o.stderr).unwrap());
    assert_eq!(o.status.code(), Some(code), "{out}{err}");
    (out, err)
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("loop.lis"), LOOP.repeat(ROUNDS)).unwrap();
    fs::write(dir.path().join("bad.lis"), format!("{}what is this\n", LOOP.repeat(ROUNDS))).unwrap();
    // 60 million accesses: no machine is through with it at once.
    fs::write(dir.path().join("long.lis"), "0 1000000 0 0\n".repeat(60)).unwrap();
    dir
}

fn results(json: &Value) -> Vec<(String, u64, u64)> {
    let of = |r: &Value| {
        let n = |name: &str| r[name].as_u64().unwrap();
        (r["policy"].as_str().unwrap().to_string(), n("capacity_blocks"), n("misses"))
    };
    json["results"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn a_loop_is_counted_at_every_size_in_every_form() {
    let dir = place();
    let dir = dir.path();
    let args = ["sim", "loop.lis", "--policy", "lru,fifo", "--size", "5blocks,40KiB,50%,100%"];
    let json: Value = serde_json::from_str(&run(dir, &[&args[..], &["--json"]].concat(), 0).0).unwrap();
    // LRU and FIFO never hit in a loop that does not fit, and miss each block once in one that does.
    let expected = [(5, 1000), (10, 10), (5, 1000), (10, 10)];
    let both = expected.iter().flat_map(|&(n, m)| ["lru", "fifo"].map(|p| (p.to_string(), n, m)));
    assert_eq!(results(&json), both.collect::<Vec<_>>());
    assert_eq!(
        (&json["accesses"], &json["footprint_blocks"], &json["complete"]),
        (&1000.into(), &10.into(), &true.into())
    );
    let (csv, _) = run(dir, &[&args[..], &["--csv"]].concat(), 0);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("trace,policy,size,capacity_blocks,block_bytes,accesses,misses,miss_ratio"), "{csv}");
    assert_eq!(lines[1], "loop.lis,lru,5blocks,5,4096,1000,1000,1,1000,1000,0,0,yes");
    assert_eq!(lines.len(), 9);
    let (table, _) = run(dir, &[&args[..], &["--parquet", "r.parquet"]].concat(), 0);
    assert!(table.contains("POLICY") && table.contains("loop.lis: 1000 accesses to 10 blocks"), "{table}");
    assert!(fs::read(dir.join("r.parquet")).unwrap().starts_with(b"PAR1"));
    // Block size, warm-up and limit.
    let args =
        ["sim", "loop.lis", "--size", "5KiB", "--block-size", "512", "--warm-up", "10", "--limit", "500", "--json"];
    let json: Value = serde_json::from_str(&run(dir, &args, 0).0).unwrap();
    assert_eq!(results(&json)[0], ("lru".into(), 10, 0));
    assert_eq!(json["results"][0]["accesses"], 490);
    assert_eq!(json["footprint_blocks"], Value::Null, "absolute sizes need one pass only");
}

#[test]
fn opt_stands_beside_policies_and_nowhere_else() {
    let dir = place();
    let dir = dir.path();
    let json = run(dir, &["sim", "loop.lis", "--policy", "lru,opt,opt-bypass", "--size", "5blocks", "--json"], 0).0;
    // Of ten blocks in turn, five that stay hit in each round but the first. A cache that must take every block has
    // four that stay for nine accesses, then others.
    let expected = [("lru", 5, 1000), ("opt", 5, 560), ("opt-bypass", 5, 505)];
    assert_eq!(results(&serde_json::from_str(&json).unwrap()), expected.map(|(p, n, m)| (p.to_string(), n, m)));
    let (table, _) =
        run(dir, &["compare", "loop.lis", "--policies", "opt", "--sizes", "5blocks", "--baseline", "opt-bypass"], 0);
    assert!(table.lines().any(|l| l.split_whitespace().eq(["opt", "0.5600", "+10.9%"])), "{table}");
    let (_, refused) =
        run(dir, &["sim", "loop.lis", "--beside", "loop.lis", "--policy", "opt", "--size", "5blocks"], 1);
    assert!(refused.contains("opt is for single caches on a trace; leave it out here"), "{refused}");
}

#[test]
fn threads_change_nothing() {
    let dir = place();
    let of = |jobs: &str| {
        let args = ["sim", "loop.lis", "--policy", "all", "--size", "3blocks,7blocks", "--json", "--jobs", jobs];
        let mut json: Value = serde_json::from_str(&run(dir.path(), &args, 0).0).unwrap();
        json["seconds"] = Value::Null;
        json
    };
    assert_eq!(of("1"), of("2"));
    assert_eq!(of("1"), of("7"));
}

#[test]
fn bad_input_says_what_to_do() {
    let dir = place();
    let dir = dir.path();
    for (args, code, needles) in [
        (&["sim"][..], 2, &["<TRACE>"][..]),
        (&["sim", "loop.lis", "--policy", "lur"], 2, &["unknown policy \"lur\"", "known are fifo"]),
        (&["sim", "loop.lis", "--size", "1G"], 2, &["ambiguous; write 1GiB"]),
        (&["sim", "loop.lis", "--size", "0%"], 2, &["not a percentage"]),
        (&["sim", "loop.lis", "--size", "99TiB"], 1, &["99TiB", "give a smaller size"]),
        (&["sim", "loop.lis", "--size", "4TiB", "--policy", "all"], 1, &["of memory together", "smaller sizes"]),
        (&["sim", "loop.lis", "--block-size", "0"], 1, &["--block-size 0"]),
        (&["sim", "loop.lis", "--json", "--csv"], 2, &["cannot be used with"]),
        (&["sim", "none.lis"], 1, &["none.lis", "No such file"]),
        (&["sim", "/dev/null"], 1, &["/dev/null"]),
        (&["compare", "loop.lis", "--plot", "x.pdf"], 2, &[".svg or .png"]),
        (&["compare", "loop.lis", "--plot", "/nowhere/x.svg"], 1, &["/nowhere/x.svg", "--plot"]),
        (&["compare", "loop.lis", "--parquet", "/nowhere/x.parquet"], 1, &["/nowhere/x.parquet", "--parquet"]),
    ] {
        let (_, err) = run(dir, args, code);
        for needle in needles {
            assert!(err.contains(needle), "{args:?}: \"{needle}\" is missing in {err}");
        }
    }
}

#[test]
fn what_comes_before_damage_is_shown() {
    let dir = place();
    let (out, err) = run(dir.path(), &["sim", "bad.lis", "--policy", "lru", "--size", "100%", "--json"], 1);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((results(&json), &json["complete"]), (vec![("lru".into(), 10, 10)], &false.into()));
    assert_eq!(json["accesses"], 1000);
    for needle in ["bad.lis", "record 101", "byte 900"] {
        assert!(err.contains(needle) && json["error"].as_str().unwrap().contains(needle), "{needle}: {err}");
    }
}

#[test]
fn policies_are_drawn_over_sizes() {
    let dir = place();
    let dir = dir.path();
    let drawn = |file: &str| ["sim", "loop.lis", "--size", "2blocks,5blocks,100%", "--plot", file].map(String::from);
    let args = drawn("ratios.svg");
    run(dir, &args.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    let text = fs::read_to_string(dir.join("ratios.svg")).unwrap();
    assert!(["loop.lis", "lru", "s3-fifo", "miss ratio"].iter().all(|part| text.contains(part)));
    // two lines of three points, and two names
    assert_eq!(text.matches("<circle").count(), 8);
    run(dir, &["sim", "loop.lis", "--plot", "ratios.pdf"], 2);
    let (_, err) = run(dir, &["sim", "loop.lis", "--plot", "none/ratios.svg"], 1);
    assert!(err.contains("none/ratios.svg cannot be written"), "{err}");
}

#[test]
fn a_trace_is_read_as_it_is_said_to_be() {
    let dir = place();
    let dir = dir.path();
    // eight reads of 16 KiB, and something else
    let lines: String = (0..8).map(|i| format!("{i};r;{};16384\n", i % 2 * 16384)).collect();
    fs::write(dir.join("own.txt"), format!("{lines}none of this;;;\n")).unwrap();
    let read = ["--columns", "time=1,op=2,offset=3,size=4", "--separator", ";"];
    let counted = |more: &[&str]| {
        let (out, err) = run(dir, &[&["sim", "own.txt", "--policy", "lru", "--json"], &read[..], more].concat(), 0);
        (serde_json::from_str::<Value>(&out).unwrap(), err)
    };
    let (json, err) = counted(&["--lenient", "--size", "32KiB"]);
    assert_eq!((json["accesses"].as_u64(), results(&json)), (Some(32), vec![("lru".into(), 8, 8)]));
    assert!(err.contains("1 records of own.txt") && err.matches("left out").count() == 1, "{err}");
    // ranges of bytes are split into blocks of the size that sizes are counted in
    let (json, _) = counted(&["--lenient", "--size", "100%", "--block-size", "16KiB"]);
    assert_eq!((json["accesses"].as_u64(), results(&json)), (Some(8), vec![("lru".into(), 2, 2)]));
    // strictly, it ends there
    let (out, err) = run(dir, &[&["sim", "own.txt", "--size", "32KiB"], &read[..]].concat(), 1);
    assert!(out.contains("Not whole") && err.contains("record 9"), "{out}{err}");
    // what a key stands for is asked of the user where the trace does not say
    let (out, _) = run(dir, &["sim", "loop.lis", "--size", "20KiB", "--key-size", "512", "--json"], 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(results(&json)[0].2, 2, "ten sectors are two pages");
    let args = ["curve", "own.txt", "--sizes", "32KiB", "--lenient", "--block-size", "16KiB", "--json"];
    let (out, err) = run(dir, &[&args, &read[..]].concat(), 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["traces"][0]["requests"], 8);
    assert_eq!(err.matches("left out").count(), 1, "{err}");
}

#[test]
fn traces_are_compared_with_a_baseline_and_drawn() {
    let dir = place();
    let dir = dir.path();
    let traces = ["compare", "loop.lis", "none.lis", "bad.lis", "--sizes", "50%,100%"];
    let more = ["--policies", "fifo,lru", "--baseline", "arc", "--plot", "x.svg", "--parquet", "x.parquet"];
    let (out, err) = run(dir, &[&traces[..], &more].concat(), 1);
    assert!(err.contains("none.lis") && err.contains("bad.lis") && err.lines().count() == 2, "{err}");
    assert!(out.contains("TO ARC") && out.matches("Not whole").count() == 1, "{out}");
    let svg = fs::read_to_string(dir.join("x.svg")).unwrap();
    assert!(svg.contains("loop.lis") && svg.contains("bad.lis") && svg.contains("arc") && !svg.contains("sieve"));
    let (out, _) = run(dir, &["compare", "loop.lis", "--policies", "lru", "--json", "--plot", "y.png"], 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["baseline"], "lru");
    assert_eq!(results(&json["traces"][0]).len(), 3, "0.1%, 1%, 10%");
    assert!(fs::read(dir.join("y.png")).unwrap().starts_with(b"\x89PNG"));
}

/// Starts it, waits until it catches Ctrl-C, and presses that.
#[track_caller]
fn interrupted(dir: &Path, args: &[&str]) -> (String, String) {
    let child = command(dir, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let catches = || {
        let text = fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap().trim();
        // SIGTERM, which is caught last: no signal is let in before
        u64::from_str_radix(mask, 16).unwrap() & 1 << 14 != 0
    };
    while !catches() {
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    said(child.wait_with_output().unwrap(), 130)
}

/// The same of a program that prints JSON, again if Ctrl-C came before anything had begun.
#[track_caller]
fn interrupted_at_work(dir: &Path, args: &[&str], has_begun: fn(&Value) -> bool) -> Value {
    let json = || serde_json::from_str(&interrupted(dir, args).0).unwrap();
    (0..50).map(|_| json()).find(has_begun).expect("it has begun nothing, 50 times")
}

#[test]
fn an_interrupt_shows_what_is_done() {
    let dir = place();
    let dir = dir.path();
    let sim = ["sim", "long.lis", "--policy", "all", "--size", "1000blocks,100000blocks", "--json"];
    let json = interrupted_at_work(dir, &sim, |json| json["accesses"] != 0);
    let read = json["accesses"].as_u64().unwrap();
    assert!(read < 60_000_000 && json["complete"] == false && json["error"].is_null(), "{json}");
    // Blocks that come for the first time miss in every cache; later ones may hit.
    for (_, _, misses) in results(&json) {
        assert!(misses >= read.min(1_000_000) && misses <= read, "{json}");
    }
    let (_, err) = interrupted(dir, &["sim", "long.lis", "--size", "10%"]);
    assert!(err.contains("interrupted while the blocks were counted"), "{err}");
    let compare = ["compare", "long.lis", "loop.lis", "--sizes", "1000blocks", "--json"];
    let json = interrupted_at_work(dir, &compare, |json| json["traces"] != Value::Array(Vec::new()));
    let traces = json["traces"].as_array().unwrap();
    assert!(traces.len() == 1 && traces[0]["complete"] == false, "nothing is begun after an interrupt: {json}");
}

#[test]
fn a_hierarchy_is_counted_and_timed() {
    let dir = place();
    let dir = dir.path();
    // A loop of ten over five and five: LRU levels that hand down hit nothing below, one level of ten hits all.
    let levels = |keeps: &str, size: &str| {
        format!(
            "[[level]]\nname = \"top\"\nsize = \"5blocks\"\npolicy = \"lru\"\nread = \"1us\"\n\
             [[level]]\nname = \"low\"\nsize = \"{size}\"\npolicy = \"lru\"\nkeeps = \"{keeps}\"\nread = \"10us\"\n\
             [disk]\nread = \"1ms\"\n[requests]\narrive = \"closed\"\n"
        )
    };
    fs::write(dir.join("demoted.toml"), levels("demoted", "50%")).unwrap();
    fs::write(dir.join("passing.toml"), levels("passing", "50%")).unwrap();
    let both = ["sim", "loop.lis", "--hierarchy", "demoted.toml", "--hierarchy", "passing.toml"];
    let json: Value = serde_json::from_str(&run(dir, &[&both[..], &["--json"]].concat(), 0).0).unwrap();
    let (demoted, passing) = (&json["hierarchies"][0], &json["hierarchies"][1]);
    let reads = |h: &Value| [0, 1, 2].map(|i| h["levels"][i]["reads"].as_u64().unwrap());
    assert_eq!(reads(demoted), [1000, 1000, 10], "five and five are one LRU of ten");
    assert_eq!(reads(passing), [1000, 1000, 1000]);
    // One at a time: a read takes what the device has that served it.
    let mean = |h: &Value| h["latency"]["reads"]["mean_ns"].as_f64().unwrap();
    assert_eq!(mean(passing), 1_000_000.0 + 0.0);
    assert!(mean(demoted) < 40_000.0 && mean(demoted) >= (10.0 * 1e6 + 990.0 * 1e4) / 1000.0, "{}", mean(demoted));
    let (table, _) = run(dir, &both, 0);
    assert!(table.contains("demoted\n") && table.contains("requests/s") && table.contains("disk"), "{table}");
    let (csv, _) = run(dir, &[&both[..], &["--csv"]].concat(), 0);
    assert_eq!(csv.lines().count(), 7, "{csv}");
    for (file, code, needle) in [
        ("keeps = \"wat\"", 1, "unknown variant `wat`"),
        ("size = 7", 1, "bad.toml"),
        ("policy = \"lur\"", 1, "known are fifo"),
    ] {
        fs::write(dir.join("bad.toml"), format!("[[level]]\nname = \"x\"\nsize = \"10%\"\n{file}\n")).unwrap();
        let (_, err) = run(dir, &["sim", "loop.lis", "--hierarchy", "bad.toml"], code);
        assert!(err.contains(needle) && err.contains("docs/simulator.md"), "{err}");
    }
    run(dir, &["sim", "loop.lis", "--hierarchy", "demoted.toml", "--policy", "lru"], 2);
}

#[test]
fn tenants_share_a_cache_under_controllers() {
    let dir = place();
    let dir = dir.path();
    // One that goes round in 300 blocks, and one that never comes back.
    fs::write(dir.join("round.lis"), "0 300 0 0\n".repeat(100)).unwrap();
    fs::write(dir.join("once.lis"), "1000000 30000 0 0\n").unwrap();
    let args = ["sim", "round.lis", "--beside", "once.lis", "--size", "400blocks", "--policy", "lru"];
    let more = ["--interval", "2000", "--controller", "shared,strict,utility,best"];
    let json: Value = serde_json::from_str(&run(dir, &[&args[..], &more, &["--json"]].concat(), 0).0).unwrap();
    let rows = json["results"].as_array().unwrap();
    let misses = |row: &Value| row["tenants"][0]["misses"].as_u64().unwrap();
    assert_eq!(misses(&rows[0]), 30_000, "one LRU for both holds neither");
    assert_eq!(misses(&rows[1]), 30_000, "a half is too small for the one that goes round");
    assert!(misses(&rows[2]) < 10_000, "the controller gives it what it needs: {}", misses(&rows[2]));
    assert_eq!(misses(&rows[3]), 300, "had it been known");
    assert!(rows.iter().all(|r| r["tenants"][1]["misses"] == 30_000));
    let (table, _) = run(dir, &[&args[..], &more].concat(), 0);
    assert!(table.contains("OF round.lis") && table.contains("utility"), "{table}");
    // Below caches of their own of 200 blocks: what goes round goes through, and what is read once, too. The one cache
    // below, which keeps only what those hand down, has room for the 300 then.
    let above = ["--above", "200blocks", "--above-policy", "lru", "--hands-down"];
    let json: Value = serde_json::from_str(&run(dir, &[&args[..], &more, &above, &["--json"]].concat(), 0).0).unwrap();
    assert_eq!(json["above"][0]["accesses"], 30_000);
    assert_eq!(json["above"][0]["hits"], 0);
    let rows = json["results"].as_array().unwrap();
    assert_eq!(misses(&rows[3]), 300, "had it been known");
    let (table, _) = run(dir, &[&args[..], &more, &above].concat(), 0);
    assert!(table.contains("round.lis: its own lru of 200 blocks has 0.0 % of 30000 accesses"), "{table}");
    let (_, refused) = run(dir, &[&args[..], &["--above", "1%", "--above-policy", "lru,arc"]].concat(), 1);
    assert!(refused.contains("--above-policy: give one policy"), "{refused}");
    let (_, refused) = run(dir, &["sim", "round.lis", "--above", "1%"], 2);
    assert!(refused.contains("--beside"), "{refused}");
    for (bad, needle) in [("wat", "divides nothing"), ("target", "needs goals")] {
        let (_, err) = run(dir, &[&args[..], &["--controller", bad]].concat(), 2);
        assert!(err.contains(needle), "{err}");
    }
    let (_, err) = run(dir, &["sim", "round.lis", "--beside", "round.lis"], 1);
    assert!(err.contains("two tenants are called round.lis"), "{err}");
    run(dir, &["sim", "round.lis", "--controller", "strict"], 2);
}

#[test]
fn tenants_share_two_levels_and_every_access_is_found_in_one_place() {
    let dir = place();
    let dir = dir.path();
    fs::write(dir.join("round.lis"), "0 300 0 0\n".repeat(100)).unwrap();
    fs::write(dir.join("once.lis"), "1000000 30000 0 0\n").unwrap();
    let args = ["sim", "round.lis", "--beside", "once.lis", "--size", "200blocks", "--policy", "lru"];
    let more = ["--interval", "2000", "--controller", "shared,strict,utility,best", "--below", "400blocks"];
    let all = |form: &[&str]| run(dir, &[&args[..], &more, form].concat(), 0).0;
    let json = |form: &[&str]| -> Value { serde_json::from_str(&all(&[form, &["--json"]].concat())).unwrap() };
    let found = |row: &Value, at: usize, what: &str| row["found"][at][what].as_u64().unwrap();
    let disk_of_round = |json: &Value| -> Vec<u64> {
        let rows = json["results"].as_array().unwrap();
        for (row, at) in rows.iter().flat_map(|row| (0..3).map(move |at| (row, at))) {
            let [accesses, hits, below, disk] =
                ["accesses", "hits", "below_hits", "disk_reads"].map(|what| found(row, at, what));
            assert_eq!(accesses, hits + below + disk, "{row}");
            assert_eq!(accesses, if at == 0 { 60_000 } else { 30_000 });
            assert_eq!(row["below"]["total_blocks"], 400);
            assert_eq!(row["targets"].as_array().unwrap().len(), row["below"]["targets"].as_array().unwrap().len());
        }
        rows.iter().map(|row| found(row, 1, "disk_reads")).collect()
    };
    // The 300 do not fit above. Below they do, and by what reaches it that can be told.
    let passing = json(&[]);
    assert_eq!(passing["below"], serde_json::json!({ "blocks": 400, "policy": "lru", "demotes": false }));
    let disk = disk_of_round(&passing);
    assert_eq!((disk[0], disk[1], disk[3]), (30_000, 30_000, 300));
    assert!(disk[2] < 10_000, "{disk:?}");
    // Both levels are one LRU if blocks are handed down: strict, 100 and 200 are enough.
    let disk = disk_of_round(&json(&["--demotes"]));
    assert!(disk[1] < 2000 && disk[3] == 300, "{disk:?}");
    // Below caches of the tenants' own, too.
    let three = json(&["--demotes", "--above", "10blocks", "--hands-down"]);
    for (own, at) in three["above"].as_array().unwrap().iter().zip(1..) {
        let asked = found(&three["results"][0], at, "accesses");
        assert_eq!(own["accesses"].as_u64().unwrap(), own["hits"].as_u64().unwrap() + asked);
    }
    let table = all(&["--demotes", "--parquet", "two.parquet"]);
    assert!(table.contains("below: lru of 400 blocks for all, which holds what is evicted above it"), "{table}");
    assert!(table.contains("DISK READS") && table.contains("(all)") && table.contains("once.lis"), "{table}");
    assert!(fs::read(dir.join("two.parquet")).unwrap().starts_with(b"PAR1"));
    let csv = all(&["--csv"]);
    let header = "controller,policy,size,total_blocks,tenant,accesses,misses,moved_blocks,hits,below_hits,disk_reads,\
                  below_blocks,below_policy,below_demotes,below_moved_blocks";
    assert_eq!((csv.lines().next(), csv.lines().count()), (Some(header), 9), "{csv}");
    let best = csv.lines().find(|l| l.starts_with("curves") && l.contains("round.lis")).unwrap();
    assert!(best.contains(",300,400,lru,no,"), "{best}");
    for (bad, code, needle) in [
        (&["--below", "1%", "--below-policy", "lru,arc"][..], 1, "--below-policy: give one policy"),
        (&["--below", "1%", "--below-policy", "opt"], 1, "--below-policy: opt is for single caches"),
        (&["--below", "wat"], 2, "wat"),
        (&["--demotes"], 2, "--below"),
        (&["--below-policy", "lru"], 2, "--below"),
    ] {
        let (_, err) = run(dir, &[&args[..], bad].concat(), code);
        assert!(err.contains(needle), "{err}");
    }
    let (_, err) = run(dir, &["sim", "round.lis", "--below", "1%"], 2);
    assert!(err.contains("--beside"), "{err}");
}

#[test]
fn tenants_of_one_trace_share_a_cache_in_its_order() {
    let dir = place();
    let dir = dir.path();
    // a goes round in 30 blocks; b, which begins late, is three times as fast and never comes back.
    let mut rows = String::new();
    let mut fresh = 1000;
    for i in 0..6000 {
        rows += &format!("a,{}\n", i % 30);
        if i >= 2000 {
            for _ in 0..3 {
                rows += &format!("b,{fresh}\n");
                fresh += 1;
            }
        }
    }
    fs::write(dir.join("two.csv"), rows).unwrap();
    let csv = ["--columns", "tenant=1,key=2"];
    let alone = ["sim", "two.csv", "--size", "80blocks", "--policy", "lru", "--json"];
    let one: Value = serde_json::from_str(&run(dir, &[&alone[..], &csv].concat(), 0).0).unwrap();
    let tenants = ["--per-tenant", "--controller", "shared,strict", "--interval", "500"];
    let two: Value = serde_json::from_str(&run(dir, &[&alone[..], &csv, &tenants].concat(), 0).0).unwrap();
    assert_eq!(two["tenants"], serde_json::json!(["a", "b"]));
    assert_eq!(two["results"][0]["misses"], one["results"][0]["misses"], "nobody divides it: the cache of the trace");
    // 29 other blocks of a and three of b for each of its steps lie between two uses of a block: after 17 steps, more
    // than fit.
    assert_eq!(two["results"][0]["tenants"][0]["misses"], 30 + 4000 - 17, "pushed out soon after b begins");
    let strict = two["results"][1]["tenants"][0]["misses"].as_u64().unwrap();
    assert!(strict < 200, "and they are not, once it has been given its half: {strict}");
    let (table, _) = run(dir, &[&["sim", "two.csv", "--per-tenant", "--policy", "lru"][..], &csv].concat(), 0);
    assert!(table.contains("OF a") && table.contains("OF b"), "{table}");
    // A trace that tells nobody apart has one tenant.
    fs::write(dir.join("one.lis"), "0 30 0 0\n".repeat(10)).unwrap();
    let (table, _) = run(dir, &["sim", "one.lis", "--per-tenant"], 0);
    assert!(table.contains("utility"), "{table}");
    let (_, err) = run(dir, &["sim", "two.csv", "--per-tenant", "--beside", "one.lis"], 2);
    assert!(err.contains("cannot be used with"), "{err}");
}

#[test]
fn a_trace_without_requests_has_no_miss_ratio() {
    let dir = place();
    let dir = dir.path();
    fs::write(dir.join("empty.lis"), "").unwrap();
    fs::write(dir.join("some.lis"), "0 30 0 0\n").unwrap();
    for size in ["10%", "100blocks"] {
        let (_, err) = run(dir, &["sim", "empty.lis", "--size", size], 1);
        assert!(err.contains("the trace empty.lis has no requests"), "{err}");
    }
    let (table, err) = run(dir, &["compare", "empty.lis", "some.lis", "--sizes", "10blocks"], 1);
    assert!(err.contains("the trace empty.lis has no requests") && table.contains("some.lis"), "{err} {table}");
    // Nor has one that is damaged where it begins.
    fs::write(dir.join("bad.lis"), "1 x 0 0\n").unwrap();
    let (table, err) = run(dir, &["sim", "bad.lis", "--size", "10blocks"], 1);
    assert!(err.contains("record 1") && table.is_empty(), "{err} {table}");
    let (table, err) = run(dir, &["compare", "bad.lis", "some.lis", "--sizes", "10blocks"], 1);
    assert!(err.contains("record 1") && !table.contains("bad.lis") && table.contains("some.lis"), "{err} {table}");
    let (_, err) = run(dir, &["sim", "empty.lis", "--per-tenant"], 1);
    assert!(err.contains("the tenants' traces hold no access"), "{err}");
}

#[test]
fn hints_are_given_anew_in_the_course_of_a_trace() {
    let dir = place();
    let dir = dir.path();
    // By turns one hundred blocks and another, twenty times each.
    let phases = ["0 100 0 0\n".repeat(20), "100 100 0 0\n".repeat(20)].concat();
    fs::write(dir.join("phases.lis"), phases.repeat(5)).unwrap();
    let level = |name| format!("[[level]]\nname = \"{name}\"\nsize = \"60blocks\"\nkeeps = \"hinted\"\n");
    let levels = level("host") + &level("ssd");
    let whole = format!("hints = \"400KiB\"\n{levels}");
    fs::write(dir.join("whole.toml"), &whole).unwrap();
    fs::write(dir.join("anew.toml"), format!("hints_every = 2000\n{whole}")).unwrap();
    fs::write(dir.join("once.toml"), format!("hints_every = 20000\n{whole}")).unwrap();
    let args =
        ["sim", "phases.lis", "--hierarchy", "whole.toml", "--hierarchy", "anew.toml", "--hierarchy", "once.toml"];
    let json: Value = serde_json::from_str(&run(dir, &[&args[..], &["--json"]].concat(), 0).0).unwrap();
    let levels = |n: usize| &json["hierarchies"][n]["levels"];
    let disk = |n: usize| levels(n)[2]["reads"].as_u64().unwrap();
    assert_eq!(disk(1), 1000, "each phase reads its blocks once");
    assert!(disk(0) > 5000, "one of both has the space of all phases: {}", disk(0));
    assert_eq!(levels(0), levels(2), "one window is the whole trace");
    // At nine changes all goes: 60 blocks of the one level, 40 of the other, besides those that were handed down.
    let of = |level: usize, what: &str| levels(1)[level][what].as_u64().unwrap();
    assert_eq!(of(1, "evictions"), 9 * 40);
    assert_eq!(of(0, "evictions"), 9 * 60 + of(1, "demotions"));
    for (text, needle) in [
        (whole.replace("hints = \"400KiB\"", "hints_every = 2000"), "hints_every needs hints"),
        (format!("hints_every = 0\n{whole}"), "at least 1 access"),
        (format!("hints_every = -1\n{whole}"), "hints_every"),
    ] {
        fs::write(dir.join("bad.toml"), text).unwrap();
        let (_, err) = run(dir, &["sim", "phases.lis", "--hierarchy", "bad.toml"], 1);
        assert!(err.contains(needle) && err.contains("bad"), "{err}");
    }
}

#[test]
fn ram_over_an_ssd_is_a_line_for_each_combination() {
    let dir = place();
    let dir = dir.path();
    // 400 blocks round and round: 100 fit in RAM, the rest on the SSD.
    fs::write(dir.join("round.lis"), "0 400 0 0\n".repeat(50)).unwrap();
    let args = ["sim", "round.lis", "--policy", "lru", "--size", "100blocks,50%", "--ssd", "none,4MiB,500%"];
    run(dir, &args, 2);
    let args = ["sim", "round.lis", "--policy", "lru", "--size", "100blocks,50%", "--ssd", "none,8MiB"];
    let more = ["--admit", "all,second", "--restart-at", "50%", "--restart-for", "1000"];
    let all = |form: &[&str]| run(dir, &[&args[..], &more, form].concat(), 0).0;
    let json: Value = serde_json::from_str(&all(&["--json"])).unwrap();
    let rows = json["results"].as_array().unwrap();
    let said: Vec<_> =
        rows.iter().map(|r| (r["size"].as_str().unwrap(), r["ssd"].as_str().unwrap(), &r["admit"])).collect();
    let (all_of_them, second) = (Value::from("all"), Value::from("second"));
    let of = |size| [(size, "none", &Value::Null), (size, "8MiB", &all_of_them), (size, "8MiB", &second)];
    assert_eq!(said, [of("100blocks"), of("50%")].concat());
    for r in rows {
        let n = |name: &str| r[name].as_u64().unwrap();
        assert_eq!(n("ram_hits") + n("ssd_hits") + n("misses"), n("reads"), "{r}");
        assert_eq!((n("reads"), n("writes"), n("ram_hits"), n("mismatches")), (20_000, 0, 0, 0), "{r}");
        let causes = ["admitted_bytes", "cleaning_bytes", "summary_bytes", "table_bytes"].map(n);
        assert_eq!(causes.iter().sum::<u64>(), n("written_bytes"));
        assert_eq!(n("admitted_bytes"), n("admitted_blocks") * 4096);
    }
    let misses = |n: usize| rows[n]["misses"].as_u64().unwrap();
    // Each block once, and after the restart those that were in RAM alone; under `second` twice, or until it is known.
    assert_eq!(misses(0), 20_000);
    assert!((400..=520).contains(&misses(1)) && (800..=1600).contains(&misses(2)), "{} {}", misses(1), misses(2));
    let after = &rows[1]["restart"];
    let sum = |side: &str| after[side].as_array().unwrap().iter().map(|c| c["misses"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(after["warm"].as_array().unwrap().len(), 20);
    assert!(sum("warm") <= 100 && sum("cold") >= 400, "{after}");
    let table = all(&[]);
    assert!(table.contains("SSD HITS") && table.contains("started again after 10000 accesses"), "{table}");
    let csv = all(&["--csv", "--parquet", "s.parquet"]);
    assert!(csv.starts_with("trace,policy,size,ram_blocks,ssd,ssd_bytes,admit,reads,writes,ram_hits,ssd_hits,misses"));
    assert_eq!(csv.lines().count(), 7);
    assert!(fs::read(dir.join("s.parquet")).unwrap().starts_with(b"PAR1"));
    // Damage, and what makes no sense.
    let (table, err) = run(dir, &["sim", "bad.lis", "--size", "5blocks", "--ssd", "4MiB"], 1);
    assert!(table.contains("Not whole") && err.contains("bad.lis"), "{table} {err}");
    for (bad, code, needle) in [
        (&["--ssd", "1MiB"][..], 1, "four segments"),
        (&["--ssd", "4MiB", "--policy", "lirs"], 1, "no disk of the daemon may have it"),
        (&["--ssd", "4MiB", "--admit", "some"], 2, "measured, all, second, none"),
        (&["--ssd", "4MiB", "--block-size", "512"], 2, "--block-size"),
        (&["--admit", "all"], 2, "--ssd"),
        (&["--ssd", "4MiB", "--restart-at", "half"], 2, "no place in a trace"),
    ] {
        let (_, err) = run(dir, &[&["sim", "round.lis", "--size", "10blocks"], bad].concat(), code);
        assert!(err.contains(needle), "{needle}: {err}");
    }
    let (_, err) = run(dir, &["sim", "round.lis", "--size", "9blocks", "--ssd", "4MiB", "--writes-per-day", "1GiB"], 0);
    assert!(err.contains("no times"), "{err}");
}
