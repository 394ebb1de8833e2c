//! How a smaller total is divided among the disks.
//!
//! Owns the arithmetic. Never asks a disk anything. Invariants: each disk is allowed at least its part of the floor and
//! at most its share; with the whole ceiling each is allowed its whole share; less in total is never more for a disk.

/// A disk's part of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Its share in bytes, metadata included.
    pub share_bytes: u64,
    /// What of the share it holds now, in bytes: the share less the blocks that it could have cached and has not.
    pub held_bytes: u64,
}

/// What a disk with `share` bytes of a store of `ceiling` bytes may hold when the store may hold `total`: its part of
/// the floor, and of what it has above that the fraction that the store has of what it has above the floor.
pub fn allowed_bytes(share: u64, total: u64, floor: u64, ceiling: u64) -> u64 {
    let floor = floor.min(ceiling);
    let (total, share) = (total.clamp(floor, ceiling), share.min(ceiling));
    if total == ceiling {
        return share;
    }
    let part =
        |of: u64, n: u64, d: u64| if d == 0 { 0 } else { (u128::from(of) * u128::from(n) / u128::from(d)) as u64 };
    let own_floor = part(share, floor, ceiling);
    own_floor + part(share - own_floor, total - floor, ceiling - floor)
}

/// Bytes that the disks hold above what they may when the store may hold `total`.
pub fn held_above(disks: &[Holding], total: u64, floor: u64, ceiling: u64) -> u64 {
    let over = |d: &Holding| d.held_bytes.saturating_sub(allowed_bytes(d.share_bytes, total, floor, ceiling));
    disks.iter().map(over).fold(0, u64::saturating_add)
}

/// The largest total, at most `now`, with which the disks give at least `give` bytes back; the floor if they cannot.
pub(crate) fn releasing(disks: &[Holding], give: u64, now: u64, floor: u64, ceiling: u64) -> u64 {
    let gives = |total| held_above(disks, total, floor, ceiling) >= give;
    if gives(now) {
        return now;
    }
    // What is given only grows as the total shrinks, so the answer can be searched for by halves.
    let (mut enough, mut too_much) = (floor.min(now), now);
    if !gives(enough) {
        return enough;
    }
    while too_much - enough > 1 {
        let mid = enough + (too_much - enough) / 2;
        if gives(mid) { enough = mid } else { too_much = mid }
    }
    enough
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn full(share: u64) -> Holding {
        Holding { share_bytes: share, held_bytes: share }
    }

    #[test]
    fn disks_give_in_proportion_to_what_they_have_above_their_floor() {
        let disks = [full(600 * MIB), full(200 * MIB), full(200 * MIB)];
        let (floor, ceiling) = (200 * MIB, 1000 * MIB);
        let total = releasing(&disks, 400 * MIB, ceiling, floor, ceiling);
        assert_eq!(total / MIB, 600);
        let allowed: Vec<u64> =
            disks.iter().map(|d| allowed_bytes(d.share_bytes, total, floor, ceiling) / MIB).collect();
        assert_eq!(allowed, [360, 120, 120]);
    }

    #[test]
    fn an_empty_disk_gives_nothing_and_the_full_one_gives_it_all() {
        let disks = [full(500 * MIB), Holding { share_bytes: 500 * MIB, held_bytes: 0 }];
        let (floor, ceiling) = (200 * MIB, 1000 * MIB);
        // The full one holds 400MiB above its floor: to get half of that, the total has to go down to the middle.
        let total = releasing(&disks, 200 * MIB, ceiling, floor, ceiling);
        assert_eq!(total / MIB, 600);
        assert_eq!(held_above(&disks, total, floor, ceiling), 200 * MIB);
        assert_eq!(releasing(&disks, 500 * MIB, ceiling, floor, ceiling), floor, "more than there is");
        assert_eq!(releasing(&disks, 0, 700 * MIB, floor, ceiling), 700 * MIB, "nothing");
    }

    proptest! {
        #[test]
        fn floor_and_share_hold_and_less_is_never_more(
            ceiling in 1u64..1 << 44, floor in 0u64..1 << 44, share in 0u64..1 << 44, a: u64, b: u64,
        ) {
            let (floor, share) = (floor.min(ceiling), share.min(ceiling));
            let (less, more) = (a.min(b) % (ceiling + 1), a.max(b) % (ceiling + 1));
            let (less, more) = (less.min(more), less.max(more));
            let allowed = |total| allowed_bytes(share, total, floor, ceiling);
            prop_assert!(allowed(less) <= allowed(more) && allowed(more) <= share);
            prop_assert_eq!(allowed(ceiling), share);
            prop_assert_eq!(allowed(0), (u128::from(share) * u128::from(floor) / u128::from(ceiling)) as u64);
        }

        #[test]
        fn all_disks_together_stay_under_the_total(
            shares in proptest::collection::vec(1u64..1 << 38, 1..20), floor in 0u64..1 << 40, total in 0u64..1 << 44,
        ) {
            let ceiling: u64 = shares.iter().sum();
            let (floor, total) = (floor.min(ceiling), total.min(ceiling));
            let sum: u64 = shares.iter().map(|s| allowed_bytes(*s, total, floor, ceiling)).sum();
            prop_assert!(sum <= total.max(floor), "{} of {}", sum, total);
        }

        #[test]
        fn what_was_asked_for_is_released_if_there_is_so_much(
            parts in proptest::collection::vec((0u64..1 << 36, 0u64..=100), 1..20), floor in 0u64..=100, give: u64,
        ) {
            let ceiling: u64 = parts.iter().map(|p| p.0).sum::<u64>().max(1);
            let floor = ceiling / 100 * floor;
            let disks: Vec<Holding> =
                parts.iter().map(|p| Holding { share_bytes: p.0, held_bytes: p.0 / 100 * p.1 }).collect();
            let most = held_above(&disks, floor, floor, ceiling);
            let give = give % (most + 1);
            let total = releasing(&disks, give, ceiling, floor, ceiling);
            prop_assert!(held_above(&disks, total, floor, ceiling) >= give);
            // One byte more of total would give too little, or it is the ceiling.
            prop_assert!(total == ceiling || held_above(&disks, total + 1, floor, ceiling) < give);
        }
    }
}
