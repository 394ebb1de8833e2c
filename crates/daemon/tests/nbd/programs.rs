//! Real clients: nbdinfo, nbdcopy, qemu-io, qemu-img and libnbd's Python binding.

use crate::rig::{Rig, pattern};
use std::path::Path;
use std::process::Command;
use undercroft_frontend::nbd::NbdServerOptions;

const MIB: usize = 1 << 20;

/// Runs a program, at most two minutes; its output if it succeeds.
fn run(program: &str, args: &[&str]) -> String {
    let (ok, text) = attempt(program, args);
    assert!(ok, "{program} {args:?}: {text}");
    text
}

fn attempt(program: &str, args: &[&str]) -> (bool, String) {
    let out = Command::new("timeout").arg("120").arg(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.code() != Some(127), "{program} is missing: install libnbd-bin, python3-libnbd and qemu-utils");
    (out.status.success(), text)
}

fn path(p: &Path) -> &str {
    p.to_str().unwrap()
}

/// An image with data, zeroes and holes.
fn patchy() -> Vec<u8> {
    let mut bytes = vec![0; 24 * MIB + 512];
    for (n, chunk) in bytes.chunks_mut(MIB).enumerate().filter(|(n, _)| n % 3 == 0) {
        let len = chunk.len();
        chunk.copy_from_slice(&pattern(n as u64 + 1, len));
    }
    bytes
}

#[test]
fn nbdinfo_shows_what_is_served() {
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &patchy(), false);
    rig.add_raw("other", &pattern(1, MIB), true);
    let json: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &rig.uri("disk")])).unwrap();
    assert_eq!(json["protocol"], "newstyle-fixed");
    assert_eq!(json["structured"], true);
    let export = &json["exports"][0];
    assert_eq!(export["export-name"], "disk");
    assert_eq!(export["description"], "the disk disk");
    assert_eq!(export["export-size"], 24 * MIB + 512);
    for yes in
        ["can_flush", "can_fua", "can_multi_conn", "can_zero", "can_df", "can_cache", "can_fast_zero", "can_trim"]
    {
        assert_eq!(export[yes], true, "{yes}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    let sizes = [&export["block_size_minimum"], &export["block_size_preferred"], &export["block_size_maximum"]];
    assert_eq!(sizes, [1, 4096, 32 << 20]);

    let socket = format!("nbd+unix:///?socket={}", rig.socket.display());
    let json: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", "--list", &socket])).unwrap();
    let names: Vec<_> = json["exports"].as_array().unwrap().iter().map(|e| e["export-name"].clone()).collect();
    assert_eq!(names, ["disk", "other"]);
    assert_eq!(json["exports"][1]["is_read_only"], true);

    // Several disks: the empty name says nothing.
    assert!(!attempt("nbdinfo", &["--size", &socket]).0);
    assert_eq!(run("nbdinfo", &["--size", &rig.uri("other")]).trim(), MIB.to_string());
}

#[test]
fn nbdinfo_maps_data_and_holes() {
    let rig = Rig::new(NbdServerOptions::default());
    let image = rig.image("disk");
    rig.add_raw("disk", &vec![0; 16 * MIB], false);
    run(
        "/usr/bin/python3",
        &[
            "-m",
            "nbd",
            "-u",
            &rig.uri("disk"),
            "-c",
            "h.trim(16 << 20, 0); h.pwrite(b'x' * (1 << 20), 4 << 20); h.flush()",
        ],
    );
    let json: serde_json::Value =
        serde_json::from_str(&run("nbdinfo", &["--map", "--json", &rig.uri("disk")])).unwrap();
    let map: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["offset"].clone(), e["length"].clone(), e["type"].clone()))
        .collect();
    let total: u64 = map.iter().map(|e| e.1.as_u64().unwrap()).sum();
    assert_eq!(total, 16 << 20, "{map:?}");
    let at = |o: u64| map.iter().rfind(|e| e.0.as_u64().unwrap() <= o).unwrap().2.as_u64().unwrap();
    assert_eq!(at(4 << 20) & 2, 0, "what was written is not called zero: {map:?}");
    // Whether the file system punches holes is not ours to say; if it does, we show it.
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata(&image).unwrap().blocks() * 512 < 4 << 20 {
        assert_eq!((at(0), at(8 << 20)), (3, 3), "{map:?}");
    }
}

