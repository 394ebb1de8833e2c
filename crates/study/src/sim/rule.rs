//! The rule of eviction of a simulated cache: a policy of the engine, or one that has to know the trace: OPT, which
//! knows the future, and replacement by probability, which knows how long it is.
//!
//! Owns the names of all. Never decides. Invariant: each rule has one name, and no two the same.

use std::fmt;
use std::str::FromStr;
use undercroft_engine::opt::OptAdmission;
use undercroft_engine::probability::ProbabilityRule;
use undercroft_engine::{AnyPolicyKind, PolicyKind, UnknownName};

/// The rule of eviction of a simulated cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A policy.
    Policy(AnyPolicyKind),
    /// The fewest misses that any policy can have (Belady 1966), which takes the whole trace in memory.
    Opt(OptAdmission),
    /// Replacement by probability, whose window is a tenth of the trace, which is kept in memory as for OPT.
    Probability(ProbabilityRule),
}

impl Rule {
    /// Replacement by probability, to the letter of its source and with ageing.
    pub(crate) const PROBABILITY: [Rule; 2] =
        [Rule::Probability(ProbabilityRule::Literal), Rule::Probability(ProbabilityRule::Aged)];

    /// OPT, with and without the choice to leave a block out of the cache.
    pub(crate) const OPT: [Rule; 2] = [Rule::Opt(OptAdmission::Always), Rule::Opt(OptAdmission::Bypass)];

    /// The name that people and programs use.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Policy(kind) => kind.name(),
            Rule::Opt(OptAdmission::Always) => "opt",
            Rule::Opt(OptAdmission::Bypass) => "opt-bypass",
            Rule::Probability(rule) => rule.name(),
        }
    }

    /// The policy, if it is one.
    pub fn policy(self) -> Option<AnyPolicyKind> {
        match self {
            Rule::Policy(kind) => Some(kind),
            Rule::Opt(_) | Rule::Probability(_) => None,
        }
    }
}

impl From<AnyPolicyKind> for Rule {
    fn from(kind: AnyPolicyKind) -> Self {
        Rule::Policy(kind)
    }
}

impl From<PolicyKind> for Rule {
    fn from(kind: PolicyKind) -> Self {
        Rule::Policy(kind.into())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no rule has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{policies}; beside policies, for traces alone: opt, opt-bypass, probability-literal and probability-aged")]
pub struct NoSuchRule {
    /// What the policies have to say of the name: those there are.
    policies: String,
}

impl FromStr for Rule {
    type Err = NoSuchRule;

    /// # Errors
    /// A sentence that lists the known names.
    fn from_str(name: &str) -> Result<Self, NoSuchRule> {
        let mut knowing = Rule::OPT.into_iter().chain(Rule::PROBABILITY);
        let known = knowing.find(|r| r.name().eq_ignore_ascii_case(name));
        known
            .map_or_else(|| name.parse().map(Rule::Policy), Ok)
            .map_err(|e: UnknownName| NoSuchRule { policies: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_read_back_by_its_name() {
        for rule in AnyPolicyKind::ALL.into_iter().map(Rule::Policy).chain(Rule::OPT).chain(Rule::PROBABILITY) {
            assert_eq!(rule.to_string().parse(), Ok(rule));
            assert_eq!(rule.name().to_uppercase().parse(), Ok(rule));
        }
        let said = "optt".parse::<Rule>().expect_err("no such rule").to_string();
        assert!(said.contains("known are fifo, lru") && said.contains("opt-bypass"), "{said}");
    }
}
