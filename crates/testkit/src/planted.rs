//! In which order the seeds are tried that may find a bug planted on purpose.
//!
//! Which seed that is only a run can say. With `-- --nocapture` the tests of planted bugs print a line for each bug
//! that its first seed does not find, as it stands in their lists (`FOUND_BY`): `... | grep '^    (' | sort` is the
//! list anew.
//!
//! Owns no seed. Never says whether one finds the bug. Invariant: every seed is tried that would be without it.

use std::fmt::Debug;

/// The seed that found `bug` last comes before all `seeds`, if it is one of them: most bugs are found by the first run
/// so, and a bug that its seed finds no more by another.
pub fn last_first<B: PartialEq>(
    found_by: &[(B, u64)],
    bug: &B,
    seeds: impl Iterator<Item = u64> + Clone,
) -> impl Iterator<Item = u64> {
    let last = found_by.iter().find(|(b, _)| b == bug).map(|(_, seed)| *seed);
    last.filter(|last| seeds.clone().any(|seed| seed == *last)).into_iter().chain(seeds)
}

/// Prints that the seed found `bug`, and how; and, if the first of `seeds` did not, the line that the list of
/// [`last_first`] has for it.
pub fn print_found<B: Debug>(bug: &B, seed: u64, how: &str, mut seeds: impl Iterator<Item = u64>) {
    println!("{bug:?}: seed {seed}, {how}");
    if seeds.next() != Some(seed) {
        println!("{}", entry(bug, seed));
    }
}

fn entry<B: Debug>(bug: &B, seed: u64) -> String {
    let name = std::any::type_name::<B>();
    format!("    ({}::{bug:?}, {seed}),", name.rsplit("::").next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::{entry, last_first};

    #[derive(Debug)]
    enum Bug {
        Rare,
    }

    #[test]
    fn a_line_is_as_it_stands_in_a_list() {
        assert_eq!(entry(&Bug::Rare, 12), "    (Bug::Rare, 12),");
    }

    #[test]
    fn all_seeds_are_tried_and_the_last_to_find_it_first() {
        let of = |bug| last_first(&[('a', 3), ('b', 9)], &bug, 1..=4).collect::<Vec<_>>();
        assert_eq!(of('a'), [3, 1, 2, 3, 4]);
        assert_eq!(of('b'), [1, 2, 3, 4], "that one is none of them");
        assert_eq!(of('c'), [1, 2, 3, 4]);
    }
}
