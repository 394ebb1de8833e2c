//! Every bad input names the thing and the remedy: tables of what is refused, by what it is about.
//!
//! Owns the tables. Never tests what is accepted. Uses real files and images in a temporary directory.

use crate::place::Place;

/// A file, and what must be said of it.
type Case = (String, &'static [&'static str]);

/// A file with one disk, and further keys of it.
fn disk(more: &str) -> String {
    format!("[[disk]]\nname = \"d\"\nimage = \"a.raw\"\n{more}")
}

/// A file with two disks.
fn two(one: &str, other: &str) -> String {
    format!("[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n{one}\n[[disk]]\nname=\"e\"\n{other}")
}

/// Too long for a name and for a socket.
fn long() -> String {
    "x".repeat(110)
}

fn are_refused(table: Vec<Case>) {
    let place = Place::new();
    let made = std::process::Command::new("sh")
        .current_dir(place.dir.path())
        // A qcow2 header: magic, version 3, backing name at 24, 5 bytes long.
        .args(["-c", r"printf 'QFI\373\0\0\0\3\0\0\0\0\0\0\0\30\0\0\0\5....a.raw' > overlay"])
        .status();
    assert!(made.unwrap().success());
    for (text, needles) in table {
        let said = place.bad(&text);
        for needle in needles {
            assert!(said.contains(needle), "\"{needle}\" is missing in:\n{said}\nof:\n{text}");
        }
    }
}

#[test]
fn bad_notation_names_the_thing_and_the_remedy() {
    are_refused(vec![
        ("[store]\nmemory = 512MiB".into(), &["toml:2: error", "this is not TOML", "memory = \"512MiB\""]),
        ("[store\n".into(), &[":1: error", "this is not TOML"]),
        ("[store]\nmemory = \"1GiB\"\nmemory = \"2GiB\"".into(), &[":3: error", "duplicate key"]),
        ("[stor]\nmemory = 1".into(), &["unknown key \"stor\" in the file", "did you mean \"store\"?"]),
        ("[store]\nmemroy = \"1GiB\"".into(), &[":2: error: store: unknown key \"memroy\"", "\"memory\"?"]),
        (disk("sise = \"1GiB\""), &[":4: error: disk \"d\": unknown key \"sise\"", "did you mean \"size\"?"]),
        (disk("memory = \"1GiB\""), &["unknown key \"memory\"", "it belongs into [store]"]),
        (disk("vm = \"web\""), &["unknown key \"vm\" in a disk", "[[vm.disk]]"]),
        ("[store]\nshare = false".into(), &[":2: error: store: unknown key \"share\"", "called \"deduplicate\" now"]),
        (disk("share_base = true"), &["disk \"d\": unknown key \"share_base\"", "called \"deduplicate_base\" now"]),
        // Of the store, not of a disk.
        (disk("share = true"), &["unknown key \"share\" in a disk", "did you mean \"store\"?"]),
        (disk("wombat = 1"), &["unknown key \"wombat\"", "known keys are name, image"]),
        ("disk = 3".into(), &["\"disk\" must be a list of tables", "[[disk]]"]),
        ("[vm]\nname = \"a\"".into(), &["\"vm\" is one table", "[[vm]] in double brackets"]),
        ("[[vm]]\nname = \"v\"\n[vm.disk]\nname = \"a\"".into(), &["[[vm.disk]] in double brackets"]),
        ("[[vm]]\n".into(), &["vm 1: it has no name", "add name"]),
        ("[[disk]]\nname = \"d\"".into(), &["disk \"d\": it has no image", "add image"]),
        ("[[disk]]\nimage = \"a.raw\"".into(), &["it has no name", "below [[disk]]"]),
        (disk("read_only = \"yes\""), &["\"read_only\" must be true or false, not a text", "read_only = true"]),
        (disk("policy = 3"), &["\"policy\" must be a text, not a number"]),
        (disk("queues = 2.5"), &["\"queues\" must be a whole number, not a number with a fraction"]),
        (disk("queues = -1"), &["\"queues\" must not be -1", "allowed is 1 to 64"]),
    ]);
}

#[test]
fn bad_sizes_and_times_name_the_thing_and_the_remedy() {
    are_refused(vec![
        ("[store]\nmemory = \"512M\"".into(), &["\"512M\" is ambiguous", "512MiB (powers of 1024) or 512MB"]),
        ("[store]\nmemory = \"lots\"".into(), &["memory: \"lots\" is not a size", "512MiB"]),
        ("[store]\nmemory = true".into(), &["\"memory\" must be a size, not true or false", "\"512MiB\""]),
        ("[store]\nmemory = -5".into(), &["memory: \"-5\" is not a size"]),
        (disk("poll = \"50\""), &["poll: \"50\" has no unit", "50us"]),
        (disk("poll = \"1s\""), &["poll is 1s, too long", "at most 10ms"]),
    ]);
}

