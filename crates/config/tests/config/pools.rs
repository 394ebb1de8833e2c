//! Which disks of a plan keep their blocks together: those of a VM for which nothing of their own is set.

use crate::place::Place;
use undercroft_config::{DiskSpec, NodeChange, ServePlan, Written, keys};

/// The names of the disks of each pool.
fn pools(plan: &ServePlan) -> Vec<Vec<&str>> {
    let names = |disks: &[usize]| disks.iter().map(|&at| plan.disks[at].name.as_str()).collect();
    plan.pools().iter().map(names).collect()
}

fn file(of_data: &str) -> String {
    format!(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\npolicy=\"ARC\"\nweight=300\n\
         [[vm.disk]]\nname=\"root\"\nimage=\"a.raw\"\nreadahead=\"0\"\nexclusive=\"off\"\n\
         [[vm.disk]]\nname=\"data\"\nimage=\"b.raw\"\n{of_data}\n\
         [[vm.disk]]\nname=\"logs\"\nimage=\"c.raw\"\nwrite_allocate=false\n\
         [[disk]]\nname=\"x\"\nimage=\"d.raw\"\n[[disk]]\nname=\"y\"\nimage=\"e.raw\"\n\
         [[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"only\"\nimage=\"f.raw\"\n"
    )
}

#[test]
fn disks_of_a_vm_are_together_unless_one_has_a_share_of_its_own() {
    let place = Place::new();
    ["a", "b", "c", "d", "e", "f"]
        .iter()
        .for_each(|n| std::fs::write(place.at(&format!("{n}.raw")), [0; 4096]).unwrap());
    let plan = place.good(&file(""));
    assert_eq!(pools(&plan), [["web:root", "web:data", "web:logs"]], "of no VM, or alone in one: apart");
    assert_eq!((plan.pools().with(1), plan.pools().with(5)), (&[0, 1, 2][..], &[][..]));
    for key in [
        "weight=200",
        "floor=\"16MiB\"",
        "ceiling=\"64MiB\"",
        "size=\"64MiB\"",
        "policy=\"ARC\"",
        "container=\"shop\"",
        "hint=\"willneed\"",
    ] {
        let plan = place.good(&file(key));
        assert_eq!(pools(&plan), [["web:root", "web:logs"]], "{key}");
    }
    let io_disks = |plan: &ServePlan| plan.disks.iter().map(|d| d.io_disks).collect::<Vec<_>>();
    assert_eq!(io_disks(&plan), [3, 3, 3, 1, 1, 1], "what operations may have is divided in a pool");
    assert_eq!(io_disks(&place.good(&file("weight=200"))), [2, 1, 2, 1, 1, 1]);
    let weight = keys::settable("weight").unwrap();
    let change = |text: &str| NodeChange::default().with("weight", Written::parse(weight, text).unwrap());
    let apart = plan.with_node("web:data", &change("200")).unwrap();
    assert_eq!(pools(&apart), [["web:root", "web:logs"]]);
    assert_eq!(io_disks(&apart), io_disks(&plan), "disks that are served keep what they came with");
    std::fs::write(place.at("g.raw"), [0; 4096]).unwrap();
    let image = place.at("g.raw").display().to_string();
    let more = DiskSpec { name: "more".into(), vm: Some("db".into()), image, ..DiskSpec::default() };
    let attached = plan.with_disk(&more, &place.machine).unwrap();
    assert_eq!(io_disks(&attached), [3, 3, 3, 1, 1, 1, 2], "one that comes later has its part beside what others have");
    let text = format!("{}[[vm.disk]]\nname=\"more\"\nimage=\"g.raw\"\n", file(""));
    let differs = plan.difference(&place.good(&text));
    assert_eq!(differs.added.iter().map(|d| d.io_disks).collect::<Vec<_>>(), [2], "likewise by the file");
    let again = apart.with_node("web:data", &change("100")).unwrap();
    assert_eq!(pools(&again), pools(&plan), "as if nothing had been set");
}
