//! Routes: what each answers, its status codes and its errors, for the daemon's owner and on a VM's own socket.
//!
//! Owns nothing. Never looks at the daemon behind the API but for what it was told.

use crate::rig::Api;
use hyper::Method;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use undercroft_api::client::ClientError;
use undercroft_api::{
    BlockStatus, DiskStatus, KsmStatus, MissesStatus, NodeChanged, NodeStatus, PinsStatus, ProfileTaken, RangesStatus,
    RangesTaken, SharesStatus, SsdStatus, Status, StoreStatus, client,
};
use undercroft_config::{DiskPlan, NodePlan};
use undercroft_http::Daemon;

#[test]
fn status_comes_back_as_the_same_structure() {
    let api = Api::start();
    let status: Status = client::request_json(&api.socket, Method::GET, "/v1/status", None).unwrap();
    assert_eq!(status, api.daemon.status());
    assert_eq!(status.disks[0].cache.hit_ratio, Some(0.75));
    let disks: Vec<DiskStatus> = client::request_json(&api.socket, Method::GET, "/v1/disks", None).unwrap();
    assert_eq!(disks, status.disks);
    // Colons need no escaping, and escapes are understood.
    for path in ["/v1/disks/web:root", "/v1/disks/web%3Aroot"] {
        let disk: DiskStatus = client::request_json(&api.socket, Method::GET, path, None).unwrap();
        assert_eq!(disk, disks[0]);
    }
}

