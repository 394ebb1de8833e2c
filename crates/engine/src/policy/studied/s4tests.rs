//! Tests of S4-FIFO beside its reference model: each knob by a small case, the default ones as S3-FIFO, given ones
//! against the reference, and the choice of knobs.
//!
//! Owns the fixed configurations that are compared. Never asserts a time.

use super::s4choice::CONFIGURATIONS;
use super::s4queues::{Knobs, Queues};
use crate::policy::{AnyPolicy, AnyPolicyKind, Outcome, Policy, PolicyKind, Seen, StudiedPolicyKind};
use crate::reference::may_go;
use crate::structures::places::Places;
use crate::study::replay::replay;
use crate::{Access, HashKey, Index, Replay};
use proptest::prelude::*;
use undercroft_trace::{TraceReader, synth};

const S4_FIFO: AnyPolicyKind = AnyPolicyKind::Studied(StudiedPolicyKind::S4Fifo);

fn index(knobs: Knobs, capacity: u32) -> Index<AnyPolicyKind> {
    let key = HashKey::from_seed(0);
    let queues = AnyPolicy::Studied(StudiedPolicyKind::S4Fifo, Box::new(Queues::new(knobs, capacity, key)));
    Index::with_policy(queues, capacity, key)
}

fn read(index: &mut Index<AnyPolicyKind>, blocks: impl IntoIterator<Item = u64>) {
    blocks.into_iter().for_each(|block| _ = index.access(block, Access::Read, may_go));
    index.check();
}

#[test]
fn a_burst_in_the_newest_part_proves_nothing() {
    for (skip, stays) in [(50, false), (40, true), (0, true)] {
        let mut index = index(Knobs { small: 50, proven: 1, skip, ..Knobs::DEFAULT }, 20);
        // 0 to 9 are in the small queue; after 5 there came four
        read(&mut index, 0..20);
        read(&mut index, [5, 5, 5, 4]);
        read(&mut index, 100..110);
        assert!(index.peek(4).is_some(), "five came after it before it was hit");
        assert_eq!(index.peek(5).is_some(), stays, "skipping {skip} % of the small queue");
    }
}

#[test]
fn two_hits_on_its_ghosts_take_a_block_to_main_if_one_is_not_enough() {
    for (ghost_hits, returns) in [(0, 1), (1, 2), (2, 3)] {
        let mut index = index(Knobs { ghost_hits, ghosts: 600, ..Knobs::DEFAULT }, 20);
        read(&mut index, 0..20);
        read(&mut index, 100..105);
        for n in 1..=returns {
            assert_eq!(index.peek(0), None, "it left the small queue unproven, {n} times");
            read(&mut index, [0]);
            read(&mut index, n * 1000..n * 1000 + 15);
        }
        assert!(index.peek(0).is_some(), "{returns} hits on its ghosts are enough");
    }
}

#[test]
fn a_knob_turned_evicts_nobody() {
    let mut queues = Queues::new(Knobs::DEFAULT, 100, HashKey::from_seed(0));
    let mut places = Places::new(100);
    let keys: Vec<u64> = (0..100).collect();
    (0..100).for_each(|slot| queues.insert(&mut places, slot, slot.into(), Seen::Never));
    queues.turn(Knobs { small: 90, ghosts: 300, ..Knobs::DEFAULT });
    queues.check(&places, 100);
    assert_eq!(queues.lengths(), (10, 90));
    // main is nine times too long: of it one goes for each that comes
    for n in 0..80 {
        let seen = queues.miss(1000 + n);
        let slot = queues.victim(&mut places, &keys, may_go, seen).expect("one to go");
        queues.insert(&mut places, slot, 1000 + n, seen);
    }
    assert_eq!(queues.lengths(), (90, 10));
    queues.check(&places, 100);
}

/// The seed decides which blocks the miniatures see.
fn misses(kind: AnyPolicyKind, capacity: u32, seed: u64, blocks: &[u64]) -> u64 {
    Replay::with_hash_key(kind, capacity, HashKey::from_seed(seed)).feed(blocks)
}

fn fixed(knobs: Knobs, capacity: u32, blocks: &[u64]) -> u64 {
    let key = HashKey::from_seed(0);
    let queues = AnyPolicy::Studied(StudiedPolicyKind::S4Fifo, Box::new(Queues::new(knobs, capacity, key)));
    Replay::with_policy(queues, capacity, key).feed(blocks)
}

