//! The controller `utility`, the default: blocks go where they save most misses, each miss weighed by its node's
//! weight.
//!
//! Owns the damping, which keeps shares from moving to and fro. Never decides from anything but curves, settings and
//! sizes. Invariant: every child keeps its floor and a part of what its weight alone would give it, so that no curve
//! takes all from a child. Whether blocks should move at all is decided by `guard`.
//!
//! The search is Lookahead (see `lookahead`). Damping: nothing moves for less than the noise; at most a part of the
//! whole moves in an interval.

use super::Controller;
use super::event::Reason;
use super::guard::slowly;
use super::lookahead::{Appetite, lookahead};
use super::view::{ChildView, Verdict, by_weight, fitted};
use crate::shares::{Claim, WEIGHT_MAX, WEIGHT_MIN, fill};

/// How careful it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UtilitySettings {
    /// A move must save this part of all misses, and more than the square root of their number, which is how much a
    /// count varies by chance.
    pub noise: f64,
    /// The part of the whole that moves in an interval at most.
    pub pace: f64,
    /// The part of its share by weight that every child keeps.
    pub isolation: f64,
}

impl Default for UtilitySettings {
    fn default() -> Self {
        Self { noise: 0.01, pace: 0.5, isolation: 1.0 / 16.0 }
    }
}

/// See the head of the file.
#[derive(Clone, Debug, Default)]
pub struct Utility {
    settings: UtilitySettings,
}

impl Utility {
    /// With other settings than the default ones.
    pub fn new(settings: UtilitySettings) -> Self {
        Self { settings }
    }

    /// What every child keeps.
    fn kept(&self, total: u64, children: &[ChildView<'_>], by_weight: &[u64]) -> Vec<u64> {
        let claims: Vec<Claim> = children
            .iter()
            .zip(by_weight)
            .map(|(c, &share)| {
                let kept = ((share as f64 * self.settings.isolation) as u64).max(c.floor).min(c.room);
                Claim { weight: c.weight, steps: [c.floor.min(c.room), kept, kept] }
            })
            .collect();
        fill(total, &claims)
    }
}

/// The weighted misses of the children with these sizes.
fn misses(children: &[ChildView<'_>], sizes: &[u64]) -> f64 {
    children.iter().zip(sizes).map(|(c, &size)| f64::from(c.weight) * c.curve.misses_at(size)).sum()
}

/// Where blocks save most; no child below `kept`. What saves no misses by the curves goes by weight and by the misses
/// that are left: a child with misses fills it, and a curve does not know yet what blocks asked for once will save.
pub(super) fn best(total: u64, children: &[ChildView<'_>], kept: &[u64]) -> Vec<u64> {
    let parties: Vec<Appetite<'_>> = children
        .iter()
        .zip(kept)
        .map(|(c, &from)| Appetite { weight: c.weight, from, room: c.room.max(from), curve: c.curve })
        .collect();
    let sizes = lookahead(total, &parties);
    let left: Vec<f64> =
        children.iter().zip(&sizes).map(|(c, &size)| f64::from(c.weight) * (1.0 + c.curve.misses_at(size))).collect();
    let most = left.iter().copied().fold(1.0, f64::max);
    let claims: Vec<Claim> = children
        .iter()
        .zip(sizes.iter().zip(&left))
        .map(|(c, (&size, left))| {
            let weight = (left / most * f64::from(WEIGHT_MAX)) as u32;
            Claim { weight: weight.clamp(WEIGHT_MIN, WEIGHT_MAX), steps: [size, size, c.room.max(size)] }
        })
        .collect();
    fill(total, &claims)
}

impl Controller for Utility {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        let by_weight = by_weight(total, children);
        let now: Vec<u64> = children.iter().map(|c| c.now).collect();
        // a child that is new begins with what its weight gives it
        let begun: Vec<u64> = now.iter().zip(&by_weight).map(|(&n, &w)| if n == 0 { w } else { n }).collect();
        let begun = fitted(total, children, &begun);
        let wish = best(total, children, &self.kept(total, children, &by_weight));

        let weight_mean = {
            let sum: f64 = children.iter().map(|c| f64::from(c.weight)).sum();
            sum / children.len().max(1) as f64
        };
        let before = misses(children, &begun);
        let noise = (before * self.settings.noise).max((before * weight_mean).sqrt());
        let targets = if before - misses(children, &wish) <= noise {
            begun
        } else {
            slowly(total, children, &begun, &wish, (total as f64 * self.settings.pace) as u64)
        };
        let ends = targets.clone();
        Verdict::explained(children, targets, |from, to, blocks| why(children, &ends, from, to, blocks))
    }
}

fn why(children: &[ChildView<'_>], targets: &[u64], from: Option<usize>, to: Option<usize>, blocks: u64) -> Reason {
    // of what all blocks together save or cost the child, the part of these
    let part = |i: usize| {
        let (child, all) = (&children[i], targets[i].abs_diff(children[i].now));
        (child.curve.misses_at(child.now) - child.curve.misses_at(targets[i])).abs() * blocks as f64 / all as f64
    };
    let Some(to) = to else { return Reason::Fitted };
    Reason::Gain { saves: part(to), costs: from.map_or(0.0, part) }
}
