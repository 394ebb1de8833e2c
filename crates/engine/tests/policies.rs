//! What holds of every policy, those of disks and those of simulators: bounds, repetition, and invariants through
//! everything that can happen to an index. What each one decides is held elsewhere, by reference models and by
//! reference counts.

use proptest::prelude::*;
use std::collections::BTreeSet;
use undercroft_engine::{Access, AnyPolicyKind, HashKey, Index, Outcome, PolicyKind, Replay, StudiedPolicyKind};

#[derive(Clone, Debug)]
enum Step {
    Access(u64),
    Remove(u64),
    Evict,
    Limit(u32),
    Resize(u32),
    Switch(AnyPolicyKind),
    /// From now on a block of this remainder by 5 may not be evicted.
    Busy(u64),
}

fn any_kind() -> impl Strategy<Value = AnyPolicyKind> {
    prop::sample::select(AnyPolicyKind::ALL.to_vec())
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0u64..60).prop_map(Step::Access),
        30 => (0u64..15).prop_map(Step::Access),
        3 => (0u64..60).prop_map(Step::Remove),
        2 => Just(Step::Evict),
        1 => (0u32..50).prop_map(Step::Limit),
        1 => (0u32..50).prop_map(Step::Resize),
        1 => any_kind().prop_map(Step::Switch),
        1 => (0u64..10).prop_map(Step::Busy),
    ]
}

/// Blocks with a few popular ones, loops and cold ones.
fn any_blocks() -> impl Strategy<Value = Vec<u64>> {
    let pieces = prop_oneof![
        prop::collection::vec(0u64..300, 1..60),
        prop::collection::vec(0u64..20, 1..60),
        (0u64..200, 1u64..60).prop_map(|(from, len)| (from..from + len).collect()),
    ];
    prop::collection::vec(pieces, 1..20).prop_map(|p| p.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(undercroft_skips::cases(600)))]

    /// Against a set of the blocks that the outcomes say are there.
    #[test]
    fn an_index_keeps_its_invariants_whatever_happens(
        kind in any_kind(),
        capacity in 0u32..40,
        steps in prop::collection::vec(any_step(), 0..400),
    ) {
        let mut index = Index::new(kind, capacity);
        let (mut present, mut busy, mut limit) = (BTreeSet::new(), 9, capacity);
        for step in steps {
            let blocks: Vec<Option<u64>> = (0..index.capacity()).map(|s| index.block_of(s)).collect();
            let may_evict = |slot: u32| blocks[slot as usize].is_none_or(|b| b % 5 != busy);
            match step {
                Step::Access(block) => match index.access(block, Access::Read, may_evict) {
                    Outcome::Hit(_) => prop_assert!(present.contains(&block), "{kind}: a hit on {block}"),
                    Outcome::Bypass => prop_assert!(!present.contains(&block)),
                    Outcome::Fill { evicted, .. } => {
                        if let Some((old, slot)) = evicted {
                            prop_assert!(may_evict(slot), "{kind} evicted {old}");
                            prop_assert!(present.remove(&old));
                        }
                        prop_assert!(present.insert(block));
                    }
                },
                Step::Remove(block) => prop_assert_eq!(index.remove(block).is_some(), present.remove(&block)),
                Step::Evict => {
                    if let Some((block, slot)) = index.evict(may_evict) {
                        prop_assert!(may_evict(slot) && present.remove(&block));
                    }
                }
                Step::Limit(to) => {
                    limit = to.min(index.capacity());
                    index.set_limit(to);
                }
                Step::Resize(to) => {
                    let mut gone = vec![];
                    let reached = index.resize(to, may_evict, |block, _| gone.push(block), |_, _| {});
                    gone.iter().for_each(|b| assert!(present.remove(b)));
                    limit = reached;
                }
                Step::Switch(kind) => index.switch(kind),
                Step::Busy(remainder) => busy = remainder,
            }
            index.check();
            prop_assert_eq!(index.len() as usize, present.len());
            prop_assert!(index.len() <= index.capacity());
            prop_assert!(index.limit() == limit);
        }
    }

    /// The fast loop decides as the index does, however a trace is cut.
    #[test]
    fn a_replay_misses_what_an_index_misses(
        kind in any_kind(),
        capacity in 0u32..60,
        blocks in any_blocks(),
        cut in 1usize..100,
    ) {
        let mut index = Index::new(kind, capacity);
        let missed = |&&block: &&u64| !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_));
        let expected = blocks.iter().filter(missed).count() as u64;
        let mut replay = Replay::new(kind, capacity);
        let misses: u64 = blocks.chunks(cut).map(|piece| replay.feed(piece)).sum();
        replay.check();
        prop_assert_eq!(misses, expected, "{}", kind);
        prop_assert_eq!((replay.misses(), replay.requests()), (misses, blocks.len() as u64));
    }

    /// What does not fit whole misses at least once per block, and what fits never twice.
    #[test]
    fn misses_are_within_reason(kind in any_kind(), capacity in 1u32..400, blocks in any_blocks()) {
        let distinct = blocks.iter().collect::<BTreeSet<_>>().len() as u64;
        let misses = undercroft_engine::replay::replay(kind, capacity, &blocks);
        prop_assert!(misses >= distinct && misses <= blocks.len() as u64);
        if distinct <= u64::from(capacity) {
            prop_assert_eq!(misses, distinct, "{} evicts from a cache with room", kind);
        }
    }
}

/// A policy that draws random numbers draws the same ones for the same key, and others for another.
#[test]
fn lots_are_drawn_by_the_key() {
    let blocks: Vec<u64> = (0..20_000u64).map(|i| if i % 3 == 0 { i % 40 } else { i * i % 977 }).collect();
    let misses = |kind: AnyPolicyKind, seed| {
        let mut replay = Replay::with_hash_key(kind, 100, HashKey::from_seed(seed));
        replay.feed(&blocks)
    };
    for kind in AnyPolicyKind::ALL {
        assert_eq!(misses(kind, 1), misses(kind, 1), "{kind} differs from itself");
    }
    use StudiedPolicyKind::{Cacheus, Hyperbolic, LeCar, Lhd, Random};
    for kind in [Random, Hyperbolic, LeCar, Cacheus, Lhd].map(AnyPolicyKind::from) {
        assert!((2..10).any(|seed| misses(kind, seed) != misses(kind, 1)), "{kind} draws the same lots for every key");
    }
}

#[test]
fn every_name_finds_its_policy_and_disks_get_only_their_own() {
    for kind in AnyPolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert_eq!(kind.name().parse::<PolicyKind>().ok(), kind.served(), "{kind}");
    }
    let unknown = "nonesuch".parse::<AnyPolicyKind>().unwrap_err();
    assert!(unknown.to_string().contains("known are fifo, lru") && unknown.known.contains(&"lirs"), "{unknown}");
}
