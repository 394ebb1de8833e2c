//! `undercroft curve` and `partition` on small traces whose misses can be counted by hand.
//!
//! Owns both commands.

use super::place::Place;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// A trace of `u32` block numbers.
fn trace(path: &Path, blocks: impl Iterator<Item = u32>) {
    fs::write(path, blocks.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
}

/// A loop over 100 blocks and one over 400, a thousand requests each.
fn two_loops(p: &Place) {
    trace(&p.at("web.u32le"), (0..1000).map(|i| i % 100));
    trace(&p.at("db.u32le"), (0..1000).map(|i| i % 400));
}

#[test]
fn curves_are_those_of_the_traces() {
    let p = Place::new();
    two_loops(&p);
    let said = p.run(&["curve", "web.u32le", "db.u32le", "--sizes", "50,400KiB,100%"]);
    // a loop misses everything until all of it fits
    let said = said.is(0, &["web.u32le: 1000 requests, 0 of them writes; 100 blocks (400KiB)", "LRU EXACT"], &[]);
    assert!(said.out.contains("50  200KiB      50.0%     1.0000") && said.out.contains("0.1000"), "{}", said.out);
    assert!(said.out.contains("400  1.6MiB     100.0%     0.4000"), "{}", said.out);

    let args = [
        "curve",
        "web.u32le",
        "--policy",
        "lru,fifo,arc",
        "--sizes",
        "10%,100%",
        "--json",
        "--zipf",
        "--window",
        "250",
    ];
    let json: serde_json::Value = serde_json::from_str(&p.run(&args).is(0, &[], &[]).out).unwrap();
    let trace = &json["traces"][0];
    assert_eq!((json["complete"].as_bool(), trace["footprint_blocks"].as_u64()), (Some(true), Some(100)));
    for (i, policy) in ["lru", "fifo", "arc"].into_iter().enumerate() {
        let curve = &trace["curves"][i];
        assert_eq!((curve["policy"].as_str(), curve["points"][1]["misses"].as_f64()), (Some(policy), Some(100.0)));
        assert_eq!(
            (curve["points"][0]["blocks"].as_u64(), curve["points"][0]["bytes"].as_u64()),
            (Some(10), Some(40960))
        );
    }
    assert_eq!(trace["windows"].as_array().unwrap().len(), 4);
    assert_eq!(
        (trace["windows"][0]["blocks"].as_u64(), trace["windows"][1]["new_blocks"].as_u64()),
        (Some(100), Some(0))
    );
    let csv = p.run(&["curve", "web.u32le", "--sizes", "100", "--csv"]).is(0, &[], &[]).out;
    assert_eq!(
        csv,
        "trace,tenant,policy,method,blocks,bytes,requests,misses,miss_ratio,miss_ratio_error\n\
         web.u32le,,lru,exact,100,409600,1000,100,0.1,0\n"
    );
}

#[test]
fn sampled_curves_are_near_and_drawn() {
    let p = Place::new();
    trace(&p.at("loop.u32le"), (0..60_000).map(|i| i % 6000));
    for method in ["shards", "paired", "aet", "mini"] {
        let plot = format!("{method}.svg");
        let args = [
            "curve",
            "loop.u32le",
            "--method",
            method,
            "--rate",
            "20%",
            "--sizes",
            "1000,12000",
            "--json",
            "--plot",
            &plot,
        ];
        let json: serde_json::Value = serde_json::from_str(&p.run(&args).is(0, &[], &[]).out).unwrap();
        let ratio = |i: usize| json["traces"][0]["curves"][0]["points"][i]["miss_ratio"].as_f64().unwrap();
        assert!(ratio(0) > 0.95 && (ratio(1) - 0.1).abs() < 0.05, "{method}: {} and {}", ratio(0), ratio(1));
        assert!(fs::read_to_string(p.at(&plot)).unwrap().contains("<svg"), "{method}");
    }
    p.run(&["curve", "loop.u32le", "--plot", "loop.png"]).is(0, &[], &[]);
    assert!(fs::read(p.at("loop.png")).unwrap().starts_with(b"\x89PNG"));
    p.run(&["curve", "loop.u32le", "--method", "shards", "--samples", "500"]).is(0, &["LRU SHARDS"], &[]);
}

#[test]
fn memory_goes_where_it_saves_most() {
    let p = Place::new();
    two_loops(&p);
    // 450 blocks hold one of the loops; the small one saves 900 misses with a quarter of the space
    let args = ["partition", "web.u32le", "db=db.u32le", "--memory", "1800KiB", "--json"];
    let json: serde_json::Value = serde_json::from_str(&p.run(&args).is(0, &[], &[]).out).unwrap();
    assert_eq!((json["tenants"][0]["name"].as_str(), json["tenants"][1]["name"].as_str()), (Some("web"), Some("db")));
    assert_eq!(
        (json["tenants"][0]["share_blocks"].as_u64(), json["tenants"][1]["share_blocks"].as_u64()),
        (Some(100), Some(0))
    );
    assert_eq!((json["misses"]["divided"].as_f64(), json["misses"]["equal"].as_f64()), (Some(1100.0), Some(1100.0)));
    for method in ["dp", "greedy", "lookahead"] {
        let said = p.run(&["partition", "web.u32le", "db.u32le", "--memory", "2000KiB", "--method", method]);
        // both fit; equal parts hold the small one only
        said.is(
            0,
            &["web", "400KiB", "db", "1.6MiB", &format!("by {method}: 500 misses; in equal parts 1100 (+120.0%)")],
            &[],
        );
    }
    let floored = ["partition", "web.u32le", "db.u32le", "--memory", "1800KiB", "--floor", "db=1600KiB", "--csv"];
    p.run(&floored).is(0, &["web,web.u32le,1000,100,0,0,1000,", "db,db.u32le,1000,400,400,1638400,400,"], &[]);
    p.run(&["partition", "web.u32le", "db.u32le", "--memory", "1MiB", "--plot", "p.svg"]).is(0, &["left"], &[]);
    assert!(p.at("p.svg").exists());
}

#[test]
fn tenants_of_one_trace_have_curves_and_parts_of_their_own() {
    let p = Place::new();
    // loops of 10 and 40 blocks, ten rounds each, of two volumes of one file; their blocks have the same numbers
    let line = |i: u64| {
        let (volume, block) = if i.is_multiple_of(5) { ("a", i / 5 % 10) } else { ("b", (i / 5 * 4 + i % 5 - 1) % 40) };
        format!("{volume},R,{},4096,{i}\n", block * 4096)
    };
    fs::write(p.at("volumes.csv"), (0..500).map(line).collect::<String>()).unwrap();
    let columns = ["--columns", "tenant=1,op=2,offset=3,size=4,time=5", "--per-tenant"];
    let run = |args: &[&str]| p.run(&[args, &columns[..]].concat());
    for policy in ["lru", "fifo"] {
        let out =
            run(&["curve", "volumes.csv", "--sizes", "50%,100%", "--policy", policy, "--csv"]).is(0, &[], &[]).out;
        let rows: Vec<&str> = out.lines().skip(1).collect();
        let expected = [("a", 5, 100, 100), ("a", 10, 100, 10), ("b", 20, 400, 400), ("b", 40, 400, 40)];
        for (row, (tenant, blocks, requests, misses)) in rows.iter().zip(expected) {
            let begins = format!("volumes.csv,{tenant},{policy},exact,{blocks},{},{requests},{misses},", blocks * 4096);
            assert!(row.starts_with(&begins), "{row}: {begins}");
        }
        assert_eq!(rows.len(), 4);
    }
    run(&["curve", "volumes.csv", "--plot", "tenants.svg"]).is(0, &["volumes.csv b: 400 requests"], &[]);
    assert!(fs::read_to_string(p.at("tenants.svg")).unwrap().contains("volumes.csv a lru exact"));
    // 40 blocks: b's loop saves 360 misses, a's 90, and both do not fit
    let parted = ["partition", "volumes.csv", "--memory", "160KiB", "--csv"];
    run(&parted).is(0, &["a,volumes.csv,100,10,0,0,100,", "b,volumes.csv,400,40,40,163840,40,"], &[]);
    run(&[&parted[..], &["--floor", "a=40KiB"]].concat()).is(0, &["a,volumes.csv,100,10,10,40960,10,"], &[]);
    run(&[&parted[..], &["--floor", "c=40KiB"]].concat()).is(1, &[], &["no tenant is called c; there are a, b"]);
    for (command, more) in [("curve", &[][..]), ("partition", &["--memory", "160KiB"])] {
        let file = format!("{command}.parquet");
        run(&[&[command, "volumes.csv", "--parquet", &file], more].concat()).is(0, &[], &[]);
        let written = fs::read(p.at(&file)).unwrap();
        assert!(written.starts_with(b"PAR1") && written.ends_with(b"PAR1"), "{command}");
        run(&[&[command, "volumes.csv", "--parquet", "none/x.parquet"], more].concat()).is(1, &[], &["--parquet"]);
    }
    // MRU keeps most of a loop, however little it has
    let mru = run(&["partition", "volumes.csv", "--memory", "160KiB", "--policy", "mru", "--json"]).is(0, &[], &[]).out;
    let json: serde_json::Value = serde_json::from_str(&mru).unwrap();
    let missed = json["misses"]["divided"].as_f64().unwrap();
    assert!(
        (100.0..160.0).contains(&missed),
        "{missed}: 50 at least, and 9 for each of the ten blocks that do not fit"
    );
}

#[test]
fn what_curves_cannot_be_made_of_is_named() {
    let p = Place::new();
    two_loops(&p);
    fs::write(p.at("cut.u32le"), [1, 2, 3]).unwrap();
    fs::write(p.at("empty.u32le"), b"").unwrap();
    // the others are shown
    p.run(&["curve", "cut.u32le", "web.u32le", "none.lis"]).is(
        1,
        &["web.u32le: 1000 requests"],
        &["cut.u32le", "byte 0", "none.lis"],
    );
    p.run(&["curve", "empty.u32le"]).is(1, &[], &["empty.u32le has no requests"]);
    p.run(&["curve", "web.u32le", "--method", "aet", "--policy", "arc"]).is(1, &[], &["LRU only", "--method mini"]);
    p.run(&["curve", "web.u32le", "--plot", "x.pdf"]).is(2, &[], &[".svg"]);
    p.run(&["curve", "web.u32le", "--sizes", "512M"]).is(2, &[], &["512MiB"]);
    p.run(&["curve", "web.u32le", "--format", "csv?"]).is(2, &[], &["u32le"]);
    p.run(&["curve", "web.u32le", "--samples", "100"]).is(1, &[], &["--method shards"]);
    let part = |more: &[&str]| p.run(&[&["partition", "web.u32le", "db.u32le", "--memory", "1MiB"], more].concat());
    part(&["--floor", "www=1MiB"]).is(1, &[], &["no tenant is called www; there are web, db"]);
    part(&["--floor", "web=2MiB"]).is(1, &[], &["the floors sum to 512 blocks, and there are 256"]);
    part(&["--by", "aet", "--policy", "arc"]).is(1, &[], &["LRU only", "--by mini"]);
    part(&["--block-size", "0"]).is(1, &[], &["--block-size 0"]);
    part(&["cut.u32le"]).is(1, &[], &["cut.u32le"]);
    part(&["web.u32le"]).is(1, &[], &["two tenants are called web"]);
}

#[test]
fn ctrl_c_shows_the_curve_of_what_was_read() {
    let p = Place::new();
    let fifo = p.at("pipe.u32le");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child = p
        .command(&["curve", "pipe.u32le", "--format", "u32le", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // two batches, then the writer waits: the trace does not end by itself
    let mut pipe = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let blocks: Vec<u8> = (0..1u32 << 17).flat_map(|i| (i % 1000).to_le_bytes()).collect();
    std::io::Write::write_all(&mut pipe, &blocks).unwrap();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    // it notices between batches
    let _ = std::io::Write::write_all(&mut pipe, &blocks);
    drop(pipe);
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{out}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((json["complete"].as_bool(), json["traces"][0]["footprint_blocks"].as_u64()), (Some(false), Some(1000)));
}
