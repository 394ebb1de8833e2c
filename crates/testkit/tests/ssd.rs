//! The simulation of the store on SSDs, and bugs planted in it.
//!
//! To replay a failure: `SEED=n cargo test -p undercroft-testkit --test ssd`; more: `SEEDS=n`.

use undercroft_cache::fault_injection::Bug;
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
        None => (1, from_env("SEEDS").unwrap_or(300)),
    };
    let mut total = SsdOutcome::default();
    for seed in first..first + seeds {
        match run(SsdPlan { seed, steps: from_env("STEPS").unwrap_or(STEPS), bug: None }) {
            Ok(outcome) => total.add(&outcome),
            Err(e) => panic!("seed {seed}, {e}"),
        }
    }
    println!("{seeds} seeds: {total:?}");
}

#[test]
fn debug_one() {
    let bug = std::env::var("BUG").ok().map(|b| *Bug::ALL.iter().find(|x| format!("{x:?}") == b).unwrap());
    println!("{:?}", run(SsdPlan { seed: from_env("SEED").unwrap_or(1), steps: STEPS, bug }));
}

/// Seeds that a bug may take at most to be found.
const BUG_SEEDS: u64 = 300;

fn assert_found(bug: Bug) {
    let found = (1..=BUG_SEEDS).find_map(|seed| {
        let ran = std::panic::catch_unwind(|| run(SsdPlan { seed, steps: STEPS, bug: Some(bug) }));
        ran.map_or(Some((seed, "an assertion".to_string())), |ran| ran.err().map(|e| (seed, e.to_string())))
    });
    match found {
        Some((seed, what)) => println!("{bug:?}: seed {seed}: {what}"),
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
            assert!(Bug::ALL.iter().filter(of_the_store).all(|b| tested.contains(b)));
        }
    };
}

planted! {
    an_image_that_is_another_is_found: SsdStampNotCompared,
    blocks_of_another_boot_are_found: SsdBootIgnored,
    segments_that_were_given_up_are_found: SsdOldestIgnored,
    a_broken_table_that_is_believed_is_found: SsdOneTableIsEnough,
    summaries_that_were_lost_are_found: SsdDigestIgnored,
    summaries_that_name_changed_blocks_are_found: SsdSummaryKept,
    blocks_that_had_to_go_and_come_back_are_found: SsdDropNotRecorded,
    summaries_that_went_elsewhere_are_found: SsdNotReadBack,
    a_change_while_a_disk_is_called_clean_is_found: SsdQuietIgnoresChange,
    a_table_before_its_summaries_is_found: SsdCleanBeforeFlush,
    a_change_before_the_table_is_found: SsdDirtyAfterWrite,
    a_change_while_a_lost_device_calls_the_disk_clean_is_found: SsdGivenUpNotWaitedFor,
    a_summary_before_its_blocks_is_found: SsdSummaryBeforeData,
    a_segment_that_keeps_its_former_summary_is_found: SsdMarkLeftOut,
    staged_blocks_that_outlive_a_change_are_found: SsdChangeKeepsStaged,
    blocks_admitted_during_a_change_are_found: SsdChangingAdmitted,
    reads_that_outlive_a_change_are_found: SsdReadOutlivesChange,
    places_used_again_and_taken_for_broken_are_found: SsdRecycledNotSeen,
    blocks_that_are_not_verified_are_found: SsdUnverified,
    blocks_that_stay_held_are_found: SsdHeldNotCleared,
    entries_of_emptied_segments_are_found: SsdCleaningLeavesEntries,
}
