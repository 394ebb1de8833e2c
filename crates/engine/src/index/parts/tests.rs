//! Tests of parts: each is a cache of its own, and together they are the index.

use super::*;
use crate::index::ranges::PartRange;
use crate::reference::may_go;
use crate::{Access, Outcome, Tier};
use proptest::prelude::*;

fn setting(part: u8, policy: PolicyKind, share_blocks: u32) -> PartSetting {
    PartSetting { part: PartId(part), policy, share_blocks }
}

fn range(first: u64, blocks: u64, part: u8) -> PartRange {
    PartRange { first, blocks, part: PartId(part) }
}

/// Accesses `block`; whether it was there.
fn hit(index: &mut Index, block: u64) -> bool {
    matches!(index.access(block, Access::Read, may_go), Outcome::Hit(_))
}

/// Numbers below `n`, small ones often.
fn skewed(state: &mut u64, n: u64) -> u64 {
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state >> 33
    };
    next() % (next() % n + 1)
}

#[test]
fn each_part_keeps_what_an_index_of_its_own_would() {
    for kind in PolicyKind::ALL {
        let disk = 3000;
        let mut index = Index::new(PolicyKind::Lru, 600);
        let ranges = [range(100, 900, 1), range(1000, 500, 2), range(2000, 100, 1)];
        index.set_parts(&ranges, disk, &[setting(1, kind, 200), setting(2, PolicyKind::Sieve, 300)], 600).unwrap();
        let mut alone = [Index::new(PolicyKind::Lru, 100), Index::new(kind, 200), Index::new(PolicyKind::Sieve, 300)];
        let (mut state, mut hits) = (7, 0);
        for n in 0..60_000 {
            let block = skewed(&mut state, disk);
            let part = index.part_of_block(block);
            let found = hit(&mut index, block);
            assert_eq!(found, hit(&mut alone[usize::from(part.0)], block), "{kind}, access {n}, block {block}");
            hits += u32::from(found);
        }
        index.check();
        assert!(hits > 5_000);
        assert_eq!([0, 1, 2].map(|n| index.part_len_and_limit(PartId(n))), [(100, 100), (200, 200), (300, 300)]);
    }
}

#[test]
fn a_part_that_grows_takes_from_the_one_above_its_limit_and_from_no_other() {
    let mut index = Index::new(PolicyKind::Lru, 30);
    let ranges = [range(100, 100, 1), range(200, 100, 2)];
    let settings = [setting(1, PolicyKind::Lru, 10), setting(2, PolicyKind::Lru, 10)];
    index.set_parts(&ranges, 300, &settings, 30).unwrap();
    for first in [0, 100, 200] {
        (first..first + 20).for_each(|block| _ = hit(&mut index, block));
    }
    let lens = |index: &Index| [0, 1, 2].map(|n| index.part_len_and_limit(PartId(n)).0);
    assert_eq!((lens(&index), index.excess(), index.is_over()), ([10, 10, 10], 0, false));
    let (shares, sum) = index.changed_shares(30, &[(PartId(0), 13), (PartId(2), 7)]).unwrap();
    assert_eq!(sum, 30);
    index.set_part_shares(&shares);
    assert_eq!((lens(&index), index.excess(), index.is_over()), ([10, 10, 10], 3, true));
    (1000..1002).for_each(|block| _ = hit(&mut index, block));
    assert_eq!((lens(&index), index.excess()), ([12, 10, 8], 1));
    // What is at its limit takes its own.
    (150..160).for_each(|block| _ = hit(&mut index, block));
    assert_eq!(lens(&index), [12, 10, 8]);
    assert!((150..160).all(|block| index.peek(block).is_some()));
    let (block, _) = index.evict(may_go).unwrap();
    assert!((200..300).contains(&block) && !index.is_over());
    assert_eq!(lens(&index), [12, 10, 7]);
    index.check();
}

