//! `undercroft trace` through the built program: what it prints, what it writes, and what it leaves when something
//! fails.
//!
//! Owns runs of the real binary on small traces.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MSR: &str = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
128166372016382155,usr,0,Write,1317441536,8192,1963\n\
128166372026382245,src1,1,Read,2436440064,4096,1835\n";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_undercroft"));
        c.arg("trace").args(args).current_dir(self.dir.path()).env_remove("UNDERCROFT_LOG").stdin(Stdio::null());
        c
    }

    /// Runs it; expects the exit code, and the texts on standard output and error.
    #[track_caller]
    fn run(&self, args: &[&str], code: i32, out: &[&str], err: &[&str]) -> String {
        is(self.command(args).output().unwrap(), args, code, out, err)
    }

    /// Everything in the directory, hidden or not.
    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

#[track_caller]
fn is(o: Output, args: &[&str], code: i32, out: &[&str], err: &[&str]) -> String {
    let (said, wrong) = (String::from_utf8_lossy(&o.stdout).into_owned(), String::from_utf8_lossy(&o.stderr));
    assert_eq!(o.status.code(), Some(code), "{args:?}\n{said}{wrong}");
    for (needles, text) in [(out, said.as_str()), (err, &wrong)] {
        needles.iter().for_each(|n| assert!(text.contains(n), "{args:?}: \"{n}\" is missing in\n{said}{wrong}"));
    }
    said
}

