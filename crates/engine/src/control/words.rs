//! A move of shares, or a finding, in an operator's words: what was decided, what was seen, what it should bring.
//!
//! Owns the sentences. Never decides. Invariant: each reason has a sentence for what was seen; what is expected is said
//! only where a measured curve or a rule says it.

use super::event::{Event, Reason};
use std::fmt;

/// The other side of a move from or to what is free.
const NOBODY: &str = "nobody";

/// What is said of one event. The parts are sentences without a capital and a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// What was decided.
    pub decided: String,
    /// What was seen that led to it.
    pub seen: String,
    /// What it should bring, where that is known.
    pub expected: Option<String>,
}

impl Event {
    /// What is said of it; `size` says a number of blocks.
    pub fn words(&self, size: &dyn Fn(u64) -> String) -> Words {
        let giver = self.from.as_ref().map(|p| &*p.name);
        let taker = self.to.as_ref().map_or(giver.unwrap_or(NOBODY), |p| &p.name);
        Words {
            decided: self.decided(size),
            seen: self.reason.seen(giver, taker, size),
            expected: self.reason.expected(giver.unwrap_or(NOBODY), taker),
        }
    }

    fn decided(&self, size: &dyn Fn(u64) -> String) -> String {
        let moved = match (&self.from, &self.to) {
            _ if self.blocks == 0 => None,
            (Some(from), Some(to)) => Some(format!("{} gets {} from {}", to.name, size(self.blocks), from.name)),
            (None, Some(to)) => Some(format!("{} gets {} that nobody had", to.name, size(self.blocks))),
            (Some(from), None) => Some(format!("{} gives up {}", from.name, size(self.blocks))),
            (None, None) => Some(format!("{} are free", size(self.blocks))),
        };
        match (moved, self.reason.rule()) {
            (Some(moved), Some(rule)) => format!("{moved}; {rule}"),
            (Some(moved), None) => moved,
            (None, Some(rule)) => rule.to_string(),
            (None, None) => "shares stay as they are".to_string(),
        }
    }
}

