//! What hypervisors are told of a disk or of all disks of a VM.
//!
//! Owns `attach-args`, from a file and against QEMU.

use super::place::Place;
use std::fs;
use std::process::Command;

#[test]
fn attach_args_come_from_a_file_without_a_daemon() {
    let p = Place::new();
    let text = "[nbd]\ntcp = \"127.0.0.1:10809\"\n[[vm]]\nname = \"web\"\n[[vm.disk]]\nname = \"root\"\nimage = \
        \"a.raw\"\n\
        nbd = true\nqueues = 2\n[[vm.disk]]\nname = \"data\"\nimage = \"gone.raw\"\n";
    fs::write(p.at("c.toml"), text).unwrap();
    let all = [
        "memory-backend-memfd",
        "share=on",
        "vhost-user-blk-pci",
        "num-queues=2",
        "<disk type='vhostuser'",
        "nbd://127.0.0.1:10809/web:root",
    ];
    p.run(&["attach-args", "web:root", "--config", "c.toml"]).is(0, &all, &["gone.raw does not exist"]);
    let one = p.run(&["attach-args", "root", "--config", "c.toml", "--as", "qemu", "--memory", "2GiB"]);
    assert_eq!(
        one.is(
            0,
            &["size=2048M,share=on,prealloc=on -machine memory-backend=uc-mem -chardev socket,id=uc-web-root,path="],
            &[]
        )
        .out
        .lines()
        .count(),
        1
    );
    p.run(&["attach-args", "data", "--config", "c.toml", "--as", "qemu-nbd"]).is(
        1,
        &[],
        &["\"web:data\" is not served over NBD", "nbd = true"],
    );
    p.run(&["attach-args", "rot", "--config", "c.toml"]).is(1, &[], &["there is no disk or VM \"rot\""]);
    let json = p.run(&["attach-args", "root", "--config", "c.toml", "--as", "json"]).is(0, &[], &[]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["nbd_uris"][0], "nbd://127.0.0.1:10809/web:root");
    assert!(json["qemu"].as_array().unwrap().len() == 8);
    // All disks of a VM: one memory, and each disk by its own name in the guest.
    let vm = p.run(&["attach-args", "web", "--config", "c.toml"]).is(0, &[], &[]).out;
    assert_eq!(vm.matches("memory-backend-memfd").count(), 1, "{vm}");
    assert_eq!(["vda", "vdb"].map(|t| vm.matches(&format!("<target dev='{t}'")).count() > 0), [true, true], "{vm}");
    assert!(vm.contains("# web:data is not served over NBD"), "{vm}");
    p.run(&["attach-args", "wbe", "--config", "c.toml"]).is(1, &[], &["did you mean \"web\"?"]);
}

#[test]
fn qemu_takes_the_arguments() {
    let p = Place::new();
    // QEMU connects to the socket before anything else, so this one has nobody behind it: the message tells that the
    // arguments before it were understood.
    fs::write(p.at("c.toml"), "[[disk]]\nname = \"d\"\nimage = \"a.raw\"\nsocket = \"it's, here.sock\"\n").unwrap();
    let line =
        p.run(&["attach-args", "d", "--config", "c.toml", "--as", "qemu", "--memory", "64MiB"]).is(0, &[], &[]).out;
    let script = format!(
        "exec timeout 20 qemu-system-x86_64 -M q35 -m 64M -display none -nodefaults -S {}",
        line.trim().replace(",reconnect=1", "")
    );
    let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not found") || output.status.code() == Some(127) {
        return undercroft_skips::skip("not installed: qemu-system-x86_64 (make setup installs it)");
    }
    assert!(said.contains("it's, here.sock") && said.contains("No such file"), "{said}");
}
