//! Tests of what a guest's pages hold, some against a model.
//!
//! Owns nothing that ships. Invariant: no test depends on another.

use super::*;
use std::collections::HashMap;

fn new(pages: u32, key: HashKey) -> Residency {
    let mut memory = ResidencyMemory::new(pages);
    memory.make(&mut { usize::MAX });
    Residency::over(memory, key)
}

const ONE: Member = Member(0);
const OTHER: Member = Member(1);

#[test]
fn a_reused_page_gives_up_its_block_and_a_moved_block_its_page() {
    let mut r = new(4, HashKey::from_seed(1));
    assert_eq!(r.transfer(ONE, 0, 10, Class::Read, Some(0x800)), None);
    assert_eq!(r.transfer(ONE, 1, 11, Class::Write, None), None);
    assert_eq!(r.transfer(ONE, 1, 11, Class::Read, Some(0x900)), None, "the same block again is no eviction");
    let left = r.transfer(ONE, 0, 12, Class::Read, None).unwrap();
    assert_eq!((left.block, left.tag, left.age, left.class), (10, Some(0x800), 3, Class::Read));
    assert_eq!(r.page_of(ONE, 10), None);
    assert_eq!(r.transfer(ONE, 2, 11, Class::Read, None), None, "block 11 has moved to page 2");
    assert_eq!((r.page_of(ONE, 11), r.get(1), r.held()), (Some(2), None, 2));
    r.check();
}

#[test]
fn tags_follow_content_and_are_forgotten_with_it() {
    let mut r = new(8, HashKey::from_seed(1));
    r.transfer(ONE, 3, 7, Class::Write, None);
    assert!(r.awaits_tag(ONE, 7) && !r.matches(3, 0));
    r.learn(ONE, 7, 0xabcd_ef00);
    assert!(r.matches(3, 0xabcd_ef00) && !r.matches(3, 0xabcd_ee00) && !r.awaits_tag(ONE, 7));
    r.learn(ONE, 7, 0x1111_1100);
    assert!(r.matches(3, 0xabcd_ef00), "a known tag is not replaced");
    r.forget_range(ONE, 0, 1 << 40);
    assert_eq!((r.get(3), r.page_of(ONE, 7)), (None, None), "at once");
    r.sweep(8);
    assert_eq!((r.held(), r.wants_sweep()), (0, false));
    assert_eq!(r.transfer(ONE, 3, u64::from(u32::MAX), Class::Read, None), None, "too far out to be followed");
    assert_eq!(r.get(3), None);
    assert_eq!(r.transfer(ONE, 9, 1, Class::Read, None), None, "no such page");
    r.check();
}

#[test]
fn a_guest_that_asks_for_what_it_was_thought_to_hold_is_not_relied_on() {
    let mut r = new(64, HashKey::from_seed(1));
    (0..20).for_each(|n| _ = r.transfer(ONE, n, u64::from(n), Class::Read, None));
    assert!(r.is_at_guest(ONE, 7) && !r.is_at_guest(ONE, 30));
    // its cache was dropped: it reads the same blocks again, into other pages
    (0..8).for_each(|n| _ = r.transfer(ONE, 30 + n, u64::from(n), Class::Read, None));
    assert!(!r.is_at_guest(ONE, 15), "eight surprises in a row");
    (100..150).for_each(|n| _ = r.transfer(ONE, 40, n, Class::Read, None));
    assert!(r.is_at_guest(ONE, 15), "and trusted again after other transfers");
}

/// What a guest has freed counts as held until it uses it: one that frees many pages at a time asks for some of them
/// again. It has not dropped its cache for that.
#[test]
fn a_guest_has_dropped_its_cache_if_it_asks_for_much_of_what_it_held_and_not_if_it_asks_for_some() {
    const PAGES: u32 = 12_000;
    let mut r = new(PAGES, HashKey::from_seed(1));
    (0..PAGES).for_each(|n| _ = r.transfer(ONE, n, u64::from(n), Class::Read, None));
    let mut fresh = u64::from(PAGES);
    let mut page = 0;
    // one in ten in all, twelve of them in a row
    for n in 0..100_000u32 {
        page = (page + 1) % PAGES;
        fresh += 1;
        let again = n % 120 < 12;
        let held = (PAGES / 2..PAGES).map(|ahead| (page + ahead) % PAGES).find_map(|p| r.get(p)).unwrap();
        _ = r.transfer(ONE, page, if again { held.block } else { fresh }, Class::Read, None);
        assert!(!r.has_dropped(), "after {n} transfers");
    }
    let held: Vec<u64> = (0..PAGES).filter_map(|page| r.get(page).map(|what| what.block)).collect();
    // two in three are of what it held
    let asked = held.iter().step_by(2).zip(1..).find(|&(&block, n)| {
        _ = r.transfer(ONE, n % PAGES, block, Class::Read, None);
        if n % 2 == 0 {
            fresh += 1;
            _ = r.transfer(ONE, PAGES - n, fresh, Class::Read, None);
        }
        r.has_dropped()
    });
    let asked = asked.expect("it has dropped its cache").1;
    assert!((100..PAGES / 20).contains(&asked), "after {asked} blocks");
    r.check();
}

#[test]
fn transfers_are_found_by_number_until_they_are_overtaken() {
    let mut r = new(16, HashKey::from_seed(3));
    r.transfer(ONE, 5, 50, Class::Read, None);
    let first = r.now();
    assert_eq!(r.transferred(first).map(|(p, h)| (p, h.block, h.age)), Some((5, 50, 0)));
    r.transfer(ONE, 5, 50, Class::Write, None);
    assert_eq!(r.transferred(first), None);
    assert_eq!(r.transferred(r.now()).map(|(p, h)| (p, h.class)), Some((5, Class::Write)));
}

