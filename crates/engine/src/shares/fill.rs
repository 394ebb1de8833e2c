//! Weighted max-min fairness in whole blocks: how an amount is divided among claims.
//!
//! Owns the arithmetic only. Never knows what a claim stands for. Invariant: blocks are handed out in one fixed order,
//! that of (2k - 1) / weight for the k-th block of a claim (Webster's divisor method), and in the order of the claims
//! where these are equal; first up to each claim's first step, then to the second, then to the third. Every amount is a
//! prefix of that order. So a larger amount never gives a claim less, and a claim that wants less never takes from
//! another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The largest number of blocks that anything here counts with: an exbibyte of 4 KiB blocks. What is larger counts as
/// this.
pub const BLOCKS_MAX: u64 = 1 << 48;

/// What one party may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// How much of what is contended, against the others: at least 1.
    pub weight: u32,
    /// Marks in blocks, not falling: all claims are raised to their first before any passes it, and so on. The last is
    /// the most it can get.
    pub steps: [u64; 3],
}

/// Bits behind the point of a level. With so many, a level one higher gives a claim one block more at most (2^15 /
/// 10,000 is above 1), and the level at which a claim of weight 1 has all blocks there can be still fits.
const SHIFT: u32 = 14;

/// One claim between two of its steps.
struct Part {
    weight: u32,
    lower: u64,
    upper: u64,
}

impl Part {
    /// Blocks whose place in the order is at most `level`.
    #[inline]
    fn at(&self, level: u64) -> u64 {
        let blocks = ((u128::from(level) * u128::from(self.weight)) >> SHIFT).div_ceil(2);
        u64::try_from(blocks).unwrap_or(u64::MAX).clamp(self.lower, self.upper)
    }
}

/// Divides `amount`. Blocks that no claim may have are left over: the sum is the smaller of the amount and the last
/// steps.
///
/// # Panics
/// If a weight is 0 or above [`super::WEIGHT_MAX`], or steps fall.
pub fn fill(amount: u64, claims: &[Claim]) -> Vec<u64> {
    let amount = amount.min(BLOCKS_MAX);
    for claim in claims {
        assert!((1..=super::WEIGHT_MAX).contains(&claim.weight), "a claim has a weight");
        assert!(claim.steps.is_sorted(), "the steps of a claim do not fall");
    }
    let mark = |claim: &Claim, step: usize| claim.steps[step].min(BLOCKS_MAX);
    for step in 0..3 {
        let upper = claims.iter().fold(0u64, |sum, c| sum.saturating_add(mark(c, step)));
        if upper > amount {
            let lower = |c: &Claim| if step == 0 { 0 } else { mark(c, step - 1) };
            let part = |c: &Claim| Part { weight: c.weight, lower: lower(c), upper: mark(c, step) };
            return between(amount, &claims.iter().map(part).collect::<Vec<_>>());
        }
    }
    claims.iter().map(|c| mark(c, 2)).collect()
}

