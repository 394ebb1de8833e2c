//! `grow = "paper"`: the growth rule of the per-file page cache, and its reaper.
//!
//! Owns how long each child has been idle. Never looks at a curve. Invariant: only the reaper makes a share smaller,
//! and it takes first from what has been idle longest.
//!
//! Sharma, Page Cache Management in Virtualized Environments (IIT Bombay), chapter 5, algorithm 4, `expand_file`. Its
//! code computes a marginal utility, accesses / (misses + read-ahead successes + 1), for the file and for all, and then
//! does not use them; its text says that a file grows if its utility is above the average. Here both hold: the amount
//! is the code's, the condition the text's. (The text's equation 5.6 has utility rise with misses, against the code and
//! against the rest of the text; the code's is used.) `small` files, which the code refuses, are children hinted
//! `noreuse` here.

use super::Controller;
use super::event::Reason;
use super::view::{ChildView, Verdict};
use crate::shares::{Hint, NodeId};
use std::collections::BTreeMap;

/// Misses between two calls of the rule (the code's `CAR_MISS_DELAY`; its comment says "say, 10").
const MISS_DELAY: u64 = 10;

/// Blocks by which a file may grow after so many accesses and misses: algorithm 4 as printed.
pub(super) fn expand_file(accesses: u64, misses: u64, hint: Hint) -> u64 {
    if matches!(hint, Hint::NoReuse | Hint::DontNeed) {
        return 0;
    }
    (MISS_DELAY / 2).saturating_mul(accesses.saturating_add(misses)) / (misses.saturating_add(1))
}

/// See the head of the file.
#[derive(Clone, Debug, Default)]
pub struct Paper {
    idle: BTreeMap<NodeId, u32>,
}

impl Controller for Paper {
    fn decide(&mut self, total: u64, children: &[ChildView<'_>]) -> Verdict {
        self.idle.retain(|node, _| children.iter().any(|c| c.node == *node));
        for child in children {
            let idle = self.idle.entry(child.node).or_default();
            *idle = if child.seen.requests == 0 { idle.saturating_add(1) } else { 0 };
        }
        let idle = |i: usize| self.idle[&children[i].node];

        // a file begins small
        let least = (total / (16 * children.len().max(1) as u64)).max(1);
        let begun: Vec<u64> = children.iter().map(|c| c.now.max(c.floor).max(least).min(c.room)).collect();
        let claims: Vec<_> = children
            .iter()
            .zip(&begun)
            .map(|(c, &b)| {
                let floor = c.floor.min(b);
                crate::shares::Claim { weight: c.weight, steps: [floor, b, b] }
            })
            .collect();
        let mut sizes = crate::shares::fill(total, &claims);
        let mut free = total - sizes.iter().sum::<u64>();

        // accesses for each miss and each read-ahead that was right, one more so that there is one: high is good
        let utility = |accesses: u64, bad: u64, files: u64| accesses as f64 / (bad + files).max(1) as f64;
        let bad = |c: &ChildView<'_>| c.seen.misses + c.seen.read_ahead_hits;
        let used = children.iter().filter(|c| c.seen.requests > 0);
        let (accesses, all_bad, files) = used.fold((0, 0, 0), |(a, b, n), c| (a + c.seen.requests, b + bad(c), n + 1));
        // files that are alike are all average
        let of_all = utility(accesses, all_bad, files);
        let own: Vec<f64> = children.iter().map(|c| utility(c.seen.requests, bad(c), 1)).collect();

        let mut askers: Vec<usize> = (0..children.len()).filter(|&i| own[i] >= of_all).collect();
        askers.sort_by(|&a, &b| own[b].total_cmp(&own[a]).then(a.cmp(&b)));
        for i in askers {
            let seen = &children[i].seen;
            let calls = seen.misses / MISS_DELAY;
            if calls == 0 {
                continue;
            }
            let wanted = calls.saturating_mul(expand_file(seen.requests / calls, MISS_DELAY, children[i].hint));
            let mut wanted = wanted.min(children[i].room.saturating_sub(sizes[i]));
            let granted = wanted.min(free);
            free -= granted;
            wanted -= granted;
            sizes[i] += granted;
            // the reaper: the one idle longest, then the one with the least utility
            let mut givers: Vec<usize> =
                (0..children.len()).filter(|&g| g != i && (idle(g) > 0 || own[g] < of_all)).collect();
            givers.sort_by(|&a, &b| idle(b).cmp(&idle(a)).then(own[a].total_cmp(&own[b])).then(a.cmp(&b)));
            for g in givers {
                let taken = wanted.min(sizes[g].saturating_sub(children[g].floor.max(least)));
                sizes[g] -= taken;
                sizes[i] += taken;
                wanted -= taken;
            }
        }
        Verdict::explained(children, sizes, |from, to, _| match (from, to) {
            (Some(from), _) if idle(from) > 0 => Reason::Reaped { idle: idle(from) },
            (_, Some(to)) => {
                let seen = &children[to].seen;
                Reason::Grown { accesses: seen.requests, misses: seen.misses, read_ahead: seen.read_ahead_hits }
            }
            _ => Reason::Fitted,
        })
    }
}
