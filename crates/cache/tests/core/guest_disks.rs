//! Several disks of one guest: one table of its pages, so that a page reused for another disk's block is seen.

use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event, ExclusiveState, Geometry, IoKind, MemoryId, Op};
use undercroft_engine::{ExclusiveMode, ExclusiveStats, PolicyKind};
use undercroft_testkit::front::{Front, Guest, NoData, block_request, number_blocks};

const B: u64 = 4096;
const MEMORY: MemoryId = MemoryId(7);

/// A guest of some pages over disks that hold the numbers of their blocks, and each disk its own beside them.
struct Rig {
    core: Core,
    front: Front<Guest<NoData>>,
}

impl Rig {
    /// With one table for all disks, or one for each.
    fn new(disks: u32, together: bool, mode: ExclusiveMode, capacity_blocks: u32, pages: u32) -> Self {
        let mut core = Core::new(CoreOptions { hash_seed: 1, ..CoreOptions::new(64 << 20) }).unwrap();
        for disk in (0..disks).map(DiskId) {
            let options = DiskOptions::new(&Geometry::new(20_000 * B), PolicyKind::Lru, capacity_blocks);
            core.add_disk(disk, DiskOptions { exclusive: mode, ..options }).unwrap();
            match together {
                true => core.share_guest(disk, MEMORY, pages),
                false => core.set_guest(disk, pages),
            }
        }
        core.check();
        Self { core, front: Front::new(Guest::new(pages)) }
    }

    fn run(&mut self, op: Op, disk: u32, block: u64, page: Option<u32>) {
        self.front.client.page = page;
        self.front.run(&mut self.core, block_request(DiskId(disk), op, block, 1), |io| {
            number_blocks(io);
            if io.kind == IoKind::Read {
                // no two disks hold the same
                let mark = 1 + io.disk.0 as u8;
                io.buf.pieces_mut().for_each(|piece| piece[8] = mark);
            }
        });
        self.core.apply(Event::Spare { copies: true }, 0, &mut self.front);
    }

