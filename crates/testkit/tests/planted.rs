//! Tests of the simulation: bugs planted on purpose are found, each within a few seeds.
//!
//! That the same seeds find nothing without the bug is what simulation.rs asserts.

use undercroft_cache::fault_injection::Bug;
use undercroft_testkit::planted::{last_first, print_found};
use undercroft_testkit::{Plan, finds};

/// Seeds that a bug may take at most to be found.
const SEEDS: u64 = 60;
const STEPS: u64 = 20_000;

/// Seeds that have found bugs which many seeds miss: `cargo test -p undercroft-testkit --test planted -- --nocapture`
/// prints these lines, and those of bugs that few miss.
const FOUND_BY: &[(Bug, u64)] = &[
    (Bug::AbandonedCounts, 49),
    (Bug::AheadCutUnderWay, 20),
    (Bug::BaseNotLeft, 5),
    (Bug::BelowNumbersTakenForOwn, 15_766),
    (Bug::CaptureUnverified, 5),
    (Bug::DeduplicatesAcrossGroups, 5),
    (Bug::DeduplicatesUncompared, 15),
    (Bug::DropsPassSlotsOver, 193),
    (Bug::HeirsKeepAll, 1245),
    (Bug::HighBlocksNotWaitedFor, 12),
    (Bug::LastComeFirstServed, 6),
    (Bug::LeaverKeepsShare, 7),
    (Bug::LentBeyondPool, 10),
    (Bug::LossKeepsWrites, 17),
    (Bug::MergeNeedsAll, 7),
    (Bug::OffsetKeepsCache, 36),
    (Bug::OffsetNotKept, 80),
    (Bug::PartKeepsExcess, 5),
    (Bug::PoolCreditsPresent, 7),
    (Bug::PoolKeepsInvalid, 7),
    (Bug::PoolNotTold, 7),
    (Bug::RunPagesAssumed, 5),
    (Bug::ScanForgotten, 12),
    (Bug::StampUnflushed, 494),
    (Bug::UnneededCloneKeeps, 165),
    (Bug::WriteKeepsLater, 7),
    (Bug::WriteKeepsResidency, 5),
    (Bug::WriteOutlivesInvalidate, 43),
];

fn assert_found(bug: Bug) {
    let seed_of = |n: u64| match bug {
        // Only disks that share frames and go can show it: one seed in eight simulates clones.
        Bug::HeirsKeepAll | Bug::CommonOfNoPart | Bug::UnneededCloneKeeps => 8 * n - 3,
        // One in eight has steps.
        Bug::PieceForgotten
        | Bug::PieceTakenAgain
        | Bug::AbandonedCounts
        | Bug::RestOfWriteForgotten
        | Bug::CrowdForgotten => 8 * n - 7,
        // Steps, and pools that change: one in three of these.
        Bug::DropsPassSlotsOver => 24 * n - 23,
        // One in eight has an SSD store.
        Bug::BelowServesAnything | Bug::BelowKeepsChanged | Bug::BelowKeepsLost | Bug::StampUnflushed => 8 * n - 2,
        // One in 32 has one below disks that stand on images.
        Bug::BelowBaseOutlivesChange => 32 * n - 3,
        // Guests whose disks are told of changes one by one.
        Bug::PageOfWrongDisk | Bug::TableOutlivesMap | Bug::TableOutlivesDisk => 9 * n - 2,
        // Guests whose pages lie across blocks.
        Bug::OffsetKeepsCache | Bug::OffsetWhileBusy => 11 * n - 8,
        // Such guests whose disks share a cache, above an SSD store.
        Bug::BelowNumbersTakenForOwn => 264 * n - 74,
        // Such guests, where other processes go on with what is cached.
        Bug::OffsetNotKept => 44 * n - 8,
        // Guests that keep something else than what they read.
        Bug::FailedCopiesForgotten => 13 * n - 5,
        // The smallest steps, so that it is there for a while: one seed in 32.
        Bug::OldTableUnpaid => 32 * n - 31,
        // One in seven has locks; and pools, one in three of these.
        Bug::ShrinkTakesLocked | Bug::LockOutlivesFloor | Bug::BudgetUntold | Bug::PartsEndBuffer => 7 * n - 4,
        Bug::PinOutlivesDisk | Bug::PinsOfOthersUncounted => 21 * n - 11,
        _ => n,
    };
    // It takes a write under way that was merged from a cached block at the moment of a loss, clones one of which goes
    // while all is promised, or an image that loses what was never flushed after a rest: rare meetings.
    let is_rare = matches!(bug, Bug::LossKeepsWrites | Bug::HeirsKeepAll | Bug::StampUnflushed);
    let most = if is_rare { 4 * SEEDS } else { SEEDS };
    // Hundreds of copies have to fail.
    let steps = if bug == Bug::FailedCopiesForgotten { 3 * STEPS } else { STEPS };
    let all = (1..=most).map(seed_of);
    let mut seeds = last_first(FOUND_BY, &bug, all.clone());
    let found = seeds.find_map(|seed| Some((seed, finds(Plan { seed, steps, bug: Some(bug) })?)));
    match found {
        Some((seed, failed)) => print_found(&bug, seed, &format!("step {}: {}", failed.step, failed.what), all),
        None => panic!("{bug:?} was found by none of {most} seeds"),
    }
}

