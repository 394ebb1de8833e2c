//! Moves limits towards targets, by a step at every tick.
//!
//! Owns the pace. Never evicts: the data path does, and says what is held. Invariant: if before a tick the sum of all
//! limits, or of what is held where that is more, is at most the whole, it is so after the tick: a limit rises only
//! after another has fallen.

use crate::shares::{Claim, fill};

/// One leaf. In blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// What its index may hold now.
    pub limit: u64,
    /// What it holds: more than the limit until it has evicted.
    pub held: u64,
    /// Where the limit is to go.
    pub target: u64,
}

/// See the head of the file.
#[derive(Clone, Copy, Debug)]
pub struct Mover {
    /// Blocks by which a limit may change in one tick; at least 1.
    pub blocks_per_tick: u64,
}

impl Mover {
    /// One tick: limits above their targets fall at once by a step; then those below rise by a step, as far as blocks
    /// are free. Returns whether anything is still on its way.
    pub fn tick(&self, total: u64, positions: &mut [Position]) -> bool {
        let step = self.blocks_per_tick.max(1);
        for p in positions.iter_mut().filter(|p| p.limit > p.target) {
            p.limit = p.target.max(p.limit.saturating_sub(step));
        }
        let taken = positions.iter().fold(0u64, |sum, p| sum.saturating_add(p.limit.max(p.held)));
        // what it holds it may keep: that takes nothing from the others
        for p in positions.iter_mut().filter(|p| p.limit < p.target) {
            p.limit = p.limit.max(p.held.min(p.target));
        }
        let wants = |p: &Position| p.target.saturating_sub(p.limit).min(step);
        let claims: Vec<Claim> = positions.iter().map(|p| Claim { weight: 1, steps: [wants(p); 3] }).collect();
        for (p, more) in positions.iter_mut().zip(fill(total.saturating_sub(taken), &claims)) {
            p.limit += more;
        }
        positions.iter().any(|p| p.limit != p.target || p.held > p.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_more_than_there_is_and_targets_are_reached(
            rounds in prop::collection::vec((prop::collection::vec(0u64..1000, 4), 0u64..40), 1..6),
            step in 1u64..300,
            evicted_per_tick in 1u64..100,
        ) {
            let total = 1000;
            let mover = Mover { blocks_per_tick: step };
            let mut positions = vec![Position::default(); 4];
            for (wishes, ticks) in rounds {
                let claims: Vec<Claim> = wishes.iter().map(|&w| Claim { weight: 1, steps: [w; 3] }).collect();
                for (p, target) in positions.iter_mut().zip(fill(total, &claims)) {
                    p.target = target;
                }
                for _ in 0..ticks {
                    mover.tick(total, &mut positions);
                    prop_assert!(positions.iter().map(|p| p.limit.max(p.held)).sum::<u64>() <= total);
                    for p in &mut positions {
                        p.held =
                            if p.held > p.limit { p.limit.max(p.held - evicted_per_tick.min(p.held)) } else { p.limit };
                    }
                }
            }
            let mut ticks = 0;
            while mover.tick(total, &mut positions) {
                for p in &mut positions {
                    p.held =
                        if p.held > p.limit { p.limit.max(p.held - evicted_per_tick.min(p.held)) } else { p.limit };
                }
                ticks += 1;
                prop_assert!(ticks < 5000, "{positions:?}");
            }
            prop_assert!(positions.iter().all(|p| p.limit == p.target));
        }
    }

    #[test]
    fn nobody_grows_before_somebody_gave() {
        let mover = Mover { blocks_per_tick: 10 };
        let mut p = [Position { limit: 100, held: 100, target: 50 }, Position { limit: 0, held: 0, target: 50 }];
        assert!(mover.tick(100, &mut p));
        assert_eq!((p[0].limit, p[1].limit), (90, 0), "what is over is not evicted yet");
        p[0].held = 90;
        assert!(mover.tick(100, &mut p));
        assert_eq!((p[0].limit, p[1].limit), (80, 10));
    }
}
