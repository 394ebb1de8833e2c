//! Indexes whose number of slots changes in steps while blocks come and go.

use crate::reference::may_go;
use crate::structures::array::KeepAll;
use crate::{Access, HashKey, Index, LockOptions, Outcome, PartId, PartRange, PartSetting, PolicyKind};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What happens to an index.
#[derive(Clone, Debug)]
enum Step {
    Read(u64),
    Take(u64),
    Remove(u64),
    Evict,
    Limit(u32),
    /// Another capacity, once the last change is over.
    Begin(u32),
    /// So many units of that.
    Units(u32),
    Tiers(bool),
    Switch(PolicyKind),
    Locks(Option<u16>, bool),
    Pins(Vec<(u64, u64)>),
    Lock(u64),
    Unlock(u64),
    Victims(u32),
    /// Shares of the parts, if there are any.
    Shares(u32, u32),
}

fn any_step(blocks: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..blocks).prop_map(Step::Read),
        20 => (0..blocks / 4).prop_map(Step::Read),
        2 => (0..blocks).prop_map(Step::Take),
        3 => (0..blocks).prop_map(Step::Remove),
        1 => Just(Step::Evict),
        1 => (0..blocks as u32).prop_map(Step::Limit),
        2 => (0..blocks as u32).prop_map(Step::Begin),
        20 => (1u32..30).prop_map(Step::Units),
        1 => any::<bool>().prop_map(Step::Tiers),
        1 => prop::sample::select(PolicyKind::ALL.to_vec()).prop_map(Step::Switch),
        1 => (0u32..50, 0u32..50).prop_map(|(a, b)| Step::Shares(a, b)),
        1 => (prop::option::weighted(0.8, 0u16..900), any::<bool>()).prop_map(|(o, held)| Step::Locks(o, held)),
        1 => prop::collection::vec((0..blocks, 0u64..20), 0..4).prop_map(Step::Pins),
        2 => (0..blocks).prop_map(Step::Lock),
        2 => (0..blocks).prop_map(Step::Unlock),
        1 => (0u32..20).prop_map(Step::Victims),
    ]
}

/// An index, and where its blocks should be.
struct Rig {
    index: Index,
    model: BTreeMap<u64, u32>,
}

impl Rig {
    /// The locked blocks, unless more are than may be: then some have to go.
    fn locked(&self) -> BTreeSet<u64> {
        let (locked, max) = self.index.locked();
        let all = self.index.iter().filter(|&(_, slot)| self.index.is_locked(slot)).map(|(block, _)| block);
        if locked > max || self.index.is_over() { BTreeSet::new() } else { all.collect() }
    }

    fn access(&mut self, block: u64, access: Access) {
        let locked = self.locked();
        match self.index.access(block, access, may_go) {
            Outcome::Hit(slot) => assert_eq!(self.model.get(&block), Some(&slot)),
            Outcome::Fill { slot, evicted } => {
                if let Some((gone, slot)) = evicted {
                    assert!(!locked.contains(&gone), "block {gone} is evicted and locked");
                    assert_eq!(self.model.remove(&gone), Some(slot));
                }
                assert!(slot < self.index.capacity(), "slot {slot} is past the end");
                assert!(!self.model.values().any(|&s| s == slot), "slot {slot} is taken");
                assert_eq!(self.model.insert(block, slot), None, "a miss of a block that is there");
            }
            Outcome::Bypass => assert!(!self.model.contains_key(&block)),
        }
    }

    fn evict(&mut self) {
        let locked = self.locked();
        // Of a part that has nothing else, or of all.
        let all = locked.len() == self.model.len() || self.index.has_parts();
        if let Some((block, slot)) = self.index.evict(may_go) {
            assert!(!locked.contains(&block) || all, "block {block} is evicted and locked");
            assert_eq!(self.model.remove(&block), Some(slot));
        }
    }

    fn units(&mut self, units: u32) -> bool {
        let Self { index, model } = self;
        index.step(units, &mut KeepAll, |from, to| {
            *model.values_mut().find(|slot| **slot == from).expect("a block moves that is not there") = to;
        })
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Read(block) => self.access(block, Access::Read),
            Step::Take(block) => self.access(block, Access::Take),
            Step::Remove(block) => assert_eq!(self.index.remove(block), self.model.remove(&block)),
            Step::Evict => self.evict(),
            Step::Limit(limit) => self.index.set_limit(limit),
            Step::Begin(to) if !self.index.is_resizing() => {
                while self.index.len() > to {
                    self.evict();
                }
                self.index.begin_resize(to);
            }
            Step::Begin(_) => {}
            Step::Units(units) => _ = self.units(units),
            Step::Tiers(on) => self.index.set_tiers(on),
            Step::Switch(kind) => self.index.switch(kind),
            Step::Locks(permille, keep_held) => {
                self.index.set_locks(permille.map(|permille| LockOptions { permille, keep_held }));
            }
            Step::Pins(ref ranges) => self.index.set_pins(ranges.iter().copied()),
            Step::Lock(block) => _ = self.index.lock(block),
            Step::Unlock(block) => self.index.unlock(block),
            Step::Victims(size) => self.index.set_victims(size),
            Step::Shares(a, b) => self.index.set_part_shares(&[(PartId(0), a), (PartId(2), b)]),
        }
        self.index.check();
        let (locked, max) = self.index.locked();
        assert!(locked <= max || self.index.is_moving(), "{locked} blocks are locked of {max} that may be");
        assert_eq!(self.index.iter().collect::<BTreeMap<_, _>>(), self.model);
        for (&block, &slot) in &self.model {
            assert_eq!(self.index.peek(block), Some(slot));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(undercroft_skips::cases(600)))]

    #[test]
    fn an_index_serves_while_its_capacity_moves(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        capacity in 0u32..80,
        parts: bool,
        room: bool,
        steps in prop::collection::vec(any_step(120), 0..500),
    ) {
        let key = HashKey::from_seed(1);
        // One with room to grow leaves its tiers in steps.
        let index = if room { Index::with_room(kind, capacity, 1000, key) } else { Index::new(kind, capacity) };
        let mut rig = Rig { index, model: BTreeMap::new() };
        if parts {
            let ranges = [PartRange { first: 30, blocks: 40, part: PartId(2) }];
            let settings = [PartSetting { part: PartId(2), policy: kind, share_blocks: capacity / 2 }];
            rig.index.set_parts(&ranges, 120, &settings, capacity).expect("the lists are sound");
        }
        for step in &steps {
            rig.step(step);
        }
        while rig.index.is_moving() {
            rig.units(5);
            rig.index.check();
        }
        rig.index.set_limit(u32::MAX);
        rig.index.set_locks(None);
        rig.index.set_victims(0);
        while rig.index.is_moving() {
            rig.units(5);
        }
        if !parts && !room && !rig.index.has_tiers() {
            let new = Index::new(rig.index.kind(), rig.index.capacity());
            prop_assert_eq!(rig.index.memory_bytes(), new.memory_bytes());
        }
        for block in 0..200 {
            rig.step(&Step::Read(block));
        }
    }
}