#[test]
fn what_is_past_a_limit_names_the_thing_and_the_remedy() {
    are_refused(vec![
        ("[store]\nmemory = \"1MiB\"".into(), &["memory is 1MiB, too little", "at least 8MiB"]),
        ("[store]\nmemory = \"9GiB\"".into(), &["memory is 9GiB, but this machine has 8GiB", "give less"]),
        (disk("size = \"2GiB\""), &["disk \"d\": size is 2GiB, but the memory of the store is 1GiB", "smaller"]),
        (disk("size = \"1KiB\""), &["size is 1KiB, too little", "at least 4MiB"]),
        (
            two("size = \"600MiB\"", "image = \"b.raw\"\nsize = \"600MiB\""),
            &["the sizes of the disks add up to 1200MiB, but memory is 1GiB", "memory larger"],
        ),
        (
            two("size = \"1GiB\"", "image = \"b.raw\""),
            &["leave 0B of 1GiB memory, too little for disk \"e\"", "at least 4MiB"],
        ),
        (
            "[[disk]]\nname=\"host\"\nimage=\"a.raw\"".into(),
            &["\"host\" cannot be the name of a disk", "the host itself is called that", "another name"],
        ),
        (
            "[[vm]]\nname=\"host\"\n[[vm.disk]]\nname=\"d\"\nimage=\"a.raw\"".into(),
            &["\"host\" cannot be the name of a VM", "another name"],
        ),
        (disk("weight = 0"), &["weight must not be 0", "1 to 10000"]),
        (disk("queues = 65"), &["queues must not be 65", "1 to 64"]),
        (disk("queue_size = 100"), &["queue_size must not be 100", "power of two from 2 to 1024"]),
        (disk("readahead = \"1GiB\""), &["readahead is 1GiB", "at most 4MiB"]),
        (disk("serial = \"much too long for a serial\""), &["cannot be a serial number", "1 to 20 printable"]),
        (disk("serial = \"ü\""), &["cannot be a serial number", "ASCII"]),
        ("[daemon]\nworkers = 0".into(), &["workers must not be 0", "1 to 256"]),
    ]);
}

#[test]
fn unknown_words_name_the_thing_and_the_remedy() {
    are_refused(vec![
        (disk("policy = \"lur\""), &["unknown policy \"lur\"", "did you mean \"lru\"?", "w-tinylfu"]),
        (disk("format = \"qcow\""), &["unknown format \"qcow\"", "did you mean \"qcow2\"?"]),
        (disk("format = \"vmdk\""), &["unknown format \"vmdk\"", "qemu-nbd"]),
        ("[daemon]\nlog_level = \"wran\"".into(), &["log_level: unknown value \"wran\"", "\"warn\"?"]),
        ("[daemon]\nlog_format = \"xml\"".into(), &["unknown value \"xml\"", "known are text, json"]),
        ("[daemon]\ndisk_group = \"kvmm\"".into(), &["no group \"kvmm\"", "did you mean \"kvm\"?"]),
        (
            "[daemon]\nmetrics = \"localhost:1\"".into(),
            &["metrics: \"localhost:1\" is not an IP address", "127.0.0.1:9464"],
        ),
        ("[nbd]\ntcp = \"10809\"".into(), &["tcp: \"10809\" is not an IP address with a port", "127.0.0.1:10809"]),
    ]);
}

