//! The index against a `HashMap`.

use super::*;
use std::collections::HashMap;

/// Slots of 64 belong to the same owner, in turn; those from the second number on were given up.
struct Owners(u16, u32);

impl OwnerOf for Owners {
    fn owner_of(&self, slot: u32) -> u16 {
        (slot / 64) as u16 % self.0
    }

    fn is_kept(&self, slot: u32) -> bool {
        slot < self.1
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
        let owners = Owners(1 + (next(&mut state) % 4) as u16, slots);
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
                    let gone = index.insert(&owners, owner, block, slot, sum);
                    gone.into_iter().for_each(|gone| forget(gone, &owners, &index, &mut used, &mut model));
                    used.insert(slot, block);
                    model.insert((owner, block), Entry { slot, sum, held: false, chance: false, is_link: false });
                }
                // A link may be to any slot, whoever has it.
                (None, 4) => {
                    let (to, sum) = (1 + (next(&mut state) % u64::from(slots - 1)) as u32, next(&mut state) as u32);
                    let gone = index.insert_link(&owners, owner, block, to, sum);
                    gone.into_iter().for_each(|gone| forget(gone, &owners, &index, &mut used, &mut model));
                    let (_, entry) = index.find(&owners, owner, block).unwrap();
                    assert!(entry.is_link && entry.slot == to && entry.is_sum(sum) && !entry.is_sum(sum ^ 1));
                    model.insert((owner, block), entry);
                }
                (Some((at, entry)), 0) => {
                    index.remove(at);
                    if !entry.is_link {
                        used.remove(&entry.slot);
                    }
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
                    index.remove_where(|item| slots.contains(&item.slot));
                    model.retain(|_, e| !slots.contains(&e.slot));
                    used.retain(|s, _| !slots.contains(s));
                }
                _ => {}
            }
            assert_eq!(index.len(), model.len());
            assert_eq!(index.held(), model.values().filter(|e| e.held).count());
            assert_eq!(index.links(), model.values().filter(|e| e.is_link).count());
        }
        assert_eq!(index.items().count(), model.len());
        for ((owner, block), entry) in &model {
            assert_eq!(index.find(&owners, *owner, *block).map(|f| f.1), Some(*entry));
        }
    }
}

/// An entry had to go: of a link it is not said of which block it was.
fn forget(
    gone: Item,
    owners: &Owners,
    index: &Index,
    used: &mut HashMap<u32, u64>,
    model: &mut HashMap<(u16, u64), Entry>,
) {
    let owner = gone.owner(owners);
    let is_it = |(of, block): &(u16, u64), e: &Entry| {
        let is_same = (*of, e.slot, e.is_link) == (owner, gone.slot, gone.link_of.is_some());
        is_same && index.find(owners, *of, *block).is_none()
    };
    let key = *model.iter().find(|(key, entry)| is_it(key, entry)).expect("an entry had to go that was there").0;
    model.remove(&key);
    if gone.link_of.is_none() {
        assert_eq!(used.remove(&gone.slot), Some(key.1));
    }
}

#[test]
fn links_to_what_was_given_up_are_not_found_and_go_first() {
    let (owners, mut index) = (Owners(1, 32), Index::new(64, 1));
    // One in three is a link to nothing.
    let link = |n: u64| n.is_multiple_of(3);
    let mut block = 0;
    let gone = loop {
        block += 1;
        let gone = match link(block) {
            true => index.insert_link(&owners, 7, block, 40, 5),
            false => index.insert(&owners, 0, block, 1 + block as u32 % 31, 5),
        };
        if let Some(gone) = gone {
            break gone;
        }
        assert!(index.find(&owners, 7, block).is_none(), "block {block}");
        assert_ne!(index.find(&owners, 0, block).is_some(), link(block), "block {block}");
    };
    assert_eq!(gone, Item { slot: 40, link_of: Some(7) });
    // A part of the table at a time, until there is no more.
    let (mut next, mut out) = (0, 0);
    while index.remove_some(next..next + 3, |item| {
        out += usize::from(item.slot == 40);
        item.slot == 40
    }) {
        next += 3;
    }
    assert!(out > 0 && index.links() == 0 && index.len() == index.items().filter(|item| item.slot < 32).count());
}

#[test]
fn a_full_region_fits_but_for_a_few_in_a_thousand() {
    let slots = 64 * 1024;
    let (owners, mut index) = (Owners(1, slots), Index::new(slots, 5));
    let gone = (1..slots).filter(|n| index.insert(&owners, 0, u64::from(n * 3), *n, *n).is_some()).count();
    assert!(gone < slots as usize / 200, "{gone} of {slots} found no room");
    assert!(index.bytes() < 11 * slots as usize, "{} bytes for {slots} slots", index.bytes());
}

#[test]
fn held_entries_go_first() {
    let (owners, mut index) = (Owners(1, 64), Index::new(64, 1));
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
    assert_eq!(first_gone.slot % 2, 0, "{first_gone:?} was not held");
}
