//! Hints that change in the course of a trace: invariants of the new division, and what it gains.

use super::tests::{any_trace, hinted, hints, hints_every};
use super::*;
use proptest::prelude::*;

fn reads(blocks: impl IntoIterator<Item = u64>) -> Vec<Reference> {
    blocks.into_iter().map(Reference::read).collect()
}

/// What each level was asked for, and what was held at the end.
fn run(sizes: &[u32], hints: &Arc<Hints>, trace: &[Reference]) -> (Vec<LevelCounts>, Vec<Vec<u64>>) {
    let mut h = hinted(sizes, hints);
    trace.iter().for_each(|&r| {
        h.access(r);
    });
    (h.counts(), h.held())
}

proptest! {
    #[test]
    fn what_ranges_have_stays_within_levels_when_it_is_shared_out_anew(
        sizes in prop::collection::vec(0u32..12, 2..5), range in 1u64..9, every in 1usize..80, trace in any_trace(),
    ) {
        let mut h = hinted(&sizes, &hints_every(every, range, &trace));
        let mut in_cache: u64 = 0;
        for (n, &r) in trace.iter().enumerate() {
            let (before, counted) = (h.held(), h.counts());
            let steps = h.access(r).to_vec();
            prop_assert_eq!(steps.iter().filter(|s| s.awaited).count(), 1);
            let (held, counts) = (h.held(), h.counts());
            for (blocks, &size) in held.iter().zip(&sizes) {
                prop_assert!(blocks.len() <= size as usize);
            }
            let mut all: Vec<u64> = held.concat();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|w| w[0] != w[1]), "a block is in two levels");
            // Nothing goes up but what is asked for, and but for that a level has only what it or one above it had.
            for (level, blocks) in held.iter().enumerate() {
                let had: Vec<u64> = before[..=level].concat();
                prop_assert!(blocks.iter().all(|b| *b == r.block || had.contains(b)));
            }
            if n == 0 || n % every > 0 {
                let lost = before.iter().flatten().filter(|b| all.binary_search(b).is_err());
                prop_assert!(lost.count() <= 1, "hints change at the end of a window only");
            }
            // What leaves a level is counted there, and stored by the level that it is handed to.
            let sum = |of: &dyn Fn(&LevelCounts) -> u64| {
                counts.iter().map(of).sum::<u64>() - counted.iter().map(of).sum::<u64>()
            };
            let demoted = sum(&|c| c.demotions);
            prop_assert!(demoted <= sum(&|c| c.evictions) + 1);
            let stored = steps.iter().filter(|s| s.write && s.device < sizes.len()).count() as u64;
            prop_assert!(demoted <= stored);
            for (level, (before, held)) in before.iter().zip(&held).enumerate() {
                let left = before.iter().filter(|b| **b != r.block && held.binary_search(b).is_err()).count() as u64;
                prop_assert!(counts[level].evictions - counted[level].evictions >= left, "a block went uncounted");
            }
            in_cache += u64::from(before.iter().flatten().any(|b| *b == r.block));
        }
        let counts = h.counts();
        let reads = trace.iter().filter(|r| !r.write).count() as u64;
        prop_assert_eq!((counts[0].reads, counts[sizes.len()].writes), (reads, trace.len() as u64 - reads));
        prop_assert!(reads.saturating_sub(counts[sizes.len()].reads) <= in_cache);
        for pair in counts.windows(2) {
            prop_assert_eq!(pair[0].read_misses, pair[1].reads);
        }
    }

    #[test]
    fn one_window_is_the_whole_trace(
        sizes in prop::collection::vec(0u32..12, 2..5), range in 1u64..9, more in 0usize..3, trace in any_trace(),
    ) {
        let one = hints_every(trace.len().max(1) + more, range, &trace);
        prop_assert_eq!(one.windows().len(), 1);
        prop_assert_eq!(run(&sizes, &one, &trace), run(&sizes, &hints(range, &trace), &trace));
    }

    #[test]
    fn hints_that_stay_change_nothing(
        sizes in prop::collection::vec(0u32..12, 2..5), range in 1u64..9, rounds in 1usize..5, loops in any::<bool>(),
        round in prop::collection::vec(0u64..30, 1..80),
    ) {
        // Each window has the same accesses, so the same hints.
        let round: Vec<u64> = if loops { (0..round.len() as u64).collect() } else { round };
        let window: Vec<u64> = [round.clone(), round].concat();
        let trace = reads(std::iter::repeat_n(window.clone(), rounds).flatten());
        let (windows, first) = (hints_every(window.len(), range, &trace), hints(range, &reads(window)));
        prop_assert_eq!(windows.windows().len(), rounds);
        prop_assert_eq!(run(&sizes, &windows, &trace), run(&sizes, &first, &trace));
    }
}

