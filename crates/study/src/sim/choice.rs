//! Lists of policies as people write them, such as `lru,arc`, `disk` or `all`.
//!
//! Owns the notation, for the command line and for Python. Never acts. Invariant: a list names each policy once.

use crate::sim::rule::{NoSuchRule, Rule};
use std::str::FromStr;
use undercroft_engine::{AnyPolicyKind, PolicyKind};

/// Policies, as people list them: `lru,arc`, `disk` for those that a disk may have, `all`, `opt`, or `probability` for
/// both rules of that name; `all` is without the last two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(pub Vec<Rule>);

impl FromStr for Policies {
    type Err = NoSuchRule;

    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(text: &str) -> Result<Self, NoSuchRule> {
        let mut kinds = vec![];
        for word in text.split(',').map(str::trim) {
            match word {
                "all" => kinds.extend(AnyPolicyKind::ALL.map(Rule::Policy)),
                "disk" => kinds.extend(PolicyKind::ALL.map(Rule::from)),
                "probability" => kinds.extend(Rule::PROBABILITY),
                _ => kinds.push(word.parse()?),
            }
        }
        Ok(Policies(without_repeats(kinds)))
    }
}

/// OPT, or replacement by probability, was asked for where only policies can be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is for single caches on a trace; leave it out here")]
pub struct OptNotHere(pub Rule);

/// These, if they are policies.
///
/// # Errors
/// One of them has to know the trace.
pub fn only_policies(rules: impl IntoIterator<Item = Rule>) -> Result<Vec<AnyPolicyKind>, OptNotHere> {
    rules.into_iter().map(|rule| rule.policy().ok_or(OptNotHere(rule))).collect()
}

/// The same ones, each where it stands first.
pub fn without_repeats<T: PartialEq>(kinds: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = vec![];
    for kind in kinds {
        if !once.contains(&kind) {
            once.push(kind);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_listed_once() {
        let list = |text: &str| text.parse::<Policies>().map(|p| p.0);
        assert_eq!(list("lru, arc,LRU,opt"), Ok(vec![PolicyKind::Lru.into(), PolicyKind::Arc.into(), Rule::OPT[0]]));
        assert!(only_policies(list("lru,opt").expect("known")).expect_err("OPT").to_string().starts_with("opt is for"));
        assert_eq!(list("disk,lru").map(|p| p.len()), Ok(PolicyKind::ALL.len()));
        assert_eq!(list("all").map(|p| p.len()), Ok(AnyPolicyKind::ALL.len()));
        assert!(list("lru,lur").expect_err("no such policy").to_string().contains("known are fifo, lru"));
        assert_eq!(list("probability,PROBABILITY-AGED"), Ok(Rule::PROBABILITY.into()));
        assert!(list("").is_err());
    }
}
