//! The LRU curves: exact against replays and a stack that is a list; sampled ones against the exact one.

use proptest::prelude::*;
use undercroft_engine::{Access, Index, Outcome, PolicyKind};
use undercroft_study::curves::{Aet, Curve, ExactLru, Miniature, Paired, Requests, Sample, Shards, StackDistances};
use undercroft_trace::synth::Zipf;

fn replayed(kind: PolicyKind, blocks: &[u64], capacity: u32) -> u64 {
    let mut index = Index::new(kind, capacity);
    let missed = |&&block: &&u64| !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_));
    blocks.iter().filter(missed).count() as u64
}

fn exact(blocks: &[u64]) -> ExactLru {
    let mut exact = ExactLru::new();
    exact.observe(blocks);
    exact
}

/// Mean and largest difference in miss ratio at a hundred sizes from a hundredth of the footprint to all of it.
fn errors(curve: &Curve, truth: &Curve, footprint: u64) -> (f64, f64) {
    let off = |i: u64| (curve.miss_ratio_at(footprint * i / 100) - truth.miss_ratio_at(footprint * i / 100)).abs();
    let all: Vec<f64> = (1..=100).map(off).collect();
    (all.iter().sum::<f64>() / 100.0, all.iter().copied().fold(0.0, f64::max))
}

/// A load whose phases differ: a hot set, a loop that is larger, and the hot set of others.
fn phased(seed: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> = Zipf::new(30_000, 0.9, seed).take(400_000).collect();
    blocks.extend((0..400_000).map(|i| 100_000 + i % 40_000));
    blocks.extend(Zipf::new(60_000, 0.7, seed + 1).take(400_000).map(|b| b + 20_000));
    blocks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Against the definition: the different blocks between a request and the one before for the same block.
    #[test]
    fn distances_are_those_of_a_list(
        blocks in prop::collection::vec(0u64..150, 0..1200),
        spread in prop::sample::select(vec![1u64, 1 << 32, u64::MAX / 150]),
        cuts in prop::collection::vec(1usize..300, 1..6),
    ) {
        let blocks: Vec<u64> = blocks.iter().map(|b| b * spread).collect();
        let mut stack: Vec<u64> = vec![];
        let wanted: Vec<Option<u32>> = blocks.iter().map(|block| {
            let depth = stack.iter().rev().position(|b| b == block).map(|d| d as u32);
            stack.retain(|b| b != block);
            stack.push(*block);
            depth
        }).collect();
        // however the requests are cut into slices
        let (mut distances, mut found, mut rest) = (StackDistances::new(), vec![], &blocks[..]);
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            distances.observe(now, |_, distance| found.push(distance));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(distances.footprint() as usize, stack.len());
    }

    #[test]
    fn the_exact_curve_is_that_of_replays(
        blocks in prop::collection::vec(prop_oneof![0u64..40, 0u64..400], 1..3000),
        writes in prop::collection::vec(any::<bool>(), 3000),
        sizes in prop::collection::vec(0u32..420, 8),
    ) {
        let mut curves = ExactLru::new();
        curves.observe_kinds(&blocks, &writes[..blocks.len()]);
        let curve = curves.curve(Requests::All);
        for size in sizes {
            let misses = replayed(PolicyKind::Lru, &blocks, size);
            prop_assert_eq!(curves.misses_at(Requests::All, size.into()), misses);
            prop_assert_eq!(curve.misses_at(size.into()), misses as f64);
            let mut index = Index::new(PolicyKind::Lru, size);
            let written = blocks.iter().zip(&writes).filter(|&(&block, &write)| {
                !matches!(index.access(block, Access::Read, |_| true), Outcome::Hit(_)) && write
            }).count() as f64;
            prop_assert_eq!(curves.curve(Requests::Writes).misses_at(size.into()), written);
            prop_assert_eq!(curves.curve(Requests::Reads).misses_at(size.into()), misses as f64 - written);
        }
    }
}

/// More blocks than positions at first, more requests than positions ever: positions are made dense many times, and
/// there are levels above their groups.
#[test]
fn a_large_footprint_is_exact_too() {
    let blocks: Vec<u64> = Zipf::new(150_000, 0.8, 5).take(1_500_000).collect();
    let curves = exact(&blocks);
    for size in [1, 100, 10_000, 70_000, 140_000] {
        let misses = replayed(PolicyKind::Lru, &blocks, size);
        assert_eq!(curves.curve(Requests::All).misses_at(size.into()), misses as f64, "at {size}");
    }
    let mut different = blocks.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(curves.footprint(), different.len() as u64);
    assert!(curves.memory_bytes() < 150_000 * 100, "{} bytes", curves.memory_bytes());
}