/// Bugs that have a test of their own. No model of bytes can see the first: crates/cache/tests/core/deduplication. The
/// others take hundreds of blocks too many, and the simulation's disks are smaller: parts.rs and deduplication, there.
///
/// Of the last two, one takes a cache larger than those simulated, the other more seeds than these tests have:
/// tests/regressions.rs.
///
/// That the first change after a start waits, and that what came from a guest is not known as a base's, has a scenario:
/// crates/cache/tests/core/ssd.rs.
///
/// Frames that do not count before they have their places take more seeds, too (1001622 of a long campaign):
/// crates/cache/tests/core/io_pool.rs. So do writes that pause when it is their turn (19393): steps.rs, there.
const ELSEWHERE: [Bug; 9] = [
    Bug::BelowNotAwaited,
    Bug::BelowTakenForBase,
    Bug::CaptureTakenForBase,
    Bug::NewcomersPartPays,
    Bug::PaysLessEarly,
    Bug::GiveBackEvictsNothing,
    Bug::MergeOfOldContent,
    Bug::PausedLosesPlace,
    Bug::PlacedBeforeTime,
];

macro_rules! planted {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test] fn $name() { assert_found(Bug::$bug); })*

        #[test]
        fn every_bug_has_a_test() {
            let tested = [$(Bug::$bug),*];
            // Those of the store on SSDs: tests/ssd.rs.
            let of_the_store = |b: &Bug| format!("{b:?}").starts_with("Ssd");
            assert!(Bug::ALL.iter().all(|b| tested.contains(b) || ELSEWHERE.contains(b) || of_the_store(b)));
        }
    };
}

/// Copies that are kept unverified are found with folios, and pages across blocks, as well.
#[test]
fn a_copy_that_is_not_verified_is_found_where_pages_lie_across_blocks() {
    let bug = Some(Bug::CaptureUnverified);
    let found = (1..=SEEDS).find_map(|n| finds(Plan { seed: 11 * n - 8, steps: STEPS, bug }));
    assert!(found.is_some(), "found by none of {SEEDS} seeds");
}

