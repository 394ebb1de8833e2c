//! A disk whose guest's memory can be seen: what is captured, what is kept, what is forgotten.

use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, Event, ExclusiveReport, ExclusiveState, Geometry, IoKind, Op,
};
use undercroft_engine::locking::{LockMode, LockSettings};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Front, Guest, ValueDisks, Values, block_request};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const BLOCKS: u64 = 1 << 20;

/// A guest of some pages over a disk whose block n is filled with n.
struct Rig {
    core: Core,
    front: Front<Guest<Values>>,
    disk: ValueDisks,
    /// Blocks read from the disk, in order.
    fetched: Vec<u64>,
}

impl Rig {
    fn new(mode: ExclusiveMode, capacity_blocks: u32, pages: u32) -> Self {
        Self::with_readahead(mode, capacity_blocks, pages, 0)
    }

    fn with_readahead(mode: ExclusiveMode, capacity_blocks: u32, pages: u32, readahead_bytes: u32) -> Self {
        let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(32 << 20) }).unwrap();
        let options = DiskOptions::new(&Geometry::new(BLOCKS * B), PolicyKind::Lru, capacity_blocks);
        core.add_disk(DISK, DiskOptions { readahead_bytes, exclusive: mode, ..options }).unwrap();
        core.set_guest(DISK, pages);
        let disk = ValueDisks::new(|_, block| block as u8 | 1);
        Self { core, front: Front::new(Guest::new(pages)), disk, fetched: Vec::new() }
    }

    fn run(&mut self, op: Op, block: u64, page: Option<u32>) {
        self.run_unchecked(op, block, page);
        self.core.check();
    }

    fn run_unchecked(&mut self, op: Op, block: u64, page: Option<u32>) {
        self.front.client.page = page;
        self.front.client.data.seen.clear();
        self.front.run(&mut self.core, block_request(DISK, op, block, 1), |io| {
            if io.kind == IoKind::Read {
                self.fetched.extend(io.offset / B..(io.offset + io.len) / B);
            }
            self.disk.serve(io);
        });
        self.core.apply(Event::Spare { copies: true }, 0, &mut self.front);
    }

    /// The guest reads `block` into `page`. Whether the cache had it.
    fn read(&mut self, block: u64, page: u32) -> bool {
        let before = self.core.stats(DISK).hit_blocks;
        self.run(Op::Read, block, Some(page));
        assert_eq!(self.got(), self.disk.value(DISK.0, block), "block {block}");
        self.core.stats(DISK).hit_blocks > before
    }

    /// The guest reads so many blocks, `turns` times into each of its 600 pages in turn: `block` says which. Returns
    /// how many of the second half the cache had.
    fn reads(&mut self, n: u64, turns: u64, block: impl Fn(u64) -> u64) -> u64 {
        let hits = |rig: &Self| rig.core.stats(DISK).hit_blocks;
        let mut half = 0;
        for i in 0..n {
            if i == n / 2 {
                half = hits(self);
                self.core.check();
            }
            self.run_unchecked(Op::Read, block(i), Some((i / turns % 600) as u32));
            assert_eq!(self.got(), self.disk.value(DISK.0, block(i)), "block {}", block(i));
        }
        self.core.apply(Event::Tick, 0, &mut self.front);
        self.core.check();
        hits(self) - half
    }

    fn report(&mut self) -> ExclusiveReport {
        self.core.exclusive(DISK).unwrap()
    }

    /// What the last read was given.
    fn got(&self) -> u8 {
        let &[(0, 0, value)] = &self.front.client.data.seen[..] else { panic!("not read, or in pieces") };
        value
    }

    /// What requests write from now on.
    fn writes(&mut self, value: u8) {
        self.front.client.data.write = Some(value);
    }

    fn cached(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.core.for_each_cached(DISK, |block, _| blocks.push(block));
        blocks.sort_unstable();
        blocks
    }
}

