//! The memory that an index takes is fixed, and within its part of the budget of 64 bytes per cached block.

use undercroft_engine::{Access, Exclusive, Index, PolicyKind};

/// What the index may take of the 64 bytes; the cache core needs the rest.
const BYTES_PER_SLOT_MAX: f64 = 50.0;

fn bytes_per_slot(index: &Index) -> f64 {
    index.memory_bytes() as f64 / f64::from(index.capacity())
}

/// Warm and with every ghost there can be: two thirds of the accesses are hits, misses come back, cold ones pass.
fn churn(index: &mut Index, accesses: u64) {
    let capacity = u64::from(index.capacity());
    for i in 0..accesses {
        let block = match i % 3 {
            0 => i / 3 % (capacity / 2),
            1 => i / 3 % (capacity * 3 / 2),
            _ => i,
        };
        index.access(block, Access::Read, |_| true);
    }
}

#[test]
fn every_policy_stays_within_fifty_bytes_per_slot() {
    for kind in PolicyKind::ALL {
        // 4 MiB of data, a size that is no power of two, 4 GiB
        for capacity in [1024, 99_991, 1 << 20] {
            let mut index = Index::new(kind, capacity);
            let fresh = index.memory_bytes();
            assert!(bytes_per_slot(&index) <= BYTES_PER_SLOT_MAX, "{kind} of {capacity}: {}", bytes_per_slot(&index));
            churn(&mut index, 200_000);
            assert_eq!(index.memory_bytes(), fresh, "{kind} of {capacity} took memory while it was used");
        }
    }
}

#[test]
fn resizing_and_switching_keep_to_the_budget() {
    for kind in PolicyKind::ALL {
        let mut index = Index::new(kind, 50_000);
        for capacity in [20_000, 20_001, 60_000, 5_000] {
            churn(&mut index, 60_000);
            assert_eq!(index.resize(capacity, |_| true, |_, _| {}, |_, _| {}), capacity);
            assert!(bytes_per_slot(&index) <= BYTES_PER_SLOT_MAX, "{kind} of {capacity}: {}", bytes_per_slot(&index));
            let as_new = Index::new(kind, capacity).memory_bytes();
            assert_eq!(index.memory_bytes(), as_new, "{kind} resized to {capacity} differs from a new one");
        }
        for next in PolicyKind::ALL {
            index.switch(next);
            assert_eq!(index.memory_bytes(), Index::new(next, 5_000).memory_bytes(), "{kind} switched to {next}");
        }
    }
}

#[test]
fn what_is_known_of_a_guest_takes_at_most_34_bytes_a_page_and_tiers_9_a_slot() {
    // what the comparison with an inclusive cache takes depends on the capacity alone
    let fixed = Exclusive::bytes_for(0, 4096);
    for pages in [1 << 14, 49_152, 1 << 20, 3 << 20] {
        let per_page = (Exclusive::bytes_for(pages, 4096) - fixed) as f64 / f64::from(pages);
        assert!(per_page <= 34.0, "{pages} pages: {per_page:.1} bytes each");
    }
    let mut index = Index::new(PolicyKind::Lru, 50_000);
    let before = index.memory_bytes();
    index.set_tiers(true);
    let per_slot = (index.memory_bytes() - before) as f64 / 50_000.0;
    assert!(per_slot <= 9.1, "{per_slot} bytes a slot");
}