#[test]
fn nbdcopy_copies_out_and_in() {
    let bytes = patchy();
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &bytes, false);
    rig.add_raw("target", &pattern(9, bytes.len()), false);
    let out = rig.dir.path().join("out");
    run("nbdcopy", &[&rig.uri("disk"), path(&out)]);
    assert!(std::fs::read(&out).unwrap() == bytes);
    run("nbdcopy", &["--flush", path(&out), &rig.uri("target")]);
    assert!(std::fs::read(rig.image("target")).unwrap() == bytes);
    // From one disk to the other, over many connections, and seen through the cache.
    run("nbdcopy", &["--flush", "--connections=8", "--requests=64", &rig.uri("target"), &rig.uri("disk")]);
    let again = rig.dir.path().join("again");
    run("nbdcopy", &["--synchronous", &rig.uri("disk"), path(&again)]);
    assert!(std::fs::read(&again).unwrap() == bytes);
}

#[test]
fn qemu_io_finds_its_patterns() {
    let rig = Rig::raw(&vec![0; 16 * MIB]);
    let uri = rig.uri("disk");
    let io = |commands: &[&str]| {
        let mut args = vec!["-f", "raw"];
        commands.iter().for_each(|c| args.extend(["-c", c]));
        args.push(&uri);
        let text = run("qemu-io", &args);
        assert!(!text.contains("failed") && !text.contains("error"), "{text}");
        text
    };
    io(&["write -P 0xaa 0 1M", "write -P 0xbb 513 70000", "write -f -P 0xcc 8M 4k", "flush"]);
    io(&["read -P 0xaa 0 513", "read -P 0xbb 513 70000", "read -P 0xaa 70513 4k", "read -P 0xcc 8M 4k"]);
    io(&["write -z 1k 64k", "write -z -u 8M 1k", "read -P 0 1k 64k", "read -P 0 8M 1k", "read -P 0xcc 8389632 3k"]);
    io(&["discard 0 1M", "aio_write -P 0x11 2M 1M", "aio_write -P 0x22 3M 1M", "aio_flush", "read -P 0x22 3M 1M"]);
    io(&["read -P 0x11 2M 1M", "write -P 5 16777215 1", "read -P 5 16777215 1"]);
    let text = attempt("qemu-io", &["-f", "raw", "-c", "read 16M 512", &uri]).1;
    assert!(text.contains("failed"), "{text}");
}

#[test]
fn qemu_img_converts_and_compares() {
    let bytes = patchy();
    let rig = Rig::new(NbdServerOptions::default());
    rig.add_raw("disk", &bytes, false);
    rig.add_raw("target", &pattern(9, bytes.len()), false);
    let info = run("qemu-img", &["info", "-f", "raw", &rig.uri("disk")]);
    assert!(info.contains("24 MiB"), "{info}");
    let qcow = rig.dir.path().join("q.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &rig.uri("disk"), path(&qcow)]);
    run("qemu-img", &["convert", "-n", "-W", "-f", "qcow2", "-O", "raw", path(&qcow), &rig.uri("target")]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &rig.uri("target"), path(&qcow)]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &rig.uri("disk"), &rig.uri("target")]);
    assert!(std::fs::read(rig.image("target")).unwrap() == bytes);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &rig.uri("disk")]);
    assert!(map.contains("\"data\": true"), "{map}");
}

#[test]
fn libnbd_meets_the_odd_cases() {
    let rig = Rig::raw(&pattern(1, 64 * MIB));
    let script = include_str!("odd_cases.py");
    let text = run("/usr/bin/python3", &["-c", script, path(&rig.socket), path(&rig.image("disk"))]);
    assert!(text.ends_with("all odd cases passed\n"), "{text}");
}