/// As libCacheSim's S4FIFO counts them; see docs/decisions/0118.
#[test]
fn fixed_knobs_miss_what_the_reference_misses() {
    let Some(trace) = undercroft_skips::shared("traces/block/arc-OLTP.lis.zst") else { return };
    let accesses = TraceReader::open(trace).expect("the trace can be opened");
    let blocks: Vec<u64> = accesses.map(|a| a.map(|a| a.block)).collect::<Result<_, _>>().expect("a sound trace");
    let knobs = |small, proven, ghost_hits, ghosts, skip| Knobs { small, proven, ghost_hits, ghosts, skip };
    for (knobs, expected) in [
        (knobs(10, 2, 0, 90, 0), [540_669, 295_594]),
        (knobs(20, 1, 0, 300, 0), [549_167, 292_290]),
        (knobs(5, 2, 0, 600, 0), [557_839, 301_022]),
        (knobs(10, 2, 1, 300, 0), [536_301, 299_952]),
        (knobs(70, 1, 1, 90, 0), [600_905, 304_048]),
        (knobs(90, 2, 0, 300, 0), [644_100, 326_137]),
        (knobs(10, 2, 0, 90, 25), [541_063, 295_631]),
        (knobs(30, 1, 1, 300, 50), [534_788, 288_809]),
    ] {
        assert_eq!([1_000, 18_688].map(|capacity| fixed(knobs, capacity, &blocks)), expected, "{knobs:?}");
    }
}

/// Loops that are left for others after four rounds: the small queue of the default knobs lets each block go before
/// its second round, which a large one holds.
#[test]
fn short_loops_enlarge_the_small_queue() {
    let blocks: Vec<u64> = (0..150u64).flat_map(|n| (0..4).flat_map(move |_| n * 10_000..n * 10_000 + 2_400)).collect();
    for seed in 0..3 {
        let capacity = 4_000;
        let best =
            CONFIGURATIONS.iter().map(|&knobs| fixed(knobs, capacity, &blocks)).min().expect("18 of them") as f64;
        let s3_fifo = replay(PolicyKind::S3Fifo, capacity, &blocks) as f64;
        let chosen = misses(S4_FIFO, capacity, seed, &blocks) as f64;
        assert!(chosen < s3_fifo * 0.75, "{chosen} misses, {s3_fifo} of S3-FIFO");
        assert!(chosen < best * 1.1, "{chosen} misses, {best} with the best of the configurations");
    }
}

#[test]
fn on_zipf_it_is_no_worse_than_s3_fifo() {
    for (capacity, exponent) in [(3_000, 0.7), (3_000, 1.0), (20_000, 1.0)] {
        let blocks: Vec<u64> = synth::Zipf::new(100_000, exponent, 7).take(1_000_000).collect();
        let s3_fifo = replay(PolicyKind::S3Fifo, capacity, &blocks) as f64;
        for seed in 0..3 {
            let chosen = misses(S4_FIFO, capacity, seed, &blocks) as f64;
            assert!(chosen <= s3_fifo * 1.01, "{capacity} blocks, {exponent}: {chosen} misses, {s3_fifo} of S3-FIFO");
        }
    }
}

#[test]
fn a_small_cache_has_no_miniatures_and_is_s3_fifo() {
    let blocks: Vec<u64> = (0..60_000u64).map(|n| if n.is_multiple_of(3) { n * n % 4_001 } else { n / 2 }).collect();
    let memory = |kind: AnyPolicyKind, capacity| Replay::new(kind, capacity).memory_bytes();
    assert_eq!(replay(S4_FIFO, 2_303, &blocks), replay(PolicyKind::S3Fifo, 2_303, &blocks));
    assert!(memory(S4_FIFO, 2_303) < memory(S4_FIFO, 2_304) * 2 / 3);
}

/// With ghosts, miniatures cost at most as much as the cache's own slots, and a large cache hardly notices them.
#[test]
fn the_memory_of_miniatures_is_bounded() {
    for (capacity, bytes_per_slot) in [(2_304, 80.0), (36_000, 80.0), (1 << 20, 12.0)] {
        let per_slot = |kind: AnyPolicyKind| Replay::new(kind, capacity).memory_bytes() as f64 / f64::from(capacity);
        let more = per_slot(S4_FIFO) - per_slot(PolicyKind::S3Fifo.into());
        assert!(more < bytes_per_slot, "{more} bytes a slot more than S3-FIFO for {capacity} slots");
    }
}

