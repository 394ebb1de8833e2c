//! What a run finds wrong, and how it is told.
//!
//! Owns the errors of the simulation. Never judges. Invariant: what is told is enough to run the same again.

use crate::model::Contradiction;
use crate::sim_disk::ContractBroken;

/// Something that must not happen, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

impl From<String> for Violation {
    fn from(what: String) -> Self {
        Self(what)
    }
}

impl From<Contradiction> for Violation {
    fn from(what: Contradiction) -> Self {
        Self(what.to_string())
    }
}

impl From<ContractBroken> for Violation {
    fn from(what: ContractBroken) -> Self {
        Self(what.to_string())
    }
}

/// A run that failed: where, why, and the last events before it if they were noted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step}: {what}\n{}", log.join("\n"))]
pub struct RunFailed {
    /// The step.
    pub step: u64,
    /// What was wrong: a violation, or an assertion that did not hold.
    pub what: Violation,
    /// The last events.
    pub log: Vec<String>,
}

/// A plan that finds something wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFailed {
    /// And does so again, with notes.
    #[error("seed {seed}: {first}\n{again}")]
    Again {
        /// The seed.
        seed: u64,
        /// The first run.
        first: RunFailed,
        /// The second, with notes.
        again: RunFailed,
    },
    /// But not the second time.
    #[error("seed {seed}: {first}\n(the second run found nothing: not deterministic)")]
    Once {
        /// The seed.
        seed: u64,
        /// The first run.
        first: RunFailed,
    },
}
