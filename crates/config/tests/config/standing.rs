//! Plans in which disks cannot be changed, because nobody can tell them anything.
//!
//! Owns what the others have then. Never starts a daemon.

use crate::place::{GIB, MIB, Place, set, set_bytes};
use proptest::prelude::*;
use std::collections::BTreeSet;
use undercroft_config::{NodeChange, ServePlan, Written};

/// Disks that cannot be told anything keep what they have and how they are cached, and the others have what that
/// leaves.
#[test]
fn disks_that_stand_keep_what_they_have() {
    let place = Place::new();
    let plan = place.good(
        "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n\
         [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n[[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
    );
    let shares = |plan: &ServePlan| plan.disks.iter().map(|d| d.share_bytes / MIB).collect::<Vec<_>>();
    let standing = |name: &str| BTreeSet::from([name.to_owned()]);
    assert_eq!(shares(&plan), [256, 256, 512]);
    let sized = |size: &str| plan.with_change("web:a", &set("size", size)).unwrap();
    let e = sized("700MiB").around(&plan, &standing("db:c")).unwrap_err();
    assert!(e.error.contains("disks that cannot be changed now keep what they have"), "{e:?}");
    let beside = shares(&sized("300MiB").around(&plan, &standing("db:c")).unwrap());
    assert_eq!((beside[0], beside[2]), (300, 512));
    assert!(beside[1] <= 212, "{beside:?}");
    // A VM has more than its new ceiling for as long as one of its disks gives nothing; the other has what it needs.
    let ceiling = plan.with_node("web", &set("ceiling", "100MiB")).unwrap();
    assert_eq!(shares(&ceiling.around(&plan, &standing("web:b")).unwrap())[..2], [4, 256]);
    // What is set otherwise for it is not said to be so.
    let lru = plan.with_node("web", &set("policy", "lru")).unwrap();
    let reached = lru.clone().around(&plan, &standing("web:b")).unwrap();
    let policies: Vec<_> = reached.disks.iter().map(|d| d.policy.name()).collect();
    assert_eq!(policies, ["lru", "s3-fifo", "s3-fifo"]);
    let alike = |name: &str| (reached.has_alike(&lru, name), reached.has_alike(&plan, name));
    assert_eq!(["web:a", "web:b"].map(alike), [(true, false), (false, true)]);
    let weighed = plan.with_node("web", &set("weight", "300")).unwrap();
    assert!(["web:a", "web:b", "db:c"].iter().all(|name| weighed.has_alike(&plan, name)), "shares alone differ");
    assert!(!sized("300MiB").has_alike(&plan, "web:a"), "a size is more than a share");
}

proptest! {
    #[test]
    fn shares_fit_beside_disks_that_stand(
        changes in prop::collection::vec((0usize..5, 0u8..4, 1u64..900), 1..6),
        stands in prop::collection::vec(prop::bool::ANY, 3),
    ) {
        let place = Place::new();
        let mut plan = place.good(
            "[store]\nmemory=\"1GiB\"\n[[vm]]\nname=\"web\"\n[[vm.disk]]\nname=\"a\"\nimage=\"a.raw\"\n\
             [[vm.disk]]\nname=\"b\"\nimage=\"b.raw\"\n[[vm]]\nname=\"db\"\n[[vm.disk]]\nname=\"c\"\nimage=\"c.raw\"\n",
        );
        let names = ["web:a", "web:b", "db:c", "web", "db"];
        let standing: BTreeSet<String> =
            names.iter().zip(&stands).filter(|(_, stands)| **stands).map(|(name, _)| name.to_string()).collect();
        for (node, what, amount) in changes {
            let change = match what {
                0 => NodeChange::default().with("weight", Written::Number(amount)),
                1 => set_bytes("floor", amount * MIB),
                2 => set_bytes("ceiling", amount * MIB),
                _ if node < 3 => set_bytes("size", amount * MIB),
                _ => set("policy", "lru"),
            };
            let Ok(wanted) = plan.with_node(names[node], &change) else { continue };
            let Ok(reached) = wanted.around(&plan, &standing) else { continue };
            let shares: Vec<u64> = reached.disks.iter().map(|d| d.share_bytes).collect();
            prop_assert!(shares.iter().sum::<u64>() <= GIB, "{:?}", shares);
            prop_assert!(shares.iter().all(|share| *share >= 4 * MIB), "{:?}", shares);
            for (had, has) in plan.disks.iter().zip(&reached.disks).filter(|(d, _)| standing.contains(&d.name)) {
                prop_assert_eq!(had, has);
            }
            plan = reached;
        }
    }
}