    /// The guest reads a block into `page`, and gets what is on the disk. Whether the cache had it.
    fn read(&mut self, disk: u32, block: u64, page: u32) -> bool {
        let before = self.core.stats(DiskId(disk)).hit_blocks;
        self.run(Op::Read, disk, block, Some(page));
        let mut got = self.front.client.pages[page as usize];
        if self.front.client.opaque {
            got.iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        assert_eq!(
            (got.first_chunk(), got[8]),
            (Some(&block.to_le_bytes()), 1 + disk as u8),
            "block {block} of {disk}"
        );
        self.core.stats(DiskId(disk)).hit_blocks > before
    }

    /// Fills a disk's share with what the guest does not hold.
    fn fill(&mut self, disk: u32, blocks: u64) {
        (0..blocks).for_each(|b| _ = self.read(disk, 5000 + b, 0));
    }

    fn stats(&mut self, disk: u32) -> ExclusiveStats {
        self.core.exclusive(DiskId(disk)).unwrap().stats
    }

    fn table(&mut self, disk: u32) -> (u32, u64) {
        let report = self.core.exclusive(DiskId(disk)).unwrap();
        (report.table_disks, report.table_bytes)
    }
}

#[test]
fn a_page_reused_for_another_disks_block_is_captured_for_the_disk_that_it_was_of() {
    let mut rig = Rig::new(2, true, ExclusiveMode::Capture, 60, 8);
    rig.fill(0, 80);
    rig.fill(1, 80);
    for b in 1..8 {
        assert!(!rig.read(0, b, b as u32));
    }
    let before = [rig.stats(0), rig.stats(1)];
    for b in 1..8 {
        rig.read(1, b, b as u32);
        rig.core.check();
    }
    let (own, other) = (rig.stats(0), rig.stats(1));
    assert_eq!((own.evictions - before[0].evictions, own.captures - before[0].captures), (7, 7), "{own:?}");
    assert_eq!(other.captures, before[1].captures, "{other:?}");
    let reads = rig.core.stats(DiskId(0)).backend_reads;
    for b in 1..8 {
        // each time a block of disk 1 leaves, and is disk 1's
        assert!(rig.read(0, b, b as u32), "block {b}");
        assert!(rig.read(1, b, b as u32), "block {b}");
    }
    assert_eq!(rig.core.stats(DiskId(0)).backend_reads, reads);
    rig.core.check();
}

#[test]
fn what_a_write_of_one_disk_puts_into_a_page_ends_what_it_held_of_another() {
    let mut rig = Rig::new(2, true, ExclusiveMode::Capture, 60, 8);
    rig.fill(0, 80);
    rig.read(0, 1, 1);
    // The guest has made the page anew: what it held cannot be had.
    rig.front.client.pages[1].fill(1);
    let copies = rig.front.client.copies;
    rig.run(Op::Write { fua: false }, 1, 9, Some(1));
    assert_eq!((rig.front.client.copies, rig.stats(0).pages_held), (copies, 1), "only page 0 is known");
    // And a block that changes while the guest holds it is not known to be there any more, whoever reuses its page.
    rig.read(0, 2, 2);
    rig.run(Op::Write { fua: false }, 0, 2, None);
    rig.read(1, 20, 2);
    assert_eq!(rig.front.client.copies, copies);
    rig.core.check();
}

#[test]
fn a_new_memory_that_one_disk_sees_first_ends_what_is_known_for_all() {
    let mut rig = Rig::new(3, true, ExclusiveMode::Capture, 60, 8);
    for disk in 0..3 {
        rig.read(disk, 1, 1 + disk);
    }
    assert_eq!(rig.stats(2).pages_held_by_all, 3);
    rig.core.share_guest(DiskId(0), MemoryId(8), 16);
    assert_eq!((rig.stats(1).pages_held, rig.stats(2).pages_held_by_all), (0, 0));
    assert_eq!((rig.table(0).0, rig.table(1).0), (1, 2));
    // The others see it later, and do not end what the first has learned since.
    rig.read(0, 2, 2);
    rig.core.share_guest(DiskId(1), MemoryId(8), 16);
    rig.core.share_guest(DiskId(2), MemoryId(8), 16);
    assert_eq!((rig.stats(1).pages_held_by_all, rig.table(1).0), (1, 3));
    // One is reset: what the others hold stays.
    rig.read(1, 3, 3);
    rig.core.share_guest(DiskId(1), MemoryId(8), 16);
    assert_eq!(rig.stats(1).pages_held, 1, "a front end that stops and goes on changes nothing");
    rig.core.restart_guest(DiskId(1));
    while rig.core.wants_spare() {
        rig.core.apply(Event::Spare { copies: false }, 0, &mut rig.front);
    }
    let mut known = Vec::new();
    rig.core.for_each_guest_page(DiskId(1), |page, block| known.push((page, block)));
    rig.core.for_each_guest_page(DiskId(0), |page, block| known.push((page, block)));
    assert_eq!(known, [(2, 2)]);
    rig.core.check();
}

#[test]
fn a_disk_that_goes_takes_its_blocks_with_it_and_leaves_the_table_to_the_others() {
    let mut rig = Rig::new(2, true, ExclusiveMode::Capture, 100, 600);
    let alone = Rig::new(1, true, ExclusiveMode::Capture, 100, 600).table(0).1;
    let (first, second) = (rig.table(0), rig.table(1));
    assert_eq!((first.0, second.0), (2, 2));
    assert!(first.1 + second.1 < alone * 3 / 2, "paid for once: {first:?}, {second:?}, alone {alone}");
    rig.read(0, 1, 1);
    rig.read(1, 2, 2);
    rig.core.remove_disk(DiskId(1));
    rig.core.check();
    assert_eq!((rig.table(0).0, rig.stats(0).pages_held), (1, 1));
    assert!(rig.table(0).1 >= alone, "the other one pays for all of it");
    // Another disk takes its place: nothing that page 2 holds is a block of that one.
    let options = DiskOptions::new(&Geometry::new(20_000 * B), PolicyKind::Lru, 100);
    rig.core.add_disk(DiskId(1), DiskOptions { exclusive: ExclusiveMode::Capture, ..options }).unwrap();
    rig.core.share_guest(DiskId(1), MEMORY, 600);
    assert_eq!(rig.table(1).0, 2);
    let copies = rig.front.client.copies;
    rig.read(1, 3, 2);
    assert_eq!(rig.front.client.copies, copies);
    rig.core.check();
}

#[test]
fn a_table_stays_as_long_as_its_disks_can_pay_for_it_together() {
    let mut rig = Rig::new(2, true, ExclusiveMode::Capture, 300, 2000);
    let on = |rig: &mut Rig, disk| matches!(rig.core.exclusive(DiskId(disk)).unwrap().state, ExclusiveState::On { .. });
    let part = rig.table(0).1;
    rig.core.set_share(DiskId(1), 100).unwrap();
    rig.core.apply(Event::Tick, 0, &mut rig.front);
    rig.core.check();
    assert!(on(&mut rig, 0) && on(&mut rig, 1) && rig.table(0).1 > part, "the larger one pays more");
    rig.core.set_share(DiskId(0), 30).unwrap();
    rig.core.set_share(DiskId(1), 30).unwrap();
    (0..100).for_each(|_| rig.core.apply(Event::Tick, 0, &mut rig.front));
    rig.core.check();
    assert!(!on(&mut rig, 0) && !on(&mut rig, 1));
    rig.core.set_share(DiskId(1), 600).unwrap();
    (0..100).for_each(|_| rig.core.apply(Event::Tick, 0, &mut rig.front));
    rig.core.check();
    assert!(on(&mut rig, 1) && rig.table(1).0 >= 1);
    // A disk that is not kept exclusive pays for nothing.
    rig.core.set_exclusive(DiskId(0), ExclusiveMode::Off);
    assert_eq!((rig.table(0), rig.table(1).0), ((0, 0), 1));
    rig.core.check();
}

/// The part of early copies that held their block, and the hits among the last reads, of a load on blocks that are
/// spread over `disks` disks: a guest that zeroes pages and reuses the oldest one, over twice as many blocks as it has
/// pages, a quarter of them read again and again.
fn early(disks: u32, together: bool, pooled: bool) -> (f64, f64) {
    const PAGES: u32 = 3000;
    let mut rig = Rig::new(disks, together, ExclusiveMode::Delayed, 2100 / disks, PAGES);
    if pooled {
        (1..disks).for_each(|disk| rig.core.join_pool(DiskId(disk), DiskId(0)).unwrap());
    }
    let (mut of_page, mut at) = (vec![None; PAGES as usize], std::collections::HashSet::new());
    let (mut x, mut page, mut reads, mut hits) = (88_172_645_463_325_252u64, 0, 0, 0);
    for n in 0..30_000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let block = (x >> 11) % (2 * u64::from(PAGES));
        if !at.insert(block) {
            // the guest has it
            continue;
        }
        page = (page + 1) % PAGES;
        if let Some(former) = of_page[page as usize].replace(block) {
            at.remove(&former);
        }
        rig.front.client.pages[page as usize].fill(0);
        let (disk, block) = ((block % u64::from(disks)) as u32, block / u64::from(disks));
        let hit = rig.read(disk, block, page);
        if n > 15_000 {
            reads += 1;
            hits += u32::from(hit);
        }
    }
    rig.core.check();
    let stats: Vec<ExclusiveStats> = (0..disks).map(|disk| rig.stats(disk)).collect();
    let sum = |of: fn(&ExclusiveStats) -> u64| stats.iter().map(of).sum::<u64>() as f64;
    if together {
        assert!(stats[0].pages_held_by_all <= PAGES, "{stats:?}");
    }
    (sum(|s| s.early) / sum(|s| s.early_tried), f64::from(hits) / f64::from(reads))
}