/// A share that is full of what the guest does not hold.
fn full(rig: &mut Rig, blocks: u64) {
    for b in 0..blocks {
        rig.read(500 + b, 0);
    }
}

#[test]
fn what_a_reused_page_still_holds_is_captured_and_served_without_the_disk() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 40, 8);
    full(&mut rig, 60);
    for b in 0..8 {
        assert!(!rig.read(b, b as u32));
    }
    let reads = rig.core.stats(DISK).backend_reads;
    // the guest reuses its pages: blocks 0 to 7 are evicted, and captured
    for b in 0..8 {
        rig.read(100 + b, b as u32);
    }
    assert_eq!(rig.core.stats(DISK).backend_reads, reads + 8);
    for b in 0..8 {
        assert!(rig.read(b, b as u32), "block {b} was captured");
    }
    assert_eq!(rig.core.stats(DISK).backend_reads, reads + 8);
    let e = rig.core.exclusive(DISK).unwrap();
    assert!(e.stats.captures >= 16 && e.stats.captures == e.stats.captures_tried, "{e:?}");
}

#[test]
fn a_page_that_was_zeroed_or_changed_is_not_captured() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 40, 8);
    full(&mut rig, 60);
    rig.read(1, 1);
    rig.read(2, 2);
    rig.front.client.pages[1].fill(0);
    rig.front.client.pages[2][4000] ^= 1;
    let before = rig.core.exclusive(DISK).unwrap().stats;
    rig.read(11, 1);
    rig.read(12, 2);
    let e = rig.core.exclusive(DISK).unwrap().stats;
    assert_eq!((e.captures_tried - before.captures_tried, e.captures, e.captures_zeroed), (2, before.captures, 1));
    assert!(!rig.cached().contains(&1) && !rig.cached().contains(&2));
}

#[test]
fn a_write_between_makes_the_old_content_worthless() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 40, 8);
    full(&mut rig, 60);
    rig.read(1, 1);
    // another client writes the block; the guest's page still has what it read before
    rig.writes(77);
    rig.run(Op::Write { fua: false }, 1, None);
    rig.read(11, 1);
    rig.read(1, 5);
    assert_eq!(rig.got(), 77);
    for discarded in [false, true] {
        rig.read(2, 2);
        let op = if discarded { Op::Discard } else { Op::WriteZeroes { unmap: false, fua: false } };
        rig.run(op, 2, None);
        rig.read(12, 2);
        assert!(!rig.read(2, 2), "what the page held was not the block any more");
        rig.disk.changed.remove(&(DISK.0, 2));
        rig.core.invalidate(DISK);
    }
}

#[test]
fn what_a_guest_writes_is_captured_when_its_page_is_reused() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 40, 8);
    full(&mut rig, 60);
    rig.writes(33);
    rig.front.client.pages[3].fill(33);
    rig.run(Op::Write { fua: false }, 9, Some(3));
    full(&mut rig, 60);
    rig.read(10, 3);
    let reads = rig.core.stats(DISK).backend_reads;
    assert!(rig.read(9, 4), "captured with what was written");
    assert_eq!((rig.got(), rig.core.stats(DISK).backend_reads), (33, reads));
}

#[test]
fn pages_of_a_zeroing_guest_are_copied_before_they_go() {
    let mut rig = Rig::new(ExclusiveMode::Delayed, 60, 200);
    // more than the cache can keep, through pages that are reused in a ring and zeroed before
    let mut hits = 0;
    for n in 0..6000u64 {
        let page = (n % 200) as u32;
        rig.front.client.pages[page as usize].fill(0);
        hits += u64::from(rig.read(n % 240, page) && n > 3000);
    }
    let e = rig.core.exclusive(DISK).unwrap();
    assert!(e.stats.early > 1000 && e.stats.captures_tried == 0, "{e:?}");
    assert!(hits > 600, "{hits} of 3000 reads: the 40 blocks that the guest does not hold fit");
}

