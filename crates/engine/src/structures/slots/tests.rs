//! Slots against a map of blocks, while their number changes in steps of all sizes.

use super::{Map, Slots};
use crate::structures::chains::Chains;
use crate::structures::table::{Fill, HashKey, Table};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What happens to slots.
#[derive(Clone, Debug)]
enum Step {
    /// A block comes, if there is room, or goes if it is there.
    Toggle(u64),
    /// One block takes the place of another.
    Replace(u64, u64),
    /// The number of slots is to be another.
    Begin(u32),
    /// So many units of that.
    Units(u32),
}

fn any_step(blocks: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..blocks).prop_map(Step::Toggle),
        2 => (0..blocks, 0..blocks).prop_map(|(out, into)| Step::Replace(out, into)),
        1 => (0..blocks as u32).prop_map(Step::Begin),
        4 => (1u32..12).prop_map(Step::Units),
    ]
}

fn go<M: Map>(slots: &mut Slots<M>, units: u32, model: &mut BTreeMap<u64, u32>) -> bool {
    slots.step(&mut { units }, true, |from, to| {
        assert!(!model.values().any(|&slot| slot == to), "a block moves into slot {to}, which is taken");
        *model.values_mut().find(|slot| **slot == from).expect("a block moves that is not there") = to;
    })
}

fn run<M: Map>(seed: u64, capacity: u32, steps: &[Step]) {
    let mut slots: Slots<M> = Slots::new(capacity, Fill::Half, HashKey::from_seed(seed));
    let mut model = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Toggle(block) => match model.remove(&block) {
                Some(slot) => assert_eq!(slots.free(slot), block),
                None if slots.len() < slots.most() => {
                    let slot = slots.insert(block, slots.hash(block));
                    assert!(slot < slots.capacity(), "slot {slot} is past the end");
                    assert!(!model.values().any(|&s| s == slot), "slot {slot} is taken");
                    model.insert(block, slot);
                }
                None => {}
            },
            Step::Replace(out, into) => {
                if let Some(&slot) = model.get(&out)
                    && !model.contains_key(&into)
                {
                    assert_eq!(slots.replace(slot, into, slots.hash(into)), out);
                    model.remove(&out);
                    model.insert(into, slot);
                }
            }
            Step::Begin(to) if !slots.is_resizing() => slots.begin(to.max(slots.len())),
            Step::Begin(_) => {}
            Step::Units(units) => _ = go(&mut slots, units, &mut model),
        }
        slots.check();
        assert_eq!(slots.len() as usize, model.len());
        for (&block, &slot) in &model {
            assert_eq!(slots.find(block, slots.hash(block)), Some(slot), "block {block}");
            assert_eq!(slots.block_of(slot), Some(block));
        }
        assert_eq!(slots.iter().collect::<BTreeMap<_, _>>(), model);
    }
    let to = slots.capacity_max().min(slots.most());
    while !go(&mut slots, 3, &mut model) {}
    slots.check();
    if to == slots.capacity() {
        let new: Slots<M> = Slots::new(to, Fill::Half, HashKey::from_seed(seed));
        assert_eq!(slots.memory_bytes(), new.memory_bytes(), "memory stays");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(undercroft_skips::cases(400)))]

    #[test]
    fn cells_serve_while_their_number_changes(
        seed: u64,
        capacity in 0u32..80,
        steps in prop::collection::vec(any_step(90), 0..300),
    ) {
        run::<Table>(seed, capacity, &steps);
    }

    #[test]
    fn chains_serve_while_their_number_changes(
        seed: u64,
        capacity in 0u32..80,
        steps in prop::collection::vec(any_step(90), 0..300),
    ) {
        run::<Chains>(seed, capacity, &steps);
    }
}

/// Growing from nearly nothing, and back: the homes of all keys change much, and the bits that slots have.
pub(in crate::structures) fn there_and_back<M: Map>() {
    let mut slots: Slots<M> = Slots::new(20, Fill::Half, HashKey::from_seed(1));
    let mut model = BTreeMap::new();
    let mut block = 0;
    for to in [2000, 37, 4096, 4095, 15, 0, 300] {
        while slots.len() > to {
            let (gone, slot) = model.pop_first().expect("as many as slots");
            assert_eq!(slots.free(slot), gone);
        }
        slots.begin(to);
        while !go(&mut slots, 5, &mut model) {
            block += 1;
            if slots.len() < slots.most() {
                model.insert(block, slots.insert(block, slots.hash(block)));
            }
            assert!(model.iter().all(|(&b, &slot)| slots.find(b, slots.hash(b)) == Some(slot)));
        }
        slots.check();
        while slots.len() < to {
            block += 1;
            model.insert(block, slots.insert(block, slots.hash(block)));
        }
        slots.check();
    }
}

#[test]
fn slots_grow_a_hundredfold_and_shrink_again() {
    there_and_back::<Table>();
    there_and_back::<Chains>();
}
