//! A guest whose memory can be seen: pages that hold what was read, change under the cache's eyes, and lie.
//!
//! Owns the memory of one guest, whichever of its disks see it, and its few rules: which pages the next request uses,
//! what happens to pages between requests; and which blocks each page was used for, as far as the core can know. Never
//! keeps to what a well-behaved guest would do: it zeroes pages or not, copies them elsewhere (migration), gives them
//! up (ballooning), dirties them, fills them with other blocks' content, rewrites them while they are being read, and
//! uses one page for two requests at a time. Invariant: none of that may ever show in what is served, since a copy is
//! kept only if it is what the disk holds.

use crate::rng::{Rng, fill_pattern};
use undercroft_host::FRAME_BYTES;

/// Bytes of a page.
const B: usize = FRAME_BYTES;

/// The memory of one guest.
pub struct SimGuest {
    pages: Vec<[u8; B]>,
    /// Pages given up by ballooning: they cannot be copied.
    holes: Vec<bool>,
    /// Zeroes a page when it takes it for a request.
    zeroing: bool,
    /// Uses pages in a ring, as a small cache in order of age would; otherwise any page.
    in_order: bool,
    next: usize,
    /// Pages that are taken, zeroed and given up together (a large folio).
    folio: usize,
    /// One in so many copies of a page is torn: the page changes half-way.
    tears_one_in: u64,
    /// Never has a page of zeroes: whoever waits for a page that holds no block would take it for a block of zeroes.
    never_zero: bool,
    /// For each page the blocks that the core was told were moved through it, with their disks and as the bytes that
    /// they begin with, and that are not to be forgotten since.
    moved: Vec<Vec<(usize, u64)>>,
}

impl SimGuest {
    /// A guest of a few pages.
    pub fn new(rng: &mut Rng) -> Self {
        let pages = *rng.pick(&[1usize, 4, 16, 40, 100]);
        Self {
            pages: vec![[0; B]; pages],
            holes: vec![false; pages],
            zeroing: rng.one_in(2),
            in_order: !rng.one_in(4),
            next: 0,
            folio: 1,
            tears_one_in: *rng.pick(&[0, 0, 10, 100]),
            never_zero: false,
            moved: vec![Vec::new(); pages],
        }
    }

    /// A guest that keeps pages for a while, and none of zeroes only, but for what blocks of zeroes put there.
    pub fn never_zero(&mut self) {
        let pages = self.pages.len().max(16);
        self.pages.resize(pages, [0; B]);
        self.holes.resize(pages, false);
        self.moved.resize(pages, Vec::new());
        self.pages.iter_mut().for_each(|page| page.fill(1));
        self.in_order = true;
        (self.zeroing, self.never_zero) = (false, true);
    }

    /// Pages come in folios of so many, one after the other.
    pub fn set_folio(&mut self, pages: usize) {
        (self.folio, self.in_order) = (pages, self.in_order || pages > 1);
    }

    /// The core was told that what `disk` has from byte `place` on goes through this page.
    pub fn moves(&mut self, page: u32, disk: usize, place: u64) {
        let moved = &mut self.moved[page as usize];
        if !moved.contains(&(disk, place)) {
            moved.push((disk, place));
        }
    }

    /// Whether the core may think that this page holds what `disk` has from byte `place` on.
    pub fn may_hold(&self, page: u32, disk: usize, place: u64) -> bool {
        self.moved.get(page as usize).is_some_and(|moved| moved.contains(&(disk, place)))
    }

    /// What the core was told is to be forgotten: all of it, or what is of one disk.
    pub fn forget(&mut self, disk: Option<usize>) {
        self.moved.iter_mut().for_each(|moved| moved.retain(|&(d, _)| disk.is_some_and(|disk| d != disk)));
    }

    /// Pages in all.
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Takes a page for a request.
    pub fn take_page(&mut self, rng: &mut Rng) -> u32 {
        let n = self.pages.len();
        let page = if self.in_order {
            self.next = (self.next + 1) % n;
            self.next
        } else {
            rng.below(n as u64) as usize
        };
        self.holes[page] = false;
        if self.zeroing && page.is_multiple_of(self.folio) {
            let end = (page + self.folio).min(n);
            self.pages[page..end].iter_mut().for_each(|page| page.fill(0));
        }
        page as u32
    }

    /// What the guest writes or reads is in this page from now on; `opaque`: as it is before encryption.
    pub fn fill(&mut self, page: u32, at: usize, bytes: &[u8], opaque: bool) {
        let page = &mut self.pages[page as usize][at..at + bytes.len()];
        page.copy_from_slice(bytes);
        if opaque {
            page.iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
    }

    /// The cache copies a page. False for a hole: it must not be touched.
    pub fn copy(&mut self, page: u32, to: &mut [u8; B], rng: &mut Rng) -> bool {
        let Some(from) = self.pages.get_mut(page as usize) else { return false };
        if self.holes[page as usize] {
            return false;
        }
        to.copy_from_slice(from);
        if self.tears_one_in > 0 && rng.one_in(self.tears_one_in) {
            // rewritten while it was read
            let cut = rng.below(B as u64) as usize;
            fill_pattern(rng.bits() | 1 << 40, cut as u64, &mut from[cut..]);
            to[cut..].copy_from_slice(&from[cut..]);
        }
        true
    }

    /// Something happens in the guest that the core is not told of.
    pub fn live(&mut self, rng: &mut Rng) {
        let n = self.pages.len() as u64;
        let (a, b) = (rng.below(n) as usize, rng.below(n) as usize);
        match rng.below(10) {
            // migration: the content moves, its old place is used for something else
            0..3 => {
                self.pages[b] = self.pages[a];
                if rng.one_in(2) {
                    fill_pattern(rng.bits() | 1 << 41, 0, &mut self.pages[a]);
                }
            }
            // dirty, or freed and used for something else
            3..5 => {
                let at = rng.below(B as u64 - 8) as usize;
                fill_pattern(rng.bits() | 1 << 42, at as u64, &mut self.pages[a][at..at + 8]);
            }
            5..7 => self.pages[a].fill(u8::from(self.never_zero)),
            7 => self.holes[a] = true,
            // exchanged: each holds a block that exists, but not the one it was given
            _ => self.pages.swap(a, b),
        }
    }
}