#[test]
fn miniatures_follow_limits_and_sizes() {
    let mut index = Index::new(S4_FIFO, 5_000);
    let mut from = 0;
    let mut churn = |index: &mut Index<AnyPolicyKind>| {
        read(index, (from..from + 100_000).map(|n: u64| if n.is_multiple_of(2) { n * n % 9_973 } else { n / 5 }));
        from += 50_000;
    };
    churn(&mut index);
    for limit in [1_000, 0, 4_000] {
        index.set_limit(limit);
        while index.excess() > 0 {
            index.evict(may_go);
        }
        churn(&mut index);
    }
    for capacity in [3_000, 1_000, 6_000] {
        assert_eq!(index.resize(capacity, may_go, |_, _| {}, |_, _| {}), capacity);
        churn(&mut index);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn with_the_default_knobs_it_is_s3_fifo(
        capacity in 1u32..80,
        blocks in prop::collection::vec(prop_oneof![0u64..30, 0u64..200], 0..2000),
    ) {
        let mut other = Index::new(PolicyKind::S3Fifo, capacity);
        let mut index = index(Knobs::DEFAULT, capacity);
        for block in blocks {
            let (one, two) = (index.access(block, Access::Read, may_go), other.access(block, Access::Read, may_go));
            prop_assert_eq!(one, two);
            prop_assert!(one != Outcome::Bypass);
        }
        prop_assert_eq!(index.coldest_first(), other.coldest_first());
    }
}

/// The blocks of so many bytes that a trace of memory touches: each record has an address in its low 48 bits and a
/// length in the next eight, and touches every block between them (`../shared/design/locking.md`).
fn touched(records: impl Iterator<Item = u64>, line_bytes: u64) -> Vec<u64> {
    let of = |record: u64| {
        let (address, bytes) = (record & ((1 << 48) - 1), (record >> 48 & 0xff).max(1));
        address / line_bytes..=(address + bytes - 1) / line_bytes
    };
    records.flat_map(of).collect()
}

#[test]
fn a_record_of_memory_touches_the_blocks_between_its_ends() {
    let record = |address: u64, bytes: u64| address | bytes << 48 | 2 << 56;
    let records = [record(0, 8), record(63, 1), record(64, 8), record(60, 8), record(640, 0)];
    assert_eq!(touched(records.into_iter(), 64), [0, 0, 1, 0, 1, 10]);
}

/// What takes a build with optimisation: `scripts/test.sh --long`.
mod long {
    use super::*;
    use std::path::Path;

    /// The rows of decision 0118, and that the choice is as good as they say: little worse than the best configuration,
    /// and hardly worse than S3-FIFO. `S4_TRACE=FILE S4_BLOCKS=N[,N] cargo test --release -p undercroft-engine --lib --
    /// --nocapture long::the_choice` prints those of another trace; a trace of memory with `S4_LINE=64`, the bytes of a
    /// block.
    #[test]
    fn the_choice_beside_all_configurations() {
        if let Ok(trace) = std::env::var("S4_TRACE") {
            let sizes = std::env::var("S4_BLOCKS").expect("say S4_BLOCKS: see above");
            let sizes: Vec<u32> = sizes.split(',').map(|n| n.parse().expect("S4_BLOCKS are numbers")).collect();
            rows(Path::new(&trace), &sizes);
            return;
        }
        let Some(trace) = undercroft_skips::shared("traces/block/arc-OLTP.lis.zst") else { return };
        for (capacity, [s3_fifo, best, chosen]) in rows(&trace, &[1_000, 5_000, 18_688]) {
            assert!(chosen <= s3_fifo * 1.005, "{capacity} blocks: {chosen}, {s3_fifo} of S3-FIFO");
            assert!(chosen <= best * 1.03, "{capacity} blocks: {chosen}, {best} with the best of the configurations");
        }
    }

    /// Miss ratios for each size: of S3-FIFO, of the best configuration, and of the choice with the worst of four keys.
    fn rows(trace: &Path, sizes: &[u32]) -> Vec<(u32, [f64; 3])> {
        let accesses = TraceReader::open(trace).expect("the trace can be opened");
        let accesses = accesses.map(|a| a.expect("the trace is whole").block);
        let blocks: Vec<u64> = match std::env::var("S4_LINE") {
            Ok(bytes) => touched(accesses, bytes.parse().expect("S4_LINE is a number of bytes")),
            Err(_) => accesses.collect(),
        };
        let distinct = blocks.iter().collect::<std::collections::HashSet<_>>().len();
        println!("{}: {} requests for {distinct} blocks", trace.display(), blocks.len());
        sizes.iter().map(|&capacity| (capacity, row(capacity, &blocks))).collect()
    }

    fn row(capacity: u32, blocks: &[u64]) -> [f64; 3] {
        let ratio = |misses: u64| misses as f64 / blocks.len() as f64;
        let seeds: Vec<f64> = (0..4).map(|seed| ratio(misses(S4_FIFO, capacity, seed, blocks))).collect();
        println!("{capacity} blocks");
        let others: [AnyPolicyKind; 3] =
            [PolicyKind::S3Fifo.into(), PolicyKind::WTinyLfu.into(), StudiedPolicyKind::Lirs.into()];
        let others = others.map(|kind| (kind, ratio(misses(kind, capacity, 0, blocks))));
        others.iter().for_each(|(kind, ratio)| println!("{kind} {ratio:.4}"));
        println!("s4-fifo with four keys {seeds:.4?}");
        let configurations = CONFIGURATIONS.map(|knobs| (knobs, ratio(fixed(knobs, capacity, blocks))));
        configurations.iter().for_each(|(knobs, ratio)| println!("{ratio:.4} {knobs:?}"));
        let best = configurations.iter().map(|c| c.1).fold(f64::INFINITY, f64::min);
        [others[0].1, best, seeds.into_iter().fold(0.0, f64::max)]
    }
}
