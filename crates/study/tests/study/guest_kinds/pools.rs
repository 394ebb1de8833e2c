//! Guests that keep blocks by rules of their own: a swap disk, mapped files, a database with a pool and a log.
//!
//! Owns which pages they reuse, and when. Never sees the host's decisions. Invariant: a page holds one block at most.

use super::kinds::{Kind, skewed};
use super::{PAGES, SET};
use std::collections::{HashMap, VecDeque};
use undercroft_engine::PolicyKind;
use undercroft_study::sim::guest::GuestMemory;
use undercroft_study::sim::guest_policy::PolicyGuest;
use undercroft_study::sim::host::Host;
use undercroft_trace::transfers::Transfer;

/// Pages of a guest, with what they hold; those used last are spared once.
struct Clock {
    content: Vec<Option<(u64, u64)>>,
    versions: HashMap<u64, u64>,
    used: Vec<bool>,
    /// Pages in use, those longest there first.
    queue: VecDeque<u32>,
    free: VecDeque<u32>,
    zeroing: bool,
}

impl GuestMemory for Clock {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        self.content[page as usize]
    }

    fn version(&self, block: u64) -> u64 {
        self.versions.get(&block).copied().unwrap_or(0)
    }

    fn pages(&self) -> u32 {
        self.content.len() as u32
    }
}

/// The version of content that only the guest has.
const DIRTY: u64 = u64::MAX;

impl Clock {
    fn new(zeroing: bool) -> Self {
        let pages = PAGES as usize;
        Self {
            content: vec![None; pages],
            versions: HashMap::new(),
            used: vec![false; pages],
            queue: VecDeque::new(),
            free: (0..PAGES).collect(),
            zeroing,
        }
    }

    /// A page that is evicted now, if one has to be.
    fn victim(&mut self) -> Option<u32> {
        if self.free.len() as u32 > PAGES / 50 {
            return None;
        }
        loop {
            let page = self.queue.pop_front()?;
            if !std::mem::take(&mut self.used[page as usize]) {
                return Some(page);
            }
            self.queue.push_back(page);
        }
    }

    fn take(&mut self) -> u32 {
        let page = self.free.pop_front().expect("some are kept free");
        self.queue.push_back(page);
        if self.zeroing {
            self.content[page as usize] = None;
        }
        page
    }
}

/// Where a page of a program is.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    Memory(u32),
    Slot(u64),
}

/// Programs that use twice the memory there is, over a swap disk: what is evicted is written, its page is free at once,
/// and its slot is read once and given up.
pub struct Swapping {
    clock: Clock,
    places: Vec<Place>,
    /// Whose a page is.
    owner: Vec<u64>,
    slots: VecDeque<u64>,
}

impl Swapping {
    pub fn new(zeroing: bool) -> Self {
        Self {
            clock: Clock::new(zeroing),
            places: vec![Place::Nowhere; SET as usize],
            owner: vec![0; PAGES as usize],
            slots: (0..2 * SET).collect(),
        }
    }
}

impl Kind for Swapping {
    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        let one = skewed(x, SET);
        if let Place::Memory(page) = self.places[one as usize] {
            self.clock.used[page as usize] = true;
            return;
        }
        while let Some(page) = self.clock.victim() {
            let slot = self.slots.pop_front().expect("more slots than pages");
            host.transfer(&self.clock, Transfer { block: slot, page, write: true });
            let version = self.clock.versions.entry(slot).or_insert(0);
            *version += 1;
            self.clock.content[page as usize] = Some((slot, *version));
            self.places[self.owner[page as usize] as usize] = Place::Slot(slot);
            self.clock.free.push_back(page);
        }
        let page = self.clock.take();
        if let Place::Slot(slot) = self.places[one as usize] {
            host.transfer(&self.clock, Transfer { block: slot, page, write: false });
            self.slots.push_back(slot);
        }
        // Whatever it was, the program writes into it.
        self.clock.content[page as usize] = Some((2 * SET + one, DIRTY));
        self.places[one as usize] = Place::Memory(page);
        self.owner[page as usize] = one;
    }
}

