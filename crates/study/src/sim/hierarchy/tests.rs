//! Invariants of hierarchies, on random ones; and hierarchies whose result is known by other means.

use super::*;
use proptest::prelude::*;
use std::num::NonZeroU64;
use undercroft_engine::{Access, Index, Outcome, PolicyKind};
use undercroft_trace::synth::Zipf;

fn level(keeps: Keeps, writes: Writes, policy: PolicyKind, blocks: u32) -> LevelOptions {
    LevelOptions { keeps, writes, ..LevelOptions::new("x", policy, blocks) }
}

fn any_level() -> impl Strategy<Value = LevelOptions> {
    let keeps = prop_oneof![Just(Keeps::Passing), Just(Keeps::Demoted)];
    let writes = prop_oneof![Just(Writes::Through), Just(Writes::Back), Just(Writes::Around)];
    let policies = prop::sample::select(PolicyKind::ALL.to_vec());
    (keeps, writes, policies, 0u32..12).prop_map(|(k, w, p, n)| level(k, w, p, n))
}

pub(super) fn any_trace() -> impl Strategy<Value = Vec<Reference>> {
    let reference = (0u64..30, prop::bool::weighted(0.3));
    prop::collection::vec(
        reference.prop_map(|(block, write)| Reference { block, write, ..Reference::default() }),
        0..400,
    )
}

proptest! {
    #[test]
    fn what_a_level_misses_is_what_the_next_is_asked_for(
        levels in prop::collection::vec(any_level(), 1..5),
        trace in any_trace(),
    ) {
        let mut h = Hierarchy::new(&levels, None).expect("they go together");
        for &r in &trace {
            let awaited = h.access(r).iter().filter(|s| s.awaited).count();
            prop_assert!(awaited > 0, "the client waits for something");
            let held = h.held();
            for (i, level) in levels.iter().enumerate().skip(1) {
                let twice = held[i].iter().filter(|b| held[i - 1].binary_search(b).is_ok()).count();
                prop_assert!(level.keeps != Keeps::Demoted || twice == 0, "{} blocks are in {i} and above it", twice);
            }
        }
        h.flush();
        let counts = h.counts();
        let reads = trace.iter().filter(|r| !r.write).count() as u64;
        let writes = trace.len() as u64 - reads;
        prop_assert_eq!((counts[0].reads, counts[0].writes), (reads, writes));
        for pair in counts.windows(2) {
            prop_assert_eq!(pair[0].read_misses, pair[1].reads);
            prop_assert!(pair[0].read_misses <= pair[0].reads && pair[0].write_misses <= pair[0].writes);
        }
        let disk = counts[levels.len()];
        prop_assert_eq!(disk.reads, disk.read_misses);
        prop_assert!(disk.writes <= writes, "no write reaches the disk twice");
        if levels.iter().all(|l| l.writes != Writes::Back) {
            prop_assert_eq!(disk.writes, writes);
        }
    }

    #[test]
    fn no_write_is_lost(
        levels in prop::collection::vec(any_level(), 1..5),
        order in Just((0u64..60).collect::<Vec<_>>()).prop_shuffle(),
        reads in prop::collection::vec(0u64..60, 200),
    ) {
        // Each block is written once, with reads of others between: after a flush each has reached the disk, once.
        let mut h = Hierarchy::new(&levels, None).expect("they go together");
        for (i, &block) in order.iter().enumerate() {
            h.access(Reference::write(block));
            reads[i * 3..i * 3 + 3].iter().for_each(|&b| { h.access(Reference::read(b)); });
        }
        h.flush();
        let counts = h.counts();
        prop_assert_eq!(counts[levels.len()].writes, 60);
    }

    #[test]
    fn lru_levels_that_hand_down_are_one_lru_of_the_sum(
        sizes in prop::collection::vec(0u32..9, 1..5),
        trace in any_trace(),
    ) {
        let mut levels: Vec<LevelOptions> =
            sizes.iter().map(|&n| level(Keeps::Demoted, Writes::Through, PolicyKind::Lru, n)).collect();
        // What the first one keeps means nothing.
        levels[0].keeps = Keeps::Passing;
        let mut h = Hierarchy::new(&levels, None).expect("they go together");
        let mut one = Index::new(PolicyKind::Lru, sizes.iter().sum());
        for &r in &trace {
            let misses = h.counts()[sizes.len()].reads;
            h.access(r);
            // A cache of nothing at the top cannot take what is written: it goes to none of the levels.
            let hit = matches!(one.access(r.block, Access::Read, |_| true), Outcome::Hit(_));
            if !r.write {
                prop_assert_eq!(h.counts()[sizes.len()].reads - misses, u64::from(!hit));
            }
        }
    }
}

fn zipf(n: usize) -> impl Iterator<Item = Reference> {
    Zipf::new(4000, 0.9, 7).take(n).map(Reference::read)
}

