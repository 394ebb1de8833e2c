//! In which order the seeds are tried that may find a bug planted on purpose.
//!
//! Owns no seed. Never says whether one finds the bug. Invariant: every seed is tried that would be without it.

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

#[cfg(test)]
mod tests {
    use super::last_first;

    #[test]
    fn all_seeds_are_tried_and_the_last_to_find_it_first() {
        let of = |bug| last_first(&[('a', 3), ('b', 9)], &bug, 1..=4).collect::<Vec<_>>();
        assert_eq!(of('a'), [3, 1, 2, 3, 4]);
        assert_eq!(of('b'), [1, 2, 3, 4], "that one is none of them");
        assert_eq!(of('c'), [1, 2, 3, 4]);
    }
}
