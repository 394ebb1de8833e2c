//! Configuration files, and files of blocks to be pinned, that may contain anything.
//!
//! Owns the targets, never a parser. Invariant: as for all targets, a panic is a defect of the parser: any text gives a
//! plan or problems with words, and what was planned is within its bounds.

use std::path::Path;
use undercroft_config::{Machine, PinList, keys, reader, resolve, shares};

/// Configuration files: any bytes give a plan or problems, and an accepted plan keeps its invariants.
///
/// # Panics
/// If an invariant of the plan does not hold: that is a bug.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let machine = Machine {
        memory_bytes: 8 << 30,
        limit_bytes: None,
        cpus: 4,
        runtime_dir: "/nonexistent/run".into(),
        current_dir: "/nonexistent".into(),
        groups: vec![("kvm".to_string(), 104)],
    };
    let (spec, problems) = reader::read(text, Path::new("fuzz.toml"));
    let resolution = resolve(&spec, &machine, problems);
    for p in &resolution.problems {
        assert!(!p.error.is_empty() && !p.remedy.is_empty(), "a problem without words: {p:?}");
    }
    // Images do not exist here, so a plan with disks is always refused; what was planned is held to its bounds anyway.
    let plan = &resolution.plan;
    for disk in &plan.disks {
        assert!((1..=keys::QUEUES_MAX).contains(&disk.queues) && disk.queue_size.is_power_of_two());
        assert!(disk.poll <= keys::POLL_MAX && disk.settings.readahead_bytes <= keys::READAHEAD_BYTES_MAX);
        assert!((1..=keys::WEIGHT_MAX).contains(&disk.weight));
    }
    let mut divided = plan.clone();
    if shares::divide(&mut divided).is_ok() {
        let sum: u128 = divided.disks.iter().map(|d| u128::from(d.share_bytes)).sum();
        assert!(sum <= u128::from(plan.store.memory_bytes), "the shares are larger than the memory");
    }
    assert!(plan.store.floor_bytes <= plan.store.memory_bytes, "the floor is above the ceiling");
    let p = &plan.pressure;
    for (time, [least, most]) in [
        (p.stall, keys::STALL_RANGE),
        (p.give_within, keys::GIVE_WITHIN_RANGE),
        (p.calm, keys::CALM_RANGE),
        (p.regrow, keys::CALM_RANGE),
    ] {
        assert!(time >= least && time <= most, "a time of [pressure] is out of its bounds");
    }
    let same = plan.difference(plan);
    assert!(same.added.is_empty() && same.removed.is_empty(), "a plan differs from itself");
}

/// Files of blocks to be pinned: any bytes give a list that keeps its bounds and can be written and read again, or an
/// error with a remedy.
///
/// # Panics
/// If an error has no words, or a list breaks its bounds.
pub fn pin_list(data: &[u8]) {
    let list = match PinList::parse(data) {
        Ok(list) => list,
        Err(e) => {
            assert!(!e.error.is_empty() && !e.remedy.is_empty(), "an error without words: {e:?}");
            return;
        }
    };
    let ranges = list.ranges();
    assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0), "ranges that touch, or are in disorder");
    assert!(ranges.iter().all(|&(_, count)| count > 0), "an empty range");
    let mut end = 0;
    for range in list.byte_ranges() {
        assert!(range.offset >= end && range.bytes > 0, "bytes twice, or none");
        end = range.end();
        assert!(end <= list.size_bytes(), "past the end of the disk");
    }
    let again = PinList::new(list.size_bytes(), ranges.to_vec()).expect("a list is a list again");
    assert_eq!(again, list, "a list that changes as it is read again");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    const NAME: &str = "(memory|name|image|size|poll|queues|weight|socket|unix|tcp|workers)";
    const VALUE: &str = "(\"\\PC{0,8}\"|-?[0-9]{1,20}|true|\\[\\]|\\{\\}|1\\.5|1979-05-27)";
    const HEADER: &str = "\\[\\[?(store|daemon|nbd|vm|vm\\.disk|disk)\\]\\]?\n";

    /// Lines as they stand in a configuration, in any order.
    fn lines() -> impl Strategy<Value = String> {
        let lines = format!("({HEADER}|{NAME} ?= ?{VALUE}\n|\\PC{{0,6}}\n){{0,12}}");
        proptest::string::string_regex(&lines).expect("a pattern")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn no_text_panics(text in lines()) {
            super::config(text.as_bytes());
        }
    }
}