#[test]
fn levels_that_keep_what_passes_see_the_misses_of_the_one_above() {
    let levels = [100, 300, 1000].map(|n| LevelOptions::new("x", PolicyKind::Arc, n));
    let mut h = Hierarchy::new(&levels, None).expect("they go together");
    let mut plain = levels.clone().map(|l| Index::new(l.policy, l.blocks));
    let mut misses = [0u64; 3];
    for r in zipf(50_000) {
        h.access(r);
        for (index, misses) in plain.iter_mut().zip(&mut misses) {
            if matches!(index.access(r.block, Access::Read, |_| true), Outcome::Hit(_)) {
                break;
            }
            *misses += 1;
        }
    }
    assert_eq!(h.counts().iter().map(|c| c.read_misses).take(3).collect::<Vec<_>>(), misses);
}

/// Disk reads below an LRU guest of 400 blocks and an LRU host of 400.
fn disk_reads(keeps: Keeps) -> u64 {
    let levels =
        [LevelOptions::new("guest", PolicyKind::Lru, 400), level(keeps, Writes::Through, PolicyKind::Lru, 400)];
    let mut h = Hierarchy::new(&levels, None).expect("they go together");
    zipf(60_000).for_each(|r| {
        h.access(r);
    });
    let counts = h.counts();
    assert_eq!((counts[0].read_misses, counts[1].read_misses), (counts[1].reads, counts[2].reads));
    counts[2].reads
}

#[test]
fn capture_comes_to_demotion_and_scans_come_between_it_and_nothing() {
    let (demoted, passing) = (disk_reads(Keeps::Demoted), disk_reads(Keeps::Passing));
    let captured = disk_reads(Keeps::Captured);
    let inferred = disk_reads(Keeps::Inferred(ExclusiveMode::Capture));
    let scanned = disk_reads(Keeps::Scanned(400));
    println!("demoted {demoted}, captured {captured}, inferred {inferred}, scanned {scanned}, passing {passing}");
    assert!(demoted < passing * 9 / 10, "an exclusive host saves more");
    // Pages of this guest are reused at once and hold their block until then: nothing is lost, and nothing guessed.
    assert!(captured.abs_diff(demoted) * 100 <= demoted, "captured {captured}, demoted {demoted}");
    assert!(inferred.abs_diff(demoted) * 100 <= demoted, "inferred {inferred}, demoted {demoted}");
    assert!(scanned < passing && scanned > demoted, "scanned {scanned}");
}

#[test]
fn a_linux_guest_stands_on_any_host_that_needs_no_telling() {
    let guest = |keeps| {
        let linux = Some(LinuxGuest { free_pages: 8, zeroing: false });
        let host = level(keeps, Writes::Through, PolicyKind::S3Fifo, 400);
        let ssd = level(Keeps::Demoted, Writes::Back, PolicyKind::Lru, 800);
        Hierarchy::new(&[LevelOptions { linux, ..LevelOptions::new("guest", PolicyKind::Lru, 400) }, host, ssd], None)
    };
    for keeps in [Keeps::Passing, Keeps::Captured, Keeps::Inferred(ExclusiveMode::Auto), Keeps::Scanned(100)] {
        let mut h = guest(keeps).expect("they go together");
        for (i, r) in zipf(20_000).enumerate() {
            h.access(Reference { write: i % 7 == 0, ..r });
        }
        h.flush();
        let counts = h.counts();
        assert_eq!(counts[0].reads + counts[0].writes, 20_000);
        for pair in counts.windows(2) {
            assert_eq!(pair[0].read_misses, pair[1].reads, "{keeps:?}");
        }
        assert!(counts[1].reads > 0 && counts[1].writes > 0 && counts[3].writes > 0, "{keeps:?} {counts:?}");
        let held = h.held();
        assert!(held[2].iter().all(|b| held[1].binary_search(b).is_err()), "{keeps:?}: in host and SSD");
    }
    assert!(guest(Keeps::Demoted).err().expect("refused").to_string().contains("hands nothing down"));
}

#[test]
fn levels_that_do_not_go_together_are_refused() {
    let refused = |levels: &[LevelOptions], what: &str| {
        let said = Hierarchy::new(levels, None).err().expect(what).to_string();
        assert!(said.contains(what), "{said}");
    };
    let plain = || LevelOptions::new("a", PolicyKind::Lru, 100);
    let linux = |free_pages| LevelOptions { linux: Some(LinuxGuest { free_pages, zeroing: true }), ..plain() };
    refused(&[], "at least one level");
    refused(&[plain(), linux(4)], "only the first level");
    refused(&[linux(4)], "needs a level below");
    refused(&[linux(99), plain()], "at least 16 pages");
    refused(&[plain(), plain(), level(Keeps::Captured, Writes::Through, PolicyKind::Lru, 5)], "only the second");
    refused(&[plain(), level(Keeps::Captured, Writes::Back, PolicyKind::Lru, 5)], "writes through");
    refused(
        &[
            level(Keeps::Passing, Writes::Around, PolicyKind::Lru, 5),
            level(Keeps::Captured, Writes::Through, PolicyKind::Lru, 5),
        ],
        "through or back",
    );
    refused(&[LevelOptions::new("a", PolicyKind::Lru, u32::MAX)], "larger than");
}