#[test]
fn two_and_four_disks_of_a_guest_are_kept_exclusive_as_well_as_one() {
    let one = early(1, true, false);
    for disks in [2, 4] {
        let (split, together) = (early(disks, false, false), early(disks, true, false));
        let pooled = early(disks, true, true);
        println!(
            "one {one:.3?}; {disks} disks: a table each {split:.3?}, one table {together:.3?}, in a pool {pooled:.3?}"
        );
        assert!(pooled.0 > 0.95 && pooled.1 > one.1 * 0.95, "with one order of eviction: {one:?}, {pooled:?}");
        assert!(one.0 > 0.95 && together.0 > 0.95, "early copies that held: {one:?}, {together:?}");
        assert!(split.0 < together.0 - 0.05, "it is the tables that make the difference: {split:?}");
        assert!(together.1 > one.1 * 0.95, "hits: {one:?}, {together:?}");
    }
}

/// At a reset pages hold what they held; whatever has been put there since is not taken for it.
#[test]
fn what_a_guest_held_when_it_began_afresh_is_copied_in_steps_and_only_if_it_is_still_there() {
    let mut rig = Rig::new(2, true, ExclusiveMode::Capture, 60, 64);
    for b in 0..20 {
        rig.read(0, b, b as u32);
        rig.read(1, b, 20 + b as u32);
    }
    // What the cache has is older than that.
    rig.fill(0, 100);
    (0..20).for_each(|b| _ = rig.read(0, b, b as u32));
    rig.front.client.pages[3].fill(9);
    let before = rig.stats(0);
    rig.core.restart_guest(DiskId(0));
    let mut events = 0;
    while rig.core.wants_spare() {
        let copies = rig.front.client.copies;
        rig.core.apply(Event::Spare { copies: false }, 0, &mut rig.front);
        assert!(rig.front.client.copies - copies <= 32, "too many copies in an event");
        rig.core.check();
        events += 1;
        assert!(events < 100, "it does not come to an end");
    }
    let after = rig.stats(0);
    assert_eq!((after.restart_tried - before.restart_tried, after.pages_held), (20, 0), "{after:?}");
    assert_eq!(after.restart_copied - before.restart_copied, 19, "one page holds something else");
    assert_eq!(rig.stats(1).pages_held, 20, "the other disk was not reset");
    let reads = rig.core.stats(DiskId(0)).backend_reads;
    for b in (0..20).rev() {
        assert_eq!(rig.read(0, b, 40 + b as u32), b != 3, "block {b}");
    }
    assert_eq!(rig.core.stats(DiskId(0)).backend_reads, reads + 1);
}

