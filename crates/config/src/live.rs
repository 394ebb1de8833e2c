//! What can change while the daemon runs, and what is set now.
//!
//! Owns the shapes. Never applies a change: `change` makes a new plan of it.

use super::written::Written;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use undercroft_units::Size;
use utoipa::ToSchema;

/// What is changed by hand of a disk, a VM, a container or the host; what is not named stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeChange {
    values: BTreeMap<&'static str, Written>,
    /// What is not named goes back to what holds where nothing is set.
    pub replace: bool,
    /// A size stays where it is set, and what would take its place is refused: whoever asks may not set sizes.
    keeps_size: bool,
}

impl NodeChange {
    /// The same with `key` set to a value of its kind.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: Written) -> Self {
        self.values.insert(key, value);
        self
    }

    /// The same, but what is not named goes back to what holds where nothing is set.
    #[must_use]
    pub fn replacing(self) -> Self {
        Self { replace: true, ..self }
    }

    /// The same for somebody who may not set sizes, nor take one away.
    #[must_use]
    pub fn keeping_size(self) -> Self {
        Self { keeps_size: true, ..self }
    }

    /// Whether a size stays where it is set.
    pub(crate) fn keeps_size(&self) -> bool {
        self.keeps_size
    }

    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether one of `keys` is named.
    pub fn touches(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.values.contains_key(key))
    }

    /// The keys that are named.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    /// They with their values.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, Written)> {
        self.values.iter().map(|(key, value)| (*key, value.clone()))
    }
}

/// What is set for a node of the tree of shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSet {
    /// Its weight against its siblings, where they want more than there is.
    pub weight: u32,
    /// What it gets whenever it can make use of it, however much others want; in bytes.
    pub floor_bytes: u64,
    /// The most that it may ever have, in bytes.
    pub ceiling_bytes: Option<u64>,
    /// A disk: its share, if that is fixed.
    pub fixed_bytes: Option<u64>,
    /// Every key that is set by hand, as it is written.
    pub keys: BTreeMap<&'static str, String>,
}

/// What is set for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeSettings {
    /// Its weight against its siblings, where they want more than there is.
    pub weight: u32,
    /// Its floor as it is set; what its disks need at least is not in it.
    pub floor_bytes: u64,
    /// The most that it may ever have.
    pub ceiling_bytes: Option<u64>,
    /// The controller that divides its share, if one is set here.
    pub controller: Option<String>,
    /// What it is meant to reach.
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
    /// Every key that is set by hand, as the configuration writes it; `none` and `inherit` where nothing is set.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The version of all this.
    pub version: u64,
}

impl NodeSettings {
    /// As it is set in a plan.
    pub fn new(set: &NodeSet, version: u64) -> Self {
        let word = |key: &str| set.keys.get(key).filter(|w| !matches!(w.as_str(), "none" | "inherit")).cloned();
        Self {
            weight: set.weight,
            floor_bytes: set.floor_bytes,
            ceiling_bytes: set.ceiling_bytes,
            controller: word("controller"),
            goal: word("goal"),
            policy: word("policy"),
            store: word("store"),
            hint: word("hint"),
            size_bytes: set.fixed_bytes,
            keys: set.keys.iter().map(|(key, value)| (key.to_string(), value.clone())).collect(),
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
        self.hint.iter().filter(|h| *h != "normal").try_for_each(|h| write!(f, ", hint {h}"))
    }
}