#[test]
fn paired_samples_are_near_on_zipf_whatever_the_seed() {
    let blocks: Vec<u64> = Zipf::new(300_000, 1.0, 42).take(3_000_000).collect();
    let curves = exact(&blocks);
    let truth = curves.curve(Requests::All);
    for seed in 1..=6 {
        let mut paired = Paired::new(0.01, seed);
        paired.observe(&blocks);
        let (mean, most) = errors(&paired.curve(), &truth, curves.footprint());
        println!("seed {seed}: mean {mean:.4}, most {most:.4}");
        assert!(mean < 0.004 && most < 0.01, "seed {seed}: mean {mean:.4}, most {most:.4}");
        let footprint = paired.footprint() / curves.footprint() as f64;
        assert!((0.93..1.07).contains(&footprint), "seed {seed}: footprint {footprint:.3}");
    }
}

/// The bounds are those that docs/decisions/0110 states for samples of about 8192 blocks: the worst of 32 keys.
#[test]
fn shards_are_within_their_bounds_on_zipf() {
    let blocks: Vec<u64> = Zipf::new(400_000, 1.0, 42).take(3_000_000).collect();
    let curves = exact(&blocks);
    let truth = curves.curve(Requests::All);
    for sample in [Sample::Rate(8192.0 / curves.footprint() as f64), Sample::Blocks(8192)] {
        for seed in 1..=4 {
            let mut shards = Shards::new(sample, seed);
            shards.observe(&blocks);
            let (mean, most) = errors(&shards.curve(), &truth, curves.footprint());
            println!("{sample:?} seed {seed}: mean {mean:.4}, most {most:.4}");
            assert!(mean < 0.015 && most < 0.076, "{sample:?} seed {seed}: mean {mean:.4}, most {most:.4}");
            assert!(!matches!(sample, Sample::Blocks(n) if shards.samples() > n));
        }
    }
    let mut all = Shards::new(Sample::Rate(1.0), 1);
    all.observe(&blocks[..300_000]);
    let some = exact(&blocks[..300_000]);
    let (_, most) = errors(&all.curve(), &some.curve(Requests::All), some.footprint());
    assert!(most < 0.002, "all blocks sampled: {most}");
    assert_eq!(all.footprint(), some.footprint() as f64);
}

#[test]
fn the_model_is_near_where_requests_are_independent_and_paired_samples_where_they_are_not() {
    let zipf: Vec<u64> = Zipf::new(100_000, 0.9, 3).take(2_000_000).collect();
    let model = |blocks: &[u64], rate| {
        let mut aet = Aet::new(rate, 1);
        aet.observe(blocks);
        let curves = exact(blocks);
        (errors(&aet.curve(), &curves.curve(Requests::All), curves.footprint()), aet)
    };
    let ((mean, most), aet) = model(&zipf, 1.0);
    assert!(mean < 0.002 && most < 0.006, "all reuse times: mean {mean:.4}, most {most:.4}");
    let ((mean, most), _) = model(&zipf, 0.02);
    assert!(mean < 0.005 && most < 0.012, "a sample: mean {mean:.4}, most {most:.4}");
    // windows of a thousand requests, counted
    let counted = zipf.chunks(1000).map(|w| exact(w).footprint()).sum::<u64>() as f64 / (zipf.len() / 1000) as f64;
    assert!((aet.footprint(1000) / counted - 1.0).abs() < 0.01, "{} of {counted}", aet.footprint(1000));

    // a hot set, a loop and another hot set: the model takes the average of what never happened together
    let phased = phased(7);
    let curves = exact(&phased);
    let truth = curves.curve(Requests::All);
    let mut paired = Paired::new(0.05, 1);
    paired.observe(&phased);
    let (mean, most) = errors(&paired.curve(), &truth, curves.footprint());
    println!("paired on phases: mean {mean:.4}, most {most:.4}");
    let ((model_mean, model_most), _) = model(&phased, 1.0);
    println!("model on phases: mean {model_mean:.4}, most {model_most:.4}");
    assert!(mean < 0.02 && mean < model_mean * 1.05, "mean {mean:.4}, by the model {model_mean:.4}");
}

