//! The controller `static`: shares by weight, and what a child does not demand is lent to others.
//!
//! Owns nothing. Invariant: targets depend on settings and demands only.

use super::Controller;
use super::event::Reason;
use super::view::{ChildView, Verdict, by_weight};

/// See the head of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    /// Whether what a child does not demand stays with it: strict partitions.
    pub strict: bool,
}

impl Controller for Fixed {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        let targets = if self.strict {
            by_weight(total, children)
        } else {
            let claims: Vec<_> = children
                .iter()
                .map(|c| {
                    let demand = c.demand.min(c.room);
                    crate::shares::Claim { weight: c.weight, steps: [c.floor.min(demand), demand, c.room] }
                })
                .collect();
            crate::shares::fill(total, &claims)
        };
        let shares = targets.clone();
        Verdict::explained(children, targets, |_, to, _| match to {
            Some(to) => Reason::ByWeight { share: shares[to], weight: children[to].weight },
            None => Reason::Fitted,
        })
    }
}