#[test]
fn a_disk_is_changed_attached_and_detached() {
    let api = Api::start();
    let change = r#"{"size": "64MiB", "policy": "lru", "poll": "100us"}"#.to_string();
    let disk: DiskStatus =
        client::request_json(&api.socket, Method::PATCH, "/v1/disks/web:root", Some(change)).unwrap();
    assert_eq!((disk.cache.share_bytes, disk.cache.policy.as_str(), disk.poll_us), (64 << 20, "lru", 100.0));

    let image = api.dir.path().join("b.raw").display().to_string();
    let (code, body) = api.raw("POST /v1/disks", &format!(r#"{{"name": "b", "image": "{image}"}}"#));
    assert_eq!(code, 201, "{body}");
    assert_eq!(serde_json::from_str::<DiskStatus>(&body).unwrap().cache.share_bytes, 192 << 20);
    let (code, _) = api.raw("DELETE /v1/disks/b", "");
    assert_eq!(code, 204);
    assert_eq!(api.daemon.status().disks.len(), 1);
    let (code, body) = api.raw("POST /v1/disks/web:root/drop-cache", "");
    assert_eq!((code, body.as_str()), (200, r#"{"dropped_bytes":4096}"#));
    let (code, hot) = api.raw("GET /v1/disks/web:root/hot-set", "");
    assert_eq!((code, hot.as_str()), (200, r#"{"size_bytes":4096,"ranges":[[0,1]]}"#));
    let (code, body) = api.raw("POST /v1/disks/web:root/warm?budget_bytes=7", &hot);
    assert_eq!((code, body.as_str()), (200, r#"{"wanted_bytes":4096,"left_bytes":7,"waits":false}"#));
}

#[test]
fn pins_blocks_and_misses_are_told() {
    let api = Api::start();
    let list = r#"{"size_bytes": 1073741824, "ranges": [[3, 2]]}"#.to_string();
    let path = "/v1/disks/web:root/pins";
    let pins: PinsStatus = client::request_json(&api.socket, Method::PUT, path, Some(list.clone())).unwrap();
    assert_eq!((&pins.ranges[..], pins.file.as_deref()), (&[(3, 2)][..], Some("/etc/hot")));
    assert_eq!(client::request_json::<PinsStatus>(&api.socket, Method::GET, path, None).unwrap(), pins);
    let with = |version: Option<u64>| client::put_json::<PinsStatus>(&api.socket, path, list.clone(), version);
    assert!(with(Some(7)).is_ok() && with(None).is_ok());
    let Err(ClientError::Refused(e)) = with(Some(6)) else { panic!("something else is pinned") };
    assert_eq!(e.error, "something else is pinned");
    let path = "/v1/disks/web:root/lock-profile";
    let taken: ProfileTaken = client::request_json(&api.socket, Method::PUT, path, Some(list)).unwrap();
    assert_eq!((taken.ranges, taken.named_bytes), (1, 8192));
    let path = client::block_path("web:root", 5000);
    let block: BlockStatus = client::request_json(&api.socket, Method::GET, &path, None).unwrap();
    assert_eq!((block.disk.as_str(), block.offset_bytes, block.cached), ("web:root", 4096, true));
    for path in ["/v1/disks/web:root/misses", "/v1/nodes/web/misses", "/v1/nodes/host/misses"] {
        let misses: MissesStatus = client::request_json(&api.socket, Method::GET, path, None).unwrap();
        assert_eq!(misses.blocks[0].misses, 9, "{path}");
    }
    // A list of blocks may be longer than other bodies.
    let many: Vec<String> = (0..20_000u64).map(|n| format!("[{},1]", 2 * n)).collect();
    let body = format!(r#"{{"size_bytes": 1073741824, "ranges": [{}]}}"#, many.join(","));
    assert!(body.len() > 64 << 10);
    for (head, on_vm) in [("PUT /v1/disks/web:root/pins", false), ("PUT /v1/disks/root/lock-profile", true)] {
        let (code, answer) = if on_vm { api.vm(head, &body) } else { api.raw(head, &body) };
        assert_eq!(code, 200, "{head}: {answer}");
    }
    let status = api.daemon.status();
    let locks = &status.disks[0].locks;
    assert_eq!((locks.locked_bytes, locks.pinned_bytes, locks.budget_bytes), (3 << 12, 5 << 12, 7 << 12));
}

#[test]
fn errors_have_their_status_and_a_remedy() {
    let api = Api::start();
    for (head, body, code, needle) in [
        ("GET /v1/disks/web:rot", "", 404, "did you mean \\\"web:root\\\"?"),
        ("DELETE /v1/disks/zzz", "", 404, "there is no disk \\\"zzz\\\""),
        ("GET /v1/nothing", "", 404, "GET /openapi.json"),
        ("PUT /v1/status", "", 405, "does not take PUT"),
        ("PATCH /v1/disks/web:root", "{}", 400, "nothing is to be changed"),
        ("PATCH /v1/disks/web:root", r#"{"siez": 1}"#, 400, "did you mean \\\"size\\\"?"),
        ("PATCH /v1/disks/web:root", r#"{"size": "9GiB"}"#, 400, "memory is 256MiB"),
        ("PATCH /v1/disks/%ff", r#"{"size": 1}"#, 400, "is no text"),
        ("POST /v1/disks/web:root/warm", "", 400, "no body"),
        ("POST /v1/disks/web:root/warm", r#"{"size_bytes": 1, "ranges": [[9, 1]]}"#, 400, "are not on a disk"),
        ("POST /v1/disks/web:root/warm?budget=1", r#"{"size_bytes": 1, "ranges": []}"#, 400, "budget_bytes"),
        ("PUT /v1/disks/web:root/pins", "", 400, "no body"),
        ("PUT /v1/disks/web:root/pins", r#"{"size_bytes": 4096, "ranges": [[0, 0]]}"#, 400, "are not on a disk"),
        ("PUT /v1/disks/web:rot/pins", r#"{"size_bytes": 4096, "ranges": []}"#, 404, "did you mean"),
        ("GET /v1/disks/web:rot/pins", "", 404, "did you mean"),
        ("PUT /v1/disks/web:root/lock-profile", "[]", 400, "no object"),
        ("GET /v1/disks/web:root/blocks/here", "", 400, "\\\"here\\\" is no byte of a disk"),
        ("GET /v1/disks/web:root/blocks/-1", "", 400, "is no byte of a disk"),
        ("GET /v1/disks/web:rot/blocks/0", "", 404, "did you mean"),
        ("GET /v1/disks/web/misses", "", 404, "there is no disk"),
        ("GET /v1/nodes/wbe/misses", "", 404, "did you mean \\\"web\\\"?"),
        ("PATCH /v1/disks/web:root", r#"{"lock_budget": "95%"}"#, 400, "give 0.1% to 90%"),
        ("PATCH /v1/disks/web:root", r#"{"lock": "onlin"}"#, 400, "did you mean \\\"online\\\"?"),
        ("PATCH /v1/nodes/web", "{}", 400, "nothing is to be changed"),
        ("PATCH /v1/nodes/web", r#"{"weight": 0}"#, 400, "1 to 10000"),
        ("PATCH /v1/nodes/web", r#"{"wieght": 1}"#, 400, "did you mean \\\"weight\\\"?"),
        ("PATCH /v1/nodes/web", r#"{"controller": "utlity"}"#, 400, "did you mean \\\"utility\\\"?"),
        ("PATCH /v1/nodes/web", r#"{"ceiling": "lots"}"#, 400, "ceiling:"),
        ("PATCH /v1/nodes/web", r#"{"controller": "static", "weight": 1, "weight": 2}"#, 400, "duplicate"),
        ("PUT /v1/nodes/web", r#"{"weight": 0}"#, 400, "1 to 10000"),
        ("PUT /v1/nodes/web", "", 400, "no body"),
        ("GET /v1/nodes/wbe", "", 404, "did you mean \\\"web\\\"?"),
        ("PUT /v1/ranges", "{", 400, "the body is not what is expected"),
        (
            "PUT /v1/ranges",
            r#"{"disk": "web:rot", "container": "shop", "ranges": []}"#,
            404,
            "did you mean \\\"web:root\\\"?",
        ),
        (
            "PUT /v1/ranges",
            r#"{"disk": "web:root", "container": "shop", "ranges": [{"offset_bytes": 1073741824, "length_bytes": 1}]}"#,
            400,
            "not all on disk",
        ),
        ("GET /v1/disks/web:rot/ranges", "", 404, "did you mean"),
        ("PATCH /v1/nodes/web%2Fx", r#"{"weight": 1}"#, 404, "there is no VM, container or disk"),
        ("GET /v1/nodes/nobody/events", "", 404, "there is no VM, container or disk"),
        ("POST /v1/disks", r#"{"name": "x", "image": "/nowhere/x.raw", "policy": "best"}"#, 400, "unknown policy"),
        ("POST /v1/disks", r#"{"name": "x", "image": "/nowhere/x.raw", "policy": "best"}"#, 400, "does not exist"),
        ("POST /v1/disks", "not json", 400, "the body is not what is expected"),
        ("POST /v1/disks", r#"{"name": "crash", "image": "/x"}"#, 500, "failed inside the daemon"),
        ("POST /v1/reload", "", 503, "it is stopping"),
    ] {
        let (got, answer) = api.raw(head, body);
        assert_eq!(got, code, "{head} {body}: {answer}");
        assert!(answer.contains(needle) && answer.contains("\"remedy\""), "{head} {body}: {answer}");
    }
    assert!(api.refused(Method::GET, "/v1/disks/x", "").contains("there is no disk"));
}

#[test]
fn the_description_is_served_as_committed() {
    let api = Api::start();
    let (code, text) = api.raw("GET /openapi.json", "");
    assert_eq!((code, text), (200, undercroft_http::openapi()));
}

#[test]
fn the_store_and_ksm_are_changed() {
    let api = Api::start();
    let body = r#"{"memory": "128MiB"}"#.to_string();
    let store: StoreStatus = client::request_json(&api.socket, Method::PATCH, "/v1/store", Some(body)).unwrap();
    assert_eq!(store.limit_bytes, 128 << 20);
    let e = api.refused(Method::PATCH, "/v1/store", r#"{"size": "1GiB"}"#);
    assert!(e.contains("unknown field \"size\"; known are memory"), "{e}");
    let ksm = |body: &str| client::request_json::<KsmStatus>(&api.socket, Method::PATCH, "/v1/ksm", Some(body.into()));
    assert!(ksm(r#"{"manage": true}"#).unwrap().managed);
    assert!(!ksm(r#"{"manage": false, "unmerge": true}"#).unwrap().managed);
    let e = api.refused(Method::PATCH, "/v1/ksm", r#"{"manage": false, "unmerge": true}"#);
    assert!(e.contains("KSM is not managed; switch it on"), "{e}");
    assert!(api.refused(Method::PATCH, "/v1/ksm", r#"{"manage": true, "unmerge": true}"#).contains("contradiction"));
}

#[test]
fn an_ssd_store_is_shown_switched_and_emptied_where_there_is_one() {
    let api = Api::start();
    for (head, body) in [("GET /v1/ssd", ""), ("PATCH /v1/ssd", r#"{"in_service": true}"#), ("POST /v1/ssd/drop", "")] {
        let (code, answer) = api.raw(head, body);
        assert!(code == 404 && answer.contains("no SSD store") && answer.contains("\"remedy\""), "{head}: {answer}");
    }
    *api.daemon.ssd.lock().unwrap() = Some(true);
    let ask = |method, body: Option<&str>| {
        client::request_json::<SsdStatus>(&api.socket, method, "/v1/ssd", body.map(str::to_string)).unwrap()
    };
    assert!(ask(Method::GET, None).in_service);
    assert!(!ask(Method::PATCH, Some(r#"{"in_service": false}"#)).in_service);
    let (code, answer) = api.raw("POST /v1/ssd/drop?disk=web:root", "");
    assert_eq!((code, answer.as_str()), (200, r#"{"dropped_bytes":4096}"#));
    for (head, body, code, needle) in [
        ("POST /v1/ssd/drop?disk=web:rot", "", 404, "did you mean"),
        ("POST /v1/ssd/drop?dsik=web:root", "", 400, "the only parameter is disk=NAME"),
        ("PATCH /v1/ssd", r#"{"in_servce": true}"#, 400, "did you mean \\\"in_service\\\"?"),
        ("PATCH /v1/ssd", "", 400, "no body"),
    ] {
        let (got, answer) = api.raw(head, body);
        assert!(got == code && answer.contains(needle), "{head} {body}: {got} {answer}");
    }
}

/// Two writers: the second one's change is refused if it says what it knows, and otherwise told what it replaced.
#[test]
fn a_node_changed_meanwhile_is_not_overwritten_unseen() {
    let api = Api::start();
    // `raw` ends the line with the version of HTTP: here that is the value of a header that nobody reads.
    let patch =
        |tag: &str, body: &str| api.raw(&format!("PATCH /v1/nodes/web HTTP/1.1\r\nif-match: {tag}\r\nx-rest:"), body);
    let node: NodeStatus = client::request_json(&api.socket, Method::GET, "/v1/nodes/web", None).unwrap();
    assert_eq!(node.version, 7);
    let mut stream = UnixStream::connect(&api.socket).unwrap();
    let head =
        "PATCH /v1/nodes/web HTTP/1.1\r\nhost: x\r\nconnection: close\r\nif-match: \"7\"\r\ncontent-length: 15\r\n\r\n";
    stream.write_all(format!("{head}{{\"weight\": 200}}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("etag: \"8\"\r\n"), "{answer}");
    let changed: NodeChanged = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((changed.node.weight, changed.previous.weight, changed.previous.version), (200, 100, 7));

    for tag in ["\"7\"", "7", "\"6\", \"7\""] {
        let (code, body) = patch(tag, r#"{"weight": 300}"#);
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (code, &error["current"]["weight"], &error["current"]["version"]),
            (412, &200.into(), &8.into()),
            "{body}"
        );
        assert!(error["remedy"].as_str().unwrap().contains("version 8"), "{body}");
    }
    assert_eq!(patch("W/\"8\"", r#"{"weight": 300}"#).0, 400);
    assert_eq!(patch("\"7\", \"8\"", r#"{"weight": 300}"#).0, 200);
    assert_eq!(patch("*", r#"{"floor": "16MiB"}"#).0, 200);
    let refused = client::change_node(&api.socket, "/v1/nodes/web", "{\"weight\": 1}".into(), Some(9)).unwrap_err();
    assert!(refused.to_string().contains("weight 300, floor 16MiB, ceiling none (version 10)"), "{refused}");
    // PUT sets everything: what it does not name is as if it had never been set.
    let (code, body) = api.raw("PUT /v1/nodes/web", r#"{"ceiling": "64MiB"}"#);
    let put: NodeChanged = serde_json::from_str(&body).unwrap();
    assert_eq!((code, put.node.weight, put.previous.weight, put.previous.floor_bytes), (200, 100, 300, 16 << 20));
}

/// On a VM's own socket there is nothing but what is below it: no other VM is named, nothing of the host can be
/// changed.
#[test]
fn a_vms_socket_reaches_what_is_below_it_alone() {
    let api = Api::start();
    let meta = std::fs::metadata(api.dir.path().join("web.sock")).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let (code, body) = api.vm("GET /v1/shares", "");
    let shares: SharesStatus = serde_json::from_str(&body).unwrap();
    let names: Vec<_> = shares.nodes.iter().map(|n| n.name.as_str()).collect();
    assert_eq!((code, names), (200, vec!["web", "web:root"]));
    let weight = r#"{"weight": 300}"#;
    for (head, body, code, needle) in [
        // In full and in short; the VM's own weight is not its own to set, but who divides below it is.
        ("PATCH /v1/nodes/web:root", weight, 200, "\"weight\":300"),
        ("PATCH /v1/nodes/root", r#"{"weight": 200}"#, 200, "\"weight\":300"),
        ("PATCH /v1/nodes/web", r#"{"controller": "static"}"#, 200, "\"name\":\"web\""),
        ("GET /v1/nodes/web", "", 200, "\"parent\":null"),
        ("PATCH /v1/nodes/web", weight, 403, "itself cannot be seen or changed"),
        ("PATCH /v1/nodes/web", r#"{"controller": "static", "ceiling": "none"}"#, 403, "control.sock, may do it"),
        ("PUT /v1/nodes/web", r#"{"controller": "static"}"#, 403, "itself"),
        ("PATCH /v1/nodes/web", r#"{"goal": "hit 90%"}"#, 403, "goal of VM \\\"web\\\" itself cannot"),
        // What a disk gets beside what the VM has, and what it costs the host, is the host's to say.
        ("PATCH /v1/nodes/web:root", r#"{"size": "64MiB"}"#, 403, "size of \\\"web:root\\\" cannot"),
        ("PUT /v1/nodes/root", r#"{"weight": 300, "size": "64MiB"}"#, 403, "control.sock, may do it"),
        ("PATCH /v1/nodes/web:root", r#"{"readahead": "4MiB", "poll": "10ms"}"#, 403, "poll, readahead of"),
        ("PATCH /v1/nodes/web:root", r#"{"fuse": "/etc/x"}"#, 403, "fuse of \\\"web:root\\\" cannot"),
        ("PATCH /v1/nodes/web:root", r#"{"exclusive": "capture", "weight": 300}"#, 403, "exclusive of"),
        ("PATCH /v1/nodes/web:rot", weight, 404, "did you mean \\\"web:root\\\"?"),
        ("PATCH /v1/nodes/host", r#"{"controller": "static"}"#, 404, "there is no VM, container or disk"),
        ("GET /v1/nodes/web/events", "", 200, "[{\"sequence\":0,\"interval\":0,\"ssd\":false,\"node\":\"web\""),
        ("GET /v1/nodes/host/events", "", 404, "there is no VM, container or disk"),
        ("PUT /v1/ranges", r#"{"disk": "secret:root", "container": "a", "ranges": []}"#, 404, "secret:root"),
        ("PUT /v1/ranges", r#"{"disk": "web:root", "container": "a", "ranges": []}"#, 200, "\"ranges\":0"),
        ("GET /v1/disks/root/ranges", "", 200, "\"containers\":[]"),
        ("GET /v1/version", "", 200, "\"api\""),
        ("GET /v1/nothing", "", 404, "there is nothing at"),
        ("GET /v1/status", "", 403, "/v1/status cannot"),
        ("GET /v1/disks", "", 403, "/v1/disks cannot"),
        ("PATCH /v1/disks/web:root", r#"{"size": "64MiB"}"#, 403, "cannot"),
        ("POST /v1/disks/web:root/drop-cache", "", 403, "cannot"),
        ("GET /v1/disks/web:root/hot-set", "", 403, "cannot"),
        ("POST /v1/disks/web:root/warm", "{}", 403, "cannot"),
        ("PATCH /v1/store", r#"{"memory": "64MiB"}"#, 403, "cannot"),
        ("PATCH /v1/ksm", "{}", 403, "cannot"),
        ("GET /v1/ssd", "", 403, "cannot"),
        ("POST /v1/ssd/drop", "", 403, "cannot"),
        ("POST /v1/reload", "", 403, "cannot"),
        ("POST /v1/upgrade", "", 403, "cannot"),
        ("POST /v1/stop", "", 403, "cannot"),
        ("POST /v1/recordings", "{}", 403, "cannot"),
        ("GET /v1/recordings/1", "", 403, "cannot"),
        ("GET /metrics", "", 403, "cannot"),
    ] {
        let (got, answer) = api.vm(head, body);
        assert_eq!(got, code, "{head}: {answer}");
        assert!(answer.contains(needle), "{head}: {answer}");
    }
    // Whether another VM is there or not, the answer is the same.
    let about = |name: &str| {
        let (code, answer) = api.vm(&format!("PATCH /v1/nodes/{name}"), weight);
        (code, answer.replace(name, "NAME"))
    };
    assert_eq!(about("secret"), about("secreu"));
    assert_eq!(about("secret:root"), about("secreu:root"));
    // What is said of a node that is nearly another VM's names no other VM.
    assert!(!api.vm("GET /v1/nodes/web:secret", "").1.contains("\\\"secret\\\""));
    assert!(!api.daemon.stopped.load(Ordering::SeqCst));
}

/// What is kept within what the VM has is its owner's to say, but for files of the host.
#[test]
fn a_vms_socket_locks_blocks_of_its_disks_alone() {
    let api = Api::start();
    for (head, body, code, needle) in [
        (
            "PATCH /v1/nodes/root",
            r#"{"lock": "online", "lock_budget": "50%", "lock_held": true, "miss_table": 9, "victim_buffer": 8}"#,
            200,
            "\"name\":\"web:root\"",
        ),
        ("PATCH /v1/nodes/root", r#"{"pins": "/etc/shadow"}"#, 403, "pins of \\\"web:root\\\" cannot"),
        ("PATCH /v1/nodes/root", r#"{"lock_profile": "/etc/shadow"}"#, 403, "lock_profile of"),
        ("PUT /v1/disks/root/pins", r#"{"size_bytes": 1073741824, "ranges": [[0, 2]]}"#, 200, "\"ranges\":[[0,2]]"),
        ("GET /v1/disks/web:root/pins", "", 200, "\"file\":null"),
        // What may be done about it is what the VM's owner may do.
        ("PUT /v1/disks/root/pins", r#"{"size_bytes": 1073741824, "ranges": [[0, 9]]}"#, 409, "--lock-budget PERCENT"),
        ("GET /v1/nodes/secret:root[shop]/misses", "", 404, "there is no VM, container or disk"),
        ("PUT /v1/disks/root/lock-profile", r#"{"size_bytes": 1073741824, "ranges": [[0, 2]]}"#, 200, "8192"),
        ("GET /v1/disks/root/blocks/8191", "", 200, "\"offset_bytes\":4096"),
        ("GET /v1/disks/root/misses", "", 200, "\"misses\":9"),
        ("GET /v1/nodes/web/misses", "", 200, "\"misses\":9"),
        ("GET /v1/nodes/host/misses", "", 404, "there is no VM, container or disk"),
        ("GET /v1/disks/secret:root/pins", "", 404, "there is no disk"),
        ("PUT /v1/disks/secret:root/pins", r#"{"size_bytes": 4096, "ranges": []}"#, 404, "there is no disk"),
        ("GET /v1/disks/secret:root/blocks/0", "", 404, "there is no disk"),
        ("GET /v1/disks/secret:root/misses", "", 404, "there is no disk"),
    ] {
        let (got, answer) = api.vm(head, body);
        assert_eq!(got, code, "{head}: {answer}");
        assert!(answer.contains(needle), "{head}: {answer}");
    }
    // Where on the host its disk is a file is not told, nor which files pin its blocks.
    let told = api.vm("PATCH /v1/nodes/web:root", r#"{"weight": 300}"#).1;
    for key in ["fuse", "pins", "lock_profile"] {
        assert!(!told.contains(&format!("\"{key}\"")), "{told}");
    }
    assert!(told.contains("\"lock\":\"online\""), "{told}");
}

/// What is below a VM can be named without it, but not where that is two things; and where only disks are meant,
/// another word for one is none.
#[test]
fn a_short_name_on_a_vms_socket_means_one_thing_or_is_refused() {
    let api = Api::start();
    {
        let mut plan = api.daemon.plan.lock().unwrap();
        plan.nodes.extend(["web/shop", "web/root"].map(NodePlan::new));
        let of_another = DiskPlan { name: "wec".into(), vm: None, ..plan.disks[0].clone() };
        plan.disks.push(of_another);
    }
    let weight = r#"{"weight": 300}"#;
    assert_eq!(api.vm("PATCH /v1/nodes/shop", weight).0, 200);
    let (code, answer) = api.vm("PATCH /v1/nodes/root", weight);
    assert_eq!(code, 400, "{answer}");
    assert!(answer.contains("\\\"root\\\" is both disk \\\"web:root\\\" and container \\\"web/root\\\""), "{answer}");
    assert!(answer.contains("give the full name"), "{answer}");
    assert_eq!(api.vm("PATCH /v1/nodes/web:root", weight).0, 200);
    assert_eq!(api.vm("PATCH /v1/nodes/web%2Froot", weight).0, 200);
    // Containers have no ranges, disks do.
    assert_eq!(api.vm("GET /v1/disks/root/ranges", "").0, 200);
    for name in ["web", "shop", "web%2Fshop", "wec"] {
        let (code, answer) = api.vm(&format!("GET /v1/disks/{name}/ranges"), "");
        assert_eq!(code, 404, "{name}: {answer}");
        assert!(answer.contains("there is no disk") && !answer.contains("\\\"wec\\\"?"), "{name}: {answer}");
    }
}

/// A size is the host's promise, so that a VM's owner takes it neither away nor puts something else in its place.
#[test]
fn a_size_stays_whatever_is_set_on_the_vms_socket() {
    let api = Api::start();
    let size = || api.daemon.plan.lock().unwrap().disks[0].share_fixed.then_some(());
    assert_eq!(api.raw("PATCH /v1/nodes/web:root", r#"{"size": "64MiB"}"#).0, 200);
    for (head, body) in [
        ("PATCH /v1/nodes/web:root", r#"{"weight": 200}"#),
        ("PATCH /v1/nodes/root", r#"{"floor": "8MiB"}"#),
        ("PATCH /v1/nodes/root", r#"{"policy": "lru", "ceiling": "none"}"#),
        ("PUT /v1/nodes/root", r#"{"weight": 200}"#),
    ] {
        let (code, answer) = api.vm(head, body);
        assert_eq!((code, size()), (403, Some(())), "{head} {body}: {answer}");
        assert!(answer.contains("\\\"web:root\\\" has a size") && answer.contains("whoever runs the host"), "{answer}");
    }
    // What else is the VM's to set is set, and a whole change takes nothing away that was not.
    assert_eq!(api.vm("PATCH /v1/nodes/root", r#"{"policy": "lru"}"#).0, 200);
    assert_eq!(api.vm("PUT /v1/nodes/root", r#"{"hint": "noreuse"}"#).0, 200);
    assert_eq!(size(), Some(()));
    assert_eq!(api.daemon.plan.lock().unwrap().disks[0].share_bytes, 64 << 20);
    // Whoever runs the host puts a weight in its place.
    assert_eq!(api.raw("PATCH /v1/nodes/web:root", r#"{"weight": 200}"#).0, 200);
    assert_eq!(size(), None);
    assert_eq!(api.vm("PATCH /v1/nodes/root", r#"{"weight": 300}"#).0, 200);
}

/// Lists of ranges are taken whole, replace what was said before, and may be longer than other bodies.
#[test]
fn ranges_are_taken_replaced_and_shown() {
    let api = Api::start();
    let put = |container: &str, ranges: &str| {
        let body = format!(r#"{{"disk": "web:root", "container": "{container}", "ranges": {ranges}}}"#);
        api.raw("PUT /v1/ranges", &body)
    };
    let range = |offset: u64, length: u64| format!(r#"{{"offset_bytes": {offset}, "length_bytes": {length}}}"#);
    let many: Vec<String> = (0..4000u64).map(|n| range(n * 8192, 4096)).collect();
    let (code, body) = put("shop", &format!("[{}]", many.join(",")));
    let taken: RangesTaken = serde_json::from_str(&body).unwrap();
    assert_eq!((code, taken.ranges, taken.bytes, taken.previous_ranges), (200, 4000, 4000 * 4096, 0));
    let (code, body) = put("db", &format!("[{}]", range(4096, 4097)));
    assert!(code == 409 && body.contains("container \\\"shop\\\"'s"), "{body}");
    assert_eq!(put("shop", &format!("[{}]", range(8192, 5000))).0, 200);
    assert_eq!(put("db", &format!("[{}]", range(4096, 4096))).0, 200);
    let status: RangesStatus =
        client::request_json(&api.socket, Method::GET, "/v1/disks/web:root/ranges", None).unwrap();
    let shown: Vec<_> = status.containers.iter().map(|c| (c.container.as_str(), c.bytes, c.blocks)).collect();
    assert_eq!(shown, [("db", 4096, 1), ("shop", 5000, 2)]);
    let (code, body) = api.raw("PUT /v1/ranges", &" ".repeat((8 << 20) + 1));
    assert!(code == 400 && body.contains("longer than 8388608 bytes"), "{body}");
}