#[test]
fn a_new_memory_map_empties_the_table() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 40, 8);
    full(&mut rig, 60);
    rig.read(1, 1);
    assert!(rig.core.exclusive(DISK).unwrap().stats.pages_held > 0);
    rig.core.set_guest(DISK, 8);
    assert_eq!(rig.core.exclusive(DISK).unwrap().stats.pages_held, 0);
    let copies = rig.front.client.copies;
    rig.read(2, 1);
    assert_eq!(rig.front.client.copies, copies, "nothing is known of page 1");
    rig.core.set_guest(DISK, 0);
    assert_eq!(rig.core.exclusive(DISK).unwrap().state, ExclusiveState::NoGuest);
    rig.read(3, 1);
}

#[test]
fn a_guest_too_large_for_the_share_is_served_inclusively_and_said_so() {
    let mut rig = Rig::new(ExclusiveMode::Auto, 40, 1);
    rig.front.client.pages = vec![[0; 4096]; 1];
    rig.core.set_guest(DISK, 1 << 20);
    match rig.core.exclusive(DISK).unwrap().state {
        ExclusiveState::NoMemory { needed_bytes, allowed_bytes } => {
            assert!(needed_bytes > 26 << 20 && allowed_bytes == 40 * B / 4, "{needed_bytes} {allowed_bytes}");
        }
        other => panic!("{other:?}"),
    }
    rig.read(1, 0);
    assert!(rig.read(1, 0));
}

/// An idle disk lends its share: where the table of its guest does not fit any more it goes, and comes back with the
/// share.
#[test]
fn a_guest_whose_table_went_with_the_share_is_followed_again_once_it_fits() {
    for mode in [ExclusiveMode::Capture, ExclusiveMode::Delayed] {
        let mut rig = Rig::new(mode, 400, 2000);
        let state = |rig: &mut Rig| rig.core.exclusive(DISK).unwrap().state;
        rig.read(1, 1);
        assert!(matches!(state(&mut rig), ExclusiveState::On { .. }), "{:?}", state(&mut rig));
        rig.core.set_share(DISK, 16).unwrap();
        rig.core.apply(Event::Tick, 0, &mut rig.front);
        assert!(matches!(state(&mut rig), ExclusiveState::NoMemory { .. }), "{:?}", state(&mut rig));
        rig.read(2, 2);
        rig.core.set_share(DISK, 400).unwrap();
        rig.core.apply(Event::Tick, 0, &mut rig.front);
        assert!(matches!(state(&mut rig), ExclusiveState::On { .. }), "{:?}", state(&mut rig));
        assert_eq!(rig.core.exclusive(DISK).unwrap().stats.pages_held, 0, "what it read meanwhile was not seen");
        rig.read(3, 3);
        assert_eq!(rig.core.exclusive(DISK).unwrap().stats.pages_held, 1);
        rig.core.check();

        // A guest that has gone meanwhile does not come back.
        rig.core.set_capacity(DISK, 16).unwrap();
        rig.core.apply(Event::Tick, 0, &mut rig.front);
        rig.core.set_guest(DISK, 0);
        rig.core.set_share(DISK, 400).unwrap();
        rig.core.apply(Event::Tick, 0, &mut rig.front);
        assert_eq!(state(&mut rig), ExclusiveState::NoGuest);
    }
}

/// What blocks would be worth to a disk that is kept exclusive of its guest: a loop of 900 blocks through 600 pages
/// needs the 300 that the guest does not hold, where an inclusive cache needs all.
#[test]
fn the_curve_of_an_exclusive_disk_counts_what_the_guest_does_not_hold() {
    let hits = |mode, blocks| {
        let mut rig = Rig::new(mode, 350, 600);
        rig.core.measure(DISK, Some(2000));
        let mut curve = None;
        for n in 0..9000u64 {
            rig.read(n % 900, (n % 600) as u32);
            if n % 900 == 899 {
                curve = rig.core.telemetry(DISK).map(|t| t.curve);
            }
        }
        1.0 - curve.unwrap().miss_ratio_at(blocks)
    };
    for mode in [ExclusiveMode::Capture, ExclusiveMode::Delayed] {
        let (few, enough) = (hits(mode, 100), hits(mode, 600));
        assert!(few < 0.2 && enough > 0.9, "{mode}: {few} of the reads with 100 blocks, {enough} with 600");
    }
    let off = hits(ExclusiveMode::Off, 600);
    assert!(off < 0.1, "inclusive: {off}");
}

