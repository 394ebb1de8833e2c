//! The deterministic simulation of the whole data path, over many seeds; see `undercroft_testkit::sim`.
//!
//! To replay a failure: `SEED=n cargo test -p undercroft-testkit --test simulation`, or with STEPS=k too.
//! To run more of them: `SEEDS=n`, or `make sim` for no end. At length these tests run twice as many.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use undercroft_skips::{at_length, by_length};
use undercroft_testkit::{Outcome, Plan, run};

/// A number from the environment.
fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not \"{text}\"")))
}

#[test]
fn no_seed_finds_stale_lost_or_foreign_data() {
    let steps = from_env("STEPS").unwrap_or(20_000);
    let (first, seeds) = match from_env("SEED") {
        Some(seed) => (seed, 1),
        None if at_length() && from_env("SEEDS").is_none() => (1, 400),
        None => (1, from_env("SEEDS").unwrap_or(200)),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(first);
    let (failure, total) = (Mutex::new(None), Mutex::new(Outcome::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || failure.lock().unwrap().is_some() {
                        return;
                    }
                    match run(Plan { seed, steps, bug: None }) {
                        Ok(o) => total.lock().unwrap().add(&o),
                        Err(what) => *failure.lock().unwrap() = Some((seed, what)),
                    }
                }
            });
        }
    });
    if let Some((seed, what)) = failure.into_inner().unwrap() {
        panic!(
            "{what}\nreplay: SEED={seed} STEPS={steps} cargo test -p undercroft-testkit --test simulation -- \
             --nocapture"
        );
    }
    let total = total.into_inner().unwrap();
    println!("{seeds} seeds of {steps} steps: {total:?}");
    if seeds >= 100 {
        total.assert_reached_everything();
    }
}

/// More runs with an SSD store, which one in eight of the seeds above has.
#[test]
fn blocks_of_an_ssd_store_are_served_as_the_disk_has_them() {
    let (mut total, seeds) = (Outcome::default(), by_length(20, 40));
    for n in 51..51 + seeds {
        let seed = 8 * n - 2;
        match run(Plan { seed, steps: 20_000, bug: None }) {
            Ok(o) => total.add(&o),
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    let of_forty = [(total.below, 5000), (total.recovered, 300), (total.linked, 100)];
    assert!(of_forty.into_iter().all(|(n, least)| n * 40 > least * seeds), "{total:?}");
}

/// More runs of guests whose pages lie across blocks, which few of the seeds above have.
#[test]
fn pages_across_blocks_are_served_as_others_are() {
    let (mut total, seeds) = (Outcome::default(), by_length(15, 30));
    for n in 41..41 + seeds {
        let seed = 11 * n - 8;
        match run(Plan { seed, steps: 20_000, bug: None }) {
            Ok(o) => total.add(&o),
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    let of_thirty = [(total.offset, 500), (total.captures_across, 100)];
    assert!(of_thirty.into_iter().all(|(n, least)| n * 30 > least * seeds), "{total:?}");
}

/// Seeds past those above that found a bug, each with what it was.
#[test]
fn seeds_that_found_bugs_find_them_no_more() {
    for (seed, steps, what) in [
        // A clone went; of what the other had to give up, the first was a slot whose frame was still to come, which
        // passed for nothing: the rest stayed unpaid.
        (1_001_389, 3_000, "a slot without a frame ends the giving up"),
        // Of the model: a flush made it forget contents that a question for the allocation, asked before, had seen.
        (1_283, 20_000, "what was said to be zero had been"),
        // A disk whose blocks begin elsewhere was in a pool; what another disk gave up of it came to the SSD store, and
        // was taken for the block of that number after a start.
        (14_182, 20_000, "blocks that a pool gives up are counted from the image's first byte"),
        // Of the judge: a read of forty blocks, among as many others as long, on a disk that serves two operations at a
        // time.
        (9_607, 20_000, "a long read among many waits for their turns"),
        // A write paused whenever it was its turn to take frames, and reads that came later took them.
        (19_393, 20_000, "who pauses keeps its place"),
        // Of the simulation: paused requests went on in any order at all, so that one was forgotten.
        (19_721, 20_000, "who was paused goes on"),
        // Of the judge: two blocks to zero, behind paused requests whose steps are 64 operations.
        (36_513, 20_000, "a small request waits for steps of long ones"),
    ] {
        if let Err(said) = run(Plan { seed, steps, bug: None }) {
            panic!("{what}: {said}");
        }
    }
}