/// Blocks in tiers that are taken away become the policy's a bounded number at a time, those that were colder first;
/// what comes into tiers that are there again meanwhile stays.
#[test]
fn tiers_that_go_are_left_in_steps() {
    for kind in PolicyKind::ALL {
        let mut index = Index::with_room(kind, 4000, 8000, HashKey::from_seed(1));
        index.set_tiers(true);
        for block in 0..3000u64 {
            index.access(block, Access::Take, may_go);
        }
        assert_eq!(index.tier_lens(), [0, 0, 3000]);
        index.set_tiers(false);
        assert_eq!(index.tier_lens(), [0, 0, 3000], "nothing has moved yet");
        let mut steps = 0;
        while !index.step(100, &mut KeepAll, |_, _| {}) {
            steps += 1;
            assert_eq!(index.tier_lens(), [100 * steps, 0, 3000 - 100 * steps], "{kind}");
            index.check();
            if steps == 10 {
                // Its guest has come back: what that takes now is the guest's, not what another one held.
                index.set_tiers(true);
                (2000..2010).chain(3000..3010).for_each(|b| _ = index.access(b, Access::Take, may_go));
                index.access(2500, Access::Read, may_go);
                assert_eq!(index.tier_lens(), [1001, 0, 2009], "{kind}");
                break;
            }
        }
        while !index.step(100, &mut KeepAll, |_, _| {}) {
            index.check();
        }
        assert_eq!((steps, index.tier_lens()), (10, [2990, 0, 20]), "{kind}");
        index.set_tiers(false);
        while !index.step(7, &mut KeepAll, |_, _| {}) {}
        index.check();
        assert_eq!((index.tier_lens(), index.is_moving()), ([3010, 0, 0], false));
        assert_eq!(index.coldest_first().len(), 3010);
    }
}

/// Disks that share an index leave their tiers each for itself.
#[test]
fn one_disk_of_several_leaves_its_tiers_in_steps() {
    let mut index = Index::with_room(PolicyKind::Lru, 4000, 8000, HashKey::from_seed(1));
    for disk in [1, 2] {
        index.set_origin(disk * crate::ORIGIN_STEP);
        index.set_tiers(true);
        (0..1000).for_each(|b| _ = index.access(b, Access::Take, may_go));
    }
    index.set_origin(crate::ORIGIN_STEP);
    index.set_tiers(false);
    let mut steps = 0;
    while !index.step(100, &mut KeepAll, |_, _| {}) {
        steps += 1;
        index.check();
        assert!(index.tier_lens()[0] <= 100 * steps);
    }
    assert_eq!((steps, index.tier_lens()), (20, [1000, 0, 1000]));
    assert!((0..1000).all(|b| index.tier(index.peek(b).unwrap()) == crate::Tier::Hot));
    index.set_origin(2 * crate::ORIGIN_STEP);
    assert!(index.has_tiers() && (0..1000).all(|b| index.tier(index.peek(b).unwrap()) == crate::Tier::Cold));
}

/// With room for all there may be, nothing is copied and all memory comes back, for every policy.
#[test]
fn what_a_large_index_no_longer_needs_goes_back() {
    for kind in PolicyKind::ALL {
        let key = HashKey::from_seed(1);
        let mut index = Index::with_room(kind, 100_000, 400_000, key);
        let before = index.memory_bytes();
        for block in 0..250_000u64 {
            index.access(block % 120_000, Access::Read, may_go);
        }
        let mut to = |capacity: u32| {
            while index.len() > capacity {
                index.evict(may_go);
            }
            index.begin_resize(capacity);
            let mut steps = 0;
            while !index.step(1024, &mut KeepAll, |_, _| {}) {
                steps += 1;
                assert!(steps < 5_000, "{kind} does not come to an end");
            }
            index.check();
            index.memory_bytes()
        };
        assert!(to(400_000) >= 4 * before - 4096, "{kind}");
        assert!(to(200_000).abs_diff(2 * before) <= 4096, "{kind}");
        assert!(to(100_000).abs_diff(before) <= 4096, "{kind}");
        assert_eq!(to(30_000), Index::new(kind, 30_000).memory_bytes(), "{kind}: small ones have what they need");
    }
}
