//! What a controller sees of a node's children, and what it answers.
//!
//! Owns the shapes and the arithmetic every controller needs: fitting wishes into floors, ceilings and the whole, and
//! pairing givers with takers. Never decides how much a child gets.

use super::event::{Goal, Reason};
use crate::curve::{Curve, Telemetry};
use crate::shares::{Claim, Hint, NodeId, fill};
use std::sync::Arc;

/// What happened in one interval, as a controller sees it: the counts of a leaf's meter, or of several together, and
/// what only the data path knows, their times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Blocks asked for.
    pub requests: u64,
    /// Blocks that the cache had not kept from before. Those that read-ahead had fetched count here too.
    pub misses: u64,
    /// Misses that read-ahead had fetched in time. At most `misses`.
    pub read_ahead_hits: u64,
    /// Distinct blocks asked for.
    pub distinct: u64,
    /// Requests completed per second.
    pub iops: f64,
    /// Mean time of a request that hits, in microseconds; 0 if unknown.
    pub hit_us: f64,
    /// Mean time of a request that misses, in microseconds; 0 if unknown.
    pub miss_us: f64,
    /// Part of the misses that took longer than the node's goal for its latency allows, 0 to 1.
    pub slow_misses: f64,
}

impl From<&Telemetry> for Activity {
    /// What a meter counted; no times. To a controller a hit by read-ahead alone is a miss without a wait.
    fn from(seen: &Telemetry) -> Self {
        Self {
            requests: seen.requests,
            misses: seen.misses + seen.ahead,
            read_ahead_hits: seen.ahead,
            distinct: seen.distinct,
            ..Self::default()
        }
    }
}

impl Activity {
    /// Misses that the disk had to serve while a request waited.
    pub fn waited(&self) -> u64 {
        self.misses.saturating_sub(self.read_ahead_hits)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        // means of parts weigh as much as there was of each
        let mean = |a: f64, n: u64, b: f64, m: u64| {
            if n + m == 0 { 0.0 } else { (a * n as f64 + b * m as f64) / (n + m) as f64 }
        };
        let hits = |t: &Self| t.requests.saturating_sub(t.misses);
        Self {
            requests: self.requests + other.requests,
            misses: self.misses + other.misses,
            read_ahead_hits: self.read_ahead_hits + other.read_ahead_hits,
            distinct: self.distinct + other.distinct,
            iops: self.iops + other.iops,
            hit_us: mean(self.hit_us, hits(self), other.hit_us, hits(other)),
            miss_us: mean(self.miss_us, self.misses, other.miss_us, other.misses),
            slow_misses: mean(self.slow_misses, self.misses, other.slow_misses, other.misses),
        }
    }
}

/// One child of the node whose share is divided. Sizes in blocks.
#[derive(Clone, Debug)]
pub struct ChildView<'a> {
    /// The child.
    pub node: NodeId,
    /// Its name.
    pub name: &'a Arc<str>,
    /// Its weight.
    pub weight: u32,
    /// The size that it gets whenever it demands it: its floor, or the floors below it as far as it is entitled to
    /// them.
    pub floor: u64,
    /// What it may have at most, by ceilings, its own and those below.
    pub room: u64,
    /// What it is entitled to by settings alone.
    pub entitled: u64,
    /// What it could use.
    pub demand: u64,
    /// Its hint; floor, room, demand and curve say already what the hint means for size.
    pub hint: Hint,
    /// Its target so far; 0 if it is new.
    pub now: u64,
    /// What it held when the interval ended.
    pub held: u64,
    /// What happened.
    pub seen: Activity,
    /// Misses that a request would have waited for, as a function of size.
    pub curve: &'a Curve,
    /// What it is to reach; looked at by [`super::Target`] only.
    pub goal: Option<Goal>,
}

impl ChildView<'_> {
    /// A claim on what is divided: first up to the floor, then to `wish`, then to what ceilings allow.
    pub(super) fn claim(&self, wish: u64) -> Claim {
        let floor = self.floor.min(self.room);
        let wish = wish.clamp(floor, self.room);
        Claim { weight: self.weight, steps: [floor, wish, self.room] }
    }
}

/// By weight alone, as if all demanded everything.
pub(super) fn by_weight(total: u64, children: &[ChildView<'_>]) -> Vec<u64> {
    fill(total, &children.iter().map(|c| c.claim(c.room)).collect::<Vec<_>>())
}

/// `wishes` made to fit: floors before wishes; what the whole does not allow is cut by weight, what is left is added by
/// weight.
pub(super) fn fitted(total: u64, children: &[ChildView<'_>], wishes: &[u64]) -> Vec<u64> {
    fill(total, &children.iter().zip(wishes).map(|(c, &wish)| c.claim(wish)).collect::<Vec<_>>())
}

/// Blocks that go from one child to another; children by their place in what was passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Who gives; `None`: what was free.
    pub from: Option<usize>,
    /// Who takes; `None`: it is free now.
    pub to: Option<usize>,
    /// How much; 0 for a finding.
    pub blocks: u64,
    /// Why.
    pub reason: Reason,
}

/// What a controller answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// For each child, in their order.
    pub targets: Vec<u64>,
    /// Every difference to what they had, and findings.
    pub moves: Vec<Move>,
}

impl Verdict {
    /// The targets, with every difference told: the largest giver is paired with the largest taker, and so on; `why`
    /// gets the two and the number of blocks.
    pub(super) fn explained(
        children: &[ChildView<'_>],
        targets: Vec<u64>,
        mut why: impl FnMut(Option<usize>, Option<usize>, u64) -> Reason,
    ) -> Self {
        let (mut gives, mut takes) = (vec![], vec![]);
        for (i, (child, &target)) in children.iter().zip(&targets).enumerate() {
            match target.checked_sub(child.now) {
                None => gives.push((child.now - target, Some(i))),
                Some(0) => {}
                Some(more) => takes.push((more, Some(i))),
            }
        }
        let sum = |of: &[(u64, Option<usize>)]| of.iter().map(|g| g.0).sum::<u64>();
        let (given, taken) = (sum(&gives), sum(&takes));
        // the difference is free, or was: last in its list
        for list in [&mut gives, &mut takes] {
            list.sort_by_key(|&(blocks, i)| (std::cmp::Reverse(blocks), i));
        }
        if given > taken {
            takes.push((given - taken, None));
        } else if taken > given {
            gives.push((taken - given, None));
        }
        let mut moves = vec![];
        let (mut g, mut t) = (0, 0);
        while g < gives.len() && t < takes.len() {
            let blocks = gives[g].0.min(takes[t].0);
            let (from, to) = (gives[g].1, takes[t].1);
            moves.push(Move { from, to, blocks, reason: why(from, to, blocks) });
            gives[g].0 -= blocks;
            takes[t].0 -= blocks;
            g += usize::from(gives[g].0 == 0);
            t += usize::from(takes[t].0 == 0);
        }
        Self { targets, moves }
    }
}
