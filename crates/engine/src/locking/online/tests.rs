//! The online rule where the limit moves, where other disks use the index as well, and how much it does at once.
//!
//! Owns no state. Never tests what is locked on the whole: `index/locks/tests.rs` does. Invariant: each test reads the
//! same blocks each time.

use super::*;
use crate::LockOptions;
use crate::reference::may_go;

const KEY: u64 = 3;

/// The rule and an index that may hold `limit` blocks, and has a thousand slots more.
fn new(limit: u32) -> (Index, Online) {
    let mut index = Index::new(PolicyKind::Lru, limit + 1000);
    index.set_limit(limit);
    index.set_locks(Some(LockOptions { permille: 900, keep_held: false }));
    (index, Online::new(PolicyKind::Lru, limit, HashKey::from_seed(KEY)))
}

fn read(index: &mut Index, online: &mut Online, block: u64) {
    let outcome = index.access(block, Access::Read, may_go);
    online.note(index, block, Access::Read, outcome);
}

fn set_limit(index: &mut Index, limit: u32) {
    if index.limit() != limit {
        index.set_limit(limit);
        while index.excess() > 0 {
            assert!(index.evict(may_go).is_some());
        }
    }
}

/// Locks of `count` blocks that nobody asks for, which the rule takes for useful for long.
fn lock_in_vain(index: &mut Index, online: &mut Online, count: u64) {
    for block in 100_000..100_000 + count {
        index.lock(block);
        index.access(block, Access::Read, may_go);
        online.chosen.insert(block, 1 << 40);
    }
    assert_eq!(u64::from(index.locked().0), count);
}

/// A loop that fits without locks, and misses always with them. The share moves by a block with each epoch: the guard,
/// which is a sample here, knows the loop all the same. If it began anew each time, it would miss as much.
#[test]
fn what_locks_cost_is_seen_while_the_limit_moves() {
    let (mut index, mut online) = new(8000);
    lock_in_vain(&mut index, &mut online, 4000);
    for n in 0.. {
        let epochs = online.stats().epochs;
        if epochs == 4 {
            break;
        }
        set_limit(&mut index, 8000 + (epochs % 2) as u32);
        let block = if n % 8 == 0 { n / 8 % 6000 } else { 50_000 + n % 100 };
        read(&mut index, &mut online, block);
    }
    index.check();
    let stats = online.stats();
    assert_eq!((stats.rests, stats.chosen, stats.unlocks, index.locked().0), (1, 0, 4000, 0), "{stats:?}");
}

/// What comes first to an empty cache misses whatever is locked.
#[test]
fn the_guard_counts_nothing_before_it_is_full() {
    let (mut index, mut online) = new(1000);
    (0..1000).for_each(|block| read(&mut index, &mut online, block));
    assert_eq!((online.guard.live, online.guard.without), (0, 0));
    (2000..2010).for_each(|block| read(&mut index, &mut online, block));
    assert_eq!((online.guard.live, online.guard.without), (10, 10));
    set_limit(&mut index, 500);
    (3000..3400).for_each(|block| read(&mut index, &mut online, block));
    assert_eq!((online.made, online.guard.live, online.guard.without), (500, 0, 0));
}

#[test]
fn the_rule_is_made_anew_for_a_limit_that_is_another_by_more_than_an_eighth() {
    let (mut index, mut online) = new(200);
    for (limit, made) in [(190, 200), (225, 200), (226, 226), (10, 10), (18, 10), (19, 19), (0, 0), (8, 0), (9, 9)] {
        set_limit(&mut index, limit);
        read(&mut index, &mut online, 1);
        assert_eq!(online.made, made, "{limit}");
        assert_eq!(online.bytes_made(), Online::<PolicyKind>::bytes_max(made));
    }
}

#[test]
fn where_the_limit_shrinks_locks_go_in_steps_and_memory_with_the_last() {
    for by_access in [true, false] {
        let (mut index, mut online) = new(8000);
        let before = online.bytes_made();
        lock_in_vain(&mut index, &mut online, 4000);
        set_limit(&mut index, 500);
        let mut steps = 0;
        while online.made != 500 {
            assert_eq!(online.bytes_made(), before, "what it holds is said");
            let chosen = online.chosen.len();
            match by_access {
                true => read(&mut index, &mut online, 1),
                false => _ = online.fit(&mut index),
            }
            let most = if by_access { STEP } else { GIVE_UP_STEP };
            assert!(chosen - online.chosen.len() <= most);
            assert!(online.memory_bytes() as u64 <= online.bytes_made());
            steps += 1;
            assert!(steps < 200);
        }
        assert!(online.chosen.len() <= locks_max(500) && online.bytes_made() < before);
        index.check();
    }
}

#[test]
fn an_access_chooses_and_gives_up_a_bounded_number_of_blocks() {
    let (mut index, mut online) = new(5000);
    for n in 0..200_000u64 {
        let before = online.chosen.len();
        // A loop that does not fit, and then one that does.
        read(&mut index, &mut online, if n < 120_000 { n % 6000 } else { 10_000 + n % 4000 });
        assert!(before.abs_diff(online.chosen.len()) <= STEP, "{before} and {}", online.chosen.len());
    }
    let stats = online.stats();
    assert!(stats.locks > 1000 && stats.unlocks > 1000, "{stats:?}");
    index.check();
}

/// A loop of each of two disks, each of which would fit alone: both miss always, and locks of one's blocks save misses.
/// Against a guard that heard of that one alone they would seem to cost some.
#[test]
fn what_other_disks_ask_for_goes_through_the_guard_as_well() {
    let mut index = Index::new(PolicyKind::Lru, 1000);
    index.set_origin(0);
    index.set_locks(Some(LockOptions { permille: 500, keep_held: false }));
    let mut online = Online::new(PolicyKind::Lru, 1000, HashKey::from_seed(KEY));
    for n in 0..40_000u64 {
        let (disk, block) = (n % 2, n / 2 % 800);
        index.set_origin(disk * ORIGIN_STEP);
        let outcome = index.access(block, Access::Read, may_go);
        match disk {
            0 => online.note(&mut index, block, Access::Read, outcome),
            _ => online.note_other(&mut index, block, Access::Read, outcome),
        }
    }
    index.check();
    let stats = online.stats();
    assert!(stats.locks > 100 && stats.rests == 0, "{stats:?}");
    assert!(online.chosen.keys().all(|&key| key < ORIGIN_STEP), "a block of the other disk is locked");
}

/// What is read for somebody of whom the rule hears nothing is no ghost any more, and becomes one again.
#[test]
fn a_block_is_a_ghost_once() {
    let (mut index, mut online) = new(160);
    for round in 0..50 {
        (0..200).for_each(|block| read(&mut index, &mut online, 1000 * (round % 2) + block));
        for block in 0..200 {
            index.access(block, Access::Read, may_go);
            let outcome = index.access(block + 5000, Access::Write, may_go);
            online.note(&mut index, block + 5000, Access::Write, outcome);
        }
        online.ghosts.check();
    }
}
