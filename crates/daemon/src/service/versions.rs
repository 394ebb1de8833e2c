//! Versions of what is set for each node: a writer that names an old version is refused, so that two writers do not
//! overwrite each other's changes.
//!
//! Owns the numbers. Never changes a setting. Invariants: the version of a node rises whenever what is set for it
//! differs from when it was looked at last, by the API or by a reload; a version is never used for two settings, also
//! by the next daemon.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use undercroft_config::NodeSettings;
use undercroft_config::{NodeSet, ServePlan};

/// See the head of the file.
pub(super) struct Versions {
    /// The last one given.
    last: u64,
    nodes: BTreeMap<String, (NodeSet, u64)>,
}

impl Default for Versions {
    /// Begins with the time, so that no version of a daemon before is a version of this one.
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { last: u64::try_from(since.as_millis()).unwrap_or_default(), nodes: BTreeMap::new() }
    }
}

impl Versions {
    /// Looks at what is set now.
    pub(super) fn observe(&mut self, plan: &ServePlan) {
        let now = plan.settings();
        self.nodes.retain(|name, _| now.contains_key(name));
        for (name, set) in now {
            if self.nodes.get(&name).is_none_or(|(had, _)| *had != set) {
                self.last += 1;
                self.nodes.insert(name, (set, self.last));
            }
        }
    }

    /// What is set for a node, as it was observed last.
    pub(super) fn of(&self, name: &str) -> Option<NodeSettings> {
        self.nodes.get(name).map(|(set, version)| NodeSettings::new(set, *version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_config::{Machine, NodePlan, ServeSpec, resolve};

    #[test]
    fn a_version_rises_with_every_change_and_with_nothing_else() {
        let mut plan = resolve(&ServeSpec::default(), &Machine::here(), Vec::new()).plan;
        plan.nodes = vec![NodePlan::new("web"), NodePlan::new("db")];
        let mut versions = Versions::default();
        let mut look = |plan: &ServePlan| {
            versions.observe(plan);
            ["web", "db"].map(|n| versions.of(n).map(|s| s.version))
        };
        let [web, db] = look(&plan);
        assert_eq!(look(&plan), [web, db]);
        plan.nodes[0].weight = 200;
        let [changed, same] = look(&plan);
        assert!(changed > web && changed > db && same == db);
        plan.nodes[0].weight = 100;
        let [back, _] = look(&plan);
        assert!(back > changed, "a version was used again");
        let gone = plan.nodes.remove(0);
        assert_eq!(look(&plan), [None, db]);
        plan.nodes.push(gone);
        assert!(look(&plan)[0] > back, "a node that came back has an old version");
    }
}
