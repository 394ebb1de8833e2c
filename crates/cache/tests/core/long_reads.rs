//! A guest whose memory is seen reads long pieces one after the other: its pages are copied before they go all the
//! same.

use undercroft_cache::limits::STEP_BYTES;
use undercroft_cache::{Core, CoreOptions, DiskId, DiskOptions, Event, Geometry, Op, ReqId, Request};
use undercroft_engine::{ExclusiveMode, PolicyKind};
use undercroft_testkit::front::{Client, Front, block_request, number_blocks};

const B: usize = 4096;
const DISK: DiskId = DiskId(0);
/// Blocks of a request.
const LONG: u32 = 32;
const PAGES: u32 = 3200;
/// Blocks that are read again and again: more than the guest has pages, and less than it and the cache have together.
const LOOP: u32 = 4800;
const CAPACITY: u32 = 2400;

/// A guest that uses its pages in turn, and zeroes each before it reads into it.
struct Guest {
    pages: Vec<[u8; B]>,
    /// The page of the first block of the request.
    first: usize,
}

impl Client for Guest {
    fn asking(&mut self, request: &Request) {
        let count = request.len as usize / B;
        self.first = (self.first + count) % self.pages.len();
        self.pages[self.first..][..count].iter_mut().for_each(|page| page.fill(0));
    }

    fn take(&mut self, _req: ReqId, at: usize, bytes: &[u8]) {
        self.pages[self.first + at / B][at % B..][..bytes.len()].copy_from_slice(bytes);
    }

    fn give(&mut self, _req: ReqId, _at: usize, _bytes: &mut [u8]) {}

    fn page(&mut self, _req: ReqId, at: usize) -> Option<u32> {
        Some((self.first + at / B) as u32)
    }

    fn copy_page(&mut self, _disk: DiskId, page: u32, to: &mut [u8; B]) -> bool {
        *to = self.pages[page as usize];
        true
    }
}

/// Hashing what a long read brought takes all the time of several events, and what was due to be copied meanwhile
/// waited for other requests until it was gone: a loop over 1.5 times the guest's memory found half of its reads
/// (real guests: 51 % instead of 100).
#[test]
fn pages_are_copied_before_they_go_behind_long_reads_too() {
    let mut core =
        Core::new(CoreOptions { hash_seed: 1, step_bytes: STEP_BYTES, ..CoreOptions::new(32 << 20) }).unwrap();
    let options = DiskOptions::new(&Geometry::new(1 << 40), PolicyKind::DEFAULT, CAPACITY);
    core.add_disk(DISK, DiskOptions { exclusive: ExclusiveMode::Auto, ..options }).unwrap();
    core.set_guest(DISK, PAGES);
    let mut front = Front::new(Guest { pages: vec![[0; B]; PAGES as usize], first: 0 });
    let mut before = 0;
    let loops = 12;
    for n in 0..loops * LOOP / LONG {
        if n == loops / 2 * LOOP / LONG {
            before = core.stats(DISK).backend_read_bytes;
        }
        let first = u64::from(n * LONG % LOOP);
        front.run(&mut core, block_request(DISK, Op::Read, first, u64::from(LONG)), number_blocks);
        while front.answered <= u64::from(n) {
            for paused in std::mem::take(&mut front.paused) {
                core.apply(Event::Resume(paused), 0, &mut front);
            }
            front.end_all(&mut core, number_blocks);
        }
        for (at, page) in front.client.pages[front.client.first..][..LONG as usize].iter().enumerate() {
            assert_eq!(page.first_chunk(), Some(&(first + at as u64).to_le_bytes()), "not what the block holds");
        }
        while core.wants_spare() {
            core.apply(Event::Spare { copies: true }, 0, &mut front);
        }
    }
    let read = (core.stats(DISK).backend_read_bytes - before) / B as u64;
    let asked = u64::from(loops / 2 * LOOP);
    println!("{read} of {asked}, {:?}", core.exclusive(DISK));
    assert!(read < asked / 20, "{read} of {asked} blocks read were read from the disk");
}