impl Reason {
    /// The rule that is in force from now on, where the decision is one about rules.
    fn rule(&self) -> Option<&'static str> {
        match self {
            Self::Guarded { .. } => Some("shares go by weight, and what is not used is lent"),
            Self::Resumed { .. } => Some("space goes to where it saves misses again"),
            Self::Infeasible { needs: Some(_), .. } => Some("each goal gets its part by weight"),
            Self::Infeasible { needs: None, .. } => Some("no space is reserved for the goal"),
            _ => None,
        }
    }

    fn seen(&self, from: Option<&str>, taker: &str, size: &dyn Fn(u64) -> String) -> String {
        let giver = from.unwrap_or(NOBODY);
        match self {
            Self::ByWeight { share, weight } => {
                format!("weights, floors and demands give {taker} {}; its weight is {weight}", size(*share))
            }
            Self::Fitted => "floors, ceilings, the disks or the size of the store have changed".to_string(),
            Self::Gain { saves, .. } if from.is_none() => {
                format!("by its miss-ratio curve, {taker} misses {saves:.0} times less an interval with it")
            }
            Self::Gain { saves, costs } => format!(
                "by their miss-ratio curves, {taker} misses {saves:.0} times less an interval with it, and {giver} \
                 {costs:.0} times more without it"
            ),
            Self::Guarded { misses, by_weight } if misses.max(*by_weight) < 0.5 => {
                "nothing was missed in the last intervals, so nothing says where memory would save misses".to_string()
            }
            Self::Guarded { misses, by_weight } | Self::Resumed { misses, by_weight } => format!(
                "in the last intervals, moving memory to where it saves misses would have meant {misses:.0} misses, \
                 division by weight {by_weight:.0}"
            ),
            Self::Heavy { requests, misses, remaining } => format!(
                "{taker} is under heavy load ({requests} blocks read, {misses} missed), and {giver} left {} unused",
                size(*remaining)
            ),
            Self::Hot { intervals, remaining, giver_remaining } => format!(
                "{taker} has filled its share for {intervals} intervals ({} are left), and {giver} left {} unused",
                size(*remaining),
                size(*giver_remaining)
            ),
            Self::ReplacementNotSize { requests, misses } => {
                format!("{taker} has many misses ({misses}) with few requests ({requests})")
            }
            Self::Needed { goal, blocks } => format!("{goal} takes {taker} {}", size(*blocks)),
            Self::Infeasible { goal, needs: Some(needs), together, total } => format!(
                "{goal} takes {taker} {}, and all goals together {} where there are {}",
                size(*needs),
                size(*together),
                size(*total)
            ),
            Self::Infeasible { goal, needs: None, .. } => {
                format!("too many blocks of {taker} are asked for only once: {goal} is out of reach at any size")
            }
            Self::Grown { accesses, misses, read_ahead } => format!(
                "{taker} read {accesses} blocks and missed {misses}, {read_ahead} of them foreseen by read-ahead"
            ),
            Self::Reaped { idle } => format!("{giver} has not been used for {idle} intervals"),
        }
    }

    fn expected(&self, giver: &str, taker: &str) -> Option<String> {
        let fewer = |n: f64| match n.round() {
            n if n >= 1.0 => Some(format!("{n:.0} misses fewer an interval")),
            n if n <= -1.0 => Some(format!("{:.0} misses more an interval, of what has less weight", -n)),
            _ => None,
        };
        match self {
            Self::Gain { saves, costs } => fewer(saves - costs),
            Self::Guarded { misses, by_weight } if misses - by_weight >= 1.0 => fewer(misses - by_weight),
            Self::Resumed { misses, by_weight } if by_weight - misses >= 1.0 => fewer(by_weight - misses),
            Self::Heavy { .. } | Self::Hot { .. } => {
                Some(format!("fewer misses of {taker}, and none more of {giver}, which did not use it"))
            }
            Self::ReplacementNotSize { .. } => {
                Some(format!("more memory will not help {taker}; another replacement policy may"))
            }
            Self::Needed { goal, .. } => Some(format!("{taker} reaches {goal}")),
            Self::Infeasible { goal, .. } => Some(format!("{taker} does not reach {goal}")),
            Self::Reaped { .. } => Some("no more misses: nobody asked for it".to_string()),
            Self::ByWeight { .. } | Self::Fitted | Self::Guarded { .. } | Self::Resumed { .. } | Self::Grown { .. } => {
                None
            }
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words { decided, seen, expected } = self.words(&|blocks| format!("{blocks} blocks"));
        write!(f, "{decided}: {seen}")?;
        expected.map_or(Ok(()), |e| write!(f, "; expected: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Goal, Party};
    use super::*;
    use crate::shares::Tree;

    fn event(from: bool, to: bool, blocks: u64, reason: Reason) -> String {
        let node = Tree::new("host", 1).root();
        let party = |name: &str| Party { node, name: name.into() };
        let event = Event {
            sequence: 0,
            interval: 0,
            node: party("host"),
            from: from.then(|| party("db")),
            to: to.then(|| party("web")),
            blocks,
            reason,
        };
        event.to_string()
    }

    #[test]
    fn a_move_says_what_was_decided_seen_and_expected() {
        assert_eq!(
            event(true, true, 469, Reason::Gain { saves: 938.0, costs: 234.0 }),
            "web gets 469 blocks from db: by their miss-ratio curves, web misses 938 times less an interval with it, \
             and db 234 times more without it; expected: 704 misses fewer an interval"
        );
        assert_eq!(
            event(false, true, 7, Reason::Gain { saves: 9.0, costs: 0.0 }),
            "web gets 7 blocks that nobody had: by its miss-ratio curve, web misses 9 times less an interval with it; \
             expected: 9 misses fewer an interval"
        );
        assert_eq!(
            event(true, false, 7, Reason::Fitted),
            "db gives up 7 blocks: floors, ceilings, the disks or the size of the store have changed"
        );
    }

    #[test]
    fn a_finding_moves_nothing_and_names_what_is_left_to_do() {
        let goal = Goal::HitRatio(0.8);
        let none = event(false, true, 0, Reason::Infeasible { goal, needs: None, together: 0, total: 9 });
        assert!(none.starts_with("no space is reserved for the goal: too many blocks of web"), "{none}");
        assert!(none.ends_with("expected: web does not reach a hit ratio of 80.0 %"), "{none}");
        let policy = event(false, true, 0, Reason::ReplacementNotSize { requests: 100, misses: 90 });
        assert!(policy.starts_with("shares stay as they are: web has many misses (90)"), "{policy}");
        assert!(policy.contains("another replacement policy may"), "{policy}");
    }

    #[test]
    fn a_guard_is_expected_to_save_what_moving_would_have_cost_and_no_more() {
        let guarded = |misses, by_weight| event(true, true, 5, Reason::Guarded { misses, by_weight });
        assert!(guarded(900.0, 400.0).ends_with("expected: 500 misses fewer an interval"));
        assert!(!guarded(400.0, 900.0).contains("expected"), "what does not pay is not promised");
        assert!(
            guarded(0.0, 0.0).contains(": nothing was missed in the last intervals"),
            "there is nothing to compare"
        );
    }
}
