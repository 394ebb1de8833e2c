//! The index against a `HashMap`.

use super::*;
use std::collections::HashMap;

/// Slots of 64 belong to the same owner, in turn.
struct Owners(u16);

impl OwnerOf for Owners {
    fn owner_of(&self, slot: u32) -> u16 {
        (slot / 64) as u16 % self.0
    }
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// A block number as disks have them: low ones, neighbours, and any below 2^40.
fn some_block(state: &mut u64) -> u64 {
    match next(state) % 3 {
        0 => next(state) % 300,
        1 => (1 << 33) + next(state) % 300,
        _ => (next(state) % 64) * 0x1_0000_0001 % BLOCKS_MAX,
    }
}

#[test]
fn it_is_a_map_whatever_is_done_to_it() {
    for seed in 0..60 {
        let mut state = seed;
        let slots = 64 * (2 + next(&mut state) % 30) as u32;
        let owners = Owners(1 + (next(&mut state) % 4) as u16);
        let mut index = Index::new(slots, seed);
        // Of each slot in use: its block; of each block of an owner: slot, sum, held, read again.
        let mut used = HashMap::<u32, u64>::new();
        let mut model = HashMap::<(u16, u64), Entry>::new();
        for _ in 0..4000 {
            let block = some_block(&mut state);
            let slot = 1 + (next(&mut state) % u64::from(slots - 1)) as u32;
            let owner = owners.owner_of(slot);
            let found = index.find(&owners, owner, block);
            assert_eq!(found.map(|f| f.1), model.get(&(owner, block)).copied(), "seed {seed}, block {block}");
            match (found, next(&mut state) % 6) {
                (None, 0..=3) if !used.contains_key(&slot) => {
                    let sum = next(&mut state) as u32;
                    if let Some(gone) = index.insert(&owners, owner, block, slot, sum) {
                        let gone_block = used.remove(&gone).expect("a slot in use had to go");
                        assert!(model.remove(&(owners.owner_of(gone), gone_block)).is_some());
                    }
                    used.insert(slot, block);
                    model.insert((owner, block), Entry { slot, sum, held: false, chance: false });
                }
                (Some((at, entry)), 0) => {
                    index.remove(at);
                    used.remove(&entry.slot);
                    model.remove(&(owner, block));
                }
                (Some((at, _)), 1) => {
                    index.give_chance(at);
                    model.get_mut(&(owner, block)).unwrap().chance = true;
                }
                (Some((at, entry)), 2) => {
                    index.set_held(at, !entry.held);
                    model.get_mut(&(owner, block)).unwrap().held = !entry.held;
                }
                (_, 5) if next(&mut state).is_multiple_of(100) => {
                    let slots = slot..slot + 64;
                    let out = index.remove_slots(slots.clone());
                    let before = model.len();
                    model.retain(|_, e| !slots.contains(&e.slot));
                    used.retain(|s, _| !slots.contains(s));
                    assert_eq!(out, before - model.len());
                }
                _ => {}
            }
            assert_eq!(index.len(), model.len());
            assert_eq!(index.held(), model.values().filter(|e| e.held).count());
        }
        for ((owner, block), entry) in &model {
            assert_eq!(index.find(&owners, *owner, *block).map(|f| f.1), Some(*entry));
        }
    }
}

#[test]
fn a_full_region_fits_but_for_a_few_in_a_thousand() {
    let slots = 64 * 1024;
    let (owners, mut index) = (Owners(1), Index::new(slots, 5));
    let gone = (1..slots).filter(|n| index.insert(&owners, 0, u64::from(n * 3), *n, *n).is_some()).count();
    assert!(gone < slots as usize / 200, "{gone} of {slots} found no room");
    assert!(index.bytes() < 11 * slots as usize, "{} bytes for {slots} slots", index.bytes());
}

#[test]
fn held_entries_go_first() {
    let (owners, mut index) = (Owners(1), Index::new(64, 1));
    let mut block = 0;
    // Until one has to go.
    let first_gone = loop {
        block += 1;
        if let Some(gone) = index.insert(&owners, 0, block, block as u32, 0) {
            break gone;
        }
        let (at, _) = index.find(&owners, 0, block).unwrap();
        index.set_held(at, block.is_multiple_of(2));
    };
    assert_eq!(first_gone % 2, 0, "slot {first_gone} was not held");
}