/// Divides an amount that is at least the sum of the lower marks and below that of the upper ones.
fn between(amount: u64, parts: &[Part]) -> Vec<u64> {
    let sum = |level: u64| parts.iter().fold(0u64, |sum, p| sum.saturating_add(p.at(level)));
    let (mut low, mut given) = (0, sum(0));
    // where every part is at its upper mark
    let mut high = parts.iter().map(|p| (p.upper << (SHIFT + 1)) / u64::from(p.weight) + 1).max().unwrap_or(0);
    let mut stretch = 1;
    while amount - given > parts.len() as u64 && high - low > 1 {
        // Newton's step from below, as if those that rise now rose for ever and no other began to; where that stays
        // below, the next step is longer; where it is too long, halves: it ends
        let rising: u64 = parts.iter().filter(|p| p.at(low) < p.upper).map(|p| u64::from(p.weight)).sum();
        let step = (u128::from(amount - given) << (SHIFT + 1)) / u128::from(rising.max(1));
        let step = u64::try_from(step.max(1) * stretch).unwrap_or(u64::MAX);
        let level = low.saturating_add(step).min(low + (high - low).div_ceil(2));
        let there = sum(level);
        if there <= amount {
            (low, given) = (level, there);
            stretch += 1;
        } else {
            high = level;
            stretch = 1;
        }
    }
    let mut blocks: Vec<u64> = parts.iter().map(|p| p.at(low)).collect();
    // the few that are left, one by one in the exact order
    let mut next: BinaryHeap<Reverse<Place>> = parts
        .iter()
        .enumerate()
        .filter(|&(i, p)| blocks[i] < p.upper)
        .map(|(i, p)| Reverse(Place { odd: 2 * blocks[i] + 1, weight: p.weight, claim: i }))
        .collect();
    for _ in 0..amount - given {
        let Reverse(place) = next.pop().expect("the amount is below the sum of the upper marks");
        let i = place.claim;
        blocks[i] += 1;
        if blocks[i] < parts[i].upper {
            next.push(Reverse(Place { odd: 2 * blocks[i] + 1, ..place }));
        }
    }
    blocks
}

/// The place of a block in the order: `odd / weight`, then the claim.
#[derive(Clone, Copy)]
struct Place {
    odd: u64,
    weight: u32,
    claim: usize,
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let cross = |a: &Self, b: &Self| u128::from(a.odd) * u128::from(b.weight);
        cross(self, other).cmp(&cross(other, self)).then(self.claim.cmp(&other.claim))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Place {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The order itself, block by block.
    fn naive(amount: u64, claims: &[Claim]) -> Vec<u64> {
        let mut got = vec![0; claims.len()];
        for _ in 0..amount {
            let step = (0..3).find(|&s| claims.iter().zip(&got).any(|(c, &g)| g < c.steps[s]));
            let Some(step) = step else { break };
            let next = (0..claims.len())
                .filter(|&i| got[i] < claims[i].steps[step])
                .map(|i| Place { odd: 2 * got[i] + 1, weight: claims[i].weight, claim: i })
                .min()
                .expect("somebody is below the step");
            got[next.claim] += 1;
        }
        got
    }

    fn claim() -> impl Strategy<Value = Claim> {
        (1u32..=50, 0u64..30, 0u64..60, prop_oneof![Just(BLOCKS_MAX), 0u64..90])
            .prop_map(|(weight, a, b, c)| Claim { weight, steps: [a, a + b, (a + b).saturating_add(c)] })
    }

    proptest! {
        #[test]
        fn is_the_order_block_by_block(claims in prop::collection::vec(claim(), 0..8), amount in 0u64..600) {
            prop_assert_eq!(fill(amount, &claims), naive(amount, &claims));
        }

        #[test]
        fn weights_hold_within_rounding_at_every_size(
            weights in prop::collection::vec(1u32..=10_000, 1..20),
            amount in 0u64..BLOCKS_MAX,
        ) {
            let claims: Vec<Claim> =
                weights.iter().map(|&weight| Claim { weight, steps: [0, 0, BLOCKS_MAX] }).collect();
            let got = fill(amount, &claims);
            let sum: u64 = weights.iter().map(|&w| u64::from(w)).sum();
            prop_assert_eq!(got.iter().sum::<u64>(), amount);
            for (&got, &weight) in got.iter().zip(&weights) {
                let exact = u128::from(amount) * u128::from(weight) / u128::from(sum);
                prop_assert!(u128::from(got).abs_diff(exact) <= weights.len() as u128, "{got} of exactly {exact}");
            }
        }
    }

    #[test]
    fn nothing_among_nobody() {
        assert_eq!(fill(10, &[]), Vec::<u64>::new());
        assert_eq!(fill(u64::MAX, &[Claim { weight: 1, steps: [0, 0, u64::MAX] }]), [BLOCKS_MAX]);
    }
}
