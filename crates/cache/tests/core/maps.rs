//! Guests that map their memory anew, as often as they like: what that costs their worker at once.

use undercroft_cache::limits::{STEP_BYTES, UNIT_BYTES};
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event, ExclusiveState, Geometry, MemoryId, Op};
use undercroft_engine::{ExclusiveMode, GuestTable, PolicyKind};
use undercroft_testkit::front::{Front, Guest, NoData, block_request, number_blocks};

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);
const OTHER: DiskId = DiskId(1);

/// Blocks that a call or an event may evict.
const EVICTIONS_MAX: u64 = 256;

/// Disks of one guest, which uses the first of its pages only.
struct Rig {
    core: Core,
    front: Front<Guest<NoData>>,
    disks: u32,
}

impl Rig {
    fn new(disks: u32, capacity_blocks: u32, pages: u32) -> Self {
        let memory = u64::from(disks * (capacity_blocks + 10_000)) * (B + 256);
        let mut core =
            Core::new(CoreOptions { step_bytes: STEP_BYTES, hash_seed: 1, ..CoreOptions::new(memory) }).unwrap();
        for disk in (0..disks).map(DiskId) {
            let options = DiskOptions::new(&Geometry::new(1 << 40), PolicyKind::Lru, capacity_blocks);
            core.add_disk(disk, DiskOptions { exclusive: ExclusiveMode::Capture, ..options }).unwrap();
        }
        Self { core, front: Front::new(Guest::new(pages)), disks }
    }

    fn read(&mut self, disk: DiskId, block: u64, page: Option<u32>) {
        self.front.client.page = page;
        self.front.run(&mut self.core, block_request(disk, Op::Read, block, 1), number_blocks);
    }

    fn cached(&self) -> u64 {
        (0..self.disks).map(|d| self.core.stats(DiskId(d)).cached_blocks).sum()
    }

    fn is_on(&mut self, disk: DiskId) -> bool {
        matches!(self.core.exclusive(disk).unwrap().state, ExclusiveState::On { .. })
    }

    /// What `act` touches of memory for the first time is bounded, and so are the blocks that go and those that leave
    /// a tier for another.
    fn bounded(&mut self, act: impl FnOnce(&mut Self)) {
        let hot = |r: &mut Self| r.core.exclusive(DISK).map_or(0, |e| e.tiers[0]);
        let (faults, cached, before) = (faults(), self.cached(), hot(self));
        act(self);
        let faults = crate::maps::faults() - faults;
        assert!(faults <= 200, "{faults} pages touched at once");
        let went = cached.saturating_sub(self.cached());
        assert!(went <= EVICTIONS_MAX, "{went} blocks went at once");
        let left = hot(self).saturating_sub(before);
        assert!(u64::from(left) <= STEP_BYTES / UNIT_BYTES, "{left} blocks left their tier at once");
    }

    fn share(&mut self, disk: DiskId, memory: u64, pages: u32) {
        self.bounded(|r| r.core.share_guest(disk, MemoryId(memory), pages));
    }

    fn spare(&mut self) {
        self.bounded(|r| r.core.apply(Event::Spare { copies: false }, 0, &mut r.front));
    }

    /// Spare time until nothing wants it; how many events that takes.
    fn rest(&mut self) -> u64 {
        let mut events = 0;
        while self.core.wants_spare() {
            self.spare();
            events += 1;
            assert!(events < 100_000, "it does not come to an end");
            if events % 64 == 0 {
                self.core.check();
            }
        }
        self.core.check();
        events
    }
}

/// Pages that this thread has touched for the first time so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// A guest of 16 GiB, which costs its front end a sparse file. Each table is made a step at a time, in the memory of
/// the one before or, for as many steps more, after that has gone; and it is not made twice because the map changes
/// again meanwhile.
#[test]
fn a_memory_map_that_changes_again_and_again_costs_a_step_each_time() {
    const PAGES: u32 = 1 << 22;
    let mut r = Rig::new(1, 160_000, 100);
    let steps = GuestTable::bytes_for(PAGES) / STEP_BYTES;
    r.share(DISK, 1, PAGES);
    assert!(!r.is_on(DISK), "all of it was made at once");
    assert!(r.rest() >= steps && r.is_on(DISK));
    for memory in 2..5 {
        (0..100).for_each(|n| r.read(DISK, memory * 1000 + n, Some(n as u32)));
        assert_eq!(r.core.exclusive(DISK).unwrap().stats.pages_held, 100);
        r.share(DISK, memory, PAGES);
        r.spare();
        // Again, before the table for this one is there.
        let mut events = 0;
        for more in 0..400 {
            r.share(DISK, 100 + 1000 * memory + more, PAGES);
            r.spare();
            events += 1;
        }
        events += r.rest();
        assert!((steps..6 * steps).contains(&events), "{events} events for {steps} steps");
        assert!(r.is_on(DISK) && r.core.exclusive(DISK).unwrap().stats.pages_held == 0);
    }
    // Other sizes, and none.
    for (memory, pages) in [(10, PAGES / 2), (11, 0), (12, PAGES - 1), (13, PAGES), (14, 0), (15, 100)] {
        match pages {
            0 => r.bounded(|r| r.core.set_guest(DISK, 0)),
            _ => r.share(DISK, memory, pages),
        }
        if memory % 2 == 0 {
            r.rest();
            assert_eq!(r.is_on(DISK), pages > 0, "memory {memory}");
        }
    }
    r.rest();
    assert!(r.is_on(DISK));
}