#[test]
fn bad_names_name_the_thing_and_the_remedy() {
    let long = long();
    are_refused(vec![
        (
            "[[disk]]\nname = \"a/b\"\nimage = \"a.raw\"".into(),
            &["\"a/b\" cannot be the name of a disk", "use letters"],
        ),
        (
            "[[disk]]\nname = \"web:root\"\nimage = \"a.raw\"".into(),
            &["\"web:root\" cannot be the name", "[[vm.disk]]"],
        ),
        (format!("[[disk]]\nname = \"{long}\"\nimage = \"a.raw\""), &["cannot be the name of a disk", "at most 64"]),
        ("[[disk]]\nname = \"\"\nimage = \"a.raw\"".into(), &["\"\" cannot be the name of a disk"]),
        (
            "[[disk]]\nname=\"d\"\nimage=\"a.raw\"\n[[disk]]\nname=\"d\"\nimage=\"b.raw\"".into(),
            &[":5: error: disk \"d\": there is a disk of that name on line 2 already", "another name"],
        ),
        (
            "[[vm]]\nname=\"v\"\n[[vm]]\nname=\"v\"".into(),
            &[":4: error: vm \"v\": there is a VM of that name on line 2 already"],
        ),
        (
            "[[vm]]\nname=\"v\"\n[[vm.container]]\nname=\"c\"\nweight=3\n[[vm.container]]\nname=\"c\"\npolicy=\"lru\""
                .into(),
            &[":7: error: container \"v/c\": there is a container of that name on line 4 already", "make one of them"],
        ),
        // Whatever the VM has, and wherever it stands.
        (
            "[[vm]]\nname=\"v\"\n[[vm.disk]]\nname=\"r\"\nimage=\"a.raw\"\n[[disk]]\nname=\"v\"\nimage=\"b.raw\""
                .into(),
            &[":7: error: disk \"v\": VM \"v\" on line 2 has that name", "another name", "[[vm.disk]]"],
        ),
        (
            "[[disk]]\nname=\"v\"\nimage=\"b.raw\"\n[[vm]]\nname=\"v\"\npid_file=\"/run/v.pid\"".into(),
            &[":2: error: disk \"v\": VM \"v\" on line 5 has that name"],
        ),
    ]);
}

#[test]
fn bad_sockets_name_the_thing_and_the_remedy() {
    let long = long();
    are_refused(vec![
        (disk(&format!("socket = \"/tmp/{long}\"")), &["is 115 bytes long", "allows 107", "shorter path"]),
        (disk("socket = \"nowhere/x.sock\""), &["directory of the socket", "does not exist", "mkdir -p"]),
        (disk("socket = \"b.raw\""), &["b.raw is there already and is no socket", "another path"]),
        (
            two("socket = \"s\"", "image=\"b.raw\"\nsocket = \"s\""),
            &["is that of disk \"d\" (line 4) too", "a path of its own"],
        ),
        ("[daemon]\ncontrol = \"s\"\n[nbd]\nunix = \"s\"".into(), &["s is that of the control socket (line 2) too"]),
        (disk("socket = \"\""), &["socket is empty", "leave the key out"]),
        (disk("vhost_user = false"), &["no NBD export, no file and no block device", "ublk = \"PATH\""]),
        (disk("ublk = \"/nowhere/at/all\""), &["the directory of the link /nowhere/at/all", "mkdir -p /nowhere/at"]),
        (disk("fuse = \"/nowhere/at/all\""), &["the directory of the file /nowhere/at/all", "mkdir -p /nowhere/at"]),
        (disk("vhost_user = false\nsocket = \"s\""), &["it has a socket, but vhost_user = false"]),
        (disk("nbd = true"), &["no NBD listener", "add [nbd]"]),
    ]);
}

#[test]
fn bad_images_name_the_thing_and_the_remedy() {
    are_refused(vec![
        (
            "[[disk]]\nname = \"d\"\nimage = \"no.qcow2\"".into(),
            &["no.qcow2 does not exist", "qemu-img create -f qcow2", "no.qcow2 20G"],
        ),
        ("[[disk]]\nname = \"d\"\nimage = \".\"".into(), &["neither a file nor a block device", "NBD URI"]),
        ("[[disk]]\nname = \"d\"\nimage = \"/dev/null\"".into(), &["/dev/null is neither a file nor a block device"]),
        ("[[disk]]\nname = \"d\"\nimage = \"a.raw/x\"".into(), &["cannot be reached"]),
        ("[[disk]]\nname = \"d\"\nimage = \"http://h/x\"".into(), &["the scheme \"http\" is not known", "nbd://HOST"]),
        ("[[disk]]\nname = \"d\"\nimage = \"nbd+unix:///x\"".into(), &["names no socket", "?socket=PATH"]),
        (
            "[[disk]]\nname = \"d\"\nimage = \"nbd://h/x\"\nformat = \"raw\"".into(),
            &["is an NBD server, but format says otherwise", "leave format out"],
        ),
        (disk("format = \"nbd\""), &["format is nbd, but the image", "is no URI"]),
        (two("", "image = \"a.raw\""), &["is that of disk \"d\" too, and both write it", "qemu-img create -b"]),
        (
            two("", "image = \"./a.raw\"\nread_only = true"),
            &["too, and one of them writes it", "read_only = true on both"],
        ),
        (
            two("", "image = \"overlay\""),
            &[":3: error: disk \"d\"", "is a backing file of disk \"e\"", "read_only = true here"],
        ),
    ]);
}
