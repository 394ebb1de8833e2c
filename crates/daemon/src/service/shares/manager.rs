//! What is known of shares between two intervals: the tree, what disks did, and where shares go.
//!
//! Owns the tree's being that of the plan. Never asks a worker, never moves anything: `shares` does. Invariant: while
//! `followed` names a plan, the tree is that of it, with those floors raised.

use super::below::BelowShares;
use super::ends::Ends;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use undercroft_config::{Layout, Misfit, ServePlan, UNIT_BYTES};
use undercroft_engine::Curve;
use undercroft_engine::control::{Activity, Governor};

/// What a disk can keep whatever the controllers decide.
const FEW_BYTES: u64 = 1 << 20;

/// What is known of a disk from its last interval.
#[derive(Clone, Debug)]
pub(in crate::service) struct Measured {
    pub(in crate::service) seen: Activity,
    /// Misses by units of its share.
    pub(in crate::service) curve: Curve,
    pub(in crate::service) held_units: u64,
    /// What it has whatever it keeps: for operations under way.
    pub(in crate::service) fixed_units: u64,
    pub(in crate::service) working_set_bytes: u64,
    /// Whether the curve is that of its policy, or LRU's.
    pub(in crate::service) of_policy: bool,
}

impl Measured {
    /// The size below which its share is never lent: memory for its operations, and a few blocks.
    pub(super) fn least_units(&self) -> u64 {
        if self.fixed_units > 0 { self.fixed_units + FEW_BYTES / UNIT_BYTES } else { 0 }
    }
}

/// What is known of shares between two steps.
#[derive(Default)]
pub(in crate::service) struct ShareManager {
    pub(in crate::service) layout: Layout,
    /// The plan that `layout` is of, and the floors that were raised in it since.
    followed: Option<(Arc<ServePlan>, BTreeMap<String, u64>)>,
    pub(in crate::service) governor: Governor,
    /// What each disk is to have, by name, in units.
    pub(in crate::service) targets: BTreeMap<String, u64>,
    pub(in crate::service) measured: HashMap<String, Measured>,
    /// What is known of disks and their shares of the SSD store.
    pub(in crate::service) below: BelowShares,
    /// What each disk held when shares moved last, by name, in units.
    pub(in crate::service) held: HashMap<String, u64>,
    /// When the last interval ended.
    pub(in crate::service) since: Option<Instant>,
    /// Whether settings have changed since.
    pub(in crate::service) hurried: bool,
    /// Whether shares are on their way.
    pub(in crate::service) moving: bool,
    /// What stands in the way of dividing, once said.
    pub(in crate::service) problem: Option<String>,
    /// The intervals so far.
    pub(in crate::service) ends: Ends,
}

impl ShareManager {
    /// Makes the tree that of `plan`, with floors as they are set. Nothing is done where it is that already.
    ///
    /// # Errors
    /// What does not fit together.
    pub(in crate::service) fn follow(&mut self, plan: &Arc<ServePlan>) -> Result<(), Misfit> {
        if self.followed.as_ref().is_some_and(|(of, raised)| Arc::ptr_eq(of, plan) && raised.is_empty()) {
            return Ok(());
        }
        self.followed = None;
        self.layout.follow(plan)?;
        self.followed = Some((plan.clone(), BTreeMap::new()));
        Ok(())
    }

    /// Whether the tree is that of `plan`, whatever floors were raised.
    pub(super) fn is_of(&self, plan: &Arc<ServePlan>) -> bool {
        self.followed.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, plan))
    }

    /// Lets every disk keep what it has whatever it keeps, in the tree of `plan`. Nothing is done where that is as it
    /// was.
    pub(super) fn raise_floors(&mut self, plan: &Arc<ServePlan>) {
        let least = self.measured.iter().map(|(name, m)| (name.clone(), m.least_units())).filter(|l| l.1 > 0);
        let least: BTreeMap<_, _> = least.collect();
        let stays = self.followed.as_ref().is_some_and(|(of, raised)| Arc::ptr_eq(of, plan) && *raised == least);
        if stays || self.follow(plan).is_err() {
            return;
        }
        for (name, &units) in &least {
            self.layout.raise_floor(name, units);
        }
        self.followed = Some((plan.clone(), least));
    }

    /// Whether an interval in which no disk has anything to do changes nothing, so that nobody need be asked: the tree
    /// is that of `plan`, shares are where they were to go, and no disk demands what it had before it fell silent.
    pub(super) fn rests(&self, plan: &Arc<ServePlan>) -> bool {
        self.is_of(plan) && !self.moving && self.problem.is_none() && self.governor.rests() && self.below.rests()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::plan_for_tests::plan;

    fn takes(units: u64) -> Measured {
        Measured {
            seen: Activity::default(),
            curve: Curve::new(0.0, []),
            held_units: 0,
            fixed_units: units,
            working_set_bytes: 0,
            of_policy: false,
        }
    }

    fn floors(m: &ShareManager) -> Vec<u64> {
        let floor = |(_, id)| m.layout.tree().node(id).unwrap().settings().floor;
        m.layout.disks().map(floor).collect()
    }

    #[test]
    fn rest_is_of_one_plan_and_ends_where_something_is_to_be_done() {
        let plan = Arc::new(plan(&["a", "b"]));
        let mut m = ShareManager::default();
        m.follow(&plan).unwrap();
        assert!(!m.rests(&plan), "nothing has been divided");
        for _ in 0..2 {
            let ShareManager { layout, governor, .. } = &mut m;
            governor.interval(layout.tree(), &[]);
        }
        assert!(m.rests(&plan) && !m.rests(&Arc::new(ServePlan::clone(&plan))));
        m.moving = true;
        assert!(!m.rests(&plan), "shares are on their way");
        (m.moving, m.problem) = (false, Some("no room".into()));
        assert!(!m.rests(&plan), "it is tried again");
    }

    #[test]
    fn floors_are_raised_whatever_was_done_to_the_tree_between() {
        let (few, plan) = (FEW_BYTES / UNIT_BYTES, Arc::new(plan(&["a", "b"])));
        let mut m = ShareManager::default();
        assert!(!m.is_of(&plan));
        m.follow(&plan).unwrap();
        assert!(m.is_of(&plan));
        let set = floors(&m)[0];
        assert!(set < 1500, "what follows is more than the floor that is set");
        assert_eq!(floors(&m), [set, set]);
        m.measured.insert("a".into(), takes(3000));
        m.raise_floors(&plan);
        assert_eq!(floors(&m), [3000 + few, set]);
        m.raise_floors(&plan);
        assert_eq!(floors(&m), [3000 + few, set]);
        // Whoever asks what is set sees that, and the next interval raises it again.
        m.follow(&plan).unwrap();
        assert_eq!(floors(&m), [set, set]);
        m.raise_floors(&plan);
        assert_eq!(floors(&m), [3000 + few, set]);
        // What a disk takes may become less, and another plan begins anew.
        m.measured.insert("a".into(), takes(2000));
        m.measured.insert("b".into(), takes(1500));
        m.raise_floors(&plan);
        assert_eq!(floors(&m), [2000 + few, 1500 + few]);
        let other = Arc::new(ServePlan::clone(&plan));
        assert!(!m.is_of(&other));
        m.follow(&other).unwrap();
        assert_eq!(floors(&m), [set, set]);
    }
}
