//! The controller `target`: each child gets as much as its goal takes, and no more; the rest goes where it saves
//! misses.
//!
//! Owns how far the curve of each child is off. Never promises anything: it says whether goals can be reached, and how
//! much they take.
//! Invariant: a goal gets what it needs before a child without a goal gets more than its floor; goals that do not fit
//! together get their parts by weight.
//!
//! Every goal becomes a miss ratio. Hit ratio h: 1 - h. p99 latency: of the misses a part s is slower than the goal
//! allows; at most one request in a hundred may be, so the miss ratio is at most 0.01 / s. Requests per second: by
//! Little's law the guest keeps (rate x mean time) requests in flight; with as many in flight the goal needs a mean
//! time of that / goal. The ratio becomes a size by the curve, stretched as the misses at the present size ask for: if
//! the curve has so many misses at half of that size, everything takes twice what it says. So a curve that is wrong
//! (another policy, sampling) is found out within a few intervals.

use super::Controller;
use super::event::{Goal, Reason};
use super::utility::best;
use super::view::{Activity, ChildView, Move, Verdict};
use crate::shares::{Claim, NodeId, fill};
use std::collections::BTreeMap;

/// What of the past counts in the stretch.
const KEEP: f64 = 0.7;
/// A curve is stretched at most by this factor, either way.
const STRETCH_MAX: f64 = 4.0;
/// Misses that differ from the curve's by less than this part of the requests say nothing against it.
const EQUAL: f64 = 0.01;
/// Needs within this part of the present target leave it: sizes do not follow the noise.
const STILL: f64 = 0.02;

/// See the head of the file.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Sizes as a multiple of what the curve says.
    stretches: BTreeMap<NodeId, f64>,
}

/// The miss ratio at which the goal is reached; `None`: the misses are not what keeps it from being reached.
fn miss_ratio_for(goal: Goal, seen: &Activity) -> Option<f64> {
    let ratio = match goal {
        Goal::HitRatio(hit) => 1.0 - hit,
        Goal::P99LatencyUs(_) if seen.slow_misses <= 0.0 => 1.0,
        Goal::P99LatencyUs(us) if seen.hit_us > us => return None,
        Goal::P99LatencyUs(_) => 0.01 / seen.slow_misses,
        Goal::Iops(goal) => {
            if seen.miss_us <= seen.hit_us || seen.requests == 0 || goal <= 0.0 {
                return Some(1.0);
            }
            let missed = seen.waited() as f64 / seen.requests as f64;
            let mean = seen.hit_us + missed * (seen.miss_us - seen.hit_us);
            (seen.iops * mean / goal - seen.hit_us) / (seen.miss_us - seen.hit_us)
        }
    };
    // no number, and what no cache can do
    (ratio >= 0.0).then_some(ratio.min(1.0))
}

impl Target {
    /// What a child's goal takes: its size, or what comes nearest and `false`.
    fn needs(&mut self, child: &ChildView<'_>, goal: Goal) -> (u64, bool) {
        let seen = &child.seen;
        if seen.requests == 0 {
            return (child.floor, true);
        }
        // while it fills, or is being emptied, it misses for other reasons than its size
        let settled = child.now > 0 && child.held.abs_diff(child.now) <= child.now / 50;
        let stretch = self.stretches.entry(child.node).or_insert(1.0);
        if settled {
            let (missed, told) = (seen.waited() as f64, child.curve.misses_at(child.held));
            let off = if (missed - told).abs() <= seen.requests as f64 * EQUAL {
                1.0
            } else {
                let there = child.curve.size_for(missed).unwrap_or_else(|| child.curve.enough());
                (child.held as f64 / there.max(1) as f64).clamp(1.0 / STRETCH_MAX, STRETCH_MAX)
            };
            *stretch = *stretch * KEEP + off * (1.0 - KEEP);
        }
        let stretched = |size: u64| (size as f64 * *stretch).ceil() as u64;
        let allowed = miss_ratio_for(goal, seen).map(|ratio| ratio * seen.requests as f64);
        match allowed.and_then(|misses| child.curve.size_for(misses)) {
            Some(size) => (stretched(size), true),
            None => (stretched(child.curve.enough()), false),
        }
    }
}

impl Controller for Target {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        self.stretches.retain(|node, _| children.iter().any(|c| c.node == *node));
        let needs: Vec<Option<(u64, bool)>> = children.iter().map(|c| c.goal.map(|goal| self.needs(c, goal))).collect();
        // goals first, by weight where they do not fit
        let claims: Vec<Claim> = children
            .iter()
            .zip(&needs)
            .map(|(c, need)| {
                let floor = c.floor.min(c.room);
                let mut need = need.map_or(floor, |n| n.0).clamp(floor, c.room);
                if c.goal.is_some() && need.abs_diff(c.now) as f64 <= c.now as f64 * STILL && c.now <= c.room {
                    need = c.now.max(floor);
                }
                Claim { weight: c.weight, steps: [floor, need, need] }
            })
            .collect();
        let goals = fill(total, &claims);
        let given: u64 = goals.iter().sum();
        // what is left saves misses among those without a goal; with none, it stays with those whom it saves some
        let others = children.iter().any(|c| c.goal.is_none());
        let free: Vec<ChildView<'_>> = children
            .iter()
            .zip(&goals)
            .map(|(c, &has)| {
                let mut view = c.clone();
                view.floor = has;
                if others && c.goal.is_some() {
                    view.room = has;
                }
                view
            })
            .collect();
        let targets = best(total.max(given), &free, &goals);

        let together: u64 = claims.iter().zip(&needs).filter(|(_, n)| n.is_some()).map(|(c, _)| c.steps[1]).sum();
        let reason = |i: usize| {
            let (goal, (blocks, feasible)) = (children[i].goal?, needs[i]?);
            Some(if feasible && goals[i] >= claims[i].steps[1] && claims[i].steps[1] >= blocks.min(children[i].room) {
                Reason::Needed { goal, blocks }
            } else {
                Reason::Infeasible { goal, needs: feasible.then_some(blocks), together, total }
            })
        };
        let infeasible: Vec<Move> = (0..children.len())
            .filter_map(|i| reason(i).map(|r| (i, r)))
            .filter(|(_, r)| matches!(r, Reason::Infeasible { .. }))
            .map(|(i, reason)| Move { from: None, to: Some(i), blocks: 0, reason })
            .collect();
        let ends = targets.clone();
        let mut verdict = Verdict::explained(children, targets, |from, to, blocks| {
            let saved = |i: usize| {
                let all = ends[i].abs_diff(children[i].now);
                let c = &children[i].curve;
                (c.misses_at(children[i].now) - c.misses_at(ends[i])).abs() * blocks as f64 / all as f64
            };
            match (to.and_then(reason), to) {
                (Some(reason), _) => reason,
                (None, Some(to)) => Reason::Gain { saves: saved(to), costs: from.map_or(0.0, saved) },
                (None, None) => Reason::Fitted,
            }
        });
        verdict.moves.extend(infeasible);
        verdict
    }
}
