//! What is done by hand while the daemon runs and outlives a reload: files of disks, disks that are kept.
//!
//! Owns changes of plans. Never mounts anything.

use crate::place::{Place, set, spec, two_disks};
use undercroft_config::{DiskSpec, NodeChange, Written};

/// What a disk is as a file is said by hand, and stays where the configuration says nothing: a reload pulls it from
/// under nobody.
#[test]
fn a_file_is_set_by_hand_and_a_reload_leaves_it() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let path = |name: &str| place.at(name).display().to_string();
    let fuse = |at: &str| NodeChange::default().with("fuse", Written::Text(at.to_owned()));
    let filed = plan.with_change("d", &fuse(&path("d.file"))).unwrap();
    assert_eq!(filed.disks[0].file, Some(place.at("d.file")));
    let said: Vec<String> = plan.keys_changed(&filed).iter().map(ToString::to_string).collect();
    assert_eq!(said, [format!("disk \"d\": fuse: none -> {}", path("d.file"))]);
    // Again the same, another one, and what cannot be.
    assert!(filed.with_change("d", &fuse(&path("d.file"))).is_ok());
    assert_eq!(filed.with_change("d", &fuse(&path("e.file"))).unwrap().disks[0].file, Some(place.at("e.file")));
    for (name, at, needle) in [
        ("e", path("d.file"), "is that of disk \"d\" too"),
        ("e", "e.file".into(), "is a relative path"),
        ("e", path("no/e.file"), "mkdir -p"),
        ("nobody", path("e.file"), "there is no disk"),
    ] {
        let e = filed.with_change(name, &fuse(&at)).unwrap_err();
        assert!(e.to_string().contains(needle), "{at}: {e}");
    }
    let change = filed.difference(&plan);
    assert_eq!((change.changed.len(), change.needs_restart.len()), (0, 0), "{change:?}");
    assert_eq!(change.result.unwrap().disks[0].file, Some(place.at("d.file")));
    // What the file says is named, and not done.
    let named = plan.difference(&filed);
    assert!(named.needs_restart[0].contains("fuse: none -> ") && named.result.unwrap().disks[0].file.is_none());
    let none = NodeChange::default().with("fuse", Written::Nothing);
    let bare = filed.with_change("d", &none).unwrap();
    assert_eq!(bare.disks[0].file, None);
    assert!(bare.with_node("d", &NodeChange::default().replacing()).is_ok());
    // A disk that nobody would reach any more.
    let only = DiskSpec { vhost_user: Some(false), fuse: Some(place.at("f.file")), ..spec(&place, "f", "c.raw") };
    let more = plan.with_disk(&only, &place.machine).unwrap();
    assert!(more.with_change("f", &none).unwrap_err().to_string().contains("undercroft detach f"));
    // Settings as a whole leave it: a file is no setting of a node.
    let whole = more.with_node("f", &set("weight", "7").replacing()).unwrap();
    assert_eq!((whole.disks[2].weight, &whole.disks[2].file), (7, &Some(place.at("f.file"))));
}

/// A disk that is kept stays, with what it has, unless the file has something else of its name.
#[test]
fn a_disk_that_is_kept_outlives_a_file_that_does_not_name_it() {
    let place = Place::new();
    let plan = place.good(two_disks());
    let kept = DiskSpec { keep: true, weight: Some(200), ..spec(&place, "f", "c.raw") };
    let more = plan.with_disk(&kept, &place.machine).unwrap();
    let again = more.difference(&plan);
    assert!(again.removed.is_empty() && again.added.is_empty(), "{again:?}");
    let result = again.result.unwrap();
    assert_eq!((result.disks[2].name.as_str(), result.disks[2].weight), ("f", 200));
    assert!(result.disks.iter().map(|d| d.share_bytes).sum::<u64>() <= plan.store.memory_bytes);
    let not = plan.with_disk(&DiskSpec { keep: false, ..kept.clone() }, &place.machine).unwrap();
    assert_eq!(not.difference(&plan).removed, ["f"]);
    // A file that names it takes it over: the next one without it takes it away.
    let named = more.difference(&not).result.unwrap();
    assert_eq!(named.difference(&plan).removed, ["f"]);
    let vm = place.good("[[vm]]\nname=\"f\"\n[[vm.disk]]\nname=\"x\"\nimage=\"a.raw\"\n");
    let refused = more.difference(&vm);
    assert!(refused.result.is_none() && refused.needs_restart[0].contains("\"f\" is kept"), "{refused:?}");
}
