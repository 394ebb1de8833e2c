//! The simulation of the store on SSDs, and bugs planted in it.
//!
//! To replay a failure: `SEED=n cargo test -p undercroft-testkit --test ssd`; more: `SEEDS=n`.

use undercroft_cache::fault_injection::Bug;
use undercroft_skips::by_length;
use undercroft_testkit::planted::{last_first, print_found};
use undercroft_testkit::ssd::{SsdOutcome, SsdPlan, run};

const STEPS: u64 = 1000;

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not \"{text}\"")))
}

#[test]
fn every_block_that_is_served_is_what_the_image_holds() {
    let (first, seeds) = match from_env("SEED") {
        Some(seed) => (seed, 1),
        None => (1, from_env("SEEDS").unwrap_or(by_length(150, 300))),
    };
    let mut total = SsdOutcome::default();
    for seed in first..first + seeds {
        match run(SsdPlan { seed, steps: from_env("STEPS").unwrap_or(STEPS), bug: None }) {
            Ok(outcome) => total.add(&outcome),
            Err(e) => panic!("seed {seed}, {e}"),
        }
    }
    println!("{seeds} seeds: {total:?}");
    assert!(seeds < 100 || total.pinned > 0, "pinned blocks are written again");
    assert!(seeds < 100 || total.linked > 10 * seeds, "equal blocks are kept once: {}", total.linked);
}

/// Bugs that need so rare a meeting that not every version of these seeds finds them: each has a scenario in
/// crates/cache/tests/core/ssd_store.rs.
const RARE: [Bug; 10] = [
    Bug::SsdQuietIgnoresChange,
    Bug::SsdOneTableIsEnough,
    Bug::SsdUnreadablePassedOver,
    Bug::SsdDigestIgnored,
    Bug::SsdNotReadBack,
    Bug::SsdGivenUpNotWaitedFor,
    Bug::SsdMarkLeftOut,
    Bug::SsdLinkAcross,
    Bug::SsdLinkTakenForBlock,
    Bug::SsdParkedOutlivesDisk,
];

/// Seeds that a bug may take at most to be found.
const BUG_SEEDS: u64 = 300;

/// Seeds that have found bugs which many seeds miss: `cargo test -p undercroft-testkit --test ssd -- --nocapture`
/// prints these lines, and those of bugs that few miss.
const FOUND_BY: &[(Bug, u64)] = &[
    (Bug::SsdBootIgnored, 22),
    (Bug::SsdCleanNotTold, 29),
    (Bug::SsdDirtyAfterWrite, 17),
    (Bug::SsdDiscardsOther, 9),
    (Bug::SsdLinkOutlivesDisk, 13),
    (Bug::SsdLinkOutlivesSegment, 45),
    (Bug::SsdLostNotTold, 46),
    (Bug::SsdOldestIgnored, 8),
    (Bug::SsdParkedOutlivesChange, 105),
    (Bug::SsdRecycledNotSeen, 12),
    (Bug::SsdSummaryBeforeData, 104),
    (Bug::SsdUnverified, 20),
];

fn assert_found(bug: Bug) {
    let seeds = 1..=from_env("BUG_SEEDS").unwrap_or(BUG_SEEDS);
    let found = last_first(FOUND_BY, &bug, seeds.clone()).find_map(|seed| {
        let ran = std::panic::catch_unwind(|| run(SsdPlan { seed, steps: STEPS, bug: Some(bug) }));
        ran.map_or(Some((seed, "an assertion".to_string())), |ran| ran.err().map(|e| (seed, e.to_string())))
    });
    match found {
        Some((seed, what)) => print_found(&bug, seed, &what, seeds),
        None => panic!("{bug:?} was found by none of {BUG_SEEDS} seeds"),
    }
}

macro_rules! planted {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { assert_found(Bug::$bug); })*

        #[test]
        fn every_bug_of_the_store_has_a_test() {
            let tested = [$(Bug::$bug),*];
            let of_the_store = |b: &&Bug| format!("{b:?}").starts_with("Ssd");
            assert!(Bug::ALL.iter().filter(of_the_store).all(|b| tested.contains(b) || RARE.contains(b)));
        }
    };
}

planted! {
    an_image_that_is_another_is_found: SsdStampNotCompared,
    blocks_of_another_boot_are_found: SsdBootIgnored,
    segments_that_were_given_up_are_found: SsdOldestIgnored,
    summaries_that_name_changed_blocks_are_found: SsdSummaryKept,
    a_change_before_the_table_is_found: SsdDirtyAfterWrite,
    a_summary_before_its_blocks_is_found: SsdSummaryBeforeData,
    staged_blocks_that_outlive_a_change_are_found: SsdChangeKeepsStaged,
    blocks_admitted_during_a_change_are_found: SsdChangingAdmitted,
    reads_that_outlive_a_change_are_found: SsdReadOutlivesChange,
    places_used_again_and_taken_for_broken_are_found: SsdRecycledNotSeen,
    blocks_that_are_not_verified_are_found: SsdUnverified,
    blocks_that_stay_held_are_found: SsdHeldNotCleared,
    entries_of_emptied_segments_are_found: SsdCleaningLeavesEntries,
    discards_of_segments_in_use_are_found: SsdDiscardsOther,
    disks_that_another_process_is_not_told_are_clean_are_found: SsdCleanNotTold,
    summaries_that_another_process_is_not_told_of_are_found: SsdLostNotTold,
    links_that_outlive_a_change_are_found: SsdLinkOutlivesChange,
    links_that_outlive_their_disk_are_found: SsdLinkOutlivesDisk,
    links_to_segments_that_are_used_again_are_found: SsdLinkOutlivesSegment,
    links_that_nobody_has_proved_are_found: SsdLinkUnproven,
    blocks_that_wait_and_outlive_a_change_are_found: SsdParkedOutlivesChange,
    pins_that_outlive_their_disk_are_found: SsdPinsOutliveDetach,
}