/// Ten ranges of a hundred blocks, of which in each phase another one is gone round in, and the rest read now and then.
fn phased(phases: u64) -> Vec<Reference> {
    let phase = |p: u64| {
        let cold = move |i: u64| (i.is_multiple_of(10)).then(|| (i / 10 * 7919 + p) % 1000);
        (0..2000).map(move |i| cold(i).unwrap_or((p % 10) * 100 + i % 100))
    };
    reads((0..phases).flat_map(phase))
}

#[test]
fn hints_of_what_comes_next_miss_less_than_those_of_the_whole_where_phases_change() {
    let trace = phased(30);
    let disk_reads = |hints: &Arc<Hints>| run(&[60, 60], hints, &trace).0[2].reads as f64;
    let (whole, windows) = (disk_reads(&hints(100, &trace)), disk_reads(&hints_every(2000, 100, &trace)));
    println!("whole trace {whole}, windows {windows}");
    assert!(windows < 0.3 * whole, "{windows}, whole trace {whole}");
    // Of a window that is longer than a phase less is to be had, but not less than of all.
    let long = disk_reads(&hints_every(10_000, 100, &trace));
    assert!(windows < long && long < whole, "{windows}, {long}, {whole}");
}

#[test]
fn a_range_keeps_what_fits_and_what_does_not_goes_down_or_is_dropped() {
    // Range 0 has the first level in the first window. In the second range 1 is used more and has 6 of its 8 blocks;
    // range 0 has the 2 that are left, and 2 of the second level.
    let used = [0, 2, 1, 4, 3, 6, 5, 7];
    let other = [10, 13, 11, 14, 12, 15, 10, 13, 11, 14];
    let after = |own: [u64; 6]| {
        let trace = reads([&used[..], &used, &other, &own].concat());
        let mut h = hinted(&[8, 4], &hints_every(16, 10, &trace));
        trace[..16].iter().for_each(|&r| {
            h.access(r);
        });
        assert_eq!(h.held(), [(0..8).collect::<Vec<_>>(), vec![]]);
        let stored = h.access(trace[16]).iter().filter(|s| s.write && s.device == 1).count();
        let counts = h.counts();
        assert_eq!((counts[0].evictions, counts[1].demotions, counts[1].evictions, stored), (6, 2, 0, 2));
        h.held()
    };
    // At random: what was used last stays, and of the rest the last goes down.
    assert_eq!(after([0, 2, 1, 3, 1, 3]), [vec![5, 7, 10], vec![3, 6]]);
    // In a loop what was used first is needed next.
    assert_eq!(after([0, 1, 2, 3, 0, 1]), [vec![0, 2, 10], vec![1, 4]]);
}

#[test]
fn a_range_that_is_told_of_no_more_loses_all_and_one_of_the_second_level_does_not_go_up() {
    // Range 0 has the first level, range 1 the second; then range 1 has the first, and range 0 nothing.
    let round = [0, 1, 10, 0, 1, 11, 0, 1, 10, 0, 1, 11];
    let trace = reads([&round[..], &[10, 11].repeat(6)].concat());
    let mut h = hinted(&[2, 2], &hints_every(12, 10, &trace));
    trace[..12].iter().for_each(|&r| {
        h.access(r);
    });
    assert_eq!(h.held(), [vec![0, 1], vec![10, 11]]);
    let before = h.counts();
    h.access(trace[12]);
    assert_eq!(h.held(), [vec![10], vec![]]);
    let gone: Vec<u64> = h.counts().iter().zip(&before).map(|(now, then)| now.evictions - then.evictions).collect();
    assert_eq!((gone, h.counts()[1].demotions), (vec![2, 2, 0], before[1].demotions));
}
