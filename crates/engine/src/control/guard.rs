//! Lets a controller decide only while its division would miss less than the fallback. The fallback is `static`, which
//! lends what is not demanded; where lending has cost more misses than it saved, it is division by weight alone.
//!
//! Owns two simulated divisions that always run, whichever is in use: the shares that the controller would give if it
//! had always been free, and those that it falls back to; of each how full its parts would be and what they would miss,
//! by the curve of every interval. Never decides how to divide. Invariant: both are judged by the same curves of the
//! same intervals, so an error of the curves hits both alike; a part that grows is full only after it has missed as
//! often as it has grown, so moves to and fro cost.
//!
//! A part that shrank and grows again holds the blocks used last: what a cache of that size holds by the inclusion
//! property of LRU (Mattson et al., 1970). So the shadow needs no trace, only the curve at the size that is full.

use super::Controller;
use super::event::Reason;
use super::fixed::Fixed;
use super::view::{ChildView, Move, Verdict, by_weight, fitted};
use crate::shares::NodeId;

/// What of the past counts in an interval: some twenty intervals are remembered.
const KEEP: f64 = 0.95;
/// Free while it is not this much worse than what it falls back to; again when it is this much better.
const MARGIN: f64 = 0.01;
/// The part of the whole that moves in an interval at most when the one in charge changes.
const PACE: f64 = 0.5;

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Guarded<C> {
    inner: C,
    /// What it falls back to: that, or shares by weight.
    base: Option<Box<Guarded<Fixed>>>,
    shadows: Vec<Shadow>,
    /// Misses of late, weighed: of the controller if it were free, and of what it falls back to.
    free: f64,
    fallen_back: f64,
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
    /// The same of what it falls back to.
    base_target: u64,
    base_full: f64,
}

/// What both shadows have from now on.
struct Wishes {
    verdict: Verdict,
    base: Vec<u64>,
    /// Whether the controller saw what there is, not what there would be.
    real: bool,
}

/// One interval of a part that is `full` and may have `target`: its misses, and how full it is afterwards.
fn interval(child: &ChildView<'_>, full: f64, target: u64) -> (f64, f64) {
    let begin = full.min(target as f64);
    let first = child.curve.misses_at(begin as u64);
    let end = (begin + first).min(target as f64);
    ((first + child.curve.misses_at(end as u64)) / 2.0, end)
}

impl Guarded<Fixed> {
    /// `static`: lends what is not demanded, unless shares by weight alone would have been better of late.
    pub(super) fn lending() -> Self {
        Self::over(Fixed { strict: false }, None, true)
    }
}

impl<C: Controller> Guarded<C> {
    /// Divides as `static` does until `inner`, which decides by the same curves as the guard, would have missed less
    /// for some intervals.
    pub fn new(inner: C) -> Self {
        Self::over(inner, Some(Box::new(Guarded::lending())), false)
    }

    fn over(inner: C, base: Option<Box<Guarded<Fixed>>>, on: bool) -> Self {
        Self { inner, base, shadows: vec![], free: 0.0, fallen_back: 0.0, on, earns: false }
    }

    /// As [`Guarded::new`], for a rule that does not look at curves: to be put in charge, it must miss less by at least
    /// as many misses as blocks then move between children. The same holds for going back to `static`.
    pub fn earning(inner: C) -> Self {
        Self { earns: true, ..Self::new(inner) }
    }

    /// The past interval of both shadows.
    fn account(&mut self, children: &[ChildView<'_>]) {
        let mean = children.iter().map(|c| f64::from(c.weight)).sum::<f64>() / children.len().max(1) as f64;
        let (mut free, mut fallen_back) = (0.0, 0.0);
        let shadows = children.iter().map(|child| {
            let before = self.shadows.iter().find(|s| s.node == child.node).copied();
            // a new child has had no share
            let Some(before) = before else {
                return Shadow { node: child.node, target: 0, full: 0.0, base_target: 0, base_full: 0.0 };
            };
            let (misses, full) = interval(child, before.full, before.target);
            let (base_misses, base_full) = interval(child, before.base_full, before.base_target);
            let weight = f64::from(child.weight) / mean;
            free += weight * misses;
            fallen_back += weight * base_misses;
            Shadow { full, base_full, ..before }
        });
        self.shadows = shadows.collect();
        self.free = self.free * KEEP + free;
        self.fallen_back = self.fallen_back * KEEP + fallen_back;
    }

    fn choose(&mut self) {
        // a count varies by about its square root
        let noise = self.fallen_back.sqrt();
        // Who is put in charge has to fill what he would have had by now.
        let fills = |s: &Shadow| if self.on { s.base_full - s.full } else { s.full - s.base_full };
        let change: f64 = if self.earns { self.shadows.iter().map(|s| fills(s).max(0.0)).sum() } else { 0.0 };
        if self.on {
            self.on = self.free <= self.fallen_back * (1.0 + MARGIN) + noise + change;
        } else {
            self.on = self.free < self.fallen_back * (1.0 - MARGIN) - noise - change;
        }
    }

    /// An interval has passed: judges it, and says what both would have from now on.
    fn wishes(&mut self, total: u64, children: &[ChildView<'_>]) -> Wishes {
        self.account(children);
        let base = match &mut self.base {
            None => by_weight(total, children),
            Some(lending) => {
                let wishes = lending.wishes(total, children);
                if lending.on { wishes.verdict.targets } else { wishes.base }
            }
        };
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
        for ((shadow, &target), &base) in self.shadows.iter_mut().zip(&verdict.targets).zip(&base) {
            (shadow.target, shadow.base_target) = (target, base);
        }
        self.choose();
        let real = children.iter().zip(&free).all(|(child, view)| child.now == view.now);
        Wishes { verdict, base, real }
    }
}

impl<C: Controller> Controller for Guarded<C> {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        let Wishes { verdict, base, real } = self.wishes(total, children);
        if self.on && real {
            return verdict;
        }
        let wish = if self.on { &verdict.targets } else { &base };
        let begun: Vec<u64> = children.iter().zip(&base).map(|(c, &b)| if c.now == 0 { b } else { c.now }).collect();
        let targets = slowly(total, children, &fitted(total, children, &begun), wish, (total as f64 * PACE) as u64);
        let (misses, by_weight) = (self.free, self.fallen_back);
        let reason =
            if self.on { Reason::Resumed { misses, by_weight } } else { Reason::Guarded { misses, by_weight } };
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
