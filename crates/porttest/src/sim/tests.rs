//! The runs of `make test`, those that one asks for, and the bugs that they must find.
//!
//! Owns no state. Invariant: a failing seed is printed with the command that replays it.

use super::{Outcome, Plan, once, run};
use std::time::Instant;
use undercroft_frontend::faults::PortBug;
use undercroft_skips::by_length;
use undercroft_testkit::planted::{last_first, print_found};

/// Seeds of `make test`, and events of each.
const SEEDS: u64 = 100;
const STEPS: u64 = 4000;
/// Seeds that a planted bug may take at most to be found.
const SEEDS_FOR_A_BUG: u64 = 1000;

/// Seeds that have found bugs which many seeds miss: `cargo test -p undercroft-porttest every_planted -- --nocapture`
/// prints these lines, and those of bugs that few miss.
const FOUND_BY: &[(PortBug, u64)] = &[
    (PortBug::AskedAgainUnmarked, 12),
    (PortBug::BlocksAtMultiples, 6),
    (PortBug::DeviceNotWoken, 113),
    (PortBug::FileNotWoken, 12),
    (PortBug::FirstQueueFirst, 13),
    (PortBug::HeavyAlwaysFirst, 8),
    (PortBug::HolesCopied, 7),
    (PortBug::IndexBeforeEntry, 6),
    (PortBug::LastRangeCounts, 6),
    (PortBug::LastRangeIgnored, 14),
    (PortBug::LogBeginsClean, 133),
    (PortBug::LossOfAnotherDisk, 6),
    (PortBug::MarkGoesEarly, 19),
    (PortBug::RestForgetsArrived, 12),
    (PortBug::RestForgetsCame, 148),
    (PortBug::RoomNotWatched, 7),
    (PortBug::SyncForgotten, 8),
    (PortBug::UnheardForgotten, 14),
    (PortBug::UnseenForgotten, 6),
];

/// A number from the environment.
fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not \"{text}\"")))
}

/// `UNDERCROFT_SEEDS=n` runs more seeds, `UNDERCROFT_SEED=n` begins with another, or replays it where
/// `UNDERCROFT_SEEDS=1`, `UNDERCROFT_STEPS=n` makes the runs longer or shorter.
#[test]
fn no_seed_loses_repeats_or_starves_a_request() {
    let seeds = from_env("UNDERCROFT_SEEDS").unwrap_or(by_length(SEEDS, 20 * SEEDS));
    let first = from_env("UNDERCROFT_SEED").unwrap_or(1);
    let steps = from_env("UNDERCROFT_STEPS").unwrap_or(STEPS);
    let began = Instant::now();
    let mut total = Outcome::default();
    for seed in first..first.saturating_add(seeds) {
        match run(Plan { seed, steps, bug: None, lossy: false }) {
            Ok(o) => {
                total.steps += o.steps;
                total.answers += o.answers;
                total.kills += o.kills;
                total.coverage.add(o.coverage);
            }
            Err(what) => panic!(
                "{what}\nreplay: UNDERCROFT_SEED={seed} UNDERCROFT_SEEDS=1 UNDERCROFT_STEPS={steps} \
                 cargo test -p undercroft-porttest --lib no_seed_loses -- --nocapture"
            ),
        }
    }
    let (events, s) = (total.steps, began.elapsed().as_secs_f64());
    println!(
        "{seeds} seeds of {steps} steps: {} requests answered, {} deaths, {events} steps in {s:.1} s, {:.0} a \
         second\n{}",
        total.answers,
        total.kills,
        events as f64 / s,
        total.coverage.lines()
    );
    if seeds >= SEEDS && steps >= STEPS {
        let missing = total.coverage.missing();
        assert!(missing.is_empty(), "the runs never came by {missing:?}");
    }
}

/// A core that loses data on the way makes reads fail; no port covers it up with what its buffer held before.
#[test]
fn data_that_did_not_come_are_never_sent() {
    for seed in 1..=10 {
        if let Err(what) = run(Plan { seed, steps: STEPS, bug: None, lossy: true }) {
            panic!("{what}");
        }
    }
}

#[test]
fn the_same_seed_goes_the_same_way() {
    let plan = Plan { seed: 3, steps: STEPS, bug: None, lossy: false };
    let (a, b) = (once(plan, false).unwrap(), once(plan, true).unwrap());
    assert_eq!((a.answers, a.kills, a.coverage.lines()), (b.answers, b.kills, b.coverage.lines()));
}

#[test]
fn every_planted_bug_is_found() {
    for bug in PortBug::ALL {
        let lossy = bug == PortBug::ShortReadSent;
        let plan = |seed| Plan { seed, steps: STEPS, bug: Some(bug), lossy };
        let found = last_first(FOUND_BY, &bug, 1..=SEEDS_FOR_A_BUG)
            .find_map(|seed| Some((seed, once(plan(seed), false).err()?)));
        match found {
            Some((seed, what)) => {
                let how = what.to_string();
                print_found(&bug, seed, how.lines().next().unwrap_or_default(), 1..=SEEDS_FOR_A_BUG);
            }
            None => panic!("{bug:?} was found by none of {SEEDS_FOR_A_BUG} seeds"),
        }
    }
}

/// Runs the seed of a fault that was found.
fn assert_sound(seed: u64) {
    if let Err(what) = run(Plan { seed, steps: STEPS, bug: None, lossy: false }) {
        panic!("{what}");
    }
}

/// A flush that told of lost writes was on the ring, and its front end connected anew before it could be seen: the one
/// from the record, served again, went well, and nobody was told. `PortBug::UnseenForgotten` is that bug.
#[test]
fn a_failure_that_was_not_published_is_told_again() {
    assert_sound(164);
}

/// A guest was told of lost writes; later its front end connected anew while a read was under way that then failed, by
/// the same tag as what had told: that failure, which nobody heard, was taken for the one that told, and the guest was
/// told once more.
#[test]
fn a_read_that_fails_unheard_tells_of_no_loss() {
    assert_sound(730);
}

/// The same of a change that failed before its front end connected anew, so that its answer was not known to be seen:
/// the port told the core of that, and the tag was that of the flush which had told of lost writes.
#[test]
fn a_change_that_failed_unseen_tells_of_no_loss() {
    assert_sound(1176);
}

/// The same of a range of a discard, whose tag had been used again while the other ranges were under way.
#[test]
fn a_range_that_failed_unseen_tells_of_no_loss() {
    assert_sound(1566);
}

/// A fault of the judge: two losses, and a flush begun between them failed for the first, which its guest saw after the
/// second. The judge took it as telling of both, so that the flush which told of the second seemed to fail for nothing.
#[test]
fn a_flush_tells_of_no_loss_after_it_began() {
    assert_sound(60);
}

/// A fault of the rig: one call to send leaves the rest of a long reply, and nothing called again while its port slept.
#[test]
fn long_replies_go_out_whole_at_rest() {
    assert_sound(72);
}

/// A fault of the judge: a guest is served alone in two storms, and what it was answered there, thousands of requests,
/// was held against the scheduler by a client that was not served meanwhile.
#[test]
fn what_is_answered_in_a_storm_is_nobody_elses_wait() {
    assert_sound(1186);
}

/// A fault of the judge: a file that was passed on is another port to the core, which may be told of a loss in place of
/// a client that had left before. The judge knew that of clients that connect anew alone.
#[test]
fn a_file_that_was_passed_on_may_be_told_in_place_of_another() {
    assert_sound(1076);
}
