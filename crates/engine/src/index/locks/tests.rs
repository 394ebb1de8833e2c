//! Locked blocks and the victim buffer, each against a cache that is written down as plainly as can be.

use crate::locking::online::Online;
use crate::reference::may_go;
use crate::structures::array::KeepAll;
use crate::{Access, HashKey, Index, LockOptions, ORIGIN_STEP, Outcome, PartId, PartRange, PartSetting, PolicyKind};
use proptest::prelude::*;

const HALF: LockOptions = LockOptions { permille: 500, keep_held: false };

fn read(index: &mut Index, block: u64) -> Outcome {
    let outcome = index.access(block, Access::Read, may_go);
    index.check();
    outcome
}

/// LRU with locked blocks: those of `pinned` that came while there was room, never evicted.
struct Plain {
    capacity: usize,
    locks: usize,
    /// The most recent last.
    order: Vec<u64>,
    locked: Vec<u64>,
}

impl Plain {
    /// Whether it was a hit, and what had to go.
    fn read(&mut self, block: u64, pinned: &dyn Fn(u64) -> bool) -> (bool, Option<u64>) {
        if self.locked.contains(&block) {
            return (true, None);
        }
        let mut gone = None;
        let hit = match self.order.iter().position(|&b| b == block) {
            Some(at) => {
                self.order.remove(at);
                true
            }
            None => {
                if self.order.len() + self.locked.len() == self.capacity {
                    gone = Some(self.order.remove(0));
                }
                false
            }
        };
        if pinned(block) && self.locked.len() < self.locks {
            self.locked.push(block);
        } else {
            self.order.push(block);
        }
        (hit, gone)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn under_lru_it_is_an_lru_cache_that_spares_what_is_locked(
        capacity in 2u32..40,
        permille in 0u16..1000,
        pins in prop::collection::vec((0u64..60, 1u64..10), 0..4),
        blocks in prop::collection::vec(0u64..60, 0..400),
    ) {
        let options = LockOptions { permille, keep_held: false };
        let mut index = Index::new(PolicyKind::Lru, capacity);
        index.set_locks(Some(options));
        index.set_pins(pins.iter().copied());
        let locks = options.max(capacity) as usize;
        let mut plain = Plain { capacity: capacity as usize, locks, order: vec![], locked: vec![] };
        let pinned = |block: u64| pins.iter().any(|&(first, count)| (first..first + count).contains(&block));
        for block in blocks {
            let expected = plain.read(block, &pinned);
            let got = match read(&mut index, block) {
                Outcome::Hit(_) => (true, None),
                Outcome::Fill { evicted, .. } => (false, evicted.map(|e| e.0)),
                Outcome::Bypass => panic!("nothing can go"),
            };
            prop_assert_eq!(got, expected, "block {}", block);
        }
        prop_assert_eq!(index.locked(), (plain.locked.len() as u32, locks as u32));
    }

    /// The buffer's blocks are the next ones of LRU's order, so there it changes nothing.
    #[test]
    fn under_lru_a_victim_buffer_out_of_the_share_changes_nothing(
        capacity in 2u32..40,
        size in 1u32..20,
        blocks in prop::collection::vec(0u64..60, 0..400),
    ) {
        let mut plain = Index::new(PolicyKind::Lru, capacity);
        let mut index = Index::new(PolicyKind::Lru, capacity);
        index.set_victims(size);
        let mut hits = 0;
        for block in blocks {
            let buffered = index.peek(block).is_some_and(|slot| index.is_buffered(slot));
            let (with, without) = (read(&mut index, block), read(&mut plain, block));
            let shape = |o| match o {
                Outcome::Hit(_) => (true, None),
                Outcome::Fill { evicted, .. } => (false, evicted.map(|e: (u64, u32)| e.0)),
                Outcome::Bypass => panic!("nothing can go"),
            };
            prop_assert_eq!(shape(with), shape(without), "block {}", block);
            hits += u64::from(buffered);
        }
        let (len, max, counted) = index.victims();
        prop_assert_eq!((counted, max), (hits, size));
        prop_assert!(len <= size.min(capacity / 2), "{} blocks in a buffer of {}", len, size);
    }
}

#[test]
fn when_less_may_be_held_locks_give_way_first_and_keep_to_their_part() {
    for kind in PolicyKind::ALL {
        let mut index = Index::with_room(kind, 100, 100, HashKey::from_seed(1));
        index.set_locks(Some(HALF));
        index.set_pins([(0, 60)]);
        (0..200).for_each(|block| _ = read(&mut index, block % 110));
        assert_eq!(index.locked(), (50, 50), "{kind}");
        index.set_limit(20);
        let mut gone = vec![];
        while index.is_over() {
            if index.len() > index.limit() {
                gone.push(index.evict(may_go).expect("something can go").0);
            }
            index.step(1, &mut KeepAll, |_, _| ());
            index.check();
        }
        assert_eq!((index.len(), index.locked()), (20, (10, 10)), "{kind}: {gone:?}");
        // Those locked last stay; what was not locked is not all gone for them.
        assert!((40..50).all(|block| index.peek(block).is_some_and(|slot| index.is_locked(slot))), "{kind}");
    }
}

#[test]
fn what_is_not_to_be_locked_any_more_is_not() {
    let mut index = Index::new(PolicyKind::S3Fifo, 20);
    index.set_locks(Some(HALF));
    index.set_pins([(0, 5)]);
    assert!(!index.lock(30), "it is not here");
    (0..40).for_each(|block| _ = read(&mut index, block));
    assert_eq!(index.locked(), (6, 10));
    index.set_pins([(3, 1)]);
    assert_eq!(index.locked().0, 2);
    index.unlock(30);
    index.unlock(3);
    assert_eq!(index.locked().0, 1, "a pin is no lock of a rule's");
    index.set_locks(None);
    index.check();
    assert!(index.plain && index.locks.is_none() && index.locked() == (0, 0));
    assert!(!index.lock(39), "there are no options");
}

#[test]
fn a_guest_that_holds_a_pinned_block_has_its_lock_ended_unless_told() {
    for keep_held in [false, true] {
        let mut index = Index::new(PolicyKind::Lru, 20);
        index.set_tiers(true);
        index.set_locks(Some(LockOptions { keep_held, ..HALF }));
        index.set_pins([(0, 3)]);
        for block in 0..3 {
            index.access(block, Access::Take, may_go);
        }
        assert_eq!(index.locked().0, if keep_held { 3 } else { 0 });
        // The guest has evicted one: it is locked from now on, and given up when the guest takes it again.
        index.place(1, crate::Tier::Hot, may_go);
        index.access(1, Access::Read, may_go);
        index.check();
        assert!(index.is_locked(index.peek(1).unwrap()));
        index.access(1, Access::Take, may_go);
        index.check();
        assert_eq!(index.is_locked(index.peek(1).unwrap()), keep_held);
        assert_eq!(index.tier(index.peek(1).unwrap()), if keep_held { crate::Tier::Hot } else { crate::Tier::Cold });
    }
}

/// The slot keeps its block all the while: nobody reads it again before it is locked.
#[test]
fn a_pinned_block_that_is_cached_is_locked_when_its_guest_gives_it_up() {
    for kind in PolicyKind::ALL {
        let mut index = Index::new(kind, 20);
        index.set_tiers(true);
        index.set_locks(Some(HALF));
        index.set_pins([(0, 3)]);
        (0..5).for_each(|block| _ = index.access(block, Access::Take, may_go));
        for block in 0..5 {
            let slot = index.peek(block).unwrap();
            index.set_tier(slot, crate::Tier::Hot);
            index.check();
            assert_eq!(index.is_locked(slot), block < 3, "{kind}: block {block}");
            // It is read then as any other that is locked.
            index.access(block, Access::Read, may_go);
            index.check();
        }
        assert_eq!(index.locked().0, 3, "{kind}");
    }
}

/// Tiers that go, at once or in steps, leave what is pinned locked.
#[test]
fn what_leaves_the_tiers_is_locked_if_it_is_pinned() {
    for room in [0, 100] {
        let mut index = Index::with_room(PolicyKind::Lru, 20, room, HashKey::from_seed(1));
        index.set_tiers(true);
        index.set_locks(Some(HALF));
        index.set_pins([(0, 3)]);
        (0..5).for_each(|block| _ = index.access(block, Access::Take, may_go));
        index.set_tiers(false);
        while !index.step(1, &mut KeepAll, |_, _| ()) {}
        index.check();
        assert_eq!((index.locked().0, index.tier_lens()), (3, [5, 0, 0]), "room for {room}");
    }
}

#[test]
fn a_pinned_block_that_its_guest_may_hold_takes_a_slot_of_what_is_hot() {
    for keep_held in [false, true] {
        let mut index = Index::new(PolicyKind::Lru, 20);
        index.set_tiers(true);
        index.set_locks(Some(LockOptions { keep_held, ..HALF }));
        (0..17).for_each(|block| _ = read(&mut index, block));
        // One that is here when it comes to be pinned.
        index.access(102, Access::Take, may_go);
        (17..19).for_each(|block| _ = read(&mut index, block));
        index.set_pins([(100, 3)]);
        index.access(102, Access::Take, may_go);
        index.check();
        assert_eq!(index.is_locked(index.peek(102).unwrap()), keep_held);
        read(&mut index, 19);
        for block in [100, 101] {
            let outcome = index.access(block, Access::Take, may_go);
            index.check();
            assert!(keep_held || !index.peek(block).is_some_and(|slot| index.is_locked(slot)), "{outcome:?}");
        }
        assert_eq!(index.locked().0, if keep_held { 3 } else { 0 });
        assert_eq!((100..103).all(|block| index.peek(block).is_some()), keep_held, "all that may go is hot");
    }
}

#[test]
fn pins_go_with_their_disk() {
    let mut index = Index::new(PolicyKind::Lru, 20);
    index.set_origin(0);
    index.set_locks(Some(HALF));
    index.set_pins([(0, 4)]);
    (0..4).for_each(|block| _ = read(&mut index, block));
    index.set_origin(ORIGIN_STEP);
    index.set_pins([(2, 4)]);
    (0..4).for_each(|block| _ = read(&mut index, block));
    assert_eq!((index.locked_of_present(), index.locked().0), (2, 6));
    (0..4).for_each(|block| _ = index.remove(block));
    assert_eq!((index.locked_of_present(), index.locked().0), (0, 4));
    index.leave();
    index.check();
    assert_eq!(index.locked().0, 4);
    // Another disk in its place has no pins.
    index.set_origin(ORIGIN_STEP);
    (0..4).for_each(|block| _ = read(&mut index, block));
    assert_eq!(index.locked().0, 4);
}

/// What parts begin to be or cease to be changes of locks only what no budget allows.
#[test]
fn locked_blocks_stay_so_when_the_parts_change() {
    let mut index = Index::new(PolicyKind::Sieve, 40);
    index.set_locks(Some(HALF));
    index.set_pins([(0, 5), (100, 5)]);
    (0..5).chain(100..105).chain(10..35).for_each(|block| _ = read(&mut index, block));
    assert_eq!(index.locked(), (10, 20));
    let ranges = [PartRange { first: 100, blocks: 50, part: PartId(1) }];
    let parts = |index: &mut Index, share_blocks| {
        let setting = PartSetting { part: PartId(1), policy: PolicyKind::Lru, share_blocks };
        index.set_parts(&ranges, 200, &[setting], 40).unwrap();
        index.check();
        [0, 1].map(|part| index.part_locked(PartId(part)))
    };
    assert_eq!(parts(&mut index, 20), [(5, 10), (5, 10)]);
    // Those locked first stay locked where a part has less.
    assert_eq!(parts(&mut index, 6), [(5, 17), (3, 3)]);
    assert!((100..103).all(|block| index.is_locked(index.peek(block).unwrap())));
    assert_eq!((index.locked(), index.budget_of(HALF)), ((8, 20), 20));
    index.clear_parts();
    index.check();
    assert_eq!(index.locked(), (8, 20));
}

/// What may be locked is known before anything is to be.
#[test]
fn the_budget_is_known_without_locks() {
    let mut index = Index::new(PolicyKind::Lru, 100);
    assert_eq!((index.locked(), index.budget_of(HALF)), ((0, 0), 50));
    index.set_victims(20);
    assert_eq!(index.budget_of(HALF), 40);
    index.set_locks(Some(HALF));
    assert_eq!(index.locked(), (0, 40));
    index.set_limit(10);
    assert_eq!((index.locked().1, index.budget_of(HALF)), (2, 2));
}

/// A loop one larger than the cache, where LRU misses always: locking makes the locked part hit.
#[test]
fn the_online_rule_locks_what_a_loop_misses_and_gives_it_up_when_the_loop_is_over() {
    let limit = 256;
    let run = |locking: bool| {
        let mut index = Index::new(PolicyKind::Lru, limit);
        let mut online = Online::new(PolicyKind::Lru, limit, HashKey::from_seed(3));
        if locking {
            index.set_locks(Some(LockOptions { permille: 800, keep_held: false }));
        }
        let mut misses = [0; 2];
        for n in 0..120_000u64 {
            let looping = n < 60_000;
            let block = if looping { n % 300 } else { 1000 + (n % 250) };
            let outcome = index.access(block, Access::Read, may_go);
            misses[usize::from(!looping)] += u64::from(!matches!(outcome, Outcome::Hit(_)));
            online.note(&mut index, block, Access::Read, outcome);
        }
        index.check();
        (misses, online.stats(), index.locked())
    };
    let (with, stats, locked) = run(true);
    let (without, ..) = run(false);
    assert!(with[0] * 2 < without[0], "{with:?} misses with locks, {without:?} without: {stats:?}");
    // An epoch in which what is locked is of no use.
    assert!(with[1] <= without[1] + 1500, "{with:?} misses with locks, {without:?} without: {stats:?}");
    assert_eq!(locked.0, 0, "{stats:?}");
    assert!(stats.locks > 0 && stats.unlocks == stats.locks, "{stats:?}");
}

/// Where locks cost something the guard ends them: never much worse than without.
#[test]
fn the_guard_bounds_what_the_online_rule_costs() {
    let key = HashKey::from_seed(9);
    for kind in [PolicyKind::Lru, PolicyKind::S3Fifo] {
        let run = |locking: bool| {
            let mut index = Index::new(kind, 400);
            let mut online = Online::new(kind, 400, key);
            if locking {
                index.set_locks(Some(LockOptions { permille: 900, keep_held: false }));
            }
            let mut misses = 0;
            for n in 0..400_000u64 {
                // Blocks that are asked for often for a while and then never again, among others.
                let phase = n / 5000;
                let hash = key.hash(n);
                let block = if hash.is_multiple_of(3) { phase * 10_000 + hash / 3 % 700 } else { hash / 3 % 900 };
                let outcome = index.access(block, Access::Read, may_go);
                misses += u64::from(!matches!(outcome, Outcome::Hit(_)));
                online.note(&mut index, block, Access::Read, outcome);
            }
            (misses, online.stats())
        };
        let ((with, stats), (without, _)) = (run(true), run(false));
        assert!(with * 100 <= without * 101, "{kind}: {with} misses with locks, {without} without: {stats:?}");
    }
}

#[test]
fn the_rule_takes_no_more_memory_than_is_said() {
    for limit in [0, 1, 64, 400, 5000, 20_000] {
        for kind in PolicyKind::ALL {
            let mut index = Index::new(kind, limit);
            let mut online = Online::new(kind, limit, HashKey::from_seed(3));
            index.set_locks(Some(LockOptions { permille: 900, keep_held: false }));
            for n in 0..u64::from(limit) * 12 + 5000 {
                let block = n % (u64::from(limit) * 5 / 4 + 50);
                let outcome = index.access(block, Access::Read, may_go);
                online.note(&mut index, block, Access::Read, outcome);
            }
            let (bytes, max) = (online.memory_bytes() as u64, Online::<PolicyKind>::bytes_max(limit));
            assert!(bytes <= max, "{kind}, {limit} blocks: {bytes} bytes, {max} at most");
        }
    }
}

/// What is under way cannot go now: that takes no locked block's place. Where there is nothing else, one goes.
#[test]
fn a_locked_block_goes_only_where_there_is_nothing_else() {
    let mut index = Index::new(PolicyKind::Lru, 4);
    index.set_locks(Some(HALF));
    index.set_pins([(0, 2)]);
    (0..4).for_each(|block| _ = read(&mut index, block));
    let locked: Vec<_> = [0, 1].map(|block| index.peek(block).unwrap()).to_vec();
    assert_eq!(index.evict(|slot| locked.contains(&slot)), None, "the others may go later");
    assert!(index.evict(may_go).is_some() && index.evict(may_go).is_some());
    assert_eq!(index.locked().0, 2);
    assert_eq!(index.evict(may_go).map(|(block, _)| block), Some(0), "memory is given back whatever is locked");
    index.check();
}