/// A guest with a plain disk and an encrypted one: the second gives up its part in the table, and the first goes on,
/// with pages that the second reuses too.
#[test]
fn a_plain_disk_stays_exclusive_beside_one_whose_pages_never_match() {
    const PAGES: u32 = 600;
    let mut rig = Rig::new(2, true, ExclusiveMode::Auto, 700, PAGES);
    let reads = |rig: &mut Rig, from: u32, n: u32| {
        let mut hits = 0;
        for i in from..from + n {
            // pages in an order in which each is used for both disks
            let page = i % (PAGES - 1);
            rig.front.client.opaque = i % 2 == 1;
            match i % 2 {
                0 => hits += u32::from(rig.read(0, u64::from(i / 2 % 900), page)),
                _ => _ = rig.read(1, u64::from(i / 2 % 15_000), page),
            }
        }
        rig.core.apply(Event::Tick, 0, &mut rig.front);
        rig.core.check();
        hits
    };
    reads(&mut rig, 0, 12_000);
    let [plain, opaque] = [0, 1].map(|disk| rig.core.exclusive(DiskId(disk)).unwrap());
    let copies = |s: &ExclusiveStats| (s.captures_tried + s.early_tried, s.captures + s.early);
    assert!(matches!(plain.state, ExclusiveState::On { .. }) && copies(&plain.stats).1 > 1000, "{plain:?}");
    let ExclusiveState::Opaque { tried, held: 0, ordered: false } = opaque.state else { panic!("{opaque:?}") };
    assert!(tried <= 2000 && (plain.table_disks, opaque.table_disks) == (1, 0), "{plain:?}, {opaque:?}");
    // Pages that it uses are reused all the same: what they held of the first one has left, and copies come in time.
    let hits = reads(&mut rig, 12_000, 12_000);
    let now = rig.core.exclusive(DiskId(0)).unwrap().stats;
    let [(tried, held), before] = [&now, &plain.stats].map(copies);
    let (tried, held) = (tried - before.0, held - before.1);
    assert!(held > 100 && held * 20 > tried * 19, "{held} of {tried} copies held: {now:?}");
    assert!(now.evictions - plain.stats.evictions > 5000 && now.pages_held <= PAGES, "{now:?}");
    assert!(hits > 3500, "{hits} of 6000 reads of a loop of which the guest holds a third, and the cache the rest");
}
