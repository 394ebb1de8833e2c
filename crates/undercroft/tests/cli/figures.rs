//! Figures of `sim`, `curve`, `partition` and `trace info` that would be of something else than what they are called.
//!
//! Owns traces whose counts are known by hand, read in ways that gave others once. Never tests what a cache keeps.

use super::place::Place;
use serde_json::Value;
use std::fmt::Write;
use std::fs;

/// What a command prints as JSON.
fn json(p: &Place, args: &[&str]) -> Value {
    let said = p.run(&[args, &["--json"]].concat()).is(0, &[], &[]);
    serde_json::from_str(&said.out).unwrap()
}

/// Misses of each controller.
fn misses(p: &Place, args: &[&str]) -> Vec<u64> {
    let results = json(p, args)["results"].clone();
    results.as_array().unwrap().iter().map(|r| r["misses"].as_u64().unwrap()).collect()
}

#[test]
fn tenants_of_one_cache_have_no_block_in_common() {
    let p = Place::new();
    let names: String = (0..16).fold("key\n".into(), |text, n| format!("{text}name-{n}\n"));
    fs::write(p.at("a.csv"), &names).unwrap();
    fs::write(p.at("b.csv"), &names).unwrap();
    let both = ["sim", "a.csv", "--beside", "b.csv", "--size", "1000blocks", "--controller", "shared,strict"];
    assert_eq!(misses(&p, &both), [32, 32], "names are hashed to 64 bits");
    let mut volumes = String::from("time,tenant,op,offset,size\n");
    (0..80).for_each(|n| writeln!(volumes, "{n},v{n},r,0,4096").unwrap());
    fs::write(p.at("volumes.csv"), volumes).unwrap();
    let size = ["--size", "1000blocks"];
    let one = misses(&p, &[&["sim", "volumes.csv", "--policy", "lru"], &size[..]].concat());
    let tenants = ["sim", "volumes.csv", "--per-tenant", "--policy", "lru", "--controller", "shared"];
    assert_eq!((one, misses(&p, &[&tenants[..], &size].concat())), (vec![80], vec![80]));
}

#[test]
fn tenants_may_be_called_anything() {
    let p = Place::new();
    let of = |device: &str| format!("{device} add\n{device} open\n{device} read 0 4096\n");
    fs::write(p.at("io.log"), format!("fio version 2 iolog\n{}{}", of("/dev/sda"), of("/dev/sdb"))).unwrap();
    p.run(&["sim", "io.log", "--per-tenant", "--size", "10blocks"]).is(0, &["OF /dev/sda  OF /dev/sdb"], &[]);
    fs::write(p.at("t.csv"), "time,tenant,offset,size\n1,,0,4096\n2,a,0,4096\n").unwrap();
    p.run(&["sim", "t.csv", "--per-tenant", "--size", "10blocks"]).is(0, &[], &[]);
}

#[test]
fn a_size_in_bytes_is_one_of_blocks_as_long_as_is_said() {
    let p = Place::new();
    let mut sectors = String::from("op,offset,size\n");
    (0..2).flat_map(|_| 0..16).for_each(|n| writeln!(sectors, "r,{},512", n * 512).unwrap());
    fs::write(p.at("o.csv"), sectors).unwrap();
    p.run(&["trace", "convert", "o.csv", "o.parquet", "--block-size", "512"]).is(0, &[], &[]);
    for block_size in [&[][..], &["--block-size", "512"], &["--block-size", "4KiB"]] {
        let of = |trace| {
            let args = [&["sim", trace, "--size", "4KiB,8KiB", "--policy", "lru"], block_size].concat();
            let found = json(&p, &args);
            let counts = |r: &Value| (r["capacity_blocks"].as_u64().unwrap(), r["misses"].as_u64().unwrap());
            let rows = found["results"].as_array().unwrap().iter().map(counts).collect::<Vec<_>>();
            (found["block_bytes"].as_u64().unwrap(), rows)
        };
        // Two pages, or sixteen sectors: half of them thrash, all of them fit.
        let expected = match block_size {
            [_, "512"] => (512, vec![(8, 32), (16, 16)]),
            _ => (4096, vec![(1, 4), (2, 2)]),
        };
        assert_eq!((of("o.csv"), of("o.parquet")), (expected.clone(), expected), "{block_size:?}");
    }
    let curve = json(&p, &["curve", "o.parquet"])["traces"][0].clone();
    assert_eq!((curve["footprint_blocks"].as_u64(), curve["block_bytes"].as_u64()), (Some(2), Some(4096)));
}

