//! The controller `donor`: thin provisioning. Children under heavy load borrow space from children under light load;
//! the thresholds between the two are called marks.
//!
//! Owns the marks and how long each child has been hot. Looks at a curve only to learn the marks.
//! Invariant: a share is never taken below the quantum or the floor.
//!
//! Suryanarayana, Balasubramanya and Pendse, Cache Isolation and Thin Provisioning of Hypervisor Caches (LCN 2012),
//! with what they leave open made precise: for C blocks and N children the quantum Q is C / (16 N), which is also the
//! least share. The marks of a child are 0.75 times its mean requests and misses in heavy intervals, the top quarter by
//! requests, at a share by weight. U = min(share, distinct blocks asked for); remaining = share - U; hot = intervals in
//! a row with U above 2 Q.
//! - borrower: requests and misses above the marks; or hot for two intervals, less than 2 Q remaining, and not both
//!   below;
//! - donor: not a borrower, requests below the mark, and misses below the mark or more than 2 Q remaining;
//! - requests below and misses above the mark, and no donor: replacement, not size.
//!
//! In each of 1 to 4 rounds the borrowers, most misses first, take Q from the donor with most remaining.

use super::Controller;
use super::event::Reason;
use super::view::{ChildView, Move, Verdict, by_weight, fitted};
use crate::shares::NodeId;
use std::collections::{BTreeMap, VecDeque};

/// Above these a child is under heavy load, per interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Requests.
    pub requests: f64,
    /// Misses.
    pub misses: f64,
}

/// The mark of heavy load as part of the mean of heavy intervals.
const MARK: f64 = 0.75;
/// Intervals that are remembered to learn the marks from.
const REMEMBERED: usize = 256;

impl Thresholds {
    /// From requests and misses of intervals at a share by weight. Without intervals everything counts as heavy.
    pub fn learned(intervals: impl IntoIterator<Item = (u64, f64)>) -> Self {
        let mut intervals: Vec<(u64, f64)> = intervals.into_iter().collect();
        intervals.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
        intervals.truncate(intervals.len().div_ceil(4));
        let n = intervals.len().max(1) as f64;
        let requests = intervals.iter().map(|i| i.0 as f64).sum::<f64>() / n;
        let misses = intervals.iter().map(|i| i.1).sum::<f64>() / n;
        Self { requests: MARK * requests, misses: MARK * misses }
    }
}

#[derive(Clone, Debug, Default)]
struct Child {
    given: Option<Thresholds>,
    seen: VecDeque<(u64, f64)>,
    hot: u32,
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Donor {
    rounds: u32,
    children: BTreeMap<NodeId, Child>,
}

impl Donor {
    /// With 1 to 4 rounds an interval; what is beyond is taken as the nearest.
    pub fn new(rounds: u32) -> Self {
        Self { rounds: rounds.clamp(1, 4), children: BTreeMap::new() }
    }

    /// Sets a child's thresholds, which are otherwise learned while it runs.
    pub fn set_thresholds(&mut self, node: NodeId, thresholds: Thresholds) {
        self.children.entry(node).or_default().given = Some(thresholds);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Borrower,
    Donor,
    None,
}

impl Controller for Donor {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        let equal = by_weight(total, children);
        self.children.retain(|node, child| child.given.is_some() || children.iter().any(|c| c.node == *node));
        let begun: Vec<u64> = children.iter().zip(&equal).map(|(c, &w)| if c.now == 0 { w } else { c.now }).collect();
        let mut shares = fitted(total, children, &begun);
        let quantum = (total / (16 * children.len().max(1) as u64)).max(1);

        let mut roles = vec![Role::None; children.len()];
        let mut remaining = vec![0; children.len()];
        let mut reasons = vec![None; children.len()];
        let mut findings = vec![];
        for (i, child) in children.iter().enumerate() {
            let state = self.children.entry(child.node).or_default();
            let (requests, misses) = (child.seen.requests, child.seen.waited());
            if state.seen.len() == REMEMBERED {
                state.seen.pop_front();
            }
            // at a share by weight, as far as the curve knows; a flat one knows nothing
            let known = child.curve.points().len() > 1;
            state.seen.push_back((requests, if known { child.curve.misses_at(equal[i]) } else { misses as f64 }));
            let marks = state.given.unwrap_or_else(|| Thresholds::learned(state.seen.iter().copied()));
            let used = shares[i].min(child.seen.distinct);
            remaining[i] = shares[i] - used;
            state.hot = if used > 2 * quantum { state.hot + 1 } else { 0 };

            let (many, few) = (requests as f64 > marks.requests, (requests as f64) < marks.requests);
            let (missing, hitting) = (misses as f64 > marks.misses, (misses as f64) < marks.misses);
            let hot = state.hot >= 2 && remaining[i] < 2 * quantum && !(few && hitting);
            if many && missing {
                (roles[i], reasons[i]) = (Role::Borrower, Some(None));
            } else if hot {
                (roles[i], reasons[i]) = (Role::Borrower, Some(Some(state.hot)));
            } else if few && (hitting || remaining[i] > 2 * quantum) {
                roles[i] = Role::Donor;
            } else if few && missing {
                findings.push(Move {
                    from: None,
                    to: Some(i),
                    blocks: 0,
                    reason: Reason::ReplacementNotSize { requests, misses },
                });
            }
        }

        let mut borrowers: Vec<usize> = (0..children.len()).filter(|&i| roles[i] == Role::Borrower).collect();
        borrowers.sort_by_key(|&i| (std::cmp::Reverse(children[i].seen.waited()), i));
        let before = remaining.clone();
        for _ in 0..self.rounds {
            for &to in &borrowers {
                if shares[to] + quantum > children[to].room {
                    continue;
                }
                let donor = (0..children.len())
                    .filter(|&i| roles[i] == Role::Donor && remaining[i] > 0)
                    .filter(|&i| shares[i] >= quantum + quantum.max(children[i].floor))
                    .max_by_key(|&i| (remaining[i], std::cmp::Reverse(i)));
                let Some(from) = donor else { break };
                shares[from] -= quantum;
                shares[to] += quantum;
                remaining[from] = remaining[from].saturating_sub(quantum);
            }
        }
        let mut verdict = Verdict::explained(children, shares, |from, to, _| match (from, to) {
            (Some(from), Some(to)) if reasons[to].is_some() => match reasons[to] {
                Some(Some(intervals)) => {
                    Reason::Hot { intervals, remaining: before[to], giver_remaining: before[from] }
                }
                _ => Reason::Heavy {
                    requests: children[to].seen.requests,
                    misses: children[to].seen.waited(),
                    remaining: before[from],
                },
            },
            _ => Reason::Fitted,
        });
        verdict.moves.extend(findings);
        verdict
    }
}
