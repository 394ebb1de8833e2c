//! Guests made of the simulated page cache: plain, with large folios, with pages across blocks, with several groups,
//! with memory that is added.
//!
//! Owns how what the page cache does becomes requests. Never sees the host's decisions. Invariant: what a page is said
//! to hold is what was moved through it last, or zeroes.

use super::{PAGES, SET};
use std::collections::VecDeque;
use undercroft_study::sim::guest::{GuestMemory, GuestOptions, SimulatedGuest};
use undercroft_study::sim::host::Host;
use undercroft_trace::transfers::Transfer;

/// A guest that is driven step by step.
pub trait Kind {
    /// Its pages of memory.
    fn pages(&self) -> u32 {
        PAGES
    }
    /// Pages that one step may move, about.
    fn pages_a_step(&self) -> u64 {
        1
    }
    /// What its programs do next; `x` is a random number, `part` how much of the run is over.
    fn step(&mut self, part: f64, x: u64, host: &mut Host);
}

fn page_cache(pages: u32, zeroing: bool) -> SimulatedGuest {
    SimulatedGuest::new(GuestOptions { pages, free_pages: pages / 50, zeroing })
}

/// Nine of ten go to the first half, so that there is something to keep.
pub fn skewed(x: u64, n: u64) -> u64 {
    let half = n / 2;
    if x % 10 < 7 { (x / 10) % half } else { half + (x / 10) % (n - half) }
}

/// A page cache over a file system of 4 KiB blocks.
pub struct Plain(SimulatedGuest);

impl Plain {
    pub fn new(zeroing: bool) -> Self {
        Self(page_cache(PAGES, zeroing))
    }
}

impl Kind for Plain {
    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        self.0.access(skewed(x, SET), false, &mut |g, t| _ = host.transfer(g, t));
    }
}

/// The same where each page is the end of one block of the host and the beginning of the next one.
pub struct Split(SimulatedGuest);

impl Split {
    pub fn new(zeroing: bool) -> Self {
        Self(page_cache(PAGES, zeroing))
    }
}

impl Kind for Split {
    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        self.0.access(skewed(x, SET), false, &mut |_, t| _ = host.pass(t.block..t.block + 2, t.write));
    }
}

/// Pages of a folio of 64 KiB.
const FOLIO: u32 = 16;

/// A page cache whose folios are of 64 KiB: they are read, kept and evicted as one.
pub struct Folios(SimulatedGuest);

/// Its memory, by pages.
struct ByPages<'a>(&'a SimulatedGuest);

impl GuestMemory for ByPages<'_> {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        let (block, version) = self.0.content(page / FOLIO)?;
        Some((block * u64::from(FOLIO) + u64::from(page % FOLIO), version))
    }

    fn version(&self, block: u64) -> u64 {
        self.0.version(block / u64::from(FOLIO))
    }

    fn pages(&self) -> u32 {
        self.0.pages() * FOLIO
    }
}

impl Folios {
    pub fn new(zeroing: bool) -> Self {
        Self(page_cache(PAGES / FOLIO, zeroing))
    }
}

impl Kind for Folios {
    fn pages_a_step(&self) -> u64 {
        u64::from(FOLIO) / 2
    }

    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        let folio = skewed(x, SET / u64::from(FOLIO));
        self.0.access(folio, false, &mut |g, t| {
            for i in 0..FOLIO {
                let (block, page) = (t.block * u64::from(FOLIO) + u64::from(i), t.page * FOLIO + i);
                host.transfer(&ByPages(g), Transfer { block, page, write: t.write });
            }
        });
    }
}

/// Two control groups of programs, each with a page cache of its own order of eviction: one reads a stream again and
/// again, the other has a working set. Free pages are the guest's, so a page that one has freed the other may take.
pub struct Grouped {
    groups: [SimulatedGuest; 2],
    /// Which page of memory each page of a group is.
    place: [Vec<u32>; 2],
    /// Pages that were freed last.
    free: VecDeque<u32>,
    memory: Contents,
    zeroing: bool,
    stream: u64,
}

/// What pages hold. Blocks are only read.
pub struct Contents(pub Vec<Option<(u64, u64)>>);

impl GuestMemory for Contents {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        self.0[page as usize]
    }

    fn version(&self, _block: u64) -> u64 {
        0
    }

    fn pages(&self) -> u32 {
        self.0.len() as u32
    }
}

impl Grouped {
    pub fn new(zeroing: bool) -> Self {
        let spare = PAGES / 50;
        let sizes = [PAGES / 4, PAGES - PAGES / 4 - spare];
        let place = [(0..sizes[0]).collect(), (sizes[0]..sizes[0] + sizes[1]).collect()];
        let free = (sizes[0] + sizes[1]..PAGES).collect();
        let memory = Contents(vec![None; PAGES as usize]);
        Self { groups: sizes.map(|pages| page_cache(pages, zeroing)), place, free, memory, zeroing, stream: 0 }
    }
}

impl Kind for Grouped {
    fn step(&mut self, _part: f64, x: u64, host: &mut Host) {
        let Self { groups, place, free, memory, zeroing, stream } = self;
        let group = usize::from(!x.is_multiple_of(4));
        let block = if group == 0 {
            *stream = (*stream + 1) % SET;
            SET + *stream
        } else {
            skewed(x / 4, SET)
        };
        groups[group].access(block, false, &mut |_, t| {
            let page = free.pop_front().expect("as many as there were");
            free.push_back(std::mem::replace(&mut place[group][t.page as usize], page));
            if *zeroing {
                memory.0[page as usize] = None;
            }
            host.transfer(memory, Transfer { page, ..t });
            memory.0[page as usize] = Some((t.block, 0));
        });
    }
}

/// A page cache that gets a third more of memory after a fifth of the run.
pub struct Hotplugged {
    guest: SimulatedGuest,
    grown: bool,
}

impl Hotplugged {
    pub fn new(zeroing: bool) -> Self {
        Self { guest: page_cache(PAGES / 4 * 3, zeroing), grown: false }
    }
}

impl Kind for Hotplugged {
    fn pages(&self) -> u32 {
        self.guest.pages()
    }

    fn step(&mut self, part: f64, x: u64, host: &mut Host) {
        if part > 0.2 && !self.grown {
            self.grown = true;
            self.guest.grow(PAGES / 4);
            host.remap(self.guest.pages());
        }
        self.guest.access(skewed(x, SET), false, &mut |g, t| _ = host.transfer(g, t));
    }
}
