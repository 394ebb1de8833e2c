//! The hot path does not allocate: counted by the allocator itself.
//!
//! A program of its own, since the allocator is the program's. The counters are per thread, so that the tests do not
//! see each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use undercroft_cache::fault_injection::NoFaults;
use undercroft_cache::ssd::{
    BootId, Format, Hint, Identity, Known, Media, Offered, Refusal, Region, Ssd, SsdDone, SsdIoKind, StoreId,
};
use undercroft_cache::{
    Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, GroupId, MemoryId, Op, Request, limits,
};
use undercroft_engine::{ExclusiveMode, GuestTable, PolicyKind};
use undercroft_skips::at_length;
use undercroft_testkit::front::{Buffer, Front, block_request};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes of the largest one.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    ALLOCATIONS.with(|n| n.set(n.get() + 1));
    LARGEST.with(|n| n.set(n.get().max(bytes)));
}

struct Counting;

// SAFETY: every call goes to the system allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const B: u64 = 4096;
const DISK: DiskId = DiskId(0);

fn request(op: Op, block: u64, blocks: u64) -> Request {
    block_request(DISK, op, block, blocks)
}

/// Applies a request and completes everything it starts; allocations that happened within the core, since the front end
/// has room for everything from the start.
fn through(core: &mut Core, front: &mut Front<Buffer>, request: Request) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    front.run(core, request, |_| ());
    if core.wants_spare() {
        core.apply(Event::Spare { copies: false }, 0, front);
    }
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn hits_never_allocate_and_misses_and_writes_not_once_warm() {
    let all = PolicyKind::ALL.into_iter().flat_map(|p| [(p, false), (p, true)]);
    // Contents are held once in the same way under each policy: under the default one, and at length under all.
    for (policy, share) in all.filter(|(p, share)| !share || *p == PolicyKind::S3Fifo || at_length()) {
        let mut core = Core::new(CoreOptions::new(64 << 20)).unwrap();
        let options = DiskOptions {
            readahead_bytes: 256 << 10,
            group: share.then_some(GroupId(0)),
            ..DiskOptions::new(&Geometry::new(4096 * B), policy, 1024)
        };
        core.add_disk(DISK, options).unwrap();
        let mut front = Front::new(Buffer(vec![0; 64 * B as usize]));
        front.ios.reserve(64);

        // Warm up: tables grow to what this load needs. First to more operations at a time than any request below can
        // split into, whatever the policy keeps: 64 blocks of which every other one is cached.
        for block in (0..4096).step_by(32) {
            front.ask(&mut core, request(Op::Read, block, 1));
        }
        front.end_all(&mut core, |_| ());
        // Then to as many operations of more than eight blocks as there are frames for: their lists are longer.
        for block in (0..4096).step_by(128) {
            front.ask(&mut core, request(Op::Read, block + 10, 9));
        }
        front.end_all(&mut core, |_| ());
        for block in (0..4096).step_by(16) {
            through(&mut core, &mut front, request(Op::Read, block, 16));
            through(&mut core, &mut front, request(Op::Write { fua: false }, block, 4));
        }
        through(&mut core, &mut front, request(Op::Flush, 0, 0));

        through(&mut core, &mut front, request(Op::Read, 7, 1));
        through(&mut core, &mut front, request(Op::Read, 7, 1));
        let hits = core.stats(DISK).hit_blocks;
        let mut on_hits = 0;
        for _ in 0..100 {
            on_hits += through(&mut core, &mut front, request(Op::Read, 7, 1));
        }
        assert_eq!(core.stats(DISK).hit_blocks, hits + 100, "{policy}: they were hits");
        assert_eq!(on_hits, 0, "{policy}: a hit allocated");

        // The first half of the load is warming up too: tables grow to the depth that it needs.
        let (misses, mut warm) = (core.stats(DISK).backend_reads, 0);
        for i in 0..8000u64 {
            let block = i.wrapping_mul(0x9e37_79b9) % 4000;
            let now = through(&mut core, &mut front, request(Op::Read, block, 1 + i % 64))
                + through(&mut core, &mut front, request(Op::Write { fua: false }, block, 1 + i % 8))
                + through(&mut core, &mut front, request(Op::Flush, 0, 0));
            warm += if i < 4000 { 0 } else { now };
        }
        assert!(core.stats(DISK).backend_reads > misses + 2000, "{policy}: there were misses");
        assert_eq!(warm, 0, "{policy}: a miss or a write allocated");
    }
}