/// The blocks in whose place a table comes go a few at a time. While its disk cannot pay for it there is none.
#[test]
fn blocks_make_room_for_a_table_a_few_at_a_time() {
    const PAGES: u32 = 300_000;
    let mut r = Rig::new(1, 12_000, 1);
    (0..12_000).for_each(|block| r.read(DISK, block, None));
    assert_eq!(r.cached(), 12_000);
    r.share(DISK, 1, PAGES);
    let mut events = 0;
    while !r.is_on(DISK) {
        let event = if events % 10 == 9 { Event::Tick } else { Event::Spare { copies: false } };
        r.bounded(|r| r.core.apply(event, 0, &mut r.front));
        // Whatever goes, others come.
        r.read(DISK, 20_000 + events, None);
        r.core.check();
        events += 1;
        assert!(events < 5000, "there is never room for it");
    }
    let took = 12_000 - r.cached();
    assert!(events > 50 && took * B >= GuestTable::bytes_for(PAGES), "{took} blocks in {events} events");
    // A change of the map costs no more blocks: the table is taken up again.
    let cached = r.cached();
    for memory in 2..6 {
        r.share(DISK, memory, PAGES);
        r.rest();
    }
    assert!(r.is_on(DISK) && r.cached() == cached, "{} of {cached} blocks are left", r.cached());
    // With the guest goes what was paid for its table.
    r.bounded(|r| r.core.set_guest(DISK, 0));
    r.rest();
    (0..12_000).for_each(|block| r.read(DISK, block, None));
    assert_eq!(r.cached(), 12_000);
}

/// What the guest held is not the first to go any more once its memory is another: that becomes the policy's a few
/// blocks at a time.
#[test]
fn what_a_former_guest_held_becomes_the_policys_a_few_blocks_at_a_time() {
    let mut r = Rig::new(1, 8000, 7000);
    r.share(DISK, 1, 7000);
    r.rest();
    (0..6000).for_each(|block| r.read(DISK, block, Some(block as u32)));
    let tiers = |r: &mut Rig| r.core.exclusive(DISK).unwrap().tiers;
    assert_eq!(tiers(&mut r), [0, 0, 6000]);
    for memory in 2..5 {
        r.share(DISK, memory, 7000);
        // Blocks of the new guest come meanwhile.
        r.read(DISK, 7000 + memory, Some(5));
        r.spare();
        r.core.check();
    }
    r.rest();
    let [hot, _, cold] = tiers(&mut r);
    assert!(hot >= 6000 && cold <= 3, "{hot} are the policy's, the guest holds {cold}");
    assert!(r.is_on(DISK));
}

/// Disks of a guest see its new memory one after the other. Those who stay pay for the table step by step, and until
/// they do, those who have left; a disk that goes for good leaves nothing unpaid.
#[test]
fn a_table_is_paid_for_while_its_disks_leave_it_one_by_one() {
    const PAGES: u32 = 300_000;
    let mut r = Rig::new(2, 12_000, 4);
    r.share(DISK, 1, PAGES);
    r.share(OTHER, 1, PAGES);
    r.rest();
    for block in 0..12_000 {
        r.read(DISK, block, None);
        r.read(OTHER, block, None);
    }
    assert!(r.is_on(DISK) && r.is_on(OTHER));
    let part = |r: &mut Rig, disk| r.core.exclusive(disk).unwrap().table_bytes;
    let (first, second) = (part(&mut r, DISK), part(&mut r, OTHER));
    r.read(OTHER, 3, Some(3));
    assert_eq!(r.core.exclusive(OTHER).unwrap().stats.pages_held, 1);
    // The first sees another memory: that ends what is known for the second too, at once.
    r.share(DISK, 2, PAGES);
    r.core.check();
    assert_eq!(r.core.exclusive(OTHER).unwrap().stats.pages_held, 0);
    assert!(r.is_on(OTHER) && !r.is_on(DISK) && part(&mut r, OTHER) < first + second);
    assert!(r.rest() > 10);
    assert!(r.is_on(DISK) && r.is_on(OTHER), "each has one of its own");
    assert!(part(&mut r, DISK).min(part(&mut r, OTHER)) >= GuestTable::bytes_for(PAGES));
    r.share(OTHER, 2, PAGES);
    r.core.check();
    r.rest();
    assert_eq!((r.core.exclusive(DISK).unwrap().table_disks, part(&mut r, OTHER)), (2, second));
    // One goes for good while the other one still pays for what both had.
    r.share(OTHER, 3, PAGES);
    r.spare();
    r.core.check();
    r.core.remove_disk(OTHER);
    r.disks = 1;
    r.core.check();
    r.rest();
    assert!(r.is_on(DISK));
    // And one that pays for a table which serves nobody.
    r.share(DISK, 4, PAGES);
    r.spare();
    r.core.remove_disk(DISK);
    r.core.check();
    assert!(!r.core.wants_spare());
}

/// A guest whose map changes in size before anything is done keeps no other guest from its table.
#[test]
fn the_tables_of_several_guests_come_each_in_its_turn() {
    const PAGES: u32 = 300_000;
    let mut r = Rig::new(2, 12_000, 1);
    r.share(DISK, 1, PAGES);
    r.rest();
    r.share(OTHER, 2, PAGES);
    let mut events = 0;
    while !r.is_on(OTHER) {
        // one that its former table's memory will do for, and one that it will not
        r.share(DISK, 10 + events, if events % 2 == 0 { PAGES } else { PAGES / 2 });
        r.spare();
        events += 1;
        assert!(events < 5000, "it never comes");
    }
    r.core.check();
    r.rest();
    assert!(r.is_on(DISK));
}