planted! {
    cached_blocks_that_stay_when_blocks_begin_elsewhere_are_found: OffsetKeepsCache,
    blocks_that_another_process_counts_from_elsewhere_are_found: OffsetNotKept,
    blocks_that_an_ssd_has_by_numbers_of_another_disk_are_found: BelowNumbersTakenForOwn,
    blocks_that_begin_elsewhere_while_requests_are_under_way_are_found: OffsetWhileBusy,
    a_stale_fill_after_a_write_is_found: StaleFill,
    a_read_that_does_not_wait_for_a_write_is_found: ReadDuringWrite,
    a_discard_that_keeps_cached_blocks_is_found: DiscardKeepsCache,
    zeroes_that_keep_cached_blocks_are_found: ZeroesKeepCache,
    a_flush_that_is_not_sent_is_found: FlushNotSent,
    a_forgotten_fua_is_found: FuaNotSent,
    an_off_by_one_in_partial_writes_is_found: PartialOffByOne,
    a_reply_before_the_write_is_done_is_found: ReplyEarly,
    a_failed_write_that_is_published_is_found: PublishFailedWrite,
    a_failed_write_that_keeps_the_old_block_is_found: FailedWriteKeepsOld,
    a_lost_wake_up_is_found: LostJoin,
    a_read_past_the_last_partial_block_is_found: ReadPastEnd,
    a_block_read_ahead_and_not_invalidated_is_found: AheadNotInvalidated,
    overlapping_writes_at_once_are_found: NotSerialized,
    a_moved_block_with_the_wrong_frame_is_found: MoveLosesFrame,
    contents_shared_by_their_hash_alone_are_found: DeduplicatesUncompared,
    contents_shared_across_groups_are_found: DeduplicatesAcrossGroups,
    a_frame_that_nobody_pays_for_is_found: ChargeLost,
    a_written_block_taken_for_the_bases_is_found: BaseNotLeft,
    a_copy_of_a_guest_page_that_is_not_verified_is_found: CaptureUnverified,
    a_write_that_keeps_what_is_known_of_guest_pages_is_found: WriteKeepsResidency,
    a_write_that_keeps_what_waits_to_be_hashed_is_found: WriteKeepsLater,
    blocks_not_counted_anew_when_ranges_change_are_found: PartsNotCountedAnew,
    a_part_that_keeps_more_than_its_share_is_found: PartKeepsExcess,
    parts_forgotten_with_a_disks_content_are_found: PartsForgotten,
    a_read_that_goes_on_one_block_too_far_is_found: PauseSkipsBlock,
    a_write_that_goes_on_one_block_too_far_is_found: PieceForgotten,
    data_taken_twice_by_a_write_in_steps_is_found: PieceTakenAgain,
    frames_that_a_failed_write_keeps_are_found: AbandonedCounts,
    a_write_that_ends_with_its_first_step_is_found: RestOfWriteForgotten,
    readers_of_a_crowded_operation_that_are_not_woken_are_found: CrowdForgotten,
    frames_that_nobody_pays_for_after_a_disk_has_gone_are_found: HeirsKeepAll,
    a_common_frame_that_no_part_has_is_found: CommonOfNoPart,
    a_clone_that_is_not_needed_and_kept_is_found: UnneededCloneKeeps,
    a_failed_read_that_fails_who_joined_it_is_found: JoinedFailToo,
    a_bad_sector_that_fails_partial_writes_of_others_is_found: MergeNeedsAll,
    a_byte_copied_twice_is_found: CopiedAgain,
    reads_that_outlive_an_exchange_are_found: InvalidateKeepsReads,
    a_write_that_outlives_an_exchange_is_found: WriteOutlivesInvalidate,
    requests_that_starve_are_found: LastComeFirstServed,
    an_allocation_that_is_guessed_is_found: StatusGuesses,
    a_block_number_cut_to_32_bits_is_found: HighBlocksNotWaitedFor,
    a_hash_of_an_older_content_is_found: HashOutlivesContent,
    blocks_that_go_first_for_nothing_are_found: CoolsAnything,
    a_scan_that_is_forgotten_is_found: ScanForgotten,
    blocks_that_are_not_measured_are_found: MeterMissesJoined,
    a_capacity_refused_though_it_fits_is_found: RefusesWhatFits,
    cached_content_that_the_disk_lost_is_found: LossKeepsCache,
    a_write_over_lost_content_that_is_kept_is_found: LossKeepsWrites,
    a_flush_that_hides_a_loss_is_found: LossNotTold,
    a_loss_that_the_next_process_hides_is_found: LossEndsWithProcess,
    frames_taken_from_what_is_read_ahead_are_found: AheadCutUnderWay,
    a_loan_that_is_not_given_back_is_found: LoanKept,
    frames_lent_that_the_pool_has_not_are_found: LentBeyondPool,
    a_page_that_counts_as_anothers_is_found: PoolCreditsPresent,
    a_neighbours_block_that_is_served_is_found: PoolNotTold,
    blocks_of_a_pool_that_outlive_an_exchange_are_found: PoolKeepsInvalid,
    a_pool_that_keeps_what_a_disk_takes_with_it_is_found: LeaverKeepsShare,
    a_discard_that_passes_slots_over_is_found: DropsPassSlotsOver,
    a_page_credited_to_the_wrong_disk_is_found: PageOfWrongDisk,
    a_table_of_pages_that_survives_a_map_is_found: TableOutlivesMap,
    a_table_of_pages_that_survives_a_disk_is_found: TableOutlivesDisk,
    a_former_table_of_pages_that_nobody_pays_for_is_found: OldTableUnpaid,
    copies_that_fail_and_do_not_count_are_found: FailedCopiesForgotten,
    pages_of_a_long_read_taken_to_be_beside_each_other_are_found: RunPagesAssumed,
    blocks_of_an_ssd_that_are_not_verified_are_found: BelowServesAnything,
    changed_blocks_that_stay_on_an_ssd_are_found: BelowKeepsChanged,
    lost_blocks_that_stay_on_an_ssd_are_found: BelowKeepsLost,
    a_stamp_of_an_image_that_is_not_flushed_is_found: StampUnflushed,
    blocks_of_a_base_on_an_ssd_that_outlive_a_change_are_found: BelowBaseOutlivesChange,
    a_wait_for_more_frames_than_there_are_is_found: WaitsForTooMuch,
    a_shrink_that_takes_locked_blocks_is_found: ShrinkTakesLocked,
    a_pin_that_survives_its_disk_is_found: PinOutlivesDisk,
    a_budget_that_is_not_told_is_found: BudgetUntold,
    pins_of_disks_of_a_pool_that_are_not_counted_together_are_found: PinsOfOthersUncounted,
    a_victim_buffer_that_ends_with_parts_is_found: PartsEndBuffer,
    a_lock_that_keeps_what_a_share_gives_up_is_found: LockOutlivesFloor,
}