#[test]
fn with_everything_sampled_pairs_are_exact_to_a_bucket() {
    let phased = phased(1);
    let curves = exact(&phased);
    let mut paired = Paired::new(1.0, 1);
    paired.observe(&phased);
    assert_eq!(paired.footprint(), curves.footprint() as f64);
    // but at the cliff of the loop, which a bucket's width moves
    let (mean, _) = errors(&paired.curve(), &curves.curve(Requests::All), curves.footprint());
    assert!(mean < 0.01, "mean {mean:.4}");
}

#[test]
fn miniatures_of_any_policy_are_near_and_whole_ones_exact() {
    let blocks: Vec<u64> = Zipf::new(60_000, 0.9, 9).take(600_000).collect();
    // the first three are simulated whole at any rate, as their caches have too few slots to be made smaller; all of
    // SIEVE and W-TinyLFU
    let sizes = [500, 8000, 20_000, 40_000];
    for kind in PolicyKind::ALL {
        let mut whole = Miniature::new(kind, &sizes, 1.0, None, 4);
        whole.observe(&blocks);
        let mut mini = Miniature::new(kind, &sizes, 0.01, None, 4);
        mini.observe(&blocks);
        let points = mini.points();
        assert_eq!(whole.sizes(), sizes);
        assert_eq!(mini.sizes().is_empty(), kind == PolicyKind::Lru, "LRU's curve is exact without any");
        for (i, size) in sizes.into_iter().enumerate() {
            let misses = replayed(kind, &blocks, size as u32);
            let by_whole = whole.curve().misses_at(size);
            // W-TinyLFU's sketch hashes by the index's key, which the replay's is not
            let allowed = if kind == PolicyKind::WTinyLfu { misses as f64 / 100.0 } else { 1e-6 };
            assert!((by_whole - misses as f64).abs() <= allowed, "{kind} at {size}: {by_whole} for {misses}");
            let off = mini.curve().miss_ratio_at(size) - misses as f64 / blocks.len() as f64;
            assert!(off.abs() < 0.005, "{kind} at {size}: off by {off:.4}");
            if let Some(point) = points.get(i) {
                let is_whole = i < 3 || matches!(kind, PolicyKind::Sieve | PolicyKind::WTinyLfu);
                assert_eq!((point.error == 0.0, point.rate == 1.0), (is_whole, is_whole), "{kind} at {size}");
            }
        }
    }
}

/// Once all sizes shared one sum of rates: twelve sizes made the largest of them a guess.
#[test]
fn a_miniature_does_not_depend_on_the_other_sizes() {
    let blocks: Vec<u64> = Zipf::new(200_000, 0.9, 9).take(400_000).collect();
    let of = |sizes: &[u64]| {
        let mut mini = Miniature::new(PolicyKind::S3Fifo, sizes, 0.01, None, 4);
        mini.observe(&blocks);
        mini.points().pop().expect("the largest")
    };
    let alone = of(&[40_000]);
    assert!(alone.rate < 0.3 && alone.error > 0.0, "{alone:?}");
    assert_eq!(of(&[1000, 17_000, 20_000, 30_000, 40_000]), alone);
}

#[test]
fn nothing_asked_for_makes_curves_of_nothing() {
    let curves = [
        ExactLru::new().curve(Requests::All),
        Shards::new(Sample::Rate(0.1), 1).curve(),
        Paired::new(0.1, 1).curve(),
        Aet::new(0.1, 1).curve(),
        Miniature::new(PolicyKind::Lru, &[10], 1.0, None, 1).curve(),
    ];
    for curve in curves {
        assert_eq!((curve.requests(), curve.misses_at(10)), (0.0, 0.0));
    }
    assert_eq!(Aet::new(0.1, 1).footprint(100), 0.0);
}

#[test]
fn a_few_requests_are_enough_for_a_sound_curve() {
    for rate in [1.0, 0.3, 0.001] {
        let (mut paired, mut aet) = (Paired::new(rate, 3), Aet::new(rate, 3));
        for blocks in [&[7u64, 7, 7][..], &[1, 2, 3, 1, 2, 3], &[u64::MAX, 0]] {
            paired.observe(blocks);
            aet.observe(blocks);
            for curve in [paired.curve(), aet.curve()] {
                assert!(curve.points().windows(2).all(|p| p[0].1 >= p[1].1), "it falls: {curve:?}");
            }
        }
    }
}