#[test]
fn blocks_keep_their_slots_when_the_parts_change() {
    for tiers in [false, true] {
        let mut index = Index::new(PolicyKind::S3Fifo, 200);
        index.set_tiers(tiers);
        for block in 0..200 {
            index.access(block, if block % 3 == 0 { Access::Take } else { Access::Read }, may_go);
        }
        let all = |index: &Index| {
            let mut all: Vec<_> = index.iter().collect();
            all.sort_unstable();
            all
        };
        let before = all(&index);
        let cold = index.tier_lens()[2];
        assert_eq!(cold > 0, tiers);
        index
            .set_parts(
                &[range(0, 50, 1), range(60, 50, 7)],
                200,
                &[setting(1, PolicyKind::Arc, 50), setting(7, PolicyKind::WTinyLfu, 50)],
                200,
            )
            .unwrap();
        index.check();
        let lens = |index: &Index| index.parts().map(|n| (n.0, index.part_len_and_limit(n).0)).collect::<Vec<_>>();
        assert_eq!((all(&index), lens(&index)), (before.clone(), vec![(0, 100), (1, 50), (7, 50)]));
        index.set_parts(&[range(10, 190, 7)], 200, &[setting(7, PolicyKind::Car, 190)], 200).unwrap();
        index.check();
        assert_eq!((all(&index), lens(&index)), (before.clone(), vec![(0, 10), (7, 190)]));
        assert_eq!(index.tier_lens()[2], cold);
        assert!(!index.has_part(PartId(1)) && index.part_kind(PartId(7)) == Some(PolicyKind::Car));
        index.clear_parts();
        index.check();
        assert_eq!((all(&index), index.limit(), index.is_over()), (before, 200, false));
        assert!(!index.has_parts() && index.memory_bytes() <= 64 * 200 + 16 * 1024);
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut index = Index::new(PolicyKind::Lru, 10);
    let one = [range(0, 5, 1)];
    let lru = |part, share| setting(part, PolicyKind::Lru, share);
    let mut refused = |ranges: &[PartRange], settings: &[PartSetting]| {
        let why = index.set_parts(ranges, 10, settings, 10).unwrap_err();
        assert!(!index.has_parts());
        why
    };
    assert_eq!(refused(&one, &[]), PartsError::Empty);
    assert_eq!(refused(&one, &[lru(2, 1)]), PartsError::UnknownPart(PartId(1)));
    assert_eq!(refused(&one, &[lru(1, 1), lru(1, 1)]), PartsError::Twice(PartId(1)));
    assert_eq!(refused(&one, &[lru(0, 1), lru(1, 1)]), PartsError::Rest);
    let shares = PartsError::Shares { wanted_blocks: 11, disk_blocks: 10 };
    assert_eq!(refused(&one, &[lru(1, 6), lru(2, 5)]), shares);
    assert_eq!(
        refused(&one, &[lru(1, u32::MAX), lru(2, u32::MAX)]),
        PartsError::Shares { wanted_blocks: 2 * u64::from(u32::MAX), disk_blocks: 10 }
    );
    index.set_parts(&one, 10, &[lru(1, 6)], 10).unwrap();
    assert_eq!(index.changed_shares(10, &[(PartId(2), 1)]), Err(PartsError::UnknownPart(PartId(2))));
    assert_eq!(index.changed_shares(10, &[(PartId(1), 1), (PartId(1), 2)]), Err(PartsError::Twice(PartId(1))));
    assert!(matches!(index.changed_shares(10, &[(PartId(1), u32::MAX)]), Err(PartsError::Shares { .. })));
    assert_eq!(index.part_shares(10), [(PartId(0), 4), (PartId(1), 6)]);
}

#[derive(Clone, Debug)]
enum Do {
    Access(u64, bool),
    Remove(u64),
    Evict,
    Limit(u32),
    Resize(u32),
    Share(u8, u32),
    Parts(Vec<(u64, u64, u8, usize, u32)>),
    Clear,
    Tiers(bool),
    Place(u64, bool),
    Switch(u8, usize),
}

fn anything() -> impl Strategy<Value = Do> {
    let kind = 0..PolicyKind::ALL.len();
    prop_oneof![
        60 => (0..200u64, any::<bool>()).prop_map(|(b, take)| Do::Access(b, take)),
        4 => (0..200u64).prop_map(Do::Remove),
        4 => Just(Do::Evict),
        3 => (0..100u32).prop_map(Do::Limit),
        2 => (0..100u32).prop_map(Do::Resize),
        6 => (0..6u8, 0..60u32).prop_map(|(n, share)| Do::Share(n, share)),
        3 => prop::collection::vec((0..200u64, 1..40u64, 1..6u8, kind.clone(), 0..30u32), 1..8).prop_map(Do::Parts),
        1 => Just(Do::Clear),
        1 => any::<bool>().prop_map(Do::Tiers),
        3 => (0..200u64, any::<bool>()).prop_map(|(b, cold)| Do::Place(b, cold)),
        2 => (0..6u8, kind).prop_map(|(n, kind)| Do::Switch(n, kind)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, the accounts are right, nothing is lost but by eviction, and what was
    /// evicted until nothing is over has no part above its limit.
    #[test]
    fn accounts_add_up_whatever_happens(first in 0..8usize, todo in prop::collection::vec(anything(), 1..200)) {
        let mut index = Index::new(PolicyKind::ALL[first], 60);
        let mut whole = 60;
        for what in todo {
            let before = index.len();
            let mut keeps = true;
            match what {
                Do::Access(block, take) => {
                    let over = index.excess();
                    index.access(block, if take { Access::Take } else { Access::Read }, may_go);
                    prop_assert!(index.excess() <= over, "an access put a part above its limit");
                    keeps = false;
                }
                Do::Remove(block) => {
                    index.remove(block);
                    prop_assert_eq!(index.peek(block), None);
                    keeps = false;
                }
                Do::Evict => {
                    let over = index.excess();
                    prop_assert_eq!(index.evict(may_go).is_some(), before > 0);
                    prop_assert!(index.excess() == over.saturating_sub(1), "an eviction spared what is over");
                    keeps = false;
                }
                Do::Limit(limit) => index.set_limit(limit),
                Do::Resize(capacity) => {
                    let reached = index.resize(capacity, may_go, |_, _| {}, |_, _| {});
                    prop_assert_eq!(reached, capacity);
                    whole = capacity;
                    keeps = false;
                }
                Do::Share(part, share) => match index.changed_shares(whole, &[(PartId(part), share)]) {
                    Ok((shares, _)) => index.set_part_shares(&shares),
                    Err(why) => {
                        prop_assert_eq!(why, PartsError::UnknownPart(PartId(part)));
                        prop_assert!(!index.has_part(PartId(part)));
                    }
                },
                Do::Parts(list) => {
                    let ranges: Vec<_> = list.iter().map(|&(at, n, part, _, _)| range(at, n, part)).collect();
                    let mut settings = Vec::new();
                    for &(_, _, part, kind, share) in &list {
                        if settings.iter().all(|s: &PartSetting| s.part != PartId(part)) {
                            settings.push(setting(part, PolicyKind::ALL[kind], share));
                        }
                    }
                    let _ = index.set_parts(&ranges, 200, &settings, whole);
                }
                Do::Clear => index.clear_parts(),
                Do::Tiers(on) => index.set_tiers(on),
                Do::Place(block, cold) => {
                    if index.has_tiers() {
                        index.place(block, if cold { Tier::Cold } else { Tier::Probation }, may_go);
                        keeps = false;
                    }
                }
                Do::Switch(part, kind) => index.switch_part(PartId(part), PolicyKind::ALL[kind]),
            }
            index.check();
            prop_assert!(!keeps || index.len() == before, "blocks were dropped");
            let (slots, (ranges, last)) = (index.capacity(), index.parts_size());
            let parts = if index.has_parts() { Index::parts_bytes_max(slots, ranges, last) } else { 0 };
            // the tables, the tiers, what they take at least
            let most = (50 + 9) * u64::from(slots) + 4096 + parts;
            prop_assert!(index.memory_bytes() as u64 <= most, "{} bytes of {most}", index.memory_bytes());
        }
        while index.is_over() {
            prop_assert!(index.evict(may_go).is_some());
        }
        let over = index.parts().find(|&n| index.part_len_and_limit(n).0 > index.part_len_and_limit(n).1);
        prop_assert_eq!(over, None);
    }
}
