//! What can change while the daemon runs, and what is set now.
//!
//! Owns the shapes. Never applies a change: `change` makes a new plan of it.

use crate::{GoalPlan, NodeSet, StoreChoice};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use undercroft_engine::PolicyKind;
use undercroft_engine::control::ControllerKind;
use undercroft_engine::shares::Hint;
use undercroft_units::Size;
use utoipa::ToSchema;

/// What can change on a disk while it serves; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskChange {
    /// New share of the store in bytes, metadata included; becomes fixed.
    pub share_bytes: Option<u64>,
    /// New replacement policy; cached blocks stay where the policy can take them over.
    pub policy: Option<PolicyKind>,
    /// New bound of polling; zero is off.
    pub poll: Option<Duration>,
}

/// What can change on a node; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// New weight.
    pub weight: Option<u32>,
    /// New floor, in bytes.
    pub floor_bytes: Option<u64>,
    /// New ceiling, in bytes; none at all.
    pub ceiling_bytes: Option<Option<u64>>,
    /// New controller of its share; as above it.
    pub controller: Option<Option<ControllerKind>>,
    /// New goal; none.
    pub goal: Option<Option<GoalPlan>>,
    /// New replacement policy; that of what is above it.
    pub policy: Option<Option<PolicyKind>>,
    /// New choice of stores; that of what is above it.
    pub store: Option<Option<StoreChoice>>,
    /// A disk: how it will be used.
    pub hint: Option<Hint>,
    /// What is `None` goes back to what holds where nothing is set.
    pub replace: bool,
}

/// What is set for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSettings {
    /// Its part of what its siblings and it contend for.
    pub weight: u32,
    /// What it has whenever it wants it, as it is set; what its disks need at least is not in it.
    pub floor_bytes: u64,
    /// What it never has more of.
    pub ceiling_bytes: Option<u64>,
    /// Who divides its share, if that is set here.
    pub controller: Option<String>,
    /// What it is to reach.
    #[serde(default)]
    pub goal: Option<String>,
    /// The replacement policy that is set here.
    #[serde(default)]
    pub policy: Option<String>,
    /// The stores that are set here.
    #[serde(default)]
    pub store: Option<String>,
    /// A disk: how it will be used.
    #[serde(default)]
    pub hint: Option<String>,
    /// A disk: its share, if that is fixed.
    pub size_bytes: Option<u64>,
    /// The version of all this.
    pub version: u64,
}

impl NodeSettings {
    /// As it is set in a plan.
    pub fn new(set: &NodeSet, version: u64) -> Self {
        Self {
            weight: set.weight,
            floor_bytes: set.floor_bytes,
            ceiling_bytes: set.ceiling_bytes,
            controller: set.controller.map(|c| c.name().to_string()),
            goal: set.goal.map(|g| g.to_string()),
            policy: set.policy.map(|p| p.name().to_string()),
            store: set.store.map(|s| s.to_string()),
            hint: set.hint.map(|h| h.to_string()),
            size_bytes: set.fixed_bytes,
            version,
        }
    }
}

impl fmt::Display for NodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ceiling = self.ceiling_bytes.map_or("none".to_string(), |c| Size(c).to_string());
        write!(f, "weight {}, floor {}, ceiling {ceiling}", self.weight, Size(self.floor_bytes))?;
        self.size_bytes.iter().try_for_each(|s| write!(f, ", size {}", Size(*s)))?;
        self.controller.iter().try_for_each(|c| write!(f, ", divided by {c}"))?;
        self.goal.iter().try_for_each(|g| write!(f, ", goal {g}"))?;
        self.policy.iter().try_for_each(|p| write!(f, ", policy {p}"))?;
        self.store.iter().try_for_each(|s| write!(f, ", store {s}"))?;
        self.hint.iter().filter(|h| *h != Hint::Normal.name()).try_for_each(|h| write!(f, ", hint {h}"))
    }
}