pub(super) fn hints_every(every: usize, range_blocks: u64, trace: &[Reference]) -> Arc<Hints> {
    let mut hints = Hints::new(range_blocks, NonZeroU64::new(every as u64));
    trace.iter().for_each(|&r| hints.see(r));
    Arc::new(hints)
}

pub(super) fn hints(range_blocks: u64, trace: &[Reference]) -> Arc<Hints> {
    hints_every(0, range_blocks, trace)
}

pub(super) fn hinted(sizes: &[u32], hints: &Arc<Hints>) -> Hierarchy {
    let levels: Vec<_> = sizes.iter().map(|&n| level(Keeps::Hinted, Writes::Through, PolicyKind::Lru, n)).collect();
    Hierarchy::new(&levels, Some(hints)).expect("they go together")
}

proptest! {
    #[test]
    fn ranges_are_shared_out_once_and_a_block_is_in_one_level(
        sizes in prop::collection::vec(0u32..12, 2..5),
        range in 1u64..9,
        trace in any_trace(),
    ) {
        let mut h = hinted(&sizes, &hints(range, &trace));
        for &r in &trace {
            let before = h.held();
            let awaited = h.access(r).iter().filter(|s| s.awaited).count();
            prop_assert_eq!(awaited, 1);
            let (mut all, held) = (vec![], h.held());
            for (blocks, &size) in held.iter().zip(&sizes) {
                prop_assert!(blocks.len() <= size as usize);
                all.extend(blocks);
            }
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|w| w[0] != w[1]), "a block is in two levels");
            // What was there is there, but for one block at most.
            prop_assert!(before.iter().flatten().filter(|b| all.binary_search(b).is_err()).count() <= 1);
        }
        let counts = h.counts();
        let reads = trace.iter().filter(|r| !r.write).count() as u64;
        prop_assert_eq!((counts[0].reads, counts[sizes.len()].writes), (reads, trace.len() as u64 - reads));
        for pair in counts.windows(2) {
            prop_assert_eq!(pair[0].read_misses, pair[1].reads);
        }
    }
}

#[test]
fn the_first_level_has_what_is_used_most_and_the_second_what_comes_next() {
    // Range 0 is read three times a round, range 1 twice, range 2 once, range 3 but once in all: 10 blocks each.
    let round = |n: u64| {
        let all = [0, 1, 0, 2, 1, 0].into_iter().flat_map(|r| r * 10..r * 10 + 10);
        all.chain((n == 0).then_some(30..40).into_iter().flatten())
    };
    let trace: Vec<_> = (0..50).flat_map(round).map(Reference::read).collect();
    let mut h = hinted(&[10, 10], &hints(10, &trace));
    trace.iter().for_each(|&r| {
        h.access(r);
    });
    let counts = h.counts();
    assert_eq!(h.held(), [(0..10).collect::<Vec<_>>(), (10..20).collect()]);
    assert_eq!(counts[0].reads - counts[0].read_misses, 1500 - 10);
    assert_eq!(counts[1].reads - counts[1].read_misses, 1000 - 10);
    assert_eq!(counts[2].reads, 20 + 500 + 10);
}

#[test]
fn a_range_on_two_levels_is_on_both_as_one_and_a_loop_too_large_for_them_is_kept_in_part() {
    let trace: Vec<_> = (0..40).flat_map(|_| 0..30).map(Reference::read).collect();
    let mut h = hinted(&[10, 10], &hints(30, &trace));
    trace.iter().for_each(|&r| {
        h.access(r);
    });
    let counts = h.counts();
    // Of 30 blocks 20 are kept. Two LRU queues would keep none in time.
    let missed = counts[2].reads as f64 / trace.len() as f64;
    assert!((0.33..0.40).contains(&missed), "{missed}");
    let mut plain = Hierarchy::new(&[10, 10].map(|n| level(Keeps::Demoted, Writes::Through, PolicyKind::Lru, n)), None)
        .expect("sound");
    trace.iter().for_each(|&r| {
        plain.access(r);
    });
    assert_eq!(plain.counts()[2].reads, trace.len() as u64);
}

#[test]
fn hints_are_wanted_where_levels_keep_by_them_and_levels_must_agree() {
    let by_hints = level(Keeps::Hinted, Writes::Through, PolicyKind::Lru, 10);
    let said = |levels: &[LevelOptions], hints: Option<&Arc<Hints>>| {
        Hierarchy::new(levels, hints).err().expect("refused").to_string()
    };
    let two = [by_hints.clone(), by_hints.clone()];
    assert!(said(&two, None).contains("hints"));
    let hints = Arc::new(Hints::new(10, None));
    let mixed = [by_hints.clone(), by_hints.clone(), level(Keeps::Passing, Writes::Through, PolicyKind::Lru, 10)];
    assert!(said(&mixed, Some(&hints)).contains("all below the first"));
    let back = [by_hints.clone(), level(Keeps::Hinted, Writes::Back, PolicyKind::Lru, 10)];
    assert!(said(&back, Some(&hints)).contains("write through"));
}
