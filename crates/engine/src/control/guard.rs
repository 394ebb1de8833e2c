//! Whether moving blocks pays: misses of late against what shares by weight would have had.
//!
//! Owns a shadow of the shares by weight: how full each would be, and its misses by the same curves. Never moves anything.
//! Invariant: both sides are judged by the same curve of the same interval, so an error of the curves hits both alike.

use super::view::ChildView;
use crate::shares::NodeId;

/// What of the past counts in an interval: about ten intervals are remembered.
const KEEP: f64 = 0.9;
/// How much worse than the shadow is too much.
const WORSE: f64 = 1.01;
/// The longest pause, in intervals.
const PAUSE_MAX: u32 = 64;
/// Intervals without being worse after which the next pause is short again.
const GOOD: u32 = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    shadows: Vec<Shadow>,
    misses: f64,
    by_weight: f64,
    paused: u32,
    pause: u32,
    good: u32,
}

#[derive(Clone, Debug)]
struct Shadow {
    node: NodeId,
    /// What the child held when the interval began, and what it would have held.
    held: u64,
    would: f64,
}

/// What the guard found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Finding {
    pub misses: f64,
    pub by_weight: f64,
    pub pause: u32,
}

impl Guard {
    /// An interval has passed; `by_weight` are the shares by weight. Whether shares are to go by weight now.
    pub fn interval(&mut self, children: &[ChildView<'_>], by_weight: &[u64]) -> Option<Finding> {
        let mut shadows = Vec::with_capacity(children.len());
        let (mut misses, mut shadow_misses) = (0.0, 0.0);
        for (child, &share) in children.iter().zip(by_weight) {
            let weight = f64::from(child.weight);
            let before = self.shadows.iter().find(|s| s.node == child.node);
            let (held, would) = before.map_or((0, 0.0), |s| (s.held, s.would.min(share as f64)));
            // the mean of its begin and its end
            let real = (child.curve.at(held) + child.curve.at(child.held)) / 2.0;
            // it fills by its misses
            let fills = child.curve.at(would as u64);
            let end = (would + fills).min(share as f64);
            let shadow = (fills + child.curve.at(end as u64)) / 2.0;
            misses += weight * real;
            shadow_misses += weight * shadow;
            shadows.push(Shadow { node: child.node, held: child.held, would: end });
        }
        self.shadows = shadows;
        self.misses = self.misses * KEEP + misses;
        self.by_weight = self.by_weight * KEEP + shadow_misses;
        if self.paused > 0 {
            self.paused -= 1;
            // while it pauses nothing is to be blamed on moves
            self.misses = self.misses.min(self.by_weight);
            return Some(self.finding());
        }
        let noise = self.by_weight.max(0.0).sqrt();
        if self.misses > self.by_weight * WORSE + noise {
            self.pause = (self.pause * 2).clamp(1, PAUSE_MAX);
            self.paused = self.pause;
            self.good = 0;
            let finding = self.finding();
            self.misses = self.by_weight;
            return Some(finding);
        }
        self.good += 1;
        if self.good >= GOOD {
            self.pause = 0;
        }
        None
    }

    fn finding(&self) -> Finding {
        Finding { misses: self.misses, by_weight: self.by_weight, pause: self.paused }
    }
}