/// Read-ahead that passes over what the guest holds does not read it: it will not be asked for.
#[test]
fn what_the_guest_holds_is_not_read_ahead() {
    let mut rig = Rig::with_readahead(ExclusiveMode::Capture, 30, 200, 64 << 10);
    assert!(matches!(rig.core.exclusive(DISK).unwrap().state, ExclusiveState::On { .. }));
    // backwards: of what cannot be kept, the youngest goes first
    for block in (100..160).rev() {
        rig.read(block, (block - 100) as u32);
    }
    rig.fetched.clear();
    // a stream up to what is held, through other pages, and on behind it
    for (n, block) in (40..100).chain(160..210).enumerate() {
        rig.read(block, 60 + n as u32);
    }
    let fetched = std::mem::take(&mut rig.fetched);
    assert!((40..100).chain(160..210).all(|b| fetched.contains(&b)));
    assert!(fetched.iter().all(|b| !(100..160).contains(b)), "{fetched:?}");
    assert!(rig.core.stats(DISK).readahead_hit_blocks > 80, "and the rest was");

    // The guest has dropped its cache: it asks for what it was thought to hold, and is read ahead for as anybody.
    let before = rig.core.stats(DISK).readahead_hit_blocks;
    for block in 40..210 {
        rig.read(block, (209 - block) as u32);
    }
    let ahead = rig.core.stats(DISK).readahead_hit_blocks - before;
    assert!(ahead > 40, "{ahead} blocks of 170 were there in time");
}

#[test]
fn with_off_no_page_is_looked_at() {
    let mut rig = Rig::new(ExclusiveMode::Off, 40, 8);
    for n in 0..200 {
        rig.read(n % 50, (n % 8) as u32);
    }
    assert_eq!((rig.front.client.copies, rig.core.exclusive(DISK).unwrap().state), (0, ExclusiveState::Off));
}

#[test]
fn what_a_scan_finds_in_the_guest_goes_first_and_only_if_it_is_still_that() {
    let mut rig = Rig::new(ExclusiveMode::Off, 20, 8);
    rig.core.set_scanned(DISK, true);
    for n in 0..20 {
        rig.run(Op::Read, n, None);
    }
    let (mut found, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        from = rig.core.cached_hashes(DISK, at, 7, &mut found);
    }
    assert_eq!(found.len(), 20);
    rig.writes(99);
    rig.run(Op::Write { fua: false }, 15, None);
    found.retain(|&(_, block)| block >= 10);
    assert_eq!(rig.core.cool(DISK, &found), 9, "block 15 is another now");
    assert_eq!(rig.core.exclusive(DISK).unwrap().tiers[2], 9);
    for n in 100..109 {
        rig.run(Op::Read, n, None);
    }
    let cached = rig.cached();
    assert!((0..10).all(|b| cached.contains(&b)) && cached.contains(&15), "{cached:?}");
}

