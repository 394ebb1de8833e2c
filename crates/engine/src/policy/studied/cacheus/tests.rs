//! Tests of what CACHEUS does that its reference model cannot show: weights, the learning rate, sizes of queues.

use super::*;
use crate::policy::{self, Outcome};
use crate::reference::may_go;
use crate::structures::slots::Slots;
use crate::structures::table::Fill;

/// A full cache of blocks from 0 on that follows one expert.
struct Rig {
    slots: Slots,
    places: Places,
    policy: Cacheus,
}

impl Rig {
    fn new(capacity: u32, weight: f64) -> Self {
        let key = HashKey::from_seed(0);
        let slots = Slots::new(capacity, Fill::Half, key);
        let policy = Cacheus { weight, ..Cacheus::new(capacity, key) };
        let mut rig = Self { slots, places: Places::new(capacity), policy };
        (0..u64::from(capacity)).for_each(|block| assert_eq!(rig.access(block), None));
        rig
    }

    /// Who had to go.
    fn access(&mut self, block: u64) -> Option<u64> {
        let Self { slots, places, policy } = self;
        let hash = slots.hash(block);
        if let Some(slot) = slots.find(block, hash) {
            policy.touch(places, slot, block);
            return None;
        }
        let limit = slots.capacity();
        match policy::miss(slots, places, policy, block, hash, limit, may_go) {
            Outcome::Fill { evicted, .. } => evicted.map(|(block, _)| block),
            outcome => panic!("{block}: {outcome:?}"),
        }
    }

    fn slot(&self, block: u64) -> Option<Slot> {
        self.slots.find(block, self.slots.hash(block))
    }
}

#[test]
fn a_scan_passes_through_q() {
    let mut rig = Rig::new(100, 1.0);
    (0..50).for_each(|block| _ = rig.access(block));
    (1000..3000).for_each(|block| _ = rig.access(block));
    assert!((0..50).all(|block| rig.slot(block).is_some()), "a scan has evicted what was hit");
    assert_eq!((rig.policy.s.len(), rig.policy.q.len()), (98, 2));
}

#[test]
fn of_those_asked_for_least_often_the_most_recent_goes() {
    let mut rig = Rig::new(10, 0.0);
    (0..5).for_each(|block| _ = rig.access(block));
    assert_eq!([100, 101, 102].map(|block| rig.access(block)), [Some(9), Some(100), Some(101)]);
}

#[test]
fn what_comes_back_has_the_count_it_left_with_and_goes_to_s() {
    let mut rig = Rig::new(4, 0.0);
    (0..4).for_each(|block| _ = rig.access(block));
    assert_eq!(rig.access(4), Some(3), "the most recent of four that were asked for twice");
    assert_eq!(rig.access(3), Some(4));
    let slot = rig.slot(3).expect("it has come back");
    assert_eq!(rig.policy.frequency.key(slot).0, 2);
    assert_eq!(rig.places.marks[slot as usize], IN_S);
    assert!(rig.policy.weight > 0.0, "CR-LFU was wrong and keeps its weight");
}

#[test]
fn the_mistakes_of_either_queue_enlarge_it() {
    let mut rig = Rig::new(100, 1.0);
    (200..204).for_each(|block| _ = rig.access(block));
    assert_eq!((rig.policy.q_max, rig.policy.new_evicted), (1, 1));
    assert_eq!(rig.access(201), Some(202));
    assert_eq!((rig.policy.q_max, rig.policy.new_evicted), (2, 1), "a new block was evicted too early");
    let demoted = (0..100).find(|&b| rig.slot(b).is_some_and(|s| rig.places.marks[s as usize] & DEMOTED != 0));
    rig.access(demoted.expect("S had to shrink"));
    assert_eq!(rig.policy.q_max, 1, "a block was demoted too early");
}

#[test]
fn who_is_wrong_loses_weight_but_not_all() {
    let mut policy = Cacheus::new(100, HashKey::from_seed(0));
    policy.learn(RECENCY);
    assert!(policy.weight < 0.5);
    (0..2).for_each(|_| policy.learn(FREQUENCY));
    assert!(policy.weight > 0.5);
    (0..1000).for_each(|_| policy.learn(FREQUENCY));
    assert_eq!(policy.weight, WEIGHT_MAX);
}

#[test]
fn the_learning_rate_goes_on_while_that_helps() {
    let mut lots = Lots::new(HashKey::from_seed(0));
    let mut rate = Rate::new(100);
    let mut period = |hits: u32| {
        let before = rate.now;
        rate.hits = hits;
        (0..100).for_each(|_| rate.tick(&mut lots));
        rate.now / before - 1.0
    };
    // that before the first one counts as 0
    assert!(period(10) > 0.1, "it rose, and hits did");
    assert!(period(5) < 0.0, "it rose, and hits fell");
    assert!(period(0) > 0.0, "it fell, and hits did");
    assert!((0..9).all(|_| period(0) == 0.0), "without hits it stays for a while");
    assert!(period(0) < 0.0, "and then starts again");
    assert_eq!(rate.now, Rate::at_first(100));
}