#[test]
fn info_tells_what_a_trace_is_like() {
    let p = Place::new();
    fs::write(p.at("a.csv"), MSR).unwrap();
    let out = [
        "a.csv: msr",
        "requests     3",
        "accesses     10 to blocks of 4KiB",
        "footprint    10 distinct, 40KiB",
        "reads        2 (66.7%)",
        "writes       1 (33.3%)",
        "bytes        36KiB, 8KiB of them written",
        "time         2.3s long",
        "TENANT",
        "usr_0",
        "src1_1",
    ];
    p.run(&["info", "a.csv"], 0, &out, &[]);
    let json = p.run(&["info", "--json", "--block-size", "64KiB", "a.csv"], 0, &[], &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let of = |key: &str| json[0][key].clone();
    assert_eq!((of("format"), of("accesses"), of("block_bytes")), ("msr".into(), 3.into(), 65_536.into()));
    assert_eq!((json[0]["tenants"][1]["name"].as_str(), of("footprint_exact")), (Some("src1_1"), true.into()));
    // from a pipe, compressed
    let mut child =
        p.command(&["info", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let packed = p.at("a.csv.gz");
    p.run(&["convert", "a.csv", "a.csv.gz", "--block-size", "4KiB"], 0, &[], &["a.csv.gz: 3 requests"]);
    child.stdin.take().unwrap().write_all(&fs::read(packed).unwrap()).unwrap();
    is(child.wait_with_output().unwrap(), &["info", "-"], 0, &["standard input: csv", "requests     3"], &[]);
}

#[test]
fn errors_name_file_offset_and_record_and_the_remedy() {
    let p = Place::new();
    fs::write(p.at("a.csv"), format!("{MSR}broken line\n{MSR}")).unwrap();
    p.run(
        &["info", "a.csv"],
        1,
        &[],
        &["undercroft: the trace a.csv is damaged: record 4 at byte 157", "less than 6 columns"],
    );
    p.run(
        &["info", "--lenient", "a.csv"],
        0,
        &["requests     6"],
        &["1 records of a.csv make no sense", "record 4 at byte 157", "2 requests come with a time before"],
    );
    p.run(&["info", "none.lis"], 1, &[], &["cannot open the trace none.lis"]);
    p.run(&["info", "--format", "alibaba", "a.csv"], 1, &[], &["looks like msr"]);
    fs::write(p.at("a.bin"), [1, 2, 3]).unwrap();
    p.run(&["info", "a.bin"], 1, &[], &["a.bin does not tell the format", "--format", "u64le"]);
    p.run(
        &["info", "--format", "u32le", "a.bin"],
        1,
        &[],
        &["record 1 at byte 0: the file ends after 3 of the record's 4 bytes"],
    );
    p.run(&["info", "--format", "oracle-general", "--block-size", "4KiB", "a.bin"], 1, &[], &["cannot be split"]);
    p.run(&["convert", "a.csv", "b.xyz"], 1, &[], &["b.xyz does not tell the format to write", "--to"]);
    p.run(&["info", "--format", "nothing", "a.csv"], 2, &[], &["possible values", "vscsi"]);
    p.run(&["split", "a.csv", "--by", "time", "--output", "x"], 2, &[], &["--every"]);
    // nothing half is left of a conversion that fails
    p.run(&["convert", "a.csv", "b.parquet"], 1, &[], &["record 4"]);
    assert_eq!(p.files(), ["a.bin", "a.csv"]);
}

#[test]
fn conversions_come_back_the_same() {
    let p = Place::new();
    fs::write(p.at("a.csv"), MSR).unwrap();
    p.run(&["convert", "a.csv", "a.parquet"], 0, &[], &["a.parquet: 3 requests"]);
    p.run(&["convert", "a.parquet", "b.csv.zst"], 0, &[], &[]);
    let csv = p.run(
        &["head", "b.csv.zst"],
        0,
        &[
            "0,usr_0,read,7014609920,24576",
            "1332052600,usr_0,write,1317441536,8192",
            "2332061600,src1_1,read,2436440064,4096",
        ],
        &[],
    );
    assert_eq!(csv.lines().count(), 4);
    assert_eq!(p.run(&["head", "-n", "1", "b.csv.zst"], 0, &[], &[]).lines().count(), 2);
    p.run(&["convert", "a.csv", "a.lcs.xz"], 0, &[], &["3 requests as 10 records"]);
    p.run(&["info", "a.lcs.xz"], 0, &["lcs", "requests     10", "10 distinct", "reads        8"], &[]);
    p.run(&["convert", "a.csv", "a.parquet"], 1, &[], &["a.parquet: it is there already", "--force"]);
    p.run(&["convert", "a.csv", "a.parquet", "--force"], 0, &[], &[]);
    p.run(&["convert", "a.csv", "a.parquet.zst"], 1, &[], &["compressed within"]);
    // columns of one's own
    fs::write(p.at("my.txt"), "when|what|where|n\n1.5|R|8|16\n2|W|0|8\n").unwrap();
    let args = [
        "head",
        "my.txt",
        "--columns",
        "time=when,op=what,offset=where,size=n",
        "--separator",
        "|",
        "--time-unit",
        "1ms",
        "--offset-unit",
        "512",
        "--size-unit",
        "512",
    ];
    p.run(&args, 0, &["1500000,,read,4096,8192", "2000000,,write,0,4096"], &[]);
}

#[test]
fn synthetic_traces_are_cut_joined_and_sampled() {
    let p = Place::new();
    p.run(
        &["synth", "zipf", "z.oracleGeneral", "--keys", "1000", "-n", "50000"],
        0,
        &[],
        &["z.oracleGeneral: 50000 requests"],
    );
    let sum = fs::read(p.at("z.oracleGeneral"))
        .unwrap()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    assert_eq!(sum, 0xea71_f844_6619_aae0, "the file that ../shared/reference/zipf_trace.py 1000 50000 1.0 42 writes");
    p.run(
        &["split", "z.oracleGeneral", "--by", "count", "--every", "20000", "--output", "part"],
        0,
        &[],
        &["part-0002.oracleGeneral: 10000 requests"],
    );
    p.run(
        &["split", "z.oracleGeneral", "--by", "time", "--every", "2s", "--output", "sec", "--to", "u64le"],
        0,
        &[],
        &["sec-0002.u64le: 10000 requests"],
    );
    let parts: Vec<u8> = (0..3).flat_map(|n| fs::read(p.at(&format!("sec-000{n}.u64le"))).unwrap()).collect();
    p.run(&["convert", "z.oracleGeneral", "z.u64le"], 0, &[], &[]);
    assert_eq!(parts, fs::read(p.at("z.u64le")).unwrap());
    p.run(&["sample", "z.oracleGeneral", "s.oracleGeneral", "--rate", "10%"], 0, &[], &["s.oracleGeneral"]);
    let count = |name: &str| -> u64 {
        let json: serde_json::Value = serde_json::from_str(&p.run(&["info", "--json", name], 0, &[], &[])).unwrap();
        json[0]["footprint_blocks"].as_u64().unwrap()
    };
    let (all, held) = (count("z.oracleGeneral"), count("s.oracleGeneral"));
    assert!((all / 14..all / 7).contains(&held), "{held} of {all} are a tenth");
    p.run(&["synth", "loop", "l.csv", "--keys", "10", "-n", "100", "--writes", "50%"], 0, &[], &[]);
    p.run(&["synth", "mixed", "m.csv", "-n", "100"], 0, &[], &[]);
    p.run(&["merge", "l.csv", "m.csv", "--output", "lm.parquet"], 0, &[], &["lm.parquet: 200 requests"]);
    p.run(&["info", "lm.parquet"], 0, &["requests     200", "l ", "m ", "tenants      2"], &[]);
    p.run(
        &["split", "lm.parquet", "--by", "tenant", "--output", "of", "--to", "csv", "--compress", "zstd"],
        0,
        &[],
        &["of-l.csv.zst: 100 requests", "of-m.csv.zst: 100 requests"],
    );
    p.run(
        &["split", "lm.parquet", "--by", "tenant", "--tenant", "x", "--output", "no"],
        1,
        &[],
        &["no requests of that tenant; its tenants are l, m"],
    );
    p.run(&["convert", "z.oracleGeneral", "z.lis"], 0, &[], &[]);
    p.run(
        &["split", "z.lis", "--by", "count", "--every", "1000", "--tenant", "x", "--output", "no"],
        1,
        &[],
        &["z.lis is of format arc-lis and names no tenants; split it by time or count; formats that can name"],
    );
    fs::write(p.at("bare.csv"), "time_ns,op,key,keys,size_bytes\n1,read,1,1,0\n2,read,2,1,0\n").unwrap();
    let before = p.files();
    for (trace, said) in [
        ("z.oracleGeneral", "format oracle-general and names no tenants; split it by time or count; formats that can"),
        ("z.lis", "msr, alibaba, tencent, spc, fio, blkparse, blktrace, qemu, csv, undercroft-parquet"),
        (
            "bare.csv",
            "bare.csv is of format csv and names no tenants; say which column has them (--columns, with tenant=)",
        ),
    ] {
        p.run(&["split", trace, "--by", "tenant", "--output", "no"], 1, &[], &[said]);
    }
    assert_eq!(p.files(), before, "nothing was written");
    for pattern in ["uniform", "scan", "phased"] {
        let first = p.run(&["synth", pattern, "-", "-n", "1000", "--seed", "7"], 0, &[], &[]);
        assert_eq!(first, p.run(&["synth", pattern, "-", "-n", "1000", "--seed", "7"], 0, &[], &[]));
        assert_eq!(first.lines().count(), 1001);
    }
    p.run(&["synth", "zipf", "x.csv", "--alpha", "-1"], 2, &[], &[]);
    p.run(&["synth", "mixed", "x.csv", "--mix", "lru=1"], 1, &[], &["zipf=70,loop=20,scan=10"]);
    assert!(p.files().iter().all(|f| !f.contains("partial")), "{:?}", p.files());
}

#[test]
fn a_column_of_tenants_with_nothing_in_it_splits_nothing() {
    let p = Place::new();
    fs::write(p.at("empty.csv"), "time_ns,tenant,op,key\n1,,read,1\n2,,read,2\n").unwrap();
    let said = "empty.csv is of format csv and names no tenants; say which column has them";
    p.run(&["split", "empty.csv", "--by", "tenant", "--output", "no"], 1, &[], &[said]);
    assert_eq!(p.files(), ["empty.csv"], "nothing was written");
}

/// A reader that goes away ends it quietly.
#[test]
fn a_closed_pipe_is_no_failure() {
    let p = Place::new();
    let mut child = p
        .command(&["synth", "zipf", "-", "-n", "100000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 4096];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut some).unwrap();
    drop(out);
    let o = child.wait_with_output().unwrap();
    assert_eq!((o.status.code(), String::from_utf8_lossy(&o.stderr).as_ref()), (Some(0), ""));
}

/// Ctrl-C while it writes: nothing is left, and the exit code says so.
#[test]
fn what_is_interrupted_leaves_nothing() {
    let p = Place::new();
    for name in ["big.csv", "big.oracleGeneral.zst"] {
        let mut child =
            p.command(&["synth", "scan", name, "-n", "100000000000"]).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while p.files().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it writes nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{name}");
        assert_eq!(p.files(), [""; 0], "{name}");
    }
}

#[test]
fn a_full_disk_is_named_and_no_panic() {
    let p = Place::new();
    let args = ["synth", "scan", "/dev/full", "--to", "oracle-general", "-n", "100000"];
    p.run(&args, 1, &[], &["undercroft: cannot write /dev/full: No space left"]);
}