#[test]
fn a_disk_becomes_inclusive_and_exclusive_again_while_it_serves() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 40, 8);
    full(&mut rig, 60);
    (0..8).for_each(|b| _ = rig.read(b, b as u32));
    rig.core.set_exclusive(DISK, ExclusiveMode::Off);
    assert_eq!(rig.core.exclusive(DISK).unwrap().state, ExclusiveState::Off);
    rig.core.check();
    // Nobody looks on while a block that the guest holds changes.
    rig.writes(77);
    rig.run(Op::Write { fua: false }, 1, None);
    let copies = rig.front.client.copies;
    rig.read(30, 7);
    assert_eq!(rig.front.client.copies, copies, "nothing is copied");
    rig.core.set_exclusive(DISK, ExclusiveMode::Capture);
    assert!(matches!(rig.core.exclusive(DISK).unwrap().state, ExclusiveState::On { .. }));
    // What pages held before is not known any more: their reuse captures nothing.
    (100..107).for_each(|b| _ = rig.read(b, (b - 100) as u32));
    assert_eq!(rig.front.client.copies, copies);
    rig.read(1, 7);
    assert_eq!(rig.got(), 77, "what was written, whether it is cached or not");
    // From now on it is as ever.
    full(&mut rig, 60);
    (0..6).for_each(|b| _ = rig.read(b, b as u32));
    (200..206).for_each(|b| _ = rig.read(b, (b - 200) as u32));
    assert!((0..6).all(|b| rig.read(b, b as u32)), "captured again");
}

/// A guest whose file system is encrypted: its pages never hold what the disk has.
fn opaque(capacity_blocks: u32, pages: u32) -> Rig {
    let mut rig = Rig::new(ExclusiveMode::Auto, capacity_blocks, pages);
    rig.front.client.opaque = true;
    rig
}

/// A loop is where the order of eviction alone pays most: what was given to the guest last is wanted last.
#[test]
fn where_pages_never_match_the_order_of_eviction_stays_and_nothing_is_copied_or_hashed() {
    let mut rig = opaque(350, 600);
    let hits = rig.reads(9000, 1, |n| n % 900);
    let r = rig.report();
    let ExclusiveState::Opaque { tried, held: 0, ordered: true } = r.state else { panic!("{r:?}") };
    assert!((200..=2000).contains(&tried) && u64::from(rig.front.client.copies) <= 2000, "{r:?}");
    assert!(hits > 1000 && r.table_disks == 1, "{hits} of 4500 reads: {r:?}");
    // From now on it costs no copy and no hash, but for the trial that comes 8,192 reads after it was found so.
    let spent = |rig: &Rig| (rig.front.client.copies, rig.core.stats(DISK).hashed_blocks);
    let found = spent(&rig);
    let hits = rig.reads(9000, 1, |n| n % 900);
    let (r, tried) = (rig.report(), spent(&rig));
    assert!((1..=32).contains(&(tried.0 - found.0)) && tried.1 - found.1 <= 64, "{found:?}, {tried:?}: {r:?}");
    assert!(matches!(r.state, ExclusiveState::Opaque { held: 0, ordered: true, .. }), "{r:?}");
    assert!(hits > 1000, "{hits} of 4500 reads: {r:?}");
    rig.reads(6000, 1, |n| n % 900);
    assert_eq!((spent(&rig), rig.report().state), (tried, r.state), "the next one is twice as far");
}

/// A guest that writes more than it has memory for: what it has written is gone from its page, for the sake of the next
/// writes, before the disk sees those. That was taken for encryption.
#[test]
fn a_guest_whose_written_pages_are_used_again_unseen_is_not_found_opaque() {
    let mut rig = Rig::new(ExclusiveMode::Auto, 350, 600);
    for n in 0..3000 {
        rig.run_unchecked(Op::Write { fua: false }, n, Some((n % 600) as u32));
        rig.front.client.pages[((n + 400) % 600) as usize].fill(n as u8 | 1);
    }
    let r = rig.report();
    assert!(matches!(r.state, ExclusiveState::On { .. }), "{r:?}");
    assert!((257..=512).contains(&r.stats.early_tried) && r.stats.early == 0, "{r:?}");
    // Its pages, once they are read into, hold what the disk has.
    rig.reads(3000, 1, |n| 10_000 + n % 900);
    let e = rig.report().stats;
    assert!(e.captures + e.early > 500, "{e:?}");
}

