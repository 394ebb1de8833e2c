//! Lets a controller decide only while that is better than `static`: shares by weight, of which what is not demanded is lent.
//!
//! Owns two shadows that always run, whoever is in charge: the shares that the controller would give if it had always been
//! free, and those of `static`; of each how full its parts would be and what they would miss, by the curve of every interval.
//! Never decides how to divide. Invariant: both are judged by the same curves of the same intervals, so an error of the
//! curves hits both alike; a part that grows is full only after it has missed as often as it has grown, so moves to and fro cost.
//!
//! A part that shrank and grows again holds the blocks used last: what a cache of that size holds by the inclusion property
//! of LRU (Mattson et al., 1970). So the shadow needs no trace, only the curve at the size that is full.

use super::Controller;
use super::event::Reason;
use super::fixed::Fixed;
use super::view::{ChildView, Move, Verdict, fitted};
use crate::shares::NodeId;

/// What of the past counts in an interval: some twenty intervals are remembered.
const KEEP: f64 = 0.95;
/// Free while it is not this much worse than by weight; again when it is this much better.
const MARGIN: f64 = 0.01;
/// The part of the whole that moves in an interval at most when the one in charge changes.
const PACE: f64 = 0.5;

/// See the head of the file.
#[derive(Clone, Debug, Default)]
pub struct Guarded<C> {
    inner: C,
    shadows: Vec<Shadow>,
    /// Misses of late, weighed: of the controller if it were free, and of `static`.
    free: f64,
    by_weight: f64,
    /// Whether the controller is in charge.
    on: bool,
    /// Whether it is put in charge, or out of it, only when the difference is also as much as the change costs.
    earns: bool,
}

/// What one child would have.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    node: NodeId,
    /// If the controller were free: its target and how full that is.
    target: u64,
    full: f64,
    /// By `static`: how full that is.
    full_by_weight: f64,
}

/// One interval of a part that is `full` and may have `target`: its misses, and how full it is afterwards.
fn interval(child: &ChildView<'_>, full: f64, target: u64) -> (f64, f64) {
    let begin = full.min(target as f64);
    let first = child.curve.misses_at(begin as u64);
    let end = (begin + first).min(target as f64);
    ((first + child.curve.misses_at(end as u64)) / 2.0, end)
}

impl<C: Controller> Guarded<C> {
    /// Shares go by weight until `inner`, which decides by the same curves as the guard, would have been better for some intervals.
    pub fn new(inner: C) -> Self {
        Self { inner, shadows: vec![], free: 0.0, by_weight: 0.0, on: false, earns: false }
    }

    /// As [`Guarded::new`], for a rule that does not look at curves: it has to be better by as many misses as the blocks that change
    /// hands with the charge, and `static` likewise.
    pub fn earning(inner: C) -> Self {
        Self { earns: true, ..Self::new(inner) }
    }

    /// The past interval of both shadows.
    fn account(&mut self, children: &[ChildView<'_>], by_weight: &[u64]) {
        let mean = children.iter().map(|c| f64::from(c.weight)).sum::<f64>() / children.len().max(1) as f64;
        let (mut free, mut weighed) = (0.0, 0.0);
        let shadows = children.iter().zip(by_weight).map(|(child, &share)| {
            let before = self.shadows.iter().find(|s| s.node == child.node).copied();
            let before = before.unwrap_or(Shadow { node: child.node, target: 0, full: 0.0, full_by_weight: 0.0 });
            let (misses, full) = interval(child, before.full, before.target);
            let (misses_by_weight, full_by_weight) = interval(child, before.full_by_weight, share);
            // a child that is new has had no share from anybody
            if before.target > 0 {
                let weight = f64::from(child.weight) / mean;
                free += weight * misses;
                weighed += weight * misses_by_weight;
            }
            Shadow { full, full_by_weight, ..before }
        });
        self.shadows = shadows.collect();
        self.free = self.free * KEEP + free;
        self.by_weight = self.by_weight * KEEP + weighed;
    }

    fn choose(&mut self) {
        // a count varies by about its square root
        let noise = self.by_weight.sqrt();
        // Who is put in charge has to fill what he would have had by now.
        let refills = |s: &Shadow| if self.on { s.full_by_weight - s.full } else { s.full - s.full_by_weight };
        let change: f64 = if self.earns { self.shadows.iter().map(|s| refills(s).max(0.0)).sum() } else { 0.0 };
        if self.on {
            self.on = self.free <= self.by_weight * (1.0 + MARGIN) + noise + change;
        } else {
            self.on = self.free < self.by_weight * (1.0 - MARGIN) - noise - change;
        }
    }
}

impl<C: Controller> Controller for Guarded<C> {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        let by_weight = Fixed { strict: false }.decide(total, children).targets;
        self.account(children, &by_weight);
        // what the controller would see if it had been free
        let free: Vec<ChildView<'_>> = children
            .iter()
            .zip(&self.shadows)
            .map(|(child, shadow)| {
                let mut view = child.clone();
                if child.now != shadow.target {
                    (view.now, view.held) = (shadow.target, shadow.full as u64);
                    let misses = child.curve.misses_at(shadow.full as u64) as u64 + child.seen.read_ahead_hits;
                    view.seen.misses = misses.min(child.seen.requests);
                }
                view
            })
            .collect();
        let verdict = self.inner.decide(total, &free);
        for (shadow, &target) in self.shadows.iter_mut().zip(&verdict.targets) {
            shadow.target = target;
        }
        self.choose();

        if self.on && children.iter().zip(&free).all(|(child, view)| child.now == view.now) {
            return verdict;
        }
        let wish = if self.on { &verdict.targets } else { &by_weight };
        let begun: Vec<u64> =
            children.iter().zip(&by_weight).map(|(c, &w)| if c.now == 0 { w } else { c.now }).collect();
        let targets = slowly(total, children, &fitted(total, children, &begun), wish, (total as f64 * PACE) as u64);
        let reason = if self.on {
            Reason::Resumed { misses: self.free, by_weight: self.by_weight }
        } else {
            Reason::Guarded { misses: self.free, by_weight: self.by_weight }
        };
        let findings = verdict.moves.into_iter().filter(|m: &Move| m.blocks == 0);
        let mut explained = Verdict::explained(children, targets, |_, _, _| reason.clone());
        explained.moves.extend(findings);
        explained
    }
}

/// From `now` towards `wish`, moving at most `most` blocks.
pub(super) fn slowly(total: u64, children: &[ChildView<'_>], now: &[u64], wish: &[u64], most: u64) -> Vec<u64> {
    let moved: u64 = now.iter().zip(wish).map(|(&n, &w)| w.saturating_sub(n)).sum();
    if moved <= most {
        return wish.to_vec();
    }
    let part = |blocks: u64| (u128::from(blocks) * u128::from(most) / u128::from(moved)) as u64;
    let sizes: Vec<u64> =
        now.iter().zip(wish).map(|(&n, &w)| if w > n { n + part(w - n) } else { n - part(n - w) }).collect();
    fitted(total, children, &sizes)
}