#[test]
fn a_page_used_for_another_disks_block_gives_up_the_first_ones() {
    let mut r = new(4, HashKey::from_seed(1));
    r.transfer(ONE, 0, 10, Class::Read, Some(0x800));
    assert_eq!(r.transfer(OTHER, 1, 10, Class::Write, Some(0x900)), None, "block 10 of each disk has a page");
    let left = r.transfer(OTHER, 0, 12, Class::Read, None).unwrap();
    assert_eq!((left.member, left.block, left.tag, left.class), (ONE, 10, Some(0x800), Class::Read));
    assert_eq!((r.page_of(ONE, 10), r.page_of(OTHER, 10), r.page_of(OTHER, 12)), (None, Some(1), Some(0)));
    let left = r.transfer(ONE, 1, 10, Class::Read, None).unwrap();
    assert_eq!((left.member, left.block, left.class), (OTHER, 10, Class::Write), "the same number, another disk");
    assert_eq!((r.held_by(ONE), r.held_by(OTHER), r.held()), (1, 1, 2));
    r.check();
}

#[test]
fn what_is_to_be_forgotten_counts_as_forgotten_before_the_table_has_been_walked() {
    let mut r = new(100, HashKey::from_seed(1));
    for n in 0..50 {
        r.transfer(ONE, n, 1000 + u64::from(n), Class::Read, Some(0x100));
        r.transfer(OTHER, 50 + n, 1000 + u64::from(n), Class::Read, Some(0x100));
    }
    r.forget_range(ONE, 0, 1 << 30);
    r.sweep(10);
    assert!((1000..1050).all(|b| r.page_of(ONE, b).is_none() && r.page_of(OTHER, b).is_some()));
    assert!(r.get(30).is_none() && !r.matches(30, 0x100) && !r.awaits_tag(ONE, 1030));
    assert_eq!(r.transfer(OTHER, 31, 7, Class::Read, None), None, "what was forgotten is not said to have left");
    // A page that has been looked at takes blocks of the range again; another could not tell them from old ones.
    r.transfer(ONE, 5, 1040, Class::Read, None);
    assert_eq!(r.page_of(ONE, 1040), Some(5));
    r.transfer(ONE, 33, 1033, Class::Read, None);
    r.transfer(ONE, 34, 1040, Class::Read, None);
    assert_eq!((r.page_of(ONE, 1033), r.page_of(ONE, 1040), r.get(5)), (None, None, None));
    r.check();
    r.transfer(ONE, 6, 1045, Class::Read, None);
    r.sweep(1000);
    // one of theirs is the page that was not said to have left
    assert_eq!((r.held_by(ONE), r.held_by(OTHER), r.wants_sweep()), (1, 51, false));
    r.transfer(ONE, 33, 1033, Class::Read, None);
    assert_eq!(r.page_of(ONE, 1033), Some(33));
    r.check();
}

/// Every step against a table that forgets at once. What is told may be less, never another thing.
#[test]
fn agrees_with_a_plain_model() {
    const PAGES: u32 = 97;
    let mut r = new(PAGES, HashKey::from_seed(5));
    let (mut of_page, mut of_block) = (HashMap::new(), HashMap::new());
    let (mut x, mut since) = (1u64, 0);
    for step in 0..200_000u32 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (page, block, member) = ((x >> 40) as u32 % PAGES, (x >> 20) % 150, [ONE, OTHER][(x >> 17) as usize & 1]);
        let key = (member.index(), block);
        // ranges begin now and then, and are walked before the next
        since += 1;
        if x >> 60 == 0 {
            r.forget(member, block);
            if let Some(p) = of_block.remove(&key) {
                of_page.remove(&p);
            }
        } else if since > 2000 {
            since = 0;
            let end = if block < 20 { 1 << 40 } else { block + 1000 };
            r.forget_range(member, block, end);
            of_block.retain(|&(m, b), p| {
                let goes = m == member.index() && (block..end).contains(&b);
                if goes {
                    of_page.remove(p);
                }
                !goes
            });
        } else {
            let sweeping = r.wants_sweep();
            let left = r.transfer(member, page, block, Class::Read, None).map(|l| (l.member.index(), l.block));
            let old = of_page.insert(page, key).filter(|&b| b != key);
            if let Some(b) = old {
                of_block.remove(&b);
            }
            assert!(left == old || sweeping && left.is_none(), "step {step}: {left:?}, not {old:?}");
            if let Some(p) = of_block.insert(key, page).filter(|&p| p != page) {
                of_page.remove(&p);
            }
            if r.get(page).is_none() {
                assert!(sweeping, "step {step}");
                of_page.remove(&page);
                of_block.remove(&key);
            }
            r.sweep(u32::from(step % 4 == 0));
        }
        if step % 4096 == 0 {
            r.check();
            (0..PAGES).for_each(|p| {
                assert_eq!(r.get(p).map(|w| (w.member.index(), w.block)), of_page.get(&p).copied(), "step {step}");
            });
        }
    }
    r.sweep(PAGES);
    for (&(m, b), &p) in &of_block {
        assert_eq!(r.page_of([ONE, OTHER][m], b), Some(p));
    }
    assert_eq!(r.held() as usize, of_block.len());
    r.forget_all();
    assert!((0..PAGES).all(|p| r.get(p).is_none()), "at once");
    r.sweep(PAGES);
    assert_eq!(r.held(), 0);
    r.check();
}