/// Each block is read twice, one right after the other: any cache has the second read, and a table brings nothing.
#[test]
fn where_pages_never_match_and_the_order_brings_nothing_the_table_goes_and_is_asked_again_seldom() {
    let mut rig = opaque(350, 600);
    let twice = |from: u64| move |n: u64| (from + n / 2) % BLOCKS;
    let hits = rig.reads(6000, 2, twice(0));
    let r = rig.report();
    let ExclusiveState::Opaque { tried, held: 0, ordered: false } = r.state else { panic!("{r:?}") };
    assert!((200..=2000).contains(&tried) && hits == 1500, "{hits} of 3000 reads: {r:?}");
    assert_eq!((r.table_bytes, r.table_disks, r.tiers[1], r.tiers[2]), (0, 0, 0, 0), "it takes no memory: {r:?}");
    let copies = rig.front.client.copies;
    let misses = |rig: &Rig| rig.core.stats(DISK).miss_blocks;
    let before = misses(&rig);
    rig.reads(60_000, 2, twice(3000));
    assert_eq!((rig.front.client.copies, rig.report().table_disks), (copies, 0));
    // It is asked again after 65,536 misses, by a few copies.
    let mut asked_at = vec![];
    let mut at = 33_000;
    while misses(&rig) - before < 400_000 {
        rig.reads(2000, 2, twice(at));
        at += 1000;
        if rig.report().table_disks == 1 && asked_at.last().is_none_or(|&last| misses(&rig) - last > 20_000) {
            asked_at.push(misses(&rig));
        }
    }
    let r = rig.report();
    assert!(asked_at.len() == 2, "after 65,536 misses and twice as many: {before}, {asked_at:?}");
    let more = rig.front.client.copies - copies;
    assert!((1..=64).contains(&more) && matches!(r.state, ExclusiveState::Opaque { held: 0, .. }), "{more}: {r:?}");
}

fn tried_of(r: &ExclusiveReport) -> u64 {
    r.stats.captures_tried + r.stats.early_tried
}

/// Another system may run in a guest that begins anew.
#[test]
fn a_new_session_asks_at_once_whether_pages_match() {
    let mut rig = opaque(350, 600);
    rig.reads(6000, 2, |n| n / 2);
    assert!(matches!(rig.report().state, ExclusiveState::Opaque { ordered: false, .. }), "{:?}", rig.report());
    rig.core.set_guest(DISK, 600);
    let r = rig.report();
    assert!(matches!(r.state, ExclusiveState::On { .. }) && tried_of(&r) == 0 && r.table_disks == 1, "{r:?}");
    rig.front.client.opaque = false;
    rig.reads(6000, 1, |n| n % 900);
    let r = rig.report();
    assert!(matches!(r.state, ExclusiveState::On { .. }) && r.stats.captures > 100, "{r:?}");
    // Likewise where the memory stays and the guest begins afresh, whether there still is a table or not.
    for (turns, gave_up) in [(1, false), (2, true)] {
        let mut rig = opaque(350, 600);
        rig.reads(9000, turns, |n| if gave_up { n / 2 } else { n % 900 });
        let state = rig.report().state;
        assert!(matches!(state, ExclusiveState::Opaque { ordered, .. } if ordered != gave_up), "{state:?}");
        let copies = rig.front.client.copies;
        rig.core.restart_guest(DISK);
        while rig.core.wants_spare() {
            rig.core.apply(Event::Spare { copies: true }, 0, &mut rig.front);
        }
        let r = rig.report();
        assert!(matches!(r.state, ExclusiveState::On { .. }) && r.table_disks == 1, "{r:?}");
        assert_eq!(rig.front.client.copies, copies, "nothing is copied of what it held");
    }
}

/// A way that was chosen by hand is kept to.
#[test]
fn with_capture_asked_for_pages_that_never_match_are_copied_all_the_same() {
    let mut rig = Rig::new(ExclusiveMode::Capture, 350, 600);
    rig.front.client.opaque = true;
    rig.reads(6000, 1, |n| n % 900);
    assert!(matches!(rig.report().state, ExclusiveState::On { capture: true, .. }));
    assert!(rig.front.client.copies > 2000);
}