/// Blocks that one fault of a mapped file reads.
const AROUND: u64 = 16;

/// Programs that read mapped files: a fault reads what lies around, and use is seen only when a page is about to be
/// evicted.
pub struct Mapped {
    clock: Clock,
    map: HashMap<u64, u32>,
}

impl Mapped {
    pub fn new(zeroing: bool) -> Self {
        Self { clock: Clock::new(zeroing), map: HashMap::new() }
    }
}

impl Kind for Mapped {
    fn pages_a_step(&self) -> u64 {
        2
    }

    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        let block = skewed(x, SET / AROUND) * AROUND + (x >> 40) % AROUND;
        let first = block / AROUND * AROUND;
        if !self.map.contains_key(&block) {
            for b in first..first + AROUND {
                if self.map.contains_key(&b) {
                    continue;
                }
                while let Some(page) = self.clock.victim() {
                    let (held, _) = self.clock.content[page as usize].expect("in use");
                    self.map.remove(&held);
                    self.clock.free.push_back(page);
                }
                let page = self.clock.take();
                host.transfer(&self.clock, Transfer { block: b, page, write: false });
                self.clock.content[page as usize] = Some((b, 0));
                self.map.insert(b, page);
            }
        }
        let page = self.map[&block];
        self.clock.used[page as usize] = true;
    }
}

/// Blocks of a page of the database.
const RECORD: u32 = 4;
/// Pages that the log is written from, and blocks of its file.
const LOG_PAGES: u32 = 16;
const LOG_BLOCKS: u64 = 2048;

/// A database that keeps its own pool of pages of 16 KiB over direct I/O, a fifth of them written, and writes a log
/// from always the same pages. A page of the pool is reused at once.
pub struct Database {
    pool: PolicyGuest,
    log: Vec<Option<(u64, u64)>>,
    written: u64,
}

struct ByBlocks<'a>(&'a PolicyGuest, &'a [Option<(u64, u64)>]);

impl GuestMemory for ByBlocks<'_> {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        let pool = self.0.pages() * RECORD;
        if page >= pool {
            return self.1[(page - pool) as usize];
        }
        let (record, version) = self.0.content(page / RECORD)?;
        Some((record * u64::from(RECORD) + u64::from(page % RECORD), version))
    }

    fn version(&self, block: u64) -> u64 {
        self.0.version(block / u64::from(RECORD))
    }

    fn pages(&self) -> u32 {
        self.0.pages() * RECORD + LOG_PAGES
    }
}

impl Database {
    pub fn new(_zeroing: bool) -> Self {
        let records = (PAGES - LOG_PAGES) / RECORD;
        Self { pool: PolicyGuest::new(PolicyKind::Lru, records, true), log: vec![None; LOG_PAGES as usize], written: 0 }
    }
}

impl Kind for Database {
    fn pages_a_step(&self) -> u64 {
        2
    }

    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        let Self { pool, log, written } = self;
        let record = skewed(x, SET / u64::from(RECORD));
        let writes = (x >> 40).is_multiple_of(5);
        pool.access(record, writes, &mut |g, t| {
            for i in 0..RECORD {
                let (block, page) = (t.block * u64::from(RECORD) + u64::from(i), t.page * RECORD + i);
                host.transfer(&ByBlocks(g, log), Transfer { block, page, write: t.write });
            }
        });
        if writes {
            let at = (*written % u64::from(LOG_PAGES)) as u32;
            let block = SET + *written % LOG_BLOCKS;
            *written += 1;
            log[at as usize] = Some((block, DIRTY));
            let page = pool.pages() * RECORD + at;
            host.transfer(&ByBlocks(pool, log), Transfer { block, page, write: true });
            log[at as usize] = Some((block, 1));
        }
    }
}
