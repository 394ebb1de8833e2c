//! The tests: all small cases, random long ones, and the limits of a search.

use super::driver::{Pair, Step};
use super::{kinds, may_go};
use crate::limits::REFUSALS_MAX;
use crate::policy::served::models::segmented;
use crate::policy::studied::s4choice::CONFIGURATIONS;
use crate::policy::studied::s4queues::{Knobs, Queues};
use crate::policy::{AnyPolicy, AnyPolicyKind, Outcome, StudiedPolicyKind};
use crate::{Access, HashKey, Index, PolicyKind};
use proptest::prelude::*;

/// Every sequence of `len` accesses to up to `keys` blocks, but for renaming blocks: the first block is 0, and a new
/// one is the smallest not yet used.
fn sequences(len: usize, keys: u64, visit: &mut impl FnMut(&[u64])) {
    fn extend(sequence: &mut Vec<u64>, len: usize, keys: u64, used: u64, visit: &mut impl FnMut(&[u64])) {
        if sequence.len() == len {
            return visit(sequence);
        }
        for block in 0..(used + 1).min(keys) {
            sequence.push(block);
            extend(sequence, len, keys, used.max(block + 1), visit);
            sequence.pop();
        }
    }
    extend(&mut Vec::new(), len, keys, 0, visit);
}

#[test]
fn all_short_access_sequences() {
    for kind in kinds() {
        for capacity in 0..=4 {
            sequences(8, 5, &mut |blocks| {
                let mut pair = Pair::new(kind, capacity);
                blocks.iter().for_each(|&b| pair.step(&Step::Access(b)));
            });
        }
    }
}

#[test]
fn all_short_sequences_with_removals_and_blocks_under_io() {
    let alphabet: Vec<Step> = (0..4)
        .map(Step::Access)
        .chain([Step::Remove(0), Step::Remove(1), Step::Busy(0), Step::Busy(1), Step::Evict])
        .collect();
    const LEN: u32 = 4;
    for kind in kinds() {
        for capacity in 1..=3 {
            for code in 0..alphabet.len().pow(LEN) {
                let mut pair = Pair::new(kind, capacity);
                // three blocks are there at the start, and one of them was hit
                [0, 1, 2, 1].into_iter().for_each(|b| pair.step(&Step::Access(b)));
                let mut rest = code;
                for _ in 0..LEN {
                    pair.step(&alphabet[rest % alphabet.len()]);
                    rest /= alphabet.len();
                }
            }
        }
    }
}

#[test]
fn all_short_sequences_with_resizes() {
    let alphabet: Vec<Step> =
        (0..5).map(Step::Access).chain([0, 1, 2, 4].map(Step::Resize)).chain([Step::Busy(1), Step::Busy(2)]).collect();
    const LEN: u32 = 4;
    for kind in kinds() {
        for code in 0..alphabet.len().pow(LEN) {
            let mut pair = Pair::new(kind, 3);
            [0, 1, 2, 1, 3].into_iter().for_each(|b| pair.step(&Step::Access(b)));
            let mut rest = code;
            for _ in 0..LEN {
                pair.step(&alphabet[rest % alphabet.len()]);
                rest /= alphabet.len();
            }
        }
    }
}

fn any_kind() -> impl Strategy<Value = AnyPolicyKind> {
    prop::sample::select(kinds().collect::<Vec<_>>())
}

/// Blocks with a few hot ones, scans of cold ones, and everything else that can happen to an index.
fn any_step(blocks: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..blocks).prop_map(Step::Access),
        30 => (0..blocks / 4 + 1).prop_map(Step::Access),
        4 => (0..blocks).prop_map(Step::Remove),
        6 => (0..blocks).prop_map(Step::Busy),
        2 => Just(Step::Evict),
        1 => Just(Step::Idle),
        1 => (0..blocks as u32).prop_map(Step::Resize),
    ]
}