/// A guest whose pages held the disk's blocks once, so that it is not taken for an encrypted one, and that reads a loop
/// through few pages now, each of which it clears first. The cache is full of what it will not ask for again: exclusive
/// of the guest, it keeps that. Whether it was found that an inclusive one would be better.
fn loses(rig: &mut Rig, loop_blocks: u64) -> bool {
    for n in 0..2600 {
        rig.run_unchecked(Op::Read, 5000 + n, Some(0));
    }
    (0..60_000).any(|n| {
        let page = n % 8;
        rig.front.client.pages[page as usize].fill(0);
        rig.run_unchecked(Op::Read, n % loop_blocks, Some(page as u32));
        n % 100 == 0 && rig.report().state == ExclusiveState::Inclusive
    })
}

/// An inclusive cache of the share that the disk had first would have none of the loop.
#[test]
fn what_an_exclusive_cache_is_held_against_grows_with_its_share() {
    for grows in [false, true] {
        let mut rig = Rig::new(ExclusiveMode::Auto, 300, 64);
        if grows {
            rig.core.set_share(DISK, 1200).unwrap();
            rig.core.apply(Event::Tick, 0, &mut rig.front);
        }
        assert_eq!(loses(&mut rig, 900), grows, "{:?}", rig.report());
        let r = rig.report();
        rig.core.check();
        // It is paid for as one that began with that share.
        let mut new = Rig::new(ExclusiveMode::Auto, if grows { 1200 } else { 300 }, 64);
        assert!(r.table_bytes >= new.report().table_bytes, "{} bytes", r.table_bytes);
    }
}

/// A disk whose cache keeps what the guest holds as well has a table of the guest's pages, by which reads are served in
/// runs; the rule that locks blocks is to hear of each block all the same.
#[test]
fn the_online_rule_hears_of_what_is_read_in_runs() {
    let mut rig = Rig::new(ExclusiveMode::Auto, 300, 64);
    rig.core.set_share(DISK, 1200).unwrap();
    rig.core.apply(Event::Tick, 0, &mut rig.front);
    assert!(loses(&mut rig, 900), "{:?}", rig.report());
    rig.core.set_locking(DISK, LockSettings { mode: LockMode::Online, ..LockSettings::default() });
    (0..1800).for_each(|n| rig.run_unchecked(Op::Read, n % 900, Some((n % 8) as u32)));
    let before = (rig.core.lock_report(DISK).online.unwrap().epochs, rig.core.stats(DISK).hit_blocks);
    rig.front.client.runs = true;
    rig.front.client.page = Some(0);
    for n in 0..1600 {
        rig.front.client.data.seen.clear();
        let disk = &mut rig.disk;
        rig.front.run(&mut rig.core, block_request(DISK, Op::Read, n % 100 * 8, 8), |io| disk.serve(io));
    }
    rig.core.check();
    let after = (rig.core.lock_report(DISK).online.unwrap().epochs, rig.core.stats(DISK).hit_blocks);
    assert_eq!((after.1 - before.1, rig.report().state), (12_800, ExclusiveState::Inclusive));
    // An epoch is no longer than four accesses for each block of the share.
    assert!(after.0 >= before.0 + 2, "{} epochs and then {}", before.0, after.0);
}

/// One under LRU would have none of a loop that is larger than it; one under W-TinyLFU has a good part.
#[test]
fn what_an_exclusive_cache_is_held_against_has_its_policy() {
    for changes in [false, true] {
        let mut rig = Rig::new(ExclusiveMode::Auto, 600, 64);
        if changes {
            rig.core.set_policy(DISK, PolicyKind::WTinyLfu);
        }
        assert_eq!(loses(&mut rig, 900), changes, "{:?}", rig.report());
    }
}