/// A guest that maps as much memory anew gets a table in the memory of the one before: nothing of that size is asked of
/// the heap, which might have to clear it.
#[test]
fn a_table_of_guest_pages_is_taken_up_again_by_a_guest_of_as_many() {
    const PAGES: u32 = 1 << 20;
    let options = CoreOptions { step_bytes: limits::STEP_BYTES, ..CoreOptions::new(256 << 20) };
    let mut core = Core::new(options).unwrap();
    let options = DiskOptions::new(&Geometry::new(1 << 40), PolicyKind::Lru, 40_000);
    core.add_disk(DISK, DiskOptions { exclusive: ExclusiveMode::Capture, ..options }).unwrap();
    let mut front = Front::new(Buffer(vec![0; B as usize]));
    let mut map = |memory: u64, pages: u32| {
        LARGEST.with(|n| n.set(0));
        core.share_guest(DISK, MemoryId(memory), pages);
        while core.wants_spare() {
            core.apply(Event::Spare { copies: false }, 0, &mut front);
        }
        assert!(core.exclusive(DISK).unwrap().table_bytes >= GuestTable::bytes_for(pages));
        LARGEST.with(Cell::get)
    };
    assert!(map(1, PAGES) >= 16 << 20, "the pages alone");
    for memory in 2..6 {
        let largest = map(memory, PAGES);
        assert!(largest < 1 << 20, "{largest} bytes were asked for at once");
    }
    assert!(map(6, PAGES / 2) >= 8 << 20);
}

/// A device in memory.
struct Flash(Vec<u8>);

impl Media for Flash {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> std::io::Result<()> {
        to.copy_from_slice(&self.0[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        self.0[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_rule_of_admission_never_allocates() {
    let mut flash = Flash(vec![0; 8 << 20]);
    let format = Format { store: StoreId([7; 16]), segment_bytes: 256 << 10 };
    let region = Region::format(&mut flash, format, BootId([1; 16]), NoFaults).unwrap();
    let mut ssd: Ssd = Ssd::new(vec![region]);
    let known = Known { identity: Identity([1; 64]), stamp: None, blocks: 1 << 30 };
    let (owner, _) = ssd.attach(&known).unwrap();
    ssd.set_share(owner, 1 << 30);
    let mut offer = |block: u64, reused: bool| {
        let before = ALLOCATIONS.with(Cell::get);
        ssd.lookup(owner, block);
        let offered = ssd.offer(owner, block, &[0; 4096], Hint { reused, guest_holds: false, pinned: false }, block);
        let allocated = ALLOCATIONS.with(Cell::get) - before;
        while let Some(mut io) = ssd.next_io(block) {
            if io.kind == SsdIoKind::Read {
                let mut at = io.offset as usize;
                for piece in io.buf.pieces_mut() {
                    piece.copy_from_slice(&flash.0[at..at + piece.len()]);
                    at += piece.len();
                }
            } else if io.kind == SsdIoKind::Write {
                let mut at = io.offset as usize;
                for piece in io.buf.pieces() {
                    flash.0[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
            }
            ssd.io_done(SsdDone { id: io.id, device: io.device, buf: io.buf, is_done: true });
        }
        (offered, allocated)
    };
    // Until the store is full; then a scan, and blocks all over the disk, often enough that the rule chooses anew.
    (0..4000).for_each(|block| _ = offer(block, false));
    let mut refused = 0;
    for n in 0..400_000u64 {
        let block = if n % 2 == 0 { 100_000 + n } else { n * 7919 % 900_000_000 };
        let (offered, allocated) = offer(block, false);
        if offered == Offered::Refused(Refusal::Rule) {
            refused += 1;
            assert_eq!(allocated, 0, "allocations for block {block}");
        }
    }
    assert!(refused > 390_000, "{refused} of what does not come again");
}
