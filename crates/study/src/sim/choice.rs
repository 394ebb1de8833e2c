//! Policies and sizes as people list them.
//!
//! Owns the two notations, for the command line and for Python. Never acts. Invariant: a list names each policy once.

use crate::sim::rule::Rule;
use std::str::FromStr;
use undercroft_engine::PolicyKind;
use undercroft_units::{CacheSize, UnitError};

/// Policies, as people list them: `lru,arc`, `disk` for those that a disk may have, `all`, or `opt`, which `all` is
/// without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(pub Vec<Rule>);

impl FromStr for Policies {
    type Err = String;

    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut kinds = vec![];
        for word in text.split(',').map(str::trim) {
            match word {
                "all" => kinds.extend(PolicyKind::every().map(Rule::Policy)),
                "disk" => kinds.extend(PolicyKind::ALL.map(Rule::Policy)),
                _ => kinds.push(word.parse()?),
            }
        }
        Ok(Policies(without_repeats(kinds)))
    }
}

/// A size of a simulated cache: `1GiB`, `10%` of the footprint, `1000blocks`.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSize {
    /// As it was written.
    pub text: String,
    /// What it means.
    pub size: CacheSize,
}

impl FromStr for SimSize {
    type Err = String;

    /// # Errors
    /// A sentence that says what to write instead.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let size = text.parse().map_err(|e: UnitError| e.to_string())?;
        Ok(SimSize { text: text.to_string(), size })
    }
}

/// These without OPT.
///
/// # Errors
/// OPT is among them: a sentence that says where it can be had.
pub fn only_policies(rules: impl IntoIterator<Item = Rule>) -> Result<Vec<PolicyKind>, String> {
    let one =
        |rule: Rule| rule.policy().ok_or_else(|| format!("{rule} is for single caches on a trace; leave it out here"));
    rules.into_iter().map(one).collect()
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
        assert!(only_policies(list("lru,opt").expect("known")).expect_err("OPT").starts_with("opt is for"));
        assert_eq!(list("disk,lru").map(|p| p.len()), Ok(PolicyKind::ALL.len()));
        assert_eq!(list("all").map(|p| p.len()), Ok(PolicyKind::ALL.len() + PolicyKind::STUDIED.len()));
        assert!(list("lru,lur").expect_err("no such policy").contains("known are fifo, lru"));
        assert!(list("").is_err());
    }
}