#[test]
fn one_queue_for_all_is_lrus_whatever_divides() {
    let p = Place::new();
    fs::write(p.at("loop.lis"), "0 10 0 0\n".repeat(20)).unwrap();
    for (policy, by) in [("lru", "exact"), ("mru", "exact"), ("mru", "mini")] {
        let args = ["partition", "loop.lis", "--policy", policy, "--by", by, "--memory", "20KiB"];
        let found = json(&p, &args);
        assert_eq!(found["misses"]["shared_queue"].as_f64(), Some(200.0), "{policy} {by}");
        assert_eq!(found["tenants"][0]["footprint_blocks"].as_u64(), Some(10), "{policy} {by}");
    }
    let curve = json(&p, &["curve", "loop.lis", "--policy", "mru", "--sizes", "5blocks"])["traces"][0].clone();
    assert_eq!((curve["footprint_blocks"].as_u64(), &curve["zipf"]), (Some(10), &Value::Null));
}

#[test]
fn a_tenants_footprint_is_what_it_asks_for() {
    let p = Place::new();
    fs::write(p.at("tk.csv"), "tenant,key\na,1\na,2\na,3\nb,1\nb,2\nb,3\nb,1\n").unwrap();
    let tenants = json(&p, &["trace", "info", "tk.csv"])[0]["tenants"].clone();
    let footprints: Vec<_> = tenants.as_array().unwrap().iter().map(|t| t["footprint_blocks"].as_u64()).collect();
    assert_eq!(footprints, [Some(3), Some(3)]);
}

#[test]
fn no_ratio_is_shown_of_nothing() {
    let p = Place::new();
    fs::write(p.at("t.lis"), "0 3 0 0\n0 3 0 0\n").unwrap();
    for args in [
        &["sim", "t.lis", "--size", "2blocks", "--warm-up", "100"][..],
        &["sim", "t.lis", "--size", "2blocks", "--warm-up", "6"],
        &["compare", "t.lis", "t.lis", "--size", "2blocks", "--warm-up", "6"],
    ] {
        p.run(args).is(1, &[], &["t.lis", "6 accesses were read", "give a smaller --warm-up"]);
    }
    p.run(&["sim", "t.lis", "--size", "2blocks", "--warm-up", "5"]).is(0, &["POLICY"], &[]);
}

#[test]
fn caches_that_cannot_be_had_are_refused() {
    let p = Place::new();
    fs::write(p.at("t.lis"), "0 3 0 0\n").unwrap();
    let sim = ["sim", "t.lis", "--policy", "lirs2", "--size", "1TiB"];
    p.run(&sim).is(1, &[], &["268435456 blocks", "268435455 that one of lirs2 can have"]);
    for args in [
        &["curve", "t.lis", "--policy", "arc", "--sizes", "4000TiB"][..],
        &["curve", "t.lis", "--policy", "arc", "--sizes", "99999999999blocks"],
        &["partition", "t.lis", "--policy", "arc", "--memory", "4000TiB"],
    ] {
        p.run(args).is(1, &[], &["give a smaller size"]);
    }
    // Fewer slots than there can be, but more than any machine has memory for.
    p.run(&["partition", "t.lis", "--policy", "arc", "--memory", "4TiB"]).is(1, &[], &["of memory together"]);
}

#[test]
fn an_option_that_changes_nothing_is_refused() {
    let p = Place::new();
    fs::write(p.at("o.csv"), "op,offset,size\nr,0,4096\n").unwrap();
    p.run(&["trace", "convert", "o.csv", "o.parquet"]).is(0, &[], &[]);
    let core = ["sim", "o.parquet", "--engine", "core", "--size", "10blocks"];
    p.run(&core).is(1, &[], &["does not say what its policy was; give one (--policy)"]);
    let core = [&core[..], &["--policy", "lru"]].concat();
    p.run(&core).is(0, &[], &[]);
    for option in [
        &["--limit", "3"][..],
        &["--warm-up", "2"],
        &["--footprint", "9"],
        &["--block-size", "512"],
        &["--lenient"],
        &["--format", "csv"],
        &["--columns", "key=1"],
    ] {
        p.run(&[&core[..], option].concat()).is(1, &[], &["--engine core", option[0]]);
    }
    let partition = ["partition", "o.parquet", "--memory", "1MiB", "--samples", "100"];
    p.run(&partition).is(1, &[], &["--samples is for --by shards"]);
    let tenants = ["sim", "o.csv", "--per-tenant", "--size", "10blocks", "--one-by-one"];
    p.run(&tenants).is(1, &[], &["--one-by-one is for --engine core"]);
}