/// The configurations that S4-FIFO chooses among, without and with parts of the small queue in which hits do not count.
fn any_knobs() -> impl Strategy<Value = Knobs> {
    let skip = prop_oneof![2 => Just(0), 1 => Just(25), 1 => 1u32..100];
    (prop::sample::select(CONFIGURATIONS.to_vec()), skip).prop_map(|(knobs, skip)| Knobs { skip, ..knobs })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(undercroft_skips::cases(400)))]

    #[test]
    fn each_policy_does_what_its_model_does(
        kind in any_kind(),
        capacity in 0u32..40,
        steps in prop::collection::vec(any_step(60), 0..600),
    ) {
        let mut pair = Pair::new(kind, capacity);
        steps.iter().for_each(|s| pair.step(s));
    }

    #[test]
    fn s4_fifo_does_what_its_model_does_whatever_its_knobs(
        knobs in any_knobs(),
        capacity in 0u32..60,
        steps in prop::collection::vec(any_step(90), 0..800),
    ) {
        let key = HashKey::from_seed(1);
        let queues = AnyPolicy::Studied(StudiedPolicyKind::S4Fifo, Box::new(Queues::new(knobs, capacity, key)));
        let model = Box::new(segmented::S3Fifo::with_knobs(knobs, capacity as usize));
        let mut pair = Pair::of(Index::with_policy(queues, capacity, key), model);
        steps.iter().for_each(|s| pair.step(s));
    }

    #[test]
    fn switches_keep_blocks_and_order(
        kind in any_kind(),
        capacity in 1u32..24,
        steps in prop::collection::vec((any_step(30), any_kind(), 0..20), 0..300),
    ) {
        let mut pair = Pair::new(kind, capacity);
        for (step, kind, die) in &steps {
            let switch = Step::Switch(*kind);
            pair.step(if *die == 0 { &switch } else { step });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sweeps in both directions and loops of all lengths, in larger caches: many LIR blocks, and at times fewer
    /// entries than there would be without a limit.
    #[test]
    fn lirs2_does_what_its_model_does_on_traces(
        capacity in 5u32..60,
        pieces in prop::collection::vec((0u64..200, 1u64..80, any::<bool>(), 1usize..4), 1..12),
    ) {
        let mut pair = Pair::new(StudiedPolicyKind::Lirs2, capacity);
        for (from, len, down, times) in pieces {
            for block in std::iter::repeat_n(from..from + len, times).flatten() {
                pair.step(&Step::Access(if down { 2 * from + len - 1 - block } else { block }));
            }
        }
    }
}

/// A search gives up after so many slots under I/O, though others could go; one fewer, and it finds them.
#[test]
fn a_search_for_a_victim_is_bounded() {
    for kind in PolicyKind::ALL {
        // S3-FIFO and W-TinyLFU have another queue to turn to
        let one_queue = !matches!(kind, PolicyKind::S3Fifo | PolicyKind::WTinyLfu);
        for (held, gives_up) in [(REFUSALS_MAX, true), (REFUSALS_MAX - 1, false)] {
            let mut index = Index::new(kind, 1000);
            (0..1000).for_each(|b| _ = index.access(b, Access::Read, may_go));
            let coldest = index.coldest_first();
            let slots: Vec<_> = coldest[..held as usize].iter().map(|&b| index.peek(b)).collect();
            let calls = std::cell::Cell::new(0);
            let outcome = index.access(5000, Access::Read, |s| {
                calls.set(calls.get() + 1);
                !slots.contains(&Some(s))
            });
            assert_eq!(outcome == Outcome::Bypass, gives_up && one_queue, "{kind} with {held} slots under I/O");
            assert!(calls.get() <= REFUSALS_MAX + 2, "{kind} asked {} times", calls.get());
            index.check();
        }
    }
}

/// With everything under I/O nothing is evicted and nothing is lost, however often one asks.
#[test]
fn everything_under_io_is_a_bypass() {
    for kind in kinds() {
        for capacity in [1, 2, 10, 100, 200] {
            let mut index = Index::new(kind, capacity);
            (0..u64::from(capacity)).for_each(|b| _ = index.access(b, Access::Write, may_go));
            for block in 1000..1300 {
                assert_eq!(index.access(block, Access::Read, |_| false), Outcome::Bypass, "{kind} of {capacity}");
            }
            assert_eq!(index.evict(|_| false), None);
            assert_eq!(index.resize(0, |_| false, |_, _| panic!("evicted"), |_, _| panic!("moved")), capacity);
            assert!((0..u64::from(capacity)).all(|b| index.peek(b).is_some()));
            index.check();
        }
    }
}

/// The block that must go next is the same before and after a switch to a policy that keeps plain order.
#[test]
fn a_switch_keeps_the_order_of_eviction() {
    for from in kinds() {
        for to in [PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::Clock, PolicyKind::Sieve] {
            let to = AnyPolicyKind::from(to);
            let mut index = Index::new(from, 50);
            for i in 0..400u64 {
                index.access(i * i % 83, Access::Read, may_go);
            }
            let order = index.coldest_first();
            index.switch(to);
            index.check();
            assert_eq!(index.coldest_first(), order, "{from} to {to}");
        }
    }
}

/// A policy that a disk may have is held against a reference model.
#[test]
fn every_served_policy_has_a_model() {
    for kind in PolicyKind::ALL {
        assert!(kind.model(10).is_some(), "{kind} has no reference model");
    }
}
